"""A biLSTM over the words of a sentence, between the vectors of a pre-trained network and a task's head (ELMo)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unicloze.example import TargetBatch
from unicloze.model.dropout import DropoutKey
from unicloze.model.recurrent.layer import draw_lstm


class WordEncoder(nn.Module):
    """A biLSTM that reads the predictions of a row, such as the words of a sentence, in their order.

    Args:
        inputs: Width of the vectors of the words.
        cells: Cells of each direction.
        rate: Dropout of the vectors.
    """

    def __init__(self, inputs: int, cells: int, rate: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, cells, batch_first=True, bidirectional=True)
        self.rate = rate

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights as `nn.LSTM` does."""
        draw_lstm(self.lstm, generator)

    def forward(self, states: Tensor, target: TargetBatch, dropout: DropoutKey | None) -> Tensor:
        """The vectors of both directions, 0 for padding.

        Args:
            states: The vectors of the words. *Shape:* (rows, predictions, inputs)
            target: Says which predictions are real, and of which row if rows are packed.
            dropout: Dropout of this forward pass; none if None.

        Returns:
            *Shape:* (rows, predictions, 2 x cells)
        """
        own = target.weights.flatten().nonzero().squeeze(1)
        words = states.flatten(0, 1).index_select(0, own).float()
        found = words.new_zeros(target.weights.numel(), 2 * self.lstm.hidden_size)
        if not len(own):
            return found.view(*target.weights.shape, -1)
        if dropout is not None:
            words = dropout(words, self.rate)
        _, row, lengths = torch.unique_consecutive(
            _rows(target).to(own.device)[own], return_inverse=True, return_counts=True
        )
        place = torch.arange(len(own), device=own.device) - (lengths.cumsum(0) - lengths)[row]
        padded = words.new_zeros(len(lengths), int(lengths.max()), words.shape[1]).index_put((row, place), words)
        with torch.autocast(states.device.type, enabled=False):
            sequences = nn.utils.rnn.pack_padded_sequence(padded, lengths.cpu(), batch_first=True, enforce_sorted=False)
            read, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(sequences)[0], batch_first=True)
        return found.index_copy(0, own, read[row, place]).view(*target.weights.shape, -1)


def _rows(target: TargetBatch) -> Tensor:
    """The row of each prediction, in the order of the flat weights. *Shape:* (rows x predictions,)"""
    shapes = target.shapes or (tuple(target.weights.shape),)
    widths = [width for rows, width in shapes for _ in range(rows)]
    return torch.arange(len(widths)).repeat_interleave(torch.tensor(widths, dtype=torch.long))
