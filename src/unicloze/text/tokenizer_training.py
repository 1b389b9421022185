"""Trains WordPiece and byte-level BPE."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from unicloze.errors import UsageError
from unicloze.settings import TokenizerSettings
from unicloze.text.special_tokens import ROLES, UNK, special_tokens

_LARGEST_ALPHABET = 1000


def wordpiece(vocabulary: dict[str, int], special: Sequence[str], normalizer: Any) -> tokenizers.Tokenizer:
    """A WordPiece tokenizer of BERT's kind."""
    unknown = next((token for token in ROLES["unk"] if token in vocabulary), UNK)
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    backend.add_special_tokens(list(special))
    return backend


def train_wordpiece(texts: Iterable[str], settings: TokenizerSettings) -> tokenizers.Tokenizer:
    """Train WordPiece; arguments and errors as of `Tokenizer.train`."""
    case = normalizers.BertNormalizer(lowercase=settings.lowercase, strip_accents=settings.strip_accents)
    normalizer = normalizers.Sequence([normalizers.NFC(), case])  # accents may be precomposed or separate
    scaffold = wordpiece({UNK: 0}, [UNK], normalizer)
    alphabet = _alphabet(texts, scaffold.normalizer, settings.vocab_size)
    # The trainer numbers single-character pieces in hash-map order, which decides ties between merges: two trainings on the
    # same texts would differ unless all these pieces are given beforehand.
    given = [*special_tokens(settings), *alphabet, *(f"##{character}" for character in alphabet)]
    _check_size(settings.vocab_size, len(given) + 1)
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=2,
        special_tokens=given,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    scaffold.train_from_iterator(texts, trainer)
    return wordpiece(scaffold.get_vocab(with_added_tokens=False), special_tokens(settings), normalizer)


def train_bpe(texts: Iterable[str], settings: TokenizerSettings) -> tokenizers.Tokenizer:
    """Train byte-level BPE; arguments and errors as of `Tokenizer.train`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _check_size(settings.vocab_size, len(special_tokens(settings)) + len(alphabet) + 1)
    backend = tokenizers.Tokenizer(models.BPE(unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=2,
        special_tokens=special_tokens(settings),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _alphabet(texts: Iterable[str], normalizer: Any, vocab_size: int) -> list[str]:
    """The most frequent characters after normalisation, sorted: those that make up 99.99 % of the text.

    There are at most 1,000, and with their "##" pieces at most half of the vocabulary; raises a `UsageError` if they cover
    less than 98 % of the text.
    """
    counts = np.zeros(0x110000, dtype=np.int64)
    for text in texts:
        composed = unicodedata.normalize("NFC", text)  # the only step that looks beyond one character
        codes, numbers = np.unique(np.frombuffer(composed.encode("utf-32-le"), dtype=np.uint32), return_counts=True)
        counts[codes] += numbers
    normalised: Counter[str] = Counter()
    for code in np.flatnonzero(counts):
        for character in normalizer.normalize_str(chr(code)):
            if not character.isspace():
                normalised[character] += int(counts[code])
    frequent = sorted(normalised, key=lambda character: (-normalised[character], character))
    covered = np.cumsum([normalised[character] for character in frequent]) / max(1, normalised.total())
    needed, wanted = (min(int((covered < share).sum()) + 1, _LARGEST_ALPHABET) for share in (0.98, 0.9999))
    _check_size(vocab_size, 4 * min(needed, len(frequent)))
    return sorted(frequent[: min(wanted, vocab_size // 4)])


def _check_size(vocab_size: int, least: int) -> None:
    if vocab_size < least:
        raise UsageError(f"tokenizer.vocab_size is {vocab_size}, too small for this text: give at least {least}.")
