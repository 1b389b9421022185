"""Outputs and gradients against Transformers' BERT with both its heads, and its RoBERTa, at random initialisation."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import toys
from test_parity import SHAPE, bert_names, copy, pairs, same_gradients
from toys import random_windows, vocabulary
from unicloze.example import Batch, collate
from unicloze.model.dropout import DropoutKey
from unicloze.model.model import UnifiedModel
from unicloze.objectives import make_examples, settings_of

transformers = pytest.importorskip("transformers")

ROBERTA_PADDING = 1
"""RoBERTa's padding id and position; its positions count from the next one."""


def masked_batch(targets: list[str], *, segments: int = 2) -> tuple[Batch, Tensor]:
    """Rows of several lengths, half of them negative, and the peer's attention mask."""
    windows = random_windows(6, 24, short=True, seed=4)
    windows = dataclasses.replace(windows, negative=np.arange(6) % 2 == 0)
    if segments == 1:
        windows = dataclasses.replace(windows, segment_ids=np.zeros_like(windows.segment_ids))
    objective = settings_of(name="masked", targets=targets, masking="token", pairs="next_sentence")  # type: ignore[arg-type]
    batch = collate(make_examples(windows, vocabulary(), objective))
    return batch, (torch.arange(batch.input_ids.shape[1]) < torch.from_numpy(windows.lengths)[:, None]).long()


def token_labels(batch: Batch) -> Tensor:
    target = batch.targets["ae"]
    labels = torch.full_like(batch.input_ids, -100)
    row, column = target.weights.nonzero(as_tuple=True)
    labels[row, target.slots[row, column]] = target.labels[row, column]
    return labels


def same_losses(model: UnifiedModel, batch: Batch, peer_loss: Tensor, *, training: bool) -> None:
    """Compare each mean loss, and run both backward."""
    losses = model(batch, DropoutKey(0) if training else None)
    total = torch.stack([loss.total / loss.weight for loss in losses.values()]).sum()
    torch.testing.assert_close(total, peer_loss, atol=1e-5, rtol=1e-5)
    total.backward()
    peer_loss.backward()


def same_token_logits(model: UnifiedModel, batch: Batch, logits: Tensor) -> None:
    target = batch.targets["ae"]
    row, column = target.weights.nonzero(as_tuple=True)
    own = model.logits(batch)["ae"]
    torch.testing.assert_close(own[row, column], logits[row, target.slots[row, column]], atol=1e-5, rtol=1e-5)


def named(model: UnifiedModel, peer: nn.Module, names: dict[str, str]) -> list[tuple[Tensor, list[Tensor]]]:
    own, theirs = dict(model.named_parameters()), dict(peer.named_parameters())
    return [(own[ours], [theirs[other]]) for ours, other in names.items()]


@pytest.mark.parametrize("training", [False, True])
def test_bert_for_pre_training(training: bool) -> None:
    model = toys.model(relative_bias=False, targets=("ae", "nsp")).train(training)
    config = transformers.BertConfig(**SHAPE, max_position_embeddings=40, attn_implementation="eager")
    peer = transformers.BertForPreTraining(config).train(training)
    found = pairs(model, peer, bert_names, "bert.")
    names = {
        "backbone.embeddings.tokens.weight": "bert.embeddings.word_embeddings.weight",
        "backbone.embeddings.positions.weight": "bert.embeddings.position_embeddings.weight",
        "backbone.embeddings.segments.weight": "bert.embeddings.token_type_embeddings.weight",
        "token_head.bias": "cls.predictions.bias",
    }
    for kind in ("weight", "bias"):
        names |= {
            f"token_head.dense.{kind}": f"cls.predictions.transform.dense.{kind}",
            f"token_head.norm.{kind}": f"cls.predictions.transform.LayerNorm.{kind}",
            f"pair_head.dense.{kind}": f"bert.pooler.dense.{kind}",
            f"pair_head.output.{kind}": f"cls.seq_relationship.{kind}",
        }
    found += named(model, peer, names)
    copy(found)
    assert sum(p.numel() for p in peer.parameters()) == model.num_parameters()

    batch, attention_mask = masked_batch(["ae", "nsp"])
    assert 0 < int(batch.targets["nsp"].labels.sum()) < 6
    expected = peer(
        input_ids=batch.input_ids,
        token_type_ids=batch.segment_ids,
        attention_mask=attention_mask,
        labels=token_labels(batch),
        next_sentence_label=batch.targets["nsp"].labels[:, 0],
    )
    same_token_logits(model, batch, expected.prediction_logits)
    with torch.no_grad():
        related = model.pair_head(model.backbone(batch)[-1][:, 0])
    torch.testing.assert_close(related, expected.seq_relationship_logits, atol=1e-5, rtol=1e-5)
    same_losses(model, batch, expected.loss, training=training)
    same_gradients(found)


@pytest.mark.parametrize("training", [False, True])
def test_roberta_for_masked_lm(training: bool) -> None:
    """RoBERTa counts positions from its padding id, so its table is ours shifted by two rows."""
    model = toys.model(relative_bias=False, num_segments=1, layer_norm_eps=1e-5).train(training)
    shape: dict[str, Any] = SHAPE | {"layer_norm_eps": 1e-5}
    config = transformers.RobertaConfig(
        **shape,
        max_position_embeddings=40 + ROBERTA_PADDING + 1,
        type_vocab_size=1,
        pad_token_id=ROBERTA_PADDING,
        attn_implementation="eager",
    )
    peer = transformers.RobertaForMaskedLM(config).train(training)
    found = pairs(model, peer, bert_names, "roberta.")
    names = {
        "backbone.embeddings.segments.weight": "roberta.embeddings.token_type_embeddings.weight",
        "token_head.bias": "lm_head.bias",
    }
    for kind in ("weight", "bias"):
        names |= {
            f"token_head.dense.{kind}": f"lm_head.dense.{kind}",
            f"token_head.norm.{kind}": f"lm_head.layer_norm.{kind}",
        }
    found += named(model, peer, names)
    copy(found)
    own, theirs = model.backbone.embeddings, peer.roberta.embeddings
    shifted = slice(ROBERTA_PADDING + 1, None)
    with torch.no_grad():
        theirs.word_embeddings.weight.copy_(own.tokens.weight)
        theirs.position_embeddings.weight[shifted] = own.positions.weight
    batch, attention_mask = masked_batch(["ae"], segments=1)
    # RoBERTa computes the positions from the ids that are not padding.
    input_ids = torch.where(attention_mask.bool(), batch.input_ids, ROBERTA_PADDING)
    expected = peer(input_ids=input_ids, attention_mask=attention_mask, labels=token_labels(batch))
    same_token_logits(model, batch, expected.logits)
    same_losses(model, batch, expected.loss, training=training)
    same_gradients(found)
    assert own.tokens.weight.grad is not None
    torch.testing.assert_close(
        own.positions.weight.grad, theirs.position_embeddings.weight.grad[shifted], atol=1e-5, rtol=1e-4
    )
    unpadded = torch.arange(50) != toys.PAD
    torch.testing.assert_close(
        own.tokens.weight.grad[unpadded], theirs.word_embeddings.weight.grad[unpadded], atol=1e-5, rtol=1e-4
    )
