"""The server's own endpoints, their requests and their answers."""

from __future__ import annotations

import base64
import dataclasses
import time
import typing
import uuid
from collections.abc import AsyncIterator, Sequence
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
from unicloze.serving.guard import (
    LONGEST_OUTPUT,
    LONGEST_STOP,
    MOST_CANDIDATES,
    MOST_STOPS,
    MOST_TEXTS_OUT,
    TOO_LONG,
    Refused,
)
from unicloze.serving.served_model import MaskPicture, ServedModel
from unicloze.settings import Order, Pooling
from unicloze.tasks.task import Prediction
from unicloze.version import __version__

Texts = str | list[str]


class Known(BaseModel):
    """A request; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Request(Known):
    """A request whose values are not converted."""

    model_config = ConfigDict(strict=True)


class FillRequest(Request):
    """A text whose masks are filled."""

    text: str = Field(description="Text with [MASK] for each missing token.", examples=["Return a [MASK] of the list."])
    top_k: int = Field(5, ge=1, le=MOST_CANDIDATES, description="Number of candidates per mask.")
    order: Order | list[int] | None = Field(
        None,
        description="Fill one mask after the other in this order, which may also be the masks' numbers, the leftmost being "
        "1; default: all at once if the model learned that, else `confidence`.",
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
    said = {key: text.replace("None", "null") for key, text in docstrings.arguments(of).items()}
    fields: dict[str, Any] = {key: (_answer_type(hints[key]), Field(description=text)) for key, text in said.items()}
    made: type[BaseModel] = create_model(name, __doc__=docstrings.purpose(of), **(fields | more))
    return made


def _answer_type(hint: Any) -> Any:
    """A type, with a dataclass or a list of one replaced by an answer."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return answer_model(hint.__name__, hint)
    (*_, last) = typing.get_args(hint) or (None,)
    return list[_answer_type(last)] if typing.get_origin(hint) is list else hint  # type: ignore[misc]


_SHORT = Field(description="The mask picture, if asked for and the text is short enough.")
FillAnswer = answer_model("FillAnswer", FillResult, picture=(_answer_type(MaskPicture) | None, _SHORT))
_SCORES: Any = (_answer_type(list[TextScore]), Field(description="One for each text."))
ScoreAnswer = create_model("ScoreAnswer", __doc__="Likelihoods of texts.", scores=_SCORES)


class Generated(BaseModel):
    """A generated text."""

    model_config = ConfigDict(from_attributes=True)

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
    longest_text: int = Field(
        description="Tokens of a text it reads to predict or to generate; without a task, at once."
    )
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


def own_router(model: ServedModel, example: str) -> APIRouter:
    """The endpoints of a model, with an example of a text."""
    router = APIRouter(responses=ERRORS, tags=["unicloze"])

    @router.get("/health", summary="State of the server, and what its model can do")
    async def health() -> Health:
        return Health(
            status="ok", version=__version__, model=model.name, task=model.task, abilities=list(model.abilities),
            offers=list(model.offers), reads=list(model.reads), example=example, longest_text=model.longest,
            vectors=model.vectors.precision, waiting=model.batcher.waiting,
        )  # fmt: skip

    @router.post("/fill", summary="Fill the masks of a text", response_model=FillAnswer)
    async def fill(request: FillRequest) -> Response:
        ((result, picture),) = await model.fill([request.text], **request.model_dump(exclude={"text"}))
        return as_json({**result.to_dict(), "picture": picture})

    @router.post("/score", summary="Log-likelihoods of texts", response_model=ScoreAnswer)
    async def score(request: ScoreRequest) -> Response:
        return as_json({"scores": [one.to_dict() for one in await model.score(as_list(request.text))]})

    @router.post("/generate", summary="Generate a text", response_model=GenerateAnswer)
    async def generate(request: GenerateRequest) -> Response:
        decoding = request.decoding()
        if request.stream:
            pieces = await begun(model.stream(request.text, decoding, truncate=request.truncate))
            return StreamingResponse(_events(pieces), media_type="text/event-stream")
        (texts,) = await model.write([request.text], decoding, truncate=request.truncate)
        return as_json({"texts": [Generated.model_validate(one) for one in texts]})

    @router.post("/predict", summary="Predict with a fine-tuned model", response_model=PredictAnswer)
    async def predict(request: PredictRequest) -> Response:
        (prediction,) = await model.predict([request.text])
        return as_json(prediction)

    @router.post(
        "/embed", summary="Vectors of texts, as by Text Embeddings Inference", response_model=list[list[float]]
    )
    async def embed(request: EmbedRequest) -> Response:
        given = request.model_dump(exclude={"inputs", "truncation_direction"})
        return as_json(as_numbers(await model.embed(as_list(request.inputs), **given)))

    return router


async def _events(pieces: AsyncIterator[str | Candidate]) -> AsyncIterator[str]:
    """Pieces of a text as events `{"piece": ...}`, then `{"done": ...}`; an error after the first piece is the last event."""
    try:
        async for piece in pieces:
            yield event({"piece": piece} if isinstance(piece, str) else {"done": Generated.model_validate(piece)})
    except (UniclozeError, Refused) as error:
        yield event({"error": str(error)})


TOKENS = "input holds token ids, which belong to another model's vocabulary: send text."


# Clients of OpenAI's interface get models, embeddings and completions. Hugging Face's `InferenceClient` calls `POST
# /`, and the answer follows from what the model can do: a fine-tuned model predicts or generates. Any other model
# fills masks if the input has one; without a mask it generates if the request has `parameters`, which the client
# sends for everything but vectors, and otherwise turns the input into vectors.


class OpenAIRequest(Known):
    """A request for a model."""

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
        stops = [text for text in as_list(self.stop or []) if text]
        if len(stops) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in stops):
            said = f"At most {MOST_STOPS} stop texts of at most {LONGEST_STOP} characters are looked for"
            raise Refused(422, f"{said}: send fewer or shorter ones.")
        return stops


def openai_router(model: ServedModel) -> APIRouter:
    """The endpoints of a model."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])
    created = int(time.time())
    described = {"id": model.name, "object": "model", "created": created, "owned_by": "unicloze"}

    def check_name(name: str) -> None:
        if name != model.name:
            said = name[:80].encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent
            raise Refused(404, f"There is no model '{said}' here: ask for '{model.name}'.")

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
        vectors = (await model.embed(words, normalize=True)).astype("<f4")
        tokens = model.count_tokens(words)
        coded: list[Any]
        if request.encoding_format == "float":
            coded = as_numbers(vectors)
        else:
            coded = [base64.b64encode(np.ascontiguousarray(vector).tobytes()).decode() for vector in vectors]
        data = [{"object": "embedding", "index": i, "embedding": one} for i, one in enumerate(coded)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return as_json({"object": "list", "model": model.name, "data": data, "usage": usage})

    @router.post("/completions", summary="Continuations of prompts, or texts for sources")
    async def completions(request: CompletionsRequest) -> Response:
        check_name(request.model)
        prompts, stops = as_list(request.prompt), request.stops()
        own = {"id": f"cmpl-{uuid.uuid4().hex}", "created": int(time.time())}
        head: dict[str, Any] = {**own, "object": "text_completion", "model": model.name}
        if request.stream:
            if len(prompts) != 1:
                raise Refused(422, "Only one prompt can be streamed: send one, or do not stream.")
            pieces = await begun(model.stream(prompts[0], request.decoding()))
            return StreamingResponse(_completion_events(head, pieces, stops), media_type="text/event-stream")
        candidates = [one for texts in await model.write(prompts, request.decoding()) for one in texts]
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
    if (end := _stop_in(candidate.text, stops)) is not None:
        return candidate.text[:end], "stop"
    return candidate.text, "stop" if candidate.ended else "length"


def _stop_in(text: str, stops: Sequence[str]) -> int | None:
    """Where the first stop text begins."""
    return min((end for stop in stops if (end := text.find(stop)) >= 0), default=None)


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
                found, end = _stop_in(text, stops), len(text) - held
                if found is not None and found <= end:  # later, a longer stop text may begin before it
                    reason, end = "stop", found
            if end > sent or reason:
                yield event({**head, "choices": [_choice(0, text[sent : max(end, sent)], reason)]})
                sent = max(end, sent)
            if reason:
                break
    except (UniclozeError, Refused) as error:
        yield event({"error": {"message": str(error), "type": "server_error", "param": None, "code": None}})
    yield "data: [DONE]\n\n"


class Parameters(Known):
    """Parameters of a request; unknown ones are refused."""

    top_k: int | None = Field(None, ge=1, le=MOST_CANDIDATES, description="Candidates per mask, or classes.")
    max_new_tokens: int | None = Field(None, ge=1, le=LONGEST_OUTPUT, description="Maximum number of tokens.")


class InferenceRequest(Known):
    """A request of `InferenceClient`; unknown fields are refused."""

    inputs: Texts = Field(description="A text, or a list of texts.")
    parameters: Parameters | None = Field(None, description="Given for everything but vectors.")
    normalize: bool = Field(False, description="Scale each vector to length 1.")
    truncate: bool = Field(False, description="Read only the beginning of a text that is too long.")


def hugging_face_router(model: ServedModel) -> APIRouter:
    """The endpoint of a model."""
    router = APIRouter(responses=ERRORS, tags=["Hugging Face"])

    @router.post("/", summary="What the model does with a text, in the form of Hugging Face's inference client")
    async def infer(request: InferenceRequest) -> Response:
        texts, given = as_list(request.inputs), request.parameters or Parameters(top_k=None, max_new_tokens=None)
        if "predict" in model.abilities:
            if given.max_new_tokens is not None:
                raise Refused(422, "This model predicts and writes nothing: leave out max_new_tokens.")
            predictions = await model.predict(texts)
            if not request.truncate and any("truncated" in one for one in predictions):
                longest = f"the rows of {model.model.recipe.task.max_length} tokens that the model reads"
                said = f"A text is longer than {longest}: shorten it, or set truncate."
                raise Refused(400, said, code=TOO_LONG)
            return as_json([_classes(one, given.top_k) for one in predictions])
        masks = model.model.tokenizer.masks
        has_mask = "fill" in model.abilities and any(mask in text for text in texts for mask in masks)
        writes = "generate" in model.abilities and request.parameters is not None and given.top_k is None
        if model.task == "generation" or given.max_new_tokens is not None or (writes and not has_mask):
            if given.top_k is not None:
                raise Refused(422, "top_k is for masks and classes, and this request writes: leave it out.")
            decoding = {} if given.max_new_tokens is None else {"max_length": given.max_new_tokens}
            written = await model.write(texts, decoding, truncate=request.truncate)
            names = ["generated_text"] + ["summary_text", "translation_text"] * (model.task == "generation")
            return as_json([dict.fromkeys(names, candidates[0].text) for candidates in written])
        if has_mask:
            filled = await _filled(model, texts, given.top_k or 5)
            return as_json(filled[0] if isinstance(request.inputs, str) else filled)
        if request.parameters is not None:
            raise Refused(422, f"The text has no mask: put {masks[0]} in place of a word.")
        return as_json(as_numbers(await model.embed(texts, normalize=request.normalize, truncate=request.truncate)))

    return router


def _classes(prediction: Prediction, top_k: int | None) -> Any:
    """The classes of a text with their probabilities, the most likely first; other predictions as they are."""
    shares = prediction.get("probabilities")
    if not isinstance(shares, dict):
        return prediction
    classes = sorted(shares.items(), key=lambda pair: -pair[1])
    return [{"label": label, "score": share} for label, share in classes[:top_k]]


async def _filled(model: ServedModel, texts: list[str], top_k: int) -> list[Any]:
    """Candidates of each mask of each text: a list, or one per mask if the text has several."""
    answers: list[Any] = []
    for result, _ in await model.fill(texts, top_k=top_k):
        lists = []
        for mask in result.masks:
            before, after = result.text[: mask.start], result.text[mask.end :]
            guesses = []
            for word, (token, share) in zip(mask.readable, mask.top, strict=True):
                number, whole = model.model.tokenizer.token_id(token) or 0, _joined(before, word) + after
                guesses.append({"score": share, "token": number, "token_str": word, "sequence": whole})
            lists.append(guesses)
        answers.append(lists[0] if len(lists) == 1 else lists)
    return answers


def _joined(before: str, word: str) -> str:
    """A text with a word, or a piece of one, after it."""
    return before.rstrip() + word[2:] if word.startswith("##") and len(word) > 2 else before + word
