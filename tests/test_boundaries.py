"""Word boundaries in vocabularies whose tokens include the space before them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
import tokenizers

from decoding_toys import roberta_like, sentencepiece, wordpiece
from toys import random_windows
from unicloze.objectives import settings_of
from unicloze.objectives.masking import units_of
from unicloze.text.phrases import Words
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import SENTENCEPIECE, Boundaries, has_letter, text_of


def with_merges(*merged: str) -> Tokenizer:
    """Byte-level, with these pieces of text as tokens in addition to the bytes."""
    specials = ["[PAD]", "[unused1]", "[UNK]", "[SOS]", "[EOS]", "[MASK]"]
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    spelled = ["".join(piece for piece, _ in level.pre_tokenize_str(text)) for text in merged]
    merges, tokens = [], [*specials, *letters]
    for word in spelled:
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                tokens.append(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(specials)
    return Tokenizer(backend)


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words of a text, each as the texts of its tokens."""
    (ids,) = tokenizer.encode_batch([text])
    begins = np.flatnonzero(~tokenizer.vocabulary.boundaries.follows(ids))
    return [tokenizer.decode(part) for part in np.split(ids, begins[1:])]


BYTES = ["Hello", " world", "cole", " caf", "world", "ing", "U."]
CASES = [
    (' "Hello world"', [' "', "Hello", " world", '"']),
    (" (world) x", [" (", "world", ")", " x"]),
    ("the U.S. won", ["the", " U", ".", "S", ".", " won"]),
    ("Hello\nworld\n\nHello", ["Hello", "\n", "world", "\n", "\n", "Hello"]),
    ("中国 国x", ["中", "国", " 国", "x"]),
    ("école caféing", ["école", " caféing"]),
    ("a—Hello “Hello”", ["a", "—", "Hello", " “", "Hello", "”"]),
    ("हिन्दी भाषा", ["हिन्दी", " भाषा"]),
    ("привет, мир", ["привет", ",", " мир"]),
    ("한국어 문장", ["한국어", " 문장"]),
    ("abc123 3.14", ["abc123", " 3", ".", "14"]),
    ("foo_bar don't", ["foo", "_", "bar", " don", "'", "t"]),
    ("\U0001f642x", ["\U0001f642", "x"]),
    ("  two\tx", [" ", " two", "\t", "x"]),
]


@pytest.mark.parametrize("merged", [[], BYTES, ["中", "—", "ééé", "हिन्", " “"]], ids=["bytes", "words", "characters"])
@pytest.mark.parametrize(("text", "expected"), CASES)
def test_words_of_bytes(text: str, expected: list[str], merged: Sequence[str]) -> None:
    assert words(with_merges(*merged), text) == expected


def begins_word(before: str, character: str) -> bool:
    """Word boundaries from the characters alone; combining marks follow letters here."""
    if character.isspace():
        return True
    if before == " ":
        return False
    apart = "中国"
    letters = all((one.isalnum() or one == "ि") and one not in apart for one in (before, character))
    return not letters


def test_words_are_those_of_the_characters_however_they_are_spelled() -> None:
    draw = random.Random(0)
    alphabet = [*"aZéß7  \n", *'"(.', *"—中国яह", "हि", "ế", "한", "\U0001f642"]
    one, other = with_merges(), with_merges("aZ", " a", "é", "中", "яя", "हि", "a7", " é", "한", "éaZ", " (")
    for _ in range(500):
        text = "".join(draw.choices(alphabet, k=draw.randrange(1, 12)))
        places = [i for i in range(1, len(text)) if begins_word(text[i - 1], text[i])]
        expected = [text[start:end] for start, end in itertools.pairwise([0, *places, len(text)])]
        assert words(one, text) == expected
        assert words(other, text) == expected


def test_sentencepiece_words() -> None:
    tokenizer = sentencepiece()
    assert words(tokenizer, "the list (returning) a.B") == ["the", "list", "(", "returning", ")", "a", ".", "B"]
    pieces = ["▁", "<0xE4>", "<0xB8>", "<0xAD>", "a", "Ġa", "▁a"]
    texts = [text_of(piece, SENTENCEPIECE) for piece in pieces]
    assert texts == [b" ", b"\xe4", b"\xb8", b"\xad", b"a", "Ġa".encode(), b" a"]
    assert Boundaries.of(texts).follows(np.array([4, 5, 0, 1, 2, 3, 4, 6])).tolist() == [
        False, True, False, True, True, True, False, False,
    ]  # fmt: skip


def test_parts_and_marks_belong_to_what_precedes_them() -> None:
    texts = [b"a", "\u00b4".encode(), b"\xf0\x9f\x99", b"\x82", "\u0301".encode(), "\u200d".encode(), b"("]
    boundaries = Boundaries.of(texts)
    assert boundaries.continues.tolist() == [True, False, False, True, True, True, False]
    for row, expected in {
        (0, 2, 3, 0): [False, False, True, False],  # the three bytes and the fourth are not a letter
        (0, 4, 0): [False, True, True],
        (6, 4, 0): [False, True, False],
        (0, 5, 0, 1, 5): [False, True, True, False, True],
    }.items():
        assert boundaries.follows(np.array(row)).tolist() == expected, row


def test_a_letter_that_looks_like_the_mark_of_a_space_is_one() -> None:
    pieces = [(piece, 0.0) for piece in ("<pad>", "<unk>", "<s>", "</s>", "<mask>", "▁a", "Ġu", "[1]")]
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=1))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    backend.add_special_tokens([piece for piece, _ in pieces[:5]])
    tokenizer = Tokenizer(backend)
    (ids,) = tokenizer.encode_batch(["aĠu[1]"])
    assert ids.tolist() == [5, 6, 7]
    assert tokenizer.vocabulary.boundaries.follows(ids).tolist() == [False, True, False]
    assert tokenizer.vocabulary.ordinary.tolist() == [5, 6, 7], "brackets in texts are not special tokens"


def test_word_pieces_are_judged_by_their_prefix_alone() -> None:
    tokenizer = wordpiece()
    assert words(tokenizer, "the (lists) played.") == ["the", "(", "lists", ")", "played", "."]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "@@b", "##c", "[X_SEP]"]
    table = {token: i for i, token in enumerate(tokens)}
    model = tokenizers.models.WordPiece(table, unk_token="[UNK]", continuing_subword_prefix="@@")
    vocabulary = Tokenizer(tokenizers.Tokenizer(model)).vocabulary
    assert np.flatnonzero(vocabulary.continues).tolist() == [6]
    assert vocabulary.special.tolist() == [0, 1, 2, 3, 4, 8]


def test_added_words_need_not_be_spelled_in_bytes() -> None:
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 5}, [])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    backend.add_tokens(["東京", "ok"])
    tokenizer = Tokenizer(backend)
    assert tokenizer.texts()[5:] == [b"a", "東京".encode(), b"ok"]
    assert tokenizer.vocabulary.boundaries.follows(np.array([5, 7, 6, 5])).tolist() == [False, True, False, False]


def test_rows_and_texts_are_apart() -> None:
    vocabulary = with_merges().vocabulary
    rng = np.random.default_rng(0)
    tokens = rng.integers(6, vocabulary.size, (40, 30))
    alone = np.stack([vocabulary.boundaries.follows(row) for row in tokens])
    np.testing.assert_array_equal(vocabulary.boundaries.follows(tokens), alone)
    rows = np.repeat(np.arange(40), 30)
    text = np.ones(tokens.size, dtype=bool)
    found = Words.of(tokens.ravel(), rows, text, vocabulary)
    expected = ~alone
    expected[:, 0] = True
    np.testing.assert_array_equal(found.starts, np.flatnonzero(expected))


def test_units_stop_at_special_tokens() -> None:
    windows = random_windows(3, 12)
    tokenizer = roberta_like()
    windows.token_ids[:] = tokenizer.token_id("a")
    windows.token_ids[:, 5] = tokenizer.vocabulary.mask
    windows.maskable[:] = True
    windows.maskable[:, 5] = False
    units = units_of(windows, tokenizer.vocabulary, settings_of(mask_unit="word"))
    assert units is not None
    assert np.flatnonzero(units.begins[0]).tolist() == [0, 5, 6]


def test_letters_are_recognised_from_bytes() -> None:
    assert all(map(has_letter, (b"a", b" x.", "é".encode(), b"\xc3", b"\xe4\xb8", "中".encode())))
    assert not any(map(has_letter, (b"", b" ", b".", "—".encode(), "“".encode(), b"\xe2\x80", b"\x94", b"12")))


def test_sentences_end_whatever_the_script() -> None:
    vocabulary = with_merges("。", " ?").vocabulary
    ends = [Tokenizer.decode(with_merges("。", " ?"), [i]) for i in np.flatnonzero(vocabulary.ends_sentence)]
    assert sorted(ends) == sorted(["\n", ".", "?", "!", ";", "。", " ?"])
