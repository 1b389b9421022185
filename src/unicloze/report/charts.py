"""Charts of predictions against references as inline SVG: confusion matrix, scatter plot, lengths."""

from __future__ import annotations

import html
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from unicloze.report import svg
from unicloze.report.components import score_row, score_table
from unicloze.report.curves import Axis, drawable, left_out, nice_ticks, short, tick

MOST_LABELS = 20
"""Maximum rows of a confusion matrix; with more labels, the most frequent confusions are listed."""
MOST_CONFUSIONS = 15
MOST_DOTS = 3000
_LETTER = 6.6
_LONGEST_NAME = 18


def confusion(predictions: Sequence[str], references: Sequence[str], labels: Sequence[str]) -> str:
    """A confusion matrix with one row per reference label, shaded by the share of the row."""
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
    across, down = margin + size * len(names) / 2, top + height * len(names) / 2
    parts = [svg.text("predicted", across, 9, "axis-name", anchor="middle")]
    parts.append(svg.text("gold", 8, down, "axis-name", anchor="middle", turned=-90))
    for number, name in enumerate(names):
        x, y = margin + size * (number + 0.5), top + height * (number + 0.5)
        shown = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}\u2026"
        if turned:
            parts.append(svg.text(shown, x - 3, top - 9, "name", turned=-45))
        else:
            parts.append(svg.text(shown, x, top - 10, "name", anchor="middle"))
        parts.append(svg.text(shown, margin - 8, y, "name", anchor="end"))
    for row, right in enumerate(names):
        for column, said in enumerate(names):
            place = margin + size * column, top + height * row, size, height
            parts.append(_cell(place, right, said, counts[right, said], rows[right]))
    return _picture(parts, width, tall, "confusion matrix")


def _cell(place: tuple[float, float, float, float], right: str, said: str, found: int, of: int) -> str:
    """A cell of a confusion matrix, shaded by its share of the row, with its count if there is room."""
    x, y, width, height = place
    share = found / of if of else 0.0
    box = {"x": x + 1, "y": y + 1, "width": width - 2, "height": height - 2, "rx": 4}
    told = svg.element("title", svg.escape(f"{right} as {said}: {found:,} ({share:.1%})"))
    shade = 0.04 + 0.86 * share if found else 0.0
    cell = svg.element("rect", class_="empty", **box) + svg.element(
        "rect", told, class_="cell", **box, fill_opacity=shade
    )
    if found and width >= _LETTER * len(f"{found:,}") + 4:
        classes = "count on" if share > 0.55 else "count"
        cell += svg.text(f"{found:,}", x + width / 2, y + height / 2, classes, anchor="middle")
    return cell


def _confusions(counts: Counter[tuple[str, str]]) -> str:
    """A table of the most frequent errors, for too many labels for a matrix."""
    wrong = [(pair, count) for pair, count in counts.most_common() if pair[0] != pair[1]][:MOST_CONFUSIONS]
    rows = "".join(
        f'<tr><td>{html.escape(right)}</td><td>{html.escape(said)}</td><td class="number">{count:,}</td></tr>'
        for (right, said), count in wrong
    )
    heads = '<th scope="col">gold</th><th scope="col">predicted</th><th scope="col" class="number">times</th>'
    caption = "<caption>The most frequent confusions</caption>"
    return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def scatter(predictions: Sequence[float], references: Sequence[float]) -> str:
    """Predicted over reference quantities, with the line of equality; values that cannot be drawn are counted."""
    pairs = _drawable(predictions, references)
    note = left_out(len(references) - len(pairs))
    if not pairs:
        return f'<p class="nothing">Nothing to compare.</p>{note}'
    pairs = pairs[:: math.ceil(len(pairs) / MOST_DOTS)]
    low, high = min(min(pair) for pair in pairs), max(max(pair) for pair in pairs)
    pad = (high - low) * 0.04
    across, up = Axis(low - pad, high + pad, 52, 470), Axis(low - pad, high + pad, 420, 12)
    parts = []
    for value in across.ticks(6):
        x, y = across.at(value), up.at(value)
        parts += [svg.line([(52, y), (470, y)], "grid"), tick(44, y, short(value), "end")]
        parts += [svg.line([(x, 420), (x, 424)], "axis"), tick(x, 433, short(value), "middle")]
    equal = [(across.at(value), up.at(value)) for value in (across.low, across.high)]
    parts += [svg.line([(52, 420), (470, 420)], "axis"), svg.line(equal, "equal")]
    parts += [svg.element("circle", class_="dot", cx=across.at(x), cy=up.at(y), r=3) for x, y in pairs]
    parts += [tick(261, 454, "gold", "middle"), svg.text("predicted", 8, 216, "tick", anchor="middle", turned=-90)]
    return _picture(parts, 480, 462, "predicted over gold quantities") + note


def _drawable(predictions: Sequence[float], references: Sequence[float]) -> list[tuple[float, float]]:
    """Pairs of reference and predicted quantities that can both be drawn."""
    pairs = zip(references, predictions, strict=True)
    return [(right, said) for right, said in pairs if drawable(right) and drawable(said)]


def lengths(predictions: Sequence[int], references: Sequence[int]) -> str:
    """A histogram of the lengths of predictions and references in words."""
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
    parts = []
    for value in up.ticks(4):
        y = up.at(value)
        parts += [svg.line([(52, y), (712, y)], "grid"), tick(44, y, short(value), "end")]
    wide = (across.at(step) - across.at(0.0) - 4) / 2
    for place, (name, counts) in enumerate(series):
        for number, count in enumerate(counts):
            x, y = across.at(number * step) + 2 + place * wide, up.at(count)
            first, last = number * step, (number + 1) * step - 1
            words = f"{first:g}" if last <= first else f"{first:g} to {last:g}"
            told = svg.element("title", f"{words} words: {count:,} {name}")
            box = {"x": x, "y": y, "width": wide, "height": 250 - y, "rx": 1.5}
            parts.append(svg.element("rect", told, class_=f"bar s-{name}", **box))
    parts += [tick(across.at(value), 263, short(value), "middle") for value in across.ticks(12)]
    parts += [svg.line([(52, 250), (712, 250)], "axis"), tick(382, 285, "words", "middle")]
    legend = "".join(f'<span class="s-{name}">{name}</span>' for name, _ in series)
    return f'<div class="legend">{legend}</div>' + _picture(parts, 720, 292, "lengths in words")


def by_class(predictions: Sequence[str], references: Sequence[str], labels: Sequence[str]) -> str:
    """Precision, recall and F1 of each class in percent, or of the most frequent ones if there are many."""
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
    """Errors, means and deviations of predicted and reference quantities that can be drawn; the others are counted."""
    pairs = _drawable(predictions, references)
    note = left_out(len(references) - len(pairs))
    if not pairs:
        return f'<p class="nothing">Nothing to compare.</p>{note}'
    gold, predicted = zip(*pairs, strict=True)
    off = [said - right for right, said in pairs]
    lines = [
        ("mean absolute error", statistics.fmean(map(abs, off))),
        ("root mean squared error", math.hypot(*off) / math.sqrt(len(off))),
        ("mean error, predicted minus gold", statistics.fmean(off)),
        ("mean predicted", statistics.fmean(predicted)),
        ("mean gold", statistics.fmean(gold)),
        ("standard deviation, predicted", statistics.pstdev(predicted)),
        ("standard deviation, gold", statistics.pstdev(gold)),
    ]
    return score_table(["", ""], [score_row([name], [f"{value:.4g}"]) for name, value in lines], names=1) + note


def _picture(content: Iterable[str], width: float, height: float, title: str) -> str:
    """A picture that is scaled down if necessary, but never up."""
    style = f"max-width:{width:.0f}px"
    return svg.picture(content, title=title, width=width, height=height, class_="chart own-size", style=style)
