"""What people read at a terminal: results as text, warnings in one line, an error in one sentence."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import sys
import textwrap
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unicloze.errors import UniclozeError

if TYPE_CHECKING:
    from unicloze.comparison.results import Comparison
    from unicloze.decoding.infill import FillResult
    from unicloze.decoding.likelihood import TextScore
    from unicloze.evaluation.metrics.result import MetricResult
    from unicloze.finetuning.seeds import FinetuneSummary
    from unicloze.interop.export import ExportResult
    from unicloze.tasks.task import Prediction
    from unicloze.text.prepare import Prepared
    from unicloze.training.models import LoadedModel
    from unicloze.training.run import RunResult
    from unicloze.verbs import RecipeSummary

BUG = 70
"""Exit code of an error that is not the user's (EX_SOFTWARE)."""
FEW = 4
"""So many values of metrics stand in one line."""


def say(kind: str, sentence: str) -> None:
    """One line on stderr."""
    print(f"unicloze: {kind}: {sentence}", file=sys.stderr)


def prepared_text(prepared: Prepared) -> str:
    """A prepared corpus in one line."""
    counts = [
        f"{sum(source.num_documents for source in sources):,} documents and "
        f"{sum(source.num_tokens for source in sources):,} tokens {use}"
        for use, sources in (("to train on", prepared.train), ("held out", prepared.heldout))
    ]
    return f"{prepared.folder}: {', '.join(counts)}, vocabulary {len(prepared.tokenizer):,}"


def comparison_text(comparison: Comparison) -> str:
    """The table of a comparison."""
    from unicloze.comparison.table import as_text

    return as_text(comparison)


def run_text(result: RunResult) -> str:
    """What became of a run in one line."""
    if result.stopped_by:
        return f"{result.out}: stopped and saved at step {result.step:,}; the same command goes on from there"
    return f"{result.out}: trained to step {result.step:,}" + (f", {result.measured}" if result.measured else "")


def imported_text(loaded: LoadedModel) -> str:
    """What was imported, and what it can be asked."""
    model, recipe = loaded.recipe.model, loaded.recipe
    shape = f"{model.num_layers} layers of {model.hidden_size}, {len(loaded.tokenizer):,} tokens"
    return (
        f"{loaded.path}: {loaded.model.num_parameters():,} weights ({shape}, {model.max_positions:,} positions), "
        f"{recipe.provenance.place}\n{recipe.provenance.note}"
    )


def exported_text(result: ExportResult) -> str:
    """What was exported, and how far it is from the model."""
    checked = ", ".join(f"{kind} {value:.1e}" for kind, value in result.differences.items())
    lines = [f"{result.out}: {result.architecture}", f"loaded back, it differs from the model by at most: {checked}"]
    return "\n".join(lines + [f"  {each}" for each in result.said])


def fill_text(result: FillResult) -> str:
    """The filled text, and the candidates for each mask."""
    how = f"{result.target}, all at once" if result.order is None else f"{result.target}, order {result.order}"
    lines = [result.filled, "", f"candidates ({how}):"]
    for number, mask in enumerate(result.masks, start=1):
        told = zip(mask.readable, mask.top, strict=True)
        candidates = "  ".join(f"{readable} {probability:.1%}" for readable, (_, probability) in told)
        step = "" if result.order is None else f"step {mask.step + 1:<3} "
        lines.append(f"  [MASK] {number:<3} {step}{candidates}")
    return "\n".join([*lines, *(["", f"note: {result.note}"] if result.note else [])])


def scores_text(scores: Sequence[TextScore]) -> str:
    """Each text with its log-likelihoods, then all together."""
    from unicloze.decoding.likelihood import together

    shown = [*scores, together(scores)] if len(scores) > 1 else scores
    return "\n".join(map(str, shown))


def finetune_text(summary: FinetuneSummary) -> str:
    """What became of a fine-tuning, a line for each seed and one for all; where there are many values, below in tables."""
    lines, several = [], len(summary.runs) > 1
    for run in summary.runs:
        if run.stopped_by:
            lines.append(f"{run.out}: stopped and saved at step {run.step:,}; the same command goes on from there")
            continue
        said = {name: _with_errors(result) for name, result in run.scores.items()}
        values = _chosen_first(said, run.chosen_by)
        kept = f", best by {run.chosen_by} at step {run.best_step:,}" if values else ""
        lines.append(f"{run.out}: trained to step {run.step:,}{kept}{_in_line(values)}")
        if run.verdict:
            lines.append(f"  {run.verdict}")
        if len(values) > FEW and not several:
            lines += [textwrap.indent(str(result), "  ") for result in run.scores.values()]
    if several:
        spreads = {name: {key: str(one) for key, one in each.items()} for name, each in summary.scores.items()}
        values = _chosen_first(spreads, summary.runs[0].chosen_by)
        lines.append(f"{summary.out}: {len(summary.runs)} seeds{_in_line(values)}")
        for name, each in spreads.items() if len(values) > FEW else ():
            width = max(map(len, each), default=0)
            lines += [f"  {name}", *(f"    {key:<{width}}  {spread}" for key, spread in each.items())]
    return "\n".join(lines)


def _with_errors(result: MetricResult) -> dict[str, str]:
    return {
        key: f"{value:.2f}" + (f" (standard error {result.errors[key]:.2f})" if key in result.errors else "")
        for key, value in result.values.items()
    }


def _chosen_first(values: Mapping[str, Mapping[str, str]], chosen: str) -> list[str]:
    """The values of all metrics, before the others the one of the first metric that chose the checkpoint."""
    each = [f"{key} {value}" for of_metric in values.values() for key, value in of_metric.items()]
    of_first = list(next(iter(values.values()), {}))
    if chosen in of_first:
        each.insert(0, each.pop(of_first.index(chosen)))
    return each


def _in_line(values: Sequence[str]) -> str:
    """What the rest of a line says of values: all, or of many the first."""
    shown = values if len(values) <= FEW else values[:1]
    return f": {', '.join(shown)}" if shown else ""


def generated_text(prediction: Prediction) -> str:
    """What was generated for one source; if there are several texts, each with its score."""
    several = prediction.get("candidates", [])
    return "\n".join(f"{each['score']:9.3f}  {each['text']}" for each in several) or str(prediction["prediction"])


def recipes_text(rows: Sequence[RecipeSummary]) -> str:
    """The recipes as two tables: for `pretrain`, and for `finetune`."""
    of_tasks = [row for row in rows if row.parameters is None]
    tables = [[row for row in rows if row.parameters is not None], of_tasks]
    return "\n\n".join(
        _recipes_table(part, what) for part, what in zip(tables, ("objective", "task"), strict=True) if part
    )


def _recipes_table(rows: Sequence[RecipeSummary], what: str) -> str:
    table = [("recipe", what, "parameters" if what == "objective" else "", "values from")]
    table += [
        (
            row.name,
            row.objective,
            "" if row.parameters is None else f"{row.parameters:,}",
            f"{row.paper.partition(':')[0]}: {row.place}" if row.paper else row.place,
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        f"{name:<{widths[0]}}  {objective:<{widths[1]}}  {parameters:>{widths[2]}}  {place}"
        for name, objective, parameters, place in table
    )


def main_settings(keys: Sequence[str]) -> str:
    """Some dotted settings with their descriptions."""
    from unicloze.recipes.schema import KEYS

    lines = ["main settings of the recipe (--help-settings lists all):"]
    for key in keys:
        lines += _setting(key, "", KEYS[key].description)
    return "\n".join(lines)


def all_settings(recipe: str | None, overrides: dict[str, Any]) -> str:
    """Every dotted setting by section, with the value that a recipe and overrides give it, or else its default."""
    from unicloze.recipes import load_recipe
    from unicloze.recipes.schema import KEYS, SECTIONS

    chosen = load_recipe(recipe, overrides) if recipe is not None else None
    lines = [f"Settings of the recipe {recipe}:" if chosen else "Settings of a recipe, with their defaults:"]
    for section, settings in SECTIONS.items():
        if section == "provenance":
            continue
        lines += ["", f"{section}: {(settings.__doc__ or '').partition(chr(10))[0]}"]
        for key, known in KEYS.items():
            if key.startswith(f"{section}."):
                value = getattr(getattr(chosen, section), key.rpartition(".")[2]) if chosen else known.default
                lines += _setting(key, _spelled(value), known.description)
    return "\n".join(lines)


def _setting(key: str, value: str, description: str) -> list[str]:
    width, indent = min(120, shutil.get_terminal_size().columns), " " * 8
    return [
        f"  --{key} {value}".rstrip(),
        *textwrap.wrap(description, width, initial_indent=indent, subsequent_indent=indent),
    ]


def _spelled(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, list | tuple):
        return " ".join(map(_spelled, value)) or "[]"
    if value is None or isinstance(value, bool | dict):
        return json.dumps(value)
    return f'"{value}"' if " " in str(value) or value == "" else str(value)


class Terminated(KeyboardInterrupt):
    """SIGTERM came while nothing was being trained."""


def explain(error: BaseException) -> tuple[str, int]:
    """One sentence for an error, empty if nobody is there to read it, and the exit code."""
    if isinstance(error, UniclozeError):
        return str(error), error.exit_code
    if isinstance(error, Terminated):
        return "Stopped by SIGTERM.", 143
    if isinstance(error, KeyboardInterrupt):
        return "Stopped by Ctrl-C.", 130
    if isinstance(error, BrokenPipeError):
        return "", 141
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    ):
        return (
            "There is not enough memory: lower --training.micro_batch_size, --data.window or the size of the model "
            f"({_one_line(error) or 'out of memory'}).",
            1,
        )
    if isinstance(error, OSError):
        return _explain_os_error(error), 1
    if number := re.search(r"\(os error (\d+)\)", str(error)):  # of safetensors and tokenizers, written in Rust
        return _explain_os_error(OSError(int(number[1]), os.strerror(int(number[1])))), 1
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" in {os.path.basename(place[0].filename)}, line {place[0].lineno}" if place else ""
    return (
        f"This is a bug in unicloze: {type(error).__name__}: {_one_line(error)}{where}; run it again with --debug and "
        "report what it prints.",
        BUG,
    )


def _explain_os_error(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename is not None else ""
    reason = error.strerror or _one_line(error) or type(error).__name__
    cures = {
        errno.ENOSPC: "free some space and run it again; what was already written is still there",
        errno.EDQUOT: "free some space and run it again; what was already written is still there",
        errno.EACCES: "give yourself the permission, or name another place",
        errno.EPERM: "give yourself the permission, or name another place",
        errno.EROFS: "name another place",
        errno.ENOENT: "check the name",
        errno.EEXIST: "name another place",
        errno.ENOTDIR: "name another place",
        errno.EISDIR: "name a file",
        errno.EMFILE: "raise the limit of open files with `ulimit -n`",
    }
    cure = cures.get(error.errno or 0, "the system refused it; `--debug` shows where")
    return f"{place}{reason[:1].lower() if place else reason[:1]}{reason[1:]}: {cure}."


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


@contextlib.contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Show warnings as `unicloze: warning: ...` on stderr."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        say("warning", " ".join(str(message).split()))

    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = show
        yield


def give_up_stdout() -> None:
    """Nobody reads it, or its disk is full: do not let the interpreter try again when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
