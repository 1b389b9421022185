"""Writing files: completely and through links, devices and folders are not replaced, and JSON is valid."""

from __future__ import annotations

import json
import os
import stat
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from unicloze import verbs
from unicloze.comparison.compare import compare_recipes
from unicloze.errors import UniclozeError, UsageError
from unicloze.files import write_file
from unicloze.finetuning.generate import PartialFile
from unicloze.finetuning.seeds import finetune_seeds
from unicloze.pretraining.budget import Budget
from unicloze.recipes import load_recipe
from unicloze.terminal import show
from unicloze.training.checkpoint import save_checkpoint
from unicloze.verbs.options import check_file


def test_a_link_stays_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link, target = tmp_path / "link.txt", tmp_path / "real" / "file.txt"
    link.symlink_to(target)
    write_file(link, "one")
    with PartialFile(link, 1, {}, lambda *_: True) as part:
        assert part.lines == []
        part.append([{"two": 2}])
    assert link.is_symlink() and json.loads(target.read_text()) == {"two": 2}
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["file.txt"]


def test_links_to_nowhere_are_refused_before_the_work(tmp_path: Path) -> None:
    link, loop = tmp_path / "link.json", tmp_path / "loop.json"
    link.symlink_to(tmp_path / "missing" / "file.json")
    loop.symlink_to(loop)
    with pytest.raises(UsageError, match=r"there is no folder .*missing for file\.json"):
        check_file(link)
    write_file(loop, "x")
    assert loop.read_text() == "x"


def test_a_pipe_behind_a_link_is_written_to() -> None:
    out, into = os.pipe()
    write_file(Path(f"/proc/self/fd/{into}"), "said")
    os.close(into)
    with os.fdopen(out) as pipe:
        assert pipe.read() == "said"


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()
    write_file(pipe, "said")
    reader.join(timeout=10)
    assert heard == ["said"] and stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(UsageError, match="is a device or a pipe: give --out a file"):
        check_file(pipe)


def test_modes_are_those_of_the_user_or_of_the_file_before(tmp_path: Path) -> None:
    former = os.umask(0o077)
    try:
        write_file(tmp_path / "new", "x")
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    (tmp_path / "new").chmod(0o640)
    write_file(tmp_path / "new", "y")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640 and (tmp_path / "new").read_text() == "y"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_of_a_checkpoint_have_the_mode_of_any_new_file(tmp_path: Path, mask: int, mode: int) -> None:
    former = os.umask(mask)
    try:
        folder = save_checkpoint(
            tmp_path, step=1, model={"a": torch.zeros(2)}, optimizers=[], state={}, files=[], keep=1,
            memories={"0.states": torch.zeros(1)},
        )  # fmt: skip
    finally:
        os.umask(former)
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {mode}


def test_leftovers_of_killed_saves_are_removed_by_the_next_one(tmp_path: Path) -> None:
    left = tmp_path / ".building-step-00000007"
    left.mkdir()
    save_checkpoint(tmp_path, step=9, model={}, optimizers=[], state={}, files=[], keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000009"]


def test_json_that_is_shown_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    show({"a": [float("nan"), 1.5], "b": (float("inf"), None)}, json=True)
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5], "b": [None, None]}


@pytest.mark.parametrize("write", [
    lambda file: verbs.generate("no-model", file=file, out=file),
    lambda file: verbs.predict("no-model", file=file, out=file),
    lambda file: verbs.embed("no-model", file=file, out=file),
    lambda file: verbs.unanswerable(file, out=file),
    lambda file: check_file(file.with_name("link.jsonl"), file),
])  # fmt: skip
def test_what_a_command_reads_is_not_replaced(tmp_path: Path, write: Callable[[Path], object]) -> None:
    records = tmp_path / "records.jsonl"
    records.write_text('{"text": "mine"}\n')
    (tmp_path / "link.jsonl").symlink_to(records)
    with pytest.raises(UsageError, match=r"records\.jsonl is read by this command and would be replaced"):
        write(records)
    assert records.read_text() == '{"text": "mine"}\n'


@pytest.mark.parametrize(("name", "mine", "result", "write"), [
    ("a.jsonl", "Dear diary", '{"text": "b", "prediction": "b"}',
     lambda out, _: verbs.generate("no-model", text="x", out=out)),
    ("a.jsonl", '{"id": "1", "text": "b"}\n', json.dumps({"text": "x" * 5000, "prediction": "b"}),
     lambda out, file: verbs.generate("no-model", file=file, out=out)),
    ("a.jsonl", '{"id": "1", "prediction": "b"}', json.dumps({"text": "x" * 5000, "summary": "b"}),
     lambda out, file: verbs.generate("no-model", file=file, out=out, into="summary")),
    ("a.tsv", "chapter\tpages\n", "index\tprediction\n", lambda out, file: verbs.predict("no-model", file=file, out=out)),
    ("a.jsonl", '{"id": "1", "text": "b"}\n', None, lambda out, file: verbs.predict("no-model", file=file, out=out)),
    ("a.jsonl", '{"id": "1", "text": "b"}\n', None, lambda out, file: verbs.unanswerable(file, out=out)),
    ("a.jsonl", '{"id": "1", "text": "b"}\n', '{"text": "b", "vector": [0.5]}\n',
     lambda out, _: verbs.embed("no-model", ["b"], out=out)),
    ("a.npy", "mine", b"\x93NUMPY", lambda out, _: verbs.embed("no-model", ["b"], out=out)),
    ("a.na_probabilities.json", "mine", None,
     lambda out, file: verbs.predict("no-model", file=file, out=out.with_name("a.json"))),
])  # fmt: skip
def test_files_of_the_user_stay_and_earlier_results_are_replaced(
    tmp_path: Path, name: str, mine: str, result: str | bytes | None, write: Callable[[Path, Path], object]
) -> None:
    """Lines of JSON are replaced only if they hold what the command would write."""
    records, out = tmp_path / "records.jsonl", tmp_path / name
    records.write_text('{"text": "a"}\n')
    out.write_text(mine)
    with pytest.raises(UsageError, match=rf"{name} holds something else"):
        write(out, records)
    assert out.read_text() == mine
    if result is not None:
        out.write_bytes(result if isinstance(result, bytes) else result.encode())
        with pytest.raises(UniclozeError, match="no-model"):
            write(out, records)


@pytest.mark.parametrize("name", ["mine.svg", "mine.png"])
def test_a_picture_replaces_pictures_of_unicloze_only(tmp_path: Path, name: str) -> None:
    image = pytest.importorskip("PIL.Image")
    picture, given = tmp_path / name, {"data.window": 16}
    if name.endswith("svg"):
        picture.write_text('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><text>mine</text></svg>')
    else:
        image.new("RGB", (9, 9)).save(picture)
    before = picture.read_bytes()
    with pytest.raises(UsageError, match=f"{name} holds something else, .*: give another --picture"):
        verbs.inspect("one two three", picture=picture, overrides=given)
    assert picture.read_bytes() == before
    picture.unlink()
    for text in ("one two three", "four five six"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verbs.inspect(text, recipe="unilmv2-base", picture=picture, overrides=given)
        assert picture.read_bytes() != before
        before = picture.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def compared(folder: Path) -> object:
    return compare_recipes(["quickstart"], folder, budget=Budget.parse("steps=1"), seeds=1)


def of_several_seeds(folder: Path) -> object:
    return finetune_seeds(load_recipe("classification"), None, folder / "train.jsonl", None, folder, seeds=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "write", "says"), [
    ("report.html", verbs.report, "is not a page of unicloze and would be replaced"),
    ("report.html", lambda folder: verbs.report(folder / "run", folder / "report.html"), "is not a page of unicloze"),
    ("table.md", compared, "was not written by a comparison and would be replaced"),
    ("index.html", compared, "was not written by a comparison and would be replaced"),
    ("results.json", of_several_seeds, "which no run of several seeds wrote"),
])  # fmt: skip
def test_pages_and_results_of_the_user_stay(
    tmp_path: Path, name: str, write: Callable[[Path], object], says: str
) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UniclozeError, match=f"{name}.* {says}"):
        write(tmp_path)
    assert (tmp_path / name).read_text() == "mine"
