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

import numpy as np
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
    Plain,
    digest,
    replace_file,
)
from unicloze.finetuning import data as labelled
from unicloze.finetuning import initial, scores
from unicloze.finetuning.data import Mixture, Origin, OwnTeacher, TaskData, finetuning_steps
from unicloze.finetuning.predict import as_json_lines, outputs_of, predict, target_loss
from unicloze.finetuning.scores import BaselineScores, Evaluation, headline, measure
from unicloze.interop.read import open_model
from unicloze.progress import say
from unicloze.recipes import load_recipe, save_recipe
from unicloze.recipes.validation import validate
from unicloze.records.record import Record
from unicloze.settings import Recipe, chosen
from unicloze.tasks import TASKS
from unicloze.tasks.columns import resolved
from unicloze.tasks.several import records_of
from unicloze.tasks.task import Labelled, Prediction
from unicloze.text.tokenizers import Tokenizer
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
from unicloze.training.ledger import errors_since_saved, trained_on
from unicloze.training.loading import (
    LoadedModel,
    explain_compile_errors,
    given_weights,
    mean_weights,
    ready_model,
    spell_tokens,
)
from unicloze.training.lock import free_after, hold_run, refuse_changes
from unicloze.training.loop import Compute, TrainState
from unicloze.training.memory import refuse_task_that_cannot_fit
from unicloze.training.optimizers import build_optimizers
from unicloze.training.parallel import joined
from unicloze.training.precision import choose_device, choose_precision, with_precision
from unicloze.training.process import RunProcess, pinned_threads, write_settings

OF_THE_BEST = DEV_PREDICTIONS, DEV_SAMPLES
"""Files of the best checkpoint that are also copied to the run directory."""
LOSSES = {"calibration": "log_loss", "loss": "loss"}
"""Results that are a mean of -log p, and their values: of classes, and of target tokens."""


@dataclass(frozen=True)
class FinetuneResult(Plain):
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
        likeliest: Whether the checkpoint was kept by likelihood within two standard errors of the best value, as after a
            head fitted to few labels, and is not the one of the best value.
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

    @property
    def values(self) -> dict[str, float]:
        """The values of all scores, by name."""
        return {name: value for result in self.scores.values() for name, value in result.values.items()}


def finetune_run(
    recipe: Recipe,
    start: LoadedModel,
    train: Path,
    dev: Path | None,
    out: Path,
    *,
    progress: bool = True,
    must_fit: bool | None = None,
    baselines: Sequence[BaselineScores] | None = None,
) -> FinetuneResult:
    """Fine-tune a model on a task, or resume the run in the directory; `baselines` are computed if not known.

    Warns if no head can be fitted where one must be: by default, where `finetuning.fit_head` is true.
    """
    with joined() as world, hold_run(out, world), pinned_threads(recipe.training, world):
        world.same("the recipe", digest(recipe.to_dict()), "give all processes the same recipe and settings")
        progress = progress and world.first
        checkpoint = world.in_turn(lambda: load_newest(out / CHECKPOINTS))
        former = None if checkpoint is None else load_recipe(checkpoint.path / RECIPE)
        scores.check_metrics(recipe)
        records = records_of(train, recipe.task)
        recipe = labelled.reading_columns(recipe, records, progress)
        recipe = dataclasses.replace(recipe, task=resolved(recipe.task, records))
        labelled.check_labels(records, recipe)
        if former is None:
            labelled.check_targets(records, recipe, start.tokenizer)
        encoded = labelled.encoded(records, recipe, start.tokenizer)
        training = labelled.evenly_chosen(encoded, recipe.task.train_records)
        development = None if dev is None else labelled.open_records(dev, recipe, start.tokenizer)
        if development is not None:
            scores.check_answers(development.records, recipe)
            scores.note_one_class(development.records, recipe.task)
        must_fit = recipe.finetuning.fit_head is True if must_fit is None else must_fit
        recipe = _chosen(recipe, start, training, former, progress)
        taught_by = recipe.distillation.teacher
        teacher = None if taught_by is None else Teacher.of(open_model(taught_by), recipe, start.tokenizer)
        training = dataclasses.replace(training, unlabelled=labelled.unlabelled_text(recipe, start.tokenizer))
        origin = labelled.origin_of(start, training, development, None if teacher is None else teacher.digest)
        world.same("the model or the records", digest(origin), "give all processes the same files")
        if checkpoint is not None and former is not None:
            recipe = with_precision(recipe, former.training.precision)
            free = free_after(errors_since_saved(out / LEDGER))
            if former.task.kind == recipe.task.kind:  # files decide settings too, such as the number of steps
                labelled.refuse_other_origin(checkpoint.state.get("origin", {}), origin, out)
            refuse_changes(former, recipe, out, "leave out the changed setting to resume", free=free)
        device = choose_device(recipe.training)
        recipe = with_precision(recipe, world.only_first(lambda: choose_precision(recipe.training, device)))
        refuse_task_that_cannot_fit(recipe, device, start.model.vocab_size, [row.slots for row in training.rows])
        compute = Compute(device=device, precision=recipe.training.precision, world=world, soften=teacher)
        world.only_first(lambda: write_settings(recipe, start.tokenizer, out, checkpoint))
        files = {"train": str(train), "dev": None if dev is None else str(dev)}
        place = out, checkpoint
        begun = _Run(recipe, start, training, development, *place, origin, files, compute, baselines, progress)
        with begun as run, explain_compile_errors(recipe.training):
            result = run.train(must_fit=must_fit)
    run.heed(result.stopped_by)
    return result


def _chosen(recipe: Recipe, start: LoadedModel, training: TaskData, former: Recipe | None, progress: bool) -> Recipe:
    """The recipe with a value for each `auto`, as in the run so far, and its steps; a new run says what was chosen."""
    weights, rows, asked = start.model.num_parameters(), len(training.rows), recipe
    recipe = initial.with_chosen(recipe, weights, rows, former)
    if former is None:
        if warning := initial.too_low_a_rate(recipe, weights):
            warnings.warn(warning, stacklevel=3)
        choices = initial.what_was_chosen(asked, recipe, weights, rows)
        mixture = Mixture.of(training.records, training.rows, recipe.task)
        shares = "" if mixture is None else str(mixture) if TASKS[recipe.task.kind].generates else mixture.chances
        changes = initial.what_changed(initial.changed_settings(recipe, start), start)
        unfitted = "" if start.recipe.task.kind else initial.why_not_fitted(asked, recipe, rows)
        for message in (choices and f"chosen: {choices}", unfitted, shares, changes):
            if message and progress:
                say(message)
    recipe = with_steps(recipe, rows)
    validate(recipe)  # with its steps, since the saved recipe is validated when loaded
    return recipe


def with_steps(recipe: Recipe, rows: int) -> Recipe:
    """The recipe with its number of epochs converted to steps."""
    each_epoch = labelled.steps_per_epoch(rows, recipe.training.batch_size) * recipe.finetuning.steps_between
    steps = max(1, math.ceil(chosen(recipe.finetuning.epochs) * each_epoch))
    warmup = round(recipe.finetuning.warmup_share * steps)
    every = max(1, round(each_epoch / recipe.finetuning.evaluations))
    return recipe.changed("training", steps=steps, warmup_steps=warmup, evaluate_every=every)


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
        compute: Compute,
        baselines: Sequence[BaselineScores] | None,
        progress: bool,
    ) -> None:
        self.start, self.train_data, self.dev, self.origin, self.files = start, train, dev, origin, files
        self.measured = dev and labelled.evenly_chosen(dev, recipe.task.evaluate_records)
        if dev and self.measured and len(self.measured.records) < len(dev.records):
            share = f"{len(self.measured.records)} of the {len(dev.records):,} development records"
            warnings.warn(f"evaluating on {share}, evenly spaced (task.evaluate_records)", stacklevel=2)
        model = ready_model(recipe, start.model.vocab_size, compute.device)
        spell_tokens(model, start.tokenizer.symbols)
        if train.unlabelled is not None:
            compute = dataclasses.replace(compute, soften=OwnTeacher(model.for_use(), recipe))
        if next(model.buffers(), None) is not None:
            said, rows = (
                "task.head normalises over a batch, with the statistics of one",
                recipe.training.micro_batch_size,
            )
            if compute.world.size > 1:
                raise UsageError(f"{said} process: start a single process, or set task.head to dense")
            if checkpoint is None and rows not in (None, recipe.training.batch_size):
                raise UsageError(f"{said} micro-batch: leave out training.micro_batch_size, or set task.head to dense")
        self.drawn = initial.start_weights(model, start, recipe.task)
        self.below = StartModel.of(start.path, origin["model"] or "", out) if recipe.finetuning.few else None
        state = TrainState(model=model, optimizers=self._optimizers(model, recipe))
        super().__init__(recipe, out, checkpoint, state, compute, progress=progress)
        if self.below is not None:
            self.left_out = initial.unchanged(model, start)
            if checkpoint is None and self.progress:
                say(initial.what_learns(model))
        self.evaluations: list[Evaluation] = []
        self.best: Evaluation | None = None  # whose weights are kept
        self.scores: Mapping[str, MetricResult] = {}
        self.baselines: Sequence[BaselineScores] = baselines or ()
        if self.measured is not None and baselines is None:
            self.baselines = scores.baseline_scores(train.records, self.measured.records, recipe)
        self.segments = labelled.segments_of(train, recipe, self.tokenizer.vocabulary)

    def _optimizers(self, model: torch.nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
        """The optimizers; warns if gradual unfreezing never reaches some of the lower layers."""
        settings, training = recipe.finetuning, recipe.training
        each_epoch = labelled.steps_per_epoch(len(self.train_data.rows), training.batch_size) * settings.steps_between
        every = (settings.unfreeze_epochs or 0.0) * each_epoch
        optimizers = build_optimizers(model, training, layer_decay=settings.layer_decay, unfreeze_every=every)
        first_steps = {group["first_step"] for optimizer in optimizers for group in optimizer.param_groups}
        never = sum(first >= training.steps for first in first_steps)
        if never:
            frozen = f"the lowest {never} of {len(first_steps)} layers stay frozen"
            pace = f"one layer is unfrozen every {settings.unfreeze_epochs:g} epochs"
            lasts = f"training lasts {chosen(settings.epochs):g} (finetuning.unfreeze_epochs)"
            warnings.warn(f"{frozen}: {pace}, and {lasts}", stacklevel=2)
        return optimizers

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self.start.tokenizer

    @property
    def model(self) -> LoadedModel:
        """The model as it is now, ready to predict."""
        model, step, precision = self.state.model.for_use(), self.state.step, self.compute.precision
        return LoadedModel(model, self.tokenizer, self.recipe, self.out, step, precision, self.world)

    def train(self, *, must_fit: bool) -> FinetuneResult:
        """Resume, or begin with a fitted head if wanted and possible; train, save. Warns if one must be fitted and is not."""
        training = self.recipe.training
        done = ended = missing = fitted = False
        if self.checkpoint is not None:
            ended, missing = self._resume(self.checkpoint)
        else:
            self._drop_newer_weights()
            self._drop_other_bests()
            self._show_best()
            new_head = any(name.startswith("task_heads.") and ".output." in name for name in self.drawn)
            wanted = self.recipe.finetuning.fit_head is True and new_head and not self.averages
            fitted = wanted and initial.fit_head(self.model, self.train_data)
            if new_head and not fitted:
                initial.start_at_labels(self.model.model, self.train_data)
            if must_fit and not fitted:
                warnings.warn(initial.NOT_FITTED, stacklevel=2)
        if not ended:
            self._write_start()
        if missing or (fitted and self.dev is not None):
            self._evaluate(self.state)
        if self.checkpoint is not None and (done := self._is_done()):
            warnings.warn(f"{self.out} is already fully trained: give another --out to train again", stacklevel=2)
        if not done:
            device, vocabulary = self.compute.device.type, self.tokenizer.vocabulary
            steps = finetuning_steps(self.train_data, self.recipe, vocabulary, device, self.state.step, self.own)
            self.learn(steps, training, evaluate=self._evaluate, save=self._save, describe=lambda batch: batch.place)
        stopped = self.signal if self.state.step < training.steps and not self._is_enough() else 0
        if stopped:
            self.write_stop()
        best = self.best
        verdict = "not judged: there is no development file" if self.dev is None else ""
        if best is not None and self.measured is not None:
            verdict = self._judge(self.measured)
        if not stopped and not ended:
            errors = {name: dict(result.errors) for name, result in self.scores.items() if result.errors}
            self.write_end(verdict=verdict, errors=errors)
        if not stopped and self.averages and self.world.first:
            shutil.rmtree(self.out / AVERAGED, ignore_errors=True)
        return FinetuneResult(
            self.out,
            best_step=self.state.step if best is None else best.step,
            step=self.state.step,
            stopped_by=stopped,
            scores=self.scores,
            chosen_by=scores.chosen_value(self.recipe) if self.scores else "",
            baselines=self.baselines,
            verdict=verdict,
            likeliest=best is not None and best.value != max(one.value for one in self.evaluations),
        )

    def _judge(self, measured: TaskData) -> str:
        """Add standard errors to the scores of the best checkpoint; the verdict on them."""
        predictions, records = self._best_predictions(), measured.records
        self.scores = {**self.scores, **measure(predictions, records, self.recipe, errors=True)}
        answers = [one["prediction"] for one in predictions]

        def difference(baseline: BaselineScores) -> float | None:
            return scores.headline_error(answers, records, self.recipe, against=baseline.answers)

        course = [(one.step, one.value) for one in self.evaluations]
        return scores.verdict_on(self.scores, course, self.baselines, self.recipe, difference)

    def _resume(self, checkpoint: Checkpoint) -> tuple[bool, bool]:
        """Restore a checkpoint; returns whether the run has ended, and whether it was stopped before an evaluation."""
        self.take_over(checkpoint)
        try:
            events = [event for event in self.former_events() if event.get("step", 0) <= self.state.step]
            evaluations = {event["step"]: event for event in events if event["event"] == "evaluate"}
            for step, event in sorted(evaluations.items()):
                results = {name: MetricResult(**values) for name, values in event["results"].items()}
                errors = {name: event[name] for name in ("error", "loss_error") if name in event}
                evaluation = Evaluation(step, event["headline"], loss=_loss(results), **errors)
                self._add(evaluation, results, better=event["kept"])
        except MALFORMED as error:
            raise UniclozeError(f"{self.out / LEDGER} is damaged ({error}): start again in another --out") from error
        self._drop_other_bests()
        self._show_best()
        step, training = self.state.step, self.recipe.training
        due = step == training.steps or (step > 0 and step % training.evaluate_every == 0)
        self._drop_newer_weights()
        ended = any(event["event"] == "end" for event in events)
        missing = self.averages and not ended if self.dev is None else step not in evaluations
        return ended and self._is_done(), due and missing

    def _is_done(self) -> bool:
        """Whether there is nothing left to learn."""
        return self.state.step >= self.recipe.training.steps or self._is_enough()

    def _is_enough(self) -> bool:
        """Whether patience is over, which does not count a head fitted before training."""
        patience = self.recipe.finetuning.patience
        trained = [one for one in self.evaluations if one.step > 0]
        if patience is None or not trained:
            return False
        last = trained.index(max(trained, key=lambda one: one.value))
        if self.best in trained:  # as likely by its value, it may have been kept for its loss
            last = max(last, trained.index(self.best))
        return len(trained) > last + patience

    def _add(self, evaluation: Evaluation, results: Mapping[str, MetricResult], *, better: bool) -> None:
        """Add an evaluation, which may be better than the best so far."""
        self.evaluations.append(evaluation)
        if better:
            self.best, self.scores = evaluation, results

    def _write_start(self) -> None:
        unlabelled = self.train_data.unlabelled
        counts = {"train": len(self.train_data.records), "dev": len(self.dev.records) if self.dev else 0}
        self.write_start(
            task=self.recipe.task.kind,
            model=str(self.start.path),
            model_step=self.start.step,
            drawn=self.drawn,
            changed=initial.changed_settings(self.recipe, self.start),
            lineage=trained_on(self.start.path),
            files=self.files,
            fingerprints=self.origin,
            records=counts | ({} if unlabelled is None else {"unlabelled": len(unlabelled.records)}),
            rivals=[baseline.to_dict() for baseline in self.baselines],
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

    @property
    def _fitted(self) -> bool:
        """Whether the run began with a fitted head, which is evaluated as step 0."""
        return 0 in {self.state.step, *(one.step for one in self.evaluations)}

    @contextmanager
    def _calibrated(self) -> Iterator[None]:
        """Divide the logits of a head fitted to few labels by their temperature within this context."""
        data, task = self.measured, self.recipe.task
        if data is None or not self._fitted or not isinstance(task, Labelled):
            yield
            return
        logits = np.concatenate([row["label"] for row in outputs_of(self.model, data.rows)])  # a row for each record
        right = scores.right_classes(data.records, task)
        softer, _ = self.world.only_first(lambda: scores.temperature(logits, right))
        weights = self.state.model.state_dict().items()
        with given_weights(
            self.state.model, {name: one / softer for name, one in weights if name.startswith(initial.FITTED)}
        ):
            yield

    def _evaluate(self, state: TrainState) -> bool:
        """Measure, keep the best checkpoint, save; returns whether to stop early."""
        with self._averaged(), self._calibrated():
            if self.dev is not None and self.measured is not None:
                self._measure(self.dev, self.measured)
            elif self._keeps_last():
                self.write_checkpoint(BEST, [], self.out / RECIPE, self._facts(), keep=1)
        self._save(state)
        self._drop_other_bests()
        return self._is_enough()

    def _keeps_last(self) -> bool:
        """Whether a mean of weights is kept that no development file chooses."""
        return self.averages and self.dev is None and self.state.step == self.recipe.training.steps

    def _measure(self, dev: TaskData, measured: TaskData) -> None:
        """Measure on the development records, and keep the weights if they are the best."""
        step, records = self.state.step, measured.records
        recipe, predictions = scores.with_best_threshold(self.recipe, records, predict(self.model, measured))
        results = measure(predictions, records, self.recipe)
        value = self.world.only_first(lambda: headline(results, self.recipe))
        if TASKS[self.recipe.task.kind].generates:
            results = {**results, "loss": target_loss(self.model, dev)}
        loss, errors, task = self.world.only_first(lambda: _loss(results)), {}, self.recipe.task
        if loss is not None and self._fitted and len(records) > 1 and isinstance(task, Labelled):  # see `is_better`
            answers = [one["prediction"] for one in predictions]
            if (error := scores.headline_error(answers, records, self.recipe)) is not None:
                errors["error"] = error
            if self.best is not None:
                errors["loss_error"] = self.world.only_first(
                    lambda: scores.loss_error(predictions, self._best_predictions(), records, task)
                )
        evaluation = Evaluation(step, value, loss=loss, **errors)
        better = self.best is None or scores.is_better(evaluation, self.best, self.evaluations)
        self._add(evaluation, results, better=better)
        if better:
            self._keep_best(recipe, predictions, records)
        threshold = getattr(recipe.task, "no_answer_threshold", None)
        self.ledger.write(  # only now: a resumed run assumes that recorded evaluations are saved
            "evaluate",
            step=step,
            headline=value,
            kept=better,
            **errors,
            results={name: result.to_dict() for name, result in results.items()},
            records=len(predictions),
            **({} if recipe is self.recipe else {"no_answer_threshold": threshold}),
        )
        if self.progress:
            shown = ", ".join(f"{key} {result.shown(key)}" for result in results.values() for key in result.values)
            say(f"step {step}: {shown}")

    def _drop_newer_weights(self) -> None:
        """Remove the weights of evaluations that an interrupted run did not save."""
        if self.world.first:
            drop_newer(self.out / AVERAGED / checkpoint_name(self.state.step))

    def _drop_other_bests(self) -> None:
        """Remove all but the recorded best checkpoint, including unrecorded ones of an interrupted run."""
        if not self.world.first:
            return
        step = self.best.step if self.best else None
        if self._keeps_last():
            step = self.state.step
        for path in list_checkpoints(self.out / BEST):
            if step is None or path.name != checkpoint_name(step):
                shutil.rmtree(path)

    def _keep_best(self, recipe: Recipe, predictions: Sequence[Prediction], records: Sequence[Record]) -> None:
        folder = self.out / BEST
        more = [folder / name for name in OF_THE_BEST]
        if self.world.first:
            folder.mkdir(exist_ok=True)
            save_recipe(recipe, folder / RECIPE)
            answered = scores.with_references(predictions, records, self.recipe.task)
            shown = scores.samples(answered, records, self.recipe.task)
            for file, lines in zip(more, (answered, shown), strict=True):
                replace_file(file, as_json_lines(lines))
        self.write_checkpoint(BEST, [], folder / RECIPE, self._facts(), keep=2, more=more)  # two until saved
        for file in more if self.world.first else ():
            file.replace(self.out / file.name)

    def _best_predictions(self) -> list[Prediction]:
        """The predictions of the best checkpoint."""
        lines = (self.out / DEV_PREDICTIONS).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        return list(map(json.loads, lines))

    def _show_best(self) -> None:
        """Restore the predictions of the best checkpoint, which an unrecorded evaluation may have overwritten."""
        for name in OF_THE_BEST if self.world.first else ():
            if self.best is None:
                (self.out / name).unlink(missing_ok=True)
            else:
                kept = self.out / BEST / checkpoint_name(self.best.step) / name
                replace_file(self.out / name, kept.read_text(encoding="utf-8"))

    def _save(self, state: TrainState) -> None:
        place = self.out / CHECKPOINTS / checkpoint_name(state.step)
        if not self.world.only_first(place.is_dir):  # an evaluation saves, too
            self.save(self._facts(), keep=1)

    def _facts(self) -> dict[str, Any]:
        facts = {"origin": self.origin, "segments": self.segments}
        return facts if self.below is None else {**facts, START: self.below.to_dict()}


def _loss(results: Mapping[str, MetricResult]) -> float | None:
    """Mean of -log p of what is right; None if a task has no probabilities."""
    found = (results[name].values.get(value) for name, value in LOSSES.items() if name in results)
    return next(found, None)
