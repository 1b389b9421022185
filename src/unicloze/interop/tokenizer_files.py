"""Writes tokenizer files for Transformers and pooling files for sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unicloze.arrays import Int64s
from unicloze.errors import UniclozeError
from unicloze.files import replace_file
from unicloze.text.tokenizers import Tokenizer


def padding_of(tokenizer: Tokenizer, wanted: int | None) -> tuple[int, tuple[int, int] | None]:
    """Padding id for a class that requires a certain one, and the two ids to swap for it.

    Args:
        tokenizer: The tokenizer.
        wanted: The required id; None if any.

    Returns:
        Their padding id, and None if no swap is needed because the id is an unused token such as [unused1], which then
        becomes the padding.
    """
    vocabulary = tokenizer.vocabulary
    if wanted is None:
        return vocabulary.pad, None
    has_role = {vocabulary.unk, vocabulary.sos, vocabulary.eos, vocabulary.mask, vocabulary.pseudo}
    free = {*vocabulary.special.tolist()} - has_role - {*vocabulary.extra.tolist()}
    return wanted, None if wanted in free else (vocabulary.pad, wanted)


def swapped_ids(size: int, swapped: tuple[int, int] | None) -> Int64s:
    """Their id of each of our ids, and vice versa. *Shape:* (size,)"""
    ids = np.arange(size, dtype=np.int64)
    if swapped is not None:
        ids[list(swapped)] = swapped[::-1]
    return ids


def write_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    swapped: tuple[int, int] | None = None,
    pad: int | None = None,
    longest: int,
    segments: Sequence[int] | None,
    separators: int = 1,
) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`, so that Transformers encodes a text and its masks as `fill` does.

    Args:
        tokenizer: The tokenizer.
        folder: Destination.
        swapped: Two ids to swap.
        pad: Their padding id; default: ours.
        longest: Largest number of tokens in a row.
        segments: `token_type_ids` of the two texts of a pair; None if the model takes none.
        separators: Number of [EOS] between these.

    Raises:
        UniclozeError: `swapped` is given, but the order of its tokens is fixed (Unigram).
    """
    tokenizer.save(folder)
    document, config = folder / "tokenizer.json", folder / "tokenizer_config.json"
    content = tokenizer.exported()
    ids = swapped_ids(tokenizer.vocabulary.size, swapped)
    if swapped is not None:
        _renumber(content, {number: int(ids[number]) for number in swapped})
    pair = content["post_processor"]["pair"]
    pair[3:3] = [json.loads(json.dumps(pair[2])) for _ in range(separators - 1)]
    for piece in pair:
        for part in piece.values():
            part["type_id"] = 0 if segments is None else segments[part["type_id"]]
    replace_file(document, json.dumps(content, ensure_ascii=False, indent=2))
    values = json.loads(config.read_text(encoding="utf-8"))
    if pad is not None:
        values["pad_token"] = tokenizer.tokens([int(ids[pad])])[0]
    asked = ["input_ids", *([] if segments is None else ["token_type_ids"]), "attention_mask"]
    values |= {"model_max_length": longest, "model_input_names": asked, "padding_side": "right"}
    replace_file(config, json.dumps(values, ensure_ascii=False, indent=2) + "\n")


def _renumber(content: dict[str, Any], new: Mapping[int, int]) -> None:
    """Renumber some ids of a `tokenizer.json`."""
    vocabulary = content["model"].get("vocab")
    if not isinstance(vocabulary, dict):
        raise UniclozeError(
            f"ids {' and '.join(map(str, new))} of the vocabulary would have to be swapped, because MPNet pads with one of "
            f"them, and a {content['model'].get('type')} model does not allow that: export it with --to unicloze"
        )
    # Tokens missing from the model's vocabulary would be numbered after it, whatever the file says.
    vocabulary = vocabulary | {added["content"]: added["id"] for added in content["added_tokens"]}
    content["model"]["vocab"] = {token: new.get(number, number) for token, number in vocabulary.items()}
    for added in content["added_tokens"]:
        added["id"] = new.get(added["id"], added["id"])
    content["added_tokens"].sort(key=lambda added: added["id"])
    for special in content["post_processor"]["special_tokens"].values():
        special["ids"] = [new.get(number, number) for number in special["ids"]]


def write_sentence_files(folder: Path, *, hidden_size: int, longest: int, pooling: str) -> None:
    """Write the files with which sentence-transformers pools as `embed` does: `modules.json` and the files it names.

    Args:
        folder: Destination.
        hidden_size: Width of a vector.
        longest: Largest number of tokens in a text; longer texts are truncated.
        pooling: The recipe's `use.pooling`.
    """
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    modes = {"first": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}
    flags = {f"pooling_mode_{mode}": name == pooling for name, mode in modes.items()}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    for name, content in (
        ("modules.json", modules),
        ("1_Pooling/config.json", {"word_embedding_dimension": hidden_size, **flags}),
        ("sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False}),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
