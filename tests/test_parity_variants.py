"""GPT-2, GPT and ALBERT against Transformers at random initialisation, and GPT-3's local layers against a full matrix."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import toys
from toys import random_windows, vocabulary
from unicloze.example import Batch, TargetBatch, collate
from unicloze.model.dropout import DropoutKey
from unicloze.model.model import UnifiedModel
from unicloze.objectives import settings_of
from unicloze.objectives.causal import causal
from unicloze.objectives.unilmv2 import unilmv2

transformers = pytest.importorskip("transformers")

LEFT_TO_RIGHT = settings_of(name="causal", targets=["lm"], visibility="left_to_right")
GPT: dict[str, Any] = dict(
    num_segments=0, relative_bias=False, head="linear", head_bias=False, activation="gelu_tanh", layer_norm_eps=1e-5
)
LAYERS, WIDTH = 3, 32

Found = list[tuple[Tensor, Tensor, bool]]
"""Our parameter, the peer's, and whether that is stored transposed."""


def both(model: UnifiedModel, peer: nn.Module, table: dict[str, str], transposed: str = "") -> Found:
    """Corresponding parameters, copied from ours to the peer's."""
    ours, theirs = dict(model.named_parameters()), dict(peer.named_parameters())
    found = []
    for name, other in table.items():
        turn = bool(transposed) and transposed in other and ours[name].ndim == 2
        with torch.no_grad():
            theirs[other].copy_(ours[name].T if turn else ours[name])
        found.append((ours[name], theirs[other], turn))
    assert {id(own) for own, _, _ in found} == {id(own) for own in ours.values()}
    assert {id(other) for _, other, _ in found} == {id(other) for other in theirs.values()}
    assert model.num_parameters() == sum(other.numel() for other in theirs.values())
    return found


def same_gradients(found: Found) -> None:
    for own, other, turn in found:
        assert own.grad is not None and other.grad is not None
        torch.testing.assert_close(own.grad, other.grad.T if turn else other.grad, atol=1e-5, rtol=1e-4)


def with_parts(table: dict[str, str]) -> dict[str, str]:
    return {f"{name}.{kind}": f"{other}.{kind}" for name, other in table.items() for kind in ("weight", "bias")}


def padded_batch() -> tuple[Batch, Tensor]:
    windows = random_windows(6, 24, short=True, seed=2)
    batch = collate(causal(windows, vocabulary(), LEFT_TO_RIGHT))
    return batch, torch.arange(batch.input_ids.shape[1]) < torch.from_numpy(windows.lengths)[:, None]


def gpt_names(peer: str) -> dict[str, str]:
    names = {}
    for number in range(LAYERS):
        ours, theirs = f"backbone.layers.{number}.", f"transformer.h.{number}."
        names |= {
            ours + "attention.qkv": theirs + "attn.c_attn",
            ours + "attention.output": theirs + "attn.c_proj",
            ours + "attention_norm": theirs + "ln_1",
            ours + "feed_forward.inner": theirs + "mlp.c_fc",
            ours + "feed_forward.output": theirs + "mlp.c_proj",
            ours + "feed_forward_norm": theirs + "ln_2",
        }
    tables = {"gpt2": ("wte", "wpe"), "openai": ("tokens_embed", "positions_embed")}[peer]
    return with_parts(names) | {
        f"backbone.embeddings.{own}.weight": f"transformer.{other}.weight"
        for own, other in zip(("tokens", "positions"), tables, strict=True)
    }


def compare_causal(model: UnifiedModel, peer: nn.Module, found: Found, training: bool) -> None:
    """Hidden states, logits, the loss and every gradient."""
    batch, real = padded_batch()
    target = batch.targets["lm"]
    labels = torch.where(real, batch.input_ids, -100)  # the peer shifts them itself
    expected = peer(input_ids=batch.input_ids, attention_mask=real.long(), labels=labels, output_hidden_states=True)
    states = model.backbone(batch)
    for ours, other in zip(states, expected.hidden_states, strict=True):
        torch.testing.assert_close(ours[real], other[real], atol=1e-5, rtol=1e-5)
    row, j = target.weights.nonzero(as_tuple=True)
    assert len(row) == int(real.sum()) - len(real)
    logits = model.logits(batch)["lm"]
    torch.testing.assert_close(logits[row, j], expected.logits[row, target.slots[row, j]], atol=1e-5, rtol=1e-5)
    loss = model(batch, DropoutKey(0) if training else None)["lm"]
    mean = loss.total / loss.weight
    torch.testing.assert_close(mean, expected.loss, atol=1e-5, rtol=1e-5)
    mean.backward()
    expected.loss.backward()
    same_gradients(found)


SIZES: dict[str, Any] = dict(
    vocab_size=50, n_positions=40, n_embd=WIDTH, n_layer=LAYERS, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
    attn_pdrop=0.0, layer_norm_epsilon=1e-5,
)  # fmt: skip


@pytest.mark.parametrize("training", [False, True])
def test_gpt2(training: bool) -> None:
    model = toys.model(**GPT, norm="pre", intermediate_size=64).train(training)
    config = transformers.GPT2Config(**SIZES, n_inner=64, attn_implementation="eager")
    peer = transformers.GPT2LMHeadModel(config).train(training)
    names = gpt_names("gpt2") | with_parts({"backbone.final_norm": "transformer.ln_f"})
    compare_causal(model, peer, both(model, peer, names, transposed=".c_"), training)


@pytest.mark.parametrize("training", [False, True])
def test_gpt(training: bool) -> None:
    """Normalised after each residual, but not after the embeddings."""
    model = toys.model(**GPT, embedding_norm=False, intermediate_size=4 * WIDTH).train(training)
    peer = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**SIZES)).train(training)
    compare_causal(model, peer, both(model, peer, gpt_names("openai"), transposed=".c_"), training)


@pytest.mark.parametrize("training", [False, True])
def test_albert_for_pre_training(training: bool) -> None:
    """One layer used three times, factorised embeddings, masked tokens and sentence order."""
    settings: dict[str, Any] = dict(
        embedding_size=16, share_layers="all", activation="gelu_tanh", relative_bias=False, targets=("ae", "sop")
    )
    model = toys.model(**settings).train(training)
    config = transformers.AlbertConfig(
        vocab_size=50, embedding_size=16, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=40, attn_implementation="eager", pad_token_id=None,
        classifier_dropout_prob=0.0,
    )  # fmt: skip
    peer = transformers.AlbertForPreTraining(config).train(training)
    ours, theirs = "backbone.layers.0.", "albert.encoder.albert_layer_groups.0.albert_layers.0."
    names = {
        "backbone.embeddings.norm": "albert.embeddings.LayerNorm",
        "backbone.embeddings.projection": "albert.encoder.embedding_hidden_mapping_in",
        ours + "attention.output": theirs + "attention.dense",
        ours + "attention_norm": theirs + "attention.LayerNorm",
        ours + "feed_forward.inner": theirs + "ffn",
        ours + "feed_forward.output": theirs + "ffn_output",
        ours + "feed_forward_norm": theirs + "full_layer_layer_norm",
        "token_head.dense": "predictions.dense",
        "token_head.norm": "predictions.LayerNorm",
        "pair_head.dense": "albert.pooler",
        "pair_head.output": "sop_classifier.classifier",
    }
    table = with_parts(names) | {
        "token_head.bias": "predictions.bias",
        "backbone.embeddings.tokens.weight": "albert.embeddings.word_embeddings.weight",
        "backbone.embeddings.positions.weight": "albert.embeddings.position_embeddings.weight",
        "backbone.embeddings.segments.weight": "albert.embeddings.token_type_embeddings.weight",
    }
    own, other = dict(model.named_parameters()), dict(peer.named_parameters())
    assert model.num_parameters() == sum(parameter.numel() for parameter in other.values())
    fused: list[tuple[Tensor, list[Tensor]]] = [
        (own[f"{ours}attention.qkv.{kind}"], [other[f"{theirs}attention.{part}.{kind}"] for part in names])
        for names in [("query", "key", "value")]
        for kind in ("weight", "bias")
    ]
    found: Found = [(own[name], other[its], False) for name, its in table.items()]
    with torch.no_grad():
        for parameter, its_own, _ in found:
            its_own.copy_(parameter)
        for parameter, parts in fused:
            for part, its_own in zip(parameter.chunk(3), parts, strict=True):
                its_own.copy_(part)

    windows = random_windows(6, 24, short=True, seed=2)
    batch = collate(unilmv2(windows, vocabulary(), settings_of(targets=["ae"])))
    order = torch.tensor([[0], [1], [1], [0], [1], [0]])
    sop = TargetBatch(
        slots=torch.zeros_like(order), labels=order, weights=torch.ones(6, 1), normaliser=6.0, predictions=6
    )
    batch = dataclasses.replace(batch, targets={**batch.targets, "sop": sop})
    target = batch.targets["ae"]
    row, j = target.weights.nonzero(as_tuple=True)
    labels = torch.full_like(batch.input_ids, -100)
    labels[row, target.slots[row, j]] = target.labels[row, j]
    real = torch.arange(batch.input_ids.shape[1]) < torch.from_numpy(windows.lengths)[:, None]
    expected = peer(
        input_ids=batch.input_ids, token_type_ids=batch.segment_ids, attention_mask=real.long(), labels=labels,
        sentence_order_label=order[:, 0], output_hidden_states=True,
    )  # fmt: skip
    torch.testing.assert_close(model.backbone(batch)[-1][real], expected.hidden_states[-1][real], atol=1e-5, rtol=1e-5)
    logits = model.logits(batch)["ae"]
    torch.testing.assert_close(
        logits[row, j], expected.prediction_logits[row, target.slots[row, j]], atol=1e-5, rtol=1e-5
    )
    losses = model(batch, DropoutKey(0) if training else None)
    mean = sum(loss.total / loss.weight for loss in losses.values())
    torch.testing.assert_close(mean, expected.loss, atol=1e-5, rtol=1e-5)
    mean.backward()
    expected.loss.backward()
    same_gradients(found)
    for parameter, parts in fused:
        theirs_grad = torch.cat([part.grad for part in parts if part.grad is not None])
        torch.testing.assert_close(parameter.grad, theirs_grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("direction", ["left_to_right", "right_to_left"])
@pytest.mark.parametrize("relative_bias", [False, True])
def test_alternating_local_layers_against_a_full_matrix(direction: Any, relative_bias: bool) -> None:
    """GPT-3, Section 2.1: every second layer reads a band. The reference computes all scores of one row at a time."""
    width = 3
    model = toys.model(
        **GPT | {"relative_bias": relative_bias}, norm="pre", num_layers=4, layer_visibility=["full", "local"]
    )
    objective = dataclasses.replace(LEFT_TO_RIGHT, visibility=direction, local_width=width)
    windows = random_windows(4, 24, short=True, seed=3)
    batch = collate(causal(windows, vocabulary(), objective))
    backbone = model.backbone
    with torch.no_grad():
        together = backbone(batch)
        for row, length in enumerate(windows.lengths.tolist()):
            q, k = torch.meshgrid(torch.arange(length), torch.arange(length), indexing="ij")
            dense = k <= q if direction == "left_to_right" else k >= q
            band = dense & ((q - k).abs() <= width)
            x = together[0][row, :length]
            for number, layer in enumerate(backbone.layers):
                normed = layer.attention_norm(x)
                query, key, value = (
                    part.view(length, 4, -1).transpose(0, 1) for part in layer.attention.qkv(normed).chunk(3, dim=-1)
                )
                scores = query @ key.transpose(1, 2) / math.sqrt(WIDTH // 4)
                if backbone.relative is not None:
                    scores = scores + backbone.relative(torch.arange(length)[None], torch.arange(length)[None])[0]
                scores = scores.masked_fill(~(band if number % 2 else dense), -math.inf)
                attended = (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
                x = x + layer.attention.output(attended)
                inner = functional.gelu(layer.feed_forward.inner(layer.feed_forward_norm(x)), approximate="tanh")
                x = x + layer.feed_forward.output(inner)
                if number < 3:
                    torch.testing.assert_close(together[number + 1][row, :length], x, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(together[-1][row, :length], backbone.final_norm(x), atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_backends_agree_on_local_layers() -> None:
    model = toys.model(**GPT, norm="pre", layer_visibility=["full", "local"])
    batch = collate(
        causal(random_windows(4, 24, short=True), vocabulary(), dataclasses.replace(LEFT_TO_RIGHT, local_width=2))
    )
    real = batch.targets["lm"].weights > 0
    results = []
    for backend in ("explicit", "sdpa", "flex"):
        model.backbone.backend = backend  # type: ignore[assignment]
        with torch.no_grad():
            results.append(model.logits(batch)["lm"][real])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], atol=1e-5, rtol=1e-5)
