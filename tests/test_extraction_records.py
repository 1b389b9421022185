"""Answers in records: their positions, their formats, and which cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qa_toys import questions, recipe_for, small_model, write
from test_extraction import SETTINGS, records_of, squad_json
from unicloze.errors import UniclozeError
from unicloze.finetuning.run import finetune_run
from unicloze.records.record import GoldAnswer as Given
from unicloze.records.record import Record, answers_of
from unicloze.tasks.extraction import locate, with_unanswerable
from unicloze.training.loading import LoadedModel


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return small_model(tmp_path_factory.mktemp("start"))


# Records


@pytest.mark.parametrize(("text", "start", "place"), [
    ("b", 3, 3), ("b", None, 1), ("b", 4, 3), ("b", 0, 1), ("b", 99, 5), ("b", -1, 1), ("x", 1, None), ("ab", 3, 2),
])  # fmt: skip
def test_an_answer_is_found_where_it_is_or_nearest_to_that(text: str, start: int | None, place: int | None) -> None:
    assert locate(Given(text, start), "ababab") == place


def test_an_answer_that_is_a_word_is_not_found_within_another() -> None:
    assert locate(Given("he", None), "The man and he left; she, he.") == 12
    assert locate(Given("he", 25), "The man and he left; she, he.") == 26
    assert locate(Given("he", 2), "The man and he left; she, he.") == 1  # a given position is trusted
    assert locate(Given("5", None), "1954: 5") == 6 and locate(Given("95", None), "1954") == 1


@pytest.mark.parametrize("answers", [
    ["red", "big"], [{"text": "red"}, {"text": "big"}], {"text": ["red", "big"]},
    {"text": ["red", "big"], "answer_start": [3, 4]},
])  # fmt: skip
def test_answers_come_in_several_forms(answers: Any) -> None:
    found = answers_of(Record("0", {"answers": answers}, "here"), SETTINGS)
    assert found is not None and [answer.text for answer in found] == ["red", "big"]


def test_moved_answers_are_counted() -> None:
    some = questions(4)
    some[1]["answers"][0]["answer_start"] = 3
    with pytest.warns(UserWarning, match="1 of 4 answers are not at"):
        with_unanswerable(SETTINGS, records_of(some))


@pytest.mark.parametrize(("change", "message"), [
    ({"answers": [{"text": "nobody", "answer_start": 0}]}, "question q1: the passage does not contain the answer 'nobody'"),
    ({"answers": "Li"}, "question q1: the answers are not a list"),
    ({"answers": [{"text": "Li", "answer_start": "0"}]}, "question q1: the answers are not a list"),
    ({"question": 3}, "question q1: 'question' is missing or has a different type"),
    ({"id": "q0"}, "question q0: the id 'q0' is also that of"),
])  # fmt: skip
def test_a_record_that_cannot_be_used_is_named(
    start: LoadedModel, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    some = questions(2)
    some[1] |= change
    train = squad_json(tmp_path / "train.json", some)
    if "id" in change:  # equal positions, so another file's format
        train, message = write(tmp_path / "train.jsonl", some), "line 2: the id 'q0' is also that of"
    with pytest.raises(UniclozeError, match=message):
        finetune_run(recipe_for(start, "squad-v1.1"), start, train, None, tmp_path / "run", progress=False)


@pytest.mark.parametrize(("text", "message"), [
    ("{", "this is not JSON"),
    ('{"data": [{"paragraphs": [{"context": 3, "qas": []}]}]}', "article '': 'context' is missing or has a different type"),
    ('{"data": [{"paragraphs": [{"qas": [{"id": "a", "answers": []}]}]}]}', "question a: the field 'context' is missing"),
    ('{"data": [3]}', "'paragraphs' is missing"),
    ("{}", "'data' is missing"),
    ("[3]", "entry 1: a record must be a JSON object"),
    ('{"data": []}', "contains no records"),
    ('[{"context": "a \\ud800", "question": "b", "answers": []}]', "train.json: half of a surrogate pair after"),
])  # fmt: skip
def test_a_file_of_another_form_is_refused(start: LoadedModel, tmp_path: Path, text: str, message: str) -> None:
    train = tmp_path / "train.json"
    train.write_text(text)
    with pytest.raises(UniclozeError, match=message):
        finetune_run(recipe_for(start, "squad-v1.1"), start, train, None, tmp_path / "run", progress=False)


def test_answers_are_needed_to_learn_and_to_measure(start: LoadedModel, tmp_path: Path) -> None:
    some = questions(2)
    del some[1]["answers"]
    train = write(tmp_path / "train.jsonl", some)
    with pytest.raises(UniclozeError, match="line 2: the field 'answers' is missing"):
        finetune_run(recipe_for(start, "squad-v1.1"), start, train, None, tmp_path / "run", progress=False)
