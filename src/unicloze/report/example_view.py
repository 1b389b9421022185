"""One example as the model sees it: slots, visibility and predictions, as JSON and as text."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze import keyed, visibility
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind, predicts_tokens
from unicloze.mixtures import parts
from unicloze.objectives import make_examples
from unicloze.objectives.groups import Corruption
from unicloze.settings import Recipe
from unicloze.text.tokenizers import Tokenizer, whitespace_tokenizer
from unicloze.text.windows import split_segments, windows_of


def spell(target: str, labels: npt.NDArray[np.integer], tokenizer: Tokenizer) -> list[str]:
    """The labels of one target in words; of rtd a question, as only the model knows which tokens it replaced."""
    if predicts_tokens(target):
        return tokenizer.tokens(labels)
    return ["replaced?" if target == "rtd" else ("follows", "does not follow")[label] for label in labels.tolist()]


_GROUPS = {Kind.CONTEXT: "C", Kind.MASK: "C", Kind.ORIGINAL: "O", Kind.PSEUDO: "P", Kind.MEMORY: "M", Kind.PADDING: "-"}


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Description of one slot.

    Args:
        slot: Its index in the row, from 0.
        token: The token it shows.
        position: Its position in the window, from 0; [SOS] is 0.
        segment: The segment of that position.
        kind: Name of its `Kind`, in lower case.
        step: Factorization step in which it is predicted, from 1 as in the paper; None if it is not masked.
        random: Whether it shows a random token instead of a mask.
    """

    slot: int
    token: str
    position: int
    segment: int
    kind: str
    step: int | None
    random: bool = False

    @property
    def group(self) -> str:
        """Group of the paper: C, O or P; M for memory and `-` for padding."""
        return _GROUPS[Kind[self.kind.upper()]]

    @property
    def holds(self) -> str:
        """Its kind, or `random` if it shows a random token."""
        return "random" if self.random else self.kind

    @property
    def label(self) -> str:
        """Group and position, such as P4."""
        return f"{self.group}{self.position}"


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The predictions of one target.

    Args:
        slots: The slot, or list of slots, from which each prediction is made.
        labels: The label of each prediction in words; see `unicloze.report.example_view`.
    """

    slots: list[Any]
    labels: list[str]


@dataclass(frozen=True, kw_only=True)
class ExampleView:
    """Description of one row of a block of examples, without padding.

    Args:
        title: One-line title.
        slots: Its slots.
        intervals: Visibility of each slot, see `unicloze.visibility`. *Shape:* (slots, 4)
        targets: Its predictions, by target.
        local: Visibility in local layers, which read nearby slots only; None if there are none. *Shape:* (slots, 4)
        layers: Visibility of each layer, `full` or `local`; empty if unknown.
        picture: File of its picture, if it was drawn.
    """

    title: str
    slots: list[Slot]
    intervals: visibility.Intervals
    targets: Mapping[str, Answers]
    local: visibility.Intervals | None = None
    layers: Sequence[str] = ()
    picture: Path | None = None

    @classmethod
    def of(
        cls,
        examples: Examples,
        tokenizer: Tokenizer,
        *,
        row: int = 0,
        title: str = "One example",
        plain: Examples | None = None,
        layers: Sequence[str] = (),
    ) -> ExampleView:
        """Describe one row of a block.

        Args:
            examples: The block.
            tokenizer: Converts its ids to tokens.
            row: Index of the row.
            title: One-line title; see `example_title`.
            plain: The same block without random tokens; slots that differ show a random token.
            layers: Visibility of each layer, `full` or `local`.
        """
        length = int(examples.lengths[row])
        columns = (examples.position_ids, examples.segment_ids, examples.kinds, examples.steps)
        values = zip(*(column[row, :length].tolist() for column in columns), strict=True)
        shown = examples.input_ids[row, :length]
        tokens = tokenizer.tokens(shown)
        random = np.zeros(length, dtype=bool) if plain is None else shown != plain.input_ids[row, :length]
        slots = []
        for slot, (token, (position, segment, kind, step)) in enumerate(zip(tokens, values, strict=True)):
            place = {"slot": slot, "token": token, "position": position, "segment": segment}
            number = step + 1 if step >= 0 else None
            slots.append(Slot(**place, kind=Kind(kind).name.lower(), step=number, random=bool(random[slot])))
        targets = {}
        for name, target in examples.targets.items():
            real = target.weights[row] > 0
            labels = spell(name, target.labels[row][real], tokenizer)
            targets[name] = Answers(slots=target.slots[row][real].tolist(), labels=labels)
        intervals = examples.intervals[row, :length]
        local = None if examples.local is None else examples.local[row, :length]
        return cls(title=title, slots=slots, intervals=intervals, targets=targets, local=local, layers=layers)

    @property
    def visible(self) -> npt.NDArray[np.bool_]:
        """Whether the slot of a row reads the slot of a column. *Shape:* (slots, slots)"""
        mask: npt.NDArray[np.bool_] = visibility.bool_mask(self.intervals, len(self.slots))
        return mask

    @property
    def visibilities(self) -> dict[str, visibility.Intervals]:
        """Visibility intervals by a description of their layers; a single entry with the key "" if all layers are alike."""
        if self.local is None:
            return {"": self.intervals}
        both = {"full": self.intervals, "local": self.local}
        return {
            self._layers(name): intervals for name, intervals in both.items() if not self.layers or name in self.layers
        }

    def _layers(self, name: str) -> str:
        numbers = [str(number) for number, each in enumerate(self.layers, 1) if each == name]
        return f"{name}: layer{'s' * (len(numbers) > 1)} {', '.join(numbers)}" if numbers else f"{name} layers"

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The groups in order with their numbers of slots: C, O and P for UniLMv2."""
        return [(name, len(list(members))) for name, members in groupby(slot.group for slot in self.slots)]

    @property
    def order(self) -> str:
        """The factorization order as positions of the answers, such as `4 5 -> 2`; `none` if nothing is masked.

        The position of a pseudo mask may differ: MASS predicts the first token of a span from the position before it.
        """
        masked = sorted(
            {(slot.step, slot.position) for slot in self.slots if slot.step is not None and slot.kind != "pseudo"}
        )
        steps = (" ".join(str(position) for _, position in step) for _, step in groupby(masked, lambda pair: pair[0]))
        return " -> ".join(steps) or "none"

    @property
    def predictions(self) -> dict[int, str]:
        """The answer expected of each predicting slot, such as `par: list`, by slot."""
        said: dict[int, list[str]] = {}
        for name, answers in self.targets.items():
            for slots, label in zip(answers.slots, answers.labels, strict=True):
                for slot in np.ravel(slots).tolist():
                    said.setdefault(slot, []).append(f"{name}: {label}")
        return {slot: ", ".join(words) for slot, words in said.items()}

    def to_dict(self) -> dict[str, Any]:
        """The example as a JSON-serialisable dictionary. Slots and positions count from 0, steps from 1.

        If there are local layers, `visible_local` is their visibility and `layers` names the visibility of each layer.
        """
        local: dict[str, Any] = {}
        if self.local is not None:
            mask = visibility.bool_mask(self.local, len(self.slots))
            local = {"visible_local": mask.astype(int).tolist(), "layers": list(self.layers)}
        slots, visible = [asdict(slot) for slot in self.slots], self.visible.astype(int).tolist()
        targets = {name: asdict(answers) for name, answers in self.targets.items()}
        return {"slots": slots, "visible": visible, **local, "targets": targets}

    def __str__(self) -> str:
        """Title, order, a table of the slots and the visibility as lines of 0 and 1; or the path of the picture."""
        if self.picture is not None:
            return str(self.picture)
        says = self.predictions
        table = [("slot", "", "token", "position", "segment", "kind", "step", "predicts")]
        for slot in self.slots:
            step, prediction = str(slot.step or ""), says.get(slot.slot, "")
            place = str(slot.position), str(slot.segment)
            kind = f"{slot.kind}*" if slot.random else slot.kind
            table.append((str(slot.slot), slot.label, slot.token, *place, kind, step, prediction))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        numbers = (0, 3, 4, 6)
        lines = [
            "  ".join(f"{cell:{'>' if i in numbers else '<'}{widths[i]}}" for i, cell in enumerate(row)).rstrip()
            for row in table
        ]
        names = [f"{slot.label:<5}" for slot in self.slots]
        if any(slot.random for slot in self.slots):
            lines += ["", "* shows a random token instead of a mask"]
        heading = "reads".ljust(max(map(len, names), default=0)) + "  "
        heading += " ".join(name.ljust(size) for name, size in self.groups).rstrip()
        sizes = [size for _, size in self.groups]
        for layers, intervals in self.visibilities.items():
            matrix = visibility.text(intervals, len(names), query_names=names, groups=sizes)
            lines += ["", *([layers] if layers else []), heading, matrix]
        order = f"steps: {self.order}  (by position; [SOS] is 0)"
        return "\n".join([self.title, order, "", *lines])


def example_title(recipe: Recipe) -> str:
    """Recipe, objective and targets in one line; for a mixture those of its first part, with its label."""
    part = parts(recipe.objective)[0]
    name = f"{recipe.name}, {part.label}" if recipe.objective.mixture else recipe.name
    return f"{name}: objective {part.settings.name}, targets {' + '.join(part.settings.targets)}"


def view_of(recipe: Recipe, token_ids: npt.NDArray[np.int32], seed: int, tokenizer: Tokenizer) -> ExampleView:
    """Description of one row made of token ids; arguments and errors as for `example_of`."""
    part, plain = parts(recipe.objective)[0].settings, None
    if isinstance(part, Corruption) and part.random_share:
        objective = dataclasses.replace(part, random_share=0.0, mixture=[])
        plain = example_of(dataclasses.replace(recipe, objective=objective), token_ids, seed, tokenizer)
    return ExampleView.of(
        example_of(recipe, token_ids, seed, tokenizer),
        tokenizer,
        title=example_title(recipe),
        plain=plain,
        layers=list(islice(cycle(recipe.model.layer_visibility), recipe.model.num_layers)),
    )


def part_of(recipe: Recipe, label: str) -> Recipe:
    """The recipe with one part of its mixture as its whole objective."""
    known = {part.label: part.settings for part in parts(recipe.objective)}
    if label not in known:
        raise UsageError(f"recipe {recipe.name} has no part {label}: give --part one of {', '.join(known)}.")
    return dataclasses.replace(recipe, name=f"{recipe.name}, {label}", objective=known[label])


def tokens_of(recipe: Recipe, text: str, tokenizer: Tokenizer | None = None) -> tuple[npt.NDArray[np.int32], Tokenizer]:
    """Token ids of a text to show, and the tokenizer; on stderr, if there was none and if the text will be cut."""
    if tokenizer is None:
        print("this recipe has no tokenizer yet: the text is split on white space", file=sys.stderr)
        tokenizer = whitespace_tokenizer(text, recipe.tokenizer.extra_tokens)
    token_ids = tokenizer.encode_batch([text])[0]
    room = recipe.data.window - 1 - recipe.data.segments
    if len(token_ids) > room:
        has = f"the text has {len(token_ids)} tokens, but a window of {recipe.data.window} has room for {room}"
        print(f"{has}: the rest is cut off (--data.window)", file=sys.stderr)
    return token_ids, tokenizer


def example_of(recipe: Recipe, token_ids: npt.NDArray[np.int32], seed: int, tokenizer: Tokenizer) -> Examples:
    """One row made of token ids without special tokens, as a run of the recipe would make it."""
    segments = recipe.data.segments
    if len(token_ids) < segments:
        has = f"the text has {len(token_ids)} token(s), but the window has {segments} segment(s)"
        raise UsageError(f"{has}: give --text at least that many words.")
    kept = token_ids[: recipe.data.window - 1 - segments]
    keys = keyed.key(seed, 0, 0)
    rows = split_segments([kept], keys) if segments == 2 else [[kept]]
    windows = windows_of(rows, tokenizer.vocabulary, keys=keys)
    objective = parts(recipe.objective)[0].settings
    if objective.windows.pairs != "contiguous":
        windows = dataclasses.replace(windows, negative=np.zeros(1, dtype=bool))
    return make_examples(windows, tokenizer.vocabulary, objective)
