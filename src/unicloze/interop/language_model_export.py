"""Writes a language model as Transformers' T5, BART, GPT-2 or XLNet."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from unicloze.decoding.inputs import text_format
from unicloze.decoding.model_format import find_generation_format
from unicloze.interop.architectures import Architecture
from unicloze.interop.decoding import longest_source
from unicloze.interop.families import FAMILIES
from unicloze.interop.language_models import GPT2_KIND, XLNET_KIND
from unicloze.interop.stock import ACTIVATIONS
from unicloze.interop.tables import Table
from unicloze.interop.tokenizer_files import write_tokenizer
from unicloze.interop.two_stacks import BART_KIND, POSITIONS_BEFORE, T5_KIND
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.objectives.permuted import PermutedSettings
from unicloze.objectives.unilmv2 import pseudo_id
from unicloze.settings import ModelSettings
from unicloze.tasks.rows import TextFormat
from unicloze.training.loading import LoadedModel

_ACTIVATIONS = {**ACTIVATIONS, "gelu_tanh": "gelu_new"}
_ALL: Mapping[str, Any] = {
    "kind": "transformer", "share_layers": "none", "embedding_size": None, "layer_visibility": ["full"], "layer_mix": False,
    "scale_embeddings": False,
}  # fmt: skip
_PLAIN: Mapping[str, Any] = {
    **dict.fromkeys(("biases", "tied_output", "scale_scores"), True),
    **dict.fromkeys(("gated", "scale_output"), False),
    "positions": "learned",
    "norm_kind": "layer",
    "head_size": None,
}
FIXED: Mapping[str, Mapping[str, Any]] = {
    "t5": {**_ALL, **{name: value for name, value in T5_KIND.items() if name not in ("initializer", "embedding_norm")}},
    "bart": {**{name: value for name, value in _ALL.items() if name != "scale_embeddings"}, **_PLAIN, **BART_KIND},
    "gpt2": {
        **_ALL,
        **{name: value for name, value in _PLAIN.items() if name not in ("tied_output", "scale_scores")},
        **{name: value for name, value in GPT2_KIND.items() if name != "scaled_init"},
        "activation_dropout": 0.0,
        "final_dropout": 0.0,
    },
    "xlnet": {**_ALL, **_PLAIN, **XLNET_KIND, "norm": "post", "head_bias": True},
}
"""Settings that each class fixes."""
CLASSES: Mapping[str, str] = {
    "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
    "gpt2": "GPT2LMHeadModel",
    "xlnet": "XLNetLMHeadModel",
}
"""Class of each format."""
ONE_STACK = "gpt2", "xlnet"
"""Formats without a decoder."""


def misfit(to: str, loaded: LoadedModel) -> tuple[str, object, str] | None:
    """The first setting of a model that a class does not support: its name, its value and what the class has.

    None if it supports all of them.
    """
    return next(_misfits(to, loaded), None)


def _misfits(to: str, loaded: LoadedModel) -> Iterator[tuple[str, object, str]]:
    settings, layout = loaded.model.settings, layout_of(loaded)
    if to in ONE_STACK and settings.decoder_layers:
        yield "model.decoder_layers", settings.decoder_layers, "has one stack of layers"
    if to not in ONE_STACK and not settings.decoder_layers:
        yield "model.decoder_layers", 0, "has a decoder"
        return
    if to == "xlnet" and loaded.recipe.task.kind:
        yield "task.kind", loaded.recipe.task.kind, "predicts permuted tokens"
        return
    if to == "xlnet" and (loaded.recipe.objective.name != "permuted" or not hasattr(loaded.model, "token_head")):
        yield "objective.name", loaded.recipe.objective.name, "predicts permuted tokens"
        return
    if to != "xlnet" and layout is None:
        yield "task.kind", loaded.recipe.task.kind, "generates texts"
        return
    if settings.adapter_size:
        yield "finetuning.adapter_size", settings.adapter_size, "has no adapters"
    for name, value in FIXED[to].items():
        if (own := getattr(settings, name)) != value:
            yield f"model.{name}", own, f"has model.{name} {str(value).lower()}"
    if to in ("t5", "bart", "gpt2"):
        normalised = to != "gpt2" and settings.norm == "post"
        if settings.embedding_norm not in (None, normalised):
            yield "model.embedding_norm", settings.embedding_norm, f"has {str(normalised).lower()}"
    if layout is None:
        return
    if to == "gpt2" and not (layout.decoder_only and layout.predicts == "next"):
        yield "use.visibility", loaded.recipe.use.visibility, "reads from left to right"
    if to == "bart" and not layout.restarts:
        yield "objective.restart_positions", False, "counts the positions of its target from 0"
    if to == "t5":
        yield from _misfits_of_t5(settings)


def _misfits_of_t5(settings: ModelSettings) -> Iterator[tuple[str, object, str]]:
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


def table_of(to: str, settings: ModelSettings, query: int | None = None) -> Table:
    """The key table of a class.

    Args:
        to: The format.
        settings: Shape of the model.
        query: Id of the token whose row is the vector of predicted slots (XLNet).
    """
    padding = POSITIONS_BEFORE if to == "bart" else 0
    return FAMILIES[to].table(Architecture(settings=settings, padding=padding, query=query), heads=["token"])


def write(to: str, loaded: LoadedModel, folder: Path) -> None:
    """Write weights, configuration, generation settings and tokenizer."""
    model, settings, layout = loaded.model, loaded.model.settings, layout_of(loaded)
    vocabulary, state = loaded.tokenizer.vocabulary, dict(model.state_dict())
    if to == "bart" and not settings.head_bias:
        state["token_head.bias"] = torch.zeros(model.vocab_size)
        settings = dataclasses.replace(settings, head_bias=True)
    table = table_of(to, settings, query_of(loaded) if to == "xlnet" else None)
    weights = {name: tensor.detach().clone() for name, tensor in table.to_theirs(state).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    ids: dict[str, Any] = {
        "pad_token_id": vocabulary.pad,
        "eos_token_id": vocabulary.eos,
        "bos_token_id": vocabulary.sos,
    }
    if to not in ONE_STACK:
        assert layout is not None
        ids["decoder_start_token_id"] = layout.opening[0]
    config = {
        "architectures": [CLASSES[to]],
        "model_type": to,
        "is_encoder_decoder": to not in ONE_STACK,
        "vocab_size": model.vocab_size,
        "dtype": "float32",
        **ids,
        **_CONFIGS[to](settings, model.max_positions),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_tokenizer(loaded.tokenizer, folder, form_of(loaded), takes_segments=to == "xlnet")
    if layout is None:
        return
    generation = {**ids, "forced_eos_token_id": None}
    if len(layout.opening) > 1:
        generation["forced_bos_token_id"] = layout.opening[1]
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")


def form_of(loaded: LoadedModel) -> TextFormat:
    """The rows of a text: of a source, or of an XLNet's whole text."""
    layout, form = layout_of(loaded), text_format(loaded)
    if layout is None:
        return dataclasses.replace(form, segments=(0, 1), longest=loaded.model.max_positions)
    end = (loaded.tokenizer.vocabulary.eos,) if layout.ends_source else ()
    longest = longest_source(loaded) if loaded.recipe.task.kind else loaded.model.max_positions
    return dataclasses.replace(form, start=layout.start, end=end, longest=longest)


def query_of(loaded: LoadedModel) -> int:
    """Id of the token whose row is the vector of predicted slots."""
    settings = loaded.recipe.objective
    assert isinstance(settings, PermutedSettings)
    return pseudo_id(loaded.tokenizer.vocabulary, settings)


def _t5_config(settings: ModelSettings, positions: int) -> dict[str, object]:
    gate = {"gelu_tanh": "gated-gelu", "relu": "gated-relu"}.get(settings.activation)
    plain = _ACTIVATIONS[settings.activation]
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


def _gpt2_config(settings: ModelSettings, positions: int) -> dict[str, object]:
    return {
        "n_embd": settings.hidden_size,
        "n_layer": settings.num_layers,
        "n_head": settings.num_heads,
        "n_inner": settings.intermediate_size,
        "n_positions": positions,
        "activation_function": _ACTIVATIONS[settings.activation],
        "scale_attn_weights": settings.scale_scores,
        "resid_pdrop": settings.dropout,
        "embd_pdrop": settings.dropout,
        "attn_pdrop": settings.attention_dropout,
        "layer_norm_epsilon": settings.layer_norm_eps,
        "initializer_range": settings.initializer_range,
        "tie_word_embeddings": settings.tied_output,
    }


def _xlnet_config(settings: ModelSettings, _: int) -> dict[str, object]:
    return {
        "d_model": settings.hidden_size,
        "n_layer": settings.num_layers,
        "n_head": settings.num_heads,
        "d_inner": settings.intermediate_size,
        "ff_activation": _ACTIVATIONS[settings.activation],
        "untie_r": True,
        "mem_len": settings.memory or None,
        "dropout": settings.dropout,
        "layer_norm_eps": settings.layer_norm_eps,
        "initializer_range": settings.initializer_range,
        "tie_word_embeddings": True,
    }


_CONFIGS: Mapping[str, Callable[[ModelSettings, int], dict[str, object]]] = {
    "t5": _t5_config,
    "bart": _bart_config,
    "gpt2": _gpt2_config,
    "xlnet": _xlnet_config,
}
"""Configuration of each class from a shape and a number of positions."""
