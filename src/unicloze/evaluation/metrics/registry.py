"""Registers the metrics by name.

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

import difflib
import warnings
from collections.abc import Sequence
from functools import partial

from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics import texts
from unicloze.evaluation.metrics.answers import coqa, lambada, squad
from unicloze.evaluation.metrics.labels import accuracy, correlation, entity_f1, f1, macro_f1, matthews, tag_accuracy
from unicloze.evaluation.metrics.result import PROFILES, Metric
from unicloze.evaluation.metrics.texts import coco, diversity, meteor, perl_rouge, programs, rouge

METRICS: dict[str, Metric] = {
    "rouge": Metric(
        purpose="ROUGE-1, -2, -L and -Lsum with stemming",
        compares="texts",
        function=rouge,
        headline="rouge2",
        extra="metrics",
        options={"profile": tuple(PROFILES)},
    ),
    "rouge-perl": Metric(
        purpose="ROUGE by ROUGE-1.5.5.pl, if installed",
        compares="texts",
        function=perl_rouge,
        headline="rouge2",
        options={"profile": tuple(PROFILES)},
    ),
    "bleu": Metric(
        purpose="BLEU by sacrebleu, with its signature",
        compares="texts",
        function=texts.bleu,
        headline="bleu",
        extra="metrics",
        options={"tokenize": texts.TOKENIZE},
    ),
    "coco": Metric(
        purpose="coco-caption's BLEU-1 to BLEU-4 and ROUGE-L, for tokenised texts",
        compares="texts",
        function=coco,
        headline="bleu_4",
        options={"profile": tuple(PROFILES)},
    ),
    "meteor": Metric(
        purpose="METEOR 1.5 for tokenised English texts; needs Java",
        compares="texts",
        function=meteor,
        headline="meteor",
        extra="coco",
        check_programs=programs,
        options={"profile": tuple(PROFILES)},
    ),
    "nist": Metric(
        purpose="NIST-4 and NIST-5 as mteval-v13a computes them",
        compares="texts",
        function=texts.nist,
        headline="nist_4",
        extra="metrics",
        options={"tokenize": texts.NIST_TOKENIZE},
    ),
    "diversity": Metric(
        purpose="Entropy-4, Distinct-1, Distinct-2 and the average length of the predictions",
        compares="texts",
        function=diversity,
        headline="entropy_4",
        needs_references=False,
    ),
    "squad": Metric(
        purpose="exact match and F1 of SQuAD 1.1 and 2.0", compares="squad", function=squad, headline="f1"
    ),
    "coqa": Metric(purpose="F1 of CoQA", compares="coqa", function=coqa, headline="f1"),
    "accuracy": Metric(
        purpose="percentage of right labels", compares="labels", function=accuracy, headline="accuracy"
    ),
    "f1": Metric(
        purpose="F1 of one class, and accuracy",
        compares="labels",
        function=f1,
        headline="f1",
        extra="metrics",
        options={"positive": ()},
    ),
    "macro-f1": Metric(
        purpose="mean F1 of all classes, and accuracy",
        compares="labels",
        function=macro_f1,
        headline="macro_f1",
        extra="metrics",
    ),
    "matthews": Metric(
        purpose="Matthews' correlation of labels",
        compares="labels",
        function=matthews,
        headline="matthews",
        extra="metrics",
    ),
    "correlation": Metric(
        purpose="Pearson's and Spearman's correlation of numbers",
        compares="numbers",
        function=correlation,
        headline="spearman",
        extra="metrics",
    ),
    "pearson": Metric(
        purpose="the same values as correlation, with Pearson's as the headline",
        compares="numbers",
        function=partial(correlation, metric="pearson"),
        headline="pearson",
        extra="metrics",
    ),
    "entity-f1": Metric(
        purpose="F1 of entities in BIO tags, as conlleval counts them",
        compares="tags",
        function=entity_f1,
        headline="f1",
    ),
    "tag-accuracy": Metric(
        purpose="percentage of right tags, and of sentences with all tags right",
        compares="tags",
        function=tag_accuracy,
        headline="accuracy",
    ),
    "lambada": Metric(
        purpose="percentage of right last words", compares="texts", function=lambada, headline="accuracy"
    ),
}  # fmt: skip


def metric(name: str) -> Metric:
    """The metric with a name."""
    if name not in METRICS:
        near = difflib.get_close_matches(name, METRICS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"There is no metric {name}: {meant}the metrics are {', '.join(METRICS)}; a custom metric needs --plugin FILE."
        )
    return METRICS[name]


def measurable(names: Sequence[str]) -> list[str]:
    """The metrics whose programs are installed, and always the first; warns of each metric left out.

    Args:
        names: Names of metrics, the first of which chooses the best checkpoint.
    """
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
