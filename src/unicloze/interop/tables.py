"""Key tables: which of our tensors are made of which of theirs. One table serves both directions.

An entry names our tensors, their tensors and the change between them. Changes are reversible, work on any device (on
`meta` too, which tells the shapes) and copy numbers without touching them, so that there and back is the same bit for bit.
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
    """What turns their tensors into ours, and back."""

    def forward(self, theirs: Tensors) -> Tensors:
        """Ours of theirs, in the order of an entry's names."""

    def backward(self, ours: Tensors) -> Tensors:
        """Theirs of ours."""


@dataclass(frozen=True)
class Same:
    """The same tensor under another name."""

    def forward(self, theirs: Tensors) -> Tensors:
        """As it is."""
        return theirs

    def backward(self, ours: Tensors) -> Tensors:
        """As it is."""
        return ours


@dataclass(frozen=True)
class Fused:
    """Ours is their tensors one below the other, such as `attention.qkv`.

    Args:
        parts: How many there are, all of the same size.
    """

    parts: int

    def forward(self, theirs: Tensors) -> Tensors:
        """Concatenate. *Shape:* (rows, ...) each to (parts x rows, ...)"""
        return [torch.cat(list(theirs))]

    def backward(self, ours: Tensors) -> Tensors:
        """Split."""
        return ours[0].chunk(self.parts)


@dataclass(frozen=True)
class Split:
    """Ours are parts of their tensor, one below the other, such as the two outputs of `qa_outputs`.

    Args:
        parts: How many there are, all of the same size.
    """

    parts: int

    def forward(self, theirs: Tensors) -> Tensors:
        """Split. *Shape:* (parts x rows, ...) to (rows, ...) each"""
        return theirs[0].chunk(self.parts)

    def backward(self, ours: Tensors) -> Tensors:
        """Concatenate."""
        return Fused(self.parts).forward(ours)


@dataclass(frozen=True)
class Transposed:
    """Rows there are columns here."""

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* (a, b) to (b, a)"""
        return [theirs[0].T]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* (b, a) to (a, b)"""
        return [ours[0].T]


@dataclass(frozen=True)
class Shifted:
    """A position table whose first rows are for padding: nothing that counts ever reads them, so ours has none.

    Args:
        rows: Number of those rows. Backward they are zeros.
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
    """Ours is a position and a segment table, theirs the positions alone, with segment 0 added to each.

    Texts of segment 0 are read alike by both. What the other segments are is lost on the way to theirs; forward all
    segments are zeros.

    Args:
        rows: As of `Shifted`.
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
    """The bias of a fused q, k, v without a bias of the keys, which is zeros here.

    A bias of the keys adds the same number to all scores of a query, which the softmax takes out again: backward it is
    left out, and no hidden state changes.
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
    """Some of our tensors and some of theirs that hold the same.

    Args:
        ours: Our names.
        theirs: Their names.
        change: What lies between.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    change: Change = field(default_factory=Same)


def same(ours: str, theirs: str) -> Entry:
    """One tensor of ours that is one of theirs."""
    return Entry(ours=(ours,), theirs=(theirs,))


def module(ours: str, *theirs: str) -> list[Entry]:
    """Weight and bias of a module of ours that is one of theirs, or several fused."""
    change = Same() if len(theirs) == 1 else Fused(len(theirs))
    return [
        Entry(ours=(f"{ours}.{kind}",), theirs=tuple(f"{name}.{kind}" for name in theirs), change=change)
        for kind in ("weight", "bias")
    ]


def modules(names: Mapping[str, str]) -> list[Entry]:
    """Weight and bias of modules that are the same, by our name."""
    return [entry for ours, theirs in names.items() for entry in module(ours, theirs)]


@dataclass(frozen=True, kw_only=True)
class Table:
    """All tensors of a model, ours and theirs.

    Args:
        entries: Every tensor of ours stands in one of them, and every one of theirs that is a weight.
        copies: Their names for a tensor that they store a second time, such as a tied output matrix, with its first name.
        ignored: Patterns of their names that a model here has no use for, such as a pooler without a classifier.
    """

    entries: tuple[Entry, ...]
    copies: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def ours(self, theirs: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Our tensors by name, one entry at a time: a mapping that reads on demand is never held whole.

        Raises:
            KeyError: Theirs lack a tensor.
        """
        for entry in self.entries:
            yield from zip(entry.ours, entry.change.forward([theirs[name] for name in entry.theirs]), strict=True)

    def to_theirs(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Their tensors of our state, each once and contiguous; copies of tied ones are left out.

        Raises:
            KeyError: Ours lack a tensor.
        """
        return {
            name: tensor.contiguous()
            for entry in self.entries
            for name, tensor in zip(
                entry.theirs, entry.change.backward([ours[name] for name in entry.ours]), strict=True
            )
        }

    def ignores(self, name: str) -> bool:
        """Whether one of their names is of no use here."""
        return any(fnmatchcase(name, pattern) for pattern in self.ignored)
