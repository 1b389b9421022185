"""Checkpoints, the ledger and the lock of a run, after kills and damage."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import toys
from corpora import write_corpus
from test_training import trained
from unicloze import verbs
from unicloze.errors import UniclozeError
from unicloze.files import is_run
from unicloze.settings import TrainingSettings
from unicloze.training import checkpoint
from unicloze.training.checkpoint import (
    Background,
    list_checkpoints,
    load_checkpoint,
    load_newest,
    save_checkpoint,
    set_aside_newer,
)
from unicloze.training.ledger import Ledger, read_ledger
from unicloze.training.lock import hold_run
from unicloze.training.optimizers import build_optimizers


def save(folder: Path, step: int, *, keep: int = 2, **more: Any) -> Path:
    values: dict[str, Any] = {"model": {"w": torch.full((2,), float(step))}, "optimizers": [], "state": {}, "files": []}
    return save_checkpoint(folder, step=step, keep=keep, **values | more)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "adamax"])
def test_a_checkpoint_brings_everything_back(tmp_path: Path, optimizer: str) -> None:
    state = trained(optimizer)
    read = load_checkpoint(save(tmp_path, 7, model=state.model.state_dict(), optimizers=state.optimizers))
    torch.testing.assert_close(read.model, dict(state.model.state_dict()), rtol=0, atol=0)
    fresh = build_optimizers(toys.model(), TrainingSettings(optimizer=optimizer))  # type: ignore[arg-type]
    for built, saved, original in zip(fresh, read.optimizers, state.optimizers, strict=True):
        built.load_state_dict(saved)
        expected, found = original.state_dict(), built.state_dict()
        assert json.dumps(expected["param_groups"]) == json.dumps(found["param_groups"])
        torch.testing.assert_close(found["state"], expected["state"], rtol=0, atol=0)


@pytest.mark.parametrize(
    "file", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json", "optimizer.json"]
)
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_checkpoint_is_skipped(tmp_path: Path, file: str, damage: str) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 2) / file
    content, half = path.read_bytes(), path.stat().st_size // 2
    path.unlink()
    if damage != "remove":
        rest = bytes([content[half] ^ 1]) + content[half + 1 :] if damage == "flip" else b""
        path.write_bytes(content[:half] + rest)
    with pytest.warns(UserWarning, match=f"step-00000002/.*{file}.*; using step-00000001 instead") as found:
        newest = load_newest(tmp_path)
    assert newest is not None and newest.state["step"] == 1 and found[0].filename == __file__
    (tmp_path / "step-00000001" / "manifest.json").unlink()
    with pytest.raises(UniclozeError, match=f"step-00000002/.*{file}.*, and no earlier one is intact"):
        load_newest(tmp_path)


def test_a_damaged_newer_checkpoint_costs_no_good_one(tmp_path: Path) -> None:
    for step in (2, 3, 4):
        save(tmp_path, step, keep=3)
    for name in ("step-00000003", "step-00000004"):
        (tmp_path / name / "state.json").write_text("{}")
    (tmp_path / "damaged-step-00000004" / "old").mkdir(parents=True)
    with pytest.warns(UserWarning, match="using step-00000002 instead"):
        newest = load_newest(tmp_path)
    assert newest is not None
    set_aside_newer(newest.path)
    assert names(tmp_path) == ["damaged-step-00000003", "damaged-step-00000004", "step-00000002"]
    assert "old" not in names(tmp_path / "damaged-step-00000004")
    for step in (3, 4):
        save(tmp_path, step)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000003", "step-00000004"]
    assert load_checkpoint(tmp_path / "step-00000004").state["step"] == 4


def test_a_manifest_lists_the_files_in_a_known_format(tmp_path: Path) -> None:
    save(tmp_path, 1)
    file = save(tmp_path, 2) / "manifest.json"
    sums = json.loads(file.read_text())["sha256"]
    del sums["optimizer.json"]
    for bad in ({"schema": 1, "sha256": sums}, {"schema": 1}, {"schema": 1, "sha256": 3}):
        file.write_text(json.dumps(bad))
        with pytest.raises(UniclozeError, match=r"manifest\.json is missing or damaged"):
            load_checkpoint(file.parent)
    file.write_text(json.dumps({"schema": 2, "sha256": sums}))
    with pytest.raises(UniclozeError, match="written in format 2 but this version reads format 1"):
        load_newest(tmp_path)


def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    for file in (tmp_path / "elsewhere", path / "inside"):
        file.write_bytes(b"whole")
    manifest = json.loads((path / "manifest.json").read_text())
    whole = hashlib.sha256(b"whole").hexdigest()
    for name in ("inside", "../elsewhere", str(tmp_path / "elsewhere"), "../step-00000001/inside"):
        named = manifest | {"sha256": manifest["sha256"] | {name: whole}}
        (path / "manifest.json").write_text(json.dumps(named))
        refused = pytest.raises(UniclozeError, match=rf"{re.escape(name)} is missing or damaged")
        with contextlib.nullcontext() if name == "inside" else refused:
            load_checkpoint(path)


def test_the_ledger_survives_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.write("step", step=1)
    ledger.close()
    path.write_bytes(path.read_bytes() + b'{"event": "st')
    ledger = Ledger(path)
    ledger.write("step", step=2)
    ledger.close()
    assert [event["step"] for event in read_ledger(path)] == [1, 2]


def test_the_ledger_shows_names_that_are_not_utf8(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.write("start", step=0, file=os.fsdecode(b"caf\xe9.txt"))
    ledger.close()
    assert [event["file"] for event in read_ledger(tmp_path / "ledger.jsonl")] == ["caf?.txt"]


@pytest.mark.whole
def test_one_process_per_directory(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with hold_run(tmp_path):
        code = (
            "from pathlib import Path\nfrom unicloze.training.lock import hold_run\n"
            f"with hold_run(Path({str(tmp_path)!r})): pass"
        )
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert other.returncode != 0 and re.search(r"is in use by process .* since", other.stderr)
        (tmp_path / "recipe.yaml").write_text("ours")
    with hold_run(tmp_path):
        assert {"notes.txt", "recipe.yaml"} <= {*names(tmp_path)}


def test_a_run_that_wrote_nothing_leaves_nothing(tmp_path: Path) -> None:
    """Of its own, and nothing less of others'."""
    for folder, own in ((tmp_path / "made" / "runs", ""), (tmp_path / "there", "notes"), (tmp_path / "theirs", "lock")):
        if own:
            folder.mkdir()
            (folder / own).write_text("precious")
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(ZeroDivisionError), hold_run(folder):
            assert is_run(folder)
            raise ZeroDivisionError
        assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "lock.holder"] == before
        assert not own or (folder / own).read_text() == "precious"


@pytest.mark.parametrize("name", ["recipe.yaml", "tokenizer.json", "baselines.json"])
def test_files_that_no_run_wrote_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(
        UniclozeError, match=f"{name} was not written by a run, but this run would replace it: give another"
    ):
        verbs.pretrain("quickstart", tmp_path, toy=True, quiet=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_a_prepared_corpus_and_a_run_need_folders_of_their_own(tmp_path: Path) -> None:
    given = {"data.corpus": [str(write_corpus(tmp_path / "corpus"))], "tokenizer.vocab_size": 200}
    prepared, run = tmp_path / "prepared", tmp_path / "run"
    verbs.prepare("quickstart", prepared, quiet=True, overrides=given)
    before = sorted(path.name for path in prepared.iterdir())
    cure = rf"give another --out \(to train on it: `unicloze pretrain --data\.prepared {prepared}`\)$"
    with pytest.raises(UniclozeError, match=f"prepared holds a prepared corpus, not a run: {cure}"):
        verbs.pretrain("quickstart", prepared, toy=True, quiet=True)
    assert sorted(path.name for path in prepared.iterdir()) == before
    with hold_run(run):
        (run / "ledger.jsonl").touch()
    with pytest.raises(UniclozeError, match=r"run is the folder of a run: give another --out\.$"):
        verbs.prepare("quickstart", run, quiet=True, overrides=given)


def test_nothing_goes_on_in_the_background_once_a_failure_is_known() -> None:
    """So that the lock of the run is not released while something is written."""
    background, begun, done = Background(), threading.Event(), list[str]()

    def fail() -> None:
        begun.wait()
        raise UniclozeError("the disk is full")

    background.start(fail, lambda: done.append("noted"))
    background.start(lambda: (threading.Event().wait(0.1), done.append("copied")))
    threading.Timer(0.01, begun.set).start()
    with pytest.raises(UniclozeError, match="the disk is full"):
        background.finish()
    assert done == ["copied"]
    background.finish()


def stepped() -> list[torch.optim.Optimizer]:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    other = torch.nn.Parameter(torch.ones(3))
    made: list[torch.optim.Optimizer] = [torch.optim.SGD([other], lr=0.1), torch.optim.Adam([weight], lr=0.5)]
    weight.grad, other.grad = torch.ones(2, 2), torch.ones(3)
    for optimizer in made:
        optimizer.step()
    return made


def test_the_files_of_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: a")
    sgd, adam = stepped()
    adam.state[adam.param_groups[0]["params"][0]] |= {"count": 5, "rate": 0.5}
    path = save(
        tmp_path / "c", 7, optimizers=[sgd, adam], state={"text_tokens": 3}, files=[tmp_path / "recipe.yaml"],
        memories={"0.rows": torch.ones(1)},
    )  # fmt: skip
    assert path == tmp_path / "c" / "step-00000007"
    always = ["model.safetensors", "optimizer.json", "optimizer.safetensors", "recipe.yaml", "state.json"]
    files = ["memories.safetensors", *always]
    assert names(path) == sorted([*files, "manifest.json"])
    sums = {name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in files}
    assert (path / "manifest.json").read_text() == json.dumps({"schema": 1, "sha256": sums}, indent=1)
    assert (path / "state.json").read_text() == json.dumps({"schema": 1, "step": 7, "text_tokens": 3}, indent=1)
    plain = json.loads((path / "optimizer.json").read_text())
    assert [(list(each), each["param_groups"][0]["lr"], each["state"]) for each in plain] == [
        (["param_groups", "state"], 0.1, {}),
        (["param_groups", "state"], 0.5, {"0": {"count": 5, "rate": 0.5}}),
    ]
    read = load_checkpoint(path)
    assert read.memories["0.rows"].tolist() == [1.0] and read.model["w"].tolist() == [7.0, 7.0]
    assert set(read.optimizers[1]["state"][0]) == {"step", "exp_avg", "exp_avg_sq", "count", "rate"}
    assert read.state == {"schema": 1, "step": 7, "text_tokens": 3} and read.path == path
    weights = load_checkpoint(path, weights_only=True)
    assert (weights.optimizers, weights.memories) == ([], {}) and weights.model["w"].tolist() == [7.0, 7.0]
    without = save(tmp_path / "c", 8, memories={})
    assert "memories.safetensors" not in names(without) and load_checkpoint(without).memories == {}


def test_how_many_are_kept(tmp_path: Path) -> None:
    (tmp_path / ".building-step-00000009").mkdir()
    (tmp_path / ".building-step-00000010").write_text("cannot be removed as a folder")
    (tmp_path / "step-00000001-bert").mkdir()
    (tmp_path / "step-00000005").write_text("a file")
    for step in (1, 2, 3):
        save(tmp_path, step)
    kept = ["step-00000001-bert", "step-00000002", "step-00000003", "step-00000005"]
    assert names(tmp_path) == [".building-step-00000010", *kept]
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000003"]
    save(tmp_path, 4, keep=0)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000004"]
    before = (tmp_path / "step-00000004" / "manifest.json").stat().st_mtime_ns
    assert save(tmp_path, 4, state={"text_tokens": 5}) == tmp_path / "step-00000004"
    assert (tmp_path / "step-00000004" / "manifest.json").stat().st_mtime_ns == before


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []

    def sync(path: Path) -> None:
        assert path.exists() and (path == tmp_path) == (tmp_path / "step-00000001").exists()
        synced.append(path)

    monkeypatch.setattr(checkpoint, "sync", sync)
    made, building = save(tmp_path, 1), tmp_path / ".building-step-00000001"
    assert synced[-2:] == [building, tmp_path]
    assert sorted(synced[:-2]) == [building / name for name in names(made)]


FULL = "the disk is full; earlier checkpoints are unchanged: free some space and run"


@pytest.mark.parametrize(("error", "says"), [
    (OSError(errno.ENOSPC, "full"), FULL),
    (OSError(errno.EDQUOT, "quota"), FULL),
    (RuntimeError("No space left on device"), FULL),
    (RuntimeError("broken"), "broken; earlier checkpoints are unchanged: fix that, or give another --out, and run"),
], ids=str)  # fmt: skip
def test_a_checkpoint_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    monkeypatch.setattr(checkpoint, "sync", Mock(side_effect=error))
    with pytest.raises(UniclozeError, match=f"could not write the checkpoint .*step-00000001: {says}") as refused:
        save(tmp_path, 1)
    assert refused.value.__cause__ is error and names(tmp_path) == []


def rewritten(path: Path, name: str, content: dict[str, Any]) -> None:
    (path / name).write_text(json.dumps(content))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sha256"][name] = hashlib.sha256((path / name).read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


BAD_STATES: list[tuple[dict[str, Any], str]] = [
    ({}, "state.json has no step"),
    ({"step": "1"}, "state.json: step is '1'"),
    ({"step": True}, "state.json: step is 'True'"),
    ({"step": -1}, "state.json: step is '-1'"),
    ({"step": 2**53}, f"state.json: step is '{2**53}'"),
    ({"step": 1, "text_tokens": 1.5}, "state.json: text_tokens is '1.5'"),
    ({"step": 1, "vocab_size": "x" * 60}, f"state.json: vocab_size is '{'x' * 40}'"),
    ({"step": 1, "max_positions": None}, "state.json: max_positions is 'None'"),
    ({"step": 1, "fingerprint": 1}, "state.json: fingerprint is '1'"),
    ({"step": 1, "origin": "here"}, "state.json: origin is 'here'"),
]


@pytest.mark.parametrize("state, problem", BAD_STATES)
def test_malformed_states(tmp_path: Path, state: dict[str, Any], problem: str) -> None:
    path = save(tmp_path, 1)
    rewritten(path, "state.json", state)
    with pytest.raises(UniclozeError, match=rf"is damaged, though its checksums match .*: {re.escape(problem)}\)$"):
        load_checkpoint(path)


def test_states_at_the_limits_are_read(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    state = {"step": 0, "text_tokens": 2**53 - 1, "vocab_size": 0, "max_positions": 0, "fingerprint": "", "origin": {}}
    rewritten(path, "state.json", state)
    assert load_checkpoint(path).state == state
