"""Families of models: one record for each, see `unicloze.interop.family`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from unicloze.interop import tables
from unicloze.interop.family import (
    FINAL_BIAS,
    OF_TRAINING,
    OUTPUT,
    TASK_CLASSES,
    Architecture,
    Family,
    Head,
    Key,
)
from unicloze.interop.files import Config
from unicloze.settings import ModelSettings

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
"""Their names of our activations."""
NEVER = -1000.0
"""Logit bias of a token that is never predicted."""


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


def _of_unilm(read: Architecture, _: Config, names: Collection[str]) -> Architecture:
    """The tensors identify the variant more reliably than the configuration."""
    tables = [name for name in names if name.endswith("rel_pos_bias.weight")]
    own = {"backbone.relative.weight": tables[0]} if tables else {}
    if any(name.endswith(".qkv_linear.weight") for name in names):
        ours, theirs = "backbone.layers.{}.attention.qkv", "bert.encoder.layer.{}.attention.self"
        own |= {f"{ours}.weight": f"{theirs}.qkv_linear.weight", f"{ours}.bias": f"{theirs}.q_bias|v_bias"}
    return dataclasses.replace(read, settings=dataclasses.replace(read.settings, relative_bias=bool(tables)), names=own)


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


def _of_xlnet(read: Architecture, config: Config, _: Collection[str]) -> Architecture:
    width, heads = read.settings.hidden_size, read.settings.num_heads
    if width % 2:
        raise config.refused("d_model", f"it must be even and a multiple of n_head, which is {heads}")
    config.only("d_head", width // heads, None, why=f"only d_model / n_head, {width // heads}, is supported")
    return read


PARTS = ("attention.qkv", "attention.output", "attention_norm",
         "feed_forward.inner", "feed_forward.output", "feed_forward_norm")  # fmt: skip
"""Our modules of a layer."""
READS_SOURCE = "cross_attention.query", "cross_attention.key_value", "cross_attention.output", "cross_attention_norm"


def _parts(theirs: str, ours: Sequence[str] = PARTS) -> dict[str, str]:
    """Names of the modules of a layer."""
    return dict(zip(ours, theirs.split(), strict=True))


_BERT_LAYER = _parts(
    "attention.self.query|key|value attention.output.dense attention.output.LayerNorm intermediate.dense output.dense "
    "output.LayerNorm"
)
_BART_LAYER = _parts("self_attn.q_proj|k_proj|v_proj self_attn.out_proj self_attn_layer_norm fc1 fc2 final_layer_norm")


def _stack(ours: str, theirs: str, parts: Mapping[str, str]) -> dict[str, str]:
    """Names of a stack of layers."""
    return {f"{ours}.{{}}.{own}": f"{theirs}.{name}" for own, name in parts.items()}


def _encoder(
    prefix: str, head: str, *, pooler: str = "", dense: str = "", pair: str = "", two_layers: bool = False,
    layer: Mapping[str, str] = _BERT_LAYER, stack: str = "encoder.layer.{}", segments: str = "token_type_embeddings",
    projection: str = "embeddings_project",
) -> dict[str, str]:  # fmt: skip
    """Names of an encoder; `head` are the dense layer, the norm and the output bias of its masked language model.

    `dense` is that of its heads of texts and of choices, by default the pooler; with `two_layers`, that of texts has its own.
    Without a table of segments, they are folded into the positions.
    """
    dense = dense or pooler
    label = ("classifier.dense", "classifier.out_proj") if two_layers else (dense, "classifier")
    heads = {
        "pooler": pooler,
        **({"pair_head.dense": pooler, "pair_head.output": pair} if pair else {}),
        **dict(zip(("task_heads.label.dense", "task_heads.label.output"), label, strict=True)),
        **({"task_heads.choice.dense": dense, "task_heads.choice.output": "classifier"} if dense else {}),
    }
    return {
        "backbone.embeddings.tokens.weight": f"{prefix}embeddings.word_embeddings.weight",
        "backbone.embeddings.positions": f"{prefix}embeddings.position_embeddings",
        "backbone.embeddings.segments": f"{prefix}embeddings.{segments}",
        "backbone.embeddings.norm": f"{prefix}embeddings.LayerNorm",
        "backbone.embeddings.projection": f"{prefix}{projection}",
        **_stack("backbone.layers", f"{prefix}{stack}", layer),
        **_parts(head, ("token_head.dense", "token_head.norm", "token_head.bias")),
        "task_heads.tags.output": "classifier",
        "task_heads.start.output": "qa_outputs",
        "task_heads.end.output": "qa_outputs",
        **{own: name for own, name in heads.items() if name},
    }


_LM_HEAD = "lm_head.dense lm_head.layer_norm lm_head.bias"


def _t5_stack(ours: str, theirs: str, last: int) -> dict[str, str]:
    inner = f"{last}.DenseReluDense"
    parts = _parts(f"0.SelfAttention.q|k|v 0.SelfAttention.o 0.layer_norm {inner}.wi {inner}.wo {last}.layer_norm")
    return {
        **_stack(f"{ours}.layers", f"{theirs}.block.{{}}.layer", {**parts, "feed_forward.gate": f"{inner}.wi_1"}),
        f"{ours}.relative.weight": f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        f"{ours}.final_norm": f"{theirs}.final_layer_norm",
    }


_T5 = {
    "backbone.embeddings.tokens": "shared",
    **_t5_stack("backbone", "encoder", 1),
    **_t5_stack("backbone.decoder", "decoder", 2),
    **_stack(
        "backbone.decoder.layers",
        "decoder.block.{}.layer.1",
        _parts("EncDecAttention.q EncDecAttention.k|v EncDecAttention.o layer_norm", READS_SOURCE),
    ),
    "token_head.output": OUTPUT,
}


def _bart_stack(ours: str, theirs: str, parts: Mapping[str, str]) -> dict[str, str]:
    return {
        f"{ours}.embeddings.positions": f"{theirs}.embed_positions",
        f"{ours}.embeddings.norm": f"{theirs}.layernorm_embedding",
        **_stack(f"{ours}.layers", f"{theirs}.layers.{{}}", parts),
    }


def _xlnet_changes(layout: Architecture) -> dict[str, tables.Change]:
    """An axis for the heads in every attention tensor, and the vector of the slots that predict."""
    settings, attention = layout.settings, "backbone.layers.{}.attention."
    hidden, heads = settings.hidden_size, settings.num_heads
    assert layout.query is not None
    terms = ("content", "position", "segment")
    return {
        "backbone.embeddings.tokens.weight": tables.query_vector(layout.query, is_new=layout.query_is_new),
        f"{attention}qkv.weight": tables.heads_last(heads, 3),
        f"{attention}output.weight": tables.reshaped((hidden, -1), (hidden, heads, -1)),
        f"{attention}terms.projection.weight": tables.heads_last(heads),
        **{f"{attention}terms.{name}": tables.reshaped((-1,), (heads, -1)) for name in terms},
        **({"token_head.bias": tables.appended(NEVER)} if layout.query_is_new else {}),
    }


def _classes(stem: str, *pretraining: Head) -> dict[frozenset[Head], str]:
    """Classes of an encoder: without heads, with that for tokens, and with those it is pre-trained with."""
    own: dict[frozenset[Head], str] = {frozenset(): f"{stem}Model", frozenset({"token"}): f"{stem}ForMaskedLM"}
    return own | ({frozenset(pretraining): f"{stem}ForPreTraining"} if pretraining else {})


BERT = Family(
    name="bert",
    paper="BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
    prefix="bert.",
    keys=_bert(),
    fixed={"relative_bias": False},
    required=dict(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute", pruned_heads={}),
    constants={"tie_word_embeddings": True},
    classes=_classes("Bert", "token", "next") | {frozenset({"next"}): "BertForNextSentencePrediction"},
    names=_encoder(
        "bert.",
        "cls.predictions.transform.dense cls.predictions.transform.LayerNorm cls.predictions.bias",
        pooler="bert.pooler.dense",
        pair="cls.seq_relationship",
    ),
)  # fmt: skip
ROBERTA = dataclasses.replace(
    BERT,
    name="roberta",
    paper="RoBERTa: A Robustly Optimized BERT Pretraining Approach",
    prefix="roberta.",
    after_padding=True,
    classes=_classes("Roberta"),
    names=_encoder("roberta.", _LM_HEAD, pooler="roberta.pooler.dense", two_layers=True),
    separators=2,
    gelu_head=True,
)  # fmt: skip
MPNET = dataclasses.replace(
    BERT,
    name="mpnet",
    paper="MPNet: Masked and Permuted Pre-training for Language Understanding",
    prefix="mpnet.",
    keys={**_bert(segments=None), "relative_attention_num_buckets": Key("relative_buckets", 32)},
    fixed={"num_segments": 0, "relative_bias": True, "relative_buckets": 32, "relative_max_distance": 128},
    required={**BERT.required, "pad_token_id": 1},
    after_padding=True,
    padding_id=1,
    classes=_classes("MPNet"),
    names={
        **_encoder(
            "mpnet.", _LM_HEAD, pooler="mpnet.pooler.dense", two_layers=True, segments="position_embeddings",
            layer=_BERT_LAYER | _parts("attention.attn.q|k|v attention.attn.o attention.LayerNorm", PARTS[:3]),
        ),
        "backbone.relative.weight": "mpnet.encoder.relative_attention_bias.weight",
    },
    changes=lambda _: {"backbone.relative.weight": tables.TRANSPOSED},
    separators=2,
    gelu_head=True,
)  # fmt: skip
ELECTRA = dataclasses.replace(
    BERT,
    name="electra",
    paper="ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators",
    prefix="electra.",
    keys={**_bert(), "embedding_size": _NARROW},
    classes=_classes("Electra", "replaced"),
    names={
        **_encoder(
            "electra.",
            "generator_predictions.dense generator_predictions.LayerNorm generator_lm_head.bias",
            two_layers=True,
        ),
        "replaced_head.dense": "discriminator_predictions.dense",
        "replaced_head.output": "discriminator_predictions.dense_prediction",
    },
    gelu_head=True,
    task_head="dense_gelu",
)  # fmt: skip
ALBERT = dataclasses.replace(
    BERT,
    name="albert",
    paper="ALBERT: A Lite BERT for Self-supervised Learning of Language Representations",
    prefix="albert.",
    keys={**_bert(dropout=0.0, activation="gelu_new"), "embedding_size": _NARROW},
    fixed={**BERT.fixed, "share_layers": "all"},
    required={**BERT.required, "num_hidden_groups": 1, "inner_group_num": 1},
    constants={**BERT.constants, "num_hidden_groups": 1, "inner_group_num": 1},
    narrow=True,
    dropout_keys=dict.fromkeys(TASK_CLASSES, ("classifier_dropout_prob", 0.1)),
    classes=_classes("Albert", "token", "order"),
    names=_encoder(
        "albert.", "predictions.dense predictions.LayerNorm predictions.bias", pooler="albert.pooler",
        pair="sop_classifier.classifier",
        layer=_parts("attention.query|key|value attention.dense attention.LayerNorm ffn ffn_output full_layer_layer_norm"),
        stack="encoder.albert_layer_groups.{0}.albert_layers.{0}",
        projection="encoder.embedding_hidden_mapping_in",
    ),
    pairs="order",
)  # fmt: skip
DISTILBERT = dataclasses.replace(
    BERT,
    name="distilbert",
    paper="DistilBERT, a distilled version of BERT: smaller, faster, cheaper and lighter",
    prefix="distilbert.",
    keys={
        **_whole(dim="hidden_size", n_heads="num_heads", n_layers="num_layers", hidden_dim="intermediate_size"),
        "activation": _activation("gelu"),
        "dropout": Key("dropout", 0.1),
        "attention_dropout": Key("attention_dropout", 0.1),
        "initializer_range": _RANGE,
    },
    fixed={**BERT.fixed, "num_segments": 0, "layer_norm_eps": 1e-12},
    heads=("dim", "n_heads"),
    dropout_keys=dict.fromkeys(("ForSequenceClassification", "ForMultipleChoice"), ("seq_classif_dropout", 0.2)),
    classes=_classes("DistilBert"),
    names=_encoder(
        "distilbert.", "vocab_transform vocab_layer_norm vocab_projector.bias", dense="pre_classifier",
        layer=_parts(
            "attention.q_lin|k_lin|v_lin attention.out_lin sa_layer_norm ffn.lin1 ffn.lin2 output_layer_norm"
        ),
        stack="transformer.layer.{}", segments="position_embeddings",
    ),
    task_head="dense_relu",
)  # fmt: skip
T5 = Family(
    name="t5",
    paper="Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    prefix="",
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
    generates="T5ForConditionalGeneration",
    names=_T5,
    gated={own: f"{name}_0" for own, name in _T5.items() if name.endswith(".wi")},
    changes=lambda _: dict.fromkeys(
        ("backbone.relative.weight", "backbone.decoder.relative.weight"), tables.TRANSPOSED
    ),
    always=True,
    unused=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
)  # fmt: skip
BART = Family(
    name="bart",
    paper="BART: Denoising Sequence-to-Sequence Pre-training for Natural Language Generation, Translation, and "
    "Comprehension",
    prefix="model.",
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
    generates="BartForConditionalGeneration",
    names={
        "backbone.embeddings.tokens": "model.shared",
        **_bart_stack("backbone", "model.encoder", _BART_LAYER),
        **_bart_stack("backbone.decoder", "model.decoder", _BART_LAYER | _parts(
            "encoder_attn.q_proj encoder_attn.k_proj|v_proj encoder_attn.out_proj encoder_attn_layer_norm", READS_SOURCE
        )),
        "token_head.bias": FINAL_BIAS,
        "task_heads.label.dense": "classification_head.dense",
        "task_heads.label.output": "classification_head.out_proj",
    },
    changes=lambda _: {"token_head.bias": tables.reshaped((-1,), (1, -1))},
    always=True,
    separators=2,
    dropout_keys=dict.fromkeys(TASK_CLASSES, ("classifier_dropout", 0.0)),
)  # fmt: skip
GPT2 = Family(
    name="gpt2",
    paper="Language Models are Unsupervised Multitask Learners",
    prefix="transformer.",
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
    generates="GPT2LMHeadModel",
    names={
        "backbone.embeddings.tokens": "transformer.wte",
        "backbone.embeddings.positions": "transformer.wpe",
        **_stack("backbone.layers", "transformer.h.{}", _parts("attn.c_attn attn.c_proj ln_1 mlp.c_fc mlp.c_proj ln_2")),
        "backbone.final_norm": "transformer.ln_f",
        "token_head.output": OUTPUT,
    },
    changes=lambda _: {  # its projections are stored transposed
        f"backbone.layers.{{}}.{own}.weight": tables.TRANSPOSED for own in PARTS if not own.endswith("norm")
    },
    always=True,
    unused=tuple(
        f"{prefix}h.*.attn.{name}" for prefix in ("", "transformer.") for name in ("bias", "masked_bias")
    ),
)  # fmt: skip
XLNET = Family(
    name="xlnet",
    paper="XLNet: Generalized Autoregressive Pretraining for Language Understanding",
    prefix="transformer.",
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
    generates="XLNetLMHeadModel",
    names={
        "backbone.embeddings.tokens.weight": "transformer.word_embedding.weight|transformer.mask_emb",
        **_stack("backbone.layers", "transformer.layer.{}", {
            "attention.qkv.weight": "rel_attn.q|k|v",
            "attention.output.weight": "rel_attn.o",
            "attention.terms.projection.weight": "rel_attn.r",
            "attention.terms.content": "rel_attn.r_w_bias",
            "attention.terms.position": "rel_attn.r_r_bias",
            "attention.terms.segment": "rel_attn.r_s_bias",
            "attention.terms.segments": "rel_attn.seg_embed",
            **_parts("rel_attn.layer_norm ff.layer_1 ff.layer_2 ff.layer_norm", PARTS[2:]),
        }),
        "token_head.bias": "lm_loss.bias",
    },
    changes=_xlnet_changes,
    queries=True,
)  # fmt: skip
UNILM = Family(
    name="unilm",
    paper="UniLMv2: Pseudo-Masked Language Models for Unified Language Model Pre-Training",
    prefix="bert.",
    keys={
        **_bert(segments=6),
        "rel_pos_bins": Key("relative_buckets", read=lambda config, _: config.whole("rel_pos_bins", 32, least=0) or 32),
        "max_rel_pos": Key("relative_max_distance", read=lambda config, _: config.whole("max_rel_pos", 128, least=0) or 128),
    },
    fixed={},
    required={
        **BERT.required, "prenorm": False, "untie_rel_pos": False, "seperate_cls_rel_pos": False, "rel_pos_type": (0, 2),
    },
    finish=_of_unilm,
    names=BERT.names,
    changes=lambda layout: dict.fromkeys(
        layout.names.keys() & {"backbone.layers.{}.attention.qkv.bias"}, tables.KEYLESS_BIAS
    ),
)  # fmt: skip
FAMILIES: Mapping[str, Family] = {
    family.name: family for family in (BERT, ROBERTA, MPNET, ELECTRA, ALBERT, DISTILBERT, T5, BART, GPT2, XLNET, UNILM)
}
"""Families by name."""
STOCK: Mapping[str, Family] = {family.name: family for family in (BERT, MPNET, ROBERTA, ELECTRA, ALBERT, DISTILBERT)}
"""Families of encoders that a model can be exported to, in the order of preference."""
CLASSES: Mapping[str, str] = {name: family.generates for name, family in FAMILIES.items() if family.generates}
"""Class of the families of language models that a model can be exported to."""

MODEL_TYPES: Mapping[str, str] = {
    **{name: name for name in FAMILIES},
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "minilm": "unilm",
}
"""Family of each `model_type` of a configuration."""


def family_of(config: Config, names: Collection[str]) -> Family:
    """The family of a checkpoint, from its model type; released UniLM is recognised by its tensors."""
    if any(name.endswith((".qkv_linear.weight", "rel_pos_bias.weight")) for name in names):
        return UNILM
    kind = config.values.get("model_type")
    if kind is None and any(name.startswith("bert.") for name in names):  # released before the key existed
        return BERT
    if kind == "unicloze":
        raise config.refused(
            "model_type",
            "`unicloze export` wrote this folder for Transformers, without the recipe: give the run or checkpoint it was "
            "made from, or export that with --to package",
        )
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        raise config.refused("model_type", f"supported models are {', '.join(MODEL_TYPES)}")
    return FAMILIES[MODEL_TYPES[kind]]
