"""The built-in corpus: documentation found in every Python installation.

Its documents are the topics of the language reference (`pydoc_data.topics`) and, one per module, the docstrings of the
standard library and of the installed numpy and torch. Everything is parsed from source; nothing is imported.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gzip
import importlib.metadata
import io
import json
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from unicloze.cores import usable_cores
from unicloze.text.documents import Document

_PACKAGES = "numpy", "torch"
_SKIPPED = frozenset(
    {"test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "site-packages", "dist-packages"}
    | {"_vendor", "vendored_packages", "_internal", "__pycache__"}
)
_FILES_A_PROCESS, _MOST_PROCESSES = 200, 8
_LEAST_CHARACTERS = 200
_LEAST_BODY = 20


def file_name() -> str:
    """Name of the corpus file, with the versions it is made from.

    For example `python-docs-3.11.7-numpy-2.4.6-torch-2.13.0.jsonl.gz`.
    """
    parts = ["python-docs", platform.python_version()]
    for package in _PACKAGES:
        try:
            parts.append(f"{package}-{importlib.metadata.version(package).split('+')[0]}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return "-".join(parts) + ".jsonl.gz"


def write_python_docs(folder: Path) -> Path:
    """Write the corpus to a folder unless it is there; returns the file, one {"text": ..., "name": ...} per line."""
    path = folder / file_name()
    if not path.is_file():
        partial = path.with_suffix(".partial")
        with partial.open("wb") as raw, gzip.GzipFile("", "wb", 5, raw, 0) as compressed:
            for document in python_docs():
                compressed.write((json.dumps({"text": document.text, "name": document.path}) + "\n").encode())
        partial.rename(path)
    return path


def python_docs() -> Iterator[Document]:
    """The documents: topics, then modules, sorted by name, without those under 200 characters."""
    yield from _topics(Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py")
    for name, docstrings in _modules():
        text = "\n\n".join(f"{header}\n\n{docstring}".rstrip() for header, docstring in docstrings)
        if len(text) >= _LEAST_CHARACTERS:
            yield Document(text=text, path=name, line=1)


Docstrings = list[tuple[str, str]]
"""Headers and docstrings of what is documented."""


class Summary(NamedTuple):
    """A docstring with text after its summary line."""

    module: str  # its module
    number: int  # its number within the module, from 0
    line: str  # the summary line
    body: str  # the text after it, with white space collapsed


@functools.cache
def summaries() -> tuple[Summary, ...]:
    """Docstrings of a line, a blank line and a body of some words, without duplicates."""
    found: dict[tuple[str, str], Summary] = {}
    for name, docstrings in _modules():
        before = len(found)
        for _, docstring in docstrings:
            line, _, rest = docstring.strip().partition("\n")
            body = " ".join(rest.split())
            if rest.startswith("\n") and len(body) >= _LEAST_BODY and len(line.split()) > 1:
                found.setdefault((line, body), Summary(name, len(found) - before, line.strip(), body))
    return tuple(found.values())


def _topics(path: Path) -> Iterator[Document]:
    if not path.is_file():
        return
    for statement in ast.parse(path.read_bytes()).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            topics = ast.literal_eval(statement.value)
            for name in sorted(topics):
                if len(topics[name]) >= _LEAST_CHARACTERS:
                    yield Document(text=topics[name], path=f"pydoc_data.topics:{name}", line=1)


def _modules() -> Iterator[tuple[str, Docstrings]]:
    """Names and docstrings of modules that may have any, parsed in up to one process per core."""
    files = list(_files())
    processes = min(usable_cores(), _MOST_PROCESSES, len(files) // _FILES_A_PROCESS)
    parsed = map(_parsed, files) if processes < 2 else _parsed_side_by_side(files, processes)
    yield from ((name, found) for (name, _), found in zip(files, parsed, strict=True) if found is not None)


def _files() -> Iterator[tuple[str, str]]:
    """Names and paths of the modules of the standard library and the packages."""
    standard_library = Path(sysconfig.get_path("stdlib"))
    yield from _below(standard_library, standard_library)
    for package in _PACKAGES:
        for folder in sys.path:
            if (Path(folder) / package / "__init__.py").is_file():
                yield from _below(Path(folder) / package, Path(folder))
                break


def _below(folder: Path, root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*.py")):
        relative = path.relative_to(root)
        if not _SKIPPED.intersection(relative.parts):
            yield ".".join(relative.with_suffix("").parts).removesuffix(".__init__"), str(path)


def _parsed_side_by_side(files: Sequence[tuple[str, str]], processes: int) -> Iterator[Docstrings | None]:
    """`_parsed` in several processes; files that a process leaves unanswered are parsed here."""
    with contextlib.ExitStack() as running:
        answers = [_start_parser(files[first::processes], running) for first in range(processes)]
        for i, file in enumerate(files):
            try:
                found = json.loads(answers[i % processes].readline())
                yield None if found is None else [(header, docstring) for header, docstring in found]
            except ValueError:  # no answer: the process ended
                answers[i % processes] = io.BytesIO()
                yield _parsed(file)


def _start_parser(files: Sequence[tuple[str, str]], running: contextlib.ExitStack) -> IO[bytes]:
    """Output of a process that parses some modules. `multiprocessing` would rerun a script without a main guard."""
    command = [sys.executable, "-P", "-c", "from unicloze.text.python_docs import parse_files; parse_files()"]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    pipe, silence = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=silence, env=paths, start_new_session=True)
    except (OSError, TypeError):  # the interpreter is embedded in another program
        return io.BytesIO()
    running.callback(running.enter_context(process).kill)
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(files).encode())
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    return process.stdout


def parse_files() -> None:
    """Body of such a process: reads (name, path) of modules as JSON from stdin, writes one JSON line each to stdout."""
    for file in json.load(sys.stdin.buffer):
        sys.stdout.buffer.write(json.dumps(_parsed(file)).encode() + b"\n")


def _parsed(file: tuple[str, str]) -> Docstrings | None:
    name, path = file
    source = Path(path).read_bytes()
    if b'"""' not in source and b"'''" not in source:
        return None
    try:
        return list(_docstrings(ast.parse(source), name))
    except (SyntaxError, ValueError):
        return None  # templates and files for other versions of Python


def _docstrings(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> Iterator[tuple[str, str]]:
    """Header and docstring of each documented object; a module's docstring may be empty."""
    docstring = ast.get_docstring(node)
    if docstring or isinstance(node, ast.Module):
        yield _header(node, name), docstring or ""
    owner = f"{name}." if isinstance(node, ast.ClassDef) else ""
    pending: list[ast.stmt] = list(node.body)
    for statement in pending:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(statement, owner + statement.name)
        elif isinstance(statement, ast.If | ast.Try):
            pending.extend(statement.body)


def _header(node: ast.AST, name: str) -> str:
    match node:
        case ast.ClassDef():
            bases = ", ".join(ast.unparse(base) for base in node.bases)
            return f"class {name}({bases})" if bases else f"class {name}"
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return f"{name}({ast.unparse(node.args)})"
        case _:
            return name
