"""The page about a run: complete, young, damaged or followed; and the event files for TensorBoard."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from report_toys import (
    TIME,
    WORDS,
    Page,
    cards,
    evaluation,
    event,
    lineage,
    make_run,
    page_of,
    samples,
    start,
    step,
    whole,
)  # fmt: skip
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.recipes import load_recipe, save_recipe
from unicloze.report import page as pages
from unicloze.report.frame import render
from unicloze.report.history import History, curves
from unicloze.report.page import build_report, example_texts
from unicloze.settings import TokenizerSettings
from unicloze.text.tokenizers import Tokenizer, whitespace_tokenizer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run with its page."""
    run = make_run(tmp_path_factory.mktemp("whole") / "run", whole())
    build_report(run)
    return run


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page((run / "report.html").read_text(encoding="utf-8"))


def test_a_whole_run(run: Path, page: Page) -> None:
    assert not list(run.glob(".report*"))
    for expected in (
        "run finished recipe quickstart. UniLMv2",
        "held-out perplexity, ae 50.0 2.25 bits per byte; 2,751 predictions in 256 windows of 64 tokens, "
        "after step 100",
        "held-out perplexity, par 100.0",
        "parameters 1,478,848",
        "steps 100 of 100 planned",
        "text tokens 410k",
        "text tokens per second, median",
        "time 2 min 10 s",
        "device cpu (test) fp32, 2 threads",
    ):
        assert expected in cards(page)
    headings = ["Curves", "What the model sees", "Filled samples", "Data", "Recipe"]
    assert [text for text in page.texts if text in headings] == headings * 2  # contents first
    assert f"unicloze fill --model {run}" in page.words
    assert f"unicloze pretrain --out {run} --training.steps 200" in page.words
    assert "checkpoints/step-00000100" in page.words
    before = (run / "report.html").read_bytes()
    assert build_report(run).read_bytes() == before, "the same ledger gives the same page"


def test_a_run_without_held_out_text_that_its_budget_ended(tmp_path: Path) -> None:
    """The page names what was measured, and suggests more steps than were planned, as the decay needs."""
    events = [*whole(), event("decay", 40, planned=100, end=60)]
    events = [{**one, "part": "training-text"} for one in events if one["step"] <= 60]
    page = page_of(make_run(tmp_path / "run", events))
    assert "steps 60 of 60 planned" in page.words and "--training.steps 200" in page.words
    assert "No text is held out: every evaluation uses the same windows of the training text." in page.words
    assert "Training-text perplexity" in page.words and "The start of a training-text window" in page.words
    assert "held-out" not in page.words.lower().partition("data source")[0]


def test_it_needs_nothing_from_outside(run: Path, page: Page) -> None:
    assert not {name for name, _ in page.tags} & {"script", "link", "img", "iframe", "object"}
    assert not any(map(page.all, ("src", "onclick", "onload")))
    assert all(place.startswith("#") or (run / place).is_file() for place in page.all("href"))
    text = (run / "report.html").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "url(" not in text and "@import" not in text and "prefers-color-scheme:dark" in text


def test_samples_are_side_by_side_and_hits_are_marked(page: Page) -> None:
    assert (
        "words other signs before training, ae 0 of 2 0 of 0 before training, par 1 of 2 0 of 0 "
        "after step 100, ae 1 of 2 0 of 0 after step 100, par 2 of 2 0 of 0" in page.words
    )
    assert "step position truth ae before par before ae after par after" in page.words
    # By factorization step, counted from 1.
    assert "1 5 key zebra zebra key \u2713 key \u2713 2 2 value zebra value \u2713 key value \u2713" in page.words
    assert "books.txt, document 3, token 120" in page.words and "folder/books.txt" not in page.words


def test_the_picture_is_of_the_heldout_text_with_the_truth_in_its_masks(page: Page) -> None:
    (picture,) = (attributes for _, attributes in page.tags if attributes.get("class") == "unicloze")
    assert "Factorization steps" in str(picture["aria-label"]) and "1 the" in page.texts
    assert any(re.fullmatch(r"(\d+ |ae: |par: )value", text) for text in page.texts)
    assert "The start of a held-out window, cut to 28 tokens; this recipe trains on windows of 64 tokens." in page.words


def test_recipe_and_lineage_are_shown_whole(page: Page) -> None:
    shown = next(text for text in page.texts if text.startswith("name: quickstart"))
    wanted = load_recipe("quickstart", {"training.steps": 100, "training.device": "cpu"}).to_dict()
    assert yaml.safe_load(shown) == json.loads(json.dumps(wanted))
    assert "books/*.txt 1 2,123 17 train 2,077 2,689,298 10,350,966 held out 45 56,842 222,329" in page.words
    assert "f1a9" * 16 in page.words and "(8,192 ids)" in page.words


@pytest.mark.parametrize("space", ["Ġ", "\u2581"])
def test_a_sample_is_shown_as_text_with_any_kind_of_pieces(tmp_path: Path, space: str) -> None:
    """Pieces of a word without ## used to be separated."""
    tokens = ["[SOS]", f"{space}un", "believ", "able", f"{space}news", ".", "[EOS]"]
    masked = [
        {"position": 2, "step": 0, "truth": "believ", "ae": "x"},
        {"position": 4, "step": 1, "truth": f"{space}news", "ae": "y"},
    ]
    taken = event("samples", 100, samples=[{"document": "d", "tokens": tokens, "masked": masked}])
    text = build_report(make_run(tmp_path / "run", [start(), step(100, 5.0), taken])).read_text(encoding="utf-8")
    shown = re.search(r'<p class="sample">(.*?)</p>', text)
    assert shown and re.sub(r"<sup>.*?</sup>|<[^>]*>", "", shown[1]) == "[SOS] unbelievable news. [EOS]"


def places(*said: tuple[int, str, str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"position": at, "step": 0, "truth": truth, "ae": first, **more} for at, truth, first, more in said]


def test_words_are_counted_without_punctuation_and_repeated_tokens(tmp_path: Path) -> None:
    top = {"ae": [["list", 0.314], ["st<b>ring", 0.12], ["tuple", 0.004]]}
    masked = places(
        (2, "list", "list", {"word": True, "top": top}), (3, ",", ".", {"word": False}), (5, "=", "=", {}),
        (4, "=", "=", {}), (13, "\u0120\u00bb", "the", {"word": False}),
    )  # fmt: skip
    tokens = ["[SOS]", "a", "[MASK]", "[MASK]", *["="] * 9, "[MASK]", "[EOS]"]
    first = {"document": "a", "tokens": tokens, "masked": masked}
    repeated = places((3, "=", "=", {}), (9, "=", "=", {}))
    underline = {"document": "b", "tokens": ["[SOS]", *["="] * 9], "masked": repeated}
    none = {"document": "c", "tokens": ["[SOS]", "x", "y"], "masked": places((1, "\u2581x", "x", {}))}
    run = make_run(tmp_path / "run", [start(), event("samples", 0, samples=[first, underline, none])])
    words = page_of(run).words
    assert "before training, ae 1 of 2 0 of 2" in words
    assert "1 2 list list 31 % \u2713 st<b>ring 12 % tuple < 1 % 1 3" in words
    assert "1 4 =" not in words and "1 5 =" not in words
    summaries = re.findall("<summary>(.*?)</summary>", (run / "report.html").read_text(encoding="utf-8"))
    assert summaries[:2] == ["a", "c"], "a sample of one repeated token is not shown"


def judged() -> list[dict[str, Any]]:
    """A run with baselines and a verdict."""
    reached = {"ae": {"unigram": 900.0, "trigram": 310.04}}
    counts = {"perplexity": reached, "counted": 8_400_000, "tokens": 2_600_000_000}
    words = {
        "words": 400, "sees": "both", "top_1": 0.082, "top_5": 0.197, "counts_top_1": 0.027, "counts_top_5": 0.094,
        "error": 0.02,
    }  # fmt: skip
    events = [{**one, "part": "held-out"} if one["event"] == "evaluate" else one for one in whole()]
    ended = {**events[-1], "content_words": words, "verdict": "perplexity 50.0 against <310> of a trigram"}
    return [start(baselines=counts), *events[1:-1], ended]


@pytest.mark.whole
def test_baselines_content_words_and_the_verdict_are_at_the_top(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", judged()))
    for expected in (
        "Perplexity 50.0 against <310> of a trigram.",
        "held-out perplexity, ae 50.0 a Kneser-Ney trigram 310.0, counted words 900.0 (in 8.4M of 2.6G tokens); 2.25 bits",
        "content words in the top 5 19.7 % Kneser-Ney trigram 9.4 %; the first guess is right for 8.2 %, of the trigram 2.7 "
        "%; 400 held-out words, each from the words around it, after step 100",
    ):
        assert expected in cards(page)
    finished_again = start("step-00000100", TIME + 900)
    assert "Perplexity 50.0" in page_of(make_run(tmp_path / "again", [*judged(), finished_again])).words
    going_on = [*judged(), finished_again, step(101, 4.0, TIME + 901)]
    assert "Perplexity 50.0" not in page_of(make_run(tmp_path / "on", going_on)).words
    anew = [*judged(), start(), step(1, 4.0)]
    assert "content words" not in page_of(make_run(tmp_path / "anew", anew)).words


@pytest.mark.parametrize("damage", [
    None, 3, "x", [], {"perplexity": 3}, {"perplexity": {"unigram": 9.0}}, {"perplexity": {"ae": {"unigram": None}}},
])  # fmt: skip
def test_baselines_that_cannot_be_read_are_skipped(tmp_path: Path, damage: Any) -> None:
    events = judged()
    events[0]["baselines"] = events[-1]["content_words"] = damage
    events[-1]["verdict"] = None
    page = page_of(make_run(tmp_path / "run", events))
    assert "held-out perplexity, ae 50.0 2.25 bits per byte" in cards(page)
    assert "content words" not in page.words and 'class="verdict"' not in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("time", [None, "x", -1e12, 1e12, 1e308, math.inf])
def test_times_that_are_none_are_left_out(tmp_path: Path, time: Any) -> None:
    page = page_of(make_run(tmp_path / "run", [start(), step(1, 3.0, time), event("end", 1, time)]))
    assert "Last entry of the ledger" not in page.words and "time 0.0 s" in cards(page)


def test_everything_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    events = [start(device=evil, versions={evil: evil}, lineage={**lineage(), "fingerprint": evil}), step(1, 3.0)]
    events[0]["recipe"]["name"] = evil
    events[0]["recipe"]["provenance"] = {"paper": evil, "place": evil, "note": evil}
    events[1]["loss"] = {evil: 1.0}
    filled = samples(0, evil)
    (sample,) = filled["samples"]
    sample["document"] = sample["tokens"][1] = sample["masked"][0]["truth"] = sample["masked"][0][evil] = evil
    page = page_of(make_run(tmp_path / "run", [*events, filled, event("failed", 1, message=evil)]))
    assert "script" not in {name for name, _ in page.tags}
    assert "books/<b>one</b>.txt" in page.words
    assert page.words.count(evil) > 10


def finished(folder: Path, name: str, evaluated: dict[str, float], **more: Any) -> Path:
    """A run that trained and evaluated some targets, given by their mean loss, and filled no samples."""
    trained = dict.fromkeys((target.rpartition(".")[2] for target in evaluated), 3.0)
    perplexity = {target: math.exp(loss) for target, loss in evaluated.items()}
    bits = {target: loss / 4 for target, loss in evaluated.items()}
    figures = {"perplexity": perplexity, "bits_per_byte": bits, "predictions": dict.fromkeys(evaluated, 100.0)}
    measured = {**evaluation(2, 1.0), "loss": evaluated, **figures}
    text = {"document": "text", "tokens": ["[SOS]", *WORDS.split(), "[EOS]"], "masked": []}
    recipe = load_recipe(name, {"training.steps": 2, "training.phases": [], "data.window": 64, **more})
    steps = [{**step(n, 3.0), "loss": trained} for n in (1, 2)]
    run = make_run(folder, [start(recipe=recipe.to_dict()), *steps, measured, event("samples", 2, samples=[text])])
    save_recipe(recipe, run / "recipe.yaml")
    whitespace_tokenizer(WORDS, recipe.tokenizer.extra_tokens).save(run)
    return run


def test_cards_and_curves_of_a_mixture_have_the_names_that_were_measured(tmp_path: Path) -> None:
    losses = {"bidirectional.ae": 4.0, "bidirectional.nsp": 0.5, "left-to-right.ae": 5.0}
    page = page_of(finished(tmp_path / "run", "unilm-v1-base", losses))
    assert "not evaluated yet" not in page.words and "Nothing measured yet." not in page.words
    for expected in ("held-out perplexity, bidirectional.ae 54.6", "held-out perplexity, left-to-right.ae 148.4"):
        assert expected in cards(page)
    labels = {"ae 3", "nsp 3", "bidirectional.ae 54.6", "left-to-right.ae 148", "bidirectional.nsp 0.5"}
    assert labels <= set(page.texts)
    assert any(text.startswith("unilm-v1-base, bidirectional: objective masked") for text in page.texts)
    assert "The row is of the part “bidirectional”; other rows: “sequence-to-sequence”, “left-to-right”" in page.words


@pytest.mark.parametrize(("name", "target"), [("bert-base", "nsp"), ("albert-base", "sop"), ("electra-small", "rtd")])
def test_what_predicts_no_tokens_has_a_loss_and_no_bits(tmp_path: Path, name: str, target: str) -> None:
    page = page_of(finished(tmp_path / "run", name, {"ae": 4.0, target: 0.6789}))
    assert f"held-out loss, {target} 0.679 nats per prediction; 100 predictions in 256 windows" in cards(page)
    assert "held-out perplexity, ae 54.6 1 bits per byte" in cards(page)
    assert cards(page).count("bits per byte") == 1
    assert f"perplexity, {target}" not in page.words
    assert "Held-out loss, nats per prediction" in page.texts


NOTHING_TO_FILL = "Nothing is filled in: this objective does not predict masked positions."
NOISE = "in training some show a random token or the original token"
STEPPED = "O and P are in the order in which the steps predict them"


@pytest.mark.parametrize(
    ("name", "target", "groups", "noise"),
    [
        ("gpt", "lm", "C is the text.", False),
        ("t5-base", "lm", "C is the text with its masked positions, O the text to generate, token by token", False),
        ("prefix-lm-base", "lm", "C is the given text, O the text to generate, token by token", False),
        ("mass-base", "lm", "O the text to generate, token by token: each predicts the next, P the mask", True),
        ("bert-base", "ae", "C is the text with its masked positions.", True),
        ("mdlm-base", "diffusion", "C is the text", False),
        ("bd3lm-base", "diffusion", "C is the text with its masked positions, O the same text without masks.", False),
        ("xlnet-base", "par", f"C is the given text, O the original tokens of what is predicted, visible to later "
         f"steps, P the pseudo masks that predict them. {STEPPED}", False),
        ("quickstart", "ae", f"P the pseudo masks that predict them. {STEPPED}", True),
    ],
)  # fmt: skip
def test_words_are_of_the_groups_and_masks_there_are(
    tmp_path: Path, page: Page, name: str, target: str, groups: str, noise: bool
) -> None:
    shown = page_of(finished(tmp_path / "run", name, {target: 4.0}))
    assert groups in shown.words and (NOISE in shown.words) is noise and (STEPPED in shown.words) is (STEPPED in groups)
    assert "The start of a held-out window, cut to 28 tokens" in shown.words
    if name == "gpt":
        assert NOTHING_TO_FILL in shown.words and not {"score", "fillings"} & {*shown.all("class")}
        assert NOTHING_TO_FILL not in page.words and {"score", "fillings"} <= {*page.all("class")}


@pytest.mark.parametrize("events", [1, 2, 3, 12])
def test_a_young_run(tmp_path: Path, events: int) -> None:
    page = page_of(make_run(tmp_path / "run", whole()[:events]))
    assert "still running, or killed" in page.words
    assert "Nothing measured yet." in page.words
    assert f"unicloze pretrain --out {tmp_path / 'run'}" in page.words
    assert ("No samples yet" in page.words) is (events == 1)
    assert "No checkpoint is saved yet." in page.words
    if events == 3:
        assert "held-out perplexity, ae - not evaluated yet" in cards(page)


def test_later_steps_count_and_lost_ones_are_forgotten(tmp_path: Path) -> None:
    events = [start()]
    events += [step(n, 100.0 + n, TIME + n) for n in range(1, 41)] + [evaluation(30, 999.0, TIME + 40)]
    # Killed; an hour later it resumes from step 20 and reaches step 25.
    events += [start("step-00000020", TIME + 3640)] + [step(n, 200.0 + n, TIME + 3620 + n) for n in range(21, 26)]
    history = History.read(make_run(tmp_path / "run", events))
    assert list(history.steps) == list(range(1, 26))
    assert dict(history.curve("loss", "ae")) == {n: (100.0 if n <= 20 else 200.0) + n for n in range(1, 26)}
    assert history.evaluations == {}
    assert (history.step, history.processes) == (25, 2)
    assert history.seconds == pytest.approx(40 + 5)
    assert "over 2 starts" in page_of(tmp_path / "run").words
    anew = [start(), step(1, 3.0), step(2, 3.0), start(), step(1, 4.0)]
    assert History.read(make_run(tmp_path / "anew", anew)).curve("loss", "ae") == [(1.0, 4.0)]
    resumed = whole()
    resumed.insert(60, start("step-00000025"))
    assert list(History.read(make_run(tmp_path / "on", resumed)).samples) == [0, 100]


def test_torn_and_foreign_lines_are_skipped(tmp_path: Path) -> None:
    events = whole()
    foreign = [
        {"event": "step"},
        {"event": "step", "step": "seven", "loss": 3},
        {"event": "step", "step": 7, "loss": ["ae"], "gradient_norm": None, "text_tokens": "many", "time": "noon"},
        {"event": "evaluate", "step": 8, "perplexity": 3},
        {"event": "samples", "step": 100, "samples": [None, {"masked": [3, {"position": "x"}], "tokens": 4}, {}]},
        {"event": "unheard of", "step": 9},
        {"no": "event"},
    ]
    run = make_run(tmp_path / "run", [*events[:50], *foreign, *events[50:]], torn='{"event": "step", "st')
    history = History.read(run)
    assert history.step == 100
    assert 7.0 not in dict(history.curve("loss", "ae"))
    assert "finished" in page_of(run).words
    (run / "ledger.jsonl").write_text("".join(json.dumps(e) + "\n" for e in [*events, foreign[4]]), encoding="utf-8")
    assert "after step 100" in page_of(run).words


def test_infinite_and_missing_numbers(tmp_path: Path) -> None:
    events = [start(), step(1, math.inf), step(2, math.nan), step(3, 5.0), evaluation(1, math.inf), evaluation(3, 1e30)]
    events[-1]["bits_per_byte"] = {}
    run = make_run(tmp_path / "run", events)
    page = page_of(run)
    assert "2 values left out: infinite, undefined or too large" in page.words
    assert "held-out perplexity, ae 1e+30 2,751 predictions" in cards(page)
    assert not re.search(r"\bnan\b", (run / "report.html").read_text(encoding="utf-8"))
    make_run(tmp_path / "only", [start(), step(1, math.inf), evaluation(1, math.inf)])
    assert "held-out perplexity, ae ∞" in cards(page_of(tmp_path / "only"))


def test_a_run_without_tokenizer_or_with_a_broken_recipe(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", whole())
    (run / "tokenizer.json").unlink()
    assert "An example sentence, as no held-out sample has enough words" in page_of(run).words
    (run / "recipe.yaml").write_text("data: [", encoding="utf-8")
    page = page_of(run)
    assert "No picture can be drawn" in page.words
    assert "name: quickstart" in page.words


def test_commands_try_a_held_out_sentence(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["the old cat sees a small dog ."] * 3, TokenizerSettings(vocab_size=60))
    sentence = tokenizer.encode("the old cat sees a dog.").tolist()
    run = make_run(tmp_path / "run", whole())
    assert example_texts(run)[0] == "She opened the [MASK] and looked out of the window."
    tokenizer.save(run)
    words = {"sentences": [[*sentence, tokenizer.vocabulary.unk], sentence], "places": [0, 2]}
    (run / "baselines.json").write_text(json.dumps({"baselines": {"words": words}}), encoding="utf-8")
    masked, whole_text = example_texts(run)
    assert whole_text == "the old cat sees a dog."
    assert f"unicloze score --model {run} --text 'the old cat sees a dog.'" in page_of(run).words
    assert masked == tokenizer.decode([*sentence[:2], tokenizer.vocabulary.mask, *sentence[3:]]).strip()


def test_a_watched_page_about_seeds_waits_for_the_last_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = {"event": "start", "recipe": {"name": "r", "task": {"kind": "classification"}}}
    for seed in (0, 1):
        make_run(tmp_path / f"seed-{seed}", [first, event("end", 3)])
    monkeypatch.setattr(pages, "build_report", lambda run, out, refresh=0: Path(run))
    monkeypatch.setattr(pages.time, "sleep", lambda _: (tmp_path / "results.json").write_text("{}"))
    assert pages.watch_report(tmp_path, every=1) == tmp_path
    assert (tmp_path / "results.json").is_file()


@pytest.mark.parametrize(("last", "status"), [
    (event("stop", 3, signal=15), "stopped by SIGTERM after step 3"),
    (event("failed", 3, message="the loss is nan"), "failed after step 3: the loss is nan"),
])  # fmt: skip
def test_the_page_shows_how_the_run_ended_and_does_not_watch_it(
    tmp_path: Path, last: dict[str, Any], status: str
) -> None:
    run = make_run(tmp_path / "run", [start(), step(3, 4.0), last])
    assert verbs.report(run, watch=1) == run / "report.html"
    assert status in Page((run / "report.html").read_text()).words


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UniclozeError, match=r"There is no run at .*absent: give .*pretrain"):
        build_report(tmp_path / "absent")
    with pytest.raises(UniclozeError, match=r"it has no ledger\.jsonl; give .*pretrain"):
        build_report(tmp_path)
    for content in ("", "no ledger at all\n", json.dumps(step(1, 3.0)) + "\n", "\x00\xff\n"):
        (tmp_path / "ledger.jsonl").write_text(content, encoding="latin-1")
        with pytest.raises(UniclozeError, match=r"ledger\.jsonl has no start of a run"):
            build_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_page_that_cannot_be_written_leaves_the_old_one(run: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    for place in ("absent/page.html", "folder.html"):
        with pytest.raises(UniclozeError, match="cannot write the report"):
            build_report(run, tmp_path / place)
    assert [file.name for file in tmp_path.iterdir()] == ["folder.html"]
    assert build_report(run, tmp_path / "page.html") == tmp_path / "page.html"


def luminance(colour: str) -> float:
    colour = re.sub(r"^#(.)(.)(.)$", r"#\1\1\2\2\3\3", colour)
    parts = [int(colour[first : first + 2], 16) / 255 for first in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(*colours: str) -> float:
    darker, lighter = sorted(map(luminance, colours))
    return (lighter + 0.05) / (darker + 0.05)


def test_every_text_contrasts_with_its_background() -> None:
    """WCAG's contrast of 4.5 for text, in the light and the dark theme."""
    places = "report/templates/page.css", "comparison/templates/comparison.css"
    general, compared = map(render, places)
    roots = [dict(re.findall(r"--(\w+):(#\w+)", root)) for root in re.findall(r":root\{([^}]*)\}", general)]
    series = re.findall(r"\.(c\d+)\{--own:(#\w+)\}", compared)
    assert len(roots) == 2 and len(series) == 2 * 16
    for root, own in zip(roots, (series[:16], series[16:]), strict=True):
        texts = [root[name] for name in ("ink", "muted", "ae", "par", "lm", "pair", "rtd", "plain", "good")]
        for behind in ("paper", "panel", "soft"):
            for colour in [*texts, *(value for _, value in own)]:
                assert contrast(colour, root[behind]) >= 4.5, (colour, behind)


def test_a_watched_page_reloads_until_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, events = make_run(tmp_path / "run", whole()[:3]), whole()
    seen: list[str] = []

    def next_event(seconds: float) -> None:
        assert seconds == 7
        seen.append((run / "report.html").read_text(encoding="utf-8"))
        with (run / "ledger.jsonl").open("a") as ledger:
            ledger.writelines(json.dumps(event) + "\n" for event in (events[3:10] if len(seen) == 1 else events[10:]))

    monkeypatch.setattr(pages.time, "sleep", next_event)
    verbs.report(run, watch=7)
    assert len(seen) == 2
    assert all('http-equiv="refresh" content="7"' in text and "still running, or killed" in text for text in seen)
    last = (run / "report.html").read_text(encoding="utf-8")
    assert "http-equiv" not in last and "finished" in last
    with pytest.raises(UsageError, match="watch is 0: give 1 or more"):
        verbs.report(run, watch=0)


def test_tensorboard_reads_the_curves_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = make_run(tmp_path / "run", [start(), step(1, 3.0), step(2, 2.5), evaluation(2, 40.0)])
    folder = tmp_path / "board"
    folder.mkdir()
    (folder / "events.out.tfevents.theirs").write_bytes(b"kept")
    for _ in range(2):
        verbs.report(run, tensorboard=folder)
    (ours,) = folder.glob("*.unicloze")
    assert (folder / "events.out.tfevents.theirs").read_bytes() == b"kept"
    found = dict(_scalars(ours))
    assert found["train/loss/ae", 1] == 3.0 and found["train/loss/par", 2] == 2.0
    assert found["train/text_tokens", 2] == 8192.0 and found["held-out/perplexity/par", 2] == 80.0
    mixed = {"event": "step", "step": 3, "time": 1.0, "loss": {"ae": 2.0, "par": None}, "speed": 5, "on": True}
    assert dict(curves(mixed)) == {"loss/ae": 2.0, "speed": 5.0}


def _scalars(file: Path) -> Iterator[tuple[tuple[str, int], float]]:
    from tensorboard.compat.proto.event_pb2 import Event

    content = file.read_bytes()
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        read = Event.FromString(content[12 : 12 + size])
        yield from (((v.tag, read.step), v.simple_value or v.tensor.float_val[0]) for v in read.summary.value)
        content = content[16 + size :]


def test_a_missing_tensorboard_is_one_sentence(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(UniclozeError, match=r"needs the package tensorboard: .* pip install -e '\.\[tensorboard\]'"):
        verbs.report(run, tmp_path / "report.html", tensorboard=tmp_path / "board")
    with pytest.raises(UsageError, match="--tensorboard is empty"):
        verbs.report(run, tmp_path / "report.html", tensorboard="")
    assert not any(tmp_path.glob("*"))  # nothing is written before the refusal
