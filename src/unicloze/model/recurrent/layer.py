"""One LSTM layer of one direction: `nn.LSTM`, or the same computation with cell clips."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unicloze.model.dropout import DropoutKey
from unicloze.settings import ModelSettings

State = tuple[Tensor, Tensor]
"""Output and cell of each sequence. *Shape:* (sequences, outputs) and (sequences, cells)"""


def draw_lstm(lstm: nn.LSTM, generator: torch.Generator) -> None:
    """Draw the weights as `nn.LSTM` does."""
    bound = lstm.hidden_size**-0.5
    with torch.no_grad():
        for parameter in lstm.parameters():
            parameter.uniform_(-bound, bound, generator=generator)


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
        before = [part.unsqueeze(0) for part in state]
        if running is None and len(flat) == 4:
            output, h, c = torch.lstm(x, before, flat, True, 1, 0.0, self.training, False, True)
        elif running is None:  # oneDNN has no projections, and torch warns of it but for packed sequences
            every = torch.full((x.shape[1],), len(x))
            data, h, c = torch.lstm(
                x.transpose(0, 1).flatten(0, 1), every, before, flat, True, 1, 0.0, self.training, False
            )
            output = data.view(x.shape[1], len(x), -1).transpose(0, 1)
        else:
            output, h, c = torch.lstm(x, running, before, flat, True, 1, 0.0, self.training, False)
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
            entering, kept, proposed, shown = (of_step + h[:going] @ recurrent.T).chunk(4, dim=1)
            cell = kept.sigmoid() * c[:going] + entering.sigmoid() * proposed.tanh()
            if self.cell_clip is not None:
                cell = cell.clamp(-self.cell_clip, self.cell_clip)
            hidden = shown.sigmoid() * cell.tanh()
            if projection:
                hidden = hidden @ projection[0].T
                if self.projection_clip is not None:
                    hidden = hidden.clamp(-self.projection_clip, self.projection_clip)
            outputs.append(hidden)
            h, c = torch.cat([hidden, h[going:]]), torch.cat([cell, c[going:]])
        return torch.stack(outputs, dim=1) if running is None else torch.cat(outputs), (h, c)
