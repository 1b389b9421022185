"""The Children's Book Test (Hill et al. 2016): which of ten words is missing in the sentence after twenty others.

A causal model takes the word that makes it and the rest of the sentence likeliest after what stands before, as GPT-2 does
(Radford et al. 2019, Section 3.2); a model that predicts by PAR the word that is likeliest between both.
"""

from __future__ import annotations

import re
from pathlib import Path

from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.choices import Choice, Normaliser, PromptResult, choose
from unicloze.records.plain_files import read_text
from unicloze.training.models import LoadedModel

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
    """Choose the missing word of every question.

    Args:
        model: The model.
        path: One of the test's text files.
        normalise: What to divide log-likelihoods by.
        limit: Take only so many questions.
        batch_size: Most rows of one forward pass.
        progress: Show progress on stderr.

    Raises:
        UsageError: The model's objective cannot fill blanks, or an argument cannot be.
        UniclozeError: The file is absent or not of this format; the message names the line.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}: give 1 or more")
    questions = read_questions(Path(path))[:limit]
    return choose(
        model, questions, task="Children's Book Test", normalise=normalise, batch_size=batch_size, progress=progress
    )


def read_questions(path: Path) -> list[Choice]:
    """The questions of a file.

    Each is numbered lines of a story, from 1 on; the last one has the blank, and behind tabs its word and the candidates,
    which `|` parts. An empty line is of no meaning.

    Raises:
        UniclozeError: The file is absent or not of this format; the message names the line.
    """
    found: list[Choice] = []
    story: list[str] = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        place, line = f"{path}, line {number}", line.rstrip("\r")
        if not line.strip():
            continue
        match = _LINE.match(line)
        if match is None:
            raise UniclozeError(f"{place}: a line begins with its number, as in '1 Once upon a time'; this does not")
        if int(match[1]) == 1:
            story = []
        if "\t" in match[2]:
            found.append(_question(match[2], story, len(found), place))
            story = []
        else:
            story.append(match[2].strip())
    if not found:
        raise UniclozeError(f"{path} holds no question: give a file of the Children's Book Test")
    return found


def _question(line: str, story: list[str], number: int, place: str) -> Choice:
    sentence, word, *rest = line.split("\t")
    candidates = [one for one in rest[-1].strip().split("|") if one] if rest else []
    if sentence.count(BLANK) != 1 or word not in candidates or len(set(candidates)) != len(candidates):
        raise UniclozeError(
            f"{place}: a question is a sentence with one {BLANK}, its word and different candidates with that word among "
            "them, all parted by tabs; this is none"
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
