"""Filling masks against loops with a separate pass for each step, and the resulting text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import numpy as np
import pytest
import torch

from decoding_toys import CAUSAL, Slot, byte_level, context, loaded, probabilities, roberta_like, wordpiece
from unicloze.decoding import infill
from unicloze.decoding.infill import FillResult, fill, filled_row
from unicloze.decoding.inputs import logits_of
from unicloze.errors import UsageError
from unicloze.objectives.unilmv2 import pseudo_id
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.loading import LoadedModel

RELATIVE = pytest.mark.parametrize("relative", [False, True])
MASKED = "the [MASK] of [MASK] [MASK] is empty , return [MASK] ."
PLACES = [2, 4, 5, 10]
KINDS_OF_PAR = pytest.mark.parametrize(
    "settings", [{}, {"targets": ["par"], "masks_in_context": False}, {"pseudo_token": "mask"}], ids=str
)


def window(model: LoadedModel, text: str) -> list[int]:
    vocabulary = model.tokenizer.vocabulary
    return [vocabulary.sos, *model.tokenizer.encode(text).tolist(), vocabulary.eos]


def ordinary(model: LoadedModel, row: list[Slot], predict: list[int]) -> np.ndarray:
    """Probabilities without special tokens. *Shape:* (predictions, vocabulary)"""
    distribution = probabilities(model, row, predict).astype(np.float64)
    distribution[:, model.tokenizer.vocabulary.special] = 0
    return distribution / distribution.sum(axis=1, keepdims=True)


def one_step(
    model: LoadedModel, tokens: list[int], masked: list[int], filled: list[list[tuple[int, int]]], asked: list[int]
) -> np.ndarray:
    """Predict these positions in one separate step: C, O of earlier steps, P of these positions and nothing else."""
    vocabulary, settings = model.tokenizer.vocabulary, model.recipe.objective
    c = context(tokens, without=frozenset() if settings.masks_in_context else frozenset(masked))
    o: list[Slot] = []
    for step in filled:
        reads = len(c) + len(o) + len(step)
        o += [Slot(token, position, reads) for position, token in step]
    known = len(c) + len(o)
    p = [Slot(pseudo_id(vocabulary, settings), position, reads=known + len(asked)) for position in asked]
    return ordinary(model, [*c, *o, *p], list(range(known, known + len(asked))))


def check(result: FillResult, expected: dict[int, tuple[int, np.ndarray]], model: LoadedModel) -> None:
    """Compare with the step and the distribution of each position."""
    assert [mask.position for mask in result.masks] == sorted(expected)
    for mask in result.masks:
        step, distribution = expected[mask.position]
        best = np.argsort(-distribution)[: len(mask.top)]
        assert mask.step == step + 1
        assert [token for token, _ in mask.top] == model.tokenizer.tokens(best)
        assert mask.token == mask.top[0][0]
        np.testing.assert_allclose([p for _, p in mask.top], distribution[best], atol=1e-5)


@RELATIVE
def test_without_an_order_ae_fills_all_masks_at_once(relative: bool) -> None:
    model = loaded(relative=relative)
    result = fill(model, MASKED, top_k=4)
    distributions = ordinary(model, context(window(model, MASKED)), PLACES)
    check(result, {place: (0, distributions[i]) for i, place in enumerate(PLACES)}, model)
    assert (result.target, result.order) == ("ae", None)


@RELATIVE
@KINDS_OF_PAR
@pytest.mark.parametrize(("order", "turns"), [
    ("left-to-right", [[2], [4], [5], [10]]), ("span", [[2], [4, 5], [10]]), ((3, 1, 4, 2), [[5], [2], [10], [4]]),
])  # fmt: skip
def test_an_order_equals_a_pass_for_each_step(
    order: Any, turns: list[list[int]], settings: dict, relative: bool
) -> None:
    model = loaded(relative=relative, **settings)
    tokens, filled, expected = window(model, MASKED), [], {}
    for step, places in enumerate(turns):
        distributions = one_step(model, tokens, PLACES, filled, places)
        expected |= {place: (step, distribution) for place, distribution in zip(places, distributions, strict=True)}
        filled.append([(place, int(expected[place][1].argmax())) for place in places])
    result = fill(model, MASKED, order=order)
    check(result, expected, model)
    named = order if isinstance(order, str) else list(order)
    assert (result.target, result.order) == ("par", named)
    assert f"(par, order {named if isinstance(named, str) else '3 1 4 2'})" in str(result)


def test_by_confidence_each_mask_is_predicted_as_if_it_were_first() -> None:
    """MPNet's rows have the masks of later steps in them, which read each other."""
    model = loaded(name="compensated", targets=["par"])
    surest = fill(model, MASKED, top_k=3)
    (first,) = (number for number, mask in enumerate(surest.masks, 1) if mask.step == 1)
    others = [number for number in range(1, 1 + len(surest.masks)) if number != first]
    named = fill(model, MASKED, order=[first, *others], top_k=3)
    assert surest.order == "confidence"
    np.testing.assert_allclose(*([p for _, p in each.masks[first - 1].top] for each in (surest, named)), atol=1e-6)


@pytest.mark.parametrize("order", [[1, 2, 3], [1, 2, 3, 3], [0, 1, 2, 3], [1, 2, 3, 4, 5], []])
def test_a_given_order_names_each_mask_once(order: list[int]) -> None:
    with pytest.raises(UsageError, match="does not name each of the 4 masks once: number them from 1"):
        fill(loaded(), MASKED, order=order)


@RELATIVE
@pytest.mark.parametrize("order", [None, "confidence", "left-to-right", "span", [4, 2, 3, 1]], ids=str)
def test_the_row_of_a_filled_text_predicts_in_one_pass_what_the_steps_did(order: Any, relative: bool) -> None:
    model = loaded(relative=relative)
    result = fill(model, MASKED, order=order, top_k=1)
    row = filled_row(model, result)
    logits, labels = (tensor.clone() for tensor in logits_of(model, row))
    logits[:, :, torch.from_numpy(model.tokenizer.vocabulary.special).long()] = -torch.inf
    found = torch.softmax(logits[0], dim=-1).max(dim=-1)
    by_step = sorted(result.masks, key=lambda mask: (mask.step, mask.position))
    assert labels[0].tolist() == found.indices.tolist()
    assert model.tokenizer.tokens(labels[0].tolist()) == [mask.token for mask in by_step]
    np.testing.assert_allclose(found.values, [mask.top[0][1] for mask in by_step], atol=1e-5)


def test_a_text_longer_than_the_model_reads_has_no_row() -> None:
    model = loaded(positions=12)
    with pytest.warns(UserWarning, match="the model reads 10 at once"):
        result = fill(model, "[MASK] list of items is empty and not given to the value")
    with pytest.raises(UsageError, match="the text has 12 tokens, but the model reads 10 at once"):
        filled_row(model, result)


def one_by_one(
    places: list[int], guess: Callable[[int, dict[int, int]], np.ndarray], *, surest: bool
) -> dict[int, tuple[int, np.ndarray]]:
    """Step and distribution of each mask, in the order they are filled: the surest next, or from left to right."""
    filled: dict[int, int] = {}
    expected: dict[int, tuple[int, np.ndarray]] = {}
    for step in range(len(places)):
        guesses = {place: guess(place, filled) for place in places if place not in filled}
        chosen = max(guesses, key=lambda place: guesses[place].max()) if surest else min(guesses)
        expected[chosen] = (step, guesses[chosen])
        filled[chosen] = int(guesses[chosen].argmax())
    return expected


@RELATIVE
@KINDS_OF_PAR
def test_confidence_fills_the_surest_of_separate_passes_next(settings: dict, relative: bool) -> None:
    model = loaded(relative=relative, **settings)
    text = "[MASK] list of [MASK] items [MASK] [MASK] not empty ; [MASK] to [MASK]"
    tokens, places = window(model, text), [1, 4, 6, 7, 11, 13]

    def guess(place: int, filled: dict[int, int]) -> np.ndarray:
        return one_step(model, tokens, places, [[step] for step in filled.items()], [place])[0]

    expected = one_by_one(places, guess, surest=True)
    check(fill(model, text, order="confidence"), expected, model)
    assert list(expected) != places, "choose another text: this order proves nothing"


def test_the_first_part_that_defines_it_fills_by_confidence_if_it_has_no_ae() -> None:
    masked, par = {"name": "masked", "targets": ["ae"]}, loaded(targets=["par"])
    mixture = loaded(mixture=[masked, {"label": "par", "pseudo_token": "mask"}])
    assert fill(loaded(**masked), MASKED) == fill(mixture, MASKED) == fill(loaded(), MASKED)
    assert fill(mixture, MASKED, order="span") == fill(loaded(pseudo_token="mask"), MASKED, order="span")
    assert fill(par, MASKED) == fill(par, MASKED, order="confidence")


@pytest.mark.parametrize("order", [None, "span"])
def test_a_causal_model_fills_no_masks(order: str | None) -> None:
    message = "causal does not define filling masks, neither all at once nor in an order .confidence, left-to-right"
    with pytest.raises(UsageError, match=message):
        fill(loaded(**CAUSAL), MASKED, order=order)  # type: ignore[arg-type]


def test_special_tokens_are_never_predicted() -> None:
    model = loaded()
    vocabulary = model.tokenizer.vocabulary
    with torch.no_grad():
        model.model.token_head.bias[vocabulary.special.tolist()] = 100.0
    for order in (None, "left-to-right", "confidence", "span"):
        for mask in fill(model, MASKED, top_k=1000, order=order).masks:
            assert {token for token, _ in mask.top} == set(model.tokenizer.tokens(vocabulary.ordinary))
            assert sum(p for _, p in mask.top) == pytest.approx(1, abs=1e-5)
            assert mask.readable == [token for token, _ in mask.top]


class Long:
    """A text longer than the model's ten tokens, read through windows."""

    def __init__(self, model: LoadedModel, text: str) -> None:
        self.model, self.tokens = model, model.tokenizer.encode(text).tolist()
        self.places = [i for i, token in enumerate(self.tokens) if token == model.tokenizer.vocabulary.mask]

    def filled(self, *, surest: bool) -> dict[int, tuple[int, np.ndarray]]:
        return {place + 1: found for place, found in one_by_one(self.places, self.step, surest=surest).items()}

    def row(self, place: int) -> tuple[int, list[int]]:
        """First token and tokens of the window centred on a mask."""
        start = min(max(0, place - 5), len(self.tokens) - 10)
        assert 0 <= place - start < 10
        vocabulary = self.model.tokenizer.vocabulary
        return start, [vocabulary.sos, *self.tokens[start : start + 10], vocabulary.eos]

    def step(self, place: int, filled: dict[int, int]) -> np.ndarray:
        """A separate pass that predicts a mask from those filled before in its window."""
        start, row = self.row(place)
        masked = [p - start + 1 for p in self.places if start <= p < start + 10]
        before = [[(p - start + 1, token)] for p, token in filled.items() if start <= p < start + 10]
        (distribution,) = one_step(self.model, row, masked, before, [place - start + 1])
        return distribution


@RELATIVE
def test_long_texts_are_read_through_a_window_at_each_mask(relative: bool) -> None:
    model = loaded(positions=12, relative=relative)
    text = "[MASK] list of items is empty and not given to [MASK] value [MASK] return the list of items . ( x ) [MASK]"
    long = Long(model, text)
    with pytest.warns(UserWarning, match="the text has 23 tokens, but the model reads 10 at once") as warned:
        result = fill(model, text)
    assert len(warned) == 1
    expected = {}
    for place in long.places:
        start, row = long.row(place)
        expected[place + 1] = (0, ordinary(model, context(row), [place - start + 1])[0])
    check(result, expected, model)
    with pytest.warns(UserWarning, match="reads 10 at once"):
        check(fill(model, text, order="left-to-right"), long.filled(surest=False), model)


def test_confidence_in_long_texts_is_recomputed_wherever_the_last_fill_is_visible() -> None:
    model = loaded(positions=12)
    text = "[MASK] list [MASK] items is empty and not [MASK] to the value [MASK] return the list of [MASK] ."
    with pytest.warns(UserWarning, match="reads 10 at once"):
        check(fill(model, text, order="confidence"), Long(model, text).filled(surest=True), model)


def test_a_run_of_masks_longer_than_the_model_reads_is_refused() -> None:
    model = loaded(positions=6)
    with pytest.raises(UsageError, match="5 adjacent masks"):
        fill(model, "the " + "[MASK] " * 5, order="span")
    with pytest.warns(UserWarning, match="reads 4"):
        assert len(fill(model, "the " + "[MASK] " * 5, order="confidence").masks) == 5


def test_offsets_point_at_the_masks_of_the_given_text() -> None:
    text = "Ünï [MASK]çode 🎉 <mask>.[MASK]"
    for model in (loaded(), loaded(byte_level()), loaded(roberta_like(), positions=64)):
        known = model.tokenizer.token_id("<mask>") is not None
        result = fill(model, text)
        assert [text[m.start : m.end] for m in result.masks] == ["[MASK]", *(["<mask>"] * known), "[MASK]"]


def predict(monkeypatch: pytest.MonkeyPatch, guesses: Iterator[tuple[int | None, float]]) -> None:
    """Let the model guess these, one mask after the other."""

    def answer(model: LoadedModel, windows: list[Any]) -> Iterator[None]:
        for window in windows:
            window.of.guesses.update({place: [next(guesses)] for place in window.places})
        yield None

    monkeypatch.setattr(infill, "_answer", answer)


def filled_with(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, text: str, fills: list[str]) -> str:
    """The filled text if the model predicted `fills`."""
    model = loaded(tokenizer, positions=64)
    ids = [tokenizer.token_id(token) for token in fills]
    assert None not in ids, fills
    predict(monkeypatch, iter((token, 1.0) for token in ids))
    result = fill(model, text, order="left-to-right")
    assert [mask.token for mask in result.masks] == fills
    return result.filled


@pytest.mark.parametrize(("text", "fills", "filled"), [
    ("Return a [MASK] of Ünïcode ITEMS\n\t🎉", ["list"], "Return a list of Ünïcode ITEMS\n\t🎉"),
    ("Play [MASK]  now", ["##ing"], "Playing  now"),
    ("Play [MASK] [MASK] now", ["##s", "##ed"], "Playsed now"),
    ("([MASK])", ["list"], "(list)"),
    ("x-[MASK]-x [MASK]", ["list", "."], "x-list-x."),
    ("[MASK][MASK]", ["list", "of"], "list of"),
    ("[MASK][MASK]", ["list", "."], "list."),
    ("[MASK] \n [MASK]", ["list", "of"], "list \n of"),
    ("[MASK]", ["##ing"], "ing"),
    ("  [MASK] x  ", ["the"], "  the x  "),
    ("İ ẞ ﬁ\u00a0«ÇASE» [MASK] é", ["the"], "İ ẞ ﬁ\u00a0«ÇASE» the é"),
])  # fmt: skip
def test_word_pieces_are_spliced_into_the_text(
    monkeypatch: pytest.MonkeyPatch, text: str, fills: list[str], filled: str
) -> None:
    assert filled_with(monkeypatch, wordpiece(), text, fills) == filled


@pytest.mark.parametrize(("text", "fills", "filled"), [
    ("Return a [MASK] of ÜN🎉", ["Ġlist"], "Return a list of ÜN🎉"),
    ("Return a list[MASK] of", ["s"], "Return a lists of"),
    ("Return a list [MASK] of", ["s"], "Return a lists of"),
    ("Return a caf[MASK][MASK]!", ["Ã", "©"], "Return a café!"),
    ("Return a caf[MASK] [MASK] !", ["Ã", "©"], "Return a café !"),
    ("[MASK] a", ["ĠReturn"], "Return a"),
    (" [MASK] a", ["ĠReturn"], " Return a"),
    ("a\n[MASK] a", ["Return"], "a\nReturn a"),
    ("([MASK])", ["a"], "(a)"),
])  # fmt: skip
def test_bytes_are_spliced_into_the_text(
    monkeypatch: pytest.MonkeyPatch, text: str, fills: list[str], filled: str
) -> None:
    assert filled_with(monkeypatch, byte_level(), text, fills) == filled


@pytest.mark.parametrize(("text", "token", "readable"), [
    ("a [MASK] a", "ĠReturn", "Return"),
    ("a [MASK] a", "s", "##s"),
    ("a [MASK] [MASK]", ".", "."),
    ("[MASK] a", "R", "R"),
    ("([MASK])", "a", "a"),
    ("a [MASK] a", "Ċ", "\u23ce"),
    ("a [MASK] a", "Ġ", "\u2423"),
    ("a [MASK] a", "Ã", "\ufffd"),
])  # fmt: skip
def test_candidates_of_byte_symbols_are_shown_as_text(
    monkeypatch: pytest.MonkeyPatch, text: str, token: str, readable: str
) -> None:
    model = loaded(byte_level(), positions=64)
    predict(monkeypatch, repeat((model.tokenizer.token_id(token), 0.5)))
    result = fill(model, text)
    assert (result.masks[0].top, result.masks[0].readable) == ([(token, 0.5)], [readable])
    assert f"  {readable} 50.0%" in f" {result}"


@pytest.mark.parametrize(("text", "note"), [
    ("the [MASK] of", None),
    ("the zebra [MASK] of", "1 token not in the vocabulary is read as [UNK]"),
    ("the zebra [MASK] of zebra", "2 tokens not in the vocabulary are read as [UNK]"),
])  # fmt: skip
def test_words_that_the_vocabulary_lacks_are_reported(text: str, note: str | None) -> None:
    result = fill(loaded(), text)
    assert result.note == note and (f"note: {note}" in str(result)) == (note is not None)


def test_a_byte_level_mask_replaces_the_space_before_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for tokenizer, name in ((byte_level(), "[MASK]"), (roberta_like(), "<mask>")):
        model, fed = loaded(tokenizer, positions=64), []
        logits = model.model.logits
        monkeypatch.setattr(model.model, "logits", lambda batch, f=fed, g=logits: f.append(batch.input_ids) or g(batch))
        fill(model, "a [MASK] a")
        tokens = fed[0][0, 1:-1].tolist()
        assert tokenizer.tokens(tokens)[:2] == ["a", name]
        assert tokenizer.decode(tokens[2:]) == " a"


def test_results_print_and_serialise() -> None:
    result = fill(loaded(), MASKED, top_k=2, order="span")
    assert json.loads(json.dumps(result.to_dict()))["masks"][1]["step"] == 2  # as the text says
    lines = str(result).split("\n")
    assert lines[0] == result.filled
    assert lines[2] == "candidates (par, order span):" and lines[4].startswith("  [MASK] 2   step 2   ")


@pytest.mark.parametrize(("settings", "arguments", "message"), [
    ({}, {"text": "the list"}, 'the text has no mask: put .* as in "The'),
    ({}, {"text": " \n"}, "the text is empty"),
    ({}, {"text": "\udcff [MASK]"}, "the text is not valid Unicode at character 0"),
    ({}, {"text": "[MASK]", "top_k": 0}, "top_k is 0"),
    ({}, {"text": "[MASK]", "order": "random"}, "order is 'random': give one of confidence, left-to-right, span"),
    ({"targets": ["ae"]}, {"text": "[MASK]", "order": "span"},
     "unilmv2 with the target ae does not define an order: leave out order 'span', and all masks are filled at once"),
])  # fmt: skip
def test_bad_input_is_refused(settings: dict, arguments: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fill(loaded(**settings), **arguments)


def together(model: LoadedModel, asked: list[infill.ToFill]) -> tuple[list[FillResult], int]:
    """Results of texts that are filled together, and the number of forward passes."""
    passes = sum(1 for _ in infill.fill_together(model, asked))
    return [text.result(model.tokenizer) for text in asked], passes


@RELATIVE
@pytest.mark.filterwarnings("ignore:the text has")
def test_texts_filled_together_are_filled_as_each_alone(relative: bool) -> None:
    model = loaded(relative=relative)
    long = "the list of items is empty , return the [MASK] of " * 4 + "[MASK]"
    asked: list[tuple[str, dict[str, Any]]] = [
        (MASKED, {"order": order, "top_k": top_k})
        for top_k, order in enumerate([None, "confidence", "left-to-right", "span", [4, 2, 1, 3]], start=1)
    ]
    asked += [("[MASK] list", {"order": "confidence"}), (long, {}), (long, {"order": "confidence"})]
    results, passes = together(model, [infill.ready_to_fill(model, text, **how) for text, how in asked])
    assert passes < 12
    for (text, how), result in zip(asked, results, strict=True):
        alone = fill(model, text, **how)
        assert (result.filled, result.target, result.order) == (alone.filled, alone.target, alone.order)
        for one, other in zip(result.masks, alone.masks, strict=True):
            assert (one.step, one.token, one.readable) == (other.step, other.token, other.readable)
            assert dict(one.top) == pytest.approx(dict(other.top), abs=1e-5)


@pytest.mark.parametrize("order", ["left-to-right", "confidence"])
def test_texts_filled_together_share_forward_passes(order: Any) -> None:
    model = loaded()
    asked = [infill.ready_to_fill(model, MASKED, order=order) for _ in range(20)]
    assert together(model, asked)[1] == 4 == together(model, asked[:1])[1]
