"""Reads the files of GLUE's nine tasks, as published by the benchmark and by its sources (Wang et al. 2019).

Each line is a record with tab-separated columns; quotation marks are text. The header, or without one the number of columns,
tells which column is which. Test files have no label column. GLUE's diagnostic set, AX, is read like MNLI, whose models
predict it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError
from unicloze.records.line_files import Reader


@dataclass(frozen=True, kw_only=True)
class GlueColumns:
    """Column names in the files of a task."""

    text: tuple[str, ...]  # possible names of the column of the text, or of the first text of a pair
    pair: tuple[str, ...] = ()  # possible names of the column of the second text; empty if the task has one text
    label: tuple[str, ...] = ("label",)  # possible names of the label column
    id: tuple[str, ...] = ("index",)  # possible names of the column that identifies a prediction in a submission
    # column names of a file without a header, by the number of columns
    bare: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    drops_broken: bool = False  # whether to skip broken lines, which the published training file has


_STS = "genre", "filename", "year", "old_index", "score", "sentence1", "sentence2"
_TWO_SENTENCES = GlueColumns(text=("sentence1",), pair=("sentence2",))

LAYOUTS: Mapping[str, GlueColumns] = {
    "cola": GlueColumns(text=("sentence",), bare={4: ("source", "label", "star", "sentence")}),
    "sst-2": GlueColumns(text=("sentence",)),
    "mrpc": GlueColumns(text=("#1 String",), pair=("#2 String",), label=("Quality",)),
    "sts-b": GlueColumns(
        text=("sentence1",),
        pair=("sentence2",),
        label=("score",),
        bare={7: _STS, 9: (*_STS, "source1", "source2")},
    ),
    "qqp": GlueColumns(
        text=("question1",), pair=("question2",), label=("is_duplicate",), id=("id",), drops_broken=True
    ),
    "mnli": GlueColumns(text=("sentence1", "Premise"), pair=("sentence2", "Hypothesis"), label=("gold_label", "Label")),
    "qnli": GlueColumns(text=("question",), pair=("sentence",)),
    "rte": _TWO_SENTENCES,
    "wnli": _TWO_SENTENCES,
}  # fmt: skip
"""Layouts by task name."""

NAMED = 5
"""Maximum number of broken lines named in a message."""


def read_glue(text: str, path: Path, *, task: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records of a task's file: `text`, `pair` for tasks of two texts, `label` and `id` if present, and all other columns."""
    layout = LAYOUTS[task]
    lines = [(number, line.removesuffix("\r").split("\t")) for number, line in enumerate(text.split("\n"), 1)]
    lines = [(number, cells) for number, cells in lines if cells != [""]]
    if not lines:
        return
    first = lines[0][1]
    headed = bool(set(first) & {*layout.text, *layout.pair})
    known = {len(first): tuple(first)} if headed else layout.bare
    roles = {count: _roles(names, layout) for count, names in known.items()}
    if len(first) not in known or not all(has_all(found, layout) for found in roles.values()):
        raise UniclozeError(
            f"{path}, line 1: the columns {', '.join(first)[:80]} are not those of GLUE's {task}: "
            f"its header names {' and '.join(filter(None, (*layout.text[:1], *layout.pair[:1])))}; "
            "choose another format (task.format)"
        )
    broken = []
    for number, cells in lines[headed:]:
        if len(cells) in known:
            yield number, {roles[len(cells)].get(n, n): cell for n, cell in zip(known[len(cells)], cells, strict=True)}
        elif layout.drops_broken and "label" in roles[len(first)].values():
            broken.append(number)
        else:
            expected = " or ".join(map(str, known))
            raise UniclozeError(f"{path}, line {number}: {len(cells)} columns where {expected} are expected")
    if broken:
        named = ", ".join(map(str, broken[:NAMED])) + (", ..." if len(broken) > NAMED else "")
        warnings.warn(f"{path}: {len(broken)} broken lines are skipped ({named})", stacklevel=2)


def has_all(roles: Mapping[str, str], layout: GlueColumns) -> bool:
    """Whether the columns include all texts of a task."""
    return {"text", *(["pair"] if layout.pair else [])} <= set(roles.values())


def _roles(names: tuple[str, ...], layout: GlueColumns) -> dict[str, str]:
    """The role of each column that has one."""
    columns = {"text": layout.text, "pair": layout.pair, "label": layout.label, "id": layout.id}
    return {name: role for role, known in columns.items() for name in known if name in names}


GLUE_FORMATS: Mapping[str, Reader] = {f"glue-{task}": partial(read_glue, task=task) for task in LAYOUTS}
"""Readers by `TaskSettings.format`."""
