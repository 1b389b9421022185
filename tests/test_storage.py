"""Corpora and copies of checkpoints on file systems of fsspec: its memory and local ones, so no network is needed."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch

from corpora import write_corpus
from test_prepare import content, run, sentence
from test_resume import finish
from unicloze import storage, verbs
from unicloze.comparison.contestants import contestants
from unicloze.errors import UniclozeError, UsageError
from unicloze.files import CHECKPOINTS, LEDGER, LONGEST_LINE, MANIFEST, RECIPE, WEIGHTS
from unicloze.pretraining import run as pretraining_run
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.storage import Status, file_at, problem_with, shown, stored_files
from unicloze.text import documents, lineage, pipeline
from unicloze.text.documents import find_files, other_files, read_documents
from unicloze.training.checkpoint import list_checkpoints, load_newest, save_checkpoint, write_checkpoint
from unicloze.training.copies import Copies
from unicloze.training.ledger import read_ledger

fsspec = pytest.importorskip("fsspec")
LocalFileSystem = fsspec.get_filesystem_class("file")

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


def write_texts(folder: Path) -> None:
    """Three files."""
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jsonl").write_bytes(jsonl(TEXTS[number * 20 : number * 20 + 20]))


def read(url: str) -> list[str]:
    return [document.text for document in read_documents(url)]


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
    expected = ["memory:///texts/0.txt", "memory:///texts/1.jsonl"]
    assert [str(file) for file in find_files("memory://texts/[01].*")] == expected
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
    for name, whole in (("cut.jsonl.gz", gzip.compress(jsonl(TEXTS))), ("cut.parquet", table(TEXTS))):
        memory.pipe(f"/{name}", whole[:-20])
        with pytest.raises(UniclozeError, match=rf"{name} is truncated or damaged"):
            read(f"memory://{name}")


def test_a_corpus_on_a_storage_gives_the_bytes_of_the_same_corpus_on_a_disk(memory: Any, tmp_path: Path) -> None:
    write_texts(tmp_path / "texts")
    memory.put(f"{tmp_path}/texts/", "/texts/", recursive=True)
    on_disk = run(str(tmp_path / "texts"), tmp_path / "disk")
    stored = run("memory://texts", tmp_path / "memory", jobs=2)
    local = run(f"file://{tmp_path}/texts/*.jsonl", tmp_path / "local")
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


@pytest.mark.whole
def test_processes_read_ranges_of_stored_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PORTION", 1)
    write_texts(tmp_path / "texts")
    url = f"file://{tmp_path}/texts/*.jsonl"
    prepared = run(url, tmp_path / "one")
    assert prepared.lineage["sources"][0]["portions"] == 3
    run(url, tmp_path / "two", jobs=2)
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_an_unchanged_stored_corpus_is_not_read_again(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/texts/0.jsonl", jsonl(TEXTS[:30]))
    memory.pipe("/texts/1.jsonl", jsonl(TEXTS[30:]))
    first = run("memory://texts", tmp_path / "out")
    hashed: list[str] = []
    whole = lineage.file_hash
    monkeypatch.setattr(lineage, "file_hash", lambda file: hashed.append(str(file)) or whole(file))
    assert run("memory://texts", tmp_path / "out").fingerprint == first.fingerprint
    assert hashed == []
    memory.pipe("/texts/1.jsonl", jsonl(TEXTS[30:]))  # the same bytes, written later
    assert run("memory://texts", tmp_path / "out").fingerprint == first.fingerprint
    assert hashed == ["memory:///texts/1.jsonl"]
    memory.pipe("/texts/1.jsonl", jsonl(TEXTS[31:]))
    with pytest.raises(UniclozeError, match=r"memory:///texts/1\.jsonl has changed"):
        run("memory://texts", tmp_path / "out")


def test_a_storages_name_of_a_version_decides_whether_a_file_changed() -> None:
    class System:
        def __init__(self, **info: Any) -> None:
            self.info_of = {"name": "a/b.txt", "size": 3, "type": "file", **info}

        def invalidate_cache(self) -> None: ...

        def info(self, path: str) -> dict[str, Any]:
            return self.info_of

    def stored(info: dict[str, Any]) -> storage.StoredFile:
        return storage.StoredFile("s3://a/b.txt", "a/b.txt", System(**info))

    def unchanged(before: dict[str, Any], now: dict[str, Any]) -> bool:
        return lineage._unchanged(lineage.version(stored(before)), stored(now))

    first, later = "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5+00:00"
    version = lineage.version(stored({"ETag": '"x"', "LastModified": first}))
    assert version == {"size": 3, "mtime_ns": 1767225600 * 10**9, "etag": "x"}
    assert unchanged({"ETag": '"x"', "LastModified": first}, {"etag": 'W/"x"', "mtime": later})
    assert not unchanged({"ETag": '"x"', "LastModified": first}, {"ETag": '"y"', "LastModified": first})
    assert not unchanged({"LastModified": first}, {"LastModified": later})
    assert unchanged({"LastModified": first}, {"LastModified": first})
    assert not unchanged({}, {})  # the storage tells nothing
    with pytest.raises(UniclozeError, match="does not tell the size of s3://a"):
        Status.of("s3://a", {"size": None})


@pytest.mark.parametrize("url", [
    "s3://key:secret@bucket/texts",
    "https://token-secret@host/a.txt",
    "https://host/a.txt?X-Amz-Signature=secret",
    "s3://bucket/a.txt?versionId=secret",
    "s3://key:secret/with/secret@bucket/texts",
])  # fmt: skip
def test_a_url_with_credentials_is_refused_without_repeating_them(url: str) -> None:
    for use in (find_files, lambda url: load_recipe("quickstart", {"data.corpus": [url]})):
        with pytest.raises(UsageError, match="contains credentials or a query") as refused:
            use(url)
        assert "secret" not in f"{refused.value}{shown(url)}"
    assert problem_with("sftp://me@host/texts") is None, "a name alone is no secret"
    assert problem_with("hdfs://host:9000/a@b") is None, "neither is a port"


@pytest.mark.parametrize(
    "url",
    ["simplecache::s3://bucket/a.txt", "zip://a.txt::s3://bucket/a.zip", "reference://a", "filecache://a", "zip://a"],
)
def test_a_url_that_opens_another_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="it opens one file system through another: give the URL of the files"):
        find_files(url)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"No installed package knows nosuch://: correct nosuch://a/b, or install"):
        find_files("nosuch://a/b")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError, match=r"s3://bucket/a\.txt needs a package that is not installed: Install s3fs"):
        find_files("s3://bucket/a.txt")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r'memory://a needs .* fsspec: .*pip install -e "\.\[storage\]"'):
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
    with pytest.raises(UniclozeError, match=r"^memory://a\.txt .*\(403 Forbidden https://host/a\)") as said:
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
        prepared = run(str(tmp_path / "texts"), tmp_path / url[-5:], decontaminate=[url])
        assert prepared.lineage["decontamination"]["names"] == [url]


# Copies of checkpoints

STEPS = 6


def train(out: Path, url: str | None, **changes: Any) -> None:
    write_corpus(out.parent / "corpus")
    settings = {
        "data.corpus": [str(out.parent / "corpus")], "training.steps": STEPS, "training.save_every": 2,
        "training.evaluate_every": 3, "training.precision": "fp32", "training.copy_to": url,
    }  # fmt: skip
    pretrain_run(load_recipe("quickstart", toy_overrides() | settings | changes), out, progress=False)


def steps_at(system: Any, place: str) -> list[int]:
    """Steps of the complete copies."""
    return sorted(int(path.split("/")[-2][5:]) for path in system.find(place) if path.endswith(f"/{MANIFEST}"))


def weights(out: Path) -> dict[str, bytes]:
    newest = list_checkpoints(out / CHECKPOINTS)[-1]
    assert newest.name == f"step-{STEPS:08d}"
    return {file.name: file.read_bytes() for file in newest.glob("*.safetensors")}


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the next run with an error as soon as the checkpoint of a step was saved and copied."""
    save = pretraining_run._Run._save

    def save_and_stop(self: Any, state: Any) -> None:
        save(self, state)
        if state.step == step:
            monkeypatch.setattr(pretraining_run._Run, "_save", save)
            raise KeyboardInterrupt

    monkeypatch.setattr(pretraining_run._Run, "_save", save_and_stop)


def test_the_copies_of_another_run_are_left_alone(memory: Any, tmp_path: Path) -> None:
    content_of: dict[str, Any] = {"model": {"w": torch.ones(2)}, "optimizers": [], "state": {}, "files": []}
    for name, begun in (("one", b"1"), ("two", b"2")):
        save_checkpoint(tmp_path / name / CHECKPOINTS, step=4, keep=1, **content_of)
        (tmp_path / name / LEDGER).write_bytes(begin := begun + b" start\n")
    Copies("memory://copies").update(tmp_path / "one")
    there = {path: memory.cat_file(path) for path in memory.find("/copies")}
    with pytest.warns(UserWarning, match="memory://copies holds the copies of another run: give this one"):
        Copies("memory://copies").update(tmp_path / "two")
    save_checkpoint(tmp_path / "one" / CHECKPOINTS, step=6, keep=1, **content_of)
    Copies("memory://copies").update(tmp_path / "one")
    with pytest.warns(
        UserWarning, match="the run continues with its own checkpoints: memory://copies holds the copies"
    ):
        assert Copies("memory://copies").fetch(tmp_path / "two") is None
    assert len(there) > 1 and (tmp_path / "two" / LEDGER).read_bytes() == begin


def test_no_recipe_file_decides_where_a_run_is_uploaded(memory: Any, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: quickstart\nname: mine\ntraining: {copy_to: 'memory://copies'}\n")
    with pytest.raises(UsageError, match=r"mine\.yaml sets training\.copy_to, and no file decides"):
        verbs.pretrain(mine, tmp_path / "run", quiet=True)
    assert not memory.find("/")


def test_a_run_whose_folder_is_lost_resumes_from_its_copies(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "whole", None)
    stop_at(4, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", "memory://copies")
    assert steps_at(memory, "/copies") == [2, 4]
    ledger = memory.cat_file(f"/copies/{LEDGER}")
    for found, expected in ((b"", ledger), (ledger[:-9], ledger), (ledger + b"more", ledger + b"more")):
        shutil.rmtree(tmp_path / "run")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / LEDGER).write_bytes(found)
        assert Copies("memory://copies").fetch(tmp_path / "run") == "step-00000004"
        assert (tmp_path / "run" / LEDGER).read_bytes() == expected
        assert load_recipe(tmp_path / "run" / RECIPE).training.copy_to == "memory://copies"
    shutil.rmtree(tmp_path / "run")
    train(tmp_path / "run", "memory://copies")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert steps_at(memory, "/copies") == [4, 6]
    assert [int(path.name[5:]) for path in list_checkpoints(tmp_path / "run" / CHECKPOINTS)] == [4, 6]
    events = list(read_ledger(tmp_path / "run" / LEDGER))
    assert [event["resumed_from"] for event in events if event["event"] == "start"] == [None, "step-00000004"]
    assert [event["step"] for event in events if event["event"] == "save"] == [2, 4, 6]


def test_a_failed_copy_is_a_warning_and_is_made_up_for(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, failures = type(memory).put_file, [OSError(28, "No space left on device")]

    def fail_once(self: Any, local: str, remote: str, **options: Any) -> None:
        if failures and local.endswith("optimizer.json"):
            raise failures.pop()
        put(self, local, remote, **options)

    monkeypatch.setattr(type(memory), "put_file", fail_once)
    with pytest.warns(UserWarning, match=r"were not copied, .* next save tries again: .*No space left"):
        train(tmp_path / "run", "memory://copies")
    assert not failures
    assert steps_at(memory, "/copies") == [4, 6]
    for local in list_checkpoints(tmp_path / "run" / CHECKPOINTS):
        for file in local.iterdir():
            assert memory.cat_file(f"/copies/{local.name}/{file.name}") == file.read_bytes()


def test_a_lost_run_of_auto_resumes_with_what_was_chosen(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "corpus")
    given = {
        "data.corpus": str(tmp_path / "corpus"), "model.hidden_size": 32, "model.num_heads": 2, "training.threads": 1,
        "training.copy_to": "memory://copies",
    }  # fmt: skip
    verbs.pretrain("auto", tmp_path / "run", quiet=True, overrides=given, budget="steps=2")
    recipe = load_recipe(tmp_path / "run" / RECIPE)
    shutil.rmtree(tmp_path / "run")
    monkeypatch.setattr("unicloze.pretraining.automatic.choose", None)
    result = verbs.pretrain("auto", tmp_path / "run", quiet=True, overrides=given, budget="2min")
    assert str(result).startswith(f"{tmp_path / 'run'}: trained to step 2")
    assert load_recipe(tmp_path / "run" / RECIPE) == recipe


@pytest.mark.whole
def test_a_run_killed_while_copying_and_then_lost_ends_with_the_same_weights(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus")
    out, whole = tmp_path / "out", tmp_path / "whole"
    short = {"training.steps": 4, "training.evaluate_every": 0}
    copied = short | {"training.copy_to": f"file://{tmp_path}/copies"}
    # a checkpoint is seven files and the ledger: the second copy is cut short
    assert finish(tmp_path, out, "copied-file", 11, **copied) == -signal.SIGKILL
    complete = {file.parent.name for file in (tmp_path / "copies").glob(f"*/{MANIFEST}")}
    assert complete == {"step-00000002"} < {path.name for path in (tmp_path / "copies").glob("step-*")}
    shutil.rmtree(out)
    assert finish(tmp_path, out, **copied) == 0
    assert finish(tmp_path, whole, **short) == 0
    newest = [list_checkpoints(folder / CHECKPOINTS)[-1] for folder in (out, whole)]
    assert newest[0].name == newest[1].name
    assert (newest[0] / WEIGHTS).read_bytes() == (newest[1] / WEIGHTS).read_bytes()


@pytest.fixture
def run_with_copies(tmp_path: Path) -> tuple[Path, Path]:
    """The folder of a run, and the folder of the copies of its checkpoints 1 and 2."""
    out, copied = tmp_path / "run", tmp_path / "copies"
    for step in (1, 2):
        tokenizer = tmp_path / "tokenizer.json"
        tokenizer.write_text("{}")
        weights = {"a": torch.full((2,), step)}
        save_checkpoint(out / CHECKPOINTS, step=step, model=weights, optimizers=[], state={}, files=[tokenizer], keep=2)
    (out / LEDGER).write_text('{"event": "start"}\n')
    Copies(f"file://{copied}").update(out)
    return out, copied


def test_a_copy_is_complete_once_its_manifest_is_there(
    run_with_copies: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, copied = run_with_copies
    put = LocalFileSystem.put_file
    for after in range(5):  # files copied before the process is killed
        shutil.rmtree(copied / "step-00000002")
        left = [after]

        def killed(self: Any, *names: str, left: list[int] = left, **options: Any) -> None:
            if names[0].endswith("ledger.jsonl"):
                return
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            put(self, *names, **options)

        with monkeypatch.context() as patch:
            patch.setattr(LocalFileSystem, "put_file", killed)
            patch.setattr(LocalFileSystem, "pipe_file", killed)
            with pytest.raises(KeyboardInterrupt):
                Copies(f"file://{copied}").update(out)
        fresh = out.parent / f"fresh-{after}"
        assert Copies(f"file://{copied}").fetch(fresh) == "step-00000001"
        assert load_newest(fresh / CHECKPOINTS) is not None
        Copies(f"file://{copied}").update(out)
        assert Copies(f"file://{copied}").fetch(fresh) == "step-00000002"
        assert (fresh / LEDGER).read_text() == '{"event": "start"}\n'
        assert Copies(f"file://{copied}").fetch(fresh) is None


def test_a_damaged_copy_is_not_used(run_with_copies: tuple[Path, Path]) -> None:
    out, copied = run_with_copies
    (copied / "step-00000002" / "state.json").write_text("{}")
    with pytest.warns(UserWarning, match=r"step-00000002 is damaged \(state\.json .*SHA-256\); using step-0"):
        assert Copies(f"file://{copied}").fetch(out.parent / "fresh") == "step-00000001"
    copies = Copies(f"file://{copied}")
    with pytest.warns(UserWarning, match="step-00000002 is damaged"):
        copies.fetch(out.parent / "second")
    copies.update(out)  # the checkpoint was computed again
    (out / CHECKPOINTS / "step-00000002" / WEIGHTS).write_bytes(b"")
    assert Copies(f"file://{copied}").fetch(out) == "step-00000002", "its own is damaged"
    assert (out / CHECKPOINTS / "damaged-step-00000002").is_dir()
    for name in ("step-00000001", "step-00000002"):
        (copied / name / MANIFEST).write_text('{"sha256": {"../../evil": "0"}}')
    with pytest.raises(UniclozeError, match="and no other copy is intact"):
        Copies(f"file://{copied}").fetch(out.parent / "other")
    assert [path.name for path in (out.parent / "other" / CHECKPOINTS).iterdir()] == []


def test_a_checkpoint_written_again_replaces_its_copy(run_with_copies: tuple[Path, Path]) -> None:
    out, copied = run_with_copies
    newest = out / CHECKPOINTS / "step-00000002"
    shutil.rmtree(newest)
    write_checkpoint(newest, step=2, model={"a": torch.full((2,), 7.0)}, optimizers=[], state={}, files=[])
    Copies(f"file://{copied}").update(out)
    for file in newest.iterdir():
        assert (copied / newest.name / file.name).read_bytes() == file.read_bytes()
    assert not (copied / newest.name / "tokenizer.json").exists()


def test_a_storage_out_of_reach_stops_only_a_run_without_checkpoints(
    run_with_copies: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, copied = run_with_copies

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("the network is down")

    monkeypatch.setattr(LocalFileSystem, "ls", fail)
    with pytest.raises(UniclozeError, match=r"cannot be used \(the network is down\)"):
        Copies(f"file://{copied}").fetch(out.parent / "fresh")
    with pytest.warns(UserWarning, match="the run continues with its own checkpoints: .*the network is down"):
        assert Copies(f"file://{copied}").fetch(out) is None


def test_only_urls_of_one_pretraining_are_copied_to() -> None:
    with pytest.raises(UsageError, match=r"training\.copy_to is 'copies'; give a URL such as s3://bucket/runs/mine"):
        load_recipe("quickstart", {"training.copy_to": "copies"})
    with pytest.raises(UsageError, match=r"training.copy_to is 's3://bucket'; it contains credentials"):
        load_recipe("quickstart", {"training.copy_to": "s3://key:secret@bucket"})
    with pytest.raises(UsageError, match=r"option --training\.copy_to: each run needs a URL of its own"):
        contestants(["unilmv2-small"], like=None, overrides={"training.copy_to": "memory://copies"})
