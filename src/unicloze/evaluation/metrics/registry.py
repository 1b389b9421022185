"""The metrics by name.

How predictions and references are passed follows from what is compared, and is what `read_files` makes of files:

| compared | predictions | references |
|---|---|---|
| `texts` | a text each | a list of texts each |
| `labels` | a string or an integer each | the same |
| `numbers` | a number each | the same |
| `tags` | a list of tags each | the same |
| `squad` | {id: text or `Answer`} | {id: list of texts, empty if unanswerable} |
| `coqa` | {`Turn`: text} | {`Turn`: `Gold`} |
"""

from __future__ import annotations

import difflib

from unicloze.errors import UsageError
from unicloze.evaluation.metrics import bleu, nist
from unicloze.evaluation.metrics.coco import coco
from unicloze.evaluation.metrics.coqa import coqa
from unicloze.evaluation.metrics.diversity import diversity
from unicloze.evaluation.metrics.labels import accuracy, f1, macro_f1, matthews
from unicloze.evaluation.metrics.last_words import lambada
from unicloze.evaluation.metrics.meteor import meteor
from unicloze.evaluation.metrics.numbers import correlation
from unicloze.evaluation.metrics.perl_rouge import perl_rouge
from unicloze.evaluation.metrics.profiles import PROFILES
from unicloze.evaluation.metrics.result import Metric
from unicloze.evaluation.metrics.rouge import rouge
from unicloze.evaluation.metrics.squad import squad
from unicloze.evaluation.metrics.tags import entity_f1, tag_accuracy

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
        purpose="the same by ROUGE-1.5.5.pl, where that is installed",
        compares="texts",
        function=perl_rouge,
        headline="rouge2",
        options={"profile": tuple(PROFILES)},
    ),
    "bleu": Metric(
        purpose="BLEU by sacrebleu, with its signature",
        compares="texts",
        function=bleu.bleu,
        headline="bleu",
        extra="metrics",
        options={"tokenize": bleu.TOKENIZE},
    ),
    "coco": Metric(
        purpose="coco-caption's BLEU-1 to BLEU-4 and ROUGE-L, of tokens",
        compares="texts",
        function=coco,
        headline="bleu_4",
        options={"profile": tuple(PROFILES)},
    ),
    "meteor": Metric(
        purpose="METEOR 1.5 for English, of tokens; needs Java",
        compares="texts",
        function=meteor,
        headline="meteor",
        extra="coco",
        options={"profile": tuple(PROFILES)},
    ),
    "nist": Metric(
        purpose="NIST-4 and NIST-5 as mteval-v13a computes them",
        compares="texts",
        function=nist.nist,
        headline="nist_4",
        extra="metrics",
        options={"tokenize": nist.TOKENIZE},
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
        purpose="share of the labels that are right", compares="labels", function=accuracy, headline="accuracy"
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
    "entity-f1": Metric(
        purpose="F1 of entities in BIO tags, as conlleval counts them",
        compares="tags",
        function=entity_f1,
        headline="f1",
    ),
    "tag-accuracy": Metric(
        purpose="share of the tags that are right, and of the sentences",
        compares="tags",
        function=tag_accuracy,
        headline="accuracy",
    ),
    "lambada": Metric(
        purpose="share of the last words that are right", compares="texts", function=lambada, headline="accuracy"
    ),
}  # fmt: skip


def metric(name: str) -> Metric:
    """The metric of a name.

    Raises:
        UsageError: There is none.
    """
    if name not in METRICS:
        near = difflib.get_close_matches(name, METRICS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"There is no metric {name}: {meant}the metrics are {', '.join(METRICS)}; one of your own needs --plugin FILE."
        )
    return METRICS[name]


class MetricTable(dict[str, Metric]):
    """Metrics by name; as `str` a line each."""

    def to_dict(self) -> dict[str, str]:
        """What each is for, fit for JSON."""
        return {name: one.purpose for name, one in self.items()}

    def __str__(self) -> str:
        width = max(map(len, self))
        lines = []
        for name, one in self.items():
            options = f"; {', '.join(one.options)}" if one.options else ""
            needs = f"; needs unicloze[{one.extra}]" if one.extra else ""
            lines.append(f"{name:<{width}}  {one.purpose} ({one.compares}{options}{needs})")
        return "\n".join(lines)
