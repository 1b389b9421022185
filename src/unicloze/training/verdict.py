"""Judges a pre-training run in one sentence: against n-gram counts, its own loss curve and the size of its text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unicloze.model.model import WITHOUT_VOCABULARY
from unicloze.text.shards import TokenSource
from unicloze.training.word_guesses import WordScore

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

Losses = Mapping[str, float | None]


@dataclass
class Course:
    """The losses of a run by step, in nats per prediction.

    Args:
        training: Losses by target, of the steps in the ledger.
        heldout: Losses by target, of the evaluations, prefixed with the part if there are several.
    """

    training: dict[int, Losses] = field(default_factory=dict)
    heldout: dict[int, Losses] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Mapping[str, Any]]) -> Course:
        """Read the events of a ledger; repeated steps count as last done."""
        course = cls()
        kept = {"step": course.training, "evaluate": course.heldout}
        for event in events:
            name, step = event.get("event"), event.get("step")
            if name == "spike":
                name, step = "start", event.get("to")
            if name == "start" and isinstance(step, int):
                for losses in kept.values():
                    for later in [one for one in losses if one > step]:
                        del losses[later]
            elif name in kept and isinstance(step, int):
                kept[name][step] = event.get("loss") or {}
        return course

    @property
    def gap(self) -> tuple[float, float] | None:
        """Final training loss and held-out loss of the target with the largest gap; None if no target has both."""
        if not self.training or not self.heldout:
            return None
        last = max(self.training)
        recent = [losses for step, losses in self.training.items() if step > 0.9 * last]
        pairs = []
        for name, heldout in self.heldout[max(self.heldout)].items():
            known = [loss for losses in recent if (loss := losses.get(name.rpartition(".")[2])) is not None]
            if known and heldout is not None and is_token(name):
                pairs.append((sum(known) / len(known), heldout))
        return max(pairs, key=lambda pair: pair[1] - pair[0], default=None)

    @property
    def still_falling(self) -> bool:
        """Whether the mean held-out loss fell over the last quarter of the steps and is at its minimum."""
        last = max(self.heldout, default=0)
        earlier = [step for step in self.heldout if step <= 0.75 * last]
        if not earlier or self.above_lowest > 0:
            return False
        return self._mean(max(earlier)) - self._mean(last) >= FALL

    @property
    def above_lowest(self) -> float:
        """Difference between the mean held-out loss and its minimum."""
        if not self.heldout:
            return 0.0
        return self._mean(max(self.heldout)) - min(map(self._mean, self.heldout))

    def _mean(self, step: int) -> float:
        values = [loss for name, loss in self.heldout[step].items() if loss is not None and is_token(name)]
        return sum(values) / len(values) if values else 0.0


def is_token(target: str) -> bool:
    """Whether a target predicts tokens, so that its perplexity can be compared with counts."""
    return target.rpartition(".")[2] not in WITHOUT_VOCABULARY


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
    perplexities: Losses, counts: Mapping[str, float], words: WordScore | None, course: Course, little: str
) -> str:
    """The verdict on a finished pre-training run.

    Args:
        perplexities: By target, at the last evaluation.
        counts: Held-out perplexities of `unigram` and `bigram` counts of the training text; empty if nothing is
            held out.
        words: Score on content words; None if not measured.
        course: The losses of the run.
        little: Result of `too_little_text`.
    """
    measured = {name: value for name, value in perplexities.items() if value is not None and is_token(name)}
    overfitted = _overfitted(course)
    if not counts or not measured:
        failed, said = True, ["not judged: there is no held-out perplexity"]
    else:
        failure, figures = _against(measured, counts, words)
        cure = "give more text" if overfitted else "train longer or give more text"
        failed, said = bool(failure), [f"{failure}: {cure} ({figures})" if failure else figures]
    if overfitted:
        said.append(f"overfitted: {overfitted}" + ("" if failed else ": give more text or train fewer steps"))
    elif course.still_falling:
        said.append("still improving: double the steps")
    if little and (failed or overfitted):
        said.append(little)
    return "; ".join(said)


def _against(measured: Mapping[str, float], counts: Mapping[str, float], words: WordScore | None) -> tuple[str, str]:
    """The failure, empty if the model beats the counts; and the figures of the best target."""
    name = min(measured, key=measured.__getitem__)
    best, which = measured[name], f" ({name})" if len(measured) > 1 else ""
    below = "bigram" if best < counts["unigram"] else "unigram"
    figures = f"perplexity {shown(best)}{which} against {shown(counts[below])} of {below} counts"
    guesses_less = False
    if words is not None:
        left = " from the left" if words.sees == "left" else ""
        figures += f", content words{left} {percent(words.top_5)} in the top 5 against {percent(words.counts_top_5)}"
        difference = words.top_5 - words.counts_top_5
        guesses_less = difference <= 0
        if 0 < difference <= STANDARD_ERRORS * words.error:
            figures += f", within {STANDARD_ERRORS:g} standard errors"
    if what := not_beaten(best, counts):
        return f"no better than counting {'words' if guesses_less else what}", figures
    return "no better than counting at content words" if guesses_less else "", figures


def not_beaten(perplexity: float, counts: Mapping[str, float]) -> str:
    """What a model is no better than counting: `words`, `pairs of words`, or empty."""
    if perplexity >= counts["unigram"]:
        return "words"
    return "pairs of words" if perplexity >= counts["bigram"] else ""


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
