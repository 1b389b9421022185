"""A pre-training run: from a recipe and a directory to a trained model; interrupted at any point, it resumes."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unicloze.decoding.inputs import objective_of
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import collate, predicts_tokens, select_rows
from unicloze.files import CHECKPOINTS, LEDGER, RECIPE, Plain, digest
from unicloze.interop.read import open_model
from unicloze.mixtures import parts, phases
from unicloze.model.build import Model
from unicloze.pretraining.count_baselines import open_baselines, ranks_by_model, way_to_ask
from unicloze.pretraining.data import as_prepared, build_sampler, open_data, phrases_for, teacher_of, tokens_per_byte
from unicloze.progress import say
from unicloze.recipes import load_recipe
from unicloze.settings import ObjectiveSettings, Recipe
from unicloze.text.count_vectors import open_vectors
from unicloze.text.counts import open_counts
from unicloze.text.lineage import read_lineage
from unicloze.text.phrases import PhraseTable
from unicloze.text.prepare import Prepared
from unicloze.text.sampler import WindowSampler, evenly_spaced
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.windows import Windows
from unicloze.training.batches import (
    MicroBatch,
    check_vocabulary,
    check_windows,
    heldout_examples,
    heldout_rows,
    training_steps,
)
from unicloze.training.checkpoint import Checkpoint, load_newest
from unicloze.training.copies import Copies
from unicloze.training.distillation import Teacher
from unicloze.training.divergence import Spikes
from unicloze.training.initial import initialize_from, require_vectors, start_from_counts, start_from_vectors
from unicloze.training.ledger import HELD_OUT, TRAINING_TEXT, Figure, errors_since_saved
from unicloze.training.loading import compile_layers, explain_compile_errors, ready_model, spell_tokens
from unicloze.training.lock import FREE_AFTER_OUT_OF_MEMORY, free_after, hold_run, refuse_changes
from unicloze.training.loop import Compute, TrainState, evaluate
from unicloze.training.memory import refuse_what_cannot_fit, shards
from unicloze.training.optimizers import NtAsgd, averaged, build_optimizers
from unicloze.training.pace import Clock, decided, decided_steps, recorded_decays
from unicloze.training.parallel import World, gathered, joined, shard
from unicloze.training.precision import choose_device, choose_precision, with_precision
from unicloze.training.process import RunProcess, pinned_threads, write_settings
from unicloze.training.verdict import Counted, Course, WordScore, shown, too_little_text, verdict_on

CURE_OF_LITTLE = "a model needs 1 MB or more to learn a language, so give more text"
TOO_SMALL = "the corpus is too small to hold anything out: {}; give more text, or a larger data.heldout_share"


@dataclass(frozen=True)
class RunResult(Plain):
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
        little = too_little_text([*prepared.train, *prepared.heldout])
        if checkpoint is None and little:
            start = " or start from a trained one (--init)" if recipe.training.initialize_from is None else ""
            warnings.warn(f"{little}; {CURE_OF_LITTLE}{start}", stacklevel=2)
        teacher = world.in_turn(lambda: teacher_of(recipe, prepared.tokenizer))
        if checkpoint is not None and checkpoint.state.get("teacher") != (teacher and teacher.digest):
            raise UniclozeError(
                f"{out} holds a run with another distillation.teacher, or one that has changed since: give the run its own "
                "teacher, or another --out"
            )
        world.only_first(lambda: write_settings(recipe, prepared.tokenizer, out, checkpoint))
        phrases = world.in_turn(lambda: phrases_for(recipe, prepared, out, progress=progress))
        begun = _Run(recipe, out, prepared, checkpoint, phrases, teacher, progress, world, clock, copies)
        with begun as run, explain_compile_errors(recipe.training):
            result = run.train()
    run.heed(result.stopped_by)
    return result


def _with_former_settings(recipe: Recipe, out: Path, checkpoint: Checkpoint | None, world: World) -> Recipe:
    """The recipe with `auto` resolved as in the run to resume, if any, and with the settings of `data.prepared`."""
    lineage = None if recipe.data.prepared is None else read_lineage(Path(recipe.data.prepared))
    recipe = recipe if lineage is None else as_prepared(recipe, lineage)
    training = recipe.training
    if checkpoint is None:
        return with_precision(recipe, world.only_first(lambda: choose_precision(training, choose_device(training))))
    former = load_recipe(checkpoint.path / RECIPE)
    if lineage is not None:  # the fingerprint decides whether the data are the same
        former = as_prepared(former, lineage)
    recipe = with_precision(recipe, former.training.precision)
    free = free_after(errors_since_saved(out / LEDGER))
    if None in (training.head_learning_rate, former.training.head_learning_rate):
        free -= {"training.head_learning_rate"}  # decides which weights the optimiser keeps together
    if recipe.model.memory:
        free -= FREE_AFTER_OUT_OF_MEMORY  # memories belong to micro-batches
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
        teacher: Teacher | None,
        progress: bool,
        world: World,
        clock: Clock | None,
        copies: Copies | None,
    ) -> None:
        self.prepared, self.phrases, self.teacher, self.copies = prepared, phrases, teacher, copies
        goes_on = checkpoint is None or (clock is not None and clock.planned)
        self.clock = clock if goes_on and world.size == 1 else None
        training = recipe.training
        device = choose_device(training)
        fixed, precision = bool(training.compile) or device.type == "cuda", training.precision
        compute = Compute(device=device, world=world, precision=precision, fixed_shape=fixed, soften=self.teacher)
        last = phases(recipe)[-1].recipe
        self.sampler = self._sampler(last)
        heldout = self._heldout(last)
        self.part = TRAINING_TEXT if heldout is None else HELD_OUT
        self.heldout = self.sampler if heldout is None else heldout
        check_vocabulary(recipe, self.prepared.tokenizer.vocabulary)
        check_windows(recipe, self._sampler)
        if heldout is not None:
            check_windows(last, lambda _: self.heldout)
        lanes, self.baselines = training.micro_batch_size or training.batch_size, None
        blocks = heldout_examples(self.heldout, last.objective, training.evaluate_windows, lanes=lanes)
        self.heldout_examples = blocks
        if heldout is not None:
            targets = [each for block in blocks.values() for each in block.examples.targets.values()]
            if not any((target.weights > 0).any() for target in targets):
                warnings.warn(TOO_SMALL.format("there is nothing to measure"), stacklevel=4)
            self.baselines = world.in_turn(lambda: open_baselines(last, prepared, out, blocks))
        self.tokens_per_byte = tokens_per_byte(prepared)
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
        if checkpoint is None:
            self._start(model, recipe, compute.world, show=show)
        if compute.world.sharded:
            shard(model, compute.device, compute.world.size)
        return TrainState(model, build_optimizers(model, recipe.training, layer_decay=recipe.training.layer_decay))

    def _start(self, model: Model, recipe: Recipe, world: World, *, show: bool) -> None:
        """Give weights the start that the recipe asks for: counts of the text, another model, vectors of words."""
        training, sources = recipe.training, self.prepared.train
        other = None if training.initialize_from is None else open_model(training.initialize_from)
        predicts = other is not None and hasattr(other.model, "token_head")
        if training.start == "counts" and not predicts:
            if show:
                say("counting the tokens of the training text, where new weights start")
            trained = other is not None or training.word_vectors is not None
            vectors = None if trained else partial(open_vectors, self.prepared, sources)
            world.in_turn(lambda: start_from_counts(model, open_counts(self.prepared, sources), vectors))
        if other is not None:
            initialize_from(model, other, self.prepared.tokenizer, recipe)
        if training.word_vectors is not None:
            said = start_from_vectors(model, self.prepared.tokenizer, Path(training.word_vectors))
            if show:
                say(said)

    def train(self) -> RunResult:
        """Train to the last step, from the checkpoint if there is one, and evaluate."""
        training = self.recipe.training
        if self.checkpoint is not None:
            self.take_over(self.checkpoint)
            self.state.decays = recorded_decays(self.former_events(), training.steps)
        done = self.state.step >= self.state.last_step(training)
        if done and (end := self._recorded_end()) is not None:
            return self._finished_before(end)
        baselines = self.baselines.summary() if self.baselines else None
        self.write_start(lineage=self.prepared.lineage, baselines=baselines)
        if self.checkpoint is not None:
            self._hear_again()
        if done:  # killed between its last save and its end
            self._evaluate(self.state)
            return self._finish()
        if self.state.step == 0:
            self._write_samples()
            if training.initialize_from is not None:
                self._evaluate(self.state)
                self.perplexity = {}  # it is not a result
        model = self.state.model
        if training.compile and not self.world.sharded:
            compile_layers(model)
        hooks = {"evaluate": self._evaluate, "save": self._save, "describe": self._describe, "decide": self._decide}
        self.learn(self._steps(), training, **hooks)
        if self.state.step < self.state.last_step(training):
            self.write_stop()
            return RunResult(self.out, self.state.step, self.signal, self.perplexity, self.part, self.counts)
        return self._finish()

    def _steps(self) -> Iterator[list[MicroBatch]]:
        def steps_of(recipe: Recipe, step: int) -> Iterator[list[MicroBatch]]:
            return training_steps(recipe, self._sampler, step, self.own)

        return decided_steps(self.recipe, tuple(self.state.decays), self.state.step, steps_of)

    def _decide(self, state: TrainState) -> Iterator[list[MicroBatch]] | None:
        """Let the clock decide after a step, and write down what it decides before the next one."""
        training = self.recipe.training
        if training.on_spike == "skip" and training.phases:  # another objective has other gradients
            begins = {phase.first_step for phase in phases(decided(self.recipe, state.decays))}
            state.spikes = Spikes() if state.step in begins else state.spikes
        if self.clock is None:
            return None
        self.clock.stepped()
        decay = self.clock.decide(state.step, self.recipe, state.decays)
        if decay is None:
            return None
        self.ledger.write("decay", step=decay.first, end=decay.end, planned=self.recipe.training.steps)
        self.ledger.sync()
        # without those that a process that was killed recorded for steps that are now repeated, see `recorded_decays`
        state.decays = [*(one for one in state.decays if one.first < decay.first), decay]
        self.bar.end_at(decay.end)
        return self._steps()

    def _recorded_end(self) -> dict[str, Any] | None:
        """The event of a former process that finished the run at this step."""
        ends = [event for event in self.former_events() if event["event"] == "end"]
        return next((end for end in reversed(ends) if end.get("step") == self.state.step), None)

    def _finished_before(self, end: Mapping[str, Any]) -> RunResult:
        """The result of a run that has nothing left to do."""
        step, planned = self.state.step, self.recipe.training.steps
        said = f"{self.out} is already trained to step {step}"
        if step < planned:
            said += f", where its time budget ended it; give more --training.steps than the {planned:,} planned to"
        else:
            said += "; raise --training.steps to"
        warnings.warn(f"{said} continue", stacklevel=2)
        verdict = str(end.get("verdict", ""))
        return RunResult(self.out, step, 0, self.perplexity, self.part, self.counts, verdict=verdict)

    def _finish(self) -> RunResult:
        """Judge a run that has done its steps."""
        with averaged(self.state.optimizers):
            self._write_samples()
            words = self._content_words()
        course = Course.of(self.former_events())
        little = too_little_text([*self.prepared.train, *self.prepared.heldout])
        verdict = verdict_on(self.figures, self.counts, words, course, little)
        self.write_end(content_words=words.to_dict() if words else None, verdict=verdict)
        return RunResult(self.out, self.state.step, 0, self.perplexity, self.part, self.counts, words, verdict)

    def _content_words(self) -> WordScore | None:
        """Score on held-out content words; None if there are too few or the objective cannot predict them."""
        way = way_to_ask(objective_of(self.recipe))
        if way is None or self.baselines is None or not len(self.baselines.words):
            return None
        model = self._whole_model()
        if model is None:
            return None
        vocabulary = self.prepared.tokenizer.vocabulary
        ranks = ranks_by_model(model, self.recipe, self.baselines.words, vocabulary, way, self.compute)
        return WordScore.of(ranks, self.baselines.ranks, way)

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
        objective = objective_of(self.recipe)
        samples = heldout_samples(model, self.heldout, self.prepared.tokenizer, objective, self.compute)
        self.ledger.write("samples", step=self.state.step, samples=samples)

    def _evaluate(self, state: TrainState) -> bool:
        began, training = time.monotonic(), self.recipe.training
        rows = training.micro_batch_size or training.batch_size
        figures: list[Figure] = []
        *before, last = phases(self.recipe)
        for label, block in self.heldout_examples.items():
            with averaged(state.optimizers):
                measured = evaluate(state.model, block.examples, self.compute, rows, block.windows)
            part = label if len(parts(last.recipe.objective)) > 1 else ""
            figures += [dataclasses.replace(figure, part=part, phase=len(before)) for figure in measured.values()]
        prefixed = len(self.heldout_examples) > 1
        self.figures = {figure.name if prefixed else figure.target: figure for figure in figures}
        means = {name: figure.mean for name, figure in self.figures.items()}
        tokens = {name: figure for name, figure in self.figures.items() if predicts_tokens(name)}
        self.perplexity = {name: figure.perplexity for name, figure in tokens.items()}
        counted = {name: each.counted_weight if name in tokens else each.weight for name, each in self.figures.items()}
        density = self.tokens_per_byte
        nats = {name: figure.token_mean for name, figure in tokens.items()}
        bits = {name: mean and density and mean / math.log(2) * density for name, mean in nats.items()}
        self.ledger.write(
            "evaluate",
            step=state.step,
            loss=means,
            perplexity=self.perplexity,
            bits_per_byte=bits,
            predictions=counted,
            figures=[figure.to_dict() for figure in figures],
            part=self.part,
            window=self.heldout.window,
            windows=len(next(iter(self.heldout_examples.values())).examples),
        )
        if state.step:
            self._hear(means)
        if self.progress:
            said = _measured(self.part, self.perplexity, self.counts)
            say(f"step {state.step}: {said} (window {self.heldout.window})")
        if self.clock is not None:
            self.clock.evaluated(time.monotonic() - began)
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
        evaluations = {event["step"]: event for event in self.former_events() if event["event"] == "evaluate"}
        last, every = self.state.last_step(training), training.evaluate_every
        for done in sorted(number for number in evaluations if 0 < number <= step):
            if done == last or (every and done % every == 0):  # not those at the end of a shorter run
                self._hear(evaluations[done]["loss"])
        if every and step % every == 0 and 0 < step < last and step not in evaluations:
            self._evaluate(self.state)

    def _save(self, _state: TrainState) -> None:
        facts = {"fingerprint": self.prepared.fingerprint}
        if self.teacher is not None:
            facts["teacher"] = self.teacher.digest
        with averaged(self.state.optimizers):
            self.save(facts, keep=self.recipe.training.keep_checkpoints)
        if (copies := self.copies) is not None:
            self.after_saving(lambda: copies.update(self.out))

    def _describe(self, micro_batch: MicroBatch) -> str:
        windows = micro_batch.windows
        assert windows is not None
        there = phases(decided(self.recipe, self.state.decays))
        recipe = next(phase.recipe for phase in there if self.state.step < phase.last_step)
        name = self._sampler(recipe).name(int(windows.source[0]), int(windows.index[0]))
        return f"{name} and {len(windows) - 1} more windows"


SAMPLES = 6
CANDIDATES = 3
"""Number of most likely tokens kept per prediction."""
AT_THEIR_PLACE = "ae", "par", "diffusion"
"""Targets predicted at slots with the position of the predicted token."""


def heldout_samples(
    model: Model, sampler: WindowSampler, tokenizer: Tokenizer, objective: ObjectiveSettings, compute: Compute
) -> list[dict[str, Any]]:
    """The most likely tokens at each masked position of a few held-out windows, with the truth, by target."""
    part = next((part for part in parts(objective) if part.evaluate), parts(objective)[0])
    windows = varied(sampler.sequential(4 * SAMPLES, pairs=part.settings.windows.pairs, lanes=4 * SAMPLES), SAMPLES)
    examples = heldout_rows(windows, sampler.vocabulary, part.settings)
    batch = collate(examples, device=compute.device)
    model.eval()
    with torch.no_grad(), compute.autocast():
        logits = {name: values for name, values in model.logits(batch).items() if name in AT_THEIR_PLACE}
    best = {name: values.float().softmax(-1).topk(CANDIDATES, dim=-1) for name, values in logits.items()}
    samples = []
    for row in range(len(examples)):
        masked: dict[int, dict[str, Any]] = {}
        for name, (probabilities, tokens) in best.items():
            target = examples.targets[name]
            for j in range(int((target.weights[row] > 0).sum())):
                slot = target.slots[row, j]
                position = int(examples.position_ids[row, slot])
                place = masked.setdefault(position, {"position": position, "step": int(examples.steps[row, slot])})
                truth = int(target.labels[row, j])
                likely = tokenizer.tokens(tokens[row, j].tolist())
                word = any(map(str.isalpha, tokenizer.decode([truth])))
                place |= {"truth": tokenizer.tokens([truth])[0], "word": word, name: likely[0]}
                shares = [round(value, 4) for value in probabilities[row, j].tolist()]
                place.setdefault("top", {})[name] = list(zip(likely, shares, strict=True))
        shown = windows.token_ids[row, : windows.lengths[row]].copy()
        shown[list(masked)] = sampler.vocabulary.mask
        samples.append(
            {
                "document": str(sampler.name(int(windows.source[row]), int(windows.index[row]))),
                "tokens": tokenizer.tokens(shown),
                "masked": [masked[position] for position in sorted(masked)],
            }
        )
    return samples


def varied(windows: Windows, count: int) -> Windows:
    """Select up to `count` evenly spread windows, without those where one token makes up more than half of the text.

    If all windows are like that (underlines, tables of numbers), they are used anyway.
    """
    texts = [ids[real] for ids, real in zip(windows.token_ids, windows.maskable, strict=True)]
    most = [np.unique(text, return_counts=True)[1].max(initial=0) for text in texts]
    kept = np.flatnonzero([2 * times <= len(text) for times, text in zip(most, texts, strict=True)])
    kept = kept if len(kept) else np.arange(len(windows))
    return select_rows(windows, kept[evenly_spaced(min(count, len(kept)), len(kept))])
