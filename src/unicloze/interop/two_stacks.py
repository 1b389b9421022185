"""Encoder-decoders of other libraries: T5's and BART's configurations and tensor names, in both directions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from unicloze.interop.architectures import Architecture
from unicloze.interop.checked_json import Config
from unicloze.interop.tables import Entry, Reshaped, Shifted, Transposed, layers, module, same
from unicloze.settings import ModelSettings

POSITIONS_BEFORE = 2
"""Rows of BART's position tables before those of the first position."""

BART_LAYER: Mapping[str, tuple[str, ...]] = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.output": ("self_attn.out_proj",),
    "attention_norm": ("self_attn_layer_norm",),
    "feed_forward.inner": ("fc1",),
    "feed_forward.output": ("fc2",),
    "feed_forward_norm": ("final_layer_norm",),
}
BART_CROSS: Mapping[str, tuple[str, ...]] = {
    "cross_attention.query": ("encoder_attn.q_proj",),
    "cross_attention.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.output": ("encoder_attn.out_proj",),
    "cross_attention_norm": ("encoder_attn_layer_norm",),
}

GATED: Mapping[str, tuple[str, bool]] = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gelu_new": ("gelu_new", False),
    "gated-gelu": ("gelu_new", True),
    "gated-gelu_new": ("gelu_new", True),
    "gated-relu": ("relu", True),
}
"""Activation, and whether there is a gate, of T5's `feed_forward_proj`."""


def t5_architecture(config: Config, names: Collection[str]) -> Architecture:
    """T5 1.0 and 1.1. One of the two stacks alone is not supported."""
    config.only("is_encoder_decoder", True, None, why="only T5 with both encoder and decoder is supported")
    kind = config.values.get("feed_forward_proj", "relu")
    if kind not in GATED:
        raise config.refused("feed_forward_proj", f"supported values are {', '.join(GATED)}")
    activation, gated = GATED[kind]
    hidden, heads = config.whole("d_model"), config.whole("num_heads")
    head = config.whole("d_kv", 64)
    layers = config.whole("num_layers", kind="layers")
    scaled = config.values.get("scale_decoder_outputs", config.values.get("tie_word_embeddings", True)) is not False
    tied = scaled or OUTPUT not in names
    dropout = config.number("dropout_rate", 0.1, most=1)
    rates: dict[str, Any] = dict.fromkeys(
        ("dropout", "attention_dropout", "activation_dropout", "final_dropout"), dropout
    )
    settings = ModelSettings(
        hidden_size=hidden,
        num_layers=layers,
        decoder_layers=config.whole("num_decoder_layers", layers, kind="layers"),
        num_heads=heads,
        head_size=None if head * heads == hidden else head,
        intermediate_size=config.whole("d_ff"),
        max_positions=config.whole("n_positions", 512),
        activation=Config(config.path, {"": activation}).activation("", activation),
        gated=gated,
        tied_output=tied,
        scale_output=scaled,
        relative_buckets=config.whole("relative_attention_num_buckets", 32),
        relative_max_distance=config.whole("relative_attention_max_distance", 128),
        layer_norm_eps=config.number("layer_norm_epsilon", 1e-6, most=1),
        **rates,
        **T5_KIND,
    )
    return Architecture(settings=settings)


OUTPUT = "lm_head.weight"
T5_KIND: dict[str, Any] = {
    "num_segments": 0,
    "positions": "none",
    "norm": "pre",
    "norm_kind": "rms",
    "biases": False,
    "scale_scores": False,
    "relative_bias": True,
    "embedding_norm": False,
    "head": "linear",
    "head_bias": False,
    "initializer": "t5",
}
"""What all of T5's models have in common."""


def t5_backbone(layout: Architecture) -> list[Entry]:
    """T5: two stacks without biases, with the relative bias in the first layer of each."""
    settings = layout.settings
    entries = [same("backbone.embeddings.tokens.weight", "shared.weight")]
    for ours, theirs, count in (
        ("backbone", "encoder", settings.num_layers),
        ("backbone.decoder", "decoder", settings.decoder_layers),
    ):
        entries.append(
            Entry(
                ours=(f"{ours}.relative.weight",),
                theirs=(f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",),
                change=Transposed(),
            )
        )
        names = _t5_layer(gated=settings.gated, decodes=theirs == "decoder")
        entries += layers(names, count, ours=f"{ours}.layers.{{}}.", theirs=f"{theirs}.block.{{}}.layer.", biases=False)
        entries += module(f"{ours}.final_norm", f"{theirs}.final_layer_norm", biases=False)
    return entries


def _t5_layer(*, gated: bool, decodes: bool) -> dict[str, list[str]]:
    """Our modules of a layer, and theirs."""
    last = 1 + decodes
    inner = f"{last}.DenseReluDense."
    names = {
        "attention.qkv": [f"0.SelfAttention.{name}" for name in "qkv"],
        "attention.output": ["0.SelfAttention.o"],
        "attention_norm": ["0.layer_norm"],
        "feed_forward.inner": [f"{inner}{'wi_0' if gated else 'wi'}"],
        "feed_forward.output": [f"{inner}wo"],
        "feed_forward_norm": [f"{last}.layer_norm"],
    }
    if gated:
        names["feed_forward.gate"] = [f"{inner}wi_1"]
    if decodes:
        names |= {
            "cross_attention.query": ["1.EncDecAttention.q"],
            "cross_attention.key_value": ["1.EncDecAttention.k", "1.EncDecAttention.v"],
            "cross_attention.output": ["1.EncDecAttention.o"],
            "cross_attention_norm": ["1.layer_norm"],
        }
    return names


def bart_architecture(config: Config, names: Collection[str]) -> Architecture:
    """BART; with `scale_embedding` also MASS."""
    config.only("is_encoder_decoder", True, None, why="only BART with both encoder and decoder is supported")
    config.only(
        "add_final_layer_norm", False, None, why="only layers that normalise after each sub-layer are supported"
    )
    config.only("normalize_before", False, None, why="only layers that normalise after each sub-layer are supported")
    config.only("normalize_embedding", True, None, why="only normalised embeddings are supported")
    hidden, heads = config.whole("d_model"), config.whole("encoder_attention_heads")
    if hidden % heads:
        raise config.refused("encoder_attention_heads", f"d_model is {hidden}, which must be a multiple of it")
    config.only("decoder_attention_heads", heads, why="encoder and decoder need the same number of heads")
    inner = config.whole("encoder_ffn_dim")
    config.only("decoder_ffn_dim", inner, why="encoder and decoder need feed-forward networks of the same size")
    settings = ModelSettings(
        hidden_size=hidden,
        num_layers=config.whole("encoder_layers", kind="layers"),
        decoder_layers=config.whole("decoder_layers", kind="layers"),
        num_heads=heads,
        intermediate_size=inner,
        max_positions=config.whole("max_position_embeddings", 1024),
        activation=config.activation("activation_function", "gelu"),
        scale_embeddings=config.values.get("scale_embedding", False) is True,
        dropout=config.number("dropout", 0.1, most=1),
        attention_dropout=config.number("attention_dropout", 0.0, most=1),
        activation_dropout=config.number("activation_dropout", 0.0, most=1),
        initializer_range=config.number("init_std", 0.02, most=10),
        head_bias=FINAL_BIAS in names,
        **BART_KIND,
    )
    return Architecture(settings=settings, padding=POSITIONS_BEFORE)


FINAL_BIAS = "final_logits_bias"
BART_KIND: dict[str, Any] = {
    "num_segments": 0,
    "norm": "post",
    "relative_bias": False,
    "head": "linear",
    "layer_norm_eps": 1e-5,
}
"""What all of BART's models have in common."""


def bart_backbone(layout: Architecture) -> list[Entry]:
    """BART: two stacks with positions and embedding norm of their own."""
    entries = [same("backbone.embeddings.tokens.weight", "shared.weight")]
    for ours, theirs, count in (
        ("backbone", "encoder", layout.settings.num_layers),
        ("backbone.decoder", "decoder", layout.settings.decoder_layers),
    ):
        table = f"{ours}.embeddings.positions.weight"
        places = (f"{theirs}.embed_positions.weight",)
        entries.append(Entry(ours=(table,), theirs=places, change=Shifted(layout.padding)))
        entries += module(f"{ours}.embeddings.norm", f"{theirs}.layernorm_embedding")
        names = {**BART_LAYER, **BART_CROSS} if theirs == "decoder" else BART_LAYER
        entries += layers(names, count, ours=f"{ours}.layers.{{}}.", theirs=f"{theirs}.layers.{{}}.")
    return entries


FINAL_LOGITS_BIAS = Entry(ours=("token_head.bias",), theirs=(FINAL_BIAS,), change=Reshaped((-1,), (1, -1)))
"""BART's bias of the logits."""
