"""The picture of a run's learning curves, and drawings in notebooks."""

from __future__ import annotations

import importlib.util
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from unicloze.errors import UniclozeError
from unicloze.report.charts import draw_curves, draw_learning
from unicloze.report.svg import COLOURS, Drawing


def write_run(folder: Path, evaluations: list[dict[str, float]]) -> Path:
    events: list[dict[str, Any]] = [{"event": "start", "time": 0.0, "step": 0, "resumed_from": None, "recipe": {}}]
    for number, perplexity in enumerate(evaluations, start=1):
        measured = {"loss": dict.fromkeys(perplexity, 1.0), "perplexity": perplexity}
        events.append({"event": "evaluate", "time": float(number), "step": 10 * number, **measured})
    folder.mkdir()
    (folder / "ledger.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def test_every_target_is_a_curve_with_its_last_value(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [{"ae": 100.0, "par": 80.0}, {"ae": 10.0, "par": 20.0}, {"ae": 10.0, "par": 5.0}])
    drawing = draw_learning(run)
    curves = {role: points for points, role in drawing.lines}
    assert curves.keys() == {"mask", "pseudo"}  # the colours of AE and PAR on a run's page
    for points, values in ((curves["mask"], (100, 10, 10)), (curves["pseudo"], (80, 20, 5))):
        across, down = zip(*points, strict=True)
        assert across[1] - across[0] == pytest.approx(across[2] - across[1])
        steps = [down[i + 1] - down[i] for i in range(2)]
        assert all((step > 0) == (values[i] > values[i + 1]) for i, step in enumerate(steps))
    # logarithmic: 20 to 5 is the same distance as 80 to 20
    (_, first), (_, middle), (_, last) = curves["pseudo"]
    assert middle - first == pytest.approx(last - middle)
    labels = {label.text: label for label in drawing.labels}
    assert {"ae 10", "par 5", "steps"} <= labels.keys()
    assert all(0 < x < drawing.width and 0 < y < drawing.height for points, _ in drawing.lines for x, y in points)


def test_labels_of_equal_values_do_not_overlap(tmp_path: Path) -> None:
    drawing = draw_learning(write_run(tmp_path / "run", [{"ae": 9.0, "par": 9.0}, {"ae": 3.0, "par": 3.0}]))
    ends = [label.y for label in drawing.labels if label.text in ("ae 3", "par 3")]
    assert len(ends) == 2 and abs(ends[0] - ends[1]) >= 15


def test_a_single_evaluation_is_seen(tmp_path: Path) -> None:
    drawing = draw_learning(write_run(tmp_path / "run", [{"ae": 9.0, "par": 3.0}]))
    ends = {role: points[-1] for points, role in drawing.lines}
    dots = {role: (x + w / 2, y + h / 2) for x, y, w, h, role in drawing.rectangles if role in ends}
    assert dots.keys() == ends.keys() and all(dots[role] == pytest.approx(end) for role, end in ends.items())


@pytest.mark.parametrize("evaluations", [[], [{"ae": float("inf")}], [{"nsp": 2.0}]])
def test_a_run_without_a_perplexity_is_reported(tmp_path: Path, evaluations: list[dict[str, float]]) -> None:
    with pytest.raises(UniclozeError, match="no held-out perplexity"):
        draw_learning(write_run(tmp_path / "run", evaluations))


def test_lines_have_their_colour_in_both_formats() -> None:
    image = pytest.importorskip("PIL.Image")
    drawing = Drawing(width=40, height=20, title="a line", lines=[([(5, 10), (35, 10)], "pseudo")])
    root = ElementTree.fromstring(drawing.to_svg())
    (path,) = root.iterfind("{http://www.w3.org/2000/svg}path")
    assert path.get("class") == "line pseudo" and path.get("d") == "M5 10L35 10"
    assert f".line.pseudo{{fill:none;stroke:{COLOURS['pseudo'][0]}}}" in drawing.to_svg()
    import io

    with image.open(io.BytesIO(drawing.to_png())) as picture:
        colour = picture.convert("RGB").getpixel((40, 20))
    assert colour == tuple(bytes.fromhex(COLOURS["pseudo"][0][1:]))


def test_a_notebook_gets_one_format(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    drawing = Drawing(width=10, height=10, title="nothing")
    assert drawing._repr_mimebundle_() == {"image/png": drawing.to_png()}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert drawing._repr_mimebundle_() == {"image/svg+xml": drawing.to_svg()}


def test_curves_over_a_logarithmic_axis_have_a_dot_on_each_point() -> None:
    curves = {"small": [(1e3, 4.0), (1e4, 3.0), (1e5, 2.5)], "large": [(1e4, 3.5), (1e5, 2.0)]}
    drawing = draw_curves(
        curves, title="Loss", over="FLOPs", colours={"small": "mask", "large": "pseudo"}, logarithmic=True
    )
    places = {role: points for points, role in drawing.lines}
    (first, _), (middle, _), (last, _) = places["mask"]
    assert middle - first == pytest.approx(last - middle) and places["pseudo"][0][0] == pytest.approx(middle)
    dots = [role for *_, role in drawing.rectangles if role in ("mask", "pseudo")]
    assert dots.count("mask") == 3 and dots.count("pseudo") == 2
    assert {"small 2.5", "large 2", "FLOPs"} <= {label.text for label in drawing.labels}
