"""No setting or option is accepted but ignored: see `option_table` and `option_verbs`."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from option_table import NO_EFFECT, SCENES, SETTINGS, VERBS
from option_verbs import COMMON, COMPARE, OPTIONS, REFUSED, SAME
from option_world import OBJECTIVES, Scene, World
from unicloze import cli, doctor, verbs
from unicloze.comparison.contestants import contestants, contestants_at_budget
from unicloze.doctor import Examination, Finding
from unicloze.errors import UsageError
from unicloze.evaluation.metrics import registry
from unicloze.interop import read
from unicloze.pretraining.budget import Budget
from unicloze.recipes import load_recipe, parse_options
from unicloze.recipes.schema import every_key
from unicloze.text.prepare import Prepared
from unicloze.training.loading import LoadedModel, Open

ANY = ""
"""The scene of complete commands."""
TASKS = "classes", "numbers", "choices", "tags", "questions", "turns", "sources"
"""Scenes of fine-tuning, one for each kind of task."""
QUICK = "prepare ", "pretrain ", "inspect "
"""Beginnings of commands that take less than a tenth of a second."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    place, opened, load = tmp_path_factory.mktemp("options"), dict[Path, LoadedModel](), read.load_model

    def load_once(path: Path, opens: Open | None = None) -> LoadedModel:
        """Runs that the tests must not change."""
        real = Path(path).resolve()
        if not real.is_relative_to(place / "runs"):
            return load(path, opens)
        if real not in opened:
            opened[real] = load(path, opens)
        return opened[real]

    def served(model: LoadedModel, vectors: object, **given: object) -> str:
        return f"{model.path} in {model.precision} with {given}".replace(", ", "; ")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.delenv("UNICLOZE_TOKEN", raising=False)
        with contextlib.suppress(ImportError):  # the extra serve is not installed
            patch.setattr("unicloze.serving.run.serve_model", served)
        patch.setattr(read, "load_model", load_once)
        patch.setattr(registry, "_SAMPLES", 8)
        prepared = functools.cache(lambda _, *folder, load=Prepared.load, **how: load(*folder, **how))
        patch.setattr(Prepared, "load", lambda *folder, **how: prepared(os.getcwd(), *folder, **how))
        found = Finding(topic="disk", state="ok", detail="enough")  # `test_doctor` examines this machine
        patch.setattr(doctor, "examine", lambda: Examination(findings=(found,)))
        yield World(place, {**SCENES, ANY: Scene("")})


def called(key: str, value: str, beside: str = "") -> str:
    return f"{beside} --{key} {value}" if value else beside


SLOW = "compare", "evaluate", "measure-task", "report", "export", "finetune", "predict", "generate", "import", "recipes"
"""Verbs that train, generate or import much."""


def with_marks(key: str, scene: Scene) -> object:
    """A row as a test parameter, marked slow if its scene is."""
    return pytest.param(key, marks=[] if scene.words.startswith(QUICK) and not scene.then else [pytest.mark.whole])


# Settings


def test_every_setting_has_a_row() -> None:
    assert {*SETTINGS} == {*every_key()}, "give option_table.py two values of each setting"


@pytest.mark.whole
@pytest.mark.parametrize("key", [with_marks(key, SCENES[row.on]) for key, row in SETTINGS.items()])
def test_two_values_of_a_setting_differ(key: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    row, compiled = SETTINGS[key], list[nn.Module]()
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled.append(module))
    first = world.outcome(row.on, called(key, row.first, row.beside))
    assert first.code == 0, first.err
    second = world.outcome(row.on, called(key, row.second, row.beside), None if row.same else first)
    assert second.code == 0 or second.refused, second.err
    assert (first == second) == bool(row.same)
    assert bool(compiled) == (key == "training.compile")


@pytest.mark.parametrize("verb", [pytest.param(v, marks=[] if v == "inspect" else [pytest.mark.slow]) for v in VERBS])
def test_two_values_of_each_setting_of_a_verb_differ_or_are_refused(verb: str, world: World) -> None:
    scene, unread, wrong = VERBS[verb], set(), {}
    for key, row in SETTINGS.items():
        if SCENES[row.on].words.startswith(f"{verb} ") or key == "training.compile":
            continue  # already checked above
        first, second = world.outcome(scene, row.beside), world.outcome(scene, called(key, row.second, row.beside))
        if second.code and not second.refused:
            wrong[key] = second.err
        elif first == second and not second.refused:
            unread.add((verb, key))
    assert not wrong
    assert unread == {place for place in NO_EFFECT if place[0] == verb}


@pytest.mark.whole
@pytest.mark.parametrize("key", SETTINGS)
def test_a_comparison_takes_a_setting_into_its_runs_or_refuses_it(key: str, world: World) -> None:
    row, recipe = SETTINGS[key], str(world.place / "unilmv2.yaml")
    given = parse_options(world.words(called(key, row.second, row.beside)))
    prepared, budget = Prepared.load(world.place / "prepared"), Budget.parse("steps=10")
    try:
        (contestant,) = contestants([recipe], like=None, overrides=given)
        wanted = load_recipe(recipe, given)
        planned = contestants_at_budget(contestant, prepared, budget, world.place, given).recipe
    except UsageError as error:
        assert key in str(error) or row.beside
        return
    section, _, name = key.rpartition(".")
    values = [getattr(getattr(one, section), name) for one in (wanted, planned)]
    assert values[0] == values[1]


OF_THE_KIND = {"objective.name", "objective.targets"} | {
    f"task.{n}" for n in ("kind", "format", "metrics", "metric_options")
}
"""The settings that make an objective or a task what it is."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "name"), [*(("objective", name) for name in OBJECTIVES), *(("task", kind) for kind in TASKS)]
)
def test_an_objective_or_a_kind_of_task_reads_a_setting_or_refuses_it(section: str, name: str, world: World) -> None:
    unread = {}
    for key, row in SETTINGS.items():
        if not key.startswith(f"{section}.") or key in OF_THE_KIND:
            continue
        value = "right_to_left" if key == "objective.visibility" else row.second
        first, second = (world.outcome(name, called(key, each, row.beside)) for each in (row.first, value))
        assert second.code == 0 or second.refused, second.err
        if first == second and not second.refused:
            unread[key] = value
    assert not unread


@pytest.mark.whole
def test_a_run_keeps_how_it_is_to_generate(world: World) -> None:
    scene = "writing"
    first, second = world.outcome(scene, ""), world.outcome(scene, "--decoding.max_length 3")
    assert first.code == second.code == 0 and first.out != second.out


# Options of verbs


def test_every_option_of_every_verb_has_a_row() -> None:
    found = []
    for name, verb in cli.VERBS.items():
        parser = cli._verb_parser(name, verb, with_settings=False)
        words = [action.option_strings[-1] if action.option_strings else action.dest for action in parser._actions]
        assert set(COMMON) <= set(words) and ("--help-settings" in words) == bool(verb.settings)
        found += [(name, word) for word in words if word not in (*COMMON, "--help-settings")]
    assert {*found} == {*OPTIONS} and len(found) == len({*found}), "give option_verbs.py two calls of each option"


@pytest.mark.parametrize(
    ("verb", "option"), [pytest.param(*key, marks=[pytest.mark.whole] * (key[0].split()[0] in SLOW)) for key in OPTIONS]
)
def test_two_values_of_an_option_differ(verb: str, option: str, world: World) -> None:
    if verb == "serve":
        pytest.importorskip("fastapi", reason="the extra serve is not installed")
    calls, same = OPTIONS[verb, option], (verb, option) in SAME
    first = world.outcome(ANY, calls[0])
    second = world.outcome(ANY, calls[1], None if same or first.code else first)
    for one in (first, second):
        assert one.code == 0 or one.refused, one.err
    assert 0 in (first.code, second.code), first.err
    assert (first == second) == same


@pytest.mark.whole
@pytest.mark.parametrize("command", REFUSED)
def test_what_would_change_nothing_is_refused(command: str, world: World) -> None:
    outcome = world.outcome(ANY, command)
    assert outcome.refused and outcome.code == 2, outcome.err
    assert REFUSED[command] in outcome.err


@pytest.mark.whole
def test_a_comparison_evaluates_as_often_as_requested(world: World) -> None:
    def evaluations(every: int) -> int:
        outcome = world.outcome(ANY, f"{COMPARE.replace('=2', '=6')} --training.evaluate_every {every}")
        ledger = outcome.files["runs/compare/unilmv2/seed-0/ledger.jsonl"]
        return sum(event["event"] == "evaluate" for event in ledger)

    assert [evaluations(every) for every in (0, 2, 3)] == [1, 3, 2]


def test_a_setting_may_be_given_in_a_section(world: World) -> None:
    """As a Python caller may do."""
    model, train = world.run_of("unilmv2"), world.place / "classes.jsonl"
    given = {"model": {"dropout": 0.3}, "finetuning": {"epochs": 1}, "training": {"device": "cpu"}}
    run = verbs.finetune("classification", model, train, out=world.place / "nested", quiet=True, overrides=given)
    assert load_recipe(run.out / "recipe.yaml").model.dropout == 0.3
    with pytest.raises(UsageError, match=r"data\.window cannot be set in fine-tuning"):
        verbs.finetune("classification", model, train, quiet=True, overrides={"data": {"window": 12}})
    with pytest.raises(UsageError, match=r"option --training\.steps: the comparison sets this"):
        verbs.compare([world.place / "unilmv2.yaml"], "steps=2", quiet=True, overrides={"training": {"steps": 3}})


def test_a_kernel_that_a_cpu_does_not_use_is_reported(world: World) -> None:
    options = "--training.attention sdpa"
    assert "training on a CPU does not use it" in world.outcome("unilmv2", options).err
    assert "kernel" not in world.outcome("unilmv2", f"{options} --model.attention_dropout 0").err


@pytest.mark.parametrize("verb", cli.VERBS)
def test_the_options_of_all_verbs_print(verb: str, world: World) -> None:
    helped, settings = (world.outcome(ANY, f"{verb} {option}") for option in ("--help", "--help-settings"))
    assert (helped.code, helped.err) == (0, "") and f"unicloze {verb}" in helped.out
    assert (settings.code == 0) == bool(cli.VERBS[verb].settings) or settings.refused
    refused, traced = (world.outcome(ANY, f"{verb} --no-such-option {option}") for option in ("", "--debug"))
    assert refused.refused and traced.code == 2 and traced.err != refused.err


@pytest.mark.slow
def test_the_same_call_does_the_same(world: World) -> None:
    """Otherwise the tests above would prove nothing."""
    scenes = [*VERBS.values(), "sources", "rewrite", "reported", "used"]
    varying = [scene for scene in scenes if world.outcome(scene, "") != world.outcome(scene, " ")]
    some = sorted({first for first, _ in OPTIONS.values()})[::5]
    varying += [words for words in some if world.outcome(ANY, words) != world.outcome(ANY, f"{words} ")]
    assert not varying
