"""Configurations of other libraries: a two-way table of keys and settings for each family.

Import reads a table, export writes it, and what does not survive writing and reading is what a class does not support.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unicloze.interop.files import Config
from unicloze.settings import ModelSettings

OUTPUT, FINAL_BIAS = "lm_head.weight", "final_logits_bias"
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
"""Their names of our activations."""
XLNET_POSITIONS = 512
"""Longest row of an XLNet, whose relative positions have no table; that of the released models."""
OF_WEIGHTS = (
    "num_layers", "decoder_layers", "hidden_size", "num_heads", "head_size", "intermediate_size", "num_segments",
    "embedding_size", "positions", "scale_embeddings", "memory", "share_layers", "layer_visibility", "activation", "gated",
    "biases", "scale_scores", "layer_mix", "norm", "norm_kind", "embedding_norm", "relative_bias", "relative_buckets",
    "relative_max_distance", "layer_norm_eps",
)  # fmt: skip
"""Settings of a Transformer that must survive; the others are those of LSTMs, of training and of how weights begin."""
OF_TRAINING = "dropout", "attention_dropout", "activation_dropout", "final_dropout"
"""Settings that matter where the class is trained further."""
OF_OUTPUT = "head", "head_bias", "tied_output", "scale_output"
"""Settings that matter where tokens are predicted."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model's shape and what else its family's tensors depend on."""

    settings: ModelSettings  # model shape
    padding: int = 0  # number of leading rows of their position table reserved for padding
    fused: bool = False  # whether attention has one `qkv_linear` without a key bias (released UniLM)
    # name of their relative position table, if any (released UniLM and models trained from it)
    relative: str | None = None
    tokens: int = 0  # rows of their token table, where `query` needs it
    # id of the pseudo mask, whose row of our token table is their vector of the slots that predict (XLNet)
    query: int | None = None

    @property
    def query_is_new(self) -> bool:
        """Whether their token table has no row for the pseudo mask, so that ours has one more."""
        return self.query is not None and self.query == self.tokens


@dataclass(frozen=True)
class Key:
    """A key of a configuration and the settings it decides."""

    theirs: str  # the key; empty if tensors decide
    ours: tuple[str, ...]  # the settings
    # their values, in the order of `ours`, from a configuration and the names of its tensors
    read: Callable[[Config, Collection[str]], tuple[Any, ...]]
    write: Callable[[ModelSettings], Any]  # the key's value from our settings


def _plain(theirs: str, ours: str, read: Callable[[Config], Any]) -> Key:
    return Key(theirs, (ours,), lambda config, _: (read(config),), lambda settings: getattr(settings, ours))


def _size(theirs: str, ours: str, default: int | None = None, *, kind: str = "size", least: int = 1) -> Key:
    return _plain(theirs, ours, lambda config: config.whole(theirs, default, kind=kind, least=least))


def _rate(theirs: str, ours: str, default: float, most: float = 1) -> Key:
    return _plain(theirs, ours, lambda config: config.number(theirs, default, most=most))


def _rates(theirs: str, *ours: str) -> Key:
    """One rate of dropout for several of ours."""
    return Key(
        theirs,
        ours,
        lambda config, _: (config.number(theirs, 0.1, most=1),) * len(ours),
        lambda settings: getattr(settings, ours[0]),
    )


def _activation(theirs: str, default: str, names: Mapping[str, str] = ACTIVATIONS) -> Key:
    return Key(
        theirs,
        ("activation",),
        lambda config, _: (config.activation(theirs, default),),
        lambda settings: names[settings.activation],
    )


def _flag(theirs: str, ours: str, *, default: bool) -> Key:
    def read(config: Config) -> bool:
        value = config.values.get(theirs, default)
        return value is not False if default else value is True

    return _plain(theirs, ours, read)


def _equal(theirs: str, write: Callable[[ModelSettings], Any], check: Callable[[Config], None]) -> Key:
    """A key that repeats another."""

    def read(config: Config, _: Collection[str]) -> tuple[()]:
        check(config)
        return ()

    return Key(theirs, (), read, write)


def _tied(key: str) -> Key:
    """Whether the output matrix is the token table; it is too where a checkpoint has none of its own."""
    return Key(
        key,
        ("tied_output",),
        lambda config, names: (config.values.get(key, True) is not False or OUTPUT not in names,),
        lambda settings: settings.tied_output,
    )


def _narrow(default: int = 128) -> Key:
    def read(config: Config, _: Collection[str]) -> tuple[int | None]:
        width = config.whole("embedding_size", default)
        return (None if width == config.whole("hidden_size") else width,)

    return Key(
        "embedding_size", ("embedding_size",), read, lambda settings: settings.embedding_size or settings.hidden_size
    )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The configuration of a family."""

    keys: tuple[Key, ...]  # its keys
    fixed: Mapping[str, Any]  # settings that all of its models have
    # keys whose other values are not supported: what is, and why nothing else
    only: Mapping[str, tuple[tuple[Any, ...], str]]
    constants: Mapping[str, Any] = field(default_factory=dict)  # further keys of a written configuration
    # keys of the width and of the number of heads, of which it is a multiple
    heads: tuple[str, str] = ("hidden_size", "num_attention_heads")
    # key of the rows of the position table
    positions: tuple[str, int | None] | None = ("max_position_embeddings", None)
    after_padding: bool = False  # whether positions begin after the padding token's id
    padding: int = 0  # rows before the first position, if not
    padding_id: int | None = None  # the only id of padding; None if any
    narrow: bool = False  # whether its embeddings are always narrower than its hidden states
    # what else follows from the names of tensors
    finish: Callable[[Architecture, Collection[str]], Architecture] = lambda read, _: read

    @property
    def has_segments(self) -> bool:
        """Whether its models distinguish the segments of a pair."""
        return self.fixed.get("num_segments") != 0

    def read(self, config: Config, names: Collection[str]) -> Architecture:
        """The architecture of a configuration."""
        for key, (allowed, why) in self.only.items():
            config.only(key, *allowed, why=why)
        width, heads = (config.whole(key) for key in self.heads)
        if width % heads and "head_size" not in [name for key in self.keys for name in key.ours]:
            raise config.refused(self.heads[1], f"{self.heads[0]} is {width}, which must be a multiple of it")
        values = dict(self.fixed)
        for entry in self.keys:
            values |= dict(zip(entry.ours, entry.read(config, names), strict=True))
        padding, rows = self.padding, XLNET_POSITIONS
        if self.positions is not None:
            rows = config.whole(*self.positions)
        if self.after_padding:
            padding = config.whole("pad_token_id", 1, least=0) + 1
            if padding >= rows:
                raise config.refused("pad_token_id", f"that leaves no position of {rows} for text")
            rows -= padding
        if self.narrow and values["embedding_size"] is None:
            raise config.refused("embedding_size", "it must differ from hidden_size, so that there is a projection")
        settings = ModelSettings(**{**values, "max_positions": rows})
        tokens = config.whole("vocab_size", 1, kind="vocab_size")
        return self.finish(Architecture(settings=settings, padding=padding, tokens=tokens), names)

    def write(self, settings: ModelSettings, *, positions: int, padding: int) -> dict[str, Any]:
        """The configuration of a shape.

        Args:
            settings: Model shape.
            positions: Positions of the model.
            padding: Rows of the position table before those of the first position.
        """
        values = {key.theirs: key.write(settings) for key in self.keys if key.theirs}
        if self.positions is not None:
            values[self.positions[0]] = positions + (padding if self.after_padding else 0)
        return {**self.constants, **values}

    def changed(self, settings: ModelSettings, names: Sequence[str]) -> Iterator[tuple[str, Any, Any]]:
        """Which of some settings a class of the family does not have: name, ours, and what the class has instead."""
        fixed = dataclasses.replace(settings, **self.fixed)
        for name in names:
            if name in self.fixed and _resolved(settings, name) != _resolved(fixed, name):
                yield name, _resolved(settings, name), _resolved(fixed, name)
        if self.narrow and _resolved(settings, "embedding_size") == settings.hidden_size:
            yield "embedding_size", settings.hidden_size, f"below {settings.hidden_size}"
            return
        tensors = {OUTPUT: not settings.tied_output, FINAL_BIAS: settings.head_bias}
        written = self.write(settings, positions=settings.max_positions or 1, padding=2)
        again = self.read(
            Config(Path("config.json"), written), [name for name, stored in tensors.items() if stored]
        ).settings
        for name in names:
            own, theirs = (_resolved(each, name) for each in (settings, again))
            if own != theirs:
                yield name, own, theirs


def _resolved(settings: ModelSettings, name: str) -> Any:
    """A setting, or what its default stands for."""
    value = getattr(settings, name)
    match name:
        case "embedding_norm":
            return settings.norm == "post" if value is None else value
        case "head_size":
            return value or settings.hidden_size // settings.num_heads
        case "embedding_size":
            return value or settings.hidden_size
        case "relative_buckets" | "relative_max_distance":
            return value if settings.relative_bias else None
        case "layer_visibility":
            return sorted(set(value))
        case _:
            return value


_DECODER = "this is a decoder, and only encoders can be imported"
_OF_BERT: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "is_decoder": ((False, None), _DECODER),
    "add_cross_attention": ((False, None), _DECODER),
    "position_embedding_type": (("absolute", None), "only absolute positions are supported"),
    "pruned_heads": (({}, None), "pruned attention heads are not supported"),
}
_NO_RELATIVE = {"relative_bias": False}
_ONE_GROUP = "only one group of shared layers is supported"
_NAMES_OF_DISTILBERT = {
    "hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim", "hidden_act": "activation", "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}  # fmt: skip


def _bert_keys(
    names: Mapping[str, str] = {}, *, dropout: float = 0.1, activation: str = "gelu", segments: int | None = 2
) -> tuple[Key, ...]:
    """BERT's keys."""

    def name(key: str) -> str:
        return names.get(key, key)

    return (
        _size(name("hidden_size"), "hidden_size"),
        _size(name("num_attention_heads"), "num_heads"),
        _size(name("num_hidden_layers"), "num_layers", kind="layers"),
        _size(name("intermediate_size"), "intermediate_size"),
        *(() if segments is None else (_size("type_vocab_size", "num_segments", segments, least=0),)),
        _activation(name("hidden_act"), activation),
        _rate(name("hidden_dropout_prob"), "dropout", dropout),
        _rate(name("attention_probs_dropout_prob"), "attention_dropout", dropout),
        *(() if names else (_rate("layer_norm_eps", "layer_norm_eps", 1e-12),)),
        _rate("initializer_range", "initializer_range", 0.02, most=10),
    )


_STOCK = {"tie_word_embeddings": True}
BERT = Layout(keys=_bert_keys(), fixed=_NO_RELATIVE, only=_OF_BERT, constants=_STOCK)
ROBERTA = dataclasses.replace(BERT, after_padding=True)
MPNET = Layout(
    keys=(
        *_bert_keys(segments=None),
        _equal("relative_attention_num_buckets", lambda settings: settings.relative_buckets, lambda _: None),
    ),
    fixed={"num_segments": 0, "relative_bias": True, "relative_buckets": 32, "relative_max_distance": 128},
    only={
        **_OF_BERT,
        "relative_attention_num_buckets": ((32,), "MPNet always has 32 buckets"),
        "pad_token_id": ((1,), "MPNet always pads with id 1"),
    },
    constants=_STOCK,
    after_padding=True,
    padding_id=1,
)
ELECTRA = dataclasses.replace(BERT, keys=(*_bert_keys(), _narrow()))
ALBERT = Layout(
    keys=(*_bert_keys(dropout=0.0, activation="gelu_new"), _narrow()),
    fixed={**_NO_RELATIVE, "share_layers": "all"},
    only={**_OF_BERT, "num_hidden_groups": ((1,), _ONE_GROUP), "inner_group_num": ((1,), _ONE_GROUP)},
    constants={**_STOCK, "num_hidden_groups": 1, "inner_group_num": 1},
    narrow=True,
)
DISTILBERT = Layout(
    keys=_bert_keys(_NAMES_OF_DISTILBERT, segments=None),
    fixed={**_NO_RELATIVE, "num_segments": 0, "layer_norm_eps": 1e-12},
    only=_OF_BERT,
    constants=_STOCK,
    heads=("dim", "n_heads"),
)


def _of_unilm(read: Architecture, names: Collection[str]) -> Architecture:
    """The tensors identify the variant more reliably than the configuration."""
    tables = [name.removeprefix("bert.") for name in names if name.endswith("rel_pos_bias.weight")]
    return dataclasses.replace(
        read,
        settings=dataclasses.replace(read.settings, relative_bias=bool(tables)),
        fused=any(name.endswith(".qkv_linear.weight") for name in names),
        relative=tables[0] if tables else None,
    )


UNILM = Layout(
    keys=(
        *_bert_keys(segments=6),
        _plain("rel_pos_bins", "relative_buckets", lambda config: config.whole("rel_pos_bins", 32, least=0) or 32),
        _plain("max_rel_pos", "relative_max_distance", lambda config: config.whole("max_rel_pos", 128, least=0) or 128),
    ),
    fixed={},
    only={
        **_OF_BERT,
        "prenorm": ((False, None), "only layers that normalise after each sub-layer are supported"),
        "untie_rel_pos": ((False, None), "only one relative position table for all layers is supported"),
        "seperate_cls_rel_pos": ((False, None), "separate relative positions of [CLS] are not supported"),
        "rel_pos_type": ((0, 2, None), "only T5's buckets are supported, which is type 2"),
    },
    finish=_of_unilm,
)

_GATED = "relu", "gelu", "gelu_new", "gated-gelu", "gated-gelu_new", "gated-relu"
_RATES = "dropout", "attention_dropout", "activation_dropout", "final_dropout"
_PLAIN = {**ACTIVATIONS, "gelu_tanh": "gelu_new"}


def _read_gate(config: Config, _: Collection[str]) -> tuple[str, bool]:
    kind = config.values.get("feed_forward_proj", "relu")
    if kind not in _GATED:
        raise config.refused("feed_forward_proj", f"supported values are {', '.join(_GATED)}")
    name, gated = kind.removeprefix("gated-"), kind.startswith("gated-")
    name = "gelu_new" if gated and name == "gelu" else name
    return Config(config.path, {"": name}).activation("", name), gated


def _write_gate(settings: ModelSettings) -> str:
    plain = _PLAIN[settings.activation]
    return f"gated-{plain.removesuffix('_new')}" if settings.gated else plain


def _read_head_size(config: Config, _: Collection[str]) -> tuple[int | None]:
    size = config.whole("d_kv", 64)
    return (None if size * config.whole("num_heads") == config.whole("d_model") else size,)


def _read_scale(config: Config, names: Collection[str]) -> tuple[bool, bool]:
    scaled = config.values.get("scale_decoder_outputs", config.values.get("tie_word_embeddings", True)) is not False
    return scaled, scaled or OUTPUT not in names


T5 = Layout(
    keys=(
        _size("d_model", "hidden_size"),
        _size("num_layers", "num_layers", kind="layers"),
        Key(
            "num_decoder_layers",
            ("decoder_layers",),
            lambda config, _: (
                config.whole("num_decoder_layers", config.whole("num_layers", kind="layers"), kind="layers"),
            ),
            lambda settings: settings.decoder_layers,
        ),
        _size("num_heads", "num_heads"),
        Key("d_kv", ("head_size",), _read_head_size, lambda own: own.head_size or own.hidden_size // own.num_heads),
        _size("d_ff", "intermediate_size"),
        Key(
            "feed_forward_proj",
            ("activation", "gated"),
            _read_gate,
            _write_gate,
        ),
        _size("relative_attention_num_buckets", "relative_buckets", 32),
        _size("relative_attention_max_distance", "relative_max_distance", 128),
        _rates("dropout_rate", *_RATES),
        _rate("layer_norm_epsilon", "layer_norm_eps", 1e-6),
        Key("tie_word_embeddings", ("scale_output", "tied_output"), _read_scale, lambda settings: settings.tied_output),
    ),
    fixed={
        "num_segments": 0, "positions": "none", "norm": "pre", "norm_kind": "rms", "biases": False, "scale_scores": False,
        "relative_bias": True, "embedding_norm": False, "head": "linear", "head_bias": False, "initializer": "t5",
    },
    only={"is_encoder_decoder": ((True, None), "only T5 with both encoder and decoder is supported")},
    constants={"is_encoder_decoder": True},
    heads=("d_model", "num_heads"),
    positions=("n_positions", 512),
)  # fmt: skip


def _same_in_both(key: str, what: str, ours: str) -> Key:
    """A key of BART's decoder, which must be that of its encoder."""
    theirs = f"encoder_{key}"
    return _equal(
        f"decoder_{key}",
        lambda settings: getattr(settings, ours),
        lambda config: config.only(f"decoder_{key}", config.whole(theirs), why=f"encoder and decoder need {what}"),
    )


BART = Layout(
    keys=(
        _size("d_model", "hidden_size"),
        _size("encoder_layers", "num_layers", kind="layers"),
        _size("decoder_layers", "decoder_layers", kind="layers"),
        _size("encoder_attention_heads", "num_heads"),
        _same_in_both("attention_heads", "the same number of heads", "num_heads"),
        _size("encoder_ffn_dim", "intermediate_size"),
        _same_in_both("ffn_dim", "feed-forward networks of the same size", "intermediate_size"),
        _activation("activation_function", "gelu"),
        _flag("scale_embedding", "scale_embeddings", default=False),
        _rate("dropout", "dropout", 0.1),
        _rate("attention_dropout", "attention_dropout", 0.0),
        _rate("activation_dropout", "activation_dropout", 0.0),
        _rate("init_std", "initializer_range", 0.02, most=10),
        Key("", ("head_bias",), lambda _, names: (FINAL_BIAS in names,), lambda _: None),
    ),
    fixed={"num_segments": 0, "norm": "post", "relative_bias": False, "head": "linear", "layer_norm_eps": 1e-5},
    only={
        "is_encoder_decoder": ((True, None), "only BART with both encoder and decoder is supported"),
        **dict.fromkeys(
            ("add_final_layer_norm", "normalize_before"),
            ((False, None), "only layers that normalise after each sub-layer are supported"),
        ),
        "normalize_embedding": ((True, None), "only normalised embeddings are supported"),
    },
    constants={
        "is_encoder_decoder": True, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "tie_word_embeddings": True,
    },
    heads=("d_model", "encoder_attention_heads"),
    positions=("max_position_embeddings", 1024),
    padding=2,
)  # fmt: skip


def _same_dropout(config: Config) -> None:
    dropout = config.number("resid_pdrop", 0.1, most=1)
    if config.number("embd_pdrop", 0.1, most=1) != dropout:
        raise config.refused(
            "embd_pdrop", f"embeddings have the dropout of the layers: set it to resid_pdrop, {dropout:g}"
        )


GPT2 = Layout(
    keys=(
        _size("n_embd", "hidden_size"),
        _size("n_layer", "num_layers", kind="layers"),
        _size("n_head", "num_heads"),
        _plain(
            "n_inner",
            "intermediate_size",
            lambda config: 4 * config.whole("n_embd") if config.values.get("n_inner") is None else config.whole("n_inner"),
        ),
        _activation("activation_function", "gelu_new", _PLAIN),
        _flag("scale_attn_weights", "scale_scores", default=True),
        _rate("resid_pdrop", "dropout", 0.1),
        _equal("embd_pdrop", lambda settings: settings.dropout, _same_dropout),
        _rate("attn_pdrop", "attention_dropout", 0.1),
        _rate("layer_norm_epsilon", "layer_norm_eps", 1e-5),
        _rate("initializer_range", "initializer_range", 0.02, most=10),
        _tied("tie_word_embeddings"),
    ),
    fixed={
        "num_segments": 0, "norm": "pre", "relative_bias": False, "head": "linear", "head_bias": False, "scaled_init": True,
    },
    only={
        "add_cross_attention": ((False, None), "a decoder of another model is not supported"),
        "scale_attn_by_inverse_layer_idx": (
            (False, None), "scores scaled by the number of the layer are not supported",
        ),
    },
    constants={"is_encoder_decoder": False},
    heads=("n_embd", "n_head"),
    positions=("n_positions", 1024),
)  # fmt: skip


def _even(config: Config) -> int:
    width, heads = config.whole("d_model"), config.whole("n_head")
    if width % 2:
        raise config.refused("d_model", f"it must be even and a multiple of n_head, which is {heads}")
    config.only("d_head", width // heads, None, why=f"only d_model / n_head, {width // heads}, is supported")
    return width


XLNET = Layout(
    keys=(
        _plain("d_model", "hidden_size", _even),
        _size("n_layer", "num_layers", kind="layers"),
        _size("n_head", "num_heads"),
        _size("d_inner", "intermediate_size"),
        _activation("ff_activation", "gelu", _PLAIN),
        Key(
            "mem_len",
            ("memory",),
            lambda config, _: (0 if config.values.get("mem_len") is None else config.whole("mem_len", least=0),),
            lambda settings: settings.memory or None,
        ),
        _rates("dropout", *_RATES),
        _rate("layer_norm_eps", "layer_norm_eps", 1e-12),
        _rate("initializer_range", "initializer_range", 0.02, most=10),
    ),
    fixed={
        "num_segments": 2, "positions": "transformer_xl", "relative_bias": False, "embedding_norm": False,
        "head": "linear",
    },
    only={
        "attn_type": (("bi", None), "only bi, where the factorization order decides what a token reads, is supported"),
        "untie_r": ((True, None), "only layers with biases of their own are supported"),
        "bi_data": ((False, None), "batches with reversed halves are not supported"),
        "same_length": ((False, None), "attention spans of equal length are not supported"),
        "clamp_len": ((-1, 0, None), "clamped distances are not supported"),
        "reuse_len": ((None, 0), "a memory of the beginning of each row is not supported"),
    },
    constants={"is_encoder_decoder": False, "untie_r": True, "tie_word_embeddings": True},
    heads=("d_model", "n_head"),
    positions=None,
)  # fmt: skip
