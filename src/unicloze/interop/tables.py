"""Key tables: a reversible mapping between our tensors and another library's, and each family's names.

An entry names our tensors, their tensors and the change between them. Changes are reversible, work on any device (including
`meta`, to get shapes) and only move values, so a round trip is bit-exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Protocol

import torch
from torch import Tensor

from unicloze.interop.configurations import FINAL_BIAS, Architecture

Tensors = Sequence[Tensor]


class Change(Protocol):
    """Converts their tensors to ours, and back."""

    def forward(self, theirs: Tensors) -> Tensors:
        """Their tensors to ours, in the order of an entry's names."""

    def backward(self, ours: Tensors) -> Tensors:
        """Our tensors to theirs."""


@dataclass(frozen=True)
class Same:
    """The same tensor under another name."""

    def forward(self, theirs: Tensors) -> Tensors:
        """Unchanged."""
        return theirs

    def backward(self, ours: Tensors) -> Tensors:
        """Unchanged."""
        return ours


@dataclass(frozen=True)
class Fused:
    """Our tensor is the concatenation of theirs along the first dimension, such as `attention.qkv`."""

    chunks: int  # number of their tensors, all of the same size

    def forward(self, theirs: Tensors) -> Tensors:
        """Concatenate. *Shape:* (rows, ...) each to (chunks x rows, ...)"""
        return [torch.cat(list(theirs))]

    def backward(self, ours: Tensors) -> Tensors:
        """Split."""
        return ours[0].chunk(self.chunks)


@dataclass(frozen=True)
class SplitRows:
    """Our tensors are slices of theirs along the first dimension, such as the two outputs of `qa_outputs`."""

    chunks: int  # number of our tensors, all of the same size

    def forward(self, theirs: Tensors) -> Tensors:
        """Split. *Shape:* (chunks x rows, ...) to (rows, ...) each"""
        return theirs[0].chunk(self.chunks)

    def backward(self, ours: Tensors) -> Tensors:
        """Concatenate."""
        return Fused(self.chunks).forward(ours)


@dataclass(frozen=True)
class Transposed:
    """Their tensor is the transpose of ours."""

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* (a, b) to (b, a)"""
        return [theirs[0].T]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* (b, a) to (a, b)"""
        return [ours[0].T]


@dataclass(frozen=True)
class Reshaped:
    """The same numbers in another shape, such as one row for each attention head; -1 stands for any size."""

    ours: tuple[int, ...]  # our shape
    theirs: tuple[int, ...]  # their shape

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* `theirs` to `ours`"""
        return [theirs[0].reshape(self.ours)]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* `ours` to `theirs`"""
        return [ours[0].reshape(self.theirs)]


@dataclass(frozen=True)
class HeadsLast:
    """Their projections map hidden states to heads: transposed, with an axis for the heads; ours are fused (XLNet)."""

    heads: int  # number of heads
    chunks: int = 1  # number of their tensors, all of the same size

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* (hidden size, heads, head size) each to (chunks x heads x head size, hidden size)"""
        return [torch.cat([matrix.flatten(1).T for matrix in theirs])]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* (chunks x heads x head size, hidden size) to (hidden size, heads, head size) each"""
        return [matrix.T.reshape(matrix.shape[1], self.heads, -1) for matrix in ours[0].chunk(self.chunks)]


@dataclass(frozen=True)
class QueryVector:
    """Their vector of the slots that predict is a row of our token table, that of the pseudo mask (XLNet)."""

    row: int  # id of the pseudo mask
    appended: bool  # Whether their table lacks the row, which is our last. Otherwise backward stores it in both.

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* (their tokens, width) and (1, 1, width) to (our tokens, width)"""
        table, vector = theirs[0], theirs[1].view(1, -1)
        return [torch.cat([table[: self.row], vector, table[self.row + 1 :]])]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* (our tokens, width) to (their tokens, width) and (1, 1, width)"""
        (table,) = ours
        return [table[: self.row] if self.appended else table, table[self.row].view(1, 1, -1)]


@dataclass(frozen=True)
class Appended:
    """Our vector has one more number than theirs, at its end."""

    value: float  # the number

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* (a,) to (a + 1,)"""
        return [torch.cat([theirs[0], theirs[0].new_full((1,), self.value)])]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* (a + 1,) to (a,)"""
        return [ours[0][:-1]]


@dataclass(frozen=True)
class Shifted:
    """A position table whose first rows are for padding, which ours does not have because they are never used."""

    rows: int  # number of those rows; backward fills them with zeros

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* (rows + positions, width) to (positions, width)"""
        return [theirs[0][self.rows :]]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* (positions, width) to (rows + positions, width)"""
        table = ours[0]
        return [torch.cat([table.new_zeros(self.rows, *table.shape[1:]), table])]


@dataclass(frozen=True)
class Folded:
    """Our position and segment tables become their position table, with segment 0 added to each position.

    Texts of segment 0 are encoded the same by both. Backward loses the other segments; forward sets all
    segments to zero.
    """

    rows: int  # as in `Shifted`
    segments: int  # rows of our segment table

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* (rows + positions, width) to (positions, width) and (segments, width)"""
        (positions,) = Shifted(self.rows).forward(theirs)
        return [positions, positions.new_zeros(self.segments, *positions.shape[1:])]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* (positions, width) and (segments, width) to (rows + positions, width)"""
        positions, segments = ours
        return Shifted(self.rows).backward([positions + segments[0]])


@dataclass(frozen=True)
class KeylessBias:
    """The bias of a fused q, k, v without a key bias, which is zero in ours.

    A key bias adds the same number to all scores of a query, which softmax cancels: backward drops it without changing any
    hidden state.
    """

    def forward(self, theirs: Tensors) -> Tensors:
        """*Shape:* (1, 1, width) of q and of v to (3 x width,)"""
        query, value = (bias.flatten() for bias in theirs)
        return [torch.cat([query, torch.zeros_like(query), value])]

    def backward(self, ours: Tensors) -> Tensors:
        """*Shape:* (3 x width,) to (1, 1, width) twice"""
        query, _, value = ours[0].chunk(3)
        return [query.view(1, 1, -1), value.view(1, 1, -1)]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Some of our tensors and the equivalent tensors of theirs."""

    ours: tuple[str, ...]  # our names
    theirs: tuple[str, ...]  # their names
    change: Change = field(default_factory=Same)  # the conversion between them


def same(ours: str, theirs: str) -> Entry:
    """One tensor of ours equal to one of theirs."""
    return Entry(ours=(ours,), theirs=(theirs,))


def module(ours: str, *theirs: str, biases: bool = True) -> list[Entry]:
    """Weight and bias of one of our modules, equal to one of theirs or to several fused."""
    change = Same() if len(theirs) == 1 else Fused(len(theirs))
    return [
        Entry(ours=(f"{ours}.{kind}",), theirs=tuple(f"{name}.{kind}" for name in theirs), change=change)
        for kind in (("weight", "bias") if biases else ("weight",))
    ]


def modules(names: Mapping[str, str]) -> list[Entry]:
    """Weight and bias of equal modules, by our name."""
    return [entry for ours, theirs in names.items() for entry in module(ours, theirs)]


def layers(
    names: Mapping[str, Sequence[str]], count: int, *, ours: str, theirs: str, biases: bool = True
) -> list[Entry]:
    """The modules of some layers."""
    return [
        entry
        for number in range(count)
        for own, others in names.items()
        for entry in module(
            ours.format(number) + own, *(theirs.format(number) + other for other in others), biases=biases
        )
    ]


@dataclass(frozen=True, kw_only=True)
class Table:
    """All tensors of a model under both names."""

    entries: tuple[Entry, ...]  # cover each of our tensors, and each of theirs that is a weight
    # their names of tensors stored twice, such as a tied output matrix, with the first name
    copies: Mapping[str, str] = field(default_factory=dict)
    # patterns of their names that are not used here, such as a pooler without a classifier
    ignored: tuple[str, ...] = ()

    def ours(self, theirs: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Our tensors by name, one entry at a time, so a mapping that reads on demand is never fully in memory."""
        for entry in self.entries:
            yield from zip(entry.ours, entry.change.forward([theirs[name] for name in entry.theirs]), strict=True)

    def to_theirs(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert our state to theirs, each tensor once and contiguous, without copies of tied ones."""
        return {
            name: tensor.contiguous()
            for entry in self.entries
            for name, tensor in zip(
                entry.theirs, entry.change.backward([ours[name] for name in entry.ours]), strict=True
            )
        }

    def ignores(self, name: str) -> bool:
        """Whether one of their names is unused here."""
        return any(fnmatchcase(name, pattern) for pattern in self.ignored)


LAYER = "backbone.layers.{}."
TOKENS = "embeddings.word_embeddings.weight"
BERT_LAYER: Mapping[str, tuple[str, ...]] = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.inner": ("intermediate.dense",),
    "feed_forward.output": ("output.dense",),
    "feed_forward_norm": ("output.LayerNorm",),
}
"""Our modules of a layer, and theirs."""
MPNET_LAYER: Mapping[str, tuple[str, ...]] = {
    **BERT_LAYER,
    "attention.qkv": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    "attention.output": ("attention.attn.o",),
    "attention_norm": ("attention.LayerNorm",),
}
DISTILBERT_LAYER: Mapping[str, tuple[str, ...]] = {
    "attention.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "attention.output": ("attention.out_lin",),
    "attention_norm": ("sa_layer_norm",),
    "feed_forward.inner": ("ffn.lin1",),
    "feed_forward.output": ("ffn.lin2",),
    "feed_forward_norm": ("output_layer_norm",),
}
ALBERT_LAYER: Mapping[str, tuple[str, ...]] = {
    "attention.qkv": ("attention.query", "attention.key", "attention.value"),
    "attention.output": ("attention.dense",),
    "attention_norm": ("attention.LayerNorm",),
    "feed_forward.inner": ("ffn",),
    "feed_forward.output": ("ffn_output",),
    "feed_forward_norm": ("full_layer_layer_norm",),
}


def _embeddings(layout: Architecture, *, segments: bool = True) -> list[Entry]:
    """Embedding tables and their normalisation; without a segment table, ours is folded into the positions."""
    positions, own = "embeddings.position_embeddings.weight", layout.settings.num_segments
    ours = "backbone.embeddings.positions.weight", "backbone.embeddings.segments.weight"
    shifted: Change = Shifted(layout.padding) if layout.padding else Same()
    entries = [same("backbone.embeddings.tokens.weight", TOKENS)]
    if own and not segments:
        entries.append(Entry(ours=ours, theirs=(positions,), change=Folded(layout.padding, own)))
    else:
        entries.append(Entry(ours=ours[:1], theirs=(positions,), change=shifted))
    if own and segments:
        entries.append(same(ours[1], "embeddings.token_type_embeddings.weight"))
    return entries + module("backbone.embeddings.norm", "embeddings.LayerNorm")


def _layers(
    layout: Architecture, parts: Mapping[str, tuple[str, ...]] = BERT_LAYER, stack: str = "encoder.layer.{}."
) -> list[Entry]:
    count = 1 if layout.settings.share_layers == "all" else layout.settings.num_layers
    return layers(parts, count, ours=LAYER, theirs=stack)


def _fused_layers(layout: Architecture) -> list[Entry]:
    entries = _layers(layout, {ours: theirs for ours, theirs in BERT_LAYER.items() if ours != "attention.qkv"})
    for number in range(layout.settings.num_layers):
        ours, theirs = f"backbone.layers.{number}.attention.qkv", f"encoder.layer.{number}.attention.self"
        entries.append(same(f"{ours}.weight", f"{theirs}.qkv_linear.weight"))
        biases = f"{theirs}.q_bias", f"{theirs}.v_bias"
        entries.append(Entry(ours=(f"{ours}.bias",), theirs=biases, change=KeylessBias()))
    return entries


def bert_backbone(layout: Architecture) -> list[Entry]:
    """BERT and RoBERTa."""
    return _embeddings(layout) + _layers(layout)


def unilm_backbone(layout: Architecture) -> list[Entry]:
    """Released UniLM and MiniLM: BERT, optionally with fused attention and a relative position bias."""
    entries = _embeddings(layout) + (_fused_layers(layout) if layout.fused else _layers(layout))
    if layout.relative is not None:
        entries.append(same("backbone.relative.weight", layout.relative))
    return entries


def mpnet_backbone(layout: Architecture) -> list[Entry]:
    """MPNet: no segments, and T5's relative position bias."""
    relative = Entry(
        ours=("backbone.relative.weight",),
        theirs=("encoder.relative_attention_bias.weight",),
        change=Transposed(),
    )
    return [*_embeddings(layout, segments=False), *_layers(layout, MPNET_LAYER), relative]


def distilbert_backbone(layout: Architecture) -> list[Entry]:
    """DistilBERT: no segments."""
    return _embeddings(layout, segments=False) + _layers(layout, DISTILBERT_LAYER, "transformer.layer.{}.")


def electra_backbone(layout: Architecture) -> list[Entry]:
    """ELECTRA: embeddings of another width are projected."""
    projected = layout.settings.embedding_size is not None
    projection = module("backbone.embeddings.projection", "embeddings_project") if projected else []
    return bert_backbone(layout) + projection


def albert_backbone(layout: Architecture) -> list[Entry]:
    """ALBERT: one layer's weights, projected embeddings."""
    projection = module("backbone.embeddings.projection", "encoder.embedding_hidden_mapping_in")
    stack = "encoder.albert_layer_groups.{0}.albert_layers.{0}."
    return _embeddings(layout) + projection + _layers(layout, ALBERT_LAYER, stack)


def token_head(dense: str, norm: str, bias: str) -> tuple[Entry, ...]:
    """Head of a masked language model: dense, activation, normalisation, output bias."""
    transform = modules({"token_head.dense": dense, "token_head.norm": norm})
    return (*transform, same("token_head.bias", bias))


def pair_head(pooler: str, classifier: str) -> tuple[Entry, ...]:
    """A pooler and the classifier on top of it."""
    return tuple(modules({"pair_head.dense": pooler, "pair_head.output": classifier}))


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


XLNET_TOKENS = "word_embedding.weight"
GPT2_LINEAR: Mapping[str, str] = {
    "attention.qkv": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "feed_forward.inner": "mlp.c_fc",
    "feed_forward.output": "mlp.c_proj",
}
GPT2_NORMS: Mapping[str, str] = {"attention_norm": "ln_1", "feed_forward_norm": "ln_2"}


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
