"""A tokenizer for text that somebody wrote: the names of special tokens in it are text like any other.

That a tokenizer looks for no special tokens is not enough where its model's own vocabulary holds them: a Unigram model takes
"</s>" for the piece of that name. Here such pieces have names that no text holds, under the same ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import tokenizers

_OUT_OF_REACH = "\ufdd0"
"""Begins the names of special tokens; a noncharacter, which Unicode keeps for use inside programs."""
_REPLACEMENT = "\ufffd"


class PlainText:
    """Encodes texts in which nothing but masks, where asked for, stands for itself.

    Args:
        backend: The tokenizer.
        special: Names of the special tokens.
        mask: Id and name of the mask.
        masks: What is read as a mask where masks are read.
        spaced: Tokens hold the space before them, so that a mask stands for the one before it as well.
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
        """Tokens of each text, with their characters."""
        found: list[tokenizers.Encoding] = self._backend.encode_batch(self._guarded(texts), add_special_tokens=False)
        return found

    def encode_fast(self, texts: Iterable[str]) -> list[tokenizers.Encoding]:
        """Tokens of each text alone."""
        guarded = self._guarded(texts)
        found: list[tokenizers.Encoding] = self._backend.encode_batch_fast(guarded, add_special_tokens=False)
        return found

    def encode_masked(self, text: str) -> tokenizers.Encoding:
        """Tokens of a text whose masks are masks."""
        (guarded,) = self._guarded([text])
        return self._backend.encode(self._masks.sub(self._mask, guarded), add_special_tokens=False)

    def _guarded(self, texts: Iterable[str]) -> list[str]:
        """Texts that hold none of the names in use here."""
        return [self._names.sub(_REPLACEMENT, text) if _OUT_OF_REACH in text else text for text in texts]


def takes_white_space(backend: tokenizers.Tokenizer, mask: tuple[int, str], spaced: bool) -> bool:
    """Whether a mask takes all white space before it, and not just the one space that belongs to the masked token.

    It does where the tokenizer declares it so, and where a normaliser keeps an exported tokenizer from taking a single space,
    see `exported`: both read a text alike.
    """
    added = backend.get_added_tokens_decoder().get(mask[0])
    return (added is not None and bool(added.lstrip)) or (spaced and backend.normalizer is not None)


def _any_of(names: Iterable[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(set(names)))


def _out_of_reach(document: dict[str, Any], names: set[str], mask: tuple[int, str]) -> dict[str, Any]:
    """A `tokenizer.json` whose special tokens no text can spell; its mask is an added token, whatever it was."""

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
