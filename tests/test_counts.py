"""The word-count baseline against counts by hand, and which words of a text are content words."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corpora import write_corpus
from decoding_toys import wordpiece
from toys import EOS, UNK, token_source, vocabulary
from unicloze.arrays import Float64s, Int64s
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.text import counts as counts_module
from unicloze.text.counts import (
    ABSENT,
    KEPT,
    Counts,
    Neighbours,
    content_words,
    frequent_tokens,
    letters_of,
    open_counts,
    stretches,
)
from unicloze.text.prepare import prepare_data
from unicloze.text.shards import TokenSource
from unicloze.text.tokenizers import Tokenizer

TRAIN = [[7, 8, 9, 7, 8, 8, UNK, 9, 7], [], [8, 9], [7], [9, 9, 7, 8, 10, 11, 8]]
HELDOUT = [[7, 8, 12, 9], [13, UNK, 7, 8]]
VOCABULARY = vocabulary(15)


def source(path: Path, documents: list[list[int]], chosen: list[int] | None = None) -> TokenSource:
    return token_source(path.parent, documents, name=path.stem, vocab_size=50, chosen=chosen)


def trigram_nats(counts: Counts, text: Int64s) -> Float64s:
    """Nats of each token of a text after [EOS]. *Shape:* (tokens,)"""
    before = np.concatenate([[ABSENT, counts.vocabulary.eos], text])
    nats: Float64s = -np.log(counts.following(before[:-2], before[1:-1], text))
    return nats


def pairs_of(documents: list[list[int]]) -> list[tuple[int, int]]:
    return [pair for text in documents for pair in pairwise([EOS, *text]) if pair[1] != UNK]


def discounts(counts: Counter[Any]) -> list[float]:
    n = [0, *(list(counts.values()).count(times) for times in (1, 2, 3, 4))]
    if min(n[1:]) > 0:
        share = n[1] / (n[1] + 2 * n[2])
        found = [times - (times + 1) * share * n[times + 1] / n[times] for times in (1, 2, 3)]
        if all(0 < each < times for times, each in enumerate(found, 1)):
            return [0.0, *found]
    return [0.0, *[(n[1] + 1) / (n[1] + 2 * n[2] + 3)] * 3]


class ByHand:
    """The model of `Counts` from dictionaries, one probability at a time."""

    def __init__(self, documents: list[list[int]]) -> None:
        texts = [[EOS, *text] for text in documents]
        threes = Counter(
            (u, v, w) for text in texts for u, v, w in zip(text, text[1:], text[2:], strict=False) if w != UNK
        )
        pairs = Counter((v, w) for text in texts for v, w in pairwise(text) if w != UNK)
        continued = Counter((v, w) for _, v, w in threes) + Counter(
            {two: n for two, n in pairs.items() if two[0] == EOS}
        )
        self.orders = {
            3: threes, 2: continued, 1: Counter((w,) for _, w in pairs),
            "pairs": pairs, "tokens": Counter((w,) for _, w in pairs.elements()),
        }  # fmt: skip

    def single(self, order: Any, token: int) -> float:
        counts = self.orders[order]
        off = discounts(counts)
        freed = sum(off[min(times, 3)] for times in counts.values())
        return (counts[(token,)] - off[min(counts[(token,)], 3)] + freed / len(VOCABULARY.ordinary)) / counts.total()

    def mixed(self, order: Any, context: tuple[int, ...], token: int, lower: float) -> float:
        counts = self.orders[order]
        off = discounts(counts)
        behind = {key: times for key, times in counts.items() if key[:-1] == context}
        if not behind:
            return lower
        own = behind.get((*context, token), 0)
        freed = sum(off[min(times, 3)] for times in behind.values())
        return (own - off[min(own, 3)] + freed * lower) / sum(behind.values())

    def after(self, left2: int, left1: int, token: int) -> float:
        if left1 == ABSENT:
            return self.single("tokens", token)
        if left2 == ABSENT:
            return self.mixed("pairs", (left1,), token, self.single(1, token))
        return self.mixed(3, (left2, left1), token, self.mixed(2, (left1,), token, self.single(1, token)))

    def blank(self, left2: int, left1: int, right1: int, right2: int) -> list[float]:
        scores = []
        for token in VOCABULARY.ordinary.tolist():
            score = self.after(left2, left1, token)
            if right1 != ABSENT:
                score *= self.after(left1, token, right1)
                if right2 != ABSENT:
                    score *= self.after(token, right1, right2)
            scores.append(score)
        return [score / sum(scores) for score in scores]


def drawn(seed: int) -> list[list[int]]:
    """Documents of skewed random tokens, in which every count of counts is there."""
    draw = np.random.default_rng(seed)
    ids = np.array([*VOCABULARY.ordinary.tolist(), UNK])
    return [ids[(len(ids) * draw.random(size) ** 2).astype(int)].tolist() for size in draw.integers(0, 30, 60)]


def test_without_text_every_token_is_as_likely(tmp_path: Path) -> None:
    assert Counts.of([source(tmp_path / "a.ds", [[], []])], VOCABULARY).unigram.sum() == pytest.approx(1)


@pytest.mark.parametrize("documents", [TRAIN, drawn(0), [[7]], [[7, 8]] * 50])
def test_probabilities_are_those_of_dictionaries_and_sum_to_one(tmp_path: Path, documents: list[list[int]]) -> None:
    counts, by_hand = Counts.of([source(tmp_path / "a.ds", documents)], VOCABULARY), ByHand(documents)
    ordinary = VOCABULARY.ordinary.astype(np.int64)
    each = [ABSENT, EOS, UNK, *ordinary.tolist()]
    for left2, left1 in product(each, each):
        expected = [by_hand.after(left2, left1, token) for token in ordinary.tolist()]
        assert sum(expected) == pytest.approx(1)
        contexts = (np.full(len(ordinary), token) for token in (left2, left1))
        assert counts.following(*contexts, ordinary) == pytest.approx(expected)
    draw = np.random.default_rng(1)
    around = [draw.choice(choice, 300) for choice in (each, each, [ABSENT, *ordinary], [ABSENT, *ordinary])]
    for number, found in enumerate(counts.blanks(Neighbours(*around))):
        assert found.sum() == pytest.approx(1)
        assert found[ordinary] == pytest.approx(by_hand.blank(*(int(column[number]) for column in around)))


def test_probabilities_of_a_text_counted_on_paper(tmp_path: Path) -> None:
    """7 8 7 9, twice: every discount is 1 / 3 in pairs and threes (none occurs once), so each can be worked out by hand."""
    counts = Counts.of([source(tmp_path / "a.ds", [[7, 8, 7, 9], [7, 8, 7, 9]])], VOCABULARY)
    assert counts.total == 8 and counts.unigram[8] == pytest.approx((2 - 1 / 7 + 3 * 1 / 7 / 8) / 8)
    # Distinct tokens before 7, 8 and 9: 2 (EOS and 8), 1 and 1, of 4; two of them are ones, so that D = 3 / 7.
    lowest = (1 - 3 / 7 + 3 * 3 / 7 / 8) / 4
    # Distinct tokens before (EOS 7): twice the document; (7 8), (8 7), (7 9): 1 each, of 4 pairs. D = 4 / 8.
    two = (1 - 1 / 2 + 2 * 1 / 2 * lowest) / 2
    # Each three occurs twice, D = 1 / (2 * 3 + 3), and (8 7) is followed by 9 alone.
    three = (2 - 1 / 9 + 1 / 9 * two) / 2
    assert counts.following(*np.array([[8], [7], [9]])) == pytest.approx([three])


def test_counts_of_a_large_text_are_kept_and_those_that_are_damaged_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, tokenizer = DataSettings(corpus=[str(write_corpus(tmp_path / "text"))]), TokenizerSettings(vocab_size=200)
    prepared = prepare_data(data, tokenizer, tmp_path / "data", progress=False)
    small = open_counts(prepared, prepared.train)
    assert not (prepared.folder / "index").exists()
    monkeypatch.setattr(counts_module, "SMALL", 1)
    first = open_counts(prepared, prepared.train)
    (file,) = (prepared.folder / "index").iterdir()
    kept = file.read_bytes()
    damages = kept[: len(kept) // 2], kept[:300] + bytes([kept[300] ^ 1]) + kept[301:], b""
    for content in damages:
        file.write_bytes(content)
        assert open_counts(prepared, prepared.train).total == first.total and file.read_bytes() == kept
    monkeypatch.setattr(Counts, "of", None)
    again = open_counts(prepared, prepared.train)
    for name in KEPT:
        assert np.array_equal(getattr(again, name), getattr(first, name)), name
        assert np.array_equal(getattr(small, name), getattr(first, name)), name
    with pytest.raises(TypeError):
        open_counts(prepared, prepared.train, most=1000)  # other counts are not mistaken for them


def test_all_documents_of_all_sources_are_counted_however_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [source(tmp_path / "a.ds", TRAIN), source(tmp_path / "b.ds", [[9], *TRAIN, [10, 10]], [0, 2, 6])]
    whole = Counts.of(sources, VOCABULARY)
    expected = np.bincount([w for _, w in pairs_of([*TRAIN, [9], [], [10, 10]])], minlength=15)
    assert whole.tokens.tolist() == expected.tolist()
    monkeypatch.setattr(counts_module, "STRETCH", 4)
    parts = list(stretches(sources, 1000))
    assert np.concatenate([tokens for tokens, _ in parts]).tolist() == [w for text in TRAIN for w in text] + [9, 10, 10]
    assert [len(tokens) for tokens, _ in parts] == [4, 4, 4, 4, 3, 3]
    assert np.flatnonzero(np.concatenate([begins for _, begins in parts])).tolist() == [0, 4, 8, 9, 11, 12, 16, 19, 20]
    short = [source(tmp_path / f"{number}.ds", [[7, 8, 9]]) for number in range(6)]
    assert sum(len(tokens) for tokens, _ in stretches(short, 12)) == 12, "not as many stretches as of long shards"
    some = list(stretches(sources, 12))
    assert [tokens.tolist() for tokens, _ in some] == [parts[number][0].tolist() for number in (0, 2, 4)]


def test_frequent_words_are_those_of_two_fifths_of_the_running_words(tmp_path: Path) -> None:
    # Every third id continues a word: 9 and 12 do. 7 is a whole word 4 times of 5, 8 only twice, 10 and 11 once.
    text = [[7, 7, 7, 7, 8, 8, 7, 9, 8, 9, 8, 12, 9, 10, 11, 13]]
    letters = np.ones(15, dtype=bool)
    letters[13] = False
    counts = Counts.of([source(tmp_path / "a.ds", text)], VOCABULARY)
    assert np.flatnonzero(frequent_tokens(counts, letters)).tolist() == [7, 8]  # 4 of 11 running words are not enough
    letters[[8, 10]] = False
    assert np.flatnonzero(frequent_tokens(counts, letters)).tolist() == [7]  # 4 of 6 are


SENTENCES = [
    "the list of items is given to the value .",
    "x a playing of the playing in the playing of items of x .",
    "of the playing of the x of a playing of x .",
    "( the ) - ( of ) - ( x ) - ( to ) .",
    "return the state .",
    "the list of items is given to the value .",
]


def chosen(tmp_path: Path, texts: list[str], most: int = 100, longest: int = 62) -> dict[str, str]:
    """The content words of some texts by the sentence they are masked in."""
    tokenizer = wordpiece()
    train = source(tmp_path / "train.ds", [ids.tolist() for ids in tokenizer.encode_batch(["the of"] * 20 + SENTENCES)])
    heldout = source(tmp_path / "heldout.ds", [ids.tolist() for ids in tokenizer.encode_batch(texts)])
    counts = Counts.of([train], tokenizer.vocabulary)
    found = content_words([heldout], counts, tokenizer, longest=longest, most=most)
    assert len(found) == len(found.answers) == len(found.sentences)
    assert all(0 < place < len(text) - 1 for text, place in zip(found.sentences, found.places, strict=True))
    return {
        " ".join(tokenizer.tokens(text)): tokenizer.tokens([answer])[0]
        for text, answer in zip(found.sentences, found.answers, strict=True)
    }


def test_a_content_word_is_a_whole_word_of_letters_that_is_not_frequent(tmp_path: Path) -> None:
    found = chosen(tmp_path, [" ".join(SENTENCES)])
    first, second = (text.replace("playing", "play ##ing") for text in SENTENCES[:2])
    assert set(found) == {first, second}, "no other is of 8 tokens or more, mostly letters, new and has a content word"
    assert found[first] in ("list", "items", "is", "given", "to", "value")
    assert found[second] in ("in", "items")
    assert chosen(tmp_path, [" ".join(SENTENCES)]) == found
    assert len(chosen(tmp_path, [" ".join(SENTENCES)], most=1)) == 1
    assert chosen(tmp_path, []) == {}


def test_text_without_sentences_is_cut(tmp_path: Path) -> None:
    found = chosen(tmp_path, ["list items state value return empty given and or not " * 3], longest=10)
    assert [len(text.split()) for text in found] == [10]  # the three parts are equal
    assert chosen(tmp_path, ["list items state value return empty given and or not"], longest=7) == {}


@pytest.mark.whole
@pytest.mark.parametrize(("language", "frequent", "others"), [
    ("fi", "ja tai on ei voi kun jos", "tietueen kopioi merkkien"),
    ("ru", "в и для или на по", "модулей файле редактирования"),
    ("ja", "を の に は が", "常 起 ウィザード"),
])  # fmt: skip
def test_function_words_are_recognised_by_their_frequency(
    shared_data: Path, tmp_path: Path, language: str, frequent: str, others: str
) -> None:
    corpus = shared_data / "text" / "multilingual" / f"libreoffice_help_{language}.jsonl.gz"
    settings = TokenizerSettings(vocab_size=8192)
    prepared = prepare_data(DataSettings(corpus=[str(corpus)]), settings, tmp_path / "data", progress=False)
    tokenizer = prepared.tokenizer
    counts = Counts.of(prepared.train, tokenizer.vocabulary)
    left_out = frequent_tokens(counts, letters_of(tokenizer)[0])
    assert left_out[[ids(tokenizer, word) for word in frequent.split()]].all()
    assert not left_out[[ids(tokenizer, word) for word in others.split()]].any()
    assert 50 < left_out.sum() < 400
    found = content_words(prepared.heldout, counts, tokenizer, longest=62, most=400)
    assert len(found) > 100


def ids(tokenizer: Tokenizer, word: str) -> int:
    number = tokenizer.token_id(word)
    assert number is not None, word
    return number
