"""Small random GPT-2 and XLNet folders, as Transformers saves them, with their tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from interop_toys import randomise

MERGES = ["t h", "th e", "\u0120 the", "i n", "\u0120 a"]
XLNET_SPECIALS = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
TEXTS = ["the theory of it", "A caf\u00e9 in the sun.\n\nThe end", "it's 42"]


def gpt2(folder: Path, kind: str = "GPT2LMHeadModel", **changes: Any) -> Any:
    """A randomly initialised GPT-2, saved with vocab.json and merges.txt; returned in evaluation mode."""
    import transformers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *(merge.replace(" ", "") for merge in MERGES), "<|endoftext|>"]
    shape: dict[str, Any] = dict(
        vocab_size=len(tokens), n_positions=40, n_embd=32, n_layer=3, n_head=4, n_inner=64, initializer_range=0.15,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=len(tokens) - 1, eos_token_id=len(tokens) - 1,
        attn_implementation="eager",
    )  # fmt: skip
    model = _saved(getattr(transformers, kind)(transformers.GPT2Config(**shape | changes)), folder)
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n", encoding="utf-8")
    return model


def xlnet(folder: Path, kind: str = "XLNetLMHeadModel", **changes: Any) -> Any:
    """A randomly initialised XLNet, saved with a Unigram tokenizer of 50 pieces; returned in evaluation mode."""
    import transformers

    pieces = ["\u2581", *"etaoinshrdlcumwfgypbvk"]
    pieces += ["\u2581the", "in", "\u2581a", "er", "\u2581it", "'", ".", "on", "\u2581of", "ed"]
    pieces += [*"xqzj0123456789A"[: 50 - len(XLNET_SPECIALS) - len(pieces)]]
    vocabulary = [(piece, 0.0) for piece in XLNET_SPECIALS]
    vocabulary += [(piece, -1.0 - number / 9) for number, piece in enumerate(pieces)]
    shape: dict[str, Any] = dict(
        vocab_size=50, d_model=32, n_layer=3, n_head=4, d_inner=64, dropout=0.0, initializer_range=0.15,
        bos_token_id=1, eos_token_id=2, pad_token_id=5,
    )  # fmt: skip
    model = _saved(getattr(transformers, kind)(transformers.XLNetConfig(**shape | changes)), folder)
    backend = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=0))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    backend.add_special_tokens(XLNET_SPECIALS)
    backend.save(str(folder / "tokenizer.json"))
    return model


def _saved(model: Any, folder: Path) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("mask_emb", "r_w_bias", "r_r_bias", "r_s_bias", "seg_embed")):
                parameter.normal_(0, 0.3)
    randomise(model)
    model.save_pretrained(folder)
    return model.eval()
