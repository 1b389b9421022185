"""Baselines that a model has to beat: answers derived from the training records alone."""

from __future__ import annotations

import importlib
import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from unicloze.records.record import Record, needed_answers
from unicloze.settings import Recipe
from unicloze.tasks.choice import right_choice
from unicloze.tasks.classification import label_of, quantity_of
from unicloze.tasks.columns import texts_of
from unicloze.tasks.extraction import ExtractionSettings
from unicloze.tasks.groups import Labelled, task_of
from unicloze.tasks.several import TASK
from unicloze.tasks.tagging import tags_of
from unicloze.tasks.task import Baseline

_SENTENCE = re.compile(r".+?(?:[.!?](?=\s)|[\u3002\uff01\uff1f]|\n|\Z)", re.DOTALL)
_WORD = re.compile(r"\w+")
MOST_RECORDS = 10_000
"""Maximum training records of a linear model, which then takes less than a minute."""
MOST_FEATURES = 1 << 17
"""Maximum words and pairs of words, and maximum character n-grams."""
LONGEST_TEXT = 4_000
"""Characters of a text that a linear model reads."""
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


def word_classes(train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline | None:
    """The classes that logistic regression predicts from TF-IDF; None if the training records have a single class."""
    settings, some = task_of(recipe, Labelled), _some(train)
    labels = [label_of(record, settings) for record in some]
    if len(set(labels)) < 2:
        return None
    models = importlib.import_module("sklearn.linear_model")
    seen, asked = _word_features(some, records, recipe)
    model = models.LogisticRegression(C=10.0, max_iter=1000).fit(seen, labels)
    return Baseline(_named("logistic regression", some, train), [str(label) for label in model.predict(asked)])


def word_quantities(train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
    """The quantities that ridge regression predicts from TF-IDF."""
    some = _some(train)
    seen, asked = _word_features(some, records, recipe)
    model = importlib.import_module("sklearn.linear_model").Ridge()
    model.fit(seen, [quantity_of(record, recipe.task) for record in some])
    return Baseline(_named("ridge regression", some, train), [float(value) for value in model.predict(asked)])


def _some(train: Sequence[Record]) -> Sequence[Record]:
    """At most `MOST_RECORDS` records, evenly spaced."""
    count = min(len(train), MOST_RECORDS)
    return [train[place * len(train) // count] for place in range(count)]


def _named(model: str, some: Sequence[Record], train: Sequence[Record]) -> str:
    less = f" on {len(some):,} of the records" if len(some) < len(train) else ""
    return f"{model} on TF-IDF of words and characters{less}"


def _word_features(train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> tuple[Any, Any]:
    """TF-IDF of word 1- and 2-grams and of character 2- to 4-grams; of pairs also their product and cosine."""
    text, sparse = importlib.import_module("sklearn.feature_extraction.text"), importlib.import_module("scipy.sparse")
    roles = [role for role in ("text", "pair") if train[0].get(recipe.task, role) is not None]
    texts = [
        [[record.text(recipe.task, role)[:LONGEST_TEXT] for record in each] for role in roles]
        for each in (train, records)
    ]
    every = [text for column in texts[0] for text in column]
    found: tuple[list[Any], list[Any]] = ([], [])
    for analyzer, pattern, sizes in (("word", r"(?u)\b\w+\b|[^\w\s]", (1, 2)), ("char_wb", None, (2, 4))):
        counts = text.TfidfVectorizer(
            analyzer=analyzer, token_pattern=pattern, ngram_range=sizes, sublinear_tf=True, max_features=MOST_FEATURES
        )
        try:
            counts.fit(every)
        except ValueError:  # no text has a word
            continue
        for side, columns in zip(found, texts, strict=True):
            parts = [counts.transform(column) for column in columns]
            if len(parts) == 2:
                product = parts[0].multiply(parts[1])
                parts += [product, product.sum(axis=1)]
            side += parts
    empty = [sparse.csr_matrix((len(each), 1)) for each in (train, records)]
    seen, asked = (sparse.hstack([*side, none]).tocsr() for side, none in zip(found, empty, strict=True))
    return seen, asked


def majority_tags(train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
    """The most common tag of each word, else of its longest known ending of at most four letters, else of all words."""
    seen: defaultdict[tuple[str | None, str], Counter[str]] = defaultdict(Counter)
    endings: defaultdict[tuple[str | None, str], Counter[str]] = defaultdict(Counter)
    for record in train:
        part = record.fields.get(TASK)  # of several taggers
        for word, tag in zip(record.texts(recipe.task, "tokens"), tags_of(record, recipe.task), strict=True):
            seen[part, word][tag] += 1
            for ending in _endings(word):
                endings[part, ending][tag] += 1
    every: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    empty: Counter[str] = Counter()
    for (part, _), counts in seen.items():
        every[part] += counts
    answers = []
    for record in records:
        part = record.fields.get(TASK)
        found = [
            seen.get((part, word))
            or next((endings[part, ending] for ending in _endings(word) if (part, ending) in endings), None)
            or every.get(part, empty)
            for word in record.texts(recipe.task, "tokens")
        ]
        answers.append([counts.most_common(1)[0][0] if counts else "" for counts in found])
    return Baseline("the most common tag of each word or its ending", answers)


def _endings(word: str) -> list[str]:
    """The last four to one letters of a word, the longest first."""
    return [word[-size:] for size in (4, 3, 2, 1) if size < len(word)]


def first_sentence(_train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
    """The first sentence of the source."""
    return Baseline("repeating the first sentence of the source", _first_sentences(records, recipe, 1))


def lead_three(_train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline | None:
    """LEAD-3 of the papers' tables of summaries; None if most sources have no more than three sentences."""
    three, four = (_first_sentences(records, recipe, count) for count in (3, 4))
    longer = sum(one != other for one, other in zip(three, four, strict=True))
    return Baseline("repeating the first three sentences (LEAD-3)", three) if 2 * longer > len(records) else None


def _first_sentences(records: Sequence[Record], recipe: Recipe, count: int) -> list[str]:
    sources = [" ".join(texts_of(record, recipe.task, recipe.generation.source[0])).strip() for record in records]
    return [" ".join(itertools.islice(_sentences(source), count)) for source in sources]


def _sentences(text: str) -> Iterator[str]:
    return filter(None, (found[0].strip() for found in _SENTENCE.finditer(text)))


def closest_sentence(train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
    """The sentence of the passage that shares the most words with the question, rare words counting most."""
    passages = dict.fromkeys(record.text(recipe.task, "context") for record in [*train, *records])
    split = {text: [(one, {*_WORD.findall(one.lower())}) for one in _sentences(text)] for text in passages}
    seen = Counter(word for each in split.values() for _, words in each for word in words)
    answers = []
    for record in records:
        asked = {*_WORD.findall(record.text(recipe.task, "question").lower())}
        every = split[record.text(recipe.task, "context")] or [("", set())]
        answers.append(max(every, key=lambda one: sum(1 / (1 + seen[word]) for word in asked & one[1]))[0])
    return Baseline("the sentence of the passage closest to the question", answers)


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
