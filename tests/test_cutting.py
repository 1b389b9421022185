"""Long texts are cut where it does not change their tokens."""

from __future__ import annotations

import random

import pytest

from unicloze.settings import TokenizerSettings
from unicloze.text import documents
from unicloze.text.documents import pieces_of, tail_start
from unicloze.text.tokenizers import Tokenizer

WORDS = ["one", "two", "Three", "caf\u00e9", "\u6f22\u5b57", "na\u00efve", "4.5", "it's"]
SPACES = [" ", "\n", "\t", "\r\n", "  ", ".\n", "\u00a0", "\u2028", "\f", "\v", "\x1c", "\x85", " \u0301", "\u200b"]


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE", 8)


def tokenizer(**settings: object) -> Tokenizer:
    texts = [f"{word}{space}" * 3 for word in WORDS for space in SPACES]
    return Tokenizer.train(texts, TokenizerSettings(vocab_size=400, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [{}, {"lowercase": False}, {"strip_accents": True}, {"kind": "bpe"}], ids=str)
def test_pieces_have_the_tokens_of_the_text(kind: dict[str, object]) -> None:
    made, draw = tokenizer(**kind), random.Random(0)
    for _ in range(100):
        stretches = ("".join(draw.choice(WORDS) + draw.choice(SPACES) for _ in range(8)) for _ in range(8))
        text = "one two".join(stretches)
        pieces = list(pieces_of(text))
        assert len(pieces) > 2 and "".join(pieces) == text
        tokens = [token for ids in made.encode_batch(pieces) for token in ids.tolist()]
        assert tokens == made.encode_batch([text])[0].tolist()


@pytest.mark.parametrize("text", ["e\u0301," * 300, "\u304b\u3099\u3002" * 300, "\u1112\u1161\u11ab." * 300])
def test_a_text_without_white_space_is_not_cut_before_a_mark(text: str) -> None:
    made = tokenizer()
    pieces = list(pieces_of(text))
    assert len(pieces) > 3 and "".join(pieces) == text
    assert [token for ids in made.encode_batch(pieces) for token in ids.tolist()] == made.encode_batch([text])[
        0
    ].tolist()


@pytest.mark.parametrize(
    "text", ["e\u0301" * 500, "\u304b\u3099" * 500, "\u1112\u1161\u11ab" * 500, "\U0001f469\u200d\U0001f467" * 500]
)
def test_characters_stay_whole_where_nothing_else_separates_them(text: str) -> None:
    pieces = list(pieces_of(text))
    assert len(pieces) > 3 and "".join(pieces) == text
    assert all(piece.startswith(text[:2]) for piece in pieces)
    assert all(text[at:].startswith(text[:2]) for at in (tail_start(text, size) for size in range(2, 40)))


def test_a_text_is_cut_at_punctuation_only_where_it_is_too_long() -> None:
    """SentencePiece adds a space at the beginning of each piece."""
    assert list(pieces_of("a,b" * 42)) == ["a,b" * 42]
    assert {piece[-1] for piece in list(pieces_of("a,b" * 100))[:-1]} == {","}


def test_marks_without_end_are_cut_all_the_same() -> None:
    text = "aa" + "\u0301" * 1000
    pieces = list(pieces_of(text))
    assert "".join(pieces) == text and all(0 < len(piece) <= 128 for piece in pieces)


def test_a_piece_is_long_enough_and_not_too_long() -> None:
    for text in ("word " * 500, "x" * 999, "\n" * 999, "a,b" * 300, "ab\n" * 300):
        *full, last = map(len, pieces_of(text))
        assert all(8 <= length <= 128 for length in full) and last <= 128
