"""Files of records that are broken: one sentence that names the file and the line, and no traceback."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import nlu_toys
from unicloze.errors import UniclozeError
from unicloze.finetuning.data import open_records
from unicloze.tasks.records import read_records
from unicloze.training.models import LoadedModel

HALF = "\ud800"


@pytest.fixture(scope="module")
def start() -> LoadedModel:
    return nlu_toys.start()


def opened(start: LoadedModel, path: Path, recipe: str) -> Any:
    return open_records(path, nlu_toys.recipe_for(start, recipe, task__labels=["a", "b", "O"]), start.tokenizer)


@pytest.mark.parametrize(
    ("recipe", "record"),
    [
        ("classification", {"id": HALF, "text": "x", "label": "a"}),
        ("choice", {"context": "x", "choices": [HALF, "y"], "label": 0}),
        ("tagging", {"tokens": [f"x{HALF}"], "tags": ["O"]}),
        ("coqa-extractive", {"context": "x", "question": "q", "history": [[HALF, "y"]], "answers": ["x"]}),
    ],
)
def test_half_a_surrogate_pair_is_refused_wherever_it_stands(
    start: LoadedModel, tmp_path: Path, recipe: str, record: dict[str, Any]
) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text("\n" + json.dumps(record) + "\n")
    with pytest.raises(UniclozeError, match=r"some\.jsonl, line 2: half of a surrogate pair"):
        opened(start, path, recipe)


def test_a_whole_surrogate_pair_is_a_character(start: LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(json.dumps({"text": "\U0001f600", "label": "a"}))
    assert opened(start, path, "classification").records[0].fields["text"] == "\U0001f600"


def question(name: str) -> dict[str, Any]:
    return {"id": name, "question": "q", "answers": [{"text": "x", "answer_start": 0}]}


@pytest.mark.parametrize(
    ("recipe", "name", "text", "message"),
    [
        ("classification", "a.jsonl", "[" * 100_000, "line 1: this is no JSON"),
        ("classification", "a.csv", "text,label,text\nx,a,y\n", "line 1: two columns have the name 'text'"),
        ("regression", "a.jsonl", '{"text": "x", "label": 1' + "0" * 400 + "}", "line 1: the label 10+.* is no number"),
        ("regression", "a.jsonl", '{"text": "x", "label": 1e39}', r"line 1: the label 1e\+39 is no number"),
        ("regression", "a.jsonl", '{"text": "x", "label": true}', "line 1: the label True is no number"),
        (
            "squad-v1.1",
            "a.json",
            json.dumps({"data": [{"paragraphs": [{"context": "x", "qas": [question("one"), question("one")]}]}]}),
            "question one: the id 'one' is also that of",
        ),
        (
            "squad-v1.1",
            "a.jsonl",
            '{"context": "x", "question": "q", "answers": {"text": ["x"], "answer_start": 5}}',
            "line 1: the answers have not as many answer_start as text",
        ),
        ("race", "a.txt", '{"article": "x", "questions": 3, "options": []}', "line 1: its questions, options"),
        ("race", "a.txt", '{"article": "x", "questions": ["q"], "options": [5], "answers": ["A"]}', "line 1: its"),
        (
            "copa",
            "a.jsonl",
            '{"premise": "x", "choice1": "y", "choice2": "z", "question": ["cause"]}',
            "line 1: COPA asks for cause or effect",
        ),
    ],
)
def test_a_broken_file_is_refused(
    start: LoadedModel, tmp_path: Path, recipe: str, name: str, text: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UniclozeError, match=message) as refused:
        opened(start, path, recipe)
    assert name in str(refused.value) and len(str(refused.value)) < 500


def test_a_damaged_gzip_is_refused(tmp_path: Path) -> None:
    raw = bytearray(gzip.compress(b'{"text": "x", "label": "a"}\n' * 200))
    raw[20] ^= 0xFF
    raw[25] ^= 0x55
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(raw)
    with pytest.raises(UniclozeError, match="it cannot be read"):
        read_records(path, nlu_toys.recipe_for(nlu_toys.start(), "classification").task)


def test_an_id_of_nothing_is_the_number_of_the_record(start: LoadedModel, tmp_path: Path) -> None:
    path = nlu_toys.write(tmp_path / "a.jsonl", [{"id": None, "text": "x"}, {"id": 0, "text": "y"}, {"text": "z"}])
    assert [record.id for record in opened(start, path, "classification").records] == ["0", "0", "2"]


def test_a_race_article_may_have_no_answers(start: LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(json.dumps({"article": "x", "questions": ["q"], "options": [["y", "z"]], "answers": None}))
    assert "label" not in opened(start, path, "race").records[0].fields
