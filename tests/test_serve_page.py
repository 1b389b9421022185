"""The page of `serve` in a real browser: what it shows, by mouse and by keyboard, on a phone and in the dark.

`python tests/test_serve_page.py docs/screenshots --model RUN --classifier RUN` takes the tour with two trained models and
saves the six screenshots that the documentation shows.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("playwright.sync_api", reason="the extra browser is not installed")
pytest.importorskip("axe_playwright_python", reason="the extra browser is not installed")

from axe_playwright_python.sync_playwright import Axe
from playwright import sync_api as playwright

from decoding_toys import loaded
from serving_toys import Client, classifier, serving
from unicloze.decoding import inputs
from unicloze.decoding.infill import fill

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1100, "height": 900}
TEXT = "the list of items is empty"
SECONDS = 20

pytestmark = [
    pytest.mark.browser,
    pytest.mark.whole,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.filterwarnings("ignore:.* tokens the model reads at once"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        started = launched(driver)
        yield started
        started.close()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("unicloze.decoding.inputs.WEIGHTS_TO_WRITE", 0)  # offered, though the model is small
        with serving(loaded(relative=True)) as served:
            yield served


@pytest.fixture(scope="module")
def judge() -> Iterator[Client]:
    with serving(classifier(["bad", "fair", "good"])) as served:
        yield served


@pytest.fixture
def page(browser: Browser, client: Client) -> Iterator[Page]:
    yield from opened(browser, client)


def launched(driver: Any) -> Browser:
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return driver.chromium.launch(executable_path=CHROMIUM, args=sandbox)


def opened(browser: Browser, client: Client, **options: Any) -> Iterator[Page]:
    """The page, which must report no error to the console and load nothing from elsewhere."""
    context = browser.new_context(**{"viewport": DESK, "reduced_motion": "reduce", **options})
    context.set_default_timeout(SECONDS * 1000)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    refused = "Failed to load resource: the server responded with a status of 4"
    page.on("console", lambda one: wrong.append(one.text) if one.type == "error" and refused not in one.text else None)
    page.on("request", lambda asked: None if asked.url.startswith((client.url, "data:")) else wrong.append(asked.url))
    page.goto(client.url)
    page.wait_for_selector("body[data-ready]")
    yield page
    context.close()
    assert not wrong


def blank(page: Page, *words: str) -> None:
    for word in words:
        page.locator("#words").get_by_role("button", name=word, exact=True).click()


def submit(page: Page, section: str, shown: str) -> None:
    page.locator(f"#{section} button.main").click()
    page.wait_for_selector(f"#{shown}:not([hidden])")
    page.wait_for_selector(f"#{section} button.main:not(:disabled)")


def words_of(page: Page) -> list[str]:
    """The blanked words, in the order of their numbers."""
    numbered = page.locator("#words button[aria-pressed=true]").evaluate_all(
        "all => all.map(one => [Number(one.dataset.number), one.textContent])"
    )
    return [word for _, word in sorted(numbered)]


def violations(page: Page) -> list[tuple[str, list[str]]]:
    """Breaches of WCAG 2.2 AA and of good practice, with their places."""
    return [
        (one["id"], [node["html"][:120] for node in one["nodes"]]) for one in Axe().run(page).response["violations"]
    ]


def test_clicked_words_are_filled_in_the_order_of_the_clicks(page: Page) -> None:
    page.get_by_role("textbox", name="Text").fill(TEXT)
    blank(page, "is", "list", "items", "list, blank 2")
    assert words_of(page) == ["is", "items"]
    page.get_by_label("in the order of my clicks").check()
    submit(page, "fill", "filled")
    result = fill(loaded(relative=True), "the list of [MASK] [MASK] empty", order=[2, 1])
    first, second = result.masks[1], result.masks[0]
    assert page.locator("#step").inner_text() == "Step 1 of 2"
    assert page.locator("#guesses h3").all_inner_texts() == ["Blank 2"]
    assert page.locator("#guesses code").all_inner_texts() == first.readable
    assert page.locator("#filled-text mark.open").count() == 1
    page.get_by_role("button", name="Next").click()
    assert page.locator("#step").inner_text() == "Step 2 of 2"
    assert page.locator("#guesses code").all_inner_texts() == second.readable
    shares = [float(share) for share in re.findall(r"[\d.]+", " ".join(page.locator(".share").all_inner_texts()))]
    assert shares == pytest.approx([100 * share for _, share in second.top], abs=0.6)
    assert page.get_by_role("button", name="Next").is_disabled()
    page.get_by_role("button", name="Previous").click()
    assert page.locator("#step").inner_text() == "Step 1 of 2"
    picture = page.locator("#picture-image")
    assert "Factorization steps, by position: 5 -> 4" in str(picture.get_attribute("alt"))
    assert picture.evaluate("image => image.naturalWidth") > 200
    assert "O the original tokens" in page.locator("#picture-caption").inner_text()
    hint = page.locator("#picture-hint")
    assert hint.is_hidden()
    page.set_viewport_size(PHONE)
    playwright.expect(hint).to_be_visible()


@pytest.mark.parametrize(
    ("label", "order"),
    [("all at once", None), ("the most certain first", "confidence"), ("left to right", "left-to-right")],
)
def test_every_order_fills_as_python_does(page: Page, label: str, order: Any) -> None:
    page.get_by_role("textbox", name="Text").fill(TEXT)
    blank(page, "empty", "list")
    page.get_by_label(label).check()
    submit(page, "fill", "filled")
    result = fill(loaded(relative=True), "the [MASK] of items is [MASK]", order=order)
    last = max(mask.step for mask in result.masks)
    for _ in range(last - 1):
        page.get_by_role("button", name="Next").click()
    assert page.locator("#step").inner_text() == f"Step {last} of {last}"
    marks = page.locator("#filled-text mark").evaluate_all("all => all.map(one => one.firstChild.textContent)")
    assert marks == [mask.readable[0].removeprefix("##") for mask in result.masks]


def test_play_shows_one_step_after_the_other(page: Page) -> None:
    page.get_by_role("textbox", name="Text").fill(TEXT)
    blank(page, "list", "empty")
    submit(page, "fill", "filled")
    page.get_by_role("button", name="Play").click()
    playwright.expect(page.locator("#step")).to_have_text("Step 2 of 2", timeout=SECONDS * 1000)
    playwright.expect(page.locator("#play")).to_have_text("Play")


def test_the_keyboard_alone_is_enough(page: Page) -> None:
    page.get_by_role("tab", name="Fill blanks").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-score" and page.locator("#score").is_visible()
    page.keyboard.press("Home")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "fill-text"
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type(TEXT)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert words_of(page) == ["list"]
    assert page.evaluate("document.activeElement.textContent") == "list"
    page.locator("#fill-text").focus()
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#filled:not([hidden])")


def test_an_error_is_said_in_one_sentence_and_goes_away(page: Page) -> None:
    page.get_by_role("textbox", name="Text").fill(TEXT)
    submit_button = page.locator("#fill button.main")
    submit_button.click()
    alert = page.get_by_role("alert")
    playwright.expect(alert).to_have_text("Nothing is blank: click a word first.")
    page.get_by_role("textbox", name="Text").fill("word " * 1000 + "[MASK]")
    submit_button.click()
    playwright.expect(alert).to_have_text("The text has 5,006 characters, but at most 4,000 are read: shorten it.")
    assert violations(page) == []
    page.get_by_role("textbox", name="Text").fill("the [MASK] is empty")
    submit_button.click()
    page.wait_for_selector("#filled:not([hidden])")
    playwright.expect(alert).to_be_hidden()


def test_a_sentence_is_coloured_by_surprise(page: Page) -> None:
    page.get_by_role("tab", name="Judge a sentence").click()
    page.get_by_role("textbox", name="Sentence").fill(TEXT)
    submit(page, "score", "scored")
    assert page.locator("#tokens li").evaluate_all("all => all.map(one => one.firstChild.textContent)") == TEXT.split()
    levels = page.locator("#tokens li").evaluate_all(
        "all => all.map(one => [Number(one.querySelector('small').textContent), one.className])"
    )
    assert all(level == f"s{sum(bits >= edge for edge in (2, 4, 7, 10))}" for bits, level in levels)
    both_ways = page.locator("#tokens").inner_text()
    page.get_by_label("from the tokens left of it").check()
    assert page.locator("#tokens").inner_text() != both_ways
    assert "bits per byte" in page.locator("#score-summary").inner_text()


def test_a_text_is_written_as_it_is_streamed(page: Page) -> None:
    page.get_by_role("tab", name="Write").click()
    page.get_by_role("textbox", name="Text").fill("return the")
    page.get_by_label("draw tokens").uncheck()
    page.get_by_label("Longest text").fill("9")
    submit(page, "generate", "written")
    playwright.expect(page.locator("#write-state")).not_to_have_text("Writing")
    from unicloze.decoding.generate import generate
    from unicloze.settings import DecodingSettings

    (expected,) = generate(loaded(relative=True), ["return the"], DecodingSettings(max_length=9))
    assert page.locator("#continuation").evaluate("one => one.textContent").lstrip() == expected.text


def test_a_classifier_says_how_sure_it_is(browser: Browser, judge: Client) -> None:
    for page in opened(browser, judge):
        assert page.get_by_role("tab").all_inner_texts() == ["Predict"]
        page.get_by_role("textbox", name="Text").fill("anna sees berlin")
        submit(page, "predict", "predicted")
        shown = dict(
            zip(*(page.locator(f"#classes {part}").all_inner_texts() for part in ("code", ".share")), strict=True)
        )
        expected = judge.post("/predict", {"text": "anna sees berlin"}).json
        assert page.locator("#prediction").inner_text() == expected["prediction"] == next(iter(shown))
        assert sorted(shown) == ["bad", "fair", "good"]
        assert violations(page) == []


def test_a_server_with_a_token_asks_for_it(browser: Browser) -> None:
    token = "a-token-of-some-length"
    with serving(loaded(), token=token) as client:
        for page in opened(browser, client):
            page.locator("#fill button.main").click()
            page.get_by_label("This server asks for a token").fill(token)
            assert violations(page) == []
            page.get_by_role("button", name="Use it").click()
            submit(page, "fill", "filled")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_all_of_it_is_accessible_and_fits(browser: Browser, client: Client, scheme: str, size: dict) -> None:
    for page in opened(browser, client, viewport=size, color_scheme=scheme):
        page.get_by_role("textbox", name="Text").fill(TEXT)
        blank(page, "list", "empty")
        submit(page, "fill", "filled")
        for section, shown in (("fill", "picture"), ("score", "scored"), ("generate", "written")):
            page.locator(f"#tab-{section}").click()
            if section != "fill":
                submit(page, section, shown)
            assert violations(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 18, 24)"
        assert dark == (scheme == "dark")
        page.goto(f"{client.url}/docs")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def tour(folder: Path, model: Path, judge: Path) -> None:
    """Try the page with two trained models, and save six screenshots of few colours, so that they are small."""
    from PIL import Image

    from unicloze.verbs import load_model

    folder.mkdir(parents=True, exist_ok=True)
    with playwright.sync_playwright() as driver:
        browser = launched(driver)

        def pictures(client: Client, **options: Any) -> Iterator[Page]:
            return opened(browser, client, **{"viewport": {"width": 960, "height": 600}, **options})

        def save(page: Page, name: str) -> None:
            page.mouse.move(0, 0)
            page.screenshot(path=folder / f"{name}.png", full_page=name != "endpoints")
            with Image.open(folder / f"{name}.png") as image:
                image.convert("RGB").quantize(255, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
                    folder / f"{name}.png", optimize=True
                )

        def fill_by_clicks(page: Page) -> None:
            page.get_by_role("textbox", name="Text").fill("She opened the door and looked out of the window.")
            blank(page, "window", "opened", "door")
            page.get_by_label("in the order of my clicks").check()
            submit(page, "fill", "filled")
            page.get_by_role("button", name="Next").click()

        inputs.WEIGHTS_TO_WRITE = 0  # the small model's *Write* is shown, too
        with serving(load_model(model)) as client:
            for page in pictures(client):
                fill_by_clicks(page)
                save(page, "fill")
                page.get_by_role("tab", name="Judge a sentence").click()
                page.get_by_role("textbox", name="Sentence").fill("She opened the banana and looked out of the window.")
                submit(page, "score", "scored")
                save(page, "score")
                page.get_by_role("tab", name="Write").click()
                submit(page, "generate", "written")
                playwright.expect(page.locator("#write-state")).not_to_have_text("Writing")
                save(page, "write")
            for page in pictures(client, viewport=PHONE, color_scheme="dark"):
                fill_by_clicks(page)
                save(page, "phone-dark")
            for page in pictures(client):
                page.goto(f"{client.url}/docs")
                save(page, "endpoints")
        with serving(load_model(judge)) as client:
            for page in pictures(client):
                page.get_by_role("textbox", name="Text").fill("A warm, funny and moving film.")
                submit(page, "predict", "predicted")
                save(page, "predict")
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=tour.__doc__)
    parser.add_argument("folder", type=Path, help="Folder for the screenshots.")
    parser.add_argument("--model", type=Path, required=True, help="Run of a pre-trained model.")
    parser.add_argument("--classifier", type=Path, required=True, help="Run of a classifier.")
    given = parser.parse_args()
    tour(given.folder, given.model, given.classifier)
