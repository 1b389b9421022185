"""Reads the `tokenizer_config.json` next to a vocabulary or `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers

from unicloze.errors import UniclozeError
from unicloze.run_files import TOKENIZER_CONFIG

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
