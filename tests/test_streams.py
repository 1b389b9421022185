"""Windows that continue each other, row by row, for segment recurrence."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from test_windows import EOS, FIRST, LENGTHS, SOS, make_sampler, make_source
from unicloze.errors import UsageError
from unicloze.objectives import settings_of
from unicloze.settings import DataSettings, Recipe, TrainingSettings
from unicloze.text.windows import Windows
from unicloze.training.batches import training_steps

STREAMS: dict[str, Any] = {"segments": 1, "order": "streams"}


def text_of(windows: Windows, row: int) -> list[int]:
    return windows.token_ids[row, 1 : windows.lengths[row] - 1].tolist()  # type: ignore[no-any-return]


def test_two_lanes_by_hand(tmp_path: Path) -> None:
    """A document of 12 tokens and one of 6, windows of 3: six windows, two lanes of three."""
    sampler = make_sampler(make_source(tmp_path, [12, 6]), window=5, **STREAMS)
    windows = sampler.read(0, 6, lanes=2)
    turn = int(windows.index[0])
    lanes = [[(lane * 3 + turn + step) % 6 for step in range(3)] for lane in (0, 1)]
    assert windows.index.tolist() == [window for step in zip(*lanes, strict=True) for window in step]
    first = FIRST + 3 * turn
    assert windows.token_ids[0].tolist() == [SOS, first, first + 1, first + 2, EOS]
    assert windows.continues is not None
    # Windows 0 and 4 begin the documents.
    goes_on = [[step > 0 and window not in (0, 4) for step, window in enumerate(lane)] for lane in lanes]
    assert windows.continues.tolist() == [flag for step in zip(*goes_on, strict=True) for flag in step]


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


def test_a_row_of_a_micro_batch_stays_in_its_lane(tmp_path: Path) -> None:
    sampler = make_sampler(make_source(tmp_path, [400, 300]), window=12, **STREAMS)
    recipe = Recipe(
        data=DataSettings(window=12, segments=1, order="streams"),
        objective=settings_of(name="masked", targets=["ae"]),
        training=TrainingSettings(steps=9, batch_size=6, micro_batch_size=2),
    )
    steps = list(training_steps(recipe, lambda _: sampler, 0))
    assert [len(step) for step in steps] == [3] * 9
    went_on = 0
    for before, after in itertools.pairwise(steps):
        for one, two in zip(before, after, strict=True):
            assert two.windows.continues is not None
            follows = two.windows.index == one.windows.index + 1
            assert follows[two.windows.continues].all()
            went_on += int(two.windows.continues.sum())
    assert went_on > 8 * 6 - 10
    resumed = list(training_steps(recipe, lambda _: sampler, 5))
    assert (resumed[0][1].windows.keys == steps[5][1].windows.keys).all()


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
