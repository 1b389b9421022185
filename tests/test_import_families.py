"""Every family against Transformers at random initialisation: states, logits, gradients, and the way back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from interop_toys import batch_of, labels_of, noise, same_as_ours, same_there_and_back, save, table_of
from unicloze.errors import UniclozeError
from unicloze.interop.families import FAMILIES
from unicloze.interop.family import OF_TRAINING, OF_WEIGHTS
from unicloze.interop.files import Config
from unicloze.interop.read import import_checkpoint, open_model
from unicloze.model.dropout import DropoutKey
from unicloze.settings import ModelSettings
from unicloze.training.loading import LoadedModel

transformers = pytest.importorskip("transformers")

KINDS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "bert with both heads": ("BertForPreTraining", {}, ["ae", "nsp"]),
    "bert masked, relu": ("BertForMaskedLM", {"hidden_act": "relu"}, ["ae"]),
    "bert bare": ("BertModel", {"layer_norm_eps": 1e-5}, []),
    "bert without pooler head": ("BertForNextSentencePrediction", {"hidden_act": "gelu_new"}, ["nsp"]),
    "roberta": ("RobertaForMaskedLM", {"type_vocab_size": 1, "layer_norm_eps": 1e-5}, ["ae"]),
    "roberta bare": ("RobertaModel", {"type_vocab_size": 1}, []),
    "xlm-roberta": ("XLMRobertaForMaskedLM", {"type_vocab_size": 1}, ["ae"]),
    "mpnet": ("MPNetForMaskedLM", {}, ["ae"]),
    "mpnet bare": ("MPNetModel", {}, []),
    "electra discriminator": ("ElectraForPreTraining", {"embedding_size": 16}, ["rtd"]),
    "electra generator": ("ElectraForMaskedLM", {"embedding_size": 32}, ["ae"]),
    "albert, both heads": (
        "AlbertForPreTraining",
        {"embedding_size": 16, "classifier_dropout_prob": 0.0},
        ["ae", "sop"],
    ),
    "albert masked": ("AlbertForMaskedLM", {"embedding_size": 16, "hidden_act": "gelu"}, ["ae"]),
    "distilbert": ("DistilBertForMaskedLM", {}, ["ae"]),
    "distilbert bare": ("DistilBertModel", {"hidden_act": "relu"}, []),
}
"""A class of Transformers, changes of its configuration, and the targets of its heads."""
SHIFTED = "roberta", "mpnet"


@pytest.fixture(scope="module", params=KINDS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Any, LoadedModel]:
    """A checkpoint: its kind, its folder, Transformers' model and ours."""
    kind, changes, _ = KINDS[request.param]
    folder = tmp_path_factory.mktemp("checkpoint")
    padding = 2 if any(name in request.param for name in SHIFTED) else 0
    peer = save(kind, folder, padding=padding, **changes)
    return request.param, folder, peer, open_model(folder)


def answers(model: Any, states: Tensor) -> list[Tensor]:
    """Logits of every head for every slot, those of pairs for the first one."""
    heads = {
        "token_head": lambda: model.token_logits(states),
        "pair_head": lambda: model.pair_head(states[:, 0]),
        "replaced_head": lambda: model.replaced_head(states).squeeze(-1),
    }
    return [logits() for head, logits in heads.items() if hasattr(model, head)]


def outputs(
    peer: Any, name: str, batch: Any, real: Tensor, padding: int, segments: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Their hidden states, and their logits in the order of `answers`."""
    inputs: dict[str, Any] = {"input_ids": batch.input_ids, "attention_mask": real.long()}
    if "distilbert" not in name:
        inputs["position_ids"] = batch.position_ids + padding
    if segments:
        inputs["token_type_ids"] = batch.segment_ids
    result = peer(**inputs, output_hidden_states=True)
    keys = "prediction_logits", "seq_relationship_logits", "sop_logits", "logits"
    return list(result.hidden_states), [result[key] for key in keys if key in result]


@pytest.mark.parametrize("training", [False, True])
def test_states_logits_and_gradients(pair: tuple[str, Path, Any, LoadedModel], training: bool) -> None:
    name, folder, peer, loaded = pair
    family, table = table_of(folder)
    padding = 2 if family.name in SHIFTED else 0
    segments = family.name in ("bert", "electra", "albert")
    batch, real = batch_of(loaded.tokenizer.vocabulary, segments=segments)
    for model in (peer, loaded.model):
        model.train(training)
        model.zero_grad()

    states = loaded.model.backbone(batch, dropout=DropoutKey(0) if training else None)
    theirs, their_logits = outputs(peer, name, batch, real, padding, segments)
    for number, (own, other) in enumerate(zip(states, theirs, strict=True)):
        if number or "albert" not in name:  # ALBERT's first states are already projected
            torch.testing.assert_close(own[real], other[real], atol=1e-5, rtol=1e-5)
    logits = answers(loaded.model, states[-1])
    assert len(logits) == len(their_logits)
    losses = [(own[real] * noise(own[real].shape)).sum() for own in (states[-1], theirs[-1])]
    for own, other in zip(logits, their_logits, strict=True):
        if own.shape[:2] == real.shape:
            own, other = own[real], other[real]
        torch.testing.assert_close(own, other, atol=2e-5, rtol=1e-5)
        losses = [loss + (x * noise(x.shape)).sum() / 30 for loss, x in zip(losses, (own, other), strict=True)]
    if "ae" in loaded.recipe.objective.targets:
        loss = loaded.model(batch, DropoutKey(0) if training else None)["ae"]
        expected = torch.nn.functional.cross_entropy(their_logits[0].flatten(0, 1), labels_of(batch).flatten())
        torch.testing.assert_close(loss.total / loss.weight, expected, atol=1e-5, rtol=1e-5)
        losses = [losses[0] + loss.total / loss.weight, losses[1] + expected]
    for loss in losses:
        loss.backward()

    weights = dict(loaded.model.named_parameters())
    gradients = {key: torch.zeros_like(p) if p.grad is None else p.grad for key, p in weights.items()}
    for key, gradient in table.to_theirs(gradients).items():
        expected = peer.get_parameter(key).grad
        if expected is None:
            assert not gradient.any(), key
            continue
        if padding and "embeddings" in key and ("word" in key or "position" in key):
            gradient, expected = gradient.clone(), expected.clone()  # id and position 1 get no gradient there
            skipped = 1 if "word" in key else 3 if family.name == "mpnet" else 0
            gradient[: skipped + 1], expected[: skipped + 1] = 0, 0
        scale = max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(
            gradient / scale, expected / scale, atol=1e-5, rtol=1e-4, msg=lambda m, k=key: f"{k}: {m}"
        )


def test_there_and_back_is_the_same_bit_for_bit(pair: tuple[str, Path, Any, LoadedModel]) -> None:
    _, folder, _, loaded = pair
    same_there_and_back(folder, loaded.model)


def test_written_as_a_checkpoint_of_ours_it_is_the_same(
    pair: tuple[str, Path, Any, LoadedModel], tmp_path: Path
) -> None:
    name, _, _, loaded = pair
    again = same_as_ours(loaded, tmp_path / "ours")
    assert again.recipe.objective.targets == KINDS[name][2]
    assert ("without heads" in again.recipe.provenance.note) == (not KINDS[name][2])


def test_output_matrices_stored_twice_are_one(tmp_path: Path) -> None:
    """Old files store tied tensors twice, or only under the copy's name."""
    save("BertForMaskedLM", tmp_path)
    file = tmp_path / "model.safetensors"
    expected = open_model(tmp_path).model.state_dict()
    stored = load_file(file)
    stored["cls.predictions.decoder.weight"] = stored["bert.embeddings.word_embeddings.weight"].clone()
    stored["cls.predictions.decoder.bias"] = stored.pop("cls.predictions.bias")
    stored["bert.embeddings.position_ids"] = torch.arange(42)[None]
    for part, old in (("weight", "gamma"), ("bias", "beta")):
        stored[f"bert.embeddings.LayerNorm.{old}"] = stored.pop(f"bert.embeddings.LayerNorm.{part}")
    save_file(stored, file)
    found = open_model(tmp_path).model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    stored["cls.predictions.decoder.weight"][3, 3] += 1
    save_file(stored, file)
    with pytest.raises(UniclozeError, match=r"decoder.weight differs from bert.embeddings.word_embeddings.weight"):
        open_model(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    peer = save("BertForMaskedLM", tmp_path)
    peer.to(dtype).save_pretrained(tmp_path)
    found = import_checkpoint(tmp_path).model.backbone.embeddings.tokens.weight
    assert found.dtype == torch.float32
    assert torch.equal(found, peer.bert.embeddings.word_embeddings.weight.float())


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    peer = save("BertForMaskedLM", tmp_path / "whole")
    peer.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    (tmp_path / "parts" / "vocab.txt").write_bytes((tmp_path / "whole" / "vocab.txt").read_bytes())
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    whole, parts = (open_model(tmp_path / name).model.state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(parts[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "unilm"])
def test_a_written_configuration_has_keys_that_transformers_reads(name: str) -> None:
    """And they come back: of a shape unlike any default, only what the family fixes is lost, and reported."""
    layout, kind = FAMILIES[name], transformers.AutoConfig.for_model(name)
    own = ModelSettings(
        hidden_size=96, num_layers=5, num_heads=6, intermediate_size=100, max_positions=77, activation="relu",
        dropout=0.25, attention_dropout=0.35, initializer_range=0.3, layer_norm_eps=1e-4, num_segments=3,
        decoder_layers=3 if name in ("t5", "bart") else 0, embedding_size=48 if name in ("albert", "electra") else None,
        scale_output=name == "t5",
    )  # fmt: skip
    own = dataclasses.replace(own, **layout.fixed)
    written = layout.write(own, positions=77, padding=2)
    of_released_files = {"n_positions", "untie_r"}  # which the library does not read any more
    assert written.keys() <= {*kind.to_dict(), *kind.attribute_map, *of_released_files}
    again = type(kind)(**written, pad_token_id=1, vocab_size=300)
    config = Config(Path("config.json"), json.loads(again.to_json_string(use_diff=False)))
    read = layout.read(config, ["final_logits_bias"]).settings
    kept = {setting for key in layout.keys.values() for setting in key.ours.split()} | layout.fixed.keys()
    assert {name: getattr(read, name) for name in kept} == {name: getattr(own, name) for name in kept} | (
        {rate: 0.25 for rate in OF_TRAINING} if name in ("t5", "xlnet") else {}
    )
    assert not list(layout.changed(own, OF_WEIGHTS))
    others = {"norm_kind": "rms", "gated": True, "positions": "sinusoidal", "share_layers": "attention"}
    for changed, value in others.items():
        other = dataclasses.replace(own, **{changed: value})
        survives = name == "t5" and changed in ("norm_kind", "gated")
        assert (changed in [each for each, _, _ in layout.changed(other, OF_WEIGHTS)]) != survives
