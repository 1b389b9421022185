"""Adjusts an exported `tokenizer.json` so that other libraries encode and decode text as unicloze does.

WordPiece vocabularies get a decoder that joins words. Where tokens include the preceding space, the space before a mask
belongs to the masked token: `fill` and training rows have no token for it, so an exported tokenizer removes it.
"""

from __future__ import annotations

import json
import re
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers

from unicloze.text.joining import joining_decoder
from unicloze.text.plain import takes_white_space


def dressed(backend: tokenizers.Tokenizer, *, mask: tuple[int, str], spaced: bool) -> dict[str, Any]:
    """The `tokenizer.json` to export."""
    document: dict[str, Any] = json.loads(backend.to_str())
    if isinstance(backend.model, models.WordPiece):
        document["decoder"] = _state(joining_decoder(backend.model.continuing_subword_prefix))
    if not spaced:
        return document
    changes = {"lstrip": True} if takes_white_space(backend, mask, spaced) else {"normalized": True}
    number, name = mask
    plain = {"id": number, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True}  # fmt: skip
    added = {token["id"]: token for token in document["added_tokens"]}
    added[number] = added.get(number, plain) | changes
    document["added_tokens"] = [token for _, token in sorted(added.items())]
    if "normalized" in changes:
        document["normalizer"] = _without_space(name)
    return document


def undressed(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Undo `dressed`; a tokenizer that was not exported is returned unchanged."""
    if isinstance(backend.model, models.WordPiece):
        prefix = backend.model.continuing_subword_prefix
        if backend.decoder is not None and _state(backend.decoder) == _state(joining_decoder(prefix)):
            backend.decoder = decoders.WordPiece(prefix=prefix, cleanup=False)
        return backend
    if backend.normalizer is None:
        return backend
    state = _state(backend.normalizer)
    names = [token.content for token in backend.get_added_tokens_decoder().values()]
    mask = next((name for name in names if state == _without_space(name)), None)
    if mask is None:
        return backend
    document = json.loads(backend.to_str()) | {"normalizer": None}
    for token in document["added_tokens"]:
        token["normalized"] &= token["content"] != mask
    return tokenizers.Tokenizer.from_str(json.dumps(document))


def _without_space(mask: str) -> dict[str, Any]:
    """A normaliser that removes one space before a mask."""
    return _state(normalizers.Replace(Regex(f" (?={re.escape(mask)})"), ""))


def _state(part: Any) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(part.__getstate__())
    return state
