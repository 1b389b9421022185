"""The masked-LM family: UniLM v1's four visibilities, SpanBERT's boundaries, and the uses of a masked model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import toys
from objective_toys import masked_by, repeated
from toys import random_windows, vocabulary
from unicloze import visibility
from unicloze.example import collate
from unicloze.interop.families import FAMILIES
from unicloze.model.dropout import DropoutKey
from unicloze.model.heads import BoundaryHead
from unicloze.objectives import make_examples
from unicloze.objectives.masked import causal, cloze, masked
from unicloze.settings import ModelSettings

VISIBILITIES = ["bidirectional", "left_to_right", "right_to_left", "prefix"]


def test_segment_ids_name_both_segments_or_each() -> None:
    windows = random_windows(5, 16)

    def named(ids: list[int] | None) -> np.ndarray:
        return masked(windows, vocabulary(), masked_by("prefix", segment_ids=ids)).segment_ids

    assert (named([2]) == 2).all()
    assert np.array_equal(named(None), windows.segment_ids)
    assert np.array_equal(named([4, 5]), windows.segment_ids + 4)


@pytest.mark.parametrize("relative_bias", [False, True])
def test_a_causal_row_equals_a_row_per_token(relative_bias: bool) -> None:
    model = toys.model(relative_bias=relative_bias)
    windows = random_windows(5, 20, short=True, seed=9)
    settings = masked_by("left_to_right", segment_ids=[1])
    together = causal(windows, vocabulary(), settings)
    with torch.no_grad():
        logits = model.logits(collate(together))["ae"]
        for row in range(5):
            places = np.flatnonzero(windows.maskable[row])
            steps = np.full((len(places), 20), -1, dtype=np.int32)
            steps[np.arange(len(places)), places] = 0
            alone = repeated(windows[row : row + 1], len(places))
            one_by_one = model.logits(collate(cloze(alone, steps, vocabulary(), settings)))["ae"][:, 0]
            torch.testing.assert_close(logits[row, : len(places)], one_by_one, atol=1e-5, rtol=1e-5)


def test_boundaries_of_many_rows() -> None:
    windows = random_windows(200, 40, short=True, seed=1)
    settings = masked_by(
        "bidirectional", targets=["ae", "sbo"], masking="geometric", max_span=10, mask_unit="word", mask_rate=0.4
    )
    examples = make_examples(windows, vocabulary(), settings)
    ae, sbo = examples.targets["ae"], examples.targets["sbo"]
    assert sbo.places is not None
    assert np.array_equal(ae.labels, sbo.labels)
    assert np.array_equal(ae.weights, sbo.weights)
    touching = 0
    for row, j in zip(*np.nonzero(sbo.weights), strict=True):
        left, right = sbo.slots[row, j]
        span = examples.steps[row, left + 1 : right]
        slot = left + sbo.places[row, j]
        assert (span >= 0).all() and examples.steps[row, left] < 0 > examples.steps[row, right]
        touching += len(set(span.tolist())) > 1
        assert windows.token_ids[row, slot] == sbo.labels[row, j] and slot == ae.slots[row, j]
    assert touching


def test_boundary_head_is_the_papers() -> None:
    settings = ModelSettings(hidden_size=32, layer_norm_eps=1e-5, initializer_range=0.2)
    head = BoundaryHead(settings, vocab_size=50)
    reference = nn.Sequential(
        nn.Linear(2 * 32 + 200, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32)
    )
    with torch.no_grad():
        for module in (head, *head.children()):
            for parameter in module.parameters(recurse=False):
                parameter.normal_(0, 0.3)
    for own, other in ((head.inner, 0), (head.inner_norm, 2), (head.outer, 3), (head.outer_norm, 5)):
        reference[other].load_state_dict(own.state_dict())
    boundary, embeddings = torch.randn(7, 2, 32), torch.randn(50, 32)
    places = torch.tensor([1, 2, 3, 10, 128, 129, 500])
    h0 = torch.cat([boundary[:, 0], boundary[:, 1], head.places.weight[places.clamp(max=128) - 1]], dim=1)
    expected = reference(h0) @ embeddings.T + head.bias
    logits = head(boundary, places, embeddings)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    weight = reference[0].weight
    assert isinstance(weight, nn.Parameter)
    (ours,), (theirs,) = (
        torch.autograd.grad(out.square().mean(), parameter)
        for out, parameter in ((logits, head.inner.weight), (expected, weight))
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", VISIBILITIES)
def test_bert_with_the_papers_masks(name: str, training: bool) -> None:
    transformers = pytest.importorskip("transformers")
    from interop_toys import SHAPE, labels_of, same_gradients, with_our_weights

    model = toys.model(relative_bias=False, num_segments=6).train(training)
    config = transformers.BertConfig(
        **SHAPE | {"max_position_embeddings": 40}, type_vocab_size=6, attn_implementation="eager"
    )
    peer = transformers.BertForMaskedLM(config).train(training)
    table = with_our_weights(FAMILIES["bert"], model, peer)
    windows = random_windows(6, 24, short=True, seed=2)
    examples = masked(windows, vocabulary(), masked_by(name, segment_ids=[4, 5]))
    batch = collate(examples)
    reads = visibility.bool_mask(batch.intervals, batch.input_ids.shape[1])
    expected = peer(
        input_ids=batch.input_ids,
        token_type_ids=batch.segment_ids,
        attention_mask=torch.where(reads, 0.0, torch.finfo(torch.float32).min)[:, None],
        labels=labels_of(batch),
    )
    target, logits = batch.targets["ae"], model.logits(batch)["ae"]
    row, j = target.weights.nonzero(as_tuple=True)
    torch.testing.assert_close(logits[row, j], expected.logits[row, target.slots[row, j]], atol=1e-5, rtol=1e-5)
    loss = model(batch, DropoutKey(0) if training else None)["ae"]
    mean = loss.total / loss.weight
    torch.testing.assert_close(mean, expected.loss, atol=1e-5, rtol=1e-5)
    mean.backward()
    expected.loss.backward()
    same_gradients(table, model, peer)
