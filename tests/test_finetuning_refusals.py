"""What fine-tuning refuses to resume with, and several seeds."""

from __future__ import annotations

import dataclasses
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nlu_toys
from conftest import slow_except
from nlu_toys import finetuned
from test_finetuning_resume import SHORT, files, recipe_for, records, stop_behind
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.finetuning.initial import start_weights
from unicloze.finetuning.run import FinetuneResult
from unicloze.finetuning.scores import measure_file
from unicloze.finetuning.seeds import FinetuneSummary, _over_seeds, finetune_seeds
from unicloze.recipes import load_recipe
from unicloze.records import read_records
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.classification import ClassificationSettings
from unicloze.tasks.rows import Row, lay_out
from unicloze.training.loading import LoadedModel, load_model, ready_model
from unicloze.training.lock import refuse_changes
from unicloze.visibility import bool_mask


@pytest.fixture(scope="module")
def start() -> LoadedModel:
    return nlu_toys.start()


def test_a_run_does_not_resume_with_other_files_or_from_another_model(start: LoadedModel, tmp_path: Path) -> None:
    train, dev = files(tmp_path)
    recipe, out = recipe_for(start), tmp_path / "run"
    finetuned(recipe, start, train, dev, out)
    longer = nlu_toys.write(tmp_path / "longer.jsonl", records(12))
    renamed = dataclasses.replace(start, tokenizer=nlu_toys.start(tokenizer__lowercase=False).tokenizer)
    renamed.tokenizer.fingerprint = "other words for the same ids"

    def refused(message: str, model: LoadedModel = start, dev: Path | None = dev) -> None:
        with pytest.raises(UniclozeError, match=message):
            finetuned(recipe, model, train, dev, out)

    refused("another development file", dev=longer)
    refused("another development file", dev=None)
    refused("another model", nlu_toys.start(training__seed=3))
    refused("another model", renamed)
    nlu_toys.write(dev, [{"id": f"x{number}", **record} for number, record in enumerate(records(9))])
    refused("another development file")
    for other in (records(labels="ba"), 8 * records(12)):  # whose number decides the warm-up too
        nlu_toys.write(train, other)
        refused("another training file")


@pytest.mark.whole
@pytest.mark.parametrize(
    ("setting", "value", "key"),
    slow_except([("task__fields", {"text": "text"}, "task.fields.text text")], [
        ("task__fields", {"text": "text"}, "task.fields.text text"),
        ("task__metric_options", {"positive": "0"}, "task.metric_options.positive 0"),
        ("finetuning__auxiliary", {"ae": 0.5}, "finetuning.auxiliary.ae 0.5"),
    ]),
)  # fmt: skip
def test_a_run_does_not_resume_without_a_setting_it_started_with(
    start: LoadedModel, tmp_path: Path, setting: str, value: Any, key: str
) -> None:
    train, dev = files(tmp_path)
    given = {"finetuning__epochs": 1, "task__metrics": ["accuracy", "f1"]}
    train, dev = (nlu_toys.write(file, records(count, labels="01")) for file, count in ((train, 24), (dev, 9)))
    finetuned(recipe_for(start, **given, **{setting: value}), start, train, dev, tmp_path / "run")
    with pytest.raises(UsageError, match=f"holds a run with {re.escape(key)}, but this one has None: give the new"):
        finetuned(recipe_for(start, **given), start, train, dev, tmp_path / "run")
    with pytest.raises(UsageError, match=f"{key.split()[0]} None, but this one has {key.split()[1]}"):
        finetuned(recipe_for(start, **given), start, train, dev, tmp_path / "bare")
        finetuned(recipe_for(start, **given, **{setting: value}), start, train, dev, tmp_path / "bare")


def test_output_layers_of_other_classes_are_not_taken_over(start: LoadedModel, tmp_path: Path) -> None:
    train, _ = files(tmp_path)
    finetuned(recipe_for(start, finetuning__epochs=1), start, train, None, tmp_path / "run")
    first = load_model(tmp_path / "run")
    for labels, drawn in ((["a", "b"], 0), (["b", "a"], 2), (["x", "y"], 2)):
        recipe = recipe_for(first, task__labels=labels)
        model = ready_model(recipe, first.model.vocab_size, torch.device("cpu"))
        names = start_weights(model, first, recipe.task)
        assert len(names) == drawn and all(".output." in name for name in names)


@pytest.mark.parametrize("head", ["plain", "dense", "dense_gelu", "dense_relu"])
def test_a_head_is_copied_only_into_one_of_the_same_layers(start: LoadedModel, tmp_path: Path, head: str) -> None:
    """A pooler and a dense head have a tanh; a head with another activation starts anew, its output layer too."""
    train, _ = files(tmp_path)
    recipe = recipe_for(start, finetuning__epochs=1, task__head="dense")
    finetuned(recipe, start, train, None, tmp_path / "run")
    tuned = load_model(tmp_path / "run")
    pooled = dataclasses.replace(start, model=ready_model(
        dataclasses.replace(start.recipe, model=dataclasses.replace(start.recipe.model, pooler=True)),
        start.model.vocab_size, torch.device("cpu"),
    ))  # fmt: skip
    for before, kept in ((tuned, {"dense", "output"}), (pooled, {"dense"})):
        recipe = recipe_for(before, task__labels=["a", "b"], task__head=head)
        model = ready_model(recipe, before.model.vocab_size, torch.device("cpu"))
        parts = {name.split(".")[2] for name in model.state_dict() if name.startswith("task_heads.")}
        anew = before is tuned and head != "dense"
        with pytest.warns(UserWarning, match="it is newly initialised") if anew else nullcontext():
            names = start_weights(model, before, recipe.task)
        drawn = {name.split(".")[2] for name in names if name.startswith("task_heads.")}
        assert drawn == (parts - kept if head == "dense" else parts)


def test_seeds_whose_metrics_have_other_values_have_those_in_common(
    start: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entity type that only one seed predicts, wrongly, has no F1 with another seed."""

    def run(recipe: Recipe, *arguments: Any, **_: Any) -> FinetuneResult:
        values = {"f1": 50.0 + recipe.training.seed} | ({"f1_LOC": 0.0} if recipe.training.seed == 0 else {})
        scores = {"entity-f1": MetricResult(metric="entity-f1", values=values, items=2)}
        return FinetuneResult(tmp_path, 1, 1, 15 * (recipe.training.seed == 2), scores)

    monkeypatch.setattr("unicloze.finetuning.seeds.finetune_run", run)
    summary = finetune_seeds(recipe_for(start), start, tmp_path, None, tmp_path, seeds=4)
    assert list(summary.scores["entity-f1"]) == ["f1"]
    assert summary.scores["entity-f1"]["f1"].mean == 50.5, "the seed that was stopped does not count"
    assert len(summary.runs) == 3 and f"{tmp_path}: 2 seeds: f1 50.50" in str(summary)


def test_a_seed_that_was_stopped_is_the_last_one(
    start: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, dev = files(tmp_path)
    stop_behind(monkeypatch, 2)
    summary = finetune_seeds(recipe_for(start), start, train, dev, tmp_path / "runs", seeds=3, progress=False)
    assert [(run.out.name, run.step) for run in summary.runs] == [("seed-0", 2)]
    assert not (tmp_path / "runs" / "seed-1").exists()


@pytest.mark.whole
def test_a_folder_holds_one_run_or_those_of_several_seeds(start: LoadedModel, tmp_path: Path) -> None:
    train, dev = files(tmp_path)
    recipe = recipe_for(start, finetuning__epochs=1)

    def tune(folder: str, seeds: int) -> list[str]:
        summary = finetune_seeds(recipe, start, train, dev, tmp_path / folder, seeds=seeds, progress=False)
        return [run.out.name for run in summary.runs]

    assert tune("several", 2) == ["seed-0", "seed-1"] and tune("one", 1) == ["one"]
    former = {name: (tmp_path / name / "results.json").read_bytes() for name in ("several", "one")}
    for folder, seeds, message in (
        ("several", 1, "several holds 2 runs of --seeds, in folders seed-N: give the run of this"),
        ("one", 2, "one holds a run without --seeds: give the runs of this command another --out"),
    ):
        with pytest.raises(UsageError, match=message):
            tune(folder, seeds)
    assert former == {name: (tmp_path / name / "results.json").read_bytes() for name in former}
    with pytest.warns(UserWarning, match="already fully trained"):
        assert tune("several", 3) == ["seed-0", "seed-1", "seed-2"] and tune("one", 1) == ["one"]
    with pytest.raises(UsageError, match="holds the run of seed 2, which is not one of this command's 2 seeds"):
        tune("several", 2)


def test_what_selected_the_checkpoint_comes_first_and_many_values_go_below() -> None:
    def result(name: str, count: int, headline: str, out: str = "run") -> FinetuneResult:
        values = {**{f"value_{n}": 10.0 * n for n in range(count)}, headline: 50.0}
        scores = {
            name: MetricResult(metric=name, values=values, items=3, errors={headline: 2.5}),
            "loss": MetricResult(metric="loss", values={"loss": 2.0}, items=3, units={"loss": "nats per token"}),
        }
        return FinetuneResult(Path(out), 1200, 800, 0, scores, headline)

    def said(*runs: FinetuneResult) -> list[str]:
        return str(FinetuneSummary(Path("run"), runs, _over_seeds(runs))).splitlines()

    assert said(result("f1", 2, "f1")) == [
        "run: trained to step 1,200, best by f1 at step 800: f1 50.00 (standard error 2.50), value_0 0.00, value_1 10.00, "
        "loss 2 nats per token"
    ]
    lines = said(result("rouge", 4, "rouge2"))
    assert lines[0] == "run: trained to step 1,200, best by rouge2 at step 800: rouge2 50.00 (standard error 2.50)"
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "rouge of 3 items",
        *(f"value_{n} {10 * n}.00 %" for n in range(4)),
        "rouge2 50.00 % (standard error 2.50)",
        "loss of 3 items",
        "loss 2.0000 nats per token",
    ]
    both = said(result("rouge", 4, "rouge2", "run/seed-0"), result("rouge", 4, "rouge2", "run/seed-1"))
    assert [line.partition(":")[0] for line in both[:3]] == ["run/seed-0", "run/seed-1", "run"]
    assert both[2] == "run: 2 seeds: rouge2 50.00 ± 0.00" and both[3:5] == ["  rouge", "    value_0  0.00 ± 0.00"]
    assert both[-2:] == ["  loss", "    loss  2 ± 0 nats per token"]


def test_predict_refuses_impossible_outputs(start: LoadedModel, tmp_path: Path) -> None:
    train, dev = files(tmp_path)
    overrides = {**nlu_toys.QUICK, "finetuning.epochs": 1}
    verbs.finetune("classification", start, train, dev, tmp_path / "runs", seeds=2, quiet=True, overrides=overrides)
    with pytest.raises(UniclozeError, match="several runs: give one of its folders seed-0, seed-1"):
        verbs.predict(tmp_path / "runs", dev, quiet=True)
    twice = nlu_toys.write(tmp_path / "twice.jsonl", [{"id": "x", "text": "anna"}, {"id": "x", "text": "eva"}])
    with pytest.raises(UsageError, match="two records have the id 'x'"):
        verbs.predict(tmp_path / "runs" / "seed-0", twice, out=tmp_path / "said.json", quiet=True)


@pytest.mark.parametrize("name", ["electra-base", "unilm-v1-base", "gpt-3-small"])
def test_a_model_of_any_objective_learns_a_task_and_is_read_again(tmp_path: Path, name: str) -> None:
    """A task needs neither a generator nor rows for all parts of a mixture; local layers read nearby slots."""
    start = nlu_toys.start(name)
    train, dev = files(tmp_path)
    recipe = recipe_for(start, finetuning__epochs=1, training__batch_size=4)
    finetuned(recipe, start, train, dev, tmp_path / "run")
    assert len(verbs.predict(tmp_path / "run", dev, quiet=True)) == 9
    with pytest.warns(UserWarning, match="already fully trained"):
        finetuned(recipe, start, train, dev, tmp_path / "run")


def test_local_layers_read_nearby_slots_of_their_own_sequence() -> None:
    start = nlu_toys.start("gpt-3-small", objective__local_width=2)
    ids = np.arange(7, 14, dtype=np.int32)
    row = Row(record=0, input_ids=ids, segment_ids=ids * 0, lengths=(4, 3))
    examples = lay_out([row], start.tokenizer.vocabulary, start.recipe)
    assert examples.local is not None
    near = [[i // 4 == j // 4 and 0 <= i - j <= 2 for j in range(7)] for i in range(7)]
    assert bool_mask(examples.local[0], 7).tolist() == near


def test_a_refusal_names_the_setting_that_others_follow_from() -> None:
    former, asked = (
        load_recipe("classification", {"finetuning.epochs": epochs, "training.warmup_steps": warmup})
        for epochs, warmup in ((1, 0), (3, 1))
    )
    with pytest.raises(UsageError, match=r"^out holds a run with finetuning\.epochs 1.*, but this one has 3[^a]*: "):
        refuse_changes(former, asked, Path("out"), "leave it out")
    with pytest.raises(
        UsageError, match=r"^out holds a run of pre-training, and this is one of classification: give it a"
    ):
        refuse_changes(load_recipe("quickstart"), asked, Path("out"), "leave it out")


# What fine-tuning refuses before training: metrics, settings and files that do not fit together.


@pytest.mark.parametrize(("settings", "message"), [
    ({"task__metrics": ["acuracy"]}, "did you mean accuracy"),
    ({"task__metrics": ["squad"]}, "squad, which compares squad, but its predictions are labels"),
    ({"task__metrics": ["f1"]}, "does not fit the development file: No reference has the label 1"),
    ({"task__metric_options": {"positive": "a"}}, "names positive, but none of the metrics accuracy has it: leave it out"),
    ({"training__schedule": "wsd", "training__decay_steps": 100}, "decay_steps"),
])  # fmt: skip
def test_what_cannot_be_measured_or_scheduled_is_refused_before_anything_is_learned(
    start: LoadedModel, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    train, dev = files(tmp_path)
    with pytest.raises(UsageError, match=message):
        finetuned(recipe_for(start, **settings), start, train, dev, tmp_path / "run")
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


@pytest.mark.whole
def test_an_option_of_another_metric_is_left_out(start: LoadedModel, tmp_path: Path) -> None:
    train, dev = files(tmp_path)
    recipe = recipe_for(start, finetuning__epochs=1, task__metrics=["f1"], task__metric_options={"positive": "a"})
    finetuned(recipe, start, train, dev, tmp_path / "run")
    verbs.predict(tmp_path / "run", dev, out=tmp_path / "said.jsonl", quiet=True)
    scores = measure_file(tmp_path / "said.jsonl", dev, load_recipe(tmp_path / "run" / "recipe.yaml"), "accuracy")
    assert list(scores.results) == ["accuracy"]


def test_white_space_around_a_label_does_not_count_in_a_file_of_predictions(start: LoadedModel, tmp_path: Path) -> None:
    labels = ["a ", " b", "a ", " b"]
    gold = nlu_toys.write(tmp_path / "gold.jsonl", [{"text": "anna", "label": label} for label in labels])
    said = nlu_toys.write(tmp_path / "said.jsonl", [{"prediction": label} for label in labels])
    recipe = recipe_for(start, task__labels=["a", "b"])
    resolved = TASKS["classification"].resolve(ClassificationSettings(), read_records(gold, recipe.task))
    assert resolved.labels == ["a", "b"]
    assert measure_file(said, gold, recipe).results["accuracy"].values == {"accuracy": 100.0}


@pytest.mark.parametrize(("key", "value", "own"), [
    ("model__num_layers", 4, "2"), ("model__intermediate_size", 48, "64"), ("model__activation", "relu", "gelu"),
    ("tokenizer__lowercase", False, "True"), ("data__window", 9, "32"),
])  # fmt: skip
def test_a_setting_that_is_the_models_own_is_not_changed(start: LoadedModel, key: str, value: Any, own: str) -> None:
    """An additional layer would be newly initialised without a warning."""
    dotted = key.replace("__", ".")
    with pytest.raises(UsageError, match=f"{dotted} is {value}, but the model none was trained with {own}: leave it"):
        recipe_for(start, **{key: value})
    section, name = dotted.split(".")
    recipe_for(start, **{key: getattr(getattr(start.recipe, section), name)})
    kept = recipe_for(start, model__dropout=0.3, model__attention_dropout=0.2, model__initializer_range=0.5).model
    assert (kept.dropout, kept.attention_dropout, kept.initializer_range) == (0.3, 0.2, 0.5)


PAIRS = [{**record, "pair": "eva"} for record in records()]
CHOICE = {"context": "anna", "question": "eva", "choices": ["carl", "berlin"], "label": 0}
TAGGED = {"tokens": ["anna", "sees"], "tags": ["B-X", "O"], "predicate": 0}
OPTIONAL: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "pairs": ("classification", "pair", PAIRS),
    "quantities": ("regression", "pair", [{**record, "label": 1.5} for record in PAIRS]),
    "questions": ("choice", "question", [CHOICE, CHOICE | {"label": 1}] * 4),
    "predicates": ("tagging", "predicate", [TAGGED, TAGGED | {"predicate": 1}] * 4),
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_every_file_holds_what_the_training_file_does(start: LoadedModel, tmp_path: Path, name: str) -> None:
    """Otherwise half of a pair would be scored and predicted as if it were complete."""
    task, role, whole = OPTIONAL[name]
    full = nlu_toys.write(tmp_path / "full.jsonl", whole)
    bare = nlu_toys.write(tmp_path / "bare.jsonl", [{k: v for k, v in one.items() if k != role} for one in whole])

    def tune(out: str, train: Path, dev: Path | None, **settings: Any) -> FinetuneResult:
        recipe = nlu_toys.recipe_for(start, task, **{**SHORT, "finetuning__epochs": 1, **settings})
        return finetuned(recipe, start, train, dev, tmp_path / out)

    missing = rf"bare\.jsonl, line 1: the field '{role}' is missing .* name it with --task\.fields"
    with pytest.raises(UniclozeError, match=missing):
        tune("run", full, bare)
    tune("run", full, full)
    with pytest.raises(UniclozeError, match=missing):
        verbs.predict(tmp_path / "run", bare, quiet=True)
    assert load_model(tmp_path / "run").recipe.task.optional == [role]
    there = rf"full\.jsonl, line 1: there is a field '{role}', but the training file has none"
    with pytest.raises(UniclozeError, match=there):
        tune("none", bare, full)
    tune("none", bare, bare)
    with pytest.raises(UniclozeError, match=there):
        verbs.predict(tmp_path / "none", full, quiet=True)
    for settings, message in (
        ({"task__fields": {role: "other"}}, r"full\.jsonl, line 1: the field 'other' is missing"),
        (
            {"task__fields": {f"{role}s": role}},
            f"task.fields names the role '{role}s'; the roles of a task of the kind",
        ),
        ({"task__optional": ["label"]}, f"task.optional names the role 'label'; .* are {role}"),
    ):
        with pytest.raises(UniclozeError, match=message):
            tune("named", full, full, **settings)


def test_an_optional_role_of_some_records_may_be_lacking_in_others(start: LoadedModel, tmp_path: Path) -> None:
    gap = {"cloze": "anna sees _", "choices": ["carl", "berlin"], "label": 1}
    train = nlu_toys.write(tmp_path / "train.jsonl", [gap, CHOICE] * 4)
    recipe = nlu_toys.recipe_for(start, "choice", **{**SHORT, "finetuning__epochs": 1})
    finetuned(recipe, start, train, train, tmp_path / "run")
    assert load_model(tmp_path / "run").recipe.task.optional == ["question"]
