"""Task heads: states of predicted slots to classes, quantities or choices."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.example import TargetBatch
from unicloze.model.backbone import embedding_width
from unicloze.model.dropout import DropoutKey
from unicloze.model.flops import linear_flops
from unicloze.model.heads import cross_entropy, mixed_losses
from unicloze.model.recurrent.backbone import side_width, view_width
from unicloze.model.recurrent.layers import draw_lstm
from unicloze.settings import HeadName, HeadSettings, ModelSettings


class LayerMix(nn.Module):
    """gamma times the mean of the embeddings and all layers, weighted by softmax(s) (Peters et al. 2018, equation 1).

    At the start all weights are equal and gamma is 1.

    Args:
        layers: Number of layers.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.zeros(layers + 1))
        self.gamma = nn.Parameter(torch.ones(()))

    def initialize(self) -> None:
        """Set all weights equal and gamma to 1."""
        with torch.no_grad():
            self.s.zero_()
            self.gamma.fill_(1)

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Mix the embeddings and the output of each layer. *Shape:* (..., width) each, to (..., width)"""
        weights = self.gamma * self.s.softmax(dim=0)
        mixed: Tensor = torch.stack([weight * state for weight, state in zip(weights, states, strict=True)]).sum(dim=0)
        return mixed


def pooled_width(settings: ModelSettings, head: HeadSettings) -> int:
    """Width of a pooled vector."""
    seen = settings.hidden_size if head.view is None else view_width(settings, head.view)
    return seen * (3 if head.pooling == "concat" else head.directions)


def pooled(states: Tensor, present: Tensor | None, head: HeadSettings) -> Tensor:
    """The vector of every prediction; 0 for a padded prediction, which has no slots.

    Args:
        states: *Shape:* (rows, predictions, slots, width)
        present: Which slots are present; all if None. *Shape:* (rows, predictions, slots)
        head: Says how they are combined.

    Returns:
        *Shape:* (rows, predictions, `pooled_width`)
    """
    if head.directions == 1:
        return _of_a_direction(states, present, head)
    there = torch.ones_like(states[..., 0], dtype=torch.bool) if present is None else present
    half = there.sum(dim=2, keepdim=True) // 2
    first = torch.arange(states.shape[2], device=states.device) < half
    return torch.cat([_of_a_direction(states, part, head) for part in (there & first, there & ~first)], dim=-1)


def _of_a_direction(states: Tensor, present: Tensor | None, head: HeadSettings) -> Tensor:
    if head.pooling == "concat":
        if present is None:
            return torch.cat([states[:, :, -1], states.amax(dim=2), states.mean(dim=2)], dim=-1)
        count = present.sum(dim=2).clamp(min=1)
        last = states.gather(2, (count - 1)[..., None, None].expand(-1, -1, 1, states.shape[3])).squeeze(2)
        highest = states.masked_fill(~present[..., None], -torch.inf).amax(dim=2)
        highest = torch.where(highest.isinf(), torch.zeros_like(highest), highest)  # a padded prediction has no slots
        return torch.cat([last, highest, (states * present[..., None]).sum(dim=2) / count[..., None]], dim=-1)
    if present is None:
        return states.mean(dim=2) if head.pooling == "mean" else states.sum(dim=2)
    total = (states * present[..., None]).sum(dim=2)
    return total / present.sum(dim=2).clamp(min=1)[..., None] if head.pooling == "mean" else total


class TaskHead(nn.Module, ABC):
    """A head of a task.

    Args:
        settings: Shape of the model.
        head: Settings of this head.
    """

    reads_embeddings: ClassVar[bool] = False
    """Whether it reads the embedding of a slot beside its last state."""

    def __init__(self, settings: ModelSettings, head: HeadSettings) -> None:
        super().__init__()
        self.head = head
        self.rate = settings.dropout if head.dropout is None else head.dropout
        self.width = 1 if head.kind == "choice" else head.outputs

    @abstractmethod
    def outputs(self, hidden: Tensor, target: TargetBatch, dropout: DropoutKey | None) -> Tensor:
        """Logits of the classes or of the slots to choose from (-inf where a slot is absent), or quantities.

        Args:
            hidden: States of the predicted slots, in the order of `predicted_slots`; with `output_mix`, both mixes; for a
                head that reads embeddings, they come before the states. *Shape:* (rows, predictions x slots of a prediction,
                width)
            target: The target.
            dropout: Dropout of this forward pass; none if None.

        Returns:
            *Shape:* (rows, predictions, outputs), or (rows, predictions, slots per prediction) for a choice
        """

    def flops(self, *, slots: int, predictions: int) -> int:
        """Forward operations of the products with weights.

        Args:
            slots: Number of slots of all predictions.
            predictions: Number of predictions.
        """
        return linear_flops(self) * (slots if self.head.kind == "choice" else predictions)

    def losses(self, hidden: Tensor, target: TargetBatch, dropout: DropoutKey | None) -> Tensor:
        """Loss of every prediction: cross-entropy in nats, or the mean squared error of its quantities.

        Where the target has soft labels, a share is their loss.

        Returns:
            *Shape:* (rows, predictions)
        """
        outputs = self.outputs(hidden, target, dropout)
        losses = self._hard_losses(outputs, target)
        if target.soft is None:
            return losses
        own = target.predicted()
        hard, chosen = losses.flatten().index_select(0, own), outputs.flatten(0, 1).index_select(0, own)
        mixed = mixed_losses(hard, chosen, target.soft, numbers=self.head.kind == "quantities")
        return losses.flatten().index_copy(0, own, mixed).view(losses.shape)

    def _hard_losses(self, outputs: Tensor, target: TargetBatch) -> Tensor:
        """Loss of every prediction with its own label. *Shape:* (rows, predictions)"""
        if self.head.kind == "quantities":
            return (outputs - target.labels[..., None]).square().mean(dim=-1)
        if self.head.kind == "choice":
            # A padded prediction has no slot to choose from: its -inf would make the gradient NaN.
            outputs = torch.where((target.weights > 0)[..., None], outputs, torch.zeros_like(outputs))
            return -functional.log_softmax(outputs, dim=-1).gather(2, target.labels[..., None]).squeeze(2)
        return cross_entropy(outputs.flatten(0, 1), target.labels.flatten()).view(target.labels.shape)


def slots_of(hidden: Tensor, target: TargetBatch) -> tuple[Tensor, Tensor | None]:
    """The states of each prediction's slots, of which there may be one in all rows, and which of them are present.

    Args:
        hidden: *Shape:* (rows, predictions x slots, width)
        target: The target.

    Returns:
        *Shape:* (rows, predictions, slots, width), and (rows, predictions, slots) or None if all are present
    """
    present, shape = target.present, target.slots.shape
    if len(shape) == 2:
        shape, present = torch.Size((*shape, 1)), None if present is None else present[..., None]
    return hidden.view(*shape, hidden.shape[-1]), present


def everywhere(found: Tensor, real: Tensor) -> Tensor:
    """Outputs of the real predictions in their places, with 0 for padding.

    Args:
        found: *Shape:* (real predictions, outputs)
        real: *Shape:* (rows, predictions)

    Returns:
        *Shape:* (rows, predictions, outputs)
    """
    return found.new_zeros(*real.shape, found.shape[1]).index_put(real.nonzero(as_tuple=True), found)


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
            read = _read(self.lstm, padded, lengths)
        return found.index_copy(0, own, read[row, place]).view(*target.weights.shape, -1)


def _rows(target: TargetBatch) -> Tensor:
    """The row of each prediction, in the order of the flat weights. *Shape:* (rows x predictions,)"""
    shapes = target.shapes or (tuple(target.weights.shape),)
    widths = [width for rows, width in shapes for _ in range(rows)]
    return torch.arange(len(widths)).repeat_interleave(torch.tensor(widths, dtype=torch.long))


ACTIVATIONS: Mapping[HeadName, Callable[[Tensor], Tensor]] = {
    "dense": torch.tanh,
    "dense_gelu": functional.gelu,
    "dense_relu": functional.relu,
}
"""Activation of the dense layer of each head that has one."""


class LinearHead(TaskHead):
    """Dropout and a linear layer, optionally after a dense layer (with tanh: Devlin et al. 2019, Section 4).

    A biLSTM over the predictions of a row may come first (Peters et al. 2018, Section 3.3). Arguments as of `TaskHead`.
    """

    def __init__(self, settings: ModelSettings, head: HeadSettings) -> None:
        super().__init__(settings, head)
        width = pooled_width(settings, head)
        self.encoder = WordEncoder(width, head.encoder_size, self.rate) if head.encoder_size else None
        if self.encoder is not None:
            width = 2 * head.encoder_size + (width if head.output_mix else 0)
        self.activation = ACTIVATIONS.get(head.name)
        self.dense = None if self.activation is None else nn.Linear(width, side_width(settings))
        self.output = nn.Linear(width if self.dense is None else side_width(settings), self.width)

    def outputs(self, hidden: Tensor, target: TargetBatch, dropout: DropoutKey | None) -> Tensor:
        """See `TaskHead.outputs`."""
        every, present = slots_of(hidden, target)
        mixes = every.chunk(2, dim=-1) if self.head.output_mix else (every,)
        if self.head.kind != "choice":
            mixes = tuple(pooled(mix, present, self.head) for mix in mixes)
        states = mixes[0]
        if self.encoder is not None:
            states = torch.cat([self.encoder(states, target, dropout), *mixes[1:]], dim=-1)
        if self.dense is not None and self.activation is not None:
            states = self.activation(self.dense(states))
        if dropout is not None:
            states = dropout(states, self.rate)
        with torch.autocast(states.device.type, enabled=False):  # bf16 is too coarse for scores and quantities
            outputs: Tensor = self.output(states.float())
        if self.head.kind != "choice":
            return outputs
        scores = outputs.squeeze(-1)
        return scores if present is None else scores.masked_fill(~present, -torch.inf)


class NormedLinear(nn.Module):
    """Batch normalisation, dropout and a linear layer (Howard and Ruder 2018, Section 3.3)."""

    def __init__(self, inputs: int, outputs: int, rate: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs)
        self.linear = nn.Linear(inputs, outputs)
        self.rate = rate

    def forward(self, x: Tensor, dropout: DropoutKey | None) -> Tensor:
        """*Shape:* (predictions, inputs) to (predictions, outputs)

        In training a batch is normalised by its own statistics, unless it has one prediction. The running statistics for
        evaluation are the mean of the first ten batches, and follow the later ones with a momentum of 0.1. With that momentum
        from the start, the initial variance of 1 would hide that of narrow features for a hundred batches.
        """
        norm, momentum = self.norm, 0.1
        learning = self.training and len(x) > 1
        if learning:
            assert norm.num_batches_tracked is not None
            momentum = max(momentum, 1 / int(norm.num_batches_tracked.add_(1)))
        statistics = norm.running_mean, norm.running_var, norm.weight, norm.bias
        x = functional.batch_norm(x, *statistics, training=learning, momentum=momentum, eps=norm.eps)
        linear: Tensor = self.linear(x if dropout is None else dropout(x, self.rate))
        return linear


INNER, INNER_RATE = 50, 0.1
"""Units of the layer before the output layer, and the dropout after it (ULMFiT's released code)."""


class NormedHead(TaskHead):
    """Batch normalisation before each of two layers with ReLU between them (Howard and Ruder 2018, Section 3.3).

    The statistics are those of the real predictions. Arguments as of `TaskHead`.
    """

    def __init__(self, settings: ModelSettings, head: HeadSettings) -> None:
        super().__init__(settings, head)
        self.inner = NormedLinear(pooled_width(settings, head), INNER, self.rate)
        self.output = NormedLinear(INNER, self.width, INNER_RATE)

    def outputs(self, hidden: Tensor, target: TargetBatch, dropout: DropoutKey | None) -> Tensor:
        """See `TaskHead.outputs`; 0 for padded predictions."""
        states, real = pooled(*slots_of(hidden, target), self.head), target.weights > 0
        with torch.autocast(states.device.type, enabled=False):
            found = self.output(functional.relu(self.inner(states[real].float(), dropout)), dropout)
        return everywhere(found, real)


POOL = 4
"""Number of linear maps; a maxout unit is the largest of them."""
POOLINGS = 4
"""Number of ways to pool a text: maximum, mean, minimum, and the mean weighted by its own attention."""


class Biattention(nn.Module):
    """All layers but the output layer: from the states of two texts to a vector.

    A feed-forward layer with ReLU and a bidirectional LSTM read each text. With X and Y the results and A = X Y^T, the
    summary of Y for each token of X is C = softmax(A) Y, and an LSTM reads [X; X - C; X * C]; likewise for Y, with another
    LSTM. Both results are pooled in four ways, and two maxout layers with batch normalisation follow. A single text stands
    for both. Padding changes nothing.

    Args:
        inputs: Width of the states.
        size: Width of the feed-forward layer and cells of every LSTM in each direction; the maxout layers have four and two
            times as many units.
        rate: Dropout before every feed-forward layer.
    """

    def __init__(self, inputs: int, size: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.feed = nn.Linear(inputs, size)
        self.encoder = nn.LSTM(size, size, batch_first=True, bidirectional=True)
        self.integrators = nn.ModuleList(
            [nn.LSTM(6 * size, size, batch_first=True, bidirectional=True) for _ in range(2)]
        )
        self.attentions = nn.ModuleList([nn.Linear(2 * size, 1) for _ in range(2)])
        widths = [2 * POOLINGS * 2 * size, 4 * size, 2 * size]
        self.maxouts = nn.ModuleList([Maxout(before, after, rate) for before, after in itertools.pairwise(widths)])
        self.outputs = widths[-1]

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights as AllenNLP's network of this kind does; the paper does not say how.

        Those of linear layers and the LSTMs' for their inputs are normal (Glorot and Bengio 2010), the recurrent ones of
        each gate orthogonal; biases are 0, those of forget gates 1. So the difference between two texts, which passes
        through two LSTMs, stays above the noise of dropout.
        """
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    nn.init.xavier_normal_(module.weight, generator=generator)
                    module.bias.zero_()
                elif isinstance(module, nn.LSTM):
                    _draw(module, generator)

    def forward(self, texts: tuple[Tensor, Tensor], real: tuple[Tensor, Tensor], dropout: DropoutKey | None) -> Tensor:
        """Read pairs of texts.

        Args:
            texts: States of either text. *Shape:* (pairs, slots, inputs) each
            real: Which of its slots are not padding: one or more leading ones. *Shape:* (pairs, slots) each
            dropout: Dropout of this forward pass; none if None.

        Returns:
            *Shape:* (pairs, outputs)
        """
        encoded = []
        for text, own in zip(texts[: 1 if texts[0] is texts[1] else 2], real, strict=False):
            fed = functional.relu(self.feed(text if dropout is None else dropout(text, self.rate)))
            encoded.append(_read(self.encoder, fed, own.sum(dim=1)))
        encoded = [encoded[0], encoded[-1]]
        affinity = encoded[0] @ encoded[1].transpose(1, 2)
        pooled = []
        for side, (x, other) in enumerate((encoded, encoded[::-1])):
            scores = affinity if side == 0 else affinity.transpose(1, 2)
            shares = scores.masked_fill(~real[1 - side][:, None], -torch.inf).softmax(dim=2)
            summary = shares @ other
            seen = torch.cat([x, x - summary, x * summary], dim=2)
            integrator, attention = self.integrators[side], self.attentions[side]
            assert isinstance(integrator, nn.LSTM) and isinstance(attention, nn.Linear)
            read = _read(integrator, seen, real[side].sum(dim=1))
            pooled.append(_pooled(read, attention(read).squeeze(2), real[side]))
        vector = torch.cat(pooled, dim=1)
        for maxout in self.maxouts:
            vector = maxout(vector, dropout)
        return vector

    def flops(self, *, slots: int, texts: int, predictions: int) -> int:
        """Forward operations of the products with weights, for texts of so many slots altogether."""
        parts = "feed", "encoder", "integrators", "maxouts"
        sizes = {part: linear_flops(self.get_submodule(part)) for part in parts}
        sides = (sizes["integrators"] // 2) * (2 // texts)
        return slots * (sizes["feed"] + sizes["encoder"] + sides) + predictions * sizes["maxouts"]


class Maxout(nn.Module):
    """Batch normalisation, dropout, and units that are each the largest of several linear maps (Goodfellow et al. 2013)."""

    def __init__(self, inputs: int, outputs: int, rate: float) -> None:
        super().__init__()
        self.normed = NormedLinear(inputs, outputs * POOL, rate)

    def forward(self, x: Tensor, dropout: DropoutKey | None) -> Tensor:
        """*Shape:* (predictions, inputs) to (predictions, outputs)"""
        maps: Tensor = self.normed(x, dropout)
        return maps.view(len(x), -1, POOL).amax(dim=2)


def _draw(lstm: nn.LSTM, generator: torch.Generator) -> None:
    for name, parameter in lstm.named_parameters():
        gates = parameter.chunk(4)  # input, forget, cell, output
        if name.startswith("bias"):
            parameter.zero_()
            if name.startswith("bias_ih"):
                gates[1].fill_(1)
            continue
        for gate in gates:
            draw = nn.init.orthogonal_ if name.startswith("weight_hh") else nn.init.xavier_normal_
            draw(gate, generator=generator)


def _read(lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> Tensor:
    """Outputs of an LSTM at the leading slots of each text, 0 at padding. *Shape:* (texts, slots, width)"""
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    padded = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=x.shape[1])
    output: Tensor = padded[0]
    return output


def _pooled(x: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    """Maximum, mean, minimum and attentive mean of the real slots side by side. *Shape:* (texts, 4 x width)"""
    padding = ~real[..., None]
    shares = scores.masked_fill(~real, -torch.inf).softmax(dim=1)
    return torch.cat(
        [
            x.masked_fill(padding, -torch.inf).amax(dim=1),
            (x * real[..., None]).sum(dim=1) / real.sum(dim=1)[:, None],
            x.masked_fill(padding, torch.inf).amin(dim=1),
            (shares[..., None] * x).sum(dim=1),
        ],
        dim=1,
    )


class BiattentiveHead(TaskHead):
    """A biattentive classification network (McCann et al. 2017), whose maxout units are the output layer's too.

    The slots of the two texts of a prediction alternate. Arguments as of `TaskHead`.
    """

    reads_embeddings = True

    def __init__(self, settings: ModelSettings, head: HeadSettings) -> None:
        super().__init__(settings, head)
        embedded = embedding_width(settings) if settings.kind == "recurrent" else settings.hidden_size
        self.biattention = Biattention(embedded + settings.hidden_size, head.size, self.rate)
        self.output = Maxout(self.biattention.outputs, self.width, self.rate)

    def outputs(self, hidden: Tensor, target: TargetBatch, dropout: DropoutKey | None) -> Tensor:
        """See `TaskHead.outputs`; 0 for padded predictions."""
        states, present = slots_of(hidden, target)
        real, count = target.weights > 0, self.head.texts
        there = torch.ones_like(states[..., 0], dtype=torch.bool) if present is None else present
        states, there = states[real].float(), there[real]
        if states.shape[1] % count:  # the last slot of the second text is missing in all rows
            states, there = functional.pad(states, (0, 0, 0, 1)), functional.pad(there, (0, 1))
        texts = [states[:, number::count] for number in range(count)]
        own = [there[:, number::count] for number in range(count)]
        with torch.autocast(states.device.type, enabled=False):
            vector = self.biattention((texts[0], texts[-1]), (own[0], own[-1]), dropout)
            found = self.output(vector, dropout)
        return everywhere(found, real)

    def flops(self, *, slots: int, predictions: int) -> int:
        """See `TaskHead.flops`."""
        own = self.biattention.flops(slots=slots, texts=self.head.texts, predictions=predictions)
        return own + linear_flops(self.output) * predictions


TASK_HEADS: Mapping[HeadName, type[TaskHead]] = {
    **dict.fromkeys(ACTIVATIONS, LinearHead),
    "plain": LinearHead,
    "batch_norm": NormedHead,
    "biattentive": BiattentiveHead,
}
"""The heads by `HeadSettings.name`."""
