"""Plugins: the example on their documentation page works, and only the caller can name a plugin."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import unicloze
from unicloze import plugins
from unicloze.cli import main
from unicloze.errors import UsageError
from unicloze.evaluation.metrics.registry import METRICS
from unicloze.objectives import OBJECTIVES
from unicloze.recipes import load_recipe
from unicloze.recipes.schema import every_key
from unicloze.tasks import TASKS
from unicloze.tasks.columns import record_of_texts

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
COMB, LOOSE = (text for kind, text in BLOCKS if kind == "python")
(MINE,) = (text for kind, text in BLOCKS if kind == "yaml")
TEXT = "A list is a mutable sequence of items that can be changed. " * 200
FILES = {"comb.py": COMB, "loose.py": LOOSE, "mine.yaml": MINE, "text.txt": TEXT}
SHELL = [text.strip().splitlines() for kind, text in BLOCKS if kind == "sh"]
HOSTILE = "from pathlib import Path\nPath(__file__).with_name('was-run').touch()\nOBJECTIVES = {}\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder; registrations are undone after each test."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    for registry in (OBJECTIVES, TASKS):
        monkeypatch.setattr(registry, "_added", {})
    monkeypatch.setattr(plugins, "_registered", set())
    before = dict(METRICS)
    yield tmp_path
    METRICS.clear()
    METRICS.update(before)


def forget() -> None:
    """As in a new process."""
    OBJECTIVES._added.clear()
    plugins._registered.clear()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained with the objective on the page."""
    folder = tmp_path_factory.mktemp("comb")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    words = f"pretrain --plugin {folder}/comb.py --recipe {folder}/mine.yaml --toy --quiet --out {folder}/run"
    assert main([*words.split(), "--data.corpus", f"{folder}/text.txt", "--data.heldout_share", "0"]) == 0
    forget()
    return folder / "run"


# The page


def test_the_objective_of_the_page_is_short() -> None:
    assert len(COMB.strip().splitlines()) < 40


def test_the_commands_of_the_page(run: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "runs").mkdir()
    shutil.copytree(run, place / "runs" / "comb")
    inspected, trained, filled, scored = (shlex.split(line)[1:] for line in SHELL[0])
    assert trained[:4] == ["pretrain", "--plugin", "comb.py", "--recipe"]  # as `run` did
    for words in (inspected, filled, scored):
        forget()
        assert main([*words, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said
    assert said[0]["chain_log_likelihood"] is None and said[0]["pseudo_log_likelihood"] < 0


def test_the_metric_of_the_page(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "predictions.jsonl").write_text('{"id": "1", "prediction": "Yes"}\n{"id": "2", "prediction": "no"}\n')
    (place / "test.jsonl").write_text(
        '{"text": "a", "label": "yes", "id": "1"}\n{"text": "b", "label": "yes", "id": "2"}\n'
    )
    (words,) = SHELL[1]
    assert main([*shlex.split(words)[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["loose"]["values"] == {"accuracy": 50.0}


def test_its_setting_is_one_like_others(capsys: pytest.CaptureFixture[str]) -> None:
    unicloze.register("comb.py")
    assert load_recipe("mine.yaml").objective == OBJECTIVES["comb"].settings(targets=["ae"], every=5)
    assert "objective.every" in every_key()
    assert main(["pretrain", "--plugin", "comb.py", "--recipe", "mine.yaml", "--help-settings"]) == 0
    out = capsys.readouterr().out
    assert "--objective.every 5\n        Distance from one masked token to the next." in out
    for recipe, overrides, message in (
        ("mine.yaml", {"objective.every": 0}, "option --objective.every: objective.every is 0; it must be above 0"),
        ("mine.yaml", {"objective.every": "x"}, "objective.every is 'x'; expected a whole number"),
        ("mine.yaml", {"objective.max_span": 2}, "max_span is not a setting of comb; unilmv2"),
        ("unilmv2-base", {"objective.every": 2}, "every is not a setting of unilmv2; comb has it."),
        ("mine.yaml", {"objective.targets": ["par"]}, "name at least one of 'ae'"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            load_recipe(recipe, overrides)


def test_a_plugin_may_be_given_anywhere_and_twice(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["inspect", "--recipe", "mine.yaml", "--text", "a b c d e f g h"]
    assert main(["--plugin=comb.py", "--plugin", "loose.py", *words, "--plugin", "comb.py"]) == 0
    assert "comb" in OBJECTIVES and "loose" in METRICS
    assert "objective comb" in capsys.readouterr().out


def test_commands_in_messages_repeat_the_plugins(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without them they would be refused."""
    moved = run.parent / "my plugins" / "comb.py"
    moved.parent.mkdir(exist_ok=True)
    moved.write_text(COMB)
    words = ["pretrain", "--recipe", "mine.yaml", "--out", str(run), "--data.corpus", "text.txt", "--plugin"]
    assert main([*words, str(moved), "--training.seed", "7"]) == 2
    said = capsys.readouterr().err
    assert f"unicloze --plugin '{moved}' pretrain --out {run}" in said
    assert main(["pretrain", "--recipe", "quickstart", "--out", str(run)]) == 2
    assert "--plugin '" not in capsys.readouterr().err


TASK = """
import dataclasses
from unicloze.tasks import TASKS as KNOWN
from unicloze.tasks.classification import ClassificationSettings

@dataclasses.dataclass(frozen=True, kw_only=True)
class TopicSettings(ClassificationSettings):
    kind: str = "topics"
    most: int = 3

TASKS = {"topics": dataclasses.replace(KNOWN["classification"], settings=TopicSettings, texts=())}
"""


def test_a_task_brings_its_own_setting(place: Path) -> None:
    (place / "topics.py").write_text(TASK)
    mine = place / "topics.yaml"
    mine.write_text("base: classification\ntask: {kind: topics, most: 2}\n")
    with pytest.raises(UsageError, match=r"topics.yaml, line 2: task.kind is 'topics'; .* add --plugin FILE"):
        load_recipe(mine)
    unicloze.register("topics.py")
    assert vars(load_recipe(mine).task)["most"] == 2
    with pytest.raises(UsageError, match="most is not a setting of classification; topics has it"):
        load_recipe("classification", {"task.most": 2})
    with pytest.raises(UsageError, match=r"task topics does not declare which of its fields are texts \(`texts`\)"):
        record_of_texts(["a"], load_recipe(mine))


# Only the caller names a plugin


def test_a_model_is_refused_without_its_plugin_and_nothing_is_run(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["score", "--model", str(run), "--text", "a"], ["fill", "--model", str(run), "--text", "a [MASK]"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "objective.name is 'comb'; known objectives: unilmv2" in said and "add --plugin FILE" in said
    assert main(["pretrain", "--out", str(run)]) == 2
    unicloze.register(run.parent / "comb.py")
    assert unicloze.score(run, ["a list"])[0].pseudo_log_likelihood


@pytest.mark.parametrize("recipe", [
    "objective: {name: evil}",
    "objective: {name: evil.py}",
    "objective: {name: ./evil.py, anything: 1}",
    "objective: {mixture: [{name: evil, anything: 1}]}",
    "training: {phases: [{objective: {name: evil, anything: 1}}]}",
    "objective: {name: unilmv2, mixture: [{name: evil}]}",
    "plugin: evil.py",
    "base: unilmv2-base\nplugin: evil",
    "task: {kind: evil, metrics: [accuracy]}",
])  # fmt: skip
def test_a_recipe_or_a_checkpoint_runs_nothing(
    recipe: str, place: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "evil.py").write_text(HOSTILE)
    monkeypatch.syspath_prepend(place)
    (place / "hostile.yaml").write_text(f"name: hostile\n{recipe}\n")
    assert main(["inspect", "--recipe", "hostile.yaml", "--text", "a b c"]) == 2
    said = capsys.readouterr().err
    assert "--plugin FILE" in said and "hostile.yaml" in said
    shutil.copytree(run, place / "run")
    for file in (place / "run").rglob("recipe.yaml"):
        file.write_text(f"name: hostile\n{recipe}\n")
        if (manifest := file.with_name("manifest.json")).is_file():  # an author writes the checksums too
            held = json.loads(manifest.read_text())
            held["sha256"]["recipe.yaml"] = hashlib.sha256(file.read_bytes()).hexdigest()
            manifest.write_text(json.dumps(held))
    assert main(["score", "--model", "run", "--text", "a"]) == 2
    assert "--plugin FILE" in capsys.readouterr().err
    assert not (place / "was-run").exists()


# What a plugin must define


@pytest.mark.parametrize(("source", "message"), [
    ("x = 1", "it adds nothing: define at least one of OBJECTIVES, TASKS, METRICS"),
    ("OBJECTIVES = {'a': 1}", "OBJECTIVES is not a mapping from names to Objective"),
    ("1 / 0", "loading it fails with ZeroDivisionError: division by zero; --debug shows where"),
    (COMB.replace('"comb"', '"masked"'), "OBJECTIVES has 'masked', which already exists"),
    (COMB.replace('{"comb": O', '{"brush": O'), "CombSettings has the name 'comb', but it is registered as 'brush'"),
    (COMB.replace("every: int = setting(4, POSITIVE)", "every: int"), "CombSettings: "),
    (
        COMB.replace("every: int = setting(4, POSITIVE)", "max_span: str = ''"),
        "objective.max_span has another type in other objectives",
    ),
])  # fmt: skip
def test_what_cannot_be_added_is_refused(source: str, message: str, place: Path) -> None:
    (place / "wrong.py").write_text(source)
    with pytest.raises(UsageError, match=re.escape(f"--plugin {place / 'wrong.py'}: {message}")):
        unicloze.register(place / "wrong.py")
    assert list(OBJECTIVES._added) == []
