"""The verbs from text to a trained model and its report."""

from __future__ import annotations

import argparse
from typing import Any

from unicloze import terminal, verbs
from unicloze.cli.parser import Parser, Verb, clean, json_option, quiet_option, recipe_option, show
from unicloze.errors import UsageError

PROBE_PREFIX = "probe."
"""Of settings of the probes of a comparison."""


def _prepare_options(parser: Parser) -> None:
    recipe_option(parser, verbs.DEFAULT_RECIPE)
    parser.add_argument("--out", metavar="DIR", help="folder to prepare in (default: runs/NAME/data)")
    quiet_option(parser)


def _prepare(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    prepared = verbs.prepare(recipe=options.recipe, out=options.out, quiet=options.quiet, overrides=overrides)
    print(terminal.prepared_text(prepared))
    return 0


def _pretrain_options(parser: Parser) -> None:
    parser.add_argument("--recipe", metavar="NAME|FILE", help="recipe (default: the one of the run in --out)")
    parser.add_argument("--out", metavar="DIR", help="directory of the run (default: runs/NAME)")
    parser.add_argument("--toy", action="store_true", help="two steps with a tiny model, to try a recipe")
    parser.add_argument(
        "--init",
        metavar="DIR",
        help="start from this run, checkpoint or folder of another library's, with its shape and its tokenizer",
    )
    parser.add_argument(
        "--new-tokenizer",
        action="store_true",
        help="with --init: train a tokenizer on the corpus; rows of shared tokens go with them",
    )
    quiet_option(parser)


def _pretrain(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    result = verbs.pretrain(
        recipe=options.recipe,
        out=options.out,
        toy=options.toy,
        quiet=options.quiet,
        overrides=overrides,
        init=options.init,
        new_tokenizer=options.new_tokenizer,
    )
    print(terminal.run_text(result))
    return 128 + result.stopped_by if result.stopped_by else 0


def _inspect_options(parser: Parser) -> None:
    recipe_option(parser, verbs.DEFAULT_RECIPE)
    parser.add_argument("--text", metavar="TEXT", type=clean, help="text to make the example of")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="names all random draws (default: 0)")
    parser.add_argument(
        "--out", metavar="DIR", help="run or prepared folder to take the tokenizer from (default: runs/NAME)"
    )
    parser.add_argument("--part", metavar="LABEL", help="part of the recipe's mixture (default: the first)")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print JSON instead of text")
    shown.add_argument(
        "--picture", metavar="FILE", help="draw it into a file that ends in .svg or .png, and print its name"
    )


def _inspect(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    if options.text is None:  # not the parser's business: --help-settings needs none
        raise UsageError('inspect: give a text, as in --text "A list is a mutable sequence."')
    view = verbs.inspect(
        text=options.text,
        recipe=options.recipe,
        seed=options.seed,
        picture=options.picture,
        out=options.out,
        part=options.part,
        overrides=overrides,
    )
    if options.picture:
        print(options.picture)
    else:
        show(options, view.to_dict(), str(view))
    return 0


def _compare_options(parser: Parser) -> None:
    parser.add_argument("recipes", metavar="RECIPE", nargs="*", help="names or files of recipes")
    parser.add_argument(
        "--budget", metavar="KIND=N", required=True, help="of each run: steps=, tokens=, flops= or time="
    )
    parser.add_argument("--seeds", metavar="N", type=int, default=2, help="runs of each recipe (default: 2)")
    parser.add_argument("--out", metavar="DIR", help="folder of the comparison (default: runs/compare)")
    parser.add_argument(
        "--like", metavar="RECIPE", help="take sizes, tokenizer, text and training from this recipe for all"
    )
    parser.add_argument("--blimp", metavar="PATH", help="folder or archive of BLiMP, to judge every model by")
    parser.add_argument("--blimp-limit", metavar="N", type=int, help="take only so many pairs of each set")
    parser.add_argument(
        "--probe",
        dest="probes",
        metavar=("TASK", "TRAIN", "DEV"),
        nargs=3,
        action="append",
        default=[],
        help="fine-tune every model on a task and measure it, may be given again; --probe.SECTION.SETTING VALUE for all",
    )
    quiet_option(parser)
    json_option(parser)
    parser.set_defaults(recipe=verbs.DEFAULT_RECIPE)


def _compare(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    if not options.recipes:
        raise UsageError(
            "compare: name the recipes to compare, before any setting that takes a list, as in `unicloze compare "
            "unilmv2-ablation-ae gpt --like quickstart --budget steps=500`."
        )
    if options.blimp_limit is not None and options.blimp is None:
        raise UsageError("compare: --blimp-limit needs --blimp.")
    of_probes = {key: value for key, value in overrides.items() if key.startswith(PROBE_PREFIX)}
    if of_probes and not options.probes:
        raise UsageError(f"compare: --{next(iter(of_probes))} needs --probe TASK TRAIN DEV.")
    comparison = verbs.compare(
        recipes=options.recipes,
        budget=options.budget,
        seeds=options.seeds,
        out=options.out,
        like=options.like,
        blimp=options.blimp,
        blimp_limit=options.blimp_limit,
        probes=options.probes,
        probe_overrides={key.removeprefix(PROBE_PREFIX): value for key, value in of_probes.items()},
        quiet=options.quiet,
        overrides={key: value for key, value in overrides.items() if key not in of_probes},
    )
    show(options, comparison.to_dict(), terminal.comparison_text(comparison))
    return 0


def _report_options(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="directory of a run")
    parser.add_argument("--out", metavar="FILE", help="file to write (default: RUN/report.html)")


def _report(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    print(verbs.report(run=options.run, out=options.out))
    return 0


VERBS = {
    "prepare": Verb(
        purpose="Turn a corpus into tokens on disk: deduplicated, held-out documents apart, with its tokenizer.",
        examples=(
            "unicloze prepare --recipe quickstart",
            "unicloze prepare --data.corpus my_text/ --tokenizer.vocab_size 16000 --out prepared",
        ),
        options=_prepare_options,
        run=_prepare,
        settings=(
            "data.corpus", "data.text_field", "data.heldout_share", "data.deduplicate",
            "tokenizer.path", "tokenizer.kind", "tokenizer.vocab_size", "tokenizer.lowercase",
        ),
    ),
    "pretrain": Verb(
        purpose="Pre-train a model, or go on with an interrupted run; Ctrl-C saves and stops.",
        examples=(
            "unicloze pretrain --recipe quickstart",
            "unicloze pretrain --recipe quickstart --data.corpus my_text/ --training.steps 5000 --out runs/mine",
            "unicloze pretrain --out runs/mine",
            "unicloze pretrain --recipe unilmv2-base --toy",
        ),
        options=_pretrain_options,
        run=_pretrain,
        settings=(
            "data.corpus", "data.prepared", "data.window", "tokenizer.vocab_size", "objective.targets",
            "model.hidden_size", "model.num_layers", "training.steps", "training.batch_size",
            "training.micro_batch_size", "training.learning_rate", "training.seed", "training.device",
        ),
    ),
    "inspect": Verb(
        purpose="Show one example as the model is fed it: its slots, who reads whom, what is predicted.",
        examples=(
            'unicloze inspect --recipe quickstart --text "A list is a mutable sequence."',
            'unicloze inspect --recipe unilmv2-base --text "one two three four five six" --seed 3 --json',
            'unicloze inspect --text "A list is a mutable sequence." --objective.mask_rate 0.5 --picture example.svg',
        ),
        options=_inspect_options,
        run=_inspect,
        settings=(
            "data.window", "data.segments", "objective.targets", "objective.masking", "objective.mask_rate",
            "objective.factorization", "objective.max_span", "tokenizer.path",
        ),
    ),
    "compare": Verb(
        purpose="Train several recipes at the same budget on the same text, measure them alike, write one table.",
        examples=(
            "unicloze compare unilmv2-ablation-ae unilmv2-ablation-ae-par gpt --like quickstart --budget flops=2e13",
            "unicloze compare unilmv2-ablation-ae unilmv2-ablation-par --like quickstart --budget steps=500 --seeds 3"
            " --data.corpus my_text/ --out runs/mine-compared",
            "unicloze compare unilmv2-ablation-ae gpt --like quickstart --budget steps=500"
            " --probe docstring-summary python-docs/train python-docs/dev --probe.finetuning.epochs 1",
        ),
        options=_compare_options,
        run=_compare,
        prefix=PROBE_PREFIX,
        settings=(
            "data.corpus", "data.window", "tokenizer.vocab_size", "model.hidden_size", "model.num_layers",
            "training.batch_size", "training.learning_rate", "training.evaluate_windows",
        ),
    ),
    "report": Verb(
        purpose="Write one page about a run: curves, speed, an example, samples, recipe, lineage of the data.",
        examples=("unicloze report runs/quickstart", "unicloze report runs/quickstart --out quickstart.html"),
        options=_report_options,
        run=_report,
    ),
}  # fmt: skip
