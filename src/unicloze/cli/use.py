"""The verbs that use a trained model."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from unicloze import terminal, verbs
from unicloze.cli.parser import (
    Parser,
    Verb,
    clean,
    device_option,
    json_option,
    model_option,
    precision_option,
    quiet_option,
    show,
)
from unicloze.errors import UsageError

ORDERS = "confidence", "left-to-right", "span"
"""Of `unicloze fill`; repeated from `unicloze.decoding.infill`, which takes torch to import."""
MODES = "pseudo", "chain", "both"
"""Of `unicloze evaluate`; repeated from `unicloze.evaluation.blimp`."""


def _fill_options(parser: Parser) -> None:
    model_option(parser)
    parser.add_argument(
        "--text", metavar="TEXT", type=clean, required=True, help='text with "[MASK]" where a token is missing'
    )
    parser.add_argument(
        "--top-k", metavar="K", type=int, default=5, help="candidates to show for each mask (default: 5)"
    )
    parser.add_argument(
        "--order",
        choices=ORDERS,
        help="fill one mask after the other by PAR in this order (default: all at once by AE)",
    )
    device_option(parser)
    json_option(parser)


def _fill(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    result = verbs.fill(
        model=options.model, text=options.text, top_k=options.top_k, order=options.order, device=options.device
    )
    show(options, asdict(result), terminal.fill_text(result))
    return 0


def _score_options(parser: Parser) -> None:
    model_option(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", metavar="TEXT", type=clean, help="text to score")
    source.add_argument("--file", metavar="FILE", help="texts: .txt with one a line, .jsonl, .parquet, also .gz, .zst")
    device_option(parser)
    json_option(parser)


def _score(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    scores = verbs.score(model=options.model, text=options.text, file=options.file, device=options.device)
    for note in dict.fromkeys(score.note for score in scores if score.note):
        terminal.say("note", note)
    show(options, [asdict(score) for score in scores], terminal.scores_text(scores))
    return 0


def _evaluate_options(parser: Parser) -> None:
    model_option(parser, required=False)
    parser.add_argument("--blimp", metavar="PATH", help="folder of BLiMP's .jsonl files, or an archive of them")
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="compare sentences by their pseudo-log-likelihood or by the chain rule (default: pseudo where the model "
        "defines it, else chain)",
    )
    parser.add_argument(
        "--limit", metavar="N", type=int, help="take only the first N pairs of each set, passages, questions or records"
    )
    parser.add_argument(
        "--filter",
        metavar="FILE|corpus",
        help="keep only pairs of known words: of a list, one a line, or those that occur twice or more in the corpus the "
        "model was trained on",
    )
    parser.add_argument(
        "--lambada", metavar="FILE", help="LAMBADA's passages: accuracy and perplexity of the last word"
    )
    parser.add_argument(
        "--stop-words", metavar="FILE|english", help="for --lambada: words that cannot be the last, one a line"
    )
    parser.add_argument("--cbt", metavar="FILE", help="file of the Children's Book Test: which word is missing")
    parser.add_argument("--prompt", metavar="FILE", help="prompt file in YAML or JSON: how a record becomes a prompt")
    parser.add_argument("--records", metavar="FILE", help="for --prompt: .jsonl, .tsv or .csv, also .gz")
    parser.add_argument("--examples", metavar="FILE", help="for --prompt: records to draw examples from")
    parser.add_argument("--shots", metavar="K", type=int, default=0, help="examples in each prompt (default: 0)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="names the draws of examples (default: 0)")
    parser.add_argument(
        "--metric", metavar="NAME", help="compare predictions with references; `list` lists the metrics"
    )
    parser.add_argument(
        "--task",
        metavar="NAME|FILE|DIR",
        help="compare predictions with the records of a task: its recipe, or a fine-tuning run",
    )
    parser.add_argument("--predictions", metavar="FILE", help="predictions: .txt, .tsv, .jsonl or .json, also .gz")
    parser.add_argument(
        "--references",
        metavar="FILE",
        nargs="+",
        default=[],
        help="references, or several files where each has several",
    )
    parser.add_argument(
        "--na-probabilities",
        metavar="FILE",
        help="for squad: how sure the model is that there is no answer, {id: number}",
    )
    parser.add_argument(
        "--option",
        dest="options",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="setting of the metric, such as profile=cnndm, tokenize=none or positive=yes; may be repeated",
    )
    device_option(parser)
    precision_option(parser)
    quiet_option(parser)
    json_option(parser)


def _evaluate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    if options.metric == "list":
        from unicloze.evaluation.metrics.registry import METRICS, described

        _refuse_beside_list(options, overrides)
        show(options, {name: metric.purpose for name, metric in METRICS.items()}, described())
        return 0
    result = verbs.evaluate(
        model=options.model,
        blimp=options.blimp,
        mode=options.mode,
        limit=options.limit,
        filter=options.filter,
        quiet=options.quiet,
        metric=options.metric,
        predictions=options.predictions,
        references=options.references,
        na_probabilities=options.na_probabilities,
        options=dict(map(_setting, options.options)),
        task=options.task,
        lambada=options.lambada,
        stop_words=options.stop_words,
        cbt=options.cbt,
        prompt=options.prompt,
        records=options.records,
        examples=options.examples,
        shots=options.shots,
        seed=options.seed,
        device=options.device,
        precision=options.precision,
        overrides=overrides,
    )
    show(options, result.to_dict(), str(result))
    return 0


def _refuse_beside_list(options: argparse.Namespace, overrides: dict[str, Any]) -> None:
    parser = Parser()
    _evaluate_options(parser)
    given = [name for name, value in vars(options).items() if value != parser.get_default(name) and name != "metric"]
    strange = next((name for name in [*given, *overrides] if name not in ("json", "debug", "help_settings")), None)
    if strange is not None:
        raise UsageError(f"evaluate: --metric list prints the metrics: leave --{strange.replace('_', '-')} out.")


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"evaluate: --option {text} is no setting: write it as NAME=VALUE, such as profile=cnndm.")
    return name, value


VERBS = {
    "fill": Verb(
        purpose="Fill the [MASK]s of a text: candidates for each at once, or one after the other in an order.",
        examples=(
            'unicloze fill --model runs/quickstart --text "Return a [MASK] of the given list."',
            'unicloze fill --model runs/quickstart --text "If the [MASK] does not [MASK], an error is raised."'
            " --order confidence --json",
        ),
        options=_fill_options,
        run=_fill,
    ),
    "score": Verb(
        purpose="Log-likelihood of a text by the chain rule of its steps, and its pseudo-log-likelihood.",
        examples=(
            'unicloze score --model runs/quickstart --text "Return a copy of the list."',
            "unicloze score --model runs/quickstart --file sentences.txt --json",
        ),
        options=_score_options,
        run=_score,
    ),
    "evaluate": Verb(
        purpose="A model on BLiMP, LAMBADA or by prompts, untrained; or predictions against references by a metric.",
        examples=(
            "unicloze evaluate --model runs/quickstart --blimp blimp.tar.gz --limit 20",
            "unicloze evaluate --model runs/quickstart --blimp blimp --mode both --filter words.txt --json",
            "unicloze evaluate --model runs/quickstart --blimp blimp --filter corpus",
            "unicloze evaluate --model runs/quickstart --lambada lambada.jsonl --stop-words english",
            "unicloze evaluate --model runs/quickstart --prompt lengths.yaml --records dev.jsonl --examples train.jsonl"
            " --shots 2",
            "unicloze evaluate --metric list",
            "unicloze evaluate --metric rouge --predictions summaries.txt --references gold.txt --option profile=xsum",
            "unicloze evaluate --metric squad --predictions answers.json --references dev-v2.0.json --json",
            "unicloze evaluate --task classification --predictions predictions.jsonl --references test.tsv",
        ),
        options=_evaluate_options,
        run=_evaluate,
        settings=("task.fields", "task.format"),
    ),
}  # fmt: skip
