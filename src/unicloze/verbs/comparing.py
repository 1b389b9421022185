"""The verb that trains several recipes on the same text and budget, and compares them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unicloze.errors import UsageError
from unicloze.verbs.options import RUNS, Folder, Number, Option, Overrides, PathLike, Settings, folder_at

if TYPE_CHECKING:
    from unicloze.comparison.table import Comparison


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
            that table of the UniLMv2 paper.
        budget: Budget of each run: steps=N, tokens=N of text, flops=N or time=SECONDS, which ends a run that is late.
        seeds: Number of runs of each recipe.
        out: Folder of the comparison; default: runs/compare.
        like: Take sizes, tokenizer, text and training settings of all runs from this recipe. The kind of the network
            (LSTM, two stacks, memory, shared layers, relative bias, norm) stays that of each recipe; the table shows it.
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

    from unicloze.cores import tune_allocator

    if not recipes:
        raise UsageError(
            "compare: name the recipes to compare, before any setting that takes a list, as in `unicloze compare "
            "unilmv2-ablation-ae gpt --like quickstart --budget steps=500`."
        )
    if blimp_limit is not None and blimp is None:
        raise UsageError("compare: --blimp-limit needs --blimp.")
    if probe_overrides and not probes:
        raise UsageError(f"compare: --probe.{next(iter(probe_overrides))} needs --probe TASK TRAIN DEV.")
    tune_allocator()
    from unicloze.comparison.compare import compare_recipes
    from unicloze.comparison.page import page
    from unicloze.comparison.probes import PREFIX, open_probe
    from unicloze.comparison.table import as_markdown
    from unicloze.files import write_file
    from unicloze.pretraining.budget import Budget
    from unicloze.recipes.several import recipes_of
    from unicloze.recipes.unread_settings import given_settings

    given, of_probes = given_settings(overrides), given_settings(probe_overrides, PREFIX)
    if not probes and (of_use := next((key for key in given if key.startswith("use.")), None)):
        raise UsageError(f"option --{of_use} applies only to probes: name one with --probe, or leave it out.")
    device = str(given.get("training.device", "auto"))

    def judged_by_blimp(run: Path) -> dict[str, float | None]:
        from unicloze.evaluation.blimp import accuracies
        from unicloze.interop.read import open_model

        return accuracies(open_model(run, device), blimp or "", limit=blimp_limit, progress=not quiet)

    folder = folder_at(out, RUNS / "compare")
    comparison = compare_recipes(
        recipes_of(recipes),
        folder,
        budget=Budget.parse(budget),
        seeds=seeds,
        like=None if like is None else str(like),
        overrides=given,
        evaluators={} if blimp is None else {_check_blimp(blimp, blimp_limit): judged_by_blimp},
        probes=[open_probe(str(task), Path(train), Path(dev), of_probes, not quiet) for task, train, dev in probes],
        progress=not quiet,
        say=(lambda _: None) if quiet else (lambda line: print(line, file=sys.stderr)),
    )
    write_file(folder / "table.md", as_markdown(comparison))
    write_file(folder / "index.html", page(comparison))
    return comparison


def _check_blimp(path: PathLike, limit: int | None) -> str:
    """Read the pairs before anything is trained."""
    from unicloze.evaluation.blimp import read_pairs

    if limit is not None and limit < 1:
        raise UsageError(f"blimp-limit is {limit}: give 1 or more.")
    pairs = sum(len(one.pairs) for one in read_pairs(path))
    return f"blimp {Path(path).resolve()}, {pairs} pairs, limit {limit}"
