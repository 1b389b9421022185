"""The verb that reads the checkpoints of other libraries."""

from __future__ import annotations

import argparse
from typing import Any

from unicloze import terminal, verbs
from unicloze.cli.parser import Parser, Verb


def _import_options(parser: Parser) -> None:
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="folder with a config.json, its weights and its tokenizer"
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="folder to write, for any --model and --init")
    parser.add_argument(
        "--allow",
        metavar="PATTERN",
        action="append",
        default=[],
        help="tensors that may be missing, of another shape or of no use, such as 'classifier.*'; may be given again",
    )
    parser.add_argument("--positions", metavar="N", type=int, help="repeat the rows of the position table up to N")
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="vocabulary to have from now on; shared tokens keep their rows"
    )
    parser.add_argument(
        "--pickle", action="store_true", help="read the tensors of a .bin, a format that can carry code (it is not run)"
    )


def _import(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    loaded = verbs.import_checkpoint(
        checkpoint=options.checkpoint,
        out=options.out,
        allow=options.allow,
        positions=options.positions,
        tokenizer=options.tokenizer,
        pickle=options.pickle,
    )
    print(terminal.imported_text(loaded))
    return 0


VERBS = {
    "import": Verb(
        purpose="Read a checkpoint of BERT, RoBERTa, MPNet, ELECTRA, ALBERT, DistilBERT, MiniLM or UniLM.",
        examples=(
            "unicloze import bert-base-uncased/ --out models/bert",
            "unicloze import bert-base-uncased/ --positions 1024 --tokenizer mine/tokenizer.json --out models/mine",
        ),
        options=_import_options,
        run=_import,
    ),
}
