"""Draws the mask picture, which shows the visibility between the slots of one example, as SVG or PNG."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.errors import UsageError
from unicloze.files import RECIPE, TOKENIZER, write_file
from unicloze.mixtures import parts
from unicloze.objectives.groups import Shown
from unicloze.recipes import load_recipe
from unicloze.report.example_view import ExampleView, Slot, example_of, view_of
from unicloze.report.history import History, sequence
from unicloze.report.svg import MONO_WIDTH, SANS_WIDTH, Drawing, cut
from unicloze.text.tokenizers import Tokenizer, whitespace_tokenizer
from unicloze.training.ledger import mapping
from unicloze.visibility import Intervals, bool_mask

_MATRIX = 860.0
_LARGEST_CELL, _SMALLEST_CELL = 22.0, 0.75
_LABELLED_CELL, _GRID_CELL = 7.5, 4.5
_MARGIN = 22.0
_LONGEST_TOKEN = 14
_TICKS_APART = 12.0
_LEGEND = {
    "context": "context token",
    "mask": "masked position",
    "random": "random token instead of a mask",
    "original": "original token (O)",
    "pseudo": "pseudo mask (P)",
    "memory": "memory",
}


BEGINNINGS = rb'<svg\b[^>]*class="unicloze"', rb"\x89PNG.{,100}Software\x00unicloze"
"""How pictures written by unicloze begin."""


def save_picture(view: ExampleView, path: str | Path) -> None:
    """Write the mask picture of one example, as SVG or PNG depending on the extension."""
    check_ending(path)
    place, drawing = Path(path), draw_mask(view)
    content = drawing.to_png() if place.suffix.lower() == ".png" else drawing.to_svg() + "\n"
    write_file(place, content, "the picture", "give another --picture")


def check_ending(path: str | Path) -> None:
    """Reject a file name that names no format of pictures."""
    if Path(path).suffix.lower() not in (".svg", ".png"):
        raise UsageError(f"--picture {path}: give a name that ends in .svg or .png.")


def draw_mask(view: ExampleView) -> Drawing:
    """Draw a matrix with a row for each slot that reads and a column for each slot that is read.

    A cell is filled if the row reads the column, in the colour of the column's kind. Gaps separate C, O and P, smaller gaps
    the factorization steps. If layers differ in visibility, there is a matrix for each kind. Tokens, steps and predictions
    are shown if they are legible.
    """
    slots = view.slots
    cell = min(_LARGEST_CELL, max(_SMALLEST_CELL, _MATRIX / max(1, len(slots))))
    cell = cell if cell < _GRID_CELL else int(cell * 2) / 2
    labelled = cell >= _LABELLED_CELL
    font = min(12.5, cell * 0.78) if labelled else 10.0
    offsets = _offsets(slots, cell)
    side = float(offsets[-1] + cell) if slots else 0.0
    names = [f"{slot.position} {cut(slot.token, _LONGEST_TOKEN)}" for slot in slots]
    name_width = font * MONO_WIDTH * max(map(len, names), default=0) if labelled else 22.0
    says = view.predictions if labelled else {}
    says_width = font * MONO_WIDTH * max(map(len, says.values()), default=0)
    step_width = 2.6 * font if labelled else 0.0

    left = _MARGIN + 26 + name_width + 8
    top = _MARGIN + 54 + 20 + name_width + 8 + (step_width * 0.6)
    width = max(left + side + step_width + 10 + says_width + _MARGIN, 460.0)
    inner = width - 2 * _MARGIN
    headline = cut(view.title, int(inner / (15 * SANS_WIDTH)))
    order = cut(f"Factorization steps, by position: {view.order}", int(inner / (12 * SANS_WIDTH)))
    drawing = Drawing(width=width, height=0, title=f"{view.title}. {order}")
    drawing.write(headline, _MARGIN, _MARGIN + 8, size=15, bold=True)
    drawing.write(order, _MARGIN, _MARGIN + 30, role="muted")
    above = top - _MARGIN - 60
    for layers, intervals in view.visibilities.items():
        if layers:
            label = cut(layers[0].upper() + layers[1:], int(inner / (12 * SANS_WIDTH)))
            drawing.write(label, _MARGIN, top - above + 2, bold=True)
            top += 20
        matrix = _Matrix(drawing, view, offsets, cell, left, top)
        matrix.fill(intervals)
        matrix.name_groups(top - above)
        if labelled:
            matrix.name_slots(names, says, font)
        else:
            matrix.name_ticks()
        bottom, top = top + side + 26, top + side + above + 26
    drawing.height = _legend(drawing, view, bottom) + _MARGIN
    return drawing


def _offsets(slots: list[Slot], cell: float) -> npt.NDArray[np.float64]:
    """Start of each slot's row and column."""
    gaps = [0.0]
    for before, slot in pairwise(slots):
        if before.group != slot.group:
            gaps.append(max(6.0, cell * 0.7))
        elif slot.group in "OP" and before.step != slot.step:
            gaps.append(cell * 0.22 if cell >= _GRID_CELL else 0.0)
        else:
            gaps.append(0.0)
    offsets: npt.NDArray[np.float64] = np.cumsum(gaps)[: len(slots)] + np.arange(len(slots)) * cell
    return offsets


@dataclass(frozen=True)
class _Matrix:
    """A matrix of a picture whose first cell begins at `left` and `top`."""

    drawing: Drawing
    view: ExampleView
    offsets: npt.NDArray[np.float64]
    cell: float
    left: float
    top: float

    def fill(self, intervals: Intervals) -> None:
        """Draw the cells: the background between gaps, then the filled cells, then a grid on top."""
        parts = np.split(self.offsets, np.flatnonzero(np.diff(self.offsets) > self.cell + 1e-6) + 1)
        stretches = [(float(part[0]), float(part[-1] + self.cell)) for part in parts if len(part)]
        for y0, y1 in stretches:
            for x0, x1 in stretches:
                self.drawing.rectangles.append((self.left + x0, self.top + y0, x1 - x0, y1 - y0, "empty"))
        filled = list(self._filled(intervals))
        for x, y, w, h, kind in sorted(filled, key=lambda block: block[4]):
            self.drawing.rectangles.append((self.left + x, self.top + y, w, h, kind))
        if self.cell >= _GRID_CELL:
            line, side = max(1.0, self.cell * 0.07), float(self.offsets[-1] + self.cell)
            for offset in self.offsets[1:]:
                self.drawing.rectangles.append((self.left, self.top + offset - line / 2, side, line, "paper"))
                self.drawing.rectangles.append((self.left + offset - line / 2, self.top, line, side, "paper"))

    def _filled(self, intervals: Intervals) -> Iterator[tuple[float, float, float, float, str]]:
        """Blocks of equal colour, merged along rows and then along columns: x, y, width, height, kind."""
        kinds = np.array([slot.holds for slot in self.view.slots])
        apart = np.diff(self.offsets, prepend=-np.inf) > self.cell + 1e-6
        fresh = apart.copy()
        fresh[1:] |= kinds[1:] != kinds[:-1]
        columns = np.split(np.arange(len(kinds)), np.flatnonzero(fresh)[1:])
        growing: dict[tuple[int, int], int] = {}
        visible: npt.NDArray[np.bool_] = bool_mask(intervals, len(kinds))
        runs: set[tuple[int, int]] = set()
        for row in range(len(kinds) + 1):
            if row == len(kinds):
                runs = set()
            elif row == 0 or (visible[row] != visible[row - 1]).any():
                runs = set(_runs(visible[row], columns))
            for run, first in list(growing.items()):
                if run not in runs or (row < len(kinds) and apart[row]):
                    del growing[run]
                    x, y = float(self.offsets[run[0]]), float(self.offsets[first])
                    right, lower = float(self.offsets[run[1]]) + self.cell, float(self.offsets[row - 1]) + self.cell
                    yield x, y, right - x, lower - y, str(kinds[run[0]])
            for run in runs:
                growing.setdefault(run, row)

    def name_groups(self, above: float) -> None:
        first = 0
        for name, size in self.view.groups:
            middle = float(self.offsets[first] + self.offsets[first + size - 1] + self.cell) / 2
            self.drawing.write(name, self.left + middle, above, size=14, bold=True, anchor="middle")
            self.drawing.write(name, _MARGIN + 4, self.top + middle, size=14, bold=True, anchor="middle")
            first += size

    def name_slots(self, names: list[str], says: dict[int, str], font: float) -> None:
        """Label rows and columns with position, token and step, and the ends of rows with predictions."""
        write, step_width, small = self.drawing.write, 2.6 * font, {"role": "muted", "anchor": "middle"}
        right, above = self.left + float(self.offsets[-1]) + self.cell + 8, self.top - 9
        for slot, name, middle in zip(self.view.slots, names, self.offsets + self.cell / 2, strict=True):
            role = "ink" if slot.step is not None else "muted"
            across, down = float(self.left + middle), float(self.top + middle)
            write(name, self.left - 8, down, size=font, role=role, anchor="end", mono=True)
            write(name, across, self.top - 8 - step_width * 0.6, size=font, role=role, mono=True, upwards=True)
            if slot.step is not None:
                write(str(slot.step), across, above, size=font * 0.86, **small)
                write(str(slot.step), right + step_width / 2, down, size=font * 0.86, **small)
            if slot.slot in says:
                write(says[slot.slot], right + step_width, down, size=font, mono=True)
        if any(slot.step is not None for slot in self.view.slots):
            write("step", right + step_width / 2, above, size=10, **small)
        if says:
            write("predicts", right + step_width + 4, above, size=10, role="muted")

    def name_ticks(self) -> None:
        """If tokens would not be legible, label some positions of the context instead."""
        apart = next(step for step in (8, 16, 32, 64, 128, 256, 512, 1024) if step * self.cell >= 2.2 * _TICKS_APART)
        for slot, offset in zip(self.view.slots, self.offsets, strict=True):
            if slot.group == "C" and slot.position % apart == 0:
                middle, text = float(offset + self.cell / 2), str(slot.position)
                self.drawing.write(text, self.left - 6, self.top + middle, size=10, role="muted", anchor="end")
                self.drawing.write(text, self.left + middle, self.top - 10, size=10, role="muted", anchor="middle")


def _runs(reads: npt.NDArray[np.bool_], columns: list[npt.NDArray[np.intp]]) -> Iterator[tuple[int, int]]:
    """First and last column of each consecutive run that is read, within adjacent columns of one kind."""
    for members in columns:
        read = members[reads[members]]
        for run in np.split(read, np.flatnonzero(np.diff(read) > 1) + 1):
            if len(run):
                yield int(run[0]), int(run[-1])


def _legend(drawing: Drawing, view: ExampleView, y: float) -> float:
    """Draw the legend of the colours, in as many lines as necessary; returns its lower end."""
    x, size = _MARGIN, 12.0
    present = {slot.holds for slot in view.slots}
    for kind, words in _LEGEND.items():
        if kind not in present:
            continue
        needed = 20 + len(words) * size * SANS_WIDTH + 18
        if x > _MARGIN and x + needed > drawing.width - _MARGIN:
            x, y = _MARGIN, y + 21
        drawing.rectangles.append((x, y - 6, 12, 12, kind))
        drawing.write(words, x + 19, y, size=size, role="muted")
        x += needed
    note = "A row reads the filled columns."
    if x > _MARGIN and x + len(note) * size * SANS_WIDTH > drawing.width - _MARGIN:
        x, y = _MARGIN, y + 21
    drawing.write(note, x, y, size=size, role="muted")
    return y


_PICTURE_WINDOW = 28
_FEW_WORDS = 8
_SENTENCE = "A cloze test hides some words of a text and asks for them back, one after the other or several at once."


def example_of_run(history: History) -> dict[str, Any]:
    """A row of the first tokens of a sample, or of a sentence if there is none.

    Its `picture`, the `groups` in words, a `caption` on the origin of its text and its part of a mixture, and whether it is
    `noisy`: whether masked positions may show a random or the original token, which happens in training only.
    """
    recipe = load_recipe(history.run / RECIPE)
    trained_on = recipe.data.window
    if (history.run / TOKENIZER).is_file():
        tokenizer = Tokenizer.load(history.run)
    else:
        tokenizer = whitespace_tokenizer(_SENTENCE, recipe.tokenizer.extra_tokens)
    window = min(trained_on, _PICTURE_WINDOW)
    recipe = recipe.changed("data", window=window)
    text, origin = _sample_text(history, tokenizer)
    token_ids = tokenizer.encode_batch([text])[0]
    view = view_of(recipe, token_ids, recipe.training.seed, tokenizer)
    caption = f"{origin}, cut to {window} tokens; this recipe trains on windows of {trained_on} tokens."
    part, *others = parts(recipe.objective)
    if others:
        names = ", ".join(f"“{other.label}”" for other in others)
        caption += f" The row is of the part “{part.label}”; other rows: {names}."
    noisy = False
    if isinstance(part.settings, Shown) and part.settings.mask_share < 1:
        noise = [dataclasses.replace(part.settings, mask_share=share, random_share=0.0) for share in (0.0, 1.0)]
        made = [dataclasses.replace(recipe, objective=objective) for objective in noise]
        kept, hidden = (example_of(one, token_ids, recipe.training.seed, tokenizer) for one in made)
        noisy = not np.array_equal(kept.input_ids, hidden.input_ids)
    picture = draw_mask(view).to_svg()
    return {"groups": groups_in_words(view), "picture": picture, "caption": caption, "noisy": noisy}


def groups_in_words(view: ExampleView) -> str:
    """Explanation of the groups that a row has."""
    says = view.predictions
    masked = any(slot.kind == "mask" for slot in view.slots)
    names = [name for name, _ in view.groups]
    originals = [slot for slot in view.slots if slot.group == "O"]
    predicting = any(slot.slot in says for slot in originals)
    original = "O the same text without masks"
    if predicting:
        original = "O the text to generate, token by token: each predicts the next"
    elif any(slot.step is not None for slot in originals):
        original = "O the original tokens of what is predicted, visible to later steps"
    given = "the given text" if len(set(names)) > 1 else "the text"
    said = {
        "C": "C is the text with its masked positions" if masked else f"C is {given}",
        "O": original,
        "P": "P the mask that predicts its first token" if predicting else "P the pseudo masks that predict them",
        "M": "M a memory of the preceding text",
    }
    words = f"{', '.join(said[name] for name in said if name in names)}."
    if names == ["C", "O", "P"]:
        words += (
            " O and P are in the order in which the steps predict them. A pseudo mask reads the context, the originals "
            "of earlier steps and the pseudo masks of its own step."
        )
    return words


def _sample_text(history: History, tokenizer: Tokenizer) -> tuple[str, str]:
    """The sample with the most words at its start, unmasked, or else a sentence; with its origin."""
    texts = []
    for sample in next(iter(history.samples.values()), []):
        tokens = [str(token) for token in sequence(sample.get("tokens"))]
        for place in map(mapping, sequence(sample.get("masked"))):
            position = place.get("position")
            if isinstance(position, int) and 0 <= position < len(tokens):
                tokens[position] = str(place.get("truth", tokens[position]))
        ids = [tokenizer.token_id(token) for token in tokens]
        texts.append(tokenizer.decode([i for i in ids if i is not None], skip_special=True))
    best = max(texts, key=_words_at_start, default="")
    if _words_at_start(best) >= _FEW_WORDS:
        return best, f"The start of a {history.part} window"
    return _SENTENCE, f"An example sentence, as no {history.part} sample has enough words"


def _words_at_start(text: str) -> int:
    return sum(word.isalpha() for word in text.split()[:_PICTURE_WINDOW])
