"""Corpora and copies of checkpoints on file systems of fsspec: its memory and local ones, so no network is needed."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from corpora import write_corpus
from test_prepare import content, sentence
from unicloze import storage
from unicloze.bounded import LONGEST_LINE
from unicloze.errors import UniclozeError, UsageError
from unicloze.recipes import load_recipe
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.storage import Status, file_at, is_url, problem_with, shown, stored_files
from unicloze.text import documents, lineage, portions
from unicloze.text.documents import find_files, other_files, read_documents
from unicloze.text.prepare import Prepared, prepare_data

fsspec = pytest.importorskip("fsspec")

TEXTS = [sentence(number) for number in range(60)]


@pytest.fixture
def memory() -> Iterator[Any]:
    """fsspec's file system in memory, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def jsonl(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def table(texts: list[str]) -> bytes:
    written = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), written)
    return written.getvalue()


def read(url: str) -> list[str]:
    return [document.text for document in read_documents(url)]


def prepare(corpus: str, out: Path, jobs: int = 1, **options: Any) -> Prepared:
    data = DataSettings(corpus=[corpus], heldout_share=0.1, **options)
    return prepare_data(data, TokenizerSettings(vocab_size=200), out, progress=False, jobs=jobs)


def test_every_kind_of_file_is_read_from_a_url(memory: Any) -> None:
    packed = pyarrow.compress(jsonl(TEXTS[20:30]), codec="zstd", asbytes=True)
    for name, raw in {
        "0.txt": "\n\n".join(TEXTS[:10]).encode(),
        "1.jsonl": jsonl(TEXTS[10:20]),
        "2.jsonl.zst": packed,
        "3.jsonl.gz": gzip.compress(jsonl(TEXTS[30:40])),
        "deep/4.parquet": table(TEXTS[40:50]),
        "notes.md": b"ignored",
        ".hidden.txt": b"ignored",
    }.items():
        memory.pipe(f"/texts/{name}", raw)
    assert read("memory://texts") == TEXTS[:50]
    assert read("memory://texts/*.jsonl*") == TEXTS[10:40]
    assert read("memory://texts/**/*.parquet") == TEXTS[40:50]
    assert read("memory://texts/1.jsonl") == TEXTS[10:20]
    assert [str(file) for file in find_files("memory://texts/[01].*")] == [
        "memory:///texts/0.txt",
        "memory:///texts/1.jsonl",
    ]
    assert other_files("memory://texts") == {".md": 1, "hidden": 1}


def test_the_limits_of_readers_hold_for_urls(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/bomb.txt.gz", gzip.compress(b"a" * 40 * 2**20))
    with pytest.raises(UniclozeError, match=r"memory:///bomb\.txt\.gz unpacks to more than 100 times its size"):
        read("memory://bomb.txt.gz")
    monkeypatch.setattr(documents, "LONGEST_LINE", 100)
    assert LONGEST_LINE > 100
    memory.pipe("/long.jsonl", jsonl(["a" * 200]))
    with pytest.raises(UniclozeError, match=r"long\.jsonl:1 is longer than 100 bytes"):
        read("memory://long.jsonl")
    memory.pipe("/cut.jsonl.gz", gzip.compress(jsonl(TEXTS))[:-20])
    with pytest.raises(UniclozeError, match=r"cut\.jsonl\.gz is truncated or damaged"):
        read("memory://cut.jsonl.gz")
    memory.pipe("/cut.parquet", table(TEXTS)[:-20])
    with pytest.raises(UniclozeError, match=r"cut\.parquet is truncated or damaged"):
        read("memory://cut.parquet")


def test_a_corpus_on_a_storage_gives_the_bytes_of_the_same_corpus_on_a_disk(memory: Any, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(3):
        raw = jsonl(TEXTS[number * 20 : number * 20 + 20])
        (tmp_path / "texts" / f"{number}.jsonl").write_bytes(raw)
        memory.pipe(f"/texts/{number}.jsonl", raw)
    on_disk = prepare(str(tmp_path / "texts"), tmp_path / "disk")
    stored = prepare("memory://texts", tmp_path / "memory", jobs=2)
    local = prepare(f"file://{tmp_path}/texts/*.jsonl", tmp_path / "local")
    assert on_disk.fingerprint == stored.fingerprint == local.fingerprint
    tokens = [
        {name: raw for name, raw in content(tmp_path / out).items() if name.endswith(".ds")}
        for out in ("disk", "memory", "local")
    ]
    assert tokens[0] == tokens[1]
    assert list(tokens[0].values()) == list(tokens[2].values())
    (source,) = stored.lineage["sources"]
    assert [file["path"] for file in source["files"]] == [f"memory:///texts/{number}.jsonl" for number in range(3)]
    assert all(file["size"] > 0 and file["mtime_ns"] > 0 for file in source["files"])


@pytest.mark.slow
def test_processes_read_ranges_of_stored_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "PORTION", 1)
    (tmp_path / "texts").mkdir()
    for number in range(3):
        (tmp_path / "texts" / f"{number}.jsonl").write_bytes(jsonl(TEXTS[number * 20 : number * 20 + 20]))
    url = f"file://{tmp_path}/texts/*.jsonl"
    prepared = prepare(url, tmp_path / "one")
    assert prepared.lineage["sources"][0]["portions"] == 3
    prepare(url, tmp_path / "two", jobs=2)
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_an_unchanged_stored_corpus_is_not_read_again(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/texts/0.jsonl", jsonl(TEXTS[:30]))
    memory.pipe("/texts/1.jsonl", jsonl(TEXTS[30:]))
    first = prepare("memory://texts", tmp_path / "out")
    hashed: list[str] = []
    whole = lineage.file_hash
    monkeypatch.setattr(lineage, "file_hash", lambda file: hashed.append(str(file)) or whole(file))
    assert prepare("memory://texts", tmp_path / "out").fingerprint == first.fingerprint
    assert hashed == []
    memory.pipe("/texts/1.jsonl", jsonl(TEXTS[30:]))  # the same bytes, written later
    assert prepare("memory://texts", tmp_path / "out").fingerprint == first.fingerprint
    assert hashed == ["memory:///texts/1.jsonl"]
    memory.pipe("/texts/1.jsonl", jsonl(TEXTS[31:]))
    with pytest.raises(UniclozeError, match=r"memory:///texts/1\.jsonl has changed"):
        prepare("memory://texts", tmp_path / "out")


def test_a_storages_name_of_a_version_decides_whether_a_file_changed() -> None:
    class System:
        def __init__(self, **info: Any) -> None:
            self.info_of = {"name": "a/b.txt", "size": 3, "type": "file", **info}

        def invalidate_cache(self) -> None: ...

        def info(self, path: str) -> dict[str, Any]:
            return self.info_of

    def unchanged(before: dict[str, Any], now: dict[str, Any]) -> bool:
        files = [storage.StoredFile("s3://a/b.txt", "a/b.txt", System(**info)) for info in (before, now)]
        return lineage._unchanged(lineage.version(files[0]), files[1])

    first, later = "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5+00:00"
    assert lineage.version(storage.StoredFile("s3://a/b", "a/b", System(ETag='"x"', LastModified=first))) == {
        "size": 3,
        "mtime_ns": 1767225600 * 10**9,
        "etag": "x",
    }
    assert unchanged({"ETag": '"x"', "LastModified": first}, {"etag": 'W/"x"', "mtime": later})
    assert not unchanged({"ETag": '"x"', "LastModified": first}, {"ETag": '"y"', "LastModified": first})
    assert not unchanged({"LastModified": first}, {"LastModified": later})
    assert unchanged({"LastModified": first}, {"LastModified": first})
    assert not unchanged({}, {})  # the storage tells nothing
    with pytest.raises(UniclozeError, match="does not tell the size of s3://a"):
        Status.of("s3://a", {"size": None})


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:secret@bucket/texts",
        "https://token-secret@host/a.txt",
        "https://host/a.txt?X-Amz-Signature=secret",
        "s3://bucket/a.txt?versionId=secret",
    ],
)
def test_a_url_with_credentials_is_refused_without_repeating_them(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains credentials or a query") as refused:
        find_files(url)
    with pytest.raises(UsageError, match="contains credentials or a query") as invalid:
        load_recipe("quickstart", {"data.corpus": [url]})
    assert "secret" not in f"{refused.value}{invalid.value}"
    assert "secret" not in shown(url)


@pytest.mark.parametrize(
    "url",
    [
        "simplecache::s3://bucket/a.txt",
        "zip://a.txt::s3://bucket/a.zip",
        "reference://a",
        "filecache://a",
        "zip://a.txt",
    ],
)
def test_a_url_that_opens_another_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="it opens one file system through another: give the URL of the files"):
        find_files(url)


def test_names_of_stored_files() -> None:
    assert [is_url(name) for name in ("s3://a/b", "hf://datasets/a/b", "hf:a/b", "a/b", "C:/b")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert problem_with("abfs://container@account.dfs.core.windows.net/part-?.txt") is None
    assert problem_with("sftp://me@host/texts") is None


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"No installed package knows nosuch://: correct nosuch://a/b, or install"):
        find_files("nosuch://a/b")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError, match=r"s3://bucket/a\.txt needs a package that is not installed: Install s3fs"):
        find_files("s3://bucket/a.txt")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r'memory://a needs the package fsspec: pip install "unicloze\[storage\]"'):
        find_files("memory://a")


def test_what_cannot_be_read_is_named(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UniclozeError, match=r"There is no text file at memory://nothing"):
        find_files("memory://nothing")
    memory.pipe("/tokens/a.ds", b"1234")
    with pytest.raises(UniclozeError, match=r"memory://tokens holds token shards, which are read in place"):
        find_files("memory://tokens")

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("403 Forbidden https://host/a?Signature=secret")

    memory.pipe("/a.txt", b"text")
    file = file_at("memory://a.txt")
    monkeypatch.setattr(type(memory), "open", fail)
    with pytest.raises(
        UniclozeError, match=r"^memory://a\.txt cannot be used \(403 Forbidden https://host/a\)"
    ) as said:
        file.open()
    assert "secret" not in str(said.value)
    monkeypatch.setattr(type(memory), "info", fail)
    with pytest.raises(UniclozeError, match="cannot be used"):
        stored_files("memory://a.txt")


def test_evaluation_files_may_be_stored(memory: Any, tmp_path: Path) -> None:
    write_corpus(tmp_path / "texts")
    text = (tmp_path / "texts" / "corpus.txt").read_text().split("\n\n")[3]
    memory.pipe("/evaluation.jsonl.gz", gzip.compress(jsonl([text])))
    memory.pipe("/evaluation.parquet", table([text]))
    for url in ("memory://evaluation.jsonl.gz", "memory://evaluation.parquet"):
        prepared = prepare(str(tmp_path / "texts"), tmp_path / url[-5:], decontaminate=[url])
        assert prepared.lineage["decontamination"]["names"] == [url]
