"""`POST /`, which Hugging Face's `InferenceClient` calls: the answer follows from what the model can do.

A fine-tuned model predicts or generates. Any other model fills masks if the input has one; without a mask it generates if the
request has `parameters`, which the client sends for everything but vectors, and otherwise turns the input into vectors.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from unicloze.serving.endpoints import ERRORS, as_json, as_list, as_numbers
from unicloze.serving.limits import LONGEST_OUTPUT, MOST_CANDIDATES, Refused
from unicloze.serving.schemas import Texts
from unicloze.serving.service import Service
from unicloze.tasks.task import Prediction


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


def router_of(service: Service) -> APIRouter:
    """The endpoint of a service."""
    router = APIRouter(responses=ERRORS, tags=["Hugging Face"])
    model = service.model

    @router.post("/", summary="What the model does with a text, in the form of Hugging Face's inference client")
    async def infer(request: InferenceRequest) -> Response:
        texts, given = as_list(request.inputs), request.parameters or Parameters(top_k=None, max_new_tokens=None)
        alone = isinstance(request.inputs, str)
        if "predict" in model.abilities:
            predictions = await service.predict(texts)
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
