"""Records for generation: unusual and broken ones, several parts and targets, and texts too long for a row."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nlu_toys
from test_generation_task import pairs, recipe_for, untrained, write
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.finetuning.run import finetune_run
from unicloze.records.record import Record
from unicloze.tasks import TASKS, generation
from unicloze.tasks.columns import targets_of
from unicloze.tasks.generation import chunk, cut_texts
from unicloze.training.loading import LoadedModel


@pytest.fixture(scope="module")
def start() -> LoadedModel:
    return untrained()


def test_odd_records_are_survived(start: LoadedModel, tmp_path: Path) -> None:
    records = [
        {"source": "alpha beta", "target": ""},
        {"source": "", "target": "beta"},
        {"source": "alpha " * 10_000, "target": "gamma " * 100},
        {"source": "\u96ea \u0645\u0631\u062d\u0628\u0627 \U0001f600", "target": "\u00e9t\u00e9"},
    ]
    train = write(tmp_path / "train.jsonl", records)
    recipe = recipe_for(start, finetuning__epochs=2, finetuning__evaluations=1)
    with pytest.warns(UserWarning, match="1 of 4 sources are longer than 24 tokens.*and 1 targets longer than 24"):
        finetune_run(recipe, start, train, train, tmp_path / "run", progress=False)
    one = write(tmp_path / "one.jsonl", pairs(1))
    finetune_run(recipe, start, one, one, tmp_path / "alone", progress=False)
    assert (
        len(verbs.generate(tmp_path / "alone", file=write(tmp_path / "two.jsonl", [{"source": "x"}]), quiet=True)) == 1
    )


@pytest.mark.parametrize(("line", "message"), [
    ('{"source": "a"}', "line 2: the field 'target' is missing"),
    ('{"target": "a"}', "line 2: the field 'source' is missing"),
    ('{"source": "a", "target": null}', "line 2: 'target' is null: fix the record or leave it out"),
    ('{"source": "a", "target": 3}', "line 2: the field 'target' is not a text"),
    ('{"source": "a", "target": []}', "line 2: the field 'target' is not a text"),
    ('{"source": ["a", 1], "target": "b"}', "line 2: the field 'source' is not a text"),
])  # fmt: skip
def test_a_record_that_cannot_be_used_is_named(start: LoadedModel, tmp_path: Path, line: str, message: str) -> None:
    train = tmp_path / "train.jsonl"
    train.write_text('{"source": "a", "target": "b"}\n' + line + "\n")
    with pytest.raises(UniclozeError, match=message):
        finetune_run(recipe_for(start), start, train, None, tmp_path / "run", progress=False)


def test_parts_lists_and_references(start: LoadedModel) -> None:
    recipe = recipe_for(
        start,
        generation__source=["history", "question", "context"],
        generation__targets="all",
        task__fields={"target": "answers", "history": "before"},
    )
    fields = {
        "before": [["alpha", "beta"], ["gamma", "delta"]],
        "question": "eta",
        "context": "theta iota",
        "answers": [{"text": "mu", "answer_start": 3}, {"text": "nu"}],
    }
    record = Record("0", fields, "line 1")
    rows = generation.encode([record], start.tokenizer, recipe)
    eos = start.tokenizer.vocabulary.eos
    ids = start.tokenizer.encode_batch(["alpha beta gamma delta", "eta", "theta iota", "mu", "nu"])
    assert rows[0].source.tolist() == [*ids[0], eos, *ids[1], eos, *ids[2]]
    assert [row.target.tolist() for row in rows if row.target is not None] == [ids[3].tolist(), ids[4].tolist()]
    assert TASKS["generation"].reference(record, recipe.task) == ["mu", "nu"]
    first = dataclasses.replace(recipe.task, fields={**recipe.task.fields, "target": "answers.0.text"})
    assert record.get(first, "target") == "mu"
    only_references = Record("1", {"references": ["mu", "nu"], **fields, "answers": None}, "line 2")
    assert targets_of(only_references, recipe.task) == ["mu", "nu"]


def test_a_chunk_holds_the_answer_at_its_place_and_a_history_keeps_its_end() -> None:
    """UniLM v1, Section 3.3; the same word may stand elsewhere, and the latest turns of a conversation tell most."""
    start = nlu_toys.start("unilmv2-base")
    context = " ".join(["fargo"] + ["anna"] * 60 + ["fargo"] + ["carl"] * 30)
    fields: dict[str, Any] = {"context": context, "history": "anna " * 60 + "eva", "question": "carl"}
    sources = []
    for at in (context.rindex("fargo"), 0):
        fields["answers"] = [{"text": "fargo", "answer_start": at}]
        more = {"generation__source": ["context", "answer"], "task__fields": {"answer": "answers.0"}}
        sources.append(_source(start, fields, **more))
    assert sources[0].count("fargo") == sources[1].count("fargo") == 2
    assert sources[0].index("fargo") > 0
    assert sources[1][0] == "fargo" and "carl" not in sources[1]
    more = {"generation__source": ["history", "question"], "generation__chunk_by": ["question"]}
    assert _source(start, fields, **more)[-3:] == ["eva", "", "carl"]


def _source(start: LoadedModel, fields: dict[str, Any], **more: Any) -> list[str]:
    settings = {"generation__keep": "chunk", "task__max_length": 32, "generation__max_target": 8, **more}
    recipe = nlu_toys.recipe_for(start, "generation", **settings)
    with pytest.warns(UserWarning, match="were cut"):
        (row,) = generation.encode([Record(id="0", fields=fields, place="")], start.tokenizer, recipe)
    words = {int(start.tokenizer.encode(word)[0]): word for word in ("anna", "berlin", "carl", "eva", "fargo")}
    return [words.get(int(token), "") for token in row.source]


def test_long_parts_are_cut_first_and_chunks_hold_the_answer() -> None:
    long, short, middle = np.arange(100, 160), np.arange(2), np.arange(200, 212)
    kept = cut_texts([long, short, middle], 34, "beginning")
    assert [len(part) for part in kept] == [18, 2, 12] and kept[0].tolist() == list(range(100, 118))
    kept = cut_texts([long, short, middle], 20, "end")
    assert [len(part) for part in kept] == [8, 2, 8] and kept[2].tolist() == list(range(204, 212))
    assert [len(part) for part in cut_texts([long, short], 63, "end")] == [60, 2]
    history, asked = np.array([7, 8, 9], dtype=np.int32), np.array([50, 52], dtype=np.int32)
    story = np.arange(100, dtype=np.int32)
    by_all, by_question = (cut_texts([history, asked, story], 17, "chunk", by)[2].tolist() for by in (None, [1]))
    assert by_all == list(range(10)), "the history is found whole"
    assert by_question == list(range(43, 53)), "UniLM v1 takes the chunk with the highest overlap with the question"
    rng = np.random.default_rng(0)
    for _ in range(50):
        passage, size = rng.integers(0, 12, 40), int(rng.integers(5, 15))
        answer = passage[(at := int(rng.integers(0, 36))) : at + 4]
        starts = range(len(passage) - size + 1)

        def score(first: int, passage: Any = passage, size: int = size, answer: Any = answer) -> int:
            window = passage[first : first + size].tolist()
            whole = any(window[i : i + 4] == answer.tolist() for i in range(size - 3))
            return len(passage) * whole + len(set(answer.tolist()) & set(window))

        best = max(starts, key=score)
        assert chunk(passage, [answer], size).tolist() == passage[best : best + size].tolist()


def test_sources_are_no_longer_than_the_model_reads(start: LoadedModel) -> None:
    recipe = recipe_for(start, generation__max_source=20, generation__max_target=10, decoding__max_length=64)
    assert generation.room(recipe) == (20, 10) and recipe.decoding.max_length == 10
    assert generation.room(recipe_for(start)) == (24, 24), "half of the row at most is the target's"
    with pytest.raises(UsageError, match="num_results is 3, but beams is 2"):
        recipe_for(start, decoding__beams=2, decoding__num_results=3)
