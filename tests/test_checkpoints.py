"""Checkpoints, the ledger and the lock of a run, after kills and damage."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import toys
from corpora import write_corpus
from test_training import trained
from unicloze import verbs
from unicloze.errors import UniclozeError
from unicloze.model.model import UnifiedModel
from unicloze.settings import TrainingSettings
from unicloze.training.checkpoint import (
    list_checkpoints,
    load_checkpoint,
    load_newest,
    save_checkpoint,
    set_aside_newer,
)
from unicloze.training.ledger import Ledger, read_ledger
from unicloze.training.lock import hold_run
from unicloze.training.optimizers import build_optimizers


def checkpoint_at(folder: Path, step: int, model: UnifiedModel, optimizers: list[torch.optim.Optimizer]) -> Path:
    return save_checkpoint(
        folder,
        step=step,
        model=model.state_dict(),
        optimizers=optimizers,
        state={"text_tokens": step},
        files=[],
        keep=2,
    )


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_checkpoint_brings_everything_back(tmp_path: Path, optimizer: str) -> None:
    state = trained(optimizer)
    path = checkpoint_at(tmp_path, 7, state.model, state.optimizers)
    read = load_checkpoint(path)
    assert read.state["step"] == 7
    for name, tensor in state.model.state_dict().items():
        assert torch.equal(read.model[name], tensor)
    fresh = build_optimizers(toys.model(), TrainingSettings(optimizer=optimizer))  # type: ignore[arg-type]
    for built, saved, original in zip(fresh, read.optimizers, state.optimizers, strict=True):
        built.load_state_dict(saved)
        expected, found = original.state_dict(), built.state_dict()
        assert json.dumps(expected["param_groups"]) == json.dumps(found["param_groups"])
        for index, values in expected["state"].items():
            for key, value in values.items():
                assert torch.equal(torch.as_tensor(found["state"][index][key]), torch.as_tensor(value))


@pytest.mark.parametrize(
    "file", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json", "optimizer.json"]
)
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_checkpoint_is_skipped(tmp_path: Path, file: str, damage: str) -> None:
    state = trained()
    checkpoint_at(tmp_path, 1, state.model, state.optimizers)
    path = checkpoint_at(tmp_path, 2, state.model, state.optimizers) / file
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.unlink()
    with pytest.warns(UserWarning, match=f"{file}.*using step-00000001 instead"):
        newest = load_newest(tmp_path)
    assert newest is not None
    assert newest.state["step"] == 1


def test_a_damaged_newer_checkpoint_costs_no_good_one(tmp_path: Path) -> None:
    state = trained()
    for step in (2, 4):
        checkpoint_at(tmp_path, step, state.model, state.optimizers)
    (tmp_path / "step-00000004" / "state.json").write_text("{}")
    with pytest.warns(UserWarning, match="using step-00000002 instead"):
        newest = load_newest(tmp_path)
    assert newest is not None
    set_aside_newer(newest.path)
    checkpoint_at(tmp_path, 3, state.model, state.optimizers)
    checkpoint_at(tmp_path, 4, state.model, state.optimizers)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000003", "step-00000004"]
    assert load_checkpoint(tmp_path / "step-00000004").state["step"] == 4
    assert (tmp_path / "damaged-step-00000004").is_dir()


def test_an_export_next_to_checkpoints_is_not_a_checkpoint(tmp_path: Path) -> None:
    """`export runs/x/checkpoints/step-00000001` writes there; it must not be counted, removed or set aside."""
    state = trained()
    checkpoint_at(tmp_path, 1, state.model, state.optimizers)
    (tmp_path / "step-00000001-bert").mkdir()
    newest = load_newest(tmp_path)
    assert newest is not None and newest.path.name == "step-00000001"
    set_aside_newer(newest.path)
    for step in (2, 3):
        checkpoint_at(tmp_path, step, state.model, state.optimizers)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000003"]
    assert (tmp_path / "step-00000001-bert").is_dir()


def test_a_checkpoint_of_another_format_is_not_skipped(tmp_path: Path) -> None:
    state = trained()
    for step in (1, 2):
        path = checkpoint_at(tmp_path, step, state.model, state.optimizers)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"schema": 99}))
    with pytest.raises(UniclozeError, match="format 99"):
        load_newest(tmp_path)


def test_no_complete_checkpoint_is_an_error(tmp_path: Path) -> None:
    assert load_newest(tmp_path) is None
    state = trained()
    (checkpoint_at(tmp_path, 1, state.model, state.optimizers) / "model.safetensors").write_bytes(b"")
    with pytest.raises(UniclozeError, match="no earlier one is intact"):
        load_newest(tmp_path)


def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    state = trained()
    path = checkpoint_at(tmp_path, 1, state.model, state.optimizers)
    (tmp_path / "elsewhere").write_bytes(b"whole")
    (path / "inside").write_bytes(b"whole")
    manifest = json.loads((path / "manifest.json").read_text())
    for name in ("inside", "../elsewhere", str(tmp_path / "elsewhere"), "../step-00000001/inside"):
        manifest["sha256"][name] = hashlib.sha256(b"whole").hexdigest()
        (path / "manifest.json").write_text(json.dumps(manifest))
        if name == "inside":
            load_checkpoint(path)
            continue
        with pytest.raises(UniclozeError, match=rf"{re.escape(name)} is missing or damaged"):
            load_checkpoint(path)
        del manifest["sha256"][name]


def test_only_the_newest_are_kept_and_a_full_disk_harms_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = trained()
    for step in (1, 2, 3):
        checkpoint_at(tmp_path, step, state.model, state.optimizers)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000003"]

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unicloze.training.checkpoint.save_file", full)
    with pytest.raises(UniclozeError, match="the disk is full; earlier checkpoints are unchanged"):
        checkpoint_at(tmp_path, 4, state.model, state.optimizers)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    assert load_checkpoint(tmp_path / "step-00000003").state["step"] == 3


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


@pytest.mark.whole
def test_one_process_per_directory(tmp_path: Path) -> None:
    with hold_run(tmp_path):
        import subprocess
        import sys

        code = (
            "from pathlib import Path\nfrom unicloze.training.lock import hold_run\n"
            f"with hold_run(Path({str(tmp_path)!r})): pass"
        )
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert other.returncode != 0
        assert "is in use by process" in other.stderr
        assert "since" in other.stderr
    with hold_run(tmp_path):
        pass


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


def test_a_folder_with_other_files_can_be_locked_and_locked_again(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with hold_run(tmp_path):
        (tmp_path / "recipe.yaml").write_text("ours")
    with hold_run(tmp_path):
        assert (tmp_path / "recipe.yaml").read_text() == "ours"
    assert (tmp_path / "notes.txt").read_text() == "mine"
