"""The endpoints that clients of other servers call.

Clients of OpenAI's interface get models, embeddings and completions. Hugging Face's `InferenceClient` calls `POST /`, and the
answer follows from what the model can do: a fine-tuned model predicts or generates. Any other model fills masks if the input
has one; without a mask it generates if the request has `parameters`, which the client sends for everything but vectors, and
otherwise turns the input into vectors.
"""

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
from unicloze.serving.endpoints import ERRORS, Texts, as_json, as_list, as_numbers, begun, event
from unicloze.serving.guard import LONGEST_OUTPUT, MOST_CANDIDATES, MOST_TEXTS_OUT, Refused
from unicloze.serving.service import Service
from unicloze.tasks.task import Prediction

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


def openai_router(service: Service) -> APIRouter:
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
            return StreamingResponse(_completion_events(head, pieces, stops), media_type="text/event-stream")
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


async def _completion_events(
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


class Parameters(BaseModel):
    """Parameters of a request; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid")

    top_k: int | None = Field(None, ge=1, le=MOST_CANDIDATES, description="Candidates per mask, or classes.")
    max_new_tokens: int | None = Field(
        None, ge=1, le=LONGEST_OUTPUT, description="Maximum number of tokens to generate."
    )


class InferenceRequest(BaseModel):
    """A request of `InferenceClient`; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")

    inputs: Texts = Field(description="A text, or a list of texts.")
    parameters: Parameters | None = Field(None, description="Given for everything but vectors.")
    normalize: bool = Field(False, description="Scale each vector to length 1.")
    truncate: bool = Field(False, description="Read only the beginning of a text that is too long.")


def hugging_face_router(service: Service) -> APIRouter:
    """The endpoint of a service."""
    router = APIRouter(responses=ERRORS, tags=["Hugging Face"])
    model = service.model

    @router.post("/", summary="What the model does with a text, in the form of Hugging Face's inference client")
    async def infer(request: InferenceRequest) -> Response:
        texts, given = as_list(request.inputs), request.parameters or Parameters(top_k=None, max_new_tokens=None)
        alone = isinstance(request.inputs, str)
        if "predict" in model.abilities:
            predictions = await service.predict(texts)
            if not request.truncate and any("truncated" in one for one in predictions):
                raise Refused(
                    400,
                    f"A text is longer than the rows of {model.model.recipe.task.max_length} tokens that the model reads: "
                    "shorten it, or set truncate.",
                    code="context_length_exceeded",
                )
            return as_json([_classes(one, given.top_k) for one in predictions])
        masks = model.model.tokenizer.masks
        has_mask = "fill" in model.abilities and any(mask in text for text in texts for mask in masks)
        writes = "generate" in model.abilities and request.parameters is not None and given.top_k is None
        if model.task == "generation" or given.max_new_tokens is not None or (writes and not has_mask):
            decoding = {} if given.max_new_tokens is None else {"max_length": given.max_new_tokens}
            written = await service.write(texts, decoding, truncate=request.truncate)
            names = ["generated_text"] + ["summary_text", "translation_text"] * (model.task == "generation")
            return as_json([dict.fromkeys(names, candidates[0].text) for candidates in written])
        if has_mask:
            return as_json(await _filled(service, texts, given.top_k or 5, alone=alone))
        if request.parameters is not None:
            raise Refused(422, f"The text has no mask: put {masks[0]} in place of a word.")
        return as_json(as_numbers(await service.embed(texts, normalize=request.normalize, truncate=request.truncate)))

    return router


def _classes(prediction: Prediction, top_k: int | None) -> Any:
    """The classes of a text with their probabilities, the most likely first; other predictions as they are."""
    shares = prediction.get("probabilities")
    if not isinstance(shares, dict):
        return prediction
    classes = sorted(shares.items(), key=lambda pair: -pair[1])
    return [{"label": label, "score": share} for label, share in classes[:top_k]]


async def _filled(service: Service, texts: list[str], top_k: int, *, alone: bool) -> list[Any]:
    """Candidates of each mask: a list per text unless it is alone, and one per mask if a text has several."""
    answers: list[Any] = []
    for found in await service.fill(texts, top_k=top_k):
        result = found.result
        lists = []
        for number, mask in enumerate(result.masks):
            before, after = result.text[: mask.start], result.text[mask.end :]
            lists.append(
                [
                    {"score": share, "token": token, "token_str": word, "sequence": _joined(before, word) + after}
                    for token, word, (_, share) in zip(found.ids[number], mask.readable, mask.top, strict=True)
                ]
            )
        answers.append(lists[0] if len(lists) == 1 else lists)
    return list(answers[0]) if alone else answers


def _joined(before: str, word: str) -> str:
    """A text with a word, or a piece of one, after it."""
    return before.rstrip() + word[2:] if word.startswith("##") and len(word) > 2 else before + word
