"""Copies of a run's checkpoints on a storage, so that the run survives the loss of its disk.

    URL/ledger.jsonl
    URL/step-NNNNNNNN/   the files of a checkpoint; `manifest.json` is written last and removed first

A copy without its manifest is incomplete and ignored.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

from unicloze.errors import UniclozeError
from unicloze.files import CHECKPOINTS, LEDGER, MANIFEST, RECIPE, file_sha256, parse_json, replace_file
from unicloze.storage import explained, opened
from unicloze.training.checkpoint import FormatError, is_checkpoint_name, list_checkpoints, load_checkpoint, set_aside

_LARGEST_MANIFEST = 2**20


_HEAD = 4096
"""Bytes of a ledger that tell its run: they hold the time of its first start."""


class Copies:
    """The copies of one run.

    Args:
        url: The folder that holds them.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._system, place = opened(url)
        self._place = place.rstrip("/")
        self._damaged: set[str] = set()  # copies found damaged, to be made again

    def update(self, run: Path) -> None:
        """Copy the ledger and the checkpoints that are not there yet, newest first, and drop those the run has dropped.

        A failure is a warning, since the next update copies what is missing.
        """
        try:
            with explained(self.url):
                self._update(run)
        except UniclozeError as error:
            warnings.warn(
                f"the checkpoints of {run} were not copied, which the next save tries again: {error}", stacklevel=2
            )

    def _update(self, run: Path) -> None:
        kept = list_checkpoints(run / CHECKPOINTS)
        if not kept:
            return
        self._system.invalidate_cache()
        self._system.makedirs(self._place, exist_ok=True)
        self._refuse_another(run / LEDGER)
        if (run / LEDGER).is_file():
            self._system.put_file(str(run / LEDGER), f"{self._place}/{LEDGER}")
        for checkpoint in reversed(kept):
            self._copy(checkpoint)
        names = {checkpoint.name for checkpoint in kept}
        for name in self._names():
            if name < kept[-1].name and name not in names:
                self._drop(f"{self._place}/{name}")

    def _copy(self, checkpoint: Path) -> None:
        target = f"{self._place}/{checkpoint.name}"
        manifest = (checkpoint / MANIFEST).read_bytes()
        if self._manifest(checkpoint.name) == manifest and checkpoint.name not in self._damaged:
            return
        self._drop(target)
        self._system.makedirs(target, exist_ok=True)
        for name in json.loads(manifest)["sha256"]:
            self._system.put_file(str(checkpoint / name), f"{target}/{name}")
        self._system.pipe_file(f"{target}/{MANIFEST}", manifest)
        self._damaged.discard(checkpoint.name)

    def _drop(self, target: str) -> None:
        """Remove a copy, beginning with its manifest."""
        if self._system.exists(f"{target}/{MANIFEST}"):
            self._system.rm_file(f"{target}/{MANIFEST}")
        if self._system.exists(target):
            self._system.rm(target, recursive=True)

    def _names(self) -> list[str]:
        """Names of the copies, oldest first, also of incomplete ones."""
        self._system.invalidate_cache()
        try:
            found = self._system.ls(self._place, detail=False)
        except FileNotFoundError:
            return []
        names = (str(path).rstrip("/").rpartition("/")[2] for path in found)
        return sorted(filter(is_checkpoint_name, names))

    def _manifest(self, name: str) -> bytes | None:
        """The manifest of a copy; None if it is incomplete."""
        try:
            raw: bytes = self._system.cat_file(f"{self._place}/{name}/{MANIFEST}", end=_LARGEST_MANIFEST)
        except FileNotFoundError:
            return None
        return raw

    def fetch(self, run: Path) -> str | None:
        """Fetch the newest intact copy that is newer than the run's own intact checkpoints; returns its name."""
        own, found = list_checkpoints(run / CHECKPOINTS), None
        intact = next((path.name for path in reversed(own) if _is_intact(path)), "")
        try:
            with explained(self.url):
                found = self._fetch(run, intact)
        except UniclozeError as error:
            if not own:
                raise
            warnings.warn(f"the run continues with its own checkpoints: {error}", stacklevel=2)
        newest = list_checkpoints(run / CHECKPOINTS)[-1:]
        if newest and (newest[0] / RECIPE).is_file() and not (run / RECIPE).exists():
            replace_file(run / RECIPE, (newest[0] / RECIPE).read_bytes())
        return found

    def _fetch(self, run: Path, newer_than: str) -> str | None:
        damages: list[str] = []
        self._refuse_another(run / LEDGER)
        for name in reversed(self._names()):
            if name <= newer_than:
                break
            manifest = self._manifest(name)
            if manifest is None:
                continue
            self._take_ledger(run / LEDGER)  # first: once the checkpoint is there, it is not fetched again
            damage = self._take(name, manifest, run / CHECKPOINTS)
            if damage is not None:
                self._damaged.add(name)
                damages.append(f"{self.url}/{name} is damaged ({damage})")
                continue
            for said in damages:
                warnings.warn(f"{said}; using {name} instead", stacklevel=3)
            return name
        if damages:
            raise UniclozeError(
                f"{damages[0]}, and no other copy is intact: restore it, or use another training.copy_to."
            )
        return None

    def _refuse_another(self, own: Path) -> None:
        """Refuse the copies of another run, whose ledger begins otherwise."""
        there = own.is_file() and self._system.exists(f"{self._place}/{LEDGER}")
        if there and any(self._manifest(name) is not None for name in self._names()):
            copied = self._system.cat_file(f"{self._place}/{LEDGER}", end=_HEAD)
            with own.open("rb") as ledger:
                begins = ledger.read(_HEAD)
            if begins[: len(copied)] != copied[: len(begins)]:
                raise UniclozeError(
                    f"{self.url} holds the copies of another run: give this one a training.copy_to of its own"
                )

    def _take_ledger(self, own: Path) -> None:
        """Fetch the ledger, unless the run's own continues it."""
        if self._system.exists(f"{self._place}/{LEDGER}"):
            copied: bytes = self._system.cat_file(f"{self._place}/{LEDGER}")
            if not own.exists() or not own.read_bytes().startswith(copied):
                own.parent.mkdir(parents=True, exist_ok=True)
                replace_file(own, copied)

    def _take(self, name: str, manifest: bytes, folder: Path) -> str | None:
        """Fetch a copy into a folder of checkpoints, where it appears when complete; returns what is wrong with it."""
        try:
            sums = dict(parse_json(manifest)["sha256"])
        except (ValueError, KeyError, TypeError):
            return MANIFEST
        building = folder / f".building-{name}"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        try:
            for file, expected in sums.items():
                if Path(file).name != file or "\0" in file or file == MANIFEST:
                    return f"it lists {file!r}"
                try:
                    self._get(f"{name}/{file}", building / file)
                except FileNotFoundError:
                    return f"{file} is missing"
                if file_sha256(building / file) != expected:
                    return f"{file} differs from its SHA-256"
            (building / MANIFEST).write_bytes(manifest)
            if (folder / name).exists():
                set_aside(folder / name)
            building.rename(folder / name)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return None

    def _get(self, name: str, target: Path) -> None:
        with self._system.open(f"{self._place}/{name}", "rb") as stream, target.open("xb") as file:
            shutil.copyfileobj(stream, file, 2**20)


def _is_intact(checkpoint: Path) -> bool:
    try:
        load_checkpoint(checkpoint)
    except FormatError:  # of another version, which is said later
        return True
    except (UniclozeError, OSError):
        return False
    return True
