"""T5's spans, BART's noise and MASS's fragment: the papers' examples, statistics against the definitions, loss floors."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

import toys
from objective_toys import BART, MASS, T5, equally_likely, infilling, predicted, spelled, spoken, text_windows
from toys import MASK, vocabulary
from unicloze import keyed
from unicloze.errors import UsageError
from unicloze.example import Examples
from unicloze.mixtures import parts
from unicloze.objectives import defined, denoising, make_examples
from unicloze.objectives.seq2seq import text_of
from unicloze.recipes import load_recipe, toy_overrides

PARTY = "Thank you for inviting me to your party last week ."


def noise_of(text: str, *words: str) -> np.ndarray:  # type: ignore[type-arg]
    return np.array([word in words for word in text.split()])


def sources(examples: Examples) -> list[tuple[int, ...]]:
    """The tokens of each source without [SOS] and [EOS]."""
    return [tuple(ids[1 : count - 1].tolist()) for ids, count in zip(examples.input_ids, examples.mutual, strict=True)]


# T5


def test_t5s_own_example() -> None:
    windows, tokenizer = spoken(PARTY)
    noise = noise_of(PARTY, "for", "inviting", "last")
    words = tokenizer.vocabulary
    row = denoising.corrupt_spans(windows, text_of(windows, words), noise, words, T5, np.array([0.5]))
    assert spelled(row, tokenizer) == (
        "[SOS] Thank you [EXTRA0] me to your party [EXTRA1] week . [EOS] "
        "| [EXTRA0] for inviting [EXTRA1] last [EXTRA2] [EOS]"
    )
    assert predicted(row, tokenizer) == (
        "[EOS] -> [EXTRA0], [EXTRA0] -> for, for -> inviting, inviting -> [EXTRA1], [EXTRA1] -> last, "
        "last -> [EXTRA2], [EXTRA2] -> [EOS]"
    )


def test_spans_are_distinguished_at_the_edges_of_rows() -> None:
    windows, tokenizer = spoken("a b c d e", rows=2)
    noise = np.array([True, False, False, False, True, True, True, False, False, False])
    single, words = dataclasses.replace(T5, mean_span=1.0), tokenizer.vocabulary
    rows = denoising.corrupt_spans(windows, text_of(windows, words), noise, words, single, np.array([0.4, 0.4]))
    first, second = (spelled(rows, tokenizer, row) for row in (0, 1))
    assert first == "[SOS] [EXTRA0] b c d [EXTRA1] [EOS] | [EXTRA0] a [EXTRA1] e [EXTRA2] [EOS]"
    assert second == "[SOS] [EXTRA0] c d e [EOS] | [EXTRA0] a b [EXTRA1] [EOS]"


@pytest.mark.parametrize(("rate", "mean_span"), [(0.15, 3.0), (0.15, 8.0), (0.5, 3.0), (0.15, 64.0), (0.9, 1.0)])
def test_noise_tokens_and_spans_are_exact_in_every_row(rate: float, mean_span: float) -> None:
    windows = toys.random_windows(300, 80, short=True)
    text = text_of(windows, vocabulary())
    settings = dataclasses.replace(T5, mean_span=mean_span)
    noise = denoising.draw_noise(text, windows.keys, settings, np.full(300, rate))
    for start, end in zip(text.starts, text.ends, strict=True):
        row, tokens = noise[start:end], int(end - start)
        wanted = min(max(round(tokens * rate), 1), tokens - 1)
        assert row.sum() == wanted
        begins = np.flatnonzero(row & ~np.concatenate([[False], row[:-1]]))
        assert len(begins) == min(max(round(wanted / mean_span), 1), tokens - wanted)
        assert not row[0] and row[-1], "kept tokens first, noise last"


def test_every_segmentation_is_equally_likely() -> None:
    rows = 24_000
    windows, settings = text_windows(rows, 8, vocabulary()), dataclasses.replace(T5, mean_span=1.5)
    noise = denoising.draw_noise(text_of(windows, vocabulary()), windows.keys, settings, np.full(rows, 3 / 8))
    ways = 2 * 4  # of 3 noise tokens in 2 parts, and of 5 kept ones in 2 parts
    equally_likely(map(tuple, noise.reshape(rows, 8).tolist()), ways)


def test_a_text_of_one_token_has_no_noise() -> None:
    windows, tokenizer = spoken("a")
    row = make_examples(windows, tokenizer.vocabulary, T5)
    assert spelled(row, tokenizer) == "[SOS] a [EOS] | [EXTRA0] [EOS]"


def test_too_few_sentinels_are_refused_with_the_number_needed() -> None:
    windows = text_windows(2, 100, vocabulary())
    with pytest.raises(UsageError, match=r"needs 6 sentinels .* has 4 extra.*--tokenizer\.extra_tokens 6 or more"):
        make_examples(windows, vocabulary(extra=4), T5)
    make_examples(windows, vocabulary(extra=6), T5)
    with pytest.raises(UsageError, match="needs 18 sentinels"):
        make_examples(windows, vocabulary(extra=6), dataclasses.replace(T5, final_mask_rate=0.5))
    with pytest.raises(UsageError, match=r"mode_token is 5, but the first 6 extra tokens are sentinels.* to 6 or more"):
        make_examples(windows, vocabulary(extra=9), dataclasses.replace(T5, mode_token=5))


# BART


def outcomes(text: str, kinds: list[str], *, rate: float, mean_span: float = 3.0, rows: int = 4000) -> Counter[str]:
    """How often each noised text occurs, a mask written as an underscore."""
    windows, tokenizer = spoken(text, rows)
    rates, text = np.full(rows, rate), text_of(windows, tokenizer.vocabulary)
    found = denoising.apply_noise(text, kinds, windows.keys, rates, tokenizer.vocabulary, mean_span=mean_span)
    noised = found.tokens
    words = np.array(["_" if word == "[MASK]" else word for word in tokenizer.tokens(range(len(tokenizer)))])
    return Counter(
        " ".join(words[noised.values[start:end]]) for start, end in zip(noised.starts, noised.ends, strict=True)
    )


FIGURE = "A B C . D E ."


def test_every_noise_of_barts_figure_2_occurs() -> None:
    masked = outcomes(FIGURE, ["mask"], rate=2 / 7)
    assert "A _ C . _ E ." in masked and len(masked) == 21
    deleted = outcomes(FIGURE, ["delete"], rate=2 / 7)
    assert "A C . E ." in deleted and all(len(text.split()) == 5 for text in deleted)
    assert set(outcomes(FIGURE, ["permute_sentences"], rate=0.3)) == {FIGURE, "D E . A B C ."}
    assert "C . D E . A B" in equally_likely(outcomes(FIGURE, ["rotate"], rate=0.3, rows=14_000).elements(), 7)
    assert "A _ . D _ E ." in outcomes(FIGURE, ["infill"], rate=2 / 7, rows=20_000)


def test_the_target_is_the_whole_text() -> None:
    windows, tokenizer = spoken(FIGURE)
    row = make_examples(windows, tokenizer.vocabulary, dataclasses.replace(BART, noise=["delete"], mask_rate=1.0))
    assert spelled(row, tokenizer) == "[SOS] [EOS] | A B C . D E . [EOS]"
    assert predicted(row, tokenizer).startswith("[EOS] -> A, A -> B") and predicted(row, tokenizer).endswith("-> [EOS]")


def test_infilling_has_the_distribution_of_its_definition() -> None:
    rows = 40_000
    expected = infilling(2, 5, 1.0, most=6)
    assert sum(expected.values()) == pytest.approx(1, abs=0.01)
    found = outcomes("0 1 2 3 4", ["infill"], rate=0.4, mean_span=1.0, rows=rows)
    for source, chance in expected.items():
        share = found[" ".join("_" if token < 0 else str(token) for token in source)] / rows
        assert abs(share - chance) < 4.5 * math.sqrt(max(chance, 1e-4) / rows) + 0.001, source


def test_span_lengths_are_poisson_and_add_up() -> None:
    rows, wanted = 2000, 3000
    lengths, drawn = denoising.span_lengths(np.full(rows, wanted), keyed.key(1, np.arange(rows)), mean_span=3.0)
    assert ((lengths * drawn).sum(axis=1) == wanted).all()
    assert lengths.shape[1] == denoising.infilled_spans(wanted, 3.0)
    first = lengths[:, :100].ravel()
    for length in range(10):
        chance = math.exp(-3) * 3**length / math.factorial(length)
        assert abs((first == length).mean() - chance) < 4.5 * math.sqrt(chance / len(first))


def test_spans_that_fall_short_are_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its margin, many rows reach the bound; the last span takes what is left, even next to another."""
    monkeypatch.setattr("unicloze.objectives.denoising._POISSON_TAIL", (0, 0))
    wanted, keys = np.array([0, 1, 5, 40] * 100), keyed.key(1, np.arange(400))
    lengths, drawn = denoising.span_lengths(wanted, keys, mean_span=3.0)
    assert (lengths * drawn).sum(axis=1).tolist() == wanted.tolist()
    assert max(drawn.sum(axis=1)) == 14 and (lengths[drawn] >= 0).all()
    alone, drawn_alone = denoising.span_lengths(wanted[2::4], keys[2::4], mean_span=3.0)
    assert np.array_equal(lengths[2::4, : alone.shape[1]], alone)
    assert np.array_equal(drawn[2::4, : alone.shape[1]], drawn_alone)


def test_thirty_percent_of_every_text_are_infilled() -> None:
    ordinary = vocabulary(2000)
    windows = toys.random_windows(400, 64, vocab=2000, short=True)
    examples = make_examples(windows, ordinary, dataclasses.replace(BART, noise=["infill"]))
    masks = spans = 0
    for row, source in enumerate(sources(examples)):
        text = windows.token_ids[row, windows.maskable[row]].tolist()
        kept = [token for token in source if token != MASK]
        assert len(text) - len(kept) == math.ceil(0.3 * len(text) - 1e-9)
        rest = iter(text)
        assert all(token in rest for token in kept), "what is kept keeps its order"
        masks += len(text) - len(kept)
        spans += len(source) - len(kept)
    assert 2.5 < masks / spans < 3, "spans of mean 3, the last of each text cut"


def test_sentences_are_found_in_the_original_text() -> None:
    text = "a b . c d ! e f"
    orders = {" ".join(order) for order in itertools.permutations(["a b .", "c d !", "e f"])}
    found = outcomes(text, ["permute_sentences"], rate=0.3, rows=12_000)
    assert set(equally_likely(found.elements(), 6)) == orders
    both = outcomes(text, ["permute_sentences", "delete"], rate=0.25)
    assert "e f c d a b" in both, "sentences without their ends are still moved as such"
    windows, tokenizer = spoken("a . . . b ; c", rows=2)
    numbers = denoising.sentences(text_of(windows, tokenizer.vocabulary), tokenizer.vocabulary).tolist()
    assert numbers == [1, 1, 1, 1, 2, 2, 3, 4, 4, 4, 4, 5, 5, 6]


def test_windows_without_sentences_are_refused() -> None:
    permuting = dataclasses.replace(BART, noise=["infill", "permute_sentences"])
    windows, tokenizer = spoken("no end in sight", rows=3)
    with pytest.raises(UsageError, match=r"none of 3 windows contains the end of a sentence.*remove it"):
        denoising.check_sentences(windows, tokenizer.vocabulary, permuting)
    denoising.check_sentences(windows, tokenizer.vocabulary, BART)
    windows, tokenizer = spoken("one . two")
    denoising.check_sentences(windows, tokenizer.vocabulary, permuting)
    windows, tokenizer = spoken("one .")
    with pytest.raises(UsageError):
        denoising.check_sentences(windows, tokenizer.vocabulary, permuting)
    assert defined(T5).check is None and defined(BART).check is denoising.check_sentences


# MASS


def test_masss_figure_1() -> None:
    windows, tokenizer = spoken("x1 x2 x3 x4 x5 x6 x7 x8")
    arguments = np.array([2]), np.array([4]), tokenizer.vocabulary, MASS.without_noise(), np.array([0.5])
    row = denoising.mask_span(windows, text_of(windows, tokenizer.vocabulary), *arguments)
    assert spelled(row, tokenizer) == "[SOS] x1 x2 [MASK] [MASK] [MASK] [MASK] x7 x8 [EOS] | [MASK] x3 x4 x5 x6"
    assert predicted(row, tokenizer) == "[MASK] -> x3, x3 -> x4, x4 -> x5, x5 -> x6"
    assert row.position_ids[0, :15].tolist() == [*range(10), 2, 3, 4, 5, 6], "original positions"


def test_a_mode_token_shifts_source_and_target_equally() -> None:
    windows, tokenizer = spoken("x1 x2 x3 x4")
    settings = dataclasses.replace(MASS.without_noise(), mode_token=0)
    arguments = np.array([0]), np.array([2]), tokenizer.vocabulary, settings, np.array([0.5])
    row = denoising.mask_span(windows, text_of(windows, tokenizer.vocabulary), *arguments)
    assert spelled(row, tokenizer) == "[SOS] [EXTRA0] [MASK] [MASK] x3 x4 [EOS] | [MASK] x1 x2"
    assert row.position_ids[0, :10].tolist() == [*range(7), 1, 2, 3]


def test_half_of_every_text_is_one_span_that_starts_anywhere() -> None:
    rows = 20_000
    examples = make_examples(text_windows(rows, 9, vocabulary()), vocabulary(), MASS.without_noise())
    masked = np.array(sources(examples)) == MASK
    assert (masked.sum(axis=1) == 4).all()
    starts = masked.argmax(axis=1)
    assert (np.take_along_axis(masked, starts[:, None] + np.arange(4), axis=1)).all(), "consecutive"
    assert set(equally_likely(starts.tolist(), 6)) == set(range(6))


def test_the_source_shows_masks_random_tokens_and_tokens_as_bert_does() -> None:
    windows = text_windows(4000, 20, vocabulary(1000))
    examples = make_examples(windows, vocabulary(1000), MASS)
    shown = np.array(sources(examples))
    target = examples.targets["lm"]
    first = examples.position_ids[np.arange(4000), examples.mutual]
    places = first[:, None] + np.arange(10)
    shown, truth = np.take_along_axis(shown, places, axis=1), target.labels[:, :10]
    assert np.array_equal(truth, np.take_along_axis(windows.token_ids[:, 1:-1], places, axis=1))
    for found, expected in (((shown == MASK).mean(), 0.8), ((shown == truth).mean(), 0.1 + 0.1 / 993)):
        assert abs(found - expected) < 4.5 * math.sqrt(expected * (1 - expected) / truth.size)


# Recipes


@pytest.mark.parametrize("window", [512, toy_overrides()["data.window"]])
def test_every_part_of_ul2_fits_one_tokenizer(window: int) -> None:
    recipe = load_recipe("ul2-base")
    settings: list[Any] = [part.settings for part in parts(recipe.objective)]
    table = [(part.name, part.mean_span, part.mask_rate) for part in settings if part.name == "span_corruption"]
    assert table == [
        ("span_corruption", mean_span, rate)
        for mean_span, rate in [(3, 0.15), (8, 0.15), (3, 0.5), (8, 0.5), (64, 0.15), (64, 0.5)]
    ]
    vocab = vocabulary(300, recipe.tokenizer.extra_tokens)
    modes = [part.mode_token for part in settings]
    assert modes == [97, 97, 98, 99, 99, 99, 99]
    windows = text_windows(20, window - 2, vocab)
    for part in settings:
        assert part.bounds(window).sentinels <= 97, "no sentinel is a mode token of any part"
        examples = make_examples(windows, vocab, part)
        assert (examples.input_ids[:, 1] == vocab.extra[part.mode_token]).all()
        share = np.isin(examples.targets["lm"].labels, vocab.ordinary).sum() / (20 * (window - 2))
        assert part.name == "prefix" or abs(share - part.mask_rate) < 0.02
