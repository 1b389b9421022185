"""Multi-head attention: its weights, and softmax(Q K^T / sqrt(d) + bias) V by region and backend."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.example import Batch
from unicloze.model.dropout import DropoutKey
from unicloze.model.transformer_xl import Relation, Relations, RelativeTerms
from unicloze.packing import packed_slots
from unicloze.settings import ModelSettings
from unicloze.visibility import block_mask, bool_mask, with_memory
from unicloze.visibility_masks import nearby_mask

ScoreMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""FlexAttention's function of a score, its row, head, query and key."""

NEIGHBOURS = (-1, 1, -2, 2)
"""Distances of the neighbours that the first heads begin with, a head each."""
RAISED = 4.0
"""How much a score at such a distance is raised: e^4 = 55 times the weight of another key."""


class RelativeBias(nn.Module):
    """T5's relative position bias: one learned number per head and distance bucket, shared by all layers.

    Half the buckets are for keys right of the query; a decoder, which has none, uses all of them for the left. Distances
    below half the number of buckets of a side have one each; longer ones share logarithmically growing ranges up to
    `relative_max_distance` (Raffel et al. 2020, Section 2.1).

    Args:
        settings: Model shape.
        both_ways: Whether keys may be right of the query.
    """

    def __init__(self, settings: ModelSettings, *, both_ways: bool = True) -> None:
        super().__init__()
        self.both_ways = both_ways
        self.buckets = settings.relative_buckets
        self.max_distance = settings.relative_max_distance
        self.weight = nn.Parameter(torch.empty(settings.num_heads, settings.relative_buckets))

    @torch.no_grad()
    def raise_neighbours(self) -> None:
        """Let each of the first heads begin by looking at one near neighbour; the other heads are free."""
        distances = NEIGHBOURS if self.both_ways else [distance for distance in NEIGHBOURS if distance < 0]
        for head, distance in zip(self.weight, distances, strict=False):
            head[self.bucket(torch.tensor(distance))] += RAISED

    def bucket(self, distance: Tensor) -> Tensor:
        """Bucket of each distance (key position minus query position)."""
        half = self.buckets // 2 if self.both_ways else self.buckets
        exact = half // 2
        size = distance.abs() if self.both_ways else (-distance).clamp(min=0)
        growth = torch.log(size.clamp(min=1).float() / exact) / torch.log(torch.tensor(self.max_distance / exact))
        far = exact + (growth * (half - exact)).long()
        side = (distance > 0).long() * half if self.both_ways else 0
        return side + torch.where(size < exact, size, far.clamp(max=half - 1))

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """The bias of each query-key pair.

        Args:
            query_positions: *Shape:* (rows, queries)
            key_positions: *Shape:* (rows, keys)

        Returns:
            *Shape:* (rows, heads, queries, keys)
        """
        far = self.max_distance
        distance_BQK = (key_positions[:, None, :] - query_positions[:, :, None]).clamp_(-far, far)
        if distance_BQK.is_cuda and torch.is_grad_enabled():
            return self.by_product(distance_BQK)
        each = torch.arange(-far, far + 1, device=distance_BQK.device)
        table = self.weight.index_select(1, self.bucket(each))
        bias_HBQK: Tensor = _LookUp.apply(table, distance_BQK.add_(far))  # type: ignore[no-untyped-call]
        return bias_HBQK.transpose(0, 1)

    def by_product(self, distance_BQK: Tensor) -> Tensor:
        """The bias as a product with one-hot rows; its backward pass, a product too, sums in the same order in every run.

        Returns:
            *Shape:* (rows, heads, queries, keys)
        """
        buckets = torch.arange(self.buckets, device=distance_BQK.device)
        one_hot = (self.bucket(distance_BQK)[..., None] == buckets).to(self.weight.dtype)
        return (one_hot @ self.weight.T).permute(0, 3, 1, 2).contiguous()

    def score_mod(self, positions: Tensor) -> ScoreMod:
        """FlexAttention's function that adds the bias to a score, read from a table of all distances.

        On a GPU the gradient of the table is summed in no fixed order.

        Args:
            positions: *Shape:* (rows, slots)
        """
        far = self.max_distance
        table = self.weight.index_select(1, self.bucket(torch.arange(-far, far + 1, device=positions.device)))

        def add(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            distance = (positions[row, key] - positions[row, query]).clamp(-far, far)
            return score + table[head, distance + far]

        return add


class _LookUp(torch.autograd.Function):
    """Columns of a small table; the gradient is summed head by head into a table that fits the processor's cache."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(columns)
        ctx.width = table.shape[1]
        return table.index_select(1, columns.flatten()).view(-1, *columns.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (columns,), grad = ctx.saved_tensors, grads[0].flatten(1)
        sums = grad.new_zeros(len(grad), ctx.width)
        return sums.scatter_add_(1, columns.flatten().expand_as(grad), grad), None


Backend = Literal["explicit", "sdpa", "flex"]

MOST_SELECTED = 0.9
"""Share of predicted slots above which the last layer computes all: selecting would save little and need another mask."""


# The slots of a row form regions. Leading slots that read exactly each other need no mask (the context of a pseudo-
# masked row, a whole bidirectional row); the rest reads all keys under a mask. That keeps the mask small and skips
# scores that would be masked out. Rows of different lengths come as concatenated buckets (`unicloze.packing`).


@dataclass(frozen=True)
class Region:
    """Consecutive queries of every row, and what they may read."""

    first: int  # first query slot
    last: int  # end of the query slots, exclusive
    keys: int  # number of leading keys the queries read from
    # Added to the scores: 0, or -inf where a query may not read a key, plus the relative position bias. *Shape:* (rows
    # or 1, heads or 1, queries, keys)
    bias: Tensor | None = None
    block_mask: object | None = None  # FlexAttention's mask, instead of `bias`
    score_mod: ScoreMod | None = None  # adds the relative position bias to a score, for `block_mask`
    # transformer-XL's relation of queries to keys, whose bias depends on the queries too
    relation: Relation | None = None


@dataclass(frozen=True)
class BucketPlan:
    """Rows of equal length, and their attention regions."""

    rows: int  # number of rows
    queries: int  # query slots per row
    keys: int  # keys per row, including a memory's
    regions: tuple[Region, ...]  # regions that cover all queries


@dataclass(frozen=True)
class AttentionPlan:
    """Attention of a batch, bucket by bucket: for all layers but the last, and for the predicted slots in the last."""

    buckets: tuple[BucketPlan, ...]  # blocks that cover all slots
    # The predicted slots, bucket by bucket; None if the last layer computes all slots. *Shape:* (rows, predictions)
    selected: Tensor | None
    last: tuple[BucketPlan, ...]  # blocks of the selected slots
    # All slots are queries in the last layer, and slots are selected after attention; used where some rows predict
    # nearly everywhere and others do not. `selected` then numbers slots over all rows, *Shape:* (1, predictions)
    late: bool = False


def predicted_slots(batch: Batch) -> Tensor:
    """The predicted slots, concatenated in the order of the targets. *Shape:* (rows, predictions)"""
    return torch.cat([target.slots.flatten(1) for target in batch.targets.values()], dim=1)


def _needed_slots(batch: Batch) -> Tensor:
    """The slots that predict anything, in order, numbered over all rows. *Shape:* (1, slots)"""
    needed = torch.zeros(batch.input_ids.numel(), dtype=torch.bool)
    for target in batch.targets.values():
        predicts = (target.weights > 0).view(*target.weights.shape, *[1] * (target.slots.ndim - 2))
        there = predicts if target.present is None else predicts & target.present
        (numbers,) = packed_slots([target.slots], [batch])
        needed[numbers[there.expand_as(target.slots).flatten(0, 1)]] = True
    return needed.nonzero().T


def plan_attention(
    batch: Batch,
    relative: RelativeBias | None,
    relations: Sequence[Relations | None],
    backend: Backend,
    dtype: torch.dtype,
    select: bool,
) -> AttentionPlan:
    """Render a batch's visibility for one attention backend and data type.

    Args:
        batch: The rows.
        relative: The relative position bias, if the model has one.
        relations: Transformer-XL's relations within each bucket, if the model uses them.
        backend: Attention backend.
        dtype: Data type of the scores.
        select: Compute only the predicted slots in the last layer, unless they are nearly all slots.
    """
    parts = [_Part(part, relative, each, dtype) for part, each in zip(batch.rows_by_length, relations, strict=True)]
    buckets = tuple(part.bucket(backend) for part in parts)
    if not select:
        return AttentionPlan(buckets, None, buckets)
    chosen, most = [predicted_slots(part.batch) for part in parts], MOST_SELECTED * batch.input_ids.numel()
    if sum(slots.numel() for slots in chosen) > most:
        # Without padding predictions there may be few; counting them would synchronise a GPU.
        needed = _needed_slots(batch) if batch.input_ids.device.type == "cpu" else None
        late = needed is not None and 0 < needed.numel() <= most
        return AttentionPlan(buckets, needed if late else None, buckets, late)
    last = tuple(part.selected(slots) for part, slots in zip(parts, chosen, strict=True))
    return AttentionPlan(buckets, chosen[0] if len(parts) == 1 else packed_slots(chosen, batch.rows_by_length), last)


class _Part:
    """Rows of equal length whose regions are rendered; memory keys come first."""

    def __init__(
        self, batch: Batch, relative: RelativeBias | None, relations: Relations | None, dtype: torch.dtype
    ) -> None:
        self.batch, self.relative, self.relations, self.dtype = batch, relative, relations, dtype
        self.rows, self.slots = batch.input_ids.shape
        self.memory = 0 if batch.memory is None else batch.memory.slots
        self.intervals = batch.intervals
        if batch.memory is not None:
            self.intervals = with_memory(batch.intervals, self.memory, batch.memory.lengths)
        self.keys = self.memory + self.slots

    def bucket(self, backend: Backend) -> BucketPlan:
        """All slots as queries."""
        if backend == "flex" and self.relations is None and (self.relative is None or not self.memory):
            biased = None if self.relative is None else self.relative.score_mod(self.batch.position_ids)
            visible = block_mask(self.intervals, self.keys)
            return self._plan(self.slots, Region(0, self.slots, self.keys, block_mask=visible, score_mod=biased))
        leading, positions, relative = self.batch.leading, self.batch.position_ids, self.relative
        regions = []
        if leading.slots:
            queries, keys = slice(0, leading.slots), self.memory + leading.keys
            mask = bool_mask(self.intervals[:, queries], keys) if self.memory or not leading.alike else None
            distance = None if relative is None else _leading_bias(self.batch, relative)
            regions.append(self._region(queries, queries, keys, mask, distance))
        if leading.slots < self.slots:
            queries = slice(leading.slots, self.slots)
            mask = bool_mask(self.intervals[:, queries], self.keys)
            distance = None if relative is None else relative(positions[:, queries], positions)
            regions.append(self._region(queries, queries, self.keys, mask, distance))
        return self._plan(self.slots, *regions)

    def selected(self, slots: Tensor) -> BucketPlan:
        """Some slots of each row as queries. *Shape:* (rows, queries)"""
        leading, positions, mask = self.batch.leading, self.batch.position_ids, None
        if self.memory or not leading.alike or leading.slots < self.slots:
            mask = bool_mask(self.intervals.gather(1, slots[:, :, None].expand(-1, -1, 4)), self.keys)
        distance = None if self.relative is None else self.relative(positions.gather(1, slots), positions)
        queries = slots.shape[1]
        return self._plan(queries, self._region(slice(0, queries), slots, self.keys, mask, distance))

    def _region(
        self, place: slice, queries: slice | Tensor, keys: int, mask: Tensor | None, distance: Tensor | None
    ) -> Region:
        relation = None if self.relations is None else self.relations.of(queries, keys)
        return Region(place.start, place.stop, keys, score_bias(mask, distance, self.dtype), relation=relation)

    def _plan(self, queries: int, *regions: Region) -> BucketPlan:
        return BucketPlan(self.rows, queries, self.keys, regions)


def _leading_bias(batch: Batch, relative: RelativeBias) -> Tensor:
    """The bias among the leading slots, computed once for all rows whose positions there are 0, 1, 2, ..."""
    leading = batch.leading
    positions = batch.position_ids[:, : leading.keys]
    own: Tensor
    if not leading.in_order:
        own = relative(positions[:, : leading.slots], positions)
        return own
    order = torch.arange(leading.keys, device=positions.device)[None]
    shared: Tensor = relative(order[:, : leading.slots], order)
    if leading.shorter is None:
        return shared
    rows, positions = len(positions), positions[leading.shorter]
    own = relative(positions[:, : leading.slots], positions)
    return shared.expand(rows, -1, -1, -1).index_copy(0, leading.shorter, own)  # its gradient has a fixed order


def score_bias(mask: Tensor | None, distance: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The bias added to the scores: -inf where a query may not read a key, plus the relative position bias.

    Args:
        mask: True where a query reads a key; None: every query reads every key. *Shape:* (rows, queries, keys)
        distance: The relative position bias, if any. *Shape:* (rows, heads, queries, keys)
        dtype: Data type of the scores.

    Returns:
        None if there is nothing to add. *Shape:* (rows, heads or 1, queries, keys)
    """
    distance = None if distance is None else distance.to(dtype)
    if mask is None:
        return distance
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    added = torch.where(mask, zero, zero - torch.inf).unsqueeze(1)
    return added if distance is None else distance + added


def step_biases(
    reads: Tensor | None,
    positions: Tensor,
    key_positions: Tensor,
    relative: RelativeBias | None,
    names: Iterable[str],
    local_width: int | None,
    dtype: torch.dtype,
    copies: int = 1,
) -> dict[str, list[Tensor]]:
    """Score biases, by visibility, of slots whose keys may be cached.

    Args:
        reads: Which keys each slot reads; default: all. *Shape:* (rows or 1, slots or 1, keys)
        positions: *Shape:* (rows or 1, positions)
        key_positions: *Shape:* (rows or 1, keys)
        relative: The relative position bias, if the model has one.
        names: Visibilities of the layers.
        local_width: Largest distance in positions that `local` layers read.
        dtype: Data type of the scores.
        copies: Number of slots per position.

    Returns:
        By name, tensors to add one after the other: a mask per row and a bias shared by all rows are kept separate.
        *Shape:* (rows or 1, heads or 1, slots or 1, keys) each
    """
    distance = None if relative is None else relative(positions, key_positions)
    if distance is not None and copies > 1:
        distance = distance.repeat_interleave(copies, dim=2)
    biases = {}
    for name in dict.fromkeys(names):
        mask = reads
        if name == "local":
            near = nearby_mask(positions, key_positions, local_width)
            near = near if copies == 1 else near.repeat_interleave(copies, dim=1)
            mask = near if reads is None else near & reads
        apart = mask is not None and distance is not None and mask.shape[0] != distance.shape[0]
        pairs = [(None, distance), (mask, None)] if apart else [(mask, distance)]
        found = (score_bias(*pair, dtype) for pair in pairs)
        biases[name] = [bias for bias in found if bias is not None]
    return biases


@functools.cache
def _flex_kernel(compiled: bool) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    kernel: Any = torch.compile(flex_attention) if compiled else flex_attention
    return kernel  # type: ignore[no-any-return]


def head_width(settings: ModelSettings) -> int:
    """Width of an attention head."""
    return settings.head_size or settings.hidden_size // settings.num_heads


class AttentionWeights(nn.Module):
    """What self-attention and cross-attention have in common."""

    output: nn.Linear
    terms: RelativeTerms | None

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        size, self.num_heads = head_width(settings), settings.num_heads
        self.width, self.rate = self.num_heads * size, settings.attention_dropout
        self.scale = size**-0.5 if settings.scale_scores else 1.0  # T5 does not scale

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, region: Region, backend: Backend, dropout: DropoutKey | None
    ) -> Tensor:
        """Attention within one region: softmax(scale Q K^T + bias) V.

        Args:
            query: *Shape:* (rows, heads, queries, head size)
            key: *Shape:* (rows, heads, keys, head size)
            value: *Shape:* (rows, heads, keys, head size)
            region: The keys the queries may read, with their bias.
            backend: `explicit` computes the scores by matrix products; `sdpa` and `flex` are torch's fused kernels.
            dropout: Dropout of this forward pass; None in evaluation.

        Returns:
            *Shape:* (rows, heads, queries, head size)
        """
        rate, scale = self.rate, self.scale
        if region.block_mask is not None:
            kernel = _flex_kernel(query.is_cuda)
            return kernel(query, key, value, region.score_mod, block_mask=region.block_mask, scale=scale)
        if backend != "explicit" and (dropout is None or rate == 0 or query.is_cuda):
            dropped = 0.0 if dropout is None else dropout.rate(rate)
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask=region.bias, dropout_p=dropped, scale=scale
            )
        scores = (query * scale) @ key.transpose(-1, -2)
        if region.bias is not None:
            scores = scores + region.bias if region.bias.requires_grad else scores.add_(region.bias)
        probabilities = torch.softmax(scores, dim=-1)
        if dropout is not None:
            probabilities = dropout(probabilities, rate)
        return probabilities @ value

    def attend_buckets(
        self, query: Tensor, key: Tensor, value: Tensor, buckets: Sequence[BucketPlan], backend: Backend,
        dropout: DropoutKey | None,
    ) -> Tensor:  # fmt: skip
        """Attention of buckets, each by itself. *Shape:* (rows, queries or keys, width) to (rows, queries, width)"""

        def by_head(states: Tensor, widths: Sequence[int]) -> list[Tensor]:
            """*Shape:* (rows, heads, slots, head size) of each bucket"""
            parts: Sequence[Tensor] = [states]
            if len(buckets) > 1:
                parts = states[0].split([bucket.rows * width for bucket, width in zip(buckets, widths, strict=True)])
            shapes = [(bucket.rows, width, self.num_heads, -1) for bucket, width in zip(buckets, widths, strict=True)]
            return [part.view(shape).transpose(1, 2) for part, shape in zip(parts, shapes, strict=True)]

        queries = by_head(query, [bucket.queries for bucket in buckets])
        keys, values = (by_head(part, [bucket.keys for bucket in buckets]) for part in (key, value))
        joined = []
        for asking, key, value, bucket in zip(queries, keys, values, buckets, strict=True):
            sizes = [region.last - region.first for region in bucket.regions]
            parts = []
            for part, region in zip(asking.split(sizes, dim=2), bucket.regions, strict=True):
                if self.terms is not None and region.relation is not None:
                    part, bias = self.terms(part, region.relation)
                    region = dataclasses.replace(region, bias=bias if region.bias is None else bias + region.bias)
                read = key[:, :, : region.keys], value[:, :, : region.keys]
                parts.append(self.attend(part, *read, region, backend, dropout))
            attended = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
            joined.append(attended.transpose(1, 2).flatten(2))
        return joined[0] if len(joined) == 1 else torch.cat([part.flatten(0, 1) for part in joined])[None]

    def attend_stored(self, query: Tensor, keys: Tensor, values: Tensor, biases: Iterable[Tensor]) -> Tensor:
        """Attention of a few slots to stored keys, projected; in generation.

        Args:
            query: *Shape:* (rows, slots, heads, head size)
            keys: *Shape:* (rows, heads, head size, keys)
            values: *Shape:* (rows, heads, keys, head size)
            biases: Tensors that are added to the scores one after the other.
                *Shape:* (rows or 1, heads or 1, slots or 1, keys)

        Returns:
            *Shape:* (rows, slots, hidden size)
        """
        shape = len(query), self.num_heads
        asking = (query * self.scale).transpose(1, 2).flatten(0, 1)
        scores = torch.bmm(asking, keys.flatten(0, 1)).unflatten(0, shape)
        for bias in biases:
            scores.add_(bias)
        attended = torch.bmm(torch.softmax(scores, dim=-1).flatten(0, 1), values.flatten(0, 1))
        projected: Tensor = self.output(attended.unflatten(0, shape).transpose(1, 2).flatten(2))
        return projected


class SelfAttention(AttentionWeights):
    """Weights of multi-head self-attention, with one fused projection to queries, keys and values, in that order.

    With Transformer-XL's encoding the projections have no bias, and `RelativeTerms` are added to the scores. The readers
    (`unicloze.model.readers`) compute attention with these weights.
    """

    FUSED = {"qkv": 3}  # noqa: RUF012
    """Projections of several equal matrices, one above the other, and how many; optimisers treat each by itself."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        relative = settings.positions == "transformer_xl"
        biases = settings.biases and not relative
        self.qkv = nn.Linear(settings.hidden_size, 3 * self.width, bias=biases)
        self.output = nn.Linear(self.width, settings.hidden_size, bias=biases)
        self.terms = RelativeTerms(settings) if relative else None


def in_one_row(hidden: Tensor) -> Tensor:
    """Concatenate all rows into one. *Shape:* (rows, slots, hidden size) to (1, rows x slots, hidden size)"""
    return hidden.flatten(0, 1)[None]


def select_slots(hidden: Tensor, slots: Tensor) -> Tensor:
    """Gather the hidden states of some slots of each row.

    Args:
        hidden: *Shape:* (rows, slots, hidden size)
        slots: *Shape:* (rows, predictions)

    Returns:
        *Shape:* (rows, predictions, hidden size)
    """
    flat = slots + torch.arange(len(slots), device=slots.device)[:, None] * hidden.shape[1]
    chosen: Tensor = hidden.flatten(0, 1).index_select(0, flat.flatten()).unflatten(0, slots.shape)
    return chosen


def score_dtype(hidden: Tensor) -> torch.dtype:
    """Data type of attention: autocast's where it is enabled, else that of `hidden`."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


def choose_backend(hidden: Tensor, dtype: torch.dtype, relative: bool) -> Backend:
    """The attention backend measured fastest for a device, data type and bias.

    On a CPU, explicit scores win in bf16 and with a trained bias, torch's SDPA kernel in fp32 without one. On a GPU the SDPA
    kernel handles every case; FlexAttention is for runs that need not be repeated bit for bit.
    """
    if hidden.device.type == "cpu" and (dtype != torch.float32 or relative):
        return "explicit"
    return "sdpa"
