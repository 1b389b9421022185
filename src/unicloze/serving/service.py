"""Answers requests with a served model, whatever client they come from."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.decoding.generate import Candidate
from unicloze.decoding.likelihood import TextScore
from unicloze.serving.guard import Limits, Refused, check_texts
from unicloze.serving.served_model import Batcher, Blanks, FilledBlanks, ServedModel, room_for_source, stream, write
from unicloze.settings import Order, Pooling
from unicloze.tasks.task import Prediction
from unicloze.training.loading import LoadedModel

DOES = {
    "fill": "fill masks",
    "orders": "fill masks in an order",
    "score": "score texts",
    "generate": "generate text",
    "embed": "turn texts into vectors",
    "predict": "predict labels",
}
"""What each ability does, for messages."""


class Service:
    """A served model behind a queue.

    Args:
        model: The model.
        limits: Limits of requests.
    """

    def __init__(self, model: ServedModel, limits: Limits) -> None:
        self.model, self.limits = model, limits
        self.batcher = Batcher(limits.waiting)

    def need(self, ability: str) -> None:
        """Refuse what the model cannot do."""
        if ability not in self.model.abilities:
            *able, last = [DOES[one] for one in self.model.abilities]
            raise Refused(
                422, f"This model cannot {DOES[ability]}; it can {', '.join(able)}{' and ' * bool(able)}{last}."
            )

    async def embed(
        self, texts: Sequence[str], *, normalize: bool = False, truncate: bool = False, pooling: Pooling | None = None
    ) -> npt.NDArray[np.float32]:
        """The vectors of some texts. *Shape:* (texts, hidden size)"""
        check_texts(texts, self.limits.texts, self.limits.characters)
        work = partial(self.model.embed, pooling=pooling, truncate=truncate)
        vectors = np.stack(await self.batcher.ask(("embed", pooling, truncate), texts, work))
        if normalize:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
        return vectors

    async def score(self, texts: Sequence[str]) -> list[TextScore]:
        """The likelihood of some texts."""
        self.need("score")
        check_texts(texts, self.limits.texts, self.limits.careful_characters)
        return await self.batcher.ask("score", texts, self.model.score)

    async def fill(
        self,
        texts: Sequence[str],
        *,
        top_k: int = 5,
        order: Order | Sequence[int] | None = None,
        picture: bool = False,
    ) -> list[FilledBlanks]:
        """Fill the masks of some texts; texts of all waiting requests are filled together, each in its own order."""
        self.need("fill")
        if order is not None:
            self.need("orders")
        check_texts(texts, self.limits.texts, self.limits.careful_characters)
        masks = max(sum(text.count(mask) for mask in self.model.model.tokenizer.masks) for text in texts)
        if masks > self.limits.masks:
            raise Refused(
                413, f"The text has {masks} masks, but at most {self.limits.masks} are filled: leave some out."
            )
        blanks = [
            Blanks(asked=self.model.ready_to_fill(text, top_k=top_k, order=order), picture=picture) for text in texts
        ]
        return await self.batcher.ask("fill", blanks, self.model.fill, stepwise=True)

    async def predict(self, sources: Sequence[str | Sequence[str]]) -> list[Prediction]:
        """A prediction for each source; a source that has several texts is a list."""
        self.need("predict")
        check_texts(_parts(sources), self.limits.texts, self.limits.characters)
        records = [self.model.record(source) for source in sources]
        kinds = frozenset(len(record.fields) for record in records)
        return await self.batcher.ask(("predict", kinds), records, self.model.predict)

    async def write(
        self, sources: Sequence[str | Sequence[str]], decoding: Mapping[str, Any], *, truncate: bool = False
    ) -> list[list[Candidate]]:
        """Generated texts for each source, with settings of `decoding`."""
        model = self._writer(sources, decoding, truncate=truncate)
        records = [self.model.record(source) for source in sources]
        # What a text draws depends on the equal sources of its request, so requests that draw are computed alone.
        key = object() if model.recipe.decoding.sample else ("write", repr(dataclasses.astuple(model.recipe.decoding)))
        return await self.batcher.ask(key, records, partial(write, model), stepwise=True)

    def stream(
        self, source: str | Sequence[str], decoding: Mapping[str, Any], *, truncate: bool = False
    ) -> AsyncIterator[str | Candidate]:
        """The pieces of a generated text as they become final, then the whole text; see `write`."""
        model = self._writer([source], decoding, truncate=truncate)
        if model.recipe.decoding.num_results > 1:
            raise Refused(422, "Only one text can be streamed: ask for one, or do not stream.")
        record = self.model.record(source)
        return self.batcher.stream(record, lambda records: stream(model, records[0]))

    def _writer(
        self, sources: Sequence[str | Sequence[str]], decoding: Mapping[str, Any], *, truncate: bool
    ) -> LoadedModel:
        self.need("generate")
        check_texts(_parts(sources), self.limits.texts, self.limits.careful_characters)
        settings = dict(decoding)
        if settings.get("sample") and settings.get("seed") is None:
            settings["seed"] = secrets.randbelow(1 << 31)
        model = self.model.writer(settings)
        if not truncate:
            room, longest = room_for_source(model), model.recipe.decoding.max_length
            for source in sources:
                parts = _parts([source])
                count = self.model.count_tokens(parts) + len(parts) - 1
                if count > room:
                    raise Refused(
                        400,
                        f"The model reads and writes {room + longest} tokens at most, but the text has {count} and up to "
                        f"{longest} are to be written: shorten the text, or ask for fewer tokens.",
                        code="context_length_exceeded",
                    )
        return model


def _parts(sources: Sequence[str | Sequence[str]]) -> list[str]:
    return [text for source in sources for text in ([source] if isinstance(source, str) else source)]
