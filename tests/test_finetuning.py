"""Fine-tuning: it learns, keeps the best checkpoint, resumes exactly, and reports what is wrong with a record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nlu_toys
from conftest import slow_except
from nlu_toys import events_of, finetuned, resumed_alike, write
from toys import gradients_of
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.registry import METRICS
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.finetuning import run as module
from unicloze.finetuning.data import TaskData, finetuning_steps, open_records
from unicloze.finetuning.initial import task_recipe
from unicloze.finetuning.run import FinetuneResult, finetune_run, with_steps
from unicloze.finetuning.scores import Evaluation, headline, is_better
from unicloze.finetuning.seeds import FinetuneSummary
from unicloze.packing import bucket_sizes
from unicloze.recipes import load_recipe
from unicloze.settings import Recipe
from unicloze.tasks.rows import Row, lay_out
from unicloze.training.batches import MicroBatch
from unicloze.training.loading import LoadedModel, load_model, ready_model
from unicloze.training.loop import Compute, TrainState, losses_and_norm
from unicloze.training.optimizers import build_optimizers
from unicloze.training.parallel import World

SIXTEEN = {
    "finetuning.epochs": 80,
    "finetuning.evaluations": 0.1,
    "training.batch_size": 8,
    "training.learning_rate": 3e-3,
    "training.precision": "fp32",
}


@pytest.fixture(scope="module")
def start() -> LoadedModel:
    return nlu_toys.start("quickstart")


WORDS = ["a", "bc", "def", "gh", "ij", "klm", "no", "pq"]


def pairs(count: int = 16) -> list[dict[str, Any]]:
    return [
        {"text": f"{WORDS[i % 4]} {WORDS[i // 4]}", "pair": WORDS[i * 5 % 8], "label": "yes" if i * 7 % 3 else "no"}
        for i in range(count)
    ]


def recipe_for(start: LoadedModel, name: str = "classification", **overrides: Any) -> Any:
    settings = {**SIXTEEN, **{key.replace("__", "."): value for key, value in overrides.items()}}
    return task_recipe(load_recipe(name, settings), start, list(settings))


@pytest.mark.whole
@pytest.mark.parametrize("head", slow_except(["dense"], ["dense", "plain"]))
@pytest.mark.parametrize("pooling", slow_except(["mean"], ["first", "mean", "last"]))
def test_it_memorises_sixteen_records(start: LoadedModel, tmp_path: Path, head: str, pooling: str) -> None:
    train = write(tmp_path / "train.jsonl", pairs())
    recipe = recipe_for(start, task__head=head, task__pooling=pooling)
    result = finetuned(recipe, start, train, train, tmp_path / "run")
    assert result.scores["accuracy"].values["accuracy"] == 100
    predictions = verbs.predict(tmp_path / "run", train, out=tmp_path / "said.jsonl", quiet=True)
    assert [said["prediction"] for said in predictions] == [record["label"] for record in pairs()]
    assert [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()] == predictions
    assert all(abs(sum(said["probabilities"].values()) - 1) < 1e-5 for said in predictions)


@pytest.mark.slow
def test_it_learns_quantities(start: LoadedModel, tmp_path: Path) -> None:
    records = [{"text": record["text"], "label": float(i % 4)} for i, record in enumerate(pairs())]
    train = write(tmp_path / "train.jsonl", records)
    recipe = recipe_for(start, "regression", finetuning__epochs=120)
    result = finetuned(recipe, start, train, train, tmp_path / "run")
    assert result.scores["correlation"].values["pearson"] > 95


@pytest.mark.whole
def test_an_interrupted_run_ends_like_an_unbroken_one(start: LoadedModel, tmp_path: Path) -> None:
    train, dev = write(tmp_path / "train.jsonl", pairs()), write(tmp_path / "dev.jsonl", pairs(9))
    settings = {"finetuning__epochs": 4, "finetuning__evaluations": 1, "model__dropout": 0.1}
    recipe = recipe_for(start, **settings)
    whole = resumed_alike(lambda out: finetuned(recipe, start, train, dev, tmp_path / out), 5, folder=tmp_path)
    with pytest.warns(UserWarning, match="already fully trained"):
        again = finetuned(recipe, start, train, dev, tmp_path / "broken")
    assert (again.best_step, again.scores) == (whole.best_step, whole.scores)
    with pytest.raises(UsageError, match="learning_rate"):
        other = recipe_for(start, **settings, training__learning_rate=1e-3)
        finetuned(other, start, train, dev, tmp_path / "broken")


@pytest.mark.filterwarnings("ignore:the learning rate")
def test_patience_stops_early_and_the_best_is_kept(start: LoadedModel, tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", pairs())
    recipe = recipe_for(start, finetuning__patience=3, finetuning__evaluations=1, training__learning_rate=1e-12)
    result = finetuned(recipe, start, train, train, tmp_path / "run")
    assert (result.best_step, result.step, result.stopped_by) == (2, 8, 0)
    assert load_model(tmp_path / "run").step == 2


def test_patience_counts_no_head_fitted_before_training_and_then_no_lower_loss(
    start: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, values = write(tmp_path / "train.jsonl", pairs()), iter([80.0, 10.0, 15.0, 15.0, 99.0])
    monkeypatch.setattr("unicloze.finetuning.run.headline", lambda *_: next(values))
    recipe = recipe_for(start, finetuning__patience=1, finetuning__evaluations=1, training__learning_rate="auto")
    result = finetuned(recipe, start, train, train, tmp_path / "run")
    assert (result.best_step, result.step, result.likeliest) == (0, 6, False)
    assert "trained to step 6, best by accuracy at step 0, the fitted head" in str(
        FinetuneSummary(result.out, [result], {})
    )


def test_seeds_give_mean_and_spread(start: LoadedModel, tmp_path: Path) -> None:
    train, dev = write(tmp_path / "train.jsonl", pairs()), write(tmp_path / "dev.jsonl", pairs(9))
    overrides = {**SIXTEEN, "finetuning.epochs": 2}
    given = "classification", start, train, dev, tmp_path / "runs"
    summary = verbs.finetune(*given, seeds=2, quiet=True, overrides=overrides)
    values = [run.scores["accuracy"].values["accuracy"] for run in summary.runs]
    spread = summary.scores["accuracy"]["accuracy"]
    assert spread.mean == pytest.approx(np.mean(values)) and spread.deviation == pytest.approx(np.std(values, ddof=1))
    assert json.loads((tmp_path / "runs" / "results.json").read_text()) == json.loads(json.dumps(summary.to_dict()))


def test_a_value_that_is_nan_selects_no_checkpoint(start: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_for(start, "regression", task__metrics=["correlation"])

    def worth(value: float) -> float:
        values = {"pearson": 1.0, "spearman": value}
        return headline({"correlation": MetricResult(metric="correlation", values=values, items=2)}, recipe)

    assert worth(5.0) == 5.0 and worth(float("nan")) == -np.inf
    lower = {"correlation": dataclasses.replace(METRICS["correlation"], higher_is_better=False)}
    monkeypatch.setattr("unicloze.evaluation.metrics.registry.METRICS", lower)
    assert worth(5.0) == -5.0 and worth(float("nan")) == -np.inf


def steps_of(
    start: LoadedModel, records: Any, folder: Path, device: str = "cpu", steps: int = 1, **settings: Any
) -> tuple[Recipe, TaskData, Iterator[list[MicroBatch]]]:
    """Steps of a classification of records as 0 or 1, from the first on."""
    recipe = recipe_for(start, task__labels=["0", "1"], **settings)
    recipe = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, steps=steps))
    data = open_records(write(folder / "train.jsonl", records), recipe, start.tokenizer)
    return recipe, data, finetuning_steps(data, recipe, start.tokenizer.vocabulary, device, 0)


def test_buckets_cover_a_step_and_change_only_the_padding(start: LoadedModel, tmp_path: Path) -> None:
    """The gradient equals that of one padded pass."""
    records = [{"text": "a " * (1 + i % 7 * 4), "label": str(i % 2)} for i in range(24)]
    gradients = []
    for device in ("cpu", "cuda"):
        recipe, _, every = steps_of(start, records, tmp_path, device, training__batch_size=24, model__dropout=0.0)
        steps = next(every)
        model = ready_model(recipe, start.model.vocab_size, torch.device("cpu"))
        state = TrainState(model=model, optimizers=build_optimizers(model, recipe.training))
        compute = Compute(device=torch.device("cpu"), precision="fp32")
        unclipped = dataclasses.replace(recipe.training, clip_norm=0.0)
        losses_and_norm(state, steps, unclipped, compute, lambda batch: batch.place)
        gradients.append(gradients_of(model))
        assert sum(len(step.examples) for step in steps) == 24 and len(steps) == 1
        assert sum(steps[0].buckets) == 24
        assert len(steps[0].buckets) > 1 if device == "cpu" else len(steps[0].buckets) == 1
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)


def test_buckets_are_the_cheapest_cut() -> None:
    lengths = np.array([95, 90, 11, 10, 9])
    assert bucket_sizes(lengths, 8) == [2, 3]
    assert bucket_sizes(lengths, 0) == [1, 1, 1, 1, 1]
    assert bucket_sizes(lengths, 1 << 20) == [5]


def test_micro_batches_of_a_step_have_at_most_so_many_rows(start: LoadedModel, tmp_path: Path) -> None:
    records = [{"text": "a " * i, "label": str(i % 2)} for i in range(10)]
    _, _, (step,) = steps_of(start, records, tmp_path, training__batch_size=12, training__micro_batch_size=4)
    assert [len(each.examples) for each in step] == [4, 4, 2]


def test_every_epoch_has_all_rows_in_an_order_of_its_own(start: LoadedModel, tmp_path: Path) -> None:
    records = [{"text": "a " * (i + 1), "label": str(i % 2)} for i in range(11)]
    _, data, steps = steps_of(start, records, tmp_path, steps=9, training__batch_size=4)
    number = {row.slots: row.record for row in data.rows}
    seen = [sorted(number[int(length)] for length in step[0].examples.lengths) for step in steps]
    assert len(seen) == 9 and [len(step) for step in seen] == [4, 4, 3] * 3
    epochs = [seen[first : first + 3] for first in (0, 3, 6)]
    assert all(sorted(row for step in epoch for row in step) == list(range(11)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_packed_sequences_read_themselves_only(start: LoadedModel) -> None:
    ids = np.arange(7, 14, dtype=np.int32)
    packed = Row(record=0, input_ids=np.concatenate([ids[:4], ids[4:]]), segment_ids=ids * 0, lengths=(4, 3))
    plain = Row(record=0, input_ids=ids[:2], segment_ids=ids[:2] * 0)
    examples = lay_out([packed, plain], start.tokenizer.vocabulary, start.recipe)
    seen = examples.visible(0)
    assert seen.tolist() == [[i // 4 == j // 4 for j in range(7)] for i in range(7)]
    assert examples.position_ids[0].tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert examples.mutual.tolist() == [0, 2] and examples.lengths.tolist() == [7, 2]


def test_a_development_file_of_one_class_gets_a_warning(start: LoadedModel, tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", pairs(4))
    dev = write(tmp_path / "dev.jsonl", [one for one in pairs(8) if one["label"] == "yes"])
    with pytest.warns(UserWarning, match="^all [2-9] development records have the label 'yes', so"):
        finetuned(recipe_for(start, finetuning__epochs=1), start, train, dev, tmp_path / "run")


def test_a_long_record_is_cut_with_a_warning(start: LoadedModel, tmp_path: Path) -> None:
    records = [*pairs(3), {"text": "cat " * 10_000, "pair": "dog", "label": "yes"}]
    train = write(tmp_path / "train.jsonl", records)
    recipe = recipe_for(start, finetuning__epochs=1)
    with pytest.warns(UserWarning, match="1 of 4 records are longer"):
        finetuned(recipe, start, train, None, tmp_path / "run")


@pytest.mark.parametrize(("lines", "message"), [
    ('{"text": "a", "label": "x"}\n{"text": "b"}\n', "line 2: the field 'label' is missing"),
    ('{"text": "a", "label": "x"}\n\nnonsense\n', "line 3: this is not JSON"),
    ('{"text": 3, "label": "x"}\n{"text": "a", "label": "y"}\n', "line 1: the field 'text' is not a text"),
    ('{"text": "a", "label": 0.5}\n', "line 1: the label 0.5 is a quantity"),
    ('{"text": "a", "label": "x"}\n', "all records have the label 'x'"),
    ('{"text": "a", "label": "x"}\n{"text": "a", "label": ""}\n', "line 2: the label is empty: fill it in"),
    ("", "contains no records"),
])  # fmt: skip
def test_a_record_that_cannot_be_used_is_named(start: LoadedModel, tmp_path: Path, lines: str, message: str) -> None:
    train = tmp_path / "train.jsonl"
    train.write_text(lines)
    with pytest.raises(UniclozeError, match=message):
        finetuned(recipe_for(start), start, train, None, tmp_path / "run")


def test_records_without_labels_or_with_unseen_ones_are_named(start: LoadedModel, tmp_path: Path) -> None:
    bare = write(tmp_path / "bare.jsonl", [{"text": each["text"], "pair": each["pair"]} for each in pairs(4)])
    with pytest.raises(UniclozeError, match=r"bare.jsonl, line 1: the field 'label' is missing"):
        finetuned(recipe_for(start, task__labels=["a", "b"]), start, bare, None, tmp_path / "run")
    train = write(tmp_path / "train.jsonl", pairs(4))
    with pytest.raises(UniclozeError, match=r"bare.jsonl, line 1: the field 'label' is missing"):
        finetuned(recipe_for(start), start, train, bare, tmp_path / "run")
    dev = write(tmp_path / "dev.jsonl", [*pairs(2), {"text": "a", "pair": "b", "label": "perhaps"}])
    with pytest.raises(UniclozeError, match=r"dev.jsonl, line 3: the label 'perhaps' is not a label of the task"):
        finetuned(recipe_for(start), start, train, dev, tmp_path / "run")


@pytest.mark.parametrize(("evaluations", "step"), [
    ([(0, 60, 1.0), (4, 62, 2.0), (8, 64, 1.5)], 0), ([(0, 60, 1.0), (4, 66, 2.0), (8, 71, 1.5), (12, 70, 0.8)], 12),
    ([(0, 60, 1.0), (4, 62, 0.3), (8, 51, 0.1)], 4), ([(0, 60, 1.0), (4, 51, 0.3), (8, 62, 2.0)], 8),
    ([(0, 60, 1.0), (4, 62, 0.6), (8, 63, 0.3)], 8),
    ([(4, 60, 1.0), (8, 61, 2.0), (12, 61, 0.5), (16, 61, 0.7)], 12), ([(0, 60, None), (4, 61, None)], 4),
    ([(0, 60, 0.5), (4, 64, 0.7), (8, 71, 0.9)], 8), ([(0, 95, 0.1), (4, 100, 0.3)], 0),
    ([(0, 60, 1.0), (4, 62, 0.3), (8, 63, 0.2), (12, 64, 0.25), (16, 63, 0.1)], 8),
])  # fmt: skip
def test_after_a_fitted_head_what_is_clearly_likelier_or_better_is_kept(
    evaluations: list[tuple[int, float, float | None]], step: int
) -> None:
    """Without one, the highest value, and of equal ones the lowest loss.

    Standard errors are 5 and 0.3 everywhere, but 0 where all are right.
    """
    found = [Evaluation(number, value, 5.0 * (value < 100), loss, 0.3) for number, value, loss in evaluations]
    best = found[0]
    for number, one in enumerate(found[1:], start=1):
        best = one if is_better(one, best, found[:number]) else best
    assert best.step == step


def test_an_unknown_error_neither_replaces_nor_protects_a_fitted_head() -> None:
    """A single development record has none, nor has Matthews' coefficient of a model that always answers the same class."""
    first, later = Evaluation(0, 0.0, loss=0.7), Evaluation(4, 100.0, loss=0.6)
    assert not is_better(later, first, [first])
    varied = Evaluation(4, 60.0, 5.0, 0.7, 0.3)
    assert is_better(varied, first, [first])
    assert not is_better(Evaluation(8, 0.0, loss=0.1, loss_error=0.01), varied, [first, varied])


# Exact texts, keys and warnings of fine-tuning runs.


ONE_STEP = {"finetuning__epochs": 1, "finetuning__evaluations": 1, "training__batch_size": 8}


def one_step(start: LoadedModel, **settings: Any) -> Recipe:
    return nlu_toys.recipe_for(start, "classification", **{**ONE_STEP, **settings})


def words_at(file: Path, count: int) -> Path:
    words = nlu_toys.WORDS
    return write(file, [{"text": f"{words[i % 6]} {words[i // 6]}", "label": "ab"[i % 2]} for i in range(count)])


def test_a_run_says_and_records_what_it_does(
    start: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compared: set[str] = set()
    monkeypatch.setattr(World, "same", lambda _self, what, *_: compared.add(what))
    train, dev = words_at(tmp_path / "train.jsonl", 8), words_at(tmp_path / "dev.jsonl", 9)
    out = tmp_path / "run"
    recipe = one_step(start, task__evaluate_records=4)
    with pytest.warns(UserWarning) as found:
        result = finetune_run(recipe, start, train, dev, out)
    evenly = "evaluating on 4 of the 9 development records, evenly spaced (task.evaluate_records)"
    assert [str(each.message) for each in found] == [evenly]
    assert compared == {"the recipe", "the number of threads", "the model or the records"}
    said = capsys.readouterr().err.splitlines()
    values = ", ".join(f"{name} {score.shown(name)}" for score in result.scores.values() for name in score.values)
    assert f"step 1: {values}" in said
    assert not [line for line in said if line.startswith("chosen: ")]
    first, _, saved, evaluated, end = events_of(out)
    assert list(first) == [
        "schema", "event", "time", "step", "recipe", "task", "model", "model_step", "drawn", "changed", "lineage", "files",
        "fingerprints", "records", "rivals", "parameters", "learned", "device", "precision", "threads",
        "processes", "versions", "resumed_from",
    ]  # fmt: skip
    state = json.loads((out / "checkpoints" / "step-00000001" / "state.json").read_text())
    facts = {
        "task": "classification", "model": "none", "model_step": 0, "lineage": {},
        "files": {"train": str(train), "dev": str(dev)}, "records": {"train": 8, "dev": 9},
        "fingerprints": state["origin"], "rivals": [baseline.to_dict() for baseline in result.baselines],
    }  # fmt: skip
    assert {name: first[name] for name in facts} == facts
    assert first["drawn"] and isinstance(state["segments"], int)
    assert list(evaluated) == ["schema", "event", "time", "step", "headline", "kept", "results", "records"]
    assert (evaluated["event"], evaluated["step"], evaluated["records"]) == ("evaluate", 1, 4)
    assert evaluated["headline"] == result.scores["accuracy"].values["accuracy"]
    assert (saved["event"], saved["checkpoint"]) == ("save", "step-00000001")
    assert list(end) == ["schema", "event", "time", "step", "seconds", "verdict", "errors"]
    assert end["verdict"] == result.verdict != ""
    expected = (out, 1, 1, 0, "accuracy")
    assert (result.out, result.step, result.best_step, result.stopped_by, result.chosen_by) == expected
    assert len((out / "dev_predictions.jsonl").read_text(encoding="utf-8").splitlines()) == 4
    assert sorted(path.name for path in (out / "best").iterdir()) == ["recipe.yaml", "step-00000001"]

    done = f"{out} is already fully trained: give another --out to train again"
    with pytest.warns(UserWarning, match="evaluating on 4"), pytest.warns(UserWarning, match=done):
        again = finetune_run(recipe, start, train, dev, out, progress=False)
    assert (again.verdict, again.scores) == (result.verdict, result.scores)
    assert len(events_of(out)) == 5 and capsys.readouterr().err == ""

    lines = (out / "ledger.jsonl").read_text().splitlines()
    damaged = {name: value for name, value in evaluated.items() if name != "headline"}
    (out / "ledger.jsonl").write_text("\n".join([*lines[:3], json.dumps(damaged), *lines[4:]]) + "\n")
    with pytest.warns(UserWarning, match="evaluating on 4"), pytest.raises(UniclozeError, match=r"jsonl is damaged"):
        finetune_run(recipe, start, train, dev, out, progress=False)


def test_a_run_without_development_file(start: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    recipe = one_step(start, training__learning_rate="auto")
    result = finetune_run(recipe, start, words_at(tmp_path / "train.jsonl", 8), None, out)
    unjudged = "not judged: there is no development file"
    assert result == FinetuneResult(out, 1, 1, 0, {}, "", (), unjudged)
    first, *_, saved, end = events_of(out)
    assert (first["files"]["dev"], first["records"], first["rivals"]) == (None, {"train": 8, "dev": 0}, [])
    assert (saved["event"], end["verdict"]) == ("save", unjudged)
    chosen = [line for line in capsys.readouterr().err.splitlines() if line.startswith("chosen: ")]
    assert len(chosen) == 1 and chosen[0].startswith("chosen: learning rate 0.003 for ")
    assert not (out / "best").exists() and not (out / "dev_predictions.jsonl").exists()


def test_warnings_of_a_run(start: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = words_at(tmp_path / "train.jsonl", 8)
    frozen = "the lowest 3 of 4 layers stay frozen: one layer is unfrozen every 1 epochs, and training lasts 1"
    with pytest.warns(UserWarning, match=frozen):
        finetuned(one_step(start, finetuning__unfreeze_epochs=1.0), start, train, None, tmp_path / "frozen")
    monkeypatch.setattr(module.initial, "too_low_a_rate", lambda *_: "too low")
    with pytest.warns(UserWarning, match="^too low$"):
        finetuned(one_step(start), start, train, None, tmp_path / "low")


def test_steps_of_some_epochs(start: LoadedModel) -> None:
    recipe = one_step(start, finetuning__epochs=2.5, finetuning__evaluations=3, finetuning__warmup_share=0.25)
    for rows, steps, warmup, every in ((1, 3, 1, 1), (8, 3, 1, 1), (40, 13, 3, 2), (80, 25, 6, 3)):
        found = with_steps(recipe, rows).training
        assert (found.steps, found.warmup_steps, found.evaluate_every) == (steps, warmup, every), rows
    tiny = with_steps(one_step(start, finetuning__epochs=0.001, finetuning__evaluations=9), 8).training
    assert (tiny.steps, tiny.evaluate_every) == (1, 1)
