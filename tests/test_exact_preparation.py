"""Exact labels, warnings and file contents of prepared text."""

from __future__ import annotations

import inspect
import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toys import vocabulary
from unicloze.errors import UniclozeError, UsageError
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.text import pipeline, portions
from unicloze.text.documents import Document
from unicloze.text.prepare import Prepared, prepare_data
from unicloze.text.sampler import WindowName, WindowSampler, check_segment_pairs
from unicloze.text.shards import ShardWriter, TokenShard, TokenSource, beside, files_beside

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]


def documents(count: int, first: int = 0) -> list[str]:
    return [" ".join(WORDS[(i * k + k) % 6] for k in range(1, 25)) + f" {i}" for i in range(first, first + count)]


def write(file: Path, texts: list[str]) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def prepare(out: Path, *corpus: Path, progress: bool = False, **data: Any) -> Prepared:
    settings = DataSettings(corpus=[str(each) for each in corpus], **{"heldout_share": 0.1, **data})
    return prepare_data(settings, TokenizerSettings(vocab_size=150), out, progress=progress)


@pytest.mark.parametrize("show", [True, False])
def test_the_bars_of_a_preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, show: bool) -> None:
    made: list[tuple[Any, ...]] = []
    original, counted = pipeline.Progress, {}

    class Bar(original):  # type: ignore[misc, valid-type]
        def __init__(self, what: str, total: int | None, unit: str, **named: Any) -> None:
            made.append((what, total, unit, named))
            super().__init__(what, total, unit, show=False)

        def update(self, count: int = 1) -> None:
            counted[self.what] = counted.get(self.what, 0) + count

    monkeypatch.setattr(pipeline, "Progress", Bar)
    texts = documents(30)
    prepare(tmp_path / "out", write(tmp_path / "a.jsonl", texts), progress=show)
    size = sum(map(len, texts))
    training = "training the tokenizer", size  # in two passes
    labels = ("reading", None), training, training, ("tokenising", size)
    assert made == [(what, total, "bytes", {"show": show}) for what, total in labels]
    assert counted == {"reading": size, "training the tokenizer": 2 * size, "tokenising": size}


def test_what_is_recorded(tmp_path: Path) -> None:
    corpus = write(tmp_path / "a.jsonl", [*documents(30), documents(1)[0].upper(), ""])
    out = tmp_path / "out"
    prepared = prepare(out, corpus)
    text = (out / "lineage.json").read_text(encoding="utf-8")
    lineage = json.loads(text)
    assert text == json.dumps(lineage, indent=1) + "\n"
    assert list(lineage) == ["schema", "fingerprint", "settings", "tokenizer", "sources", "digests", "seal"]
    assert lineage["tokenizer"] == {
        "fingerprint": prepared.tokenizer.fingerprint,
        "vocab_size": prepared.tokenizer.vocabulary.size,
    }
    (source,) = lineage["sources"]
    assert {
        "name",
        "corpus",
        "files",
        "documents",
        "empty",
        "duplicates",
        "replaced",
        "nul",
        "train",
        "heldout",
    } == set(source)
    facts = {"name": "a", "corpus": str(corpus), "documents": 31, "empty": 1, "duplicates": 1, "replaced": 0, "nul": 0}
    assert {key: source[key] for key in facts} == facts
    assert list(source["train"]) == list(source["heldout"]) == ["documents", "tokens", "bytes"]
    assert source["train"]["documents"] + source["heldout"]["documents"] == 30
    assert source["train"]["bytes"] + source["heldout"]["bytes"] == sum(map(len, documents(30)))
    assert sorted(path.name for path in (out / "train").iterdir()) == [
        "a.ds", "a.ds.bytes", "a.ds.index", "a.ds.json", "a.ds.lines", "a.ds.metadata",
    ]  # fmt: skip
    assert not (out / "hashes").exists()
    assert (out / "train" / "a.ds.metadata").read_text().split("|")[0] == TokenShard.open(
        out / "train" / "a.ds"
    ).tokenizer_name


def test_a_source_without_training_text_is_reported(tmp_path: Path) -> None:
    one, same = write(tmp_path / "a.jsonl", documents(20)), write(tmp_path / "b.jsonl", documents(20))
    with pytest.warns(UserWarning) as found:
        prepare(tmp_path / "out", one, same)
    assert [str(warning.message) for warning in found] == [
        f"{same} has no training text: earlier sources hold the same documents"
    ]
    assert not found[0].filename.endswith("pipeline.py")


@pytest.mark.parametrize(
    "names, said",
    [
        (["a.bin"], "1 file of another kind is ignored: 1 .bin"),
        (["a.bin", "b.bin", "c.pdf"], "3 files of other kinds are ignored: 2 .bin, 1 .pdf"),
    ],
)
def test_ignored_files_are_counted(tmp_path: Path, names: list[str], said: str) -> None:
    write(tmp_path / "corpus" / "a.jsonl", documents(20))
    for name in names:
        (tmp_path / "corpus" / name).write_text("x")
    with pytest.warns(UserWarning) as found:
        prepare(tmp_path / "out", tmp_path / "corpus")
    (warning,) = found
    assert str(warning.message) == f"{tmp_path / 'corpus'}: {said}"
    assert Path(warning.filename) == Path(pipeline.__file__)
    lineage = json.loads((tmp_path / "out" / "lineage.json").read_text())
    assert sum(lineage["sources"][0]["left_out"].values()) == len(names)


def test_batches_are_cut_at_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (portions._BATCH, pipeline._TRAINING_BYTES, portions._PART) == (2097152, 1073741824, 65536)
    monkeypatch.setattr(portions, "_BATCH", 10)

    def document(text: str) -> Document:
        return Document(path="a", line=1, text=text)

    texts = ["12345", "1234", "1", "1234567890", "12"]
    found = list(portions.batches((document(text), text == "1") for text in texts))
    assert [[piece.text for piece in batch] for batch in found] == [["12345", "1234", "1"], ["1234567890"], ["12"]]
    assert [piece.is_heldout for piece in found[0]] == [False, False, True]
    assert all(piece.is_last for batch in found for piece in batch)
    assert list(portions.batches([])) == []
    assert pipeline._LONG_WORD.sub(r"\1 ", "x" * 600 + " y") == f"{'x' * 256} {'x' * 256} {'x' * 88} y"
    assert pipeline._LONG_WORD.sub(r"\1 ", "x" * 256 + " y") == "x" * 256 + " y"


def test_names_of_sources() -> None:
    corpus = ["a/B.c.txt", "x/b.txt", "-é_1-.json", "...", "b", "~", "b-2.txt"]
    assert pipeline._source_names(corpus) == ["B", "b-1", "é_1", "text", "b-4", "text-5", "b-2"]


def write_shard(path: Path, vocab_size: int = 100) -> TokenShard:
    with ShardWriter(path, vocab_size=vocab_size, tokenizer_name="toy|2") as writer:
        for name in ("empty.txt", "a.txt", "a.txt"):
            writer.begin_file(name)
        writer.write(np.array([5, 6]), 20, line=1, ends_document=False)
        writer.write(np.array([7]), 10, line=1)
        writer.write(np.array([8]), 4)
        writer.begin_file("é.txt")
        writer.write(np.array([9, 10]), 21, line=7)
    assert (writer.tokens, writer.bytes, writer.documents) == (6, 55, 3)
    return TokenShard.open(path)


def test_the_files_of_a_shard(tmp_path: Path) -> None:
    path = tmp_path / "a.ds"
    shard = write_shard(path)
    assert (tmp_path / "a.ds.metadata").read_text() == "toy|2|2\n6\n6e-06 MT"
    files = [{"path": "a.txt", "first_document": 0}, {"path": "é.txt", "first_document": 2}]
    assert (tmp_path / "a.ds.json").read_text() == json.dumps({"schema": 1, "files": files}, indent=1) + "\n"
    for end, values in ((".index", (3, 4, 6)), (".bytes", (30, 34, 55)), (".lines", (1, 0, 7))):
        assert beside(path, end).read_bytes() == struct.pack("<3Q", *values)
    assert path.read_bytes() == struct.pack("<6H", 5, 6, 7, 8, 9, 10)
    assert [file.name for file in files_beside(path)] == [
        f"a.ds.{end}" for end in ("index", "metadata", "bytes", "lines", "json")
    ]
    assert (shard.tokenizer_name, shard.files) == ("toy|2", (("a.txt", 0), ("é.txt", 2)))
    assert len(shard.ends) == 3 and shard.sizes is not None
    wide = write_shard(tmp_path / "b.ds", 2**16 + 1)
    assert (tmp_path / "b.ds").read_bytes() == struct.pack("<6I", 5, 6, 7, 8, 9, 10) and wide.tokens.dtype == np.uint32
    assert (tmp_path / "b.ds.metadata").read_text() == "toy|2|4\n6\n6e-06 MT"
    source = TokenSource(name="a", shards=(shard, wide))
    assert (source.num_documents, source.num_tokens, source.num_bytes) == (6, 12, 110)
    for end in (".bytes", ".json", ".metadata", ".lines"):
        beside(path, end).unlink()
    bare = TokenShard.open(path)
    assert (bare.tokenizer_name, bare.files, bare.sizes) == ("", ((str(path), 0),), None)
    assert TokenSource(name="a", shards=(bare, wide)).num_bytes is None
    assert [file.name for file in files_beside(path)] == ["a.ds.index"]


def test_documents_that_a_shard_lacks(tmp_path: Path) -> None:
    write_shard(path := tmp_path / "a.ds")
    assert len(TokenShard.open(path, documents=np.array([0, 2])).ends) == 2
    with pytest.raises(UniclozeError) as refused:
        TokenShard.open(path, documents=np.array([0, 3]))
    assert str(refused.value) == f"{path} has 3 documents, but had at least 4 when it was prepared: prepare again."


def test_a_failed_shard_has_no_metadata(tmp_path: Path) -> None:
    with pytest.raises(KeyError), ShardWriter(tmp_path / "a.ds", vocab_size=9, tokenizer_name="toy") as writer:
        raise KeyError
    assert all(file.closed for file in writer._open)
    assert [beside(tmp_path / "a.ds", end).exists() for end in (".metadata", ".json")] == [False, False]


def source(folder: Path, sizes: list[int], name: str = "a") -> TokenSource:
    with ShardWriter(folder / f"{name}.ds", vocab_size=50, tokenizer_name="toy") as writer:
        for number, size in enumerate(sizes):
            writer.begin_file(f"{name}{number // 2}.txt")
            writer.write(np.arange(size) % 40 + 7, 10 * size, line=(3 * number + 3) * (number < 2))
    return TokenSource(name=name, shards=(TokenShard.open(folder / f"{name}.ds"),))


def sampler(*sources: TokenSource, window: int = 13, segments: int = 2, **settings: Any) -> WindowSampler:
    return WindowSampler(sources, window=window, segments=segments, vocabulary=vocabulary(), seed=0, **settings)


def test_a_weight_without_effect_warns_the_caller(tmp_path: Path) -> None:
    full, short, shorter = source(tmp_path, [30]), source(tmp_path, [1], "b"), source(tmp_path, [1, 1], "c")
    with pytest.warns(UserWarning) as found:
        sampler(full, short, shorter, weights=[1.0, 2.0, 0.0])
    assert [(warning.filename, str(warning.message)) for warning in found] == [
        (__file__, "data.weights has no effect on b, c: none of their documents is long enough for a window")
    ]
    lines, first = inspect.getsourcelines(sampler)
    assert first <= found[0].lineno < first + len(lines)
    sampler(full, short)  # without weights, nothing is said


def test_names_of_windows(tmp_path: Path) -> None:
    made = sampler(source(tmp_path, [25, 12, 11]))
    names = [made.name(0, index) for index in range(made.num_windows)]
    assert names[:3] == [
        WindowName(source="a", file="a0.txt", line=3, document=0, first_token=0, byte=0),
        WindowName(source="a", file="a0.txt", line=3, document=0, first_token=10, byte=100),
        WindowName(source="a", file="a0.txt", line=3, document=0, first_token=20, byte=200),
    ]
    assert names[3:] == [
        WindowName(source="a", file="a0.txt", line=6, document=1, first_token=0, byte=0),
        WindowName(source="a", file="a0.txt", line=6, document=1, first_token=10, byte=100),
        WindowName(source="a", file="a1.txt", line=None, document=0, first_token=0, byte=0),
    ]
    assert str(names[1]) == "a0.txt, line 3, token 10, near byte 100"
    assert (
        str(WindowName(source="a", file="b", line=None, document=4, first_token=5, byte=None))
        == "b, document 4, token 5"
    )


def test_windows_and_weights_that_are_refused(tmp_path: Path) -> None:
    one = source(tmp_path, [30])
    assert sampler(one, window=5).num_windows == 15 and sampler(one, window=3, segments=1).num_windows == 30
    for window, segments, text in ((4, 2, "3 special tokens and 2"), (2, 1, "2 special tokens and 1")):
        with pytest.raises(UsageError) as refused:
            sampler(one, window=window, segments=segments)
        least = 1 + 2 * segments
        assert (
            str(refused.value) == f"data.window is {window}, too short for {text} of text: set it to at least {least}."
        )
    for weights, problem in (
        ([1.0, 2.0], "data.weights has 2 values for 1 sources: give one per source."),
        ([-0.5], "data.weights contains -0.5: weights must be at least 0."),
        ([0.1], "data.weights gives a 0.1 of its windows, which rounds to none: raise it, or drop the source."),
    ):
        with pytest.raises(UsageError, match=f"^{re.escape(problem)}$"):
            sampler(one, weights=weights)
    for sources, weights in (((one,), [0.0]), ((), None)):
        with pytest.raises(UniclozeError, match=r"^There is no window in (a|the sources): every document is too short"):
            sampler(*sources, weights=weights)


def test_how_many_windows_are_checked_for_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = sampler(source(tmp_path, [30, 30])), []
    original = made.sequential

    def sequential(count: int, **how: Any) -> Any:
        asked.append((count, how))
        return original(count, **how)

    monkeypatch.setattr(made, "sequential", sequential)
    check_segment_pairs(made, "next_sentence")
    assert asked == [(256, {"pairs": "next_sentence"})]


def test_defaults_of_sampling() -> None:
    def defaults(function: Any) -> dict[str, Any]:
        given = inspect.signature(function).parameters.values()
        return {each.name: each.default for each in given if each.default is not each.empty}

    assert defaults(WindowSampler.__init__) == {
        "weights": None, "documents": "separate", "order": "shuffled", "directions": "forward", "phrases": None,
        "spans": False, "overlap": 0.0,
    }  # fmt: skip
    assert defaults(WindowSampler.read) == {"pairs": "contiguous", "static_copies": None, "lanes": 1}
    assert defaults(WindowSampler.sequential) == {"pairs": "contiguous", "lanes": 1}
    assert defaults(ShardWriter.write) == {"line": 0, "ends_document": True, "marks": None}
