"""Requests and answers of the server's own endpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from unicloze.serving.limits import LONGEST_OUTPUT, MOST_CANDIDATES, MOST_TEXTS_OUT
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
        return self.model_dump(exclude={"text", "stream"}, exclude_none=True)


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


Probability = Annotated[float, Field(ge=0, le=1)]


class Mask(BaseModel):
    """What a mask was filled with."""

    start: int = Field(description="First character of the mask in the given text.")
    end: int = Field(description="First character after it.")
    position: int = Field(description="Number of its token, the start token being 0.")
    step: int = Field(description="Step in which it was filled, from 1.")
    token: str
    top: list[tuple[str, Probability]] = Field(description="The most likely tokens at that step.")
    readable: list[str] = Field(description="The same tokens for people.")


class Picture(BaseModel):
    """The mask picture of a filled text."""

    svg: str
    title: str = Field(description="What it shows, for those who do not see it.")
    caption: str = Field(description="Explanation of its groups.")


class FillAnswer(BaseModel):
    """A filled text."""

    text: str
    filled: str
    target: str = Field(description="The prediction target used, such as ae or par.")
    order: Order | list[int] | None
    masks: list[Mask]
    note: str | None
    picture: Picture | None = Field(description="The mask picture, if asked for and the text is short enough.")


class Score(BaseModel):
    """Likelihood of a text, in nats; scores that the model does not define are null."""

    text: str
    tokens: list[str]
    chain_log_likelihood: float | None
    chain_per_token: list[float | None] | None
    chain_perplexity: float | None
    chain_perplexity_per_word: float | None
    bits_per_byte: float | None
    bits_per_character: float | None
    pseudo_log_likelihood: float | None
    pseudo_per_token: list[float | None] | None
    pseudo_perplexity: float | None
    pseudo_perplexity_per_word: float | None
    windows: int
    note: str | None


class ScoreAnswer(BaseModel):
    """Likelihoods of texts."""

    scores: list[Score]


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
    reads: list[str] = Field(description="Names of the texts that /generate or /predict reads.")
    longest_text: int = Field(description="Tokens it reads at once.")
    vectors: str = Field(description="Precision in which vectors are computed: fp32 or bf16.")
    waiting: int = Field(description="Requests that wait.")


class ErrorAnswer(BaseModel):
    """What is wrong, in one sentence."""

    error: str
