"""An LSTM encoder-decoder: a bidirectional encoder, and a decoder with attention and input feeding (CoVe)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from unicloze.example import Batch
from unicloze.model.dropout import DropoutKey
from unicloze.model.recurrent.backbone import Embeddings, Layer, Sequences, embedding_width, layer_widths, predicted
from unicloze.model.recurrent.decoder import AttentionDecoder, EncodedSource
from unicloze.model.recurrent.layer import State
from unicloze.model.recurrent.pairs import Pairs, find_pairs
from unicloze.model.recurrent.runs import BACKWARD, FORWARD
from unicloze.settings import ModelSettings


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

        Args:
            batch: The rows.
            select: Return only the last states of the predicted slots, concatenated in the order of the targets.
            dropout: Dropout of this forward pass; none if None.

        Returns:
            *Shape:* (rows, slots, embedding width) and (rows, slots, hidden size); with `select`, the last is (rows,
            predictions, hidden size).
        """
        pairs = find_pairs(batch.intervals.cpu().numpy())
        with torch.autocast(batch.input_ids.device.type, enabled=False):
            embedded, states, final = self.encode(batch.input_ids, pairs, dropout)
            if pairs.targets.any():
                embedded, states = self._decode(batch, pairs, embedded, states, final, dropout)
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
        rows, slots = input_ids.shape
        device, settings = input_ids.device, self.settings
        sequences = [Sequences(pairs.runs(backward=backward), slots, device) for backward in (False, True)]
        run, slot, _ = pairs.runs(backward=False).order()
        owner = np.full(rows * slots, -1, dtype=np.int64)
        owner[pairs.rows[run] * slots + slot] = run
        source_of = torch.from_numpy(owner).to(device).view(rows, slots)

        def locked(states: Tensor, rate: float) -> Tensor:
            if dropout is None or rate == 0:
                return states
            mask = dropout(torch.ones(len(pairs), states.shape[2], device=device), rate)
            return states * mask[source_of.clamp(min=0)]

        embedded = self.embeddings(input_ids, dropout).float() * (source_of >= 0)[..., None]
        x, final = locked(embedded, settings.input_dropout), []
        zeros = [torch.zeros(len(pairs), width // 2, device=device) for width in self.widths]
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            outputs, ends = [], []
            for direction, sequence in zip((FORWARD, BACKWARD), sequences, strict=True):
                before = zeros[index], zeros[index]
                output, end = layer.of(direction)(sequence.gather(x), sequence.running, before, dropout)
                outputs.append(sequence.scatter(output, rows, slots))
                ends.append(end)
            final.append((torch.cat([h for h, _ in ends], dim=1), torch.cat([c for _, c in ends], dim=1)))
            is_last = index == len(self.layers) - 1
            x = locked(torch.cat(outputs, dim=2), settings.dropout if is_last else settings.hidden_dropout)
        return embedded, x, final

    def _decode(
        self,
        batch: Batch,
        pairs: Pairs,
        embedded: Tensor,
        states: Tensor,
        final: list[State],
        dropout: DropoutKey | None,
    ) -> tuple[Tensor, Tensor]:
        """Embeddings and states of all slots, those of the targets added. *Shape:* (rows, slots, width) each"""
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

        def mask(rate: float, width: int) -> Tensor | None:
            if dropout is None or rate == 0:
                return None
            return dropout(torch.ones(len(chosen), width, device=device), rate)

        read = decoder.embeddings(batch.input_ids.flatten()[place][None], dropout)[0].float()
        shown = mask(settings.input_dropout, read.shape[1])
        inputs = decoder.inputs(read if shown is None else read * shown[of_text]).split(running)
        masks = None
        if dropout is not None and (settings.hidden_dropout or settings.dropout):
            rates = [settings.hidden_dropout] * (len(self.widths) - 1) + [settings.dropout]
            found = [mask(rate, width) for rate, width in zip(rates, self.widths, strict=True)]
            masks = [
                states.new_ones(len(chosen), 1, width) if each is None else each[:, None]
                for each, width in zip(found, self.widths, strict=True)
            ]
        source = self.source_of(pairs, chosen, states)
        state = decoder.start([(h[index], c[index]) for h, c in final])
        written = []
        for given, count in zip(inputs, running, strict=True):
            if count < len(state.attended):
                state, source = state.first(count), source.first(count)
                masks = None if masks is None else [each[:count] for each in masks]
            state = decoder.step(given[:, None], state, source, masks)
            written.append(state.attended[:, 0])
        found_states = states.flatten(0, 1).index_add(0, place, torch.cat(written)).view(rows, slots, -1)
        return embedded.flatten(0, 1).index_add(0, place, read).view(rows, slots, -1), found_states

    @staticmethod
    def source_of(pairs: Pairs, chosen: np.ndarray[tuple[int], np.dtype[np.int64]], states: Tensor) -> EncodedSource:
        """The encoder's states of some sources, side by side. *Shape of states:* (rows, slots, width)"""
        slots, lengths = states.shape[1], pairs.lengths[chosen]
        offset = np.arange(int(lengths.max(initial=1)))
        real = offset < lengths[:, None]
        place = (pairs.rows * slots + pairs.starts)[chosen][:, None] + np.where(real, offset, 0)
        gathered = states.flatten(0, 1)[torch.from_numpy(place).to(states.device)]
        return EncodedSource(states=gathered, real=torch.from_numpy(real).to(states.device))

    def residual_writers(self) -> list[nn.Module]:
        """The modules whose outputs are added to a residual stream: none."""
        return []
