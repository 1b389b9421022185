"""Interrupted generation to a long file: finished texts are kept, and the rest is as in an uninterrupted run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import nlu_toys
import unicloze.decoding.generate as room
from unicloze import cli, verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.finetuning.predict import PartialFile
from unicloze.training.loading import LoadedModel

DRAWN = {
    "decoding.sample": True,
    "decoding.beams": 1,
    "decoding.num_results": 2,
    "decoding.max_length": 4,
    "decoding.min_length": 0,
    "decoding.batch_size": 2,
}
DONE = 8
"""Lines of two parts."""


@pytest.fixture(scope="module")
def start() -> LoadedModel:
    return nlu_toys.start("quickstart")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records of different lengths, in parts of four."""
    monkeypatch.setattr(room, "BATCHES_OF_A_CHUNK", 2)
    words = nlu_toys.WORDS
    records = [{"id": f"r{n}", "source": " ".join(words[: 1 + n * 7 % 6]), "n": n} for n in range(15)]
    return nlu_toys.write(tmp_path / "sources.jsonl", records)


def tuned(start: LoadedModel) -> LoadedModel:
    recipe = nlu_toys.recipe_for(start, "generation", model__max_positions=start.model.max_positions)
    return dataclasses.replace(start, recipe=recipe)


def stop_at(monkeypatch: pytest.MonkeyPatch, batch: int, error: BaseException) -> None:
    """Make the batch of a given number fail."""
    steps, seen = room._batch, iter(range(1000))

    def failing(*arguments: Any) -> Any:
        if next(seen) == batch:
            raise error
        return steps(*arguments)

    monkeypatch.setattr(room, "_batch", failing)


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("into", [None, "made"])
@pytest.mark.parametrize("task", [True, False])
def test_an_interrupted_file_is_completed_as_if_never_interrupted(
    start: LoadedModel, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: bool, into: str | None
) -> None:
    model, out = tuned(start) if task else start, tmp_path / "out.jsonl"

    def generate(**arguments: Any) -> Any:
        given = {"overrides": {**DRAWN, "decoding.num_results": 1 if into else 2}, **arguments}
        return verbs.generate(model, file=sources, into=into, quiet=True, **given)

    whole = generate()
    part = tmp_path / "out.jsonl.part"
    with monkeypatch.context() as patch:
        stop_at(patch, 5, KeyboardInterrupt())
        with (
            pytest.warns(UserWarning, match=r"out.jsonl.part has 8 of 15 lines; the same command resumes from there"),
            pytest.raises(KeyboardInterrupt),
        ):
            generate(out=out)
    assert lines_of(part) == whole[:DONE] and not out.exists()
    part.write_bytes(part.read_bytes() + b'{"id": "r8", "predic')  # truncated by a kill
    computed: list[int] = []
    with monkeypatch.context() as patch:
        steps = room._batch

        def counted(*arguments: Any) -> Any:
            computed.extend(arguments[4])
            return steps(*arguments)

        patch.setattr(room, "_batch", counted)
        assert generate(out=out) == whole
    assert sorted(computed) == list(range(DONE, 15))
    assert lines_of(out) == whole
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.jsonl", "sources.jsonl"]
    assert generate(out=out) == whole == lines_of(out)


def test_predictions_of_a_generation_task_are_resumed(
    start: LoadedModel, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = nlu_toys.recipe_for(start, "generation", **{name.replace(".", "__"): DRAWN[name] for name in DRAWN})
    model, out = dataclasses.replace(start, recipe=recipe), tmp_path / "out.jsonl"
    whole = verbs.predict(model, sources, quiet=True)
    with monkeypatch.context() as patch:
        stop_at(patch, 5, KeyboardInterrupt())
        with pytest.warns(UserWarning, match=r"out.jsonl.part has 8 of 15"), pytest.raises(KeyboardInterrupt):
            verbs.predict(model, sources, out, quiet=True)
    assert lines_of(tmp_path / "out.jsonl.part") == whole[:DONE]
    assert verbs.predict(model, sources, out, quiet=True) == whole == lines_of(out)


@pytest.mark.whole
def test_what_was_started_with_other_input_starts_over(
    start: LoadedModel, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out, part = tuned(start), tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"

    def interrupt() -> None:
        with monkeypatch.context() as patch:
            stop_at(patch, 4, KeyboardInterrupt())
            with pytest.warns(UserWarning, match="has 8 of 15"), pytest.raises(KeyboardInterrupt):
                verbs.generate(model, file=sources, out=out, quiet=True, overrides=DRAWN)

    longer = nlu_toys.write(tmp_path / "longer.jsonl", [*lines_of(sources), {"source": "eva"}])
    with torch.no_grad():
        other = nlu_toys.start("quickstart", training__seed=7)
    changes: dict[str, dict[str, Any]] = {
        "model": {"model": dataclasses.replace(tuned(start), model=other.model)},
        "setting": {"overrides": {**DRAWN, "decoding.seed": 1}},
        "file of records": {"file": longer},
    }
    for what, changed in changes.items():
        interrupt()
        given = {"model": model, "file": sources, "overrides": DRAWN, **changed}
        with pytest.warns(UserWarning, match=f"out.jsonl.part was started with another {what}, and is started again"):
            found = verbs.generate(out=out, quiet=True, **given)
        assert found == verbs.generate(quiet=True, **given) == lines_of(out)
        assert len(lines_of(out)) == 15 + (what == "file of records") and not part.exists()
    interrupt()
    part.write_text(part.read_text().replace('"r1"', '"r2"'))
    with pytest.warns(UserWarning, match="has other lines, and is started again"):
        found = verbs.generate(model, file=sources, out=out, quiet=True, overrides=DRAWN)
    assert found == verbs.generate(model, file=sources, quiet=True, overrides=DRAWN)


def test_a_part_is_kept_until_its_replacement_exists(
    start: LoadedModel, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out, part = tuned(start), tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    stop_at(monkeypatch, 4, KeyboardInterrupt())
    with pytest.warns(UserWarning, match="has 8 of 15"), pytest.raises(KeyboardInterrupt):
        verbs.generate(model, file=sources, out=out, quiet=True, overrides=DRAWN)
    former = part.read_bytes()
    with pytest.warns(UserWarning, match="another setting"), pytest.raises(UsageError, match="beams is 0"):
        verbs.generate(model, file=sources, out=out, quiet=True, overrides={"decoding.beams": 0})
    assert part.read_bytes() == former
    with pytest.raises(UsageError, match="beams is 0"):
        verbs.generate(model, file=sources, out=tmp_path / "new.jsonl", quiet=True, overrides={"decoding.beams": 0})
    assert not list(tmp_path.glob("new*"))
    (tmp_path / "mine.jsonl.part").write_text("mine")
    with pytest.raises(UniclozeError, match=r"mine.jsonl.part was not started by this command: move it away, or give"):
        verbs.generate(model, file=sources, out=tmp_path / "mine.jsonl", quiet=True, overrides=DRAWN)
    assert (tmp_path / "mine.jsonl.part").read_text() == "mine"


def test_what_does_not_fit_in_memory_may_be_resumed_with_smaller_batches(
    start: LoadedModel, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = tuned(start), tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        stop_at(patch, 4, MemoryError())
        with pytest.warns(UserWarning, match="has 8 of 15"), pytest.raises(MemoryError):
            verbs.generate(model, file=sources, out=out, quiet=True, overrides=DRAWN)
    whole = verbs.generate(model, file=sources, quiet=True, overrides=DRAWN)
    smaller = verbs.generate(model, file=sources, out=out, quiet=True, overrides={**DRAWN, "decoding.batch_size": 1})
    assert smaller[:DONE] == whole[:DONE]
    assert [each["prediction"] for each in smaller] == [each["prediction"] for each in whole]


def test_two_commands_do_not_write_one_part(tmp_path: Path) -> None:
    def part() -> PartialFile:
        return PartialFile(tmp_path / "out.jsonl", 2, {"model": "x"}, lambda *_: True)

    with part() as first:
        first.append([{"id": "0"}])
        with (
            pytest.raises(UniclozeError, match=r"out.jsonl.part is in use by process .*: wait for it"),
            part(),
        ):
            pass
        first.append([{"id": "1"}])
    assert lines_of(tmp_path / "out.jsonl") == [{"id": "0"}, {"id": "1"}]


def test_ctrl_c_reports_what_is_kept_in_one_sentence(
    start: LoadedModel,
    sources: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("unicloze.interop.read.open_model", lambda *_: start)
    options = [word for key, value in DRAWN.items() for word in (f"--{key}", str(value).lower())]
    out = str(tmp_path / "out.jsonl")
    words = ["generate", "--model", "x", "--file", str(sources), "--out", out, "--quiet", *options]
    with monkeypatch.context() as patch:
        stop_at(patch, 4, KeyboardInterrupt())
        assert cli.main(words) == 130
    assert capsys.readouterr().err.splitlines() == [
        f"unicloze: warning: {out}.part has 8 of 15 lines; the same command resumes from there",
        "unicloze: error: Stopped by Ctrl-C.",
    ]
    assert cli.main(words) == 0 and capsys.readouterr().err == ""
    assert lines_of(Path(out)) == verbs.generate(start, file=sources, quiet=True, overrides=DRAWN)


def test_a_signal_while_lines_are_written_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", interrupt)
        patch.setattr("unicloze.finetuning.predict.replace_file", lambda path, text: path.write_text(text))
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
