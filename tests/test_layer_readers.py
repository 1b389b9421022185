"""All readers give the same hidden states: whole rows, our cache, and a caller's keys and values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import toys
from unicloze.errors import UniclozeError, UsageError
from unicloze.model.backbone import Backbone
from unicloze.model.from_attention_mask import EncoderInputs, StepInputs, encoding_batch, slots_of
from unicloze.model.readers import Cache, GivenKeys, OwnCache, check_steps
from unicloze.settings import ModelSettings
from unicloze.visibility_masks import continuation_mask

ROWS, SLOTS, FIRST = 3, 9, 5
"""The first slots are computed in a separate call."""
WIDTH = 2
MODELS: dict[str, dict[str, Any]] = {
    "absolute positions": {"relative_bias": False},
    "relative bias": {},
    "norm before": {"norm": "pre"},
    "shared layers": {"share_layers": "all"},
    "local layers": {"layer_visibility": ["full", "local"], "norm": "pre"},
    "local layers with a relative bias": {"layer_visibility": ["local", "full"], "relative_bias": True},
}


def token_ids() -> Tensor:
    return torch.randint(7, 50, (ROWS, SLOTS), generator=torch.Generator().manual_seed(0))


def by_rows(backbone: Backbone, ids: Tensor) -> list[Tensor]:
    rule = EncoderInputs(visibility="left_to_right", segment_ids=(0, 0), local_width=WIDTH)
    return backbone(encoding_batch(ids, None, None, None, rule=rule, max_positions=SLOTS))


def by_given_keys(backbone: Backbone, ids: Tensor) -> list[Tensor]:
    rule = StepInputs(predicts="next", source="left_to_right", segment_ids=(0, 0), local_width=WIDTH)
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def append(key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        if layer in kept:
            key, value = torch.cat([kept[layer][0], key], dim=2), torch.cat([kept[layer][1], value], dim=2)
        kept[layer] = key, value
        return key, value

    parts = []
    for first, last in ((0, FIRST), (FIRST, SLOTS)):
        slots = slots_of(ids[:, first:last], None, None, rule=rule, earlier=first, max_positions=SLOTS)
        reader = GivenKeys(slots=slots, append=append, local_width=WIDTH)
        parts.append(list(backbone.read(slots.input_ids, slots.positions, slots.segment_ids, reader)))
    return [torch.cat(pair, dim=1) for pair in zip(*parts, strict=True)]


def by_own_cache(backbone: Backbone, ids: Tensor) -> list[Tensor]:
    cache = Cache.empty(backbone.settings, rows=ROWS, capacity=SLOTS, dtype=torch.float32, device=ids.device)
    parts = []
    for first, last in ((0, FIRST), (FIRST, SLOTS)):
        positions = torch.arange(first, last).expand(ROWS, -1)
        real, target = torch.ones(ROWS, last, dtype=torch.bool), torch.zeros(ROWS, last - first, dtype=torch.bool)
        reads = continuation_mask(real, target, earlier=first, both_ways=False)
        reader = OwnCache(cache=cache, positions=positions, reads=reads, local_width=WIDTH)
        parts.append(list(backbone.read(ids[:, first:last], positions, torch.zeros_like(positions), reader)))
        cache.filled = last
    return [torch.cat(pair, dim=1) for pair in zip(*parts, strict=True)]


@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS)
def test_all_readers_give_the_same_states_after_every_layer(settings: dict[str, Any]) -> None:
    backbone, ids = toys.model(**{"num_layers": 3, **settings}).eval().backbone, token_ids()
    with torch.no_grad():
        expected = by_rows(backbone, ids)
        assert len(expected) == 4
        for found in (by_given_keys(backbone, ids), by_own_cache(backbone, ids)):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_local_layers_need_a_width() -> None:
    backbone = toys.model(layer_visibility=["local"]).eval().backbone
    slots = slots_of(token_ids(), None, None, rule=StepInputs(predicts="next"), earlier=0, max_positions=SLOTS)
    reader = GivenKeys(slots=slots, append=lambda key, value, _: (key, value))
    with pytest.raises(
        UniclozeError, match=r"no local visibility: use objective\.name causal with objective\.local_width"
    ):
        list(backbone.read(slots.input_ids, slots.positions, slots.segment_ids, reader))


def test_what_needs_more_than_keys_and_values_is_refused() -> None:
    check_steps(ModelSettings())
    with pytest.raises(UsageError, match=r"model\.positions transformer_xl cannot generate a target step by step"):
        check_steps(ModelSettings(positions="transformer_xl"))
