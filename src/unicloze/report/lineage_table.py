"""The lineage of a run's data as HTML: sources, files, documents, duplicates, tokens, fingerprints."""

from __future__ import annotations

from html import escape
from typing import Any

from unicloze.report.history import Event, mapping, number, sequence

_MOST_FILES = 50
_NUMBER = ' class="number"'


def lineage_table(lineage: Event) -> str:
    """The origin of the data, from `lineage.json`; missing values are shown as a dash."""
    sources = [source for source in sequence(lineage.get("sources")) if isinstance(source, dict)]
    if not sources:
        return '<p class="nothing">The ledger has no lineage of the data.</p>'
    heads = _heads("source", "files", "documents", "duplicates", "part", "documents", "tokens", "bytes")
    table = (
        f'<table class="sources"><thead><tr>{heads}</tr></thead><tbody>{"".join(map(_rows, sources))}</tbody></table>'
    )
    tokenizer = mapping(lineage.get("tokenizer"))
    facts = [
        ("fingerprint of the data", _hash(lineage.get("fingerprint"))),
        (
            "fingerprint of the tokenizer",
            f"{_hash(tokenizer.get('fingerprint'))} ({count(tokenizer.get('vocab_size'))} ids)",
        ),
    ]
    rows = "".join(f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in facts)
    panel = f'<div class="panel scroll">{table}<table class="facts">{rows}</table></div>'
    return panel + "".join(map(_files, sources))


def count(value: Any) -> str:
    """A number with thousands separators, or a dash if it is not a number."""
    counted = number(value)
    return "-" if counted is None else f"{counted:,.0f}"


def _rows(source: Event) -> str:
    train, heldout = mapping(source.get("train")), mapping(source.get("heldout"))
    files = len(sequence(source.get("files")))
    name = f'<th scope="row" rowspan="2">{escape(str(source.get("corpus", source.get("name", "-"))))}</th>'
    shared = "".join(
        f'<td class="number" rowspan="2">{value}</td>'
        for value in (count(files), count(source.get("documents")), count(source.get("duplicates")))
    )
    return f"<tr>{name}{shared}{_part('train', train)}</tr><tr>{_part('held out', heldout)}</tr>"


def _part(name: str, part: Event) -> str:
    values = "".join(f'<td class="number">{count(part.get(key))}</td>' for key in ("documents", "tokens", "bytes"))
    return f"<td>{name}</td>{values}"


def _files(source: Event) -> str:
    files = [file for file in sequence(source.get("files")) if isinstance(file, dict)]
    rows = "".join(
        f'<tr><td class="hash">{escape(str(file.get("path")))}</td><td class="number">{count(file.get("size"))}</td>'
        f"<td>{_hash(file.get('hash'))}</td></tr>"
        for file in files[:_MOST_FILES]
    )
    rest = f'<p class="note">and {len(files) - _MOST_FILES:,} more</p>' if len(files) > _MOST_FILES else ""
    heads = _heads("file", "bytes", "BLAKE2")
    title = f"Files of {escape(str(source.get('corpus', source.get('name', '-'))))}"
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<details><summary>{title}</summary><div class="scroll">{table}</div>{rest}</details>'


def _heads(*names: str) -> str:
    """Column headings; those of numbers are right-aligned."""
    numbers = {"files", "documents", "duplicates", "tokens", "bytes"}
    return "".join(f'<th scope="col"{_NUMBER if name in numbers else ""}>{name}</th>' for name in names)


def _hash(value: Any) -> str:
    return f'<span class="hash">{escape(str(value)) if value else "-"}</span>'
