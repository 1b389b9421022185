"""Multiple choice and GPT's inputs: files to records, records to rows, several sequences in a row, and learning."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nlu_toys import WORDS, finetuned, recipe_for, record, rows_of, start, write
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import collate
from unicloze.finetuning.data import open_records
from unicloze.finetuning.predict import outputs_of
from unicloze.records import read_records
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks import TASKS, classification, task_settings
from unicloze.tasks.rows import Row
from unicloze.training.loading import LoadedModel, ready_model


def records_of(folder: Path, name: str, content: str, format_: str) -> list[Record]:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return read_records(path, task_settings(kind="choice", format=format_))


# Files

ARTICLE = {
    "id": "high1.txt",
    "article": "Carl sleeps.",
    "questions": ["Who sleeps?", "Carl _ ."],
    "options": [["Anna", "Carl", "Eva", "I"], ["runs", "sings", "sleeps", "eats"]],
    "answers": ["B", "C"],
}
SWAG = "video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
CLOZE = (
    "InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,RandomFifthSentenceQuiz1,"
    "RandomFifthSentenceQuiz2"
)


@pytest.mark.parametrize(("format_", "content", "fields"), [
    ("swag", f'{SWAG},label\nv,1,"On stage, she She","On stage, she sits.",She,gold,runs.,sings.,falls.,bows.,3\n',
     {"context": "On stage, she sits.", "question": "She", "choices": ["runs.", "sings.", "falls.", "bows."], "label": 3}),
    ("swag", f"{SWAG}\nv,1,a b,a,b,gold,c,d,e,f\n", {"context": "a", "question": "b", "choices": ["c", "d", "e", "f"]}),
    ("copa", '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE copa-corpus SYSTEM "copa.dtd">\n<copa-corpus version="1.0">\n'
     '<item id="7" asks-for="effect" most-plausible-alternative="2">\n<p>It rained.</p><a1>Sun &amp; sea.</a1>\n'
     "<a2>I got wet.</a2></item></copa-corpus>",
     {"id": "7", "context": "It rained.", "question": "What happened as a result?", "choices": ["Sun & sea.", "I got wet."],
      "label": 1}),
    ("copa", '{"premise": "Wet.", "choice1": "Rain.", "choice2": "Sun.", "question": "cause", "label": 0, "idx": 4}\n',
     {"id": "4", "context": "Wet.", "question": "What was the cause of this?", "choices": ["Rain.", "Sun."], "label": 0}),
    ("story-cloze", f"{CLOZE},AnswerRightEnding\nx,A.,B.,C.,D.,E.,F.,2\n",
     {"id": "x", "context": "A. B. C. D.", "choices": ["E.", "F."], "label": 1}),
    ("story-cloze", f'{CLOZE}\nx,A.,"B, b.",C.,D.,E.,F.\n',
     {"id": "x", "context": "A. B, b. C. D.", "choices": ["E.", "F."]}),
    ("winogrande", '{"qID": "q", "sentence": "It fits: _ is small.", "option1": "it", "option2": "box", "answer": "1"}\n',
     {"id": "q", "cloze": "It fits: _ is small.", "choices": ["it", "box"], "label": 0}),
    ("winogrande", '{"sentence": "_ is", "option1": "a", "option2": "b", "answer": ""}\n',
     {"cloze": "_ is", "choices": ["a", "b"]}),
    ("wsc", "<collection>\n<schema><text><txt1>The men\nfeared</txt1><pron>they</pron><txt2>ran.</txt2></text><answers>"
     "<answer> The men</answer><answer>Dogs</answer></answers><correctAnswer>B.</correctAnswer></schema></collection>",
     {"cloze": "The men feared _ ran.", "choices": ["The men", "Dogs"], "label": 1}),
])  # fmt: skip
def test_the_files_of_each_data_set(tmp_path: Path, format_: str, content: str, fields: dict[str, Any]) -> None:
    (found,) = records_of(tmp_path, "file", content, format_)
    assert found.fields == fields
    assert [len(parts) for parts in classification.sequences(found, task_settings(kind="choice"))]


def test_race_is_a_folder_of_articles_or_a_line_each(tmp_path: Path, bert: LoadedModel) -> None:
    other = {**ARTICLE, "id": "middle9.txt"} | {"answers": ["A", "D"]}
    records_of(tmp_path, "race/high/1.txt", json.dumps(ARTICLE, indent=1), "race")
    found = records_of(tmp_path, "race/middle/9.txt", json.dumps(other), "race")
    assert [one.id for one in found] == ["middle9-0", "middle9-1"]
    settings = task_settings(kind="choice", format="race")
    found = read_records(tmp_path / "race", settings)
    assert [one.id for one in found] == ["high1-0", "high1-1", "middle9-0", "middle9-1"]
    assert [one.get(settings, "label") for one in found] == [1, 2, 0, 3]
    assert classification.sequences(found[1], settings)[2] == ["Carl sleeps.", "Carl _ . sleeps"]
    lines = records_of(tmp_path, "all.jsonl", f"{json.dumps(ARTICLE)}\n{json.dumps(other)}\n", "race")
    assert [one.fields for one in lines] == [one.fields for one in found] and lines[2].place.endswith("line 2")
    recipe = recipe_for(bert, "race", task__max_length=32)
    one = open_records(tmp_path / "race", recipe, bert.tokenizer)
    (tmp_path / "race" / "middle" / "9.txt").write_text(json.dumps(ARTICLE))
    assert len(one.rows) == 4 and one.fingerprint != open_records(tmp_path / "race", recipe, bert.tokenizer).fingerprint


@pytest.mark.parametrize(("format_", "content", "message"), [
    ("race", '{"article": "a", "questions": ["b"]}', "line 1: this is not an article of RACE: it lacks options"),
    ("race", "nonsense", "line 1: this is not JSON"),
    ("race", json.dumps({**ARTICLE, "answers": ["B", "E"]}), "line 1: the right choice is 'E', which is not one of A, B, C"),
    ("race", json.dumps({**ARTICLE, "answers": ["B"]}), "line 1: there are 2 questions, 2 lists of options and 1 answers"),
    ("swag", "a,b\n1,2\n", "line 2: this is not a line of SWAG: it lacks sent1"),
    ("copa", "<a>\n<item>\n</a>", "line 3: this is not XML"),
    ("copa", '{"premise": "a", "choice1": "b", "choice2": "c", "question": "why"}',
     "COPA asks for cause or effect, not 'why'"),
    ("story-cloze", f"{CLOZE},AnswerRightEnding\nx,A.,B.,C.,D.,E.,F.,3\n", "line 2: the right choice is '3'"),
    ("winogrande", "[]", "line 1: a record must be a JSON object"),
    ("wsc", "<c>\n<schema><text><txt1>a</txt1></text></schema></c>", "line 2: the schema lacks"),
])  # fmt: skip
def test_a_broken_file_is_named(tmp_path: Path, format_: str, content: str, message: str) -> None:
    with pytest.raises(UniclozeError, match=re.escape(message)):
        records_of(tmp_path, "file", content, format_)


# Rows


def spelled(model: LoadedModel, row: Row) -> str:
    return " ".join(model.tokenizer.tokens(row.input_ids))


def test_a_row_holds_every_choice(bert: LoadedModel) -> None:
    recipe = recipe_for(bert, "choice")
    (row,) = rows_of(bert, recipe, record(context="anna", question="sees", choices=["carl", "eva sees"], label=1))
    assert spelled(bert, row) == "[SOS] anna [EOS] sees carl [EOS] [SOS] anna [EOS] sees eva sees [EOS]"
    assert row.segment_ids.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1]
    assert (row.lengths, row.targets["choice"].slots, row.targets["choice"].labels) == ([6, 7], [[0, 6]], [1])
    (row,) = rows_of(bert, recipe, record(cloze="anna sees _ .", choices=["carl", "eva"], label="eva"))
    assert spelled(bert, row) == "[SOS] anna sees carl . [EOS] [SOS] anna sees eva . [EOS]"
    assert row.targets["choice"].labels == [1] and not row.segment_ids.any()


def test_a_causal_model_reads_a_delimiter_and_scores_the_last_slot(gpt: LoadedModel) -> None:
    recipe = recipe_for(gpt, "story-cloze")
    (row,) = rows_of(gpt, recipe, record(context="anna", choices=["carl", "eva"], label=0))
    size = row.lengths[0]
    first, second = row.input_ids[:size], row.input_ids[size:]
    vocabulary = gpt.tokenizer.vocabulary
    assert np.flatnonzero(first == vocabulary.pseudo).size == np.flatnonzero(second == vocabulary.pseudo).size == 1
    assert row.targets["choice"].slots == [[size - 1, len(row.input_ids) - 1]]
    examples = TASKS["choice"].lay_out([row], vocabulary, recipe, None)
    seen = examples.visible(0)
    assert seen[size - 1].tolist() == [True] * size + [False] * (len(seen) - size) and not seen[size - 1, size:].any()
    assert seen[-1, size:].all() and not seen[-1, :size].any() and seen[0].sum() == 1


def test_a_packed_choice_is_scored_as_if_it_stood_alone(bert: LoadedModel, gpt: LoadedModel) -> None:
    for model, name in ((bert, "choice"), (gpt, "story-cloze")):
        recipe = recipe_for(model, name, task__head="dense")
        choices = ["carl sees eva", "eva", "berlin plays dublin .", "a"]
        (row,) = rows_of(model, recipe, record(context="anna leaves berlin", choices=choices))
        network = ready_model(recipe, model.model.vocab_size, torch.device("cpu")).eval()
        scores = outputs(network, recipe, model, row)["choice"][0, 0]
        begin = 0
        for number, size in enumerate(row.lengths):
            part = slice(begin, begin + size)
            slot = row.targets["choice"].slots[0][number] - begin
            target = dataclasses.replace(row.targets["choice"], slots=[[slot]])
            alone = dataclasses.replace(
                row,
                input_ids=row.input_ids[part],
                segment_ids=row.segment_ids[part],
                lengths=(),
                targets={"choice": target},
            )
            torch.testing.assert_close(outputs(network, recipe, model, alone)["choice"][0, 0, 0], scores[number])
            begin += size


def outputs(network: Any, recipe: Recipe, model: LoadedModel, *rows: Row) -> Any:
    examples = TASKS[recipe.task.kind].lay_out(rows, model.tokenizer.vocabulary, recipe, None)
    with torch.inference_mode():
        return network.outputs(collate(examples))


@pytest.mark.parametrize(("fields", "message"), [
    ({"context": "a", "choices": ["b"], "label": 0}, "here, line 1: 1 choice(s); two or more"),
    ({"context": "a", "choices": "bc", "label": 0}, "here, line 1: the field 'choices' is not a list of texts"),
    ({"choices": ["a", "b"], "label": 0}, "here, line 1: the field 'context' is missing"),
    ({"context": "a", "choices": ["b", "c"], "label": 2}, "here, line 1: the label 2 is not one of the choices"),
    ({"context": "a", "choices": ["b", "b"], "label": "b"}, "here, line 1: the label 'b' is the text of several choices"),
    ({"context": "a", "choices": ["b", "c"], "label": "2"}, "here, line 1: the label '2' is not one of the choices"),
    ({"context": "a", "choices": ["b", "c"], "label": "-1"}, "here, line 1: the label '-1' is not one of the choices"),
    ({"context": "a", "choices": ["b", "c"], "label": 1.0}, "here, line 1: the label 1.0 is not one of the choices"),
    ({"context": "a", "choices": ["b", "c"], "label": True}, "here, line 1: the label True is not one of the choices"),
    ({"cloze": "no gap", "choices": ["b", "c"], "label": 0}, "here, line 1: the sentence has 0 gaps '_'; one"),
    ({"cloze": "_ and _", "choices": ["b", "c"], "label": 0}, "here, line 1: the sentence has 2 gaps '_'; one"),
])  # fmt: skip
def test_a_record_that_is_not_a_choice_is_named(bert: LoadedModel, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UniclozeError, match=re.escape(message)):
        rows_of(bert, recipe_for(bert, "choice"), record(**fields))


def test_a_choice_is_scored_at_one_slot_with_any_pooling(bert: LoadedModel, gpt: LoadedModel) -> None:
    one = record(context="anna", choices=["carl", "eva"])
    averaging = recipe_for(bert, "choice", use__pooling="mean")
    assert rows_of(bert, averaging, one)[0].targets["choice"].slots == [[0, 5]]
    (row,) = rows_of(gpt, recipe_for(gpt, "choice"), one)
    assert row.targets["choice"].slots == [[row.lengths[0] - 1, sum(row.lengths) - 1]]
    with pytest.raises(UsageError, match=r"task\.pooling is 'mean'; a choice is scored from one slot"):
        recipe_for(bert, "choice", task__pooling="mean")
    with pytest.raises(UsageError, match=r"task\.pooling is None; task\.both_orders sums pooled"):
        recipe_for(bert, "classification", task__both_orders=True)


# GPT's inputs for pairs


def test_a_delimiter_separates_the_texts_of_a_pair(gpt: LoadedModel, bert: LoadedModel) -> None:
    recipe = recipe_for(bert, "gpt-classification", finetuning__auxiliary={}, task__labels=["x", "y"])
    one = record(text="anna", pair="carl sees", label="x")
    (row,) = rows_of(bert, recipe, one)
    assert spelled(bert, row) == "[SOS] anna [PSEUDO] carl sees [EOS]" and not row.segment_ids.any()
    assert row.targets["label"].slots == [[5]]
    (row,) = rows_of(bert, recipe, record(text="anna", label="x"))
    assert spelled(bert, row) == "[SOS] anna [EOS]"


def test_both_orders_are_read_and_their_order_has_no_meaning(gpt: LoadedModel) -> None:
    recipe = recipe_for(gpt, "gpt-similarity")
    forth, back = (
        rows_of(gpt, recipe, record(text=a, pair=b))[0] for a, b in (("anna", "carl sees"), ("carl sees", "anna"))
    )
    size = forth.slots // 2
    assert list(forth.lengths) == [size, size] and forth.targets["label"].slots == [[size - 1, 2 * size - 1]]
    assert np.array_equal(forth.input_ids, np.roll(back.input_ids, size))
    network = ready_model(recipe, gpt.model.vocab_size, torch.device("cpu")).eval()
    found = outputs(network, recipe, gpt, forth, back)["label"]
    torch.testing.assert_close(found[0], found[1])
    head = network.task_head("label")
    assert (head.head.pooling, head.rate) == ("sum", 0.1)
    averaging = task_settings(kind="regression", both_orders=True, pooling="mean")
    assert TASKS["classification"].heads(averaging)["label"].pooling == "mean"
    # The sum of both orders, each read in a separate row.
    alone = dataclasses.replace(recipe, task=dataclasses.replace(recipe.task, both_orders=False))
    states = [rows_of(gpt, alone, record(text=a, pair=b))[0] for a, b in (("anna", "carl sees"), ("carl sees", "anna"))]
    singles = outputs(network, alone, gpt, *states)["label"]
    torch.testing.assert_close(found[0], singles.sum(dim=0) - head.output.bias)


def test_a_model_of_one_segment_reads_pairs() -> None:
    model = start("roberta-base")
    recipe = recipe_for(model, "classification", task__labels=["x", "y"])
    (row,) = rows_of(model, recipe, record(text="anna", pair="carl", label="x"))
    assert not row.segment_ids.any()
    network = ready_model(recipe, model.model.vocab_size, torch.device("cpu")).eval()
    assert outputs(network, recipe, model, row)["label"].shape == (1, 1, 2)


def test_a_model_that_predicts_nan_chooses_nothing(bert: LoadedModel) -> None:
    """Previously the first choice was predicted."""
    recipe = recipe_for(bert, "choice")
    (row,) = rows_of(bert, recipe, record(context="anna leaves", choices=["carl", "eva"], label=1))
    network = ready_model(recipe, bert.model.vocab_size, torch.device("cpu")).eval()
    task_model = dataclasses.replace(bert, model=network, recipe=recipe)
    assert outputs_of(task_model, [row])[0]["choice"].shape == (1, 2)
    with torch.no_grad():
        network.backbone.embeddings.tokens.weight[:] = torch.nan
    with pytest.raises(UniclozeError, match="the model predicts nan: its training diverged"):
        outputs_of(task_model, [row])


# Learning


@pytest.mark.slow
@pytest.mark.parametrize(("name", "causal"), [("choice", False), ("story-cloze", True)])
def test_it_memorises_sixteen_choices(
    bert: LoadedModel, gpt: LoadedModel, tmp_path: Path, name: str, causal: bool
) -> None:
    records = []
    for i in range(16):
        choices = [WORDS[i % 4], WORDS[4 + i // 4], "Zürich 🎉"][: 2 + i % 2]
        records.append({"context": f"{WORDS[i % 4]} {WORDS[i // 4]}", "choices": choices, "label": i % 2})
    train = write(tmp_path / "train.jsonl", records)
    model = gpt if causal else bert
    recipe = recipe_for(model, name, task__format="auto", finetuning__epochs=60, task__head_dropout=0.0)
    result = finetuned(recipe, model, train, train, tmp_path / "run")
    assert result.scores["accuracy"].values["accuracy"] == 100
    unlabelled = [{key: value for key, value in one.items() if key != "label"} for one in records]
    said = verbs.predict(tmp_path / "run", write(tmp_path / "test.jsonl", unlabelled), quiet=True)
    assert [one["prediction"] for one in said] == [one["label"] for one in records]
    assert [one["choice"] for one in said] == [one["choices"][one["label"]] for one in records]
    assert all(len(one["probabilities"]) == len(two["choices"]) for one, two in zip(said, records, strict=True))
    assert all(abs(sum(one["probabilities"]) - 1) < 1e-5 for one in said)


def test_one_record_long_texts_and_empty_ones(bert: LoadedModel, tmp_path: Path) -> None:
    long = {"context": "anna " * 10_000, "choices": ["", "carl " * 300], "label": 0}
    train = write(tmp_path / "train.jsonl", [long])
    recipe = recipe_for(bert, "choice", task__max_length=24, finetuning__epochs=1)
    with pytest.warns(UserWarning, match="1 of 1 records are longer than the 24 tokens"):
        finetuned(recipe, bert, train, None, tmp_path / "run")
