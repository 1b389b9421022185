"""What is written: files whole and where they really are, what is no file stays what it is, and JSON is JSON."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from unicloze.errors import UsageError
from unicloze.files import write_file
from unicloze.finetuning.part_file import PartFile
from unicloze.terminal import show
from unicloze.training.checkpoint import save_checkpoint
from unicloze.verbs.common import check_file


def test_a_link_stays_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link, target = tmp_path / "link.txt", tmp_path / "real" / "file.txt"
    link.symlink_to(target)
    write_file(link, "one")
    with PartFile(link, 1, {}, lambda *_: True) as part:
        assert part.lines == []
        part.append([{"two": 2}])
    assert link.is_symlink() and json.loads(target.read_text()) == {"two": 2}
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["file.txt"]


def test_links_to_nowhere_are_refused_before_the_work(tmp_path: Path) -> None:
    link, loop = tmp_path / "link.json", tmp_path / "loop.json"
    link.symlink_to(tmp_path / "missing" / "file.json")
    loop.symlink_to(loop)
    with pytest.raises(UsageError, match=r"there is no folder .*missing for file\.json"):
        check_file(link)
    write_file(loop, "x")
    assert loop.read_text() == "x"


def test_a_pipe_behind_a_link_is_written_to() -> None:
    out, into = os.pipe()
    write_file(Path(f"/proc/self/fd/{into}"), "said")
    os.close(into)
    with os.fdopen(out) as pipe:
        assert pipe.read() == "said"


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()
    write_file(pipe, "said")
    reader.join(timeout=10)
    assert heard == ["said"] and stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(UsageError, match="is a device or a pipe: give --out a file"):
        check_file(pipe)


def test_modes_are_those_of_the_user_or_of_the_file_before(tmp_path: Path) -> None:
    former = os.umask(0o077)
    try:
        write_file(tmp_path / "new", "x")
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    (tmp_path / "new").chmod(0o640)
    write_file(tmp_path / "new", "y")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640 and (tmp_path / "new").read_text() == "y"


def test_what_killed_saves_left_goes_with_the_next_one(tmp_path: Path) -> None:
    left = tmp_path / ".building-step-00000007"
    left.mkdir()
    save_checkpoint(tmp_path, step=9, model={}, optimizers=[], state={}, files=[], keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000009"]


def test_json_that_is_shown_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    show({"a": [float("nan"), 1.5], "b": (float("inf"), None)}, json=True)
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5], "b": [None, None]}
