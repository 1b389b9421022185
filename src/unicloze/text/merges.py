"""Reads GPT-2's form of a byte-level vocabulary, `vocab.json` and `merges.txt`, as a `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unicloze.bounded import read_bytes
from unicloze.errors import UniclozeError
from unicloze.text.tokenizer_limits import LARGEST_FILE

BYTE_VOCABULARY, MERGES = "vocab.json", "merges.txt"


def byte_level(vocabulary: Any, file: Path, *, special: Iterable[str], prefix_space: bool) -> dict[str, Any]:
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


def _merges(file: Path) -> list[str]:
    """The pairs of a `merges.txt`, in their order."""
    if not file.is_file():
        raise UniclozeError(f"There is no file {file}, which belongs to {BYTE_VOCABULARY}: copy it there.")
    try:
        lines = read_bytes(file, LARGEST_FILE).decode().split("\n")
    except UnicodeDecodeError as error:
        raise UniclozeError(f"{file} is not valid UTF-8 at byte {error.start}: download it again.") from error
    pairs = []
    for number, line in enumerate(lines, start=1):
        pair = line.removesuffix("\r")
        if not pair or (number == 1 and pair.startswith("#version")):
            continue
        if len(pair.split(" ")) != 2:
            raise UniclozeError(f"{file}:{number} is not a pair of tokens: download it again.")
        pairs.append(pair)
    return pairs
