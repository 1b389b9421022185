"""Words and punctuation marks back to text."""

from __future__ import annotations

import itertools
import random

import pytest
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from unicloze.settings import TokenizerSettings
from unicloze.text.joining import join_words
from unicloze.text.tokenizers import Tokenizer

TEXTS = [
    "It's 3.5 (good), isn't it? Use foo_bar() and \"x\".",
    "Who's Zoë's well-known friend?",
    "The U.S. Army came at 10:30 with 3,000 men; he said 'no way' to John F. Kennedy.",
    "The dogs' tails and ``x`` or `y` -- the end...",
    "$5 and #1, 50% of a/b; e.g. this: [1, 2, 3]!",
    '("quoted (inner) text")',
    "don't 'quote' it, and we'll see",
    "我爱你。他说\uff1a「好」\uff01",
]


def apart(text: str) -> list[str]:
    normalised = BertNormalizer(lowercase=False, strip_accents=False).normalize_str(text)
    return [word for word, _ in BertPreTokenizer().pre_tokenize_str(normalised)]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back_as_it_was_written(text: str) -> None:
    assert join_words(" ".join(apart(text))) == text
    assert join_words(text) == text or "`" in text or "'" in text


def test_what_a_tokenizer_cannot_tell_is_spelled_the_usual_way() -> None:
    assert join_words("return join ( a , b ) .") == "return join (a, b)."
    assert join_words("men - he came") == "men-he came" and join_words("- he came -") == "- he came -"
    assert (join_words(""), join_words("a"), join_words('"')) == ("", "a", '"')


def test_whatever_is_joined_reads_the_same_and_grows_at_its_end() -> None:
    draw = random.Random(0)
    marks = [*".,;:!?()[]{}\"'`-_/%$#@&*=", "a", "s", "t", "re", "3", "000", "word", "don", "X", "我"]
    for _ in range(2000):
        words = draw.choices(marks, k=draw.randrange(1, 12))
        grown = [join_words(" ".join(words[:count])) for count in range(1, len(words) + 1)]
        assert apart(grown[-1]) == apart(" ".join(words))
        for before, after in itertools.pairwise(grown):
            alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
            assert grown[-1].startswith("".join(one for one, _ in alike)), words


def test_word_pieces_are_decoded_to_text() -> None:
    tokenizer = Tokenizer.train(TEXTS * 3, TokenizerSettings(vocab_size=400))
    for text, ids in zip(TEXTS, tokenizer.encode_batch(TEXTS), strict=True):
        assert tokenizer.decode(ids) == text.lower()
    piece = tokenizer.token_id("##s")
    assert piece is not None and tokenizer.decode([piece]) == "s"
