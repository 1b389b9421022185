"""Settings that several kinds of tasks share, in groups that their own settings inherit, with their rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

from unicloze.rules import AT_LEAST_ONE, BELOW_ONE, Problem
from unicloze.settings import Recipe, TaskSettings

T = TypeVar("T", bound=TaskSettings)


def task_of(recipe: Recipe, kind: type[T]) -> T:
    """The settings of a recipe's task.

    Args:
        recipe: Of a task of this class.
        kind: Its class.

    Raises:
        TypeError: They are of another class.
    """
    if not isinstance(recipe.task, kind):
        raise TypeError(f"the settings of task.kind {recipe.task.kind!r} are no {kind.__name__}")
    return recipe.task


@dataclass(frozen=True, kw_only=True)
class Headed(TaskSettings):
    """A head of its own.

    Args:
        head: `dense` puts BERT's dense layer and tanh before the output layer (it can be exported), `plain` does not (as
            both UniLM papers say).
        pooling: What stands for a text: its `first` slot, its `last`, or the `mean` of all; as the model's recipe says
            (`use.pooling`) if not given. In tagging: what stands for a word; for a choice, no answer and the kind of an
            answer: one slot. These are the `last` of a model that reads from left to right, else the `first`, if not given.
        head_dropout: Dropout of what the output layer reads; `model.dropout` if not given.
    """

    head: Literal["dense", "plain"] = "dense"
    pooling: Literal["first", "last", "mean"] | None = None
    head_dropout: float | None = None

    ranges: ClassVar = {"head_dropout": BELOW_ONE}
    one_slot: ClassVar[str] = ""
    """What a single slot is for, where slots are not pooled."""

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Slots that cannot be pooled."""
        yield from super().problems(recipe)
        if self.one_slot and self.pooling == "mean":
            yield "task.pooling", f"{self.one_slot} by one slot: set it to first or last"


@dataclass(frozen=True, kw_only=True)
class Labelled(TaskSettings):
    """Classes.

    Args:
        labels: The classes, in the order of their numbers; those of the training file, sorted, if not given.
    """

    labels: list[str] | None = None

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Classes that are named twice."""
        yield from super().problems(recipe)
        if self.labels is not None and len(set(self.labels)) != len(self.labels):
            yield "task.labels", "name each class once"


@dataclass(frozen=True, kw_only=True)
class Delimited(TaskSettings):
    """Two texts in a row.

    Args:
        delimiter: Put a token of its own between two texts and give both one segment, as GPT does, instead of [EOS] and
            segments.
    """

    delimiter: bool = False


@dataclass(frozen=True, kw_only=True)
class Paired(Headed, Delimited):
    """A text or a pair of texts, of which one thing is predicted.

    Args:
        both_orders: Read each pair in both orders and sum what stands for it, as GPT does where the order has no meaning.
    """

    both_orders: bool = False

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Orders that cannot be summed."""
        yield from super().problems(recipe)
        if self.both_orders and self.pooling is None:
            yield "task.pooling", "what stands for each of both orders is summed: set it to first, last or mean"


@dataclass(frozen=True, kw_only=True)
class Passages(Headed):
    """Questions about passages that may be longer than a row.

    Args:
        max_question: Most tokens of a question, that of a conversation with the turns before it; the rest of a row is for
            the passage.
        stride: Tokens of the passage from the beginning of one window to that of the next; half a window where that is
            less.
        max_answer: Most tokens of an extracted answer.
        n_best: How many answers a prediction lists.
    """

    max_question: int = 64
    stride: int = 128
    max_answer: int = 30
    n_best: int = 5

    ranges: ClassVar = dict.fromkeys(("max_question", "stride", "max_answer", "n_best"), AT_LEAST_ONE)
