"""A recurrent language model behind the interface of `UnifiedModel`, and prepared for generation.

A state holds what the layers remember of every hypothesis, so a step costs the same after any number of tokens, and
switching beams moves a few vectors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unicloze.example import Batch
from unicloze.model.attention import select_slots
from unicloze.model.dropout import DropoutKey
from unicloze.model.inference_model import Output, linear_for
from unicloze.model.model import TargetLoss, UnifiedModel
from unicloze.model.recurrent.backbone import Layer, Reading, RecurrentBackbone, viewed
from unicloze.model.recurrent.layers import FORWARD, RecurrentLayer, State, StepState, lstm_step
from unicloze.model.recurrent.translation import Pairs, TranslationBackbone


class RecurrentModel(UnifiedModel):
    """LSTMs in place of the Transformer, with the same heads and tied token embeddings; arguments as of `UnifiedModel`."""

    def forward(self, batch: Batch, dropout: DropoutKey | None = None) -> Mapping[str, TargetLoss]:
        """Losses of every target in a batch; their gradients, but not their values, include AR and TAR.

        Args:
            batch: The rows.
            dropout: Dropout of this forward pass; none if None. Without it there is no regularisation either.
        """
        assert isinstance(self.backbone, RecurrentBackbone)
        reading = self.backbone.read(batch, dropout)
        losses = dict(self._losses(batch, self._seen(batch, reading), dropout))
        if reading.penalty is not None and losses:
            name, loss = next(iter(losses.items()))
            added = loss.weight * reading.penalty
            losses[name] = dataclasses.replace(loss, total=loss.total + (added - added.detach()))
        return losses

    def _selected(self, batch: Batch, dropout: DropoutKey | None) -> dict[str, Tensor]:
        assert isinstance(self.backbone, RecurrentBackbone)
        return self._seen(batch, self.backbone.read(batch, dropout))

    def _seen(self, batch: Batch, reading: Reading) -> dict[str, Tensor]:
        """States of the predicted slots by target; a task head with a view gets what it sees."""
        hidden = self._from_layers(batch, reading.by_layer)
        for name, target in batch.targets.items():
            view = self.task_head(name).head.view if name in self.task_heads else None
            if view is not None:
                hidden[name] = select_slots(viewed(reading.shown, view), target.slots.flatten(1))
        return hidden


class TranslationModel(UnifiedModel):
    """An LSTM encoder-decoder with the heads of `UnifiedModel`; arguments as there."""


STEPS_AT_ONCE = 256
"""Steps of the given texts that are read at once, so that a long text needs little memory."""


class StepModel(Protocol):
    """Predicts the next token of each hypothesis from a state."""

    device: torch.device

    def begin(self, rows: Sequence[npt.NDArray[np.integer]]) -> tuple[Tensor | None, StepState]:
        """Read what is given before the texts.

        Args:
            rows: Token ids of each row, special tokens included; at least one each.

        Returns:
            Logits of the next token, *Shape:* (rows, 1, vocabulary), None if the given tokens predict none; and the state of
            one hypothesis per row.
        """

    def step(self, tokens: Tensor, state: StepState) -> tuple[Tensor, StepState]:
        """Read one more token of each hypothesis.

        Args:
            tokens: *Shape:* (rows, hypotheses)
            state: The state before them.

        Returns:
            Logits of the next token, *Shape:* (rows, hypotheses, vocabulary), and the new state.
        """


class StepCell:
    """One step of an LSTM layer, with a single matrix product for all gates.

    Args:
        lstm: An LSTM of one layer and direction.
        dtype: Data type of the products; the state is float32.
        cell_clip: Largest absolute value of a cell, if any.
        projection_clip: Largest absolute value of a projected output, if any.
    """

    def __init__(
        self, lstm: nn.LSTM, dtype: torch.dtype, cell_clip: float | None = None, projection_clip: float | None = None
    ) -> None:
        weights = {name: weight.detach() for name, weight in lstm.named_parameters()}
        self.cells = lstm.hidden_size
        self.outputs = lstm.proj_size or lstm.hidden_size
        self._cell_clip, self._projection_clip = cell_clip, projection_clip
        both = torch.cat([weights["weight_ih_l0"], weights["weight_hh_l0"]], dim=1)
        self._gates = linear_for(both, weights["bias_ih_l0"] + weights["bias_hh_l0"], dtype)
        self._projection = linear_for(weights["weight_hr_l0"], None, dtype) if lstm.proj_size else None
        self._dtype = dtype

    def __call__(self, x: Tensor, state: State) -> State:
        """Output and cell after one input each. *Shape:* (sequences, inputs) and (sequences, width)"""
        h, c = state
        gates: Tensor = self._gates(torch.cat([x, h], dim=1).to(self._dtype)).float()
        h, c = lstm_step(gates, c, self._cell_clip)
        if self._projection is not None:
            h = self._projection(h.to(self._dtype)).float()
            if self._projection_clip is not None:
                h = h.clamp(-self._projection_clip, self._projection_clip)
        return h, c


class RecurrentSteps:
    """A left-to-right LSTM language model as a `StepModel`. Do not train the model while using it.

    Args:
        model: The model.
        dtype: Data type of the matrix products.

    Raises:
        UsageError: The model does not predict tokens.
    """

    def __init__(self, model: RecurrentModel, dtype: torch.dtype) -> None:
        assert isinstance(model.backbone, RecurrentBackbone)
        self._settings = model.settings
        self._tokens = model.backbone.embeddings.tokens
        self._layers: list[RecurrentLayer] = []
        for layer in model.backbone.layers:
            assert isinstance(layer, Layer)
            self._layers.append(layer.of(FORWARD))
        self._cells = [StepCell(each.lstm, dtype, each.cell_clip, each.projection_clip) for each in self._layers]
        self._logits = Output(model, dtype)
        self.device = next(model.parameters()).device

    def begin(self, rows: Sequence[npt.NDArray[np.integer]]) -> tuple[Tensor, StepState]:
        """See `StepModel.begin`."""
        last = torch.tensor([int(row[-1]) for row in rows], device=self.device)
        return self.step(last[:, None], self._after([row[:-1] for row in rows]))

    def step(self, tokens: Tensor, state: StepState) -> tuple[Tensor, StepState]:
        """See `StepModel.step`."""
        before = [part.flatten(0, 1) for part in state.carried]
        x, after = self._tokens(tokens.flatten()).float(), []
        for number, cell in enumerate(self._cells):
            h, c = cell(x, (before[2 * number], before[2 * number + 1]))
            after += [h, c]
            x = h + x if self._settings.residual and number else h
        shape = tokens.shape
        return self._logits(x).unflatten(0, shape), StepState(carried=tuple(part.unflatten(0, shape) for part in after))

    def _after(self, rows: Sequence[npt.NDArray[np.integer]]) -> StepState:
        """The state after reading these tokens, of which there may be none."""
        lengths = np.array([len(row) for row in rows])
        order = np.argsort(-lengths, kind="stable")
        widths = [width for cell in self._cells for width in (cell.outputs, cell.cells)]
        states = [torch.zeros(len(rows), width, device=self.device) for width in widths]
        for first in range(0, int(lengths.max(initial=0)), STEPS_AT_ONCE):
            parts = [rows[row][first : first + STEPS_AT_ONCE] for row in order if lengths[row] > first]
            ids = [torch.from_numpy(part.astype(np.int64)) for part in parts]
            packed = nn.utils.rnn.pack_sequence(ids)
            x, count = self._tokens(packed.data.to(self.device)).float(), len(parts)
            for number, layer in enumerate(self._layers):
                h, c = states[2 * number : 2 * number + 2]
                output, after = layer(x, packed.batch_sizes, (h[:count], c[:count]))
                h[:count], c[:count] = after
                x = output + x if self._settings.residual and number else output
        back = torch.from_numpy(np.argsort(order)).to(self.device)
        return StepState(carried=tuple(state[back, None] for state in states))


class TranslationSteps:
    """An LSTM encoder-decoder as a `StepModel`. Do not train the model while using it.

    Args:
        model: The model.
        dtype: Data type of the product with the output matrix.

    Raises:
        UsageError: The model does not predict tokens.
    """

    def __init__(self, model: TranslationModel, dtype: torch.dtype) -> None:
        assert isinstance(model.backbone, TranslationBackbone)
        self._backbone, self._logits = model.backbone, Output(model, dtype)
        self.device = next(model.parameters()).device

    def begin(self, rows: Sequence[npt.NDArray[np.integer]]) -> tuple[None, StepState]:
        """See `StepModel.begin`; the opening of the target predicts its first token."""
        lengths = np.array([len(row) for row in rows])
        ids = np.zeros((len(rows), int(lengths.max())), dtype=np.int64)
        ids[np.arange(ids.shape[1]) < lengths[:, None]] = np.concatenate(rows)
        order = np.argsort(-lengths, kind="stable")
        none = np.zeros_like(lengths)
        pairs = Pairs(rows=order, starts=none, lengths=lengths[order], targets=none)
        back = np.argsort(order)
        with torch.autocast(self.device.type, enabled=False):
            _, states, final = self._backbone.encode(torch.from_numpy(ids).to(self.device), pairs)
        source = self._backbone.source_of(pairs, back, states)
        index = torch.from_numpy(back).to(self.device)
        return None, self._backbone.decoder.start([(h[index], c[index]) for h, c in final], source)

    def step(self, tokens: Tensor, state: StepState) -> tuple[Tensor, StepState]:
        """See `StepModel.step`."""
        decoder = self._backbone.decoder
        with torch.autocast(self.device.type, enabled=False):
            after = decoder.step(decoder.inputs(decoder.embeddings(tokens).float()), state)
        return self._logits(after.carried[-1]), after
