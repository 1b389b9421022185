"""The endpoints that clients of OpenAI's interface call: models, embeddings and completions."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from unicloze.decoding.generate import Candidate
from unicloze.errors import UniclozeError
from unicloze.serving.endpoints import as_json, as_list, as_numbers, begun, event
from unicloze.serving.limits import LONGEST_OUTPUT, MOST_TEXTS_OUT, Refused
from unicloze.serving.schemas import Texts
from unicloze.serving.service import Service

TOKENS = "input holds token ids, which belong to another model's vocabulary: send text."


class OpenAIRequest(BaseModel):
    """A request; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(description="Name of the model, as /v1/models lists it.")
    user: str | None = Field(None, description="Not used.")


class EmbeddingsRequest(OpenAIRequest):
    """Texts to turn into vectors of length 1."""

    input: Texts | list[int] | list[list[int]] = Field(description="A text, or a list of texts.")
    encoding_format: Literal["float", "base64"] = Field("float", description="base64: little-endian float32.")


class CompletionsRequest(OpenAIRequest):
    """Prompts to continue."""

    prompt: Texts = Field(description="A prompt, or a list of prompts.")
    max_tokens: int | None = Field(16, ge=1, le=LONGEST_OUTPUT)
    temperature: float | None = Field(1.0, ge=0, description="0 takes the most likely token each time.")
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(1, ge=1, le=MOST_TEXTS_OUT, description="Texts per prompt.")
    seed: int | None = Field(None, ge=0)
    stop: Texts | None = Field(None, description="The text ends before any of these.")
    stream: bool | None = False

    def decoding(self) -> dict[str, Any]:
        """Settings of `decoding`."""
        settings: dict[str, Any] = {"max_length": self.max_tokens or 16, "num_results": self.n or 1}
        temperature = 1.0 if self.temperature is None else self.temperature
        if temperature == 0:
            if (self.n or 1) > 1:
                raise Refused(422, "With temperature 0 all texts are the same: set n to 1, or raise the temperature.")
            return settings | {"beams": 1, "min_length": 0, "no_repeat_ngram": 0}
        drawn = {"sample": True, "temperature": temperature, "top_p": self.top_p, "seed": self.seed}
        return settings | {name: value for name, value in drawn.items() if value is not None}

    def stops(self) -> list[str]:
        """Texts that end the output."""
        return [text for text in as_list(self.stop or []) if text]


def router_of(service: Service) -> APIRouter:
    """The endpoints of a service."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])
    model = service.model
    created = int(time.time())
    described = {"id": model.name, "object": "model", "created": created, "owned_by": "unicloze"}

    def check_name(name: str) -> None:
        if name != model.name:
            raise Refused(404, f"There is no model '{name[:80]}' here: ask for '{model.name}'.")

    @router.get("/models", summary="The served model")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [described]}

    @router.get("/models/{name}", summary="The served model")
    async def model_of(name: str) -> dict[str, Any]:
        check_name(name)
        return described

    @router.post("/embeddings", summary="Vectors of texts")
    async def embeddings(request: EmbeddingsRequest) -> Response:
        check_name(request.model)
        texts = [request.input] if isinstance(request.input, str) else request.input
        words = [text for text in texts if isinstance(text, str)]
        if len(words) < len(texts):
            raise Refused(422, TOKENS)
        vectors = (await service.embed(words, normalize=True)).astype("<f4")
        tokens = model.count_tokens(words)
        coded: list[Any] = (
            as_numbers(vectors)
            if request.encoding_format == "float"
            else [base64.b64encode(np.ascontiguousarray(vector).tobytes()).decode() for vector in vectors]
        )
        return as_json(
            {
                "object": "list",
                "model": model.name,
                "data": [{"object": "embedding", "index": i, "embedding": one} for i, one in enumerate(coded)],
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    @router.post("/completions", summary="Continuations of prompts, or texts for sources")
    async def completions(request: CompletionsRequest) -> Response:
        check_name(request.model)
        prompts, stops = as_list(request.prompt), request.stops()
        head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }
        if request.stream:
            if len(prompts) != 1:
                raise Refused(422, "Only one prompt can be streamed: send one, or do not stream.")
            pieces = await begun(service.stream(prompts[0], request.decoding()))
            return StreamingResponse(_events(head, pieces, stops), media_type="text/event-stream")
        candidates = [one for texts in await service.write(prompts, request.decoding()) for one in texts]
        cut = [_cut(one, stops) for one in candidates]
        written = sum(model.count_spelled(one, len(text)) for one, (text, _) in zip(candidates, cut, strict=True))
        read = model.count_tokens(prompts)
        usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        choices = [_choice(i, *text) for i, text in enumerate(cut)]
        return as_json({**head, "choices": choices, "usage": usage})

    return router


def _choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": reason, "logprobs": None}


def _cut(candidate: Candidate, stops: Sequence[str]) -> tuple[str, str]:
    """A text up to the first stop text, and why it ends."""
    ends = [end for stop in stops if (end := candidate.text.find(stop)) >= 0]
    if ends:
        return candidate.text[: min(ends)], "stop"
    return candidate.text, "stop" if candidate.ended else "length"


async def _events(
    head: dict[str, Any], pieces: AsyncIterator[str | Candidate], stops: Sequence[str]
) -> AsyncIterator[str]:
    """Chunks of a completion. What may be the beginning of a stop text is held back until the text goes on."""
    held = max(map(len, stops), default=1) - 1
    text, sent = "", 0
    try:
        async for piece in pieces:
            reason = None
            if isinstance(piece, Candidate):
                text, reason = _cut(piece, stops)
                end = len(text)
            else:
                text += piece
                ends = [end for stop in stops if (end := text.find(stop)) >= 0]
                reason = "stop" if ends else None
                end = min(ends) if ends else len(text) - held
            if end > sent or reason:
                yield event({**head, "choices": [_choice(0, text[sent : max(end, sent)], reason)]})
                sent = max(end, sent)
            if reason:
                break
    except (UniclozeError, Refused) as error:
        yield event({"error": {"message": str(error), "type": "server_error", "param": None, "code": None}})
    yield "data: [DONE]\n\n"
