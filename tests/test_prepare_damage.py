"""Preparation that is killed, or whose files change, are damaged or belong to something else."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from test_prepare import content, run, write_documents
from unicloze.errors import UniclozeError, UsageError
from unicloze.settings import TokenizerSettings
from unicloze.text import portions
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
        context.setattr(portions.ShardWriter, "write", full)
        with pytest.raises(UniclozeError, match=r"The disk of .* is full: free some space"):
            run(corpus, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"]
    assert run(corpus, tmp_path / "out").train


def test_a_killed_run_leaves_nothing_half_valid(corpus: Path, tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from unicloze.settings import DataSettings, TokenizerSettings\n"
        "from unicloze.text import portions, prepare\n"
        "write, count = portions.ShardWriter.write, [0]\n"
        "def counted(self, *arguments, **options):\n"
        "    count[0] += 1\n"
        "    if count[0] == 50: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    write(self, *arguments, **options)\n"
        "portions.ShardWriter.write = counted\n"
        "data = DataSettings(corpus=[sys.argv[1]], heldout_share=0.1)\n"
        "prepare.prepare_data(data, TokenizerSettings(vocab_size=200), Path(sys.argv[2]), progress=False)\n"
    )
    out = tmp_path / "out"
    killed = subprocess.run([sys.executable, "-c", program, str(corpus), str(out)], check=False, capture_output=True)
    assert killed.returncode == -9, killed.stderr
    assert not out.exists()
    assert (tmp_path / ".out.partial").is_dir()
    run(corpus, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "out"]
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
