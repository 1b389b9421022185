"""Streams of overlapping windows: the text that enters the memory, and segments from elsewhere (XLNet, Section 2.5)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from test_windows import EOS, FIRST, SOS, VOCABULARY, make_sampler, make_source
from unicloze.example import Memory, collate
from unicloze.model.transformer_xl import Relations
from unicloze.objectives import make_examples, settings_of
from unicloze.text.windows import Windows
from unicloze.training.batches import MicroBatch, with_memory
from xl_toys import xl_model

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


@pytest.mark.parametrize("directions", ["forward", "backward"])
def test_a_lane_remembers_the_whole_text(tmp_path: Path, directions: str) -> None:
    source = make_source(tmp_path, DOCUMENTS)
    sampler = make_sampler(source, directions=directions, **OVERLAPPING)
    windows = sampler.sequential(sampler.num_windows, pairs="next_sentence", lanes=1)
    assert windows.new is not None
    order = range(len(windows)) if directions == "forward" else range(len(windows) - 1, -1, -1)
    seen = [token for row in order for token in windows.token_ids[row][windows.new[row]].tolist() if token != EOS]
    text = list(range(FIRST, FIRST + sum(DOCUMENTS)))
    assert seen == (text[: len(seen)] if directions == "forward" else text[-len(seen) :])
    assert len(text) - 8 <= len(seen) <= len(text), "the last window's other text is not remembered"


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
