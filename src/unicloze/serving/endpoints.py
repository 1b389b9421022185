"""The server's own endpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from unicloze.decoding.generate import Candidate
from unicloze.errors import UniclozeError
from unicloze.serving.limits import Refused
from unicloze.serving.schemas import (
    EmbedRequest,
    ErrorAnswer,
    FillAnswer,
    FillRequest,
    GenerateAnswer,
    GenerateRequest,
    Health,
    PredictAnswer,
    PredictRequest,
    ScoreAnswer,
    ScoreRequest,
    Texts,
)
from unicloze.serving.service import Service
from unicloze.version import __version__

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": what}
    for status, what in {
        401: "The token is missing or wrong.",
        408: "The request took too long.",
        413: "The request is too large.",
        422: "The request is invalid, or the model cannot do it.",
        429: "Too many requests wait.",
    }.items()
}


def as_json(content: Any) -> Response:
    """An answer as JSON; numbers that JSON cannot represent are null."""
    return Response(to_json(content, inf_nan_mode="null"), media_type="application/json")


def as_numbers(vectors: npt.NDArray[np.float32]) -> list[list[float]]:
    """Vectors as lists of numbers of 9 digits, which are enough to restore a float32; its exact value has up to 17."""
    exact = vectors.astype(np.float64)
    exponents = np.floor(np.log10(np.abs(exact), out=np.zeros_like(exact), where=exact != 0))
    scale = 10.0 ** (8 - exponents)
    rounded: list[list[float]] = (np.rint(exact * scale) / scale).tolist()
    return rounded


def as_list(texts: Texts) -> list[str]:
    """One text or several as a list."""
    return [texts] if isinstance(texts, str) else texts


async def begun(pieces: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The same pieces, after the first has arrived, so that an error before it can still be answered as one."""
    first = await anext(pieces)

    async def all_pieces() -> AsyncIterator[Any]:
        yield first
        async for piece in pieces:
            yield piece

    return all_pieces()


def event(content: Any) -> str:
    """A server-sent event."""
    return f"data: {to_json(content, inf_nan_mode='null').decode()}\n\n"


def router_of(service: Service) -> APIRouter:
    """The endpoints of a service."""
    router = APIRouter(responses=ERRORS)
    model = service.model

    @router.get("/health", summary="State of the server, and what its model can do", tags=["unicloze"])
    async def health() -> Health:
        return Health(
            status="ok",
            version=__version__,
            model=model.name,
            task=model.task,
            abilities=list(model.abilities),
            offers=list(model.offers),
            reads=list(model.reads),
            example=model.example,
            longest_text=model.longest,
            vectors=model.vectors.precision,
            waiting=service.batcher.waiting,
        )

    @router.post("/fill", summary="Fill the masks of a text", tags=["unicloze"], response_model=FillAnswer)
    async def fill(request: FillRequest) -> Response:
        (found,) = await service.fill([request.text], top_k=request.top_k, order=request.order, picture=request.picture)
        picture = None if found.picture is None else dataclasses.asdict(found.picture)
        return as_json({**found.result.to_dict(), "picture": picture})

    @router.post("/score", summary="Log-likelihoods of texts", tags=["unicloze"], response_model=ScoreAnswer)
    async def score(request: ScoreRequest) -> Response:
        return as_json({"scores": [one.to_dict() for one in await service.score(as_list(request.text))]})

    @router.post("/generate", summary="Generate a text", tags=["unicloze"], response_model=GenerateAnswer)
    async def generate(request: GenerateRequest) -> Response:
        decoding = request.decoding()
        if request.stream:
            pieces = await begun(service.stream(request.text, decoding, truncate=request.truncate))
            return StreamingResponse(_events(pieces), media_type="text/event-stream")
        (texts,) = await service.write([request.text], decoding, truncate=request.truncate)
        return as_json({"texts": [_generated(one) for one in texts]})

    @router.post("/predict", summary="Predict with a fine-tuned model", tags=["unicloze"], response_model=PredictAnswer)
    async def predict(request: PredictRequest) -> Response:
        (prediction,) = await service.predict([request.text])
        return as_json(prediction)

    @router.post(
        "/embed",
        summary="Vectors of texts, as Text Embeddings Inference answers",
        tags=["unicloze"],
        response_model=list[list[float]],
    )
    async def embed(request: EmbedRequest) -> Response:
        vectors = await service.embed(
            as_list(request.inputs), normalize=request.normalize, truncate=request.truncate, pooling=request.pooling
        )
        return as_json(as_numbers(vectors))

    return router


def _generated(candidate: Candidate) -> dict[str, Any]:
    return {
        "text": candidate.text,
        "log_probability": candidate.log_probability,
        "score": candidate.score,
        "ended": candidate.ended,
    }


async def _events(pieces: AsyncIterator[str | Candidate]) -> AsyncIterator[str]:
    """Pieces of a text as events `{"piece": ...}`, then `{"done": ...}`; an error after the first piece is the last event."""
    try:
        async for piece in pieces:
            yield event({"piece": piece} if isinstance(piece, str) else {"done": _generated(piece)})
    except (UniclozeError, Refused) as error:
        yield event({"error": str(error)})
