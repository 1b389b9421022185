"""The verbs from text to a trained model: prepare, pretrain, inspect and report; and compare, which trains several."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unicloze.cores import processes, tune_allocator
from unicloze.errors import UniclozeError, UsageError, check_at_least, check_seed, options_begin_with
from unicloze.files import BEGINNING, CHECKPOINTS, LINEAGE, RECIPE, TOKENIZER
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
    from unicloze.comparison.table import Comparison
    from unicloze.pretraining.plan import Plan
    from unicloze.pretraining.run import RunResult
    from unicloze.report.example_view import ExampleView
    from unicloze.settings import Recipe
    from unicloze.text.prepare import Prepared
    from unicloze.text.tokenizers import Tokenizer
    from unicloze.training.pace import Clock

AUTO = "auto"
"""Recipe whose settings are chosen by the text, the budget and this machine."""
NO_START = "--new-tokenizer has no effect without --init, since a tokenizer is trained anyway: leave it out."


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
    from unicloze.recipes import load_recipe
    from unicloze.recipes.validation import given_settings, refuse_beyond, refuse_unread
    from unicloze.text.prepare import prepare_data

    check_at_least(1, jobs=jobs)
    given = given_settings(overrides)
    settings = load_recipe(recipe, {**given, **({"data.prepared": None} if "data.corpus" in given else {})})
    if settings.data.prepared is not None:
        cure = "give --data.corpus to prepare another, or use it with `unicloze pretrain`."
        raise UsageError(f"data.prepared is {settings.data.prepared}, an already prepared folder: {cure}")
    refuse_beyond("prepare", given, "leave it out, or give it to `unicloze pretrain`")
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
    from unicloze.pretraining.data import check_beside_prepared
    from unicloze.recipes import read_recipe, toy_overrides
    from unicloze.recipes.validation import given_settings, refuse_not_of_pretraining, refuse_unread

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
    small = toy_overrides() if toy else {}
    chooses = recipe == AUTO and not toy
    if chooses:
        recipe, given, clock = _chosen(given, budget, out, began, new_tokenizer=new_tokenizer, progress=not quiet)
        continued = recipe != AUTO
    files = read_recipe(recipe)
    settings = files.recipe(_of_whole(given, small) if toy else given)
    if new_tokenizer and settings.training.initialize_from is None:
        raise UsageError(NO_START)
    url, known = settings.training.copy_to, folder_at(out, RUNS / settings.name) / RECIPE
    asked = continued or url is None or "training.copy_to" in given_settings(given)
    if not asked and not (known.is_file() and read_recipe(known).recipe().training.copy_to == url):
        raise UsageError(
            f"{recipe} sets training.copy_to, and no file decides where a run is uploaded: give --training.copy_to URL."
        )
    if budget is not None and not chooses:
        why = "a toy run has two steps" if recipe == AUTO else "only --recipe auto chooses the steps by a budget"
        cure = "leave out --budget or --toy" if recipe == AUTO else "give --training.steps"
        raise UsageError(f"option --budget: {why}: {cure}.")
    if settings.task.kind:
        raise UsageError(
            f"recipe {settings.name} is of a task, and pre-training on labelled records, as in T5's mixture of tasks with "
            "span corruption, is not done: give it to `unicloze finetune`, or another recipe (`unicloze recipes`)."
        )
    refuse_not_of_pretraining("pretrain", given_settings(overrides))
    beside = files.given_beside("data.prepared", given)
    if continued:  # recipe.yaml of an older run may misstate its data settings
        beside = {key: origin for key, origin in beside.items() if origin.startswith("option ")}
    check_beside_prepared(settings, beside)
    folder = folder_at(out, RUNS / (f"{settings.name}-toy" if toy else settings.name))
    warmup, steps = settings.training.warmup_steps, settings.training.steps
    if warmup >= steps and not (folder / RECIPE).is_file():
        why = "so the peak learning rate would never be reached: lower --training.warmup_steps."
        raise UsageError(f"training.warmup_steps is {warmup:,} but the run has only {steps:,} steps, {why}")

    tune_allocator()
    from unicloze.interop.read import open_model
    from unicloze.pretraining.data import inherited_settings
    from unicloze.pretraining.run import pretrain_run

    whole = settings
    settings = files.recipe({**small, **given}) if toy else settings
    place = settings.training.initialize_from
    if not continued and place is not None:
        inherited = inherited_settings(settings, open_model(place), given, new_tokenizer=new_tokenizer)
        settings = files.recipe({**small, **inherited, **given})
    refuse_unread([settings], given_settings(overrides))
    if toy:
        if settings.training.initialize_from is None and whole.training.initialize_from is not None:
            open_model(whole.training.initialize_from)  # it is there and intact
        settings = _on_beginning(settings, whole, folder)
    if plan:
        return _planned(settings)
    return pretrain_run(settings, folder, progress=not quiet, verify=verify, clock=clock)


def _chosen(
    given: Overrides, budget: str | None, out: PathLike | None, began: float, *, new_tokenizer: bool, progress: bool
) -> tuple[PathLike, dict[str, Any], Clock | None]:
    """The recipe to train and its settings: chosen now, or those of the run that was chosen before."""
    from unicloze.interop.read import open_model
    from unicloze.pretraining.automatic import choose
    from unicloze.pretraining.budget import Budget
    from unicloze.progress import say
    from unicloze.recipes import load_recipe
    from unicloze.recipes.validation import given_settings
    from unicloze.training.checkpoint import list_checkpoints
    from unicloze.training.copies import Copies
    from unicloze.training.lock import hold_run
    from unicloze.training.parallel import joined

    settings = given_settings(given)
    if new_tokenizer and settings.get("training.initialize_from") is None:
        raise UsageError(NO_START)
    if "training.steps" in settings and budget is not None:
        raise UsageError("--budget and --training.steps both set the steps: leave one of them out.")
    folder = folder_at(out, RUNS / str(settings.get("name", AUTO)))
    if "training.copy_to" in settings and not list_checkpoints(folder / CHECKPOINTS):
        url = load_recipe(AUTO, given).training.copy_to  # refuses wrong settings before anything is fetched
        if url is not None:
            copies = Copies(url)
            with joined() as world, hold_run(folder, world):
                world.only_first(lambda: copies.fetch(folder))
    has_text = bool({"data.corpus", "data.prepared"} & settings.keys())
    chosen_again = has_text and processes() == 1 and not list_checkpoints(folder / CHECKPOINTS)
    if (folder / RECIPE).is_file() and not chosen_again:
        if budget is not None:
            there = (folder / "data" / LINEAGE).is_file()
            spares = f" (--data.prepared {folder / 'data'} spares preparing the text again)" if there else ""
            said = f"{folder} resumes with the settings chosen before; --budget no longer changes them"
            say(f"{said}: another budget needs another --out{spares}")
        return folder / RECIPE, dict(given), None
    if not has_text:
        raise UsageError("--recipe auto needs your text: give --data.corpus with files, folders or globs.")
    if processes() > 1:
        cure = "start the run without torchrun, stop it with Ctrl-C, and resume it with torchrun"
        raise UsageError(f"--recipe auto measures one process: {cure} and `unicloze pretrain --out {folder}`.")
    steps = load_recipe(AUTO, given).training.steps  # refuses wrong settings before the folder is made
    allowed = (
        Budget("steps", steps) if "training.steps" in settings else Budget.parse("10min" if budget is None else budget)
    )
    place = settings.get("training.initialize_from")
    start = None if place is None else open_model(place)
    with joined() as world, hold_run(folder, world):
        choice = choose(
            settings, allowed, folder, start=start, new_tokenizer=new_tokenizer, progress=progress, began=began
        )
    for line in choice.reasons if progress else ():
        say(line)
    return AUTO, {**choice.settings, **given}, choice.clock


def _planned(recipe: Recipe) -> Plan:
    """What a run of a recipe would take."""
    from unicloze.pretraining.plan import plan_run
    from unicloze.text.lineage import read_lineage
    from unicloze.text.tokenizers import Tokenizer

    size = recipe.tokenizer.vocab_size
    if recipe.data.prepared is not None and (Path(recipe.data.prepared) / LINEAGE).is_file():
        size = read_lineage(Path(recipe.data.prepared))["tokenizer"]["vocab_size"]
    elif recipe.tokenizer.path is not None:
        size = Tokenizer.load(recipe.tokenizer.path).vocabulary.size
    return plan_run(recipe, size)


def _of_whole(given: Overrides, toy: Overrides) -> dict[str, Any]:
    """The given settings that apply to the full run, without those that only change the sizes of a toy run."""
    from unicloze.recipes.validation import given_settings

    settings = given_settings(given)
    of_toy = {"data.window", "training.steps", "training.batch_size", "training.micro_batch_size"}
    of_toy |= {"training.warmup_steps"} if "training.steps" in settings else set()
    of_toy |= {"model.embedding_size", "model.decoder_layers", *(key for key in toy if key.startswith("model."))}
    return {key: value for key, value in settings.items() if key not in of_toy}


def _on_beginning(toy: Recipe, whole: Recipe, folder: Path) -> Recipe:
    """A toy recipe on the beginning of its corpus, after checking the full recipe's device and tokenizer."""
    from unicloze.text.prepare import beginning_of, is_long
    from unicloze.text.tokenizers import Tokenizer
    from unicloze.training.lock import hold_run
    from unicloze.training.parallel import joined
    from unicloze.training.precision import choose_device

    choose_device(whole.training)
    if whole.tokenizer.path is not None:
        Tokenizer.load(whole.tokenizer.path)

    def write() -> str | None:
        if not is_long(toy.data):
            return None
        with hold_run(folder, writes=[BEGINNING]):
            return str(beginning_of(toy.data, folder))

    with joined() as world:
        beginning = world.only_first(write)
    return toy if beginning is None else toy.changed("data", corpus=[beginning])


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
    from unicloze.mixtures import parts
    from unicloze.recipes import load_recipe
    from unicloze.recipes.validation import given_settings, refuse_beyond, refuse_unread
    from unicloze.report.example_view import part_of, tokens_of, view_of

    check_seed(seed)
    if picture is not None:
        from unicloze.report.picture import BEGINNINGS, check_ending, save_picture

        check_ending(picture)
        check_file(picture, begins=BEGINNINGS, option="--picture")
    settings, given = load_recipe(recipe, overrides), given_settings(overrides)
    refuse_beyond("inspect", given, "leave it out")
    chosen = settings if part is None else part_of(settings, part)
    number = 0 if part is None else [one.label for one in parts(settings.objective)].index(part)
    # Neither phases nor other parts of the mixture are shown.
    shown = settings.changed("objective", mixture=settings.objective.mixture[number : number + 1])
    refuse_unread([shown.changed("training", phases=[])], given)
    token_ids, tokenizer = tokens_of(chosen, text, _find_tokenizer(settings, out))
    view = view_of(chosen, token_ids, seed, tokenizer)
    if picture is not None:
        save_picture(view, picture)
        return dataclasses.replace(view, picture=Path(picture))
    return view


def _find_tokenizer(recipe: Recipe, out: PathLike | None) -> Tokenizer | None:
    """The tokenizer of a run of the recipe; None if there is none yet."""
    from unicloze.text.tokenizers import Tokenizer

    place = recipe.tokenizer.path or recipe.data.prepared
    if place and out is not None:
        named = "tokenizer.path" if recipe.tokenizer.path else "data.prepared"
        raise UsageError(f"{named} already names the tokenizer: leave out --out, or set --{named} null.")
    if place:
        return Tokenizer.load(place)
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
    from unicloze.report.history import tensorboard_writer, write_tensorboard
    from unicloze.report.page import build_report, watch_report

    check_at_least(1, watch=watch)
    events = None if tensorboard is None else folder_at(tensorboard, option="--tensorboard")
    if events is not None:
        tensorboard_writer()  # refused before the page is written
    page = build_report(run, out) if watch is None else watch_report(run, out, every=watch)
    if events is not None:
        write_tensorboard(run, events)
    return page


def compare(
    recipes: Annotated[Sequence[PathLike], Option("RECIPE", word=True, several=True)],
    budget: Annotated[str, Option("KIND=N")],
    seeds: Number = 2,
    out: Folder | None = None,
    like: Annotated[PathLike, Option("RECIPE")] | None = None,
    blimp: Annotated[PathLike, Option("PATH")] | None = None,
    blimp_limit: Number | None = None,
    probes: Annotated[
        Sequence[tuple[PathLike, PathLike, PathLike]],
        Option(("TASK", "TRAIN", "DEV"), name="probe", repeated=True),
    ] = (),
    probe_overrides: Annotated[Overrides | None, Settings(prefix="probe.")] = None,
    quiet: bool = False,
    overrides: Annotated[
        Overrides | None,
        Settings(
            ("data.corpus", "data.window", "tokenizer.vocab_size", "model.hidden_size", "model.num_layers",
             "training.batch_size", "training.learning_rate", "training.evaluate_windows"),
            recipe="like",
        ),
    ] = None,
) -> Comparison:  # fmt: skip
    """Train several recipes on the same text and budget, evaluate them identically, and write one table.

    The same command resumes a stopped comparison. Started again while the first one works, on this machine or on another one
    that shares the folder `--out`, it takes over some of the runs.

    Args:
        recipes: Recipe names or files, runs, patterns of these ('unilmv2-ablation-*', 'runs/*'), or table-6 for the rows of
            that table of the UniLMv2 paper. A run is trained anew, and named by its folder.
        budget: Budget of each run: steps=N, tokens=N of text, flops=N or time=SECONDS, which ends a run that is late.
        seeds: Number of runs of each recipe.
        out: Folder of the comparison; default: runs/compare.
        like: Take sizes, tokenizer, text and training settings of all runs from this recipe or run. The kind of the
            network (LSTM, two stacks, memory, shared layers, relative bias, norm) stays each recipe's; the table shows it.
        blimp: Folder or archive of BLiMP, to evaluate every model on.
        blimp_limit: Use only the first N pairs of each set.
        probes: Fine-tune and evaluate every model on a task, outside the budget and as its own recipe declares (use): task
            recipe, training records, evaluation records; may be repeated. Settings for all probes begin with probe, as in
            `--probe.finetuning.epochs 1`.
        probe_overrides: Settings of all probes by dotted name.
        quiet: Show no progress.
        overrides: Settings of all recipes by dotted name.

    Examples:
        unicloze compare unilmv2-ablation-ae unilmv2-ablation-ae-par gpt --like quickstart --budget flops=2e13
        unicloze compare unilmv2-ablation-ae unilmv2-ablation-par --like quickstart --budget steps=500 --seeds 3
            --data.corpus my_text/ --out runs/mine-compared
        unicloze compare unilmv2-ablation-ae gpt --like quickstart --budget steps=500
            --probe docstring-summary python-docs/train python-docs/dev --probe.finetuning.epochs 1
        unicloze compare table-6 --like quickstart --budget steps=500

    Raises:
        UsageError: A recipe, setting, probe or the budget is invalid, or the folder holds another comparison.
        UniclozeError: As for `pretrain`, or a record of a probe is invalid.
    """
    import sys

    if not recipes:
        example = "unicloze compare unilmv2-ablation-ae gpt --like quickstart --budget steps=500"
        raise UsageError(
            f"compare: name the recipes to compare, before any setting that takes a list, as in `{example}`."
        )
    if blimp_limit is not None and blimp is None:
        raise UsageError("compare: --blimp-limit needs --blimp.")
    if probe_overrides and not probes:
        raise UsageError(f"compare: --probe.{next(iter(probe_overrides))} needs --probe TASK TRAIN DEV.")
    tune_allocator()
    from unicloze.comparison.compare import compare_recipes
    from unicloze.comparison.probes import PREFIX, open_probe
    from unicloze.comparison.table import as_markdown, page
    from unicloze.files import write_file
    from unicloze.pretraining.budget import Budget
    from unicloze.recipes import recipes_of
    from unicloze.recipes.validation import given_settings

    given = given_settings(overrides)
    with options_begin_with(PREFIX):
        of_probes = given_settings(probe_overrides)
    if not probes and (of_use := next((key for key in given if key.startswith("use.")), None)):
        raise UsageError(f"option --{of_use} applies only to probes: name one with --probe, or leave it out.")
    device = str(given.get("training.device", "auto"))

    def judged_by_blimp(run: Path) -> dict[str, float | None]:
        from unicloze.evaluation.blimp import accuracies
        from unicloze.interop.read import open_model

        return accuracies(open_model(run, device), blimp or "", limit=blimp_limit, progress=not quiet)

    folder, compared, allowed = folder_at(out, RUNS / "compare"), recipes_of(recipes), Budget.parse(budget)
    evaluators = {} if blimp is None else {_check_blimp(blimp, blimp_limit): judged_by_blimp}
    opened = [open_probe(str(task), Path(train), Path(dev), of_probes, not quiet) for task, train, dev in probes]
    comparison = compare_recipes(
        compared, folder, budget=allowed, seeds=seeds, like=None if like is None else str(like),
        overrides=given, evaluators=evaluators, probes=opened, progress=not quiet,
        say=(lambda _: None) if quiet else (lambda line: print(line, file=sys.stderr)),
    )  # fmt: skip
    write_file(folder / "table.md", as_markdown(comparison))
    write_file(folder / "index.html", page(comparison))
    return comparison


def _check_blimp(path: PathLike, limit: int | None) -> str:
    """Read the pairs before anything is trained."""
    from unicloze.evaluation.blimp import read_pairs

    check_at_least(1, blimp_limit=limit)
    pairs = sum(len(one.pairs) for one in read_pairs(path))
    return f"blimp {Path(path).resolve()}, {pairs} pairs, limit {limit}"
