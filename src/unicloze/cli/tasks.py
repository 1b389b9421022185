"""The verbs that fine-tune a model on a task and use what comes of it."""

from __future__ import annotations

import argparse
import dataclasses
import json
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


def _finetune_options(parser: Parser) -> None:
    parser.add_argument("--task", metavar="NAME|FILE", default="classification", help="recipe of the task")
    parser.add_argument(
        "--model",
        metavar="DIR",
        help="directory of a run, one of its checkpoints, or a folder of another library's, to start from",
    )
    parser.add_argument(
        "--train",
        metavar="FILE",
        help="records to train on, a file or a folder of files: .jsonl, .tsv, .csv or the task's own, also .gz",
    )
    parser.add_argument("--dev", metavar="FILE", help="records to evaluate on and to choose the best checkpoint by")
    parser.add_argument("--out", metavar="DIR", help="directory of the run (default: runs/NAME)")
    parser.add_argument("--seeds", metavar="N", type=int, default=1, help="runs with seeds of their own (default: 1)")
    quiet_option(parser)
    json_option(parser)


def _finetune(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    for name in ("model", "train"):  # not the parser's business: --help-settings needs none
        if getattr(options, name) is None:
            raise UsageError(f"finetune: give --{name}; `unicloze finetune --help` shows how.")
    summary = verbs.finetune(
        task=options.task,
        model=options.model,
        train=options.train,
        dev=options.dev,
        out=options.out,
        seeds=options.seeds,
        quiet=options.quiet,
        overrides=overrides,
    )
    show(options, summary.to_dict(), terminal.finetune_text(summary))
    stopped = summary.runs[-1].stopped_by
    return 128 + stopped if stopped else 0


def _predict_options(parser: Parser) -> None:
    model_option(parser)
    parser.add_argument("--file", metavar="FILE", required=True, help="records; they need no labels")
    parser.add_argument("--out", metavar="FILE", help="file of predictions to write (default: print them)")
    parser.add_argument(
        "--format",
        choices=("jsonl", "json", "glue"),
        help="jsonl: an object a line; json: as official scripts read them; glue: a table, as GLUE's server does (default: "
        "as --out ends, .jsonl, .json or .tsv; printed jsonl)",
    )
    device_option(parser)
    precision_option(parser, "fp32; a task that generates: its decoding.precision")
    quiet_option(parser)


def _predict(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    predictions = verbs.predict(
        model=options.model,
        file=options.file,
        out=options.out,
        format=options.format,
        device=options.device,
        precision=options.precision,
        quiet=options.quiet,
        overrides=overrides,
    )
    if options.out:
        print(f"{options.out}: {len(predictions):,} predictions")
    else:
        from unicloze.finetuning.predict import PREDICTION_FORMATS

        print(PREDICTION_FORMATS[options.format or "jsonl"](predictions), end="")
    return 0


def _generate_options(parser: Parser) -> None:
    model_option(parser)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument(
        "--text", metavar="TEXT", type=clean, action="append",
        help="source, or the beginning of a text for a model without sources; once for each part of a source of several",
    )  # fmt: skip
    given.add_argument(
        "--file", metavar="FILE", help="file of sources: .jsonl, .tsv, .csv, or .txt with one a line, also .gz"
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="file to write, a JSON object a line; an interrupted command goes on with it (default: print)",
    )
    parser.add_argument(
        "--into", metavar="FIELD", help="write the records of --file with what is generated in this field"
    )
    parser.add_argument("--stream", action="store_true", help="print the text for --text while it is generated")
    device_option(parser)
    quiet_option(parser)
    json_option(parser)


def _generate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    if options.stream:
        if options.text is None or options.out or options.json or options.into:
            raise UsageError(
                "generate: --stream prints the text for --text: leave --file, --out, --into and --json out."
            )
        for piece in verbs.stream(model=options.model, text=options.text, device=options.device, overrides=overrides):
            print(piece, end="", flush=True)
        print()
        return 0
    found = verbs.generate(
        model=options.model,
        text=options.text,
        file=options.file,
        out=options.out,
        into=options.into,
        device=options.device,
        quiet=options.quiet or options.text is not None,
        overrides=overrides,
    )
    if options.out and not options.json:
        print(f"{options.out}: {len(found):,} texts")
    elif options.text is not None and options.into is None:
        show(options, found[0], terminal.generated_text(found[0]))
    else:
        show(options, found, "\n".join(json.dumps(each, ensure_ascii=False) for each in found))
    return 0


def _unanswerable_options(parser: Parser) -> None:
    parser.add_argument("--file", metavar="FILE", required=True, help="records with context, question and answers")
    parser.add_argument(
        "--out", metavar="FILE", required=True, help="file of both kinds to write, a JSON object a line"
    )
    parser.add_argument(
        "--share", metavar="X", type=float, default=0.8, help="unanswerable questions for each record (default: 0.8)"
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="names the draws (default: 0)")
    json_option(parser)


def _unanswerable(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    written = verbs.unanswerable(
        file=options.file, out=options.out, share=options.share, seed=options.seed, overrides=overrides
    )
    text = (
        f"{options.out}: {written.answerable:,} questions with an answer, {written.unanswerable:,} without; "
        f"{written.dropped:,} records left out, without a question or an answer in their passage"
    )
    show(options, dataclasses.asdict(written), text)
    return 0


VERBS = {
    "finetune": Verb(
        purpose="Fine-tune a trained model on labelled records, or go on with an interrupted run; the best is kept.",
        examples=(
            "unicloze finetune --task classification --model runs/quickstart --train train.jsonl --dev dev.jsonl",
            "unicloze finetune --task regression --model runs/quickstart --train train.tsv --dev dev.tsv --seeds 5"
            " --training.learning_rate 1e-4 --out runs/mine",
        ),
        options=_finetune_options,
        run=_finetune,
        settings=(
            "task.fields", "task.labels", "task.metrics", "task.max_length", "task.head", "finetuning.epochs",
            "finetuning.patience", "training.batch_size", "training.learning_rate", "training.seed", "model.dropout",
        ),
    ),
    "predict": Verb(
        purpose="Predictions of a fine-tuned model for a file of records.",
        examples=("unicloze predict --model runs/classification --file test.jsonl --out predictions.jsonl",),
        options=_predict_options,
        run=_predict,
        settings=("task.fields", "task.format"),
    ),
    "generate": Verb(
        purpose="Texts that a model generates for sources it was fine-tuned on, or that go on with a prompt.",
        examples=(
            'unicloze generate --model runs/quickstart --text "Return a copy of the" --decoding.beams 5',
            'unicloze generate --model runs/quickstart --text "If the" --stream --decoding.sample true'
            " --decoding.top_p 0.9",
            "unicloze generate --model runs/quickstart --file sentences.txt --out generated.jsonl",
            "unicloze generate --model runs/quickstart --file sentences.txt --into continued --out continued.jsonl",
        ),
        options=_generate_options,
        run=_generate,
        settings=(
            "decoding.beams", "decoding.max_length", "decoding.min_length", "decoding.length_penalty",
            "decoding.no_repeat_ngram", "decoding.sample", "decoding.temperature", "decoding.top_k", "decoding.top_p",
            "decoding.num_results", "decoding.parallel", "decoding.seed", "decoding.precision", "task.fields",
        ),
    ),
    "unanswerable": Verb(
        purpose="Questions with their answers and, made of them, questions without one, to learn extraction from.",
        examples=("unicloze unanswerable --file made.jsonl --out made-train.jsonl",),
        options=_unanswerable_options,
        run=_unanswerable,
        settings=("task.fields", "task.format"),
    ),
}  # fmt: skip
