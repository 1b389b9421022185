"""What a model said against what is right, as inline SVG: a confusion matrix, a scatter plot, lengths."""

from __future__ import annotations

import html
import math
import statistics
from collections import Counter
from collections.abc import Sequence

from unicloze.report.blocks import score_row, score_table
from unicloze.report.curves import Axis, drawable, left_out, nice_ticks, short, tick

MOST_LABELS = 20
"""Rows of a confusion matrix; with more labels the most frequent confusions are listed."""
MOST_CONFUSIONS = 15
MOST_DOTS = 3000
_LETTER = 6.6
_LONGEST_NAME = 18


def confusion(predictions: Sequence[str], references: Sequence[str], labels: Sequence[str]) -> str:
    """How often each right label was predicted as each label, shaded by its share of the row.

    Args:
        predictions: The labels.
        references: The right ones.
        labels: The order of rows and columns; labels that are missing here come behind.
    """
    if not references:
        return '<p class="nothing">Nothing to compare.</p>'
    counts = Counter(zip(references, predictions, strict=True))
    names = list(dict.fromkeys([*labels, *sorted({label for pair in counts for label in pair})]))
    if len(names) > MOST_LABELS:
        return _confusions(counts)
    rows = Counter(references)
    longest = _LETTER * min(_LONGEST_NAME, max(map(len, names)))
    size = max(34.0, min(96.0, 460 / len(names)))
    height = size if len(names) > 4 else size * 0.7
    turned = longest > size - 6
    margin, top = 34 + longest, 30 + (longest * 0.75 if turned else 14)
    width = margin + size * len(names) + (max(16.0, longest * 0.75 - size / 2) if turned else 16)
    tall = top + height * len(names) + 12
    parts = [_svg(width, tall, "confusion matrix")]
    parts.append(
        f'<text class="axis-name" x="{margin + size * len(names) / 2:.1f}" y="13" text-anchor="middle">predicted</text>'
    )
    middle = top + height * len(names) / 2
    parts.append(
        f'<text class="axis-name" x="12" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 12 {middle:.1f})">'
        "gold</text>"
    )
    for number, name in enumerate(names):
        x, y = margin + size * (number + 0.5), top + height * (number + 0.5)
        shown = html.escape(name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}\u2026")
        how = f'transform="rotate(-45 {x:.1f} {top - 6:.1f})"' if turned else 'text-anchor="middle"'
        parts.append(f'<text class="name" x="{x:.1f}" y="{top - 6:.1f}" {how}>{shown}</text>')
        parts.append(f'<text class="name" x="{margin - 8:.1f}" y="{y:.1f}" dy=".35em" text-anchor="end">{shown}</text>')
    for row, right in enumerate(names):
        for column, said in enumerate(names):
            place = margin + size * column, top + height * row, size, height
            parts.append(_cell(place, right, said, counts[right, said], rows[right]))
    return "\n".join([*parts, "</svg>"])


def _cell(place: tuple[float, float, float, float], right: str, said: str, found: int, of: int) -> str:
    """A cell of a confusion matrix: its count, if there is room for it, on the share of its row."""
    x, y, width, height = place
    share = found / of if of else 0.0
    box = f'x="{x + 1:.1f}" y="{y + 1:.1f}" width="{width - 2:.1f}" height="{height - 2:.1f}" rx="4"'
    told = f"<title>{html.escape(right)} as {html.escape(said)}: {found:,} ({share:.1%})</title>"
    shade = 0.04 + 0.86 * share if found else 0.0
    parts = [f'<rect class="empty" {box}/><rect class="cell" {box} fill-opacity="{shade:.2f}">{told}</rect>']
    if found and width >= _LETTER * len(f"{found:,}") + 4:
        middle = f'x="{x + width / 2:.1f}" y="{y + height / 2:.1f}" dy=".35em" text-anchor="middle"'
        parts.append(f'<text class="count{" on" if share > 0.55 else ""}" {middle}>{found:,}</text>')
    return "".join(parts)


def _confusions(counts: Counter[tuple[str, str]]) -> str:
    """The most frequent errors as a table, where there are too many labels for a matrix."""
    wrong = [(pair, count) for pair, count in counts.most_common() if pair[0] != pair[1]][:MOST_CONFUSIONS]
    rows = "".join(
        f'<tr><td>{html.escape(right)}</td><td>{html.escape(said)}</td><td class="number">{count:,}</td></tr>'
        for (right, said), count in wrong
    )
    heads = '<th scope="col">gold</th><th scope="col">predicted</th><th scope="col" class="number">times</th>'
    caption = "<caption>The most frequent confusions</caption>"
    return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def scatter(predictions: Sequence[float], references: Sequence[float]) -> str:
    """Predicted quantities over right ones, with the line on which they are equal; what cannot be drawn is counted."""
    pairs = _drawable(predictions, references)
    note = left_out(len(references) - len(pairs))
    if not pairs:
        return f'<p class="nothing">Nothing to compare.</p>{note}'
    pairs = pairs[:: math.ceil(len(pairs) / MOST_DOTS)]
    low, high = min(min(pair) for pair in pairs), max(max(pair) for pair in pairs)
    pad = (high - low) * 0.04
    across, up = Axis(low - pad, high + pad, 52, 470), Axis(low - pad, high + pad, 420, 12)
    parts = [_svg(480, 462, "predicted over gold quantities")]
    for value in across.ticks(6):
        x, y = across.at(value), up.at(value)
        parts += [f'<path class="grid" d="M52 {y:.1f}H470"/>', tick(44, y, short(value), "end")]
        parts += [f'<path class="axis" d="M{x:.1f} 420v4"/>', tick(x, 433, short(value), "middle")]
    corners = "L".join(f"{across.at(value):.1f} {up.at(value):.1f}" for value in (across.low, across.high))
    parts += ['<path class="axis" d="M52 420H470"/>', f'<path class="equal" d="M{corners}"/>']
    parts += [f'<circle class="dot" cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="3"/>' for x, y in pairs]
    parts += [tick(261, 454, "gold", "middle")]
    parts += ['<text class="tick" x="12" y="216" text-anchor="middle" transform="rotate(-90 12 216)">predicted</text>']
    return "\n".join([*parts, "</svg>"]) + note


def _drawable(predictions: Sequence[float], references: Sequence[float]) -> list[tuple[float, float]]:
    """Right and predicted quantities of which both can be drawn."""
    pairs = zip(references, predictions, strict=True)
    return [(right, said) for right, said in pairs if drawable(right) and drawable(said)]


def lengths(predictions: Sequence[int], references: Sequence[int]) -> str:
    """How many predictions and references have how many words."""
    if not predictions:
        return '<p class="nothing">Nothing to compare.</p>'
    longest = max(*predictions, *references, 1)
    edges = nice_ticks(0, longest + 1, 14)
    step = max(1.0, edges[1] - edges[0]) if len(edges) > 1 else 1.0
    bins = math.floor(longest / step) + 1
    series = []
    for name, values in (("predicted", predictions), ("gold", references)):
        found = Counter(min(bins - 1, int(value // step)) for value in values)
        series.append((name, [found[number] for number in range(bins)]))
    most = max(count for _, counts in series for count in counts)
    across, up = Axis(0.0, bins * step, 52, 712), Axis(0.0, most * 1.05, 250, 12)
    parts = [_svg(720, 292, "lengths in words")]
    for value in up.ticks(4):
        y = up.at(value)
        parts += [f'<path class="grid" d="M52 {y:.1f}H712"/>', tick(44, y, short(value), "end")]
    wide = (across.at(step) - across.at(0.0) - 4) / 2
    for place, (name, counts) in enumerate(series):
        for number, count in enumerate(counts):
            x, y = across.at(number * step) + 2 + place * wide, up.at(count)
            first, last = number * step, (number + 1) * step - 1
            words = f"{first:g}" if last <= first else f"{first:g} to {last:g}"
            told = f"<title>{words} words: {count:,} {name}</title>"
            parts.append(
                f'<rect class="bar s-{name}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{250 - y:.1f}" rx="1.5">'
                f"{told}</rect>"
            )
    parts += [tick(across.at(value), 263, short(value), "middle") for value in across.ticks(12)]
    parts += ['<path class="axis" d="M52 250H712"/>', tick(382, 285, "words", "middle"), "</svg>"]
    legend = "".join(f'<span class="s-{name}">{name}</span>' for name, _ in series)
    return f'<div class="legend">{legend}</div>' + "\n".join(parts)


def by_class(predictions: Sequence[str], references: Sequence[str], labels: Sequence[str]) -> str:
    """Precision, recall and F1 of each class in percent, the most frequent ones if there are many."""
    counts, rows, columns = (
        Counter(zip(references, predictions, strict=True)),
        Counter(references),
        Counter(predictions),
    )
    names = sorted({*labels, *rows}, key=lambda label: -rows[label])[:MOST_LABELS]
    lines = []
    for label in sorted(names, key=[*labels, *names].index):
        hits = counts[label, label]
        shares = [
            hits / max(1, columns[label]),
            hits / max(1, rows[label]),
            2 * hits / max(1, columns[label] + rows[label]),
        ]
        lines.append(score_row([html.escape(label)], [f"{rows[label]:,}", *(f"{100 * share:.1f}" for share in shares)]))
    return score_table(["class", "count", "precision", "recall", "F1"], lines, names=1)


def deviations(predictions: Sequence[float], references: Sequence[float]) -> str:
    """How far predicted quantities are off, and where both lie; of those that can be drawn, the others are counted."""
    pairs = _drawable(predictions, references)
    note = left_out(len(references) - len(pairs))
    if not pairs:
        return f'<p class="nothing">Nothing to compare.</p>{note}'
    gold, predicted = zip(*pairs, strict=True)
    off = [said - right for right, said in pairs]
    lines = [
        ("mean absolute error", statistics.fmean(map(abs, off))),
        ("root of the mean squared error", math.hypot(*off) / math.sqrt(len(off))),
        ("mean error, predicted less gold", statistics.fmean(off)),
        ("mean predicted", statistics.fmean(predicted)),
        ("mean gold", statistics.fmean(gold)),
        ("deviation of the predicted", statistics.pstdev(predicted)),
        ("deviation of the gold", statistics.pstdev(gold)),
    ]
    return score_table(["", ""], [score_row([name], [f"{value:.4g}"]) for name, value in lines], names=1) + note


def _svg(width: float, height: float, title: str) -> str:
    """The start of a picture that is scaled down where there is no room, and never up."""
    return (
        f'<svg class="chart own-size" style="max-width:{width:.0f}px" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{html.escape(title)}">'
    )
