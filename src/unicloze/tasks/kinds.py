"""Definitions of all kinds of tasks; `unicloze.tasks.TASKS` imports them from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from unicloze.example import Examples
from unicloze.settings import Recipe
from unicloze.tasks import baselines, choice, classification, conversation, extraction, generation, tagging
from unicloze.tasks.columns import TARGET, reference
from unicloze.tasks.rows import Row, lay_out
from unicloze.tasks.task import Task
from unicloze.text.vocabulary import Vocabulary


def _as_they_are(
    rows: Sequence[Row], vocabulary: Vocabulary, recipe: Recipe, _keys: npt.NDArray[np.uint64] | None
) -> Examples:
    return lay_out(rows, vocabulary, recipe)


TASKS: Mapping[str, Task] = {
    "classification": Task(
        purpose="Predicts one of several classes for a text or a pair of texts.",
        settings=classification.ClassificationSettings,
        roles=("text", "pair", "label"),
        answers=("label",),
        optional=("pair",),
        texts=("text", "pair"),
        resolve=classification.with_labels,
        heads=classification.heads,
        encode=classification.encode,
        lay_out=_as_they_are,
        predict=classification.predict,
        reference=classification.reference,
        baseline=baselines.majority,
        rival=baselines.word_classes,
        compares=("labels",),
    ),
    "regression": Task(
        purpose="Predicts a quantity for a text or a pair of texts.",
        settings=classification.RegressionSettings,
        roles=("text", "pair", "label"),
        answers=("label",),
        optional=("pair",),
        texts=("text", "pair"),
        resolve=lambda settings, _: settings,
        heads=classification.heads,
        encode=classification.encode,
        lay_out=_as_they_are,
        predict=classification.predict,
        reference=classification.reference,
        baseline=baselines.mean,
        rival=baselines.word_quantities,
        compares=("numbers",),
    ),
    "generation": Task(
        purpose="Generates text from text: a summary, a question, an answer, a response, a translation.",
        settings=generation.WritingSettings,
        roles=("source", "context", "history", "question", "answer", "target", "references"),
        answers=("target", "references"),
        resolve=generation.with_targets,
        heads=generation.heads,
        encode=generation.encode,
        lay_out=generation.lay_out,
        predict=None,
        reference=reference,
        baseline=baselines.first_sentence,
        rival=baselines.lead_three,
        token_targets=(TARGET,),
    ),
    "choice": Task(
        purpose="Picks the best of several choices, each read with its context or within its sentence.",
        settings=choice.ChoiceSettings,
        roles=("context", "question", "cloze", "choices", "label"),
        answers=("label",),
        optional=("question",),
        resolve=lambda settings, _: settings,
        heads=choice.heads,
        encode=choice.encode,
        lay_out=_as_they_are,
        predict=choice.predict,
        reference=choice.right_choice,
        baseline=baselines.majority_choice,
        compares=("labels",),
    ),
    "tagging": Task(
        purpose="Tags each word of a sentence.",
        settings=tagging.TaggingSettings,
        roles=("tokens", "tags", "predicate"),
        answers=("tags",),
        optional=("predicate",),
        texts=("tokens",),
        resolve=tagging.with_tags,
        heads=tagging.heads,
        encode=tagging.encode,
        lay_out=_as_they_are,
        predict=tagging.predict,
        reference=tagging.reference,
        baseline=baselines.majority_tags,
        compares=("tags",),
    ),
    "extraction": Task(
        purpose="Finds the span of a passage that answers a question, or none.",
        settings=extraction.ExtractionSettings,
        roles=("context", "question", "answers"),
        answers=("answers",),
        texts=("context", "question"),
        resolve=extraction.with_unanswerable,
        heads=extraction.heads,
        encode=extraction.encode,
        lay_out=extraction.lay_out,
        predict=extraction.predict,
        reference=extraction.reference,
        baseline=baselines.no_answer,
        rival=baselines.closest_sentence,
        compares=("squad",),
    ),
    "conversation": Task(
        purpose="Answers a question in a conversation about a passage: a span, yes, no or unknown.",
        settings=conversation.ConversationSettings,
        roles=("context", "question", "history", "answers", "rationale", "rationale_start", "story", "turn", "domain"),
        answers=("answers", "rationale", "rationale_start"),
        texts=("context", "question"),
        resolve=conversation.checked,
        heads=conversation.heads,
        encode=conversation.encode,
        lay_out=conversation.lay_out,
        predict=conversation.predict,
        reference=conversation.reference,
        baseline=baselines.commonest_answer,
        compares=("coqa",),
    ),
}
"""Every kind of task, by `TaskSettings.kind`."""
