"""What is held out depends on the documents' contents, over all sources of a corpus of any kind."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.text import documents
from unicloze.text.prepare import Prepared, prepare_data
from unicloze.text.split import CUT, DROP, HELDOUT, TRAIN, HeldoutSplit, _words, text_hash
from unicloze.text.tokenizers import Tokenizer

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu"]
NEVER = 1e-12
"""A share below the hash of every document here, so that one has to be forced out."""


def sentence(number: int, length: int = 12) -> str:
    draw = random.Random(number)
    return " ".join(draw.choice(WORDS) for _ in range(length)) + f" {number}"


def hash_of(text: str) -> int:
    """An independent implementation of the definition."""
    normal = " ".join(text.lower().split()) + " "
    return int.from_bytes(hashlib.blake2b(normal.encode(), digest_size=8, salt=bytes(8)).digest(), "little")


BY_HASH = sorted(map(sentence, range(400)), key=hash_of)
TOKENIZER = Tokenizer.train(BY_HASH, TokenizerSettings(vocab_size=200))


@pytest.fixture
def given(tmp_path: Path) -> TokenizerSettings:
    (tmp_path / "tokenizer").mkdir()
    TOKENIZER.save(tmp_path / "tokenizer")
    return TokenizerSettings(path=str(tmp_path / "tokenizer"))


def write_texts(path: Path, texts: Sequence[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def write_tokens(folder: Path, *shards: Sequence[str], width: str = "<u2", end: Sequence[int] = ()) -> str:
    """A folder in datatrove's format."""
    folder.mkdir()
    for number, texts in enumerate(shards):
        documents = [[*ids.tolist(), *(end if len(ids) else [])] for ids in TOKENIZER.encode_batch(list(texts))]
        ends = list(itertools.accumulate(map(len, documents)))
        flat = np.array(list(itertools.chain(*documents)), dtype=width)
        (folder / f"{number}.ds").write_bytes(flat.tobytes())
        (folder / f"{number}.ds.index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    return str(folder)


def prepared(corpus: Sequence[str], out: Path, tokenizer: TokenizerSettings, **options: Any) -> Prepared:
    return prepare_data(DataSettings(corpus=list(corpus), **options), tokenizer, out, progress=False)


def texts_of(data: Prepared, part: str) -> list[list[str]]:
    """The documents of each source, without the tokens that end them."""
    sources = {source.name: source for source in getattr(data, part)}
    return [
        [
            data.tokenizer.decode(tokens, skip_special=True)
            for shard in (sources[entry["name"]].shards if entry["name"] in sources else ())
            for tokens in shard.documents()
        ]
        for entry in data.lineage["sources"]
    ]


def sides(data: Prepared) -> tuple[list[list[str]], list[list[str]]]:
    train, heldout = texts_of(data, "train"), texts_of(data, "heldout")
    assert not set(itertools.chain(*train)) & set(itertools.chain(*heldout))
    return train, heldout


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_exactly_the_documents_whose_hash_is_below_the_share_are_held_out(
    tmp_path: Path, given: TokenizerSettings, share: float
) -> None:
    below = sum(hash_of(text) < share * 2**64 for text in BY_HASH)
    assert 0 < below < 400
    corpus = [write_texts(tmp_path / "a.jsonl", BY_HASH)]
    train, heldout = sides(prepared(corpus, tmp_path / "out", given, heldout_share=share))
    assert (heldout, train) == ([BY_HASH[:below]], [BY_HASH[below:]])


@pytest.mark.parametrize("deduplicate", [True, False])
@pytest.mark.parametrize("tokens", [False, True])
def test_copies_of_the_document_that_is_forced_out_are_held_out_too(
    tmp_path: Path, given: TokenizerSettings, deduplicate: bool, tokens: bool
) -> None:
    texts = [*BY_HASH[:3]] * 4
    corpus = write_tokens(tmp_path / "a", texts[:5], texts[5:]) if tokens else write_texts(tmp_path / "a.jsonl", texts)
    data = prepared([corpus], tmp_path / "out", given, heldout_share=NEVER, deduplicate=deduplicate)
    ((*train,),), ((*heldout,),) = sides(data)
    copies = 1 if deduplicate else 4
    assert len(heldout) == copies and len(set(heldout)) == 1 and len(train) == 2 * copies
    assert tokens or heldout[0] == BY_HASH[0]


def test_copies_of_a_document_that_is_cut_are_cut_at_the_same_word(tmp_path: Path, given: TokenizerSettings) -> None:
    text = " ".join(map(sentence, range(500)))
    copies = [text, text.upper(), text.replace(" ", " \n  "), f"\n{text}  "]
    corpus = [write_texts(tmp_path / f"{number}.jsonl", [copy]) for number, copy in enumerate(copies)]
    train, heldout = sides(prepared(corpus, tmp_path / "out", given, heldout_share=0.1, deduplicate=False))
    assert len(set(itertools.chain(*train))) == len(set(itertools.chain(*heldout))) == 1
    assert f"{train[0][0]} {heldout[0][0]}" == text
    assert 0.3 < len(heldout[0][0]) / len(text) < 0.5, "a tenth of all sources, taken from each copy"


@pytest.mark.whole
def test_one_huge_document_is_cut_and_not_held_out_as_a_whole(tmp_path: Path, given: TokenizerSettings) -> None:
    huge, others = sentence(0, 20_000), [text for text in BY_HASH if hash_of(text) > hash_of(sentence(0, 20_000))][:5]
    data = prepared([write_texts(tmp_path / "a.jsonl", [huge, *others])], tmp_path / "out", given, heldout_share=NEVER)
    ((*train,),), ((*heldout,),) = sides(data)
    assert f"{train[0]} {heldout[0]}" == huge and train[1:] == others
    assert len(heldout[0]) == pytest.approx(2048, abs=20)


def test_where_every_document_would_be_held_out_each_source_keeps_one_to_train_on(
    tmp_path: Path, given: TokenizerSettings
) -> None:
    share = (hash_of(BY_HASH[9]) + 1) / 2**64
    first, second, third = BY_HASH[:6], BY_HASH[6:7], BY_HASH[7:10]
    corpus = [write_texts(tmp_path / f"{number}.jsonl", texts) for number, texts in enumerate([first, second, third])]
    train, heldout = sides(prepared(corpus, tmp_path / "out", given, heldout_share=share))
    assert train == [first[-1:], second, third[-1:]]
    assert heldout == [first[:-1], [], third[:-1]]


@pytest.mark.parametrize("alone", [0, 1, 2])
def test_a_source_of_one_document_is_trained_on(tmp_path: Path, given: TokenizerSettings, alone: int) -> None:
    texts = BY_HASH[:4]
    others = [text for text in texts if text != texts[alone]]
    corpus = [write_texts(tmp_path / "many.jsonl", others), write_texts(tmp_path / "one.jsonl", [texts[alone]])]
    train, heldout = sides(prepared(corpus, tmp_path / "out", given, heldout_share=NEVER))
    assert train == [others[1:], [texts[alone]]] and heldout == [others[:1], []]


def test_token_shards_are_one_corpus(tmp_path: Path, given: TokenizerSettings) -> None:
    """Duplicates are dropped across sources, shards and widths of tokens, empty documents too, and one document is forced out
    of all, not one of each shard."""
    narrow = write_tokens(tmp_path / "a", BY_HASH[:20], BY_HASH[10:30])
    wide = write_tokens(tmp_path / "b", ["", *BY_HASH[25:40], ""], width="<u4")
    data = prepared([narrow, wide], tmp_path / "out", given, heldout_share=NEVER)
    train, heldout = sides(data)
    assert sorted(itertools.chain(*train, *heldout)) == sorted(BY_HASH[:40])
    assert sum(map(len, heldout)) == 1
    counts = [[entry[name] for name in ("documents", "duplicates", "empty")] for entry in data.lineage["sources"]]
    assert counts == [[40, 10, 0], [15, 5, 2]]


@pytest.mark.parametrize("deduplicate", [True, False])
def test_texts_and_token_shards_are_one_corpus(tmp_path: Path, given: TokenizerSettings, deduplicate: bool) -> None:
    texts = [text.upper() if number % 2 else f"  {text}\n" for number, text in enumerate(BY_HASH[20:80])]
    eos = TOKENIZER.vocabulary.eos
    corpus = [write_texts(tmp_path / "a.jsonl", texts), write_tokens(tmp_path / "b", BY_HASH[:60], end=[eos])]
    data = prepared(corpus, tmp_path / "out", given, heldout_share=0.2, deduplicate=deduplicate)
    train, heldout = sides(data)
    assert all(map(len, [*train, *heldout]))
    assert set(itertools.chain(*train, *heldout)) == set(BY_HASH[:80])
    assert [entry["duplicates"] for entry in data.lineage["sources"]] == ([0, 40] if deduplicate else [0, 0])


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_a_text_is_recognised_in_its_tokens_with_any_tokenizer(tmp_path: Path, kind: Any, lowercase: bool) -> None:
    strange = "\u00c9t\u00e9 \u6f22\u5b57, \u201cna\u00efve\u201d!\n\n\U0001f600 it's"
    texts = [f"{sentence(number)} {strange} {number}" for number in range(60)]
    capitals = [text.upper() for text in texts]
    made = Tokenizer.train([*texts, *capitals], TokenizerSettings(kind=kind, vocab_size=600, lowercase=lowercase))
    made.save(tmp_path)
    corpus = write_texts(tmp_path / "a.jsonl", texts)
    settings = TokenizerSettings(path=str(tmp_path / "tokenizer.json"))
    first = prepared([corpus], tmp_path / "first", settings, heldout_share=0.2)
    shards = [f"{first.folder}/{part}/*.ds" for part in ("train", "heldout")]
    both = [write_texts(tmp_path / "b.jsonl", capitals), *shards]
    with pytest.warns(UserWarning, match="has no training text: earlier sources hold the same documents"):
        data = prepared(both, tmp_path / "second", settings, heldout_share=0.2)
    counts = [(entry["documents"], entry["duplicates"]) for entry in data.lineage["sources"]]
    assert counts[0] == (60, 0) and all(total == dropped > 0 for total, dropped in counts[1:])


def test_texts_the_tokenizer_cannot_spell_are_not_duplicates(tmp_path: Path, given: TokenizerSettings) -> None:
    unknown = write_texts(tmp_path / "a.jsonl", ["\u6f22" * length for length in range(1, 9)])
    corpus = [unknown, write_tokens(tmp_path / "b", BY_HASH[:5])]
    data = prepared(corpus, tmp_path / "out", given, heldout_share=0.0)
    assert [(entry["documents"], entry["duplicates"]) for entry in data.lineage["sources"]] == [(8, 0), (5, 0)]


def test_white_space_does_not_change_the_hash_of_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE", 8)
    draw = random.Random(0)
    for _ in range(200):
        words = draw.choices(["alpha", "\u6f22", "x" * 500, "e\u0301", "it's", "a,b"], k=40)
        spaced = "".join(word + draw.choice([" ", "\n\n", "\u3000", "\u2028", "\f", " \t"]) for word in words)
        assert text_hash(spaced)[0] == hash_of(" ".join(words)) == text_hash(f"  {spaced.upper()}")[0]


@pytest.mark.parametrize("seed", range(16))
def test_any_corpus_is_split_by_content(tmp_path: Path, given: TokenizerSettings, seed: int) -> None:
    draw = random.Random(seed)
    pool = BY_HASH[: draw.choice([3, 6, 30])]
    corpus, drawn = [], []
    for number in range(draw.randint(1, 4)):
        texts = draw.choices(pool, k=draw.choice([1, 2, 5, 20]))
        drawn.append(set(texts))
        if draw.random() < 0.5:
            corpus.append(write_tokens(tmp_path / f"{number}", texts))
        else:
            corpus.append(write_texts(tmp_path / f"{number}.jsonl", texts))
    share = draw.choice([NEVER, 0.01, 0.05, 0.5])
    data = prepared(corpus, tmp_path / "out", given, heldout_share=share, deduplicate=False)
    train, heldout = sides(data)
    assert all(train), "every source is trained on"
    if len(set().union(*drawn)) > len(drawn):
        assert any(heldout), "something is held out where a document can be spared"


def split_of(documents: Sequence[tuple[str, int, int, bool]], share: float) -> HeldoutSplit:
    split = HeldoutSplit(share, sources=len({source for source, *_ in documents}))
    for source, value, size, is_text in documents:
        split.add(source, np.array([value], dtype=np.uint64), np.array([size]), is_text=is_text)
    split.decide()
    return split


def side_of(split: HeldoutSplit, value: int) -> int:
    return int(split.sides(np.array([value], dtype=np.uint64))[0])


@pytest.mark.parametrize(("sizes", "share", "side", "cut"), [
    ((4 * 2048, 10), NEVER, HELDOUT, 0),
    ((4 * 2048 + 1, 10), NEVER, CUT, 2048),
    ((40_000, 60_000), 2**-5, CUT, 100_000 // 32),
    ((12_500, 87_500), 2**-5, HELDOUT, 0),
    ((100,), NEVER, CUT, 50),
    ((4097,), NEVER, CUT, 2048),
])  # fmt: skip
def test_a_document_is_cut_if_it_is_more_than_four_times_what_is_wanted_or_the_only_one(
    sizes: Sequence[int], share: float, side: int, cut: int
) -> None:
    split = split_of([("a", 2**60 + number, size, True) for number, size in enumerate(sizes)], share)
    assert (side_of(split, 2**60), split.cut_size) == (side, cut)


@pytest.mark.parametrize(("sizes", "cut"), [([100, 5000, 6000, 90_000], 2048), ([100, 4000, 3000], 2000)])
def test_of_documents_that_are_all_trained_on_one_that_is_long_enough_is_cut(sizes: list[int], cut: int) -> None:
    """Of sources of one document each that with the smallest hash that is twice as long as needed, otherwise the longest."""
    split = split_of([(str(number), 2**60 + number, size, True) for number, size in enumerate(sizes)], NEVER)
    found = [side_of(split, 2**60 + number) for number in range(len(sizes))]
    assert found == [TRAIN, CUT, *[TRAIN] * (len(sizes) - 2)] and split.cut_size == cut


def test_a_huge_document_whose_hash_is_below_the_share_is_held_out_whole() -> None:
    split = split_of([("a", 2**60, 10**9, True), ("a", 2**63, 100, True)], 0.25)
    assert (side_of(split, 2**60), side_of(split, 2**63), split.cut_size) == (HELDOUT, TRAIN, 0)


@pytest.mark.parametrize("text_first", [True, False])
def test_a_huge_document_to_force_out_is_cut_only_if_every_copy_is_text(text_first: bool) -> None:
    copies = [("text", 2**60, 10**6, text_first), ("tokens", 2**60, 10**6, not text_first)]
    others = [(source, 2**61 + number, 10**6, True) for number, source in enumerate(("text", "tokens"))]
    split = split_of([*copies, *others], NEVER)
    assert (side_of(split, 2**60), split.cut_size) == (HELDOUT, 0)
    split = split_of([copies[0], *others[:1]], NEVER)
    assert side_of(split, 2**60) == (CUT if text_first else HELDOUT)


def test_a_document_that_is_also_in_a_token_shard_is_not_cut() -> None:
    """Otherwise all its tokens would be trained on."""
    shared, other = 2**60, 2**61
    documents = [("text", shared, 10**6, True), ("tokens", shared, 10**6, False)]
    assert side_of(split_of(documents, NEVER), shared) == TRAIN
    split = split_of([*documents, ("other", other, 10**6, True)], NEVER)
    assert (side_of(split, shared), side_of(split, other), split.cut_size) == (TRAIN, CUT, 2048)


def test_a_small_document_is_forced_out_rather_than_a_huge_one_of_tokens() -> None:
    hashes = [number * 2**60 for number in range(1, 9)]
    split = split_of([("a", value, 10**9 if number < 3 else 100, False) for number, value in enumerate(hashes)], NEVER)
    assert [side_of(split, value) for value in hashes] == [*[TRAIN] * 3, HELDOUT, *[TRAIN] * 4]


def test_sides_are_those_of_each_document() -> None:
    draw = random.Random(3)
    values = [draw.getrandbits(64) for _ in range(1000)]
    split = split_of([("a", value, 10, True) for value in values] + [("b", 7, 10, True)], 0.3)
    expected = [side_of(split, value) for value in [0, 7, *values]]
    assert split.sides(np.array([0, 7, *values], dtype=np.uint64)).tolist() == expected
    assert expected[:2] == [DROP, TRAIN] and expected.count(HELDOUT) == sum(value < 0.3 * 2**64 for value in values)


def test_documents_added_together_are_split_like_documents_added_one_by_one() -> None:
    draw = np.random.default_rng(4)
    for _ in range(200):
        values = draw.integers(1, 40, size=60).astype(np.uint64) << np.uint64(57)
        sizes, is_text = draw.integers(1, 10**5, size=60), draw.random(4) < 0.5
        together, single = HeldoutSplit(NEVER, sources=2), HeldoutSplit(NEVER, sources=2)
        for number, part in enumerate(np.split(np.arange(60), np.sort(draw.integers(0, 60, size=3)))):
            source, text = "ab"[number % 2], bool(is_text[number])
            together.add(source, values[part], sizes[part], is_text=text)
            for place in part:
                single.add(source, values[[place]], sizes[[place]], is_text=text)
        together.decide()
        single.decide()
        assert together.sides(values).tolist() == single.sides(values).tolist()
        assert together.cut_size == single.cut_size


def test_words_are_those_of_split_for_all_white_space() -> None:
    spaces = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    assert len(spaces) == 29
    draw = random.Random(0)
    texts = ["", " ", "\x1f\x85", *("".join(draw.choices(["a", "bé", "語", *spaces], k=40)) for _ in range(50))]
    texts.append("".join(draw.choices(["a", "b", *filter(str.isascii, spaces)], k=400)))
    for text in [*texts, *(f"é{space}{space} b{space}" for space in spaces)]:
        assert _words(text) == " ".join(text.split()).encode()
