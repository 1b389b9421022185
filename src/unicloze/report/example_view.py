"""One example as the model is fed it: its slots, who reads whom, what is predicted; as JSON and as text."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze import keyed, visibility
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind
from unicloze.mixtures import parts
from unicloze.objectives import make_examples
from unicloze.report.answers import spell
from unicloze.settings import Recipe
from unicloze.text.tokenizers import Tokenizer, whitespace_tokenizer
from unicloze.text.windows import split_segments, windows_of

_GROUPS = {
    Kind.CONTEXT: "C",
    Kind.MASK: "C",
    Kind.ORIGINAL: "O",
    Kind.PSEUDO: "P",
    Kind.MEMORY: "M",
    Kind.PADDING: "-",
}


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One slot in words.

    Args:
        slot: Its number in the row, from 0.
        token: What it shows.
        position: The position of the window it stands for, from 0; [SOS] stands at 0.
        segment: The segment of that position.
        kind: Name of its `Kind`, in lower case.
        step: Factorization step it is predicted in, from 1 as in the paper; None if it is not masked.
    """

    slot: int
    token: str
    position: int
    segment: int
    kind: str
    step: int | None

    @property
    def group(self) -> str:
        """C, O or P of the paper; M for a memory."""
        return _GROUPS[Kind[self.kind.upper()]]

    @property
    def label(self) -> str:
        """Group and position, such as P4."""
        return f"{self.group}{self.position}"


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The predictions of one target, one after the other.

    Args:
        slots: The slot each stands on, or the several slots.
        labels: What to predict, see `unicloze.report.answers`.
    """

    slots: list[Any]
    labels: list[str]


@dataclass(frozen=True, kw_only=True)
class ExampleView:
    """One row of a block of examples, in words and without its padding.

    Args:
        title: What it is, in one line.
        slots: Its slots.
        intervals: Who reads whom, see `unicloze.visibility`. *Shape:* (slots, 4)
        targets: Its predictions by name.
        picture: The file it was drawn into, if it was.
    """

    title: str
    slots: list[Slot]
    intervals: visibility.Intervals
    targets: Mapping[str, Answers]
    picture: Path | None = None

    @classmethod
    def of(cls, examples: Examples, tokenizer: Tokenizer, *, row: int = 0, title: str = "One example") -> ExampleView:
        """Look at one row of a block.

        Args:
            examples: The block.
            tokenizer: Spells its ids.
            row: Number of the row.
            title: What it is, in one line; see `example_title`.
        """
        length = int(examples.lengths[row])
        columns = (examples.position_ids, examples.segment_ids, examples.kinds, examples.steps)
        values = zip(*(column[row, :length].tolist() for column in columns), strict=True)
        tokens = tokenizer.tokens(examples.input_ids[row, :length])
        slots = [
            Slot(
                slot=slot,
                token=token,
                position=position,
                segment=segment,
                kind=Kind(kind).name.lower(),
                step=step + 1 if step >= 0 else None,
            )
            for slot, (token, (position, segment, kind, step)) in enumerate(zip(tokens, values, strict=True))
        ]
        targets = {}
        for name, target in examples.targets.items():
            real = target.weights[row] > 0
            labels = spell(name, target.labels[row][real], tokenizer)
            targets[name] = Answers(slots=target.slots[row][real].tolist(), labels=labels)
        return cls(title=title, slots=slots, intervals=examples.intervals[row, :length], targets=targets)

    @property
    def visible(self) -> npt.NDArray[np.bool_]:
        """Which slot reads which. *Shape:* (slots, slots)"""
        mask: npt.NDArray[np.bool_] = visibility.bool_mask(self.intervals, len(self.slots))
        return mask

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The groups in order, each with its number of slots: C, O and P for UniLMv2."""
        return [(name, len(list(members))) for name, members in groupby(slot.group for slot in self.slots)]

    @property
    def order(self) -> str:
        """The factorization order by position of the answers, such as `4 5 -> 2`; `none` if nothing is masked.

        A pseudo mask may stand elsewhere than its answer: MASS predicts the first token of a span from the place before.
        """
        masked = sorted(
            {(slot.step, slot.position) for slot in self.slots if slot.step is not None and slot.kind != "pseudo"}
        )
        steps = (" ".join(str(position) for _, position in step) for _, step in groupby(masked, lambda pair: pair[0]))
        return " -> ".join(steps) or "none"

    @property
    def predictions(self) -> dict[int, str]:
        """What each predicting slot should say, such as `par: list`, by slot."""
        said: dict[int, list[str]] = {}
        for name, answers in self.targets.items():
            for slots, label in zip(answers.slots, answers.labels, strict=True):
                for slot in np.ravel(slots).tolist():
                    said.setdefault(slot, []).append(f"{name}: {label}")
        return {slot: ", ".join(words) for slot, words in said.items()}

    def to_dict(self) -> dict[str, Any]:
        """The example as plain dictionaries and lists, fit for JSON. Slots and positions count from 0, steps from 1."""
        return {
            "slots": [asdict(slot) for slot in self.slots],
            "visible": self.visible.astype(int).tolist(),
            "targets": {name: asdict(answers) for name, answers in self.targets.items()},
        }

    def __str__(self) -> str:
        """The title, the order, a table of the slots, and the visibility as lines of 0 and 1; the picture if there is one."""
        if self.picture is not None:
            return str(self.picture)
        says = self.predictions
        table = [("slot", "", "token", "position", "segment", "kind", "step", "predicts")]
        for slot in self.slots:
            step, prediction = str(slot.step or ""), says.get(slot.slot, "")
            place = str(slot.position), str(slot.segment)
            table.append((str(slot.slot), slot.label, slot.token, *place, slot.kind, step, prediction))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        numbers = (0, 3, 4, 6)
        lines = [
            "  ".join(f"{cell:{'>' if i in numbers else '<'}{widths[i]}}" for i, cell in enumerate(row)).rstrip()
            for row in table
        ]
        names = [f"{slot.label:<5}" for slot in self.slots]
        heading = "reads".ljust(max(map(len, names), default=0)) + "  "
        heading += " ".join(name.ljust(size) for name, size in self.groups).rstrip()
        sizes = [size for _, size in self.groups]
        matrix = visibility.text(self.intervals, len(names), query_names=names, groups=sizes)
        order = f"steps: {self.order}  (by position; [SOS] is 0)"
        return "\n".join([self.title, order, "", *lines, "", heading, matrix])


def example_title(recipe: Recipe) -> str:
    """Recipe, objective and targets in one line; of a mixture the first part, with its label."""
    part = parts(recipe.objective)[0]
    name = f"{recipe.name}, {part.label}" if recipe.objective.mixture else recipe.name
    return f"{name}: objective {part.settings.name}, targets {' + '.join(part.settings.targets)}"


def part_of(recipe: Recipe, label: str) -> Recipe:
    """The recipe with one part of its mixture as its whole objective.

    Raises:
        UsageError: It has no such part.
    """
    known = {part.label: part.settings for part in parts(recipe.objective)}
    if label not in known:
        raise UsageError(f"recipe {recipe.name} has no part {label}: give --part one of {', '.join(known)}.")
    return dataclasses.replace(recipe, name=f"{recipe.name}, {label}", objective=known[label])


def inspect_example(
    recipe: Recipe, text: str, seed: int = 0, tokenizer: Tokenizer | None = None
) -> tuple[Examples, Tokenizer]:
    """Make one example of a text, as a run of the recipe would; what is cut or replaced is said on stderr.

    Args:
        recipe: Decides on the window, its segments and the objective; of a mixture the first part is taken.
        text: Becomes one window; what does not fit is cut off.
        seed: Names all draws.
        tokenizer: Splits the text; it is split on white space if not given.

    Returns:
        One row, and the tokenizer that spells it.

    Raises:
        UsageError: The text has fewer tokens than the window has segments.
    """
    if tokenizer is None:
        print("no tokenizer is built for this recipe yet: the text is split on white space", file=sys.stderr)
        tokenizer = whitespace_tokenizer(text, recipe.tokenizer.extra_tokens)
    token_ids = tokenizer.encode_batch([text])[0]
    room = recipe.data.window - 1 - recipe.data.segments
    if len(token_ids) > room:
        print(
            f"the text has {len(token_ids)} tokens, a window of {recipe.data.window} has room for {room}: "
            "the rest is cut off (--data.window)",
            file=sys.stderr,
        )
    return example_of(recipe, token_ids, seed, tokenizer), tokenizer


def example_of(recipe: Recipe, token_ids: npt.NDArray[np.int32], seed: int, tokenizer: Tokenizer) -> Examples:
    """One row made of token ids without special tokens, see `inspect_example`.

    Raises:
        UsageError: There are fewer tokens than segments.
    """
    segments = recipe.data.segments
    if len(token_ids) < segments:
        raise UsageError(
            f"the text has {len(token_ids)} token(s) and the window {segments} segment(s): "
            "give --text at least that many words."
        )
    kept = token_ids[: recipe.data.window - 1 - segments]
    keys = keyed.key(seed, 0, 0)
    rows = split_segments([kept], keys) if segments == 2 else [[kept]]
    windows = windows_of(rows, tokenizer.vocabulary, keys=keys)
    objective = parts(recipe.objective)[0].settings
    if objective.windows.pairs != "contiguous":
        windows = dataclasses.replace(windows, negative=np.zeros(1, dtype=bool))
    return make_examples(windows, tokenizer.vocabulary, objective)
