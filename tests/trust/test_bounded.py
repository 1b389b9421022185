"""Untrusted files cannot hang a command or fill the memory: errors name file and line instead."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import yaml

from unicloze import files, verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.prompting import read_prompt
from unicloze.files import parse_json, read_bytes
from unicloze.recipes import load_recipe
from unicloze.records import read_records
from unicloze.records.files import read_text as read_predictions
from unicloze.settings import TaskSettings
from unicloze.text import documents as readers
from unicloze.text.documents import find_files, other_files, read_documents
from unicloze.training.ledger import read_ledger
from unicloze.yaml_loader import Loader

MANY_DIGITS = "1" * 5000


def bomb(path: Path, size: int = 40 * 2**20) -> Path:
    if path.suffix == ".parquet":
        table = pyarrow.table({"text": ["a" * size]})
        pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=False)
    else:
        raw = b"a" * size
        packed = gzip.compress(raw) if path.suffix == ".gz" else pyarrow.compress(raw, "zstd", asbytes=True)
        path.write_bytes(packed)
    return path


@pytest.mark.parametrize("read", [
    lambda path: load_recipe(path),
    lambda path: read_records(path, TaskSettings(kind="classification", format="jsonl")),
    lambda path: read_predictions(path),
    lambda path: read_prompt(path),
    lambda path: find_files(path),
    lambda path: read_bytes(path),
    lambda path: verbs.measure("rouge", path, path),
])  # fmt: skip
def test_a_pipe_is_refused_and_does_not_hang(tmp_path: Path, read: Callable[[Path], object]) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    with pytest.raises(UniclozeError, match=r"pipe\.yaml"):
        read(pipe)


@pytest.mark.parametrize("name", ["pyproject.toml", "checkpoints/step-00000001/manifest.json"])
def test_a_pipe_in_a_model_s_folder_does_not_hang(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(UniclozeError):
        verbs.load_model(tmp_path)


def test_a_pipe_in_a_folder_is_left_out_with_a_warning(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text("text")
    assert [file.name for file in find_files(tmp_path)] == ["b.txt"]
    assert other_files(tmp_path) == {"pipe or device": 1}


@pytest.mark.parametrize("pattern", ["**", "**/*.txt", "*/**", "**/a/**/*.txt"])
def test_links_in_a_cycle_end(tmp_path: Path, pattern: str) -> None:
    """Two links back to the top, which `**` of the glob module would follow 2^40 times."""
    (tmp_path / "top" / "a").mkdir(parents=True)
    (tmp_path / "top" / "a" / "text.txt").write_text("x")
    for name in ("one", "two"):
        (tmp_path / "top" / "a" / name).symlink_to(tmp_path / "top", target_is_directory=True)
    assert [file.name for file in find_files(tmp_path / "top" / pattern)] == ["text.txt"]


def test_a_link_to_itself_is_not_a_file(tmp_path: Path) -> None:
    link = tmp_path / "loop.yaml"
    link.symlink_to(link)
    with pytest.raises(UniclozeError, match=r"loop\.yaml"):
        load_recipe(link)


PARQUET = pytest.param("a.parquet", marks=pytest.mark.whole)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.txt.gz", "a.txt.zst", PARQUET])
def test_files_that_unpack_to_far_more_than_text_are_refused(tmp_path: Path, name: str) -> None:
    path = bomb(tmp_path / name)
    with pytest.raises(UniclozeError, match=rf"{name} unpacks to more than 100 times its size"):
        list(read_documents(path))


def test_whole_files_are_bounded(tmp_path: Path) -> None:
    path = bomb(tmp_path / "a.jsonl.gz")
    for read in (read_predictions, lambda path: read_records(path, TaskSettings(kind="classification"))):
        with pytest.raises(UniclozeError, match=r"a\.jsonl\.gz unpacks to more than 100 times its size"):
            read(path)
    (tmp_path / "large").write_bytes(bytes(11))
    with pytest.raises(UniclozeError, match="large has more than 10 bytes"):
        read_bytes(tmp_path / "large", 10)
    assert read_bytes(tmp_path / "large", 11) == bytes(11)
    text = "the old cat sees the house. " * 100_000
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert read_predictions(tmp_path / "text.txt.gz") == text, "highly repetitive text is text"


def test_a_line_of_json_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "LONGEST_LINE", 30)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\n{"text": "' + "y" * 30)
    with pytest.raises(UniclozeError, match=r"a\.jsonl:2 is longer than 30 bytes"):
        list(read_documents(path))
    path.write_text('{"text": "' + "y" * 16 + '"}\n')
    assert [len(document.text) for document in read_documents(path)] == [16]


@pytest.mark.parametrize("value", [MANY_DIGITS, "[" * 100_000 + "]" * 100_000])
def test_numbers_of_thousands_of_digits_and_deep_lists_are_named(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "x", "n": 1}}\n{{"text": "x", "n": {value}}}\n')
    with pytest.raises(ValueError, match=r"nested too deep|digits"):
        parse_json(value)
    with pytest.raises(UniclozeError, match=r"a\.jsonl:2 is not JSON"):
        list(read_documents(path))
    with pytest.raises(UniclozeError, match=r"a\.jsonl, line 2"):
        read_records(path, TaskSettings(kind="classification"))
    (tmp_path / "ledger.jsonl").write_text(f'{{"event": "start"}}\n{{"event": {value}}}\n{{"event": "end"}}\n')
    assert [event["event"] for event in read_ledger(tmp_path / "ledger.jsonl")] == ["start", "end"]


LAUGHS = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]" for number in range(1, 9))]
)


@pytest.mark.parametrize(("text", "problem"), [
    ("a: " + "[" * 60 + "]" * 60, "nested more than 50 levels deep"),
    ("a: " + "[" * 5000 + "]" * 5000, "nested more than 50 levels deep"),
    ("&a [*a]", "an alias stands within what it stands for"),
    (LAUGHS, "more than 100,000 values, aliases counted"),
    (f"a: {MANY_DIGITS}", "this is not a valid int"),
])  # fmt: skip
def test_yaml_is_bounded(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"a\.yaml, line \d+: this is not valid YAML: .*{problem}"):
        load_recipe(path)
    with pytest.raises(UniclozeError, match=problem):
        read_prompt(path)


def test_aliases_and_merges_stay() -> None:
    content: Any = yaml.load("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n", Loader)
    assert content == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}, {"x": 1}]}


def test_a_large_recipe_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("# " + "x" * 2**20)
    with pytest.raises(UniclozeError, match=r"a\.yaml has more than 1,048,576 bytes"):
        load_recipe(path)


def test_pipes_of_this_process_are_read() -> None:
    out, into = os.pipe()
    with os.fdopen(into, "w") as writer:
        writer.write(json.dumps({"a": 1}))
    assert parse_json(files.read_bytes(Path(f"/dev/fd/{out}"))) == {"a": 1}
    os.close(out)
