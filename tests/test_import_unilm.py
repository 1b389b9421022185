"""The released UniLM and MiniLM layouts against a hand-written forward pass, since no library has them.

Fused queries, keys and values in that order, biases of queries and values only, one relative position table [heads, 32]
looked up by T5's bucket of key minus query and added to the scaled scores, with absolute positions; 2 or 6 segments.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from interop_toys import batch_of, noise, same_there_and_back, table_of, write_vocabulary
from unicloze.decoding.infill import fill
from unicloze.decoding.likelihood import score
from unicloze.errors import UsageError
from unicloze.interop.families import FAMILIES
from unicloze.interop.family import Architecture
from unicloze.interop.read import import_checkpoint, open_model, write_model
from unicloze.training.loading import load_model

HIDDEN, LAYERS, HEADS, INNER, POSITIONS = 32, 3, 4, 64, 40


def released(
    folder: Path, *, fused: bool, relative: bool, segments: int, pair: bool = False, **config: Any
) -> dict[str, Tensor]:
    """A random checkpoint in the layout of the released files."""
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int, scale: float = 0.15) -> Tensor:
        return torch.randn(shape, generator=generator) * scale

    def linear(name: str, out: int, into: int) -> dict[str, Tensor]:
        return {f"{name}.weight": draw(out, into), f"{name}.bias": draw(out)}

    def norm(name: str, width: int = HIDDEN) -> dict[str, Tensor]:
        return {f"{name}.weight": 1 + draw(width), f"{name}.bias": draw(width)}

    state = {
        "bert.embeddings.word_embeddings.weight": draw(50, HIDDEN),
        "bert.embeddings.position_embeddings.weight": draw(POSITIONS, HIDDEN),
        "bert.embeddings.token_type_embeddings.weight": draw(segments, HIDDEN),
        **norm("bert.embeddings.LayerNorm"),
        **linear("cls.predictions.transform.dense", HIDDEN, HIDDEN),
        **norm("cls.predictions.transform.LayerNorm"),
        "cls.predictions.bias": draw(50),
    }
    for number in range(LAYERS):
        layer = f"bert.encoder.layer.{number}"
        if fused:
            state[f"{layer}.attention.self.qkv_linear.weight"] = draw(3 * HIDDEN, HIDDEN)
            state[f"{layer}.attention.self.q_bias"] = draw(1, 1, HIDDEN)
            state[f"{layer}.attention.self.v_bias"] = draw(1, 1, HIDDEN)
        else:
            for part in ("query", "key", "value"):
                state |= linear(f"{layer}.attention.self.{part}", HIDDEN, HIDDEN)
        state |= linear(f"{layer}.attention.output.dense", HIDDEN, HIDDEN) | norm(f"{layer}.attention.output.LayerNorm")
        state |= linear(f"{layer}.intermediate.dense", INNER, HIDDEN) | linear(f"{layer}.output.dense", HIDDEN, INNER)
        state |= norm(f"{layer}.output.LayerNorm")
    if relative:
        state["bert.encoder.rel_pos_bias.weight"] = draw(HEADS, 32, scale=1.0)
    if pair:
        state |= linear("bert.pooler.dense", HIDDEN, HIDDEN) | linear("cls.seq_relationship", 2, HIDDEN)
    values = dict(
        vocab_size=50, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=INNER,
        max_position_embeddings=POSITIONS, type_vocab_size=segments, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    write_vocabulary(folder)
    (folder / "config.json").write_text(json.dumps(values | config))
    save_file(state, folder / "model.safetensors")
    return state


def bucket(distance: int) -> int:
    """T5's bidirectional buckets of key minus query: 32 buckets up to a distance of 128."""
    found, size = (16, distance) if distance > 0 else (0, -distance)
    if size < 8:
        return found + size
    return found + min(15, 8 + int(math.log(size / 8) / math.log(128 / 8) * 8))


def forward(state: dict[str, Tensor], ids: Tensor, segments: Tensor, real: Tensor) -> tuple[list[Tensor], Tensor]:
    """Hidden states of every layer, and logits."""

    def linear(name: str, x: Tensor) -> Tensor:
        return functional.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(name: str, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (HIDDEN,), state[f"{name}.weight"], state[f"{name}.bias"], eps=1e-12)

    slots = ids.shape[1]
    x = state["bert.embeddings.word_embeddings.weight"][ids]
    x = x + state["bert.embeddings.position_embeddings.weight"][:slots]
    x = x + state["bert.embeddings.token_type_embeddings.weight"][segments]
    x = norm("bert.embeddings.LayerNorm", x)
    states = [x]
    mask = torch.where(real, 0.0, -1e9)[:, None, None, :]
    if "bert.encoder.rel_pos_bias.weight" in state:
        buckets = torch.tensor([[bucket(k - q) for k in range(slots)] for q in range(slots)])
        mask = mask + state["bert.encoder.rel_pos_bias.weight"][:, buckets]
    for number in range(LAYERS):
        layer = f"bert.encoder.layer.{number}"
        inner = f"{layer}.attention.self"
        if f"{inner}.qkv_linear.weight" in state:
            q, k, v = functional.linear(x, state[f"{inner}.qkv_linear.weight"]).chunk(3, dim=-1)
            q, v = q + state[f"{inner}.q_bias"], v + state[f"{inner}.v_bias"]
        else:
            q, k, v = (linear(f"{inner}.{part}", x) for part in ("query", "key", "value"))
        q, k, v = (part.view(*part.shape[:2], HEADS, -1).transpose(1, 2) for part in (q, k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(HIDDEN // HEADS) + mask
        context = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = norm(f"{layer}.attention.output.LayerNorm", linear(f"{layer}.attention.output.dense", context) + x)
        wide = functional.gelu(linear(f"{layer}.intermediate.dense", x))
        x = norm(f"{layer}.output.LayerNorm", linear(f"{layer}.output.dense", wide) + x)
        states.append(x)
    head = norm("cls.predictions.transform.LayerNorm", functional.gelu(linear("cls.predictions.transform.dense", x)))
    return states, head @ state["bert.embeddings.word_embeddings.weight"].T + state["cls.predictions.bias"]


VARIANTS = {
    "v1": dict(fused=False, relative=False, segments=6, model_type="unilm"),
    "v1 with pairs, fused": dict(fused=True, relative=False, segments=6, pair=True),
    "v1.2": dict(fused=True, relative=False, segments=2, model_type="unilm"),
    "v2": dict(fused=True, relative=True, segments=2, model_type="unilm", rel_pos_type=2, rel_pos_bins=32, max_rel_pos=128),
    "minilm": dict(fused=True, relative=False, segments=2, model_type="minilm"),
}  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize("name", VARIANTS)
def test_states_logits_and_gradients(name: str, tmp_path: Path) -> None:
    state = released(tmp_path, **VARIANTS[name])  # type: ignore[arg-type]
    loaded = open_model(tmp_path)
    batch, real = batch_of(loaded.tokenizer.vocabulary, segments=True)
    batch.segment_ids.mul_(loaded.recipe.model.num_segments - 1)
    for tensor in state.values():
        tensor.requires_grad_()
    states, logits = forward(state, batch.input_ids, batch.segment_ids, real)
    own = loaded.model.backbone(batch)
    for ours, theirs in zip(own, states, strict=True):
        torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=1e-5)
    own_logits = loaded.model.token_logits(own[-1])
    torch.testing.assert_close(own_logits[real], logits[real], atol=1e-5, rtol=1e-5)
    for found in (own_logits, logits):
        (found[real] * noise(found[real].shape)).sum().backward()
    _, table = table_of(tmp_path)
    gradients = {
        key: p.grad if p.grad is not None else torch.zeros_like(p) for key, p in loaded.model.named_parameters()
    }
    for key, gradient in table.to_theirs(gradients).items():
        expected = state[key].grad if state[key].grad is not None else torch.zeros_like(state[key])
        assert expected is not None
        scale = max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(gradient / scale, expected / scale, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", VARIANTS)
def test_there_and_back_is_the_same_bit_for_bit(name: str, tmp_path: Path) -> None:
    released(tmp_path, **VARIANTS[name])  # type: ignore[arg-type]
    same_there_and_back(tmp_path, open_model(tmp_path).model)


def test_the_table_of_relative_positions_has_two_names(tmp_path: Path) -> None:
    """The names in the release and in later code."""
    state = released(tmp_path, **VARIANTS["v2"])  # type: ignore[arg-type]
    table = state.pop("bert.encoder.rel_pos_bias.weight")
    save_file(state | {"bert.rel_pos_bias.weight": table}, tmp_path / "model.safetensors")
    loaded = open_model(tmp_path)
    assert loaded.model.backbone.relative is not None
    assert torch.equal(loaded.model.backbone.relative.weight, table)
    assert "bert.rel_pos_bias.weight" in table_of(tmp_path)[1].to_theirs(loaded.model.state_dict())


def test_a_bias_of_the_keys_is_left_out_without_a_difference(tmp_path: Path) -> None:
    """Export drops what training made of it: the softmax cancels a key bias up to rounding."""
    released(tmp_path, fused=True, relative=True, segments=2)
    loaded = open_model(tmp_path)
    batch, real = batch_of(loaded.tokenizer.vocabulary, segments=True)
    with torch.no_grad():
        for layer in loaded.model.backbone.layers:
            layer.attention.qkv.bias[HIDDEN : 2 * HIDDEN].normal_()  # type: ignore[union-attr]
        before = loaded.model.backbone(batch)[-1][real]
        _, table = table_of(tmp_path)
        loaded.model.load_state_dict(dict(table.ours(table.to_theirs(loaded.model.state_dict()))))
        assert float(loaded.model.backbone.layers[0].attention.qkv.bias[HIDDEN : 2 * HIDDEN].abs().sum()) == 0  # type: ignore[union-attr]
        torch.testing.assert_close(loaded.model.backbone(batch)[-1][real], before, atol=1e-5, rtol=1e-5)


def test_a_model_with_segments_folds_into_a_family_without(tmp_path: Path) -> None:
    released(tmp_path, fused=True, relative=True, segments=2)
    ours = open_model(tmp_path).model
    table = FAMILIES["mpnet"].table(Architecture(settings=ours.settings, padding=2), ours.state_dict())
    theirs = table.to_theirs(ours.state_dict())
    expected = ours.backbone.embeddings.positions.weight + ours.backbone.embeddings.segments.weight[0]  # type: ignore[union-attr]
    found = theirs["mpnet.embeddings.position_embeddings.weight"]
    assert torch.equal(found[2:], expected) and not found[:2].any()
    again = table.to_theirs(dict(table.ours(theirs)))
    assert all(torch.equal(again[name], tensor) for name, tensor in theirs.items())


def test_each_variant_supports_what_it_was_trained_for(tmp_path: Path) -> None:
    for name, variant in VARIANTS.items():
        folder = tmp_path / name
        released(folder, **variant)  # type: ignore[arg-type]
        write_model(open_model(folder), tmp_path / f"{name} ours")
        loaded = load_model(tmp_path / f"{name} ours")
        assert fill(loaded, "a [MASK] c").filled.startswith("a")
        scored = score(loaded, ["a b c"])[0].chain_log_likelihood is not None
        assert scored == (name in ("v1", "v1 with pairs, fused", "v2"))
        if name == "v2":
            assert fill(loaded, "a [MASK] [MASK]", order="left-to-right").target == "par"
        else:
            with pytest.raises(UsageError, match="does not define an order"):
                fill(loaded, "a [MASK]", order="confidence")


@pytest.mark.parametrize("legacy", [False, True])
def test_a_bin_is_read_only_when_asked_for(tmp_path: Path, legacy: bool) -> None:
    state = released(tmp_path, fused=True, relative=True, segments=2)
    expected = open_model(tmp_path).model.state_dict()
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "config.json").rename(tmp_path / "unilm2-base-uncased-config.json")
    (tmp_path / "vocab.txt").rename(tmp_path / "unilm2-base-uncased-vocab.txt")
    torch.save(state, tmp_path / "unilm2-base-uncased.bin", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(UsageError, match=r"only as a pickle .*import --pickle"):
        open_model(tmp_path)
    found = import_checkpoint(tmp_path, pickle=True).model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
