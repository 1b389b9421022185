"""Judges a pre-training run in one sentence: against a Kneser-Ney trigram, its own loss curve and the size of its text."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from unicloze.arrays import Int64s
from unicloze.example import predicts_tokens
from unicloze.files import Plain
from unicloze.objectives import Ability
from unicloze.progress import span
from unicloze.text.shards import TokenSource
from unicloze.training.ledger import TRAINING_TEXT, Figure, figures_of

Side = Literal["both", "left"]
"""What a word is guessed from: the words on both sides of it or those on its left."""


@dataclass(frozen=True, kw_only=True)
class WordScore(Plain):
    """Share of content words among the top guesses of a model and of counts.

    Args:
        words: Number of words tested, each in its own sentence.
        sees: Whether model and counts guessed from `both` sides or from the `left` only.
        top_1: Share of words that are the model's first guess.
        top_5: Share of words among the model's first five guesses.
        counts_top_1: The same for the counts' first guess.
        counts_top_5: The same for the counts' first five guesses.
        error: Standard error of the difference between `top_5` and `counts_top_5`.
    """

    words: int
    sees: Side
    top_1: float
    top_5: float
    counts_top_1: float
    counts_top_5: float
    error: float

    @classmethod
    def of(cls, ranks: Sequence[int] | Int64s, counted: Sequence[int] | Int64s, asking: Ability) -> WordScore:
        """Compute the score from the words' ranks under the model and the counts, 0 being the first guess."""
        own, other = np.asarray(ranks), np.asarray(counted)
        difference = (own < 5).astype(float) - (other < 5)
        return cls(
            words=len(own),
            sees="left" if asking == "causal" else "both",
            top_1=float((own < 1).mean()),
            top_5=float((own < 5).mean()),
            counts_top_1=float((other < 1).mean()),
            counts_top_5=float((other < 5).mean()),
            error=float(difference.std()) / math.sqrt(len(own)),
        )


LITTLE_BYTES, LITTLE_TOKENS = 1_000_000, 250_000
"""Less text than this is too little to learn a language; tokens count if bytes are unknown."""
STANDARD_ERRORS = 2.0
"""Smallest significant difference, in standard errors."""
GAP = 1.0
"""Smallest difference of training and held-out loss that counts as overfitting, in nats per prediction."""
RISE = 0.1
"""Smallest rise of the held-out loss above its minimum that counts as overfitting, in nats."""
FALL = 0.05
"""Smallest fall of the held-out loss over the last quarter of the steps that counts as improvement, in nats."""

MOST_TIMES = 100.0
"""Farthest that a curve is extended, in multiples of the steps done."""
COUNTED = {"unigram": "counting words", "trigram": "a Kneser-Ney trigram"}
"""What each kind of counts is called, the weakest first."""
Counted = Mapping[str, Mapping[str, float]]
"""Held-out perplexities of counts of the training text by figure and by kind, see `COUNTED`."""


@dataclass
class Course:
    """The losses of a run by step."""

    training: dict[int, list[Figure]] = field(default_factory=dict)  # figures of the steps in the ledger
    heldout: dict[int, list[Figure]] = field(default_factory=dict)  # figures of the evaluations
    seconds: float = 0.0  # running time
    of_model: bool = False  # the run starts from a trained model

    @classmethod
    def of(cls, events: Iterable[Mapping[str, Any]]) -> Course:
        """Read the events of a ledger; repeated steps count as last done."""
        course, before, windows = cls(), None, dict[int, Any]()
        kept = {"step": course.training, "evaluate": course.heldout}
        for event in events:
            name, step, now = event.get("event"), event.get("step"), event.get("time")
            if name != "start" and isinstance(now, int | float) and isinstance(before, int | float):
                course.seconds += max(0.0, now - before)
            before = now
            if name == "start" and isinstance(step, int):
                training = event.get("recipe", {}).get("training", {})
                course.of_model = training.get("initialize_from") is not None
                for losses in kept.values():
                    for later in [one for one in losses if one > step]:
                        del losses[later]
            elif name in kept and isinstance(step, int) and event.get("part") != TRAINING_TEXT:
                kept[name][step] = figures_of(event)
                windows |= {step: event.get("windows")} if name == "evaluate" else {}
        last = windows.get(max(course.heldout, default=0))  # losses on other windows differ by more than the model
        course.heldout = {step: figures for step, figures in course.heldout.items() if windows[step] == last}
        return course

    @property
    def gap(self) -> tuple[float, float] | None:
        """Final training loss and held-out loss, of one meaning, with the largest gap; None if no figure has both."""
        if not self.training or not self.heldout:
            return None
        last = max(self.training)
        recent = [figure for step, losses in self.training.items() if step > 0.9 * last for figure in losses]
        pairs = []
        for figure in self.heldout[max(self.heldout)]:
            alike = [one for one in recent if one.meaning == figure.meaning]
            if alike and predicts_tokens(figure.target):
                trained = functools.reduce(operator.add, alike).mean
                if trained is not None and figure.mean is not None:
                    pairs.append((trained, figure.mean))
        return max(pairs, key=lambda pair: pair[1] - pair[0], default=None)

    @property
    def still_falling(self) -> bool:
        """Whether the mean held-out loss fell over the last quarter of the steps and is at its minimum."""
        points = {step: self._mean(step) for step in self.heldout if step > 0}
        earlier = None if self.above_lowest > 0 else _at(0.75 * max(points, default=0), points)
        return earlier is not None and earlier - points[max(points)] >= FALL

    @property
    def above_lowest(self) -> float:
        """Difference between the mean held-out loss and its minimum since the first step."""
        means = {step: self._mean(step) for step in self.heldout if step > 0}
        return means[max(means)] - min(means.values()) if means else 0.0

    def perplexity_before(self, figure: Figure) -> float | None:
        """The perplexity of a held-out figure before the first step; None if the run did not start from a model."""
        started = self.heldout.get(0, ()) if self.of_model else ()
        return next((one.perplexity for one in started if one.meaning == figure.meaning), None)

    def fall(self, figure: Figure) -> tuple[int, float] | None:
        """Last step, and fall of a held-out loss per e-fold of the steps over their second half; None if unknown."""
        points = {
            step: mean
            for step, figures in self.heldout.items()
            for each in figures
            if step > 0 and each.meaning == figure.meaning and (mean := each.token_mean) is not None
        }
        last = max(points, default=0)
        half = _at(last / 2, points)
        return None if half is None else (last, (half - points[last]) / math.log(2))

    def _mean(self, step: int) -> float:
        values = [mean for figure in self.heldout[step] if (mean := figure.token_mean) is not None]
        return sum(values) / len(values) if values else 0.0


def _at(step: float, losses: Mapping[int, float]) -> float | None:
    """The loss at a step before the last, by the logarithm of the steps beside it; None before the first evaluation."""
    before = max((one for one in losses if one <= step), default=None)
    if before is None:
        return None
    after = min(one for one in losses if one > step)
    share = math.log(step / before) / math.log(after / before)
    return losses[before] + share * (losses[after] - losses[before])


def too_little_text(sources: Sequence[TokenSource]) -> str:
    """A message with the amount of text if it is too little; else empty."""
    sizes = [source.num_bytes for source in sources]
    tokens = sum(source.num_tokens for source in sources)
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return f"too little text: {tokens:,} tokens" if tokens < LITTLE_TOKENS else ""
    size = sum(known)
    amount = f"{size / 1000:,.0f} kB" if size >= 1000 else f"{size} bytes"
    return f"too little text: {amount}" if size < LITTLE_BYTES else ""


def verdict_on(
    figures: Mapping[str, Figure], counts: Counted, words: WordScore | None, course: Course, little: str
) -> str:
    """The verdict on a finished pre-training run."""
    measured = _measured(figures, counts)
    overfitted = _overfitted(course)
    if not measured:
        failed, said = True, ["not judged: there is no held-out perplexity"]
    else:
        name = _foremost(measured, counts)
        best = measured[name]
        before = course.perplexity_before(best)
        called = f" ({name})" * (len(measured) > 1)
        called += "" if before is None else f", {shown(before)} before training,"
        failure, said_of, rival = _against(best, called, counts[name], words)
        cure = "give more text" if overfitted else _cost(best, rival, counts[name], course)
        if before is not None and _standing(best, before) > 0:
            failure = failure or "worse after training"
            cure = f"lower --training.learning_rate, {cure}" if overfitted else "lower --training.learning_rate"
        failed, said = bool(failure), [f"{failure}: {cure} ({said_of})" if failure else said_of]
    if overfitted:
        said.append(f"overfitted: {overfitted}" + ("" if failed else ": give more text or train fewer steps"))
    elif course.still_falling and not failed:
        said.append(f"still improving: {_gain(best, course)}")
    if little and (failed or overfitted):
        said.append(little)
    return "; ".join(said)


def _measured(figures: Mapping[str, Figure], counts: Counted) -> dict[str, Figure]:
    """The figures that can be compared with counts."""
    return {name: figure for name, figure in figures.items() if figure.token_mean is not None and name in counts}


def _foremost(measured: Mapping[str, Figure], counts: Counted) -> str:
    """The figure that is farthest ahead of the trigram, or least behind it."""
    return min(measured, key=lambda name: _behind(measured[name], counts[name]["trigram"]))


def _rival(figure: Figure, counts: Mapping[str, float]) -> str:
    """The weakest counts that a model is worse than; empty if none."""
    return next((kind for kind in COUNTED if _standing(figure, counts[kind]) > 0), "")


def _behind(figure: Figure, perplexity: float) -> float:
    """The loss above that of counts, in nats per prediction; infinite if it is not a number."""
    behind = (figure.token_mean or 0.0) - math.log(perplexity)
    return math.inf if math.isnan(behind) else behind


def _against(best: Figure, name: str, counts: Mapping[str, float], words: WordScore | None) -> tuple[str, str, str]:
    """The failure, empty if counts do not beat the model; the figures; and the counts that its perplexity fails to beat."""
    rival = _rival(best, counts)
    assert best.perplexity is not None
    figures = f"perplexity {shown(best.perplexity)}{name} against "
    if rival == "unigram":
        figures += f"{shown(counts['unigram'])} of counted words and "
    figures += f"{shown(counts['trigram'])} of {COUNTED['trigram']}"
    if _standing(best, counts["trigram"]) == 0:
        figures += f", level within {STANDARD_ERRORS:g} standard errors"
    guesses_less = False
    if words is not None:
        left = " from the left" if words.sees == "left" else ""
        figures += f", content words{left} {percent(words.top_5)} in the top 5 against {percent(words.counts_top_5)}"
        difference = words.top_5 - words.counts_top_5
        guesses_less = difference < -STANDARD_ERRORS * words.error
        if abs(difference) <= STANDARD_ERRORS * words.error:
            figures += f", level within {STANDARD_ERRORS:g} standard errors"
    if rival:
        return f"no better than {COUNTED[rival]}", figures, rival
    return f"worse than {COUNTED['trigram']} at content words" if guesses_less else "", figures, ""


def _standing(figure: Figure, perplexity: float) -> int:
    """1 if the loss is above that of counts, -1 if below, 0 if they differ by no more than the noise."""
    difference = _behind(figure, perplexity)
    if math.isclose(difference, 0.0, abs_tol=1e-9) or abs(difference) <= STANDARD_ERRORS * figure.error:
        return 0
    return 1 if difference > 0 else -1


def _cost(best: Figure, rival: str, counts: Mapping[str, float], course: Course) -> str:
    """What it takes to beat the counts that it fails to beat, by the run's own curve."""
    fall = course.fall(best)
    if fall is None or (not rival and fall[1] <= 0):
        return "train longer or give more text"
    if not rival:
        return f"give more text, or train longer: {_gain(best, course)}"
    last, per_fold = fall
    folds = _behind(best, counts[rival]) / per_fold if per_fold > 0 else math.inf
    if folds > math.log(MOST_TIMES):
        cure = "give more text, another model, or start from a trained one (--init)"
        cure = "give more text or another model" if course.of_model else cure
        return f"by its own curve it does not beat {COUNTED[rival]} in {MOST_TIMES:g} times the steps; {cure}"
    times, more = math.exp(folds), _more(math.exp(folds), course)
    unit = 10 ** max(0, math.floor(math.log10(times * last)) - 1)  # two digits
    steps = math.ceil(times * last / unit) * unit
    return f"by its own curve it needs at least {steps:,} steps to beat {COUNTED[rival]}{more}"


def _gain(best: Figure, course: Course) -> str:
    """What twice the steps would give by the run's own curve."""
    fall, mean = course.fall(best), best.token_mean
    if fall is None or mean is None or fall[1] <= 0:
        return "train longer"
    reached = math.exp(mean - fall[1] * math.log(2))
    return f"by its own curve twice the steps reach a perplexity of {reached:,.3g} at best{_more(2.0, course)}"


def _more(times: float, course: Course) -> str:
    """The additional time of some multiple of the steps at the run's speed; empty if unknown."""
    seconds = course.seconds * (times - 1)
    return f", {span(seconds)} more" if seconds > 0 else ""


def not_beaten(figures: Mapping[str, Figure], counts: Counted) -> str:
    """What a model is no better than, by the rule of a run's verdict: a value of `COUNTED`, or empty."""
    measured = _measured(figures, counts)
    if not measured:
        return ""
    name = _foremost(measured, counts)
    return COUNTED.get(_rival(measured[name], counts[name]), "")


def is_beaten(verdict: str) -> bool | None:
    """Whether a run's verdict says that counting beats it; None if it was not judged."""
    if not verdict or verdict.startswith("not judged"):
        return None
    return verdict.startswith(("no better than ", "worse than "))


def _overfitted(course: Course) -> str:
    """The figures that show overfitting; empty if there is none."""
    if course.gap is not None and course.gap[1] - course.gap[0] >= GAP:
        return f"training {course.gap[0]:.2f}, held-out {course.gap[1]:.2f} nats per prediction"
    if course.above_lowest >= RISE:
        return f"the held-out loss is {course.above_lowest:.2f} nats per prediction above its lowest"
    return ""


def shown(perplexity: float) -> str:
    """A perplexity with a useful number of digits."""
    if perplexity >= 1e15:
        return f"{perplexity:.3g}"
    return f"{perplexity:,.0f}" if perplexity >= 1000 else f"{perplexity:.1f}"


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.1f} %"
