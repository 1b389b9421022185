"""Missing words: the last word of a passage (LAMBADA), and one of ten in a sentence (the Children's Book Test).

LAMBADA (Paperno et al. 2016) is zero-shot: as for GPT-2 (Radford et al. 2019, Section 3.3), a word is right if each of its
tokens is the likeliest after the tokens before it. Perplexity is per word.

In the Children's Book Test (Hill et al. 2016) a causal model chooses the word that maximises the likelihood of it and the
rest of the sentence, as GPT-2 does (Radford et al. 2019, Section 3.2); a model that predicts by PAR chooses the word
likeliest given both sides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from unicloze.decoding.likelihood import Blank, By, fill_blanks, way_of
from unicloze.errors import UniclozeError, check_at_least
from unicloze.evaluation.blimp import listed_words
from unicloze.evaluation.metrics.registry import binomial_error
from unicloze.evaluation.prompting import Choice, PromptResult, choose
from unicloze.files import Plain
from unicloze.model.model import perplexity
from unicloze.progress import Progress
from unicloze.records import read_records
from unicloze.records.files import read_text
from unicloze.records.record import Record
from unicloze.settings import TaskSettings
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.loading import LoadedModel

ENGLISH = "english"
"""Name of the built-in list of stop words."""

STOP_WORDS = Path(__file__).with_name("english.txt")
"""English function words, which seldom end a passage."""


@dataclass(frozen=True, kw_only=True)
class LambadaResult(Plain):
    """LAMBADA scores of a model.

    Args:
        model: The checkpoint.
        by: `chain` rule, or `par`, which is given the number of the word's tokens and that the text ends with it.
        passages: Number of passages.
        accuracy: Percentage of words predicted right.
        accuracy_error: Its standard error.
        perplexity: exp of minus the mean log p of a word; infinite on overflow.
        perplexity_error: Its standard error, to first order.
        unknown: Passages whose last word has tokens not in the vocabulary: they count as wrong and not towards perplexity.
        stop_words: Number of stop words excluded from prediction; 0 without the filter.
    """

    model: str
    by: By
    passages: int
    accuracy: float
    accuracy_error: float
    perplexity: float
    perplexity_error: float
    unknown: int
    stop_words: int

    def __str__(self) -> str:
        how = {"chain": "by the chain rule", "par": "by PAR, given the number of the word's tokens"}[self.by]
        lines = [
            f"LAMBADA, {self.passages:,} passages, {how}",
            f"  accuracy    {self.accuracy:>12.2f} % \u00b1 {self.accuracy_error:.2f} (standard error)",
            f"  perplexity  {self.perplexity:>12,.2f}   \u00b1 {self.perplexity_error:,.2f}, per word",
        ]
        if self.stop_words:
            lines.append(f"  {self.stop_words} stop words are excluded from prediction")
        if self.unknown:
            lines.append(f"  {self.unknown:,} words with tokens not in the vocabulary count as wrong")
        return "\n".join(lines)


def lambada(
    model: LoadedModel,
    path: str | Path,
    *,
    stop_words: str | Path | None = None,
    limit: int | None = None,
    batch_size: int = 64,
    progress: bool = True,
) -> LambadaResult:
    """Predict the last word of every passage."""
    check_at_least(1, limit=limit)
    blanks = [_blank(record) for record in read_records(Path(path), TaskSettings(), cure=None)[:limit]]
    words = None if stop_words is None else listed_words(STOP_WORDS if stop_words == ENGLISH else stop_words)
    by = way_of(model.recipe)
    never = None if words is None else spelling(words, model.tokenizer)
    with Progress("LAMBADA", len(blanks), "passages", show=progress) as bar:
        found = fill_blanks(model, blanks, batch_size=batch_size, never_first=never, progress=bar.update)
    logs = np.array([filled.logs.sum() for filled in found])
    scored = logs[~np.isnan(logs)]
    if not len(scored):
        raise UniclozeError(f"No last word of {path} is in the model's vocabulary: use a file in the model's language.")
    right = sum(bool(filled.greedy.all()) for filled in found)
    accuracy, per_word = 100 * right / len(found), perplexity(-float(scored.sum()), len(scored))
    deviation = float(scored.std(ddof=1)) if len(scored) > 1 else math.nan
    return LambadaResult(
        model=str(model.path), by=by, passages=len(found), accuracy=accuracy,
        accuracy_error=binomial_error(accuracy, len(found)), perplexity=per_word,
        perplexity_error=per_word * deviation / math.sqrt(len(scored)), unknown=len(found) - len(scored),
        stop_words=0 if words is None else len(words),
    )  # fmt: skip


def spelling(words: Collection[str], tokenizer: Tokenizer) -> npt.NDArray[np.int32]:
    """Ids of the tokens that spell one of the lower-case `words` in any case; tokens inside words do not count."""
    vocabulary = tokenizer.vocabulary
    whole = [int(token) for token in vocabulary.ordinary if not vocabulary.continues[token]]
    return np.array([token for token in whole if tokenizer.decode([token]).strip().lower() in words], dtype=np.int32)


def _blank(record: Record) -> Blank:
    """The passage of a record and its last word."""
    settings = TaskSettings()
    if "continuation" in record.fields:
        before, word = record.text(settings, "context"), record.text(settings, "continuation").strip()
    else:
        text = record.text(settings, "text").strip()
        word = text.split()[-1] if text else ""
        before = text.removesuffix(word)
    if not word or not before.strip():
        raise UniclozeError(f"{record.place}: a passage needs a last word and text before it; this has only one")
    return Blank(before=before.rstrip(), answer=f" {word}", place=record.place)


BLANK = "XXXXX"
_LINE = re.compile(r"(\d+) (.*)")


def childrens_books(
    model: LoadedModel, path: str | Path, *, limit: int | None = None, progress: bool = True
) -> PromptResult:
    """Choose the missing word of every question."""
    check_at_least(1, limit=limit)
    questions = read_questions(Path(path))[:limit]
    return choose(model, questions, task="Children's Book Test", progress=progress)


def read_questions(path: Path) -> list[Choice]:
    """The questions of a file.

    Each question is the numbered lines of a story, from 1; its last line has the blank, then after tabs its word and the
    candidates, separated by `|`. Empty lines are ignored.
    """
    questions: list[Choice] = []
    story: list[str] = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        place, line = f"{path}, line {number}", line.rstrip("\r")
        if not line.strip():
            continue
        match = _LINE.match(line)
        if match is None:
            raise UniclozeError(f"{place}: a line must begin with its number, as in '1 Once upon a time': add it")
        if int(match[1]) == 1:
            story = []
        sentence, *columns = match[2].split("\t")
        if not columns:
            story.append(sentence.strip())
            continue
        word, candidates = columns[0], [one for one in columns[-1].strip().split("|") if one] if columns[1:] else []
        if sentence.count(BLANK) != 1 or word not in candidates or len(set(candidates)) != len(candidates):
            wanted = f"a sentence with one {BLANK}, its word, and distinct candidates that include the word"
            raise UniclozeError(f"{place}: a question is {wanted}, separated by tabs; this is not one")
        left, right = sentence.strip().split(BLANK)
        before = " ".join([*story, left if left.strip() else ""])
        answers = {candidate: candidate for candidate in candidates}
        questions.append(Choice.of(before, right, answers, id=str(len(questions)), gold=word, place=place))
        story = []
    if not questions:
        raise UniclozeError(f"{path} has no questions: give a file of the Children's Book Test")
    return questions
