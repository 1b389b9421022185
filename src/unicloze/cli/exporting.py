"""The verb that writes models for other libraries."""

from __future__ import annotations

import argparse
from typing import Any

from unicloze import terminal, verbs
from unicloze.cli.parser import Parser, Verb


def _export_options(parser: Parser) -> None:
    parser.add_argument("model", metavar="DIR", help="run directory, checkpoint, or folder of another library's")
    parser.add_argument(
        "--to",
        metavar="FORMAT",
        required=True,
        help="bert (no relative position bias), mpnet (with one), roberta, electra or albert: stock classes of Transformers;"
        " unicloze: the classes of unicloze.hf, for every model",
    )
    parser.add_argument("--out", metavar="DIR", help="folder to write (default: DIR-FORMAT)")


def _export(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    print(terminal.exported_text(verbs.export(model=options.model, to=options.to, out=options.out)))
    return 0


VERBS = {
    "export": Verb(
        purpose="Write a model for Transformers and sentence-transformers; what was written is compared with it.",
        examples=(
            "unicloze export runs/quickstart --to mpnet",
            "unicloze export runs/quickstart --to unicloze --out exports/quickstart",
        ),
        options=_export_options,
        run=_export,
    ),
}
