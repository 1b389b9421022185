"""The model that a run with few learned weights started from: its checkpoints name it by place and digest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from unicloze.errors import UniclozeError, UsageError
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.checkpoint import Checkpoint

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
class StartModel:
    """A start model, as checkpoints name it.

    Args:
        path: Its folder.
        relative: Its folder, relative to the run directory.
        digest: See `fingerprint`.
    """

    path: str
    relative: str
    digest: str

    @classmethod
    def of(cls, path: Path, digest: str, out: Path) -> StartModel:
        """The model in a folder, for a run directory.

        Raises:
            UsageError: It is in no folder.
        """
        if not path.exists():
            raise UsageError(
                f"the run would save only what it learns and name the model it started from, but there is no folder "
                f"{path}: save that model first, or train all weights"
            )
        place = path.resolve()
        return cls(str(place), os.path.relpath(place, out.resolve()), digest)

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> StartModel:
        """The model that a checkpoint names.

        Raises:
            UniclozeError: The record is malformed.
        """
        said = checkpoint.state[START]
        names = ("path", "relative", "digest")
        if not isinstance(said, dict) or not all(isinstance(said.get(name), str) for name in names):
            raise UniclozeError(f"{checkpoint.path}: the record of its start model is damaged: restore the folder")
        return cls(**{name: said[name] for name in names})

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return asdict(self)

    def found(self, checkpoint: Path) -> Path:
        """Its folder: the link `start` in the run directory of a checkpoint, else the place it had.

        Raises:
            UniclozeError: It is at none of these places.
        """
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
        """Reject another model.

        Raises:
            UniclozeError: The digest differs.
        """
        if digest != self.digest:
            raise UniclozeError(
                f"{checkpoint} holds only the weights its run learned on top of another model than {place}, whose weights "
                f"differ: restore the original there, or link it as {checkpoint.parent.parent / START}"
            )
