"""Bad input, damaged files and full disks: every command reports one sentence and loses nothing."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_toys import Command, copied
from unicloze import terminal

# Bad input


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (None, b"", "no text"),
        ("notes.md", b"text of another kind", "holds no text"),
        ("blank.txt", b"\n \n\n\t\n", "no text"),
        ("cut.txt.gz", b"\x1f\x8b\x08\x00", "cut.txt.gz is truncated"),
    ],
)
def test_a_bad_corpus(name: str | None, content: bytes, says: str, tmp_path: Path, command: Command) -> None:
    corpus = tmp_path / "corpus"
    if name is not None:
        corpus.mkdir()
        (corpus / name).write_bytes(content)
    words = ("--recipe", "quickstart", "--toy", "--data.corpus", corpus, "--out", tmp_path / "run", "--quiet")
    said = command("pretrain", *words)
    assert said.code == 1 and says in said.sentence
    assert str(corpus) in said.sentence, "the message names the file"
    assert not (tmp_path / "run").exists(), "nothing was written"


@pytest.fixture
def run(here: Path, tmp_path: Path) -> Path:
    """A copy of the run with its two checkpoints, to be damaged."""
    return copied(here / "runs" / "quickstart", tmp_path / "run")


def newest(run: Path) -> Path:
    older, newer = sorted((run / "checkpoints").iterdir())
    assert (older.name, newer.name) == ("step-00000001", "step-00000002")
    return newer


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(run: Path, command: Command) -> None:
    weights = newest(run) / "model.safetensors"
    flip(weights)
    said = command("fill", "--model", run, "--text", "the [MASK] cat")
    assert said.code == 0
    assert said.err.startswith("unicloze: warning: ") and said.err.count("\n") == 1
    assert str(weights) in said.err and "step-00000001" in said.err
    continued = command("pretrain", "--out", run, "--training.steps", "3", "--quiet")
    assert continued.code == 0 and str(weights) in continued.err
    assert continued.out.startswith(f"{run}: trained to step 3")


def test_no_complete_checkpoint_is_reported(run: Path, command: Command) -> None:
    for checkpoint in (run / "checkpoints").iterdir():
        flip(checkpoint / "model.safetensors")
    said = command("score", "--model", run, "--text", "the cat")
    assert said.code == 1 and "model.safetensors" in said.sentence and "no earlier one is intact" in said.sentence
    assert command("score", "--model", newest(run), "--text", "the cat").code == 1


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    mounted = shutil.which("mount") and subprocess.run(words, capture_output=True, check=False)
    if not mounted or mounted.returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill_up(disk: Path, leave: int) -> Path:
    filler = disk / "filler"
    filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - leave)))
    return filler


def test_a_full_disk_loses_nothing(here: Path, small_disk: Path, command: Command) -> None:
    run = copied(here / "runs" / "quickstart", small_disk / "run")
    before = {path: path.read_bytes() for path in (run / "checkpoints").rglob("*") if path.is_file()}
    filler = fill_up(small_disk, leave=100_000)
    words = ("pretrain", "--out", run, "--training.steps", "3", "--quiet")
    said = command(*words)
    assert said.code == 1 and str(run) in said.sentence
    assert "full" in said.sentence and "free some space" in said.sentence
    assert before == {path: path.read_bytes() for path in (run / "checkpoints").rglob("*") if path.is_file()}
    filler.unlink()
    assert command(*words).out.startswith(f"{run}: trained to step 3")


def test_a_disk_too_small_for_the_corpus(here: Path, small_disk: Path, command: Command) -> None:
    filler = fill_up(small_disk, leave=8192)
    settings = ("--data.corpus", "my_text", "--tokenizer.vocab_size", "300")
    words = ("prepare", *settings, "--out", small_disk / "data", "--quiet")
    said = command(*words)
    assert said.code == 1 and "full" in said.sentence and str(small_disk) in said.sentence
    assert list(small_disk.iterdir()) == [filler]
    filler.unlink()
    assert command(*words).code == 0


def test_a_full_disk_without_a_small_one(run: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("unicloze.training.checkpoint.save_file", full)
    said = command("pretrain", "--out", run, "--training.steps", "3", "--quiet")
    assert said.code == 1 and "the disk is full" in said.sentence and "step-00000003" in said.sentence
    assert newest(run).is_dir()


@pytest.mark.whole
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_to_a_full_disk() -> None:
    command = [sys.executable, "-m", "unicloze", "recipes"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"unicloze: error: {terminal.explain(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))[0]}\n"


@pytest.mark.whole
def test_a_closed_pipe_is_not_an_error() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "unicloze", "recipes"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
