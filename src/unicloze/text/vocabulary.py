"""What a vocabulary says of its ids: special tokens, word boundaries and ends of sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import models

from unicloze.errors import UniclozeError
from unicloze.text.boundaries import BYTE_LEVEL, SENTENCEPIECE, Boundaries, text_of
from unicloze.text.special_tokens import PSEUDO_NAMES, ROLES, STAND_INS

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
    special: npt.NDArray[np.int32]
    ordinary: npt.NDArray[np.int32]  # All other ids, sorted. *Shape:* (number of ordinary ids,)
    # Special ids without a fixed role, for sentinels and mode tokens. *Shape:* (number of them,)
    extra: npt.NDArray[np.int32]
    ends_sentence: npt.NDArray[np.bool_]  # Whether an id ends a sentence. *Shape:* (size,)
    boundaries: Boundaries  # decides whether a token continues the word before it

    @property
    def continues(self) -> npt.NDArray[np.bool_]:
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


def _marked(size: int, ids: Iterable[int]) -> npt.NDArray[np.bool_]:
    marks = np.zeros(size, dtype=bool)
    marks[list(ids)] = True
    return marks
