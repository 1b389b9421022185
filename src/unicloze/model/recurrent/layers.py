"""What recurrent networks are made of: LSTM layers, token embeddings from characters, and the runs of slots they read."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.arrays import Int64s
from unicloze.characters import PADDING, SYMBOLS
from unicloze.errors import UniclozeError, UsageError
from unicloze.model.dropout import DropoutKey
from unicloze.model.layers import ACTIVATIONS
from unicloze.settings import ModelSettings
from unicloze.visibility import Intervals

State = tuple[Tensor, Tensor]
"""Output and cell of each sequence. *Shape:* (sequences, outputs) and (sequences, cells)"""


@dataclass(frozen=True, kw_only=True)
class StepState:
    """What a model remembers of the texts written so far."""

    carried: tuple[Tensor, ...]  # Of each hypothesis. *Shape:* (rows, hypotheses, width) each
    shared: tuple[Tensor, ...] = ()  # Of each row, the same for all of its hypotheses. *Shape:* (rows, ...) each

    def for_hypotheses(self, count: int) -> StepState:
        """The state of a single hypothesis per row, given to `count` of them."""
        return StepState(carried=tuple(part.expand(-1, count, -1) for part in self.carried), shared=self.shared)

    def of_parents(self, parents: Tensor) -> StepState:
        """The states that hypotheses continue. *Shape of parents:* (rows, hypotheses)"""
        index = parents[:, :, None]
        carried = tuple(part.gather(1, index.expand(-1, -1, part.shape[2])) for part in self.carried)
        return StepState(carried=carried, shared=self.shared)

    def of_rows(self, rows: Tensor | slice) -> StepState:
        """The states of some rows. *Shape of rows:* (rows kept,)"""
        carried, shared = (tuple(part[rows] for part in parts) for parts in (self.carried, self.shared))
        return StepState(carried=carried, shared=shared)


def draw_lstm(lstm: nn.LSTM, generator: torch.Generator) -> None:
    """Draw the weights as `nn.LSTM` does."""
    bound = lstm.hidden_size**-0.5
    with torch.no_grad():
        for parameter in lstm.parameters():
            parameter.uniform_(-bound, bound, generator=generator)


def lstm_step(gates: Tensor, c: Tensor, clip: float | None = None) -> State:
    """Output and cell of an LSTM from its gates and the cell before. *Shape:* (..., 4 x cells) and (..., cells)"""
    entering, kept, proposed, shown = gates.chunk(4, dim=-1)
    c = kept.sigmoid() * c + entering.sigmoid() * proposed.tanh()
    if clip is not None:
        c = c.clamp(-clip, clip)
    return shown.sigmoid() * c.tanh(), c


@contextlib.contextmanager
def _no_word_of_layout() -> Iterator[None]:
    """Silence a warning of torch's kernel on CUDA.

    It warns at every call that the weights do not lie side by side. Those that are dropped anew for each pass cannot, without
    the copy that cuDNN makes anyway.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


class RecurrentLayer(nn.Module):
    """An LSTM with weight drop (Merity et al. 2018, Section 2).

    The weights are those of `nn.LSTM`, under its names. Clips (`model.cell_clip`, `model.projection_clip`) need a loop of
    our own; without them torch's kernel does the work.

    Args:
        inputs: Width of the inputs.
        cells: Number of cells.
        outputs: Width of the outputs; if it is not the number of cells, they are projected.
        settings: Model shape.
    """

    def __init__(self, inputs: int, cells: int, outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        self.cells, self.outputs = cells, outputs
        self.rate = settings.weight_dropout
        self.cell_clip, self.projection_clip = settings.cell_clip, settings.projection_clip
        self.lstm = nn.LSTM(inputs, cells, batch_first=True, proj_size=0 if outputs == cells else outputs)

    def forward(
        self, x: Tensor, running: Tensor | None, state: State, dropout: DropoutKey | None = None
    ) -> tuple[Tensor, State]:
        """Read sequences from their first to their last step.

        Args:
            x: Sequences of one length, *Shape:* (sequences, steps, inputs), or all steps one after the other as in a
                `PackedSequence`, *Shape:* (steps of all sequences, inputs).
            running: Number of sequences with each step, on the CPU; None if all have the same length. *Shape:* (steps,)
            state: The state before the first step.
            dropout: Dropout of this forward pass; none if None. One mask of the recurrent weights serves all steps.

        Returns:
            The outputs, shaped as `x`, and the state after each sequence's last step.
        """
        weights: dict[str, Tensor] = dict(self.lstm.named_parameters())
        recurrent = weights["weight_hh_l0"]
        if dropout is not None:
            recurrent = dropout(recurrent, self.rate)
        flat = [weights["weight_ih_l0"], recurrent, weights["bias_ih_l0"], weights["bias_hh_l0"]]
        if "weight_hr_l0" in weights:
            flat.append(weights["weight_hr_l0"])
        if self.cell_clip is not None or self.projection_clip is not None:
            return self._clipped(x, running, state, flat)
        is_new = x.is_cuda and recurrent is not weights["weight_hh_l0"]
        with _no_word_of_layout() if is_new else contextlib.nullcontext():
            return self._by_kernel(x, running, state, flat)

    def _by_kernel(
        self, x: Tensor, running: Tensor | None, state: State, weights: list[Tensor]
    ) -> tuple[Tensor, State]:
        """All steps by torch's kernel."""
        before = [part.unsqueeze(0) for part in state]
        if running is None and len(weights) == 4:
            output, h, c = torch.lstm(x, before, weights, True, 1, 0.0, self.training, False, True)
        elif running is None:  # oneDNN has no projections, and torch warns of it but for packed sequences
            every = torch.full((x.shape[1],), len(x))
            data, h, c = torch.lstm(
                x.transpose(0, 1).flatten(0, 1), every, before, weights, True, 1, 0.0, self.training, False
            )
            output = data.view(x.shape[1], len(x), -1).transpose(0, 1)
        else:
            output, h, c = torch.lstm(x, running, before, weights, True, 1, 0.0, self.training, False)
        return output, (h[0], c[0])

    def _clipped(self, x: Tensor, running: Tensor | None, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
        """The steps one by one, with the cells and the projected outputs clipped."""
        into, recurrent, bias, other_bias, *projection = weights
        gates = nn.functional.linear(x, into, bias + other_bias)
        steps = gates.unbind(1) if running is None else gates.split(running.tolist())
        h, c = state
        outputs = []
        for of_step in steps:
            going = len(of_step)
            hidden, cell = lstm_step(of_step + h[:going] @ recurrent.T, c[:going], self.cell_clip)
            if projection:
                hidden = hidden @ projection[0].T
                if self.projection_clip is not None:
                    hidden = hidden.clamp(-self.projection_clip, self.projection_clip)
            outputs.append(hidden)
            h, c = torch.cat([hidden, h[going:]]), torch.cat([cell, c[going:]])
        return torch.stack(outputs, dim=1) if running is None else torch.cat(outputs), (h, c)


CARRY_BIAS = -2.0
"""Initial bias of a highway's gate, which is nearly closed at the start (Srivastava et al. 2015)."""
CHARACTER_RANGE, FILTER_RANGE = 1.0, 0.05
"""Half the widths of the uniform distributions of the initial character embeddings and filters."""


class Highway(nn.Module):
    """g relu(W x + b) + (1 - g) x with g = sigmoid(V x + c) (Srivastava et al. 2015; Kim et al. 2016).

    Args:
        width: Width of the input and the output.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.carry = nn.Linear(width, width)
        self.transform = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """*Shape:* (tokens, width) to the same"""
        gate = torch.sigmoid(self.carry(x))
        return torch.lerp(x, functional.relu(self.transform(x)), gate)


class CharacterCnn(nn.Module):
    """The vector of a token from its symbols (Peters et al. 2018, Section 3.4; Jozefowicz et al. 2016, Section 3.2).

    Filters of width 1, 2, 3, ... are applied to the embeddings of the symbols, padding included; the largest output of each
    over all places goes through the activation, the highways and a projection.

    Args:
        settings: Model shape.

    Attributes:
        symbols: Symbols of each token, see `unicloze.characters`. They follow from the tokenizer and are in no checkpoint.
            *Shape:* (vocabulary, symbols); None until given.
    """

    symbols: Tensor | None

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        counts = settings.character_filters
        size, total = settings.character_size, sum(counts)
        self.characters = nn.Embedding(SYMBOLS, size)
        self.filters = nn.ModuleList([nn.Conv1d(size, count, width) for width, count in enumerate(counts, start=1)])
        self.highways = nn.ModuleList([Highway(total) for _ in range(settings.character_highways)])
        self.projection = nn.Linear(total, settings.embedding_size or settings.hidden_size)
        self.activation = ACTIVATIONS[settings.activation]
        self.symbols = None

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights as ELMo's released code does; biases are 0, except those of the highways' gates."""
        with torch.no_grad():
            self.characters.weight.uniform_(-CHARACTER_RANGE, CHARACTER_RANGE, generator=generator)
            for module in self.modules():
                if isinstance(module, nn.Conv1d):
                    module.weight.uniform_(-FILTER_RANGE, FILTER_RANGE, generator=generator)
                elif isinstance(module, nn.Linear):
                    module.weight.normal_(0, module.in_features**-0.5, generator=generator)
                if isinstance(module, nn.Conv1d | nn.Linear) and module.bias is not None:
                    module.bias.zero_()
            for module in self.modules():
                if isinstance(module, Highway):
                    module.carry.bias.fill_(CARRY_BIAS)

    def forward(self, input_ids: Tensor) -> Tensor:
        """The vector of each token, computed once for each distinct one. *Shape:* (...) to (..., width)"""
        if self.symbols is None:
            raise UniclozeError(
                "the model reads characters, but was not given those of its tokens: call `spell_tokens`"
            )
        if self.symbols.device != input_ids.device:
            self.symbols = self.symbols.to(input_ids.device)
        distinct, place = torch.unique(input_ids, return_inverse=True)
        return functional.embedding(place, self.vectors(self.symbols[distinct]))

    def vectors(self, symbols: Tensor) -> Tensor:
        """The vectors of words. *Shape:* (words, symbols) to (words, width)"""
        widest = len(self.filters)
        longest = int((symbols != PADDING).sum(dim=1).max())
        embedded = self.characters(symbols[:, : longest + widest]).transpose(1, 2)  # more padding changes no maximum
        # for the backward pass `max` keeps indices, where `amax` would keep all outputs of the filters
        x = self.activation(torch.cat([each(embedded).max(dim=2).values for each in self.filters], dim=1))
        for highway in self.highways:
            x = highway(x)
        projected: Tensor = self.projection(x)
        return projected


Direction = Literal["forward", "backward"]
"""A reading direction: from left to right, or from right to left."""

FORWARD: Direction = "forward"
BACKWARD: Direction = "backward"

NO_RUN = (
    "model.kind recurrent reads a text from left to right or from right to left, but a slot of these rows reads otherwise: "
    "use an objective or use.visibility left_to_right or right_to_left, or model.kind transformer"
)


NO_TEXT = (
    "model.directions bidirectional reads whole texts in both directions, but a slot of these rows reads otherwise: use an "
    "objective or use.visibility bidirectional, or another value of model.directions"
)


# A left-to-right run is a sequence of slots that each read the run's slots up to themselves; in a right-to-left run
# each reads itself and those after it. A bidirectional LSTM reads whole texts, runs of slots that each read exactly
# the run. Every other visibility is refused, because an LSTM cannot follow it.


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The runs of one direction, longest first."""

    rows: Int64s  # Row of each run. *Shape:* (runs,)
    starts: Int64s  # Its leftmost slot. *Shape:* (runs,)
    lengths: Int64s  # Its number of slots, in descending order. *Shape:* (runs,)
    backward: bool  # whether they are read from right to left

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def alike(self) -> bool:
        """Whether all have the same length."""
        return bool((self.lengths == self.lengths[:1]).all())

    def order(self) -> tuple[Int64s, Int64s, Int64s]:
        """All slots step by step, as `PackedSequence` orders them.

        Returns:
            Run and slot of each, *Shape:* (slots of all runs,), and the number of runs with each step, *Shape:* (steps,)
        """
        steps = np.arange(int(self.lengths.max(initial=0)))
        step, run = np.nonzero(steps[:, None] < self.lengths)
        offset = self.lengths[run] - 1 - step if self.backward else step
        return run, self.starts[run] + offset, np.bincount(step, minlength=len(steps))


def find_runs(intervals: Intervals, directions: Sequence[Direction]) -> dict[Direction, Runs]:
    """The runs of a batch by direction.

    Slots that read only themselves and that no other slot reads, such as padding, are runs of the first direction.

    Args:
        intervals: *Shape:* (rows, slots, 4)
        directions: The directions the model can read in.
    """
    width = intervals.shape[1]
    slot = np.arange(width)
    first, end = intervals[..., 0], intervals[..., 1]
    if (intervals[..., 3] > intervals[..., 2]).any():
        raise UsageError(NO_RUN)
    alone = (first == slot) & (end == slot + 1)
    rightward = (end == slot + 1) & (first <= slot)
    leftward = (first == slot) & (end > slot)
    if not (rightward | leftward).all():
        raise UsageError(NO_RUN)
    # A slot that reads only itself is the first of a run if its neighbour's run begins or ends with it.
    begins, ends = np.zeros((2, *alone.shape), dtype=bool)
    begins[:, :-1] = alone[:, :-1] & (rightward & ~alone & (first == slot - 1))[:, 1:]
    ends[:, 1:] = alone[:, 1:] & (leftward & ~alone & (end == slot + 2))[:, :-1]
    if (begins & ends).any():
        raise UsageError(NO_RUN)
    is_left = (leftward & ~alone) | ends
    if directions[0] == BACKWARD:
        is_left |= alone & ~begins
    found = {
        FORWARD: _runs(~is_left, np.where(~is_left, first, -1), backward=False),
        BACKWARD: _runs(is_left, np.where(is_left, end, -1), backward=True),
    }
    _check(found[FORWARD], first)
    _check(found[BACKWARD], end)
    for direction, runs in found.items():
        if len(runs) and direction not in directions:
            raise UsageError(
                f"a slot of these rows is read {direction}, but model.directions is {directions[0]}: use a model that reads "
                f"{direction}, or set model.directions both"
            )
    return {direction: found[direction] for direction in directions}


def find_texts(intervals: Intervals) -> dict[Direction, Runs]:
    """The texts of a batch, runs of slots that each read exactly the run, to be read from left to right and back.

    Args:
        intervals: *Shape:* (rows, slots, 4)
    """
    first, end = intervals[..., 0].astype(np.int64), intervals[..., 1].astype(np.int64)
    slot = np.arange(intervals.shape[1])
    if (intervals[..., 3] > intervals[..., 2]).any() or not ((first <= slot) & (slot < end)).all():
        raise UsageError(NO_TEXT)
    member = np.ones(first.shape, dtype=bool)
    found = _runs(member, first * (intervals.shape[1] + 1) + end, backward=False)
    if (
        (found.starts != first[found.rows, found.starts]) | (found.lengths != (end - first)[found.rows, found.starts])
    ).any():
        raise UsageError(NO_TEXT)
    return {FORWARD: found, BACKWARD: dataclasses.replace(found, backward=True)}


def _runs(member: npt.NDArray[np.bool_], bound: npt.NDArray[np.integer], *, backward: bool) -> Runs:
    """Maximal sequences of adjacent members with one bound, longest first."""
    before = np.zeros_like(member)
    before[:, 1:] = member[:, 1:] & member[:, :-1] & (bound[:, 1:] == bound[:, :-1])
    rows, starts = np.nonzero(member & ~before)
    after = np.zeros_like(member)
    after[:, :-1] = before[:, 1:]
    _, last = np.nonzero(member & ~after)
    lengths = last - starts + 1
    order = np.argsort(-lengths, kind="stable")
    return Runs(rows=rows[order], starts=starts[order], lengths=lengths[order], backward=backward)


def _check(runs: Runs, bound: npt.NDArray[np.integer]) -> None:
    """Reject runs whose slots read slots outside of them."""
    wanted = runs.starts + runs.lengths if runs.backward else runs.starts
    if (bound[runs.rows, runs.starts] != wanted).any():
        raise UsageError(NO_RUN)
