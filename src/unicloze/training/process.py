"""Base class of runs: a process working on a run directory, with ledger, progress and checkpoints."""

from __future__ import annotations

import functools
import os
import platform
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch

from unicloze.errors import FailedElsewhere, UniclozeError
from unicloze.files import CHECKPOINTS, LEDGER, RECIPE, TOKENIZER, TOKENIZER_CONFIG
from unicloze.mixtures import parts, phases
from unicloze.progress import Progress, say, short
from unicloze.recipes import save_recipe
from unicloze.settings import Recipe, TrainingSettings, chosen
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.batches import MicroBatch, pack, unpack
from unicloze.training.checkpoint import (
    MALFORMED,
    Background,
    Checkpoint,
    Optimizers,
    checkpoint_name,
    save_checkpoint,
    set_aside_newer,
)
from unicloze.training.divergence import Spikes, norm_of_all
from unicloze.training.ledger import Ledger, read_ledger
from unicloze.training.loading import fit_weights
from unicloze.training.loop import Compute, Hooks, TrainState, fit
from unicloze.training.optimizers import NtAsgd, TensorwiseOptimizer, schedule_factor
from unicloze.training.pace import decided
from unicloze.training.parallel import World, gathered, gathered_state, moments_as_stored
from unicloze.version import __version__


def write_settings(recipe: Recipe, tokenizer: Tokenizer, out: Path, checkpoint: Checkpoint | None) -> None:
    """Write the tokenizer and the recipe, after setting aside any checkpoints newer than the one to resume from.

    The recipe of a finished run is kept.
    """
    if checkpoint is not None:
        set_aside_newer(checkpoint.path)
    tokenizer.save(out)
    if checkpoint is None or checkpoint.state["step"] < recipe.training.steps:
        save_recipe(recipe, out / RECIPE)


class RunProcess:
    """One process's work on a locked run directory.

    Args:
        recipe: All settings.
        out: The run directory, which holds the recipe and the tokenizer.
        checkpoint: The checkpoint to resume from.
        state: The training state.
        compute: Device and precision.
        progress: Show progress on stderr.

    Attributes:
        left_out: Names of weights that checkpoints leave out, because they are those of the model the run started from.
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
        self.recipe, self.out, self.checkpoint = recipe, out, checkpoint
        self.world, self.progress = compute.world, progress and compute.world.first
        self.state, self.compute = state, compute
        self.left_out: frozenset[str] = frozenset()
        self.signal = 0
        self.background = Background()
        self.started = time.perf_counter()

    def __enter__(self) -> Self:
        self.ledger = Ledger(self.out / LEDGER if self.world.first else Path(os.devnull))
        return self

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if error is not None:
            with suppress(UniclozeError):
                self.background.finish()
            with suppress(UniclozeError):
                name = (isinstance(error, FailedElsewhere) and error.kind) or type(error).__name__
                self.ledger.write("failed", step=self.state.step, message=str(error) or name, kind=name)
        self.ledger.close()

    def take_over(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint; warns if rounding will differ from here on."""
        before, now = checkpoint.state.get("threads"), torch.get_num_threads()
        if before not in (None, now) and self.compute.device.type == "cpu":
            warnings.warn(
                f"{checkpoint.path} was computed with {before} threads and the run continues with {now}: sums are rounded "
                f"differently from here on (--training.threads {before} keeps them)",
                stacklevel=2,
            )
        state = self.state
        own = state.model.state_dict()
        fit_weights(state.model, checkpoint, {name: own[name] for name in self.left_out})
        load_moments(state.optimizers, checkpoint)
        for optimizer in state.optimizers:
            if isinstance(optimizer, NtAsgd):
                optimizer.exchange()  # the averages were saved
        state.step, state.text_tokens = checkpoint.state["step"], checkpoint.state.get("text_tokens", 0)
        state.memories, state.parts = unpack(checkpoint.memories, self.compute.device), None
        state.spikes = Spikes.read(checkpoint.state.get("spikes"), checkpoint.path)

    def own(self, of_parts: Sequence[int]) -> set[int]:
        """The micro-batches of a step that this process computes, given the mixture part of each."""
        leaves = self.world.leaves(of_parts, self.recipe.training.leaves)
        return {number for numbers in leaves.values() for number in numbers}

    def write_start(self, **facts: Any) -> None:
        """Record the start in the ledger, with facts specific to the kind of run."""
        self.ledger.write(
            "start",
            step=self.state.step,
            recipe=self.recipe.to_dict(),
            **facts,
            parameters=self.state.model.num_parameters(),
            learned=sum(weight.numel() for weight in self.state.model.parameters() if weight.requires_grad),
            device=device_name(self.compute.device),
            precision=self.compute.precision,
            threads=torch.get_num_threads(),
            processes=self.world.size,
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
        """Events of this run in the ledger, without earlier runs in the same directory that left no checkpoint."""
        events = list(read_ledger(self.out / LEDGER))
        starts = [n for n, event in enumerate(events) if event["event"] == "start"]
        begins = [n for n in starts if events[n].get("resumed_from") is None]
        return events[begins[-1] :] if begins else events

    def heed(self, stopped_by: int) -> None:
        """Re-raise a signal that arrived too late to stop the run; called after its directory is unlocked."""
        if self.signal and not stopped_by:
            signal.raise_signal(self.signal)

    def learn(self, steps: Iterator[list[MicroBatch]], settings: TrainingSettings, **hooks: Any) -> None:
        """Train with a progress bar and further `Hooks`; sets `signal` to the signal that stopped it early, else 0."""
        every = Hooks(log=self.log, skipped=self.skip, may_skip=not self.recipe.finetuning.unlabelled, **hooks)
        last, done = self.state.last_step(settings), self.state.step
        bar = Progress("", last, "steps", initial=done, show=self.progress)
        with bar as self.bar:
            self.signal = fit(self.state, steps, settings, self.compute, every).heeded
        self.finish_saving()

    def log(self, state: TrainState, measures: Mapping[str, Any]) -> None:
        """Show a step, and record it in the ledger at intervals."""
        training = self.recipe.training
        self.bar.update()
        turn = range(state.step, state.step + self.recipe.finetuning.steps_between)  # labelled and unlabelled step
        if not any(step % training.log_every == 0 or step == state.last_step(training) for step in turn):
            return
        losses = {name: round(value, 4) for name, value in measures["loss"].items()}
        speed = measures["text_tokens_per_second"]
        self.bar.note(" ".join([*(f"{n} {v:.2g}" for n, v in losses.items()), f"{short(speed)} tok/s"]))
        self.ledger.write(
            "step",
            step=state.step,
            loss=losses,
            **self._figures(state),
            gradient_norm=round(measures["gradient_norm"], 4),
            learning_rate=chosen(training.learning_rate) * schedule_factor(state.step - 1, training, state.decays),
            text_tokens=state.text_tokens,
            text_tokens_per_second=round(speed, 1),
            **({"seconds": [round(each, 3) for each in state.seconds]} if state.seconds else {}),
        )

    def _figures(self, state: TrainState) -> dict[str, Any]:
        """The losses of the last step with what they count, for the ledger; empty for a task."""
        if self.recipe.task.kind:
            return {}
        recipe = decided(self.recipe, state.decays)
        number, phase = next(each for each in enumerate(phases(recipe)) if state.step <= each[1].last_step)
        labels = [part.label for part in parts(phase.recipe.objective)]
        labels = labels if len(labels) > 1 else [""]
        return {"figures": [figure.to_dict(part=labels[part], phase=number) for part, figure in state.figures]}

    def skip(self, state: TrainState, reason: str) -> None:
        """Record that the update of the current step is left out."""
        self.bar.update()
        self.ledger.write("spike", step=state.step + 1, action="skip", reason=reason)
        if self.progress:
            say(f"step {state.step + 1} spikes, its update is skipped: {reason}")

    def save(self, facts: Mapping[str, Any], *, keep: int) -> None:
        """Write a checkpoint to resume from, with facts specific to the kind of run, and delete old ones."""
        if self.world.size > 1:
            norm = float(norm_of_all(dict(self.state.model.named_parameters())))
            self.world.same("the model", norm.hex(), "use identical machines, and check them for faults")
        if self.state.model.for_use().settings.memory:  # those of the micro-batches of all processes
            shared = self.world.share_tensors(pack(self.state.memories))
            self.state.memories = unpack(shared, self.compute.device)
        event = {"step": self.state.step, "checkpoint": checkpoint_name(self.state.step)}
        place = self.out / CHECKPOINTS / checkpoint_name(self.state.step)
        there = place.exists()  # the one that the run resumed from

        def note() -> None:
            if not there:
                self.ledger.write("save", **event)

        self.write_checkpoint(CHECKPOINTS, self.state.optimizers, self.out / RECIPE, facts, keep=keep, then=note)

    def finish_saving(self) -> None:
        """Wait for what is written in the background; if that fails, all processes end."""
        if self.world.sharded:
            self.world.only_first(self.background.finish)

    def after_saving(self, do: Callable[[], None]) -> None:
        """Run something on the first process once the checkpoint is written."""
        if not self.world.sharded:
            self.world.only_first(do)
        elif self.world.first:
            self.background.start(do)

    def write_checkpoint(
        self,
        folder: str,
        optimizers: Sequence[torch.optim.Optimizer],
        recipe: Path,
        facts: Mapping[str, Any],
        *,
        keep: int,
        more: Sequence[Path] = (),
        then: Callable[[], None] = lambda: None,
    ) -> Path:
        """Write a self-contained checkpoint to a folder of the run directory, with copies of extra files.

        What was gathered from the shares of several processes is written in the background, after what is being written.
        """
        state, sharded = self.state, self.world.sharded
        states: Optimizers = list(optimizers)
        weights = state.model.state_dict()
        if sharded:
            self.finish_saving()  # so that no more than one copy is held
            weights = gathered(weights, keep=self.world.first)
            states = [gathered_state(optimizer, keep=self.world.first) for optimizer in optimizers]
        others = {
            "text_tokens": state.text_tokens,
            **facts,
            "vocab_size": state.model.vocab_size,
            "max_positions": state.model.max_positions,
            "threads": torch.get_num_threads(),
            **({} if self.recipe.training.on_spike == "accept" else {"spikes": asdict(state.spikes)}),
        }
        write = functools.partial(
            save_checkpoint,
            self.out / folder,
            step=state.step,
            keep=keep,
            model={name: weight for name, weight in weights.items() if name not in self.left_out},
            optimizers=states,
            state=others,
            files=[recipe, *(self.out / name for name in (TOKENIZER, TOKENIZER_CONFIG)), *more],
            memories=pack(state.memories) if optimizers else None,
        )
        path = self.out / folder / checkpoint_name(state.step)
        if not sharded:
            self.world.only_first(lambda: str(write()))
            then()
        elif self.world.first:
            self.background.start(write, then)
        return path


@contextmanager
def pinned_threads(settings: TrainingSettings, world: World) -> Iterator[None]:
    """Set the number of threads from the settings within this context."""
    before = torch.get_num_threads()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    try:
        cure = "set the same OMP_NUM_THREADS for all, or --training.threads"
        world.same("the number of threads", str(torch.get_num_threads()), cure)
        yield
    finally:
        if settings.threads is not None:
            torch.set_num_threads(before)


def load_moments(optimizers: Sequence[torch.optim.Optimizer], checkpoint: Checkpoint) -> None:
    """Load the state of the optimisers of a run. Their settings stay those of the recipe."""
    try:
        for optimizer, state in zip(optimizers, checkpoint.optimizers, strict=True):
            _check_moments(optimizer, state)
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            state = moments_as_stored(state, weights)
            optimizer.load_state_dict({**state, "param_groups": optimizer.state_dict()["param_groups"]})
    except MALFORMED as error:
        raise UniclozeError(
            f"{checkpoint.path} does not fit the run ({type(error).__name__}: {error}): go back to an earlier checkpoint"
        ) from error


def _check_moments(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Refuse an optimiser state that does not match the weights."""
    ours = optimizer.state_dict()["param_groups"]
    if [group["params"] for group in state["param_groups"]] != [group["params"] for group in ours]:
        raise ValueError("its moments are those of other weights")
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    first: dict[str, Any] = next(iter(state["state"].values()), {})
    tensorwise = optimizer if isinstance(optimizer, TensorwiseOptimizer) else None
    for index, moments in state["state"].items():
        wanted = first if tensorwise is None else tensorwise.initial(*tensorwise.apart(weights[index]))
        if moments.keys() != wanted.keys():
            raise ValueError("a moment is missing")
        for name, moment in moments.items():
            shape = (weights[index] if tensorwise is None else wanted[name]).shape
            if isinstance(moment, torch.Tensor) and moment.numel() > 1 and moment.shape != shape:
                raise ValueError(f"{name} of weight {index} has shape {tuple(moment.shape)}")


def device_name(device: torch.device) -> str:
    """Name of a device in the ledger."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} ({platform.machine()})"
