"""Checkpoints, the ledger and the lock of a run, after kills and damage."""

from __future__ import annotations

import errno
import hashlib
import json
import re
import threading
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
from unicloze.training import checkpoint as module
from unicloze.training.checkpoint import (
    Background,
    Checkpoint,
    list_checkpoints,
    load_checkpoint,
    load_newest,
    save_checkpoint,
    set_aside_newer,
    write_checkpoint,
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


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "adamax"])
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


def test_a_checkpoint_of_another_format_is_not_skipped(tmp_path: Path) -> None:
    state = trained()
    for step in (1, 2):
        path = checkpoint_at(tmp_path, step, state.model, state.optimizers)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"schema": 99}))
    with pytest.raises(UniclozeError, match="format 99"):
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


def test_nothing_goes_on_in_the_background_once_a_failure_is_known() -> None:
    """So that the lock of the run is not released while something is written."""
    background, begun, done = Background(), threading.Event(), list[str]()

    def fail() -> None:
        begun.wait()
        raise UniclozeError("the disk is full")

    background.start(fail, lambda: done.append("noted"))
    background.start(lambda: done.append("copied"))
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


def save(folder: Path, step: int, *, keep: int = 2, **more: Any) -> Path:
    values: dict[str, Any] = {"model": {"w": torch.full((2,), float(step))}, "optimizers": [], "state": {}, "files": []}
    return save_checkpoint(folder, step=step, keep=keep, **{**values, **more})


def test_the_files_of_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: a")
    path = save(
        tmp_path / "c",
        7,
        optimizers=stepped(),
        state={"text_tokens": 3},
        files=[tmp_path / "recipe.yaml"],
        memories={"0.rows": torch.ones(1)},
    )
    assert path == tmp_path / "c" / "step-00000007"
    names = [
        "memories.safetensors",
        "model.safetensors",
        "optimizer.json",
        "optimizer.safetensors",
        "recipe.yaml",
        "state.json",
    ]
    assert sorted(file.name for file in path.iterdir()) == sorted([*names, "manifest.json"])
    sums = {name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in names}
    assert (path / "manifest.json").read_text() == json.dumps({"schema": 1, "sha256": sums}, indent=1)
    assert (path / "state.json").read_text() == json.dumps({"schema": 1, "step": 7, "text_tokens": 3}, indent=1)
    sgd, adam = json.loads((path / "optimizer.json").read_text())
    assert list(sgd) == list(adam) == ["param_groups", "state"]
    assert (sgd["param_groups"][0]["lr"], adam["param_groups"][0]["lr"]) == (0.1, 0.5)
    read = load_checkpoint(path)
    assert read.memories["0.rows"].tolist() == [1.0] and read.model["w"].tolist() == [7.0, 7.0]
    assert set(read.optimizers[1]["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}
    assert read.state == {"schema": 1, "step": 7, "text_tokens": 3} and read.path == path
    weights = load_checkpoint(path, weights_only=True)
    assert (weights.optimizers, weights.memories) == ([], {}) and weights.model["w"].tolist() == [7.0, 7.0]
    assert Checkpoint(path, {}, [], {}).memories == {}


def test_values_of_optimisers_that_are_no_tensors_are_kept(tmp_path: Path) -> None:
    (optimizer,) = stepped()[1:]
    optimizer.state[optimizer.param_groups[0]["params"][0]]["count"] = 5
    optimizer.state[optimizer.param_groups[0]["params"][0]]["rate"] = 0.5
    path = save(tmp_path, 1, optimizers=[optimizer])
    assert json.loads((path / "optimizer.json").read_text())[0]["state"] == {"0": {"count": 5, "rate": 0.5}}
    moments = load_checkpoint(path).optimizers[0]["state"][0]
    assert (moments["count"], moments["rate"], moments["step"].item()) == (5, 0.5, 1.0)


def test_without_memories_no_file_is_written(tmp_path: Path) -> None:
    for step, memories in ((1, None), (2, {})):
        path = save(tmp_path, step, memories=memories)
        assert not (path / "memories.safetensors").exists() and load_checkpoint(path).memories == {}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_how_many_are_kept(tmp_path: Path) -> None:
    (tmp_path / ".building-step-00000009").mkdir()
    (tmp_path / "step-00000001-bert").mkdir()
    (tmp_path / "step-00000005").write_text("a file")
    for step in (1, 2, 3):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-00000001-bert", "step-00000002", "step-00000003", "step-00000005"]
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000003"]
    save(tmp_path, 4, keep=0)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000004"]
    before = (tmp_path / "step-00000004" / "manifest.json").stat().st_mtime_ns
    assert save(tmp_path, 4, state={"text_tokens": 5}) == tmp_path / "step-00000004"
    assert (tmp_path / "step-00000004" / "manifest.json").stat().st_mtime_ns == before


def test_newer_ones_are_set_aside(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step, keep=9)
    (tmp_path / "damaged-step-00000003").mkdir()
    (tmp_path / "damaged-step-00000003" / "old").write_text("old")
    set_aside_newer(tmp_path / "step-00000001")
    assert names(tmp_path) == ["damaged-step-00000002", "damaged-step-00000003", "step-00000001"]
    assert not (tmp_path / "damaged-step-00000003" / "old").exists()


def test_damage_is_told_to_the_caller(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    (file := tmp_path / "step-00000002" / "state.json").write_text("{}")
    with pytest.warns(UserWarning) as found:
        newest = load_newest(tmp_path)
    assert newest is not None and newest.state["step"] == 1
    (warning,) = found
    assert warning.filename == __file__
    assert str(warning.message) == (
        f"{file} is missing or damaged (its SHA-256 differs from manifest.json); using step-00000001 instead (a resumed run "
        "renames the damaged one)"
    )
    (tmp_path / "step-00000001" / "manifest.json").unlink()
    with pytest.raises(UniclozeError) as refused:
        load_newest(tmp_path)
    assert str(refused.value) == (
        f"{file} is missing or damaged (its SHA-256 differs from manifest.json), and no earlier one is intact; restore the "
        "folder or start again with another --out"
    )
    assert load_newest(tmp_path / "nothing") is None


def write(final: Path, monkeypatch: pytest.MonkeyPatch, error: OSError | RuntimeError) -> str:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(module, "sync", fail)
    with pytest.raises(UniclozeError) as refused:
        write_checkpoint(final, step=1, model={"w": torch.ones(1)}, optimizers=[], state={}, files=[])
    assert refused.value.__cause__ is error
    assert names(final.parent) == []
    return str(refused.value)


def test_a_checkpoint_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final, kept = tmp_path / "step-1", "; earlier checkpoints are unchanged: "
    full = (
        f"could not write the checkpoint {final}: the disk is full{kept}free some space and run the same command again"
    )
    for error in (
        OSError(errno.ENOSPC, "full"),
        OSError(errno.EDQUOT, "quota"),
        RuntimeError("No space left on device"),
    ):
        assert write(final, monkeypatch, error) == full
    assert write(final, monkeypatch, RuntimeError("broken")) == (
        f"could not write the checkpoint {final}: broken{kept}fix that, or give another --out, and run the same command again"
    )
    with pytest.raises(UniclozeError) as refused:
        write_checkpoint(final, step=1, model={"w": torch.tensor([torch.inf])}, optimizers=[], state={}, files=[])
    assert str(refused.value) == (
        f"{final} was not written because w is NaN or infinite; earlier checkpoints are unchanged"
    )


def rewritten(path: Path, name: str, content: dict[str, Any]) -> None:
    (path / name).write_text(json.dumps(content))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sha256"][name] = hashlib.sha256((path / name).read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


def refusal(path: Path) -> str:
    with pytest.raises(UniclozeError) as refused:
        load_checkpoint(path)
    return str(refused.value)


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
    assert refusal(path) == f"{path} is damaged, though its checksums match (ValueError: {problem})"


def test_states_at_the_limits_are_read(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    state = {"step": 0, "text_tokens": 2**53 - 1, "vocab_size": 0, "max_positions": 0, "fingerprint": "", "origin": {}}
    rewritten(path, "state.json", state)
    assert load_checkpoint(path).state == state


def test_manifests(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    file = path / "manifest.json"
    good = json.loads(file.read_text())
    few = {name: value for name, value in good["sha256"].items() if name != "optimizer.json"}
    for bad in ({"schema": 1, "sha256": few}, {"schema": 1}, {"schema": 1, "sha256": 3}):
        file.write_text(json.dumps(bad))
        assert refusal(path) == f"{file} is missing or damaged"
    file.write_text(json.dumps({"schema": 2, "sha256": few}))
    assert refusal(path) == (
        f"{path} was written in format 2 but this version reads format 1: use the version of unicloze that wrote it"
    )
