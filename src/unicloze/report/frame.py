"""Fills the templates of pages and pictures: static HTML and SVG without scripts, with all text escaped."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unicloze.errors import UniclozeError, signal_name
from unicloze.files import begins_like
from unicloze.progress import counted
from unicloze.report.history import History, moment, number
from unicloze.training.ledger import mapping

PAGE_STYLE = "report/templates/page.css"
"""The style sheet of all pages, in the package `unicloze`."""
_BEGINNING = (
    rb'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="unicloze">'
)
_CONTROLS = dict.fromkeys([*range(9), 11, 12, *range(14, 32)], " ")
"""Control characters that XML does not allow."""

Card = tuple[str, str, str] | tuple[str, str, str, str]
"""Name, value and explanation of a figure at the top of a page; and the style of its series."""


@functools.cache
def environment() -> Environment:
    """The templates in the package `unicloze`."""
    made = Environment(
        loader=PackageLoader("unicloze", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=lambda value: value.translate(_CONTROLS) if isinstance(value, str) else value,
    )  # fmt: skip
    made.filters.update(count=count, digits=digits, path=path)
    usual = {"cards": (), "first_seed": "", "footer": "", "lines": (), "links": (), "more_seeds": 0, "small": ()}
    made.globals.update(usual, refresh=None, verdict="")
    return made


def render(template: str, **values: Any) -> Markup:
    """A template with its values."""
    return Markup(environment().get_template(template).render(values))


def part(name: str, *values: Any) -> Markup:
    """A macro of `parts.html` with its values."""
    macro = getattr(environment().get_template("report/templates/parts.html").module, name)
    return Markup(macro(*values))


def check_page(page: Path) -> None:
    """Refuse to replace a file that is not a page written by unicloze."""
    if page.is_file() and not begins_like(page, _BEGINNING):
        cure = "move it away, or give another --out."
        raise UniclozeError(f"{page} is not a page of unicloze and would be replaced: {cure}")


def digits(value: float) -> str:
    """A number with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def path(points: list[tuple[float, float]]) -> str:
    """A line through some points, for SVG."""
    return "M" + "L".join(f"{digits(x)} {digits(y)}" for x, y in points)


def count(value: Any) -> str:
    """A number with thousands separators, or a dash if it is not a number."""
    counted = number(value)
    return "-" if counted is None else f"{counted:,.0f}"


def head_of(history: History) -> dict[str, Any]:
    """What the pages of all runs show of one: its name, status, origin and recipe, and what it was trained with."""
    provenance, name = mapping(history.recipe.get("provenance")), history.recipe.get("name")
    origin = [f"recipe {name}" if name else None, *(provenance.get(key) for key in ("paper", "place"))]
    versions = ", ".join(f"{name} {version}" for name, version in mapping(history.start.get("versions")).items())
    when = moment(history.last.get("time"))
    day = f"Last entry of the ledger: {datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M} UTC. " if when else ""
    return {
        "name": heading_of(history.run),
        "status": status_of(history),
        "verdict": history.verdict,
        "subtitle": ". ".join(str(part) for part in origin if part),
        "footer": f"{day}Trained with {versions}." if versions else day,
        "note": str(provenance.get("note") or ""),
        "settings": yaml.safe_dump(dict(history.recipe), sort_keys=False, allow_unicode=True, width=110),
    }


def heading_of(run: Path) -> str:
    """What the page of a run is headed by: the name of its folder; of one of several seeds behind that of them all."""
    place = run.resolve()
    return f"{place.parent.name}, {place.name}" if place.name.startswith("seed-") else place.name


def cards_of_the_process(history: History) -> list[Card]:
    """Running time, device, precision and threads."""
    starts = f"over {history.processes} starts"
    once = "from the first start to the last entry"
    start, threads = history.start, history.start.get("threads")
    parts = start.get("precision"), counted(threads, "thread") if isinstance(threads, int) and threads else None
    return [
        ("time", duration(history.seconds), starts if history.processes > 1 else once),
        ("device", str(start.get("device", "-")), ", ".join(str(part) for part in parts if part)),
    ]


def duration(seconds: float) -> str:
    """A duration in words, such as 3 min 5 s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    short = f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
    return f"{hours:,} h {minutes} min" if hours else short


def status_of(history: History) -> str:
    """The status of the run, in a few words."""
    last, planned = history.last, history.planned_steps
    if last.get("event") == "failed":
        return f"failed after step {history.step:,}: {last.get('message')}"
    if last.get("event") == "end" or (planned is not None and history.step >= planned):
        return "finished"
    if last.get("event") == "stop":
        return f"stopped by {signal_name(last.get('signal'))} after step {history.step:,}"
    return "still running, or killed"
