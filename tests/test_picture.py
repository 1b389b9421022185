"""The mask picture shows exactly what the example's visibility says, small and large, as SVG and as PNG."""

from __future__ import annotations

import builtins
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import unicloze
from unicloze.errors import UniclozeError, UsageError
from unicloze.recipes import load_recipe
from unicloze.report.example_view import ExampleView, example_of, view_of
from unicloze.report.picture import draw_mask, save_picture
from unicloze.report.svg import COLOURS, MONO_WIDTH, SANS_WIDTH, Drawing, Label
from unicloze.text.tokenizers import whitespace_tokenizer

SVG = "{http://www.w3.org/2000/svg}"
KINDS = ("context", "mask", "original", "pseudo")


def view(words: int, **overrides: Any) -> ExampleView:
    text = " ".join(f"w{i}" for i in range(words))
    tokenizer = whitespace_tokenizer(text)
    recipe = load_recipe("quickstart", {"data.window": words + 3, "objective.mask_rate": 0.3, **overrides})
    return ExampleView.of(example_of(recipe, tokenizer.encode(text), 0, tokenizer), tokenizer, title="title")


def painted(drawing: Drawing, x: float, y: float) -> str:
    """The role of the topmost rectangle at a point."""
    inside = [r for rx, ry, w, h, r in drawing.rectangles if rx <= x < rx + w and ry <= y < ry + h]
    return inside[-1] if inside else "paper"


@pytest.mark.parametrize("words", [9, 60, 150, 300])
def test_a_cell_is_filled_where_the_row_reads_the_column(words: int) -> None:
    shown = view(words)
    drawing = draw_mask(shown)
    empty = [r for r in drawing.rectangles if r[4] == "empty"]
    left, top = min(r[0] for r in empty), min(r[1] for r in empty)
    # The slots' positions are recovered from the picture alone: all cells have one size, gaps separate the segments.
    columns = sorted({(r[0] - left, r[2]) for r in empty})
    size = sum(width for _, width in columns) / len(shown.slots)
    middles = [start + (i + 0.5) * size for start, width in columns for i in range(round(width / size))]
    assert len(middles) == len(shown.slots)
    visible = shown.visible
    for row in range(0, len(middles), 1 + words // 40):
        for column in range(0, len(middles), 1 + words // 40):
            expected = shown.slots[column].kind if visible[row, column] else "empty"
            assert painted(drawing, left + middles[column], top + middles[row]) == expected


def test_the_colour_is_that_of_the_key() -> None:
    drawing = draw_mask(view(12))
    assert {role for *_, role in drawing.rectangles} == {"empty", "paper", *KINDS}
    assert {role for *_, role in draw_mask(view(12, **{"objective.targets": ["ae"]})).rectangles} == {
        "empty",
        "paper",
        "context",
        "mask",
    }


def test_random_tokens_and_local_layers_are_drawn() -> None:
    text = " ".join(f"w{i}" for i in range(9))
    tokenizer = whitespace_tokenizer(text)
    noisy = {"data.window": 12, "objective.mask_share": 0.0, "objective.random_share": 0.8}
    shown = view_of(load_recipe("quickstart", noisy), tokenizer.encode(text), 3, tokenizer)
    assert any(slot.random for slot in shown.slots)
    drawing = draw_mask(shown)
    assert "random token instead of a mask" in [label.text for label in drawing.labels]
    assert "random" in {role for *_, role in drawing.rectangles}
    local = {"objective.local_width": 2, "model.num_layers": 4}
    drawing = draw_mask(view_of(load_recipe("gpt-3-small", local), tokenizer.encode(text), 0, tokenizer))
    assert {"Full: layers 1, 3", "Local: layers 2, 4"} <= {label.text for label in drawing.labels}
    tops = sorted({y for _, y, _, _, role in drawing.rectangles if role == "empty"})
    side = next(h for *_, h, role in drawing.rectangles if role == "empty")
    assert len(tops) == 2 and tops[1] > tops[0] + side
    left = min(x for x, *_, role in drawing.rectangles if role == "empty")
    cell = side / 11
    for top, width in zip(tops, (11, 2), strict=True):
        for row in range(11):
            for column in range(11):
                role = painted(drawing, left + (column + 0.4) * cell, top + (row + 0.4) * cell)
                assert (role == "context") == (column <= row <= column + width), (row, column)
    for x, y, w, h, _ in drawing.rectangles:
        assert x >= 0 and y >= 0 and x + w <= drawing.width and y + h <= drawing.height


def test_tokens_steps_and_predictions_are_spelled_out_while_legible() -> None:
    shown = view(9)
    small = [label.text for label in draw_mask(shown).labels]
    for slot in shown.slots:
        assert small.count(f"{slot.position} {slot.token}") >= 2
    for prediction in shown.predictions.values():
        assert prediction in small
    assert {"C", "O", "P", "step", "predicts"} <= set(small)
    large = [label.text for label in draw_mask(view(300)).labels]
    assert {"C", "O", "P", "0", "32"} <= set(large)
    assert not any("w10" in text for text in large)


def test_answers_that_are_not_tokens_are_shown_in_words() -> None:
    text = "one two three four five six seven eight"
    tokenizer = whitespace_tokenizer(text)
    for name, said in (("bert-base", "nsp: follows"), ("electra-small", "rtd: replaced?")):
        recipe = load_recipe(name, {"data.window": 12})
        shown = ExampleView.of(example_of(recipe, tokenizer.encode(text), 0, tokenizer), tokenizer)
        texts = [label.text for label in draw_mask(shown).labels]
        assert said in texts and not any("[PAD]" in text for text in texts)


@pytest.mark.parametrize("words", [2, 9, 60, 300])
def test_nothing_leaves_the_sheet(words: int) -> None:
    drawing = draw_mask(view(words))
    for x, y, w, h, _ in drawing.rectangles:
        assert x >= 0 and y >= 0 and x + w <= drawing.width and y + h <= drawing.height
    for label in drawing.labels:
        length = len(label.text) * label.size * (MONO_WIDTH if label.mono else SANS_WIDTH)
        shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[label.anchor] * length
        if label.upwards:
            assert label.y - length + shift >= 0
        else:
            assert label.x - shift >= 0 and label.x - shift + length <= drawing.width, label


def test_a_large_picture_stays_small() -> None:
    assert len(draw_mask(view(500)).to_svg()) < 60_000


def test_svg_is_well_formed_and_has_a_dark_theme(tmp_path: Path) -> None:
    save_picture(view(9), tmp_path / "a.svg")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert root.tag == f"{SVG}svg"
    style = root.find(f"{SVG}style")
    assert style is not None and style.text is not None and "prefers-color-scheme:dark" in style.text
    assert {path.get("class") for path in root.iter(f"{SVG}path")} >= set(KINDS)
    # Every CSS rule applies only to this picture, since a page may contain it inline.
    selectors = re.findall(r"([^{}]+){[^{}]*}", style.text.replace("@media(prefers-color-scheme:dark){", ""))
    assert all(selector.startswith(".unicloze ") for selector in selectors)


def test_tokens_cannot_break_the_svg(tmp_path: Path) -> None:
    label = Label(x=0, y=1 / 3, text="</text><script>\x00\x1b&amp;", upwards=True)
    drawing = Drawing(width=10, height=10, title='"<&', labels=[label])
    root = ElementTree.fromstring(drawing.to_svg())
    assert [text.text for text in root.iter(f"{SVG}text")] == ["</text><script>  &amp;"]
    assert root.get("aria-label") == '"<&'
    (text,) = root.iter(f"{SVG}text")
    assert (text.get("x"), text.get("y"), text.get("transform")) == ("0", "0.33", "rotate(-90 0 0.33)")


def test_a_notebook_gets_one_format(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    drawing = Drawing(width=10, height=10, title="nothing")
    assert drawing._repr_mimebundle_() == {"image/png": drawing.to_png()}
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "PIL" else find_spec(name))
    assert drawing._repr_mimebundle_() == {"image/svg+xml": drawing.to_svg()}


def test_png_shows_the_same_colours(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    shown = view(9)
    save_picture(shown, tmp_path / "a.PNG")
    drawing = draw_mask(shown)
    pixels = np.asarray(image.open(tmp_path / "a.PNG").convert("RGB"))
    assert pixels.shape == (round(drawing.height * 2), round(drawing.width * 2), 3)
    for x, y, w, h, role in [r for r in drawing.rectangles if r[4] in ("original", "pseudo")]:
        wanted = [int(COLOURS[role][0][i : i + 2], 16) for i in (1, 3, 5)]
        assert pixels[round((y + h / 2 + 2) * 2), round((x + w / 2 + 2) * 2)].tolist() == wanted


def test_png_without_pillow_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.split(".")[0] == "PIL":
            raise ImportError(name)
        return real(name, *rest, **named)

    for name in [name for name in sys.modules if name.split(".")[0] == "PIL"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UniclozeError, match=r"Pillow.*pip install pillow.*\.svg"):
        save_picture(view(4), tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()
    save_picture(view(4), tmp_path / "a.svg")


def test_bad_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.svg or \.png"):
        save_picture(view(4), tmp_path / "a.bmp")
    with pytest.raises(UniclozeError, match="absent"):
        save_picture(view(4), tmp_path / "absent" / "a.svg")


def test_one_module_writes_svg() -> None:
    elements = re.compile(r"<(svg|path|rect|circle|text|g|line) |</(svg|path|rect|circle|text|g|line)>")
    files = (file for file in Path(unicloze.__file__).parent.rglob("*.py"))
    assert [file.name for file in files if elements.search(file.read_text(encoding="utf-8"))] == []
