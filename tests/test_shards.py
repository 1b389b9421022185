"""Token shards in datatrove's layout, and their index: read from disk, kept between openings, the same for any size."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from test_windows import make_sampler, make_source, naive_joined, naive_pieces
from toys import token_shard
from unicloze.errors import UniclozeError
from unicloze.text import shards
from unicloze.text.counts import stretches
from unicloze.text.shards import ShardWriter, Sums, TokenShard, TokenSource, beside, files_beside

LENGTHS = [23, 1, 40, 0, 7, 12, 2, 100, 0, 0, 10, 10, 11, 1, 0]


def write(path: Path, vocab_size: int = 100) -> Path:
    with ShardWriter(path, vocab_size=vocab_size, tokenizer_name="toy|2") as writer:
        for name in ("empty.txt", "a.txt", "a.txt"):
            writer.begin_file(name)
        writer.write(np.array([5, 6]), 20, line=1, ends_document=False)
        writer.write(np.array([7]), 10, line=1)
        writer.write(np.array([8]), 4)
        writer.begin_file("é.txt")
        writer.write(np.array([9, 10]), 21, line=7)
    assert (writer.tokens, writer.bytes, writer.documents) == (6, 55, 3)
    return path


def test_the_files_of_a_shard(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ds")
    assert (tmp_path / "a.ds.metadata").read_text() == "toy|2|2\n6\n6e-06 MT"
    files = [{"path": "a.txt", "first_document": 0}, {"path": "é.txt", "first_document": 2}]
    assert (tmp_path / "a.ds.json").read_text() == json.dumps({"schema": 1, "files": files}, indent=1) + "\n"
    for end, values in ((".index", (3, 4, 6)), (".bytes", (30, 34, 55)), (".lines", (1, 0, 7))):
        assert beside(path, end).read_bytes() == struct.pack("<3Q", *values)
    assert path.read_bytes() == struct.pack("<6H", 5, 6, 7, 8, 9, 10)
    ends = "index", "metadata", "bytes", "lines", "json"
    assert [file.name for file in files_beside(path)] == [f"a.ds.{end}" for end in ends]


@pytest.mark.parametrize(("vocab_size", "width"), [(2**16, 2), (2**16 + 1, 4)])
def test_round_trip(tmp_path: Path, vocab_size: int, width: int) -> None:
    shard = TokenShard.open(write(tmp_path / "a.ds", vocab_size))
    assert (shard.tokens.values.itemsize, shard.tokenizer_name) == (width, "toy|2")
    assert shard.files == (("a.txt", 0), ("é.txt", 2))
    assert [document.tolist() for document in shard.documents()] == [[5, 6, 7], [8], [9, 10]]
    source = TokenSource(name="a", shards=(shard, shard))
    assert (source.num_documents, source.num_tokens, source.num_bytes) == (6, 12, 110)


def test_a_shard_of_datatroves_own_is_read(tmp_path: Path) -> None:
    path = tmp_path / "00000_shuffled.ds"
    path.write_bytes(struct.pack("<4I", 1, 2, 70000, 3))
    beside(path, ".index").write_bytes(struct.pack("<2Q", 1, 4))
    shard = TokenShard.open(path)
    assert [document.tolist() for document in shard.documents()] == [[1], [2, 70000, 3]]
    assert (shard.tokenizer_name, shard.files, shard.sizes, shard.lines) == ("", ((str(path), 0),), None, None)
    assert TokenSource(name="a", shards=(shard,)).num_bytes is None
    assert [file.name for file in files_beside(path)] == ["00000_shuffled.ds.index"]


def test_a_failed_shard_has_no_metadata_and_an_empty_one_no_documents(tmp_path: Path) -> None:
    with pytest.raises(KeyError), ShardWriter(tmp_path / "a.ds", vocab_size=9, tokenizer_name="toy") as writer:
        raise KeyError
    assert all(file.closed for file in writer._open.values())
    assert not any(beside(tmp_path / "a.ds", end).exists() for end in (".metadata", ".json"))
    empty = token_shard(tmp_path / "empty.ds", [])
    assert (len(empty), empty.num_tokens, empty.num_bytes, [*empty.documents()]) == (0, 0, 0, [])


DAMAGES = {
    **{(end, size): rf"a\.ds\{end} does not fit .*a\.ds\.index: remove the folder" for end in (".bytes", ".lines")
       for size in (0, 8, 16, 21, 23, 25, 32)},
    ("", 10): r"a\.ds \(10 bytes\) does not fit a\.ds\.index \(6 tokens\)",
    (".index", None): r"a\.ds\.index is missing",
    (".json", b'{"schema": 99}'): r"a\.ds\.json does not have schema 1",
    (".json", b"{"): r"a\.ds\.json is damaged",
    (".spans", b"12345"): r"a\.ds\.spans does not fit a\.ds\.index",
    (".documents", struct.pack("<2Q", 0, 3)): r"a\.ds has 3 documents, but had at least 4 when it was prepared",
}  # fmt: skip


@pytest.mark.parametrize(("end", "content"), DAMAGES)
def test_damage_is_named(tmp_path: Path, end: str, content: int | bytes | None) -> None:
    file = beside(path := write(tmp_path / "a.ds"), end)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content if isinstance(content, bytes) else (file.read_bytes() * 2)[:content])
    with pytest.raises(UniclozeError, match=DAMAGES[end, content]):
        TokenShard.open(path, documents=file if end == ".documents" else None)


def test_an_index_that_falls_is_refused_where_it_is_read(tmp_path: Path) -> None:
    path = make_source(tmp_path, LENGTHS).shards[0].path
    ends = np.fromfile(beside(path, ".index"), dtype="<u8")
    ends[3] += 1000
    ends.tofile(beside(path, ".index"))
    with pytest.raises(UniclozeError, match=r"s0\.ds\.index is damaged"):
        make_sampler(TokenSource(name="s", shards=(TokenShard.open(path),)))


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small corpora are treated like large ones."""
    for name, value in (("FEW", 0), ("STRIDE", 4), ("AT_ONCE", 8)):
        monkeypatch.setattr(shards, name, value)


def texts(source: TokenSource, **options: object) -> list[list[int]]:
    sampler = make_sampler(source, segments=1, **options)  # type: ignore[arg-type]
    windows = sampler.read(0, sampler.epoch_size)
    rows = sorted(zip(windows.index.tolist(), windows.token_ids.tolist(), windows.lengths.tolist(), strict=True))
    assert [index for index, _, _ in rows] == list(range(sampler.num_windows))
    return [tokens[1 : length - 1] for _, tokens, length in rows]


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("chosen", [None, [0, 2, 3, 4]])
def test_sums_of_every_fourth_document_find_the_same_windows(
    tmp_path: Path, num_shards: int, chosen: list[int] | None
) -> None:
    source = make_source(tmp_path, LENGTHS, num_shards=num_shards)
    if chosen is not None:
        np.array(chosen).tofile(tmp_path / "chosen")
        opened = [TokenShard.open(shard.path, documents=tmp_path / "chosen") for shard in source.shards]
        source = TokenSource(name="s", shards=tuple(opened))
    assert texts(source, window=12) == naive_pieces(source, 10, 1)
    assert texts(source, window=12, documents="joined") == naive_joined(source, 10, 1)


@pytest.mark.usefixtures("large")
def test_a_selection_has_the_windows_of_its_documents_alone(tmp_path: Path) -> None:
    documents, chosen = [np.arange(5, 5 + length) for length in LENGTHS], [0, 2, 4, 7, 11]
    shard = token_shard(tmp_path / "a.ds", documents, chosen=chosen)
    selection = TokenSource(name="s", shards=(shard,))
    assert [document.tolist() for document in shard.documents()] == [documents[number].tolist() for number in chosen]
    assert shard.numbers(np.arange(len(chosen))).tolist() == chosen
    expected = [token for number in chosen for token in documents[number].tolist()]
    assert [token for text in texts(selection, window=12) for token in text] == expected
    assert selection.num_tokens == len(expected) and selection.num_bytes == 10 * len(expected)
    tokens, begins = next(iter(stretches([selection], 10**6)))
    assert tokens.tolist() == expected
    starts = np.cumsum([0, *(LENGTHS[number] for number in chosen)])[:-1]
    assert np.flatnonzero(begins).tolist() == starts.tolist()


@pytest.mark.usefixtures("large")
def test_sums_are_computed_once_for_each_corpus_and_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    computed, compute = list[int](), Sums._computed
    monkeypatch.setattr(Sums, "_computed", lambda self: (computed.append(1), compute(self))[1])
    plain = make_source(tmp_path, LENGTHS)
    source, other = (replace(plain, index=tmp_path / "index" / name) for name in ("a", "b"))
    source = replace(source, show=True)
    expected = texts(source, window=12)
    assert "indexing s: 15 of 15 documents" in capsys.readouterr().err
    assert texts(source, window=12) == expected and len(computed) == 1
    assert "indexing" not in capsys.readouterr().err
    texts(source, window=9)
    texts(source, window=12, documents="joined")
    capsys.readouterr()
    texts(other, window=12)
    assert "indexing" not in capsys.readouterr().err
    assert len(computed) == 4, "another window, way of cutting or corpus has other sums"
    file = tmp_path / "index" / "b-10-1.npz"
    content = file.read_bytes()
    middle = len(content) // 2
    for damaged in (content[:-8], b"", b"{}", content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]):
        file.write_bytes(damaged)
        before = len(computed)
        assert texts(other, window=12) == expected and len(computed) == before + 1
    (tmp_path / "index").rename(tmp_path / "moved")
    (tmp_path / "index").write_text("a file, so that no sums can be kept")
    assert texts(source, window=12) == expected


PROGRAM = """
import sys
from pathlib import Path
from test_windows import make_sampler
from unicloze.text.shards import TokenShard, TokenSource

def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

folder, before = Path(sys.argv[1]), anonymous()
source = TokenSource(
    name="v",
    shards=tuple(TokenShard.open(folder / f"{number}.ds") for number in range(1000)),
    index=folder / "index" / "v",
)
sampler = make_sampler(source, window=128, segments=1)
first = sampler.read(0, 64)
late = sampler.read(sampler.epoch_size * 9 // 10, 64)
assert len(set(late.index.tolist())) == 64
print(source.num_documents, sampler.num_windows, anonymous() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads the memory of a process from /proc")
def test_a_thousand_million_documents_take_little_memory(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(0, 400, size=10**6)
    ends = np.cumsum(lengths)
    ends.astype("<u8").tofile(tmp_path / "0.ds.index")
    with (tmp_path / "0.ds").open("wb") as tokens:
        tokens.truncate(2 * int(ends[-1]))
    for number in range(1, 1000):
        for end in ("", ".index"):
            os.link(tmp_path / f"0.ds{end}", tmp_path / f"{number}.ds{end}")
    windows = 1000 * int((-(-lengths // 126)).sum())
    for _ in range(2):  # the second opening uses the sums kept by the first
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])},
        )  # fmt: skip
        documents, found, kib = map(int, done.stdout.split())
        assert (documents, found) == (10**9, windows) and kib < 100_000
