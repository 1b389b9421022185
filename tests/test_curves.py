"""Line charts: thinning of many points, ticks and labels, and values that cannot be shown."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from unicloze.report.charts import Line, apart, line_chart, log_ticks, nice_ticks, running_mean, short, thin


def test_thinning_keeps_peaks_and_ends() -> None:
    points = [(float(i), 1.0) for i in range(10_000)]
    points[4321] = (4321.0, 99.0)
    points[7777] = (7777.0, -99.0)
    kept = thin(points)
    assert len(kept) <= 600
    assert {points[0], points[4321], points[7777], points[-1]} <= set(kept)
    assert list(kept) == sorted(kept)
    assert thin(points[:600]) == points[:600]


def test_a_running_mean_of_a_line_is_the_line() -> None:
    points = [(float(i), 3.0 * i - 2) for i in range(500)]
    assert [y for _, y in running_mean(points)] == pytest.approx([y for _, y in points])


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


def test_labels_of_near_values_differ() -> None:
    assert apart([5.9995, 6.0, 6.0005]) == ["5.9995", "6", "6.0005"]
    assert apart([0, 1500, 25_000]) == ["0", "1,500", "25k"]


def test_ticks_are_round_and_inside() -> None:
    assert nice_ticks(0, 100, 5) == [0, 20, 40, 60, 80, 100]
    assert nice_ticks(0.0012, 0.0031, 5) == [0.0015, 0.002, 0.0025, 0.003]
    assert nice_ticks(0, 1e-13, 5) == [0, 2e-14, 4e-14, 6e-14, 8e-14, 1e-13]
    assert log_ticks(3, 20000, 5) == [10, 100, 1000, 10000]
    assert log_ticks(40, 300, 5) == [50, 100, 200]
    assert all(250 <= tick <= 280 for tick in log_ticks(250, 280, 5))
    assert [short(value) for value in (0, 0.0031, 12.5, 1500, 25_000, 2.5e6, math.inf)] == [
        *("0", "0.0031", "12.5", "1,500", "25k", "2.5M", "∞"),
    ]


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
