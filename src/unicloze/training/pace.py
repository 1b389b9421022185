"""Ends a run within a budget of time: a clock decides when the learning rate's decay starts, and how long it is.

Each decision is written to the ledger before the first step it affects. Rate, phase and rows are functions of the step and of
these decisions, so a resumed run repeats them and needs no clock.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unicloze.mixtures import phases
from unicloze.settings import Recipe
from unicloze.training.batches import MicroBatch
from unicloze.training.ledger import mapping

DECAY = 2 / 3
"""Share of the steps in which the rate decays, where a clock decides."""
LATE, EARLY = 0.03, 0.1
"""Shares of the budget by which a decaying run may be late or early before its decay gets another length."""
_RECENT_STEPS, _RECENT, _LONG = 8, 0.1, 60.0
"""The speed is that of the latest steps: at least so many, and for a tenth of the budget or a minute."""
_AT_THE_END, _EVALUATION = 2.0, 0.02
"""Seconds for saving and leaving at the end; share of the budget for an evaluation that was not yet timed."""


class Decay(NamedTuple):
    """From step `first` on, the rate falls in a straight line to its end at step `end`, which ends the run."""

    first: int
    end: int


def decided(recipe: Recipe, decays: Sequence[Decay]) -> Recipe:
    """The recipe with its last step as decided; phases that had begun by then keep their steps, later ones share the rest."""
    for decay in decays:
        there = phases(recipe)
        lengths = [phase.last_step - phase.first_step for phase in there]
        begun = max(sum(phase.first_step <= decay.first for phase in there), 1)
        kept = lengths[: begun if begun < len(there) else begun - 1]
        if begun < len(there) and decay.end - sum(kept) < len(there) - begun:  # it ends within a phase that has begun
            kept, begun = kept[:-1], begun - 1
        rest, left = lengths[len(kept) :], decay.end - sum(kept)
        bounds = [round(left * done / max(1, sum(rest))) for done in itertools.accumulate(rest)]
        steps = [*kept, *(last - first for first, last in itertools.pairwise([0, *bounds]))]
        shared = [{**entry, "share": share} for entry, share in zip(recipe.training.phases, steps, strict=False)]
        recipe = recipe.changed("training", steps=decay.end, phases=shared)
    return recipe


def decided_steps(
    recipe: Recipe,
    decays: Sequence[Decay],
    first_step: int,
    steps_of: Callable[[Recipe, int], Iterator[list[MicroBatch]]],
) -> Iterator[list[MicroBatch]]:
    """The micro-batches of each step, each by the recipe that was decided for it."""
    bounds = [0, *(decay.first for decay in decays), decided(recipe, decays).training.steps]
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        begin = max(begin, first_step)
        if begin < end:
            yield from itertools.islice(steps_of(decided(recipe, decays[:number]), begin), end - begin)


def recorded_decays(events: Iterable[Mapping[str, Any]], planned: int) -> list[Decay]:
    """The decisions in a ledger for a run of so many planned steps, since it last saved a step of another plan."""
    found: list[Decay] = []
    steps: int | None = planned
    for event in events:
        if event["event"] == "start":
            steps = mapping(mapping(event.get("recipe")).get("training")).get("steps")
        elif event["event"] == "save" and steps != planned:
            found = []
        elif event["event"] == "decay" and event.get("planned") == planned:
            found = [decay for decay in found if decay.first < event["step"]]
            found.append(Decay(int(event["step"]), int(event["end"])))
    return found


@dataclass
class Clock:
    """Watches the time of a run."""

    began: float  # value of `time.monotonic` at the start of the command
    budget: float  # seconds from then to the end of the command
    most: int  # most steps that make sense, whatever the time
    # whether the recipe's own schedule holds for the planned steps, and the clock only ends a run that is late
    planned: bool = False
    now: Callable[[], float] = time.monotonic  # reads the time
    _steps: deque[float] = field(default_factory=deque)
    _evaluation: float | None = None
    _last: float | None = None

    @property
    def left(self) -> float:
        """Seconds left for steps and evaluations during the run."""
        evaluation = _EVALUATION * self.budget if self._evaluation is None else self._evaluation
        at_the_end = min(_AT_THE_END, _EVALUATION * self.budget)
        return self.began + self.budget - self.now() - at_the_end - 2 * evaluation

    def stepped(self) -> None:
        """Note that a step has ended."""
        now = self.now()
        if self._last is not None:
            self._steps.append(now - self._last)
            recent = min(_LONG, _RECENT * self.budget)
            while len(self._steps) > _RECENT_STEPS and sum(self._steps) - self._steps[0] > recent:
                self._steps.popleft()
        self._last = now

    def evaluated(self, seconds: float) -> None:
        """Note an evaluation, which is no part of the next step."""
        self._evaluation = seconds
        if self._last is not None:
            self._last += seconds

    def decide(self, step: int, recipe: Recipe, decays: Sequence[Decay]) -> Decay | None:
        """What to decide after a step; None to go on as planned."""
        if not self._steps:
            return None
        training = recipe.training
        end = decays[-1].end if decays else training.steps
        seconds = sum(self._steps) / len(self._steps)
        if training.evaluate_every:
            seconds += (self._evaluation or 0.0) / training.evaluate_every
        final = min(step + max(0, int(self.left / seconds)), max(self.most, step))
        if self.planned and self.now() - self.began < (1 - DECAY) * self.budget:
            return None
        if decays or self.planned:
            late = (end - final) * seconds / self.budget
            return Decay(step, final) if late > LATE or late < -EARLY else None
        return Decay(step, final) if step >= (1 - DECAY) * min(final, training.steps) else None
