"""Several taggers that share a network, and learn from unlabelled text together."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nlu_toys
from nlu_toys import WORDS, events_of, finetuned, resumed_alike, write
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.finetuning.data import Mixture, TaskData, Turns, encoded, finetuning_steps, unlabelled_text
from unicloze.finetuning.initial import start_weights, untrained
from unicloze.finetuning.run import FinetuneResult, finetune_run, with_steps
from unicloze.model.recurrent.backbone import VIEWS
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import Recipe
from unicloze.tasks import task_heads
from unicloze.tasks.columns import resolved
from unicloze.tasks.rows import lay_out
from unicloze.tasks.several import records_of
from unicloze.tasks.tagging import word_tokens
from unicloze.training.distillation import Teacher
from unicloze.training.loading import LoadedModel, build_model, load_model

SIDE = {"label": "side", "train": "side.jsonl", "dev": "side.jsonl"}
SIZE = {
    "label": "size", "train": "size.conll", "dev": "size.conll", "format": "conll", "source": {"tokens": "0"},
    "target": "1", "metrics": ["tag-accuracy", "entity-f1"],
}  # fmt: skip


def folder(path: Path) -> Path:
    """Sixteen sentences tagged by first letter, and four others tagged by length, in files of their own."""
    path.mkdir(exist_ok=True)
    rng = random.Random(0)
    sentences = [rng.choices(WORDS, k=rng.randint(2, 5)) for _ in range(20)]
    tagged = [{"tokens": words, "tags": ["early" if word < "d" else "late" for word in words]} for words in sentences]
    write(path / "side.jsonl", tagged[:16])
    lines = ["\n".join(f"{word} {'B-LONG' if len(word) > 4 else 'O'}" for word in words) for words in sentences[16:]]
    (path / "size.conll").write_text("\n\n".join(lines) + "\n")
    (path / "text.txt").write_text("\n".join(" ".join(rng.choices(WORDS, k=4)) for _ in range(9)))
    return path


@pytest.fixture(scope="module")
def start() -> LoadedModel:
    return nlu_toys.start(
        "cvt", model__hidden_size=16, model__intermediate_size=12, model__embedding_size=8, model__dropout=0.0,
        model__input_dropout=0.0, model__hidden_dropout=0.0,
    )  # fmt: skip


def recipe_for(start: LoadedModel, files: Path, **more: Any) -> Recipe:
    values = {
        "task__parts": [SIDE, SIZE], "training__batch_size": 4, "finetuning__epochs": 2, "finetuning__evaluations": 1,
        "finetuning__unlabelled": [str(files / "text.txt")], "training__log_every": 1, "training__optimizer": "adamw",
        "training__schedule": "linear",
    }  # fmt: skip
    return nlu_toys.recipe_for(start, "cvt-tagging", **{**values, **more})


def opened(start: LoadedModel, files: Path, **more: Any) -> tuple[Recipe, TaskData]:
    """The recipe with its tags and steps, and the training data."""
    recipe = recipe_for(start, files, **more)
    records = records_of(files, recipe.task)
    recipe = Recipe(**{**vars(recipe), "task": resolved(recipe.task, records)})
    data = encoded(records, recipe, start.tokenizer)
    data = dataclasses.replace(data, unlabelled=unlabelled_text(recipe, start.tokenizer))
    return with_steps(recipe, len(data.rows)), data


def test_each_tagger_has_its_files_tags_and_heads(start: LoadedModel, tmp_path: Path) -> None:
    recipe, data = opened(start, folder(tmp_path))
    assert [part["labels"] for part in recipe.task.parts] == [["early", "late"], ["B-LONG", "O"]]  # type: ignore[attr-defined]
    assert [record.id for record in data.records[14:18]] == ["side-14", "side-15", "size-0", "size-1"]
    assert [list(row.targets) for row in data.rows] == [["tags:side"]] * 16 + [["tags:size"]] * 4
    heads = task_heads(recipe)
    assert len(heads) == 12 and {"tags:side", "tags:size", "tags:side:future", "tags:size:full"} <= set(heads)
    assert data.unlabelled is not None and set(data.unlabelled.rows[0].targets) == set(heads)  # all teach
    recipe, data = opened(start, folder(tmp_path), training__batch_size=8)
    steps = list(finetuning_steps(data, recipe, start.tokenizer.vocabulary, "cpu", 0))
    assert len(steps) == recipe.training.steps and {len(batch.examples) for (batch,) in steps[::2]} == {8}


def test_rows_of_several_targets_are_padded_apart(start: LoadedModel, tmp_path: Path) -> None:
    recipe, data = opened(start, folder(tmp_path))
    rows = [data.rows[0], data.rows[16], data.rows[1]]
    examples = lay_out(rows, start.tokenizer.vocabulary, recipe)
    for name, own in (("tags:side", [0, 2]), ("tags:size", [1])):
        target = examples.targets[name]
        counts = (target.weights > 0).sum(axis=1)
        assert counts.tolist() == [len(row.targets[name].slots) if name in row.targets else 0 for row in rows]
        for row in own:
            alone = lay_out([rows[row]], start.tokenizer.vocabulary, recipe).targets[name]
            assert np.array_equal(target.labels[row, : counts[row]], alone.labels[0])
            assert np.array_equal(target.slots[row, : counts[row]], alone.slots[0])


def test_a_step_is_of_one_tagger_drawn_by_the_root_of_its_rows(start: LoadedModel, tmp_path: Path) -> None:
    recipe, data = opened(start, folder(tmp_path))
    mixture = Mixture.of(data.records, data.rows, recipe.task)
    assert mixture is not None and mixture.counts == {"side": 13, "size": 7}  # 4 to 2, of 20
    assert mixture.chances == "steps: 65 % of side, 35 % of size"
    turns = Turns.of(mixture, 4000, 3)
    assert np.mean(turns.parts == 0) == pytest.approx(13 / 20, abs=0.03)
    assert np.array_equal(turns.parts[:50], Turns.of(mixture, 50, 3).parts)
    rows = [turns.rows(step, 4, 3) for step in range(200)]
    for part, (count, first) in enumerate(((16, 0), (4, 16))):
        own = np.concatenate([each for each, of in zip(rows, turns.parts, strict=False) if of == part])
        passes = own[: len(own) // count * count].reshape(-1, count)
        assert np.array_equal(np.sort(passes), np.tile(np.arange(first, first + count), (len(passes), 1)))
        assert not np.array_equal(passes[0], passes[1])
    steps = list(finetuning_steps(data, recipe, start.tokenizer.vocabulary, "cpu", 0))
    assert [len(step[0].examples.targets) for step in steps] == [1, 12] * 10
    later = list(finetuning_steps(data, recipe, start.tokenizer.vocabulary, "cpu", 3))
    assert [step[0].place for step in later] == [step[0].place for step in steps[3:]]


def test_from_scratch_the_tokenizer_learns_the_words_of_all(tmp_path: Path) -> None:
    files = folder(tmp_path)
    network = load_recipe("cvt", {"tokenizer.vocab_size": 200, "model.hidden_size": 16})
    task = load_recipe("cvt-tagging", {"task.parts": [SIDE, SIZE]})
    model = untrained(network, task, files)
    assert all(len(model.tokenizer.encode(word)) < len(word) for word in WORDS)
    given = {**toy_overrides(), "tokenizer.vocab_size": 400}
    bytes_of = untrained(load_recipe("roberta-base", given), task, files).tokenizer
    assert all(bytes_of.tokens(word)[0] != "\u0120" for word in word_tokens(WORDS, bytes_of))
    table = tmp_path / "table.csv"
    table.write_text("sentence,label\n" + "anna sees berlin and goes,pos\nwe go to dublin,neg\n" * 9, encoding="utf-8")
    words = untrained(load_recipe("bert-base", given), load_recipe("classification"), table).tokenizer
    assert len(words.encode("anna sees berlin")) == 3


# Runs


def ran(start: LoadedModel, files: Path, out: Path, **more: Any) -> FinetuneResult:
    return finetune_run(recipe_for(start, files, **more), start, files, files, out)


def test_only_output_layers_of_the_same_tags_are_taken_over(start: LoadedModel, tmp_path: Path) -> None:
    recipe, _ = opened(start, folder(tmp_path))
    former = build_model(recipe, start.model.vocab_size).for_use()
    begins = dataclasses.replace(start, model=former, recipe=recipe)
    parts = [{**SIDE, "labels": ["other", "tags"]}, {**SIZE, "labels": ["B-LONG", "O"]}]
    other = dataclasses.replace(recipe, task=dataclasses.replace(recipe.task, parts=parts))  # type: ignore[call-arg]
    model = build_model(other, start.model.vocab_size)
    drawn = start_weights(model, begins, other.task)
    assert {name.split(".")[1] for name in drawn} == {"tags:side", *(f"tags:side:{view}" for view in VIEWS)}
    assert all(".output." in name for name in drawn)


@pytest.mark.parametrize(("parts", "message"), [
    ([SIDE, {**SIZE, "label": "third"}], "has no tagger third with the tags B-LONG, O: give both the same task.parts"),
    ([{**SIDE, "labels": ["late", "early"]}, SIZE], "has no tagger side with the tags late, early"),
])  # fmt: skip
def test_a_teacher_has_the_taggers_it_teaches(
    parts: list[dict[str, Any]], message: str, start: LoadedModel, tmp_path: Path
) -> None:
    files = folder(tmp_path)
    recipe, _ = opened(start, files, finetuning__unlabelled=[])
    taught = dataclasses.replace(start, model=build_model(recipe, start.model.vocab_size).for_use(), recipe=recipe)
    assert Teacher.of(taught, recipe, start.tokenizer)
    other, _ = opened(start, files, task__parts=parts, finetuning__unlabelled=[])
    with pytest.raises(UsageError, match=message):
        Teacher.of(taught, other, start.tokenizer)


@pytest.mark.whole
def test_taggers_learn_together_and_are_scored_apart(
    start: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, out = folder(tmp_path), tmp_path / "run"
    more = {"finetuning__epochs": 20, "finetuning__evaluations": 0.1, "training__learning_rate": 0.02}
    result = ran(start, files, out, **more)
    assert "steps: 65 % of side, 35 % of size" in capsys.readouterr().err
    each = {name: next(iter(found.values.values())) for name, found in result.scores.items()}
    assert set(each) == {"mean of tasks", "side tag-accuracy", "size tag-accuracy", "size entity-f1"}
    assert each["mean of tasks"] == pytest.approx((each["side tag-accuracy"] + each["size tag-accuracy"]) / 2)
    assert each["mean of tasks"] > 95 and result.chosen_by == "mean of tasks"
    assert result.baselines[0].name == "the most common tag of each word or its ending"

    events = events_of(out)
    losses = [set(event["loss"]) for event in events if event["event"] == "step"]
    assert Counter(len(names) for names in losses) == {1: 100, 10: 100}
    assert {"tags:side"} in losses and {"tags:size"} in losses

    asked = write(tmp_path / "asked.jsonl", [{"task": "size", "0": ["anna", "playing"]}])
    (prediction,) = verbs.predict(out, file=asked, quiet=True)
    assert prediction == {"id": "size-0", "prediction": ["O", "B-LONG"]}
    (tagged,) = verbs.predict(out, text="anna sees dublin", quiet=True)
    assert tagged["prediction"] == {"side": ["early", "late", "late"], "size": ["O", "O", "B-LONG"]}
    page = (out / "report.html").read_text() if verbs.report(out) else ""
    for name in ("mean of tasks", "side tag-accuracy", "size entity-f1", "tags:side:past"):
        assert name in page
    assert "not evaluated yet" not in page


@pytest.mark.whole
def test_a_stopped_run_ends_with_the_same_bits(start: LoadedModel, tmp_path: Path) -> None:
    files = folder(tmp_path)
    resumed_alike(lambda out: ran(start, files, tmp_path / out, model__hidden_dropout=0.3), 13, folder=tmp_path)
    assert load_model(tmp_path / "whole").recipe.task == load_model(tmp_path / "broken").recipe.task


# Refusals


@pytest.mark.parametrize(("parts", "message"), [
    ([{**SIDE, "classes": {"a": "b"}}, SIZE], r"entry 1 has 'classes'; an entry has dev, format, label"),
    ([{**SIDE, "source": {"text": "text"}}], r"entry 1: the source of a tagger is \{tokens: FIELD\}"),
    ([{**SIDE, "labels": ["a", "a"]}], r"entry 1: labels is not a list of different tags"),
    ([{**SIDE, "label": "ud-2.5"}], r"entry 1: the label of a tagger names weights, and cannot contain a full stop"),
    ([SIDE, SIDE], r"two entries are labelled 'side'"),
])  # fmt: skip
def test_parts_that_make_no_sense_are_refused(parts: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe("cvt-tagging", {"task.parts": parts})


def test_fields_and_labels_belong_to_the_entries() -> None:
    for given in ({"task.labels": ["a"]}, {"task.format": "conllu"}, {"task.fields": {"tags": "pos"}}):
        with pytest.raises(UsageError, match=r"each entry names its own (labels|fields and format): "):
            load_recipe("cvt-tagging", {"task.parts": [SIDE], **given})


def test_a_part_without_records_or_with_a_metric_of_texts_is_refused(start: LoadedModel, tmp_path: Path) -> None:
    files = folder(tmp_path)
    one = write(tmp_path / "one.jsonl", [{"task": "side", "tokens": ["anna"], "tags": ["early"]}])
    recipe = recipe_for(start, files)
    with pytest.raises(UniclozeError, match=r"one\.jsonl, line 1: no training record is of size"):
        resolved(recipe.task, records_of(one, recipe.task))
    wrong = recipe_for(start, files, task__parts=[{**SIDE, "metrics": ["accuracy"]}])
    with pytest.raises(UsageError, match=r"side of task\.parts names accuracy, which compares labels"):
        finetuned(wrong, start, files, files, tmp_path / "run")
