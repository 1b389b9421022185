"""Files of tokenizers: limits on `tokenizer.json`, GPT-2's two files, and configurations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers

from unicloze.errors import UniclozeError
from unicloze.files import TOKENIZER_CONFIG, read_bytes

LARGEST_FILE = 2**28
"""Largest file in bytes; common ones have at most some ten million."""
LARGEST_ID = 2**22
"""Largest token id; embedding tables have a row for every id up to the largest."""
MOST_PARTS = 64
"""Most components of a normaliser, pre-tokeniser or decoder, nested ones included."""
MOST_GROWTH = 1000.0
"""Largest factor by which all replacements together may lengthen a text."""
LONGEST_PATTERN = 2_000
"""Longest regular expression, in characters."""
_NEED_UNKNOWN = {"WordPiece", "WordLevel"}
"""Models that cannot read an unknown word without a token for it."""
_REPEATED = re.compile(r"\((?:\?[a-z]*:)?(?:\\.|\[[^\]]*\]|[^()\[\]\\|])[+*](?:\|[^()]*)?\)[+*{]")
"""A repeated group that is itself a repetition, such as `(a+)+`: matching time may double with each character."""


def beyond_bounds(document: Any) -> str | None:
    """Describe the first limit that a `tokenizer.json` exceeds; None if it exceeds none.

    Malformed content is left for the library to reject.
    """
    if not isinstance(document, dict):
        return None
    model, added = document.get("model"), document.get("added_tokens")
    model = model if isinstance(model, dict) else {}
    vocabulary = model.get("vocab")
    ids = [*vocabulary.values()] if isinstance(vocabulary, dict) else []
    ids += [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    for number in ids:
        if isinstance(number, int) and not 0 <= number <= LARGEST_ID:
            return f"it has the id {number:,}, above {LARGEST_ID:,}"
    if isinstance(vocabulary, dict):
        if len(set(map(str, vocabulary.values()))) < len(vocabulary):
            return "two of its tokens share an id"
        unknown = model.get("unk_token")
        if model.get("type") in _NEED_UNKNOWN and isinstance(unknown, str) and unknown not in vocabulary:
            return f"its vocabulary lacks its token of unknown words, {unknown!r}"
    for section in ("normalizer", "pre_tokenizer", "decoder"):
        parts = list(_parts(document.get(section), 0))
        if len(parts) > MOST_PARTS:
            return f"its {section} has {len(parts):,} parts or more (limit {MOST_PARTS})"
        growth = 1.0
        for part in parts:
            pattern = part.get("pattern")
            growth *= _growth(part, pattern)
            expression = pattern.get("Regex") if isinstance(pattern, dict) else None
            if isinstance(expression, str) and len(expression) > LONGEST_PATTERN:
                return f"its {section} has a pattern of {len(expression):,} characters (limit {LONGEST_PATTERN:,})"
            if isinstance(expression, str) and _REPEATED.search(expression):
                return f"its {section} has a nested repetition in the pattern {expression[:60]!r}, which may hang"
        if growth > MOST_GROWTH:
            return f"its {section} may make a text {growth:,.0f} times longer (limit {MOST_GROWTH:.0f})"
    return None


def _parts(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    """All components of a section, nested ones included, down to depth `MOST_PARTS`."""
    if isinstance(value, dict) and depth <= MOST_PARTS:
        if "type" in value:
            yield value
        for inner in value.values():
            yield from _parts(inner, depth + 1) if isinstance(inner, dict | list) else ()
    elif isinstance(value, list):
        for inner in value:
            yield from _parts(inner, depth)


def _growth(part: dict[str, Any], pattern: Any) -> float:
    """Largest factor by which a replacement may lengthen a text."""
    content = part.get("content")
    if part.get("type") != "Replace" or not isinstance(content, str):
        return 1.0
    plain = pattern.get("String") if isinstance(pattern, dict) else None
    return max(1.0, len(content) / len(plain)) if isinstance(plain, str) and plain else 1.0 + len(content)


BYTE_VOCABULARY, MERGES = "vocab.json", "merges.txt"


def byte_level(vocabulary: Any, file: Path, special: Iterable[str], prefix_space: bool) -> dict[str, Any]:
    """The `tokenizer.json` of a byte-level vocabulary."""
    if not isinstance(vocabulary, dict) or not all(type(number) is int for number in vocabulary.values()):
        raise UniclozeError(f"{file} does not give every token a number: download it again.")
    named = [token for token in dict.fromkeys(special) if token in vocabulary]
    byte = {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocabulary[token], "content": token, "single_word": False, "lstrip": "mask" in token, "rstrip": False,
             "normalized": False, "special": True}
            for token in sorted(named, key=vocabulary.__getitem__)
        ],
        "normalizer": None,
        "pre_tokenizer": byte,
        "post_processor": None,
        "decoder": byte,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": _merges(file.with_name(MERGES))},
    }  # fmt: skip


def read_lines(file: Path) -> list[str]:
    """The lines of a vocabulary in UTF-8."""
    try:
        return [line.removesuffix("\r") for line in read_bytes(file, LARGEST_FILE).decode().split("\n")]
    except UnicodeDecodeError as error:
        raise UniclozeError(
            f"{file} is not valid UTF-8 at byte {error.start}: download it again, or give another --tokenizer.path."
        ) from error


def _merges(file: Path) -> list[str]:
    """The pairs of a `merges.txt`, in their order."""
    if not file.is_file():
        raise UniclozeError(f"There is no file {file}, which belongs to {BYTE_VOCABULARY}: copy it there.")
    pairs = []
    for number, pair in enumerate(read_lines(file), start=1):
        if not pair or (number == 1 and pair.startswith("#version")):
            continue
        if len(pair.split(" ")) != 2:
            raise UniclozeError(f"{file}:{number} is not a pair of tokens: download it again.")
        pairs.append(pair)
    return pairs


KEYS = {"pad": "pad_token", "unk": "unk_token", "sos": "cls_token", "eos": "sep_token", "mask": "mask_token"}
"""Configuration key of each role's token."""
PREFIX_SPACE = "add_prefix_space"
LOWERCASE, ACCENTS, IDEOGRAPHS = "do_lower_case", "strip_accents", "tokenize_chinese_chars"
"""Keys of text normalisation."""
_GENERIC = "PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend"
"""Classes of Transformers that use a `tokenizer.json` unchanged."""


@dataclass(frozen=True)
class TokenizerConfig:
    """A `tokenizer_config.json`."""

    path: Path  # the file
    values: Mapping[str, Any]  # its content; empty without such a file

    @classmethod
    def beside(cls, file: Path) -> TokenizerConfig:
        """Read the configuration in the folder of a tokenizer file."""
        path = file.with_name(TOKENIZER_CONFIG)
        if not path.is_file():
            return cls(path, {})
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UniclozeError(f"{path} cannot be read as JSON ({error}): fix or remove it.") from error
        if not isinstance(values, dict):
            raise UniclozeError(f"{path} is not a JSON object: fix or remove it.")
        return cls(path, values)

    def roles(self) -> dict[str, str]:
        """Token of each role it names."""
        named = {role: self.values.get(key) for role, key in KEYS.items()}
        named = {role: token.get("content") if isinstance(token, dict) else token for role, token in named.items()}
        return {role: token for role, token in named.items() if isinstance(token, str)}

    @property
    def adds_prefix_space(self) -> bool:
        """Whether the first word of a text is spelled like those after a space (byte-level vocabularies)."""
        return bool(self._flag(PREFIX_SPACE))

    def normalizer(self, vocabulary: Iterable[str]) -> normalizers.Normalizer:
        """Normalizer for a `vocab.txt`: lower-casing as configured, else if no word has a capital."""
        lowercase = self._flag(LOWERCASE)
        if lowercase is None:
            lowercase = all(word == word.lower() for word in vocabulary if not word.startswith(("[", "<")))
        accents, ideographs = self._flag(ACCENTS), self._flag(IDEOGRAPHS)
        return normalizers.BertNormalizer(
            lowercase=lowercase,
            strip_accents=lowercase if accents is None else accents,
            handle_chinese_chars=ideographs is not False,
        )

    def check(self, backend: tokenizers.Tokenizer, file: Path) -> None:
        """Reject a `tokenizer.json` whose normalisation contradicts the configuration.

        Transformers follows the configuration if its class supports these keys, else the file.
        """
        name = str(self.values.get("tokenizer_class"))
        takes = isinstance(backend.model, models.WordPiece) and name not in _GENERIC
        if not takes and not name.startswith("AlbertTokenizer"):
            return

        def made(text: str) -> str:
            return text if backend.normalizer is None else str(backend.normalizer.normalize_str(text))

        does = {
            LOWERCASE: ("lower-case", made("A") == "a"),
            ACCENTS: ("strip accents", made("\u00e9") == "e"),
            IDEOGRAPHS: ("set ideographs apart", made("\u4e2d") != "\u4e2d"),
        }
        for key, (what, done) in does.items():
            if key == IDEOGRAPHS and not isinstance(backend.model, models.WordPiece):
                continue
            if (said := self._flag(key)) is not None and said != done:
                raise UniclozeError(
                    f"{self.path}: {key} is {str(said).lower()}, but {file} does {'' if done else 'not '}{what}: correct "
                    "whichever differs from how the model was trained."
                )

    def _flag(self, key: str) -> bool | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise UniclozeError(f"{self.path}: {key} is {str(value)[:60]}: give true or false.")
        return value
