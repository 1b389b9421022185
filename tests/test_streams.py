"""Windows that continue each other, row by row: for segment recurrence, overlapping, and of random length."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corpora import write_corpus
from recurrent_toys import recurrent_model
from test_loop import CPU, nothing
from test_windows import EOS, FIRST, LENGTHS, SOS, VOCABULARY, make_sampler, make_source
from toys import random_windows, vocabulary
from unicloze.errors import UsageError
from unicloze.example import Kind, Memory, collate
from unicloze.model.transformer_xl import Relations
from unicloze.objectives import make_examples, settings_of
from unicloze.pretraining.data import build_sampler
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import TrainingSettings
from unicloze.text.prepare import Prepared, open_or_prepare
from unicloze.text.sampler import RandomLengthSampler, WindowSampler, lengths_of
from unicloze.text.windows import Windows
from unicloze.training.batches import MicroBatch, training_steps, with_memory
from unicloze.training.loop import TrainState, fit
from unicloze.training.optimizers import build_optimizers
from xl_toys import xl_model

STREAMS: dict[str, Any] = {"segments": 1, "order": "streams"}


def text_of(windows: Windows, row: int) -> list[int]:
    return windows.token_ids[row, 1 : windows.lengths[row] - 1].tolist()  # type: ignore[no-any-return]


def test_a_source_that_is_entered_in_the_middle_of_a_document_continues_nothing(tmp_path: Path) -> None:
    """Half of ten windows per epoch: every second epoch begins with window 5 of the source's only document."""
    half, whole = make_source(tmp_path, [30], name="half"), make_source(tmp_path, [30], name="whole")
    sampler = make_sampler(half, whole, window=5, weights=[0.5, 1.0], **STREAMS)
    windows = sampler.read(0, 6 * sampler.epoch_size, lanes=1)
    assert windows.continues is not None
    entered = np.flatnonzero(np.diff(windows.source, prepend=1) < 0)
    assert {0, 5} <= set(windows.index[entered].tolist())
    assert not windows.continues[entered].any()


@pytest.mark.parametrize("documents", ["separate", "joined"])
@pytest.mark.parametrize("weights", [None, [0.3, 2.5]])
@pytest.mark.parametrize("lanes", [1, 4, 7])
def test_rows_continue_where_they_stopped(
    tmp_path: Path, documents: str, weights: list[float] | None, lanes: int
) -> None:
    one = make_source(tmp_path, [40, 7, 3, 0, 90, 12, 66, 1, 30], name="one", num_shards=2)
    sampler = make_sampler(
        one, make_source(tmp_path, LENGTHS), window=9, weights=weights, documents=documents, **STREAMS
    )
    steps = sampler.epoch_size // lanes
    windows = sampler.read(0, 3 * steps * lanes, lanes=lanes)
    assert windows.continues is not None and windows.negative is None
    assert not windows.continues[:lanes].any(), "nothing comes before the first batch"
    went_on = 0
    for row in range(lanes, len(windows)):
        before = row - lanes
        same = windows.source[row] == windows.source[before] and windows.index[row] == windows.index[before] + 1
        if windows.continues[row]:
            assert same and (row // lanes) % steps, "a lane's first batch continues nothing"
            last, first = text_of(windows, before)[-1], text_of(windows, row)[0]
            assert windows.lengths[before] == 9, "a continued window is full"
            assert first == last + 1 or (documents == "joined" and EOS in (first, last))
            went_on += 1
        elif same and (row // lanes) % steps:
            name = sampler.name(int(windows.source[row]), int(windows.index[row]))
            assert name.first_token == 0, "only a new text does not continue"
    assert went_on > len(windows) * (0.9 if documents == "joined" and weights is None and lanes == 1 else 0.4)


@pytest.mark.parametrize("lanes", [1, 3, 5, 1000])
def test_an_epoch_visits_no_window_twice_and_leaves_out_fewer_than_the_lanes(tmp_path: Path, lanes: int) -> None:
    sampler = make_sampler(make_source(tmp_path, [100] * 7), window=12, **STREAMS)
    size = max(1, sampler.epoch_size // lanes) * lanes
    seen = set()
    turns = set()
    for epoch in range(12):
        index = sampler.read(epoch * size, size, lanes=lanes).index.tolist()
        if lanes <= sampler.epoch_size:
            assert len(set(index)) == size > sampler.epoch_size - lanes
        starts = (np.array(index[:lanes]) - index[0]) % sampler.epoch_size
        assert (np.diff(starts[: sampler.epoch_size]) >= sampler.epoch_size // lanes).all(), "evenly spaced"
        seen |= set(index)
        turns.add(index[0])
    assert seen == set(range(sampler.num_windows))
    assert len(turns) > 5, "each epoch begins elsewhere"


@pytest.mark.parametrize("documents", ["separate", "joined"])
def test_streams_are_functions_of_the_position(tmp_path: Path, documents: str) -> None:
    options: dict[str, Any] = {"window": 9, "documents": documents, "weights": [0.6], **STREAMS}
    whole = make_sampler(make_source(tmp_path), **options).read(0, 200, lanes=4, static_copies=2)
    for start, count in ((0, 4), (7, 30), (196, 4)):
        part = make_sampler(make_source(tmp_path), **options).read(start, count, lanes=4, static_copies=2)
        assert part.continues is not None and whole.continues is not None
        for name in ("token_ids", "lengths", "maskable", "keys", "source", "index", "continues"):
            assert (getattr(part, name) == getattr(whole, name)[start : start + count]).all()
    other = make_sampler(make_source(tmp_path), seed=5, **options).read(0, 200, lanes=4)
    assert other.index.tolist() != whole.index.tolist()


def test_half_of_the_streams_run_backward(tmp_path: Path) -> None:
    """Lane by lane: windows in order, or in reverse for a backward lane, whose windows continue the text after them."""
    source = make_source(tmp_path, [40, 7, 90, 12, 66, 30])
    forward, both = (make_sampler(source, window=9, directions=which, **STREAMS) for which in ("forward", "both"))
    lanes = 5
    steps = forward.epoch_size // lanes
    one, other = (sampler.read(0, 2 * steps * lanes, lanes=lanes) for sampler in (forward, both))
    assert one.backward is None and other.backward is not None and other.continues is not None
    assert other.backward.tolist() == [False, False, False, True, True] * (2 * steps)
    went_on = [0, 0]
    for epoch in range(2):
        for lane in range(lanes):
            back, rows = lane > 2, slice(epoch * steps * lanes + lane, (epoch + 1) * steps * lanes, lanes)
            wanted, found = one.index[rows].tolist(), other.index[rows].tolist()
            assert found == (wanted[::-1] if back else wanted)
            texts = [text_of(other, row) for row in range(rows.start, rows.stop, lanes)]
            documents = [both.name(0, window).document for window in found]
            for step, goes_on in enumerate(other.continues[rows].tolist()):
                left, right = (step, step - 1) if back else (step - 1, step)
                beside = step > 0 and found[right] == found[left] + 1 and documents[left] == documents[right]
                assert goes_on == beside
                assert not goes_on or texts[left][-1] + 1 == texts[right][0]
                went_on[back] += goes_on
    assert min(went_on) > 5


def test_evaluation_streams_are_spread_and_fixed(tmp_path: Path) -> None:
    source = make_source(tmp_path, [100] * 10)
    windows = make_sampler(source, window=12, **STREAMS).sequential(35, lanes=4)
    assert len(windows) == 32, "as many for each lane"
    assert windows.index.reshape(8, 4).T.tolist() == [list(range(at, at + 8)) for at in (0, 25, 50, 75)]
    assert windows.continues is not None
    step, index = np.arange(32) // 4, windows.index
    assert windows.continues.tolist() == ((step > 0) & (index % 10 > 0)).tolist()
    again = make_sampler(source, window=12, seed=9, **STREAMS).sequential(35, lanes=4)
    assert (again.token_ids == windows.token_ids).all() and (again.keys == windows.keys).all()
    assert len(make_sampler(source, window=12, **STREAMS).sequential(3, lanes=64)) == 3


def test_shuffled_windows_continue_nothing(tmp_path: Path) -> None:
    sampler = make_sampler(make_source(tmp_path), segments=1)
    assert sampler.read(0, 8, lanes=4).continues is None
    assert sampler.sequential(8, lanes=4).continues is None


def test_windows_of_two_segments_continue_each_other(tmp_path: Path) -> None:
    """As in XLNet: the text of a lane is continuous, wherever its windows are split."""
    sampler = make_sampler(make_source(tmp_path), segments=2, order="streams")
    found = [sampler.read(2 * step, 2, lanes=2) for step in range(6)]
    assert any(windows.continues is not None and windows.continues.any() for windows in found)
    alone = make_sampler(make_source(tmp_path), segments=1, order="streams", window=sampler.window - 1)
    for step, windows in enumerate(found):
        other = alone.read(2 * step, 2, lanes=2)
        assert windows.segment_ids.max() == 1 and (windows.continues == other.continues).all()
        for row in range(2):
            text, beside = (each.token_ids[row][each.maskable[row]] for each in (windows, other))
            assert text.tolist() == beside.tolist()
    with pytest.raises(UsageError, match=r"objective\.pairs is next_sentence, .* set --objective\.pairs contiguous"):
        sampler.read(0, 2, lanes=2, pairs="next_sentence")


# Overlapping windows: the text that enters the memory, and segments from elsewhere (XLNet, Section 2.5)


LANES, WINDOW = 6, 23
PIECE = WINDOW - 3
OVERLAPPING: dict[str, Any] = {"window": WINDOW, "documents": "joined", "order": "streams", "overlap": 0.4}
OBJECTIVE = settings_of(name="permuted", targets=["par"], factorization="token", pseudo_token="mask")
DOCUMENTS = [90, 7, 0, 130, 3, 260, 41, 12, 5, 77, 161]


def segments_of(windows: Windows, row: int) -> tuple[list[int], list[int]]:
    """The text of both segments; checks the special tokens."""
    length = int(windows.lengths[row])
    tokens, ids = windows.token_ids[row, :length], windows.segment_ids[row, :length]
    first, second = tokens[ids == 0].tolist(), tokens[ids == 1].tolist()
    assert first[0] == SOS and first[-1] == EOS == second[-1]
    return first[1:-1], second[:-1]


def follows(one: int, other: int) -> bool:
    """Whether a token follows another in the text, where documents have ascending ids and [EOS] between them."""
    return other == one + 1 or EOS in (one, other)


def is_text(tokens: list[int]) -> bool:
    return all(follows(*pair) for pair in itertools.pairwise(tokens))


@pytest.mark.parametrize("pairs", ["contiguous", "next_sentence"])
@pytest.mark.parametrize("directions", ["forward", "backward", "both"])
def test_each_token_enters_the_memory_once_and_in_order(tmp_path: Path, pairs: Any, directions: str) -> None:
    """Of a window's text 60 % are new. The other segment is from elsewhere in half of the rows."""
    source = make_source(tmp_path, DOCUMENTS, num_shards=2)
    sampler = make_sampler(source, directions=directions, **OVERLAPPING)
    steps = sampler.epoch_size // LANES
    windows = sampler.read(0, 2 * steps * LANES, pairs=pairs, lanes=LANES)
    assert windows.new is not None and windows.continues is not None
    went_on, elsewhere = 0, []
    for row in range(len(windows)):
        backward = windows.backward is not None and bool(windows.backward[row])
        new = windows.token_ids[row][windows.new[row]].tolist()
        one, other = segments_of(windows, row)
        near, far = (other, one) if backward else (one, other)
        assert is_text(near) and is_text(far) and new and near and far
        full = windows.lengths[row] == WINDOW
        if full:
            assert len(new) == 12 and len(one) + len(other) == PIECE and 12 < len(near) < PIECE
            assert new == (near[-12:] if backward else near[:12])
            elsewhere.append(not follows(*((far[-1], near[0]) if backward else (near[-1], far[0]))))
        if windows.continues[row]:
            before = row - LANES
            former = windows.token_ids[before][windows.new[before]].tolist()
            assert follows(*((new[-1], former[0]) if backward else (former[-1], new[0])))
            went_on += 1
    assert went_on > 0.5 * len(windows)
    share = np.mean(elsewhere)
    assert share == 0 if pairs == "contiguous" else 0.35 < share < 0.6
    assert (windows.negative is None) == (pairs == "contiguous")
    if windows.negative is not None:
        assert 0.4 < windows.negative.mean() < 0.6


@pytest.mark.parametrize("length", range(2, 70))
def test_overlapping_windows_end_with_the_text(tmp_path: Path, length: int) -> None:
    """Against the definition: the first window that reaches the end of the text is the last one."""
    sampler = make_sampler(make_source(tmp_path, [length]), **OVERLAPPING)
    starts = [0]
    while starts[-1] + PIECE < length:
        starts.append(starts[-1] + 12)
    windows = sampler.sequential(100, lanes=1)
    found = [sorted(set(windows.token_ids[row].tolist()) - {SOS, EOS, VOCABULARY.pad}) for row in range(len(windows))]
    assert found == [list(range(FIRST + at, FIRST + min(at + PIECE, length))) for at in starts]


def test_only_new_text_is_remembered(tmp_path: Path) -> None:
    """The inputs of the first layer are the embeddings of the tokens, the one nearest to the next window last."""
    sampler = make_sampler(make_source(tmp_path, DOCUMENTS), directions="both", **OVERLAPPING)
    model = xl_model(vocab=VOCABULARY.size, memory=15, num_segments=2)
    memory: Memory | None = None
    for step in range(2):
        windows = sampler.read(step * LANES, LANES, pairs="next_sentence", lanes=LANES)
        made = MicroBatch(make_examples(windows, VOCABULARY, OBJECTIVE), windows)
        batch = with_memory(collate(made.examples), made, memory, model.settings)
        with torch.no_grad():
            model(batch)
        memory = batch.memory
        assert memory is not None and windows.new is not None and windows.backward is not None
        for row in range(LANES):
            new = windows.token_ids[row][windows.new[row]]
            new = new[::-1] if windows.backward[row] else new
            expected = model.backbone.embeddings.tokens.weight[torch.from_numpy(new.astype(np.int64))]
            torch.testing.assert_close(memory.states[0, row, -len(new) :], expected.detach())
            kept = int(memory.lengths[row])
            assert kept == (min(15, 2 * 12) if step and windows.continues[row] else len(new))  # type: ignore[index]


@pytest.mark.parametrize("factorization", ["token", "block"])
def test_what_is_remembered_has_read_nothing_that_the_next_window_predicts(tmp_path: Path, factorization: str) -> None:
    """Through all layers, new text reads new text alone; what comes after it in the order reads both."""
    sampler = make_sampler(make_source(tmp_path, DOCUMENTS), directions="both", **OVERLAPPING)
    windows = sampler.read(0, 8 * LANES, pairs="next_sentence", lanes=LANES)
    settings = settings_of(name="permuted", targets=["par", "nsp"], factorization=factorization, pairs="next_sentence",
                           masking="blockwise", mask_rate=0.3, pseudo_token="mask")  # fmt: skip
    examples = make_examples(windows, VOCABULARY, settings)
    slots, between = examples.text_slots(), 0
    assert windows.new is not None
    for row in range(len(windows)):
        reads = examples.visible(row) | np.eye(int(examples.lengths[row]), dtype=bool)
        through = np.linalg.matrix_power(reads.astype(float), len(reads)) > 0
        new = np.flatnonzero(windows.new[row])
        assert np.isin(examples.position_ids[row, : len(reads)][through[slots[row, new]].any(axis=0)], new).all()
        queries = np.flatnonzero(examples.kinds[row] == Kind.PSEUDO)
        for query in queries:
            position = int(examples.position_ids[row, query])
            sees = set(examples.position_ids[row, : len(reads)][examples.visible(row)[query]].tolist())
            assert position not in sees and (
                set(new.tolist()) <= sees or (position in new and sees <= set(new.tolist()))
            )
            between += position not in new
        begin = int(examples.targets["nsp"].slots[row, 0])
        assert windows.token_ids[row, 0] == SOS == examples.input_ids[row, begin] and through[begin].sum() > len(new)
        assert sorted(slots[row, : windows.lengths[row]].tolist()) == sorted({*slots[row].tolist()} - {-1})
    assert between > len(windows)


def test_a_memory_is_of_the_segment_it_adjoins(tmp_path: Path) -> None:
    """The first segment, in backward rows the second."""
    sampler = make_sampler(make_source(tmp_path, DOCUMENTS), directions="both", **OVERLAPPING)
    model = xl_model(vocab=VOCABULARY.size, memory=15, num_segments=2)
    windows = sampler.read(0, LANES, pairs="next_sentence", lanes=LANES)
    made = MicroBatch(make_examples(windows, VOCABULARY, OBJECTIVE), windows)
    batch = with_memory(collate(made.examples), made, None, model.settings)
    relations = Relations(batch, model.settings, None)
    differs = relations.of(slice(None), 15).differs
    assert differs is not None and windows.backward is not None and windows.backward.any()
    for row in range(LANES):
        real = slice(0, int(made.examples.lengths[row]))
        expected = made.examples.segment_ids[row, real] != int(windows.backward[row])
        assert (differs[row, 0, real].numpy() == expected[:, None]).all()


# Windows of random length: what each step reads, that the streams lose nothing, and the rate of a step

BESIDE = 3
"""Rows of a step."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    place = tmp_path_factory.mktemp("lengths")
    write_corpus(place / "corpus")
    recipe = load_recipe("awd-lstm", toy_overrides() | {"data.corpus": [str(place / "corpus")]})
    return open_or_prepare(recipe.data, recipe.tokenizer, place / "data", progress=False)


def sampler_of(
    prepared: Prepared, direction: str = "forward", kind: type[WindowSampler] = RandomLengthSampler, window: int = 22
) -> WindowSampler:
    return kind(
        prepared.train, window=window, segments=1, vocabulary=prepared.tokenizer.vocabulary, seed=5, documents="joined",
        order="streams", directions=direction,  # type: ignore[arg-type]
    )  # fmt: skip


def test_lengths_are_drawn_around_the_window_and_around_half_of_it() -> None:
    lengths = lengths_of(np.arange(100_000), 70, 1)
    whole, halved = lengths[lengths >= 52], lengths[lengths < 52]
    assert len(halved) / len(lengths) == pytest.approx(0.05, abs=0.01)
    assert (whole.mean(), whole.std()) == pytest.approx((69.5, 5), abs=0.2)
    assert halved.mean() == pytest.approx(34.5, abs=1)
    assert lengths.max() == 70 + 4 * 5, "cut at four deviations"
    assert (lengths_of(np.arange(2_000), 6, 1) >= 5).all()
    assert not np.array_equal(lengths[:50], lengths_of(np.arange(50), 70, 2))


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_each_stream_is_read_token_by_token(prepared: Prepared, direction: str) -> None:
    """The texts of a lane, one step after the other, are those that windows of one token would read."""
    steps = 12
    windows = sampler_of(prepared, direction).read(0, steps * BESIDE, lanes=BESIDE)
    lengths = lengths_of(np.arange(steps), 20, 5)
    assert windows.lengths.tolist() == np.repeat(lengths + 2, BESIDE).tolist()
    vocabulary = prepared.tokenizer.vocabulary
    single = sampler_of(prepared, direction, WindowSampler, 3).read(0, int(lengths.sum()) * BESIDE, lanes=BESIDE)
    for lane in range(BESIDE):
        wanted, cut = single.token_ids[lane::BESIDE, 1], single.cut[lane::BESIDE]
        found, read = [], 0
        for row in range(lane, steps * BESIDE, BESIDE):
            tokens = windows.token_ids[row, : windows.lengths[row]]
            assert tokens[0] == vocabulary.sos and tokens[-1] == vocabulary.eos
            assert (windows.token_ids[row, windows.lengths[row] :] == vocabulary.pad).all()
            backward = windows.backward is not None and bool(windows.backward[row])
            found.append(tokens[1:-1][::-1] if backward else tokens[1:-1])
            first, last = sorted((read, read + len(tokens) - 3), reverse=backward)
            assert windows.index[row] == single.index[lane + read * BESIDE] // 20  # the window that names its place
            read += len(tokens) - 2
            ends = {0: cut[first, 0], len(tokens) - 1: cut[last, 2]}
            assert np.flatnonzero(windows.cut[row]).tolist() == [column for column, is_cut in ends.items() if is_cut]
        assert np.array_equal(np.concatenate(found), wanted)
    assert windows.continues is not None
    assert windows.continues.tolist() == [row >= BESIDE for row in range(steps * BESIDE)]


def test_a_step_reads_the_same_wherever_reading_begins(prepared: Prepared) -> None:
    sampler = sampler_of(prepared)
    whole = sampler.read(0, 9 * BESIDE, lanes=BESIDE)
    part = sampler_of(prepared).read(4 * BESIDE + 1, 7, lanes=BESIDE)
    for row in range(7):
        length = part.lengths[row]
        assert length == whole.lengths[4 * BESIDE + 1 + row]
        assert np.array_equal(part.token_ids[row, :length], whole.token_ids[4 * BESIDE + 1 + row, :length])


def test_the_rate_of_a_step_is_scaled_by_its_length(prepared: Prepared) -> None:
    recipe = load_recipe("awd-lstm", toy_overrides() | {"training.steps": 6, "training.micro_batch_size": 4})
    made = list(training_steps(recipe, lambda each: build_sampler(each, prepared), 0))
    resumed = list(training_steps(recipe, lambda each: build_sampler(each, prepared), 3))
    rates = [[micro_batch.rate for micro_batch in step] for step in made]
    lengths = lengths_of(np.arange(6), 30, recipe.training.seed)
    for step, (of_step, length) in enumerate(zip(rates, lengths.tolist(), strict=True)):
        assert of_step == [length / 30] * 2
        assert {int(n) for micro_batch in made[step] for n in micro_batch.examples.lengths} == {length + 2}
    assert [[one.rate for one in step] for step in resumed] == rates[3:]
    for one, other in zip(made[3:], resumed, strict=True):
        assert np.array_equal(one[0].examples.input_ids, other[0].examples.input_ids)


def test_held_out_text_has_whole_windows(prepared: Prepared, tmp_path: Path) -> None:
    recipe = load_recipe("awd-lstm", toy_overrides())
    assert type(build_sampler(recipe, prepared, heldout=True)) is WindowSampler
    assert type(build_sampler(recipe, prepared)) is RandomLengthSampler


def test_a_step_learns_at_its_scaled_rate() -> None:
    """Gradient descent moves a weight by the rate of the step: half the rate, half the way."""
    moved = []
    for rate in (1.0, 0.5):
        model = recurrent_model()
        settings = TrainingSettings(
            optimizer="nt_asgd", steps=1, schedule="constant", warmup_steps=0, learning_rate=0.1, weight_decay=0.0
        )
        windows = random_windows(3, 9)
        objective = settings_of(name="causal", targets=["lm"], visibility="left_to_right")
        micro_batch = MicroBatch(make_examples(windows, vocabulary(), objective), windows, rate=rate)
        state = TrainState(model=model, optimizers=build_optimizers(model, settings))
        before = model.token_head.bias.detach().clone()
        fit(state, iter([[micro_batch]]), settings, CPU, nothing())
        moved.append(model.token_head.bias.detach() - before)
    assert moved[0].abs().max() > 0
    torch.testing.assert_close(moved[1], moved[0] / 2)
