"""The auxiliary pre-training objective of a task: its gradient is added, its draws are keyed, one pass if possible."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nlu_toys import events_of, finetuned, resumed_alike, write
from qa_toys import questions, recipe_for, small_model
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Examples
from unicloze.finetuning.data import auxiliary_objective, finetuning_steps, open_records
from unicloze.finetuning.initial import start_weights
from unicloze.recipes import load_recipe
from unicloze.records import read_records
from unicloze.records.record import Record, answers_of
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.unanswerable import unanswerable, write_training_records
from unicloze.training.batches import MicroBatch
from unicloze.training.ledger import read_ledger
from unicloze.training.loading import LoadedModel, load_model, ready_model
from unicloze.training.loop import Compute, TrainState, losses_and_norm

CPU = Compute(device=torch.device("cpu"), precision="fp32")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return small_model(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return small_model(tmp_path_factory.mktemp("causal"), "gpt", **{"tokenizer.kind": "wordpiece"})


def steps_of(
    recipe: Recipe, start: LoadedModel, train: Path, count: int, first: int = 0, *own: Any
) -> list[list[MicroBatch]]:
    """The steps of a run of so many, from a step on."""
    recipe = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, steps=count))
    data = open_records(train, recipe, start.tokenizer)
    return list(finetuning_steps(data, recipe, start.tokenizer.vocabulary, "cpu", first, *own))


def gradients(recipe: Recipe, start: LoadedModel, step: list[MicroBatch]) -> dict[str, torch.Tensor]:
    model = ready_model(recipe, start.model.vocab_size, torch.device("cpu"))
    start_weights(model, start, recipe.task)
    state = TrainState(model=model, optimizers=[])
    losses_and_norm(state, step, dataclasses.replace(recipe.training, clip_norm=0.0), CPU, lambda batch: batch.place)
    return {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad
        for name, weight in model.named_parameters()
    }


def check_sum(recipe: Recipe, start: LoadedModel, step: list[MicroBatch], weights: dict[str, float]) -> None:
    """The gradient of a step is the task's plus the factor times that of each auxiliary target."""

    def only(*names: str) -> list[MicroBatch]:
        found = []
        for batch in step:
            targets = {name: target for name, target in batch.examples.targets.items() if name in names}
            if targets:
                found.append(MicroBatch(dataclasses.replace(batch.examples, targets=targets), None))
        return found

    tasks = {name for batch in step for name in batch.examples.targets} - set(weights)
    both = gradients(recipe, start, step)
    wanted = gradients(recipe, start, only(*tasks))
    for name, factor in weights.items():
        beside = gradients(recipe, start, only(name))
        wanted = {key: value + factor * beside[key] for key, value in wanted.items()}
        assert any(beside[key].abs().sum() > 0 for key in beside)
    for key, value in both.items():
        torch.testing.assert_close(value, wanted[key], atol=1e-6, rtol=1e-4)


def test_gradients_are_the_sum_of_both_losses(start: LoadedModel, tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", questions(16, answerable=9))
    weights = {"ae": 0.7, "par": 0.2}
    recipe = recipe_for(start, "squad-v2", finetuning__auxiliary=weights, model__dropout=0.0, training__batch_size=16)
    step, *_ = steps_of(recipe, start, train, 3)
    assert {frozenset(batch.examples.targets) for batch in step} == {frozenset({"start", "end"}), frozenset(weights)}
    check_sum(recipe, start, step, weights)


def test_the_texts_are_those_of_the_rows(start: LoadedModel, tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", questions())
    step, *_ = steps_of(recipe_for(start, "squad-v2", finetuning__auxiliary={"ae": 1.0}), start, train, 3)
    assert len(step) % 2 == 0
    for plain, masked in zip(step[::2], step[1::2], strict=True):
        assert list(masked.examples.targets) == ["ae"] and masked.coefficients == {"ae": 1.0}
        target = masked.examples.targets["ae"]
        restored = masked.examples.input_ids.copy()
        for row in range(len(restored)):
            count = int(target.weights[row].sum())
            assert count > 0
            restored[row, target.slots[row, :count]] = target.labels[row, :count]
        width = plain.examples.input_ids.shape[1]
        assert np.array_equal(restored[:, :width], plain.examples.input_ids)
        assert np.array_equal(masked.examples.segment_ids[:, :width], plain.examples.segment_ids)
        special = np.isin(target.labels, start.tokenizer.vocabulary.special) & (target.weights > 0)
        assert not special.any()


def test_a_causal_model_learns_both_in_one_pass(causal: LoadedModel, tmp_path: Path) -> None:
    records = [{"text": f"the {'ab ' * number}door", "label": str(number % 2)} for number in range(4)]
    train = write(tmp_path / "train.jsonl", records)
    overrides: dict[str, Any] = {"finetuning__auxiliary": {"lm": 0.5}, "task__pooling": "last"}
    overrides |= {"model__dropout": 0.0, "model__attention_dropout": 0.0}
    overrides |= {"training__micro_batch_size": 2, "training__leaves": 1}
    recipe = recipe_for(causal, "classification", **overrides)
    recipe = dataclasses.replace(recipe, task=dataclasses.replace(recipe.task, labels=["0", "1"]))
    step, *_ = steps_of(recipe, causal, train, 3)
    found = [(set(batch.examples.targets), len(batch.examples)) for batch in step]
    assert found == [({"label", "lm"}, 2), (set(), 0)] * 2
    check_sum(recipe, causal, step, {"lm": 0.5})
    target, examples = step[0].examples.targets["lm"], step[0].examples
    assert examples.lengths.min() < examples.lengths.max()
    for row in range(len(examples)):
        length, count = examples.lengths[row], int(target.weights[row].sum())
        assert target.labels[row, :count].tolist() == examples.input_ids[row, 1:length].tolist()


@pytest.mark.parametrize("auxiliary", [{}, {"ae": 0.5}])
@pytest.mark.parametrize("number", range(3))
def test_a_process_lays_out_its_own_rows_only_and_they_are_those_of_one_that_makes_all(
    start: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auxiliary: dict[str, float], number: int
) -> None:
    settings = {"training__batch_size": 8, "training__micro_batch_size": 2, "finetuning__auxiliary": auxiliary}
    recipe = recipe_for(start, "squad-v2", **settings)
    train = write(tmp_path / "train.jsonl", questions(8))
    (whole,) = steps_of(recipe, start, train, 1)
    task, laid_out, asked = type(TASKS[recipe.task.kind]), [], []
    lay_out = task.lay_out

    def counted(kind: Any, rows: list[Any], *others: Any) -> Examples:
        laid_out.append(len(rows))
        return lay_out(kind, rows, *others)

    def own(parts: Sequence[int]) -> list[int]:
        asked.append(list(parts))
        return [place for place in range(len(parts)) if place * 4 // len(parts) % 3 == number]

    monkeypatch.setattr(task, "lay_out", counted)
    (mine,) = steps_of(recipe, start, train, 1, 0, own)
    assert asked == [[batch.part for batch in whole]] == [[batch.part for batch in mine]]
    assert laid_out == [2] * len(range(number, 4, 3))
    for place, (one, other) in enumerate(zip(mine, whole, strict=True)):
        if place not in own(asked[0]):
            assert len(one.examples) == one.text_tokens == 0
            continue
        left, right = one.batch(torch.device("cpu")), other.batch(torch.device("cpu"))
        assert one.place == other.place and torch.equal(left.input_ids, right.input_ids)
        assert left.targets.keys() == right.targets.keys()
        assert all(torch.equal(left.targets[name].labels, right.targets[name].labels) for name in left.targets)


@pytest.mark.parametrize("task", ["story-cloze", "gpt-similarity"])
def test_each_sequence_of_a_packed_row_is_learned_by_itself(causal: LoadedModel, tmp_path: Path, task: str) -> None:
    """As in GPT, which reads each choice, and each order of a pair, as a separate text."""
    if task == "story-cloze":
        records: list[dict[str, Any]] = [
            {"context": f"the {'ab ' * n}door", "choices": ["red", "big ab"], "label": n % 2} for n in range(4)
        ]
    else:
        records = [{"text": f"the {'ab ' * n}door", "pair": "big", "label": float(n)} for n in range(4)]
    train = write(tmp_path / "train.jsonl", records)
    without = dict.fromkeys(("model__dropout", "model__attention_dropout", "task__head_dropout"), 0.0)
    recipe = recipe_for(causal, task, task__format="jsonl", **without)
    assert recipe.finetuning.auxiliary == {"lm": 0.5}
    step, *_ = steps_of(recipe, causal, train, 3)
    packed, alone = (batch.examples for batch in step)
    assert len(packed) == 4 and len(alone) == 8
    texts = sorted(
        packed.input_ids[row, first:last].tolist()
        for row in range(4)
        for starts in [np.flatnonzero(packed.position_ids[row, : packed.lengths[row]] == 0).tolist()]
        for first, last in zip(starts, [*starts[1:], packed.lengths[row]], strict=True)
    )
    assert texts == sorted(alone.input_ids[row, :length].tolist() for row, length in enumerate(alone.lengths))
    target = alone.targets["lm"]
    for row, length in enumerate(alone.lengths):
        count = int(target.weights[row].sum())
        assert target.labels[row, :count].tolist() == alone.input_ids[row, 1:length].tolist()
    check_sum(recipe, causal, step, {"lm": 0.5})


def test_a_text_that_is_learned_twice_is_counted_once(start: LoadedModel, tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", questions(8))
    counted = {}
    for name, auxiliary in {"alone": {}, "beside": {"ae": 1.0}}.items():
        recipe = recipe_for(start, "squad-v2", finetuning__auxiliary=auxiliary, finetuning__epochs=2)
        finetuned(recipe, start, train, None, tmp_path / name)
        events = list(read_ledger(tmp_path / name / "ledger.jsonl"))
        counted[name] = [event["text_tokens"] for event in events if event["event"] == "step"]
    data = open_records(train, recipe, start.tokenizer)
    assert counted["beside"] == counted["alone"] and counted["alone"][-1] == 2 * sum(row.slots for row in data.rows)


def test_draws_change_with_the_epoch_and_not_with_the_run(start: LoadedModel, tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", questions(8))
    recipe = recipe_for(start, "squad-v2", finetuning__auxiliary={"ae": 1.0}, training__batch_size=8)

    def masked(first: int) -> list[list[list[int]]]:
        return [
            sorted(row.tolist() for batch in step if "ae" in batch.examples.targets for row in batch.examples.input_ids)
            for step in steps_of(recipe, start, train, 2, first)
        ]

    whole = masked(0)
    assert whole == masked(0) and whole[1:] == masked(1) and whole[0] != whole[1]


@pytest.mark.whole
def test_an_interrupted_run_ends_like_an_unbroken_one(start: LoadedModel, tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", questions(answerable=12))
    settings = {"finetuning__epochs": 3, "finetuning__evaluations": 1, "model__dropout": 0.1}
    recipe = recipe_for(start, "squad-v2-generated", **settings)
    resumed_alike(lambda out: finetuned(recipe, start, train, train, tmp_path / out), 3, folder=tmp_path)
    recipes = [load_recipe(tmp_path / out / "best" / "recipe.yaml") for out in ("whole", "broken")]
    assert recipes[0] == recipes[1] and recipes[0].task.no_answer_threshold is not None  # type: ignore[attr-defined]
    losses = [event["loss"] for event in events_of(tmp_path / "whole") if event["event"] == "step"]
    assert set(losses[-1]) == {"start", "end", "ae"}


# Which objective


def test_of_a_mixture_the_part_read_like_the_task_is_learned(start: LoadedModel) -> None:
    recipe = recipe_for(start, "squad-v2", finetuning__auxiliary={"ae": 1.0})
    unilm = dataclasses.replace(recipe, objective=load_recipe("unilm-v1-base").objective)
    chosen = auxiliary_objective(unilm)
    assert (chosen.visibility, chosen.targets, chosen.mixture) == ("bidirectional", ["ae"], [])
    assert chosen.pairs == "contiguous"


def test_a_model_without_a_head_for_tokens_is_refused(start: LoadedModel, tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", questions(2, answerable=1))
    finetuned(recipe_for(start, "squad-v2", finetuning__epochs=1), start, train, None, tmp_path / "run")
    with pytest.raises(UsageError, match=r"no head that predicts tokens: leave out finetuning.auxiliary"):
        recipe_for(load_model(tmp_path / "run"), "squad-v2-generated")


@pytest.mark.parametrize(("weights", "message"), [
    ({"lm": 0.5}, "names lm, but the model's objective with bidirectional visibility has ae and par"),
    ({"nsp": 0.5}, "names nsp"),
    ({"ae": 0.0}, "each factor must be above 0 and finite"),
])  # fmt: skip
def test_what_the_model_never_learned_is_refused(start: LoadedModel, weights: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe_for(start, "squad-v2", finetuning__auxiliary=weights)


# Unanswerable questions


def articles() -> list[dict[str, Any]]:
    return [
        {
            "id": f"{title}{number}", "title": title, "question": f"which number has {number}?",
            "context": f"{title} {number} has the number {number % 3} and a door .",
            "answers": [{"text": f"number {number % 3}", "answer_start": 0}],
        }
        for title in ("A", "B") for number in range(10)
    ]  # fmt: skip


def test_an_unanswerable_question_is_paired_with_another_passage_of_its_article() -> None:
    records = articles()
    made = unanswerable(records, share=0.8, seed=1)
    assert len(made) == 16 == len({record["id"] for record in made})
    by_id = {record["id"]: record for record in records}
    for record in made:
        first = by_id[record["id"].removesuffix("-unanswerable")]
        assert (record["question"], record["title"], record["answers"]) == (first["question"], first["title"], [])
        assert record["context"] in {other["context"] for other in records if other["title"] == first["title"]}
        assert first["answers"][0]["text"] not in record["context"]
    assert made == unanswerable(records, share=0.8, seed=1) != unanswerable(records, share=0.8, seed=2)
    assert unanswerable(records, share=0.0) == unanswerable([]) == unanswerable(records[:1]) == []


def test_generated_questions_become_training_records(tmp_path: Path) -> None:
    source = articles()
    for record in source:
        record["answer"] = record.pop("answers")[0]["text"]
    source[3]["answer"], source[5]["question"], source[7]["answer"] = "nowhere", " ", " "
    written = write_training_records(write(tmp_path / "made.jsonl", source), tmp_path / "train.jsonl", share=0.5)
    assert (written.answerable, written.unanswerable, written.dropped) == (17, 8, 3)
    settings = load_recipe("squad-v2").task
    records = read_records(tmp_path / "train.jsonl", settings)
    answers = [answers_of(Record(record.id, record.fields, record.place), settings) for record in records]
    for record, found in zip(records, answers, strict=True):
        assert all(record.fields["context"].startswith(one.text, one.start) for one in found or ())
    assert [found == [] for found in answers] == [False] * 17 + [True] * 8


def test_generated_questions_come_first_and_then_the_real_ones(start: LoadedModel, tmp_path: Path) -> None:
    """The second run starts from the first one's weights, including its heads."""
    source = write(tmp_path / "made.jsonl", articles())
    write_training_records(source, tmp_path / "generated.jsonl")
    recipe = recipe_for(start, "squad-v2-generated", finetuning__epochs=1)
    finetuned(recipe, start, tmp_path / "generated.jsonl", None, tmp_path / "first")
    first = load_model(tmp_path / "first")
    train = write(tmp_path / "train.jsonl", questions(answerable=9))
    recipe = recipe_for(first, "squad-v2-generated", finetuning__epochs=1)
    model = ready_model(recipe, first.model.vocab_size, torch.device("cpu"))
    assert start_weights(model, first, recipe.task) == []
    assert all(torch.equal(weight, first.model.state_dict()[name]) for name, weight in model.state_dict().items())
    result = finetuned(recipe, first, train, train, tmp_path / "second")
    assert result.scores["squad"].items == 16


def test_records_of_no_use_replace_nothing(tmp_path: Path) -> None:
    source = write(tmp_path / "made.jsonl", [{"context": "the cat", "question": "who?", "answers": ["nowhere"]}])
    (tmp_path / "train.jsonl").write_text("as it was")
    with pytest.raises(UniclozeError, match="none of its 1 records has a question and an answer"):
        write_training_records(source, tmp_path / "train.jsonl")
    assert (tmp_path / "train.jsonl").read_text() == "as it was"
