"""Whether a checkpoint holds what its configuration says, found out by names and shapes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor

from unicloze.errors import UniclozeError
from unicloze.interop.tables import Table
from unicloze.interop.weights import Weights

SHOWN = 4
"""Tensors named in a message; the others are counted."""


def check_names(place: Path, weights: Weights, table: Table, allow: Sequence[str]) -> None:
    """Refuse a checkpoint that lacks tensors or has more than its family.

    Args:
        place: What to call it.
        weights: Its tensors.
        table: What it should hold.
        allow: Patterns of names that may be missing, or of no use.

    Raises:
        UniclozeError: Not allowed tensors are missing or unexpected; the message names and counts them.
    """
    asked = dict.fromkeys(name for entry in table.entries for name in entry.theirs)
    missing = [name for name in asked if name not in weights and not _matches(name, allow)]
    known = {*asked, *table.copies}
    extra = [name for name in weights if not (name in known or table.ignores(name) or _matches(name, allow))]
    _refuse(place, {"missing": missing, "unexpected": extra})


def without_misfits(
    place: Path, weights: Weights, table: Table, ours: Mapping[str, Tensor], allow: Sequence[str]
) -> Table:
    """The table without entries whose tensors are missing or of another shape, where that is allowed.

    Args:
        place: What to call the checkpoint.
        weights: Its tensors; their names are checked already.
        table: What it should hold.
        ours: Our state with the shapes the configuration asks for, on the `meta` device.
        allow: Patterns of names that may be of another shape.

    Raises:
        UniclozeError: Not allowed tensors are of another shape, or a copy is none.
    """
    wanted = table.to_theirs(ours)
    misfits = {name for name, tensor in wanted.items() if not _fits(weights.shapes.get(name), tensor)}
    refused = [name for name in wanted if name in misfits and not _matches(name, allow)]
    shown = [f"{name} ({_size(weights.shapes[name])}, not {_size(wanted[name].shape)})" for name in refused]
    _refuse(place, {"of another shape": shown})
    for copy, first in table.copies.items():
        if copy in weights and first in weights and not torch.equal(weights[copy], weights[first]):
            raise UniclozeError(f"{place}: {copy} is not the same as {first}, and here they are one: it cannot be read")
    return Table(entries=tuple(entry for entry in table.entries if misfits.isdisjoint(entry.theirs)))


def _fits(found: Sequence[int] | None, expected: Tensor) -> bool:
    return found is not None and tuple(found) == tuple(expected.shape)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _size(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a number"


def _refuse(place: Path, problems: Mapping[str, Sequence[str]]) -> None:
    said = []
    for problem, names in problems.items():
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            plural = "s" if len(names) > 1 else ""
            said.append(
                f"{len(names)} tensor{plural} {problem}: {', '.join(name[:200] for name in names[:SHOWN])}{more}"
            )
    if said:
        raise UniclozeError(
            f"{place} does not hold what its configuration says, {'; '.join(said)}; give --allow PATTERN for what may be so"
        )
