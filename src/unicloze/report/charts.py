"""Charts as inline SVG, coloured by the page's style sheet: curves over steps, and predictions against references."""

from __future__ import annotations

import itertools
import math
import os
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from markupsafe import Markup

from unicloze.errors import UniclozeError
from unicloze.example import predicts_tokens
from unicloze.report.frame import part, render
from unicloze.report.history import History, Points
from unicloze.report.svg import cut

LARGEST, SMALLEST = 1e300, 1e-300
"""Larger magnitudes would overflow an axis and are not drawn; smaller ones are treated as 0."""
_MOST_POINTS = 600
_LOG_FROM = 4.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 74.0, 14.0, 40.0
_LABELS_APART = 15.0
_LABELS = 0.6
"""Largest share of the width for the labels at the ends of curves."""
_FEW = 60
_LETTER = 8.8
_SMOOTH_FROM = 40


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve."""

    name: str  # what it shows
    points: Points  # (x, y) by ascending x; values that cannot be drawn are left out and counted
    smooth: bool = False  # draw a running mean over the pale curve, if it has enough points
    style: str | None = None  # style class of its colour; default: that of its target
    labelled: bool = True  # whether to write its name at its end, before its last value

    @property
    def classes(self) -> str:
        """Style class of the curve."""
        return self.style or series_class(self.name)


class Picture(Markup):
    """A chart with its own styles, which notebooks show."""

    def _repr_svg_(self) -> str:
        return str(self)


def series_class(name: str) -> str:
    """Style class of a series, by its target: `s-ae` for `ae` and for `one part.ae`."""
    return "s-" + re.sub(r"[^\w-]", "-", name.rpartition(".")[2])


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    size: tuple[float, float] = (560, 300),
    logarithmic: bool = False,
    mark: tuple[float, str] | None = None,
    over: str = "step",
    styled: bool = False,
) -> Markup:
    """Draw curves over steps or another cost, each labelled at its end with its name and last value.

    `logarithmic` axes of values are used where these differ enough. With `styled`, the chart needs no page around it, shows
    its title, and its axis of costs other than steps is logarithmic too.
    """
    finite = [[(x, y) for x, y in line.points if drawable(y)] for line in lines]
    values = [y for points in finite for _, y in points]
    note = part("left_out", sum(len(line.points) for line in lines) - len(values))
    if not values:
        return part("nothing", "Nothing measured yet.") + note
    steps = [x for points in finite for x, _ in points]
    logarithmic = logarithmic and min(values) > SMALLEST and max(values) / min(values) >= _LOG_FROM
    drawn = []
    for line, points in zip(lines, finite, strict=True):
        mean = running_mean(points) if line.smooth and len(points) >= _SMOOTH_FROM else None
        drawn += [(line, points, mean, (mean or points)[-1][1])] if points else []
    width, height = size
    most = int((width - _LEFT) * _LABELS / _LETTER)
    labels = []
    for line, *_, last in drawn:
        name, value = line.name * line.labelled, short(last)
        labels.append(f"{cut(name, most - 1 - len(value), kept=0.5)} {value}".strip())
    right = width - max(_RIGHT, 12 + _LETTER * max(map(len, labels)))
    costs = styled and over != "step"
    x = Axis(min(steps) if costs else min(0.0, *steps), max(steps), _LEFT, right, logarithmic=costs)
    low, high, pad = min(values), max(values), (max(values) - min(values)) * 0.06
    padded = (low - pad if low - pad >= 0 or low < 0 else 0.0), high + pad
    ends_of = (low / 1.15, high * 1.15) if logarithmic else padded
    y = Axis(*ends_of, height - _BOTTOM, _TOP + 30 * styled, logarithmic=logarithmic)
    curves, ends = [], []
    for (line, points, smoothed, last), label in zip(drawn, labels, strict=True):
        paths = [("line pale" if smoothed else "line", _places(thin(points), x, y))]
        if smoothed:
            paths.append(("line", _places(thin(smoothed), x, y)))
        dotted = [] if smoothed or len(points) > _FEW else points
        dots = [(x.at(a), y.at(b), f"{line.name}, {over} {a:,g}: {b:,.4g}") for a, b in dotted]
        curves.append({"classes": line.classes, "paths": paths, "dots": dots})
        ends.append((y.at(last), label, line.classes))
    ends.sort()
    rules = []
    if mark is not None:
        at, left = x.at(mark[0]), mark[0] > (x.low + x.high) / 2
        beside = (at - 5, y.start - 9) if left else (at + 5, y.start - 9)
        rules.append(("mark", [(at, y.end), (at, y.start)], mark[1], beside, "end" if left else "start"))
    places = _apart([place for place, *_ in ends], y.start)
    chart = _chart(
        x, y, title, width, height, over, styled=styled, rules=rules, curves=curves,
        ends=[(place, *rest) for place, (_, *rest) in zip(places, ends, strict=True)],
    )  # fmt: skip
    return chart + note


def _chart(x: Axis, y: Axis, title: str, width: float, height: float, over: str, **marks: Any) -> Markup:
    """Axes with marks on them; see the template."""
    nothing = {"up": "", "rules": (), "curves": (), "dots": (), "bars": (), "ends": ()}
    usual = {"styled": False, "own_size": False}
    return render(
        "report/templates/chart.svg", x=x, y=y, title=title, width=width, height=height, over=over,
        **(nothing | usual | marks),
    )  # fmt: skip


def drawable(value: float) -> bool:
    """Whether a chart can show a value."""
    return abs(value) <= LARGEST


def thin(points: Points) -> Points:
    """At most 600 points that preserve all peaks: the lowest and highest of each stretch, and the last."""
    if len(points) <= _MOST_POINTS:
        return points
    stretches = _MOST_POINTS // 2 - 1
    kept = []
    for stretch in range(stretches):
        members = points[len(points) * stretch // stretches : len(points) * (stretch + 1) // stretches]
        kept += sorted({min(members, key=itemgetter(1)), max(members, key=itemgetter(1))})
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def running_mean(points: Points) -> Points:
    """The mean over a centred window of about a thirtieth of the points, smaller towards the ends."""
    reach = max(2, len(points) // 60)
    width, values = 2 * reach + 1, [y for _, y in points]
    # Sums within blocks, which are only added: subtracting a peak from a total cumulative sum would be inexact.
    blocks = [values[first : first + width] for first in range(0, len(values), width)]
    up_to = [total for block in blocks for total in itertools.accumulate(block)]
    onwards = [total for block in blocks for total in [*itertools.accumulate(block[::-1])][::-1]]
    smoothed = []
    for i, (x, _) in enumerate(points):
        near = min(reach, i, len(points) - 1 - i)
        first, last = i - near, i + near
        inner = up_to[last] + (onwards[first] if first % width else 0.0)  # if the window is as wide as a block
        total = inner if near == reach else sum(values[first : last + 1])
        smoothed.append((x, total / (2 * near + 1)))
    return smoothed


def short(value: float) -> str:
    """A number in short form for an axis: 0.003, 12.5, 1,500, 20k, 1.5M."""
    if math.isinf(value):
        return "∞"
    if not 1000 <= abs(value) < 1e4:
        value = float(f"{value:.3g}")
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def apart(values: Sequence[float]) -> list[str]:
    """`short` labels, with more digits if necessary to distinguish all values."""
    labels = [short(value) for value in values]
    digits = 4
    while len(set(labels)) < len(values) and digits < 12:
        labels = [f"{value:.{digits}g}" for value in values]
        digits += 1
    return labels


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """About `most` round numbers from `low` to `high`, 1, 2 or 5 times a power of ten apart."""
    span = high - low
    rough = span / max(1, most)
    exponent = math.floor(math.log10(rough))
    power = 10.0**exponent
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, max(12, -exponent)) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from `low` to `high` for a logarithmic axis; those of a linear axis if there are too few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        ticks = [factor * 10.0**power for power in powers for factor in factors]
        inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(inside) >= 3:
            return inside[:: math.ceil(len(inside) / (2 * most))]
    return nice_ticks(low, high, most)


class Axis:
    """Maps values to positions.

    Args:
        low: Lowest value.
        high: Highest value.
        start: Position of the lowest value, in SVG units.
        end: Position of the highest value, in SVG units.
        logarithmic: Use a logarithmic scale.
    """

    def __init__(self, low: float, high: float, start: float, end: float, *, logarithmic: bool = False) -> None:
        if high - low < SMALLEST:
            around = abs(low) / 2 if abs(low) > SMALLEST else 1.0
            low, high = (low / 2, high * 2) if logarithmic else (low - around, high + around)
        self.low, self.high, self.start, self.end, self.logarithmic = low, high, start, end, logarithmic

    def at(self, value: float) -> float:
        """Position of a value."""
        low, high, value = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Positions and labels of about `most` round values on the axis."""
        values = (log_ticks if self.logarithmic else nice_ticks)(self.low, self.high, most)
        return [(self.at(value), label) for value, label in zip(values, apart(values), strict=True)]


def _places(points: Points, x: Axis, y: Axis) -> Points:
    return [(x.at(a), y.at(b)) for a, b in points]


def _apart(places: list[float], floor: float) -> list[float]:
    """Sorted positions moved apart so that labels do not overlap, none below `floor`."""
    down = [*itertools.accumulate(places, lambda last, place: max(place, last + _LABELS_APART))]
    below = floor + _LABELS_APART
    up = [*itertools.accumulate([below, *reversed(down)], lambda limit, place: min(place, limit - _LABELS_APART))]
    return up[:0:-1]


MOST_LABELS = 20
"""Maximum rows of a confusion matrix; with more labels, the most frequent confusions are listed."""
MOST_CONFUSIONS = 15
MOST_DOTS = 3000


def confusion(predictions: Sequence[str], references: Sequence[str], labels: Sequence[str]) -> Markup:
    """A confusion matrix with one row per reference label, shaded by the share of the row."""
    if not references:
        return part("nothing", "Nothing to compare.")
    counts, rows = Counter(zip(references, predictions, strict=True)), Counter(references)
    names = list(dict.fromkeys([*labels, *sorted({label for pair in counts for label in pair})]))
    if len(names) > MOST_LABELS:
        wrong = [(*pair, f"{count:,}") for pair, count in counts.most_common() if pair[0] != pair[1]]
        heads, caption = ["gold", "predicted", "times"], "The most frequent confusions"
        return part("table", heads, wrong[:MOST_CONFUSIONS], 2, None, caption)
    pairs = [(gold, [(said, counts[gold, said]) for said in names]) for gold in names]
    return part("matrix", names, [(gold, [(*one, one[1] / max(1, rows[gold])) for one in row]) for gold, row in pairs])


def by_class(predictions: Sequence[str], references: Sequence[str], labels: Sequence[str]) -> Markup:
    """Precision, recall and F1 of each class in percent, or of the most frequent ones if there are many."""
    hits = Counter(said for said, gold in zip(predictions, references, strict=True) if said == gold)
    rows, columns = Counter(references), Counter(predictions)
    names = sorted({*labels, *rows}, key=lambda label: -rows[label])[:MOST_LABELS]
    lines = []
    for label in sorted(names, key=[*labels, *names].index):
        sizes = columns[label], rows[label], (columns[label] + rows[label]) / 2
        shares = [f"{100 * hits[label] / max(1, size):.1f}" for size in sizes]
        lines.append([label, f"{rows[label]:,}", *shares])
    return part("table", ["class", "count", "precision", "recall", "F1"], lines)


def scatter(predictions: Sequence[float], references: Sequence[float]) -> Markup:
    """Predicted over reference quantities, with the line of equality; values that cannot be drawn are counted."""
    pairs, note = _drawable(predictions, references)
    if not pairs:
        return part("nothing", "Nothing to compare.") + note
    pairs = pairs[:: math.ceil(len(pairs) / MOST_DOTS)]
    low, high = min(map(min, pairs)), max(map(max, pairs))
    pad = (high - low) * 0.04
    x, y = Axis(low - pad, high + pad, 52, 470), Axis(low - pad, high + pad, 420, 12)
    equal = [(x.at(value), y.at(value)) for value in (x.low, x.high)]
    title = "predicted over gold quantities"
    chart = _chart(
        x, y, title, 480, 462, "gold", up="predicted", own_size=True, rules=[("equal", equal, "", (), "")],
        dots=_places(pairs, x, y),
    )  # fmt: skip
    return chart + note


def _drawable(predictions: Sequence[float], references: Sequence[float]) -> tuple[Points, Markup]:
    """Pairs of reference and predicted quantities that can both be drawn, and a note on the others."""
    pairs = [pair for pair in zip(references, predictions, strict=True) if all(map(drawable, pair))]
    return pairs, part("left_out", len(references) - len(pairs))


def deviations(predictions: Sequence[float], references: Sequence[float]) -> Markup:
    """Errors, means and deviations of predicted and reference quantities that can be drawn; the others are counted."""
    pairs, note = _drawable(predictions, references)
    if not pairs:
        return part("nothing", "Nothing to compare.") + note
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
    return part("table", ["", ""], [(name, f"{value:.4g}") for name, value in lines]) + note


def lengths(predictions: Sequence[int], references: Sequence[int]) -> Markup:
    """A histogram of the lengths of predictions and references in words."""
    longest = max(*predictions, *references, 1)
    edges = nice_ticks(0, longest + 1, 14)
    step = max(1.0, edges[1] - edges[0]) if len(edges) > 1 else 1.0
    bins = math.floor(longest / step) + 1
    sides = {"predicted": predictions, "gold": references}
    series = {name: Counter(min(bins - 1, int(one // step)) for one in values) for name, values in sides.items()}
    x, y = Axis(0.0, bins * step, 52, 712), Axis(0.0, 1.05 * max(max(c.values()) for c in series.values()), 250, 12)
    wide, bars = (x.at(step) - x.at(0.0) - 4) / 2, []
    for place, (name, counts) in enumerate(series.items()):
        for number in range(bins):
            first, last = number * step, (number + 1) * step - 1
            words = f"{first:g}" if last <= first else f"{first:g} to {last:g}"
            told = f"{words} words: {counts[number]:,} {name}"
            bars.append((f"s-{name}", x.at(first) + 2 + place * wide, y.at(counts[number]), wide, told))
    legend = part("legend", [(f"s-{name}", name) for name in series])
    return legend + _chart(x, y, "lengths in words", 720, 292, "words", own_size=True, bars=bars)


def draw_learning(run: str | os.PathLike[str]) -> Picture:
    """The held-out perplexity of each target over the steps of a finished or unfinished run, on a logarithmic axis."""
    history = History.read(Path(run))
    names = filter(predicts_tokens, history.evaluated)
    lines = [Line(name=name, points=history.curve("perplexity", name, evaluated=True)) for name in names]
    if not any(drawable(y) for line in lines for _, y in line.points):
        raise UniclozeError(f"{run} has no held-out perplexity to draw: it has not been evaluated yet.")
    return Picture(line_chart(lines, title=f"{history.part.capitalize()} perplexity", logarithmic=True, styled=True))
