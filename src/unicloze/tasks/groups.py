"""Groups of settings that several kinds of tasks inherit, with their rules."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeVar

from unicloze.rules import AT_LEAST_ONE, BELOW_ONE, Needs, Problem
from unicloze.settings import HeadName, HeadSettings, Recipe, TaskPooling, TaskSettings

T = TypeVar("T", bound=TaskSettings)


def task_of(recipe: Recipe, kind: type[T]) -> T:
    """The settings of a recipe's task."""
    if not isinstance(recipe.task, kind):
        raise TypeError(f"the settings of task.kind {recipe.task.kind!r} are not {kind.__name__}")
    return recipe.task


@dataclass(frozen=True, kw_only=True)
class Headed(TaskSettings):
    """Settings of a task head.

    Args:
        head: `dense` puts BERT's dense layer and tanh before the output layer (exportable), `dense_gelu` a dense layer with
            GELU (ELECTRA) and `dense_relu` one with ReLU (DistilBERT, CVT); `plain` does not (as in both UniLM papers);
            `batch_norm` puts 50 units and batch normalisation before it (ULMFiT), for one prediction per text. `biattentive`
            reads embeddings and last states of a text, or of a pair each read alone, with LSTMs, attention between the two,
            four poolings and maxout layers (CoVe).
        layers: What the head reads, for tags and texts: the `last` layer, or `all` of bidirectional LSTMs side by side (CVT).
        pooling: Representation of a text: its `first` slot, its `last`, or the `mean` of all, or their `concat`: the last one
            read, the maximum and the mean of all (ULMFiT); default: `use.pooling` of the model's recipe. In tagging, the
            representation of a word; for choices, no answer and the kind of an answer, one slot: by default the `last` if the
            model reads from left to right, else the `first`. An encoder-decoder predicts classes and quantities from the last
            slot of its `decoder`, which reads the text again (BART).
        head_dropout: Dropout of the output layer's input; default: `model.dropout`.
    """

    head: HeadName = "dense"
    layers: Literal["last", "all"] = "last"
    pooling: TaskPooling | None = None
    head_dropout: float | None = None

    ranges: ClassVar = {"head_dropout": BELOW_ONE}
    one_slot: ClassVar[str] = ""
    """What a single slot predicts, if slots cannot be pooled."""
    of_texts: ClassVar[bool] = False
    """Whether there is one prediction per text."""

    def head_settings(self, kind: Literal["classes", "quantities", "choice"], **values: Any) -> HeadSettings:
        """A head of these settings.

        Args:
            kind: As of `HeadSettings`.
            values: Further values of `HeadSettings`.
        """
        return HeadSettings(
            kind=kind,
            name=self.head,
            view="full" if self.layers == "all" else None,
            dropout=self.head_dropout,
            **values,
        )

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject pooling where a single slot is needed."""
        yield from super().problems(recipe)
        if self.head in ("batch_norm", "biattentive") and not self.of_texts:
            yield "task.head", f"{self.head} needs one prediction per text: set it to dense or plain"
        takes_views = self.of_texts or self.kind == "tagging"
        if self.layers == "all" and not takes_views:
            yield "task.layers", "only tags and texts are predicted from all layers: set it to last"
        elif self.layers == "all" and self.head == "biattentive":
            yield "task.layers", "a biattentive head reads the embeddings and the last layer: set it to last"
        elif self.layers == "all" and recipe.model.layer_mix:
            yield "task.layers", "a head reads either all layers or their mix (model.layer_mix): set it to last"
        if self.pooling == "concat" and not self.of_texts:
            yield "task.pooling", "only the slots of a whole text are concatenated: set it to first or last"
        elif self.one_slot and self.pooling == "mean":
            yield "task.pooling", f"{self.one_slot} from one slot: set it to first or last"


@dataclass(frozen=True, kw_only=True)
class Labelled(TaskSettings):
    """Settings of tasks with classes.

    Args:
        labels: The classes, in the order of their indices; default: sorted labels of the training file.
        class_weights: Weight of each class in the loss; default: 1. `balanced` gives all classes of the training file the
            same total weight.
    """

    labels: list[str] | None = None
    class_weights: Literal["balanced"] | dict[str, float] | None = None

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject duplicate classes, and weights that are not positive or belong to no class."""
        yield from super().problems(recipe)
        if self.labels is not None and len(set(self.labels)) != len(self.labels):
            yield "task.labels", "name each class once"
        spaced = [label for label in self.labels or () if label != label.strip()]
        if spaced:
            yield "task.labels", f"{spaced[0]!r} begins or ends with white space, which does not count: leave it out"
        if not isinstance(self.class_weights, dict):
            return
        if not all(0 < weight < math.inf for weight in self.class_weights.values()):
            yield "task.class_weights", "every weight must be above 0 and finite"
        unknown = [label for label in self.class_weights if label not in (self.labels or self.class_weights)]
        if unknown:
            yield "task.class_weights", f"{unknown[0]!r} is not a label of the task ({', '.join(self.labels or ())})"

    def with_classes(self, answers: Sequence[str]) -> Self:
        """The settings with the classes and, if balanced, their weights in the training records.

        Args:
            answers: The class of each prediction of the training records.
        """
        labels = sorted(set(answers)) if self.labels is None else self.labels
        weights = self.class_weights
        if weights == "balanced":
            counts = Counter(answers)
            weights = {label: len(answers) / (len(counts) * count) for label, count in sorted(counts.items())}
        return dataclasses.replace(self, labels=labels, class_weights=weights)


@dataclass(frozen=True, kw_only=True)
class Delimited(TaskSettings):
    """Settings of tasks with two texts in a row.

    Args:
        delimiter: Separate two texts with a dedicated token within one segment, as GPT does, instead of [EOS] and two
            segments.
    """

    delimiter: bool = False


@dataclass(frozen=True, kw_only=True)
class Paired(Headed, Delimited):
    """Settings of tasks with one prediction for a text or a pair of texts.

    Args:
        both_orders: Read each pair in both orders and sum the representations, as GPT does if the order has no meaning.
        head_size: Width of a `biattentive` head: of its feed-forward layer, and of its LSTMs in each direction.
    """

    both_orders: bool = False
    head_size: int = 300

    of_texts = True
    ranges: ClassVar = {"head_size": AT_LEAST_ONE}
    needs: ClassVar = {
        "head_size": (Needs("task.head biattentive", lambda recipe: getattr(recipe.task, "head", "") == "biattentive"),)
    }

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject both orders without a pooling."""
        yield from super().problems(recipe)
        if self.head != "biattentive":
            if self.both_orders and self.pooling in (None, "concat"):
                yield "task.pooling", "task.both_orders sums pooled representations: set it to first, last or mean"
            return
        if self.both_orders:
            yield "task.both_orders", "a biattentive head reads the texts of a pair apart: set it to false"
        if self.pooling is not None:
            yield "task.pooling", "a biattentive head has poolings of its own: leave it out"
        if recipe.use.visibility == "both_directions":
            yield "use.visibility", "a biattentive head reads each slot once: set it to bidirectional or left_to_right"
        if recipe.model.decoder_layers and recipe.model.kind == "transformer":
            yield "task.head", "an encoder-decoder of Transformers gives no embeddings: set it to dense or plain"


@dataclass(frozen=True, kw_only=True)
class Passages(Headed):
    """Settings of tasks with questions about passages that may be longer than a row.

    Args:
        max_question: Maximum tokens of a question, in a conversation including earlier turns; the rest of a row is for the
            passage.
        stride: Passage tokens from the start of one window to the start of the next; at most half a window.
        max_answer: Maximum tokens of an extracted answer.
        n_best: Number of answers listed in a prediction.
    """

    max_question: int = 64
    stride: int = 128
    max_answer: int = 30
    n_best: int = 5

    ranges: ClassVar = dict.fromkeys(("max_question", "stride", "max_answer", "n_best"), AT_LEAST_ONE)
