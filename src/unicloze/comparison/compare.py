"""Runs a comparison: every contestant with every seed, all measured the same way; an interrupted comparison resumes.

OUT/data                     the text, prepared once
OUT/comparison.json          the plan, then the results
OUT/NAME/seed-S              one run each, with its `scores.json`; `job.lock` belongs to the process that does it
OUT/NAME/seed-S/probes/TASK  the same run fine-tuned on a task; `predict` reads it
OUT/table.md, OUT/index.html
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from unicloze.comparison.contestants import (
    COMPARISON_FILE,
    Contestant,
    check_same_text,
    contestants,
    contestants_at_budget,
    network,
)
from unicloze.comparison.probes import Probe, agreed, fit_probes
from unicloze.comparison.runs import (
    SCHEMA,
    Evaluator,
    counted,
    figures_over_seeds,
    fine_tune,
    masked_steps,
    run_once,
    scores_of,
)
from unicloze.comparison.table import PROBES, Comparison, ContestantResult, Spent, words_key
from unicloze.errors import UniclozeError, UsageError, check_at_least
from unicloze.files import CHECKPOINTS, InUse, hold, write_file
from unicloze.finetuning.seeds import OverSeeds
from unicloze.mixtures import describe, longest_window
from unicloze.model.backbone import embedding_width
from unicloze.pretraining.budget import Budget
from unicloze.pretraining.data import build_sampler
from unicloze.report.history import History
from unicloze.rules import listed
from unicloze.settings import Recipe
from unicloze.tasks.rows import text_pooling
from unicloze.text.count_vectors import open_vectors
from unicloze.text.counts import open_counts
from unicloze.text.prepare import Prepared, open_or_prepare
from unicloze.training.checkpoint import list_checkpoints
from unicloze.training.loop import shared_settings
from unicloze.training.memory import refuse_what_cannot_fit
from unicloze.training.pace import Clock
from unicloze.training.precision import choose_device, choose_precision
from unicloze.training.verdict import Counted

T = TypeVar("T")

PAGES = "table.md", "index.html"

OF_THE_TEXT = (
    "corpus", "text_field", "weights", "heldout_share", "deduplicate", "decontaminate", "decontaminate_ngram",
)  # fmt: skip
"""Settings of `data` that determine the text of a comparison."""
LOCK = "job.lock"
"""Lock file of a run while a process trains, measures and fine-tunes it."""
POLL = 1.0
"""Seconds between two attempts to lock the runs of other processes."""


@dataclass(frozen=True)
class Job:
    """One contestant with one seed."""

    contestant: Contestant  # what to train
    seed: int  # with which seed
    run: Path  # directory of the run
    label: str  # what it is called in messages


def do_all(jobs: Sequence[Job], do: Callable[[Job], T], say: Callable[[str], None]) -> list[T]:
    """The results of all jobs, in order; `do` must return those of a finished job without repeating it."""
    found: dict[int, T] = {}
    waited: set[int] = set()
    while len(found) < len(jobs):
        before, in_use = len(found), dict[int, InUse]()
        for number, job in enumerate(jobs):
            if number in found:
                continue
            with contextlib.ExitStack() as stack:
                try:
                    job.run.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(hold(job.run / LOCK, job.run, "waiting for it", keep=True))
                except InUse as error:
                    in_use[number] = error
                    continue
                say(job.label)
                found[number] = do(job)
        if len(found) == before:
            for number in sorted(in_use.keys() - waited):
                say(str(in_use[number]))
            waited |= in_use.keys()
            time.sleep(POLL)
    return [found[number] for number in range(len(jobs))]


def compare_recipes(
    names: Sequence[str],
    out: Path,
    *,
    budget: Budget,
    seeds: int,
    like: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    evaluators: Mapping[str, Evaluator] | None = None,
    probes: Sequence[Probe] = (),
    progress: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Train and measure every recipe with every seed; completed work is not repeated.

    Several processes may call this for one folder: each run is done by one of them, and all return the same comparison.
    """
    check_at_least(1, seeds=seeds)
    noted = _noted_names(out / COMPARISON_FILE)
    recipes = contestants(names, like=like, overrides=overrides or {}, noted=noted)
    _check_one_text(recipes)
    wanted = {"schema": SCHEMA, "recipes": [recipe.to_dict() for recipe in recipes], "budget": str(budget)}
    _refuse_foreign(out)
    for recipe in recipes:
        try:
            refuse_what_cannot_fit(recipe, choose_device(recipe.training), recipe.tokenizer.vocab_size)
        except UsageError as error:
            raise UsageError(f"{recipe.name}: {error}") from error
    out.mkdir(parents=True, exist_ok=True)
    with _alone(out):
        prepared, window = _prepare(recipes, out, progress)
        for recipe in recipes:
            check_same_text(recipe, prepared, out)
        fitted = fit_probes(probes, recipes, prepared.tokenizer)
        planned = _plan(recipes, prepared, budget, out / COMPARISON_FILE, wanted, overrides or {}, say)
        _note_probes(fitted, out / COMPARISON_FILE, say)
        counts = open_counts(prepared, prepared.train)
        from_counts = [recipe for recipe in recipes if recipe.training.start == "counts"]
        for width in sorted({embedding_width(recipe.model) for recipe in from_counts}):
            open_vectors(prepared, prepared.train, width)  # keeps them: no run's time pays for those of all
    plain = recipes[0].changed("data", window=window, segments=1, documents="separate", order="shuffled")
    sampler = build_sampler(plain, prepared, heldout=True)
    windows = sampler.sequential(recipes[0].training.evaluate_windows)
    if not (masked_steps(windows, prepared.tokenizer.vocabulary) >= 0).any():
        raise UsageError(
            "too little text is held out to measure on: raise --data.heldout_share or give more documents."
        )
    every_run = [(contestant, seed) for seed in range(seeds) for contestant in planned]
    jobs = []
    for number, (contestant, seed) in enumerate(every_run, 1):
        label = f"{contestant.recipe.name}, seed {seed} ({number} of {len(every_run)})"
        jobs.append(Job(contestant, seed, out / contestant.recipe.name / f"seed-{seed}", label))

    def do(job: Job) -> dict[str, Any]:
        recipe = job.contestant.recipe
        clock = clock_of(job, budget) if budget.kind == "time" else None
        with shared_settings(f"{recipe.name} fails", "of a comparison", f", or one without {recipe.name},"):
            known = run_once(recipe, job.seed, job.run, prepared, sampler, windows, evaluators or {}, progress, clock)
            for probe in fitted:
                if recipe.name not in probe.not_defined and probe.name not in known[PROBES]:
                    say(f"{recipe.name}, seed {job.seed}: fine-tuned on {probe.name}")
                    fine_tune(probe, job.run, known, progress)
        return known

    done = [(job.run, known) for job, known in zip(jobs, do_all(jobs, do, say), strict=True)]
    with_memory: Counted = {}
    if any(recipe.model.memory for recipe in recipes):
        with_memory = counted(counts, windows, sampler.texts_before(windows, 1))
    rows = tuple(
        _row(contestant, done[number :: len(planned)], evaluators or {}, fitted, with_memory)
        for number, contestant in enumerate(planned)
    )
    comparison = Comparison(
        out=out,
        budget=str(budget),
        seeds=seeds,
        windows=len(windows),
        window=window,
        rows=rows,
        counts=counted(counts, windows),
        counted_words=_counted_words(run for run, _ in done),
        probes=tuple(probe.column(_measured(probe, done)[0]["unit"]) for probe in fitted),
    )
    found = comparison.to_dict()
    keys = {"seeds": "seeds", "results": "rows", "counts": "counts", "counted_words": "counted_words"}
    keys |= {"probed": "probes"} if fitted else {}
    with _alone(out):
        planned_file = json.loads((out / COMPARISON_FILE).read_text(encoding="utf-8"))
        results = {key: found[name] for key, name in keys.items()}
        write_file(out / COMPARISON_FILE, json.dumps({**planned_file, **results}, indent=1))
    return comparison


def clock_of(job: Job, budget: Budget) -> Clock:
    """The clock of a run, which goes on where the run does."""
    spent = 0.0
    if list_checkpoints(job.run / CHECKPOINTS):
        spent = History.read(job.run).seconds
    return Clock(time.monotonic() - spent, budget.amount, most=job.contestant.recipe.training.steps, planned=True)


def _alone(out: Path) -> AbstractContextManager[None]:
    """Keeps other processes from changing the plan of the comparison at the same time."""
    return hold(out / LOCK, out, "waiting for it", keep=True, wait=True)


def _noted_names(path: Path) -> list[str]:
    """The names in the plan of a comparison; none if there is no plan, or a damaged one."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return [entry["name"] for entry in json.loads(path.read_text(encoding="utf-8"))["plan"]]
    return []


def _check_one_text(recipes: Sequence[Recipe]) -> None:
    """Reject recipes that would not train on the same tokens."""
    first = recipes[0]
    for recipe in recipes[1:]:
        one, other = _of_the_text(first), _of_the_text(recipe)
        if differ := [key for key in one if key in other and one[key] != other[key]]:
            raise UsageError(
                f"{first.name} and {recipe.name} differ in {listed(differ, 'and')}, but only scores on one text and its "
                f"tokens are comparable: give --like RECIPE, or {listed([f'--{key}' for key in differ], 'and')} for all."
            )


def _of_the_text(recipe: Recipe) -> dict[str, Any]:
    """The settings that determine the tokens, by dotted name: of a loaded tokenizer only the path."""
    settings = recipe.flat("tokenizer", "data")
    trained = recipe.tokenizer.path is None
    of_tokenizer = [key for key in settings if key.startswith("tokenizer.")] if trained else ["tokenizer.path"]
    return {key: settings[key] for key in (*of_tokenizer, *(f"data.{name}" for name in OF_THE_TEXT))}


def _prepare(recipes: list[Recipe], out: Path, progress: bool) -> tuple[Prepared, int]:
    """The text of all recipes, and the longest window that fits all of their models."""
    prepared = open_or_prepare(recipes[0].data, recipes[0].tokenizer, out / "data", progress=progress)
    if not prepared.heldout:
        raise UsageError("no text is held out to measure on: raise --data.heldout_share or give more documents.")
    recipes[:] = [recipe.changed("data", prepared=str(prepared.folder)) for recipe in recipes]
    return prepared, min(longest_window(recipe) for recipe in recipes)


def _plan(
    recipes: Sequence[Recipe],
    prepared: Prepared,
    budget: Budget,
    path: Path,
    wanted: dict[str, Any],
    given: Collection[str],
    say: Callable[[str], None],
) -> list[Contestant]:
    """The steps of every contestant; decided once and read back when a comparison resumes."""
    wanted = json.loads(json.dumps(wanted))
    if path.is_file():
        try:
            former = json.loads(path.read_text(encoding="utf-8"))
            known = {entry["name"]: entry for entry in former["plan"]}
        except (ValueError, KeyError, TypeError) as error:
            raise UniclozeError(f"{path} is damaged: remove it and run the same command again.") from error
        if former.get("schema") != SCHEMA:
            raise UsageError(
                f"{path} was written by another version of unicloze, with other recipe settings: give another --out, "
                "or finish the comparison with that version."
            )
        if any(former.get(key) != wanted[key] for key in wanted):
            raise UsageError(
                f"{path} belongs to another comparison ({', '.join(known)}; {former.get('budget')}): give another --out."
            )
        return [_planned(recipe, known[recipe.name]) for recipe in recipes]
    say("measuring what a step of each recipe costs")
    training = recipes[0].training
    precision: Any = choose_precision(training, choose_device(training))  # the same for all
    planned = []
    for recipe in recipes:
        recipe = recipe.changed("training", precision=precision)
        planned.append(contestants_at_budget(recipe, prepared, budget, path.parent, given))
    entries = [
        {"name": one.recipe.name, "flops_per_step": one.flops_per_step, "training": vars(one.recipe.training)}
        for one in planned
    ]
    write_file(path, json.dumps({**wanted, "plan": entries}, indent=1))
    return planned


def _refuse_foreign(out: Path) -> None:
    """Refuse a folder that has files of our names but no comparison."""
    foreign = next((name for name in PAGES if (out / name).exists()), None)
    if foreign is not None and not (out / COMPARISON_FILE).is_file():
        raise UsageError(f"{out / foreign} was not written by a comparison and would be replaced: give another --out.")


def _note_probes(probes: Sequence[Probe], path: Path, say: Callable[[str], None]) -> None:
    """Add the probes to the plan."""
    planned = json.loads(path.read_text(encoding="utf-8"))
    noted = agreed(probes, planned.get(PROBES, {}), path)
    if noted != planned.get(PROBES, {}):
        write_file(path, json.dumps({**planned, PROBES: noted}, indent=1))
    for probe in probes:
        for name, why in probe.not_defined.items():
            say(f"probe {probe.name} is not defined for {name}: {why}")


def _planned(recipe: Recipe, entry: Mapping[str, Any]) -> Contestant:
    training = {**entry["training"], "betas": tuple(entry["training"]["betas"])}
    return Contestant(recipe=recipe.changed("training", **training), flops_per_step=entry["flops_per_step"])


def _counted_words(runs: Iterable[Path]) -> dict[str, float]:
    """Scores of the trigram on content words, by the key of the models' score."""
    found = [history.content_words for history in map(History.read, runs)]
    return {words_key(words["sees"]): 100 * words["counts_top_5"] for words in found if words}


def _measured(probe: Probe, runs: Sequence[tuple[Path, Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    """What the runs that were fine-tuned on a probe noted."""
    return [known[PROBES][probe.name] for _, known in runs if probe.name in known[PROBES]]


def _row(
    contestant: Contestant,
    runs: Sequence[tuple[Path, Mapping[str, Any]]],
    evaluators: Iterable[str],
    probes: Sequence[Probe],
    with_memory: Counted,
) -> ContestantResult:
    recipe = contestant.recipe
    histories = [History.read(run) for run, _ in runs]
    every = [scores_of(known, history, evaluators, probes) for (_, known), history in zip(runs, histories, strict=True)]
    scores = {}
    for name in every[0]:
        values = [found[name] for found in every]
        known = [value for value in values if value is not None]
        scores[name] = OverSeeds.of(known) if len(known) == len(values) else None
    tokens = [points[-1][1] for history in histories if (points := history.curve("text_tokens"))]
    steps = statistics.fmean(history.step for history in histories)
    return ContestantResult(
        name=recipe.name,
        objective=describe(recipe.objective),
        network=network(recipe),
        parameters=int(histories[0].start.get("parameters", 0)),
        steps=round(steps),
        text_tokens=statistics.fmean(tokens) if tokens else 0.0,
        flops=contestant.flops_per_step * steps,
        seconds=statistics.fmean(history.seconds for history in histories),
        scores=scores,
        figures=figures_over_seeds([known for _, known in runs]),
        counts=with_memory if recipe.model.memory else {},
        reads=f"{recipe.use.visibility}, {text_pooling(recipe)}",
        probes={
            probe.name: Spent(**{key: statistics.fmean(one[key] for one in each) for key in ("flops", "seconds")})
            for probe in probes
            if (each := _measured(probe, runs))
        },
    )
