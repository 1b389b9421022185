"""The server's own endpoints, their requests and their answers."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import AsyncIterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic_core import to_json

from unicloze import docstrings
from unicloze.decoding.generate import Candidate
from unicloze.decoding.infill import FillResult
from unicloze.decoding.likelihood import TextScore
from unicloze.errors import UniclozeError
from unicloze.serving.guard import LONGEST_OUTPUT, MOST_CANDIDATES, MOST_TEXTS_OUT, Refused
from unicloze.serving.served_model import MaskPicture
from unicloze.serving.service import Service
from unicloze.settings import Order, Pooling
from unicloze.version import __version__

Texts = str | list[str]


class Request(BaseModel):
    """A request; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class FillRequest(Request):
    """A text whose masks are filled."""

    text: str = Field(description="Text with [MASK] for each missing token.", examples=["Return a [MASK] of the list."])
    top_k: int = Field(5, ge=1, le=MOST_CANDIDATES, description="Number of candidates per mask.")
    order: Order | list[int] | None = Field(
        None,
        description="Fill one mask after the other in this order, which may also be the masks' numbers, the leftmost being "
        "1; default: all at once.",
    )
    picture: bool = Field(False, description="Also draw the mask picture of the order, as SVG.")


class ScoreRequest(Request):
    """Texts to score."""

    text: Texts = Field(description="A text, or a list of texts.", examples=["Return a copy of the list."])


class GenerateRequest(Request):
    """A source to generate from."""

    text: Texts = Field(
        description="A source or a prompt; a list if the source has several parts.", examples=["Return a copy of the"]
    )
    stream: bool = Field(False, description="Send server-sent events: pieces of the text as they become final.")
    truncate: bool = Field(False, description="Read only a part of a text that is too long; otherwise it is refused.")
    max_length: int | None = Field(None, ge=1, le=LONGEST_OUTPUT, description="Maximum number of tokens.")
    min_length: int | None = Field(None, ge=0, le=LONGEST_OUTPUT, description="Minimum number of tokens.")
    beams: int | None = Field(None, ge=1, le=MOST_TEXTS_OUT, description="Beam size; 1 is greedy.")
    length_penalty: float | None = Field(None, description="Exponent of the length penalty of a beam search.")
    no_repeat_ngram: int | None = Field(None, ge=0, description="No sequence of this many tokens occurs twice.")
    sample: bool | None = Field(None, description="Draw tokens instead of searching.")
    temperature: float | None = Field(None, description="Divisor of the logits before drawing.")
    top_k: int | None = Field(None, ge=1, description="Draw from this many most likely tokens.")
    top_p: float | None = Field(None, description="Draw from the fewest tokens with this total probability.")
    seed: int | None = Field(None, ge=0, description="Seed of drawing; default: another one each time.")
    num_results: int | None = Field(None, ge=1, le=MOST_TEXTS_OUT, description="Number of texts.")

    def decoding(self) -> dict[str, Any]:
        """The given settings of `decoding`."""
        return self.model_dump(exclude={"text", "stream", "truncate"}, exclude_none=True)


class PredictRequest(Request):
    """A text to label."""

    text: Texts = Field(
        description="A text; a list if the model reads several, such as a passage and a question.",
        examples=["A text to classify."],
    )


class EmbedRequest(Request):
    """Texts to turn into vectors, as Text Embeddings Inference reads them."""

    inputs: Texts = Field(description="A text, or a list of texts.", examples=[["Return a copy of the list."]])
    normalize: bool = Field(True, description="Scale each vector to length 1.")
    truncate: bool = Field(
        False, description="Read only the beginning of a text that is too long; otherwise all its windows are averaged."
    )
    pooling: Pooling | None = Field(None, description="How states become a vector; default: as the model was trained.")
    truncation_direction: Literal["right", "Right"] = Field("right", description="Only the end can be cut off.")


def answer_model(name: str, of: type, /, **more: Any) -> type[BaseModel]:
    """The fields of a dataclass as an answer, with the descriptions of its docstring."""
    hints = typing.get_type_hints(of)
    fields: dict[str, Any] = {
        key: (_answer_type(hints[key]), Field(description=text.replace("None", "null")))
        for key, text in docstrings.arguments(of).items()
    }
    made: type[BaseModel] = create_model(name, __doc__=docstrings.purpose(of), **(fields | more))
    return made


def _answer_type(hint: Any) -> Any:
    """A type, with a dataclass or a list of one replaced by an answer."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return answer_model(hint.__name__, hint)
    (*_, last) = typing.get_args(hint) or (None,)
    return list[_answer_type(last)] if typing.get_origin(hint) is list else hint  # type: ignore[misc]


FillAnswer = answer_model(
    "FillAnswer",
    FillResult,
    picture=(
        _answer_type(MaskPicture) | None,
        Field(description="The mask picture, if asked for and the text is short enough."),
    ),
)
_SCORES: Any = (_answer_type(list[TextScore]), Field(description="One for each text."))
ScoreAnswer = create_model("ScoreAnswer", __doc__="Likelihoods of texts.", scores=_SCORES)


class Generated(BaseModel):
    """A generated text."""

    text: str
    log_probability: float
    score: float = Field(description="Log-probability after the length penalty.")
    ended: bool = Field(description="Whether it ended by itself; otherwise it was cut off.")


class GenerateAnswer(BaseModel):
    """Generated texts, the best first."""

    texts: list[Generated]


class PredictAnswer(BaseModel):
    """A prediction, with further fields of the task, such as the probability of each class."""

    model_config = ConfigDict(extra="allow")

    prediction: Any
    truncated: bool | None = Field(None, description="Whether a text was cut, since it is longer than the model reads.")


class Health(BaseModel):
    """State of the server."""

    status: Literal["ok"]
    version: str
    model: str = Field(description="Name of the model.")
    task: str = Field(description="Task it was fine-tuned for; empty if it was not.")
    abilities: list[str] = Field(description="Endpoints it can answer; orders: it fills masks in an order.")
    offers: list[str] = Field(
        description="Those the page offers: it writes with no pre-trained model that counting beats, or a small one."
    )
    reads: list[str] = Field(description="Names of the texts that /generate or /predict reads.")
    example: str = Field(description="A text to try: a held-out sentence of its run, if that has one.")
    longest_text: int = Field(description="Tokens it reads at once.")
    vectors: str = Field(description="Precision in which vectors are computed: fp32 or bf16.")
    waiting: int = Field(description="Requests that wait.")


class ErrorAnswer(BaseModel):
    """What is wrong, in one sentence."""

    error: str


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


def own_router(service: Service) -> APIRouter:
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
