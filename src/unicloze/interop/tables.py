"""Key tables: a reversible mapping between our tensors and another library's.

An entry names our tensors, their tensors and the change between them. Changes are reversible, work on any device (including
`meta`, to get shapes) and only move values, so a round trip is bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class Change:
    """Converts their tensors to ours, and back, in the order of an entry's names."""

    forward: Callable[[Tensors], Tensors]  # theirs to ours
    backward: Callable[[Tensors], Tensors]  # ours to theirs


SAME = Change(lambda theirs: theirs, lambda ours: ours)
TRANSPOSED = Change(lambda theirs: [theirs[0].T], lambda ours: [ours[0].T])


def fused(chunks: int) -> Change:
    """Our tensor is the concatenation of theirs along the first dimension, such as `attention.qkv`."""
    return Change(lambda theirs: [torch.cat(list(theirs))], lambda ours: ours[0].chunk(chunks))


def split(chunks: int) -> Change:
    """Our tensors are slices of theirs along the first dimension, such as the two outputs of `qa_outputs`."""
    return Change(fused(chunks).backward, fused(chunks).forward)


def reshaped(ours: tuple[int, ...], theirs: tuple[int, ...]) -> Change:
    """The same numbers in another shape, such as one row for each attention head; -1 stands for any size."""
    return Change(lambda tensors: [tensors[0].reshape(ours)], lambda tensors: [tensors[0].reshape(theirs)])


def heads_last(heads: int, chunks: int = 1) -> Change:
    """Their projections map hidden states to heads: transposed, with an axis for the heads; ours are fused (XLNet).

    *Shape:* (hidden size, heads, head size) each, and (chunks x heads x head size, hidden size)
    """

    def backward(ours: Tensors) -> Tensors:
        return [matrix.T.reshape(matrix.shape[1], heads, -1) for matrix in ours[0].chunk(chunks)]

    return Change(lambda theirs: [torch.cat([matrix.flatten(1).T for matrix in theirs])], backward)


def query_vector(row: int, *, is_new: bool) -> Change:
    """Their vector of the slots that predict is the row of the pseudo mask in our token table (XLNet).

    If it `is_new`, their table lacks the row, which is our last. Otherwise backward stores it in both.
    """

    def forward(theirs: Tensors) -> Tensors:
        table, vector = theirs[0], theirs[1].view(1, -1)
        return [torch.cat([table[:row], vector, table[row + 1 :]])]

    return Change(forward, lambda ours: [ours[0][:row] if is_new else ours[0], ours[0][row].view(1, 1, -1)])


def appended(value: float) -> Change:
    """Our vector has one more number than theirs, at its end."""
    return Change(lambda theirs: [torch.cat([theirs[0], theirs[0].new_full((1,), value)])], lambda ours: [ours[0][:-1]])


def shifted(rows: int) -> Change:
    """A position table whose first rows are for padding, which ours does not have; backward fills them with zeros."""
    return Change(
        lambda theirs: [theirs[0][rows:]],
        lambda ours: [torch.cat([ours[0].new_zeros(rows, *ours[0].shape[1:]), ours[0]])],
    )


def folded(rows: int, segments: int) -> Change:
    """Our position and segment tables become their position table, with segment 0 added to each position.

    Texts of segment 0 are encoded the same by both. Backward loses the other segments; forward sets all to zero.
    """

    def forward(theirs: Tensors) -> Tensors:
        (positions,) = shifted(rows).forward(theirs)
        return [positions, positions.new_zeros(segments, *positions.shape[1:])]

    return Change(forward, lambda ours: shifted(rows).backward([ours[0] + ours[1][0]]))


def _with_key_bias(theirs: Tensors) -> Tensors:
    query, value = (bias.flatten() for bias in theirs)
    return [torch.cat([query, torch.zeros_like(query), value])]


KEYLESS_BIAS = Change(_with_key_bias, lambda ours: [bias.view(1, 1, -1) for bias in ours[0].chunk(3)[::2]])
"""The bias of a fused q, k, v without a key bias, which is zero in ours.

A key bias adds the same number to all scores of a query, which softmax cancels: backward drops it without changing any
hidden state.
"""


@dataclass(frozen=True)
class Entry:
    """Some of our tensors and the equivalent tensors of theirs."""

    ours: tuple[str, ...]  # our names
    theirs: tuple[str, ...]  # their names
    change: Change  # the conversion between them


@dataclass(frozen=True, kw_only=True)
class Table:
    """All tensors of a model under both names."""

    entries: tuple[Entry, ...]  # cover each of our tensors, and each of theirs that is a weight
    # their names of tensors stored twice, such as a tied output matrix, with the first name
    copies: Mapping[str, str] = field(default_factory=dict)
    # patterns of their names that are not used here, such as a pooler without a classifier
    ignored: tuple[str, ...] = ()

    def ours(self, theirs: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Our tensors by name, one entry at a time, so a mapping that reads on demand is never fully in memory."""
        for entry in self.entries:
            yield from zip(entry.ours, entry.change.forward([theirs[name] for name in entry.theirs]), strict=True)

    def to_theirs(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert our state to theirs, each tensor once and contiguous, without copies of tied ones."""
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


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def entries_of(ours: Iterable[str], names: Mapping[str, str], changes: Mapping[str, Change]) -> list[Entry]:
    """The entries of our tensors.

    Args:
        ours: Names of our tensors, in the order of the model.
        names: Their name of each of our modules, or of single tensors; `{}` stands for the number of a layer, and `a.q|k` for
            the tensors `a.q` and `a.k` together. Tensors of ours under one name are one entry.
        changes: By our name of the (first) tensor; default: equal, or parts of one another.
    """
    grouped: dict[tuple[str, ...], list[str]] = {}
    for own in ours:
        general, numbers = _NUMBER.sub("{}", own), _NUMBER.findall(own)
        module, _, kind = general.rpartition(".")
        first, *others = names[general].split("|") if general in names else names[module].split("|")
        suffix = "" if general in names else f".{kind}"
        parent = first.rpartition(".")[0]
        theirs = [first, *(name if "." in name else f"{parent}.{name}" for name in others)]
        grouped.setdefault(tuple(name.format(*numbers) + suffix for name in theirs), []).append(own)
    entries = []
    for their_names, own_names in grouped.items():
        parts = SAME if len(own_names) == len(their_names) == 1 else fused(len(their_names))
        default = split(len(own_names)) if len(own_names) > 1 else parts
        entries.append(Entry(tuple(own_names), their_names, changes.get(_NUMBER.sub("{}", own_names[0]), default)))
    return entries
