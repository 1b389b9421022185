"""A page that follows a run, and the event files for TensorBoard."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from report_toys import evaluation, make_run, start, step, whole
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.report import page as pages
from unicloze.report.history import curves, write_tensorboard

RELOADS = '<meta http-equiv="refresh" content="7">'


def test_a_watched_page_reloads_until_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, events = make_run(tmp_path / "run", whole()[:3]), whole()
    seen: list[str] = []

    def next_event(seconds: float) -> None:
        assert seconds == 7
        seen.append((run / "report.html").read_text(encoding="utf-8"))
        with (run / "ledger.jsonl").open("a") as ledger:
            ledger.writelines(json.dumps(event) + "\n" for event in (events[3:10] if len(seen) == 1 else events[10:]))

    monkeypatch.setattr(pages.time, "sleep", next_event)
    verbs.report(run, watch=7)
    assert len(seen) == 2 and all(RELOADS in text and "still running, or killed" in text for text in seen)
    last = (run / "report.html").read_text(encoding="utf-8")
    assert "http-equiv" not in last and "finished" in last


@pytest.mark.parametrize("last", [{"event": "stop", "signal": 15}, {"event": "failed", "message": "full disk"}])
def test_a_stopped_run_is_not_watched(tmp_path: Path, last: dict[str, object]) -> None:
    run = make_run(tmp_path / "run", [start(), step(1, 3.0), {"schema": 1, "time": 2_000_000_000.0, "step": 1, **last}])
    assert verbs.report(run, watch=1) == run / "report.html"


def test_watching_needs_a_positive_interval(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="watch is 0: give 1 second or more"):
        verbs.report(make_run(tmp_path / "run", whole()), watch=0)


def test_curves_are_the_numbers_of_an_event() -> None:
    found = dict(
        curves({"event": "step", "step": 3, "time": 1.0, "loss": {"ae": 2.0, "par": None}, "speed": 5, "on": True})
    )
    assert found == {"loss/ae": 2.0, "speed": 5.0}


def test_tensorboard_reads_the_curves_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = make_run(tmp_path / "run", [start(), step(1, 3.0), step(2, 2.5), evaluation(2, 40.0)])
    folder = tmp_path / "board"
    folder.mkdir()
    (folder / "events.out.tfevents.theirs").write_bytes(b"kept")
    for _ in range(2):
        verbs.report(run, tensorboard=folder)
    (ours,) = folder.glob("*.unicloze")
    assert (folder / "events.out.tfevents.theirs").read_bytes() == b"kept"
    found = _scalars(ours)
    assert found["train/loss/ae", 1] == 3.0 and found["train/loss/par", 2] == 2.0
    assert found["train/text_tokens", 2] == 8192.0 and found["held-out/perplexity/par", 2] == 80.0


def _scalars(file: Path) -> dict[tuple[str, int], float]:
    from tensorboard.compat.proto.event_pb2 import Event

    content, found = file.read_bytes(), {}
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        event = Event.FromString(content[12 : 12 + size])
        found |= {
            (value.tag, event.step): value.simple_value or value.tensor.float_val[0] for value in event.summary.value
        }
        content = content[16 + size :]
    return found


def test_a_missing_tensorboard_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(
        UniclozeError,
        match=r"needs the package tensorboard: in the clone, pip install -e '\.\[tensorboard\]'",
    ):
        write_tensorboard(make_run(tmp_path / "run", whole()), tmp_path / "board")
