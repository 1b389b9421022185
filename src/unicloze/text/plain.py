"""Encodes user text in which the names of special tokens are ordinary text.

Disabling special tokens is not enough if the model's own vocabulary holds them: a Unigram model encodes "</s>" as the
piece of that name. Here such pieces get names that no text can contain, with unchanged ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import tokenizers

_OUT_OF_REACH = "\ufdd0"
"""First character of renamed special tokens; a noncharacter, reserved by Unicode for internal use."""
_REPLACEMENT = "\ufffd"


class PlainText:
    """Encodes texts without special tokens, except masks on request.

    Args:
        backend: The tokenizer.
        special: Names of the special tokens.
        mask: Id and name of the mask.
        masks: Strings read as a mask by `encode_masked`.
        spaced: Whether tokens include the preceding space, so that a mask replaces that space too.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special: Iterable[str],
        mask: tuple[int, str],
        masks: Iterable[str],
        spaced: bool,
    ) -> None:
        names = sorted(set(special))
        self._mask = _OUT_OF_REACH + mask[1]
        self._masks = re.compile(f"{' ?' if spaced else ''}(?:{_any_of(masks)})")
        self._names = re.compile(f"{_OUT_OF_REACH}(?={_any_of(names)})")
        content = _out_of_reach(json.loads(backend.to_str()), set(names), mask)
        for added in content["added_tokens"]:
            if added["content"] == self._mask:
                added["lstrip"] = takes_white_space(backend, mask, spaced)
        self._backend = tokenizers.Tokenizer.from_str(json.dumps(content))

    def encode(self, texts: Iterable[str]) -> list[tokenizers.Encoding]:
        """Encode texts, with character offsets."""
        found: list[tokenizers.Encoding] = self._backend.encode_batch(self._guarded(texts), add_special_tokens=False)
        return found

    def encode_fast(self, texts: Iterable[str]) -> list[tokenizers.Encoding]:
        """Encode texts, without offsets."""
        guarded = self._guarded(texts)
        found: list[tokenizers.Encoding] = self._backend.encode_batch_fast(guarded, add_special_tokens=False)
        return found

    def encode_masked(self, text: str) -> tokenizers.Encoding:
        """Encode a text in which mask names are masks."""
        (guarded,) = self._guarded([text])
        return self._backend.encode(self._masks.sub(self._mask, guarded), add_special_tokens=False)

    def _guarded(self, texts: Iterable[str]) -> list[str]:
        """Replace the internal names of special tokens in texts."""
        return [self._names.sub(_REPLACEMENT, text) if _OUT_OF_REACH in text else text for text in texts]


def takes_white_space(backend: tokenizers.Tokenizer, mask: tuple[int, str], spaced: bool) -> bool:
    """Whether a mask consumes all white space before it rather than only the one space of the masked token.

    True if the tokenizer declares it, or if a normaliser prevents an exported tokenizer from consuming a single space, see
    `exported`; so both encode a text alike.
    """
    added = backend.get_added_tokens_decoder().get(mask[0])
    return (added is not None and bool(added.lstrip)) or (spaced and backend.normalizer is not None)


def _any_of(names: Iterable[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(set(names)))


def _out_of_reach(document: dict[str, Any], names: set[str], mask: tuple[int, str]) -> dict[str, Any]:
    """A `tokenizer.json` with unspellable special tokens; the mask always becomes an added token."""

    def renamed(token: str) -> str:
        return _OUT_OF_REACH + token if token in names else token

    model = dict(document["model"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {renamed(token): number for token, number in model["vocab"].items()}
    else:
        model["vocab"] = [[renamed(token), score] for token, score in model["vocab"]]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = renamed(model["unk_token"])
    if "merges" in model:
        prefix = model.get("continuing_subword_prefix") or ""
        pairs = [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
        model["merges"] = [pair for pair in pairs if not names & {*pair, pair[0] + pair[1].removeprefix(prefix)}]
    number, name = mask
    added = {token["id"]: token for token in document["added_tokens"]}
    added.setdefault(number, {"id": number, "content": name, "lstrip": False, "rstrip": False})
    tokens = [
        {**token, "content": renamed(token["content"]), "single_word": False, "normalized": False, "special": True}
        if token["content"] in names
        else token
        for _, token in sorted(added.items())
    ]
    return document | {"model": model, "added_tokens": tokens, "post_processor": None}
