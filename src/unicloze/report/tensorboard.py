"""Writes the curves of a run's ledger as event files for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError
from unicloze.report.history import History

SUFFIX = ".unicloze"
"""Ending of the event files written here; those of an earlier call are replaced."""
_NOT_A_CURVE = {"schema", "event", "time", "step", "windows", "window"}


def write_tensorboard(run: str | Path, folder: str | Path) -> Path:
    """Write the curves of a run, finished or not."""
    history = History.read(Path(run))
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UniclozeError(
            "writing for TensorBoard needs the package tensorboard: in the clone, pip install -e '.[tensorboard]'."
        ) from error
    target = Path(folder)
    for old in target.glob(f"events.out.tfevents.*{SUFFIX}"):
        old.unlink()
    with SummaryWriter(log_dir=str(target), filename_suffix=SUFFIX) as writer:
        for part, events in (("train", history.steps), ("held-out", history.evaluations)):
            for step, event in events.items():
                for name, value in curves(event):
                    writer.add_scalar(f"{part}/{name}", value, step, walltime=event.get("time"))
    return target


def curves(event: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Names and values of the numbers in an event, as in `loss/ae`."""
    for name, value in event.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{key}", one) for key, one in curves(value))
        elif isinstance(value, int | float) and not isinstance(value, bool) and name not in _NOT_A_CURVE:
            yield name, float(value)
