"""An LSTM encoder-decoder: a bidirectional encoder, and a decoder with attention and input feeding (CoVe)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from unicloze.arrays import Int64s
from unicloze.errors import UsageError
from unicloze.example import Batch
from unicloze.model.backbone import embedding_width
from unicloze.model.dropout import DropoutKey
from unicloze.model.recurrent.backbone import Embeddings, Layer, Sequences, layer_widths, predicted, read_layers
from unicloze.model.recurrent.layers import BACKWARD, FORWARD, Runs, State, StepState, lstm_step
from unicloze.settings import ModelSettings
from unicloze.visibility import Intervals

NO_PAIR = (
    "an LSTM encoder-decoder (model.kind recurrent with model.decoder_layers) reads a source in both directions and writes a "
    "target from left to right, but a slot of these rows reads otherwise: use an objective or task with source and target"
)


# A source is a sequence of slots that each read all of it: both directions of an encoder read it. Its target are the
# slots after it that each read the source, the target up to themselves and nothing else: a decoder writes them from
# left to right.


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The sources of a batch, longest first, each with its target, which may be empty.

    Padding, which reads only itself, is a source of one slot.

    Args:
        rows: Row of each. *Shape:* (pairs,)
        starts: First slot of the source. *Shape:* (pairs,)
        lengths: Slots of the source, in descending order. *Shape:* (pairs,)
        targets: Slots of the target, which begins after the source. *Shape:* (pairs,)
    """

    rows: Int64s
    starts: Int64s
    lengths: Int64s
    targets: Int64s

    def __len__(self) -> int:
        return len(self.rows)

    def runs(self, *, backward: bool) -> Runs:
        """The sources as the runs of one direction."""
        return Runs(rows=self.rows, starts=self.starts, lengths=self.lengths, backward=backward)

    def with_targets(self) -> Int64s:
        """Numbers of the pairs that have a target, longest target first. *Shape:* (pairs with a target,)"""
        order = np.argsort(-self.targets, kind="stable")
        return order[: np.count_nonzero(self.targets)]


def find_pairs(intervals: Intervals) -> Pairs:
    """The sources and targets of a batch.

    Args:
        intervals: *Shape:* (rows, slots, 4)
    """
    rows, width = intervals.shape[:2]
    slot, row = np.arange(width), np.arange(rows)[:, None]
    first, end = intervals[..., 0].astype(np.int64), intervals[..., 1].astype(np.int64)
    if (intervals[..., 3] > intervals[..., 2]).any() or (first > slot).any() or (end <= slot).any():
        raise UsageError(NO_PAIR)
    source_end = end[row, first]
    in_source = (slot < source_end) & (end == source_end)
    in_target = (slot >= source_end) & (end == slot + 1)
    place = (row * width + first).ravel()
    counts = np.bincount(place[in_source.ravel()], minlength=rows * width)
    written = np.bincount(place[in_target.ravel()], minlength=rows * width)
    starts = np.flatnonzero((first == slot).ravel())
    lengths = (source_end - slot).ravel()[starts]
    last = np.zeros(rows * width, dtype=np.int64)
    np.maximum.at(last, place, np.broadcast_to(slot + 1, first.shape).ravel())
    ends = starts % width + lengths + written[starts]
    if not (in_source | in_target).all() or (counts[starts] != lengths).any() or (last[starts] != ends).any():
        raise UsageError(NO_PAIR)
    order = np.argsort(-lengths, kind="stable")
    starts = starts[order]
    return Pairs(rows=starts // width, starts=starts % width, lengths=lengths[order], targets=written[starts])


class AttentionDecoder(nn.Module):
    """A stack of LSTMs with token embeddings of its own, and attention over the encoder's output.

    With z the token read, H the output of the encoder and s the output of the last layer:

        s_t = LSTM([z_t; a_{t-1}], s_{t-1})
        c_t = H^T softmax(H (W_1 s_t + b_1))
        a_t = tanh(W_2 [c_t; s_t] + b_2)

    `nn.LSTM` holds the weights; the steps are taken one by one, since each needs the attention of the one before. The state
    carries s and the cells of each layer, then a, which predicts the next token; all texts of a source share H.

    Args:
        settings: Model shape.
        widths: Cells of each layer; the encoder's layers are as wide.
        vocab_size: Rows of the token table.
    """

    def __init__(self, settings: ModelSettings, widths: Sequence[int], *, vocab_size: int) -> None:
        super().__init__()
        self.embeddings = Embeddings(settings, vocab_size=vocab_size)
        self.embedded = embedding_width(settings)
        inputs = [self.embedded + settings.hidden_size, *widths[:-1]]
        self.layers = nn.ModuleList(
            [nn.LSTM(before, cells, batch_first=True) for before, cells in zip(inputs, widths, strict=True)]
        )
        self.query = nn.Linear(widths[-1], widths[-1])
        self.combine = nn.Linear(2 * widths[-1], settings.hidden_size)

    def start(self, final: Sequence[State], source: tuple[Tensor, Tensor]) -> StepState:
        """The state before the first token: that of the encoder, and nothing attended to.

        Args:
            final: Outputs and cells in which the encoder's layers end. *Shape:* (sources, width) each
            source: The encoder's states, *Shape:* (sources, slots, width), and which of them are not padding, *Shape:*
                (sources, slots)
        """
        attended = final[-1][0].new_zeros(len(final[-1][0]), 1, self.combine.out_features)
        return StepState(carried=(*(part[:, None] for layer in final for part in layer), attended), shared=source)

    def inputs(self, embedded: Tensor) -> Tensor:
        """What tokens add to the gates of the first layer. *Shape:* (..., embedding width) to (..., 4 x cells)"""
        into, _, bias = self._weights(0)
        return nn.functional.linear(embedded, into[:, : self.embedded], bias)

    def step(self, inputs: Tensor, state: StepState, masks: Sequence[Tensor] | None = None) -> StepState:
        """Read one token of each text.

        Args:
            inputs: See `inputs`. *Shape:* (sources, texts, 4 x cells)
            state: The state before.
            masks: Dropout of the input of each layer but the first and of a; none if None. *Shape:* (sources, 1, width) each

        Returns:
            The state after.
        """
        *before, x = state.carried
        after: list[Tensor] = []
        for number, (h, c) in enumerate(zip(before[::2], before[1::2], strict=True)):
            into, recurrent, bias = self._weights(number)
            if number == 0:
                into, bias = into[:, self.embedded :], inputs
            x, c = lstm_step(bias + x @ into.T + h @ recurrent.T, c)
            after += [x, c]
            if masks is not None and number + 1 < len(self.layers):
                x = x * masks[number]
        states, real = state.shared
        scores = self.query(x) @ states.transpose(1, 2)
        shares = scores.masked_fill(~real[:, None], -torch.inf).softmax(dim=2)
        attended = torch.tanh(self.combine(torch.cat([shares @ states, x], dim=2)))
        return StepState(carried=(*after, attended if masks is None else attended * masks[-1]), shared=state.shared)

    def _weights(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Input and recurrent weights and the bias of a layer."""
        weights: dict[str, Tensor] = dict(self.layers[number].named_parameters())
        bias = weights["bias_ih_l0"] + weights["bias_hh_l0"]
        return weights["weight_ih_l0"], weights["weight_hh_l0"], bias


class TranslationBackbone(nn.Module):
    """Reads the sources of a batch with a bidirectional encoder and their targets with an attention decoder.

    Half of the cells of an encoder layer read from left to right and half from right to left, and every layer reads both
    halves of the one below. The decoder's layers are as wide and start with the final states of the encoder's. Dropout
    has one mask for all steps of a text.

    Args:
        settings: Model shape.
        vocab_size: Rows of each of the two token tables.
    """

    def __init__(self, settings: ModelSettings, *, vocab_size: int) -> None:
        super().__init__()
        self.settings = settings
        self.widths = [outputs for _, _, outputs in layer_widths(settings)]
        self.embeddings = Embeddings(settings, vocab_size=vocab_size)
        inputs = [embedding_width(settings), *self.widths[:-1]]
        self.layers = nn.ModuleList(
            [
                Layer((before, width // 2, width // 2), settings)
                for before, width in zip(inputs, self.widths, strict=True)
            ]
        )
        self.decoder = AttentionDecoder(settings, self.widths, vocab_size=vocab_size)
        self.visibility = ["full"] * settings.num_layers

    def forward(self, batch: Batch, *, select: bool = False, dropout: DropoutKey | None = None) -> list[Tensor]:
        """States of the embeddings and of the last layer, the encoder's at sources and the decoder's at targets.

        Arguments and shapes are those of `unicloze.model.backbone.Backbone.forward`.
        """
        pairs = find_pairs(batch.intervals.cpu().numpy())
        with torch.autocast(batch.input_ids.device.type, enabled=False):
            encoded = self.encode(batch.input_ids, pairs, dropout)
            embedded, states = self._decode(batch, pairs, encoded, dropout) if pairs.targets.any() else encoded[:2]
        return [embedded, predicted(batch, states) if select else states]

    def encode(
        self, input_ids: Tensor, pairs: Pairs, dropout: DropoutKey | None = None
    ) -> tuple[Tensor, Tensor, list[State]]:
        """Read sources.

        Args:
            input_ids: *Shape:* (rows, slots)
            pairs: The sources.
            dropout: Dropout of this forward pass; none if None.

        Returns:
            Embeddings and encoder states, 0 at other slots, *Shape:* (rows, slots, width) each; and output and cell in which
            each layer ends, *Shape:* (sources, width) each.
        """
        (rows, slots), device = input_ids.shape, input_ids.device
        sequences = {
            direction: Sequences(pairs.runs(backward=direction == BACKWARD), slots, device)
            for direction in (FORWARD, BACKWARD)
        }
        covered = sequences[FORWARD].covered(rows * slots).view(rows, slots, 1)
        embedded = self.embeddings(input_ids, dropout).float() * covered
        _, shown, final = read_layers(self.layers, embedded, sequences, self.settings, dropout)
        return embedded, shown[-1], final

    def _decode(
        self, batch: Batch, pairs: Pairs, encoded: tuple[Tensor, Tensor, list[State]], dropout: DropoutKey | None
    ) -> tuple[Tensor, Tensor]:
        """Embeddings and states of all slots, those of the targets added. *Shape:* (rows, slots, width) each"""
        embedded, states, final = encoded
        rows, slots = batch.input_ids.shape
        device, settings, decoder = batch.input_ids.device, self.settings, self.decoder
        chosen = pairs.with_targets()
        lengths = pairs.targets[chosen]
        steps = np.arange(int(lengths[0]))
        step, text = np.nonzero(steps[:, None] < lengths)
        first = pairs.rows * slots + pairs.starts + pairs.lengths
        place = torch.from_numpy(first[chosen][text] + step).to(device)
        running = np.bincount(step, minlength=len(steps)).tolist()
        index = torch.from_numpy(chosen).to(device)
        of_text = torch.from_numpy(text).to(device)

        def mask(rate: float, width: int) -> Tensor:
            ones = torch.ones(len(chosen), width, device=device)
            return ones if dropout is None else dropout(ones, rate)

        read = decoder.embeddings(batch.input_ids.flatten()[place][None], dropout)[0].float()
        inputs = decoder.inputs(read * mask(settings.input_dropout, read.shape[1])[of_text]).split(running)
        masks = None
        if dropout is not None:
            rates = [settings.hidden_dropout] * (len(self.widths) - 1) + [settings.dropout]
            masks = [mask(rate, width)[:, None] for rate, width in zip(rates, self.widths, strict=True)]
        state = decoder.start([(h[index], c[index]) for h, c in final], self.source_of(pairs, chosen, states))
        written = []
        for given, count in zip(inputs, running, strict=True):
            if count < len(state.carried[-1]):
                state = state.of_rows(slice(count))
                masks = None if masks is None else [each[:count] for each in masks]
            state = decoder.step(given[:, None], state, masks)
            written.append(state.carried[-1][:, 0])
        found_states = states.flatten(0, 1).index_add(0, place, torch.cat(written)).view(rows, slots, -1)
        return embedded.flatten(0, 1).index_add(0, place, read).view(rows, slots, -1), found_states

    @staticmethod
    def source_of(pairs: Pairs, chosen: Int64s, states: Tensor) -> tuple[Tensor, Tensor]:
        """The states of some sources side by side, and which are not padding. *Shape of states:* (rows, slots, width)"""
        slots, lengths = states.shape[1], pairs.lengths[chosen]
        offset = np.arange(int(lengths.max(initial=1)))
        real = offset < lengths[:, None]
        place = (pairs.rows * slots + pairs.starts)[chosen][:, None] + np.where(real, offset, 0)
        gathered = states.flatten(0, 1)[torch.from_numpy(place).to(states.device)]
        return gathered, torch.from_numpy(real).to(states.device)
