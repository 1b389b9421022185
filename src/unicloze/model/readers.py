"""Readers: where the layer loop gets keys and values, for whole rows, our cache or a caller's cache.

    FullRows     whole rows, as a batch lays them out: training, evaluation, encoding
    OwnCache     the next slots of rows whose earlier keys and values are in our cache: generation
    GivenKeys    the same with keys and values held by the caller: Transformers, exported programs

A slot's keys and values depend on what it reads and on nothing later, so a row may be computed in any number of calls, as
long as no slot reads a slot of a later call. All readers follow the same visibility rules and relative bias; each computes
projection and attention in the way that is fastest for its shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from unicloze.errors import UsageError
from unicloze.example import Batch
from unicloze.model.adapters import project
from unicloze.model.attention import (
    Backend,
    BucketPlan,
    Region,
    RelativeBias,
    SelfAttention,
    choose_backend,
    head_width,
    in_one_row,
    plan_attention,
    predicted_slots,
    score_dtype,
    select_slots,
    step_biases,
)
from unicloze.model.dropout import DropoutKey
from unicloze.model.encoder_decoder import SourceKeys
from unicloze.model.from_attention_mask import Slots
from unicloze.model.layers import Layer
from unicloze.model.transformer_xl import Relations
from unicloze.packing import packed_slots
from unicloze.settings import ModelSettings

# Keys are stored with slots as the last dimension, the fastest layout measured on a CPU for products of few queries
# with many keys: 1.3 times the speed of slots first in fp32 and 2.5 times in bf16.


@dataclass(kw_only=True)
class Cache:
    """Keys and values of the slots computed so far, for every layer."""

    keys: list[Tensor]  # One tensor per layer. *Shape:* (rows, heads, head size, capacity)
    values: list[Tensor]  # One tensor per layer. *Shape:* (rows, heads, capacity, head size)
    positions: Tensor  # Position each slot stands for. *Shape:* (rows, capacity)
    filled: int = 0  # number of slots kept per row; the next slots are written after them
    source: SourceKeys | None = None  # what a decoder reads of the encoded sources; None in a model without a decoder

    @classmethod
    def empty(
        cls, settings: ModelSettings, *, rows: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> Cache:
        """A cache with room for `capacity` slots per row; of an encoder-decoder, for the slots of its decoder.

        It holds zeros because masked values must be finite.
        """
        heads, size = settings.num_heads, head_width(settings)
        layers = settings.decoder_layers or settings.num_layers
        capacity = _aligned(capacity)
        shape = rows, heads, size, capacity
        return cls(
            keys=[torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)],
            values=[torch.zeros(rows, heads, capacity, size, dtype=dtype, device=device) for _ in range(layers)],
            positions=torch.zeros(rows, capacity, dtype=torch.long, device=device),
        )

    @property
    def capacity(self) -> int:
        """Slots per row there is room for."""
        return self.positions.shape[1]

    def of_rows(self, rows: slice) -> Cache:
        """A view of some rows of this cache."""
        return Cache(
            keys=[layer[rows] for layer in self.keys],
            values=[layer[rows] for layer in self.values],
            positions=self.positions[rows],
            filled=self.filled,
        )

    def keep_rows(self, rows: Tensor) -> None:
        """Drop all other rows. *Shape:* (rows kept,)"""
        self._replace(lambda _, part: part.index_select(0, rows))
        if self.source is not None:
            self.source.keep_rows(rows)

    def grow(self, capacity: int) -> None:
        """Enlarge the cache to `capacity` slots per row."""
        capacity = _aligned(capacity)

        def larger(slots: int, part: Tensor) -> Tensor:
            shape = list(part.shape)
            shape[slots] = capacity
            grown = part.new_zeros(shape)
            grown.narrow(slots, 0, self.filled).copy_(part.narrow(slots, 0, self.filled))
            return grown

        self._replace(larger)

    def keep_slots(self, first: int, kept: Tensor) -> None:
        """Keep only some of the slots from `first` on in each row, and close the gaps.

        Args:
            first: All earlier slots are kept.
            kept: Slots to keep, counted from `first`. *Shape:* (rows, slots kept)
        """
        rows, count = kept.shape

        def moved(slots: int, part: Tensor) -> Tensor:
            index = (
                kept.view([rows, *[1] * (part.ndim - 2), count]) if slots == part.ndim - 1 else kept[:, None, :, None]
            )
            source = part.narrow(slots, first, self.filled - first)
            shape = list(source.shape)
            shape[slots] = count
            part.narrow(slots, first, count).copy_(source.gather(slots, index.expand(shape)))
            return part

        self._replace(moved)
        self.filled = first + count

    def _replace(self, change: Callable[[int, Tensor], Tensor]) -> None:
        """Apply `change(slot dimension, tensor)` to every tensor."""
        for number, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            self.keys[number] = change(3, keys)
            self.values[number] = change(2, values)
        self.positions = change(1, self.positions)


def _aligned(capacity: int) -> int:
    """The next multiple of 32, which aligns rows of keys with cache lines."""
    return -(-capacity // 32) * 32


FEW = 8
"""If keys outnumber slots by this factor, slots attend to the cache's whole capacity under a mask: in bf16 torch
copies keys and values that do not fill their tensor, which costs as much as attention itself."""

Append = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""Appends new keys and values of a layer, by its number, and returns all of them. *Shape:* (rows, heads, slots, head size)"""


def check_steps(settings: ModelSettings) -> None:
    """Reject a model whose layers need more of earlier slots than their keys and values."""
    if settings.kind == "recurrent":
        raise UsageError(
            "a model with model.kind recurrent keeps a state and no keys and values: generate with `unicloze generate`, or "
            "use a causal Transformer (model.kind transformer)"
        )
    if settings.positions == "transformer_xl":
        raise UsageError(
            "a model with model.positions transformer_xl cannot generate a target step by step: use one with learned "
            "positions or a relative position bias"
        )


@dataclass(eq=False, kw_only=True)
class FullRows:
    """Whole rows: every slot is present and reads what its batch says.

    Raises:
        UniclozeError: A layer is `local` and the batch has no local visibility (in `start`).
    """

    batch: Batch  # the rows; a memory's hidden states are layer inputs, and its keys come before all others
    settings: ModelSettings  # model shape
    select: bool = False  # compute only the predicted slots in the last layer
    backend: Backend | None = None  # attention backend; default: the fastest
    dropout: DropoutKey | None = None  # dropout of this forward pass; none if None

    def start(self, hidden: Tensor, relative: RelativeBias | None, visibility: Sequence[str]) -> None:
        """Render the batch's visibility once for all layers, see `Reader.start`."""
        batch, dtype = self.batch, score_dtype(hidden)
        self._earlier = None if batch.memory is None else batch.memory.states  # a backward pass may read it again
        encoded = self.settings.positions == "transformer_xl"
        relations = [Relations(part, self.settings, self.dropout) if encoded else None for part in batch.rows_by_length]
        self._backend = self.backend or choose_backend(hidden, dtype, relative is not None or encoded)
        plans = {
            name: plan_attention(
                batch.under(name), relative, relations, self._backend, dtype, self.select and name == visibility[-1]
            )
            for name in dict.fromkeys(visibility)
        }
        self._last = plans[visibility[-1]]
        self._buckets = [*(plans[name].buckets for name in visibility[:-1]), self._last.last]
        self._selected = [*(None for _ in visibility[:-1]), self._last.selected]

    def at(self, number: int) -> LayerRows:
        """See `Reader.at`."""
        selected = self._selected[number]
        return LayerRows(
            buckets=self._buckets[number],
            selected=selected,
            late=self._last.late and selected is not None,
            memory=None if self._earlier is None else self._earlier[number],
            backend=self._backend,
            dropout=self.dropout,
        )

    def predicted(self, hidden: Tensor) -> Tensor:
        """States of the predicted slots, concatenated in the order of the targets.

        Args:
            hidden: Final states, of all slots or of the computed ones.

        Returns:
            *Shape:* (rows, predictions, hidden size)
        """
        batch, selected = self.batch, self._last.selected
        predicted = predicted_slots(batch)
        if selected is None:
            return select_slots(hidden, predicted)
        if not self._last.late and not batch.buckets:
            return hidden
        # Padding predictions may lack a computed slot: they take the first state, which nothing uses.
        number = torch.zeros(batch.input_ids.numel(), dtype=torch.long, device=hidden.device)
        number[selected[0]] = torch.arange(selected.shape[1], device=hidden.device)
        (asked,) = packed_slots([predicted], [batch])
        found: Tensor = hidden[0].index_select(0, number[asked]).unflatten(0, predicted.shape)
        return found


@dataclass(eq=False, kw_only=True)
class LayerRows:
    """What a layer reads of `FullRows`: alike for all layers but the last, so that one compiled graph serves them all."""

    buckets: tuple[BucketPlan, ...]  # the attention plan
    selected: Tensor | None  # slots to compute, see `AttentionPlan`; None for all
    late: bool  # whether they are selected after attention
    memory: Tensor | None  # Hidden states of the memory. *Shape:* (rows, memory, hidden size)
    backend: Backend  # attention backend
    dropout: DropoutKey | None  # dropout of this forward pass; none if None

    def computed(self, layer: Layer, hidden: Tensor) -> Tensor:
        """See `LayerReader.computed`."""
        selected = self.selected
        return hidden if selected is None else select_slots(in_one_row(hidden) if self.late else hidden, selected)

    def attend(self, layer: Layer, normed: Tensor) -> Tensor:
        """See `LayerReader.attend`; concatenated buckets attend separately."""
        buckets, selected, attention = self.buckets, self.selected, layer.attention
        earlier = None if self.memory is None else layer.before_attention(self.memory)
        query, key, value = _project(attention, normed, earlier, None if self.late else selected, self.dropout)
        joined = attention.attend_buckets(query, key, value, buckets, self.backend, self.dropout)
        if self.late and selected is not None:
            joined = select_slots(in_one_row(joined), selected)
        return project(attention.output, joined, self.dropout)


@dataclass(eq=False, kw_only=True)
class OwnCache:
    """The next slots of every row; their keys and values are written after those in the cache.

    `cache.filled` does not change: the caller updates it for the slots to keep.

    Raises:
        UniclozeError: A layer is `local` and `local_width` is None (in `start`).
    """

    cache: Cache  # must have room for the slots
    positions: Tensor  # Positions of the slots; one row only if the cache is empty. *Shape:* (rows or 1, positions)
    # Which keys each slot reads: those in the cache, then these slots; default: all. *Shape:* (rows or 1, slots or 1,
    # keys)
    reads: Tensor | None
    copies: int = 1  # number of slots per position
    # slots to compute in the last layer: the same in all rows, or per row, *Shape:* (rows, selected); default: all
    select: slice | Tensor | None = None
    local_width: int | None = None  # largest distance in positions that `local` layers read

    def start(self, hidden: Tensor, relative: RelativeBias | None, visibility: Sequence[str]) -> None:
        """Store the slots' positions and compute the biases, see `Reader.start`."""
        cache, reads, slots = self.cache, self.reads, hidden.shape[1]
        first, last = cache.filled, cache.filled + slots
        cache.positions[:, first:last] = self.positions.repeat_interleave(self.copies, dim=1)
        if reads is not None and FEW * slots <= last < cache.capacity:
            reads, last = functional.pad(reads, (0, cache.capacity - last)), cache.capacity
        self._keys = last
        earlier, dtype = cache.positions[: len(self.positions), :last], score_dtype(hidden)
        biases = step_biases(reads, self.positions, earlier, relative, visibility, self.local_width, dtype, self.copies)
        self._biases = [biases[name] for name in visibility]

    def at(self, number: int) -> OwnCache:
        """See `Reader.at`."""
        return self

    def computed(self, layer: Layer, hidden: Tensor) -> Tensor:
        """See `LayerReader.computed`."""
        select = self._selected(layer)
        if select is None:
            return hidden
        return hidden[:, select] if isinstance(select, slice) else select_slots(hidden, select)

    def attend(self, layer: Layer, normed: Tensor) -> Tensor:
        """See `LayerReader.attend`. Weights for inference may be packed, so the projection is not split."""
        attention, select, first = layer.attention, self._selected(layer), self.cache.filled
        rows, slots, heads = *normed.shape[:2], attention.num_heads
        keys, values = self.cache.keys[layer.number], self.cache.values[layer.number]
        query, key, value = attention.qkv(normed).view(rows, slots, 3, heads, -1).unbind(2)
        keys[:, :, :, first : first + slots].copy_(key.permute(0, 2, 3, 1))
        values[:, :, first : first + slots].copy_(value.transpose(1, 2))
        if isinstance(select, slice) and select.stop == 0:
            return normed[:, :0]
        asking = self.computed(layer, query.flatten(2)).unflatten(2, (heads, -1)) if select is not None else query
        biases = (
            bias if select is None or bias.shape[2] == 1 else _selected_bias(bias, select)
            for bias in self._biases[layer.number]
        )
        return attention.attend_stored(asking, keys[:, :, :, : self._keys], values[:, :, : self._keys], biases)

    def _selected(self, layer: Layer) -> slice | Tensor | None:
        return self.select if layer.number == len(self._biases) - 1 else None


@dataclass(eq=False, kw_only=True)
class GivenKeys:
    """Some slots of every row, in pure torch; the caller holds the keys and values of earlier slots.

    Raises:
        UniclozeError: A layer is `local` and `local_width` is None (in `start`).
    """

    slots: Slots  # the slots and what they read
    append: Append  # takes each layer's new keys and values and returns those of all slots
    local_width: int | None = None  # largest distance in positions that `local` layers read
    backend: Backend | None = None  # attention backend; default: the fastest
    dropout: DropoutKey | None = None  # dropout of this forward pass; none if None

    def start(self, hidden: Tensor, relative: RelativeBias | None, visibility: Sequence[str]) -> None:
        """Compute the biases, see `Reader.start`."""
        slots, dtype = self.slots, score_dtype(hidden)
        self._backend = self.backend or choose_backend(hidden, dtype, relative is not None)
        biases = step_biases(
            slots.visible, slots.positions, slots.key_positions, relative, visibility, self.local_width, dtype
        )
        queries, keys = slots.visible.shape[1:]
        regions = {name: Region(0, queries, keys, bias) for name, (bias,) in biases.items()}
        self._regions = [regions[name] for name in visibility]

    def at(self, number: int) -> GivenKeys:
        """See `Reader.at`."""
        return self

    def computed(self, layer: Layer, hidden: Tensor) -> Tensor:
        """See `LayerReader.computed`."""
        return hidden

    def attend(self, layer: Layer, normed: Tensor) -> Tensor:
        """See `LayerReader.attend`."""
        attention = layer.attention
        query, key, value = (
            part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
            for part in attention.qkv(normed).chunk(3, dim=-1)
        )
        key, value = self.append(key, value, layer.number)
        attended = attention.attend(query, key, value, self._regions[layer.number], self._backend, self.dropout)
        projected: Tensor = attention.output(attended.transpose(1, 2).flatten(2))
        return projected


def _project(
    attention: SelfAttention, hidden: Tensor, memory: Tensor | None, selected: Tensor | None, dropout: DropoutKey | None
) -> tuple[Tensor, ...]:
    """Queries of the slots or the selected ones; keys and values of the memory and the slots."""
    size = attention.width
    if memory is None and selected is None:
        fused: tuple[Tensor, ...] = project(attention.qkv, hidden, dropout).split(size, dim=-1)
        return fused
    asking = hidden if selected is None else select_slots(hidden, selected)
    read = hidden if memory is None else torch.cat([memory, hidden], dim=1)
    query = project(attention.qkv, asking, dropout, last=size)
    return query, *project(attention.qkv, read, dropout, first=size).split(size, dim=-1)


def _selected_bias(bias: Tensor, select: slice | Tensor) -> Tensor:
    if isinstance(select, slice):
        return bias[:, :, select]
    index = select[:, None, :, None].expand(-1, bias.shape[1], -1, bias.shape[3])
    return bias.expand(len(select), -1, -1, -1).gather(2, index)
