"""Registers the metrics by name, and estimates their standard errors: the uncertainty due to the size of the test set.

The type of what is compared determines the form of predictions and references, which `files` returns:

| compared | predictions | references |
|---|---|---|
| `texts` | one text per item | a list of texts per item |
| `labels` | a string or an integer per item | the same |
| `numbers` | a number per item | the same |
| `tags` | a list of tags per item | the same |
| `squad` | {id: text or `Answer`} | {id: list of texts, empty if unanswerable} |
| `coqa` | {`Turn`: text} | {`Turn`: `Gold`} |
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics import texts
from unicloze.evaluation.metrics.answers import coqa, lambada, squad
from unicloze.evaluation.metrics.labels import accuracy, correlation, entity_f1, f1, macro_f1, matthews, tag_accuracy
from unicloze.evaluation.metrics.result import PROFILES, Metric, MetricResult
from unicloze.evaluation.metrics.texts import coco, diversity, meteor, perl_rouge, programs, rouge

_PROFILES = {"profile": tuple(PROFILES)}

METRICS: dict[str, Metric] = {
    "rouge": Metric("ROUGE-1, -2, -L and -Lsum with stemming", "texts", rouge, "rouge2", extra="metrics", options=_PROFILES),
    "rouge-perl": Metric("ROUGE by ROUGE-1.5.5.pl, if installed", "texts", perl_rouge, "rouge2", options=_PROFILES),
    "bleu": Metric("BLEU by sacrebleu, with its signature", "texts", texts.bleu, "bleu", extra="metrics",
                   options={"tokenize": texts.TOKENIZE}),
    "coco": Metric("coco-caption's BLEU-1 to BLEU-4 and ROUGE-L, for tokenised texts", "texts", coco, "bleu_4",
                   options=_PROFILES),
    "meteor": Metric("METEOR 1.5 for tokenised English texts; needs Java", "texts", meteor, "meteor", extra="coco",
                     check_programs=programs, options=_PROFILES),
    "nist": Metric("NIST-4 and NIST-5 as mteval-v13a computes them", "texts", texts.nist, "nist_4", extra="metrics",
                   options={"tokenize": texts.NIST_TOKENIZE}),
    "diversity": Metric("Entropy-4, Distinct-1, Distinct-2 and the average length of the predictions", "texts", diversity,
                        "entropy_4", needs_references=False),
    "squad": Metric("exact match and F1 of SQuAD 1.1 and 2.0", "squad", squad, "f1"),
    "coqa": Metric("F1 of CoQA", "coqa", coqa, "f1"),
    "accuracy": Metric("percentage of right labels", "labels", accuracy, "accuracy"),
    "f1": Metric("F1 of one class, and accuracy", "labels", f1, "f1", options={"positive": ()}),
    "macro-f1": Metric("mean F1 of all classes, and accuracy", "labels", macro_f1, "macro_f1"),
    "matthews": Metric("Matthews' correlation of labels", "labels", matthews, "matthews"),
    "correlation": Metric("Pearson's and Spearman's correlation of numbers", "numbers", correlation, "spearman"),
    "pearson": Metric("the same values as correlation, with Pearson's as the headline", "numbers",
                      partial(correlation, metric="pearson"), "pearson"),
    "entity-f1": Metric("F1 of entities in BIO tags, as conlleval counts them", "tags", entity_f1, "f1"),
    "tag-accuracy": Metric("percentage of right tags, and of sentences with all right", "tags", tag_accuracy, "accuracy"),
    "lambada": Metric("percentage of right last words", "texts", lambada, "accuracy"),
}  # fmt: skip


def metric(name: str) -> Metric:
    """The metric with a name."""
    if name not in METRICS:
        near = difflib.get_close_matches(name, METRICS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        known = f"{meant}the metrics are {', '.join(METRICS)}"
        raise UsageError(f"There is no metric {name}: {known}; a custom metric needs --plugin FILE.")
    return METRICS[name]


def measurable(names: Sequence[str]) -> list[str]:
    """The metrics whose programs are installed, and always the first, which chooses the best checkpoint; warns of others."""
    found = list(names[:1])
    for name in names[1:]:
        check = metric(name).check_programs
        try:
            if check is not None:
                check()
        except UniclozeError as error:
            warnings.warn(f"the metric {name} of the recipe is not measured: {error}", stacklevel=2)
        else:
            found.append(name)
    return found


BY_ID = "squad", "coqa"
"""What is compared by the ids of questions."""


def of_lists(
    name: str, found: Sequence[Any], wanted: Sequence[Any], *, errors: bool = False, **options: Any
) -> MetricResult:
    """The result of a metric for predictions and references in the same order, also where it takes them by id."""
    chosen = metric(name)
    sides: list[Any] = [dict(enumerate(side)) if chosen.compares in BY_ID else side for side in (found, wanted)]
    result = chosen(*sides, **options)
    return dataclasses.replace(result, errors=standard_errors(name, found, wanted, **options)) if errors else result


class MetricTable(dict[str, Metric]):
    """Metrics by name; `str` gives one line per metric."""

    def to_dict(self) -> dict[str, str]:
        """Purpose of each metric as a JSON-serialisable dictionary."""
        return {name: one.purpose for name, one in self.items()}

    def __str__(self) -> str:
        width = max(map(len, self))
        lines = []
        for name, one in self.items():
            options = f"; {', '.join(one.options)}" if one.options else ""
            needs = f"; needs unicloze[{one.extra}]" if one.extra else ""
            lines.append(f"{name:<{width}}  {one.purpose} ({one.compares}{options}{needs})")
        return "\n".join(lines)


_SAMPLES = 200
"""Bootstrap samples; with this many, a standard error is itself accurate to about 5 %."""
_MEANS = {"rouge", "coco", "lambada", "squad", "coqa"}
"""Metrics whose values are means over items and are quick to compute for one item."""
_CLOSE = 1e-6
"""Maximum difference, in percentage points, for the mean over items to count as equal to the value."""


def binomial_error(percent: float, items: int) -> float:
    """Standard error, in percentage points, of a share of items, such as an accuracy."""
    if items < 1:
        raise UsageError(f"items is {items}: give 1 or more.")
    share = percent / 100
    return 100 * math.sqrt(share * (1 - share) / items)


def bootstrap_errors(
    measure: Callable[[Sequence[Any], Sequence[Any]], MetricResult],
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    samples: int = 1000,
    seed: int = 0,
) -> dict[str, float]:
    """Standard error of each value of any metric: its standard deviation over bootstrap samples (Efron 1979).

    Each sample has as many items as the test set, drawn with replacement; the draws depend only on the seed and the sample's
    number.
    """
    import numpy as np

    from unicloze import keyed

    if samples < 2 or not predictions:
        raise UsageError(f"{samples} samples of {len(predictions)} items: give 2 samples and 1 item or more.")
    places = np.arange(len(predictions))
    rows = []
    for number in range(samples):
        drawn = keyed.below(keyed.bits(keyed.key(seed, number), keyed.Stream.ONLY, places), len(predictions))
        result = measure([predictions[i] for i in drawn], [references[i] for i in drawn])
        rows.append({name: value for name, value in result.values.items() if name not in result.undefined})
    drawn_values = {name: [row[name] for row in rows if name in row] for name in dict.fromkeys(itertools.chain(*rows))}
    return {name: float(np.std(values, ddof=1)) for name, values in drawn_values.items() if len(values) > 1}


def standard_errors(
    name: str,
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    against: Sequence[Any] | None = None,
    **options: Any,
) -> dict[str, float]:
    """Standard error of each value of a registered metric, for values where it is quick to compute.

    Accuracy has the binomial standard error. Labels, numbers and tags are bootstrapped (`bootstrap_errors`). Values that are
    means over items, like ROUGE and unlike BLEU, have the standard error of a mean.
    """
    import numpy as np

    chosen = metric(name)
    is_drawn = chosen.compares in ("labels", "numbers", "tags")
    if not predictions or not (is_drawn or name in _MEANS):
        return {}

    def values_of(found: Sequence[Any], wanted: Sequence[Any]) -> MetricResult:
        return of_lists(name, found, wanted, **options)

    def differences(pairs: Sequence[Any], wanted: Sequence[Any]) -> MetricResult:
        one, other = (values_of(found, wanted) for found in zip(*pairs, strict=True))
        values = {key: one.values[key] - other.values[key] for key in one.values if key in other.values}
        undefined = {*one.undefined, *(set(other.undefined) - constant)}
        return dataclasses.replace(one, values=values, undefined=[key for key in values if key in undefined])

    # Of answers that are always the same, a value that is not defined is 0 in every sample.
    constant = set() if against is None else set(values_of(against, references).undefined)
    measure = values_of if against is None else differences
    if against is not None:
        predictions = list(zip(predictions, against, strict=True))
    whole = measure(predictions, references)
    if name == "accuracy" and against is None:
        return {key: binomial_error(value, whole.items) for key, value in whole.values.items()}
    if is_drawn:

        def of_sample(found: Sequence[Any], wanted: Sequence[Any]) -> MetricResult:
            try:
                return measure(found, wanted)
            except UniclozeError:  # a sample without a single positive label has no F1
                return MetricResult(metric=name, values={}, items=len(found))

        return bootstrap_errors(of_sample, predictions, references, samples=_SAMPLES)
    each = [measure([p], [r]).values for p, r in zip(predictions, references, strict=True)]
    errors = {}
    for key, value in whole.values.items():
        alone = [values[key] for values in each if key in values]
        is_mean = not key.startswith("bleu")  # whose mean over items equals the value too where nothing matches
        if is_mean and len(alone) == len(each) > 1 and abs(float(np.mean(alone)) - value) <= _CLOSE:
            errors[key] = float(np.std(alone, ddof=1)) / math.sqrt(len(alone))
    return errors
