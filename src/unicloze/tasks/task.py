"""Defines a task: how labelled records become rows, and model outputs become predictions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.example import Examples
from unicloze.records.record import Record
from unicloze.settings import HeadSettings, Recipe, TaskSettings
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import Vocabulary

Outputs = Mapping[str, npt.NDArray[np.float32]]
"""Outputs of a model for a row, by target. *Shape:* (predictions, outputs) each."""
Prediction = dict[str, Any]


class Predictions(list[Prediction]):
    """Predictions in the order of their records; `str` formats them for a terminal.

    Args:
        found: The predictions.
        shown: Formats predictions as text.
        one: Whether there is a single prediction, written to JSON without a list.
    """

    def __init__(
        self, found: Iterable[Prediction], shown: Callable[[Sequence[Prediction]], str], *, one: bool = False
    ) -> None:
        super().__init__(found)
        self.shown, self.one = shown, one

    def to_dict(self) -> Prediction | list[Prediction]:
        """The predictions, for JSON."""
        return self[0] if self.one else list(self)

    def __str__(self) -> str:
        return self.shown(self).removesuffix("\n")


def written(out: str | PathLike[str], what: str, found: Sequence[Prediction]) -> str:
    """Message with the number of predictions in a file."""
    return f"{out}: {len(found):,} {what}"


"""A line of the prediction file: `id`, `prediction`, and further fields of the task."""


@dataclass(frozen=True)
class Baseline:
    """Answers derived from the training records alone, without a model."""

    name: str  # description that completes "no better than ..."
    answers: Sequence[Any]  # one answer per record, in the format of predictions


@dataclass(frozen=True, kw_only=True)
class Task:
    """One kind of task, as functions."""

    purpose: str  # what it does, in one line
    roles: tuple[str, ...]  # roles of the fields of its records (`TaskSettings.fields`)
    answers: tuple[str, ...]  # roles that hold the right answer; they are not read to predict
    settings: type[TaskSettings]  # class of its settings
    # completes the settings from the training records, such as the classes
    resolve: Callable[[Any, Sequence[Record]], TaskSettings]
    heads: Callable[[Any], Mapping[str, HeadSettings]]  # model heads in addition to the pre-training ones, by target
    # Converts records to rows of tokens, once; a record may give several rows. Labels may be absent if no record has
    # one.
    encode: Callable[[Sequence[Record], Tokenizer, Recipe], Sequence[Any]]
    # converts rows to examples, at every step, given the rows, the vocabulary, the recipe and one key per row for all
    # random draws (see `unicloze.keyed`); the keys are None if nothing may be drawn
    lay_out: Callable[[Sequence[Any], Vocabulary, Recipe, npt.NDArray[np.uint64] | None], Examples]
    # converts model outputs for the rows to one prediction per record; None if predictions are generated from rows with
    # a `source`
    predict: Callable[[Sequence[Record], Sequence[Any], Sequence[Outputs], Recipe], list[Prediction]] | None
    reference: Callable[[Record, Any], Any]  # what a record's prediction is compared with
    # predictions to beat (see `unicloze.tasks.baselines`)
    baseline: Callable[[Sequence[Record], Sequence[Record], Recipe], Baseline | None]
    # predictions of what a user would take instead of a model, if anything
    rival: Callable[[Sequence[Record], Sequence[Record], Recipe], Baseline | None] = lambda *_: None
    token_targets: tuple[str, ...] = ()  # targets that predict tokens
    # what its metrics may compare (see `unicloze.evaluation.metrics.registry`); anything if empty
    compares: tuple[str, ...] = ()
    # roles that a file's records may lack; the training file decides (`TaskSettings.optional`)
    optional: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()  # roles that raw texts can fill, in order (see `unicloze.tasks.columns`)


class RecordsCut(UserWarning):
    """Records are longer than a row."""


def cut_note(cut: int, records: int, longest: int) -> None:
    """Warn once how many records are longer than a row."""
    if cut:
        warnings.warn(
            f"{cut} of {records} records are longer than the {longest} tokens of a row (task.max_length) and were cut",
            RecordsCut,
            stacklevel=3,
        )
