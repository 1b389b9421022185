"""Defines a task: how labelled records become rows, and model outputs become predictions.

The settings that several kinds of tasks inherit, with their rules, are here too.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, TypeVar

from unicloze.rules import AT_LEAST_ONE, BELOW_ONE, DISTINCT, Problem, needs, setting
from unicloze.settings import HeadName, HeadSettings, Recipe, TaskPooling, TaskSettings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from unicloze.example import Examples
    from unicloze.keyed import Bits
    from unicloze.records.record import Record
    from unicloze.text.tokenizers import Tokenizer
    from unicloze.text.vocabulary import Vocabulary

Outputs: TypeAlias = "Mapping[str, npt.NDArray[np.float32]]"
"""Outputs of a model for a row, by target. *Shape:* (predictions, outputs) each."""
Prediction = dict[str, Any]
"""A line of the prediction file: `id`, `prediction`, and further fields of the task."""


class Predictions(list[Prediction]):
    """Predictions in the order of their records; `str` formats them for a terminal.

    Args:
        predictions: The predictions.
        shown: Formats predictions as text.
        one: Whether there is a single prediction, written to JSON without a list.
    """

    def __init__(
        self, predictions: Iterable[Prediction], shown: Callable[[Sequence[Prediction]], str], *, one: bool = False
    ) -> None:
        super().__init__(predictions)
        self.shown, self.one = shown, one

    def to_dict(self) -> Prediction | list[Prediction]:
        """The predictions, for JSON."""
        return self[0] if self.one else list(self)

    def __str__(self) -> str:
        return self.shown(self).removesuffix("\n")


def written(out: str | PathLike[str], what: str, predictions: Sequence[Prediction]) -> str:
    """Message with the number of predictions in a file."""
    return f"{out}: {len(predictions):,} {what}"


@dataclass(frozen=True)
class Baseline:
    """Answers derived from the training records alone, without a model."""

    name: str  # description that completes "no better than ..."
    answers: Sequence[Any]  # one answer per record, in the format of predictions

    @classmethod
    def always(cls, counts: Counter[str], times: int) -> Baseline:
        """The most common answer, to every record."""
        answer = counts.most_common(1)[0][0]
        shown = answer if len(answer) <= SHOWN else f"{answer[:SHOWN]}..."
        return cls(f"always answering '{shown}'", [answer] * times)


SHOWN = 40
"""Maximum characters of an answer in a baseline's name."""
OF_TEXTS = "classification", "regression"
"""Kinds of tasks with one prediction for a text or a pair of texts: guessed from a table's columns, averaged over models."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One kind of task: what its records hold and, in the methods of a subclass, what is done with them."""

    purpose: str  # what it does, in one line
    roles: tuple[str, ...]  # roles of the fields of its records (`TaskSettings.fields`)
    answers: tuple[str, ...]  # roles that hold the right answer; they are not read to predict
    settings: type[TaskSettings]  # class of its settings
    token_targets: tuple[str, ...] = ()  # targets that predict tokens: then predictions are generated
    # what its metrics may compare (see `unicloze.evaluation.metrics.registry`); anything if empty
    compares: tuple[str, ...] = ()
    # roles that a file's records may lack; the training file decides (`TaskSettings.optional`)
    optional: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()  # roles that raw texts can fill, in order (see `unicloze.tasks.columns`)

    @property
    def generates(self) -> bool:
        """Whether predictions are generated from rows with a `source`, rather than by `predict`."""
        return bool(self.token_targets)

    def resolve(self, settings: Any, records: Sequence[Record]) -> TaskSettings:
        """The settings completed from the training records, such as the classes."""
        resolved: TaskSettings = settings
        return resolved

    def heads(self, settings: Any) -> Mapping[str, HeadSettings]:
        """Model heads in addition to the pre-training ones, by target."""
        return {}

    def encode(self, records: Sequence[Record], tokenizer: Tokenizer, recipe: Recipe) -> Sequence[Any]:
        """The rows of records, once; a record may have several rows. Labels may be absent if no record has one."""
        raise NotImplementedError

    def lay_out(self, rows: Sequence[Any], vocabulary: Vocabulary, recipe: Recipe, keys: Bits | None) -> Examples:
        """The examples of rows, at every step.

        Args:
            rows: The rows.
            vocabulary: Their vocabulary.
            recipe: The recipe.
            keys: A key for each row for all random draws (see `unicloze.keyed`); None if nothing may be drawn.
        """
        raise NotImplementedError

    def predict(self, record: Record, rows: Sequence[Any], outputs: Sequence[Outputs], recipe: Recipe) -> Prediction:
        """The prediction for a record, without its id, from the model's outputs for its rows."""
        raise NotImplementedError

    def reference(self, record: Record, settings: Any) -> Any:
        """What a record's prediction is compared with."""
        raise NotImplementedError

    def baseline(self, train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline | None:
        """Predictions to beat."""
        return None

    def rival(self, train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline | None:
        """Predictions of what a user would take instead of a model, if anything."""
        return None


class RecordsNote(UserWarning):
    """Some of the records cannot be learned in full."""


def cut_note(cut: int, records: int, longest: int) -> None:
    """Warn once how many records are longer than a row."""
    if cut:
        longer = f"{cut} of {records} records are longer than the {longest} tokens of a row"
        warnings.warn(f"{longer} (task.max_length) and were cut", RecordsNote, stacklevel=3)


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
    head_dropout: float | None = setting(None, BELOW_ONE)

    one_slot: ClassVar[str] = ""
    """What a single slot predicts, if slots cannot be pooled."""

    def head_settings(self, kind: Literal["classes", "quantities", "choice"], **values: Any) -> HeadSettings:
        """A head of these settings, with further `values` of `HeadSettings`."""
        view: Literal["full"] | None = "full" if self.layers == "all" else None
        return HeadSettings(kind=kind, name=self.head, view=view, dropout=self.head_dropout, **values)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject pooling where a single slot is needed."""
        yield from super().problems(recipe)
        of_texts = isinstance(self, Paired)
        if self.head in ("batch_norm", "biattentive") and not of_texts:
            yield "task.head", f"{self.head} needs one prediction per text: set it to dense or plain"
        if self.layers == "all" and not (of_texts or self.kind == "tagging"):
            yield "task.layers", "only tags and texts are predicted from all layers: set it to last"
        elif self.layers == "all" and self.head == "biattentive":
            yield "task.layers", "a biattentive head reads the embeddings and the last layer: set it to last"
        elif self.layers == "all" and recipe.model.layer_mix:
            yield "task.layers", "a head reads either all layers or their mix (model.layer_mix): set it to last"
        if self.pooling == "concat" and not of_texts:
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

    labels: list[str] | None = setting(None, DISTINCT)
    class_weights: Literal["balanced"] | dict[str, float] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.class_weights, dict):  # YAML reads the label 0 as a number
            weights: dict[Any, float] = self.class_weights
            numbers = {label for label in weights if isinstance(label, int | float) and not isinstance(label, bool)}
            spelled = {str(label) if label in numbers else label: each for label, each in weights.items()}
            if len(spelled) == len(weights):
                object.__setattr__(self, "class_weights", spelled)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject classes that are not spelled as in records, and weights that are not positive or belong to no class."""
        yield from super().problems(recipe)
        spaced = [label for label in self.labels or () if label != label.strip()]
        if spaced:
            yield "task.labels", f"{spaced[0]!r} begins or ends with white space, which does not count: leave it out"
        if not isinstance(self.class_weights, dict):
            return
        weights: dict[Any, float] = self.class_weights
        if not all(0 < weight < math.inf for weight in weights.values()):
            yield "task.class_weights", "every weight must be above 0 and finite"
        if others := [
            "null" if label is None else str(label).lower() for label in weights if not isinstance(label, str)
        ]:
            yield "task.class_weights", f"YAML reads a label as {others[0]}: write it in quotes"
            return
        unknown = [label for label in weights if label not in (self.labels or weights)]
        if unknown:
            yield "task.class_weights", f"{unknown[0]!r} is not a label of the task ({', '.join(self.labels or ())})"

    def with_classes(self, answers: Sequence[str]) -> Self:
        """The settings with the classes and, if balanced, their weights, from the right answers to the training records."""
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
    head_size: int = setting(300, AT_LEAST_ONE, needs("task.head", "biattentive"))

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

    max_question: int = setting(64, AT_LEAST_ONE)
    stride: int = setting(128, AT_LEAST_ONE)
    max_answer: int = setting(30, AT_LEAST_ONE)
    n_best: int = setting(5, AT_LEAST_ONE)
