"""Checks a checkpoint's tensor names and shapes against its configuration, before reading any weights."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor

from unicloze.errors import UniclozeError
from unicloze.interop.tables import Table
from unicloze.interop.weights import Weights

SHOWN = 64
"""Most names shown in a message; names that differ only by layer count once."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def check_names(place: Path, weights: Weights, table: Table, allow: Sequence[str]) -> None:
    """Reject a checkpoint with missing or unexpected tensors.

    Args:
        place: Its name in messages.
        weights: Its tensors.
        table: The expected tensors.
        allow: Patterns of names that may be missing or unexpected.

    Raises:
        UniclozeError: Other tensors are missing or unexpected; the message lists and counts them.
    """
    asked = dict.fromkeys(name for entry in table.entries for name in entry.theirs)
    missing = [name for name in asked if name not in weights and not _matches(name, allow)]
    extra = [name for name in _unread(weights, table) if not _matches(name, allow)]
    _refuse(place, {"missing": missing, "unexpected": extra})


def without_misfits(
    place: Path, weights: Weights, table: Table, ours: Mapping[str, Tensor], allow: Sequence[str]
) -> Table:
    """The table without entries whose tensors are missing or misshaped, where that is allowed.

    Args:
        place: Name of the checkpoint in messages.
        weights: Its tensors, whose names are already checked.
        table: The expected tensors.
        ours: Our state with the shapes of the configuration, on the `meta` device.
        allow: Patterns of names that may have another shape.

    Raises:
        UniclozeError: Other tensors have the wrong shape, or a copy differs from its original.
    """
    wanted = table.to_theirs(ours)
    misfits = {name for name, tensor in wanted.items() if not _fits(weights.shapes.get(name), tensor)}
    refused = [name for name in wanted if name in misfits and not _matches(name, allow)]
    shapes = {name: f"{_size(weights.shapes[name])}, not {_size(wanted[name].shape)}" for name in refused}
    _refuse(place, {"of another shape": refused}, shapes)
    for copy, first in table.copies.items():
        if copy in weights and first in weights and not torch.equal(weights[copy], weights[first]):
            raise UniclozeError(
                f"{place}: {copy} differs from {first}, but unicloze ties them: the model cannot be imported"
            )
    return Table(entries=tuple(entry for entry in table.entries if misfits.isdisjoint(entry.theirs)))


def said_of_allowed(place: Path, weights: Weights, table: Table, held: Table) -> list[str]:
    """Sentences about tensors skipped because of `allow`.

    Args:
        place: Name of the checkpoint.
        weights: Its tensors.
        table: The expected tensors.
        held: The tensors read, as returned by `without_misfits`.
    """
    read = {name for entry in held.entries for name in entry.theirs}
    drawn = dict.fromkeys(name for entry in table.entries for name in entry.theirs if name not in read)
    unread = _unread(weights, table)
    said = (
        [f"{_counted(drawn)} of {place} did not fit, as allowed, and are newly initialised: {in_words(drawn)}"]
        if drawn
        else []
    )
    return said + ([f"{_counted(unread)} of {place} ignored, as allowed: {in_words(unread)}"] if unread else [])


def in_words(names: Iterable[str], notes: Mapping[str, str] | None = None) -> str:
    """Tensor names with those of several layers merged to a pattern for `--allow`: `encoder.layer.*.output.bias (x12)`.

    Args:
        names: The names.
        notes: Text to add to some of them.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        groups.setdefault((_NUMBER.sub("*", name), (notes or {}).get(name, "")), []).append(name)
    said = []
    for (pattern, note), group in list(groups.items())[:SHOWN]:
        inside = ", ".join(part for part in (note, f"x{len(group)}" if len(group) > 1 else "") if part)
        said.append((pattern if len(group) > 1 else group[0])[:200] + (f" ({inside})" if inside else ""))
    return ", ".join(said) + (f" and {len(groups) - SHOWN} more" if len(groups) > SHOWN else "")


def _unread(weights: Weights, table: Table) -> list[str]:
    """Tensors of a checkpoint that its family does not have."""
    known = {*table.copies, *(name for entry in table.entries for name in entry.theirs)}
    return [name for name in weights if not (name in known or table.ignores(name))]


def _counted(names: Collection[str]) -> str:
    return f"{len(names):,} tensor{'s' if len(names) > 1 else ''}"


def _fits(found: Sequence[int] | None, expected: Tensor) -> bool:
    return found is not None and tuple(found) == tuple(expected.shape)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _size(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


def _refuse(place: Path, problems: Mapping[str, Sequence[str]], notes: Mapping[str, str] | None = None) -> None:
    said = [f"{_counted(names)} {problem}: {in_words(names, notes)}" for problem, names in problems.items() if names]
    if said:
        raise UniclozeError(
            f"{place} does not match its configuration: {'; '.join(said)}; pass --allow PATTERN to accept this"
        )
