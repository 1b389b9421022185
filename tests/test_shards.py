from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from unicloze.errors import UniclozeError
from unicloze.text.shards import ShardWriter, TokenShard, TokenSource

DOCUMENTS = [np.array([5, 6, 7]), np.array([8]), np.array([9, 10])]


def write(path: Path, vocab_size: int = 100) -> Path:
    with ShardWriter(path, vocab_size=vocab_size, tokenizer_name="toy") as writer:
        writer.begin_file("empty.txt")
        writer.begin_file("a.txt")
        writer.write(DOCUMENTS[0][:2], 20, line=1, ends_document=False)
        writer.write(DOCUMENTS[0][2:], 10, line=1)
        writer.write(DOCUMENTS[1], 4, line=7)
        writer.begin_file("b.txt")
        writer.write(DOCUMENTS[2], 20)
    return path


def test_the_files_are_datatroves(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ds")
    assert struct.unpack("<6H", path.read_bytes()) == (5, 6, 7, 8, 9, 10)
    assert struct.unpack("<3Q", (tmp_path / "a.ds.index").read_bytes()) == (3, 4, 6)
    name, count, _ = (tmp_path / "a.ds.metadata").read_text().split("\n")
    assert (name, count) == ("toy|2", "6")


@pytest.mark.parametrize(("vocab_size", "width"), [(2**16, 2), (2**16 + 1, 4)])
def test_round_trip(tmp_path: Path, vocab_size: int, width: int) -> None:
    shard = TokenShard.open(write(tmp_path / "a.ds", vocab_size))
    assert (shard.tokens.itemsize, shard.tokenizer_name) == (width, "toy")
    assert shard.tokens.tolist() == [5, 6, 7, 8, 9, 10]
    assert shard.starts.tolist() == [0, 3, 4] and shard.ends.tolist() == [3, 4, 6]
    assert shard.sizes is not None and shard.sizes.tolist() == [30, 4, 20]
    assert shard.files == (("a.txt", 0), ("b.txt", 2)) and shard.lines.tolist() == [1, 7, 0]
    source = TokenSource(name="a", shards=(shard, shard))
    assert (source.num_documents, source.num_tokens, source.num_bytes) == (6, 12, 108)


def test_a_shard_of_datatroves_own_is_read(tmp_path: Path) -> None:
    (tmp_path / "00000_shuffled.ds").write_bytes(struct.pack("<4I", 1, 2, 70000, 3))
    (tmp_path / "00000_shuffled.ds.index").write_bytes(struct.pack("<2Q", 1, 4))
    shard = TokenShard.open(tmp_path / "00000_shuffled.ds")
    assert shard.tokens.tolist() == [1, 2, 70000, 3] and shard.ends.tolist() == [1, 4]
    assert shard.lines is None
    assert shard.sizes is None and TokenSource(name="a", shards=(shard,)).num_bytes is None


def test_a_selection_of_documents(tmp_path: Path) -> None:
    shard = TokenShard.open(write(tmp_path / "a.ds"), documents=np.array([0, 2]))
    assert shard.starts.tolist() == [0, 4] and shard.ends.tolist() == [3, 6]
    assert shard.numbers.tolist() == [0, 2] and shard.lines is not None and shard.lines.tolist() == [1, 0]
    assert TokenSource(name="a", shards=(shard,)).num_bytes == 50


def test_an_empty_shard(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a.ds", vocab_size=10, tokenizer_name="toy"):
        pass
    assert TokenSource(name="a", shards=(TokenShard.open(tmp_path / "a.ds"),)).num_tokens == 0


def test_damage_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ds")
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UniclozeError, match=r"a\.ds \(10 bytes\) does not fit a\.ds\.index \(6 tokens\)"):
        TokenShard.open(path)
    (tmp_path / "a.ds.index").unlink()
    with pytest.raises(UniclozeError, match=r"a\.ds\.index is missing"):
        TokenShard.open(path)


@pytest.mark.parametrize("end", [".bytes", ".lines"])
@pytest.mark.parametrize("size", [0, 8, 16, 21, 23, 25, 32])
def test_details_of_other_documents_are_refused(tmp_path: Path, end: str, size: int) -> None:
    path = write(tmp_path / "a.ds")
    file = tmp_path / f"a.ds{end}"
    file.write_bytes((file.read_bytes() * 2)[:size])
    with pytest.raises(UniclozeError, match=rf"a\.ds\{end} does not fit .*a\.ds\.index: remove the folder"):
        TokenShard.open(path)


def test_documents_that_a_shard_does_not_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UniclozeError, match=r"a\.ds has 3 documents, but had at least 4 when it was prepared"):
        TokenShard.open(write(tmp_path / "a.ds"), documents=np.array([0, 3]))


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ds")
    (tmp_path / "a.ds.json").write_text('{"schema": 99}')
    with pytest.raises(UniclozeError, match=r"a\.ds\.json does not have schema 1"):
        TokenShard.open(path)
