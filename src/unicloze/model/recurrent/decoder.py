"""An LSTM decoder with global attention and input feeding (Luong et al. 2015; McCann et al. 2017, Section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unicloze.model.recurrent.backbone import Embeddings, embedding_width
from unicloze.settings import ModelSettings


@dataclass(frozen=True, kw_only=True)
class EncodedSource:
    """What a decoder reads of some sources."""

    states: Tensor  # Output of the encoder. *Shape:* (sources, slots, width)
    real: Tensor  # Which slots are not padding. *Shape:* (sources, slots)

    def first(self, count: int) -> EncodedSource:
        """The first sources alone."""
        return EncodedSource(states=self.states[:count], real=self.real[:count])


@dataclass(frozen=True, kw_only=True)
class DecoderState:
    """What a decoder carries from step to step, for one or more texts of each source."""

    layers: Sequence[tuple[Tensor, Tensor]]  # Output and cell of each layer. *Shape:* (sources, texts, width) each
    attended: Tensor  # The attentional state, which is fed to the next step. *Shape:* (sources, texts, hidden size)

    def first(self, count: int) -> DecoderState:
        """The state of the first sources alone."""
        return DecoderState(layers=[(h[:count], c[:count]) for h, c in self.layers], attended=self.attended[:count])


class AttentionDecoder(nn.Module):
    """A stack of LSTMs with token embeddings of its own, and attention over the encoder's output.

    With z the token read, H the output of the encoder and s the output of the last layer:

        s_t = LSTM([z_t; a_{t-1}], s_{t-1})
        c_t = H^T softmax(H (W_1 s_t + b_1))
        a_t = tanh(W_2 [c_t; s_t] + b_2)

    `nn.LSTM` holds the weights; the steps are taken one by one, since each needs the attention of the one before.

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

    def start(self, final: Sequence[tuple[Tensor, Tensor]]) -> DecoderState:
        """The state before the first token: that of the encoder, and nothing attended to.

        Args:
            final: Outputs and cells in which the encoder's layers end. *Shape:* (sources, width) each
        """
        layers = [(h[:, None], c[:, None]) for h, c in final]
        attended = final[-1][0].new_zeros(len(final[-1][0]), 1, self.combine.out_features)
        return DecoderState(layers=layers, attended=attended)

    def inputs(self, embedded: Tensor) -> Tensor:
        """What tokens add to the gates of the first layer. *Shape:* (..., embedding width) to (..., 4 x cells)"""
        into, _, bias = self._weights(0)
        return nn.functional.linear(embedded, into[:, : self.embedded], bias)

    def step(
        self, inputs: Tensor, state: DecoderState, source: EncodedSource, masks: Sequence[Tensor] | None = None
    ) -> DecoderState:
        """Read one token of each text.

        Args:
            inputs: See `inputs`. *Shape:* (sources, texts, 4 x cells)
            state: The state before.
            source: The sources.
            masks: Dropout of the input of each layer but the first and of `attended`; none if None.
                *Shape:* (sources, 1, width) each

        Returns:
            The state after; its `attended` predicts the next token.
        """
        layers: list[tuple[Tensor, Tensor]] = []
        x = state.attended
        for number, (h, c) in enumerate(state.layers):
            into, recurrent, bias = self._weights(number)
            if number == 0:
                into, bias = into[:, self.embedded :], inputs
            gates = bias + x @ into.T + h @ recurrent.T
            entering, kept, proposed, shown = gates.chunk(4, dim=2)
            c = kept.sigmoid() * c + entering.sigmoid() * proposed.tanh()
            x = shown.sigmoid() * c.tanh()
            layers.append((x, c))
            if masks is not None and number + 1 < len(self.layers):
                x = x * masks[number]
        scores = self.query(x) @ source.states.transpose(1, 2)
        shares = scores.masked_fill(~source.real[:, None], -torch.inf).softmax(dim=2)
        attended = torch.tanh(self.combine(torch.cat([shares @ source.states, x], dim=2)))
        return DecoderState(layers=layers, attended=attended if masks is None else attended * masks[-1])

    def _weights(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Input and recurrent weights and the bias of a layer."""
        weights: dict[str, Tensor] = dict(self.layers[number].named_parameters())
        bias = weights["bias_ih_l0"] + weights["bias_hh_l0"]
        return weights["weight_ih_l0"], weights["weight_hh_l0"], bias
