"""Baselines that a model has to beat: answers derived from the training records alone."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence

from unicloze.records.answers import needed_answers
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks.choice import right_choice
from unicloze.tasks.classification import label_of, quantity_of
from unicloze.tasks.extraction import ExtractionSettings
from unicloze.tasks.groups import Labelled, task_of
from unicloze.tasks.several import TASK
from unicloze.tasks.tagging import tags_of
from unicloze.tasks.targets import texts_of
from unicloze.tasks.task import Baseline

_SENTENCE = re.compile(r".+?(?:[.!?](?=\s)|[\u3002\uff01\uff1f]|\n|\Z)", re.DOTALL)
SHOWN = 40
"""Maximum characters of an answer in a baseline's name."""


def majority(train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
    """The most common class of the training records."""
    settings = task_of(recipe, Labelled)
    return _always(Counter(label_of(record, settings) for record in train), len(records))


def majority_choice(train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
    """The index of the choice that is right most often."""
    common = Counter(right_choice(record, recipe.task) for record in train).most_common(1)[0][0]
    return Baseline(f"always taking choice {common + 1}", [common] * len(records))


def mean(train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
    """The mean quantity of the training records."""
    value = statistics.fmean(quantity_of(record, recipe.task) for record in train)
    return Baseline(f"always answering the mean, {value:.4g}", [value] * len(records))


def majority_tags(train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
    """The most common tag of each word; for words not in the training records, the most common tag overall."""
    seen: defaultdict[tuple[str | None, str], Counter[str]] = defaultdict(Counter)
    for record in train:
        part = record.fields.get(TASK)  # of several taggers
        for word, tag in zip(record.texts(recipe.task, "tokens"), tags_of(record, recipe.task), strict=True):
            seen[part, word][tag] += 1
    every: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    for (part, _), counts in seen.items():
        every[part] += counts
    answers = []
    for record in records:
        part = record.fields.get(TASK)
        found = [seen.get((part, word), every[part]) for word in record.texts(recipe.task, "tokens")]
        answers.append([counts.most_common(1)[0][0] if counts else "" for counts in found])
    return Baseline("the most common tag of each word", answers)


def first_sentence(_train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
    """The first sentence of the source."""
    sources = (" ".join(texts_of(record, recipe.task, recipe.generation.source[0])).strip() for record in records)
    answers = [found[0].strip() if (found := _SENTENCE.match(source)) else "" for source in sources]
    return Baseline("repeating the first sentence of the source", answers)


def no_answer(_train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline | None:
    """No answer to any question, if questions may be unanswerable."""
    return (
        Baseline("never giving an answer", [""] * len(records))
        if task_of(recipe, ExtractionSettings).unanswerable
        else None
    )


def commonest_answer(train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
    """The most common first answer of the training records."""
    return _always(Counter(needed_answers(record, recipe.task)[0].text for record in train), len(records))


def _always(counts: Counter[str], times: int) -> Baseline:
    answer = counts.most_common(1)[0][0]
    shown = answer if len(answer) <= SHOWN else f"{answer[:SHOWN]}..."
    return Baseline(f"always answering '{shown}'", [answer] * times)
