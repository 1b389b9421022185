"""Rows of source and target, and the prefix language model: layout, visibility, leakage, statistics, loss floor."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np
import pytest

from objective_toys import CASES, SEQ2SEQ, V, equally_likely, predicted, some_windows, spelled, spoken, text_windows
from toys import EOS, PAD, SOS, UNK, vocabulary
from unicloze import keyed
from unicloze.errors import UsageError
from unicloze.example import Kind
from unicloze.mixtures import positions
from unicloze.objectives import make_examples, settings_of
from unicloze.objectives.masking import partition, subset
from unicloze.objectives.seq2seq import causal, text_of
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows

# Layout


def test_a_row_is_source_then_target() -> None:
    windows, tokenizer = spoken("a b c d e f")
    rows = [make_examples(windows, tokenizer.vocabulary, CASES["prefix"], np.array([rate])) for rate in (1.0, 0.1)]
    assert spelled(rows[0], tokenizer) == "[SOS] [EOS] | a b c d e f [EOS]"
    assert spelled(rows[1], tokenizer) == "[SOS] a b c d e [EOS] | f [EOS]"
    assert predicted(rows[1], tokenizer) == "[EOS] -> f, f -> [EOS]"
    assert rows[1].position_ids[0].tolist()[:9] == list(range(9))
    assert rows[1].segment_ids[0].tolist()[:9] == [0] * 7 + [1] * 2
    assert rows[1].steps[0].tolist()[:9] == [-1] * 7 + [0, 1]
    named = dataclasses.replace(CASES["prefix"], segment_ids=[4, 5], mode_token=2)
    row = make_examples(windows, tokenizer.vocabulary, named, np.array([0.1]))
    assert spelled(row, tokenizer) == "[SOS] [EXTRA2] a b c d e [EOS] | f [EOS]"
    assert row.segment_ids[0].tolist()[:10] == [4] * 8 + [5] * 2


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_rows_against_the_rule_slot_by_slot(name: str) -> None:
    windows = some_windows(60, 24)
    examples = make_examples(windows, V, CASES[name])
    for row in range(len(examples)):
        length, source = int(examples.lengths[row]), int(examples.mutual[row])
        ids, target = examples.input_ids[row], examples.targets["lm"]
        count = int(target.weights[row].sum())
        assert (ids[0], ids[source - 1]) == (SOS, EOS)
        assert (ids[length:] == PAD).all() and not (ids[:length] == PAD).any()
        assert target.slots[row, :count].tolist() == list(range(length - 1 - count, length - 1))
        assert target.labels[row, :count].tolist() == ids[length - count : length].tolist(), "the next slot shows it"
        assert (target.weights[row, :count] == 1).all() and not target.slots[row, count:].any()
        assert set(examples.segment_ids[row, :source]) == {0} and set(examples.segment_ids[row, source:length]) == {1}
        kinds = examples.kinds[row]
        assert set(kinds[:source]) <= {Kind.CONTEXT, Kind.MASK} and set(kinds[length:]) <= {Kind.PADDING}


@pytest.mark.parametrize("name", SEQ2SEQ)
@pytest.mark.parametrize("rate", [0.02, 0.3, 0.5, 0.8, 1.0])
def test_rows_and_positions_stay_within_their_bounds(name: str, rate: float) -> None:
    settings = dataclasses.replace(CASES[name], mask_rate=rate, mode_token=None)
    for window in (6, 33):
        examples = make_examples(some_windows(400, window, seed=window), V, settings)
        bounds = settings.bounds(window)
        assert examples.input_ids.shape[1] == bounds.slots
        assert examples.targets["lm"].weights.shape[1] == bounds.predictions
        assert examples.position_ids.max() < positions(settings, window)


def test_positions_count_what_every_rate_needs() -> None:
    settings = dataclasses.replace(CASES["T5"], mask_rate=0.1, mean_span=1.0)
    plain = positions(settings, 34)
    high = positions(dataclasses.replace(settings, mask_rate=0.5), 34)
    way = positions(dataclasses.replace(settings, final_mask_rate=0.9), 34)
    assert (plain, high, way) == (32 + 2 * 3 + 4, 32 + 2 * 16 + 4, 32 + 2 * 16 + 4)
    assert positions(settings_of(), 34) == 34


def test_an_inner_eos_is_not_text() -> None:
    windows = some_windows(20, 24)
    examples = make_examples(windows, V, CASES["prefix"])
    for row in range(20):
        text = windows.token_ids[row, windows.maskable[row]].tolist()
        ids = examples.input_ids[row, : examples.lengths[row]]
        assert ids[~np.isin(ids, (SOS, EOS))].tolist() == text
        assert (ids == EOS).sum() == 2


def unspelled(windows: Windows, words: Collection[int], vocabulary: Vocabulary = V) -> Windows:
    """Windows with a vocabulary that cannot spell some of their tokens."""
    unknown = np.isin(windows.token_ids, list(words))
    tokens = np.where(unknown, np.int32(vocabulary.unk), windows.token_ids)
    return dataclasses.replace(windows, token_ids=tokens, maskable=windows.maskable & ~unknown)


def test_an_unknown_word_stays_in_the_text_and_is_not_predicted() -> None:
    windows, tokenizer = spoken("the old cat sat by mat")
    hidden = [tokenizer.encode_batch([word])[0][0] for word in ("cat", "mat")]
    windows = unspelled(windows, hidden, tokenizer.vocabulary)
    row = make_examples(windows, tokenizer.vocabulary, CASES["prefix"], np.array([1.0]))
    assert spelled(row, tokenizer) == "[SOS] [EOS] | the old [UNK] sat by [UNK] [EOS]"
    assert predicted(row, tokenizer) == "[EOS] -> the, the -> old, [UNK] -> sat, sat -> by, [UNK] -> [EOS]"
    rows = causal(windows, tokenizer.vocabulary, CASES["prefix"])
    assert spelled(rows, tokenizer) == "[SOS] [EOS] | the old [UNK] sat by [UNK] [EOS]"
    assert predicted(rows, tokenizer) == "[EOS] -> the, the -> old, [UNK] -> sat, sat -> by"


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_rows_with_unknown_words_are_those_of_any_other_word(name: str) -> None:
    """Visibility is unchanged; only the predictions of what cannot be spelled are missing."""
    words, windows = V.ordinary[-9:], some_windows(60, 24)
    rng = np.random.default_rng(1)
    drawn = windows.maskable & (rng.random(windows.maskable.shape) < 0.3) & ~V.ends_sentence[windows.token_ids]
    words = words[~V.ends_sentence[words]]
    tokens = np.where(drawn, rng.choice(words, drawn.shape), windows.token_ids).astype(np.int32)
    spelt = dataclasses.replace(windows, token_ids=tokens)
    before, after = (make_examples(each, V, CASES[name]) for each in (spelt, unspelled(spelt, words.tolist())))
    for field in ("position_ids", "segment_ids", "kinds", "steps", "intervals", "lengths", "mutual", "text_tokens"):
        assert np.array_equal(getattr(before, field), getattr(after, field)), field
    shown = [np.where(np.isin(each.input_ids, [*words, UNK]), UNK, each.input_ids) for each in (before, after)]
    assert np.array_equal(*shown) and (after.input_ids == UNK).any()
    old, new = before.targets["lm"], after.targets["lm"]
    for row in range(60):
        asked = (old.weights[row] > 0) & ~np.isin(old.labels[row], words)
        assert new.weights[row].tolist() == sorted(asked.astype(float).tolist(), reverse=True)
        for column in ("slots", "labels"):
            assert getattr(new, column)[row, : asked.sum()].tolist() == getattr(old, column)[row, asked].tolist()
    assert new.weights.sum() < old.weights.sum()


def test_an_id_of_unk_that_is_also_eos_is_not_a_word() -> None:
    shared = dataclasses.replace(V, unk=EOS)
    windows = some_windows(20, 24)
    one, other = (make_examples(windows, vocabulary, CASES["prefix"]) for vocabulary in (V, shared))
    assert np.array_equal(one.input_ids, other.input_ids)
    assert np.array_equal(one.targets["lm"].weights, other.targets["lm"].weights)


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_a_window_without_text_is_a_row_without_text(name: str) -> None:
    windows = dataclasses.replace(some_windows(4, 12), maskable=np.zeros((4, 12), dtype=bool))
    examples = make_examples(windows, V, CASES[name])
    assert not np.isin(examples.input_ids, V.ordinary).any()


def test_a_mode_token_must_be_there() -> None:
    with pytest.raises(UsageError, match=r"mode_token is 3, .* 2 extra tokens.*--tokenizer.extra_tokens 4"):
        make_examples(some_windows(2, 12), vocabulary(90, extra=2), dataclasses.replace(CASES["prefix"], mode_token=3))


# The draws


def test_subsets_and_partitions_are_uniform() -> None:
    rows = 30_000
    keys = keyed.key(2, np.arange(rows))
    chosen = subset(np.full(rows, 5), np.full(rows, 2), keys, 7)
    sizes = partition(np.full(rows, 5), np.full(rows, 3), keys, 8).reshape(rows, 3)
    for outcomes, expected in ((chosen, 10), (sizes, 6)):
        equally_likely(map(tuple, outcomes.tolist()), expected)
    assert (sizes.sum(axis=1) == 5).all() and (sizes > 0).all()


def test_subsets_of_rows_of_several_sizes() -> None:
    items, chosen = np.array([0, 1, 6, 4, 6]), np.array([0, 1, 0, 4, 3])
    flags = subset(items, chosen, keyed.key(0, np.arange(5)), 1)
    assert flags.shape == (5, 6)
    assert flags.sum(axis=1).tolist() == chosen.tolist()
    assert not flags[np.arange(6) >= items[:, None]].any()
    assert partition(np.array([0, 3, 1]), np.array([1, 2, 1]), keyed.key(0, np.arange(3)), 1).tolist()[0] == 0


@pytest.mark.parametrize(("rate", "lengths"), [(0.5, range(1, 13)), (0.25, range(1, 7)), (1.0, range(12, 13))])
def test_the_split_point_is_uniform(rate: float, lengths: range) -> None:
    rows = 20_000
    examples = make_examples(text_windows(rows, 12, V), V, dataclasses.replace(CASES["prefix"], mask_rate=rate))
    found = equally_likely((examples.targets["lm"].weights.sum(axis=1) - 1).astype(int).tolist(), len(lengths))
    assert set(found) == set(lengths)


# Use and training


def test_causal_rows_predict_every_text_token_from_the_left() -> None:
    windows, tokenizer = spoken("a b c d")
    rows = causal(windows, tokenizer.vocabulary, CASES["prefix"])
    assert spelled(rows, tokenizer) == "[SOS] [EOS] | a b c d [EOS]"
    assert predicted(rows, tokenizer) == "[EOS] -> a, a -> b, b -> c, c -> d"
    shape = some_windows(20, 24)
    labels = causal(shape, V, CASES["prefix"]).targets["lm"]
    assert labels.weights.sum(axis=1).tolist() == shape.maskable.sum(axis=1).tolist()
    assert np.array_equal(labels.labels[labels.weights > 0], text_of(shape, V).values)
    trained = make_examples(shape, V, CASES["prefix"])
    empty = [row for row in range(20) if trained.mutual[row] == 2]
    assert empty, "training shows rows without a source"
    for row in empty:
        assert np.array_equal(trained.input_ids[row], causal(shape, V, CASES["prefix"]).input_ids[row])
