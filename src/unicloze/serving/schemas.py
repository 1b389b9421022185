"""Requests and answers of the server's own endpoints."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from unicloze import docstrings
from unicloze.decoding.infill import FillResult
from unicloze.decoding.likelihood import TextScore
from unicloze.serving.limits import LONGEST_OUTPUT, MOST_CANDIDATES, MOST_TEXTS_OUT
from unicloze.serving.served_model import MaskPicture
from unicloze.settings import Order, Pooling

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
    """The fields of a dataclass as an answer, with the descriptions of its docstring.

    Args:
        name: Name in the description of the endpoints.
        of: The dataclass; dataclasses that its fields hold are described too.
        more: Further fields: a type, and its `Field`.
    """
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


class Health(BaseModel):
    """State of the server."""

    status: Literal["ok"]
    version: str
    model: str = Field(description="Name of the model.")
    task: str = Field(description="Task it was fine-tuned for; empty if it was not.")
    abilities: list[str] = Field(description="Endpoints it can answer; orders: it fills masks in an order.")
    offers: list[str] = Field(
        description="Those the page offers: a small pre-trained model writes only a few words well."
    )
    reads: list[str] = Field(description="Names of the texts that /generate or /predict reads.")
    example: str = Field(description="A text to try: a held-out sentence of its run, if that has one.")
    longest_text: int = Field(description="Tokens it reads at once.")
    vectors: str = Field(description="Precision in which vectors are computed: fp32 or bf16.")
    waiting: int = Field(description="Requests that wait.")


class ErrorAnswer(BaseModel):
    """What is wrong, in one sentence."""

    error: str
