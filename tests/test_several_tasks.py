"""Several tasks as text: what their records become, how they are mixed, and a score for each."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nlu_toys
from nlu_toys import resumed_alike
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.finetuning.data import Mixture, encoded, finetuning_steps
from unicloze.finetuning.run import FinetuneResult, finetune_run, with_steps
from unicloze.finetuning.scores import measure, measure_file
from unicloze.recipes import load_recipe
from unicloze.report.history import History
from unicloze.settings import Recipe
from unicloze.tasks.generation import WritingSettings
from unicloze.tasks.several import records_of, rows_per_epoch
from unicloze.training.loading import LoadedModel

CITIES, PEOPLE = ("berlin", "dublin", "fargo"), ("anna", "carl", "eva")
KIND = {"label": "kind", "train": "kind.jsonl", "dev": "kind.jsonl", "source": {"word": "text"},
        "classes": {0: "plays", 1: "sees"}}  # fmt: skip
STSB = {"label": "stsb", "train": "stsb.jsonl", "dev": "stsb.jsonl", "step": 0.2, "target": "score",
        "source": {"sentence1": "text", "sentence2": "pair"}, "metrics": ["pearson"]}  # fmt: skip
FREE = {"label": "text", "train": "free.jsonl", "unsupervised": True, "share": 0.25}


def folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    words = [(word, n % 2) for n, word in enumerate([*CITIES, *PEOPLE])]
    nlu_toys.write(path / "kind.jsonl", [{"text": word, "label": label} for word, label in words])
    pairs = [{"text": one, "pair": two, "score": 5.0 if one == two else 0.0} for one in PEOPLE for two in PEOPLE]
    nlu_toys.write(path / "stsb.jsonl", pairs)
    nlu_toys.write(path / "free.jsonl", [{"text": "anna sees berlin"}, {"text": "carl leaves dublin"}, {"text": "eva"}])
    return path


def settings(*parts: dict[str, Any], **more: Any) -> WritingSettings:
    return WritingSettings(parts=list(parts), metrics=["rouge"], **more)


def test_records_become_texts_as_in_t5(tmp_path: Path) -> None:
    """Raffel et al. 2020, Appendix D.6: "stsb sentence1: ... sentence2: ...", and Section 2.4 for the rounding."""
    sentences = {"text": "Representatives for Puretunes could not be reached.", "pair": "They could not be located."}
    nlu_toys.write(tmp_path / "stsb.jsonl", [{**sentences, "score": score} for score in (3.25, 2.57, 5, "0.09", 4.65)])
    found = records_of(tmp_path, settings(STSB))
    source = f"stsb sentence1: {sentences['text']} sentence2: {sentences['pair']}"
    assert found[0].fields == {"source": source, "target": "3.2", "task": "stsb", "gold": 3.25}
    assert [record.fields["target"] for record in found[1:]] == ["2.6", "5.0", "0.0", "4.6"]
    assert [record.id for record in found[:2]] == ["stsb-0", "stsb-1"]
    first, second, *_ = (record.fields for record in records_of(folder(tmp_path / "all"), settings(KIND)))
    assert (first["source"], first["target"], second["target"]) == ("kind word: berlin", "plays", "sees")


def test_a_text_without_a_label_is_continued_and_a_single_word_is_left_out(tmp_path: Path) -> None:
    found = records_of(folder(tmp_path), settings(FREE, KIND))
    texts = [record.fields for record in found if record.fields["task"] == "text"]
    assert len(texts) == 2
    for fields, whole in zip(texts, ("anna sees berlin", "carl leaves dublin"), strict=True):
        assert f"{fields['source']} {fields['target']}" == f"text {whole}" and fields["target"]
    lines = [{"task": "text", "text": "eva"}, {"task": "text", "text": "anna sees"}]
    (one,) = records_of(nlu_toys.write(tmp_path / "all.jsonl", lines), settings(FREE, KIND))
    assert one.fields["target"] == "sees"


@pytest.mark.parametrize(("more", "expected"), [
    ({}, {"a": 100, "b": 900, "c": 9000}),
    ({"mixing_cap": 1000}, {"a": 500, "b": 4500, "c": 5000}),
    ({"mixing_temperature": 2.0}, {"a": 10 / 135, "b": 30 / 135, "c": 10000 ** 0.5 * 0.9486832980505138 / 135}),
    ({"mixing_temperature": 1e9}, {"a": 1, "b": 1, "c": 1}),
])  # fmt: skip
def test_rates_are_proportional_to_examples_with_a_cap_and_a_temperature(
    more: dict[str, Any], expected: dict[str, float]
) -> None:
    """Raffel et al. 2020, Section 3.5.2: min(e, K) to the power of 1/T, normalised."""
    parts = [{"label": label, "train": "x"} for label in "abc"]
    counts = {"a": 100, "b": 900, "c": 9000}
    found = rows_per_epoch(counts, settings(*parts, **more), 10_000)
    assert sum(found.values()) == 10_000
    total = sum(expected.values())
    for label, share in expected.items():
        assert abs(found[label] - 10_000 * share / total) <= 1.5
    fixed = rows_per_epoch(counts, settings({"label": "a", "train": "x", "share": 0.25}, *parts[1:], **more), 10_000)
    assert fixed["a"] == 2500 and sum(fixed.values()) == 10_000


def test_every_part_visits_all_its_rows_before_one_again() -> None:
    mixture = Mixture({"a": 6, "b": 2}, {"a": np.arange(4), "b": np.arange(4, 9)})
    epochs = [mixture.rows(np.arange(8), epoch, 5) for epoch in range(10)]
    assert [int((rows < 4).sum()) for rows in epochs] == [6] * 10
    every = np.concatenate(epochs)
    assert set(Counter(every[every < 4].tolist()).values()) == {15}
    assert set(Counter(every[every >= 4].tolist()).values()) == {4}
    assert np.array_equal(mixture.rows(np.array([3, 5]), 7, 5), epochs[7][[3, 5]])
    assert not np.array_equal(mixture.rows(np.arange(8), 0, 6), epochs[0])


@pytest.fixture(scope="module")
def start() -> LoadedModel:
    return nlu_toys.start("unilmv2-base")


def recipe_for(start: LoadedModel, **more: Any) -> Recipe:
    values = {"task__parts": [KIND, STSB, FREE], "task__max_length": 48, "generation__max_target": 8, "decoding__beams": 1,
              "decoding__max_length": 7, "task__metrics": ["lambada"], "training__batch_size": 8,
              "generation__target_noise": 0.0, "finetuning__epochs": 90, "finetuning__evaluations": 0.034}  # fmt: skip
    return nlu_toys.recipe_for(start, "generation", **{**values, **more})


def test_a_row_visited_again_in_an_epoch_has_other_noise(start: LoadedModel, tmp_path: Path) -> None:
    recipe = recipe_for(start, generation__target_noise=0.9)
    data = encoded(records_of(folder(tmp_path), recipe.task), recipe, start.tokenizer)
    recipe = with_steps(recipe, len(data.rows))
    steps = itertools.islice(finetuning_steps(data, recipe, start.tokenizer.vocabulary, "cpu", 0), 3)
    rows = [
        row.tobytes() for step in steps for batch in step for row in np.pad(batch.examples.input_ids, ((0, 0), (0, 48)))
    ]
    assert len(rows) == 17 and len({row[: 4 * 48] for row in rows}) == 17
    assert "4 of 2 text" in str(Mixture.of(data.records, data.rows, recipe.task))


def ran(start: LoadedModel, files: Path, out: Path, **more: Any) -> FinetuneResult:
    return finetune_run(recipe_for(start, **more), start, files, files, out)


@pytest.mark.whole
def test_tasks_are_learned_together_and_scored_apart(
    start: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = folder(tmp_path / "files")
    result = ran(start, files, tmp_path / "run")
    assert "rows per epoch: 5 of 6 kind, 8 of 9 stsb, 4 of 2 text" in capsys.readouterr().err
    kind, stsb = (result.scores[name].values for name in ("kind accuracy", "stsb pearson"))
    assert kind["kind accuracy"] >= 80
    mean = (kind["kind accuracy"] + stsb["stsb pearson"]) / 2
    assert result.scores["mean of tasks"].values == {result.chosen_by: pytest.approx(mean)}
    assert result.baselines[0].name == "the most common answer of each task"
    assert "better than the most common answer of each task (mean of tasks " in result.verdict
    shown = History.read(tmp_path / "run")
    assert {name: shown.errors(name) for name in result.scores} == {n: r.errors for n, r in result.scores.items()}
    assert shown.errors("kind accuracy").keys() == {"kind accuracy"}

    lines = [{"task": "kind", "text": "anna"}, {"task": "stsb", "text": "eva", "pair": "eva"}]
    asked = nlu_toys.write(tmp_path / "asked.jsonl", lines)
    assert [one["id"] for one in verbs.predict(tmp_path / "run", file=asked, quiet=True)] == ["kind-0", "stsb-1"]
    wrong = nlu_toys.write(tmp_path / "wrong.jsonl", [{"text": "anna"}])
    with pytest.raises(UniclozeError, match=r"wrong\.jsonl, line 1: .* 'task' must name one of kind, stsb, text"):
        verbs.predict(tmp_path / "run", file=wrong, quiet=True)


@pytest.mark.whole
def test_a_stopped_mixture_ends_with_the_same_bits(start: LoadedModel, tmp_path: Path) -> None:
    files, more = folder(tmp_path / "files"), {"finetuning__epochs": 3, "finetuning__evaluations": 1}
    resumed_alike(lambda out: ran(start, files, tmp_path / out, **more), 4, folder=tmp_path)


def test_answers_are_compared_as_classes_and_numbers(start: LoadedModel, tmp_path: Path) -> None:
    """White space and case of a tokenizer do not count; what is no class or number is wrong (-1 as in T5)."""
    records = records_of(folder(tmp_path), settings(KIND, STSB), dev=True)
    answers = ["Plays", "sees", "PL ays", "nothing", "plays", "sees", "5. 0", *["0.0"] * 3, "x", *["0"] * 4]
    predictions = [{"id": record.id, "prediction": text} for record, text in zip(records, answers, strict=True)]
    results = measure(predictions, records, recipe_for(start, task__parts=[KIND, STSB]))
    assert results["kind accuracy"].values["kind accuracy"] == pytest.approx(100 * 5 / 6)
    expected = np.corrcoef([5, 0, 0, 0, -1, 0, 0, 0, 0], [5, 0, 0, 0, 5, 0, 0, 0, 5])[0, 1]
    assert results["stsb pearson"].values["stsb pearson"] == pytest.approx(100 * expected)


@pytest.mark.parametrize(("step", "value", "text"), [(0.25, 3.4, "3.50"), (2.5, 7.5, "7.5"), (5, 7.6, "10")])
def test_a_step_is_written_with_all_its_decimals(tmp_path: Path, step: float, value: float, text: str) -> None:
    nlu_toys.write(tmp_path / "stsb.jsonl", [{"text": "a", "pair": "b", "score": value}])
    (record,) = records_of(tmp_path, settings({**STSB, "step": step}))
    assert record.fields["target"] == text


def test_a_file_is_scored_as_a_model_is_by_its_own_answers(start: LoadedModel, tmp_path: Path) -> None:
    """Numbers are compared with the numbers of the file, not with their rounded texts; "0" is no text of a class."""
    files = folder(tmp_path)
    scores = [0.0, 0.09, 3.25, 2.57, 4.65]
    nlu_toys.write(files / "stsb.jsonl", [{"text": "a", "pair": "b", "score": score} for score in scores])
    recipe = recipe_for(start, task__parts=[KIND, STSB])
    records = records_of(files, recipe.task, dev=True)
    texts = ["0", "sees", "plays", "1", "plays", "sees", "0.0", "0.0", "3.2", "2.6", "4.6"]
    predictions = [{"id": record.id, "prediction": text} for record, text in zip(records, texts, strict=True)]
    results = measure(predictions, records, recipe, errors=True)
    exact = 100 * float(np.corrcoef([0, 0, 3.2, 2.6, 4.6], scores)[0, 1])
    assert results["kind accuracy"].values["kind accuracy"] == pytest.approx(100 * 4 / 6)
    assert results["stsb pearson"].values["stsb pearson"] == pytest.approx(exact, abs=1e-9) and exact < 99.99
    said = nlu_toys.write(tmp_path / "said.jsonl", predictions)
    assert measure_file(said, files, recipe).results == results
    assert results["mean of tasks"].errors["mean of tasks"] > 0
    by_accuracy = measure_file(said, files, recipe, "accuracy").results
    assert list(by_accuracy) == ["mean of tasks", "kind accuracy", "stsb accuracy"]


@pytest.mark.parametrize(("parts", "message"), [
    ([{"label": "a"}], "entry 1 has no text 'train'"),
    ([{"label": "a", "train": "x", "sources": {}}], "entry 1 has 'sources'; an entry has classes, dev"),
    ([KIND, KIND], "two entries are labelled 'kind'"),
    ([FREE], "the shares must leave something to an entry without one"),
    ([{**KIND, "classes": {0: "Yes", 1: "y es"}}], "entry 1: two classes have the same text"),
    ([{**KIND, "step": 0}], "entry 1: step must be above 0"),
])  # fmt: skip
def test_parts_that_make_no_sense_are_refused(parts: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UsageError, match=f"task.parts .*{message}"):
        load_recipe("generation", {"task.parts": parts})


def test_an_unknown_class_is_named_with_its_line(tmp_path: Path) -> None:
    nlu_toys.write(tmp_path / "kind.jsonl", [{"text": "anna", "label": 2}])
    with pytest.raises(UniclozeError, match=r"kind\.jsonl, line 1: '2' is not a class of task kind, which has 0, 1"):
        records_of(tmp_path, settings(KIND))
