"""Joins words and punctuation marks back into text."""

from __future__ import annotations

import itertools
import random
import re
import string
from pathlib import Path

import pytest
import tokenizers
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from decoding_toys import plain_format
from unicloze.evaluation.metrics.result import retokenise, uncased
from unicloze.evaluation.metrics.texts import diversity
from unicloze.interop.tokenizer_files import write_tokenizer
from unicloze.settings import TokenizerSettings
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import SPECIAL_TOKENS, join_words, joining_decoder

TEXTS = [
    "It's 3.5 (good), isn't it? Use foo_bar() and \"x\".",
    "Who's Zoë's well-known friend?",
    "The U.S. Army came at 10:30 with 3,000 men; he said 'no way' to John F. Kennedy.",
    "The dogs' tails and ``x`` or `y` -- the end...",
    "$5 and #1, 50% of a/b; e.g. this: [1, 2, 3]!",
    '("quoted (inner) text")',
    "don't 'quote' it, and we'll see",
    "we'd 'quote' it and d'accord",
    "It is 5 o'clock at O'Brien's: l'ami d'Anne, 10:30, 1990. 12 men",
    "it costs £5 or € 5, ひらがな カタカナ、漢字かな交じり文",
    "我爱你。他说\uff1a「好」\uff01",
    "धीरे-धीरे चलो, हिन्दी()",  # words that end in vowel signs
    "หนี้-สิน",
]


def apart(text: str) -> list[str]:
    normalised = BertNormalizer(lowercase=False, strip_accents=False).normalize_str(text)
    return [word for word, _ in BertPreTokenizer().pre_tokenize_str(normalised)]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_joined_as_it_was_written(text: str) -> None:
    assert join_words(" ".join(apart(text))) == text
    assert join_words(text) == text or "`" in text or "'" in text


STOCK_TEXTS = [
    *(text for text in TEXTS if not re.search("['`]\\w{2}|``|カ", text)),
    'say “no… way” to «x», in "a" and "b"',
    "漢字かな交じり文、です。",
]


@pytest.mark.parametrize("text", STOCK_TEXTS)
def test_a_stock_tokenizer_spells_all_but_single_quotation_marks_identically(text: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    own = Tokenizer.train([*STOCK_TEXTS * 3], TokenizerSettings(kind="wordpiece", vocab_size=400, lowercase=False))
    write_tokenizer(own, tmp_path, plain_format(own, 64), takes_segments=False)
    ids = [own.vocabulary.sos, *own.encode_batch([text])[0].tolist(), own.vocabulary.eos]
    stock = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert stock.decode(ids, skip_special_tokens=True) == text
    assert own.decode(ids, skip_special=True) == Tokenizer.load(tmp_path).decode(ids, skip_special=True) == text


def test_double_quotation_marks_are_counted_as_the_text_grows() -> None:
    draw, decoder = random.Random(0), joining_decoder("##")
    for _ in range(500):
        words = draw.choices(['"', "a", "bc", "12", ".", ",", "(", ")", "\u3002", "@", "'"], k=draw.randrange(1, 14))
        words = [word for word, before in zip(words, ["", *words], strict=False) if word != before]
        words = ["it" if word == "'" else word for word in words]
        assert decoder.decode(words) == join_words(" ".join(words)), words


@pytest.mark.parametrize("text", ["it costs 12,959 dollars", "they'll go", "3.14a", "we'd 'quote' (it)", "12,95", "a"])
def test_settled_text_does_not_change_as_pieces_arrive(text: str) -> None:
    letters = [f"##{one}" for one in string.ascii_lowercase + string.digits]
    vocabulary = [*SPECIAL_TOKENS, *string.ascii_lowercase, *string.digits, *letters, *"'.,()"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({t: i for i, t in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    pieces = Tokenizer(backend)
    ids = pieces.encode(text).tolist()
    said = [pieces.settled(ids[:count]) for count in range(len(ids) + 1)]
    assert all(pieces.decode(ids).startswith(one) for one in said)
    assert all(after.startswith(before) for before, after in itertools.pairwise(said))
    assert said[-1] or len(text.split()) == 1


def test_ambiguous_spacing_follows_common_usage() -> None:
    assert join_words("return join ( a , b ) .") == "return join (a, b)."
    assert join_words("men - he came") == "men-he came" and join_words("- he came -") == "- he came -"
    assert (join_words(""), join_words("a"), join_words('"')) == ("", "a", '"')


def test_whatever_is_joined_reads_the_same_and_grows_at_its_end() -> None:
    draw = random.Random(0)
    marks = [*".,;:!?()[]{}\"'`-_/%$#@&*=\u00a3\u3002", "かな", "人", "々", "é"]
    marks += ["a", "s", "t", "o", "re", "3", "12", "000", "1990", "word", "don", "X", "我"]
    for _ in range(2000):
        words = draw.choices(marks, k=draw.randrange(1, 12))
        grown = [join_words(" ".join(words[:count])) for count in range(1, len(words) + 1)]
        assert apart(grown[-1]) == apart(" ".join(words))
        for before, after in itertools.pairwise(grown):
            alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
            assert grown[-1].startswith("".join(one for one, _ in alike)), words


@pytest.mark.parametrize("text", TEXTS[:7])
def test_the_papers_rules_read_a_text_as_its_tokens(text: str) -> None:
    spaced = " ".join(apart(text))
    assert retokenise(text) == retokenise(spaced)
    assert uncased(text) == uncased(spaced)
    assert diversity([text]).values == diversity([spaced]).values
