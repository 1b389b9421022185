"""Translates each family's configuration to our settings; unsupported values are rejected by key."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from unicloze.interop.checked_json import Config
from unicloze.settings import ModelSettings


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The model shape and the properties a family's key table depends on.

    Args:
        settings: Model shape.
        padding: Number of leading rows of their position table reserved for padding.
        fused: Whether attention has one `qkv_linear` without a key bias (released UniLM).
        relative: Name of their relative position table, if any (released UniLM and models trained from it).
        tokens: Rows of their token table, where `query` needs it.
        query: Id of the pseudo mask, whose row of our token table is their vector of the slots that predict (XLNet).
    """

    settings: ModelSettings
    padding: int = 0
    fused: bool = False
    relative: str | None = None
    tokens: int = 0
    query: int | None = None

    @property
    def query_is_new(self) -> bool:
        """Whether their token table has no row for the pseudo mask, so that ours has one more."""
        return self.query is not None and self.query == self.tokens


def _common(config: Config) -> None:
    """Reject what no family supports here."""
    decoder = "this is a decoder, and only encoders can be imported"
    config.only("is_decoder", False, None, why=decoder)
    config.only("add_cross_attention", False, None, why=decoder)
    absolute = "only absolute positions are supported"
    config.only("position_embedding_type", "absolute", None, why=absolute)
    config.only("pruned_heads", {}, None, why="pruned attention heads are not supported")


def _shape(config: Config, **changes: Any) -> ModelSettings:
    """The settings shared by all BERT-like families."""
    _common(config)
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    if hidden % heads:
        raise config.refused("num_attention_heads", f"hidden_size is {hidden}, which must be a multiple of it")
    values: dict[str, Any] = dict(
        hidden_size=hidden,
        num_heads=heads,
        num_layers=config.whole("num_hidden_layers", kind="layers"),
        intermediate_size=config.whole("intermediate_size"),
        max_positions=config.whole("max_position_embeddings"),
        num_segments=config.whole("type_vocab_size", 2, least=0),
        activation=config.activation("hidden_act", "gelu"),
        relative_bias=False,
        dropout=config.number("hidden_dropout_prob", 0.1, most=1),
        attention_dropout=config.number("attention_probs_dropout_prob", 0.1, most=1),
        layer_norm_eps=config.number("layer_norm_eps", 1e-12, most=1),
        initializer_range=config.number("initializer_range", 0.02, most=10),
    )
    return ModelSettings(**(values | changes))


def bert_architecture(config: Config, _: Collection[str]) -> Architecture:
    """BERT."""
    return Architecture(settings=_shape(config))


def _after_padding(config: Config, **changes: Any) -> Architecture:
    """A layout whose positions start after the padding token's id."""
    padding = config.whole("pad_token_id", 1, least=0) + 1
    rows = config.whole("max_position_embeddings")
    if padding >= rows:
        raise config.refused("pad_token_id", f"that leaves no position of max_position_embeddings {rows} for text")
    return Architecture(settings=_shape(config, max_positions=rows - padding, **changes), padding=padding)


def roberta_architecture(config: Config, _: Collection[str]) -> Architecture:
    """RoBERTa, XLM-RoBERTa and CamemBERT."""
    return _after_padding(config)


def mpnet_architecture(config: Config, _: Collection[str]) -> Architecture:
    """MPNet."""
    config.only("relative_attention_num_buckets", 32, why="MPNet always has 32 buckets")
    config.only("pad_token_id", 1, why="MPNet always pads with id 1")
    return _after_padding(config, num_segments=0, relative_bias=True)


def _narrow(config: Config, default: int) -> int | None:
    width = config.whole("embedding_size", default)
    return None if width == config.whole("hidden_size") else width


def electra_architecture(config: Config, _: Collection[str]) -> Architecture:
    """ELECTRA, either network."""
    return Architecture(settings=_shape(config, embedding_size=_narrow(config, 128)))


def albert_architecture(config: Config, _: Collection[str]) -> Architecture:
    """ALBERT."""
    one = "only one group of shared layers is supported"
    config.only("num_hidden_groups", 1, why=one)
    config.only("inner_group_num", 1, why=one)
    narrow = _narrow(config, 128)
    if narrow is None:
        raise config.refused("embedding_size", "it must differ from hidden_size, so that there is a projection")
    activation = config.activation("hidden_act", "gelu_new")
    dropout = config.number("hidden_dropout_prob", 0.0, most=1)
    attention = config.number("attention_probs_dropout_prob", 0.0, most=1)
    settings = _shape(config, embedding_size=narrow, share_layers="all", activation=activation, dropout=dropout)
    return Architecture(settings=dataclasses.replace(settings, attention_dropout=attention))


DISTILBERT_KEYS: Mapping[str, str] = {
    "hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim", "hidden_act": "activation", "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}  # fmt: skip
"""DistilBERT's keys of a configuration, by BERT's."""


def distilbert_architecture(config: Config, _: Collection[str]) -> Architecture:
    """DistilBERT."""
    for key in ("dim", "n_heads", "hidden_dim"):
        config.whole(key)
    config.whole("n_layers", kind="layers")
    renamed = {name: config.values[key] for name, key in DISTILBERT_KEYS.items() if key in config.values}
    return Architecture(
        settings=_shape(Config(config.path, {**config.values, **renamed}), num_segments=0, layer_norm_eps=1e-12)
    )


def unilm_architecture(config: Config, names: Collection[str]) -> Architecture:
    """Released UniLM and MiniLM; the tensors identify the variant more reliably than the configuration."""
    config.only("prenorm", False, None, why="only layers that normalise after each sub-layer are supported")
    config.only("untie_rel_pos", False, None, why="only one relative position table for all layers is supported")
    config.only("seperate_cls_rel_pos", False, None, why="separate relative positions of [CLS] are not supported")
    config.only("rel_pos_type", 0, 2, None, why="only T5's buckets are supported, which is type 2")
    tables = [name.removeprefix("bert.") for name in names if name.endswith("rel_pos_bias.weight")]
    settings = _shape(
        config,
        num_segments=config.whole("type_vocab_size", 6, least=0),
        relative_bias=bool(tables),
        relative_buckets=config.whole("rel_pos_bins", 32) or 32,
        relative_max_distance=config.whole("max_rel_pos", 128) or 128,
    )
    fused = any(name.endswith(".qkv_linear.weight") for name in names)
    return Architecture(settings=settings, fused=fused, relative=tables[0] if tables else None)
