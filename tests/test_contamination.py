"""Evaluation texts are found in the training text and cut out, as for GPT-3."""

from __future__ import annotations

import gzip
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from test_prepare import content, texts_of
from unicloze.errors import UniclozeError, UsageError
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.text import pipeline, split
from unicloze.text.prepare import Prepared, open_or_prepare, prepare_data
from unicloze.text.split import NGrams, cut_out, evaluation_texts

QUESTION = "Which river, of all the rivers in the old north, did the three quiet millers cross before dawn?"


def prose(seed: int, words: int = 120) -> str:
    draw = random.Random(seed)
    return " ".join(f"w{draw.randrange(10**6)}" for _ in range(words))


def slow_finds(text: str, evaluation: list[str], n: int) -> list[list[str]]:
    """N-grams of a text that are in an evaluation text, word by word."""

    def grams(one: str) -> list[list[str]]:
        words = "".join(sign.lower() if sign.isalnum() or sign == "_" else " " for sign in one).split()
        return [words[at : at + n] for at in range(len(words) - n + 1)]

    known = [gram for one in evaluation for gram in grams(one)]
    return [gram for gram in grams(text) if gram in known]


def test_every_shared_ngram_is_found_and_nothing_else() -> None:
    draw = random.Random(0)
    for _ in range(200):
        n = draw.randint(1, 4)
        texts = [" ".join(draw.choices(["a", "B", "c-d", "E!", "f."], k=draw.randint(0, 9))) for _ in range(4)]
        ngrams, of_texts = NGrams.of(texts[1:], n)
        finds = ngrams.find(texts[0])
        expected = slow_finds(texts[0], texts[1:], n)
        words = {number: word for word, number in ngrams.words.items()}
        assert [[words[w] for w in ngrams.rows[gram].tolist()] for gram, _, _ in finds.tolist()] == expected
        for gram, first, end in finds.tolist():
            assert slow_finds(texts[0][first:end], texts[1:], n), "the characters hold the words"
            assert any(gram in one for one in of_texts)


def test_ideographs_are_words() -> None:
    hindi, _ = NGrams.of(["कि का की के"], 2)  # which differ by vowel signs alone
    assert len(hindi.find("को कि का कि")) == 1
    ngrams, _ = NGrams.of(["\u4e00\u4e01\u4e02\u4e03"], 3)
    assert ngrams.find("x\u4e01\u4e02\u4e03y")[:, 1:].tolist() == [[1, 4]]
    text = "".join(chr(0x4E00 + number) for number in range(3000))
    assert cut_out(f"a\n{text}\nb", np.array([[1000, 1020]])) == [(0, 800), (1220, 3004)], "no word ends near"


def test_200_characters_on_either_side_are_cut_at_words() -> None:
    before, after = prose(1), prose(2)
    text = f"{before} {QUESTION} {after}"
    start = text.index(QUESTION)
    first, second = (text[a:b] for a, b in cut_out(text, np.array([[start, start + len(QUESTION)]])))
    assert before.startswith(first) and after.endswith(second)
    assert before[len(first)] == " " and after[-len(second) - 1] == " "
    for kept, whole in ((first, before), (second, after)):
        assert 199 <= len(whole) - len(kept) < 210


def test_short_pieces_and_documents_of_many_pieces_are_dropped() -> None:
    assert cut_out("x " * 250, np.array([[240, 250]])) == []
    text = " ".join(prose(seed, 60) for seed in range(12))
    places = np.arange(11)[:, None] * (len(text) // 12) + len(text) // 12 + np.array([0, 5])
    assert cut_out(text, places[:9]) and cut_out(text, places) == []


@pytest.mark.parametrize("name", ["e.jsonl", "e.json", "e.jsonl.gz", "e.jsonl.zst", "e.txt", "e.csv"])
def test_evaluation_files_of_many_kinds(tmp_path: Path, name: str) -> None:
    record = {"id": 3, "question": QUESTION, "answers": [{"text": "the old mill"}]}
    written = {"e.txt": f"{QUESTION}\nthe old mill\n", "e.csv": f'"{QUESTION}","the old mill"\n'}
    raw = written.get(name, json.dumps(record)).encode()
    packed = {".gz": gzip.compress, ".zst": partial(pyarrow.compress, codec="zstd", asbytes=True)}
    (tmp_path / name).write_bytes(packed.get(Path(name).suffix, bytes)(raw))
    ((file, texts),) = evaluation_texts([str(tmp_path / name)])
    assert file == tmp_path / name and texts == [QUESTION, "the old mill"]


def test_a_cell_may_have_lines_and_be_long(tmp_path: Path) -> None:
    cells = ["one two\nthree", "word " * 30_000]
    (tmp_path / "e.csv").write_text(",".join(f'"{cell}"' for cell in cells), encoding="utf-8")
    assert [texts for _, texts in evaluation_texts([str(tmp_path / "e.csv")])] == [cells]
    (tmp_path / "e.tsv").write_text('a\t"b\r\nc\td"\r\n', encoding="utf-8")
    ((_, texts),) = evaluation_texts([str(tmp_path / "e.tsv")])
    assert [text.strip() for text in texts if text.strip()] == ["a", '"b', "c", 'd"'], "a .tsv has no quoting"


@pytest.mark.parametrize(("content", "message"), [
    (None, "there is no file at"),
    ("{", r"bad\.jsonl cannot be read"),
    ("PK\x03\x04\x14\0", r"bad\.jsonl is not text in UTF-8: unpack"),
    ("x\n\udce9", r"bad\.jsonl:2 is not text in UTF-8: convert"),
    ('["one\u2028line"]\n\n["two"\n', r"bad\.jsonl cannot be read \(line 3: Expecting ',' delimiter\)"),
])  # fmt: skip
def test_evaluation_files_that_cannot_be_read(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "bad.jsonl").write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UniclozeError, match=message):
        list(evaluation_texts([str(tmp_path / "bad.jsonl")]))
    damaged = bytearray(gzip.compress(b'"one two three"' * 99))
    damaged[12:20] = b"\xff" * 8
    (tmp_path / "bad.jsonl.gz").write_bytes(damaged)
    with pytest.raises(UniclozeError, match=r"bad\.jsonl\.gz cannot be read"):
        list(evaluation_texts([str(tmp_path / "bad.jsonl.gz")]))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """40 documents in four files; two hold the question, one another text, 30 a common phrase."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(4):
        texts = [prose(100 * number + i) for i in range(10)]
        texts = [f"{text} {COMMON} {prose(7000 + number * 10 + i)}" if i < 8 else text for i, text in enumerate(texts)]
        if number in (1, 2):
            texts[9] = f"{prose(8000 + number)} {QUESTION.upper()} {prose(9000 + number)}"
        if number == 3:
            texts[9] = f"{prose(8000)} {ONCE} {prose(9000)}"
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    asked = (QUESTION, ONCE, COMMON, "Short one.")
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps({"q": text}) + "\n" for text in asked))
    (tmp_path / "clean.txt").write_text("a b c d e f g h i j k l m n\n")
    return folder


ONCE = "the lamps of the harbour burned all night for a boat that never came"
COMMON = "all rights are reserved and no part of this text may be copied without leave"


def prepare(corpus: Path, out: Path, *files: Path, jobs: int = 1, **options: Any) -> Prepared:
    data = DataSettings(corpus=[str(corpus)], heldout_share=0.0, decontaminate=list(map(str, files)), **options)
    return prepare_data(data, TokenizerSettings(vocab_size=300), out, progress=False, jobs=jobs)


@pytest.mark.whole
def test_training_documents_are_cut_and_files_reported(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "PORTION", 1)
    plain = prepare(corpus, tmp_path / "plain")
    cut = prepare(corpus, tmp_path / "cut", tmp_path / "eval.jsonl", tmp_path / "clean.txt")
    said = capsys.readouterr().err
    assert "eval.jsonl: 3 of 4 texts share 13 words with the training text (1 only common phrases" in said
    assert "clean.txt: 0 of 1 texts" in said and "cut out of 3 training documents; 0 more" in said
    report = cut.lineage["decontamination"]
    assert [file["found"] for file in report["files"]] == [3, 0] and report["files"][0]["too_short"] == 1
    before, after = ("\n".join(texts_of(prepared, prepared.train)).lower() for prepared in (plain, cut))
    assert before.count("millers cross before") == 2 and "millers cross before" not in after
    assert before.count(ONCE) == 1 and ONCE not in after
    assert after.count("no part of this text") == 32, "common phrases stay"
    assert cut.train[0].num_documents == plain.train[0].num_documents + 3, "both pieces are documents"
    assert cut.fingerprint != plain.fingerprint
    prepare(corpus, tmp_path / "jobs", tmp_path / "eval.jsonl", tmp_path / "clean.txt", jobs=2)
    assert content(tmp_path / "jobs") == content(tmp_path / "cut")


def test_other_evaluation_files_are_another_preparation(corpus: Path, tmp_path: Path) -> None:
    first = prepare(corpus, tmp_path / "out", tmp_path / "eval.jsonl")
    assert prepare(corpus, tmp_path / "out", tmp_path / "eval.jsonl").fingerprint == first.fingerprint
    with pytest.raises(UniclozeError, match=r"decontaminate\.files is"):
        prepare(corpus, tmp_path / "out", tmp_path / "clean.txt")
    fewer = prepare(corpus, tmp_path / "fewer", tmp_path / "eval.jsonl", decontaminate_ngram=20)
    assert fewer.lineage["decontamination"]["files"][0]["found"] == 0
    data = DataSettings(corpus=[str(corpus)], prepared=str(tmp_path / "out"))
    assert open_or_prepare(data, TokenizerSettings(), tmp_path / "x").fingerprint == first.fingerprint


def test_token_shards_cannot_be_searched(corpus: Path, tmp_path: Path) -> None:
    first = prepare(corpus, tmp_path / "first")
    data = DataSettings(corpus=[str(first.folder / "train")], decontaminate=[str(tmp_path / "eval.jsonl")])
    with pytest.raises(UsageError, match=r"data\.decontaminate searches texts, but .* holds token shards"):
        prepare_data(data, TokenizerSettings(path=str(first.folder)), tmp_path / "out", progress=False)


def test_a_phrase_is_common_in_more_than_ten_documents(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert split.COMMON == 10

    monkeypatch.setattr("unicloze.text.split.COMMON", 32)
    cut = prepare(corpus, tmp_path / "out", tmp_path / "eval.jsonl")
    assert "no part of this text" not in "\n".join(texts_of(cut, cut.train))
