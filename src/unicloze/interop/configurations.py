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
    "num_layers", "decoder_layers", "hidden_size", "num_heads", "head_size", "intermediate_size", "num_segments", "norm",
    "embedding_size", "positions", "scale_embeddings", "memory", "share_layers", "layer_visibility", "activation", "gated",
    "biases", "scale_scores", "layer_mix", "norm_kind", "embedding_norm", "relative_bias", "relative_buckets",
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
    names: Mapping[str, str] = field(default_factory=dict)  # names besides the family's (released UniLM)
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

    ours: str  # names of the settings
    default: Any = None  # the key's value where it is absent; None if it must be there
    # the key's value, if it is not simply that of the first setting
    write: Callable[[ModelSettings], Any] | None = None
    # likewise the value of the settings, or a tuple of one for each, from the configuration and names of tensors
    read: Callable[[Config, Collection[str]], Any] | None = None


def _value(config: Config, key: str, setting: str, default: Any) -> Any:
    """The value of a key that has the kind of a setting."""
    if setting == "activation":
        return config.activation(key, default)
    if isinstance(default, bool):
        if not isinstance(config.values.get(key, default), bool):
            raise config.refused(key, "expected true or false")
        return config.values.get(key, default)
    if isinstance(default, float):
        return config.number(key, default, most=10 if setting == "initializer_range" else 1)
    return config.whole(
        key, default, kind="layers" if setting.endswith("layers") else "size", least=int(setting != "num_segments")
    )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The configuration of a family."""

    keys: Mapping[str, Key]  # its keys
    fixed: Mapping[str, Any]  # settings that all of its models have
    required: Mapping[str, Any]  # only supported values of other keys, where they are set; a tuple of several
    constants: Mapping[str, Any] = field(default_factory=dict)  # further keys of a written configuration
    # keys of the width and of the number of heads, of which it is a multiple
    heads: tuple[str, str] = ("hidden_size", "num_attention_heads")
    # key of the rows of the position table
    positions: tuple[str, int | None] | None = ("max_position_embeddings", None)
    after_padding: bool = False  # whether positions begin after the padding token's id
    padding: int = 0  # rows before the first position, if not
    padding_id: int | None = None  # the only id of padding; None if any
    narrow: bool = False  # whether its embeddings are always narrower than its hidden states
    # what else follows from the configuration and the names of tensors
    finish: Callable[[Architecture, Config, Collection[str]], Architecture] = lambda read, *_: read

    @property
    def has_segments(self) -> bool:
        """Whether its models distinguish the segments of a pair."""
        return self.fixed.get("num_segments") != 0

    @property
    def decodes(self) -> bool:
        """Whether its models have a decoder."""
        return any("decoder_layers" in key.ours for key in self.keys.values())

    def read(self, config: Config, names: Collection[str]) -> Architecture:
        """The architecture of a configuration."""
        for theirs, value in self.required.items():
            allowed = value if isinstance(value, tuple) else (value,)
            config.only(theirs, *allowed, None, why=f"only {' or '.join(map(str, allowed))} is supported")
        width, heads = (config.whole(key) for key in self.heads)
        if width % heads and not any("head_size" in key.ours for key in self.keys.values()):
            raise config.refused(self.heads[1], f"{self.heads[0]} is {width}, which must be a multiple of it")
        values = dict(self.fixed)
        for theirs, key in self.keys.items():
            settings = key.ours.split()
            found = key.read(config, names) if key.read else _value(config, theirs, settings[0], key.default)
            own = found if isinstance(found, tuple) else (found,) * len(settings)
            for setting, value in zip(settings, own, strict=True):
                if values.setdefault(setting, value) != value:
                    raise config.refused(theirs, f"only {values[setting]} is supported with the other keys")
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
        shape = ModelSettings(**{**values, "max_positions": rows})
        tokens = config.whole("vocab_size", 1, kind="vocab_size")
        return self.finish(Architecture(settings=shape, padding=padding, tokens=tokens), config, names)

    def write(self, settings: ModelSettings, *, positions: int, padding: int) -> dict[str, Any]:
        """The configuration of a shape.

        Args:
            settings: Model shape.
            positions: Positions of the model.
            padding: Rows of the position table before those of the first position.
        """
        values = {
            theirs: key.write(settings) if key.write else getattr(settings, key.ours.split()[0])
            for theirs, key in self.keys.items()
        }
        if self.positions is not None:
            values[self.positions[0]] = positions + (padding if self.after_padding else 0)
        return {**self.constants, **values}

    def changed(self, settings: ModelSettings, names: Sequence[str]) -> Iterator[tuple[str, Any, Any]]:
        """Which of some settings a class of the family does not have: name, ours, and what the class has instead."""
        if self.narrow and _resolved(settings, "embedding_size") == settings.hidden_size:
            yield "embedding_size", settings.hidden_size, f"below {settings.hidden_size}"
            return
        stored = {OUTPUT: not settings.tied_output, FINAL_BIAS: settings.head_bias}
        fitting = dataclasses.replace(settings, **self.fixed)
        written = self.write(fitting, positions=settings.max_positions or 1, padding=2)
        again = self.read(Config(Path("config.json"), written), [name for name in stored if stored[name]]).settings
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


def _unless(value: int, usual: float) -> int | None:
    """A width; None if it is the usual one."""
    return None if value == usual else value


def _activation(default: str, names: Mapping[str, str] = ACTIVATIONS) -> Key:
    return Key("activation", default, lambda settings: names[settings.activation])


_NARROW = Key(
    "embedding_size",
    write=lambda own: own.embedding_size or own.hidden_size,
    read=lambda config, _: _unless(config.whole("embedding_size", 128), config.whole("hidden_size")),
)
_OF_BERT = dict(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute", pruned_heads={})
_TIED = {"tie_word_embeddings": True}
_NO_RELATIVE = {"relative_bias": False}
_RANGE = Key("initializer_range", 0.02)


def _whole(**settings: str) -> dict[str, Key]:
    """Keys that must be there, by name, and the setting of each."""
    return {theirs: Key(ours) for theirs, ours in settings.items()}


def _bert(*, dropout: float = 0.1, activation: str = "gelu", segments: int | None = 2) -> dict[str, Key]:
    """BERT's keys."""
    return {
        **_whole(hidden_size="hidden_size", num_attention_heads="num_heads", num_hidden_layers="num_layers"),
        **_whole(intermediate_size="intermediate_size"),
        **({} if segments is None else {"type_vocab_size": Key("num_segments", segments)}),
        "hidden_act": _activation(activation),
        "hidden_dropout_prob": Key("dropout", dropout),
        "attention_probs_dropout_prob": Key("attention_dropout", dropout),
        "layer_norm_eps": Key("layer_norm_eps", 1e-12),
        "initializer_range": _RANGE,
    }


BERT = Layout(keys=_bert(), fixed=_NO_RELATIVE, required=_OF_BERT, constants=_TIED)
ROBERTA = dataclasses.replace(BERT, after_padding=True)
MPNET = dataclasses.replace(
    ROBERTA,
    keys={**_bert(segments=None), "relative_attention_num_buckets": Key("relative_buckets", 32)},
    fixed={"num_segments": 0, "relative_bias": True, "relative_buckets": 32, "relative_max_distance": 128},
    required={**_OF_BERT, "pad_token_id": 1},
    padding_id=1,
)
ELECTRA = dataclasses.replace(BERT, keys={**_bert(), "embedding_size": _NARROW})
ALBERT = Layout(
    keys={**_bert(dropout=0.0, activation="gelu_new"), "embedding_size": _NARROW},
    fixed={**_NO_RELATIVE, "share_layers": "all"},
    required={**_OF_BERT, "num_hidden_groups": 1, "inner_group_num": 1},
    constants={**_TIED, "num_hidden_groups": 1, "inner_group_num": 1},
    narrow=True,
)
DISTILBERT = dataclasses.replace(
    BERT,
    keys={
        **_whole(dim="hidden_size", n_heads="num_heads", n_layers="num_layers", hidden_dim="intermediate_size"),
        "activation": _activation("gelu"),
        "dropout": Key("dropout", 0.1),
        "attention_dropout": Key("attention_dropout", 0.1),
        "initializer_range": _RANGE,
    },
    fixed={**_NO_RELATIVE, "num_segments": 0, "layer_norm_eps": 1e-12},
    heads=("dim", "n_heads"),
)


def _of_unilm(read: Architecture, _: Config, names: Collection[str]) -> Architecture:
    """The tensors identify the variant more reliably than the configuration."""
    tables = [name for name in names if name.endswith("rel_pos_bias.weight")]
    own = {"backbone.relative.weight": tables[0]} if tables else {}
    if any(name.endswith(".qkv_linear.weight") for name in names):
        ours, theirs = "backbone.layers.{}.attention.qkv", "bert.encoder.layer.{}.attention.self"
        own |= {f"{ours}.weight": f"{theirs}.qkv_linear.weight", f"{ours}.bias": f"{theirs}.q_bias|v_bias"}
    return dataclasses.replace(read, settings=dataclasses.replace(read.settings, relative_bias=bool(tables)), names=own)


UNILM = Layout(
    keys={
        **_bert(segments=6),
        "rel_pos_bins": Key("relative_buckets", read=lambda config, _: config.whole("rel_pos_bins", 32, least=0) or 32),
        "max_rel_pos": Key("relative_max_distance", read=lambda config, _: config.whole("max_rel_pos", 128, least=0) or 128),
    },
    fixed={},
    required={
        **_OF_BERT, "prenorm": False, "untie_rel_pos": False, "seperate_cls_rel_pos": False, "rel_pos_type": (0, 2),
    },
    finish=_of_unilm,
)  # fmt: skip

_GATED = "relu", "gelu", "gelu_new", "gated-gelu", "gated-gelu_new", "gated-relu"
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


def _read_scale(config: Config, names: Collection[str]) -> tuple[bool, bool]:
    scaled = config.values.get("scale_decoder_outputs", config.values.get("tie_word_embeddings", True)) is not False
    return scaled, scaled or OUTPUT not in names


T5 = Layout(
    keys={
        **_whole(d_model="hidden_size", num_layers="num_layers", num_heads="num_heads", d_ff="intermediate_size"),
        "num_decoder_layers": Key(
            "decoder_layers",
            read=lambda own, _: own.whole("num_decoder_layers", own.whole("num_layers", kind="layers"), kind="layers"),
        ),
        "d_kv": Key(
            "head_size",
            write=lambda own: own.head_size or own.hidden_size // own.num_heads,
            read=lambda own, _: _unless(own.whole("d_kv", 64), own.whole("d_model") / own.whole("num_heads")),
        ),
        "feed_forward_proj": Key("activation gated", None, _write_gate, _read_gate),
        "relative_attention_num_buckets": Key("relative_buckets", 32),
        "relative_attention_max_distance": Key("relative_max_distance", 128),
        "dropout_rate": Key(" ".join(OF_TRAINING), 0.1),
        "layer_norm_epsilon": Key("layer_norm_eps", 1e-6),
        "tie_word_embeddings": Key("scale_output tied_output", None, lambda own: own.tied_output, _read_scale),
    },
    fixed={
        "num_segments": 0, "positions": "none", "norm": "pre", "norm_kind": "rms", "biases": False, "scale_scores": False,
        "relative_bias": True, "embedding_norm": False, "head": "linear", "head_bias": False, "initializer": "t5",
    },
    required={"is_encoder_decoder": True},
    constants={"is_encoder_decoder": True},
    heads=("d_model", "num_heads"),
    positions=("n_positions", 512),
)  # fmt: skip
BART = Layout(
    keys={
        **_whole(d_model="hidden_size", encoder_layers="num_layers", decoder_layers="decoder_layers"),
        **_whole(encoder_attention_heads="num_heads", decoder_attention_heads="num_heads"),
        **_whole(encoder_ffn_dim="intermediate_size", decoder_ffn_dim="intermediate_size"),
        "activation_function": _activation("gelu"),
        "scale_embedding": Key("scale_embeddings", False),
        "dropout": Key("dropout", 0.1),
        "attention_dropout": Key("attention_dropout", 0.0),
        "activation_dropout": Key("activation_dropout", 0.0),
        "init_std": _RANGE,
    },
    fixed={"num_segments": 0, "norm": "post", "relative_bias": False, "head": "linear", "layer_norm_eps": 1e-5},
    required={
        "is_encoder_decoder": True, "add_final_layer_norm": False, "normalize_before": False, "normalize_embedding": True,
    },
    constants={
        "is_encoder_decoder": True, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "tie_word_embeddings": True,
    },
    heads=("d_model", "encoder_attention_heads"),
    positions=("max_position_embeddings", 1024),
    padding=2,
    finish=lambda read, _, names: dataclasses.replace(
        read, settings=dataclasses.replace(read.settings, head_bias=FINAL_BIAS in names)
    ),
)  # fmt: skip
GPT2 = Layout(
    keys={
        **_whole(n_embd="hidden_size", n_layer="num_layers", n_head="num_heads"),
        "n_inner": Key(
            "intermediate_size",
            read=lambda own, _: own.whole("n_inner") if own.values.get("n_inner") is not None else 4 * own.whole("n_embd"),
        ),
        "activation_function": _activation("gelu_new", _PLAIN),
        "scale_attn_weights": Key("scale_scores", True),
        "resid_pdrop": Key("dropout", 0.1),
        "embd_pdrop": Key("dropout", 0.1),
        "attn_pdrop": Key("attention_dropout", 0.1),
        "layer_norm_epsilon": Key("layer_norm_eps", 1e-5),
        "initializer_range": _RANGE,
        "tie_word_embeddings": Key(  # it is too where a checkpoint has no output matrix of its own
            "tied_output", read=lambda own, names: own.values.get("tie_word_embeddings") is not False or OUTPUT not in names
        ),
    },
    fixed={
        "num_segments": 0, "norm": "pre", "relative_bias": False, "head": "linear", "head_bias": False, "scaled_init": True,
    },
    required={"add_cross_attention": False, "scale_attn_by_inverse_layer_idx": False},
    constants={"is_encoder_decoder": False},
    heads=("n_embd", "n_head"),
    positions=("n_positions", 1024),
)  # fmt: skip


def _of_xlnet(read: Architecture, config: Config, _: Collection[str]) -> Architecture:
    width, heads = read.settings.hidden_size, read.settings.num_heads
    if width % 2:
        raise config.refused("d_model", f"it must be even and a multiple of n_head, which is {heads}")
    config.only("d_head", width // heads, None, why=f"only d_model / n_head, {width // heads}, is supported")
    return read


XLNET = Layout(
    keys={
        **_whole(d_model="hidden_size", n_layer="num_layers", n_head="num_heads", d_inner="intermediate_size"),
        "ff_activation": _activation("gelu", _PLAIN),
        "mem_len": Key(
            "memory",
            write=lambda settings: settings.memory or None,
            read=lambda config, _: 0 if config.values.get("mem_len") is None else config.whole("mem_len", least=0),
        ),
        "dropout": Key(" ".join(OF_TRAINING), 0.1),
        "layer_norm_eps": Key("layer_norm_eps", 1e-12),
        "initializer_range": _RANGE,
    },
    fixed={
        "num_segments": 2, "positions": "transformer_xl", "relative_bias": False, "embedding_norm": False, "head": "linear",
    },
    required={
        "attn_type": "bi", "untie_r": True, "bi_data": False, "same_length": False, "clamp_len": (-1, 0), "reuse_len": 0,
    },
    constants={"is_encoder_decoder": False, "untie_r": True, "tie_word_embeddings": True},
    heads=("d_model", "n_head"),
    positions=None,
    finish=_of_xlnet,
)  # fmt: skip
