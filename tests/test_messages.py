"""Every invalid command ends in one sentence that names what is wrong, where, and the cure.

tests/messages.txt has a line for each: the command, its exit code, and the files, lines, options, settings and values that
its error names; the other words may change. This command adds the names of new commands:

    python tests/test_messages.py
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hf_toys import save_run
from unicloze import cli, recipes
from unicloze.settings import UseSettings

LINES = Path(__file__).with_name("messages.txt")
RECIPES = str(Path(recipes.__file__).parent)

FILES = {
    "empty.txt": "",
    "broken.jsonl": '{"text": "a"}\n{"text": \n',
    "other.jsonl": '{"body": "a"}\n',
    "records.jsonl": '{"text": "the list", "label": "a"}\n{"label": "b"}\n',
    "unlabelled.jsonl": '{"text": "the list"}\n',
    "short.jsonl": '{"prediction": "a"}\n',
    "predictions.txt": "the list\n",
    "references.txt": "the list\nthe state\n",
    "answers.json": '{"a": "the list"}',
    "prompt.yaml": "template: 7\n",
    "unknown.yaml": "base: quickstart\nmodel:\n  hiden_size: 64\n",
    "type.yaml": "base: quickstart\nmodel:\n  hidden_size: wide\n",
    "null.yaml": "training:\n  steps: null\n",
    "section.yaml": "training: 5\n",
    "twice.yaml": "model:\n  num_layers: 2\n  num_layers: 3\n",
    "syntax.yaml": "model: [\n",
    "list.yaml": "- model\n",
    "circle.yaml": "base: circle.yaml\n",
    "base.yaml": "base: quikstart\n",
    "part.yaml": "base: quickstart\nobjective:\n  mixture:\n    - {mask_rat: 0.3}\n",
    "labels.yaml": "base: quickstart\nobjective:\n  mixture:\n    - {label: a}\n    - {label: a}\n",
    "share.yaml": "base: quickstart\nobjective:\n  mixture:\n    - {share: 0}\n",
    "phase.yaml": "base: quickstart\ntraining:\n  phases:\n    - {model.hidden_size: 8}\n",
    "measured.yaml": "base: quickstart\nobjective:\n  mixture:\n    - {evaluate: false}\n",
}
"""Files in the working directory of all commands."""

NAMES = re.compile(
    r"--[\w-]+(?:\.\w+)*|(?<!\w)'[^']+'|`[^`]+`|line \d+|\w+(?:\.\w+)+|(?<![\w.])\d[\d,.]*\d|(?<![\w.])\d\b"
)
"""What a user looks for in an error."""


def said_to(command: str, folder: Path) -> tuple[int, str]:
    """The exit code and the error of a command, which must be a line alone."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(shlex.split(command))
    errors = [line for line in err.getvalue().splitlines() if line.startswith("unicloze: error: ")]
    assert len(errors) == 1 and code in (1, 2) and not out.getvalue(), f"{command}: {code}, {out}{err.getvalue()}"
    said = errors[0].removeprefix("unicloze: error: ").replace(f"{folder}{os.sep}", "")
    return code, re.sub(rf"{re.escape(RECIPES)}/([^,]*), line [0-9]+", r"recipes/\1", said)


def names_in(said: str) -> list[str]:
    choices = re.sub(r"\(choose from [^)]*\)", "", said)  # quoted before Python 3.14
    return list(dict.fromkeys(NAMES.findall(choices)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("messages")
    prepare(place)
    with contextlib.chdir(place):
        yield place


def prepare(folder: Path) -> None:
    """The files and models that the commands name."""
    for name, content in FILES.items():
        (folder / name).write_text(content, encoding="utf-8")
    save_run(folder / "run")
    save_run(folder / "encoder", name="masked", targets=["ae"])
    causal = UseSettings(visibility="left_to_right")
    save_run(folder / "writer", name="causal", targets=["lm"], visibility="left_to_right", use=causal)


def commands() -> list[list[str]]:
    """The fields of each line: command, exit code, names."""
    return [[*re.split(r" \| ?", line), "", ""][:3] for line in LINES.read_text(encoding="utf-8").splitlines()]


def test_an_invalid_command_is_told_what_where_and_the_cure(folder: Path) -> None:
    wrong = {}
    for command, code, names in commands():
        found, said = said_to(command, folder)
        missing = [name for name in names.split("  ") if name not in said]
        if missing or str(found) != code:
            wrong[command] = found, said, missing
    assert not wrong


def test_every_verb_has_a_message() -> None:
    without = [verb for verb in cli.VERBS if not any(f"{line[0]} ".startswith(f"{verb} ") for line in commands())]
    assert not without, f"give {LINES.name} an invalid command of each"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        prepare(Path(place))
        told = {command: said_to(command, Path(place)) for command, _, _ in commands()}
    lines = [f"{command} | {code} | {'  '.join(names_in(said))}" for command, (code, said) in told.items()]
    LINES.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{LINES}: {len(lines)} messages", file=sys.stderr)
