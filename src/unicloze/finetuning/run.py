"""Fine-tuning runs: a model, a task and a directory; an interrupted run resumes where it stopped."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.files import (
    AVERAGED,
    BEST,
    CHECKPOINTS,
    DEV_PREDICTIONS,
    DEV_SAMPLES,
    LEDGER,
    RECIPE,
    digest,
    replace_file,
)
from unicloze.finetuning import automatic
from unicloze.finetuning.auxiliary import OwnTeacher
from unicloze.finetuning.checks import (
    Origin,
    check_labels,
    check_metrics,
    origin_of,
    refuse_other_origin,
)
from unicloze.finetuning.data import (
    Mixture,
    TaskData,
    encoded,
    evenly_chosen,
    finetuning_steps,
    open_records,
    reading_columns,
    segments_of,
    steps_per_epoch,
    unlabelled_text,
)
from unicloze.finetuning.initial import changed_settings, fit_head, start_weights, unchanged, what_changed, what_learns
from unicloze.finetuning.predict import TaskModel, as_json_lines, predict, samples, target_loss, with_references
from unicloze.finetuning.scores import (
    Evaluation,
    check_answers,
    chosen_value,
    difference_error,
    headline,
    headline_error,
    kept,
    measure,
    with_best_threshold,
)
from unicloze.finetuning.verdict import BaselineScores, baseline_scores, verdict_on
from unicloze.interop.read import open_model
from unicloze.progress import say
from unicloze.recipes import load_recipe, save_recipe
from unicloze.recipes.validation import validate
from unicloze.settings import Recipe, chosen
from unicloze.tasks import TASKS
from unicloze.tasks.columns import resolved
from unicloze.tasks.extraction import ExtractionSettings
from unicloze.tasks.groups import task_of
from unicloze.tasks.several import records_of
from unicloze.tasks.task import Prediction
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.batches import MicroBatch
from unicloze.training.checkpoint import (
    MALFORMED,
    START,
    Checkpoint,
    StartModel,
    checkpoint_name,
    drop_newer,
    list_checkpoints,
    load_newest,
)
from unicloze.training.distillation import Teacher
from unicloze.training.ledger import stopped_by_error, trained_on
from unicloze.training.loading import LoadedModel, mean_weights, ready_model, spell_tokens
from unicloze.training.lock import FREE_AFTER_OUT_OF_MEMORY, FREE_TO_CHANGE, hold_run, refuse_changes
from unicloze.training.loop import Compute, TrainState
from unicloze.training.meeting import joined
from unicloze.training.memory import refuse_task_that_cannot_fit
from unicloze.training.optimizers import build_optimizers
from unicloze.training.precision import choose_device, choose_precision, with_precision
from unicloze.training.process import RunProcess, pinned_threads, write_settings
from unicloze.training.world import World

OF_THE_BEST = DEV_PREDICTIONS, DEV_SAMPLES
"""Files of the best checkpoint that are also copied to the run directory."""


@dataclass(frozen=True)
class FinetuneResult:
    """Outcome of a fine-tuning run.

    Args:
        out: The run directory; `load_model` reads its best checkpoint.
        step: Steps completed.
        best_step: Step of the best evaluation; the last step if nothing was evaluated.
        stopped_by: Number of the signal that stopped the run; 0 if none did.
        scores: Scores of the best checkpoint on the development file, by metric, with standard errors.
        chosen_by: Value of the first metric that selected the checkpoint; empty if nothing was evaluated.
        baselines: Scores of baselines without a model, the simplest first; empty if nothing was evaluated.
        verdict: Interpretation of the scores, in words.
        likeliest: Whether the checkpoint is the likeliest of those within a standard error of the best value, as after a
            head fitted to few labels, and not the one of the best value.
    """

    out: Path
    step: int
    best_step: int
    stopped_by: int
    scores: Mapping[str, MetricResult]
    chosen_by: str = ""
    baselines: Sequence[BaselineScores] = ()
    verdict: str = ""
    likeliest: bool = False


def finetune_run(
    recipe: Recipe, start: LoadedModel, train: Path, dev: Path | None, out: Path, *, progress: bool = True
) -> FinetuneResult:
    """Fine-tune a model on a task, or resume the run in the directory."""
    with joined() as world, hold_run(out, world), pinned_threads(recipe.training, world):
        world.same("the recipe", digest(recipe.to_dict()), "give all processes the same recipe and settings")
        progress = progress and world.first
        checkpoint = world.in_turn(lambda: load_newest(out / CHECKPOINTS))
        check_metrics(recipe)
        records = records_of(train, recipe.task)
        recipe = reading_columns(recipe, records, progress)
        recipe = dataclasses.replace(recipe, task=resolved(recipe.task, records))
        check_labels(records, recipe)
        training = evenly_chosen(encoded(records, recipe, start.tokenizer), recipe.task.train_records)
        development = None if dev is None else open_records(dev, recipe, start.tokenizer)
        if development is not None:
            check_answers(development.records, recipe)
        former = None if checkpoint is None else load_recipe(checkpoint.path / RECIPE)
        weights, asked = start.model.num_parameters(), recipe
        recipe = automatic.with_chosen(recipe, weights, len(training.rows), former)
        if former is None:
            if warning := automatic.too_low_a_rate(recipe, weights):
                warnings.warn(warning, stacklevel=2)
            choices = automatic.what_was_chosen(asked, recipe, weights, len(training.rows))
            if choices and progress:
                say(f"chosen: {choices}")
            mixture = Mixture.of(training.records, training.rows, recipe.task)
            if mixture is not None and progress:
                say(str(mixture) if recipe.task.kind == "generation" else mixture.chances)
            changes = what_changed(changed_settings(recipe, start), start)
            if changes and progress:
                say(changes)
        recipe = with_steps(recipe, len(training.rows))
        validate(recipe)  # with its steps, since the saved recipe is validated when loaded
        taught_by = recipe.distillation.teacher
        teacher = None if taught_by is None else Teacher.of(open_model(taught_by), recipe, start.tokenizer)
        training = dataclasses.replace(training, unlabelled=unlabelled_text(recipe, start.tokenizer))
        origin = origin_of(start, training, development, None if teacher is None else teacher.digest)
        world.same("the model or the records", digest(origin), "give all processes the same files")
        files = {"train": str(train), "dev": None if dev is None else str(dev)}
        if checkpoint is not None and former is not None:
            former = dataclasses.replace(former, task=resolved(former.task, records))  # older versions resolved less
            recipe = with_precision(recipe, former.training.precision)
            kind = stopped_by_error(out / LEDGER)
            free = FREE_TO_CHANGE | (FREE_AFTER_OUT_OF_MEMORY if kind == "OutOfMemoryError" else set())
            refuse_changes(former, recipe, out, "leave out the changed setting to resume", free=free)
            refuse_other_origin(checkpoint.state.get("origin", {}), origin, out)
        precision = world.only_first(lambda: choose_precision(recipe.training, choose_device(recipe.training)))
        recipe = with_precision(recipe, precision)
        slots = [row.slots for row in training.rows]
        refuse_task_that_cannot_fit(recipe, choose_device(recipe.training), start.model.vocab_size, slots)
        world.only_first(lambda: write_settings(recipe, start.tokenizer, out, checkpoint))
        with _Run(
            recipe, start, training, development, out, checkpoint, origin, files, teacher, progress, world
        ) as run:
            result = run.train(fits_head=asked.training.learning_rate == "auto")
    run.heed(result.stopped_by)
    return result


def with_steps(recipe: Recipe, rows: int) -> Recipe:
    """The recipe with its number of epochs converted to steps."""
    each_epoch = steps_per_epoch(rows, recipe.training.batch_size) * recipe.finetuning.steps_between
    steps = max(1, math.ceil(chosen(recipe.finetuning.epochs) * each_epoch))
    settings = dataclasses.replace(
        recipe.training,
        steps=steps,
        warmup_steps=round(recipe.finetuning.warmup_share * steps),
        evaluate_every=max(1, round(each_epoch / recipe.finetuning.evaluations)),
    )
    return dataclasses.replace(recipe, training=settings)


class _Run(RunProcess):
    """One process's part of a fine-tuning run."""

    def __init__(
        self,
        recipe: Recipe,
        start: LoadedModel,
        train: TaskData,
        dev: TaskData | None,
        out: Path,
        checkpoint: Checkpoint | None,
        origin: Origin,
        files: Mapping[str, str | None],
        teacher: Teacher | None,
        progress: bool,
        world: World,
    ) -> None:
        self.start, self.train_data, self.dev, self.origin = start, train, dev, origin
        self.files = files
        self.measured = dev and evenly_chosen(dev, recipe.task.evaluate_records)
        if dev and self.measured and len(self.measured.records) < len(dev.records):
            warnings.warn(
                f"evaluating on {len(self.measured.records)} of the {len(dev.records):,} development records, evenly spaced "
                "(task.evaluate_records)",
                stacklevel=2,
            )
        device = world.device(choose_device(recipe.training))
        compute = Compute(device=device, precision=recipe.training.precision, world=world, soften=teacher)
        model = ready_model(recipe, start.model.vocab_size, compute.device)
        spell_tokens(model, start.tokenizer.symbols)
        if train.unlabelled is not None:
            compute = dataclasses.replace(compute, soften=OwnTeacher(model.for_use(), recipe))
        if world.size > 1 and next(model.buffers(), None) is not None:
            raise UsageError(
                "task.head normalises over a batch, and its statistics are those of one process: start a single process, or "
                "set task.head to dense"
            )
        self.drawn = start_weights(model, start, recipe.task)
        below = StartModel.of(start.path, origin["model"] or "", out) if recipe.finetuning.few else None
        state = TrainState(model=model, optimizers=self._optimizers(model, recipe))
        super().__init__(recipe, out, checkpoint, state, compute, progress=progress)
        self.below = below
        if below is not None:
            self.left_out = unchanged(model, start)
            if checkpoint is None and self.progress:
                say(what_learns(model))
        self.evaluations: list[Evaluation] = []
        self.scores: Mapping[str, MetricResult] = {}
        self.baselines: Sequence[BaselineScores] = ()
        if self.measured is not None:
            self.baselines = baseline_scores(train.records, self.measured.records, recipe)
        self.segments = segments_of(train, recipe, self.tokenizer.vocabulary)

    def _optimizers(self, model: torch.nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
        """The optimizers; warns if gradual unfreezing never reaches some of the lower layers."""
        settings, training = recipe.finetuning, recipe.training
        each_epoch = steps_per_epoch(len(self.train_data.rows), training.batch_size) * settings.steps_between
        every = (settings.unfreeze_epochs or 0.0) * each_epoch
        optimizers = build_optimizers(model, training, layer_decay=settings.layer_decay, unfreeze_every=every)
        first_steps = {group["first_step"] for optimizer in optimizers for group in optimizer.param_groups}
        never = sum(first >= training.steps for first in first_steps)
        if never:
            warnings.warn(
                f"the lowest {never} of {len(first_steps)} layers stay frozen: one layer is unfrozen every "
                f"{settings.unfreeze_epochs:g} epochs, and training lasts {chosen(settings.epochs):g} "
                "(finetuning.unfreeze_epochs)",
                stacklevel=2,
            )
        return optimizers

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self.start.tokenizer

    def train(self, *, fits_head: bool = False) -> FinetuneResult:
        """Resume, or begin with a fitted head if wanted and possible; train, save."""
        training = self.recipe.training
        done = ended = False
        if self.checkpoint is not None:
            done, ended = self._resume(self.checkpoint)
        else:
            self._drop_newer_weights()
            self._drop_other_bests()
            self._show_best()
        new_head = any(name.startswith("task_heads.") and ".output." in name for name in self.drawn)
        fresh = self.checkpoint is None and fits_head and new_head and not self.averages
        model = TaskModel(self.state.model.for_use(), self.tokenizer, self.recipe, self.compute)
        fitted = fresh and fit_head(model, self.train_data)
        if not ended:
            self._write_start()
        if fitted and self.dev is not None:
            self._evaluate(self.state)
        if not done:
            steps = finetuning_steps(
                self.train_data,
                self.recipe,
                self.tokenizer.vocabulary,
                self.compute.device.type,
                self.state.step,
                self.own,
            )
            self.learn(steps, training, self._evaluate, self._save, _describe)
        stopped = self.signal if self.state.step < training.steps and not self._is_enough() else 0
        if stopped:
            self.write_stop()
        best_step = self.best.step if self.best else self.state.step
        if self.best and self.measured is not None:
            lines = (self.out / DEV_PREDICTIONS).read_text(encoding="utf-8").removesuffix("\n").split("\n")
            predictions = list(map(json.loads, lines))
            self.scores = {**self.scores, **measure(predictions, self.measured.records, self.recipe, errors=True)}
        else:
            predictions = []
        chosen_by = chosen_value(self.recipe) if self.scores else ""
        verdict = "not judged: there is no development file" if self.dev is None else ""
        if self.scores:
            verdict = self._verdict(predictions)
        if not stopped and not ended:
            errors = {name: dict(result.errors) for name, result in self.scores.items() if result.errors}
            self.write_end(verdict=verdict, errors=errors)
        if not stopped and self.world.first:
            shutil.rmtree(self.out / AVERAGED, ignore_errors=True)
        highest = max((one.value for one in self.evaluations), default=None)
        likeliest = self.best is not None and self.best.value != highest
        return FinetuneResult(
            self.out, self.state.step, best_step, stopped, self.scores, chosen_by, self.baselines, verdict, likeliest
        )

    def _verdict(self, predictions: Sequence[Prediction]) -> str:
        """The verdict on the scores of the best checkpoint, given its predictions."""
        assert self.measured is not None
        answers, records = [one["prediction"] for one in predictions], self.measured.records

        def difference(baseline: BaselineScores) -> float | None:
            return difference_error(answers, baseline.answers, records, self.recipe)

        return verdict_on(self.scores, [one.value for one in self.evaluations], self.baselines, self.recipe, difference)

    def _resume(self, checkpoint: Checkpoint) -> tuple[bool, bool]:
        """Restore a checkpoint; returns whether training is complete, and whether the ledger records its end."""
        self.take_over(checkpoint)
        try:
            events = [event for event in self.former_events() if event.get("step", 0) <= self.state.step]
            evaluations = {event["step"]: event for event in events if event["event"] == "evaluate"}
            for step in sorted(evaluations):
                self._compare_with_best(_evaluation_of(evaluations[step]))
            if self.best is not None:
                said = evaluations[self.best.step]["results"]
                self.scores = {name: MetricResult(**values) for name, values in said.items()}
        except MALFORMED as error:
            raise UniclozeError(f"{self.out / LEDGER} is damaged ({error}): start again in another --out") from error
        self._drop_other_bests()
        self._show_best()
        step, training = self.state.step, self.recipe.training
        due = step == training.steps or (step > 0 and step % training.evaluate_every == 0)
        self._drop_newer_weights()
        ended = any(event["event"] == "end" for event in events)
        missing = self.averages and not ended if self.dev is None else step not in evaluations
        if due and missing:  # stopped between saving and evaluating
            self._evaluate(self.state)
        done = step >= training.steps or self._is_enough()
        if done:
            warnings.warn(f"{self.out} is already fully trained: give another --out to train again", stacklevel=2)
        return done, done and ended

    @property
    def best(self) -> Evaluation | None:
        """The evaluation whose weights are kept."""
        return kept(self.evaluations) if self.evaluations else None

    def _is_enough(self) -> bool:
        """Whether patience is over, which does not count a head fitted before training."""
        patience, trained = self.recipe.finetuning.patience, [one.value for one in self.evaluations if one.step > 0]
        return patience is not None and bool(trained) and len(trained) > trained.index(max(trained)) + patience

    def _compare_with_best(self, evaluation: Evaluation) -> bool:
        self.evaluations.append(evaluation)
        return self.best is evaluation

    def _write_start(self) -> None:
        unlabelled = self.train_data.unlabelled
        self.write_start(
            task=self.recipe.task.kind,
            model=str(self.start.path),
            model_step=self.start.step,
            drawn=self.drawn,
            changed=changed_settings(self.recipe, self.start),
            lineage=trained_on(self.start.path),
            files=self.files,
            fingerprints=self.origin,
            records={
                "train": len(self.train_data.records),
                "dev": len(self.dev.records) if self.dev else 0,
                **({} if unlabelled is None else {"unlabelled": len(unlabelled.records)}),
            },
            baseline=self.baselines[0].to_dict() if self.baselines else None,
            rivals=[baseline.to_dict() for baseline in self.baselines[1:]],
        )

    @property
    def averages(self) -> bool:
        """Whether the mean of several evaluations' weights is evaluated and kept."""
        return self.recipe.finetuning.average_last > 1

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Use the mean of the weights at the last evaluations within this context, if the recipe averages them."""
        if not self.averages:
            yield
            return
        last, every, step = self.recipe.finetuning.average_last, self.recipe.training.evaluate_every, self.state.step
        self.write_checkpoint(AVERAGED, [], self.out / RECIPE, self._facts(), keep=last)
        evaluated = [*range(every, step, every), step][-last:]
        with mean_weights(self.state.model, [self.out / AVERAGED / checkpoint_name(each) for each in evaluated]):
            yield

    def _evaluate(self, state: TrainState) -> bool:
        """Measure, keep the best checkpoint, save; returns whether to stop early."""
        with self._averaged():
            self._measure(state)
            if self.averages and self.dev is None and state.step == self.recipe.training.steps:
                self.write_checkpoint(BEST, [], self.out / RECIPE, self._facts(), keep=1)
        self._save(state)
        self._drop_other_bests()
        return self._is_enough()

    def _measure(self, state: TrainState) -> None:
        """Measure on the development file, if there is one, and keep the weights if they are the best."""
        if self.dev is not None and self.measured is not None:
            model = TaskModel(state.model.for_use(), self.tokenizer, self.recipe, self.compute)
            recipe, predictions = with_best_threshold(self.recipe, self.measured, predict(model, self.measured))
            results = measure(predictions, self.measured.records, self.recipe)
            value = self.world.only_first(lambda: headline(results, self.recipe))
            if TASKS[self.recipe.task.kind].predict is None:
                results = {**results, "loss": target_loss(model, self.dev)}
            fitted = state.step == 0 or any(one.step == 0 for one in self.evaluations)
            error = headline_error(predictions, self.measured.records, self.recipe) if fitted else 0.0
            if better := self._compare_with_best(Evaluation(state.step, value, error, _log_loss(results))):
                self.scores = results
                self._keep_best(recipe, predictions)
            self.ledger.write(  # only now: a resumed run assumes that recorded evaluations are saved
                "evaluate",
                step=state.step,
                headline=value,
                kept=better,
                **({"error": error} if error else {}),
                results={name: result.to_dict() for name, result in results.items()},
                records=len(predictions),
                **({} if recipe is self.recipe else _threshold_of(recipe)),
            )
            if self.progress:
                shown = ", ".join(f"{k} {v:.2f}" for result in results.values() for k, v in result.values.items())
                say(f"step {state.step}: {shown}")

    def _drop_newer_weights(self) -> None:
        """Remove the weights of evaluations that an interrupted run did not save."""
        if self.world.first:
            drop_newer(self.out / AVERAGED / checkpoint_name(self.state.step))

    def _drop_other_bests(self) -> None:
        """Remove all but the recorded best checkpoint, including unrecorded ones of an interrupted run."""
        if not self.world.first:
            return
        step = self.best.step if self.best else None
        if self.averages and self.dev is None and self.state.step == self.recipe.training.steps:
            step = self.state.step
        for path in list_checkpoints(self.out / BEST):
            if step is None or path.name != checkpoint_name(step):
                shutil.rmtree(path)

    def _keep_best(self, recipe: Recipe, predictions: Sequence[Prediction]) -> None:
        assert self.measured is not None
        folder = self.out / BEST
        more = [folder / name for name in OF_THE_BEST]
        if self.world.first:
            folder.mkdir(exist_ok=True)
            save_recipe(recipe, folder / RECIPE)
            answered = with_references(predictions, self.measured.records, self.recipe.task)
            shown = samples(answered, self.measured.records, self.recipe.task)
            for file, lines in zip(more, (answered, shown), strict=True):
                replace_file(file, as_json_lines(lines))
        self.write_checkpoint(BEST, [], folder / RECIPE, self._facts(), keep=2, more=more)  # two until saved
        for file in more if self.world.first else ():
            file.replace(self.out / file.name)

    def _show_best(self) -> None:
        """Restore the predictions of the best checkpoint, which an unrecorded evaluation may have overwritten."""
        for name in OF_THE_BEST if self.world.first else ():
            if self.best is None:
                (self.out / name).unlink(missing_ok=True)
                continue
            kept = self.out / BEST / checkpoint_name(self.best.step) / name
            if kept.is_file():  # not written by older versions
                replace_file(self.out / name, kept.read_text(encoding="utf-8"))

    def _save(self, state: TrainState) -> None:
        if not (self.out / CHECKPOINTS / checkpoint_name(state.step)).is_dir():  # an evaluation saves, too
            self.save(self._facts(), keep=1)

    def _facts(self) -> dict[str, Any]:
        facts = {"origin": self.origin, "segments": self.segments}
        return facts if self.below is None else {**facts, START: self.below.to_dict()}


def _describe(micro_batch: MicroBatch) -> str:
    return micro_batch.place


def _threshold_of(recipe: Recipe) -> dict[str, float | None]:
    return {"no_answer_threshold": task_of(recipe, ExtractionSettings).no_answer_threshold}


def _log_loss(results: Mapping[str, MetricResult]) -> float | None:
    return results["calibration"].values.get("log_loss") if "calibration" in results else None


def _evaluation_of(event: Mapping[str, Any]) -> Evaluation:
    """The evaluation that an event of the ledger records."""
    values = event["results"].get("calibration", {}).get("values", {})
    return Evaluation(event["step"], event["headline"], event.get("error", 0.0), values.get("log_loss"))
