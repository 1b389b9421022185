"""Exact files, keys and messages of checkpoints."""

from __future__ import annotations

import errno
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from unicloze.errors import UniclozeError
from unicloze.training import checkpoint as module
from unicloze.training.checkpoint import (
    Checkpoint,
    list_checkpoints,
    load_checkpoint,
    load_newest,
    save_checkpoint,
    set_aside_newer,
    write_checkpoint,
)


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
    (tmp_path / "step-export").mkdir()
    (tmp_path / "step-00000005").write_text("a file")
    for step in (1, 2, 3):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-00000002", "step-00000003", "step-00000005", "step-export"]
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


def test_a_damaged_checkpoint_warns_the_caller(tmp_path: Path) -> None:
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
    file.write_text(json.dumps({**good, "sha256": {**good["sha256"], "../recipe.yaml": "0"}}))
    assert refusal(path) == f"{path / '../recipe.yaml'} is missing or damaged (its SHA-256 differs from manifest.json)"


def test_only_directories_with_a_number_are_checkpoints() -> None:
    assert module.checkpoint_name(12) == "step-00000012" and module.checkpoint_name(123456789) == "step-123456789"
    assert {"model.safetensors", "optimizer.safetensors", "optimizer.json", "state.json"} == module.ALWAYS
    assert (module.SCHEMA, module.MEMORIES) == (1, "memories.safetensors")
