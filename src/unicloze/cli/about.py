"""The verbs that tell what there is."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from unicloze import terminal, verbs
from unicloze.cli.parser import Verb, json_option, show


def _recipes(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    rows = verbs.recipes()
    show(options, [asdict(row) for row in rows], terminal.recipes_text(rows))
    return 0


def _doctor(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    examination = verbs.doctor()
    show(options, examination.to_dict(), str(examination))
    return 0 if examination.healthy else 1


VERBS = {
    "recipes": Verb(
        purpose="List the recipes: what they train and where in the paper their values stand.",
        examples=("unicloze recipes", "unicloze recipes --json"),
        options=json_option,
        run=_recipes,
    ),
    "doctor": Verb(
        purpose="Look at this machine: what a run would use of it, and the cure for what is missing.",
        examples=("unicloze doctor", "unicloze doctor --json"),
        options=json_option,
        run=_doctor,
    ),
}  # fmt: skip
