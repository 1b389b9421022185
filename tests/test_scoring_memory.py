"""Scores of long texts by a model with a memory: which earlier windows a window reads, and which not."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import nlu_toys
from unicloze.decoding.inputs import one_segment
from unicloze.decoding.likelihood import score
from unicloze.example import Memory, collate
from unicloze.objectives.permuted import permuted_causal
from unicloze.training.loading import LoadedModel

WINDOW = 12
ONE = "anna sees berlin"
LONG = " ".join(["anna sees berlin", "eva plays the old cat", "carl leaves dublin", "fargo sees a bird"] * 3)
CUT = pytest.mark.filterwarnings("ignore:texts longer than the 10 tokens the model reads at once")


def start(memory: int, **settings: Any) -> LoadedModel:
    return nlu_toys.start("xlnet-base", data__window=WINDOW, model__memory=memory, **settings)


def chain(model: LoadedModel, *texts: str, batch_size: int = 32) -> list[list[float]]:
    found = []
    for one in score(model, texts, batch_size=batch_size):
        assert one.chain_per_token is not None
        found.append([term for term in one.chain_per_token if term is not None])
    return found


@CUT
def test_a_window_reads_the_memory_of_those_before_it() -> None:
    model = start(memory=8)
    (whole,) = chain(model, LONG)
    (tokens,) = model.tokenizer.encode_batch([LONG])
    settings, vocabulary, expected = model.model.settings, model.tokenizer.vocabulary, []
    memory = Memory(states=torch.zeros(settings.num_layers, 1, 8, settings.hidden_size), lengths=torch.zeros(1).long())
    for first in range(0, len(tokens), WINDOW - 2):
        windows = one_segment([tokens[first : first + WINDOW - 2]], vocabulary)
        asked = permuted_causal(windows, vocabulary, model.recipe.objective)
        with torch.no_grad():
            batch = dataclasses.replace(collate(asked, device="cpu"), memory=memory)
            logs = model.model.logits(batch)["par"].log_softmax(-1)[0]
            count = int(asked.targets["par"].weights.sum())
            labels = torch.from_numpy(asked.targets["par"].labels[0, :count]).long()
            expected += logs[torch.arange(count), labels].tolist()
            every = np.arange(windows.token_ids.shape[1])  # a whole window whose slots all read each other
            states = model.model.backbone(
                dataclasses.replace(
                    collate(asked[:1], device="cpu"),
                    **plain(windows.token_ids, windows.segment_ids),
                    memory=memory,
                    text_slots=torch.from_numpy(every)[None],
                )
            )
            assert len(states) == settings.num_layers + 1
    np.testing.assert_allclose(whole, expected, atol=1e-5)
    assert memory.lengths.tolist() == [8]


def plain(ids: np.ndarray, segments: np.ndarray) -> dict[str, Any]:
    from unicloze.example import Leading

    slots = ids.shape[1]
    leading = Leading(slots=slots, keys=slots, alike=True, in_order=True, shorter=None)
    return {
        "input_ids": torch.from_numpy(ids).long(),
        "position_ids": torch.arange(slots)[None],
        "segment_ids": torch.from_numpy(segments).long(),
        "intervals": torch.tensor([[[0, slots, 0, 0]] * slots]),
        "leading": leading,
        "targets": {},
    }


@CUT
def test_what_is_remembered_changes_only_later_windows_and_as_far_as_it_reaches() -> None:
    one_layer = start(memory=4, model__num_layers=1)
    words = LONG.split()
    (ids,) = one_layer.tokenizer.encode_batch([LONG])
    changed = " ".join(["bird", *words[1:]])
    assert len(one_layer.tokenizer.encode_batch([changed])[0]) == len(ids)
    one, other = chain(one_layer, LONG, changed)
    np.testing.assert_allclose(one[10:], other[10:], atol=1e-6, err_msg="the first word is no longer remembered")
    far = start(memory=40)
    one, other = chain(far, LONG, changed)
    assert all(abs(a - b) > 1e-7 for a, b in zip(one[10:14], other[10:14], strict=True))


@CUT
def test_scores_depend_neither_on_other_texts_nor_on_the_batch_size() -> None:
    model = start(memory=8)
    texts = [LONG, ONE, " ".join([ONE] * 8), LONG + " " + ONE]
    together = chain(model, *texts)
    for text, found, small in zip(texts, together, chain(model, *texts, batch_size=2), strict=True):
        (alone,) = chain(model, text)
        np.testing.assert_allclose(found, alone, atol=1e-5)
        np.testing.assert_allclose(found, small, atol=1e-5)
    (said,) = score(model, [LONG])
    assert said.note is not None and "windows, each reads 8 tokens of memory" in said.note


def test_a_text_of_one_window_is_scored_as_without_a_memory() -> None:
    model = start(memory=8)
    without = dataclasses.replace(model, model=start(memory=0).model)
    without.model.load_state_dict(model.model.state_dict())
    assert chain(model, ONE) == chain(without, ONE)
