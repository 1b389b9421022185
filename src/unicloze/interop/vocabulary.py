"""Loads other libraries' tokenizer files as our `Tokenizer`."""

from __future__ import annotations

from pathlib import Path

from unicloze.errors import UniclozeError
from unicloze.interop.checked_json import read_json
from unicloze.interop.weights import inside
from unicloze.run_files import TOKENIZER_CONFIG
from unicloze.settings import TokenizerSettings
from unicloze.text.merges import BYTE_VOCABULARY, MERGES
from unicloze.text.tokenizer_limits import LARGEST_FILE
from unicloze.text.tokenizers import Tokenizer


def read_tokenizer(folder: Path) -> tuple[Tokenizer, TokenizerSettings] | None:
    """The tokenizer of a checkpoint folder, and settings that load it again; None if it has none.

    Args:
        folder: Holds a `tokenizer.json`, a `vocab.txt`, or a `vocab.json` with `merges.txt`, and optionally a
            `tokenizer_config.json`.

    Raises:
        UniclozeError: A file is damaged, or contradicts another.
    """
    inside(folder, TOKENIZER_CONFIG)
    file = inside(folder, "tokenizer.json")
    if file is None:
        found = [path for name in sorted(folder.glob("*vocab.txt")) if (path := inside(folder, name.name)) is not None]
        if not found and inside(folder, MERGES) is not None and (pairs := inside(folder, BYTE_VOCABULARY)) is not None:
            found = [pairs]
        if len(found) != 1:
            return None
        file = found[0]
    return open_tokenizer(file)


def separators_in(path: str) -> int | None:
    """Number of tokens between two texts in the post-processor of a `tokenizer.json`; None if there is no such file."""
    if not path.endswith(".json") or Path(path).name == BYTE_VOCABULARY:
        return None
    processor = read_json(Path(path), largest=LARGEST_FILE).get("post_processor")
    parts = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    for part in parts if isinstance(parts, list) else []:
        kind, pair = (part.get("type"), part.get("pair")) if isinstance(part, dict) else (None, None)
        if kind == "RobertaProcessing":
            return 2
        if kind == "BertProcessing":
            return 1
        if kind == "TemplateProcessing" and isinstance(pair, list):
            texts = [place for place, piece in enumerate(pair) if isinstance(piece, dict) and "Sequence" in piece]
            return max(1, texts[1] - texts[0] - 1) if len(texts) == 2 else None
    return None


def open_tokenizer(path: str | Path) -> tuple[Tokenizer, TokenizerSettings]:
    """Load a tokenizer from a given file or folder, with settings that load it again.

    Raises:
        UniclozeError: It is missing or damaged, or its configuration contradicts it.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        found = read_tokenizer(file)
        if found is None:
            raise UniclozeError(f"{file} holds no tokenizer.json or vocab.txt: give a tokenizer file.")
        return found
    tokenizer = Tokenizer.load(file)
    settings = TokenizerSettings(path=str(file), vocab_size=max(16, len(tokenizer)), lowercase=tokenizer.lowercase)
    return tokenizer, settings
