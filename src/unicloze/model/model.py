"""The pre-trained network: a backbone with heads, mapping a batch to summed losses."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.errors import UsageError
from unicloze.example import Batch, TargetBatch, nonzero, predicts_tokens
from unicloze.model.backbone import Backbone, embedding_width
from unicloze.model.dropout import DropoutKey
from unicloze.model.flops import TRAINING, Amounts, backbone_flops, linear_flops
from unicloze.model.heads import BoundaryHead, DenseHead, TokenHead, cross_entropy, mixed_losses
from unicloze.model.initialization import draw_weights
from unicloze.model.layers import ACTIVATIONS
from unicloze.model.recurrent.backbone import RecurrentBackbone, predicted
from unicloze.model.recurrent.translation import TranslationBackbone
from unicloze.model.task_heads import TASK_HEADS, LayerMix, TaskHead
from unicloze.settings import HeadSettings, ModelSettings

PAIR_TARGETS = "nsp", "sop"
"""Targets that classify how two segments relate."""
OWN_HEADS: Mapping[str, str] = {
    **dict.fromkeys(PAIR_TARGETS, "pair_head"),
    "rtd": "replaced_head",
    "sbo": "boundary_head",
}
"""Targets with their own head, by the head's name; all others predict tokens through one shared head."""


@dataclass(frozen=True)
class TargetLoss:
    """Loss of a batch's predictions of one target."""

    total: Tensor  # Sum of weight times loss; divide by the weight of the whole global batch. *Shape:* ()
    weight: float  # normaliser of the total, see `Target.normaliser`
    # Sums of weight times loss and of its square over the counted predictions. *Shape:* () each
    counted: tuple[Tensor, Tensor]
    counted_weight: float  # normaliser of these sums, see `Target.counted`

    @classmethod
    def of(cls, losses: Tensor, weights: Tensor, target: TargetBatch, counted: Tensor | None) -> TargetLoss:
        """Sum up the losses of predictions.

        Args:
            losses: *Shape:* any
            weights: *Shape:* that of `losses`
            target: The target they belong to.
            counted: Which of them count in a perplexity; None for all. *Shape:* that of `losses`
        """
        weighted = losses * weights
        total, own = weighted.sum(), weighted.detach() if counted is None else weighted.detach() * counted
        sums = total.detach() if counted is None else own.sum(), own.square().sum()
        return cls(total=total, weight=target.normaliser, counted=sums, counted_weight=target.counted_weight)


class UnifiedModel(nn.Module):
    """One network with tied token embeddings, for any targets.

    Args:
        settings: Model shape.
        vocab_size: Rows of the token table.
        max_positions: Rows of the position table.
        targets: Names of the prediction targets; the model gets the heads they need.
        heads: Task heads by target.

    Attributes:
        label_smoothing: Label smoothing of predicted tokens, in training mode.
    """

    def __init__(
        self,
        settings: ModelSettings,
        *,
        vocab_size: int,
        max_positions: int,
        targets: Collection[str] = ("ae", "par"),
        heads: Mapping[str, HeadSettings] | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.vocab_size = vocab_size
        self.max_positions = max_positions
        self.label_smoothing = 0.0
        self.backbone: Backbone | RecurrentBackbone | TranslationBackbone
        if settings.kind == "recurrent" and settings.decoder_layers:
            self.backbone = TranslationBackbone(settings, vocab_size=vocab_size)
        elif settings.kind == "recurrent":
            self.backbone = RecurrentBackbone(settings, vocab_size=vocab_size)
        else:
            self.backbone = Backbone(settings, vocab_size=vocab_size, max_positions=max_positions)
        if set(targets) - OWN_HEADS.keys():
            self.token_head = TokenHead(settings, vocab_size=vocab_size)
        if settings.pooler:
            self.pooler = nn.Linear(settings.hidden_size, settings.hidden_size)
        if set(targets) & set(PAIR_TARGETS):
            self.pair_head = DenseHead(settings.hidden_size, 2, torch.tanh)
        if "rtd" in targets:
            self.replaced_head = DenseHead(settings.hidden_size, 1, ACTIVATIONS[settings.activation])
        if "sbo" in targets:
            self.boundary_head = BoundaryHead(settings, vocab_size=vocab_size)
        self.layer_mix = LayerMix(settings.num_layers) if settings.layer_mix and heads else None
        twice = self.layer_mix is not None and any(head.output_mix for head in (heads or {}).values())
        self.output_mix = LayerMix(settings.num_layers) if twice else None
        self.task_heads = nn.ModuleDict(
            {name: TASK_HEADS[head.name](settings, head) for name, head in (heads or {}).items()}
        )

    @property
    def transformer(self) -> Backbone:
        """The backbone, for what only a Transformer supports.

        Raises:
            UsageError: The model is recurrent.
        """
        if not isinstance(self.backbone, Backbone):
            raise UsageError(
                "this needs a Transformer, but the model is recurrent (model.kind): use a model with model.kind transformer"
            )
        return self.backbone

    @property
    def networks(self) -> tuple[UnifiedModel, ...]:
        """All networks: this one."""
        return (self,)

    def for_use(self) -> UnifiedModel:
        """The network used after training: this one."""
        return self

    def initialize(self, seed: int) -> None:
        """Initialise the weights, see `unicloze.model.initialization`."""
        draw_weights(self, self.backbone, seed)

    def forward(self, batch: Batch, dropout: DropoutKey | None = None) -> Mapping[str, TargetLoss]:
        """Losses of every target in a batch.

        Args:
            batch: The rows.
            dropout: Dropout of this forward pass; none if None.
        """
        return self._losses(batch, self._selected(batch, dropout), dropout)

    def _losses(
        self, batch: Batch, hidden: Mapping[str, Tensor], dropout: DropoutKey | None
    ) -> Mapping[str, TargetLoss]:
        """Losses of every target, from the hidden states of its predicted slots."""
        losses = self._token_losses(batch, {name: hidden[name] for name in batch.targets if self._is_token(name)})
        for name, target in batch.targets.items():
            if name in self.task_heads:
                losses[name] = self.task_head(name).losses(hidden[name], target, dropout)
            elif name in OWN_HEADS:
                losses[name] = self._other_losses(name, hidden[name], target)
        return {
            name: TargetLoss.of(losses[name], target.weights, target, target.counted)
            for name, target in batch.targets.items()
        }

    def _is_token(self, name: str) -> bool:
        """Whether a target predicts tokens through the shared head."""
        return name not in OWN_HEADS and name not in self.task_heads

    def _selected(self, batch: Batch, dropout: DropoutKey | None) -> dict[str, Tensor]:
        """Final hidden states of the predicted slots by target. *Shape:* (rows, predicted slots, hidden size)"""
        if self.layer_mix is None and not self._reads_embeddings(batch):
            return self._by_target(batch, self.backbone(batch, select=True, dropout=dropout)[-1])
        return self._from_layers(batch, self.backbone(batch, dropout=dropout))

    def _from_layers(self, batch: Batch, states: Sequence[Tensor]) -> dict[str, Tensor]:
        """States of the predicted slots by target, from those of all slots after the embeddings and each layer."""
        hidden = self._by_target(batch, predicted(batch, states[-1]))
        mixes = [mix for mix in (self.layer_mix, self.output_mix) if mix is not None]
        if mixes:
            mixed = self._by_target(batch, torch.cat([predicted(batch, mix(states)) for mix in mixes], dim=-1))
            hidden = {name: mixed[name] if name in self.task_heads else last for name, last in hidden.items()}
        for name in self._reads_embeddings(batch):
            embedded = self._by_target(batch, predicted(batch, states[0]))[name]
            hidden[name] = torch.cat([embedded, hidden[name]], dim=2)
        return hidden

    def _reads_embeddings(self, batch: Batch) -> list[str]:
        """Targets whose heads read the embeddings of a slot as well."""
        return [name for name in batch.targets if name in self.task_heads and self.task_head(name).reads_embeddings]

    @staticmethod
    def _by_target(batch: Batch, hidden: Tensor) -> dict[str, Tensor]:
        """States of the predicted slots by target, from those of all targets one after the other."""
        sizes = [target.slots.flatten(1).shape[1] for target in batch.targets.values()]
        return dict(zip(batch.targets, hidden.split(sizes, 1), strict=True))

    def _token_losses(self, batch: Batch, hidden: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Cross-entropy of every token prediction, 0 where its weight is 0; one product for all targets."""
        if not hidden:
            return {}
        targets = [batch.targets[name] for name in hidden]
        weights = torch.cat([target.weights for target in targets], dim=1)
        labels = torch.cat([target.labels for target in targets], dim=1)
        states = torch.cat(list(hidden.values()), dim=1) if len(hidden) > 1 else next(iter(hidden.values()))
        predicted = nonzero(weights, sum(target.predictions for target in targets))
        logits = self.token_logits(states.flatten(0, 1).index_select(0, predicted))
        losses = self.token_losses(logits, labels.flatten().index_select(0, predicted))
        first, width = 0, weights.shape[1]
        for target in targets:
            if target.soft is not None:
                column = predicted % width
                own = nonzero((column >= first) & (column < first + target.weights.shape[1]), target.predictions)
                chosen = logits if len(own) == len(logits) else logits.index_select(0, own)
                mixed = mixed_losses(losses.index_select(0, own), chosen, target.soft)
                losses = losses.index_copy(0, own, mixed)
            first += target.weights.shape[1]
        each = _scatter(losses, predicted, weights)
        return dict(zip(hidden, each.split([part.shape[1] for part in hidden.values()], 1), strict=True))

    def token_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of every predicted token, with label smoothing in training mode.

        Args:
            logits: *Shape:* (predictions, vocabulary)
            labels: *Shape:* (predictions,)

        Returns:
            *Shape:* (predictions,)
        """
        return cross_entropy(logits, labels, self.label_smoothing if self.training else 0.0)

    def token_logits(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary. *Shape:* (..., hidden size) to (..., vocabulary)"""
        logits: Tensor = self.token_head(hidden, self.token_table)
        return logits

    @property
    def token_table(self) -> Tensor | None:
        """The table of token embeddings; None if they are made of characters."""
        tokens = self.backbone.embeddings.tokens
        return tokens.weight if isinstance(tokens, nn.Embedding) else None

    def _other_losses(self, name: str, hidden: Tensor, target: TargetBatch) -> Tensor:
        """Loss of every prediction of a target with its own head. *Shape:* (rows, predictions)"""
        if name == "rtd":
            replaced, labels = self.replaced_head(hidden).squeeze(-1).float(), target.labels.float()
            return functional.binary_cross_entropy_with_logits(replaced, labels, reduction="none")
        if name == "sbo":
            return self._boundary_losses(hidden, target)
        logits = self.pair_head(hidden)
        return cross_entropy(logits.flatten(0, 1), target.labels.flatten()).view(target.labels.shape)

    def _boundary_losses(self, hidden: Tensor, target: TargetBatch) -> Tensor:
        """Cross-entropy of span tokens predicted from the boundary, 0 where the weight is 0. *Shape:* (rows, predictions)"""
        assert target.places is not None
        predicted = target.predicted()
        boundary = hidden.reshape(-1, 2, hidden.shape[2]).index_select(0, predicted)
        places, labels = (ids.flatten().index_select(0, predicted) for ids in (target.places, target.labels))
        logits = self.boundary_head(boundary, places, self.token_table)
        return _scatter(self.token_losses(logits, labels), predicted, target.weights)

    def logits(self, batch: Batch) -> Mapping[str, Tensor]:
        """Logits of every token prediction by target, without dropout. *Shape:* (rows, predictions, vocabulary) each"""
        hidden = self._selected(batch, None)
        return {name: self.token_logits(part) for name, part in hidden.items() if self._is_token(name)}

    def predicted_outputs(self, batch: Batch) -> Mapping[str, Tensor]:
        """Logits or quantities of every prediction with nonzero weight by target, row by row, without dropout.

        Only of targets that predict tokens or have a task head. *Shape:* (predictions, outputs) each
        """
        hidden = self._selected(batch, None)
        found = {}
        for name, target in batch.targets.items():
            predicted = target.predicted()
            if name in self.task_heads:
                outputs = self.task_head(name).outputs(hidden[name], target, None)
                found[name] = outputs.flatten(0, 1).index_select(0, predicted)
            elif self._is_token(name):
                found[name] = self.token_logits(hidden[name].flatten(0, 1).index_select(0, predicted))
        return found

    def outputs(self, batch: Batch) -> Mapping[str, Tensor]:
        """Outputs of task heads by target, without dropout. *Shape:* (rows, predictions, outputs) each"""
        hidden = self._selected(batch, None)
        return {
            name: self.task_head(name).outputs(hidden[name], target, None)
            for name, target in batch.targets.items()
            if name in self.task_heads
        }

    def task_head(self, name: str) -> TaskHead:
        """The task head of a target."""
        head = self.task_heads[name]
        assert isinstance(head, TaskHead)
        return head

    def flops(self, amounts: Amounts) -> float:
        """Floating-point operations of a training step on such rows, see `unicloze.model.flops`."""
        heads = sum(
            self._head_flops(name, predictions, amounts.predicting_slots[name])
            for name, predictions in amounts.predictions.items()
        )
        return TRAINING * (backbone_flops(self.settings, amounts) + heads)

    def _head_flops(self, name: str, predictions: int, slots: int) -> int:
        """Forward operations of a target's head."""
        if name in self.task_heads:
            return self.task_head(name).flops(slots=slots, predictions=predictions)
        each = linear_flops(self.get_submodule(OWN_HEADS.get(name, "token_head")))
        if predicts_tokens(name):
            width = self.token_head.width if name not in OWN_HEADS else embedding_width(self.settings)
            each += 2 * width * self.vocab_size
        return predictions * each

    def num_parameters(self) -> int:
        """Number of weights; tied weights count once."""
        return sum(parameter.numel() for parameter in self.parameters())


def _scatter(losses: Tensor, predicted: Tensor, weights: Tensor) -> Tensor:
    """Scatter losses of some predictions to the places of all, with 0 elsewhere. *Shape:* that of `weights`"""
    everywhere = torch.zeros(weights.numel(), dtype=losses.dtype, device=losses.device)
    return everywhere.index_copy(0, predicted, losses).view(weights.shape)


def perplexity(total: float, weight: float) -> float:
    """exp of the mean negative log-likelihood; infinite on overflow."""
    mean = total / max(weight, 1e-9)
    return math.exp(mean) if mean < 700 else math.inf
