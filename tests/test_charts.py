"""Charts: thinning of many points, ticks and labels, values that cannot be shown, predictions against references."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from report_toys import Page, event, make_run, start
from unicloze.errors import UniclozeError
from unicloze.report.charts import (
    Line,
    apart,
    by_class,
    confusion,
    deviations,
    draw_learning,
    lengths,
    line_chart,
    log_ticks,
    nice_ticks,
    running_mean,
    scatter,
    short,
    thin,
)  # fmt: skip

SVG = "{http://www.w3.org/2000/svg}"


def test_thinning_keeps_peaks_and_ends() -> None:
    points = [(float(i), 1.0) for i in range(10_000)]
    points[4321] = (4321.0, 99.0)
    points[7777] = (7777.0, -99.0)
    kept = thin(points)
    assert len(kept) <= 600
    assert {points[0], points[4321], points[7777], points[-1]} <= set(kept)
    assert list(kept) == sorted(kept)
    assert thin(points[:600]) == points[:600]


def test_a_running_mean_forgets_a_peak() -> None:
    """Each value is the mean of its neighbours, independent of earlier values."""
    for count in (3, 40, 61, 600):
        heights = np.random.default_rng(count).uniform(0, 4, count)
        heights[count // 4] = 1e20
        means = [y for _, y in running_mean([(float(i), y) for i, y in enumerate(heights)])]
        reach = max(2, count // 60)
        for i, mean in enumerate(means):
            near = min(reach, i, count - 1 - i)
            assert mean == pytest.approx(heights[i - near : i + near + 1].mean(), rel=1e-12)


def test_ticks_are_round_and_inside_and_labels_differ() -> None:
    assert nice_ticks(0, 100, 5) == [0, 20, 40, 60, 80, 100]
    assert nice_ticks(0.0012, 0.0031, 5) == [0.0015, 0.002, 0.0025, 0.003]
    assert nice_ticks(0, 1e-13, 5) == [0, 2e-14, 4e-14, 6e-14, 8e-14, 1e-13]
    assert log_ticks(3, 20000, 5) == [10, 100, 1000, 10000]
    assert log_ticks(40, 300, 5) == [50, 100, 200]
    assert all(250 <= tick <= 280 for tick in log_ticks(250, 280, 5))
    assert apart([5.9995, 6.0, 6.0005]) == ["5.9995", "6", "6.0005"]
    assert apart([0, 1500, 25_000]) == ["0", "1,500", "25k"]
    shown = {0: "0", 0.0031: "0.0031", 12.5: "12.5", 999.6: "1,000", 1500: "1,500", 25_000: "25k", 999_600: "1M"}
    shown |= {2.5e6: "2.5M", math.inf: "∞"}
    assert {value: short(value) for value in shown} == shown


@pytest.mark.parametrize(
    "values",
    [
        [2.0], [0.0, 0.0], [-3.0, 4.0], [1e-9, 1e9], [1e300, -1e300], [1e300, 1e-300], [1e300, 1.0, 2.0],
        [0.0, 5e-324], [1e-320, 2e-320], [1e16, 1e16 + 2], [1e308, 1.0, math.nan, -math.inf],
    ],
)  # fmt: skip
def test_a_chart_of_any_values_stays_on_its_sheet(values: list[float]) -> None:
    shown = [value for value in values if abs(value) <= 1e300]
    for logarithmic in (True, False):
        chart = line_chart([Line(name="x", points=[*enumerate(values)])], title="t", logarithmic=logarithmic)
        circles = re.findall(r'cx="([-\d.]+)" cy="([-\d.]+)"', chart)
        assert len(circles) == len(shown)
        assert all(0 <= float(x) <= 560 and 0 <= float(y) <= 300 for x, y in circles)
        line_chart([Line(name="x", points=[*enumerate(values * 30)], smooth=True)], title="t", logarithmic=logarithmic)
        assert ("3 values left out: infinite, undefined or too large" in chart) == (len(shown) < len(values))
        assert not re.search(r"\b(nan|inf)\b", chart)


def test_a_long_name_leaves_room_for_the_curve() -> None:
    name = "a name of eighty letters " * 3 + "twice"
    chart = line_chart([Line(name=name, points=[(1.0, 3.0), (2.0, 12.5)])], title="t")
    (first, last), (label,) = re.findall(r'cx="([-\d.]+)"', chart), re.findall(r"(a name[^<,]*) 12\.5<", chart)
    assert 58 < float(first) < float(last) and float(last) > 200 and label.count("…") == 1
    assert f"{name}, step 2: 12.5" in chart


def test_every_label_of_a_matrix_has_its_row_and_unknown_ones_come_last() -> None:
    chart = Page(confusion(["a", "b", "x"], ["a", "a", "b"], ["b", "a"]))
    names = [text for text in chart.texts if text in ("a", "b", "x")]
    assert names == ["b", "a", "x", "b", "a", "x"]
    assert {"a as b: 1 (50.0%)", "b as x: 1 (100.0%)", "x as x: 0 (0.0%)"} <= {*chart.all("title")}
    many = [str(number) for number in range(50)]
    listed = Page(confusion([*many[1:], "0"], many, many)).words
    assert "most frequent confusions" in listed and confusion([], [], ["a"]).startswith("<p")


def test_classes_have_precision_recall_and_f1() -> None:
    words = Page(by_class(["a", "a", "b", "b"], ["a", "b", "b", "b"], ["a", "b"])).words
    assert "a 1 50.0 100.0 66.7" in words and "b 3 100.0 66.7 80.0" in words


def test_quantities_are_dots_and_their_deviations() -> None:
    assert scatter([1.0, 2.0, math.nan], [1.0, 3.0, 2.0]).count("<circle") == 2
    assert scatter([1.0] * 9000, list(range(9000))).count("<circle") == 3000
    assert scatter([2.0], [2.0]).count("<circle") == 1
    words = Page(deviations([1.0, 4.0], [2.0, 2.0])).words
    assert "mean absolute error 1.5" in words and "root mean squared error 1.581" in words


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1e308, -1.7e308])
def test_a_quantity_that_cannot_be_drawn_is_counted_and_left_out(odd: float) -> None:
    whole = [1.0, 4.0, 2.5], [2.0, 2.0, 3.0]
    for chart in (scatter, deviations):
        for said, right in (([*whole[0], odd], [*whole[1], 0.0]), ([*whole[0], 0.0], [*whole[1], odd])):
            drawn, note = chart(said, right), "1 value left out: infinite, undefined or too large"
            assert drawn.startswith(chart(*whole).strip()) and note in drawn and note not in chart(*whole)
        assert "Nothing to compare" in chart([odd], [odd])
        assert not re.search(r"\b(nan|inf)\b", chart([1e300, -1e300], [-1e300, 1e300]))


def test_lengths_are_counted_in_bins() -> None:
    words = Page(lengths([0, 1, 2, 2], [2, 2, 30, 31])).words
    told = dict(re.findall(r"(\d+ to \d+ words: )(\d+) predicted", words))
    assert sum(map(int, told.values())) == 4
    assert "30 to 31 words: 2 gold" in words or "30 to 34 words: 2 gold" in words
    Page(lengths([0], [0]))


def test_a_learning_picture_has_a_logarithmic_curve_of_each_target_and_its_own_styles(tmp_path: Path) -> None:
    perplexities = [{"ae": 100.0, "par": 80.0}, {"ae": 20.0, "par": 20.0}, {"ae": 5.0, "par": 5.0}]
    evaluations = [
        event("evaluate", 10 * n, loss=dict.fromkeys(each, 1.0), perplexity=each)
        for n, each in enumerate(perplexities, 1)
    ]
    picture = draw_learning(make_run(tmp_path / "run", [start(), *evaluations]))
    root = ElementTree.fromstring(picture)
    assert picture._repr_svg_() == str(picture) and root.tag == f"{SVG}svg"
    assert "prefers-color-scheme:dark" in str(root.findtext(f"{SVG}style"))
    curves = {str(group.get("class")): circles(group) for group in root.iter(f"{SVG}g")}
    assert curves.keys() == {"s-ae", "s-par"}
    (_, first), (_, middle), (_, last) = curves["s-par"]
    assert middle - first == pytest.approx(last - middle, abs=0.02), "20 to 5 is the same distance as 80 to 20"
    ends = {text.text: float(str(text.get("y"))) for text in root.iter(f"{SVG}text")}
    assert "step" in ends and abs(ends["ae 5"] - ends["par 5"]) >= 15, "labels of equal values do not overlap"


def circles(element: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(str(one.get("cx"))), float(str(one.get("cy")))) for one in element.iter(f"{SVG}circle")]


@pytest.mark.parametrize("perplexity", [None, {"ae": math.inf}, {"nsp": 2.0}])
def test_a_run_without_a_perplexity_has_no_learning_picture(tmp_path: Path, perplexity: Any) -> None:
    measured = [event("evaluate", 1, loss=perplexity, perplexity=perplexity)] if perplexity else []
    with pytest.raises(UniclozeError, match="no held-out perplexity"):
        draw_learning(make_run(tmp_path / "run", [start(), *measured]))


def test_costs_of_a_chart_with_its_own_styles_are_logarithmic() -> None:
    lines = [
        Line(name="small", points=[(1e3, 4.0), (1e4, 3.0), (1e5, 2.5)], style="s-ae"),
        Line(name="large", points=[(1e4, 3.5), (1e5, 2.0)], style="s-par"),
    ]
    root = ElementTree.fromstring(line_chart(lines, title="Loss <&", over="FLOPs", styled=True))
    small, large = (circles(group) for group in root.iter(f"{SVG}g"))
    assert small[1][0] - small[0][0] == pytest.approx(small[2][0] - small[1][0], abs=0.02)
    assert (len(small), len(large)) == (3, 2) and small[1][0] == large[0][0]
    assert {"small 2.5", "large 2", "FLOPs", "Loss <&"} <= {text.text for text in root.iter(f"{SVG}text")}
