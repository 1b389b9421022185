"""Reads the files of published data sets: GLUE's nine tasks, and multiple choice as the fields of the task `choice`.

| format | files | becomes |
|---|---|---|
| `race` | RACE's folders of articles, one JSON object per file or per line | article, question, four options |
| `swag` | SWAG's .csv | first sentence, begun second sentence, four endings |
| `copa` | COPA's .xml, or SuperGLUE's .jsonl | premise, a question for cause or effect, two alternatives |
| `story-cloze` | the Story Cloze Test's .csv | four sentences, two endings |
| `winogrande` | Winogrande's .jsonl | a sentence with a gap, two candidates |
| `wsc` | the Winograd Schema Challenge's .xml | a sentence with a gap for the pronoun, its candidates |

Labels are numbered from 0, whatever the file counts from; a file without labels is read for prediction.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

from unicloze.errors import UniclozeError
from unicloze.progress import counted
from unicloze.records.files import Lines, Reader, comma_separated, jsonl, parse_json

# Each line is a record with tab-separated columns; quotation marks are text. The header, or without one the number of
# columns, tells which column is which. Test files have no label column. GLUE's diagnostic set, AX, is read like MNLI,
# whose models predict it.


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
    "sts-b": dataclasses.replace(_TWO_SENTENCES, label=("score",), bare={7: _STS, 9: (*_STS, "source1", "source2")}),
    "qqp": GlueColumns(text=("question1",), pair=("question2",), label=("is_duplicate",), id=("id",), drops_broken=True),
    "mnli": GlueColumns(text=("sentence1", "Premise"), pair=("sentence2", "Hypothesis"), label=("gold_label", "Label")),
    "qnli": GlueColumns(text=("question",), pair=("sentence",)),
    "rte": _TWO_SENTENCES,
    "wnli": _TWO_SENTENCES,
}  # fmt: skip
"""Layouts by task name."""

NAMED = 5
"""Maximum number of broken lines named in a message."""


def read_glue(text: str, path: Path, *, task: str) -> Lines:
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
    texts = {"text", "pair"} if layout.pair else {"text"}
    if len(first) not in known or not all(texts <= set(found.values()) for found in roles.values()):
        named = f"its header names {' and '.join((*layout.text[:1], *layout.pair[:1]))}"
        cure = f"those of GLUE's {task}: {named}; choose another format (task.format)"
        raise UniclozeError(f"{path}, line 1: the columns {', '.join(first)[:80]} are not {cure}")
    broken = []
    for number, cells in lines[headed:]:
        if len(cells) in known:
            yield number, {roles[len(cells)].get(n, n): cell for n, cell in zip(known[len(cells)], cells, strict=True)}
        elif layout.drops_broken and "label" in roles[len(first)].values():
            broken.append(number)
        else:
            has = f"{counted(len(cells), 'column')} where {' or '.join(map(str, known))} are expected"
            raise UniclozeError(f"{path}, line {number}: {has}: mend the line, or choose another format (task.format)")
    if broken:
        named = ", ".join(map(str, broken[:NAMED])) + (", ..." if len(broken) > NAMED else "")
        warnings.warn(f"{path}: {len(broken)} broken lines are skipped ({named})", stacklevel=2)


def _roles(names: tuple[str, ...], layout: GlueColumns) -> dict[str, str]:
    """The role of each column that has one."""
    columns = {"text": layout.text, "pair": layout.pair, "label": layout.label, "id": layout.id}
    return {name: role for role, known in columns.items() for name in known if name in names}


GLUE_FORMATS: Mapping[str, Reader] = {f"glue-{task}": partial(read_glue, task=task) for task in LAYOUTS}
"""Readers by `TaskSettings.format`."""

GAP = "_"
"""Marks the gap that the candidates fill."""

ASKS_FOR = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
"""COPA's two questions."""

UNTOLD = "", "?", "-1"
"""Values that stand for a missing answer in unlabelled files."""


def read_race(text: str, path: Path) -> Lines:
    """RACE: each question of an article is a record (Lai et al. 2017)."""
    try:
        articles: Iterator[tuple[int, Any]] = iter([(1, parse_json(text, str(path)))])
    except UniclozeError:
        articles = jsonl(text, path)
    for line, article in articles:
        _check(article, ("article", "questions", "options"), path, line, "an article of RACE")
        questions, options, answers = article["questions"], article["options"], article.get("answers")
        answers = [None] * len(questions) if not answers and isinstance(questions, list) else answers
        lists = questions, options, answers, *(options if isinstance(options, list) else ())
        if not all(isinstance(each, list) for each in lists):
            lists_of = "its questions, options and answers, and the options of each"
            raise UniclozeError(f"{path}, line {line}: {lists_of}, must be lists")
        name = str(article.get("id", path.name)).removesuffix(".txt")
        if not len(questions) == len(options) == len(answers):
            counts = f"{len(questions)} questions, {len(options)} lists of options and {len(answers)} answers"
            raise UniclozeError(f"{path}, line {line}: there are {counts}; give one of each for each question")
        for number, (question, choices, answer) in enumerate(zip(questions, options, answers, strict=True)):
            fields = {"id": f"{name}-{number}", "context": article["article"], "question": question, "choices": choices}
            yield line, _labelled(fields, answer, "A", path, line)


def read_swag(text: str, path: Path) -> Lines:
    """SWAG: which ending follows (Zellers et al. 2018)."""
    endings = [f"ending{number}" for number in range(4)]
    for line, row in comma_separated(text, path):
        _check(row, ("sent1", "sent2", *endings), path, line, "a line of SWAG")
        fields = {"context": row["sent1"], "question": row["sent2"], "choices": [row[name] for name in endings]}
        yield line, _labelled(fields, row.get("label"), 0, path, line)


def read_copa(text: str, path: Path) -> Lines:
    """COPA: the likelier cause or effect (Roemmele et al. 2011; Wang et al. 2019, SuperGLUE)."""
    if text.lstrip().startswith("<"):
        for line, item in _elements(text, path, "item"):
            parts = {name: item.findtext(name) for name in ("p", "a1", "a2")} | {"question": item.get("asks-for")}
            answer = item.get("most-plausible-alternative")
            yield line, _copa(parts, ("p", "a1", "a2"), item.get("id"), answer, 1, path, line)
        return
    for line, row in jsonl(text, path):
        yield line, _copa(row, ("premise", "choice1", "choice2"), row.get("idx"), row.get("label"), 0, path, line)


def _copa(
    row: Mapping[str, Any], names: tuple[str, str, str], name: Any, answer: Any, first: int, path: Path, line: int
) -> dict[str, Any]:
    _check(row, names, path, line, "an item of COPA")
    if row.get("question") not in list(ASKS_FOR):  # a list, because the value may be unhashable
        raise UniclozeError(f"{path}, line {line}: COPA asks for {' or '.join(ASKS_FOR)}, not {row.get('question')!r}")
    context, *choices = (row[part] for part in names)
    fields = {"context": context, "question": ASKS_FOR[row["question"]], "choices": choices}
    return _labelled(fields if name is None else {"id": str(name), **fields}, answer, first, path, line)


def read_story_cloze(text: str, path: Path) -> Lines:
    """The Story Cloze Test: the right ending for four sentences (Mostafazadeh et al. 2016)."""
    sentences = [f"InputSentence{number}" for number in range(1, 5)]
    endings = ["RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"]
    for line, row in comma_separated(text, path):
        _check(row, (*sentences, *endings), path, line, "a line of the Story Cloze Test")
        fields = {"context": " ".join(row[name] for name in sentences), "choices": [row[name] for name in endings]}
        if "InputStoryid" in row:
            fields["id"] = row["InputStoryid"]
        yield line, _labelled(fields, row.get("AnswerRightEnding"), 1, path, line)


def read_winogrande(text: str, path: Path) -> Lines:
    """Winogrande: which candidate fills the gap (Sakaguchi et al. 2020)."""
    for line, row in jsonl(text, path):
        _check(row, ("sentence", "option1", "option2"), path, line, "a line of Winogrande")
        fields = {"cloze": row["sentence"], "choices": [row["option1"], row["option2"]]}
        if "qID" in row:
            fields["id"] = row["qID"]
        yield line, _labelled(fields, row.get("answer"), 1, path, line)


def read_wsc(text: str, path: Path) -> Lines:
    """The Winograd Schema Challenge: the candidates replace the pronoun (Levesque et al. 2012)."""
    for line, schema in _elements(text, path, "schema"):
        parts = {name: _joined(schema.find(f"text/{name}")) for name in ("txt1", "txt2")}
        choices = [_joined(answer) for answer in schema.iterfind("answers/answer")]
        if len(choices) < 2 or None in (*parts.values(), *choices):
            raise UniclozeError(f"{path}, line {line}: the schema lacks its text or its answers")
        fields = {"cloze": f"{parts['txt1']} {GAP} {parts['txt2']}".strip(), "choices": choices}
        right = _joined(schema.find("correctAnswer"))
        yield line, _labelled(fields, right.rstrip(".") if right else None, "A", path, line)


def _joined(element: ElementTree.Element | None) -> str | None:
    """The text of an element on one line; None without an element."""
    return None if element is None else " ".join((element.text or "").split())


def _elements(text: str, path: Path, tag: str) -> Iterator[tuple[int, ElementTree.Element]]:
    """The elements with a tag, each with the line it begins on."""
    parser: ElementTree.XMLPullParser[Any] = ElementTree.XMLPullParser(("start", "end"))
    starts: list[int] = []
    try:
        for number, line in enumerate(text.split("\n"), 1):
            parser.feed(line + "\n")
            for event, element in cast("Iterator[tuple[str, ElementTree.Element]]", parser.read_events()):
                if element.tag == tag and event == "start":
                    starts.append(number)
                elif element.tag == tag:
                    yield starts.pop(), element
        parser.close()
    except ElementTree.ParseError as error:
        raise UniclozeError(f"{path}, line {error.position[0]}: this is not XML ({error})") from error


def _check(row: Any, names: tuple[str, ...], path: Path, line: int, what: str) -> None:
    missing = [name for name in names if not isinstance(row, Mapping) or row.get(name) is None]
    if missing:
        raise UniclozeError(f"{path}, line {line}: this is not {what}: it lacks {', '.join(missing)}")


def _labelled(fields: dict[str, Any], answer: Any, first: str | int, path: Path, line: int) -> dict[str, Any]:
    """The fields plus `label`, the index of the right choice from 0, if the file gives it."""
    said = "" if answer is None else str(answer).strip()
    if said in UNTOLD:
        return fields
    known = [chr(ord(first) + n) if isinstance(first, str) else str(first + n) for n in range(len(fields["choices"]))]
    if said not in known:
        other = f"which is not one of {', '.join(known)}"
        raise UniclozeError(f"{path}, line {line}: the right choice is {said!r}, {other}")
    return {**fields, "label": known.index(said)}


CHOICE_FORMATS: Mapping[str, Reader] = {
    reader.__name__.removeprefix("read_").replace("_", "-"): reader
    for reader in (read_race, read_swag, read_copa, read_story_cloze, read_winogrande, read_wsc)
}
"""Readers by `TaskSettings.format`."""
