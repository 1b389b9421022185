"""Base class of runs: a process working on a run directory, with ledger, progress and checkpoints."""

from __future__ import annotations

import platform
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from unicloze.errors import UniclozeError
from unicloze.progress import Progress, short
from unicloze.run_files import CHECKPOINTS, LEDGER, RECIPE, TOKENIZER, TOKENIZER_CONFIG
from unicloze.settings import Recipe, TrainingSettings, chosen
from unicloze.training.batches import MicroBatch
from unicloze.training.checkpoint import Checkpoint, save_checkpoint
from unicloze.training.ledger import Ledger, read_ledger
from unicloze.training.loop import Compute, Hooks, TrainState, fit
from unicloze.training.models import fit_weights
from unicloze.training.optimizers import schedule_factor
from unicloze.training.recurrence import pack, unpack
from unicloze.version import __version__


class RunProcess:
    """One process's work on a locked run directory.

    Args:
        recipe: All settings.
        out: The run directory, which holds the recipe and the tokenizer.
        checkpoint: The checkpoint to resume from.
        state: The training state.
        compute: Device and precision.
        progress: Show progress on stderr.
    """

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        checkpoint: Checkpoint | None,
        state: TrainState,
        compute: Compute,
        *,
        progress: bool,
    ) -> None:
        self.recipe, self.out, self.checkpoint, self.progress = recipe, out, checkpoint, progress
        self.state, self.compute = state, compute
        self.signal = 0
        self.started = time.perf_counter()

    def __enter__(self) -> Self:
        self.ledger = Ledger(self.out / LEDGER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with suppress(UniclozeError):
                self.ledger.write("failed", step=self.state.step, message=str(error) or type(error).__name__)
        self.ledger.close()

    def take_over(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint."""
        fit_weights(self.state.model, checkpoint)
        for optimizer, state in zip(self.state.optimizers, checkpoint.optimizers, strict=True):
            optimizer.load_state_dict(state)
        self.state.step, self.state.text_tokens = checkpoint.state["step"], checkpoint.state["text_tokens"]
        self.state.memories = unpack(checkpoint.memories, self.compute.device)

    def write_start(self, **facts: Any) -> None:
        """Record the start in the ledger, with facts specific to the kind of run."""
        self.ledger.write(
            "start",
            step=self.state.step,
            recipe=self.recipe.to_dict(),
            **facts,
            parameters=self.state.model.num_parameters(),
            device=device_name(self.compute.device),
            precision=self.compute.precision,
            threads=torch.get_num_threads(),
            versions={"unicloze": __version__, "torch": torch.__version__, "python": platform.python_version()},
            resumed_from=None if self.checkpoint is None else self.checkpoint.path.name,
        )

    def write_end(self, **facts: Any) -> None:
        """Record the end in the ledger, with facts specific to the kind of run."""
        self.ledger.write("end", step=self.state.step, seconds=round(time.perf_counter() - self.started, 1), **facts)

    def write_stop(self) -> None:
        """Note in the ledger that a signal stopped the run."""
        self.ledger.write("stop", step=self.state.step, signal=self.signal)

    def former_events(self) -> list[dict[str, Any]]:
        """What the ledger says of this run, without one that began in the same directory and left no checkpoint."""
        events = list(read_ledger(self.out / LEDGER))
        begins = [
            n for n, event in enumerate(events) if event["event"] == "start" and event.get("resumed_from") is None
        ]
        return events[begins[-1] :] if begins else events

    def heed(self, stopped_by: int) -> None:
        """Do as a signal asks that came while the run ended by itself, once its directory is free again.

        Args:
            stopped_by: The signal that stopped the run, 0 if none did.
        """
        if self.signal and not stopped_by:
            signal.raise_signal(self.signal)

    def learn(
        self,
        steps: Iterator[list[MicroBatch]],
        settings: TrainingSettings,
        evaluate: Callable[[TrainState], bool],
        save: Callable[[TrainState], None],
        describe: Callable[[MicroBatch], str],
    ) -> None:
        """Take the steps under a progress bar; afterwards `signal` says what stopped it early.

        Args:
            steps: The micro-batches of each.
            settings: When to evaluate and to save.
            evaluate: Measures; whether it is enough.
            save: Writes a checkpoint.
            describe: Names a micro-batch in errors.
        """
        hooks = Hooks(log=self.log, evaluate=evaluate, save=save, describe=describe)
        with Progress("", settings.steps, "steps", initial=self.state.step, show=self.progress) as self.bar:
            self.signal = fit(self.state, steps, settings, self.compute, hooks).signal

    def log(self, state: TrainState, measures: Mapping[str, Any]) -> None:
        """Show a step, and record it in the ledger at intervals."""
        training = self.recipe.training
        self.bar.update()
        if state.step % training.log_every and state.step != training.steps:
            return
        losses = {name: round(value, 4) for name, value in measures["loss"].items()}
        speed = measures["text_tokens_per_second"]
        self.bar.note(" ".join([*(f"{n} {v:.2g}" for n, v in losses.items()), f"{short(speed)} tok/s"]))
        self.ledger.write(
            "step",
            step=state.step,
            loss=losses,
            gradient_norm=round(measures["gradient_norm"], 4),
            learning_rate=chosen(training.learning_rate) * schedule_factor(state.step - 1, training),
            text_tokens=state.text_tokens,
            text_tokens_per_second=round(speed, 1),
        )

    def save(self, facts: Mapping[str, Any], *, keep: int) -> None:
        """Write a checkpoint to resume from, with facts specific to the kind of run, and delete old ones."""
        path = self.write_checkpoint(CHECKPOINTS, self.state.optimizers, self.out / RECIPE, facts, keep=keep)
        self.ledger.write("save", step=self.state.step, checkpoint=path.name)

    def write_checkpoint(
        self,
        folder: str,
        optimizers: Sequence[torch.optim.Optimizer],
        recipe: Path,
        facts: Mapping[str, Any],
        *,
        keep: int,
        more: Sequence[Path] = (),
    ) -> Path:
        """Write a self-contained checkpoint to a folder of the run directory, with copies of extra files."""
        state = self.state
        return save_checkpoint(
            self.out / folder,
            step=state.step,
            model=state.model.state_dict(),
            optimizers=list(optimizers),
            state={
                "text_tokens": state.text_tokens,
                **facts,
                "vocab_size": state.model.vocab_size,
                "max_positions": state.model.max_positions,
            },
            files=[recipe, *(self.out / name for name in (TOKENIZER, TOKENIZER_CONFIG)), *more],
            keep=keep,
            memories=pack(state.memories) if optimizers else None,
        )


def device_name(device: torch.device) -> str:
    """Name of a device in the ledger."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})"
