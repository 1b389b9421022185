"""The verbs from text to a trained model: prepare, pretrain, inspect and report."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unicloze.errors import UniclozeError, UsageError
from unicloze.files import LEDGER, RECIPE, TOKENIZER
from unicloze.verbs.options import (
    DEFAULT_RECIPE,
    JSON,
    RUNS,
    File,
    Folder,
    Number,
    Option,
    Overrides,
    PathLike,
    RecipeName,
    Settings,
    check_file,
    clean,
    folder_at,
)

if TYPE_CHECKING:
    from unicloze.pretraining.plan import Plan
    from unicloze.pretraining.run import RunResult
    from unicloze.report.example_view import ExampleView
    from unicloze.settings import Recipe
    from unicloze.text.prepare import Prepared
    from unicloze.text.tokenizers import Tokenizer
    from unicloze.training.pace import Clock

AUTO = "auto"
"""Recipe whose settings are chosen by the text, the budget and this machine."""
READ_BY_PREPARE = (
    "name", "data.corpus", "data.text_field", "data.spans_field", "data.heldout_share", "data.deduplicate",
    "data.decontaminate", "data.decontaminate_ngram", "tokenizer",
)  # fmt: skip
"""Settings and sections that determine a prepared folder."""
READ_BY_INSPECT = (
    "name", "data.window", "data.segments", "data.documents", "data.prepared", "tokenizer.path", "tokenizer.lowercase",
    "tokenizer.extra_tokens", "objective", "model.num_segments", "model.generator_size",
)  # fmt: skip
"""Settings and sections that affect a single example or whether it can be made."""
NOT_READ_BY_INSPECT = (
    "objective.static_copies", "objective.final_mask_rate", "objective.coefficients",
)  # fmt: skip
"""Settings of an objective that do not affect a single example."""


def prepare(
    recipe: RecipeName = DEFAULT_RECIPE,
    out: Folder | None = None,
    quiet: bool = False,
    overrides: Annotated[
        Overrides | None,
        Settings(
            ("data.corpus", "data.text_field", "data.spans_field", "data.heldout_share", "data.deduplicate",
             "data.decontaminate", "tokenizer.path", "tokenizer.kind", "tokenizer.vocab_size", "tokenizer.lowercase"),
            recipe="recipe",
        ),
    ] = None,
    jobs: Number = 1,
) -> Prepared:  # fmt: skip
    """Tokenize a corpus to disk: deduplicated, with held-out documents set aside, and its tokenizer.

    If the folder is already prepared, it and its corpus are read completely to verify that neither has changed. If an earlier
    call was killed, the portions of the corpus that it finished are kept.

    Args:
        recipe: Recipe; only `data` and `tokenizer` are used.
        out: Folder to write; default: runs/NAME/data, where `pretrain` looks for it.
        quiet: Show no progress.
        overrides: Settings by dotted name.
        jobs: Number of processes that read and tokenize files; more than one helps with several hundred MB in several files.
            The result does not depend on it.

    Examples:
        unicloze prepare --recipe quickstart
        unicloze prepare --data.corpus my_text/ --tokenizer.vocab_size 16000 --out prepared
        unicloze prepare --data.corpus my_text/ --tokenizer.vocab_size 16000 --out prepared --jobs 8

    Raises:
        UsageError: The recipe or a setting is invalid, or has no effect on preparing.
        UniclozeError: The corpus cannot be read, or the folder holds something else.
    """
    from unicloze.pretraining.data import check_beside_path
    from unicloze.recipes import load_recipe
    from unicloze.recipes.unread_settings import given_settings, refuse_beyond, refuse_unread
    from unicloze.text.prepare import prepare_data

    if jobs < 1:
        raise UsageError(f"--jobs is {jobs}: give at least 1.")
    settings = load_recipe(recipe, overrides)
    check_beside_path(settings, overrides or {})
    if settings.data.prepared is not None:
        raise UsageError(
            f"data.prepared is {settings.data.prepared}, an already prepared folder: leave it out to prepare one, or "
            "use it with `unicloze pretrain`."
        )
    given = given_settings(overrides)
    refuse_beyond("prepare", given, READ_BY_PREPARE, "leave it out, or give it to `unicloze pretrain`")
    refuse_unread([settings], given.keys() - {"data.spans_field"})  # another recipe may train on the folder
    folder = folder_at(out, RUNS / settings.name / "data")
    return prepare_data(settings.data, settings.tokenizer, folder, progress=not quiet, verify=True, jobs=jobs)


def pretrain(
    recipe: RecipeName | None = None,
    out: Folder | None = None,
    toy: bool = False,
    quiet: bool = False,
    overrides: Annotated[
        Overrides | None,
        Settings(
            ("data.corpus", "data.prepared", "data.window", "tokenizer.vocab_size", "objective.targets",
             "model.hidden_size", "model.num_layers", "training.steps", "training.batch_size",
             "training.micro_batch_size", "training.learning_rate", "training.seed", "training.device"),
            recipe="recipe",
        ),
    ] = None,
    init: Folder | None = None,
    new_tokenizer: bool = False,
    verify: bool = False,
    budget: Annotated[str, Option("TIME|KIND=N")] | None = None,
    plan: bool = False,
) -> RunResult | Plan:  # fmt: skip
    """Pre-train a model, or resume an interrupted run; Ctrl-C saves and stops.

    Args:
        recipe: Recipe; default: that of the run in `--out`.
        out: Directory of the run; default: runs/NAME.
        toy: Try a recipe: two steps with a tiny model and vocabulary on the beginning of the corpus. Settings that the full
            run would reject are rejected. Settings given explicitly override the toy's.
        quiet: Show no progress.
        overrides: Settings by dotted name.
        init: Start from this run, checkpoint or Hugging Face model folder (training.initialize_from). Its model shape and
            tokenizer are used unless a setting or the recipe's tokenizer.path overrides them; tokens in both vocabularies
            keep their embeddings.
        new_tokenizer: With `--init`: train a new tokenizer on the corpus.
        verify: Verify the digests of all prepared text before the first step, not of each block when it is first read.
        budget: With `--recipe auto`: what the run may spend, as in 30min, 2h, steps=N, tokens=N of text or flops=N; default:
            10min.
        plan: Train nothing; print parameters, memory, tokens and time, and what to change if the run does not fit. Memory
            follows from formulas, time from a few passes of some rows. `--recipe auto` still prepares the text.

    Examples:
        unicloze pretrain --recipe quickstart
        unicloze pretrain --recipe auto --data.corpus my_text/ --budget 30min
        unicloze pretrain --recipe quickstart --data.corpus my_text/ --training.steps 5000 --out runs/mine
        unicloze pretrain --out runs/mine
        unicloze pretrain --recipe unilmv2-base --toy

    Raises:
        UsageError: The recipe or a setting is invalid or would have no effect, the warm-up is as long as the run, the
            settings contradict the corpus or tokenizer of `data.prepared`, or the directory holds a run with other
            settings.
        UniclozeError: The corpus, the directory or a checkpoint is unusable, or the loss is not finite.
    """
    from unicloze.cores import tune_allocator
    from unicloze.pretraining.data import check_beside_path, check_beside_prepared
    from unicloze.recipes import given_beside, load_recipe, toy_overrides
    from unicloze.recipes.unread_settings import given_settings, refuse_not_of_pretraining, refuse_unread

    continued, began, clock = recipe is None, time.monotonic(), None
    if recipe is None:
        if init is not None:
            raise UsageError("--init starts a new run: give --recipe too (`unicloze recipes` lists them).")
        if out is None:
            raise UsageError("Give --recipe (`unicloze recipes` lists them), or --out of a run to continue.")
        recipe = folder_at(out) / RECIPE
        if not recipe.is_file():
            raise UsageError(
                f"there is no run to continue at {out}: give --recipe too (`unicloze recipes` lists them)."
            )
    given = {**(overrides or {}), **({} if init is None else {"training.initialize_from": str(init)})}
    if new_tokenizer and load_recipe(recipe, _of_whole(given) if toy else given).training.initialize_from is None:
        raise UsageError(
            "--new-tokenizer has no effect without --init, since a tokenizer is trained anyway: leave it out."
        )
    asked = given
    if recipe == AUTO and not toy:
        recipe, given, clock = _chosen(given, budget, out, began, new_tokenizer=new_tokenizer, progress=not quiet)
    elif budget is not None and recipe == AUTO:
        raise UsageError("option --budget: a toy run has two steps: leave out --budget or --toy.")
    elif budget is not None:
        load_recipe(recipe)  # a misspelt name is the first mistake
        raise UsageError("option --budget: only --recipe auto chooses the steps by a budget: give --training.steps.")
    settings = load_recipe(recipe, _of_whole(given) if toy else given)
    if settings.task.kind:
        raise UsageError(
            f"recipe {settings.name} is of a task, and pre-training on labelled records, as in T5's mixture of tasks with "
            "span corruption, is not done: give it to `unicloze finetune`, or another recipe (`unicloze recipes`)."
        )
    refuse_not_of_pretraining("pretrain", given_settings(overrides))
    beside = given_beside("data.prepared", recipe, given)
    if continued:  # recipe.yaml of an older run may misstate its data settings
        beside = {key: origin for key, origin in beside.items() if origin.startswith("option ")}
    check_beside_prepared(settings, beside)
    check_beside_path(settings, asked)
    folder = folder_at(out, RUNS / (f"{settings.name}-toy" if toy else settings.name))
    warmup, steps = settings.training.warmup_steps, settings.training.steps
    if warmup >= steps and not (folder / RECIPE).is_file():
        raise UsageError(
            f"training.warmup_steps is {warmup:,} but the run has only {steps:,} steps, so the peak learning rate would "
            "never be reached: lower --training.warmup_steps."
        )

    tune_allocator()
    from unicloze.interop.read import open_model
    from unicloze.pretraining.data import inherited_settings
    from unicloze.pretraining.run import pretrain_run

    whole, small = settings, toy_overrides() if toy else {}
    settings = load_recipe(recipe, {**small, **given}) if toy else settings
    place = settings.training.initialize_from
    if not continued and place is not None:
        inherited = inherited_settings(settings, open_model(place), given, new_tokenizer=new_tokenizer)
        settings = load_recipe(recipe, {**small, **inherited, **given})
    refuse_unread([settings], given_settings(overrides))
    if toy:
        if settings.training.initialize_from is None and whole.training.initialize_from is not None:
            open_model(whole.training.initialize_from)  # it is there and intact
        settings = _as_toy(whole, settings, folder)
    if plan:
        return _planned(settings)
    return pretrain_run(settings, folder, progress=not quiet, verify=verify, clock=clock)


def _chosen(
    given: Overrides, budget: str | None, out: PathLike | None, began: float, *, new_tokenizer: bool, progress: bool
) -> tuple[PathLike, dict[str, Any], Clock | None]:
    """The recipe to train and its settings: chosen now, or those of the run that was chosen before."""
    from unicloze.cores import processes
    from unicloze.interop.read import open_model
    from unicloze.pretraining.automatic import choose
    from unicloze.pretraining.budget import Budget
    from unicloze.progress import say
    from unicloze.recipes import load_recipe
    from unicloze.recipes.unread_settings import given_settings
    from unicloze.training.lock import hold_run
    from unicloze.training.meeting import joined

    settings = given_settings(given)
    if "training.steps" in settings and budget is not None:
        raise UsageError("--budget and --training.steps both set the steps: leave one of them out.")
    folder = folder_at(out, RUNS / str(settings.get("name", AUTO)))
    if (folder / RECIPE).is_file():
        if budget is not None:
            say(f"{folder} resumes with the settings chosen before; --budget no longer changes them")
        return folder / RECIPE, dict(given), None
    if not {"data.corpus", "data.prepared"} & settings.keys():
        raise UsageError("--recipe auto needs your text: give --data.corpus with files, folders or globs.")
    if processes() > 1:
        raise UsageError(
            "--recipe auto measures one process: start the run without torchrun, stop it with Ctrl-C, and resume it with "
            f"torchrun and `unicloze pretrain --out {folder}`."
        )
    steps = load_recipe(AUTO, given).training.steps if "training.steps" in settings else None
    allowed = Budget.parse(budget or "10min") if steps is None else Budget("steps", steps)
    place = settings.get("training.initialize_from")
    start = None if place is None else open_model(place)
    with joined() as world, hold_run(folder, world):
        choice = choose(
            settings, allowed, folder, start=start, new_tokenizer=new_tokenizer, progress=progress, began=began
        )
    if progress:
        for line in choice.reasons:
            say(line)
    return AUTO, {**choice.settings, **given}, choice.clock


def _planned(recipe: Recipe) -> Plan:
    """What a run of a recipe would take."""
    from unicloze.files import LINEAGE
    from unicloze.pretraining.plan import plan_run
    from unicloze.text.lineage import read_lineage
    from unicloze.text.tokenizers import Tokenizer

    size = recipe.tokenizer.vocab_size
    if recipe.data.prepared is not None and (Path(recipe.data.prepared) / LINEAGE).is_file():
        size = read_lineage(Path(recipe.data.prepared))["tokenizer"]["vocab_size"]
    elif recipe.tokenizer.path is not None:
        size = Tokenizer.load(recipe.tokenizer.path).vocabulary.size
    return plan_run(recipe, size)


def _of_whole(given: Overrides) -> dict[str, Any]:
    """The given settings that apply to the full run, without those that only change the sizes of a toy run."""
    from unicloze.recipes import toy_overrides
    from unicloze.recipes.unread_settings import given_settings

    settings = given_settings(given)
    of_toy = {"data.window", "training.steps", "training.batch_size", "training.micro_batch_size"}
    if "training.steps" in settings:
        of_toy.add("training.warmup_steps")
    of_toy |= {key for key in toy_overrides() if key.startswith("model.")}
    of_toy |= {"model.embedding_size", "model.decoder_layers"}
    return {key: value for key, value in settings.items() if key not in of_toy}


def _as_toy(recipe: Recipe, small: Recipe, folder: Path) -> Recipe:
    """The toy recipe on the beginning of its corpus, after checking the full recipe's device and tokenizer."""
    from unicloze.text.prepare import beginning_of
    from unicloze.text.tokenizers import Tokenizer
    from unicloze.training.precision import choose_device

    choose_device(recipe.training)
    if recipe.tokenizer.path is not None:
        Tokenizer.load(recipe.tokenizer.path)
    own = not folder.exists() or (folder / LEDGER).is_file() or not any(folder.iterdir())
    beginning = (
        beginning_of(small.data, folder) if own else None
    )  # a foreign folder is not touched here and rejected later
    if beginning is None:
        return small
    return dataclasses.replace(small, data=dataclasses.replace(small.data, corpus=[str(beginning)]))


def inspect(
    text: Annotated[str, Option("TEXT", clean)],
    recipe: RecipeName = DEFAULT_RECIPE,
    seed: Number = 0,
    picture: Annotated[PathLike, Option("FILE"), JSON] | None = None,
    out: Folder | None = None,
    part: Annotated[str, Option("LABEL")] | None = None,
    overrides: Annotated[
        Overrides | None,
        Settings(
            ("data.window", "data.segments", "objective.name", "objective.targets", "tokenizer.path"),
            recipe="recipe",
        ),
    ] = None,
) -> ExampleView:  # fmt: skip
    """Show one example as the model sees it: its slots, which slots each may read, what is predicted.

    The tokenizer comes from `tokenizer.path`, `data.prepared` or the run. If there is none yet, the text is split on
    white space and a warning is printed.

    Args:
        text: Text of the example, truncated to one window.
        recipe: Recipe.
        seed: Seed of all random draws.
        picture: Draw the example to a .svg or .png file and print the file name.
        out: Run or prepared folder to take the tokenizer from; default: runs/NAME.
        part: Part of the recipe's mixture; default: the first.
        overrides: Settings by dotted name.

    Examples:
        unicloze inspect --recipe quickstart --text "A list is a mutable sequence."
        unicloze inspect --recipe unilmv2-base --text "one two three four five six" --seed 3 --json
        unicloze inspect --text "A list is a mutable sequence." --objective.mask_rate 0.5 --picture example.svg

    Raises:
        UsageError: The recipe or a setting is invalid or would have no effect, or the text is too short.
        UniclozeError: There is no tokenizer in `out`, or the picture cannot be written.
    """
    from unicloze.recipes import load_recipe
    from unicloze.recipes.unread_settings import given_settings, refuse_beyond, refuse_unread
    from unicloze.report.example_view import inspect_example, part_of, view_of

    if not 0 <= seed < 2**63:
        raise UsageError(f"seed is {seed}: give a whole number from 0 to 2^63 - 1.")
    if picture is not None:
        from unicloze.report.picture import BEGINNINGS, check_ending, save_picture

        check_ending(picture)
        check_file(picture, begins=BEGINNINGS, option="--picture")
    settings, given = load_recipe(recipe, overrides), given_settings(overrides)
    reads = [key for key in READ_BY_INSPECT if settings.tokenizer.path or key != "tokenizer.lowercase"]
    refuse_beyond("inspect", given, reads, "leave it out")
    refuse_beyond("inspect", [key for key in given if key in NOT_READ_BY_INSPECT], (), "leave it out")
    tokenizer_found = _find_tokenizer(settings, out)
    chosen = settings if part is None else part_of(settings, part)
    refuse_unread([_as_shown(settings, part)], given)
    settings = chosen
    _, tokenizer = inspect_example(settings, text, seed, tokenizer_found)
    view = view_of(settings, tokenizer.encode_batch([text])[0], seed, tokenizer)
    if picture is not None:
        save_picture(view, picture)
        return dataclasses.replace(view, picture=Path(picture))
    return view


def _as_shown(recipe: Recipe, label: str | None) -> Recipe:
    """The recipe without phases, reduced to one part of its mixture; by default the first."""
    from unicloze.mixtures import parts

    labels = [part.label for part in parts(recipe.objective)]
    number = 0 if label is None else labels.index(label)
    objective = dataclasses.replace(recipe.objective, mixture=recipe.objective.mixture[number : number + 1])
    return dataclasses.replace(recipe, objective=objective, training=dataclasses.replace(recipe.training, phases=[]))


def _find_tokenizer(recipe: Recipe, out: PathLike | None) -> Tokenizer | None:
    """The tokenizer of a run of the recipe; None if there is none yet."""
    from unicloze.text.tokenizers import Tokenizer

    if out is not None and (recipe.tokenizer.path or recipe.data.prepared):
        named = "tokenizer.path" if recipe.tokenizer.path else "data.prepared"
        raise UsageError(f"{named} already names the tokenizer: leave out --out, or set --{named} null.")
    if recipe.tokenizer.path is not None:
        return Tokenizer.load(recipe.tokenizer.path)
    if recipe.data.prepared is not None:
        return Tokenizer.load(recipe.data.prepared)
    run = RUNS / recipe.name if out is None else Path(out)
    folders = [folder for folder in (run, run / "data") if (folder / TOKENIZER).is_file()]
    if out is not None and not folders:
        raise UniclozeError(f"there is no tokenizer.json in {run}: give the --out of a run or of `unicloze prepare`.")
    return Tokenizer.load(folders[0]) if folders else None


def report(
    run: Annotated[PathLike, Option("RUN", word=True)],
    out: File | None = None,
    watch: Annotated[int, Option("SECONDS")] | None = None,
    tensorboard: Folder | None = None,
) -> Path:
    """Write a one-page report of a run: curves, speed, an example, samples, recipe and data lineage.

    Args:
        run: Run directory; the run may be unfinished.
        out: File to write; default: RUN/report.html.
        watch: Rewrite the page every so many seconds until the run ends; the open page reloads itself. Ctrl-C stops it.
        tensorboard: Also write the curves to this folder, as event files for TensorBoard (extra `tensorboard`).

    Examples:
        unicloze report runs/quickstart
        unicloze report runs/quickstart --watch 30
        unicloze report runs/quickstart --out quickstart.html

    Returns:
        The written file.

    Raises:
        UsageError: `watch` is below 1.
        UniclozeError: There is no run, the page cannot be written, or TensorBoard is not installed.
    """
    from unicloze.report.page import build_report, watch_report

    if watch is not None and watch < 1:
        raise UsageError(f"watch is {watch}: give 1 second or more.")
    page = build_report(run, out) if watch is None else watch_report(run, out, every=watch)
    if tensorboard is not None:
        from unicloze.report.history import write_tensorboard

        write_tensorboard(run, folder_at(tensorboard))
    return page
