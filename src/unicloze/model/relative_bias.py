"""T5's relative position bias, added to attention scores by distance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from unicloze.settings import ModelSettings

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
            # A product with one-hot rows: its backward pass is a product too, which sums in the same order in every run.
            buckets = torch.arange(self.buckets, device=distance_BQK.device)
            one_hot = (self.bucket(distance_BQK)[..., None] == buckets).to(self.weight.dtype)
            return (one_hot @ self.weight.T).permute(0, 3, 1, 2).contiguous()
        each = torch.arange(-far, far + 1, device=distance_BQK.device)
        table = self.weight.index_select(1, self.bucket(each))
        bias_HBQK: Tensor = _LookUp.apply(table, distance_BQK.add_(far))  # type: ignore[no-untyped-call]
        return bias_HBQK.transpose(0, 1)

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
