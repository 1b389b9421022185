"""A model that is served: what it can do, computations of many items at once, and the precision of its vectors."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unicloze.decoding.embed import embed
from unicloze.decoding.generate import Candidate, Continuation, Part, Spelling, candidate_of, stream_text
from unicloze.decoding.infill import FillResult, ToFill, fill_together, filled_row, ready_to_fill
from unicloze.decoding.inputs import (
    find_generation_format,
    generation_format_of,
    longest_text,
    objective_of,
    part_with,
    place_of,
    writes_briefly,
)
from unicloze.decoding.likelihood import TextScore, defines, score
from unicloze.decoding.steppers import generates, positions_of
from unicloze.errors import UniclozeError, UsageError
from unicloze.finetuning.generate import parts_for_records, predict_given, ready_to_write, record_of
from unicloze.interop.card import verdict_of
from unicloze.interop.read import installed_models
from unicloze.records.record import Record
from unicloze.report.example_view import ExampleView
from unicloze.report.page import example_texts
from unicloze.report.picture import draw_mask, groups_in_words
from unicloze.serving.guard import Refused
from unicloze.settings import Order, Pooling, TrainingSettings
from unicloze.tasks import generation
from unicloze.tasks.columns import roles_of
from unicloze.tasks.task import Prediction
from unicloze.training.loading import LoadedModel
from unicloze.training.precision import choose_precision
from unicloze.training.verdict import is_beaten

Steps = Generator[Any, None, Sequence[Any]]
Compute = Callable[[Sequence[Any]], Sequence[Any] | Steps]
"""Results of some items, one per item and in their order."""
Event = tuple[Literal["piece", "result", "error"], Any]

ITEMS_AT_ONCE = 256
"""Items of several requests that are computed together; a single request may have more."""
STEPPING_AT_ONCE = 4
"""Generators that take turns; further ones wait."""


# A computation either returns its results at once, or is a generator that works in steps; generators take turns, so
# that a long text being generated does not keep other requests waiting.


@dataclass(eq=False)
class _Job:
    """A request's computation."""

    key: Hashable  # jobs with equal keys may be computed together
    items: Sequence[Any]  # what to compute
    compute: Compute  # computes items of jobs with this key
    stepwise: bool  # whether `compute` is a generator
    loop: asyncio.AbstractEventLoop  # the loop of the request
    # receives the results, or pieces of a single item followed by its result
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    abandoned: bool = False  # whether nobody waits for it any more

    def tell(self, event: Event) -> None:
        """Pass an event to the request's loop, from the thread that computes."""
        if not self.abandoned:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self.events.put_nowait, event)


@dataclass(eq=False)
class _Running:
    jobs: list[_Job]
    steps: Steps


class Batcher:
    """A thread that computes, and the requests that wait for it.

    Args:
        waiting: Requests that may wait; more are refused.
    """

    def __init__(self, waiting: int) -> None:
        self._most = waiting
        self._jobs: deque[_Job] = deque()
        self._running: list[_Running] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="unicloze-serve", daemon=True)

    def start(self) -> None:
        """Start computing."""
        self._thread.start()

    def stop(self) -> None:
        """Compute what waits, then end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._jobs)

    async def ask(self, key: Hashable, items: Sequence[Any], compute: Compute, *, stepwise: bool = False) -> list[Any]:
        """Results of some items, computed together with those of other requests with the same key."""
        job = self._add(_Job(key, items, compute, stepwise, asyncio.get_running_loop()))
        try:
            kind, value = await job.events.get()
            if kind == "error":
                raise value
            return list(value)
        finally:
            job.abandoned = True

    async def stream(self, item: Any, compute: Compute) -> AsyncIterator[Any]:
        """The pieces that a generator yields for an item, and its result as the last piece."""
        job = self._add(_Job(object(), [item], compute, True, asyncio.get_running_loop()))
        try:
            while True:
                kind, value = await job.events.get()
                if kind == "error":
                    raise value
                yield value if kind == "piece" else value[0]
                if kind == "result":
                    return
        finally:
            job.abandoned = True

    def _add(self, job: _Job) -> _Job:
        with self._changed:
            if self._stopping:
                raise Refused(503, "The server is stopping: send the request to another one.")
            if len(self._jobs) >= self._most:
                raise Refused(
                    429, f"{self._most} requests are waiting already: send this one again later.", {"Retry-After": "1"}
                )
            self._jobs.append(job)
            self._changed.notify()
        return job

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._jobs or self._running or self._stopping):
                    self._changed.wait()
                if not (self._jobs or self._running):
                    return
                together = self._next()
            if together:
                self._begin(together)
            for running in list(self._running):
                self._advance(running)

    def _next(self) -> list[_Job]:
        """Take the first job that may start, and those that can be computed with it."""
        full = len(self._running) >= STEPPING_AT_ONCE
        waiting = [job for job in self._jobs if not job.abandoned]
        first = next((job for job in waiting if not (full and job.stepwise)), None)
        taken: list[_Job] = []
        count = 0
        for job in waiting if first is not None else ():
            if first is not None and job.key == first.key and (not taken or count + len(job.items) <= ITEMS_AT_ONCE):
                taken.append(job)
                count += len(job.items)
        self._jobs = deque(job for job in waiting if job not in taken)
        return taken

    def _begin(self, jobs: list[_Job]) -> None:
        try:
            found = jobs[0].compute([item for job in jobs for item in job.items])
        except Exception as error:
            self._fail(jobs, error)
            return
        if isinstance(found, Generator):
            self._running.append(_Running(jobs, found))
        else:
            _share(jobs, found)

    def _advance(self, running: _Running) -> None:
        """One step of a generator."""
        if all(job.abandoned for job in running.jobs):
            self._running.remove(running)
            running.steps.close()
            return
        try:
            piece = next(running.steps)
        except StopIteration as end:
            self._running.remove(running)
            _share(running.jobs, end.value)
        except Exception as error:
            self._running.remove(running)
            self._fail(running.jobs, error)
        else:
            if piece is not None:
                for job in running.jobs:
                    job.tell(("piece", piece))

    def _fail(self, jobs: list[_Job], error: Exception) -> None:
        """Report an error to the request that caused it: of several, each is computed alone."""
        if len(jobs) == 1:
            jobs[0].tell(("error", error))
            return
        for job in jobs:
            self._begin([job])


def _share(jobs: Sequence[_Job], found: Sequence[Any]) -> None:
    first = 0
    for job in jobs:
        job.tell(("result", found[first : first + len(job.items)]))
        first += len(job.items)


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
    texts = _random_texts(model)
    try:
        exact, close = embed(model, texts), embed(half, texts)  # also warms up
    except UniclozeError:  # a model that gives no vectors says why when it is asked for them
        return VectorPrecision(model=model)
    seconds = {id(one): [_seconds(one, texts)] for one in (model, half)}
    for _ in range(_ROUNDS - 1):
        for one in (model, half):
            seconds[id(one)].append(_seconds(one, texts))
    speed_up, cosine = min(seconds[id(model)]) / min(seconds[id(half)]), float(_cosines(exact, close).min())
    good = speed_up >= LEAST_SPEED_UP and cosine >= LEAST_COSINE
    return VectorPrecision(model=half if good else model, speed_up=speed_up, cosine=cosine)


def _random_texts(model: LoadedModel) -> list[str]:
    draw = np.random.default_rng(0)
    ids = draw.choice(model.tokenizer.vocabulary.ordinary, size=(_TEXTS, _TOKENS))
    texts = [model.tokenizer.decode(row) for row in ids.tolist()]
    return [text if text.strip() else "a" for text in texts]


def _seconds(model: LoadedModel, texts: list[str]) -> float:
    # On a CPU, other work of the machine affects processor time less.
    clock = time.process_time if model.compute.device.type == "cpu" else time.perf_counter
    begin = clock()
    embed(model, texts)
    return clock() - begin


def _cosines(left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    both = [each.astype(np.float64) / np.linalg.norm(each, axis=1, keepdims=True) for each in (left, right)]
    cosines: npt.NDArray[np.float64] = (both[0] * both[1]).sum(axis=1)
    return cosines


VECTORS_AT_ONCE = 64
"""Rows of a forward pass for vectors: with 32, small models are slower, and with more, large ones."""
LARGEST_PICTURE = 48
"""Tokens of a text whose mask picture is drawn."""


@dataclass(frozen=True, kw_only=True)
class Blanks:
    """A text whose masks are filled."""

    asked: ToFill  # the text and how to fill it
    picture: bool  # whether to draw the mask picture of that order


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


@dataclass(frozen=True, kw_only=True)
class FilledBlanks:
    """A filled text."""

    result: FillResult  # the text with its masks
    ids: list[list[int]]  # token ids of the candidates of each mask
    picture: MaskPicture | None  # the mask picture; None if it was not asked for or the text is too long


class ServedModel:
    """A model with its name and abilities.

    Args:
        model: The model.
        vectors: The same model in the precision in which vectors are computed; default: that of the model.

    Attributes:
        name: Name of its run, folder or package.
        example: A text to try: a held-out sentence of its run, if that has one.
        abilities: Those of `fill`, `orders`, `score`, `generate`, `embed` and `predict` that it has.
        offers: Those of them that the page offers: not `generate` where counting beats a pre-trained model or, if it was not
            judged, where it is small.
        reads: Names of the texts that `generate` or `predict` reads.
        task: Kind of task it was fine-tuned for; empty if it was not.
    """

    def __init__(self, model: LoadedModel, vectors: LoadedModel | None = None) -> None:
        self.model, self.vectors = model, vectors or model
        place = Path(place_of(model))
        packages = {folder: name for name, folder in installed_models().items()}
        self.name = packages.get(place) or place.name or "model"
        _, self.example = example_texts(place)
        self.task = model.recipe.task.kind
        self.abilities = tuple(_abilities(model))
        beaten = None if self.task else is_beaten(verdict_of(place))
        brief = writes_briefly(model) if beaten is None else beaten
        self.offers = tuple(one for one in self.abilities if one != "generate" or not brief)
        self.reads = _reads(model) or ()

    @property
    def longest(self) -> int:
        """Tokens of text it reads at once."""
        return longest_text(self.model)

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Number of tokens of some texts."""
        return sum(map(len, self.model.tokenizer.encode_batch(texts)))

    def count_spelled(self, candidate: Candidate, characters: int) -> int:
        """Number of tokens that spell the beginning of a generated text."""
        if characters == len(candidate.text):
            return len(candidate.tokens)
        texts = (self.model.tokenizer.decode(candidate.tokens[:count]) for count in range(len(candidate.tokens)))
        asked = len("".join(candidate.text[:characters].split()))
        found = (count for count, text in enumerate(texts) if len("".join(text.split())) >= asked)
        return next(found, len(candidate.tokens))

    def embed(
        self, texts: Sequence[str], pooling: Pooling | None, *, truncate: bool = False
    ) -> list[npt.NDArray[np.float32]]:
        """A vector for each text."""
        return list(embed(self.vectors, texts, pooling=pooling, batch_size=VECTORS_AT_ONCE, truncate=truncate))

    def score(self, texts: Sequence[str]) -> list[TextScore]:
        """The likelihood of each text."""
        return score(self.model, texts)

    def ready_to_fill(self, text: str, *, top_k: int, order: Order | Sequence[int] | None) -> ToFill:
        """A text to fill."""
        return ready_to_fill(self.model, text, top_k=top_k, order=order)

    def fill(self, texts: Sequence[Blanks]) -> Generator[None, None, list[FilledBlanks]]:
        """Fill texts together, one forward pass per step, and then draw one picture per step."""
        results = yield from fill_together(self.model, [text.asked for text in texts])
        found = []
        for text, result in zip(texts, results, strict=True):
            ids = [[self.model.tokenizer.token_id(token) or 0 for token, _ in mask.top] for mask in result.masks]
            picture = self._picture(result) if text.picture else None
            found.append(FilledBlanks(result=result, ids=ids, picture=picture))
            if text.picture:
                yield None
        return found

    def _picture(self, result: FillResult) -> MaskPicture | None:
        if len(self.model.tokenizer.encode(result.text)) > min(self.longest, LARGEST_PICTURE):
            return None
        names = {None: "all masks at once", "confidence": "the most certain mask next", "span": "one span per step"}
        order = "in the given order" if isinstance(result.order, list) else names.get(result.order, str(result.order))
        view = ExampleView.of(
            filled_row(self.model, result), self.model.tokenizer, title=f"Filled {order.replace('-', ' ')}"
        )
        drawing = draw_mask(view)
        return MaskPicture(svg=drawing.to_svg(), title=drawing.title, caption=groups_in_words(view))

    def record(self, text: str | Sequence[str]) -> Record:
        """The record of one source, given in parts."""
        return record_of(self.model, text)

    def predict(self, records: Sequence[Record]) -> list[Prediction]:
        """A prediction for each record, without its id."""
        numbered = [dataclasses.replace(record, id=str(number)) for number, record in enumerate(records)]
        return [
            {key: value for key, value in prediction.items() if key != "id"}
            for prediction in predict_given(self.model, numbered)
        ]

    def writer(self, decoding: Mapping[str, Any]) -> LoadedModel:
        """The model with these settings of `decoding`."""
        return ready_to_write(self.model, {f"decoding.{name}": value for name, value in decoding.items()})


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


def stream(model: LoadedModel, record: Record) -> Generator[str, None, list[Candidate]]:
    """Generate for a record; yields pieces of the text as they become final."""
    results: list[Candidate] = []
    spelling = _spelling(model, record)

    def watched() -> Iterator[Part]:
        for part in parts_for_records(model, [record]):
            results.extend(candidate_of(hypotheses[0], spelling) for hypotheses in part.results)
            yield part

    yield from stream_text(watched(), spelling)
    return results


def _spelling(model: LoadedModel, record: Record) -> Spelling:
    """Spells the text of a record: one that continues a prompt can be appended to it."""
    if model.recipe.task.kind:
        return model.tokenizer
    return Continuation(model.tokenizer, record.text(model.recipe.task, model.recipe.generation.source[0]))


def room_for_source(model: LoadedModel) -> int:
    """Tokens of a source, separators of its parts included, that a model returned by `ServedModel.writer` reads."""
    layout = generation_format_of(model.recipe, model.tokenizer.vocabulary)
    room = layout.room(positions_of(model.model), model.recipe.decoding.max_length) - len(layout.row([]))
    if model.recipe.task.kind:
        room = min(room, generation.room(model.recipe)[0] - generation.SOURCE_SPECIALS)
    return max(0, room)


def _abilities(model: LoadedModel) -> Iterator[str]:
    recipe, objective = model.recipe, objective_of(model.recipe)
    own_tokens = hasattr(model.model, "token_head") and not recipe.task.kind
    if own_tokens and (part_with(objective, "cloze") or part_with(objective, "stepwise")):
        yield "fill"
    if own_tokens and part_with(objective, "stepwise"):
        yield "orders"
    if own_tokens and (defines(objective, "chain") or defines(objective, "pseudo")):
        yield "score"
    writes = find_generation_format(recipe, model.tokenizer.vocabulary) is not None and generates(recipe.model)
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
