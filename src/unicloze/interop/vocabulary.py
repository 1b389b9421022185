"""Other people's tokenizer files as our `Tokenizer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError
from unicloze.interop.config import read_json
from unicloze.interop.weights import inside
from unicloze.settings import TokenizerSettings
from unicloze.text.tokenizers import Tokenizer

CONFIG = "tokenizer_config.json"


def read_tokenizer(folder: Path) -> tuple[Tokenizer, TokenizerSettings] | None:
    """The tokenizer of a checkpoint's folder, and the settings that load it again; None if it holds none.

    Args:
        folder: Holds a `tokenizer.json`, or a `vocab.txt` with or without a `tokenizer_config.json` that says how to use it.

    Raises:
        UniclozeError: A file is damaged, or asks for what no tokenizer here does.
    """
    inside(folder, CONFIG)
    file = inside(folder, "tokenizer.json")
    if file is None:
        found = [path for name in sorted(folder.glob("*vocab.txt")) if (path := inside(folder, name.name)) is not None]
        if len(found) != 1:
            return None
        file = found[0]
    return open_tokenizer(file)


def open_tokenizer(path: str | Path) -> tuple[Tokenizer, TokenizerSettings]:
    """A tokenizer of a file or folder that somebody named, and the settings that load it again.

    Raises:
        UniclozeError: It is not there, damaged, or asks for what no tokenizer here does.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        found = read_tokenizer(file)
        if found is None:
            raise UniclozeError(f"{file} holds no tokenizer.json or vocab.txt: give the file of a tokenizer.")
        return found
    lowercase = True
    if file.is_file() and file.suffix != ".json":
        config = file.with_name(CONFIG)
        lowercase = _lowercase(file, read_json(config) if config.is_file() else {})
    tokenizer = Tokenizer.load(file, lowercase=lowercase)
    return tokenizer, TokenizerSettings(path=str(file), vocab_size=max(16, len(tokenizer)), lowercase=lowercase)


def _lowercase(vocabulary: Path, config: dict[str, Any]) -> bool:
    """Whether a `vocab.txt` is for text in lower case: as its configuration says, else by whether it has capitals."""
    place = vocabulary.with_name(CONFIG)
    lowercase = config.get("do_lower_case")
    if not isinstance(lowercase, bool):
        lowercase = not _has_capitals(vocabulary)
    if config.get("strip_accents") not in (None, lowercase):
        raise UniclozeError(
            f"{place}: strip_accents is {config['strip_accents']} and do_lower_case is not: save the tokenizer as "
            "tokenizer.json"
        )
    if config.get("tokenize_chinese_chars", True) is not True:
        raise UniclozeError(f"{place}: tokenize_chinese_chars is off: save the tokenizer as tokenizer.json")
    return lowercase


def _has_capitals(vocabulary: Path) -> bool:
    try:
        words = vocabulary.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        return False  # Tokenizer.load tells of it
    return any(word != word.lower() for word in words if not word.startswith(("[", "<")))
