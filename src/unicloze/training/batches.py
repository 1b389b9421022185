"""Turns windows into the micro-batches of each step, with the memories that rows leave for the next."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from unicloze.arrays import Flags, Int32s
from unicloze.errors import UsageError
from unicloze.example import Batch, Examples, Memory, predicts_tokens, select_rows
from unicloze.mixtures import Phase, parts, phases
from unicloze.objectives import defined, make_examples
from unicloze.packing import collate_buckets
from unicloze.settings import ModelSettings, ObjectiveSettings, Recipe
from unicloze.text.sampler import WindowSampler, check_segment_pairs
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows

Memories = Mapping[int, Memory]
"""Memories by index of the micro-batch."""


def with_memory(batch: Batch, micro_batch: MicroBatch, former: Memory | None, settings: ModelSettings) -> Batch:
    """Attach the memory of the preceding text to a batch; unchanged if the model has no memory.

    Args:
        batch: Made from the micro-batch.
        micro_batch: Says which rows continue from the previous step; the others read no memory.
        former: Memory left by the same micro-batch of the previous step; None at the start. Not modified.
        settings: Model shape.
    """
    if not settings.memory or micro_batch.windows is None:
        return batch
    rows, device = len(micro_batch.windows), batch.input_ids.device
    continues = micro_batch.windows.continues
    shape = settings.memory_shape(rows)
    if former is None or continues is None or former.states.shape != shape:
        lengths = torch.zeros(rows, dtype=torch.long, device=device)
        memory = Memory(states=torch.zeros(shape, device=device), lengths=lengths)
    else:
        memory = Memory(states=former.states, lengths=former.lengths * torch.from_numpy(continues).to(device))
    if micro_batch.windows.backward is not None:
        memory.backward = torch.from_numpy(micro_batch.windows.backward).to(device)
    slots = micro_batch.examples.text_slots()
    if micro_batch.windows.new is not None:
        slots = _only(slots, micro_batch.windows.new)
    text = torch.from_numpy(slots).to(device=device, dtype=torch.long)
    return dataclasses.replace(batch, memory=memory, text_slots=text)


def _only(slots: Int32s, chosen: Flags) -> Int32s:
    """The slots of some tokens of the text, in text order; -1 after their end."""
    chosen = chosen[:, : slots.shape[1]] & (slots >= 0)
    order = np.argsort(~chosen, axis=1, kind="stable")
    inside = np.arange(slots.shape[1]) < chosen.sum(axis=1)[:, None]
    return np.where(inside, np.take_along_axis(slots, order, axis=1), -1).astype(np.int32)


def pack(memories: Memories) -> dict[str, Tensor]:
    """Memories as named tensors, for a checkpoint."""
    packed: dict[str, Tensor] = {}
    for number, memory in memories.items():
        packed |= {f"{number}.states": memory.states, f"{number}.lengths": memory.lengths}
    return packed


def unpack(tensors: Mapping[str, Tensor], device: torch.device | str) -> dict[int, Memory]:
    """Memories from the tensors of a checkpoint."""
    numbers = sorted({int(name.split(".")[0]) for name in tensors})
    return {
        number: Memory(states=tensors[f"{number}.states"].to(device), lengths=tensors[f"{number}.lengths"].to(device))
        for number in numbers
    }


WINDOWS_AT_ONCE = 512
CHECKED_WINDOWS = 512
"""Number of windows an objective may check before the first step."""

Own = Callable[[Sequence[int]], Collection[int]]
"""Selects the micro-batches of a step that a process makes, given the mixture part of each."""


def every(parts_of: Sequence[int]) -> Collection[int]:
    """All micro-batches."""
    return range(len(parts_of))


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one forward pass, all for one objective; without rows there is no pass."""

    examples: Examples  # the rows
    windows: Windows | None  # windows the rows were made from; None for labelled records
    coefficients: Mapping[str, float] = field(default_factory=dict)  # factor of each target's loss; 1 where not given
    place: str = ""  # location of labelled records, for messages
    # number of rows in each bucket of similar lengths; empty if all rows are padded to the longest
    buckets: Sequence[int] = ()
    repeats: bool = False  # whether it lays out the text of another micro-batch of the same step again
    part: int = 0  # index of its mixture part
    rate: float = 1.0  # factor of the learning rate of its step
    dropout: float = 1.0  # factor of the dropout rates

    @property
    def text_tokens(self) -> int:
        """Number of text tokens it adds to a step."""
        return 0 if self.repeats else int(self.examples.text_tokens.sum())

    def batch(self, device: torch.device, *, fixed_shape: bool = False) -> Batch:
        """The rows as tensors; `fixed_shape` must be False with buckets."""
        return collate_buckets(self.examples, self.buckets, device=device, fixed_shape=fixed_shape)


def training_steps(
    recipe: Recipe, sampler_of: Callable[[Recipe], WindowSampler], first_step: int, own: Own = every
) -> Iterator[list[MicroBatch]]:
    """The micro-batches of each step, from `first_step` to the last."""
    for phase in phases(recipe):
        if phase.last_step > first_step:
            yield from _phase_steps(phase, sampler_of(phase.recipe), max(first_step, phase.first_step), own)


def _phase_steps(phase: Phase, sampler: WindowSampler, first_step: int, own: Own) -> Iterator[list[MicroBatch]]:
    batch_size = phase.recipe.training.batch_size
    most = phase.recipe.training.micro_batch_size or batch_size
    steps_at_once = max(1, WINDOWS_AT_ONCE // batch_size)
    # Blocks begin where they would in an uninterrupted run, so that results do not depend on where it was resumed.
    first = first_step - (first_step - phase.first_step) % steps_at_once
    for start in range(first, phase.last_step, steps_at_once):
        steps = np.arange(start, min(start + steps_at_once, phase.last_step))
        rows = rows_of_parts(phase, steps - phase.first_step)
        cuts = [
            [(part, mine[i : i + most]) for part, mine in enumerate(of_step) for i in range(0, len(mine), most)]
            for of_step in zip(*rows, strict=True)
        ]
        chosen = [own([part for part, _ in of_step]) for of_step in cuts]
        made: list[dict[int, MicroBatch]] = [{} for _ in steps]
        places = [(n, number, *each) for n, of_step in enumerate(cuts) for number, each in enumerate(of_step)]
        for part, settings in enumerate(parts(phase.recipe.objective)):
            wanted = [(n, number, cut) for n, number, of_part, cut in places if of_part == part]
            _make_part(made, part, settings.settings, wanted, chosen, phase, sampler, steps)
        yield from [[of_step[number] for number in sorted(of_step)] for of_step in made[max(0, first_step - start) :]]


def rows_of_parts(phase: Phase, steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[list[range]]:
    """Windows of each step that go to each part, counted from the phase's first window.

    After every step each part's total is within one row of its share, so its rows in one step are within two.
    """
    batch_size = phase.recipe.training.batch_size
    bounds = np.cumsum([0.0, *(part.share for part in parts(phase.recipe.objective))])
    bounds[-1] = 1.0
    # Cumulative number of rows of the parts before each bound.
    after = np.floor(np.outer(np.append(steps, steps[-1] + 1), bounds * batch_size) + 0.5).astype(np.int64)
    counts = np.diff(np.diff(after, axis=0), axis=1)
    ends = np.cumsum(counts, axis=1) + (steps * batch_size)[:, None]
    return [
        [range(int(end - count), int(end)) for end, count in zip(part_ends, part_counts, strict=True)]
        for part_ends, part_counts in zip(ends.T, counts.T, strict=True)
    ]


def _make_part(
    made: list[dict[int, MicroBatch]],
    part: int,
    settings: ObjectiveSettings,
    wanted: list[tuple[int, int, range]],
    chosen: list[Collection[int]],
    phase: Phase,
    sampler: WindowSampler,
    steps: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> None:
    """Make a part's micro-batches: (place among the steps, number in the step, rows) each."""
    if not wanted:
        return
    own = [(n, cut) for n, number, cut in wanted if number in chosen[n]]
    filled = own or [(wanted[0][0], wanted[0][2][:1])]  # a row tells how those without rows look
    start, stop = filled[0][1].start, filled[-1][1].stop
    lanes = phase.recipe.training.batch_size
    needs, place = settings.windows, phase.first_window + start
    block = sampler.read(place, stop - start, pairs=needs.pairs, static_copies=needs.static_copies, lanes=lanes)
    rows = np.concatenate([np.arange(cut.start, cut.stop) for _, cut in filled]) - start
    windows = block if len(rows) == len(block) else select_rows(block, rows)
    of_steps = mask_rates(settings, phase, steps)
    rates = None if of_steps is None else np.repeat(of_steps[[n for n, _ in filled]], [len(cut) for _, cut in filled])
    examples = make_examples(windows, sampler.vocabulary, settings, rates)
    first = 0
    for n, number, cut in wanted:
        span = slice(first, first + len(cut)) if number in chosen[n] else slice(0, 0)
        rate = sampler.rate_at(phase.first_window + cut.start, lanes)
        made[n][number] = MicroBatch(examples[span], windows[span], settings.coefficients, part=part, rate=rate)
        first = max(first, span.stop)


def mask_rates(
    objective: ObjectiveSettings, phase: Phase, steps: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
    """Mask rate at each step; None where nothing is masked by a rate."""
    if objective.rates is None:
        return None
    first, last = objective.rates
    done = (steps - phase.first_step) / max(1, phase.last_step - phase.first_step - 1)
    return first + (last - first) * done


def heldout_rows(windows: Windows, vocabulary: Vocabulary, settings: ObjectiveSettings) -> Examples:
    """Rows to evaluate on, in which every masked slot shows a mask, at the mask rate of the last step."""
    rates = None if settings.rates is None else np.full(len(windows), settings.rates[1])
    return make_examples(windows, vocabulary, settings.without_noise(), rates)


def heldout_examples(
    sampler: WindowSampler, objective: ObjectiveSettings, count: int, *, lanes: int
) -> Mapping[str, MicroBatch]:
    """The same held-out examples at every call, by label of the part. Every masked slot shows a mask.

    Where targets predict tokens, only ordinary tokens that the row does not show elsewhere are `counted`.
    """
    found = {}
    for part in parts(objective):
        if part.evaluate:
            windows = sampler.sequential(count, pairs=part.settings.windows.pairs, lanes=lanes)
            examples = heldout_rows(windows, sampler.vocabulary, part.settings)
            ordinary = sampler.vocabulary.ordinary
            targets = {
                name: target.of_ordinary(ordinary) if predicts_tokens(name) else target
                for name, target in examples.targets.items()
            }
            examples = dataclasses.replace(examples, targets=targets)
            found[part.label] = MicroBatch(examples, windows)
    return found


def check_vocabulary(recipe: Recipe, vocabulary: Vocabulary) -> None:
    """Reject a vocabulary without a mask if the objective of some phase, or a part of it, masks tokens."""
    if vocabulary.mask != vocabulary.eos:
        return
    for part in (part for phase in phases(recipe) for part in parts(phase.recipe.objective)):
        if part.settings.rates is not None or "diffusion" in part.settings.targets:
            raise UsageError(
                f"objective {part.settings.name} masks tokens, but the tokenizer has no mask token (GPT-2's has none): "
                "add <mask> to it, give another --tokenizer.path, or choose objective causal"
            )


def check_windows(recipe: Recipe, sampler_of: Callable[[Recipe], WindowSampler]) -> None:
    """Reject text that is unsuitable for the objective of some phase, or for a part of it."""
    for phase in phases(recipe):
        for part in parts(phase.recipe.objective):
            check = defined(part.settings).check
            if check is not None:
                sampler = sampler_of(phase.recipe)
                check(sampler.sequential(CHECKED_WINDOWS), sampler.vocabulary, part.settings)
        for pairs in sorted({part.settings.windows.pairs for part in parts(phase.recipe.objective)} - {"contiguous"}):
            check_segment_pairs(sampler_of(phase.recipe), pairs)


T = TypeVar("T")


class Prefetch(Generic[T]):
    """Iterates over items that a thread makes ahead, in the same order; use it as a context manager.

    An error in the thread is raised in place of the item it was making.

    Args:
        items: The items.
        ahead: Maximum number of items that wait.
    """

    def __init__(self, items: Iterator[T], ahead: int) -> None:
        self._ahead = ahead
        self._start(items)

    def _start(self, items: Iterator[T]) -> None:
        self._room, self._ended = threading.Semaphore(self._ahead), False
        self._made: queue.SimpleQueue[tuple[T] | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._make, args=(items, self._made), name="prefetch", daemon=True)
        self._thread.start()

    def _make(self, items: Iterator[T], made: queue.SimpleQueue[tuple[T] | BaseException]) -> None:
        try:
            while self._room.acquire() and not self._ended:
                made.put((next(items),))
        except BaseException as error:  # raised by `__next__`
            made.put(error)

    def _end(self) -> None:
        """End the thread, after the item it is making."""
        self._ended = True
        self._room.release()
        self._thread.join()

    def restart(self, items: Iterator[T]) -> None:
        """Continue with other items."""
        self._end()
        self._start(items)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        made = self._made.get()
        if isinstance(made, BaseException):
            self._made.put(StopIteration())  # for a later call
            try:
                raise made
            finally:
                del made  # it refers to this frame
        self._room.release()
        return made[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
