"""The command line: what is printed where, and error messages."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from cli_toys import Command, copied
from conftest import REPOSITORY
from test_import_unilm import released
from unicloze import __version__, cli, verbs
from unicloze.cli.parser import Parser, Verb, call_arguments
from unicloze.errors import UniclozeError
from unicloze.objectives.unilmv2 import UniLMv2Settings
from unicloze.recipes import load_recipe, recipes_of
from unicloze.recipes.schema import SECTIONS, every_key, keys_of
from unicloze.verbs.options import Option

HEAVY = {"torch", "numpy", "pyarrow", "tokenizers", "transformers"}


PAIRS = "".join(
    f'{{"sentence_good": "The old cat {verb} the cat.", "sentence_bad": "Old the {verb} cat the cat.", "UID": "toy_order", '
    '"field": "syntax", "linguistics_term": "word_order"}\n'
    for verb in ("sees", "follows")
)


# Help


def test_help_imports_nothing_heavy() -> None:
    program = f"""
import sys
from unicloze.cli import VERBS, main
for words in ([], ["evaluate"], *map(str.split, VERBS)):
    assert main([*words, "--help"]) == 0
assert main(["--version"]) == 0
print("imported:", *sorted({HEAVY!r} & set(sys.modules)))
assert main(["pretrain", "--help-settings"]) == 0
print("imported:", *sorted({HEAVY!r} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    imported = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("imported:")]
    assert imported == [[], ["numpy", "tokenizers"]], "which the module of an objective needs"


def test_the_program_explains_itself(command: Command) -> None:
    said = command("--help")
    assert said.code == 0
    assert all(f"  {name}" in said.out and verb.purpose in said.out for name, verb in cli.VERBS.items())
    assert command("--version").out.strip() == f"unicloze {__version__}"
    nothing = command()
    assert (nothing.code, nothing.out) == (2, said.out)


@pytest.mark.parametrize("name", cli.VERBS)
def test_a_verb_explains_itself(name: str, command: Command) -> None:
    verb = cli.VERBS[name]
    said = command(*name.split(), "--help")
    assert said.code == 0 and verb.purpose in said.out
    assert all(example in said.out for example in verb.examples)
    for key in verb.settings:
        assert f"--{key}\n" in said.out and every_key()[key].description.split()[0] in said.out


def test_a_group_of_verbs_explains_itself(command: Command) -> None:
    said = command("evaluate", "--help")
    assert said.code == 0
    for name, verb in cli.VERBS.items():
        assert (f"  {name} " in said.out and verb.purpose in said.out) == name.startswith("evaluate ")
    assert "did you mean 'lambada'?" in command("evaluate", "lambda").sentence


def polish(
    what: Annotated[str, Option("THING", word=True)],
    cloths: Annotated[Sequence[str], Option("CLOTH", name="cloth", repeated=True)] = (),
    times: Annotated[int, Option("N")] | None = 0,
    how: Literal["gently", "hard"] = "gently",
    dry: bool = False,
    wax: Annotated[UnknownHere, Option("NAME")] | None = None,  # type: ignore[name-defined]  # noqa: F821
) -> None:
    """Polish a thing, 100 % of it.

    Args:
        what: Thing to polish; in Python also several.
        cloths: Cloths to use;
            may be given again.
        times: How often.
        how: `gently` or hard.
        dry: Use no water.
        wax: Which wax.

    Examples:
        unicloze polish shoe
            --cloth red
    """


@pytest.fixture
def polishing() -> tuple[Verb, Parser]:
    verb = Verb("polish", polish)
    return verb, cli._verb_parser("polish", verb, with_settings=False)


def test_a_function_declares_a_verb(polishing: tuple[Verb, Parser]) -> None:
    verb, parser = polishing
    assert (verb.purpose, verb.examples) == ("Polish a thing, 100 % of it.", ("unicloze polish shoe --cloth red",))
    told = " ".join(parser.format_help().split())
    for line in (
        "THING Thing to polish. ",
        "--cloth CLOTH Cloths to use; may be given again. ",
        "--times N How often (default: 0). ",
        "--how {gently,hard} gently or hard (default: gently). ",
        "--dry Use no water. ",
        "--wax NAME Which wax. ",
    ):
        assert line in told


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("shoe", {"what": "shoe"}),
        ("--cloth a --dry shoe --cloth b --times 3", {"what": "shoe", "cloths": ["a", "b"], "dry": True, "times": 3}),
        ("shoe --how hard", {"what": "shoe", "how": "hard"}),
    ],
)
def test_a_function_is_called_with_what_is_given(
    words: str, arguments: dict[str, Any], polishing: tuple[Verb, Parser]
) -> None:
    verb, parser = polishing
    assert call_arguments(verb, parser.parse_args(words.split()), {}) == arguments


def test_settings_go_to_the_argument_of_their_prefix(command: Command, asked: dict[str, Any]) -> None:
    words = "gpt --budget steps=5 --probe choice a b --probe.task.head mlp --model.dropout 0"
    assert command("compare", *words.split()).code == 1
    assert (asked["overrides"], asked["probe_overrides"]) == ({"model.dropout": "0"}, {"task.head": "mlp"})
    assert asked["probes"] == [["choice", "a", "b"]]


def test_all_settings_are_listed_with_their_values(command: Command) -> None:
    said = command("inspect", "--help-settings", "--recipe", "unilmv2-base", "--training.steps", "7")
    assert said.code == 0
    listed = dict(line[4:].split(" ", 1) for line in said.out.splitlines() if line.startswith("  --"))
    kinds = {**SECTIONS, "objective": UniLMv2Settings}
    assert set(listed) == {
        key for section in kinds for key in keys_of(section, kinds[section]) if section != "provenance"
    }
    for own, foreign, others in (
        ("objective.mask_rate", "objective.mean_span", ()),
        ("objective.visibility", "objective.mask_rate", ("--recipe", "gpt")),
    ):
        out = command("pretrain", "--help-settings", *others).out
        assert f"--{own}" in out and f"--{foreign}" not in out
    assert listed["training.steps"] == "7" and listed["model.hidden_size"] == "768"
    assert listed["objective.targets"] == "ae par" and listed["training.compile"] == "null"
    default = command("pretrain", "--help-settings").out
    assert "--training.batch_size 7680" in default and "--tokenizer.path null" in default


def words_of(example: str) -> list[str]:
    program, *words = shlex.split(example)
    assert program == "unicloze"
    return words


TAKES_MINUTES = "prepare", "pretrain", "compare"
ELSEWHERE = "serve", "doctor"
"""Verbs whose examples `test_examples_of_serving_are_sound` and `test_doctor` run."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in cli.VERBS if name not in (*TAKES_MINUTES, *ELSEWHERE)])
def test_examples_of_the_help_work(name: str, here: Path, command: Command) -> None:
    (here / "sentences.txt").write_text("the small cat sees the dog .\n", encoding="utf-8")
    (here / "words.txt").write_text("the\nold\ncat\nsees\nfollows\n", encoding="utf-8")
    for file, label in (("train", True), ("dev", True), ("test", False)):
        records = [{"text": word, **({"label": str(len(word))} if label else {})} for word in ("cat", "a", "small dog")]
        (here / f"{file}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        (here / f"{file}.tsv").write_text("text\tlabel\ncat\t1\nthe dog\t2\nold\t3\n")
    released(here / "bert-base-uncased", fused=False, relative=False, segments=2, model_type="bert")
    (here / "mine").mkdir(exist_ok=True)
    shutil.copy(here / "runs" / "quickstart" / "tokenizer.json", here / "mine")
    (here / "blimp").mkdir(exist_ok=True)
    (here / "blimp" / "toy_order.jsonl").write_text(PAIRS, encoding="utf-8")
    with tarfile.open(here / "blimp.tar.gz", "w:gz") as archive:
        archive.add(here / "blimp", "blimp")
    (here / "summaries.txt").write_text("the cat sees a dog\n", encoding="utf-8")
    (here / "gold.txt").write_text("the cat sees the dog\n", encoding="utf-8")
    (here / "predictions.jsonl").write_text('{"prediction": "3"}\n' * 3, encoding="utf-8")
    (here / "answers.json").write_text('{"a": "cat"}', encoding="utf-8")
    question = {"id": "a", "question": "Who sees?", "answers": [{"text": "the cat", "answer_start": 0}]}
    gold = {"data": [{"paragraphs": [{"context": "the cat sees the dog", "qas": [question]}]}]}
    (here / "dev-v2.0.json").write_text(json.dumps(gold), encoding="utf-8")
    passage = {"context": "the small cat sees the old", "continuation": "dog"}
    (here / "lambada.jsonl").write_text(json.dumps(passage) + "\n")
    told = [{"context": f"{who} sees the dog", "question": "Who sees?", "answers": [who]} for who in ("cat", "bird")]
    (here / "made.jsonl").write_text("".join(json.dumps(record) + "\n" for record in told))
    (here / "questions.txt").write_text("1 the cat is old .\n2 the cat sees the XXXXX .\tdog\t\tcat|dog\n")
    (here / "lengths.yaml").write_text('template: "{text} is {label}"\nlabels: {"3": small, "1": old, "9": cat}\n')
    for example in cli.VERBS[name].examples:
        said = command(*words_of(example))
        assert (said.code, bool(said.out)) == (0, True), said.err


@pytest.mark.parametrize("name", TAKES_MINUTES)
def test_examples_that_would_take_minutes_are_sound(
    name: str, here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_read(recipe: str | None = None, recipes: Sequence[str] = (), **arguments: object) -> None:
        for name in [recipe, *recipes_of(recipes), arguments.get("like")]:
            if name is not None:
                load_recipe(name, arguments["overrides"])  # type: ignore[arg-type]
        raise UniclozeError("as far as this test goes")

    monkeypatch.setattr(verbs, name, only_read)
    for example in cli.VERBS[name].examples:
        assert command(*words_of(example)).sentence == "as far as this test goes"


def test_examples_of_serving_are_sound(
    here: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pytest.importorskip("unicloze.serving.run", reason="the extra serve is not installed")
    monkeypatch.setattr(
        run, "serve_model", lambda model, _, **given: (model.path.is_dir(), given["host"], given["token"])
    )
    monkeypatch.delenv(run.TOKEN, raising=False)
    for name in ("quickstart", "classification"):
        shutil.copytree(here / "runs" / "quickstart", tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token.txt").write_text("a-token-of-some-length\n", encoding="utf-8")
    said = [command(*words_of(example)).out for example in cli.VERBS["serve"].examples]
    assert said == ["(True, '127.0.0.1', None)\n", "(True, '0.0.0.0', 'a-token-of-some-length')\n"]


# What is printed


def test_prepare_prints_what_there_is(here: Path, tmp_path: Path, command: Command) -> None:
    words = ("prepare", "--data.corpus", "my_text", "--tokenizer.vocab_size", "300", "--out", tmp_path / "data")
    said = command(*words)
    assert said.code == 0 and said.out.count("\n") == 1
    assert said.out.startswith(f"{tmp_path / 'data'}: ") and "to train on" in said.out and "held out" in said.out
    again = command(*words, "--quiet")
    assert again == (0, said.out, "")


def test_pretrain_prints_its_result_and_quiet_nothing_else(here: Path, tmp_path: Path, command: Command) -> None:
    run = copied(here / "runs" / "quickstart", tmp_path / "run")
    said = command("pretrain", "--out", run, "--training.steps", "3", "--quiet")
    assert said.code == 0
    assert "training.steps changes from 2 to 3" in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out.startswith(f"{run}: trained to step 3, held-out perplexity ae ")
    done = command("pretrain", "--out", run, "--quiet")
    assert done.code == 0 and done.out.startswith(f"{run}: trained to step 3")
    assert done.err.startswith("unicloze: warning: ") and done.err.count("\n") == 1


def test_pretrain_reports_a_signal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from unicloze.pretraining.run import RunResult

    stopped = RunResult(Path("runs/mine"), 12, 15, {}, "held-out")
    monkeypatch.setattr(verbs, "pretrain", lambda **_: stopped)
    said = command("pretrain")
    assert (said.code, said.err) == (143, "")
    assert said.out == "runs/mine: stopped and saved at step 12; run the same command to resume\n"


def test_inspect_as_text_and_json(here: Path, command: Command) -> None:
    words = ("inspect", "--text", "the small cat sees the dog", "--objective.mask_rate", "0.5", "--seed", "4")
    view = json.loads(command(*words, "--json").out)
    text = command(*words)
    assert text.code == 0 and text.err == ""
    assert all(f" {slot['token']} " in text.out for slot in view["slots"])


def test_inspect_prints_the_name_of_its_picture(here: Path, tmp_path: Path, command: Command) -> None:
    picture = tmp_path / "example.svg"
    assert command("inspect", "--text", "the small cat", "--picture", picture) == (0, f"{picture}\n", "")
    assert picture.stat().st_size > 1000


def test_fill_as_text_and_json(here: Path, command: Command) -> None:
    words = ("fill", "--model", "runs/quickstart", "--text", "the [MASK] cat", "--top-k", "2", "--order", "span")
    data = json.loads(command(*words, "--json").out)
    assert (data["order"], len(data["masks"][0]["top"])) == ("span", 2)
    lines = command(*words).out.splitlines()
    assert lines[0] == data["filled"]
    assert all(token in lines[-1] for token, _ in data["masks"][0]["top"])


def test_score_as_text_and_json(here: Path, command: Command) -> None:
    words = ("score", "--model", "runs/quickstart", "--text", "the small cat")
    said = command(*words, "--json")
    (data,) = json.loads(said.out)
    assert said.err.startswith("unicloze: note: "), "a model of one mask rate is poor at whole texts"
    shown = command(*words).out
    assert shown.startswith("the small cat\n")
    assert f"{data['chain_log_likelihood']:.2f}" in shown and f"{data['pseudo_log_likelihood']:.2f}" in shown


def test_evaluate_as_text_and_json(here: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "toy_order.jsonl").write_text(PAIRS, encoding="utf-8")
    words = ("evaluate", "blimp", tmp_path, "--model", "runs/quickstart", "--mode", "both")
    said = command(*words, "--json", "--quiet")
    data = json.loads(said.out)
    assert (said.code, said.err, data["pairs"]) == (0, "", 2)
    shown = command(*words)
    assert "chain rule: 28 of 28 tokens" in shown.err
    overall = next(line.split() for line in shown.out.splitlines() if line.startswith("overall"))
    assert overall == ["overall", "1", *(f"{data['accuracy'][name]:.1%}" for name in ("pseudo", "chain"))]
    assert "2 pairs of 1 sets compared" in shown.out
    assert command(*words, "--limit", "1", "--filter", "corpus", "--quiet").code == 0


def test_pairs_that_cannot_be_read(here: Path, tmp_path: Path, command: Command) -> None:
    words = ("evaluate", "blimp", "--model", "runs/quickstart", "--quiet")
    said = command(*words, tmp_path / "nowhere")
    assert said.code == 1 and str(tmp_path / "nowhere") in said.sentence
    (tmp_path / "broken.jsonl").write_text(PAIRS + '{"sentence_good": "A', encoding="utf-8")
    said = command(*words, tmp_path)
    assert said.code == 1 and f"{tmp_path / 'broken.jsonl'}, line 3: this is not JSON" in said.sentence
    (tmp_path / "broken.jsonl").write_text(PAIRS, encoding="utf-8")
    (tmp_path / "words.txt").write_text("zebra\n", encoding="utf-8")
    said = command(*words, tmp_path, "--filter", tmp_path / "words.txt")
    assert said.code == 1 and "leaves no pair" in said.sentence


def test_recipes_as_text_and_json(command: Command) -> None:
    rows = json.loads(command("recipes", "--json").out)
    table = command("recipes").out
    assert all(row["name"] in table and row["objective"] in table for row in rows)
    assert all(f"{row['parameters']:,}" in table for row in rows if row["parameters"] is not None)


def test_invalid_utf8_is_repaired(here: Path, command: Command) -> None:
    said = command("score", "--model", "runs/quickstart", "--text", os.fsdecode(b"the \xff cat"), "--json")
    assert said.code == 0 and json.loads(said.out)[0]["text"] == "the \ufffd cat"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Records the arguments of `compare` instead of running it."""
    found: dict[str, Any] = {}

    def compare(**arguments: Any) -> None:
        found.update(arguments)
        raise UniclozeError("enough")

    monkeypatch.setattr(verbs, "compare", compare)
    return found


@pytest.mark.parametrize(
    "words",
    [
        "--like quickstart --budget steps=5 --model.hidden_size 32 gpt bert",
        "--model.hidden_size=32 gpt --budget steps=5 bert --like quickstart",
        "gpt bert --like quickstart --model.hidden_size 32 --budget steps=5",
        "--model.hidden_size 32 gpt --like=quickstart --budget steps=5 -- bert",
    ],
)
def test_recipes_to_compare_may_follow_settings(words: str, command: Command, asked: dict[str, Any]) -> None:
    assert command("compare", *words.split()).code == 1
    assert (asked["recipes"], asked["like"]) == (["gpt", "bert"], "quickstart")
    assert asked["overrides"] == {"model.hidden_size": "32"}


def test_switches_and_lists_of_settings_before_recipes(command: Command, asked: dict[str, Any]) -> None:
    words = "--data.corpus a.txt b.txt --training.compile gpt --tokenizer.lowercase false bert --budget steps=5"
    assert command("compare", *words.split()).code == 1
    assert asked["recipes"] == ["gpt", "bert"]
    assert asked["overrides"] == {
        "data.corpus": ["a.txt", "b.txt"],
        "training.compile": True,
        "tokenizer.lowercase": "false",
    }


def test_python_m_unicloze_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "unicloze", "recipe"], capture_output=True, text=True, check=False, cwd=REPOSITORY
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'recipes'?" in done.stderr
