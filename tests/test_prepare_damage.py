"""Preparation that is killed, or whose files change, are damaged or belong to something else."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from test_prepare import content, run, write_documents
from unicloze.errors import UniclozeError, UsageError
from unicloze.settings import TokenizerSettings
from unicloze.text import pipeline
from unicloze.text.prepare import Prepared
from unicloze.text.tokenizers import Tokenizer


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "corpus")


def test_a_foreign_folder_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert run(corpus, tmp_path / "out").train, "an empty folder is fine"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(UniclozeError, match="mine has files that `prepare` did not write"):
        run(corpus, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "x"


def test_a_full_disk(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(pipeline.ShardWriter, "write", full)
        with pytest.raises(UniclozeError, match=r"The disk of .* is full: free some space"):
            run(corpus, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"]
    assert run(corpus, tmp_path / "out").train


def test_a_killed_run_leaves_nothing_half_valid(corpus: Path, tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from unicloze.settings import DataSettings, TokenizerSettings\n"
        "from unicloze.text import pipeline, prepare\n"
        "write, count = pipeline.ShardWriter.write, [0]\n"
        "def counted(self, *arguments, **options):\n"
        "    count[0] += 1\n"
        "    if count[0] == 50: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    write(self, *arguments, **options)\n"
        "pipeline.ShardWriter.write = counted\n"
        "data = DataSettings(corpus=[sys.argv[1]], heldout_share=0.1)\n"
        "prepare.prepare_data(data, TokenizerSettings(vocab_size=200), Path(sys.argv[2]), progress=False)\n"
    )
    out = tmp_path / "out"
    killed = subprocess.run([sys.executable, "-c", program, str(corpus), str(out)], check=False, capture_output=True)
    assert killed.returncode == -9, killed.stderr
    assert not out.exists()
    assert len(list(tmp_path.glob(".out.partial-*"))) == 1
    run(corpus, out)
    assert not list(tmp_path.glob(".out.partial-*"))
    run(corpus, tmp_path / "clean")
    assert content(out) == content(tmp_path / "clean")


def test_a_file_that_changes_while_it_is_read(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = Tokenizer.train

    def grow(*arguments: Any) -> Tokenizer:
        with (corpus / "a.jsonl").open("a") as file:
            file.write('{"text": "more"}\n')
        return train(*arguments)

    monkeypatch.setattr(Tokenizer, "train", grow)
    with pytest.raises(UniclozeError, match=r"a\.jsonl changed while it was being read"):
        run(corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_that_come_or_go_while_the_corpus_is_read(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Tokenizer.train

    def remove(*arguments: Any) -> Tokenizer:
        (corpus / "b.jsonl").unlink()
        return train(*arguments)

    monkeypatch.setattr(Tokenizer, "train", remove)
    with pytest.raises(UniclozeError, match="corpus changed while it was being read"):
        run(corpus, tmp_path / "out")


@pytest.mark.parametrize("damage", ["lineage.json", "tokenizer.json", "train/corpus.ds", "train/corpus.ds.index"])
def test_damage_is_named(corpus: Path, tmp_path: Path, damage: str) -> None:
    run(corpus, tmp_path / "out")
    path = tmp_path / "out" / damage
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UniclozeError, match=rf"{Path(damage).name}"):
        Prepared.load(tmp_path / "out")


def test_a_folder_that_is_not_prepared(tmp_path: Path) -> None:
    with pytest.raises(UniclozeError, match=r"is not a prepared corpus \(no lineage\.json\)"):
        Prepared.load(tmp_path)


def test_tokens_of_another_tokenizer_are_refused(corpus: Path, tmp_path: Path) -> None:
    first = run(corpus, tmp_path / "first")
    other = run(corpus, tmp_path / "other", TokenizerSettings(kind="bpe", vocab_size=400))
    names = f"{first.tokenizer.fingerprint[:16]}, not {other.tokenizer.fingerprint[:16]}"
    with pytest.raises(
        UniclozeError, match=rf"corpus\.ds holds tokens of tokenizer {names}: give --tokenizer\.path the"
    ):
        run(first.folder, tmp_path / "out", TokenizerSettings(path=str(other.folder)))
    assert run(first.folder, tmp_path / "out", TokenizerSettings(path=str(first.folder))).train


def test_texts_next_to_token_shards_are_not_left_out_silently(corpus: Path, tmp_path: Path) -> None:
    prepared = run(corpus, corpus / "earlier" / "data")
    tokenizer = TokenizerSettings(path=str(prepared.folder))
    with pytest.raises(UsageError, match=r"holds tokens \(.*\.ds\) and texts \(.*\): use separate folders"):
        run(corpus, tmp_path / "out", tokenizer)
    with pytest.raises(
        UsageError, match=r"\*\*/\* holds tokens \(.*\.ds\) and texts \(.*\): .* a pattern that ends in \.ds"
    ):
        run(f"{corpus}/**/*", tmp_path / "out", tokenizer)
    only = run(f"{corpus}/**/*.ds", tmp_path / "only", tokenizer)
    assert only.train[0].num_documents + only.heldout[0].num_documents > 0
    assert run(prepared.folder, tmp_path / "again", tokenizer).train[0].num_tokens > 0


def test_what_a_preparation_in_another_container_left(corpus: Path, tmp_path: Path) -> None:
    """Removed after a day without a change; before that, or if it is locked or of an older version, it is named."""
    folders = {name: tmp_path / f".out.partial-{name}-1" for name in ("old", "locked", "new", "older-version")}
    a_week_ago = time.time() - 7 * 24 * 3600
    for name, folder in folders.items():
        folder.mkdir()
        (folder / "digests.json").write_text("{}")
        if name != "older-version":
            (folder / "lock").touch()
        for path in [*folder.iterdir(), folder] if name != "new" else []:
            os.utime(path, (a_week_ago, a_week_ago))
    with FileLock(folders["locked"] / "lock"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(corpus, tmp_path / "out")
    assert [name for name, folder in folders.items() if folder.is_dir()] == ["locked", "new", "older-version"]
    assert sorted(str(warning.message) for warning in caught) == [
        f"{folders[name]} belongs to a preparation on {name}, which is still running or was killed: remove the folder if "
        "none is running"
        for name in ("new", "older-version")
    ]
    assert not (tmp_path / "out" / "lock").exists()


def test_what_a_killed_process_of_the_same_number_left_is_removed(corpus: Path, tmp_path: Path) -> None:
    left = tmp_path / f".out.partial-{socket.gethostname()}-{os.getpid()}"
    (left / "train").mkdir(parents=True)
    run(corpus, tmp_path / "out")
    assert not left.exists()
