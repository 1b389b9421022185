"""Greedy and beam search against Transformers' `generate` on a GPT-2 with the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import toys
from decoding_toys import generate_tokens
from test_parity_variants import GPT, SIZES, both, gpt_names, with_parts
from toys import EOS, PAD, SOS
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.settings import DecodingSettings

transformers = pytest.importorskip("transformers")

LAYOUT = GenerationFormat(predicts="next", start=(SOS,), stop=EOS, target_segment=0, decoder_only=True)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": (dict(), dict()),
    "greedy, long": (dict(min_length=6), dict(min_new_tokens=6)),
    "beams to the end": (
        dict(beams=4, num_results=4),
        dict(num_beams=4, num_return_sequences=4, early_stopping="never"),
    ),
    "beams, first": (
        dict(beams=4, num_results=3, early_stop="first", min_length=3),
        dict(num_beams=4, num_return_sequences=3, early_stopping=True, min_new_tokens=3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_texts_are_those_of_transformers(name: str) -> None:
    model = toys.model(**GPT, norm="pre", intermediate_size=64).eval()
    with torch.no_grad():
        model.backbone.embeddings.tokens.weight[EOS] *= 2
    config = transformers.GPT2Config(
        **SIZES, n_inner=64, attn_implementation="eager", bos_token_id=SOS, eos_token_id=EOS, pad_token_id=PAD
    )
    peer = transformers.GPT2LMHeadModel(config).eval()
    both(model, peer, gpt_names("gpt2") | with_parts({"backbone.final_norm": "transformer.ln_f"}), transposed=".c_")
    ours, theirs = CASES[name]
    settings = DecodingSettings(max_length=12, **ours)
    given = [np.random.default_rng(seed).integers(toys.FIRST_ORDINARY, 50, 5) for seed in range(12)]
    found = generate_tokens(model, given, settings, LAYOUT)
    prompt = torch.tensor([[SOS, *source] for source in given])
    expected = peer.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, length_penalty=0.0,
        return_dict_in_generate=True, output_scores=True, **theirs,
    )  # fmt: skip
    texts = [row[6:] for row in expected.sequences.tolist()]
    texts = [text[: text.index(EOS)] if EOS in text else text for text in texts]
    hypotheses = [hypothesis for row in found for hypothesis in row]
    assert [hypothesis.tokens for hypothesis in hypotheses] == texts
    assert any(hypothesis.ended for hypothesis in hypotheses)
    if settings.beams > 1:
        scores = expected.sequences_scores.tolist()
        np.testing.assert_allclose([hypothesis.score for hypothesis in hypotheses], scores, atol=1e-4)
