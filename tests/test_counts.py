"""The word-count baseline against counts by hand, and which words of a text are content words."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from decoding_toys import wordpiece
from toys import EOS, UNK, vocabulary
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.text import counts as counts_module
from unicloze.text.content_words import content_words, frequent_tokens, letters_of
from unicloze.text.counts import Counts, stretches
from unicloze.text.prepare import prepare_data
from unicloze.text.shards import ShardWriter, TokenShard, TokenSource
from unicloze.text.tokenizers import Tokenizer

TRAIN = [[7, 8, 9, 7, 8, 8, UNK, 9, 7], [], [8, 9], [7], [9, 9, 7, 8, 10, 11, 8]]
HELDOUT = [[7, 8, 12, 9], [13, UNK, 7, 8]]
VOCABULARY = vocabulary(15)


def source(path: Path, documents: list[list[int]], chosen: list[int] | None = None) -> TokenSource:
    with ShardWriter(path, vocab_size=50, tokenizer_name="toy") as writer:
        for document in documents:
            writer.write(np.array(document, dtype=np.int32), len(document))
    numbers = None if chosen is None else np.array(chosen)
    return TokenSource(name=path.stem, shards=(TokenShard.open(path, documents=numbers),))


def pairs_of(documents: list[list[int]]) -> list[tuple[int, int]]:
    return [pair for text in documents for pair in pairwise([EOS, *text]) if pair[1] != UNK]


def discount(counts: Counter[object]) -> float:
    once, twice = (list(counts.values()).count(times) for times in (1, 2))
    return (once + 1) / (once + 2 * twice + 3)


def unigram(documents: list[list[int]], token: int) -> float:
    counts = Counter[object](second for _, second in pairs_of(documents))
    off, total = discount(counts), counts.total()
    return max(counts[token] - off, 0) / total + off * len(counts) / total / len(VOCABULARY.ordinary)


def bigram(documents: list[list[int]], before: int, token: int) -> float:
    counts = Counter[object](pairs_of(documents))
    behind = Counter(second for first, second in pairs_of(documents) if first == before)
    if not behind:
        return unigram(documents, token)
    off, total = discount(counts), behind.total()
    return max(behind[token] - off, 0) / total + off * len(behind) / total * unigram(documents, token)


def test_probabilities_are_those_counted_by_hand_and_sum_to_one(tmp_path: Path) -> None:
    counts = Counts.of([source(tmp_path / "a.ds", TRAIN)], VOCABULARY)
    ordinary = VOCABULARY.ordinary.tolist()
    assert counts.unigram[ordinary] == pytest.approx([unigram(TRAIN, token) for token in ordinary])
    for first in [EOS, UNK, *ordinary]:
        by_hand = [bigram(TRAIN, first, token) for token in ordinary]
        assert sum(by_hand) == pytest.approx(1)
        assert counts.bigram(np.full(len(ordinary), first), np.array(ordinary)) == pytest.approx(by_hand)
        assert counts.after(first)[ordinary] == pytest.approx(by_hand)
        assert counts.after(first).sum() == pytest.approx(1)
    for second in ordinary:
        by_hand = [bigram(TRAIN, first, second) for first in range(VOCABULARY.size)]
        assert counts.before(second) == pytest.approx(by_hand)


def test_perplexities_are_of_the_ordinary_tokens_of_another_text(tmp_path: Path) -> None:
    counts = Counts.of([source(tmp_path / "a.ds", TRAIN)], VOCABULARY)
    nats = np.mean(
        [[-math.log(unigram(TRAIN, w)), -math.log(bigram(TRAIN, v, w))] for v, w in pairs_of(HELDOUT)], axis=0
    )
    assert counts.perplexities([source(tmp_path / "b.ds", HELDOUT)]) == pytest.approx(tuple(np.exp(nats)))
    assert counts.perplexities([source(tmp_path / "c.ds", [[], [UNK]])]) is None
    assert counts.perplexities([]) is None


def test_text_whose_pairs_all_repeat_leaves_something_for_what_is_new(tmp_path: Path) -> None:
    counts = Counts.of([source(tmp_path / "a.ds", [[7, 8]] * 50)], VOCABULARY)
    assert 0 < counts.after(7)[9] < 0.01 < 0.9 < counts.after(7)[8]


def test_all_documents_of_all_sources_are_counted_however_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [source(tmp_path / "a.ds", TRAIN), source(tmp_path / "b.ds", [[9], *TRAIN, [10, 10]], [0, 2, 6])]
    whole = Counts.of(sources, VOCABULARY)
    assert (
        whole.tokens.tolist()
        == np.bincount([w for _, w in pairs_of([*TRAIN, [9], [], [10, 10]])], minlength=15).tolist()
    )
    monkeypatch.setattr(counts_module, "STRETCH", 4)
    parts = list(stretches(sources, 1000))
    assert np.concatenate([tokens for tokens, _ in parts]).tolist() == [w for text in TRAIN for w in text] + [9, 10, 10]
    assert [len(tokens) for tokens, _ in parts] == [4, 4, 4, 4, 3, 3]
    assert np.flatnonzero(np.concatenate([begins for _, begins in parts])).tolist() == [0, 4, 8, 9, 11, 12, 16, 19, 20]
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
    assert set(found) == {first, second}, (
        "no other has at least 8 tokens, mostly letters, is new, and has a content word"
    )
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
@pytest.mark.parametrize(
    ("language", "frequent", "others"),
    [
        ("fi", "ja tai on ei voi kun jos", "tietueen kopioi merkkien"),
        ("ru", "в и для или на по", "модулей файле редактирования"),
        ("ja", "を の に は が", "常 起 ウィザード"),
    ],
)
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
