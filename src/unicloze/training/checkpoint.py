"""Checkpoints: folders that are written whole, verified when read, averaged, and written in the background."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unicloze.errors import UniclozeError, UsageError
from unicloze.files import (
    MANIFEST,
    WEIGHTS,
    Plain,
    as_umask_says,
    file_sha256,
    leads_out,
    misfit,
    parse_json,
    read_bytes,
    sync,
)
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.divergence import first_non_finite


class Background:
    """A thread that does one job after the other.

    The next `finish` raises what made a job fail. The jobs of a process that is killed are lost.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="background")
        self._jobs: list[tuple[Future[object], Callable[[], None]]] = []

    def start(self, job: Callable[[], object], then: Callable[[], None] = lambda: None) -> None:
        """Do a job after those before it; `finish` calls `then` if it succeeded."""
        self._jobs.append((self._thread.submit(job), then))

    def finish(self) -> None:
        """Wait for all jobs, also for those after one that failed."""
        jobs, self._jobs = self._jobs, []
        wait([future for future, _ in jobs])
        for future, then in jobs:
            future.result()
            then()


SCHEMA = 1
MEMORIES = "memories.safetensors"
ALWAYS = {WEIGHTS, "optimizer.safetensors", "optimizer.json", "state.json"}
"""Files of every checkpoint."""
MALFORMED = ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError
"""Exceptions raised by reading content of the wrong structure."""
_KINDS = {"step": int, "text_tokens": int, "vocab_size": int, "max_positions": int, "fingerprint": str, "origin": dict}


class FormatError(UniclozeError):
    """An intact checkpoint in a format that this version does not read."""


@dataclass(frozen=True)
class Checkpoint:
    """An intact checkpoint, loaded."""

    path: Path  # its directory
    model: dict[str, Tensor]  # weights by name
    optimizers: list[dict[str, Any]]  # state of each optimiser
    state: dict[str, Any]  # everything else: step, sampler position, model shape
    # memories of the rows of the last step, by name; empty in a model without memory
    memories: dict[str, Tensor] = field(default_factory=dict)


Optimizers = Sequence[torch.optim.Optimizer | Mapping[str, Any]]
"""Optimisers, or their states gathered from several processes."""


def save_checkpoint(folder: Path, *, step: int, keep: int, **content: Any) -> Path:
    """Write `folder/step-NNNNNNNN` and remove all but the newest `keep` checkpoints.

    Args:
        folder: Checkpoints folder of the run.
        step: Number of optimiser steps done.
        keep: Number of checkpoints to keep.
        content: As of `write_checkpoint`.
    """
    final = folder / checkpoint_name(step)
    if final.exists():
        return final
    for left in folder.glob(".building-step-*"):  # left by killed saves; safe because the run is locked
        shutil.rmtree(left, ignore_errors=True)
    write_checkpoint(final, step=step, **content)
    for old in list_checkpoints(folder)[: -max(1, keep)]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def write_checkpoint(
    final: Path,
    *,
    step: int,
    model: Mapping[str, Tensor],
    optimizers: Optimizers,
    state: Mapping[str, Any],
    files: list[Path],
    memories: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write one checkpoint; its folder appears only when complete.

    Args:
        final: The folder.
        step: Number of optimiser steps done.
        model: Weights by name.
        optimizers: Their states are saved with the weights.
        state: Any JSON-serialisable values.
        files: Files to copy, so that a checkpoint is self-contained (recipe, tokenizer).
        memories: Memories of the rows of the last step, by name.
    """
    if (name := first_non_finite(model)) is not None:
        raise UniclozeError(
            f"{final} was not written because {name} is NaN or infinite; earlier checkpoints are unchanged"
        )
    building = final.parent / f".building-{final.name}"
    try:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        save_file(_on_cpu(model), building / WEIGHTS)
        if memories:
            save_file(_on_cpu(memories), building / MEMORIES)
        tensors, plain = _split_optimizers(optimizers)
        save_file(tensors, building / "optimizer.safetensors")
        (building / "optimizer.json").write_text(json.dumps(plain), encoding="utf-8")
        plain_state = json.dumps({"schema": SCHEMA, "step": step, **state}, indent=1)
        (building / "state.json").write_text(plain_state, encoding="utf-8")
        for file in files:
            shutil.copyfile(file, building / file.name)
        for file in building.glob("*.safetensors"):
            as_umask_says(file)
        sums = {file.name: file_sha256(file) for file in sorted(building.iterdir())}
        (building / MANIFEST).write_text(json.dumps({"schema": SCHEMA, "sha256": sums}, indent=1), encoding="utf-8")
        for file in building.iterdir():
            sync(file)
        sync(building)
        building.rename(final)
        sync(final.parent)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(building, ignore_errors=True)
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        reason = "the disk is full" if full else str(error)
        cure = "free some space" if full else "fix that, or give another --out,"
        raise UniclozeError(
            f"could not write the checkpoint {final}: {reason}; earlier checkpoints are unchanged: {cure} and run the same "
            "command again"
        ) from error
    return final


def set_aside_newer(path: Path) -> None:
    """Rename damaged checkpoints newer than the one a run resumes from, so that they are ignored but can be inspected."""
    for newer in (each for each in list_checkpoints(path.parent) if each.name > path.name):
        set_aside(newer)


def set_aside(path: Path) -> None:
    """Rename a damaged checkpoint, so that it is ignored but can be inspected."""
    aside = path.with_name(f"damaged-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)


def drop_newer(path: Path) -> None:
    """Remove the checkpoints newer than this one."""
    for newer in (each for each in list_checkpoints(path.parent) if each.name > path.name):
        shutil.rmtree(newer, ignore_errors=True)


def checkpoint_name(step: int) -> str:
    """Name of a step's checkpoint; names sort like steps."""
    return f"step-{step:08d}"


def is_checkpoint_name(name: str) -> bool:
    """Whether it is the name of a step's checkpoint."""
    return name.startswith("step-") and name[5:].isdecimal()


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints of a folder, oldest first; other content, such as an export of one, is ignored."""
    return sorted(path for path in folder.glob("step-*") if is_checkpoint_name(path.name) and path.is_dir())


def load_newest(folder: Path) -> Checkpoint | None:
    """Load the newest intact checkpoint; None if the folder has no checkpoints. Warns about damaged ones."""
    candidates = list_checkpoints(folder)
    damages = []
    for path in reversed(candidates):
        try:
            checkpoint = load_checkpoint(path)
        except FormatError:
            raise
        except UniclozeError as error:
            damages.append(str(error))
            continue
        for damage in damages:
            warnings.warn(f"{damage}; using {path.name} instead (a resumed run renames the damaged one)", stacklevel=2)
        return checkpoint
    if damages:
        raise UniclozeError(
            f"{damages[0]}, and no earlier one is intact; restore the folder or start again with another --out"
        )
    return None


def load_checkpoint(path: Path, *, weights_only: bool = False) -> Checkpoint:
    """Load a checkpoint and verify every file against its manifest."""
    manifest_path = path / MANIFEST
    try:
        manifest = parse_json(read_bytes(manifest_path))
        sums = dict(manifest["sha256"])
        if not sums.keys() >= ALWAYS and manifest.get("schema") == SCHEMA:
            raise ValueError("it does not list all files")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UniclozeError(f"{manifest_path} is missing or damaged") from error
    if manifest.get("schema") != SCHEMA:
        raise FormatError(
            f"{path} was written in format {manifest.get('schema')} but this version reads format {SCHEMA}: use the version "
            "of unicloze that wrote it"
        )
    for name, expected in sums.items():
        file, plain = path / name, Path(name).name == name and "\0" not in name
        if plain and leads_out(file, path):
            raise UniclozeError(f"{file} is a link out of its folder, to {file.resolve()}: replace it with a copy")
        if not plain or not file.is_file() or file_sha256(file) != expected:
            raise UniclozeError(f"{file} is missing or damaged (its SHA-256 differs from {MANIFEST})")
    try:
        checkpoint = Checkpoint(
            path,
            load_file(path / WEIGHTS),
            [] if weights_only else _join_optimizers(path),
            _state(path / "state.json"),
            {} if weights_only or MEMORIES not in sums else load_file(path / MEMORIES),
        )
    except (SafetensorError, OSError, *MALFORMED) as error:  # intact, but with other content than ours
        raise UniclozeError(
            f"{path} is damaged, though its checksums match ({type(error).__name__}: {error})"
        ) from error
    if (bad := first_non_finite(checkpoint.model)) is not None:
        raise UniclozeError(f"{path} is from a run that diverged: its {bad} is NaN or infinite")
    return checkpoint


def _state(file: Path) -> dict[str, Any]:
    """Read `state.json`."""
    state = parse_json(file.read_bytes())
    if not isinstance(state, dict) or "step" not in state:
        raise ValueError(f"{file.name} has no step")
    for name, kind in _KINDS.items():
        value = state.get(name, kind())
        if type(value) is not kind or (isinstance(value, int) and not 0 <= value < 2**53):
            raise ValueError(f"{file.name}: {name} is {str(value)[:40]!r}")
    return state


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _split_optimizers(optimizers: Optimizers) -> tuple[dict[str, Tensor], list[Any]]:
    tensors: dict[str, Tensor] = {}
    plain = []
    for number, optimizer in enumerate(optimizers):
        state = optimizer if isinstance(optimizer, Mapping) else optimizer.state_dict()
        scalars: dict[str, dict[str, Any]] = {}
        for index, values in state["state"].items():
            for key, value in values.items():
                if isinstance(value, Tensor):
                    tensors[f"{number}.{index}.{key}"] = value.detach().cpu().contiguous()
                else:
                    scalars.setdefault(str(index), {})[key] = value
        plain.append({"param_groups": state["param_groups"], "state": scalars})
    return tensors, plain


def _join_optimizers(path: Path) -> list[dict[str, Any]]:
    tensors = load_file(path / "optimizer.safetensors")
    states: list[dict[str, Any]] = [
        {"param_groups": plain["param_groups"], "state": {int(index): dict(v) for index, v in plain["state"].items()}}
        for plain in parse_json((path / "optimizer.json").read_bytes())
    ]
    for name, tensor in tensors.items():
        number, index, key = name.split(".", 2)
        states[int(number)]["state"].setdefault(int(index), {})[key] = tensor
    return states


START = "start"
"""Name of the record in the state of a checkpoint, and of a link in a run directory to a start model that was moved."""


def fingerprint(tokenizer: Tokenizer, weights: Mapping[str, Any]) -> str:
    """SHA-256 of a model's vocabulary and weights."""
    digest = hashlib.sha256(tokenizer.fingerprint.encode())
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


@dataclass(frozen=True)
class StartModel(Plain):
    """A start model, as checkpoints name it."""

    path: str  # its folder
    relative: str  # its folder, relative to the run directory
    digest: str  # see `fingerprint`

    @classmethod
    def of(cls, path: Path, digest: str, out: Path) -> StartModel:
        """The model in a folder, for a run directory."""
        if not path.exists():
            raise UsageError(
                f"the run would save only what it learns and name the model it started from, but there is no folder "
                f"{path}: save that model first, or train all weights"
            )
        place = path.resolve()
        return cls(str(place), os.path.relpath(place, out.resolve()), digest)

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> StartModel:
        """The model that a checkpoint names."""
        said = checkpoint.state[START]
        if misfit(said, {"path": str, "relative": str, "digest": str}) is not None:
            raise UniclozeError(f"{checkpoint.path}: the record of its start model is damaged: restore the folder")
        return cls(said["path"], said["relative"], said["digest"])

    def found(self, checkpoint: Path) -> Path:
        """Its folder: the link `start` in the run directory of a checkpoint, else the place it had."""
        run = checkpoint.parent.parent
        places = [run / START, Path(self.path), run / self.relative]
        place = next((place for place in places if place.exists()), None)
        if place is None:
            raise UniclozeError(
                f"{checkpoint} holds only the weights its run learned, and the model it started from is no longer at "
                f"{self.path}: put it back, or link it as {run / START}"
            )
        return place

    def check(self, checkpoint: Path, place: Path, digest: str) -> None:
        """Reject another model."""
        if digest != self.digest:
            raise UniclozeError(
                f"{checkpoint} holds only the weights its run learned on top of another model than {place}, whose weights "
                f"differ: restore the original there, or link it as {checkpoint.parent.parent / START}"
            )
