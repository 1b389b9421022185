"""Records for generation: unusual and broken ones, several parts and targets, and texts too long for a row."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nlu_toys
import unicloze.decoding.generate as room
from nlu_toys import finetuned
from test_generation_task import pairs, recipe_for, untrained, write
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.finetuning.generate import PartialFile
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
        finetuned(recipe, start, train, train, tmp_path / "run")
    with pytest.warns(UserWarning, match="1 of 4 sources are longer than 24 tokens"):
        said = verbs.generate(tmp_path / "run", file=train, quiet=True)
        assert said == verbs.predict(tmp_path / "run", train, quiet=True)
    assert [one.get("truncated", False) for one in said] == [False, False, True, False]
    one = write(tmp_path / "one.jsonl", pairs(1))
    finetuned(recipe, start, one, one, tmp_path / "alone")
    assert len(verbs.generate(tmp_path / "alone", "x", quiet=True)) == 1


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
        finetuned(recipe_for(start), start, train, None, tmp_path / "run")


def test_parts_lists_and_references(start: LoadedModel) -> None:
    parts, names = ["history", "question", "context"], {"target": "answers", "history": "before"}
    recipe = recipe_for(start, generation__source=parts, generation__targets="all", task__fields=names)
    fields = {
        "before": [["alpha", "beta"], ["gamma", "delta"]], "question": "eta", "context": "theta iota",
        "answers": [{"text": "mu", "answer_start": 3}, {"text": "nu"}],
    }  # fmt: skip
    record = Record("0", fields, "line 1")
    rows = TASKS["generation"].encode([record], start.tokenizer, recipe)
    eos = start.tokenizer.vocabulary.eos
    ids = start.tokenizer.encode_batch(["alpha beta gamma delta", "eta", "theta iota", "mu", "nu"])
    assert rows[0].source.tolist() == [*ids[0], eos, *ids[1], eos, *ids[2]]
    assert [row.target.tolist() for row in rows if row.target is not None] == [ids[3].tolist(), ids[4].tolist()]
    assert TASKS["generation"].reference(record, recipe.task) == ["mu", "nu"]
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
        (row,) = TASKS["generation"].encode([Record(id="0", fields=fields, place="")], start.tokenizer, recipe)
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


# Interrupted generation to a long file: finished texts are kept, and the rest is as in an uninterrupted run.


DRAWN = {
    "decoding.sample": True, "decoding.beams": 1, "decoding.num_results": 2, "decoding.max_length": 4,
    "decoding.min_length": 0, "decoding.batch_size": 2,
}  # fmt: skip
DONE = 8
"""Lines of two parts."""


@pytest.fixture(scope="module")
def small() -> LoadedModel:
    return nlu_toys.start("quickstart")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records of different lengths, in parts of four."""
    monkeypatch.setattr(room, "BATCHES_OF_A_CHUNK", 2)
    words = nlu_toys.WORDS
    records = [{"id": f"r{n}", "source": " ".join(words[: 1 + n * 7 % 6]), "n": n} for n in range(15)]
    return nlu_toys.write(tmp_path / "sources.jsonl", records)


def tuned(small: LoadedModel, **settings: Any) -> LoadedModel:
    settings |= {"model__max_positions": small.model.max_positions}
    return dataclasses.replace(small, recipe=nlu_toys.recipe_for(small, "generation", **settings))


def stop_at(patch: pytest.MonkeyPatch, batch: int, error: BaseException) -> None:
    """Make the batch of a given number fail."""
    steps, seen = room.search, iter(range(1000))

    def failing(*arguments: Any) -> Any:
        if next(seen) == batch:
            raise error
        return steps(*arguments)

    patch.setattr(room, "search", failing)


@contextlib.contextmanager
def stopped(batch: int, error: BaseException) -> Iterator[None]:
    """Stopped at that batch, which is reported."""
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.warns(UserWarning, match="out.jsonl.part has 8 of 15 lines; the same command resumes from there"),
        pytest.raises(type(error)),
    ):
        stop_at(patch, batch, error)
        yield


def write_texts(model: LoadedModel, file: Path, out: Path | None = None, **overrides: Any) -> Any:
    return verbs.generate(model, file=file, out=out, quiet=True, overrides={**DRAWN, **overrides})


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("how", ["pre-trained", "fine-tuned", "into", "predict"])
def test_an_interrupted_file_is_completed_as_if_never_interrupted(
    small: LoadedModel, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    out, one = tmp_path / "out.jsonl", {**DRAWN, "decoding.num_results": 1}
    as_drawn = tuned(small, **{name.replace(".", "__"): value for name, value in DRAWN.items()})
    generate: Callable[..., Any] = {
        "pre-trained": lambda out=None: write_texts(small, sources, out),
        "fine-tuned": lambda out=None: write_texts(tuned(small), sources, out),
        "into": lambda out=None: verbs.generate(small, file=sources, into="made", out=out, quiet=True, overrides=one),
        "predict": lambda out=None: verbs.predict(as_drawn, sources, out, quiet=True),
    }[how]

    whole, part = generate(), tmp_path / "out.jsonl.part"
    with stopped(5, KeyboardInterrupt()):
        generate(out)
    assert lines_of(part) == whole[:DONE] and not out.exists()
    part.write_bytes(part.read_bytes() + b'{"id": "r8", "predic')  # truncated by a kill
    computed: list[int] = []
    with monkeypatch.context() as patch:
        steps = room.search
        patch.setattr(room, "search", lambda *arguments: computed.extend(arguments[2]) or steps(*arguments))
        assert generate(out) == whole
    assert sorted(computed) == list(range(DONE, 15))
    assert lines_of(out) == whole
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.jsonl", "sources.jsonl"]
    assert generate(out) == whole == lines_of(out)


@pytest.mark.whole
def test_what_was_started_with_other_input_starts_over(small: LoadedModel, sources: Path, tmp_path: Path) -> None:
    model, out, part = tuned(small), tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    longer = nlu_toys.write(tmp_path / "longer.jsonl", [*lines_of(sources), {"source": "eva"}])
    other = dataclasses.replace(model, model=nlu_toys.start("quickstart", training__seed=7).model)
    for what, started, file, overrides in (
        ("model", other, sources, {}),
        ("setting", model, sources, {"decoding.seed": 1}),
        ("file of records", model, longer, {}),
    ):
        with stopped(4, KeyboardInterrupt()):
            write_texts(model, sources, out)
        with pytest.warns(UserWarning, match=f"out.jsonl.part was started with another {what}, and is started again"):
            found = write_texts(started, file, out, **overrides)
        assert found == write_texts(started, file, **overrides) == lines_of(out)
        assert len(found) == 15 + (file == longer) and not part.exists()
    with stopped(4, KeyboardInterrupt()):
        write_texts(model, sources, out)
    part.write_text(part.read_text().replace('"r1"', '"r2"'))
    with pytest.warns(UserWarning, match="has other lines, and is started again"):
        found = write_texts(model, sources, out)
    assert found == write_texts(model, sources)


def test_a_part_is_kept_until_its_replacement_exists(small: LoadedModel, sources: Path, tmp_path: Path) -> None:
    model, out, part = tuned(small), tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    with stopped(4, KeyboardInterrupt()):
        write_texts(model, sources, out)
    former = part.read_bytes()
    with pytest.warns(UserWarning, match="another setting"), pytest.raises(UsageError, match="beams is 0"):
        write_texts(model, sources, out, **{"decoding.beams": 0})
    assert part.read_bytes() == former
    with pytest.raises(UsageError, match="beams is 0"):
        write_texts(model, sources, tmp_path / "new.jsonl", **{"decoding.beams": 0})
    assert not list(tmp_path.glob("new*"))
    (tmp_path / "mine.jsonl.part").write_text("mine")
    with pytest.raises(UniclozeError, match=r"mine.jsonl.part was not started by this command: move it away, or give"):
        write_texts(model, sources, tmp_path / "mine.jsonl")
    assert (tmp_path / "mine.jsonl.part").read_text() == "mine"


def test_what_does_not_fit_in_memory_may_be_resumed_with_smaller_batches(
    small: LoadedModel, sources: Path, tmp_path: Path
) -> None:
    model, out = tuned(small), tmp_path / "out.jsonl"
    with stopped(4, MemoryError()):
        write_texts(model, sources, out)
    whole, smaller = write_texts(model, sources), write_texts(model, sources, out, **{"decoding.batch_size": 1})
    assert smaller[:DONE] == whole[:DONE]
    assert [each["prediction"] for each in smaller] == [each["prediction"] for each in whole]


def test_two_commands_do_not_write_one_part(tmp_path: Path) -> None:
    def part() -> PartialFile:
        return PartialFile(tmp_path / "out.jsonl", 2, {"model": "x"}, lambda *_: True)

    with part() as first:
        first.append([{"id": "0"}])
        with pytest.raises(UniclozeError, match=r"out.jsonl.part is in use by process .*: wait for it"), part():
            pass
        first.append([{"id": "1"}])
    assert lines_of(tmp_path / "out.jsonl") == [{"id": "0"}, {"id": "1"}]


def test_ctrl_c_reports_what_is_kept_in_one_sentence(
    small: LoadedModel, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    monkeypatch.setattr("unicloze.interop.read.open_model", lambda *_: small)
    out, options = tmp_path / "out.jsonl", (f"--{key}={value}".lower() for key, value in DRAWN.items())
    words = ["generate", "--model", "x", "--file", sources, "--out", out, "--quiet", *options]
    with monkeypatch.context() as patch:
        stop_at(patch, 4, KeyboardInterrupt())
        said = command(*words)
    assert said.code == 130 and said.err.splitlines() == [
        f"unicloze: warning: {out}.part has 8 of 15 lines; the same command resumes from there",
        "unicloze: error: Stopped by Ctrl-C.",
    ]
    said = command(*words)
    assert (said.code, said.err, lines_of(out)) == (0, "", write_texts(small, sources))


def test_a_signal_while_lines_are_written_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", interrupt)
        patch.setattr("unicloze.finetuning.generate.replace_file", lambda path, text: path.write_text(text))
        with (
            pytest.warns(UserWarning, match="has 1 of 2 lines"),
            pytest.raises(KeyboardInterrupt),
            PartialFile(tmp_path / "out.jsonl", 2, {"model": "x"}, lambda *_: True) as part,
        ):
            part.append([{"id": "0"}])
    with PartialFile(tmp_path / "out.jsonl", 2, {"model": "x"}, lambda *_: True) as part:
        assert part.lines == [{"id": "0"}]
        part.append([{"id": "1"}])
    assert lines_of(tmp_path / "out.jsonl") == [{"id": "0"}, {"id": "1"}]
