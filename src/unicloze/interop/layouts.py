"""What the configurations of each family mean here; what they ask for beyond a model of ours is refused by its key."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from unicloze.interop.config import Config
from unicloze.settings import ModelSettings


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a family's table depends on.

    Args:
        settings: Shape of the model.
        padding: First rows of their position table that stand for padding.
        fused: Their attention has one `qkv_linear` without a bias of the keys (released UniLM).
        relative: Name of their table of relative positions, if they have one (released UniLM, and what was trained from it).
    """

    settings: ModelSettings
    padding: int = 0
    fused: bool = False
    relative: str | None = None


def _common(config: Config) -> None:
    """Refuse what no model here does, whatever its family."""
    decoder = "models here with this key are decoders; only an encoder can be read"
    config.only("is_decoder", False, None, why=decoder)
    config.only("add_cross_attention", False, None, why=decoder)
    absolute = "positions here are rows of a table (absolute)"
    config.only("position_embedding_type", "absolute", None, why=absolute)
    config.only("pruned_heads", {}, None, why="all layers here have all their attention heads")
    config.only(
        "quantization_config", {}, None, why="weights here are no quantised ones: take the unquantised checkpoint"
    )


def _shape(config: Config, **changes: Any) -> ModelSettings:
    """The settings whose keys all of BERT's kin share."""
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


def bert_layout(config: Config, _: Collection[str]) -> Layout:
    """BERT."""
    return Layout(settings=_shape(config))


def _after_padding(config: Config, **changes: Any) -> Layout:
    """Positions that are counted from the one after the padding token's id on."""
    padding = config.whole("pad_token_id", 1, least=0) + 1
    rows = config.whole("max_position_embeddings")
    if padding >= rows:
        raise config.refused("pad_token_id", f"that leaves none of max_position_embeddings {rows} for text")
    return Layout(settings=_shape(config, max_positions=rows - padding, **changes), padding=padding)


def roberta_layout(config: Config, _: Collection[str]) -> Layout:
    """RoBERTa, XLM-RoBERTa and CamemBERT."""
    return _after_padding(config)


def mpnet_layout(config: Config, _: Collection[str]) -> Layout:
    """MPNet."""
    config.only("relative_attention_num_buckets", 32, why="MPNet's buckets are 32 whatever this says")
    config.only("pad_token_id", 1, why="MPNet takes id 1 for padding whatever this says")
    return _after_padding(config, num_segments=0, relative_bias=True)


def _narrow(config: Config, default: int) -> int | None:
    width = config.whole("embedding_size", default)
    return None if width == config.whole("hidden_size") else width


def electra_layout(config: Config, _: Collection[str]) -> Layout:
    """ELECTRA, either network."""
    return Layout(settings=_shape(config, embedding_size=_narrow(config, 128)))


def albert_layout(config: Config, _: Collection[str]) -> Layout:
    """ALBERT."""
    one = "all layers here share one group's weights"
    config.only("num_hidden_groups", 1, why=one)
    config.only("inner_group_num", 1, why=one)
    narrow = _narrow(config, 128)
    if narrow is None:
        raise config.refused("embedding_size", "embeddings as wide as the hidden states have no projection here")
    activation = config.activation("hidden_act", "gelu_new")
    dropout = config.number("hidden_dropout_prob", 0.0, most=1)
    attention = config.number("attention_probs_dropout_prob", 0.0, most=1)
    settings = _shape(config, embedding_size=narrow, share_layers="all", activation=activation, dropout=dropout)
    return Layout(settings=dataclasses.replace(settings, attention_dropout=attention))


def distilbert_layout(config: Config, _: Collection[str]) -> Layout:
    """DistilBERT."""
    theirs = {
        "hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
        "intermediate_size": "hidden_dim", "hidden_act": "activation", "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    }  # fmt: skip
    for key in ("dim", "n_heads", "hidden_dim"):
        config.whole(key)
    config.whole("n_layers", kind="layers")
    renamed = {name: config.values[key] for name, key in theirs.items() if key in config.values}
    return Layout(
        settings=_shape(Config(config.path, {**config.values, **renamed}), num_segments=0, layer_norm_eps=1e-12)
    )


def unilm_layout(config: Config, names: Collection[str]) -> Layout:
    """Released UniLM and MiniLM: which of its variants one is, its tensors tell better than its configuration."""
    config.only("prenorm", False, None, why="layers here normalise after each sub-layer")
    config.only("untie_rel_pos", False, None, why="all layers here share one table of relative positions")
    config.only("seperate_cls_rel_pos", False, None, why="relative positions here know no [CLS]")
    config.only("rel_pos_type", 0, 2, None, why="relative positions here fall into T5's buckets, which is type 2")
    tables = [name.removeprefix("bert.") for name in names if name.endswith("rel_pos_bias.weight")]
    settings = _shape(
        config,
        num_segments=config.whole("type_vocab_size", 6, least=0),
        relative_bias=bool(tables),
        relative_buckets=config.whole("rel_pos_bins", 32) or 32,
        relative_max_distance=config.whole("max_rel_pos", 128) or 128,
    )
    fused = any(name.endswith(".qkv_linear.weight") for name in names)
    return Layout(settings=settings, fused=fused, relative=tables[0] if tables else None)
