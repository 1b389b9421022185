"""What is known of a family of models: its keys of a configuration, and its name of each of our tensors.

All families are our backbone under other names. Both tables are read one way by import and the other by export, and what does
not survive writing and reading is what a class does not support. The table of tensors covers the backbone and whichever
heads are present, so one family serves checkpoints with and without heads.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from unicloze.interop import tables
from unicloze.interop.files import Config
from unicloze.model.model import OWN_HEADS
from unicloze.settings import ModelSettings

Head = Literal["token", "next", "order", "replaced"]
TaskClass = Literal["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice"]

TARGETS: Mapping[Head, str] = {"token": "ae", "next": "nsp", "order": "sop", "replaced": "rtd"}
"""Target of each head."""
PREDICTS: Mapping[Head, str] = {
    "token": "masked tokens",
    "next": "whether a segment follows",
    "order": "whether segments are in order",
    "replaced": "which tokens were replaced",
}
"""What each head predicts."""
MODULES: Mapping[Head, str] = {head: OWN_HEADS.get(target, "token_head") for head, target in TARGETS.items()}
"""Our module of each head."""
TASK_CLASSES: Mapping[TaskClass, tuple[str, ...]] = {
    "ForSequenceClassification": ("label",),
    "ForTokenClassification": ("tags",),
    "ForQuestionAnswering": ("start", "end"),
    "ForMultipleChoice": ("choice",),
}
"""Targets of the task of each class."""
_INPUTS = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
OUTPUT, FINAL_BIAS = "lm_head.weight", "final_logits_bias"
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
class Family:
    """Models that share keys of a configuration and names of tensors."""

    name: str  # name of the family
    paper: str  # title of its paper
    prefix: str  # prefix of backbone names in models with a head; a bare encoder has none
    keys: Mapping[str, Key]  # its keys of a configuration
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
    names: Mapping[str, str]  # as of `entries_of`, with full names
    gated: Mapping[str, str] = field(default_factory=dict)  # other names in gated models
    # as of `entries_of`, besides positions
    changes: Callable[[Architecture], Mapping[str, tables.Change]] = lambda _: {}
    pairs: Head = "next"  # what its head for pairs predicts
    gelu_head: bool = False  # whether its head for tokens uses GELU regardless of the activation of the layers
    always: bool = False  # whether every checkpoint predicts tokens, with tensors of its own for it or not
    unused: tuple[str, ...] = ()  # names that are not used here, besides those of all families
    # the stock class of each set of heads; none for a family of language models
    classes: Mapping[frozenset[Head], str] = field(default_factory=dict)
    generates: str = ""  # the stock class that generates texts, or permuted tokens; empty if there is none
    separators: int = 1  # number of tokens between two texts
    # whether slots that predict have a vector of their own instead of a token, see `Architecture.query`
    queries: bool = False
    task_head: str = "dense"  # `task.head` of its classes of texts and of choices
    # keys of the dropout before an output layer that has one of its own, with its default; None for the model's
    dropout_keys: Mapping[TaskClass, tuple[str, float | None]] = field(default_factory=dict)

    @functools.cached_property
    def copies(self) -> Mapping[str, str]:
        """As in `Table`, with full names: the output matrix, the inputs of two stacks, and the output bias."""
        tokens = next(name for own, name in self.names.items() if own.startswith("backbone.embeddings.tokens"))
        tokens, bias = f"{tokens.split('|')[0].removesuffix('.weight')}.weight", self.names.get("token_head.bias", "")
        output = bias.removesuffix(".bias") if bias.endswith(".bias") else OUTPUT.removesuffix(".weight")
        tied = f"{output}.weight", f"{output}.decoder.weight", *(f"{self.prefix}{each}" for each in _INPUTS)
        return {**dict.fromkeys(tied, tokens), f"{output}.decoder.bias": bias}

    @property
    def prefix_of_classes(self) -> str:
        """How the names of its classes begin."""
        return self.classes[frozenset()].removesuffix("Model")

    @property
    def has_segments(self) -> bool:
        """Whether its models distinguish the segments of a pair."""
        return self.fixed.get("num_segments") != 0

    @property
    def sizes_heads(self) -> bool:
        """Whether its heads may have any width."""
        return any("head_size" in key.ours for key in self.keys.values())

    @property
    def decodes(self) -> bool:
        """Whether its models have a decoder."""
        return any("decoder_layers" in key.ours for key in self.keys.values())

    def read(self, config: Config, names: Collection[str], task: TaskClass | None = None) -> Architecture:
        """The architecture of a checkpoint, with a pooler if it has one outside a head and no task does without it."""
        config.only(
            "quantization_config", {}, None, why="quantised weights are not supported: use the unquantised checkpoint"
        )
        for theirs, value in self.required.items():
            allowed = value if isinstance(value, tuple) else (value,)
            config.only(theirs, *allowed, None, why=f"only {' or '.join(map(str, allowed))} is supported")
        width, heads = (config.whole(key) for key in self.heads)
        if width % heads and not self.sizes_heads:
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
        pooler = self.names.get("pooler", "")
        pools = any(f"{each}.weight" in names for each in (pooler, pooler.removeprefix(self.prefix)))
        shape = ModelSettings(
            **values,
            max_positions=rows,
            pooler=pools and task is None and self.pairs not in self.heads_among(names),
        )
        tokens = config.whole("vocab_size", 1, kind="vocab_size")
        return self.finish(Architecture(settings=shape, padding=padding, tokens=tokens), config, names)

    def write(self, settings: ModelSettings, *, positions: int, padding: int) -> dict[str, Any]:
        """The configuration of a shape, with its number of positions and the rows of their table before the first."""
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
        if settings.hidden_size % settings.num_heads and not self.sizes_heads:
            yield "head_size", settings.head_size, "hidden_size / num_heads"
            return
        stored = {OUTPUT: not settings.tied_output, FINAL_BIAS: settings.head_bias}
        fitting = dataclasses.replace(settings, **self.fixed)
        written = self.write(fitting, positions=settings.max_positions or 1, padding=2)
        again = self.read(Config(Path("config.json"), written), [name for name in stored if stored[name]]).settings
        for name in names:
            own, theirs = (_resolved(each, name) for each in (settings, again))
            if own != theirs:
                yield name, own, theirs

    def table(self, layout: Architecture, ours: Iterable[str], *, bare: bool = False) -> tables.Table:
        """The key table of a model with the given tensors of ours."""
        ours, settings = list(ours), layout.settings
        names = {**self.names, **layout.names, **(self.gated if settings.gated else {})}
        folds = settings.num_segments and not self.has_segments
        own = tables.folded(layout.padding, settings.num_segments) if folds else tables.shifted(layout.padding)
        changes = {
            "backbone.embeddings.positions.weight": own,
            "backbone.decoder.embeddings.positions.weight": tables.shifted(layout.padding),
            **self.changes(layout),
        }
        prefix, entries = self.prefix, tables.entries_of(ours, names, changes)
        unused = [f"{prefix}embeddings.position_ids", f"{prefix}embeddings.token_type_ids"]
        if "pooler" in names and any(name.startswith("task_heads.") for name in ours):
            unused.append(f"{names['pooler']}.*")
        copies = self.copies
        if bare:
            unused = [name.removeprefix(prefix) for name in unused]
            copies = {copy.removeprefix(prefix): first.removeprefix(prefix) for copy, first in copies.items()}
            bared = (tuple(name.removeprefix(prefix) for name in entry.theirs) for entry in entries)
            entries = [dataclasses.replace(entry, theirs=names) for entry, names in zip(entries, bared, strict=True)]
        stored = {name for entry in entries for name in entry.theirs}
        return tables.Table(
            entries=tuple(entries),
            copies={copy: first for copy, first in copies.items() if first in stored and copy not in stored},
            ignored=(*unused, *self.unused),
        )

    def heads_among(self, names: Collection[str]) -> list[Head]:
        """The heads of which any tensor is present; a pooler alone is not a head, see `read`."""
        stored = {self.copies.get(name, name) for name in names}
        heads: tuple[Head, ...] = ("token", self.pairs, "replaced")
        found: list[Head] = []
        for head in heads:
            theirs = [name for own, name in self.names.items() if own.startswith(MODULES[head])]
            theirs = [name for name in theirs if not name.startswith(self.prefix or " ")]
            is_stored = any(name == own or name.startswith(f"{own}.") for name in stored for own in theirs)
            if is_stored or (head == "token" and self.always):
                found.append(head)
        return found

    def has_task(self, kind: TaskClass) -> bool:
        """Whether it has a class with the head of a task."""
        return f"task_heads.{TASK_CLASSES[kind][0]}.output" in self.names

    def head_of(self, kind: TaskClass) -> str:
        """`task.head` of a class."""
        return self.task_head if f"task_heads.{TASK_CLASSES[kind][0]}.dense" in self.names else "plain"

    def dropout_key(self, kind: TaskClass) -> tuple[str, float | None]:
        """Key of the dropout before the output layer of a class, and its default; None for the model's."""
        if kind == "ForQuestionAnswering":  # DistilBERT's key; other classes have no such dropout, and keep it unread
            return "qa_dropout", 0.0
        return self.dropout_keys.get(kind, ("classifier_dropout", None))


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


def class_of(config: Config) -> TaskClass | None:
    """The class with a task's head that a configuration names; None if it names another or none."""
    names = config.values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    return next((kind for kind in get_args(TaskClass) if isinstance(name, str) and name.endswith(kind)), None)


def task_class(targets: Iterable[str]) -> TaskClass | None:
    """The class for the heads of a task; None if there is none."""
    return next((kind for kind, own in TASK_CLASSES.items() if {*own} == {*targets}), None)
