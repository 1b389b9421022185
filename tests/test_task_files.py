"""Broken files of records: one sentence that names the file and the line, without a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import nlu_toys
from unicloze.errors import UniclozeError, UsageError
from unicloze.finetuning.data import open_records
from unicloze.recipes import load_recipe
from unicloze.records import read_records
from unicloze.tasks import task_settings
from unicloze.tasks.groups import Labelled
from unicloze.training.loading import LoadedModel

HALF = "\ud800"


@pytest.fixture(scope="module")
def start() -> LoadedModel:
    return nlu_toys.start()


def opened(start: LoadedModel, path: Path, recipe: str) -> Any:
    labels = {"task__labels": ["a", "b", "O"]} if isinstance(load_recipe(recipe).task, Labelled) else {}
    return open_records(path, nlu_toys.recipe_for(start, recipe, **labels), start.tokenizer)


@pytest.mark.parametrize(
    ("recipe", "record"),
    [
        ("classification", {"id": HALF, "text": "x", "label": "a"}),
        ("choice", {"context": "x", "choices": [HALF, "y"], "label": 0}),
        ("tagging", {"tokens": [f"x{HALF}"], "tags": ["O"]}),
        ("coqa-extractive", {"context": "x", "question": "q", "history": [[HALF, "y"]], "answers": ["x"]}),
    ],
)
def test_half_a_surrogate_pair_is_refused_everywhere(
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
        ("classification", "a.jsonl", "[" * 100_000, "line 1: this is not JSON"),
        ("classification", "a.csv", "text,label,text\nx,a,y\n", "line 1: two columns have the name 'text'"),
        (
            "regression",
            "a.jsonl",
            '{"text": "x", "label": 1' + "0" * 400 + "}",
            "line 1: the label 10+.* is not a number",
        ),
        ("regression", "a.jsonl", '{"text": "x", "label": 1e39}', r"line 1: the label 1e\+39 is not a number"),
        ("regression", "a.jsonl", '{"text": "x", "label": true}', "line 1: the label True is not a number"),
        (
            "squad-v1.1",
            "a.json",
            json.dumps({"data": [{"paragraphs": [{"context": "x", "qas": [question("one"), question("one")]}]}]}),
            "question one: the id 'one' is twice in its file",
        ),
        (
            "squad-v1.1",
            "a.jsonl",
            '{"context": "x", "question": "q", "answers": {"text": ["x"], "answer_start": 5}}',
            "line 1: answer_start and text differ in number",
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


def test_an_id_may_be_inside_another_field(tmp_path: Path) -> None:
    lines = [{"text": "a", "meta": {"id": "x7"}}, {"text": "b", "meta": {}}, {"text": "c", "meta.id": 3}]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_records(tmp_path / "r.jsonl", task_settings(kind="classification", fields={"id": "meta.id"}))
    assert [record.id for record in found] == ["x7", "1", "3"]


def test_an_empty_id_is_the_number_of_the_record(start: LoadedModel, tmp_path: Path) -> None:
    path = nlu_toys.write(tmp_path / "a.jsonl", [{"id": None, "text": "x"}, {"id": 0, "text": "y"}, {"text": "z"}])
    assert [record.id for record in opened(start, path, "classification").records] == ["0", "0", "2"]


def test_a_race_article_may_have_no_answers(start: LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(json.dumps({"article": "x", "questions": ["q"], "options": [["y", "z"]], "answers": None}))
    assert "label" not in opened(start, path, "race").records[0].fields


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("text;label\nanna, eva;a\n", {"text": "anna, eva", "label": "a"}),
        ('"text, or what";"label"\n"anna; ""eva""";a\n', {"text, or what": 'anna; "eva"', "label": "a"}),
        ('\n"two\nlines";label\nanna;a\n', {"two\nlines": "anna", "label": "a"}),
        ('"text;label"\nanna;eva\n', {"text;label": "anna;eva"}),
        ("text\tlabel\nanna; eva\ta\n", {"text": "anna; eva", "label": "a"}),
        ("text,a;b\nanna,eva;carl\n", {"text": "anna", "a;b": "eva;carl"}),
        ("text\nanna;eva\n", {"text": "anna;eva"}),
    ],
)
def test_the_header_of_a_csv_determines_its_separator(tmp_path: Path, text: str, columns: dict[str, str]) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text, encoding="utf-8-sig")
    assert [record.fields for record in read_records(path, task_settings(kind="classification"))] == [columns]


@pytest.mark.parametrize(("name", "between"), [("a.tsv", "\t"), ("a.csv", ","), ("a.csv", ";")])
def test_the_first_line_of_a_table_without_a_header_is_quoted(
    start: LoadedModel, tmp_path: Path, name: str, between: str
) -> None:
    (tmp_path / name).write_text(f"a good man{between}pos\na bad man{between}neg\n")
    with pytest.raises(UniclozeError) as refused:
        opened(start, tmp_path / name, "classification")
    assert str(refused.value) == (
        f"{tmp_path / name}, line 2: the field 'text' is missing (it has a good man, pos; the first line is read as the "
        "header); name it with --task.fields '{text: NAME}', or put a header above the first record"
    )
    path = nlu_toys.write(tmp_path / "a.jsonl", [{"sentence": "x"}])
    with pytest.raises(UniclozeError, match=r"\(it has sentence\); name it with --task.fields '\{text: NAME\}'$"):
        opened(start, path, "classification")


def test_fields_have_names_and_no_numbers() -> None:
    with pytest.raises(
        UsageError, match=r"each value text: the name of a field, as in the header .* not the number of a col"
    ):
        load_recipe("classification", {"task.fields": "{text: 1, label: 0}"})
