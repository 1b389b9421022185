"""GPT-2 and XLNet of other libraries, which have one stack of layers: configurations and tensor names, in both directions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from unicloze.interop.architectures import Architecture
from unicloze.interop.checked_json import Config
from unicloze.interop.tables import Entry, HeadsLast, QueryVector, Reshaped, Transposed, module, modules, same
from unicloze.settings import ModelSettings

OUTPUT = "lm_head.weight"
XLNET_TOKENS = "word_embedding.weight"
XLNET_POSITIONS = 512
"""Longest row of an XLNet, whose relative positions have no table; that of the released models."""

GPT2_LINEAR: Mapping[str, str] = {
    "attention.qkv": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "feed_forward.inner": "mlp.c_fc",
    "feed_forward.output": "mlp.c_proj",
}
GPT2_NORMS: Mapping[str, str] = {"attention_norm": "ln_1", "feed_forward_norm": "ln_2"}
GPT2_KIND: dict[str, Any] = {
    "num_segments": 0,
    "norm": "pre",
    "relative_bias": False,
    "head": "linear",
    "head_bias": False,
    "scaled_init": True,
}
"""What all of GPT-2's models have in common."""

XLNET_KIND: dict[str, Any] = {
    "num_segments": 2,
    "positions": "transformer_xl",
    "relative_bias": False,
    "embedding_norm": False,
    "head": "linear",
}
"""What all of XLNet's models have in common."""


def gpt2_architecture(config: Config, names: Collection[str]) -> Architecture:
    """GPT-2, with or without a language model's output."""
    config.only("add_cross_attention", False, None, why="a decoder of another model is not supported")
    config.only(
        "scale_attn_by_inverse_layer_idx", False, None, why="scores scaled by the number of the layer are not supported"
    )
    hidden, heads = config.whole("n_embd"), config.whole("n_head")
    if hidden % heads:
        raise config.refused("n_head", f"n_embd is {hidden}, which must be a multiple of it")
    dropout = config.number("resid_pdrop", 0.1, most=1)
    if config.number("embd_pdrop", 0.1, most=1) != dropout:
        raise config.refused(
            "embd_pdrop", f"embeddings have the dropout of the layers: set it to resid_pdrop, {dropout:g}"
        )
    inner = None if config.values.get("n_inner") is None else config.whole("n_inner")
    tied = config.values.get("tie_word_embeddings", True) is not False or OUTPUT not in names
    settings = ModelSettings(
        hidden_size=hidden,
        num_layers=config.whole("n_layer", kind="layers"),
        num_heads=heads,
        intermediate_size=inner or 4 * hidden,
        max_positions=config.whole("n_positions", 1024),
        activation=config.activation("activation_function", "gelu_new"),
        scale_scores=config.values.get("scale_attn_weights", True) is not False,
        tied_output=tied,
        dropout=dropout,
        attention_dropout=config.number("attn_pdrop", 0.1, most=1),
        layer_norm_eps=config.number("layer_norm_epsilon", 1e-5, most=1),
        initializer_range=config.number("initializer_range", 0.02, most=10),
        **GPT2_KIND,
    )
    return Architecture(settings=settings)


def gpt2_backbone(layout: Architecture) -> list[Entry]:
    """GPT-2: projections stored transposed, and a normalisation after the last layer."""
    entries = [
        same(f"backbone.embeddings.{ours}.weight", f"{theirs}.weight")
        for ours, theirs in (("tokens", "wte"), ("positions", "wpe"))
    ]
    for number in range(layout.settings.num_layers):
        layer, block = f"backbone.layers.{number}.", f"h.{number}."
        for ours, theirs in GPT2_LINEAR.items():
            weight = (f"{layer}{ours}.weight",), (f"{block}{theirs}.weight",)
            entries.append(Entry(ours=weight[0], theirs=weight[1], change=Transposed()))
            entries.append(same(f"{layer}{ours}.bias", f"{block}{theirs}.bias"))
        entries += modules({layer + ours: block + theirs for ours, theirs in GPT2_NORMS.items()})
    return entries + module("backbone.final_norm", "ln_f")


def xlnet_architecture(config: Config, _: Collection[str]) -> Architecture:
    """XLNet, with or without a language model's output."""
    config.only(
        "attn_type", "bi", None, why="only bi, where the factorization order decides what a token reads, is supported"
    )
    config.only("untie_r", True, None, why="only layers with biases of their own are supported")
    config.only("bi_data", False, None, why="batches with reversed halves are not supported")
    config.only("same_length", False, None, why="attention spans of equal length are not supported")
    config.only("clamp_len", -1, 0, None, why="clamped distances are not supported")
    config.only("reuse_len", None, 0, why="a memory of the beginning of each row is not supported")
    hidden, heads = config.whole("d_model"), config.whole("n_head")
    if hidden % heads or hidden % 2:
        raise config.refused("d_model", f"it must be even and a multiple of n_head, which is {heads}")
    config.only("d_head", hidden // heads, None, why=f"only d_model / n_head, {hidden // heads}, is supported")
    dropout = config.number("dropout", 0.1, most=1)
    rates: dict[str, Any] = dict.fromkeys(
        ("dropout", "attention_dropout", "activation_dropout", "final_dropout"), dropout
    )
    memory = 0 if config.values.get("mem_len") is None else config.whole("mem_len", least=0)
    settings = ModelSettings(
        hidden_size=hidden,
        num_layers=config.whole("n_layer", kind="layers"),
        num_heads=heads,
        intermediate_size=config.whole("d_inner"),
        max_positions=XLNET_POSITIONS,
        memory=memory,
        activation=config.activation("ff_activation", "gelu"),
        layer_norm_eps=config.number("layer_norm_eps", 1e-12, most=1),
        initializer_range=config.number("initializer_range", 0.02, most=10),
        **rates,
        **XLNET_KIND,
    )
    return Architecture(settings=settings, tokens=config.whole("vocab_size", kind="vocab_size"))


def xlnet_backbone(layout: Architecture) -> list[Entry]:
    """XLNet: an axis for the heads in every attention tensor, and the vector of the slots that predict."""
    hidden, heads = layout.settings.hidden_size, layout.settings.num_heads
    assert layout.query is not None
    tokens = ("backbone.embeddings.tokens.weight",)
    query = QueryVector(layout.query, layout.query_is_new)
    entries = [Entry(ours=tokens, theirs=(XLNET_TOKENS, "mask_emb"), change=query)]
    flat, output = Reshaped((-1,), (heads, -1)), Reshaped((hidden, -1), (hidden, heads, -1))
    for number in range(layout.settings.num_layers):
        layer, block = f"backbone.layers.{number}", f"layer.{number}"
        attention, theirs = f"{layer}.attention", f"{block}.rel_attn"
        qkv = tuple(f"{theirs}.{name}" for name in "qkv")
        entries += [
            Entry(ours=(f"{attention}.qkv.weight",), theirs=qkv, change=HeadsLast(heads, 3)),
            Entry(ours=(f"{attention}.output.weight",), theirs=(f"{theirs}.o",), change=output),
            Entry(ours=(f"{attention}.terms.projection.weight",), theirs=(f"{theirs}.r",), change=HeadsLast(heads)),
            Entry(ours=(f"{attention}.terms.content",), theirs=(f"{theirs}.r_w_bias",), change=flat),
            Entry(ours=(f"{attention}.terms.position",), theirs=(f"{theirs}.r_r_bias",), change=flat),
            Entry(ours=(f"{attention}.terms.segment",), theirs=(f"{theirs}.r_s_bias",), change=flat),
            same(f"{attention}.terms.segments", f"{theirs}.seg_embed"),
            *modules(
                {
                    f"{layer}.attention_norm": f"{theirs}.layer_norm",
                    f"{layer}.feed_forward.inner": f"{block}.ff.layer_1",
                    f"{layer}.feed_forward.output": f"{block}.ff.layer_2",
                    f"{layer}.feed_forward_norm": f"{block}.ff.layer_norm",
                }
            ),
        ]
    return entries
