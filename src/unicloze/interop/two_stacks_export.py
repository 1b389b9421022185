"""Writes an encoder-decoder as Transformers' T5 or BART."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from unicloze.decoding.model_format import find_generation_format
from unicloze.files import replace_file
from unicloze.interop.architectures import Architecture
from unicloze.interop.families import FAMILIES
from unicloze.interop.tables import Table
from unicloze.interop.tokenizer_files import write_tokenizer
from unicloze.interop.two_stacks import BART_KIND, POSITIONS_BEFORE, T5_KIND
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.settings import ModelSettings
from unicloze.training.loading import LoadedModel

TWO_STACKS: Mapping[str, str] = {"t5": "T5ForConditionalGeneration", "bart": "BartForConditionalGeneration"}
"""Class of each format."""
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
_BOTH: Mapping[str, Any] = {"share_layers": "none", "embedding_size": None}
_FIXED: Mapping[str, Mapping[str, Any]] = {
    "t5": {
        **_BOTH,
        "scale_embeddings": False,
        **{name: value for name, value in T5_KIND.items() if name not in ("initializer", "embedding_norm")},
    },
    "bart": {
        **_BOTH,
        **dict.fromkeys(("biases", "scale_scores", "tied_output"), True),
        **dict.fromkeys(("gated", "scale_output"), False),
        "positions": "learned",
        "norm_kind": "layer",
        "head_size": None,
        **BART_KIND,
    },
}
"""Settings that each class fixes."""


def misfit(to: str, loaded: LoadedModel) -> tuple[str, object, str] | None:
    """The first setting of a model that a class does not support: its name, its value and what the class has.

    None if it supports all of them.
    """
    return next(_misfits(to, loaded), None)


def _misfits(to: str, loaded: LoadedModel) -> Iterator[tuple[str, object, str]]:
    settings, layout = loaded.model.settings, layout_of(loaded)
    if not settings.decoder_layers:
        yield "model.decoder_layers", 0, "has a decoder"
        return
    if layout is None:
        yield "task.kind", loaded.recipe.task.kind, "generates texts"
        return
    if settings.adapter_size:
        yield "finetuning.adapter_size", settings.adapter_size, "has no adapters"
    for name, value in _FIXED[to].items():
        if (own := getattr(settings, name)) != value:
            yield f"model.{name}", own, f"has model.{name} {str(value).lower()}"
    if settings.embedding_norm not in (None, settings.norm == "post"):
        yield "model.embedding_norm", settings.embedding_norm, f"has {str(settings.norm == 'post').lower()}"
    if to == "bart":
        if not layout.restarts:
            yield "objective.restart_positions", False, "counts the positions of its target from 0"
        return
    rates = {settings.dropout, settings.attention_dropout, settings.activation_dropout, settings.final_dropout}
    if len(rates) > 1:
        yield "model.dropout", settings.dropout, "has one rate for all dropout"
    if settings.scale_output != settings.tied_output:
        yield "model.scale_output", settings.scale_output, "scales its output where it is tied"
    if settings.gated and settings.activation == "gelu":
        yield "model.activation", settings.activation, "has gelu_tanh or relu with a gate"


def layout_of(loaded: LoadedModel) -> GenerationFormat | None:
    """How a model generates; None if it cannot."""
    return find_generation_format(loaded.recipe, loaded.tokenizer.vocabulary)


def table_of(to: str, settings: ModelSettings) -> Table:
    """The key table of a class."""
    padding = POSITIONS_BEFORE if to == "bart" else 0
    return FAMILIES[to].table(Architecture(settings=settings, padding=padding), heads=["token"])


def write(to: str, loaded: LoadedModel, folder: Path) -> None:
    """Write weights, configuration, generation settings and tokenizer."""
    model, settings, layout = loaded.model, loaded.model.settings, layout_of(loaded)
    assert layout is not None
    vocabulary, state = loaded.tokenizer.vocabulary, dict(model.state_dict())
    if to == "bart" and not settings.head_bias:
        state["token_head.bias"] = torch.zeros(model.vocab_size)
        settings = dataclasses.replace(settings, head_bias=True)
    weights = {name: tensor.detach().clone() for name, tensor in table_of(to, settings).to_theirs(state).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    ids: dict[str, Any] = {
        "pad_token_id": vocabulary.pad, "eos_token_id": vocabulary.eos, "bos_token_id": vocabulary.sos,
        "decoder_start_token_id": layout.opening[0],
    }  # fmt: skip
    config = {
        "architectures": [TWO_STACKS[to]],
        "model_type": to,
        "is_encoder_decoder": True,
        "vocab_size": model.vocab_size,
        "dtype": "float32",
        **ids,
        **(_t5_config if to == "t5" else _bart_config)(settings, model.max_positions),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generation = {**ids, "forced_eos_token_id": None}
    if len(layout.opening) > 1:
        generation["forced_bos_token_id"] = layout.opening[1]
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    write_tokenizer(loaded.tokenizer, folder, longest=model.max_positions, segments=None)
    if not layout.start:
        _without_start(folder / "tokenizer.json", loaded.tokenizer.tokens([vocabulary.sos])[0])


def _without_start(file: Path, sos: str) -> None:
    """Drop the token that begins every row from a tokenizer's template; a T5 row begins with its text."""
    content = json.loads(file.read_text(encoding="utf-8"))
    for name in ("single", "pair"):
        parts = content["post_processor"][name]
        if parts and parts[0].get("SpecialToken", {}).get("id") == sos:
            content["post_processor"][name] = parts[1:]
    replace_file(file, json.dumps(content, ensure_ascii=False, indent=2))


def _t5_config(settings: ModelSettings, positions: int) -> dict[str, object]:
    gate = {"gelu_tanh": "gated-gelu", "relu": "gated-relu"}.get(settings.activation)
    plain = {"gelu_tanh": "gelu_new"}.get(settings.activation, settings.activation)
    return {
        "d_model": settings.hidden_size,
        "d_kv": settings.head_size or settings.hidden_size // settings.num_heads,
        "d_ff": settings.intermediate_size,
        "num_layers": settings.num_layers,
        "num_decoder_layers": settings.decoder_layers,
        "num_heads": settings.num_heads,
        "n_positions": positions,
        "feed_forward_proj": gate if settings.gated else plain,
        "relative_attention_num_buckets": settings.relative_buckets,
        "relative_attention_max_distance": settings.relative_max_distance,
        "dropout_rate": settings.dropout,
        "layer_norm_epsilon": settings.layer_norm_eps,
        "tie_word_embeddings": settings.tied_output,
    }


def _bart_config(settings: ModelSettings, positions: int) -> dict[str, object]:
    both = {"attention_heads": settings.num_heads, "ffn_dim": settings.intermediate_size, "layerdrop": 0.0}
    return {
        "d_model": settings.hidden_size,
        **{f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in both.items()},
        "encoder_layers": settings.num_layers,
        "decoder_layers": settings.decoder_layers,
        "max_position_embeddings": positions,
        "activation_function": ACTIVATIONS[settings.activation],
        "scale_embedding": settings.scale_embeddings,
        "dropout": settings.dropout,
        "attention_dropout": settings.attention_dropout,
        "activation_dropout": settings.activation_dropout,
        "init_std": settings.initializer_range,
        "tie_word_embeddings": True,
    }
