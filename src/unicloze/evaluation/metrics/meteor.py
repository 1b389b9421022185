"""METEOR 1.5 (Denkowski and Lavie 2014), computed by pycocoevalcap's Java program as in coco-caption."""

from __future__ import annotations

import importlib.util
import math
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from unicloze.errors import UniclozeError
from unicloze.evaluation.metrics.coco import note_of, tokens_of
from unicloze.evaluation.metrics.result import MetricResult

_FIELD = " ||| "
"""Separates the fields of the program's input lines."""


def meteor(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, profile: str | None = None
) -> MetricResult:
    """Corpus METEOR for English, with exact, stem, synonym and paraphrase matches."""
    found, wanted = tokens_of(predictions, references, profile)
    jar, java = programs()
    command = [java, "-Xmx2G", "-Dfile.encoding=UTF-8", "-jar", jar.name, "-", "-", "-stdio", "-l", "en", "-norm"]
    with tempfile.TemporaryFile() as errors:
        try:
            with subprocess.Popen(
                command,
                cwd=jar.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
                errors="replace",
            ) as program:
                score = _score(program, found, wanted)
        except OSError as error:
            raise UniclozeError(f"METEOR's Java program failed with the message: {_said(errors) or error}") from error
        if score is None:
            raise UniclozeError(f"METEOR's Java program failed with the message: {_said(errors) or 'none'}")
    return MetricResult(metric="meteor", values={"meteor": 100 * score}, items=len(found), note=note_of(profile))


def programs() -> tuple[Path, str]:
    """Paths of METEOR's .jar file and of the Java runtime."""
    jar, java = _jar(), shutil.which("java")
    if java is None:
        raise UniclozeError("METEOR needs Java, but java is not on the PATH: install a Java runtime.")
    return jar, java


def _score(
    program: subprocess.Popen[str], found: Sequence[Sequence[str]], wanted: Sequence[Sequence[Sequence[str]]]
) -> float | None:
    """Score of the corpus from the statistics of all texts; None if the program ends early."""
    statistics = []
    for tokens, several in zip(found, wanted, strict=True):
        answer = _ask(program, ["SCORE", *map(_clean, several), _clean(tokens)])
        if not answer:
            return None
        statistics.append(answer.strip())
    answer = _ask(program, ["EVAL", *statistics])
    for _ in found:  # a score per text, then a last line for the corpus
        answer = program.stdout.readline() if program.stdout else ""
    try:
        score = float(answer)
    except ValueError:
        return None
    return score if math.isfinite(score) else 0.0


def _ask(program: subprocess.Popen[str], fields: Iterable[str]) -> str:
    assert program.stdin is not None and program.stdout is not None
    program.stdin.write(_FIELD.join(fields) + "\n")
    program.stdin.flush()
    return program.stdout.readline()


def _clean(tokens: Sequence[str]) -> str:
    return " ".join(token for token in tokens if token != _FIELD.strip())


def _said(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return f"{lines[0]}." if lines else ""


def _jar() -> Path:
    package = importlib.util.find_spec("pycocoevalcap")
    folders = list(package.submodule_search_locations or []) if package else []
    for folder in folders:
        jar = Path(folder) / "meteor" / "meteor-1.5.jar"
        if jar.is_file():
            return jar
    raise UniclozeError('METEOR\'s program comes with pycocoevalcap: in the clone, pip install -e ".[coco]".')
