from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoding_toys import sentencepiece
from unicloze.errors import UniclozeError, UsageError
from unicloze.pretraining.data import tokens_per_byte
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.text import documents, pipeline, prepare, python_docs
from unicloze.text.documents import Document, read_documents
from unicloze.text.lineage import is_corpus
from unicloze.text.prepare import Prepared, open_or_prepare, prepare_data
from unicloze.text.sampler import WindowSampler
from unicloze.text.shards import TokenSource
from unicloze.text.tokenizers import Tokenizer

TOKENIZER = TokenizerSettings(vocab_size=200)
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu"]


def sentence(i: int, length: int = 30) -> str:
    generator = random.Random(i)
    return " ".join(generator.choice(WORDS) for _ in range(length)) + f" {i}."


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "corpus")


def write_documents(folder: Path) -> Path:
    """200 documents in two files, three of them duplicates up to case and white space."""
    folder.mkdir()
    repeats = [sentence(3).upper(), f"  {sentence(4)}\n", sentence(5).replace(" ", "  ")]
    texts = [sentence(i) for i in range(197)] + repeats
    write_texts(folder / "a.jsonl", texts[:100])
    write_texts(folder / "b.jsonl", [*texts[100:], ""])
    return folder


def run(
    corpus: Path | str, out: Path, tokenizer: TokenizerSettings = TOKENIZER, jobs: int = 1, **options: Any
) -> Prepared:
    data = DataSettings(corpus=[str(corpus)], **{"heldout_share": 0.1, **options})
    return prepare_data(data, tokenizer, out, progress=False, jobs=jobs)


def write_texts(path: Path, texts: Iterable[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_names_of_special_tokens_in_texts_stay_text(tmp_path: Path) -> None:
    own = sentencepiece()
    own.save(tmp_path)
    texts = [f"the cat </s> {i} <mask> of<pad> a list" for i in range(40)]
    write_texts(tmp_path / "texts.jsonl", texts)
    prepared = run(tmp_path / "texts.jsonl", tmp_path / "out", TokenizerSettings(path=str(tmp_path / "tokenizer.json")))
    special = own.vocabulary.special.tolist()
    for source in (*prepared.train, *prepared.heldout):
        for shard in source.shards:
            assert not any(np.isin(tokens, special).any() for tokens in shard.documents())
    assert sorted(texts_of(prepared, prepared.train) + texts_of(prepared, prepared.heldout)) == sorted(texts)


def texts_of(prepared: Prepared, sources: tuple[TokenSource, ...]) -> list[str]:
    return [
        prepared.tokenizer.decode(tokens)
        for source in sources
        for shard in source.shards
        for tokens in shard.documents()
    ]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_what_is_prepared(corpus: Path, tmp_path: Path) -> None:
    prepared = run(corpus, tmp_path / "out")
    (entry,) = prepared.lineage["sources"]
    train, heldout = texts_of(prepared, prepared.train), texts_of(prepared, prepared.heldout)
    assert (entry["documents"], entry["duplicates"]) == (200, 3)
    assert len(train) == entry["train"]["documents"] and len(heldout) == entry["heldout"]["documents"]
    assert len(train) + len(heldout) == 197 == len({*train, *heldout})
    with_copies = run(corpus, tmp_path / "copies", deduplicate=False)
    copies, copies_heldout = (texts_of(with_copies, part) for part in (with_copies.train, with_copies.heldout))
    assert len(copies) + len(copies_heldout) == 200 and not {*copies} & {*copies_heldout}
    assert run(corpus, tmp_path / "all", heldout_share=0.0).heldout == ()
    assert 5 <= len(heldout) <= 40
    originals = [prepared.tokenizer.decode(prepared.tokenizer.encode(sentence(i))) for i in range(197)]
    assert sorted(train + heldout) == sorted(originals)
    assert prepared.train[0].num_tokens == entry["train"]["tokens"]
    assert entry["train"]["bytes"] + entry["heldout"]["bytes"] == sum(len(sentence(i)) for i in range(197))
    assert [file["path"] for file in entry["files"]] == [str(corpus / "a.jsonl"), str(corpus / "b.jsonl")]
    assert prepared.train[0].shards[0].files[1][0] == str(corpus / "b.jsonl")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert sorted(path.name for path in (tmp_path / "out" / "train").iterdir()) == [
        "corpus.ds", "corpus.ds.bytes", "corpus.ds.index", "corpus.ds.json", "corpus.ds.lines", "corpus.ds.metadata",
    ]  # fmt: skip
    text = (tmp_path / "out" / "lineage.json").read_text(encoding="utf-8")
    assert text == json.dumps(lineage := json.loads(text), indent=1) + "\n"
    assert list(lineage) == ["schema", "fingerprint", "settings", "tokenizer", "sources", "digests", "seal"]
    tokenizer = prepared.tokenizer
    assert lineage["tokenizer"] == {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocabulary.size}
    assert " ".join(entry) == "name corpus files documents empty replaced nul duplicates train heldout"
    assert (entry["name"], entry["empty"], entry["replaced"], entry["nul"]) == ("corpus", 1, 0, 0)


def test_the_tokenizer_is_trained_on_train_documents_only(tmp_path: Path) -> None:
    corpus = write_texts(tmp_path / "a.jsonl", [f"{sentence(i)} word{i}x word{i}x" for i in range(40)])
    prepared = run(corpus, tmp_path / "out", TokenizerSettings(vocab_size=4000))
    heldout = texts_of(prepared, prepared.heldout)
    assert heldout
    vocabulary = set(prepared.tokenizer.tokens(range(len(prepared.tokenizer))))
    for i in range(40):
        is_heldout = any(f" word{i}x" in text.replace(" ##", "") for text in heldout)
        assert (f"word{i}x" in vocabulary) != is_heldout


def test_a_tokenizer_is_trained_on_an_even_part_of_a_large_corpus(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, seen = Tokenizer.train, []

    def watched(texts: Any, settings: TokenizerSettings) -> Tokenizer:
        seen.extend(texts)
        return train(texts, settings)

    monkeypatch.setattr(Tokenizer, "train", watched)
    monkeypatch.setattr(pipeline, "_TRAINING_BYTES", sum(len(sentence(i)) for i in range(197)) / 4)
    run(corpus, tmp_path / "out", heldout_share=0.0)
    assert seen == [sentence(i) for i in range(3, 197, 4)]


def test_a_corpus_is_read_again_only_if_it_was_touched_or_moved(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(corpus, tmp_path / "out")
    monkeypatch.setattr(prepare.lineage, "file_hash", lambda file: pytest.fail("read again"))
    assert run(corpus, tmp_path / "out").fingerprint == first.fingerprint
    monkeypatch.undo()
    os.utime(corpus / "a.jsonl", ns=(1, 1))
    assert run(corpus, tmp_path / "out").fingerprint == first.fingerprint
    corpus.rename(tmp_path / "moved")
    os.utime(tmp_path / "moved" / "a.jsonl", ns=(-1, -(10**9)))
    assert run(tmp_path / "moved", tmp_path / "out").fingerprint == first.fingerprint
    assert run(tmp_path / "moved", tmp_path / "old").fingerprint == first.fingerprint, "a file from before 1970"


def test_a_changed_corpus_is_refused_with_both_fingerprints(corpus: Path, tmp_path: Path) -> None:
    old = run(corpus, tmp_path / "out").fingerprint
    (corpus / "a.jsonl").write_text((corpus / "a.jsonl").read_text().replace("alpha", "omega"))
    new = run(corpus, tmp_path / "new").fingerprint
    with pytest.raises(UniclozeError) as caught:
        run(corpus, tmp_path / "out")
    message = str(caught.value)
    assert old[:16] in message and new[:16] in message and old != new
    assert f"{corpus / 'a.jsonl'} has changed" in message and "--out" in message
    assert Prepared.load(tmp_path / "out").fingerprint == old


def test_new_and_missing_files_are_named(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "out")
    (corpus / "b.jsonl").rename(corpus / "c.jsonl")
    assert run(corpus, tmp_path / "out").train, "a renamed file has the same content"
    (corpus / "d.jsonl").write_text('{"text": "x"}')
    with pytest.raises(UniclozeError, match=r"d\.jsonl is new"):
        run(corpus, tmp_path / "out")
    (corpus / "d.jsonl").unlink()
    (corpus / "c.jsonl").unlink()
    with pytest.raises(UniclozeError, match=r"b\.jsonl is gone"):
        run(corpus, tmp_path / "out")


@pytest.mark.parametrize(("tokenizer", "options", "change"), [
    (TokenizerSettings(vocab_size=201), {}, r"tokenizer\.vocab_size is 201 instead of 200"),
    (TOKENIZER, {"heldout_share": 0.2}, r"data\.heldout_share is 0\.2 instead of 0\.1"),
    (TOKENIZER, {"deduplicate": False}, r"data\.deduplicate is False instead of True"),
    (TOKENIZER, {}, "code is 99 instead of"),
])  # fmt: skip
def test_changed_settings_are_refused(
    corpus: Path,
    tmp_path: Path,
    tokenizer: TokenizerSettings,
    options: dict[str, Any],
    change: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(corpus, tmp_path / "out")
    assert run(corpus, tmp_path / "out", window=64, segments=1, weights=[3.0]).train, "those of windows do not matter"
    monkeypatch.setattr(prepare.lineage, "CODE", 99 if "code" in change else prepare.lineage.CODE)
    with pytest.raises(UniclozeError, match=change):
        run(corpus, tmp_path / "out", tokenizer, **options)


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_windows_are_named_by_the_line_of_their_document(tmp_path: Path, kind: str) -> None:
    """Duplicates and held-out documents have no training windows, but their lines are counted."""
    texts = [sentence(i) for i in (0, 1, 1, 2, 3, 0, 4, 5, 6, 7)]
    if kind == "txt":
        texts = [f"{text}\nsecond line" for text in texts]
        (tmp_path / "a.txt").write_text("\n\n".join(texts))
    else:
        write_texts(tmp_path / "a.jsonl", texts)
    prepared = run(tmp_path / f"a.{kind}", tmp_path / "out", heldout_share=0.3)
    found = {}
    for side in (prepared.train, prepared.heldout):
        sampler = WindowSampler(side, window=256, segments=1, vocabulary=prepared.tokenizer.vocabulary, seed=0)
        windows = sampler.sequential(100)
        for row in range(len(windows)):
            name = sampler.name(int(windows.source[row]), int(windows.index[row]))
            assert str(name) == f"{tmp_path / 'a'}.{kind}, line {name.line}, token 0, near byte 0"
            found[name.line] = windows.token_ids[row, 1 : windows.lengths[row] - 1].tolist()
    lines = [3 * number + 1 if kind == "txt" else number + 1 for number in (0, 1, 3, 4, 6, 7, 8, 9)]
    distinct = prepared.tokenizer.encode_batch(list(dict.fromkeys(texts)))
    assert found == {line: ids.tolist() for line, ids in zip(lines, distinct, strict=True)}
    assert len(prepared.heldout) == 1


def test_a_loaded_tokenizer(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "first")
    path = str(tmp_path / "first" / "tokenizer.json")
    prepared = run(corpus, tmp_path / "second", TokenizerSettings(path=path))
    assert content(tmp_path / "first" / "train") == content(tmp_path / "second" / "train")
    assert prepared.tokenizer.fingerprint == Tokenizer.load(path).fingerprint
    loaded = r"loaded \(--tokenizer.path or --init\)"
    for folder, now, change in (
        ("first", TokenizerSettings(path=path), rf"\(the tokenizer is {loaded} instead of trained;"),
        ("second", TOKENIZER, rf"\(the tokenizer is trained instead of {loaded};"),
    ):
        with pytest.raises(UniclozeError, match=change):
            run(corpus, tmp_path / folder, now)


def test_prepared_needs_no_corpus(corpus: Path, tmp_path: Path) -> None:
    first = run(corpus, tmp_path / "out")
    shutil.rmtree(corpus)
    data = DataSettings(corpus=[str(corpus)], prepared=str(tmp_path / "out"))
    assert open_or_prepare(data, TOKENIZER, tmp_path / "other").fingerprint == first.fingerprint
    assert not (tmp_path / "other").exists()
    other = Tokenizer.train([sentence(0)], TokenizerSettings(vocab_size=150))
    other.save(tmp_path)
    with pytest.raises(UniclozeError, match=rf"{other.fingerprint[:16]}: leave out --tokenizer\.path"):
        open_or_prepare(data, TokenizerSettings(path=str(tmp_path / "tokenizer.json")), tmp_path / "other")


def test_bits_per_byte_are_undefined_where_words_are_unknown(tmp_path: Path) -> None:
    """They are not predicted, so that their bytes would be cheap."""
    plain = [f"{sentence(number)} {number}" for number in range(60)]
    for rare in (False, True):
        texts = [f"{text} {chr(0x4E00 + number)}" if rare else text for number, text in enumerate(plain)]
        found = tokens_per_byte(run(write_texts(tmp_path / f"{rare}.jsonl", texts), tmp_path / f"out {rare}"))
        assert (found is None) == rare


def test_nothing_is_prepared_within_its_corpus(corpus: Path) -> None:
    """Where the next start would take it for text."""
    with pytest.raises(
        UsageError, match=r"is in data\.corpus .*, whose files are read again .*: give an --out elsewhere"
    ):
        run(corpus, corpus / "runs" / "x")
    assert not (corpus / "runs").exists()


def test_several_sources(corpus: Path, tmp_path: Path) -> None:
    data = DataSettings(corpus=[str(corpus / "a.jsonl"), str(corpus / "b.jsonl"), str(corpus / "a.jsonl")])
    with pytest.warns(UserWarning, match=r"a\.jsonl has no training text: earlier sources hold the same documents"):
        with_repeats = prepare_data(data, TOKENIZER, tmp_path / "out", progress=False)
    assert [source.name for source in with_repeats.train] == ["a", "b", "a-2"]
    assert with_repeats.train[2].num_documents == 0, "every document was in the first source"
    assert with_repeats.lineage["sources"][2]["duplicates"] == 100


@pytest.mark.parametrize(("corpus", "names"), [
    (["text-2.txt", "en/*.txt", "de/*.txt"], ["text-2", "text", "text-3"]),
    (["wiki.1.jsonl", "wiki-2.jsonl", "wiki.2.jsonl"], ["wiki", "wiki-2", "wiki-3"]),
    (["Wiki.txt", "wiki.txt", "WIKI.jsonl"], ["Wiki", "wiki-1", "WIKI-2"]),
    (["cafe.txt", "cafe\u0301.txt", "\u212b.txt", "\u00c5.txt"], ["cafe", "cafe-1", "\u212b", "\u00c5-3"]),
    (["a.1", "a-1", "A-1", "a.2"], ["a", "a-1", "A-1-2", "a-3"]),
    (
        ["a/B.c.txt", "x/b.txt", "-é_1-.json", "...", "b", "~", "b-2.txt"],
        ["B", "b-1", "é_1", "text", "b-4", "text-5", "b-2"],
    ),
])  # fmt: skip
def test_every_source_has_a_name_of_its_own(corpus: list[str], names: list[str]) -> None:
    assert pipeline._source_names(corpus) == names


def test_a_file_that_is_read_in_another_way_is_another_corpus(tmp_path: Path) -> None:
    lines = write_texts(tmp_path / "a.txt", [sentence(i) for i in range(20)]).read_text()
    as_text = run(tmp_path / "a.txt", tmp_path / "out")
    (tmp_path / "a.txt").rename(tmp_path / "a.jsonl")
    with pytest.raises(UniclozeError, match=r"a\.jsonl is new; .*a\.txt is gone"):
        run(tmp_path / "a.jsonl", tmp_path / "out")
    assert not is_corpus(as_text.lineage, [str(tmp_path / "a.jsonl")])
    (tmp_path / "a.jsonl").rename(tmp_path / "b.txt")
    assert is_corpus(as_text.lineage, [str(tmp_path / "b.txt")])
    (tmp_path / "b.txt").write_text(lines.replace("alpha", "omega"))
    assert not is_corpus(as_text.lineage, [str(tmp_path / "b.txt")]), "equal length, different text"


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_long_documents_are_tokenised_in_pieces_but_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.setattr(documents, "PIECE", 100)
    monkeypatch.setattr(pipeline, "_BATCH", 300)
    texts = ["\n".join(sentence(i + 100 * j) + " \n " for i in range(20)) for j in range(4)]
    write_texts(tmp_path / "a.jsonl", texts)
    tokenizer = TokenizerSettings(kind=kind, vocab_size=300)
    prepared = run(tmp_path / "a.jsonl", tmp_path / "out", tokenizer, heldout_share=0)
    (shard,) = prepared.train[0].shards
    expected = prepared.tokenizer.encode_batch(texts)
    assert [tokens.tolist() for tokens in shard.documents()] == [ids.tolist() for ids in expected]


def test_repaired_text_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n\n".join(sentence(i).encode() + b" \xff\0" for i in range(20)))
    run(path, tmp_path / "out")
    assert capsys.readouterr().err.count("20 invalid UTF-8 sequences") == 1
    entry = Prepared.load(tmp_path / "out").lineage["sources"][0]
    assert (entry["replaced"], entry["nul"]) == (20, 20)


def test_empty_corpora_and_bad_settings(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" \n\n")
    with pytest.raises(UniclozeError, match=r"a\.txt holds no text"):
        run(tmp_path / "a.txt", tmp_path / "out")
    with pytest.raises(UniclozeError, match="There is no text file at"):
        run(tmp_path / "missing", tmp_path / "out")
    with pytest.raises(UniclozeError, match="~nobody-here/texts names the home of an unknown user: correct the path"):
        run(Path("~nobody-here/texts"), tmp_path / "out")
    with pytest.raises(UsageError, match=r"data\.heldout_share is 1\.5"):
        run(tmp_path / "a.txt", tmp_path / "out", heldout_share=1.5)
    with pytest.raises(UsageError, match=r"data\.corpus is empty"):
        prepare_data(DataSettings(corpus=[]), TOKENIZER, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_datatroves_folder_is_read_where_it_lies(tmp_path: Path) -> None:
    folder = tmp_path / "datatrove"
    folder.mkdir()
    Tokenizer.train([sentence(i) for i in range(50)], TOKENIZER).save(folder)
    for shard in range(2):
        ends = [10 * (i + 1) for i in range(30)]
        tokens = np.random.default_rng(shard).integers(7, 50, ends[-1])
        (folder / f"{shard:05}_shuffled.ds").write_bytes(tokens.astype("<u2").tobytes())
        (folder / f"{shard:05}_shuffled.ds.index").write_bytes(struct.pack("<30Q", *ends))
        (folder / f"{shard:05}_shuffled.ds.metadata").write_text("toy|2\n300\n300 T")
    with pytest.raises(UsageError, match=r"datatrove holds token shards: set --tokenizer\.path"):
        run(folder, tmp_path / "out")
    prepared = run(folder, tmp_path / "out", TokenizerSettings(path=str(folder)))
    (train,), (heldout,) = prepared.train, prepared.heldout
    assert train.num_documents + heldout.num_documents == 60 and heldout.num_documents >= 2
    assert train.num_tokens + heldout.num_tokens == 600
    assert train.shards[0].path.parent == folder
    assert {*train.shards[0].chosen.values} | {*heldout.shards[0].chosen.values} == {*range(30)}
    assert run(folder, tmp_path / "out", TokenizerSettings(path=str(folder))).fingerprint == prepared.fingerprint
    (folder / "00000_shuffled.ds").write_bytes(np.full(300, 5000, dtype="<u2").tobytes())
    with pytest.raises(UniclozeError, match=r"00000_shuffled\.ds has changed"):
        run(folder, tmp_path / "out", TokenizerSettings(path=str(folder)))
    with pytest.raises(UniclozeError, match="holds token id 5000, but the tokenizer has only"):
        run(folder, tmp_path / "other", TokenizerSettings(path=str(folder)))


def test_python_docs_are_kept_and_checked_by_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [Document(text=sentence(i), path=f"module{i}", line=1) for i in range(50)]
    monkeypatch.setattr(python_docs, "python_docs", lambda: iter(documents))
    prepared = run("python-docs", tmp_path / "out")
    kept = tmp_path / "out" / python_docs.file_name()
    assert [document.text for document in read_documents(kept)] == [document.text for document in documents]
    assert prepared.train[0].shards[0].files == (("python-docs", 0),)
    assert run("python-docs", tmp_path / "out").fingerprint == prepared.fingerprint
    monkeypatch.setattr(python_docs, "file_name", lambda: "python-docs-9.9.jsonl.gz")
    with pytest.raises(UniclozeError, match=r"python-docs-9\.9\.jsonl\.gz is new"):
        run("python-docs", tmp_path / "out")


def test_the_bars_of_a_preparation(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []
    original, counted = pipeline.Progress, {}

    class Bar(original):  # type: ignore[misc, valid-type]
        def __init__(self, what: str, total: int | None, unit: str, **named: Any) -> None:
            made.append((what, total, unit, named))
            super().__init__(what, total, unit, show=False)

        def update(self, count: int = 1) -> None:
            counted[self.what] = counted.get(self.what, 0) + count

    monkeypatch.setattr(pipeline, "Progress", Bar)
    data = DataSettings(corpus=[str(corpus)], deduplicate=False)
    prepare_data(data, TOKENIZER, tmp_path / "out", progress=True)
    texts = [text for name in ("a", "b") for text in (corpus / f"{name}.jsonl").read_text().splitlines()]
    size = sum(len(json.loads(text)["text"]) for text in texts)
    training = "training the tokenizer", size  # in two passes
    labels = ("reading", None), training, training, ("tokenising", size)
    assert made == [(what, total, "bytes", {"show": True}) for what, total in labels]
    assert counted == {"reading": size, "training the tokenizer": 2 * size, "tokenising": size}


@pytest.mark.parametrize("names, said", [
    (["a.bin"], "1 file of another kind is ignored: 1 .bin"),
    (["a.bin", "b.bin", "c.pdf"], "3 files of other kinds are ignored: 2 .bin, 1 .pdf"),
])  # fmt: skip
def test_ignored_files_are_counted(corpus: Path, tmp_path: Path, names: list[str], said: str) -> None:
    for name in names:
        (corpus / name).write_text("x")
    with pytest.warns(UserWarning) as found:
        prepared = run(corpus, tmp_path / "out")
    assert [str(warning.message) for warning in found] == [f"{corpus}: {said}"]
    assert sum(prepared.lineage["sources"][0]["left_out"].values()) == len(names)
    assert run(corpus, tmp_path / "out").fingerprint == prepared.fingerprint


def test_batches_are_cut_at_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_BATCH", 10)

    def document(text: str) -> Document:
        return Document(path="a", line=1, text=text)

    texts = ["12345", "1234", "1", "1234567890", "12"]
    found = list(pipeline.batches((document(text), text == "1") for text in texts))
    assert [[piece.text for piece in batch] for batch in found] == [["12345", "1234", "1"], ["1234567890"], ["12"]]
    assert [piece.is_heldout for piece in found[0]] == [False, False, True]
    assert all(piece.is_last for batch in found for piece in batch)
    assert list(pipeline.batches([])) == []
    assert pipeline._LONG_WORD.sub(r"\1 ", "x" * 600 + " y") == f"{'x' * 256} {'x' * 256} {'x' * 88} y"
    assert pipeline._LONG_WORD.sub(r"\1 ", "x" * 256 + " y") == "x" * 256 + " y"
    pieces = [pipeline._LONG_WORD.sub(r"\1 ", piece) for piece in documents.pieces_of("ACGT" * 50_000)]
    assert "".join(pieces).replace(" ", "") == "ACGT" * 50_000
    assert max(len(word) for piece in pieces for word in piece.split()) == 256
