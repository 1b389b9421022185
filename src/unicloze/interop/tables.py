"""Key tables: a reversible mapping between our tensors and another library's.

An entry names our tensors, their tensors and the change between them. Changes are reversible, work on any device (including
`meta`, to get shapes) and only move values, so a round trip is bit-exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Protocol

import torch
from torch import Tensor

Tensors = Sequence[Tensor]


class Change(Protocol):
    """Converts their tensors to ours, and back."""

    def forward(self, theirs: Tensors) -> Tensors:
        """Their tensors to ours, in the order of an entry's names."""

    def backward(self, ours: Tensors) -> Tensors:
        """Our tensors to theirs."""


@dataclass(frozen=True)
class Same:
    """The same tensor under another name."""

    def forward(self, theirs: Tensors) -> Tensors:
        """Unchanged."""
        return theirs

    def backward(self, ours: Tensors) -> Tensors:
        """Unchanged."""
        return ours


@dataclass(frozen=True)
class Fused:
    """Our tensor is the concatenation of theirs along the first dimension, such as `attention.qkv`.

    Args:
        chunks: Number of their tensors, all of the same size.
    """

    chunks: int

    def forward(self, theirs: Tensors) -> Tensors:
        """Concatenate. *Shape:* (rows, ...) each to (chunks x rows, ...)"""
        return [torch.cat(list(theirs))]

    def backward(self, ours: Tensors) -> Tensors:
        """Split."""
        return ours[0].chunk(self.chunks)


@dataclass(frozen=True)
class SplitRows:
    """Our tensors are slices of theirs along the first dimension, such as the two outputs of `qa_outputs`.

    Args:
        chunks: Number of our tensors, all of the same size.
    """

    chunks: int

    def forward(self, theirs: Tensors) -> Tensors:
        """Split. *Shape:* (chunks x rows, ...) to (rows, ...) each"""
        return theirs[0].chunk(self.chunks)

    def backward(self, ours: Tensors) -> Tensors:
        """Concatenate."""
        return Fused(self.chunks).forward(ours)


@dataclass(frozen=True)
class Transposed:
    """Their tensor is the transpose of ours."""

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* (a, b) to (b, a)"""
        return [theirs[0].T]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* (b, a) to (a, b)"""
        return [ours[0].T]


@dataclass(frozen=True)
class Reshaped:
    """The same numbers in another shape, such as one row for each attention head; -1 stands for any size.

    Args:
        ours: Our shape.
        theirs: Their shape.
    """

    ours: tuple[int, ...]
    theirs: tuple[int, ...]

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* `theirs` to `ours`"""
        return [theirs[0].reshape(self.ours)]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* `ours` to `theirs`"""
        return [ours[0].reshape(self.theirs)]


@dataclass(frozen=True)
class HeadsLast:
    """Their projections map hidden states to heads: transposed, with an axis for the heads; ours are fused (XLNet).

    Args:
        heads: Number of heads.
        chunks: Number of their tensors, all of the same size.
    """

    heads: int
    chunks: int = 1

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* (hidden size, heads, head size) each to (chunks x heads x head size, hidden size)"""
        return [torch.cat([matrix.flatten(1).T for matrix in theirs])]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* (chunks x heads x head size, hidden size) to (hidden size, heads, head size) each"""
        return [matrix.T.reshape(matrix.shape[1], self.heads, -1) for matrix in ours[0].chunk(self.chunks)]


@dataclass(frozen=True)
class QueryVector:
    """Their vector of the slots that predict is a row of our token table, that of the pseudo mask (XLNet).

    Args:
        row: Id of the pseudo mask.
        appended: Whether their table lacks the row, which is our last. Otherwise backward stores it in both.
    """

    row: int
    appended: bool

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* (their tokens, width) and (1, 1, width) to (our tokens, width)"""
        table, vector = theirs[0], theirs[1].view(1, -1)
        return [torch.cat([table[: self.row], vector, table[self.row + 1 :]])]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* (our tokens, width) to (their tokens, width) and (1, 1, width)"""
        (table,) = ours
        return [table[: self.row] if self.appended else table, table[self.row].view(1, 1, -1)]


@dataclass(frozen=True)
class Appended:
    """Our vector has one more number than theirs, at its end.

    Args:
        value: The number.
    """

    value: float

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* (a,) to (a + 1,)"""
        return [torch.cat([theirs[0], theirs[0].new_full((1,), self.value)])]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* (a + 1,) to (a,)"""
        return [ours[0][:-1]]


@dataclass(frozen=True)
class Shifted:
    """A position table whose first rows are for padding, which ours does not have because they are never used.

    Args:
        rows: Number of those rows; backward fills them with zeros.
    """

    rows: int

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* (rows + positions, width) to (positions, width)"""
        return [theirs[0][self.rows :]]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* (positions, width) to (rows + positions, width)"""
        table = ours[0]
        return [torch.cat([table.new_zeros(self.rows, *table.shape[1:]), table])]


@dataclass(frozen=True)
class Folded:
    """Our position and segment tables become their position table, with segment 0 added to each position.

    Texts of segment 0 are encoded the same by both. Backward loses the other segments; forward sets all
    segments to zero.

    Args:
        rows: As in `Shifted`.
        segments: Rows of our segment table.
    """

    rows: int
    segments: int

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* (rows + positions, width) to (positions, width) and (segments, width)"""
        (positions,) = Shifted(self.rows).forward(theirs)
        return [positions, positions.new_zeros(self.segments, *positions.shape[1:])]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* (positions, width) and (segments, width) to (rows + positions, width)"""
        positions, segments = ours
        return Shifted(self.rows).backward([positions + segments[0]])


@dataclass(frozen=True)
class KeylessBias:
    """The bias of a fused q, k, v without a key bias, which is zero in ours.

    A key bias adds the same number to all scores of a query, which softmax cancels: backward drops it without changing any
    hidden state.
    """

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* (1, 1, width) of q and of v to (3 x width,)"""
        query, value = (bias.flatten() for bias in theirs)
        return [torch.cat([query, torch.zeros_like(query), value])]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* (3 x width,) to (1, 1, width) twice"""
        query, _, value = ours[0].chunk(3)
        return [query.view(1, 1, -1), value.view(1, 1, -1)]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Some of our tensors and the equivalent tensors of theirs.

    Args:
        ours: Our names.
        theirs: Their names.
        change: The conversion between them.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    change: Change = field(default_factory=Same)


def same(ours: str, theirs: str) -> Entry:
    """One tensor of ours equal to one of theirs."""
    return Entry(ours=(ours,), theirs=(theirs,))


def module(ours: str, *theirs: str, biases: bool = True) -> list[Entry]:
    """Weight and bias of one of our modules, equal to one of theirs or to several fused."""
    change = Same() if len(theirs) == 1 else Fused(len(theirs))
    return [
        Entry(ours=(f"{ours}.{kind}",), theirs=tuple(f"{name}.{kind}" for name in theirs), change=change)
        for kind in (("weight", "bias") if biases else ("weight",))
    ]


def modules(names: Mapping[str, str]) -> list[Entry]:
    """Weight and bias of equal modules, by our name."""
    return [entry for ours, theirs in names.items() for entry in module(ours, theirs)]


def layers(
    names: Mapping[str, Sequence[str]], count: int, *, ours: str, theirs: str, biases: bool = True
) -> list[Entry]:
    """The modules of some layers.

    Args:
        names: Their names of our modules of a layer.
        count: Number of layers.
        ours: Prefix of a layer's names, with {} for its number.
        theirs: Their prefix, with {0} for its number.
        biases: Whether the modules have biases.
    """
    return [
        entry
        for number in range(count)
        for own, others in names.items()
        for entry in module(
            ours.format(number) + own, *(theirs.format(number) + other for other in others), biases=biases
        )
    ]


@dataclass(frozen=True, kw_only=True)
class Table:
    """All tensors of a model under both names.

    Args:
        entries: Cover each of our tensors, and each of theirs that is a weight.
        copies: Their names of tensors stored twice, such as a tied output matrix, with the first name.
        ignored: Patterns of their names that are not used here, such as a pooler without a classifier.
    """

    entries: tuple[Entry, ...]
    copies: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def ours(self, theirs: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Our tensors by name, one entry at a time, so a mapping that reads on demand is never fully in memory.

        Raises:
            KeyError: A tensor of theirs is missing.
        """
        for entry in self.entries:
            yield from zip(entry.ours, entry.change.forward([theirs[name] for name in entry.theirs]), strict=True)

    def to_theirs(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert our state to theirs, each tensor once and contiguous, without copies of tied ones.

        Raises:
            KeyError: A tensor of ours is missing.
        """
        return {
            name: tensor.contiguous()
            for entry in self.entries
            for name, tensor in zip(
                entry.theirs, entry.change.backward([ours[name] for name in entry.ours]), strict=True
            )
        }

    def ignores(self, name: str) -> bool:
        """Whether one of their names is unused here."""
        return any(fnmatchcase(name, pattern) for pattern in self.ignored)
