"""XLNet's rows against Transformers' two streams at random initialisation: hidden states, loss and gradients."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from interop_toys import with_our_weights
from toys import PSEUDO, random_windows, vocabulary
from unicloze.example import Batch, Memory, collate
from unicloze.interop.families import FAMILIES
from unicloze.interop.family import Architecture
from unicloze.interop.tables import Table
from unicloze.model.dropout import DropoutKey
from unicloze.model.model import UnifiedModel
from unicloze.objectives import make_examples, settings_of
from unicloze.objectives.permuted import lay_out_permuted
from xl_toys import two_streams, xl_model

transformers = pytest.importorskip("transformers")

HIDDEN, HEADS, LAYERS, WINDOW = 32, 4, 3, 18
OBJECTIVE = settings_of(name="permuted", targets=["par"], mask_rate=0.35, factorization="token")
CONFIG = dict(
    vocab_size=50, d_model=HIDDEN, n_layer=LAYERS, n_head=HEADS, d_inner=64, ff_activation="gelu", untie_r=True,
    dropout=0.0, layer_norm_eps=1e-12, initializer_range=0.15,
)  # fmt: skip


def peer_of(model: UnifiedModel, training: bool) -> tuple[nn.Module, Table]:
    """Transformers' language model with our weights."""
    peer = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**CONFIG)).train(training)
    return peer, with_our_weights(FAMILIES["xlnet"], model, peer, query=PSEUDO)


def same_gradients(table: Table, model: UnifiedModel, peer: Any) -> None:
    """The query vector is the pseudo mask's row of our token table."""
    own = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    expected = {name: p.grad.clone() for name, p in peer.named_parameters()}
    query = expected.pop("transformer.mask_emb")
    expected["transformer.word_embedding.weight"][PSEUDO] += query[0, 0]
    found = table.to_theirs(own)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def mean_loss(model: UnifiedModel, batch: Batch, dropout: DropoutKey | None = None) -> Tensor:
    loss = model(batch, dropout)["par"]
    return loss.total / loss.weight


@pytest.mark.parametrize("memory", [WINDOW - 5, WINDOW + 7])
@pytest.mark.parametrize("training", [False, True])
def test_memory_is_xlnets(training: bool, memory: int) -> None:
    """Three windows of running text, shorter and longer than the memory."""
    model = xl_model().train(training)
    peer, table = peer_of(model, training)
    peer.transformer.mem_len = memory
    mems = None
    recalled = Memory(states=torch.zeros(LAYERS, 4, memory, HIDDEN), lengths=torch.zeros(4, dtype=torch.long))
    for seed in range(3):
        windows = random_windows(4, WINDOW, seed=seed)
        examples = make_examples(windows, vocabulary(), OBJECTIVE)
        batch = collate(examples)
        text = torch.from_numpy(examples.text_slots()).long()
        batch = dataclasses.replace(batch, memory=recalled, text_slots=text)
        labels = torch.where(batch.targets["par"].weights > 0, batch.targets["par"].labels, -100)
        inputs = two_streams(windows, examples)
        width = labels.shape[1]
        inputs["target_mapping"] = inputs["target_mapping"][:, :width]
        answer = peer(**inputs, labels=labels, mems=mems, use_mems=True)
        loss = mean_loss(model, batch)
        torch.testing.assert_close(loss, answer.loss, atol=1e-5, rtol=1e-5)
        model.zero_grad()
        peer.zero_grad()
        loss.backward()
        answer.loss.backward()
        same_gradients(table, model, peer)
        mems = answer.mems
        filled = min(memory, (seed + 1) * WINDOW)
        assert recalled.lengths.tolist() == [filled] * 4
        for own, theirs in zip(recalled.states, mems, strict=True):
            assert not own.requires_grad
            torch.testing.assert_close(own[:, memory - filled :], theirs.transpose(0, 1), atol=1e-5, rtol=1e-5)


def test_without_segments_they_are_not_seen() -> None:
    model = xl_model(num_segments=0)
    peer = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**CONFIG)).eval()
    table = FAMILIES["xlnet"].table(Architecture(settings=model.settings, query=PSEUDO), model.state_dict())
    peer.load_state_dict({**peer.state_dict(), **table.to_theirs(model.state_dict())})
    windows = random_windows(4, WINDOW)
    examples = make_examples(windows, vocabulary(), OBJECTIVE)
    inputs = two_streams(windows, examples)
    del inputs["token_type_ids"]
    batch = collate(examples, fixed_shape=True)
    states = model.backbone(batch, select=True)[-1]
    real = batch.targets["par"].weights > 0
    expected = peer.transformer(**inputs).last_hidden_state
    torch.testing.assert_close(states[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("masks", [0.0, 0.35])
@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
def test_early_selection_and_kernels_change_no_value_and_no_gradient(backend: Any, masks: float) -> None:
    """Selected queries of the last layer, regions with and without masks, rows with and without memory."""
    windows = random_windows(5, WINDOW, short=True)
    steps = np.where(windows.maskable & (np.random.default_rng(0).random(windows.maskable.shape) < masks), 0, -1)
    steps[:, 2] = np.where(windows.maskable[:, 2], 1, steps[:, 2])
    batch = collate(lay_out_permuted(windows, steps.astype(np.int32), vocabulary(), pseudo=PSEUDO))
    slots = batch.targets["par"].slots
    results = []
    for select, chosen in ((False, "explicit"), (True, backend)):
        model = xl_model()
        model.backbone.backend = chosen
        states = model.backbone(batch, select=select)[-1]
        states = states if select else states.gather(1, slots[:, :, None].expand(-1, -1, HIDDEN))
        states.pow(3).sum().backward()
        results.append((states, [p.grad for p in model.backbone.parameters()]))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-5, rtol=1e-5)
    for late, early in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(late, early, atol=2e-4, rtol=1e-4)
