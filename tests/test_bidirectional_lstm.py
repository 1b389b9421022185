"""Bidirectional LSTMs, whose layers read both directions of the layer below."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from recurrent_toys import backbone_of, recurrent_model
from toys import vocabulary
from unicloze.errors import UsageError
from unicloze.example import Batch, Examples, Kind, Target, collate
from unicloze.model.dropout import DropoutKey
from unicloze.model.recurrent.backbone import layer_widths
from unicloze.model.recurrent.layers import BACKWARD, FORWARD, find_texts
from unicloze.packing import pack
from unicloze.recipes import load_recipe
from unicloze.settings import ModelSettings
from unicloze.visibility import bidirectional_rows, left_to_right_rows

BOTH_WAYS: dict[str, Any] = {"directions": "bidirectional"}


def batch_of(*lengths: int, seed: int = 0) -> Batch:
    """Rows of random tokens that read themselves in both directions; every slot predicts."""
    count, capacity = np.array(lengths, np.int32), max(lengths)
    slot, rng = np.arange(capacity, dtype=np.int32), np.random.default_rng(seed)
    real = slot < count[:, None]
    ids = np.where(real, rng.integers(6, vocabulary().size, real.shape), vocabulary().pad).astype(np.int32)
    slots = np.where(real, slot, 0).astype(np.int32)
    target = Target(slots=slots, labels=np.zeros_like(ids), weights=real.astype(np.float32))
    return collate(
        Examples(
            input_ids=ids,
            position_ids=slots,
            segment_ids=np.zeros_like(ids),
            kinds=np.where(real, Kind.CONTEXT, Kind.PADDING).astype(np.uint8),
            steps=np.full_like(ids, -1),
            intervals=bidirectional_rows(count, capacity=capacity),
            lengths=count,
            mutual=count,
            text_tokens=count,
            targets={"lm": target},
        )
    )


def same_weights(model: Any) -> list[nn.LSTM]:
    """Torch's bidirectional layers with the weights of a model."""
    found = []
    for layer in backbone_of(model).layers:
        one, other = layer.of(FORWARD).lstm, layer.of(BACKWARD).lstm
        theirs = nn.LSTM(one.input_size, one.hidden_size, batch_first=True, bidirectional=True, proj_size=one.proj_size)
        weights = dict(one.named_parameters()) | {f"{k}_reverse": v for k, v in other.named_parameters()}
        with torch.no_grad():
            for name, weight in theirs.named_parameters():
                weight.copy_(weights[name])
        found.append(theirs)
    return found


@pytest.mark.parametrize("settings", [{}, {"projection": True, "intermediate_size": 10, "embedding_size": 6}])
@pytest.mark.parametrize("lengths", [(5, 5), (5, 3, 1)])
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_layers_are_those_of_torch_in_values_and_gradients(settings: Any, lengths: tuple[int, ...]) -> None:
    model, batch = recurrent_model(**BOTH_WAYS, **settings), batch_of(*lengths)
    theirs = same_weights(model)
    states = model.backbone(batch)
    embedded = backbone_of(model).embeddings(batch.input_ids)
    for row, length in enumerate(lengths):
        x = embedded[row : row + 1, :length]
        for layer, lstm in enumerate(theirs):
            x, _ = lstm(x)
            torch.testing.assert_close(states[layer + 1][row, :length], x[0])
    total = sum(states[-1][row, :length].square().sum() for row, length in enumerate(lengths))
    total.backward()
    lowest = backbone_of(model).layers[0].of(BACKWARD).lstm.weight_hh_l0
    ours, lowest.grad = lowest.grad, None
    own = embedded.detach()
    reference = torch.zeros(())
    for row, length in enumerate(lengths):
        x = own[row : row + 1, :length]
        for lstm in theirs:
            x, _ = lstm(x)
        reference = reference + x.square().sum()
    reference.backward()
    torch.testing.assert_close(ours, theirs[0].weight_hh_l0_reverse.grad)


def test_packed_rows_read_as_rows_of_their_own() -> None:
    model, one, other = recurrent_model(**BOTH_WAYS), batch_of(5, 4), batch_of(3, seed=1)
    packed = model.backbone(pack([one, other]))[-1][0]
    torch.testing.assert_close(packed[:10].view(2, 5, -1), model.backbone(one)[-1])
    torch.testing.assert_close(packed[10:], model.backbone(other)[-1][0])


def test_the_last_layer_has_as_many_cells_as_outputs() -> None:
    """CVT: 1024 cells projected to 512, then 512 cells, which read both directions."""
    settings = ModelSettings(
        kind="recurrent", directions="bidirectional", hidden_size=1024, intermediate_size=1024, embedding_size=300,
        num_layers=2, projection=True,
    )  # fmt: skip
    assert layer_widths(settings) == [(300, 1024, 512), (1024, 512, 512)]


def test_a_dropout_mask_is_the_same_at_all_slots_of_a_row() -> None:
    model = recurrent_model(**BOTH_WAYS, hidden_dropout=0.5, dropout=0.5)
    reading = backbone_of(model).read(batch_of(6, 4), DropoutKey(3))
    assert len(reading.shown) == 2
    for raw, shown in zip(reading.states[1:3], reading.shown, strict=True):
        kept = (shown / raw)[0]
        torch.testing.assert_close(kept, kept[:1].expand_as(kept))
        assert set(kept[0].round(decimals=4).tolist()) == {0.0, 2.0}
        assert not torch.equal((shown / raw)[0, 0], (shown / raw)[1, 0])
    torch.testing.assert_close(reading.by_layer[-1], reading.shown[-1])


def test_only_whole_texts_are_read() -> None:
    rows = bidirectional_rows(np.array([4, 2]), capacity=4)
    found = find_texts(rows)[FORWARD]
    assert (found.rows.tolist(), found.starts.tolist(), found.lengths.tolist()) == (
        [0, 1, 1, 1],
        [0, 0, 2, 3],
        [4, 2, 1, 1],
    )
    assert find_texts(rows)[BACKWARD].backward
    wider = rows.copy()
    wider[0, 1, 1] = 3
    for other in (left_to_right_rows(np.array([4, 2]), capacity=4), wider):
        with pytest.raises(UsageError, match=r"model\.directions bidirectional reads whole texts"):
            find_texts(other)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"model.memory": 1, "data.order": "streams"}, r"model\.memory is 1; a carried state needs"),
        ({"model.hidden_size": 33}, r"model\.hidden_size is 33; it must be even"),
        ({"model.intermediate_size": 512}, r"model\.projection is True; it projects .* half of model\.hidden_size"),
        ({"objective.visibility": "left_to_right"}, r"model\.directions is 'bidirectional'; .* set it to forward"),
    ],
)
def test_a_recipe_that_does_not_read_whole_texts_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        load_recipe("cvt", settings)


def test_every_slot_reads_the_whole_text() -> None:
    model, batch = recurrent_model(**BOTH_WAYS), batch_of(5)
    embedded = backbone_of(model).embeddings.tokens.weight
    last = model.backbone(batch)[-1][0]
    for slot in range(5):
        (gradient,) = torch.autograd.grad(last[slot].sum(), embedded, retain_graph=True)
        assert (gradient[batch.input_ids[0]].abs().sum(dim=1) > 0).all()
