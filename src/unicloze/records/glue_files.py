"""The files of GLUE's nine tasks, as the benchmark and the sources of its tasks publish them (Wang et al. 2019).

A line is a record, its columns stand between tabs, and quotation marks are text. Which column holds what follows from the
names in the first line, or from the number of columns where a file has no such line. Test files have no column of labels.
GLUE's diagnostic set, AX, is read as MNLI is: a model of MNLI predicts it.
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
class Layout:
    """Where the files of a task keep what it needs.

    Args:
        text: Names that the column of the text, or of the first text of a pair, may have.
        pair: Names that the column of the second text may have; none where the task has one text.
        label: Names that the column of the answer may have.
        id: Names that the column may have by which a prediction is sent in.
        bare: Names of the columns of a file without a header, by their number.
        drops_broken: The published training file has broken lines, which everybody leaves out.
    """

    text: tuple[str, ...]
    pair: tuple[str, ...] = ()
    label: tuple[str, ...] = ("label",)
    id: tuple[str, ...] = ("index",)
    bare: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    drops_broken: bool = False


_STS = "genre", "filename", "year", "old_index", "score", "sentence1", "sentence2"
_TWO_SENTENCES = Layout(text=("sentence1",), pair=("sentence2",))

LAYOUTS: Mapping[str, Layout] = {
    "cola": Layout(text=("sentence",), bare={4: ("source", "label", "star", "sentence")}),
    "sst-2": Layout(text=("sentence",)),
    "mrpc": Layout(text=("#1 String",), pair=("#2 String",), label=("Quality",)),
    "sts-b": Layout(
        text=("sentence1",),
        pair=("sentence2",),
        label=("score",),
        bare={7: _STS, 9: (*_STS, "source1", "source2")},
    ),
    "qqp": Layout(
        text=("question1",), pair=("question2",), label=("is_duplicate",), id=("id",), drops_broken=True
    ),
    "mnli": Layout(text=("sentence1", "Premise"), pair=("sentence2", "Hypothesis"), label=("gold_label", "Label")),
    "qnli": Layout(text=("question",), pair=("sentence",)),
    "rte": _TWO_SENTENCES,
    "wnli": _TWO_SENTENCES,
}  # fmt: skip
"""By the name of the task."""

NAMED = 5
"""So many broken lines are named in a message."""


def read_glue(text: str, path: Path, *, task: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records of a file of a task: `text`, `pair` if it has two, `label` and `id` if the file has them, and other columns.

    Raises:
        UniclozeError: The file is none of the task's, or a line has another number of columns than the first.
    """
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
            f"{path}, line 1: the columns {', '.join(first)[:80]} are none of GLUE's {task}: "
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
        warnings.warn(f"{path}: {len(broken)} broken lines are left out ({named})", stacklevel=2)


def has_all(roles: Mapping[str, str], layout: Layout) -> bool:
    """Whether columns hold all texts of a task."""
    return {"text", *(["pair"] if layout.pair else [])} <= set(roles.values())


def _roles(names: tuple[str, ...], layout: Layout) -> dict[str, str]:
    """The role of each column that has one."""
    columns = {"text": layout.text, "pair": layout.pair, "label": layout.label, "id": layout.id}
    return {name: role for role, known in columns.items() for name in known if name in names}


GLUE_FORMATS: Mapping[str, Reader] = {f"glue-{task}": partial(read_glue, task=task) for task in LAYOUTS}
"""By `TaskSettings.format`."""
