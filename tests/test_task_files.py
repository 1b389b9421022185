"""Broken files of records: one sentence that names the file and the line, without a traceback."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import nlu_toys
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.finetuning.data import open_records
from unicloze.finetuning.predict import as_glue
from unicloze.recipes import load_recipe
from unicloze.records import read_records
from unicloze.tasks import task_settings
from unicloze.tasks.columns import words_of
from unicloze.tasks.task import Labelled
from unicloze.training.loading import LoadedModel, build_model

HALF = "\ud800"


@pytest.fixture(scope="module")
def start() -> LoadedModel:
    return nlu_toys.start()


def opened(start: LoadedModel, path: Path, recipe: str) -> Any:
    labels = {"task__labels": ["a", "b", "O"]} if isinstance(load_recipe(recipe).task, Labelled) else {}
    return open_records(path, nlu_toys.recipe_for(start, recipe, **labels), start.tokenizer)


@pytest.mark.parametrize(("recipe", "record"), [
    ("classification", {"id": HALF, "text": "x", "label": "a"}),
    ("choice", {"context": "x", "choices": [HALF, "y"], "label": 0}),
    ("tagging", {"tokens": [f"x{HALF}"], "tags": ["O"]}),
    ("coqa-extractive", {"context": "x", "question": "q", "history": [[HALF, "y"]], "answers": ["x"]}),
])  # fmt: skip
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


@pytest.mark.parametrize(("recipe", "name", "text", "message"), [
    ("classification", "a.jsonl", "[" * 100_000, "line 1: this is not JSON"),
    ("classification", "a.csv", "text,label,text\nx,a,y\n", "line 1: two columns have the name 'text'"),
    ("classification", "a.csv", "text;label\nx\n",
     r"line 2: 1 column where .* \(text, label\): .* or quote fields that contain ';'"),
    ("classification", "a.csv", 'label,text\npos,x\nneg,"y\npos,z\n', "line 3: unexpected end .*: end each quoted field"),
    ("regression", "a.jsonl", '{"text": "x", "label": 1' + "0" * 400 + "}", "line 1: the label 10+.* is not a number"),
    ("regression", "a.jsonl", '{"text": "x", "label": 1e39}', r"line 1: the label 1e\+39 is not a number"),
    ("regression", "a.jsonl", '{"text": "x", "label": true}', "line 1: the label True is not a number"),
    ("squad-v1.1", "a.json", json.dumps({"data": [{"paragraphs": [{"context": "x", "qas": [question("one"),
     question("one")]}]}]}), "question one: the id 'one' is twice in its file"),
    ("squad-v1.1", "a.jsonl", '{"context": "x", "question": "q", "answers": {"text": ["x"], "answer_start": 5}}',
     "line 1: answer_start and text differ in number"),
    ("race", "a.txt", '{"article": "x", "questions": 3, "options": []}', "line 1: its questions, options"),
    ("race", "a.txt", '{"article": "x", "questions": ["q"], "options": [5], "answers": ["A"]}', "line 1: its"),
    ("copa", "a.jsonl", '{"premise": "x", "choice1": "y", "choice2": "z", "question": ["cause"]}',
     "line 1: COPA asks for cause or effect"),
])  # fmt: skip
def test_a_broken_file_is_refused(
    start: LoadedModel, tmp_path: Path, recipe: str, name: str, text: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UniclozeError, match=message) as refused:
        opened(start, path, recipe)
    assert name in str(refused.value) and len(str(refused.value)) < 500


def test_a_folder_has_linked_files_but_no_hidden_ones(tmp_path: Path) -> None:
    for name in ("fold/a.jsonl", "fold/.ipynb_checkpoints/a-checkpoint.jsonl", "fold/.b.jsonl", "other/c.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        nlu_toys.write(tmp_path / name, [{"text": name, "label": "x"}])
    (tmp_path / "fold" / "sub").symlink_to(tmp_path / "other")
    found = read_records(tmp_path / "fold", task_settings(kind="classification"))
    assert [record.fields["text"] for record in found] == ["fold/a.jsonl", "other/c.jsonl"]


@pytest.mark.parametrize(("given", "field", "ids"), [
    ([{"meta": {"id": "x7"}}, {"meta": {}}, {"meta.id": 3}], "meta.id", ["x7", "1", "3"]),
    ([{"id": None}, {"id": 0}, {}], "id", ["0", "0", "2"]),
])  # fmt: skip
def test_an_empty_id_is_the_number_of_the_record(
    given: list[dict[str, Any]], field: str, ids: list[str], tmp_path: Path
) -> None:
    path = nlu_toys.write(tmp_path / "r.jsonl", [{"text": "a", **one} for one in given])
    found = read_records(path, task_settings(kind="classification", fields={"id": field}))
    assert [record.id for record in found] == ids


def test_a_race_article_may_have_no_answers(start: LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(json.dumps({"article": "x", "questions": ["q"], "options": [["y", "z"]], "answers": None}))
    assert "label" not in opened(start, path, "race").records[0].fields


@pytest.mark.parametrize(("text", "columns"), [
    ("text;label\nanna, eva;a\n", {"text": "anna, eva", "label": "a"}),
    ('"text, or what";"label"\n"anna; ""eva""";a\n', {"text, or what": 'anna; "eva"', "label": "a"}),
    ('\n"two\nlines";label\nanna;a\n', {"two\nlines": "anna", "label": "a"}),
    ('"text;label"\nanna;eva\n', {"text;label": "anna;eva"}),
    ("text\tlabel\nanna; eva\ta\n", {"text": "anna; eva", "label": "a"}),
    ("text,a;b\nanna,eva;carl\n", {"text": "anna", "a;b": "eva;carl"}), ("text\nanna;eva\n", {"text": "anna;eva"}),
])  # fmt: skip
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
    with pytest.raises(UsageError, match=r"the name of a field, as in the header .* not the number of a col"):
        load_recipe("classification", {"task.fields": "{text: 1, label: 0}"})


# Files to predict, with anything in place of the answers, and files of predictions, by their name's ending.


@pytest.fixture(scope="module")
def generator() -> LoadedModel:
    return nlu_toys.start("quickstart")


def tuned(start: LoadedModel, name: str, **settings: Any) -> LoadedModel:
    """A newly initialised model of a task."""
    recipe = nlu_toys.recipe_for(start, name, **settings)
    model = build_model(recipe, start.tokenizer.vocabulary.size)
    return dataclasses.replace(start, model=model.for_use().eval(), recipe=recipe)


CLASSES = {"task__labels": ["a", "b"]}
SHORT = {"decoding__max_length": 3, "decoding__min_length": 0, "decoding__beams": 1}


@pytest.mark.parametrize(("name", "settings", "record", "answers"), [
    ("classification", CLASSES, {"text": "anna"}, {"label": ["", "?", "a", 1.5, None]}),
    ("regression", {}, {"text": "anna", "pair": "eva"}, {"label": ["", "low", True, None, 3]}),
    ("choice", {}, {"context": "anna", "choices": ["sees", "plays"]}, {"label": ["", 7, None, "sees"]}),
    ("tagging", {"task__labels": ["O", "B-X"]}, {"tokens": ["anna", "sees"]}, {"tags": ["", [], ["?", "?"], None]}),
    ("squad-v2", {}, {"context": "anna sees", "question": "who"}, {"answers": ["", "anna", {"text": [""]}, [3]]}),
    ("coqa-extractive", {}, {"context": "anna sees", "question": "who"}, {"answers": ["", ["anna"], None],
     "rationale": [3, "x", None], "rationale_start": ["?", 9, None]}),
    ("generation", SHORT, {"source": "anna"}, {"target": [[], 3, ""], "references": [[], {}, None]}),
])  # fmt: skip
def test_a_file_to_be_predicted_may_hold_anything_as_answers(
    start: LoadedModel,
    generator: LoadedModel,
    tmp_path: Path,
    name: str,
    settings: dict[str, Any],
    record: dict[str, Any],
    answers: dict[str, list[Any]],
) -> None:
    model = tuned(generator if name == "generation" else start, name, **settings)
    count = len(next(iter(answers.values())))
    records = [{"id": str(n), **record, **{key: given[n] for key, given in answers.items()}} for n in range(count)]
    bare = nlu_toys.write(tmp_path / "bare.jsonl", [{"id": str(n), **record} for n in range(count)])
    wild = nlu_toys.write(tmp_path / "wild.jsonl", records)
    said = verbs.predict(model, wild, quiet=True)
    assert said == verbs.predict(model, bare, quiet=True)
    if name == "generation":
        assert said == verbs.generate(model, file=wild, quiet=True)
    with pytest.raises(UniclozeError, match="line "):  # training files are still read strictly
        open_records(wild, model.recipe, model.tokenizer)


@pytest.mark.parametrize(("format_", "content"), [
    ("swag", "sent1,sent2,ending0,ending1,ending2,ending3,label\na,b,c,d,e,f,{}\n"),
    ("copa", '{{"premise": "a", "choice1": "b", "choice2": "c", "question": "cause", "label": "{}"}}\n'),
    ("race", '{{"article": "a", "questions": ["q"], "options": [["b", "c"]], "answers": ["{}"]}}\n'),
])  # fmt: skip
def test_published_choices_may_leave_their_answers_out(
    start: LoadedModel, tmp_path: Path, format_: str, content: str
) -> None:
    model = tuned(start, "choice", task__format=format_)
    for untold in ("", "?", "-1"):
        (tmp_path / "test").write_text(content.format(untold))
        assert verbs.predict(model, tmp_path / "test", quiet=True)[0]["prediction"] in range(4)
    (tmp_path / "test").write_text(content.format("X"))
    with pytest.raises(UniclozeError, match=r"line .: the right choice is 'X', which is not one of"):
        verbs.predict(model, tmp_path / "test", quiet=True)


@pytest.mark.parametrize(("name", "settings", "record", "answers", "metric"), [
    ("classification", CLASSES, {"text": "anna"}, {"label": ["a", "b", "b"]}, "accuracy"),
    ("regression", {}, {"text": "anna"}, {"label": [1.0, 2.5, 2.0]}, "correlation"),
    ("choice", {}, {"context": "anna", "choices": ["sees", "plays"]}, {"label": [0, 1, 1]}, "accuracy"),
    ("generation", SHORT, {"source": "anna"}, {"target": ["eva", "berlin", "eva"]}, "coco"),
])  # fmt: skip
def test_a_table_of_predictions_is_measured_against_its_records(
    start: LoadedModel,
    generator: LoadedModel,
    tmp_path: Path,
    name: str,
    settings: dict[str, Any],
    record: dict[str, Any],
    answers: dict[str, list[Any]],
    metric: str,
) -> None:
    model = tuned(generator if name == "generation" else start, name, **settings)
    (text, *_), ((key, values),) = record, answers.items()
    several = [{"id": f"r{n}", **record, text: nlu_toys.WORDS[n], key: value} for n, value in enumerate(values)]
    records = nlu_toys.write(tmp_path / "dev.jsonl", several)
    said = verbs.predict(model, records, out=tmp_path / "said.tsv", quiet=True)
    lines = [line.split("\t") for line in (tmp_path / "said.tsv").read_text().splitlines()]
    assert [line[0] for line in lines] == ["index", "r0", "r1", "r2"] and lines[0][1] == "prediction"
    verbs.predict(model, records, out=tmp_path / "said.jsonl", quiet=True)
    assert [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()] == said
    for ending in ("tsv", "jsonl"):
        found = verbs.measure_task(name, tmp_path / f"said.{ending}", records, metric=metric)
        assert found.to_dict()["results"][metric]["items"] == 3


def test_answers_that_are_compared_by_their_id_need_one_each(generator: LoadedModel, tmp_path: Path) -> None:
    answers = [("a", "Li"), ("a", "red"), ("b", "red")]
    records = nlu_toys.write(
        tmp_path / "dev.jsonl", [{"id": n, "context": "Li is red", "question": "?", "answers": [a]} for n, a in answers]
    )
    said = nlu_toys.write(tmp_path / "said.jsonl", [{"id": n, "prediction": "red"} for n, _ in answers])
    with pytest.raises(UniclozeError, match=r"line 2: the id 'a' is also that of .*line 1"):
        verbs.measure_task("squad-v1.1", said, records)
    model = tuned(generator, "generation", **SHORT, task__metrics=["squad"])
    twice = nlu_toys.write(tmp_path / "twice.jsonl", [{"id": "x", "source": "anna", "target": "eva"}] * 2)
    for name, lines, says in (
        ("said.json", twice, "two records have the id 'x'"),
        ("said.tsv", records, "contains a tab"),
    ):
        if name == "said.tsv":
            lines = nlu_toys.write(tmp_path / "tabs.jsonl", [{"id": "x\ty", "source": "anna"}])
        with pytest.MonkeyPatch.context() as patch, pytest.raises(UsageError, match=says):
            patch.setattr("unicloze.finetuning.predict.predict", None)  # nothing is generated before
            verbs.predict(model, lines, out=tmp_path / name, quiet=True)


def test_the_ids_of_records_are_those_of_the_field_that_is_named(tmp_path: Path) -> None:
    fields = [{"id": 100 + n, "qid": f"q{n}", "text": "anna", "label": "a"} for n in range(2)]
    records = nlu_toys.write(tmp_path / "dev.jsonl", fields)
    said = [{"id": f"q{n}", "prediction": "a"} for n in range(2)]
    given = {"task.fields": {"id": "qid"}}
    right = nlu_toys.write(tmp_path / "said.jsonl", said)
    found = verbs.measure_task("classification", right, records, overrides=given)
    assert found.to_dict()["results"]["accuracy"]["items"] == 2
    wrong = nlu_toys.write(tmp_path / "wrong.jsonl", said[::-1])
    with pytest.raises(UniclozeError, match="same order"):
        verbs.measure_task("classification", wrong, records, overrides=given)


@pytest.mark.parametrize("name", ["said.csv", "said.txt", "said", "said.jsonl.gz"])
def test_a_file_name_without_a_known_format_is_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"its extension is not .*: use one of \.jsonl, \.json, \.tsv, or"):
        verbs.predict("no model", tmp_path / "no file", out=tmp_path / name)


@pytest.mark.parametrize(("name", "said", "message"), [
    ("3", ["O"], "the prediction of 3 is not a class, a quantity or a text: give an --out that ends in .jsonl"),
    ("3", "two\twords", "the prediction of '3' contains a tab"),
    ("3", "two\nlines", "the prediction of '3' contains a tab or a newline"),
    ("a\tb", "yes", r"the id 'a\\tb' contains a tab"),
])  # fmt: skip
def test_what_a_table_cannot_hold_is_refused(name: str, said: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        as_glue([{"id": name, "prediction": said}])


def test_tags_are_not_written_as_a_table(start: LoadedModel, tmp_path: Path) -> None:
    file = nlu_toys.write(tmp_path / "x.jsonl", [{"tokens": ["anna"]}])
    with pytest.raises(UsageError, match="the tags of a sentence are not a class"):
        verbs.predict(tuned(start, "tagging", **CLASSES), file, out=tmp_path / "said.tsv", quiet=True)


def test_predictions_are_lists_that_say_how_they_are_shown(generator: LoadedModel, tmp_path: Path) -> None:
    model = tuned(generator, "generation", **SHORT)
    table = nlu_toys.write(tmp_path / "dev.jsonl", [{"id": n, "source": "anna", "target": "eva"} for n in "ab"])
    shown = verbs.predict(model, table, quiet=True)
    assert str(shown) == "\n".join(json.dumps(one) for one in shown) and shown.to_dict() == list(shown)
    kept = verbs.predict(model, table, out=tmp_path / "said.tsv", quiet=True)
    assert str(pickle.loads(pickle.dumps(kept))) == f"{tmp_path / 'said.tsv'}: 2 predictions" and kept == shown
    text = verbs.generate(model, "anna", quiet=True)
    assert (str(text), text.to_dict()) == (text[0]["prediction"], text[0])


def test_a_raw_text_is_a_record(start: LoadedModel, generator: LoadedModel, tmp_path: Path) -> None:
    model = tuned(start, "classification", **CLASSES, task__fields={"text": "body"})
    (said,) = found = verbs.predict(model, text="anna sees")
    file = nlu_toys.write(tmp_path / "x.jsonl", [{"body": "anna sees"}])
    assert found == verbs.predict(model, file, quiet=True) and found.to_dict() == said
    pairs = tuned(start, "classification", **CLASSES, task__optional=["pair"])
    nlu_toys.write(file, [{"text": "anna", "pair": "eva"}])
    assert verbs.predict(pairs, text=["anna", "eva"]) == verbs.predict(pairs, file, quiet=True)
    squad = tuned(start, "squad-v2")
    nlu_toys.write(file, [{"context": "anna sees", "question": "who"}])
    assert verbs.predict(squad, text=["anna sees", "who"]) == verbs.predict(squad, file, quiet=True)
    writer = tuned(generator, "generation", **SHORT)
    assert verbs.predict(writer, text="anna") == verbs.generate(writer, "anna")


def test_a_tagger_splits_the_words_of_a_raw_text(start: LoadedModel) -> None:
    model = tuned(start, "tagging", task__labels=["O", "B-X"])
    (said,) = verbs.predict(model, text="Anna doesn't see (2.5) cats...")
    assert said["tokens"] == ["Anna", "doesn't", "see", "(", "2.5", ")", "cats", "..."]
    assert len(said["prediction"]) == 8
    assert words_of("\u306f\u5317\u4eac well-known, \u0939\u093f\u0928\u094d\u0926\u0940!?") == [
        "\u306f", "\u5317", "\u4eac", "well-known", ",", "\u0939\u093f\u0928\u094d\u0926\u0940", "!", "?",
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "given", "message"), [
    ("classification", CLASSES | {"task__optional": ["pair"]}, {"text": "a"}, "text and pair: give 2 texts, not 1"),
    ("classification", CLASSES | {"task__optional": []}, {"text": ["a", "b"]}, "reads text: give 1 text, not 2"),
    ("choice", {}, {"text": ["a"]}, "choices, which plain text does not contain: give a --file of records"),
    ("tagging", CLASSES | {"task__optional": ["predicate"]}, {"text": "a"}, "reads predicate, which plain text"),
    ("classification", CLASSES, {"text": " "}, "the text is empty"),
    ("classification", CLASSES, {}, "Give either a text or a file of records to predict"),
    ("classification", CLASSES, {"text": "a", "overrides": {"task.format": "csv"}}, "applies to a file, but a text"),
])  # fmt: skip
def test_a_raw_text_that_is_not_a_record_is_refused(
    start: LoadedModel, name: str, settings: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        verbs.predict(tuned(start, name, **settings), **given)


def test_what_a_model_cannot_do_is_answered_by_what_it_can(start: LoadedModel) -> None:
    model = dataclasses.replace(tuned(start, "classification", **CLASSES), path=Path("mine/best/step-1"))
    it_can = r"it predicts one of several classes .*: `unicloze predict --model mine --text \"Some text.\"`"
    for ask in (
        lambda: verbs.fill(model, "anna [MASK]"),
        lambda: verbs.score(model, "anna"),
        lambda: verbs.generate(model, "anna"),
    ):
        with pytest.raises(UsageError, match=f"a model fine-tuned for classification cannot .*; {it_can}"):
            ask()
    assert verbs.embed(model, ["anna"]).shape == (1, model.recipe.model.hidden_size)
    with pytest.raises(UsageError, match=r"not a fine-tuned model: .*: `unicloze fill --model none --text"):
        verbs.predict(start, text="anna")
