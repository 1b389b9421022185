"""A served model: what it can do, answers to requests, whatever client they come from, and the precision of its vectors."""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.decoding import inputs
from unicloze.decoding.embed import embed
from unicloze.decoding.generate import Candidate, Continuation, Part, Spelling, candidate_of, most_written, stream_text
from unicloze.decoding.infill import FillResult, ToFill, fill_together, filled_row, ready_to_fill
from unicloze.decoding.likelihood import TextScore, defines, scoring
from unicloze.decoding.steppers import generates
from unicloze.errors import UniclozeError, UsageError
from unicloze.finetuning.generate import parts_for_records, predict_given, ready_to_write, record_of
from unicloze.interop.card import verdict_of
from unicloze.interop.read import installed_models
from unicloze.records.record import Record
from unicloze.report.example_view import ExampleView
from unicloze.report.page import example_texts
from unicloze.report.picture import draw_mask, groups_in_words
from unicloze.serving.batching import Batcher, in_portions
from unicloze.serving.guard import TOO_LONG, Limits, Refused, check_texts
from unicloze.settings import Order, Pooling, TrainingSettings
from unicloze.tasks.columns import roles_of
from unicloze.tasks.generation import SOURCE_SPECIALS
from unicloze.tasks.task import Prediction
from unicloze.training.loading import LoadedModel
from unicloze.training.precision import choose_precision
from unicloze.training.verdict import is_beaten

LEAST_COSINE = 0.999
LEAST_SPEED_UP = 1.1
_TEXTS = 32
_TOKENS = 12
_ROUNDS = 2


@dataclass(frozen=True, kw_only=True)
class VectorPrecision:
    """The precision chosen for vectors."""

    model: LoadedModel  # the model in that precision
    speed_up: float | None = None  # speed of bf16 relative to fp32; None if it was not measured
    cosine: float | None = None  # smallest cosine between vectors of the two; None if it was not measured

    def __str__(self) -> str:
        if self.speed_up is None or self.cosine is None:
            return f"vectors in {self.model.precision}"
        return (
            f"vectors in {self.model.precision}: bf16 is {self.speed_up:.1f} times as fast as fp32 here, and its vectors "
            f"have cosines of at least {math.floor(self.cosine * 1e5) / 1e5:.5f} with those of fp32"
        )


def choose_for_vectors(model: LoadedModel) -> VectorPrecision:
    """Measure a model's vectors of short random texts in both precisions.

    bf16 is chosen if it is at least `LEAST_SPEED_UP` times as fast and no cosine is below `LEAST_COSINE`. It is not tried if
    the hardware does not compute it fast, or if the model is in bf16 already.
    """
    automatic = TrainingSettings(precision="auto")
    if model.precision != "fp32" or choose_precision(automatic, model.compute.device) != "bf16":
        return VectorPrecision(model=model)
    half = dataclasses.replace(model, precision="bf16")
    ids = np.random.default_rng(0).choice(model.tokenizer.vocabulary.ordinary, size=(_TEXTS, _TOKENS))
    texts = [text if text.strip() else "a" for text in map(model.tokenizer.decode, ids.tolist())]
    try:
        exact, close = embed(model, texts), embed(half, texts)  # also warms up
    except UniclozeError:  # a model that gives no vectors says why when it is asked for them
        return VectorPrecision(model=model)
    slow, fast = map(min, zip(*([_seconds(one, texts) for one in (model, half)] for _ in range(_ROUNDS)), strict=True))
    left, right = (each.astype(np.float64) / np.linalg.norm(each, axis=1, keepdims=True) for each in (exact, close))
    speed_up, cosine = slow / fast, float((left * right).sum(axis=1).min())
    good = speed_up >= LEAST_SPEED_UP and cosine >= LEAST_COSINE
    return VectorPrecision(model=half if good else model, speed_up=speed_up, cosine=cosine)


def _seconds(model: LoadedModel, texts: list[str]) -> float:
    # On a CPU, other work of the machine affects processor time less.
    clock = time.process_time if model.compute.device.type == "cpu" else time.perf_counter
    begin = clock()
    embed(model, texts)
    return clock() - begin


VECTORS_AT_ONCE = 64
"""Rows of a forward pass for vectors: with 32, small models are slower, and with more, large ones."""
SHORT = 1_000
"""Characters of a short text."""
LARGEST_PICTURE = 48
"""Tokens of a text whose mask picture is drawn."""
DOES = {
    "fill": "fill masks",
    "orders": "fill masks in an order",
    "score": "score texts",
    "generate": "generate text",
    "embed": "turn texts into vectors",
    "predict": "predict labels",
}
"""What each ability does, for messages."""
Source = str | Sequence[str]
"""A text to generate from or to label; a list where the model reads several."""


@dataclass(frozen=True, kw_only=True)
class MaskPicture:
    """The mask picture of a filled text.

    Args:
        svg: The picture.
        title: Alternative text.
        caption: Explanation of its groups.
    """

    svg: str
    title: str
    caption: str


class ServedModel:
    """A model with its name and abilities, behind a queue of requests.

    Args:
        model: The model.
        vectors: The same model in the precision in which vectors are computed; default: that of the model.
        limits: Limits of requests.

    Attributes:
        name: Name of its run, folder or package.
        example: A text to try: a held-out sentence of its run, if that has one.
        abilities: Those of `fill`, `orders`, `score`, `generate`, `embed` and `predict` that it has.
        offers: Those of them that the page offers: not `generate` where counting beats a pre-trained model or, if it was not
            judged, where it is small.
        reads: Names of the texts that `generate` or `predict` reads.
        task: Kind of task it was fine-tuned for; empty if it was not.
    """

    def __init__(self, model: LoadedModel, vectors: LoadedModel | None = None, limits: Limits | None = None) -> None:
        self.model, self.vectors, self.limits = model, vectors or model, limits or Limits()
        self.batcher = Batcher(self.limits.waiting)
        place = Path(inputs.place_of(model))
        packages = {folder: name for name, folder in installed_models().items()}
        self.name = packages.get(place) or place.name or "model"
        _, self.example = example_texts(place)
        self.task = model.recipe.task.kind
        self.abilities = tuple(_abilities(model))
        beaten = None if self.task else is_beaten(verdict_of(place))
        brief = inputs.writes_briefly(model) if beaten is None else beaten
        self.offers = tuple(one for one in self.abilities if one != "generate" or not brief)
        self.reads = _reads(model) or ()

    @property
    def longest(self) -> int:
        """Tokens of text it reads at once."""
        if self.task == "generation":
            return inputs.room_for_source(self.model, inputs.longest_target(self.model))
        row = inputs.text_format(self.model)
        return row.longest - row.specials()

    def need(self, ability: str) -> None:
        """Refuse what the model cannot do."""
        if ability not in self.abilities:
            *able, last = [DOES[one] for one in self.abilities]
            can = f"{', '.join(able)}{' and ' * bool(able)}{last}"
            raise Refused(422, f"This model cannot {DOES[ability]}; it can {can}.")

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Number of tokens of some texts."""
        return sum(map(len, self.model.tokenizer.encode_batch(texts)))

    def count_spelled(self, candidate: Candidate, characters: int) -> int:
        """Number of tokens that spell the beginning of a generated text."""
        if characters == len(candidate.text):
            return len(candidate.tokens)
        texts = (self.model.tokenizer.decode(candidate.tokens[:count]) for count in range(len(candidate.tokens)))
        asked = len("".join(candidate.text[:characters].split()))
        counts = (count for count, text in enumerate(texts) if len("".join(text.split())) >= asked)
        return next(counts, len(candidate.tokens))

    async def embed(
        self, texts: Sequence[str], *, normalize: bool = False, truncate: bool = False, pooling: Pooling | None = None
    ) -> npt.NDArray[np.float32]:
        """The vectors of some texts. *Shape:* (texts, hidden size)"""
        check_texts(texts, self.limits.texts, self.limits.characters)
        inputs.check_texts(texts, "text")  # a portion would count its own

        def work(some: Sequence[str]) -> list[npt.NDArray[np.float32]]:
            return list(embed(self.vectors, some, pooling=pooling, batch_size=VECTORS_AT_ONCE, truncate=truncate))

        size = sum(map(_size, texts))
        found = self.batcher.ask(("embed", pooling, truncate), texts, in_portions(work, _size), size=size)
        vectors = np.stack(await found)
        if normalize:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
        return vectors

    async def score(self, texts: Sequence[str]) -> list[TextScore]:
        """The likelihood of some texts."""
        self.need("score")
        check_texts(texts, self.limits.texts, self.limits.careful_characters)
        size = sum(map(_size, texts))
        return await self.batcher.ask("score", texts, partial(_score, self.model), stepwise=True, size=size)

    async def fill(
        self, texts: Sequence[str], *, top_k: int = 5, order: Order | Sequence[int] | None = None, picture: bool = False
    ) -> list[tuple[FillResult, MaskPicture | None]]:
        """Fill the masks of some texts; texts of all waiting requests are filled together, each in its own order.

        There is no picture if it was not asked for or the text is too long.
        """
        self.need("fill")
        if order is not None:
            self.need("orders")
        check_texts(texts, self.limits.texts, self.limits.careful_characters)
        masks = max(sum(text.count(mask) for mask in self.model.tokenizer.masks) for text in texts)
        if masks > self.limits.masks:
            raise Refused(
                413, f"The text has {masks} masks, but at most {self.limits.masks} are filled: leave some out."
            )
        asked = [(ready_to_fill(self.model, text, top_k=top_k, order=order), picture) for text in texts]
        return await self.batcher.ask("fill", asked, self._fill, stepwise=True)

    def _fill(
        self, texts: Sequence[tuple[ToFill, bool]]
    ) -> Generator[None, None, list[tuple[FillResult, MaskPicture | None]]]:
        """Fill texts together, one forward pass per step, and then draw one picture per step."""
        yield from fill_together(self.model, [asked for asked, _ in texts])
        filled = []
        for asked, picture in texts:
            result = asked.result(self.model.tokenizer)
            filled.append((result, self._picture(result) if picture else None))
            if picture:
                yield None
        return filled

    def _picture(self, result: FillResult) -> MaskPicture | None:
        if len(self.model.tokenizer.encode(result.text)) > min(self.longest, LARGEST_PICTURE):
            return None
        names = {None: "all masks at once", "confidence": "the most certain mask next", "span": "one span per step"}
        order = "in the given order" if isinstance(result.order, list) else names.get(result.order, str(result.order))
        title = f"Filled {order.replace('-', ' ')}"
        view = ExampleView.of(filled_row(self.model, result), self.model.tokenizer, title=title)
        drawing = draw_mask(view)
        return MaskPicture(svg=str(drawing.to_svg()), title=drawing.title, caption=groups_in_words(view))

    async def predict(self, sources: Sequence[Source]) -> list[Prediction]:
        """A prediction for each source, without its id."""
        self.need("predict")
        check_texts(_parts(sources), self.limits.texts, self.limits.characters)
        records = [record_of(self.model, source) for source in sources]
        kinds = frozenset(len(record.fields) for record in records)
        size, work = sum(map(_size_of_record, records)), in_portions(self._predict, _size_of_record)
        return await self.batcher.ask(("predict", kinds), records, work, size=size)

    def _predict(self, records: Sequence[Record]) -> list[Prediction]:
        numbered = [dataclasses.replace(record, id=str(number)) for number, record in enumerate(records)]
        predictions = predict_given(self.model, numbered)
        return [{key: value for key, value in one.items() if key != "id"} for one in predictions]

    async def write(
        self, sources: Sequence[Source], decoding: Mapping[str, Any], *, truncate: bool = False
    ) -> list[list[Candidate]]:
        """Generated texts for each source, with settings of `decoding`."""
        model, records = self._ready(sources, decoding, truncate=truncate)
        # What a text draws depends on the equal sources of its request, so requests that draw are computed alone.
        settings = repr(dataclasses.astuple(model.recipe.decoding)), model.recipe.generation.max_source
        key = object() if model.recipe.decoding.sample else ("write", *settings)
        return await self.batcher.ask(key, records, partial(write, model), stepwise=True)

    def stream(
        self, source: Source, decoding: Mapping[str, Any], *, truncate: bool = False
    ) -> AsyncIterator[str | Candidate]:
        """The pieces of a generated text as they become final, then the whole text; see `write`."""
        model, records = self._ready([source], decoding, truncate=truncate)
        if model.recipe.decoding.num_results > 1:
            raise Refused(422, "Only one text can be streamed: ask for one, or do not stream.")
        return self.batcher.stream(records[0], lambda records: stream(model, records[0]))

    def writer(self, decoding: Mapping[str, Any]) -> LoadedModel:
        """The model with these settings of `decoding`."""
        return ready_to_write(self.model, {f"decoding.{name}": value for name, value in decoding.items()})

    def _ready(
        self, sources: Sequence[Source], decoding: Mapping[str, Any], *, truncate: bool
    ) -> tuple[LoadedModel, list[Record]]:
        """The model with these settings of `decoding`, and the checked sources as records."""
        self.need("generate")
        check_texts(_parts(sources), self.limits.texts, self.limits.careful_characters)
        records = [record_of(self.model, source) for source in sources]
        model = self.writer(decoding)
        if model.recipe.decoding.sample and "seed" not in decoding:
            model = self.writer({**decoding, "seed": secrets.randbelow(1 << 31)})
        longest = model.recipe.decoding.max_length
        room, most = (inputs.room_for_source(model, count) for count in (longest, 1))
        if room < 1:
            has = f"The model has {inputs.positions_of(model.model)} positions for source and target"
            raise Refused(400, f"{has}: ask for at most {most_written(model)} tokens.", code=TOO_LONG)
        if truncate and model.recipe.task.kind:
            fits = room + SOURCE_SPECIALS
            of_source = min(fits, model.recipe.generation.max_source or fits)
            model = dataclasses.replace(model, recipe=model.recipe.changed("generation", max_source=of_source))
        for parts in () if truncate else [_parts([source]) for source in sources]:
            count = self.count_tokens(parts) + len(parts) - 1
            if count > room:
                cure = f"shorten it{', or ask for fewer tokens' if count <= most else ''}."
                reads = f"The model reads at most {room} tokens before writing {longest}"
                raise Refused(400, f"{reads}, but the text has {count}: {cure}", code=TOO_LONG)
        return model, records


def _parts(sources: Sequence[Source]) -> list[str]:
    return [text for source in sources for text in ([source] if isinstance(source, str) else source)]


def _size(text: str) -> int:
    """About what a text costs, in short ones."""
    return 1 + len(text) // SHORT


def _size_of_record(record: Record) -> int:
    return _size(str(record.fields))


def _score(model: LoadedModel, texts: Sequence[str]) -> Generator[None, None, list[TextScore]]:
    """The likelihood of some texts, a forward pass per step."""
    steps = scoring(model, texts)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: list[TextScore] = end.value
            return found
        yield None


def write(model: LoadedModel, records: Sequence[Record]) -> Generator[None, None, list[list[Candidate]]]:
    """Generate for each record, one token per step; the model is one that `ServedModel.writer` returns.

    Drawn texts depend on the seed and the record alone; equal records draw different texts.
    """
    found: list[list[Candidate]] = []
    before = [records[:number].count(record) for number, record in enumerate(records)]
    for part in parts_for_records(model, records, draws=before):
        for hypotheses in part.results:
            spelling = _spelling(model, records[len(found)])
            found.append([candidate_of(one, spelling) for one in hypotheses])
        yield None
    return found


def stream(model: LoadedModel, record: Record) -> Generator[str | None, None, list[Candidate]]:
    """Generate for a record, one token per step; yields pieces of the text as they become final."""
    results: list[Candidate] = []
    spelling = _spelling(model, record)

    def watched() -> Iterator[Part]:
        for part in parts_for_records(model, [record]):
            results.extend(candidate_of(hypotheses[0], spelling) for hypotheses in part.results)
            yield part

    for piece in stream_text(watched(), spelling):
        yield piece or None
    return results


def _spelling(model: LoadedModel, record: Record) -> Spelling:
    """Spells the text of a record: one that continues a prompt can be appended to it."""
    if model.recipe.task.kind:
        return model.tokenizer
    return Continuation(model.tokenizer, record.text(model.recipe.task, model.recipe.generation.source[0]))


def _abilities(model: LoadedModel) -> Iterator[str]:
    recipe, objective = model.recipe, inputs.objective_of(model.recipe)
    own_tokens = hasattr(model.model, "token_head") and not recipe.task.kind
    stepwise = inputs.part_with(objective, "stepwise")
    if own_tokens and (inputs.part_with(objective, "cloze") or stepwise):
        yield "fill"
    if own_tokens and stepwise:
        yield "orders"
    if own_tokens and (defines(objective, "chain") or defines(objective, "pseudo")):
        yield "score"
    writes = inputs.find_generation_format(recipe, model.tokenizer.vocabulary) is not None and generates(recipe.model)
    if writes and (own_tokens or recipe.task.kind == "generation") and _reads(model) is not None:
        yield "generate"
    yield "embed"
    if recipe.task.kind not in ("", "generation") and _reads(model) is not None:
        yield "predict"


def _reads(model: LoadedModel) -> Sequence[str] | None:
    """Names of the texts it reads; None if it reads something else."""
    try:
        return roles_of(model.recipe)
    except UsageError:
        return None
