"""One example as JSON and as text: the paper's example, its description, and the window it is made from."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

from toys import token_source
from unicloze import keyed
from unicloze.errors import UsageError
from unicloze.example import predicts_tokens
from unicloze.objectives.unilmv2 import ALL_MASKED, lay_out
from unicloze.recipes import load_recipe, recipe_names
from unicloze.report.example_view import (
    ExampleView,
    example_of,
    example_title,
    part_of,
    spell,
    tokens_of,
    view_of,
)
from unicloze.settings import Recipe
from unicloze.text.sampler import WindowSampler
from unicloze.text.tokenizers import Tokenizer, whitespace_tokenizer
from unicloze.text.windows import windows_of

WORDS = "x1 x2 x3 x4 x5 x6"
PLAIN = {"objective.mask_share": 1.0, "objective.random_share": 0.0}
LONG = " ".join(f"w{i}" for i in range(60))


def paper_view() -> ExampleView:
    """[SOS] x1 .. x6 [EOS]; x4 and x5 are predicted first, then x2."""
    tokenizer = whitespace_tokenizer(WORDS)
    windows = windows_of([[tokenizer.encode(WORDS)]], tokenizer.vocabulary, keys=keyed.key(0))
    steps = np.array([[-1, -1, 1, -1, 0, 0, -1, -1]], dtype=np.int32)
    vocabulary = tokenizer.vocabulary
    assert vocabulary.pseudo is not None
    examples = lay_out(windows, steps, vocabulary, ALL_MASKED, predict=("ae", "par"), pseudo=vocabulary.pseudo)
    return ExampleView.of(examples, tokenizer, title="the paper's example")


def recipe(**overrides: Any) -> Recipe:
    return load_recipe("quickstart", {key.replace("__", "."): value for key, value in overrides.items()})


def test_the_papers_example_as_json() -> None:
    shown = json.loads(json.dumps(paper_view().to_dict()))
    assert list(shown) == ["slots", "visible", "targets"]
    answers = ["x4", "x5", "x2"]
    context = ["context", "context", "mask", "context", "mask", "mask", "context", "context"]
    columns = {
        "slot": range(14),
        "token": ["[SOS]", "x1", "[MASK]", "x3", "[MASK]", "[MASK]", "x6", "[EOS]", *answers, *["[PSEUDO]"] * 3],
        "position": [*range(8), 4, 5, 2, 4, 5, 2],
        "segment": [0] * 14,
        "kind": [*context, *["original"] * 3, *["pseudo"] * 3],
        "step": [None, None, 2, None, 1, 1, None, None, 1, 1, 2, 1, 1, 2],
        "random": [False] * 14,
    }
    assert shown["slots"] == [dict(zip(columns, slot, strict=True)) for slot in zip(*columns.values(), strict=True)]
    assert shown["targets"]["ae"] == {"slots": [4, 5, 2], "labels": answers}
    assert shown["targets"]["par"] == {"slots": [11, 12, 13], "labels": answers}


def test_random_tokens_are_marked() -> None:
    tokenizer = _long()
    settings = recipe(objective__mask_share=0.0, objective__random_share=0.5, data__segments=1)
    view = view_of(settings, tokenizer.encode(LONG), 0, tokenizer)
    random = [slot for slot in view.slots if slot.random]
    masked = [slot for slot in view.slots if slot.kind in ("mask", "pseudo")]
    assert 3 < len(random) < len(masked)
    assert random == [slot for slot in masked if slot.token != LONG.split()[slot.position - 1]]
    lines = str(view).splitlines()
    assert "* shows a random token instead of a mask" in lines
    assert sum("mask*" in line or "pseudo*" in line for line in lines) == len(random)
    assert [slot["random"] for slot in view.to_dict()["slots"]] == [slot.random for slot in view.slots]
    assert "random token" not in str(view_of(recipe(**PLAIN), tokenizer.encode(LONG), 0, tokenizer))


def test_every_layers_visibility_is_shown() -> None:
    """GPT-3's local layers next to its full ones."""
    settings = load_recipe("gpt-3-small", {"objective.local_width": 2, "model.num_layers": 4})
    tokenizer = whitespace_tokenizer(WORDS)
    view = view_of(settings, tokenizer.encode(WORDS), 0, tokenizer)
    shown = view.to_dict()
    size = len(view.slots)
    full = np.tril(np.ones((size, size), dtype=int))
    local = full - np.tril(full, -3)
    assert list(shown) == ["slots", "visible", "visible_local", "layers", "targets"]
    assert shown["visible"] == full.tolist() and shown["visible_local"] == local.tolist()
    assert shown["layers"] == ["full", "local", "full", "local"]
    lines = str(view).splitlines()
    first, second = lines.index("full: layers 1, 3"), lines.index("local: layers 2, 4")
    assert [line.split()[1] for line in lines[first + 2 : second - 1]] == ["".join(map(str, row)) for row in full]
    assert [line.split()[1] for line in lines[second + 2 :]] == ["".join(map(str, row)) for row in local]


def test_the_papers_example_as_matrix_and_text() -> None:
    view = paper_view()
    rows = ["".join(map(str, row)) for row in view.to_dict()["visible"]]
    c, early, late = "1" * 8, "11111111110000", "11111111111000"
    assert rows == [c + "000000"] * 8 + [early] * 2 + [late] + [c + "000110"] * 2 + [c + "110001"]
    lines = str(view).splitlines()
    assert lines[:2] == ["the paper's example", "steps: 4 5 -> 2  (by position; [SOS] is 0)"]
    start = lines.index("reads  C        O   P")
    assert lines[start + 3] == "C2     11111111 000 000"
    assert lines[start + 9 :] == [
        "O4     11111111 110 000",
        "O5     11111111 110 000",
        "O2     11111111 111 000",
        "P4     11111111 000 110",
        "P5     11111111 000 110",
        "P2     11111111 110 001",
    ]
    row = next(line for line in lines if line.split()[:2] == ["13", "P2"])
    assert row.split() == ["13", "P2", "[PSEUDO]", "2", "0", "pseudo", "2", "par:", "x2"]


def test_padding_and_groups_without_slots_are_left_out() -> None:
    tokenizer = whitespace_tokenizer(WORDS)
    words = tokenizer.encode(WORDS)
    examples = example_of(recipe(**PLAIN), words, 0, tokenizer)
    view = ExampleView.of(examples, tokenizer)
    assert examples.input_ids.shape[1] > examples.lengths[0] == len(view.slots) == len(view.visible)
    alone = ExampleView.of(example_of(recipe(objective__targets=["ae"]), words, 0, tokenizer), tokenizer)
    assert alone.groups == [("C", 9)] and alone.visible.all()


def test_every_masked_position_counts_as_a_mask_whatever_token_it_shows() -> None:
    kept = recipe(objective__mask_share=0.0, objective__random_share=0.0, objective__mask_rate=0.5)
    view = ExampleView.of(example_of(kept, np.arange(7, 27, dtype=np.int32), 1, whitespace_tokenizer(LONG)), _long())
    masked = [slot for slot in view.slots if slot.kind == "mask"]
    assert len(masked) >= 10
    assert all(slot.token.startswith("w") and slot.step is not None for slot in masked)
    assert {slot.position for slot in masked} == {slot.position for slot in view.slots if slot.kind == "pseudo"}


def test_the_seed_names_the_draws() -> None:
    tokenizer = _long()
    words = tokenizer.encode(LONG)
    one, same, other = (view_of(recipe(), words, seed, tokenizer).to_dict() for seed in (1, 1, 2))
    assert one == same != other


def test_a_long_text_is_cut_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    short, tokenizer = recipe(data__window=16), _long()
    words, _ = tokens_of(short, LONG, tokenizer)
    assert example_of(short, words, 0, tokenizer).text_tokens.tolist() == [16]
    said = capsys.readouterr().err
    assert "60 tokens" in said and "room for 13" in said
    tokens_of(recipe(data__window=64), LONG, tokenizer)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", ["", "   ", "one"])
def test_a_text_of_too_few_tokens_is_refused(text: str) -> None:
    tokenizer = whitespace_tokenizer("one")
    with pytest.raises(UsageError, match="2 segment"):
        example_of(recipe(), tokenizer.encode(text), 0, tokenizer)


def test_special_names_in_the_text_are_never_predicted() -> None:
    text = "[MASK] a [EOS] b"
    masked = recipe(objective__mask_rate=1.0)
    token_ids, tokenizer = tokens_of(masked, text, whitespace_tokenizer(text))
    examples = example_of(masked, token_ids, 0, tokenizer)
    answers = ExampleView.of(examples, tokenizer).targets["ae"]
    assert sorted(answers.labels) == ["a", "b"]


def test_the_title_names_the_part_of_a_mixture_that_is_shown() -> None:
    mixture = load_recipe("unilm-v1-base")
    assert example_title(recipe()) == "quickstart, as in the paper: objective unilmv2, targets ae + par"
    assert example_title(mixture) == "unilm-v1-base, bidirectional: objective masked, targets ae + nsp"
    part = part_of(mixture, "left-to-right")
    assert example_title(part) == "unilm-v1-base, left-to-right: objective masked, targets ae"


def shown(name: str, seed: int = 0, **overrides: Any) -> ExampleView:
    made = load_recipe(name, {"data.window": 32} | {key.replace("__", "."): value for key, value in overrides.items()})
    tokenizer = whitespace_tokenizer(LONG, made.tokenizer.extra_tokens)
    return ExampleView.of(example_of(made, tokenizer.encode(LONG)[:20], seed, tokenizer), tokenizer)


@pytest.mark.parametrize(("name", "target"), [("bert-base", "nsp"), ("albert-base", "sop"), ("unilm-v1-base", "nsp")])
def test_the_relation_of_segments_is_shown_in_words(name: str, target: str) -> None:
    view = shown(name)
    assert view.to_dict()["targets"][target] == {"slots": [0], "labels": ["follows"]}
    assert view.predictions[0] == f"{target}: follows"
    assert "[PAD]" not in str(view)
    tokenizer = _long()
    assert spell(target, np.array([0, 1]), tokenizer) == ["follows", "does not follow"]


def test_electra_labels_each_slot_with_a_question() -> None:
    view = shown("electra-small")
    asked = view.targets["rtd"]
    assert asked.labels == ["replaced?"] * len(view.slots)
    masked = next(slot for slot in view.slots if slot.kind == "mask")
    assert view.predictions[masked.slot] == f"ae: w{masked.position - 1}, rtd: replaced?"
    assert view.predictions[0] == "rtd: replaced?"


@pytest.mark.parametrize("name", recipe_names())
def test_the_order_lists_what_is_predicted(name: str) -> None:
    for seed in range(4):
        view = shown(name, seed)
        steps = {slot.position: slot.step for slot in view.slots if slot.step is not None and slot.kind != "pseudo"}
        order = [int(position) for step in view.order.split(" -> ") for position in step.split() if position != "none"]
        assert len(order) == len(set(order)) == len(steps)
        for target, answers in view.targets.items():
            if predicts_tokens(target) and steps:
                assert len(answers.labels) == len(order)


def test_the_order_of_mass_is_that_of_its_answers() -> None:
    view = shown("mass-base")
    tokens = {slot.position: slot.token for slot in view.slots if slot.kind == "original"}
    order = [int(position) for position in view.order.split(" -> ")]
    assert [tokens[position] for position in order if position in tokens] == view.targets["lm"].labels[: len(tokens)]
    first = next(slot for slot in view.slots if slot.kind == "pseudo")
    assert order[0] == first.position + 1


def test_a_given_text_becomes_the_window_the_sampler_would_cut(tmp_path: Any) -> None:
    tokenizer = _long()
    ids = tokenizer.encode(LONG)[:21]
    source = token_source(tmp_path, [ids])
    for seed, segments in itertools.product(range(5), (1, 2)):
        shape = {"segments": segments, "window": 22 + segments}
        sampled = WindowSampler([source], **shape, vocabulary=tokenizer.vocabulary, seed=seed).read(0, 1)
        settings = recipe(objective__targets=["ae"], **{f"data__{name}": value for name, value in shape.items()})
        view = ExampleView.of(example_of(settings, ids, seed, tokenizer), tokenizer)
        tokens = [slot.token for slot in view.slots]
        for slot, label in zip(view.targets["ae"].slots, view.targets["ae"].labels, strict=True):
            tokens[slot] = label
        assert tokens == tokenizer.tokens(sampled.token_ids[0])
        assert [slot.segment for slot in view.slots] == sampled.segment_ids[0].tolist()


def _long() -> Tokenizer:
    return whitespace_tokenizer(LONG)
