"""The Transformer: slots in, hidden states out. It reads visibility as data and never learns which objective made it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.blocks import end_to_end
from unicloze.example import Batch
from unicloze.model.attention import SelfAttention, in_one_row, select_slots
from unicloze.model.dropout import DropoutKey
from unicloze.model.plan import Backend, Block, Plan, RelativeBias, plan, predicted_slots
from unicloze.model.transformer_xl import Relations
from unicloze.settings import ModelSettings

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


def layer_norm(settings: ModelSettings, width: int | None = None) -> nn.LayerNorm:
    """Layer normalisation over the hidden size, or over another width."""
    return nn.LayerNorm(settings.hidden_size if width is None else width, eps=settings.layer_norm_eps)


def embedding_width(settings: ModelSettings) -> int:
    """Columns of the embedding tables."""
    return settings.embedding_size or settings.hidden_size


class Embeddings(nn.Module):
    """Sum of token, position and segment embeddings, normalised (paper Section 2.2).

    Where they have a width of their own they are projected to the hidden size (ALBERT, Section 3.1). With Transformer-XL's
    encoding positions and segments are left to attention.
    """

    def __init__(self, settings: ModelSettings, *, vocab_size: int, max_positions: int) -> None:
        super().__init__()
        width, hidden = embedding_width(settings), settings.hidden_size
        normalised = settings.norm == "post" if settings.embedding_norm is None else settings.embedding_norm
        in_attention = settings.positions == "transformer_xl"
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(max_positions, width) if settings.positions == "learned" else None
        has_segments = settings.num_segments and not in_attention
        self.segments = nn.Embedding(settings.num_segments, width) if has_segments else None
        self.norm = layer_norm(settings, width) if normalised else nn.Identity()
        self.projection = nn.Linear(width, hidden) if width != hidden else nn.Identity()
        self.rate = settings.dropout

    def forward(self, batch: Batch, dropout: DropoutKey | None) -> Tensor:
        """Embed the slots. *Shape:* (rows, slots, hidden size)"""
        return self.embed(batch.input_ids, batch.position_ids, batch.segment_ids, dropout)

    def embed(self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor, dropout: DropoutKey | None) -> Tensor:
        """Embed tokens at positions and in segments, all broadcast. *Shape:* (...) to (..., hidden size)"""
        embedded = self.tokens(input_ids)
        if self.segments is not None and self.segments.num_embeddings == 1:  # all slots are of it (RoBERTa)
            segment_ids = torch.zeros_like(segment_ids)
        for table, ids in ((self.positions, position_ids), (self.segments, segment_ids)):
            if table is not None:
                embedded = embedded + table(ids)
        embedded = self.norm(embedded)
        projected: Tensor = self.projection(embedded if dropout is None else dropout(embedded, self.rate))
        return projected


class FeedForward(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.inner = nn.Linear(settings.hidden_size, settings.intermediate_size)
        self.output = nn.Linear(settings.intermediate_size, settings.hidden_size)
        self.activation = ACTIVATIONS[settings.activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """*Shape:* (..., hidden size) to the same."""
        projected: Tensor = self.output(self.activation(self.inner(hidden)))
        return projected


PARTS: Mapping[str, Callable[[ModelSettings], nn.Module]] = {
    "attention": SelfAttention,
    "attention_norm": layer_norm,
    "feed_forward": FeedForward,
    "feed_forward_norm": layer_norm,
}
"""What a layer is made of."""

SHARED_PARTS: Mapping[str, frozenset[str]] = {
    "none": frozenset(),
    "attention": frozenset({"attention", "attention_norm"}),
    "feed_forward": frozenset({"feed_forward", "feed_forward_norm"}),
    "all": frozenset(PARTS),
}
"""What all layers have in common under each `share_layers`: a normalisation goes with what it normalises."""


class Layer(nn.Module):
    """Self-attention and feed-forward network, each with a residual and a normalisation before or after it.

    Args:
        settings: Its shape.
        first: The layer that holds the weights all layers share; None for that layer itself.
    """

    attention: SelfAttention
    attention_norm: nn.LayerNorm
    feed_forward: FeedForward
    feed_forward_norm: nn.LayerNorm

    def __init__(self, settings: ModelSettings, first: Layer | None = None) -> None:
        super().__init__()
        shared = SHARED_PARTS[settings.share_layers] if first is not None else frozenset()
        for name, build in PARTS.items():
            if name in shared:
                # Past nn.Module's registration, so that parameters and checkpoints hold it once, in the first layer.
                self.__dict__[name] = getattr(first, name)
            else:
                setattr(self, name, build(settings))
        self.norm_first = settings.norm == "pre"
        self.rate = settings.dropout

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor | None,
        blocks: tuple[Block, ...],
        selected: Tensor | None,
        late: bool,
        backend: Backend,
        dropout: DropoutKey | None,
    ) -> Tensor:
        """Hidden states of all slots to those of all, or of the selected ones. *Shape:* (rows, queries, hidden size)

        A memory holds hidden states as the layer is given them, of earlier slots: it is read beside them.
        """
        residual = hidden if selected is None else select_slots(in_one_row(hidden) if late else hidden, selected)
        normed = self.attention_norm(hidden) if self.norm_first else hidden
        if memory is not None and self.norm_first:
            memory = self.attention_norm(memory)
        return self.complete(
            residual, self.attention(normed, memory, blocks, selected, late, backend, dropout), dropout
        )

    def complete(self, residual: Tensor, update: Tensor, dropout: DropoutKey | None) -> Tensor:
        """What follows attention: its residual and the feed-forward network. *Shape:* (rows, queries, hidden size)"""
        attended = self._add(residual, update, dropout)
        if self.norm_first:
            return self._add(attended, self.feed_forward(self.feed_forward_norm(attended)), dropout)
        attended = self.attention_norm(attended)
        normalised: Tensor = self.feed_forward_norm(self._add(attended, self.feed_forward(attended), dropout))
        return normalised

    def _add(self, residual: Tensor, update: Tensor, dropout: DropoutKey | None) -> Tensor:
        return residual + (update if dropout is None else dropout(update, self.rate))


class Backbone(nn.Module):
    """Embeddings and layers, with one relative position bias for all of them if the settings ask for it."""

    def __init__(self, settings: ModelSettings, *, vocab_size: int, max_positions: int) -> None:
        super().__init__()
        self.settings = settings
        self.backend: Backend | None = None
        self.embeddings = Embeddings(settings, vocab_size=vocab_size, max_positions=max_positions)
        self.relative = RelativeBias(settings) if settings.relative_bias else None
        first = Layer(settings)
        self.layers = nn.ModuleList([first, *(Layer(settings, first) for _ in range(settings.num_layers - 1))])
        self.final_norm = layer_norm(settings) if settings.norm == "pre" else nn.Identity()
        self.visibility = list(itertools.islice(itertools.cycle(settings.layer_visibility), settings.num_layers))

    def forward(self, batch: Batch, *, select: bool = False, dropout: DropoutKey | None = None) -> list[Tensor]:
        """Hidden states: of the embeddings and after each layer.

        Args:
            batch: The rows; if they have a memory and text slots, it remembers these from now on.
            select: Of the last layer return only the slots the targets predict at, side by side in the targets' order.
            dropout: Dropout of this forward pass; none if None.

        Returns:
            One tensor per layer and one for the embeddings. *Shape:* (rows, slots, hidden size), the last one
            (rows, predictions, hidden size) if `select`.

        Raises:
            UniclozeError: A layer reads nearby slots only, and the batch does not say which those are.
        """
        hidden = self.embeddings(batch, dropout)
        dtype = score_dtype(hidden)
        encoded = self.settings.positions == "transformer_xl"
        relations = [Relations(part, self.settings, dropout) if encoded else None for part in batch.parts]
        backend = self.backend or choose_backend(hidden, dtype, self.relative is not None or encoded)
        plans = {
            name: plan(
                batch.under(name), self.relative, relations, backend, dtype, select and name == self.visibility[-1]
            )
            for name in dict.fromkeys(self.visibility)
        }
        memories = [None] * len(self.layers) if batch.memory is None else batch.memory.states.unbind()
        states = [hidden]
        for layer, name, memory in zip(self.layers, self.visibility, memories, strict=True):
            last = layer is self.layers[-1]
            states.append(self._layer(layer, states[-1], memory, plans[name], backend, dropout, last=last))
        if batch.memory is not None and batch.text_slots is not None:
            batch.memory.remember(states[:-1], batch.text_slots)
        states[-1] = self.final_norm(states[-1])
        if select:
            states[-1] = _predicted(states[-1], batch, plans[self.visibility[-1]])
        return states

    def residual_writers(self) -> list[nn.Module]:
        """The linear layers whose output is added to the residual stream."""
        return [module.output for module in self.modules() if isinstance(module, SelfAttention | FeedForward)]

    def _layer(
        self,
        layer: nn.Module,
        hidden: Tensor,
        memory: Tensor | None,
        plan: Plan,
        backend: Backend,
        dropout: DropoutKey | None,
        *,
        last: bool,
    ) -> Tensor:
        blocks, selected = (plan.last, plan.selected) if last else (plan.blocks, None)
        result: Tensor = layer(hidden, memory, blocks, selected, last and plan.late, backend, dropout)
        return result


def _predicted(hidden: Tensor, batch: Batch, plan: Plan) -> Tensor:
    """The hidden states of the predicted slots in the targets' order, of all slots' or of the computed ones'."""
    predicted = predicted_slots(batch)
    if plan.selected is None:
        return select_slots(hidden, predicted)
    if not plan.late and not batch.blocks:
        return hidden
    # What only pads the predictions may not have been computed: it takes the first state, and nothing reads it.
    number = torch.zeros(batch.input_ids.numel(), dtype=torch.long, device=hidden.device)
    number[plan.selected[0]] = torch.arange(plan.selected.shape[1], device=hidden.device)
    (asked,) = end_to_end([predicted], [batch])
    found: Tensor = hidden[0].index_select(0, number[asked]).unflatten(0, predicted.shape)
    return found


def score_dtype(hidden: Tensor) -> torch.dtype:
    """Data type attention computes in: autocast's where it is on."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


def choose_backend(hidden: Tensor, dtype: torch.dtype, relative: bool) -> Backend:
    """The implementation of attention that measured fastest for what is asked.

    On a CPU, multiplying out the scores wins in bf16, and torch's kernel in fp32 as long as no gradient flows into the
    bias. On a GPU torch's kernel can do everything; FlexAttention has to be asked for.
    """
    if hidden.device.type == "cpu" and (dtype != torch.float32 or relative):
        return "explicit"
    return "sdpa"
