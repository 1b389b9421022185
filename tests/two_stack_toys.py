"""Small encoder-decoders, alone and beside Transformers' T5 and BART with the same weights."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from unicloze.interop.families import FAMILIES
from unicloze.interop.family import OUTPUT
from unicloze.interop.files import Config
from unicloze.interop.tables import Table
from unicloze.model.model import UnifiedModel

VOCABULARY = 50
T5: dict[str, Any] = dict(
    vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_decoder_layers=2, num_heads=4, dropout_rate=0.0,
    relative_attention_num_buckets=8, relative_attention_max_distance=12, decoder_start_token_id=0, pad_token_id=0,
    eos_token_id=4, n_positions=64,
)  # fmt: skip
BART: dict[str, Any] = dict(
    vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64, dropout=0.0,
    attention_dropout=0.0, activation_dropout=0.0, pad_token_id=0, bos_token_id=3, eos_token_id=4,
    decoder_start_token_id=4, forced_bos_token_id=None, forced_eos_token_id=None, init_std=0.15,
)  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "t5": dict(feed_forward_proj="relu", **T5),
    "t5 1.1": dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False, **{**T5, "d_kv": 6}),
    "bart": dict(activation_function="gelu", **BART),
    "mass": dict(activation_function="gelu", scale_embedding=True, **BART),
    "transformer": dict(activation_function="relu", scale_embedding=True, **BART),
}
"""Configurations of Transformers; MASS is BART with scaled embeddings, and Marian is the Transformer of 2017."""


def peer(kind: str, **changes: Any) -> Any:
    """A model of Transformers at random initialisation, biases and all."""
    import transformers

    torch.manual_seed(0)
    values = {**KINDS[kind], "attn_implementation": "eager", **changes}
    if kind.startswith("t5"):
        config = transformers.T5Config(**values)
        model = transformers.T5ForConditionalGeneration(config)
        if not values.get("tie_word_embeddings", True):  # a fresh one is tied all the same
            model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, config.d_model) * 0.3)
    elif kind == "transformer":
        model = transformers.MarianMTModel(transformers.MarianConfig(**values))
    else:
        model = transformers.BartForConditionalGeneration(transformers.BartConfig(**values))
    if not kind.startswith("t5"):
        model.final_logits_bias.normal_(0, 0.3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def twin(theirs: Any) -> UnifiedModel:
    """Our model with the weights of one of Transformers."""
    model, table = beside(theirs)
    model.load_state_dict(dict(table.ours(theirs.state_dict())), strict=True)
    return model.eval()


def beside(theirs: Any) -> tuple[UnifiedModel, Table]:
    """Our model of the shape of one of Transformers, and the key table between the two."""
    config = Config(Path("config.json"), json.loads(theirs.config.to_json_string(use_diff=False)))
    family = FAMILIES["t5" if theirs.config.model_type == "t5" else "bart"]
    layout = family.read(config, theirs.state_dict().keys() - ({OUTPUT} if tied(theirs) else set()))
    settings = layout.settings
    if theirs.config.model_type == "marian":
        settings = dataclasses.replace(settings, positions="sinusoidal", embedding_norm=False)
    model = UnifiedModel(settings, vocab_size=VOCABULARY, max_positions=settings.max_positions or 1, targets=["lm"])
    return model, family.table(layout, model.state_dict())


def tied(theirs: Any) -> bool:
    return theirs.lm_head.weight is theirs.get_input_embeddings().weight
