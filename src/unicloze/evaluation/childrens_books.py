"""The Children's Book Test (Hill et al. 2016): which of ten words is missing in the sentence after twenty others.

A causal model chooses the word that maximises the likelihood of it and the rest of the sentence, as GPT-2 does (Radford et
al. 2019, Section 3.2); a model that predicts by PAR chooses the word likeliest given both sides.
"""

from __future__ import annotations

import re
from pathlib import Path

from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.answer_choice import Choice, Normaliser, PromptResult, choose
from unicloze.records.plain_files import read_text
from unicloze.training.loading import LoadedModel

BLANK = "XXXXX"
_LINE = re.compile(r"(\d+) (.*)")


def childrens_books(
    model: LoadedModel,
    path: str | Path,
    *,
    normalise: Normaliser = "sum",
    limit: int | None = None,
    batch_size: int = 64,
    progress: bool = True,
) -> PromptResult:
    """Choose the missing word of every question."""
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}: give 1 or more")
    questions = read_questions(Path(path))[:limit]
    return choose(
        model, questions, task="Children's Book Test", normalise=normalise, batch_size=batch_size, progress=progress
    )


def read_questions(path: Path) -> list[Choice]:
    """The questions of a file.

    Each question is the numbered lines of a story, from 1; its last line has the blank, then after tabs its word and the
    candidates, separated by `|`. Empty lines are ignored.
    """
    found: list[Choice] = []
    story: list[str] = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        place, line = f"{path}, line {number}", line.rstrip("\r")
        if not line.strip():
            continue
        match = _LINE.match(line)
        if match is None:
            raise UniclozeError(
                f"{place}: a line must begin with its number, as in '1 Once upon a time'; this does not"
            )
        if int(match[1]) == 1:
            story = []
        if "\t" in match[2]:
            found.append(_question(match[2], story, len(found), place))
            story = []
        else:
            story.append(match[2].strip())
    if not found:
        raise UniclozeError(f"{path} has no questions: give a file of the Children's Book Test")
    return found


def _question(line: str, story: list[str], number: int, place: str) -> Choice:
    sentence, word, *rest = line.split("\t")
    candidates = [one for one in rest[-1].strip().split("|") if one] if rest else []
    if sentence.count(BLANK) != 1 or word not in candidates or len(set(candidates)) != len(candidates):
        raise UniclozeError(
            f"{place}: a question is a sentence with one {BLANK}, its word, and distinct candidates that include the word, "
            "separated by tabs; this is not one"
        )
    left, right = sentence.strip().split(BLANK)
    before = " ".join([*story, left]) if left.strip() else " ".join([*story, ""])
    kept = before.rstrip()
    return Choice(
        id=str(number),
        before=kept,
        after=right,
        names=candidates,
        answers=[before[len(kept) :] + candidate for candidate in candidates],
        gold=word,
        place=place,
    )
