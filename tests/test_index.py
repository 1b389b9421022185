"""The index of a large corpus: mapped from disk, kept between openings, and the same windows as without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from test_windows import make_sampler, make_source, naive_joined, naive_pieces
from unicloze.errors import UniclozeError
from unicloze.text import columns, shards
from unicloze.text.columns import Kept, Sums
from unicloze.text.counts import stretches
from unicloze.text.shards import TokenShard, TokenSource

LENGTHS = [23, 1, 40, 0, 7, 12, 2, 100, 0, 0, 10, 10, 11, 1, 0]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small corpora are treated like large ones."""
    monkeypatch.setattr(columns, "SMALL", 0)
    monkeypatch.setattr(columns, "STRIDE", 4)
    for module in (columns, shards):
        monkeypatch.setattr(module, "AT_ONCE", 8)


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
        opened = [TokenShard.open(shard.path, documents=np.array(chosen)) for shard in source.shards]
        source = TokenSource(name="s", shards=tuple(opened))
    assert texts(source, window=12) == naive_pieces(source, 10, 1)
    assert texts(source, window=12, documents="joined") == naive_joined(source, 10, 1)


@pytest.mark.usefixtures("large")
def test_a_selection_has_the_windows_of_its_documents_alone(tmp_path: Path) -> None:
    whole = make_source(tmp_path, LENGTHS)
    numbers = np.array([0, 2, 4, 7, 11])
    chosen = TokenSource(name="s", shards=(TokenShard.open(whole.shards[0].path, documents=numbers),))
    documents = [whole.shards[0].tokens[whole.shards[0].starts[n] : whole.shards[0].ends[n]].tolist() for n in numbers]
    assert [token for text in texts(chosen, window=12) for token in text] == [t for text in documents for t in text]
    assert chosen.num_tokens == sum(map(len, documents)) and chosen.num_bytes == 10 * chosen.num_tokens
    tokens, begins = next(iter(stretches([chosen], 10**6)))
    assert tokens.tolist() == [token for text in documents for token in text]
    assert np.flatnonzero(begins).tolist() == np.cumsum([0, *map(len, documents)])[:-1].tolist()


def kept_source(folder: Path, made_from: str = "a", *, show: bool = False) -> TokenSource:
    source = make_source(folder, LENGTHS)
    return TokenSource(
        name="s", shards=source.shards, index=Kept(file=folder / "index" / "s", made_from=made_from, show=show)
    )


@pytest.mark.usefixtures("large")
def test_sums_are_computed_once_for_each_corpus_and_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed, compute = list[int](), Sums._computed
    monkeypatch.setattr(Sums, "_computed", lambda *given, **also: (computed.append(1), compute(*given, **also))[1])
    expected = texts(kept_source(tmp_path), window=12)
    assert texts(kept_source(tmp_path), window=12) == expected and len(computed) == 1
    texts(kept_source(tmp_path), window=9)
    texts(kept_source(tmp_path), window=12, documents="joined")
    texts(kept_source(tmp_path, "b"), window=12)
    assert len(computed) == 4, "another window, way of cutting or corpus has other sums"
    file = tmp_path / "index" / "s-10-1.sums"
    content = bytearray(file.read_bytes())
    for damaged in (content[:-8], b"", b"{}", content[:4100] + bytes([content[4100] ^ 1]) + content[4101:]):
        file.write_bytes(damaged)
        before = len(computed)
        assert texts(kept_source(tmp_path, "b"), window=12) == expected and len(computed) == before + 1
    (tmp_path / "index" / "s-10-1.sums").unlink()
    (tmp_path / "index").rename(tmp_path / "moved")
    (tmp_path / "index").write_text("a file, so that no sums can be kept")
    assert texts(kept_source(tmp_path), window=12) == expected


@pytest.mark.usefixtures("large")
def test_the_first_opening_shows_its_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts(kept_source(tmp_path, show=True), window=12)
    assert "indexing s: 15 of 15 documents" in capsys.readouterr().err
    texts(kept_source(tmp_path, show=True), window=12)
    texts(kept_source(tmp_path, "b"), window=12)
    assert "indexing" not in capsys.readouterr().err


def test_an_index_that_falls_is_refused_where_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_source(tmp_path, LENGTHS).shards[0].path
    index = path.with_name(path.name + ".index")
    ends = np.fromfile(index, dtype="<u8")
    ends[3] += 1000
    ends.tofile(index)
    with pytest.raises(UniclozeError, match=r"does not fit s0\.ds\.index"):
        TokenShard.open(path)
    monkeypatch.setattr(shards, "_SMALL", 0)
    source = TokenSource(name="s", shards=(TokenShard.open(path),))
    with pytest.raises(UniclozeError, match=r"s0\.ds\.index is damaged"):
        make_sampler(source)


PROGRAM = """
import sys
from pathlib import Path
from test_windows import make_sampler
from unicloze.text.shards import TokenShard, TokenSource
from unicloze.text.columns import Kept

def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

folder, before = Path(sys.argv[1]), anonymous()
source = TokenSource(
    name="v",
    shards=tuple(TokenShard.open(folder / f"{number}.ds") for number in range(1000)),
    index=Kept(file=folder / "index" / "v", made_from="v", show=False),
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
