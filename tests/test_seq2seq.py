"""Rows of source and target, and the prefix language model: layout, visibility, leakage, statistics, loss floor."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection

import numpy as np
import pytest
import torch

import brute_force
import toys
from brute_force import Slot
from seq2seq_toys import measured, predicted, spelled, spoken, text_windows, train
from toys import EOS, PAD, SOS, UNK, random_windows, vocabulary
from unicloze import keyed, visibility
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind, collate
from unicloze.mixtures import positions
from unicloze.model.dropout import DropoutKey
from unicloze.objectives import defined, make_examples, settings_of
from unicloze.objectives.masking import partition, subset
from unicloze.objectives.seq2seq import Ragged, causal, text_of
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows

PREFIX = settings_of(name="prefix", targets=["lm"], mask_rate=0.5)
ALL = {
    "prefix": PREFIX,
    "UL2's S": settings_of(name="prefix", targets=["lm"], mask_rate=0.25, mode_token=28),
    "T5": settings_of(name="span_corruption", targets=["lm"]),
    "UL2's X": settings_of(name="span_corruption", targets=["lm"], mask_rate=0.5, mode_token=29),
    "BART": settings_of(name="denoising", targets=["lm"], mask_rate=0.3, noise=["infill", "permute_sentences"]),
    "all noise": settings_of(
        name="denoising",
        targets=["lm"],
        mask_rate=0.3,
        noise=["rotate", "permute_sentences", "infill", "delete", "mask"],
    ),
    "MASS": settings_of(name="masked_span", targets=["lm"], mask_rate=0.5),
}
HIDDEN = {
    "prefix": PREFIX,
    "T5": dataclasses.replace(ALL["T5"], mask_rate=0.4),
    "BART": dataclasses.replace(ALL["BART"], noise=["infill"], mask_rate=0.5),
    "MASS": dataclasses.replace(ALL["MASS"], mask_share=1.0, random_share=0.0),
}
V = vocabulary(90, extra=30)


def some_windows(rows: int, window: int, seed: int = 0) -> Windows:
    """Two segments, short rows among them, no sentinels in the text."""
    windows = random_windows(rows, window, vocab=53, seed=seed, short=True)
    return dataclasses.replace(windows, token_ids=np.where(windows.maskable, windows.token_ids + 30, windows.token_ids))


def reads(q: Slot, k: Slot) -> bool:
    """The source reads the source; the target reads the source and the target up to itself."""
    return k.group == "source" or (q.group == "target" and k.place <= q.place)


# Layout


def test_a_row_is_source_then_target() -> None:
    windows, tokenizer = spoken("a b c d e f")
    rows = [make_examples(windows, tokenizer.vocabulary, PREFIX, np.array([rate])) for rate in (1.0, 0.1)]
    assert spelled(rows[0], tokenizer) == "[SOS] [EOS] | a b c d e f [EOS]"
    assert spelled(rows[1], tokenizer) == "[SOS] a b c d e [EOS] | f [EOS]"
    assert predicted(rows[1], tokenizer) == "[EOS] -> f, f -> [EOS]"
    assert rows[1].position_ids[0].tolist()[:9] == list(range(9))
    assert rows[1].segment_ids[0].tolist()[:9] == [0] * 7 + [1] * 2
    assert rows[1].steps[0].tolist()[:9] == [-1] * 7 + [0, 1]
    named = dataclasses.replace(PREFIX, segment_ids=[4, 5], mode_token=2)
    row = make_examples(windows, tokenizer.vocabulary, named, np.array([0.1]))
    assert spelled(row, tokenizer) == "[SOS] [EXTRA2] a b c d e [EOS] | f [EOS]"
    assert row.segment_ids[0].tolist()[:10] == [4] * 8 + [5] * 2


@pytest.mark.parametrize("name", ALL)
def test_rows_against_the_rule_slot_by_slot(name: str) -> None:
    windows = some_windows(60, 24)
    examples = make_examples(windows, V, ALL[name])
    for row in range(len(examples)):
        length, source = int(examples.lengths[row]), int(examples.mutual[row])
        slots = [*brute_force.group("source", source), *brute_force.group("target", length - source)]
        assert np.array_equal(examples.visible(row), brute_force.matrix(slots, slots, reads))
        alone = visibility.bool_mask(examples.intervals[row, length:], examples.input_ids.shape[1])
        assert np.array_equal(alone, np.eye(examples.input_ids.shape[1], dtype=bool)[length:]), "padding reads itself"
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


@pytest.mark.parametrize("name", ALL)
def test_rows_are_the_same_alone_and_among_others(name: str) -> None:
    windows = some_windows(40, 30)
    together = make_examples(windows, V, ALL[name])
    for row in (0, 13, 39):
        alone = make_examples(windows[row : row + 1], V, ALL[name])
        assert alone.input_ids.shape[1] == together.input_ids.shape[1], "one width for one setting"
        for field in ("input_ids", "position_ids", "segment_ids", "kinds", "steps", "intervals"):
            assert np.array_equal(getattr(alone, field)[0], getattr(together, field)[row]), field
        assert np.array_equal(alone.targets["lm"].labels[0], together.targets["lm"].labels[row])
    assert len(make_examples(windows[:0], V, ALL[name])) == 0


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("rate", [0.02, 0.3, 0.5, 0.8, 1.0])
def test_rows_and_positions_stay_within_their_bounds(name: str, rate: float) -> None:
    settings = dataclasses.replace(ALL[name], mask_rate=rate, mode_token=None)
    for window in (6, 33):
        examples = make_examples(some_windows(400, window, seed=window), V, settings)
        bounds = settings.bounds(window)
        assert examples.input_ids.shape[1] == bounds.slots
        assert examples.targets["lm"].weights.shape[1] == bounds.predictions
        assert examples.position_ids.max() < positions(settings, window)


def test_positions_count_what_every_rate_needs() -> None:
    settings = dataclasses.replace(ALL["T5"], mask_rate=0.1, mean_span=1.0)
    plain = positions(settings, 34)
    high = positions(dataclasses.replace(settings, mask_rate=0.5), 34)
    way = positions(dataclasses.replace(settings, final_mask_rate=0.9), 34)
    assert (plain, high, way) == (32 + 2 * 3 + 4, 32 + 2 * 16 + 4, 32 + 2 * 16 + 4)
    assert positions(settings_of(), 34) == 34


def test_an_inner_eos_is_not_text() -> None:
    windows = some_windows(20, 24)
    examples = make_examples(windows, V, PREFIX)
    for row in range(20):
        text = windows.token_ids[row, windows.maskable[row]].tolist()
        ids = examples.input_ids[row, : examples.lengths[row]]
        assert ids[~np.isin(ids, (SOS, EOS))].tolist() == text
        assert (ids == EOS).sum() == 2


def unspelled(windows: Windows, words: Collection[int], vocabulary: Vocabulary = V) -> Windows:
    """Windows with a vocabulary that cannot spell some of their tokens."""
    unknown = np.isin(windows.token_ids, list(words))
    return dataclasses.replace(
        windows,
        token_ids=np.where(unknown, np.int32(vocabulary.unk), windows.token_ids),
        maskable=windows.maskable & ~unknown,
    )


def test_an_unknown_word_stays_in_the_text_and_is_not_predicted() -> None:
    windows, tokenizer = spoken("the old cat sat by mat")
    hidden = [tokenizer.encode_batch([word])[0][0] for word in ("cat", "mat")]
    windows = unspelled(windows, hidden, tokenizer.vocabulary)
    row = make_examples(windows, tokenizer.vocabulary, PREFIX, np.array([1.0]))
    assert spelled(row, tokenizer) == "[SOS] [EOS] | the old [UNK] sat by [UNK] [EOS]"
    assert predicted(row, tokenizer) == "[EOS] -> the, the -> old, [UNK] -> sat, sat -> by, [UNK] -> [EOS]"
    rows = causal(windows, tokenizer.vocabulary, PREFIX)
    assert spelled(rows, tokenizer) == "[SOS] [EOS] | the old [UNK] sat by [UNK] [EOS]"
    assert predicted(rows, tokenizer) == "[EOS] -> the, the -> old, [UNK] -> sat, sat -> by"


@pytest.mark.parametrize("name", ALL)
def test_rows_with_unknown_words_are_those_of_any_other_word(name: str) -> None:
    """Visibility is unchanged; only the predictions of what cannot be spelled are missing."""
    words, windows = V.ordinary[-9:], some_windows(60, 24)
    rng = np.random.default_rng(1)
    drawn = windows.maskable & (rng.random(windows.maskable.shape) < 0.3) & ~V.ends_sentence[windows.token_ids]
    words = words[~V.ends_sentence[words]]
    spelt = dataclasses.replace(
        windows, token_ids=np.where(drawn, rng.choice(words, drawn.shape), windows.token_ids).astype(np.int32)
    )
    before, after = (make_examples(each, V, ALL[name]) for each in (spelt, unspelled(spelt, words.tolist())))
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
    one, other = (make_examples(windows, vocabulary, PREFIX) for vocabulary in (V, shared))
    assert np.array_equal(one.input_ids, other.input_ids)
    assert np.array_equal(one.targets["lm"].weights, other.targets["lm"].weights)


@pytest.mark.parametrize("name", ALL)
def test_a_window_without_text_is_a_row_without_text(name: str) -> None:
    windows = dataclasses.replace(some_windows(4, 12), maskable=np.zeros((4, 12), dtype=bool))
    examples = make_examples(windows, V, ALL[name])
    assert not np.isin(examples.input_ids, V.ordinary).any()


def test_a_mode_token_must_be_there() -> None:
    with pytest.raises(UsageError, match=r"mode_token is 3, .* 2 extra tokens.*--tokenizer.extra_tokens 4"):
        make_examples(some_windows(2, 12), vocabulary(90, extra=2), dataclasses.replace(PREFIX, mode_token=3))


# Leakage, measured from outside


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", HIDDEN)
def test_a_hidden_token_reaches_only_what_comes_after_it(name: str, training: bool) -> None:
    model = toys.model(vocab=90, positions=60, dropout=0.1, attention_dropout=0.1)
    windows = text_windows(1, 20, V, seed=3)

    def states(examples: Examples) -> torch.Tensor:
        key = DropoutKey(1, 2, 3) if training else None
        with torch.no_grad():
            return model.backbone(collate(examples), select=True, dropout=key)[-1][0]

    before = make_examples(windows, V, HIDDEN[name])
    reference, source = states(before), int(before.mutual[0])
    answers = before.targets["lm"].labels[0]
    hidden = later = 0
    for position in range(1, 21):
        tokens = windows.token_ids.copy()
        tokens[0, position] = V.ordinary[(tokens[0, position] - V.ordinary[0] + 1) % len(V.ordinary)]
        after = make_examples(dataclasses.replace(windows, token_ids=tokens), V, HIDDEN[name])
        same = [torch.equal(a, b) for a, b in zip(states(after), reference, strict=True)]
        if np.array_equal(after.input_ids[0, :source], before.input_ids[0, :source]):
            (own,) = np.flatnonzero(after.targets["lm"].labels[0] != answers)
            assert all(same[: own + 1]), "it leaks into its own prediction or an earlier one"
            assert not any(same[own + 1 :]), "it does not reach what comes after it"
            hidden, later = hidden + 1, later + len(same) - own - 1
        else:
            assert not any(same), "what the source shows reaches every prediction"
    assert hidden >= 5 and later >= 10


# The draws


def test_subsets_and_partitions_are_uniform() -> None:
    rows = 30_000
    keys = keyed.key(2, np.arange(rows))
    chosen = subset(np.full(rows, 5), np.full(rows, 2), keys, 7)
    sizes = partition(np.full(rows, 5), np.full(rows, 3), keys, 8).reshape(rows, 3)
    for outcomes, expected in ((chosen, 10), (sizes, 6)):
        counts = Counter(map(tuple, outcomes.tolist()))
        assert len(counts) == expected
        error = 4.5 * math.sqrt((1 - 1 / expected) / expected / rows)
        assert all(abs(count / rows - 1 / expected) < error for count in counts.values())
    assert (sizes.sum(axis=1) == 5).all() and (sizes > 0).all()


def test_subsets_of_rows_of_several_sizes() -> None:
    items, chosen = np.array([0, 1, 6, 4, 6]), np.array([0, 1, 0, 4, 3])
    flags = subset(items, chosen, keyed.key(0, np.arange(5)), 1)
    assert flags.shape == (5, 6)
    assert flags.sum(axis=1).tolist() == chosen.tolist()
    assert not flags[np.arange(6) >= items[:, None]].any()
    assert partition(np.array([0, 3, 1]), np.array([1, 2, 1]), keyed.key(0, np.arange(3)), 1).tolist()[0] == 0


def test_ragged_arithmetic() -> None:
    ragged = Ragged(np.array([5, 6, 7]), np.array([2, 0, 1]))
    assert (ragged.row.tolist(), ragged.rank.tolist()) == ([0, 0, 2], [0, 1, 0])
    assert ragged.followed_by(9).values.tolist() == [5, 6, 9, 9, 7, 9]
    assert ragged.followed_by(9).counts.tolist() == [3, 1, 2]


@pytest.mark.parametrize(("rate", "lengths"), [(0.5, range(1, 13)), (0.25, range(1, 7)), (1.0, range(12, 13))])
def test_the_split_point_is_uniform(rate: float, lengths: range) -> None:
    rows = 20_000
    examples = make_examples(text_windows(rows, 12, V), V, dataclasses.replace(PREFIX, mask_rate=rate))
    counts = Counter((examples.targets["lm"].weights.sum(axis=1) - 1).astype(int).tolist())
    assert set(counts) == set(lengths)
    share = 1 / len(lengths)
    assert all(abs(count / rows - share) <= 4.5 * math.sqrt(share * (1 - share) / rows) for count in counts.values())


# Use and training


def test_causal_rows_predict_every_text_token_from_the_left() -> None:
    windows, tokenizer = spoken("a b c d")
    rows = causal(windows, tokenizer.vocabulary, PREFIX)
    assert spelled(rows, tokenizer) == "[SOS] [EOS] | a b c d [EOS]"
    assert predicted(rows, tokenizer) == "[EOS] -> a, a -> b, b -> c, c -> d"
    shape = some_windows(20, 24)
    labels = causal(shape, V, PREFIX).targets["lm"]
    assert labels.weights.sum(axis=1).tolist() == shape.maskable.sum(axis=1).tolist()
    assert np.array_equal(labels.labels[labels.weights > 0], text_of(shape, V).values)
    trained = make_examples(shape, V, PREFIX)
    empty = [row for row in range(20) if trained.mutual[row] == 2]
    assert empty, "training shows rows without a source"
    for row in empty:
        assert np.array_equal(trained.input_ids[row], causal(shape, V, PREFIX).input_ids[row])


def test_abilities_are_those_training_gives() -> None:
    assert defined(PREFIX).causal is causal
    with pytest.raises(UsageError, match=r"mask_rate 0\.25 never predicts a text from its beginning"):
        causal(some_windows(2, 12), V, ALL["UL2's S"])
    for name in ("T5", "BART", "MASS"):
        abilities = defined(ALL[name])
        assert (abilities.cloze, abilities.stepwise, abilities.causal) == (None, None, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", HIDDEN)
def test_a_batch_can_be_memorised(name: str) -> None:
    windows = text_windows(6, 10, V, seed=1)
    examples = make_examples(windows, V, HIDDEN[name])
    model = train(lambda _: examples, vocab=90, positions=40, steps=150, rate=1e-2)
    assert measured(model, examples) < 0.02


@pytest.mark.slow
def test_random_text_is_learned_down_to_the_floor_and_no_further() -> None:
    """A text token costs ln V; the closing [EOS] costs nothing, since all texts have the same length."""
    ordinary, tokens = 8, 8
    small = vocabulary(toys.FIRST_ORDINARY + ordinary)

    def make(step: int, rows: int = 48) -> Examples:
        return make_examples(text_windows(rows, tokens, small, seed=step + 1), small, PREFIX)

    model = train(make, vocab=small.size, positions=16, steps=120)
    examples = make(10_000, 4000)
    asked = examples.targets["lm"].weights.sum()
    floor = (asked - len(examples)) * math.log(ordinary) / asked
    assert floor - 0.005 < measured(model, examples) < floor + 0.03


def test_padding_and_neighbours_do_not_matter() -> None:
    model = toys.model(vocab=90, positions=60)
    examples = make_examples(some_windows(8, 20), V, ALL["BART"])
    with torch.no_grad():
        together = model.backbone(collate(examples))[-1]
        for row in range(8):
            length = int(examples.lengths[row])
            alone = model.backbone(collate(examples[row : row + 1]))[-1]
            torch.testing.assert_close(together[row, :length], alone[0, :length], atol=1e-5, rtol=1e-5)
