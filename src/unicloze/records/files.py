"""Reads records from files: text, JSON, lines, columns, parallel files and archives."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError, option_of
from unicloze.files import LARGEST_FILE, read_bytes
from unicloze.progress import counted
from unicloze.settings import PYTHON_DOCS
from unicloze.text.python_docs import summaries

_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""A JSON escape for half of a surrogate pair."""


def kind_of(path: Path) -> str:
    """The suffix that determines how to read a file: `.txt` for `a.txt` and `a.txt.gz`."""
    return Path(path.name.removesuffix(".gz")).suffix


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, which may be gzipped."""
    if not path.is_file():
        raise UniclozeError(f"There is no file {path}: name one.")
    try:
        content = read_bytes(path)
    except PermissionError as error:
        raise UniclozeError(f"{path}: no permission to read it: change its permissions.") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UniclozeError(f"{path} is cut off or damaged ({error}): fetch or write it again.") from error
    except OSError as error:
        raise UniclozeError(f"{path} cannot be read ({error}): name another file.") from error
    return decoded(content, path)


def decoded(content: bytes, place: Path | str) -> str:
    """Decode the UTF-8 bytes of a file."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UniclozeError(f"{place}, line {line}: this is not UTF-8; convert the file") from error


def parse_json(text: str, place: str, *, unique: bool = False) -> Any:
    """Parse a text as JSON."""

    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise UniclozeError(f"{place}: the key {twice} occurs twice; remove one of them")
        return found

    try:
        value = json.loads(text, object_pairs_hook=without_repeats if unique else None)
        if _HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        where = f"{place}, line {error.lineno}" if error.lineno > 1 else place
        raise UniclozeError(f"{where}: this is not JSON ({error.msg}, column {error.colno}); fix it") from error
    except UnicodeEncodeError as error:
        before = error.object[max(0, error.start - 30) : error.start]
        raise UniclozeError(f"{place}: half of a surrogate pair after '{before}'; fix the file") from error
    except ValueError as error:  # a number with thousands of digits
        raise UniclozeError(f"{place}: this JSON cannot be read ({error}); fix it") from error
    except RecursionError as error:
        raise UniclozeError(f"{place}: this is not JSON (nested too deep); fix it") from error
    return value


LARGEST_FIELD = 1 << 27
"""Maximum number of characters in a field of a .csv or .tsv file."""

Lines = Iterator[tuple[int, dict[str, Any]]]
"""The line of each record in its file, and its fields."""
Found = Iterator[tuple[int | str, dict[str, Any]]]
"""The same, or a description of the record's place instead of its line."""
Reader = Callable[[str, Path], Found]
"""From a file's text and path (for messages) to its records."""


_QUOTED = re.compile(r'"[^"]*"')
_HEADER = re.compile(rf'\s*(?:[^"\r\n]+|{_QUOTED.pattern})*')
"""The first nonblank line; a quoted name may contain a line break."""


def jsonl(text: str, path: Path | str) -> Lines:
    """Records of a file with one JSON object per line."""
    for line, content in enumerate(text.split("\n"), 1):
        if content.strip():
            fields = parse_json(content, f"{path}, line {line}")
            if not isinstance(fields, dict):
                raise UniclozeError(f"{path}, line {line}: a record must be a JSON object; this is not one")
            yield line, fields


def separated(text: str, path: Path, *, delimiter: str, quoted: bool, blank: bool = False) -> Lines:
    """Records of a file with a header and one record per line."""
    names: list[str] | None = None
    for line, row in _rows(text, path, delimiter, quoted):
        if not row and not blank:
            continue
        row = row or [""]
        if names is None:
            names = row
            twice = next((name for name in names if name and names.count(name) > 1), None)
            if twice is not None:
                raise UniclozeError(f"{path}, line {line}: two columns have the name '{twice}': rename one")
        elif len(row) != len(names):
            has = f"{counted(len(row), 'column')} where the header, the first line, has {len(names)}"
            cure = f"quote fields that contain {delimiter!r}" if quoted else "remove tabs within fields"
            raise UniclozeError(f"{path}, line {line}: {has} ({', '.join(names)}): give each line as many, or {cure}")
        else:
            yield line, dict(zip(names, row, strict=True))


def _rows(text: str, path: Path, delimiter: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """The columns of each row with its first line; without quoting, a carriage return within a line is text."""
    if not quoted:
        lines = text.removesuffix("\n").split("\n") if text else []
        for number, line in enumerate((line.removesuffix("\r") for line in lines), 1):
            yield number, line.split(delimiter) if line else []
        return
    csv.field_size_limit(LARGEST_FIELD)
    rows, first = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), 1
    try:
        for row in rows:
            yield first, row
            first = rows.line_num + 1
    except csv.Error as error:
        cure = "end each quoted field with a quotation mark, and double those within it"
        raise UniclozeError(f"{path}, line {first}: {error}" + f": {cure}" * ("limit" not in str(error))) from error


def tsv(text: str, path: Path) -> Lines:
    """Records of a file with a header and tab-separated columns, without quoting."""
    return separated(text, path, delimiter="\t", quoted=False)


def comma_separated(text: str, path: Path) -> Lines:
    """Records of a file with a header and comma-separated columns; columns with a comma or a line break are quoted.

    If the header has no comma outside quotes but semicolons, as Excel writes in much of Europe, or else tabs, those separate.
    """
    header = _QUOTED.sub("", _HEADER.match(text)[0])  # type: ignore[index]  # it always matches
    delimiter = next((mark for mark in ",;\t" if mark in header), ",")
    return separated(text, path, delimiter=delimiter, quoted=True)


DOCUMENT = "-DOCSTART-"
"""First column of the line that begins a document; it is not a word."""

CONLLU_COLUMNS = "id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"


def read_conll(text: str, path: Path) -> Lines:
    """Sentences of a file whose columns are separated by tabs, or else by spaces.

    A record has `tokens`, the first column; `tags`, the last column, if there are two or more; and each column under its
    number from 0 (`--task.fields '{tags: "1"}'` chooses the second).
    """
    for line, columns in _sentences(text, path, _cells, re.compile(re.escape(DOCUMENT))):
        fields: dict[str, Any] = {str(number): column for number, column in enumerate(columns)}
        yield line, fields | {"tokens": columns[0]} | ({"tags": columns[-1]} if len(columns) > 1 else {})


def read_conllu(text: str, path: Path) -> Lines:
    """Sentences of a CoNLL-U file: `tokens` (forms), `tags` (universal parts of speech), and the columns by name, but `id`.

    Comments, multiword tokens and empty nodes are skipped.
    """
    body = "\n".join("#" if line.startswith("#") else line for line in text.split("\n"))
    for line, columns in _sentences(body, path, lambda row: row.split("\t"), re.compile(r"#|\d+[-.]\d+")):
        if len(columns) != len(CONLLU_COLUMNS):
            has = f"{counted(len(columns), 'column')} where CoNLL-U has {len(CONLLU_COLUMNS)}"
            cure = f"separate them by tabs, with _ for no value, or choose another {option_of('task.format')}"
            raise UniclozeError(f"{path}, line {line}: {has}: {cure}")
        fields: dict[str, Any] = dict(zip(CONLLU_COLUMNS, columns, strict=True))
        del fields["id"]  # of each word, not of the record
        yield line, fields | {"tokens": fields["form"], "tags": fields["upos"]}


def _cells(line: str) -> list[str]:
    """Columns of a line, separated only by tabs or spaces: other white space may occur in a word."""
    return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]


def _sentences(
    text: str, path: Path, cells_of: Callable[[str], list[str]], aside: re.Pattern[str]
) -> Iterator[tuple[int, list[list[str]]]]:
    """The columns of each sentence, with its first line; lines with something `aside` in the first column are no words."""
    if re.match(r'\s*\{"[^"]*":', text):
        said = f"read it with {option_of('task.format')} jsonl"
        raise UniclozeError(f"{path}, line 1: this is JSON, not columns: {said}")
    rows: list[list[str]] = []
    start, width = 0, 0
    for number, line in enumerate([*text.split("\n"), ""], 1):
        line = line.strip("\r ")
        cells = cells_of(line) if line.strip() else []
        if not cells and rows:
            yield start, [list(column) for column in zip(*rows, strict=True)]
            rows = []
        if not cells or aside.fullmatch(cells[0]):
            continue
        width = width or len(cells)
        if len(cells) != width:
            has = f"{counted(len(cells), 'column')} where the first line has {width}"
            cure = "give each line as many, separated by tabs if a word contains spaces"
            raise UniclozeError(f"{path}, line {number}: {has}: {cure}")
        start = start if rows else number
        rows.append(cells)


def json_records(text: str, path: Path) -> Found:
    """The records of a JSON document: a list, or the format of SQuAD or CoQA, detected from its first entry.

    Questions of SQuAD (Rajpurkar et al. 2016, 2018) have `id`, `title`, and, if in the file, `context`, `question` and
    `answers` with `text` and `answer_start`; the answers are empty if the question is marked as impossible.

    Turns of CoQA's conversations (Reddy et al. 2019) have `id`, `story`, `turn`, `domain`, and, if in the file, `history`
    (earlier questions and answers), `context`, `question`, `answers` (of all annotators), `rationale` and `rationale_start`
    (-1 without a rationale).
    """
    document = parse_json(text, str(path))
    if isinstance(document, list):
        return _listed(document, path)
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list):
        lacks = "'data' is missing or not a list, unlike in SQuAD's and CoQA's files"
        raise UniclozeError(f"{path}: this is not a list of records, and {lacks}; fix the file")
    is_coqa = bool(data) and isinstance(data[0], dict) and not {"story", "questions"}.isdisjoint(data[0])
    return (_coqa if is_coqa else _squad)(data, path)


def _listed(entries: list[Any], path: Path) -> Found:
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise UniclozeError(f"{path}, entry {number}: a record must be a JSON object; this is not one")
        yield f"entry {number}", entry


def _squad(data: list[Any], path: Path) -> Found:
    for article in data:
        title = article.get("title", "") if isinstance(article, dict) else ""
        place = f"{path}, article '{title}'"
        for paragraph in _get(article, "paragraphs", list, place):
            context = _held(paragraph, "context", "context", place)
            for question in _get(paragraph, "qas", list, place):
                name = _get(question, "id", str, place)
                fields = {"id": name, "title": title, **context}
                fields |= _held(question, "question", "question", f"{path}, question {name}")
                if "answers" in question:
                    fields["answers"] = [] if question.get("is_impossible") else question["answers"]
                yield f"question {name}", fields


def _coqa(data: list[Any], path: Path) -> Found:
    for story in data:
        name = _get(story, "id", str, f"{path}, a story")
        place = f"{path}, story {name}"
        context = _held(story, "story", "context", place)
        answers = _get(story, "answers", list, place) if "answers" in story else None
        others = _get(story, "additional_answers", dict, place) if "additional_answers" in story else {}
        history: list[list[str]] = []
        for number, question in enumerate(_get(story, "questions", list, place)):
            turn = _get(question, "turn_id", int, place)
            here = f"{place}, turn {turn}"
            fields: dict[str, Any] = {"id": f"{name}-{turn}", "story": name, "turn": turn, **context}
            fields |= _held(question, "input_text", "question", here)
            if answers is not None or number == 0:
                fields["history"] = list(history)
            if answers is not None:
                several = [_nth(each, number, turn, here) for each in (answers, *others.values())]
                fields["answers"] = [_get(one, "input_text", str, here) for one in several]
                fields["rationale"] = several[0].get("span_text", "")
                fields["rationale_start"] = several[0].get("span_start", -1)
                history.append([fields.get("question", ""), fields["answers"][0]])
            fields["domain"] = str(story.get("source", ""))
            yield f"story {name}, turn {turn}", fields


def _held(record: Any, name: str, role: str, place: str) -> dict[str, str]:
    """A text by its role; empty if the file leaves it out, as reference files may."""
    return {role: _get(record, name, str, place)} if isinstance(record, dict) and name in record else {}


def _nth(answers: Any, number: int, turn: int, place: str) -> Any:
    if not isinstance(answers, list) or len(answers) <= number:
        raise UniclozeError(f"{place}: an annotator's answer is missing; fix the file")
    answer = answers[number]
    if isinstance(answer, dict) and answer.get("turn_id", turn) != turn:
        cure = "put each annotator's answers in the order of the questions"
        raise UniclozeError(f"{place}: the answer in its place is for turn {answer['turn_id']}; {cure}")
    return answer


def _get(record: Any, name: str, kind: type, place: str) -> Any:
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, kind):
        other = "is missing or has a different type from SQuAD's and CoQA's files"
        raise UniclozeError(f"{place}: '{name}' {other}; fix the file")
    return value


def parallel(path: Path) -> Lines:
    """Lines of a file as `source`, and those of a second file, named after a comma, as `target`."""
    sources, *others = (Path(name) for name in ([str(path)] if path.is_file() else str(path).split(",")))
    if len(others) > 1:
        raise UniclozeError(f"{path} names {len(others) + 1} files: give two, SOURCE,TARGET, with one line per record")
    columns = [_lines(file) for file in (sources, *others)]
    if len(columns) == 2 and len(columns[0]) != len(columns[1]):
        counts = f"{sources} has {len(columns[0]):,} lines and {others[0]} {len(columns[1]):,}"
        raise UniclozeError(f"{counts}: give files that match line by line")
    for number, texts in enumerate(zip(*columns, strict=True), 1):
        yield number, dict(zip(("source", "target"), texts, strict=False))


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise UniclozeError(f"there is no file {path}: give a file of texts, one per line")
    lines = [line.strip() for line in read_text(path).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def dstc7(path: Path) -> Lines:
    """The published human evaluation of DSTC7, track 2: `context`, and the human responses as `references`.

    Contexts without a human response are left out.
    """
    if not path.is_file():
        raise UniclozeError(f"there is no file {path}: give the archive of DSTC7's human evaluation, a .tgz")
    tables = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = Path(member.name).name
                if name in _DSTC7_TABLES and (file := archive.extractfile(member)) is not None:
                    if member.size > LARGEST_FILE:
                        raise UniclozeError(f"{path}: {name} is larger than {LARGEST_FILE:,} bytes")
                    tables[name] = file.read().decode("utf-8").removesuffix("\n").replace("\r\n", "\n").split("\n")
    except (tarfile.TarError, UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise UniclozeError(f"{path}: this is not the archive of DSTC7's human evaluation ({error})") from error
    for name in _DSTC7_TABLES:
        if name not in tables:
            raise UniclozeError(f"{path} contains no {name}: give the archive of DSTC7's human evaluation")
    contexts, responses = (tables[name] for name in _DSTC7_TABLES)
    references = {key: list(filter(None, texts)) for key, *texts in (line.split("\t") for line in responses[1:])}
    for number, line in enumerate(contexts[1:], 2):
        key, *columns = line.split("\t")
        if len(columns) != 2 or key not in references:
            expected = "three columns and a line of human responses are expected"
            raise UniclozeError(f"{path}, {_DSTC7_TABLES[0]}, line {number}: {expected}")
        if references[key]:
            yield number, {"id": key, "context": columns[1], "references": references[key]}


_DSTC7_TABLES = "dstc7-task2-context.tsv", "dstc7-task2-gold_responses.tsv"


def python_docs(path: Path) -> Lines:
    """The docstrings of this Python installation: `target` is the summary line, `source` the rest.

    A hash of the module's name puts each docstring in one part, so that no module is in both.
    """
    if str(path) not in PYTHON_DOCS_PARTS:
        raise UniclozeError(f"there are no records {path}: give {' or '.join(PYTHON_DOCS_PARTS)}")
    number = 0
    for summary in summaries():
        development = hashlib.sha256(summary.module.encode()).digest()[0] % 10 == 0
        if development == (path.name == "dev"):
            number += 1
            yield number, {"id": f"{summary.module}:{summary.number}", "source": summary.body, "target": summary.line}


PYTHON_DOCS_PARTS = f"{PYTHON_DOCS}/train", f"{PYTHON_DOCS}/dev"
