"""Outputs and gradients against Transformers at random initialisation, in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import toys
from toys import random_windows, vocabulary
from unicloze.example import Batch, collate
from unicloze.model.dropout import DropoutKey
from unicloze.model.model import UnifiedModel
from unicloze.objectives import settings_of
from unicloze.objectives.unilmv2 import unilmv2

transformers = pytest.importorskip("transformers")

SHAPE = dict(
    vocab_size=50, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1e-12,
)  # fmt: skip


def bert_names(number: int) -> dict[str, list[str]]:
    """Our parameter names of a layer and BERT's."""
    ours, theirs = f"backbone.layers.{number}.", f"encoder.layer.{number}."
    return {
        ours + "attention.qkv": [theirs + f"attention.self.{part}" for part in ("query", "key", "value")],
        ours + "attention.output": [theirs + "attention.output.dense"],
        ours + "attention_norm": [theirs + "attention.output.LayerNorm"],
        ours + "feed_forward.inner": [theirs + "intermediate.dense"],
        ours + "feed_forward.output": [theirs + "output.dense"],
        ours + "feed_forward_norm": [theirs + "output.LayerNorm"],
    }


def mpnet_names(number: int) -> dict[str, list[str]]:
    """Our parameter names of a layer and MPNet's."""
    ours, theirs = f"backbone.layers.{number}.", f"encoder.layer.{number}."
    return bert_names(number) | {
        ours + "attention.qkv": [theirs + f"attention.attn.{part}" for part in "qkv"],
        ours + "attention.output": [theirs + "attention.attn.o"],
        ours + "attention_norm": [theirs + "attention.LayerNorm"],
    }


def pairs(model: UnifiedModel, peer: nn.Module, names: Any, prefix: str = "") -> list[tuple[Tensor, list[Tensor]]]:
    """Our parameters with the peer's; a fused parameter corresponds to several."""
    theirs = dict(peer.named_parameters())
    table = {"backbone.embeddings.norm": ["embeddings.LayerNorm"]}
    for number in range(SHAPE["num_hidden_layers"]):  # type: ignore[call-overload]
        table |= names(number)
    ours = dict(model.named_parameters())
    return [
        (ours[f"{name}.{kind}"], [theirs[f"{prefix}{other}.{kind}"] for other in others])
        for name, others in table.items()
        for kind in ("weight", "bias")
    ]


def copy(found: list[tuple[Tensor, list[Tensor]]]) -> None:
    with torch.no_grad():
        for own, others in found:
            for part, other in zip(own.chunk(len(others)), others, strict=True):
                other.copy_(part)


def same_gradients(found: list[tuple[Tensor, list[Tensor]]]) -> None:
    for own, others in found:
        assert own.grad is not None
        theirs = torch.cat([other.grad for other in others if other.grad is not None])
        torch.testing.assert_close(own.grad, theirs, atol=1e-5, rtol=1e-4)


def padded_batch(rows: int = 6) -> tuple[Batch, Tensor]:
    """Rows of several lengths, and the peer's attention mask."""
    windows = random_windows(rows, 24, short=True, seed=2)
    batch = collate(unilmv2(windows, vocabulary(), settings_of(targets=["ae"])))
    slots = batch.input_ids.shape[1]
    return batch, (torch.arange(slots) < torch.from_numpy(windows.lengths)[:, None]).long()


@pytest.mark.parametrize("training", [False, True])
def test_bert_for_masked_lm(training: bool) -> None:
    model = toys.model(relative_bias=False).train(training)
    config = transformers.BertConfig(**SHAPE, max_position_embeddings=40, attn_implementation="eager")
    peer = transformers.BertForMaskedLM(config).train(training)
    found = pairs(model, peer, bert_names, "bert.")
    own, theirs = dict(model.named_parameters()), dict(peer.named_parameters())
    for ours, other in {
        "backbone.embeddings.tokens.weight": "bert.embeddings.word_embeddings.weight",
        "backbone.embeddings.positions.weight": "bert.embeddings.position_embeddings.weight",
        "backbone.embeddings.segments.weight": "bert.embeddings.token_type_embeddings.weight",
        "token_head.dense.weight": "cls.predictions.transform.dense.weight",
        "token_head.dense.bias": "cls.predictions.transform.dense.bias",
        "token_head.norm.weight": "cls.predictions.transform.LayerNorm.weight",
        "token_head.norm.bias": "cls.predictions.transform.LayerNorm.bias",
        "token_head.bias": "cls.predictions.bias",
    }.items():
        found.append((own[ours], [theirs[other]]))
    copy(found)
    assert sum(p.numel() for p in peer.parameters()) == model.num_parameters()

    batch, attention_mask = padded_batch()
    target = batch.targets["ae"]
    labels = torch.full_like(batch.input_ids, -100)
    row, j = target.weights.nonzero(as_tuple=True)
    labels[row, target.slots[row, j]] = target.labels[row, j]
    expected = peer(
        input_ids=batch.input_ids,
        token_type_ids=batch.segment_ids,
        attention_mask=attention_mask,
        labels=labels,
        output_hidden_states=True,
    )
    states = model.backbone(batch)
    for ours, other in zip(states, expected.hidden_states, strict=True):
        torch.testing.assert_close(ours[attention_mask.bool()], other[attention_mask.bool()], atol=1e-5, rtol=1e-5)
    logits = model.logits(batch)["ae"]
    torch.testing.assert_close(logits[row, j], expected.logits[row, target.slots[row, j]], atol=1e-5, rtol=1e-5)

    loss = model(batch, DropoutKey(0) if training else None)["ae"]
    mean = loss.total / loss.weight
    torch.testing.assert_close(mean, expected.loss, atol=1e-5, rtol=1e-5)
    mean.backward()
    expected.loss.backward()
    same_gradients(found)


@pytest.mark.parametrize("training", [False, True])
def test_mpnet_model(training: bool) -> None:
    model = toys.model(num_segments=2).train(training)
    config = transformers.MPNetConfig(**SHAPE, max_position_embeddings=44, attn_implementation="eager")
    peer = transformers.MPNetModel(config, add_pooling_layer=False).train(training)
    found = pairs(model, peer, mpnet_names)
    assert model.backbone.relative is not None
    copy(found)
    embeddings = model.backbone.embeddings
    with torch.no_grad():
        peer.embeddings.word_embeddings.weight.copy_(embeddings.tokens.weight)
        peer.embeddings.position_embeddings.weight[:40] = embeddings.positions.weight + embeddings.segments.weight[0]
        peer.encoder.relative_attention_bias.weight.copy_(model.backbone.relative.weight.T)

    batch, attention_mask = padded_batch()
    batch.segment_ids.zero_()
    expected = peer(
        input_ids=batch.input_ids, position_ids=batch.position_ids, attention_mask=attention_mask
    ).last_hidden_state
    found_states = model.backbone(batch)[-1]
    real = attention_mask.bool()
    torch.testing.assert_close(found_states[real], expected[real], atol=1e-5, rtol=1e-5)
    weights = torch.randn(expected[real].shape, generator=torch.Generator().manual_seed(0))
    (found_states[real] * weights).sum().backward()
    (expected[real] * weights).sum().backward()
    same_gradients(found)
    position = embeddings.positions.weight.grad
    assert position is not None and embeddings.tokens.weight.grad is not None
    # MPNet uses id and position 1 for padding and gives them no gradient.
    unpadded = torch.arange(40) != 1
    torch.testing.assert_close(
        position[unpadded], peer.embeddings.position_embeddings.weight.grad[:40][unpadded], atol=1e-4, rtol=1e-4
    )
    theirs = peer.embeddings.word_embeddings.weight.grad
    torch.testing.assert_close(embeddings.tokens.weight.grad[toys.SOS :], theirs[toys.SOS :], atol=1e-4, rtol=1e-4)
    table = peer.encoder.relative_attention_bias.weight.grad.T
    torch.testing.assert_close(model.backbone.relative.weight.grad, table, atol=1e-4, rtol=1e-4)


def test_buckets_of_the_relative_bias_are_t5s() -> None:
    bias = toys.model(relative_buckets=32, relative_max_distance=128).backbone.relative
    assert bias is not None
    distance = torch.arange(-600, 601)
    theirs = transformers.models.mpnet.modeling_mpnet.MPNetEncoder.relative_position_bucket(
        distance, num_buckets=32, max_distance=128
    )
    assert torch.equal(bias.bucket(distance), theirs)


def test_the_relative_bias_is_a_product_with_one_hot_buckets() -> None:
    bias = toys.model(relative_buckets=16, relative_max_distance=20).backbone.relative
    assert bias is not None
    positions = torch.randint(0, 90, (3, 40), generator=torch.Generator().manual_seed(0))
    found = bias(positions[:, 7:19], positions)
    buckets = bias.bucket(positions[:, None, :] - positions[:, 7:19, None])
    expected = torch.einsum("bqkn,hn->bhqk", torch.nn.functional.one_hot(buckets, 16).float(), bias.weight)
    assert torch.equal(found, expected)
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    (own,), (product,) = (torch.autograd.grad(value, [bias.weight], upstream) for value in (found, expected))
    torch.testing.assert_close(own, product, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("relative_bias", [False, True])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_selecting_slots_early_changes_no_value_and_no_gradient(relative_bias: bool, norm: Any) -> None:
    windows = random_windows(5, 24, short=True)
    batch = collate(unilmv2(windows, vocabulary(), settings_of()))
    results = []
    for select in (True, False):
        model = toys.model(relative_bias=relative_bias, norm=norm)
        slots = torch.cat([target.slots for target in batch.targets.values()], dim=1)
        states = model.backbone(batch, select=select)[-1]
        chosen = states if select else states.gather(1, slots[:, :, None].expand(-1, -1, 32))
        chosen.pow(2).sum().backward()
        results.append((chosen, [p.grad for p in model.backbone.parameters()]))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-5, rtol=1e-5)
    for early, late in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(early, late, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("relative_bias", [False, True])
@pytest.mark.parametrize("masks_in_context", [False, True])
def test_short_rows_among_long_ones_are_attended_as_alone(relative_bias: bool, masks_in_context: bool) -> None:
    """Originals and pseudo masks of a shorter row are at slots where longer rows have context."""
    objective = settings_of(targets=["par"], masks_in_context=masks_in_context)
    windows = random_windows(40, 32, short=True, seed=7)
    examples = unilmv2(windows, vocabulary(), objective)
    model = toys.model(relative_bias=relative_bias)
    together = collate(examples)
    assert together.leading.shorter is not None
    assert together.leading.slots == int(examples.mutual.max()) > int(examples.mutual.min())
    with torch.no_grad():
        states = model.backbone(together)[-1]
        for row in range(40):
            length = int(examples.lengths[row])
            alone = model.backbone(collate(examples[row : row + 1]))[-1]
            torch.testing.assert_close(states[row, :length], alone[0, :length], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy_is_torchs(dtype: torch.dtype) -> None:
    from unicloze.model.heads import cross_entropy

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(70, 90, generator=generator).mul(4).to(dtype).requires_grad_()
    labels = torch.randint(0, 90, (70,), generator=generator)
    weights = torch.rand(70, generator=generator)
    (cross_entropy(logits * 1, labels) * weights).sum().backward()
    reference = logits.detach().float().requires_grad_()
    expected = nn.functional.cross_entropy(reference, labels, reduction="none")
    (expected * weights).sum().backward()
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(cross_entropy(logits, labels), expected, atol=tolerance, rtol=tolerance)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad.float(), reference.grad, atol=tolerance, rtol=tolerance)


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_explicit_attention_equals_torchs_kernel() -> None:
    batch = collate(unilmv2(random_windows(5, 24, short=True), vocabulary(), settings_of()))
    model = toys.model(relative_bias=False)
    results = []
    for backend in ("explicit", "sdpa", "flex"):
        model.backbone.backend = backend  # type: ignore[assignment]
        with torch.no_grad():
            results.append(model.logits(batch))
    for other in results[1:]:
        for name, logits in other.items():
            real = (batch.targets[name].weights > 0)[:, :, None].numpy()
            assert np.allclose(logits.numpy() * real, results[0][name].numpy() * real, atol=1e-5)
