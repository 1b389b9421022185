"""What a vocabulary says of its ids: special tokens, word boundaries and ends of sentences."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import Regex, decoders, models

from unicloze.arrays import Flags, Int32s
from unicloze.characters import IDEOGRAPH, is_mark, last_of
from unicloze.errors import UniclozeError
from unicloze.settings import TokenizerSettings

PAD, UNUSED, UNK, SOS, EOS, MASK, PSEUDO = "[PAD]", "[unused1]", "[UNK]", "[SOS]", "[EOS]", "[MASK]", "[PSEUDO]"
SPECIAL_TOKENS = PAD, UNUSED, UNK, SOS, EOS, MASK, PSEUDO
"""Special tokens of a trained vocabulary, by id. Id 1 is never used because MPNet treats it as padding."""

ROLES = {
    "pad": (PAD, "<pad>"),
    "unk": (UNK, "<unk>"),
    "sos": (SOS, "[CLS]", "<cls>", "<s>"),
    "eos": (EOS, "[SEP]", "<sep>", "</s>"),
    "mask": (MASK, "<mask>"),
}
STAND_INS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "<extra_id_0>": {"sos": ROLES["eos"], "mask": ("<extra_id_0>",)},
    "<|endoftext|>": dict.fromkeys(ROLES, ("<|endoftext|>",)),
}
"""Tokens that take the roles a vocabulary lacks, by a token it has: T5's rows use neither [SOS] nor masks, and GPT-2 has one
special token, which separates texts."""
PSEUDO_NAMES = PSEUDO, "[P]", "<pseudo>"


def names_with_a_role() -> list[str]:
    """All names of special tokens that have a role."""
    return [*(token for names in (*ROLES.values(), PSEUDO_NAMES) for token in names), *STAND_INS]


def special_tokens(settings: TokenizerSettings) -> list[str]:
    """Special tokens of a trained vocabulary, in the order of their ids."""
    return [*SPECIAL_TOKENS, *(f"[EXTRA{i}]" for i in range(settings.extra_tokens))]


_BRACKETED = re.compile(r"\[\w+\]")
_UNUSED = re.compile(r"\[unused\d+\]")
_NUMBERED = re.compile(r"\[unused\d+\]|\[EXTRA\d+\]|<extra_id_\d+>")
_EXTRA = re.compile(r"\[EXTRA(\d+)\]|<extra_id_(\d+)>")
_SENTENCE_ENDS = frozenset(".?!;\u2026\u3002\uff01\uff1f\u0964\u061f\u06d4\n")


@dataclass(frozen=True, kw_only=True, eq=False)
class Vocabulary:
    """Ids of special tokens, and the ids that random tokens are drawn from."""

    size: int  # number of ids, used or not
    pad: int  # fills the end of a row
    unk: int  # replaces text that cannot be spelled
    sos: int  # first token of a window, also known as [CLS]
    eos: int  # ends a segment, also known as [SEP]
    mask: int  # [M] of the paper
    pseudo: int | None  # [P] of the paper; None if the vocabulary has no spare id
    # Ids that are neither masked nor drawn at random, sorted. *Shape:* (number of special ids,)
    special: Int32s
    ordinary: Int32s  # All other ids, sorted. *Shape:* (number of ordinary ids,)
    # Special ids without a fixed role, for sentinels and mode tokens. *Shape:* (number of them,)
    extra: Int32s
    ends_sentence: Flags  # Whether an id ends a sentence. *Shape:* (size,)
    boundaries: Boundaries  # decides whether a token continues the word before it

    @property
    def continues(self) -> Flags:
        """Whether an id continues a word before it, if there is one. *Shape:* (size,)"""
        return self.boundaries.continues


def space_mark(backend: tokenizers.Tokenizer) -> str | None:
    """How the vocabulary writes a leading space; None if its tokens include none."""
    if isinstance(backend.model, models.WordPiece | models.WordLevel):
        return None
    parts = backend.normalizer, backend.pre_tokenizer, backend.decoder
    if any(part is not None and b'"ByteLevel"' in part.__getstate__() for part in parts):
        return BYTE_LEVEL
    tokens = backend.get_vocab(with_added_tokens=False)
    return next((mark for mark in (SENTENCEPIECE, BYTE_LEVEL) if any(token.startswith(mark) for token in tokens)), None)


def vocabulary_of(backend: tokenizers.Tokenizer, name: str, named: Mapping[str, str], mark: str | None) -> Vocabulary:
    """The vocabulary of a tokenizer."""
    ids = backend.get_vocab(with_added_tokens=True)
    size = max(ids.values(), default=-1) + 1
    declared = {i: token.content for i, token in backend.get_added_tokens_decoder().items() if token.special}
    roles: dict[str, int] = {}
    for role, names in ROLES.items():
        usual = sorted(names, key=lambda name: name not in declared.values())  # MPNet's vocabulary has BERT's names too
        known = [ids[token] for token in (named.get(role, ""), *usual) if token in ids]
        if not known:
            others = (each.get(role, ()) for mark, each in STAND_INS.items() if mark in ids)
            known = [ids[token] for tokens in others for token in tokens if token in ids]
        if not known:
            raise UniclozeError(
                f"{name} has no {names[0]} token (nor {', '.join(names[1:])}): add it to the vocabulary, "
                "or leave --tokenizer.path out to train a tokenizer."
            )
        roles[role] = known[0]
    in_brackets = [(token, i) for token, i in ids.items() if token.startswith(("[", "<"))]
    # MPNet treats id 1 as padding.
    unused = sorted(i for token, i in in_brackets if _UNUSED.fullmatch(token) and i != 1)
    pseudo = next((ids[token] for token in PSEUDO_NAMES if token in ids), unused[0] if unused else None)
    # A `vocab.txt` does not mark special tokens; no word of its texts is in brackets.
    reserved = _BRACKETED if isinstance(backend.model, models.WordPiece) else _NUMBERED
    special = {*roles.values(), *declared, *(i for token, i in in_brackets if reserved.fullmatch(token))}
    special |= {pseudo} if pseudo is not None else set()
    numbered = [(match, i) for token, i in in_brackets if (match := _EXTRA.fullmatch(token))]
    extra = [i for match, i in sorted(numbered, key=lambda pair: int(pair[0][1] or pair[0][2]))]
    extra = extra or [i for i in unused if i != pseudo]
    ordinary = set(ids.values()) - special
    if not ordinary:
        raise UniclozeError(f"{name} has only special tokens: give another --tokenizer.path.")
    texts: list[bytes | None] = [None] * size
    for token, i in ids.items():
        texts[i] = None if i in special else text_of(token, mark)
    prefix = getattr(backend.model, "continuing_subword_prefix", None) or "##"
    inner = _marked(size, (i for token, i in ids.items() if token.startswith(prefix) and i not in special))
    ends = [i for i, text in enumerate(texts) if text and text.decode("utf-8", "ignore").lstrip(" ") in _SENTENCE_ENDS]
    return Vocabulary(
        size=size,
        **roles,
        pseudo=pseudo,
        special=np.array(sorted(special), dtype=np.int32),
        ordinary=np.array(sorted(ordinary), dtype=np.int32),
        extra=np.array(extra, dtype=np.int32),
        ends_sentence=_marked(size, ends),
        boundaries=Boundaries.marked(inner) if mark is None else Boundaries.of(texts),
    )


def _marked(size: int, ids: Iterable[int]) -> Flags:
    marks = np.zeros(size, dtype=bool)
    marks[list(ids)] = True
    return marks


BYTE_LEVEL, SENTENCEPIECE = "\u0120", "\u2581"
"""How byte-level and SentencePiece vocabularies write a leading space."""

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_PLAIN_BYTES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHER_BYTES = [byte for byte in range(0x100) if byte not in _PLAIN_BYTES]
_BYTES = {chr(byte): byte for byte in _PLAIN_BYTES} | {chr(0x100 + i): byte for i, byte in enumerate(_OTHER_BYTES)}
"""Byte of each character in byte-level vocabularies."""
_LEADS_OF_LETTERS = frozenset([*range(0xC3, 0xE2), *range(0xEA, 0xEE)])
"""First bytes of UTF-8 characters that are mostly letters; the others begin signs and ideographs."""
_LEADS_OF_IDEOGRAPHS = range(0xE3, 0xEA)
"""First bytes of UTF-8 characters that are mostly ideographs and kana."""

_APART, _LETTER, _SIGN, _INSIDE = range(4)
"""How a token begins: with white space; with a letter; with anything else; inside a character or with a combining mark."""
_CLOSED, _OPEN, _SPACE, _AS_BEFORE = range(4)
"""How a token ends: with anything a letter does not join; with a letter; it is one space; with an incomplete character."""
_JOINS = np.zeros((4, 4), dtype=bool)
_JOINS[:, _INSIDE] = _JOINS[_OPEN, _LETTER] = _JOINS[_SPACE, [_LETTER, _SIGN]] = True
"""Whether a token belongs to the word of the token before it, by that token's end and its own beginning."""


# Where they include the preceding space (byte-level, SentencePiece), a word is a run of letters and digits; every
# other character, including each ideograph, is a word of its own. The space before a word belongs to it. A token
# alone does not tell whether it begins a word: "Hello" does after a quotation mark but not after "Well", and some
# tokens are less than a character. So the rule combines how a token begins with how the previous token ends.


@dataclass(frozen=True, eq=False)
class Boundaries:
    """How each token of a vocabulary begins and ends."""

    starts: npt.NDArray[np.int8]  # How each token begins. *Shape:* (vocabulary,)
    ends: npt.NDArray[np.int8]  # How each token ends. *Shape:* (vocabulary,)

    @classmethod
    def of(cls, texts: Sequence[bytes | None]) -> Boundaries:
        """Classify the tokens of a vocabulary."""
        both = np.array([_edges(text) for text in texts], dtype=np.int8).reshape(-1, 2)
        return cls(both[:, 0], both[:, 1])

    @classmethod
    def marked(cls, continues: Flags) -> Boundaries:
        """For a vocabulary whose tokens say whether they continue a word, whatever is before it."""
        starts = np.where(continues, _INSIDE, _APART).astype(np.int8)
        return cls(starts, np.full_like(starts, _CLOSED))

    @cached_property
    def continues(self) -> Flags:
        """Whether an id continues a word before it. *Shape:* (vocabulary,)"""
        return np.isin(self.starts, (_LETTER, _INSIDE))

    def follows(self, token_ids: npt.NDArray[np.integer], first: Flags | None = None) -> Flags:
        """Whether each token belongs to the word of the token before it, which must not be a special token."""
        found = np.zeros(token_ids.shape, dtype=bool)
        ends = self.ends[token_ids]
        partial = ends == _AS_BEFORE
        if partial.any():
            known = ~partial if first is None else ~partial | first
            place = np.where(known, np.arange(token_ids.shape[-1]), 0)
            ends = np.take_along_axis(ends, np.maximum.accumulate(place, axis=-1), axis=-1)
        found[..., 1:] = _JOINS[ends[..., :-1], self.starts[token_ids[..., 1:]]]
        return found if first is None else found & ~first


def text_of(token: str, mark: str | None) -> bytes:
    """UTF-8 text of a token, including its leading space."""
    if mark == BYTE_LEVEL and all(character in _BYTES for character in token):
        return bytes(_BYTES[character] for character in token)
    if mark == SENTENCEPIECE:
        if match := _BYTE.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace(SENTENCEPIECE, " ").encode()
    return token.encode()


def has_letter(text: bytes) -> bool:
    """Whether a token's text contains a letter, as far as its bytes tell."""
    if any(map(str.isalpha, text.decode("utf-8", errors="ignore"))):
        return True
    lead = _rest(text)[:1]
    return lead != b"" and (lead[0] in _LEADS_OF_LETTERS or lead[0] in _LEADS_OF_IDEOGRAPHS)


def _rest(text: bytes) -> bytes:
    """The bytes of an incomplete character at the end."""
    for size in range(1, min(4, len(text)) + 1):
        lead = text[-size]
        if lead >= 0xC0:
            return text[-size:] if size < 2 + (lead >= 0xE0) + (lead >= 0xF0) else b""
    return b""


def _edges(text: bytes | None) -> tuple[int, int]:
    if not text:
        return _APART, _CLOSED
    if text == b" ":
        return _APART, _SPACE
    inside = 0x80 <= text[0] < 0xC0
    rest = _rest(text)
    letter_begun = rest[:1] != b"" and rest[0] in _LEADS_OF_LETTERS
    characters = text[: len(text) - len(rest)].decode("utf-8", errors="ignore")
    bare = characters.rstrip("".join(filter(is_mark, set(characters))))
    if inside or (characters and is_mark(characters[0])):
        start = _INSIDE
    elif not characters:
        start = _LETTER if letter_begun else _SIGN
    elif characters[0].isspace():
        start = _APART
    else:
        start = _LETTER if _is_letter(characters[0]) else _SIGN
    if rest:
        return start, _OPEN if letter_begun else _CLOSED
    if not bare:
        return start, _AS_BEFORE
    return start, _OPEN if _is_letter(bare[-1]) else _CLOSED


def _is_letter(character: str) -> bool:
    """Whether it is a letter or digit, except ideographs, which tokenizers treat as separate words."""
    return character.isalnum() and not IDEOGRAPH.match(character)


_OPENING = frozenset("([{\u00bf\u00a1\u201c\u2018\u00ab\u300c\u300e\uff08\u300a")
_CLOSING = frozenset(
    ".,;:!?)]}%\u2026\u201d\u2019\u00bb\u3002\uff0c\u3001\uff1b\uff1a\uff01\uff1f\u300d\u300f\uff09\u300b"
)
_QUOTES = frozenset("\"'`")
_JOINING = frozenset("/_")
_CONTRACTED = frozenset(("s", "t", "re", "ve", "ll", "d", "m"))
_ELIDED = frozenset(("o", "l", "d", "j", "c", "n", "qu"))
_WIDE = re.compile("[\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff65\U00020000-\U0002fa1f]")

_PAIRS, _UP_TO_OPENING = r'(?:[^"]*"[^"]*")*?', r'[^"]*"'
_BEHIND_OPENING = rf'(?:\A|\G[^"]*"){_PAIRS}{_UP_TO_OPENING}\K '
_BEFORE_CLOSING = "|".join(rf'{begin}{_PAIRS}{_UP_TO_OPENING}[^"]*?\K (?=")' for begin in (r"\A", r'\G"'))
"""Spaces inside quotation marks, which open and close alternately, counted from the end of the last match."""

_SUBSTITUTIONS = (
    (r"(?<=\w) ' (?=(?i:s|t|re|ve|ll|d|m)\b)", "'"),
    (r"(?<=\b\d|\b\d\d|\b\d\d\d) \. (?=\d)", "."),
    (r"(?<=\b[^\W\d_]) \. (?=[^\W\d_]\b)", "."),
    (r"(?<=\d) , (?=\d{3}\b)", ","),
    (r"(?<=\d) : (?=\d{2}\b)", ":"),
    (r"(?<=\w) - (?=\w)", "-"),
    (r"(?<=\w) \( \)", "()"),
    (r"(?<=[$#]) (?=\d)", ""),
    (_BEHIND_OPENING, ""),
    (_BEFORE_CLOSING, ""),
    (rf"(?<={_WIDE.pattern}) (?={_WIDE.pattern})", ""),
    (r"(?<=@) (?=\w)", ""),
    (f" (?=[{re.escape(''.join(sorted(_CLOSING | _JOINING)))}])", ""),
    (f"(?<=[{re.escape(''.join(sorted(_OPENING | _JOINING)))}]) ", ""),
)
"""The part of `join_words` that stateless substitutions can express: single quotation marks are left unchanged."""


# Spaces are omitted where English and Chinese spelling has none. Each decision depends only on the text to the left
# and on the next word, so text that grows changes only at its end.


def join_words(text: str) -> str:
    """Remove spaces that only the tokenizer put around punctuation and ideographs."""
    words = text.split()
    joined = words[:1]
    open_quotes: set[str] = set()
    tight = _opens(words[0], open_quotes) if words else False
    for place in range(1, len(words)):
        before, word = words[place - 1], words[place]
        after = words[place + 1] if place + 1 < len(words) else ""
        earlier = words[place - 2] if place > 1 else ""
        alone = place == 1 or joined[-1].startswith(" ")
        if word == "'" and _is_apostrophe(before, alone, after, open_quotes):
            space, follows = False, not _possessive(before, after)
        elif word in _QUOTES and word == before:
            space, follows = False, tight
        elif word in _QUOTES:
            closes = word in open_quotes
            space, follows = not closes and not tight, _opens(word, open_quotes)
        elif word == "-" and (before == "-" or (last_of(before).isalnum() and after[:1].isalnum())):
            space, follows = False, after[:1].isalnum() and before != "-"
        else:
            space = not (tight or _touches(before, word, after) or _in_number(earlier, before, word))
            follows = word in _OPENING or word in _JOINING
        joined.append(f" {word}" if space else word)
        tight = follows
    return "".join(joined)


def joining_decoder(prefix: str) -> Any:
    """A decoder of the tokenizers library that spells word pieces nearly like `join_words`, for use in other libraries."""
    steps = [decoders.Replace(Regex(pattern), content) for pattern, content in _SUBSTITUTIONS]
    return decoders.Sequence([decoders.WordPiece(prefix=prefix, cleanup=False), decoders.Fuse(), *steps])


def _opens(word: str, open_quotes: set[str]) -> bool:
    """Whether the next word follows without a space; toggles the state of a quotation mark."""
    if word not in _QUOTES:
        return word in _OPENING or word in _JOINING
    open_quotes ^= {word}
    return word in open_quotes


def _is_apostrophe(before: str, alone: bool, after: str, open_quotes: set[str]) -> bool:
    """Whether a mark belongs to the word before it, as in it's, o'clock, the dogs' tails."""
    if not last_of(before).isalnum():
        return False
    if after.lower() in _CONTRACTED:
        return True
    elided = alone and before.lower() in _ELIDED and after[:1].isalpha()
    return "'" not in open_quotes and (elided or _possessive(before, after))


def _possessive(before: str, after: str) -> bool:
    return len(before) > 1 and before.endswith("s") and after.lower() not in _CONTRACTED


def _touches(before: str, word: str, after: str) -> bool:
    """Whether a word follows the previous word without a space."""
    if word in _CLOSING or word in _JOINING:
        return True
    if word == "(" and after == ")":
        return last_of(before).isalnum()
    if before in ("$", "#"):
        return word[:1].isdigit()
    if before == "@":
        return word[:1].isalnum()
    if IDEOGRAPH.match(before[-1:]) or IDEOGRAPH.match(word) or unicodedata.category(before[-1:]).startswith("P"):
        return bool(_WIDE.match(before[-1:]) and _WIDE.match(word))
    return False


def _in_number(earlier: str, before: str, word: str) -> bool:
    """Whether a word continues a number or initials after their point, comma or colon."""
    if before == "." and len(earlier) == len(word) == 1 and earlier.isalpha():
        return word.isalpha()
    if not (earlier.isdigit() and len(earlier) < 4 and word.isdigit()):
        return False
    return before == "." or (before == "," and len(word) == 3) or (before == ":" and len(word) == 2)
