"""A pre-training run: from a recipe and a directory to a trained model; interrupted at any point, it resumes."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError, UsageError
from unicloze.example import predicts_tokens
from unicloze.files import CHECKPOINTS, LEDGER, RECIPE, digest
from unicloze.interop.read import open_model
from unicloze.mixtures import parts, phases, windows_before
from unicloze.model.build import Model
from unicloze.pretraining.count_baselines import open_baselines, trained_sources
from unicloze.pretraining.data import as_prepared, build_sampler, open_data, phrases_for, teacher_of, tokens_per_byte
from unicloze.pretraining.filled_samples import heldout_samples
from unicloze.progress import say
from unicloze.recipes import load_recipe
from unicloze.settings import Recipe
from unicloze.text.lineage import read_lineage
from unicloze.text.phrases import PhraseTable
from unicloze.text.prepare import Prepared
from unicloze.text.sampler import WindowSampler
from unicloze.training.batches import MicroBatch, check_vocabulary, check_windows, heldout_examples, training_steps
from unicloze.training.checkpoint import Checkpoint, checkpoint_name, drop_newer, load_checkpoint, load_newest
from unicloze.training.copies import Copies
from unicloze.training.distillation import Teacher
from unicloze.training.initial import initialize_from, require_vectors, start_from_vectors
from unicloze.training.ledger import Figure, read_ledger, stopped_by_error
from unicloze.training.loading import compile_layers, compiles, ready_model, spell_tokens
from unicloze.training.lock import FREE_AFTER_OUT_OF_MEMORY, free_after, hold_run, refuse_changes
from unicloze.training.loop import Compute, TrainState, evaluate
from unicloze.training.meeting import joined
from unicloze.training.memory import refuse_what_cannot_fit, shards
from unicloze.training.optimizers import NtAsgd, averaged, build_optimizers
from unicloze.training.pace import Clock, decided, decided_steps, recorded_decays
from unicloze.training.parallel import gathered, shard
from unicloze.training.precision import choose_device, choose_precision, with_precision
from unicloze.training.process import RunProcess, pinned_threads, write_settings
from unicloze.training.verdict import (
    Counted,
    Course,
    WordScore,
    ranks_by_model,
    shown,
    too_little_text,
    verdict_on,
    way_to_ask,
)
from unicloze.training.world import World

CURE_OF_LITTLE = "a model needs 1 MB or more to learn a language, so give more text"
TOO_SMALL = "the corpus is too small to hold anything out: {}; give more text, or a larger data.heldout_share"


@dataclass(frozen=True)
class RunResult:
    """Result of a run.

    Args:
        out: The run directory.
        step: Number of steps done.
        stopped_by: The signal that stopped it early, 0 if it finished.
        perplexity: Perplexity of each target that predicts tokens at this process's last evaluation, over ordinary
            tokens that the row does not show elsewhere; None for a target without such predictions.
        part: What was evaluated: `held-out` text, or `training-text` if nothing is held out.
        counts: Perplexity of the same predictions under counts of the training text, by target and by kind of count
            (`unigram`, and `trigram`: Kneser-Ney's); empty if nothing is held out.
        words: Score on held-out content words; None if not measured by this process.
        verdict: What the results mean, in words; empty if the run did not finish.
    """

    out: Path
    step: int
    stopped_by: int
    perplexity: Mapping[str, float | None]
    part: str
    counts: Counted = field(default_factory=dict)
    words: WordScore | None = None
    verdict: str = ""

    @property
    def measured(self) -> str:
        """The perplexities in words; empty if this process evaluated nothing."""
        return _measured(self.part, self.perplexity, self.counts) if self.perplexity else ""

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 128 + the signal that stopped it, else 0."""
        return 128 + self.stopped_by if self.stopped_by else 0

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return {**dataclasses.asdict(self), "out": str(self.out)}

    def __str__(self) -> str:
        if self.stopped_by:
            return f"{self.out}: stopped and saved at step {self.step:,}; run the same command to resume"
        line = f"{self.out}: trained to step {self.step:,}" + (f", {self.measured}" if self.measured else "")
        return f"{line}\n  {self.verdict}" if self.verdict else line


def _measured(part: str, perplexities: Mapping[str, float | None], counts: Counted) -> str:
    if all(value is None for value in perplexities.values()):
        return f"no {part} perplexity, nothing to measure"
    each = (
        f"{name} {'(nothing to measure)' if value is None else f'{value:,.1f}'}"
        + (f" (Kneser-Ney trigram {shown(counts[name]['trigram'])})" if name in counts else "")
        for name, value in perplexities.items()
    )
    return f"{part} perplexity {', '.join(each)}"


def pretrain_run(
    recipe: Recipe, out: Path, *, progress: bool = True, verify: bool = False, clock: Clock | None = None
) -> RunResult:
    """Pre-train a recipe, or resume the run in the directory."""
    with joined() as world, hold_run(out, world), pinned_threads(recipe.training, world):
        world.same("the recipe", digest(recipe.to_dict()), "give all processes the same recipe and settings")
        progress = progress and world.first
        copies = None if recipe.training.copy_to is None else Copies(recipe.training.copy_to)
        if copies is not None:
            fetched = world.only_first(lambda: copies.fetch(out))
            if fetched and progress:
                say(f"{out}: fetched {fetched} from {copies.url}.")
        checkpoint = world.in_turn(lambda: load_newest(out / CHECKPOINTS))
        recipe = _with_former_settings(recipe, out, checkpoint, world)
        world.sharded = world.only_first(lambda: shards(recipe, world.size))
        shares = world.size if world.sharded else 1
        refuse_what_cannot_fit(recipe, choose_device(recipe.training), recipe.tokenizer.vocab_size, shares)
        if checkpoint is None and recipe.training.word_vectors is not None:
            require_vectors(Path(recipe.training.word_vectors))
        prepared = world.in_turn(lambda: open_data(recipe, out, checkpoint, progress, verify))
        world.same("the data", prepared.fingerprint, "give all processes the same files, in a shared folder")
        little = too_little_text([*trained_sources(recipe, prepared), *prepared.heldout])
        if checkpoint is None and little:
            start = " or start from a trained one (--init)" if recipe.training.initialize_from is None else ""
            warnings.warn(f"{little}; {CURE_OF_LITTLE}{start}", stacklevel=2)
        world.only_first(lambda: write_settings(recipe, prepared.tokenizer, out, checkpoint))
        phrases = world.in_turn(lambda: phrases_for(recipe, prepared, out, progress=progress))
        with _Run(recipe, out, prepared, checkpoint, phrases, progress, world, clock) as run:
            result = run.train()
    run.heed(result.stopped_by)
    return result


def _with_former_settings(recipe: Recipe, out: Path, checkpoint: Checkpoint | None, world: World) -> Recipe:
    """The recipe with `auto` resolved as in the run to resume, if any, and with the settings of `data.prepared`."""
    lineage = None if recipe.data.prepared is None else read_lineage(Path(recipe.data.prepared))
    recipe = recipe if lineage is None else as_prepared(recipe, lineage)
    training = recipe.training
    if checkpoint is None:
        precision: Any = world.only_first(lambda: choose_precision(training, choose_device(training)))
        return with_precision(recipe, precision)
    former = load_recipe(checkpoint.path / RECIPE)
    if lineage is not None:  # the fingerprint decides whether the data are the same
        former = as_prepared(former, lineage)
    recipe = with_precision(recipe, former.training.precision)
    free = free_after(stopped_by_error(out / LEDGER))
    if recipe.model.memory:
        free -= FREE_AFTER_OUT_OF_MEMORY  # memories belong to micro-batches
    if training.on_spike == "go_back":
        free -= {"training.save_every"}  # decides which checkpoint is the last
    if training.optimizer == "nt_asgd":
        free -= {"training.evaluate_every", "training.evaluate_windows"}  # evaluations decide when it starts to average
    refuse_changes(former, recipe, out, f"continue the old one with unicloze pretrain --out {out}", free=free)
    moving = _moves_with_the_steps(recipe)
    if former.training.steps != recipe.training.steps and moving:
        warnings.warn(
            f"training.steps changes from {former.training.steps} to {recipe.training.steps}, which changes "
            f"{' and '.join(moving)} too: the weights will differ from those of a run of that length from the start",
            stacklevel=2,
        )
    return recipe


def _moves_with_the_steps(recipe: Recipe) -> list[str]:
    """The settings that depend on the number of steps, in words."""
    rates = [part.settings.rates for phase in phases(recipe) for part in parts(phase.recipe.objective)]
    moves = {
        "the learning rate": recipe.training.schedule != "constant",
        "the boundaries of training.phases": bool(recipe.training.phases),
        "the mask rate": any(pair is not None and pair[0] != pair[1] for pair in rates),
    }
    return [name for name, moved in moves.items() if moved]


class _Run(RunProcess):
    """One process's work on a pre-training run."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        prepared: Prepared,
        checkpoint: Checkpoint | None,
        phrases: PhraseTable | None,
        progress: bool,
        world: World,
        clock: Clock | None,
    ) -> None:
        self.prepared, self.phrases = prepared, phrases
        self.clock = clock if checkpoint is None and world.size == 1 else None
        training = recipe.training
        device = world.device(choose_device(training))
        self.teacher = world.in_turn(lambda: teacher_of(recipe, prepared.tokenizer))
        _refuse_other_teacher(checkpoint, self.teacher, out)
        compute = Compute(
            device=device,
            world=world,
            precision=training.precision,
            fixed_shape=compiles(training, device) or device.type == "cuda",
            soften=self.teacher,
        )
        last = phases(recipe)[-1].recipe
        self.sampler = self._sampler(last)
        heldout = self._heldout(last)
        self.part = "training-text" if heldout is None else "held-out"
        self.heldout = self.sampler if heldout is None else heldout
        check_vocabulary(recipe, self.prepared.tokenizer.vocabulary)
        check_windows(recipe, self._sampler)
        if heldout is not None:
            check_windows(last, lambda _: self.heldout)
        self.heldout_examples = heldout_examples(
            self.heldout,
            last.objective,
            training.evaluate_windows,
            lanes=training.micro_batch_size or training.batch_size,
        )
        if heldout is not None and not any(map(_predicts, self.heldout_examples.values())):
            warnings.warn(TOO_SMALL.format("there is nothing to measure"), stacklevel=4)
        self.baselines = None
        if heldout is not None:
            self.baselines = world.in_turn(lambda: open_baselines(last, prepared, out, self.heldout_examples))
        self.counts: Counted = self.baselines.perplexities if self.baselines else {}
        state = self._initial_state(recipe, compute, checkpoint, show=progress)
        self.perplexity: dict[str, float | None] = {}
        self.figures: dict[str, Figure] = {}
        super().__init__(recipe, out, checkpoint, state, compute, progress=progress)

    def _sampler(self, recipe: Recipe, *, heldout: bool = False) -> WindowSampler:
        return build_sampler(recipe, self.prepared, heldout=heldout, phrases=self.phrases)

    def _heldout(self, recipe: Recipe) -> WindowSampler | None:
        """Sampler of the held-out text; None if it has no windows."""
        if not self.prepared.heldout:
            return None
        try:
            return self._sampler(recipe, heldout=True)
        except UsageError:
            raise
        except UniclozeError:  # the documents are too short for a window
            warnings.warn(TOO_SMALL.format("the perplexity will be measured on the training text"), stacklevel=4)
            return None

    def _initial_state(
        self, recipe: Recipe, compute: Compute, checkpoint: Checkpoint | None, *, show: bool
    ) -> TrainState:
        """The state before the first step, or, for a run that resumes, the one to restore a checkpoint into."""
        model = ready_model(recipe, self.prepared.tokenizer.vocabulary.size, compute.device)
        spell_tokens(model, self.prepared.tokenizer.symbols)
        if recipe.training.initialize_from is not None and checkpoint is None:
            initialize_from(model, open_model(recipe.training.initialize_from), self.prepared.tokenizer, recipe)
        if recipe.training.word_vectors is not None and checkpoint is None:
            said = start_from_vectors(model, self.prepared.tokenizer, Path(recipe.training.word_vectors))
            if show:
                say(said)
        if compute.world.sharded:
            shard(model, compute.device, compute.world.size)
        return TrainState(
            model=model, optimizers=build_optimizers(model, recipe.training, layer_decay=recipe.training.layer_decay)
        )

    def train(self) -> RunResult:
        """Train to the last step, from the checkpoint if there is one, and evaluate."""
        training = self.recipe.training
        if self.checkpoint is not None:
            self.take_over(self.checkpoint)
            self.state.decays = recorded_decays(self.former_events(), training.steps)
            self._hear_again()
        baselines = self.baselines.summary() if self.baselines else None
        self.write_start(lineage=self.prepared.lineage, baselines=baselines)
        if self.state.step >= self.state.last_step(training):
            return self._finish(already=True)
        if self.state.step == 0:
            self._write_samples()
        model = self.state.model
        if compiles(training, self.compute.device) and not self.world.sharded:
            compile_layers(model)
        steps = self._steps()
        self.learn(steps, training, self._evaluate, self._save, self._describe, self._spiked, self._decide)
        if self.state.step < self.state.last_step(training):
            self.write_stop()
            return RunResult(self.out, self.state.step, self.signal, self.perplexity, self.part, self.counts)
        return self._finish(already=False)

    def _steps(self) -> Iterator[list[MicroBatch]]:
        ahead = self.state.spikes.windows_ahead

        def steps_of(recipe: Recipe, step: int) -> Iterator[list[MicroBatch]]:
            return training_steps(recipe, self._sampler, step, self.own, windows_ahead=ahead)

        return decided_steps(self.recipe, tuple(self.state.decays), self.state.step, steps_of)

    def _decide(self, state: TrainState) -> Iterator[list[MicroBatch]] | None:
        """Let the clock decide after a step, and write down what it decides before the next one."""
        if self.clock is None:
            return None
        self.clock.stepped()
        decay = self.clock.decide(state.step, self.recipe, state.decays)
        if decay is None:
            return None
        self.ledger.write("decay", step=decay.first, end=decay.end, planned=self.recipe.training.steps)
        self.ledger.sync()
        state.decays.append(decay)
        self.bar.end_at(decay.end)
        return self._steps()

    def _spiked(self, state: TrainState, reason: str) -> Iterator[list[MicroBatch]] | None:
        """Skip the update, or go back to the last regular checkpoint and read the text after that of this step."""
        to = self.step_to_go_back_to
        if to is None:
            self.skip(state, reason)
            return None
        recipe = decided(self.recipe, state.decays)
        ahead = state.spikes.windows_ahead + windows_before(recipe, state.step + 1) - windows_before(recipe, to)
        in_a_row = state.spikes.in_a_row
        self.finish_saving()
        self.note_spike("go_back", reason, to=to, windows_ahead=ahead)
        self.bar.update(to - self.bar.done)
        path = self.out / CHECKPOINTS / checkpoint_name(to)
        checkpoint = self.world.in_turn(lambda: load_checkpoint(path))
        self.world.only_first(lambda: drop_newer(path))
        self.restore(checkpoint)
        self._hear_again()
        state.memories = {}  # of text that the next rows do not continue
        state.spikes.in_a_row, state.spikes.windows_ahead = in_a_row, ahead
        return self._steps()

    def _finish(self, *, already: bool) -> RunResult:
        """Finish a run that has done its steps, including one killed between its last save and its end."""
        step, words = self.state.step, None
        ends = [event for event in self.former_events() if event["event"] == "end" and event.get("step") == step]
        end = ends[-1] if ends else None
        if already and end is not None:
            warnings.warn(
                f"{self.out} is already trained to step {step}; raise --training.steps to continue", stacklevel=2
            )
            verdict = str(end.get("verdict", ""))
        else:
            if already:
                self._evaluate(self.state)
            with averaged(self.state.optimizers):
                self._write_samples()
                words = self._content_words()
            course = Course.of(read_ledger(self.out / LEDGER))
            little = too_little_text([*trained_sources(self.recipe, self.prepared), *self.prepared.heldout])
            verdict = verdict_on(self.figures, self.counts, words, course, little)
            self.write_end(content_words=words.to_dict() if words else None, verdict=verdict)
        return RunResult(self.out, step, 0, self.perplexity, self.part, self.counts, words, verdict)

    def _content_words(self) -> WordScore | None:
        """Score on held-out content words; None if there are too few or the objective cannot predict them."""
        way = way_to_ask(phases(self.recipe)[-1].recipe.objective)
        if way is None or self.baselines is None or not len(self.baselines.words):
            return None
        model = self._whole_model()
        if model is None:
            return None
        vocabulary = self.prepared.tokenizer.vocabulary
        ranks = ranks_by_model(model, self.baselines.words, vocabulary, way, self.compute)
        return WordScore.of(ranks, self.baselines.ranks, way[0])

    def _whole_model(self) -> Model | None:
        """The model, gathered from all processes if it is sharded, in the first process; None in the others."""
        if not self.world.sharded:
            return self.state.model if self.world.first else None
        weights = gathered(self.state.model.state_dict(), keep=self.world.first)
        if not self.world.first:
            return None
        model = ready_model(self.recipe, self.state.model.vocab_size, self.compute.device)
        model.load_state_dict(weights)
        return model

    def _write_samples(self) -> None:
        model = self._whole_model()
        if model is None:
            return
        objective = phases(self.recipe)[-1].recipe.objective
        samples = heldout_samples(model, self.heldout, self.prepared.tokenizer, objective, self.compute)
        self.ledger.write("samples", step=self.state.step, samples=samples)

    def _evaluate(self, state: TrainState) -> bool:
        began = time.monotonic()
        try:
            return self._measure(state)
        finally:
            if self.clock is not None:
                self.clock.evaluated(time.monotonic() - began)

    def _measure(self, state: TrainState) -> bool:
        training = self.recipe.training
        rows = training.micro_batch_size or training.batch_size
        figures: list[Figure] = []
        for label, block in self.heldout_examples.items():
            with averaged(state.optimizers):
                measured = evaluate(state.model, block.examples, self.compute, rows, block.windows)
            several, phase = len(parts(phases(self.recipe)[-1].recipe.objective)) > 1, len(phases(self.recipe)) - 1
            part = label if several else ""
            figures += [dataclasses.replace(figure, part=part, phase=phase) for figure in measured.values()]
        prefixed = len(self.heldout_examples) > 1
        self.figures = {figure.name if prefixed else figure.target: figure for figure in figures}
        means = {name: figure.mean for name, figure in self.figures.items()}
        tokens = {name: figure for name, figure in self.figures.items() if predicts_tokens(name)}
        self.perplexity = {name: figure.perplexity for name, figure in tokens.items()}
        density = tokens_per_byte(self.prepared)
        self.ledger.write(
            "evaluate",
            step=state.step,
            loss=means,
            perplexity=self.perplexity,
            bits_per_byte=None
            if density is None
            else {
                name: None if (mean := figure.token_mean) is None else mean / math.log(2) * density
                for name, figure in tokens.items()
            },
            predictions={
                name: figure.counted_weight if name in tokens else figure.weight
                for name, figure in self.figures.items()
            },
            figures=[figure.to_dict() for figure in figures],
            part=self.part,
            window=self.heldout.window,
            windows=len(next(iter(self.heldout_examples.values())).examples),
        )
        self._hear(means)
        if self.progress:
            said = _measured(self.part, self.perplexity, self.counts)
            say(f"step {state.step}: {said} (window {self.heldout.window})")
        return False

    def _hear(self, means: Mapping[str, float | None]) -> None:
        """Tell the optimisers that heed it about an evaluation."""
        for optimizer in self.state.optimizers:
            if isinstance(optimizer, NtAsgd):
                optimizer.hear(sum(mean for mean in means.values() if mean is not None))

    def _hear_again(self) -> None:
        """Tell them about the evaluations before the checkpoint, and evaluate if the run ended before it could."""
        training, step = self.recipe.training, self.state.step
        if training.optimizer != "nt_asgd":
            return
        for optimizer in self.state.optimizers:
            if isinstance(optimizer, NtAsgd):
                optimizer.heard = []
        evaluations = {event["step"]: event for event in self.former_events() if event["event"] == "evaluate"}
        for done in sorted(number for number in evaluations if number <= step):
            self._hear(evaluations[done]["loss"])
        due = training.evaluate_every and step % training.evaluate_every == 0
        if due and 0 < step < self.state.last_step(training) and step not in evaluations:
            self._evaluate(self.state)

    def _save(self, _state: TrainState) -> None:
        facts = {"fingerprint": self.prepared.fingerprint}
        if self.teacher is not None:
            facts["teacher"] = self.teacher.digest
        with averaged(self.state.optimizers):
            self.save(facts, keep=self.recipe.training.keep_checkpoints)
        copy_to = self.recipe.training.copy_to
        if copy_to is not None:
            self.after_saving(lambda: Copies(copy_to).update(self.out))

    def _describe(self, micro_batch: MicroBatch) -> str:
        windows = micro_batch.windows
        assert windows is not None
        phase = next(
            phase for phase in phases(decided(self.recipe, self.state.decays)) if self.state.step < phase.last_step
        )
        return (
            str(self._sampler(phase.recipe).name(int(windows.source[0]), int(windows.index[0])))
            + f" and {len(windows) - 1} more windows"
        )


def _refuse_other_teacher(checkpoint: Checkpoint | None, teacher: Teacher | None, out: Path) -> None:
    """Reject resuming a run with another teacher."""
    now = None if teacher is None else teacher.digest
    if checkpoint is not None and checkpoint.state.get("teacher") != now:
        raise UniclozeError(
            f"{out} holds a run with another distillation.teacher, or one that has changed since: give the run its own "
            "teacher, or another --out"
        )


def _predicts(block: MicroBatch) -> bool:
    return any(bool((target.weights > 0).any()) for target in block.examples.targets.values())
