"""Classes, quantities and choices, predicted from the pooled slots of texts (Devlin et al. 2019; UniLMv2, Table 3).

A text or a pair is one row. A multiple-choice record (RACE, SWAG, COPA, WSC) is one row too: its choices are packed
sequences that see only themselves. A head scores the first slot of each, or the last slot if the model reads from left to
right, and a softmax runs over the scores (Radford et al. 2018, Section 3.3; Devlin et al. 2019, Section 4.4).

| record | sequence of a choice |
|---|---|
| `context`, `choices` | [SOS] context [EOS] choice [EOS] |
| `context`, `question`, `choices` | [SOS] context [EOS] question choice [EOS] |
| `cloze`, a text with the gap `_`, and `choices` | [SOS] the text with the choice in its gap [EOS] |

`label` is the text of the right choice, or its index from 0. A label that matches both a choice's text and an index means
the text.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Int32s
from unicloze.errors import UniclozeError, option_of
from unicloze.mixtures import parts
from unicloze.objectives.seq2seq import SourceTarget, start_ids
from unicloze.records.published import GAP
from unicloze.records.record import Record, evenly, number_of
from unicloze.settings import HeadSettings, Recipe, TaskSettings
from unicloze.tasks.rows import (
    Row,
    RowTarget,
    RowTask,
    packed_row,
    pooled_slots,
    pooling_of,
    read_again,
    task_format,
)  # fmt: skip
from unicloze.tasks.task import Baseline, Delimited, Headed, Labelled, Outputs, Paired, Prediction, cut_note, task_of
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import Vocabulary

LARGEST = float(np.finfo(np.float32).max)
"""Largest valid quantity."""
SHOWN = 20
"""Most labels that a message lists."""


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings(Paired, Labelled):
    """Settings of classification."""

    kind: str = "classification"


@dataclass(frozen=True, kw_only=True)
class RegressionSettings(Paired):
    """Settings of regression."""

    kind: str = "regression"


@dataclass(frozen=True, kw_only=True)
class ChoiceSettings(Headed, Delimited):
    """Settings of multiple choice."""

    kind: str = "choice"

    one_slot = "a choice is scored"


class _OfTexts(RowTask):
    """A prediction for a text or a pair of texts: a class or a quantity."""

    def heads(self, settings: Any) -> Mapping[str, HeadSettings]:
        """One head, for the class or the quantity."""
        outputs = len(settings.labels or ()) if isinstance(settings, Labelled) else 1
        kind: Literal["quantities", "classes"] = "quantities" if settings.kind == "regression" else "classes"
        pooling: Literal["mean", "sum", "concat"] = "mean"
        if settings.pooling == "concat":
            pooling = "concat"
        elif settings.both_orders and settings.pooling != "mean":
            pooling = "sum"
        texts = 2 if "pair" in (settings.optional or ()) else 1
        values = {"outputs": outputs, "pooling": pooling, "texts": texts, "size": settings.head_size}
        return {"label": settings.head_settings(kind, **values)}

    def encode(self, records: Sequence[Record], tokenizer: Tokenizer, recipe: Recipe) -> list[Row]:
        """One row per record: "[SOS] text [EOS]" or "[SOS] text [EOS] pair [EOS]", predicted from its pooled slots.

        With `task.both_orders` a pair is packed in both orders and predicted from both (Radford et al. 2018, Section 3.3).
        """
        task = task_of(recipe, Paired)
        pairs, labelled = (any(record.get(task, role) is not None for record in records) for role in ("pair", "label"))
        roles = ("text", "pair") if pairs else ("text",)
        texts = [tokenizer.encode_batch([record.text(task, role) for record in records]) for role in roles]
        written, pooling, rows = task_format(recipe, tokenizer.vocabulary), pooling_of(recipe), []
        apart = task.head == "biattentive"
        for number, (record, *whole) in enumerate(zip(records, *texts, strict=True)):
            shown = written.fit(whole, spare=apart * (len(whole) - 1))
            orders: Sequence[Sequence[Int32s]] = [(text,) for text in shown] if apart else [shown]
            if task.both_orders and len(shown) == 2:
                orders = (shown, shown[::-1])
            pieces = [written.row(order) for order in orders]
            length = source = len(pieces[0][0])
            pooled = pooled_slots(length, pooling, leftward=recipe.use.visibility == "right_to_left")
            slots = [start + slot for start in range(0, len(pieces) * length, length) for slot in pooled]
            if apart:
                slots = alternating([len(ids) for ids, _ in pieces])
            if pooling == "decoder":
                pieces = [read_again(*pieces[0], start=start_of_decoder(recipe, tokenizer.vocabulary))]
            target = RowTarget(slots=[slots], labels=[self.answer(record, task)] if labelled else None)
            row = packed_row(number, pieces, cut=_size(shown) < _size(whole), label=target)
            rows.append(dataclasses.replace(row, source=source) if pooling == "decoder" else row)
        cut_note(sum(row.cut for row in rows), len(records), task.max_length)
        return rows

    def answer(self, record: Record, settings: Any) -> Any:
        """What a record's row learns."""
        return self.reference(record, settings)

    def rival(self, train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline | None:
        """What logistic or ridge regression predicts from TF-IDF; None if the training records have a single class."""
        seen, linear = evenly(train, MOST_RECORDS), importlib.import_module("sklearn.linear_model")
        answers, of_classes = [self.reference(record, recipe.task) for record in seen], recipe.task.kind != "regression"
        if of_classes and len(set(answers)) < 2:
            return None
        features, wanted = _word_features(seen, records, recipe)
        model = linear.LogisticRegression(C=10.0, max_iter=1000) if of_classes else linear.Ridge()
        said = model.fit(features, answers).predict(wanted).tolist()
        less = f" on {len(seen):,} of the records" if len(seen) < len(train) else ""
        kind = "logistic" if of_classes else "ridge"
        return Baseline(f"{kind} regression on TF-IDF of words and characters{less}", said)


class Classification(_OfTexts):
    """Predicts one of several classes."""

    def resolve(self, settings: Any, records: Sequence[Record]) -> Labelled:
        """The settings with the classes of the training records and their weights, unless given."""
        labelled: Labelled = settings
        if labelled.labels is not None and labelled.class_weights != "balanced":
            return labelled
        answers = [label_of(record, labelled) for record in records]
        if labelled.labels is None and len(set(answers)) < 2:
            alike = f"all records have the label '{answers[0]}'"
            raise UniclozeError(f"{records[0].place}: {alike}; give records of at least two classes")
        return labelled.with_classes(answers)

    def answer(self, record: Record, settings: Any) -> int:
        """The index of a record's class."""
        return list(settings.labels or ()).index(label_of(record, settings))

    def predict(self, record: Record, rows: Sequence[Row], outputs: Sequence[Outputs], recipe: Recipe) -> Prediction:
        """The most likely class, with the probabilities of all classes."""
        labels, scores = task_of(recipe, Labelled).labels or [], outputs[0]["label"][0]
        shares = dict(zip(labels, _probabilities(scores), strict=True))
        return {"prediction": labels[int(scores.argmax())], "probabilities": shares}

    def reference(self, record: Record, settings: Any) -> str:
        """The class of a record."""
        return label_of(record, settings)

    def baseline(self, train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
        """The most common class of the training records."""
        return Baseline.always(Counter(label_of(record, recipe.task) for record in train), len(records))


class Regression(_OfTexts):
    """Predicts a quantity."""

    def predict(self, record: Record, rows: Sequence[Row], outputs: Sequence[Outputs], recipe: Recipe) -> Prediction:
        """The quantity."""
        return {"prediction": float(outputs[0]["label"][0, 0])}

    def reference(self, record: Record, settings: Any) -> float:
        """The quantity that labels a record."""
        value = record.get(settings, "label")
        number = number_of(value)
        if number is None or abs(number) > LARGEST:
            raise UniclozeError(f"{record.place}: the label {value!r:.40} is not a number that a regression can learn")
        return number

    def baseline(self, train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
        """The mean quantity of the training records."""
        value = statistics.fmean(self.reference(record, recipe.task) for record in train)
        return Baseline(f"always answering the mean, {value:.4g}", [value] * len(records))


class Choice(RowTask):
    """Picks one of several choices."""

    def heads(self, settings: Any) -> Mapping[str, HeadSettings]:
        """One head, which scores the choices."""
        return {"choice": settings.head_settings("choice")}

    def encode(self, records: Sequence[Record], tokenizer: Tokenizer, recipe: Recipe) -> list[Row]:
        """One row per record."""
        task, pooling = task_of(recipe, ChoiceSettings), pooling_of(recipe)
        texts = [sequences(record, task) for record in records]
        tokens = iter(tokenizer.encode_batch([text for choices in texts for choice in choices for text in choice]))
        labelled = any(record.get(task, "label") is not None for record in records)
        written, rows = task_format(recipe, tokenizer.vocabulary), []
        for number, (record, choices) in enumerate(zip(records, texts, strict=True)):
            whole = [[next(tokens) for _ in choice] for choice in choices]
            shown = [written.fit(choice) for choice in whole]
            pieces = [written.row(choice) for choice in shown]
            starts = itertools.accumulate((len(ids) for ids, _ in pieces), initial=0)
            pooled = [(start, pooled_slots(len(ids), pooling)) for start, (ids, _) in zip(starts, pieces, strict=False)]
            slots = [start + slot for start, inner in pooled for slot in inner]
            target = RowTarget(slots=[slots], labels=[self.reference(record, task)] if labelled else None)
            rows.append(packed_row(number, pieces, cut=sum(map(_size, shown)) < sum(map(_size, whole)), choice=target))
        cut_note(sum(row.cut for row in rows), len(records), task.max_length)
        return rows

    def predict(self, record: Record, rows: Sequence[Row], outputs: Sequence[Outputs], recipe: Recipe) -> Prediction:
        """Index and text of the best choice, with the probabilities of all choices."""
        choices = record.texts(recipe.task, "choices")
        scores = outputs[0]["choice"][0, : len(choices)]
        best = int(scores.argmax())
        return {"prediction": best, "choice": choices[best], "probabilities": _probabilities(scores)}

    def reference(self, record: Record, settings: Any) -> int:
        """Index of the right choice."""
        return choice_of(record.get(settings, "label"), record.texts(settings, "choices"), record.place)

    def baseline(self, train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
        """The index of the choice that is right most often."""
        common = Counter(self.reference(record, recipe.task) for record in train).most_common(1)[0][0]
        return Baseline(f"always taking choice {common + 1}", [common] * len(records))


def _size(texts: Sequence[Int32s]) -> int:
    return sum(map(len, texts))


def _probabilities(scores: npt.NDArray[np.float32]) -> list[float]:
    """The softmax of scores, rounded."""
    powers = np.exp(scores.astype(np.float64) - scores.max())
    return [round(float(share), 6) for share in powers / powers.sum()]


def label_of(record: Record, settings: TaskSettings) -> str:
    """The label of a record as text, without surrounding white space."""
    value, labels = record.get(settings, "label"), settings.labels if isinstance(settings, Labelled) else None
    if isinstance(value, float):
        cure = "give classes as text or whole numbers, or use --task regression"
        raise UniclozeError(f"{record.place}: the label {value} is a quantity, not a class: {cure}")
    label = str(value) if isinstance(value, int) else record.text(settings, "label").strip()
    if labels is None and not label:
        raise UniclozeError(f"{record.place}: the label is empty: fill it in, or leave the record out")
    if labels is not None and label not in labels:
        cure = f"correct the record, or fine-tune with {option_of('task.labels')} listing all labels"
        if all(number_of(each) is not None for each in (label, *labels)):
            cure += ", or with --task regression if they are quantities"
        more = f" and {len(labels) - SHOWN:,} more" if len(labels) > SHOWN else ""
        known = f"a label of the task ({', '.join(labels[:SHOWN])}{more})"
        raise UniclozeError(f"{record.place}: the label '{label}' is not {known}: {cure}")
    return label


def alternating(lengths: Sequence[int]) -> list[int]:
    """The slots of some sequences that follow one another: the first of each, the second of each, -1 where one has ended."""
    spans = [(sum(lengths[:number]), length) for number, length in enumerate(lengths)]
    return [start + slot if slot < length else -1 for slot in range(max(lengths)) for start, length in spans]


def start_of_decoder(recipe: Recipe, vocabulary: Vocabulary) -> int:
    """The first start slot of an encoder-decoder's targets."""
    settings = next(part.settings for part in parts(recipe.objective) if isinstance(part.settings, SourceTarget))
    return start_ids(vocabulary, settings)[0]


def sequences(record: Record, settings: TaskSettings) -> list[list[str]]:
    """The texts in the sequence of each choice."""
    choices = record.texts(settings, "choices")
    if len(choices) < 2:
        raise UniclozeError(f"{record.place}: {len(choices)} choice(s); two or more are expected")
    if record.get(settings, "cloze") is not None:
        before, *after = record.text(settings, "cloze").split(GAP)
        if len(after) != 1:
            raise UniclozeError(f"{record.place}: the sentence has {len(after)} gaps '{GAP}'; one is expected")
        return [[f"{before}{choice}{after[0]}"] for choice in choices]
    asked = record.get(settings, "question") is not None
    question = record.text(settings, "question").rstrip() + " " if asked else ""
    return [[record.text(settings, "context"), question + choice] for choice in choices]


def choice_of(label: Any, choices: Sequence[str], place: str) -> int:
    """Index of the choice that a label names by its text or else by its index from 0."""
    known = f"a number from 0 to {len(choices) - 1}, or the text of one choice"
    if isinstance(label, str) and choices.count(label) > 1:
        raise UniclozeError(f"{place}: the label {label!r} is the text of several choices: it must be {known}")
    if isinstance(label, str) and label in choices:
        return choices.index(label)
    numbers = [str(number) for number in range(len(choices))]
    if isinstance(label, bool) or not isinstance(label, int | str) or str(label) not in numbers:
        raise UniclozeError(f"{place}: the label {label!r} is not one of the choices: it must be {known}")
    return int(label)


MOST_RECORDS = 10_000
"""Maximum training records of a linear model, which then takes less than a minute."""
MOST_FEATURES = 1 << 17
"""Maximum words and pairs of words, and maximum character n-grams."""
LONGEST_TEXT = 4_000
"""Characters of a text that a linear model reads."""


def _word_features(train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> tuple[Any, Any]:
    """TF-IDF of word 1- and 2-grams and of character 2- to 4-grams; of pairs also their product and cosine."""
    text, sparse = importlib.import_module("sklearn.feature_extraction.text"), importlib.import_module("scipy.sparse")
    roles = [role for role in ("text", "pair") if train[0].get(recipe.task, role) is not None]
    both, sides = (train, records), (list[Any](), list[Any]())
    texts = [[[one.text(recipe.task, role)[:LONGEST_TEXT] for one in each] for role in roles] for each in both]
    for analyzer, pattern, sizes in (("word", r"(?u)\b\w+\b|[^\w\s]", (1, 2)), ("char_wb", None, (2, 4))):
        counts = text.TfidfVectorizer(
            analyzer=analyzer, token_pattern=pattern, ngram_range=sizes, sublinear_tf=True, max_features=MOST_FEATURES
        )
        try:
            counts.fit([text for column in texts[0] for text in column])
        except ValueError:  # no text has a word
            continue
        for side, columns in zip(sides, texts, strict=True):
            features = [counts.transform(column) for column in columns]
            if len(features) == 2:
                product = features[0].multiply(features[1])
                features += [product, product.sum(axis=1)]
            side += features
    empty = [sparse.csr_matrix((len(each), 1)) for each in both]
    seen, asked = (sparse.hstack([*side, none]).tocsr() for side, none in zip(sides, empty, strict=True))
    return seen, asked


_TEXTS: Mapping[str, Any] = {
    "roles": ("text", "pair", "label"), "answers": ("label",), "optional": ("pair",), "texts": ("text", "pair"),
}  # fmt: skip
TASKS = {
    "classification": Classification(
        purpose="Predicts one of several classes for a text or a pair of texts.",
        settings=ClassificationSettings,
        compares=("labels",),
        **_TEXTS,
    ),
    "regression": Regression(
        purpose="Predicts a quantity for a text or a pair of texts.",
        settings=RegressionSettings,
        compares=("numbers",),
        **_TEXTS,
    ),
    "choice": Choice(
        purpose="Picks the best of several choices, each read with its context or within its sentence.",
        settings=ChoiceSettings,
        roles=("context", "question", "cloze", "choices", "label"),
        answers=("label",),
        optional=("question",),
        compares=("labels",),
    ),
}
