"""The recurrent backbone: embeddings and LSTMs, a stack for each direction (AWD-LSTM, ELMo) or bidirectional (CVT).

Views are what the heads of cross-view training see of a text (Clark et al. 2018, Sections 3.2 and 4.1). The primary head and
one auxiliary head have the `full` view: the outputs of all layers. The other auxiliary heads read one direction of the first
layer, at a slot from which a part of the text is hidden.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from unicloze.arrays import Int64s
from unicloze.example import Batch, Memory
from unicloze.model.attention import predicted_slots, select_slots
from unicloze.model.backbone import embedding_width
from unicloze.model.dropout import DropoutKey
from unicloze.model.recurrent.layers import (
    BACKWARD,
    FORWARD,
    CharacterCnn,
    Direction,
    RecurrentLayer,
    Runs,
    State,
    find_runs,
    find_texts,
)
from unicloze.settings import ModelSettings, ViewName


@dataclass(frozen=True)
class View:
    """The input of a head for a unit, such as a word."""

    # the direction of the first layer that it reads; None for both directions of all layers
    direction: Direction | None
    edge: Literal["first", "last"] = "first"  # the slot of the unit to which `shift` is added
    shift: int = 0  # distance from that slot to the one it reads

    def slot(self, first: int, end: int) -> int:
        """The slot it reads for a unit whose slots are [first, end)."""
        return (first if self.edge == "first" else end - 1) + self.shift


VIEWS: Mapping[ViewName, View] = {
    "full": View(None),
    "forward": View(FORWARD, "last"),
    "backward": View(BACKWARD, "first"),
    "future": View(FORWARD, "first", -1),
    "past": View(BACKWARD, "last", 1),
}
"""`forward` and `backward` see the unit and the text on one side of it; `future` and `past` only that text."""


def view_width(settings: ModelSettings, name: ViewName) -> int:
    """Width of what a view reads."""
    outputs = [outputs for _, _, outputs in layer_widths(settings)]
    return 2 * sum(outputs) if VIEWS[name].direction is None else outputs[0]


def viewed(shown: Sequence[Tensor], name: ViewName) -> Tensor:
    """What a view reads of each slot.

    Args:
        shown: The outputs of each layer, see `Reading`. *Shape:* (rows, slots, width) each
        name: The view.

    Returns:
        *Shape:* (rows, slots, width of the view)
    """
    direction = VIEWS[name].direction
    if direction is None:
        return torch.cat(list(shown), dim=-1)
    forward, backward = shown[0].chunk(2, dim=-1)
    return forward if direction == FORWARD else backward


_NAMES: Mapping[Direction, str] = {FORWARD: "left_to_right", BACKWARD: "right_to_left"}
"""Names of the stacks: modules already have a method `forward`."""


def directions_of(settings: ModelSettings) -> tuple[Direction, ...]:
    """The directions a model reads in."""
    asked = settings.directions
    return (FORWARD, BACKWARD) if asked == "both" or asked == "bidirectional" else (asked,)


def side_width(settings: ModelSettings) -> int:
    """Width of the last layer's output in one direction."""
    return settings.hidden_size // 2 if settings.directions == "bidirectional" else settings.hidden_size


def layer_widths(settings: ModelSettings) -> list[tuple[int, int, int]]:
    """Inputs, cells and outputs of each layer in one direction.

    With `model.projection` every layer has `intermediate_size` cells and `hidden_size` outputs; otherwise the last layer has
    `hidden_size` cells and the others `intermediate_size`. In bidirectional layers each direction has half of `hidden_size`
    outputs (in the last layer as many cells), and the layers above the first read both directions.
    """
    both_ways = settings.directions == "bidirectional"
    widths, inputs, last = [], embedding_width(settings), side_width(settings)
    for layer in range(settings.num_layers):
        narrow = layer == settings.num_layers - 1 and (both_ways or not settings.projection)
        cells = last if narrow else settings.intermediate_size
        outputs = last if settings.projection else cells
        widths.append((inputs, cells, outputs))
        inputs = 2 * outputs if both_ways else outputs
    return widths


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a stack computes for a batch."""

    # Of each slot: the embedding, the output of each layer before dropout, and the output of the last layer after
    # dropout. *Shape:* (rows, slots, width) each
    states: list[Tensor]
    # The output of each bidirectional layer after dropout, as the layer above and the heads read it; empty for others.
    # *Shape:* (rows, slots, width) each
    shown: list[Tensor]
    # AR and TAR of this batch, see `penalty_of`; None if the model has neither or there is no dropout
    penalty: Tensor | None

    @property
    def by_layer(self) -> list[Tensor]:
        """One state for the embeddings and one per layer, the last after dropout."""
        return [*self.states[:-2], self.states[-1]]


class Embeddings(nn.Module):
    """Token embeddings, from a table or made of characters.

    Dropout drops all occurrences of a token at once (Gal and Ghahramani 2016).
    """

    def __init__(self, settings: ModelSettings, *, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size, self.rate = vocab_size, settings.embedding_dropout
        self.tokens: nn.Embedding | CharacterCnn
        if settings.embeddings == "characters":
            self.tokens = CharacterCnn(settings)
        else:
            self.tokens = nn.Embedding(vocab_size, embedding_width(settings))

    def forward(self, input_ids: Tensor, dropout: DropoutKey | None = None) -> Tensor:
        """*Shape:* (rows, slots) to (rows, slots, width)"""
        embedded: Tensor = self.tokens(input_ids)
        if dropout is None or self.rate == 0:
            return embedded
        kept = dropout(torch.ones(self.vocab_size, 1, device=embedded.device), self.rate)
        return embedded * kept[input_ids]


class Layer(nn.Module):
    """A layer of each direction."""

    def __init__(self, widths: tuple[int, int, int], settings: ModelSettings) -> None:
        super().__init__()
        self.cells = nn.ModuleDict(
            {_NAMES[each]: RecurrentLayer(*widths, settings) for each in directions_of(settings)}
        )

    def of(self, direction: Direction) -> RecurrentLayer:
        """The layer of one direction."""
        layer = self.cells[_NAMES[direction]]
        assert isinstance(layer, RecurrentLayer)
        return layer


class RecurrentBackbone(nn.Module):
    """Embeddings and layers; each run of slots is read by the stack of its direction, see `runs`.

    Dropout masks of inputs, layers and output are the same at all steps of a run (Merity et al. 2018, Section 4.2), and
    rows of a memory begin where the text before them ended.
    """

    def __init__(self, settings: ModelSettings, *, vocab_size: int) -> None:
        super().__init__()
        self.settings = settings
        self.embeddings = Embeddings(settings, vocab_size=vocab_size)
        self.layers = nn.ModuleList([Layer(widths, settings) for widths in layer_widths(settings)])
        self.visibility = ["full"] * settings.num_layers

    def forward(self, batch: Batch, *, select: bool = False, dropout: DropoutKey | None = None) -> list[Tensor]:
        """Hidden states of the embeddings and after each layer; arguments and result as of `Backbone.forward`."""
        states = self.read(batch, dropout).by_layer
        if select:
            states[-1] = predicted(batch, states[-1])
        return states

    def read(self, batch: Batch, dropout: DropoutKey | None = None) -> Reading:
        """Read a batch. Its memory, if any, is where its first runs begin; it is updated if the batch has text slots."""
        both_ways, intervals = self.settings.directions == "bidirectional", batch.intervals.cpu().numpy()
        directions = directions_of(self.settings)
        found = find_texts(intervals) if both_ways else find_runs(intervals, directions)
        with torch.autocast(batch.input_ids.device.type, enabled=False):
            embedded = self.embeddings(batch.input_ids, dropout).float()
            width, device, settings = embedded.shape[1], embedded.device, self.settings
            sequences = {direction: Sequences(runs, width, device) for direction, runs in found.items() if len(runs)}
            readings: list[list[Tensor]] = []
            for part in [sequences] if both_ways else [{each: steps} for each, steps in sequences.items()]:
                alone = None if both_ways or batch.memory is None else Carried(batch.memory, found[next(iter(part))])
                before = None if alone is None else alone.before()
                raw, shown, final = read_layers(self.layers, embedded, part, settings, dropout, before)
                readings.append([*raw, shown[-1]])
                if alone is not None and batch.text_slots is not None:
                    alone.keep(final)
            layers = [functools.reduce(torch.add, of_layer) for of_layer in zip(*readings, strict=True)]
        runs = [found[FORWARD]] if both_ways else [*found.values()]
        penalty = None if dropout is None else penalty_of(layers[-2], layers[-1], runs, self.settings)
        return Reading(states=[embedded, *layers], shown=shown if both_ways else [], penalty=penalty)


def read_layers(
    layers: nn.ModuleList,
    x: Tensor,
    sequences: Mapping[Direction, Sequences],
    settings: ModelSettings,
    dropout: DropoutKey | None,
    before: Tensor | None = None,
) -> tuple[list[Tensor], list[Tensor], list[State]]:
    """Read the runs of one direction, from the states before them, or those of both with bidirectional layers.

    Returns:
        Outputs of each layer before and after dropout, *Shape:* (rows, slots, width) each; and output and cell in which each
        layer ends, *Shape:* (runs, width) each.
    """
    rows, width = x.shape[:2]
    first = next(iter(sequences.values()))
    x = first.locked(x, settings.input_dropout, dropout)
    raw, shown, final = [], [], []
    for number, layer in enumerate(layers):
        assert isinstance(layer, Layer)
        sides, ends = [], []
        for direction, each in sequences.items():
            cell = layer.of(direction)
            start = x.new_zeros(each.count, cell.outputs), x.new_zeros(each.count, cell.cells)
            if before is not None:
                for of_layer, part in zip(before[2 * number :], start, strict=False):
                    part.copy_(of_layer[:, : part.shape[1]])
            output, end = cell(each.gather(x), each.running, start, dropout)
            sides.append(each.scatter(output, rows, width))
            ends.append(end)
        output = torch.cat(sides, dim=-1)
        if settings.residual and number:
            output = output + x
        is_last = number == len(layers) - 1
        x = first.locked(output, settings.dropout if is_last else settings.hidden_dropout, dropout)
        raw.append(output)
        shown.append(x)
        final.append((torch.cat([h for h, _ in ends], dim=1), torch.cat([c for _, c in ends], dim=1)))
    return raw, shown, final


class Sequences:
    """The runs of one direction as sequences of steps, and back."""

    def __init__(self, runs: Runs, width: int, device: torch.device) -> None:
        run, slot, running = runs.order()
        self.count = len(runs)
        self.steps = len(running)
        index = torch.from_numpy(runs.rows[run] * width + slot)
        self._slots = index.to(device)
        self.running: Tensor | None = None
        if runs.alike:
            index = index.view(self.steps, self.count).T.reshape(-1)
        else:
            self.running = torch.from_numpy(running)
        self._index = index.to(device)
        self._run = torch.from_numpy(run).to(device)

    def gather(self, states: Tensor) -> Tensor:
        """The steps, see `RecurrentLayer.forward`. *Shape:* from (rows, slots, width)"""
        steps = states.flatten(0, 1).index_select(0, self._index)
        return steps if self.running is not None else steps.view(self.count, self.steps, -1)

    def scatter(self, steps: Tensor, rows: int, width: int) -> Tensor:
        """The reverse of `gather`, with 0 in all other slots. *Shape:* to (rows, slots, width)"""
        flat = steps if self.running is not None else steps.flatten(0, 1)
        whole = flat.new_zeros(rows * width, flat.shape[1]).index_copy(0, self._index, flat)
        return whole.view(rows, width, -1)

    def locked(self, states: Tensor, rate: float, dropout: DropoutKey | None) -> Tensor:
        """Dropout with one mask for all steps of a run. *Shape:* (rows, slots, width), of which only the runs are used"""
        if dropout is None or rate == 0:
            return states
        mask = dropout(torch.ones(self.count, states.shape[-1], device=states.device), rate)
        run = torch.zeros(states.shape[0] * states.shape[1], dtype=torch.long, device=states.device)
        return states * mask[run.index_copy(0, self._slots, self._run)].view(states.shape)

    def covered(self, slots: int) -> Tensor:
        """Which slots belong to a run. *Shape:* (slots of all rows,)"""
        return torch.zeros(slots, dtype=torch.bool, device=self._slots.device).index_fill(0, self._slots, True)


class Carried:
    """The state that runs begin with and leave behind, in the memory of a batch.

    The memory holds output and cell of every layer, padded to the widest: those of layer n are its states 2n and 2n + 1.
    """

    def __init__(self, memory: Memory, runs: Runs) -> None:
        first, device = np.flatnonzero(runs.starts == 0), memory.lengths.device
        self._memory, self._count = memory, len(runs)
        self._runs, self._rows = (torch.from_numpy(each).to(device) for each in (first, runs.rows[first]))

    def before(self) -> Tensor:
        """What runs begin with: 0 but for the first run of a row that continues. *Shape:* (2 x layers, runs, widest)"""
        known = self._memory.lengths.clamp(max=1)[self._rows, None]
        states = self._memory.states[:, self._rows, -1].float() * known
        return states.new_zeros(len(states), self._count, states.shape[2]).index_copy(1, self._runs, states)

    def keep(self, final: Sequence[State]) -> None:
        """Put what runs end with in the memory."""
        if len(self._rows):
            after = torch.zeros_like(self._memory.states)
            for number, part in enumerate(part for layer in final for part in layer):
                after[number, self._rows, -1, : part.shape[1]] = part.detach()[self._runs]
            self._memory.states, self._memory.lengths = after, torch.ones_like(self._memory.lengths)


def predicted(batch: Batch, states: Tensor) -> Tensor:
    """The states of the predicted slots, concatenated in the order of the targets. *Shape:* (rows, predictions, width)"""
    return select_slots(states, predicted_slots(batch))


def penalty_of(raw: Tensor, dropped: Tensor, runs: list[Runs], settings: ModelSettings) -> Tensor | None:
    """Activation and temporal activation regularisation (Merity et al. 2017; AWD-LSTM, Section 4.6).

    `activation_penalty` times the mean square of the last layer's outputs after dropout, and `temporal_penalty` times that
    of the differences between its outputs at adjacent steps before dropout. Runs of a single slot count for neither.

    Args:
        raw: Outputs of the last layer. *Shape:* (rows, slots, hidden size)
        dropped: The same after dropout.
        runs: Runs of the batch.
        settings: The factors.
    """
    if not settings.activation_penalty and not settings.temporal_penalty:
        return None
    width = raw.shape[1]
    real: list[Int64s] = []
    pairs: list[Int64s] = []
    for each in runs:
        run, slot, _ = each.order()
        kept = each.lengths[run] > 1
        number = (each.rows[run] * width + slot)[kept]
        real.append(number)
        pairs.append(number[(slot + 1 < each.starts[run] + each.lengths[run])[kept]])
    slots, left = (torch.from_numpy(np.concatenate(each)).to(raw.device) for each in (real, pairs))
    flat, shown = raw.flatten(0, 1), dropped.flatten(0, 1)
    penalty = settings.activation_penalty * shown.index_select(0, slots).square().mean()
    if settings.temporal_penalty:
        steps = flat.index_select(0, left + 1) - flat.index_select(0, left)
        penalty = penalty + settings.temporal_penalty * steps.square().mean()
    return penalty
