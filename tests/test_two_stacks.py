"""Encoder-decoders: what reads what, whole rows against steps, tables and initial weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import toys
from objective_toys import row_of
from unicloze.decoding.steppers import Branches
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Examples, collate
from unicloze.model.adapters import LowRankLinear
from unicloze.model.inference_model import IncrementalModel
from unicloze.model.initialization import add_low_rank
from unicloze.model.model import UnifiedModel
from unicloze.objectives.causal import CausalSettings, causal
from unicloze.objectives.denoising import MaskedSpanSettings
from unicloze.objectives.seq2seq import PrefixSettings, SourceTarget, generates, prefix
from unicloze.settings import FinetuningSettings, ModelSettings

T5 = {"norm": "pre", "norm_kind": "rms", "biases": False, "scale_scores": False, "positions": "none", "gated": True}
MODELS: Mapping[str, tuple[SourceTarget, dict[str, Any]]] = {
    "t5": (PrefixSettings(source_start=False, target_start=["pad"], restart_positions=True), T5),
    "bart": (PrefixSettings(target_start=["eos", "sos"], restart_positions=True), {"relative_bias": False}),
    "mass": (MaskedSpanSettings(), {"relative_bias": False, "scale_embeddings": True}),
    "transformer": (
        PrefixSettings(target_start=["eos"], restart_positions=True),
        {"relative_bias": False, "positions": "sinusoidal", "embedding_norm": False, "num_segments": 0},
    ),
    "t5 with adapters": (
        PrefixSettings(source_start=False, target_start=["pad"], restart_positions=True),
        {**T5, "adapter_size": 5},
    ),
    "shared layers": (PrefixSettings(target_start=["sos"]), {"share_layers": "all", "tied_output": False}),
}


def model_of(**settings: Any) -> UnifiedModel:
    shape = ModelSettings(**(toys.SHAPE | {"num_layers": 2, "decoder_layers": 3} | settings))
    built = UnifiedModel(shape, vocab_size=50, max_positions=40, targets=["lm"])
    built.initialize(0)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if name.endswith("bias") or "_adapter." in name or name == "token_head.output":
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    return built.eval()


def prefix_rows(settings: SourceTarget) -> Examples:
    shape = PrefixSettings(
        mask_rate=0.5, source_start=settings.source_start, target_start=list(settings.starts),
        restart_positions=settings.restart_positions,
    )  # fmt: skip
    return prefix(toys.random_windows(4, 20, short=True, seed=3), toys.vocabulary(), shape)


@pytest.mark.parametrize("kind", MODELS)
def test_a_step_predicts_what_the_whole_row_does(kind: str) -> None:
    settings, shape = MODELS[kind]
    model, vocabulary = model_of(**shape), toys.vocabulary()
    layout = generates(settings, vocabulary)
    sources = [np.arange(8, 8 + size) for size in (7, 2, 5)]
    targets = torch.tensor([[30, 31, 32], [41, 40, 30], [9, 9, 8]])
    steps = Branches(IncrementalModel(model, torch.float32), layout, sources, count=2, max_length=4)
    found = [steps.first()[:, None].expand(-1, 2, -1)]
    # The second hypothesis writes the targets backwards, and both change places after the second token.
    written = torch.stack([targets, targets.flip(1)], dim=1)
    found += [steps.step(written[:, :, 0], None), steps.step(written[:, :, 1], torch.tensor([[1, 0]]).expand(3, -1))]
    first = torch.stack([written[:, 1, 0], written[:, 0, 0]], dim=1)
    for row, source in enumerate(sources):
        for hypothesis in range(2):
            ids = [int(first[row, hypothesis]), int(written[row, hypothesis, 1])]
            expected = whole_row(model, settings, source, ids)
            got = [found[0][row, hypothesis], found[2][row, hypothesis]]
            torch.testing.assert_close(torch.stack(got), expected[[0, 2]], atol=1e-5, rtol=1e-5)
            alone = whole_row(model, settings, source, [int(written[row, hypothesis, 0])])
            torch.testing.assert_close(found[1][row, hypothesis], alone[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_rows_of_a_fixed_shape_read_their_own_source_alone(kind: str) -> None:
    """As on a GPU, where the padding of a shorter source holds that row's target."""
    settings, shape = MODELS[kind]
    rows, model = prefix_rows(settings), model_of(**shape)
    assert len({*rows.mutual.tolist()}) > 1
    found = []
    for fixed in (False, True):
        loss = model(collate(rows, fixed_shape=fixed))["lm"].total
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        found.append((loss, torch.autograd.grad(loss, weights, allow_unused=True)))
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


def whole_row(model: UnifiedModel, settings: SourceTarget, source: Any, target: list[int]) -> Tensor:
    """Logits after each number of target tokens, from one row made by hand. *Shape:* (tokens + 1, vocabulary)"""
    vocabulary = toys.vocabulary()
    start = [getattr(vocabulary, role) for role in settings.starts]
    before = [*([vocabulary.sos] if settings.source_start else []), *source.tolist(), vocabulary.eos]
    slots, first = len(before) + len(start) + len(target), len(before)
    place = np.arange(slots)
    positions = np.where(place < first, place, place - first) if settings.restart_positions else place
    predicting = np.arange(first + len(start) - 1, slots)
    examples = row_of(
        [*before, *start, *target], np.maximum(first, place + 1), predicting, 0 * predicting, position_ids=positions,
        segment_ids=place >= first, mutual=first,
    )  # fmt: skip
    with torch.no_grad():
        return model.logits(collate(examples))["lm"][0]


def test_a_step_reads_the_low_rank_updates_of_cross_attention() -> None:
    settings, shape = MODELS["bart"]
    model, vocabulary = model_of(**shape), toys.vocabulary()
    add_low_rank(model, FinetuningSettings(lora_rank=2, lora_projections=["key", "output"]))
    for module in model.modules():
        if isinstance(module, LowRankLinear):
            module.draw(torch.Generator().manual_seed(2))
            module.up.data.normal_(0, 0.5, generator=torch.Generator().manual_seed(3))
    source = np.arange(8, 15)
    steps = Branches(
        IncrementalModel(model, torch.float32), generates(settings, vocabulary), [source], count=1, max_length=4
    )
    expected = whole_row(model, settings, source, [])
    torch.testing.assert_close(steps.first(), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(expected, whole_row(model_of(**shape), settings, source, []), atol=0.1)


def test_rows_without_a_source_are_refused() -> None:
    rows = causal(
        toys.random_windows(2, 12), toys.vocabulary(), CausalSettings(targets=["lm"], visibility="left_to_right"), None
    )
    with pytest.raises(UniclozeError, match="these rows have no source: use an objective such as span_corruption"):
        model_of()(collate(rows))


def test_a_config_of_unicloze_hf_has_no_decoder() -> None:
    config = pytest.importorskip("unicloze.hf.models")
    with pytest.raises(UsageError, match=r"no class for an encoder-decoder: .* `unicloze export --to t5`"):
        config.UniclozeConfig(decoder_layers=2).settings  # noqa: B018


def test_t5_draws_every_matrix_by_the_width_of_its_input() -> None:
    model = model_of(
        num_layers=1, decoder_layers=1, hidden_size=64, num_heads=4, head_size=32, intermediate_size=100,
        initializer="t5", tied_output=False, head="linear", **T5,
    )  # fmt: skip
    expected = {
        "backbone.embeddings.tokens.weight": 1.0,
        "token_head.output": 64**-0.5,
        "backbone.layers.0.feed_forward.inner.weight": 64**-0.5,
        "backbone.layers.0.feed_forward.gate.weight": 64**-0.5,
        "backbone.layers.0.feed_forward.output.weight": 100**-0.5,
        "backbone.decoder.layers.0.cross_attention.query.weight": (64 * 32) ** -0.5,
        "backbone.decoder.layers.0.cross_attention.key_value.weight": 64**-0.5,
        "backbone.decoder.layers.0.cross_attention.output.weight": 128**-0.5,
        "backbone.decoder.layers.0.attention.output.weight": 128**-0.5,
    }
    model.initialize(0)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for name, deviation in expected.items():
        assert float(weights[name].std()) == pytest.approx(deviation, rel=0.05), name
    query_key_value = weights["backbone.layers.0.attention.qkv.weight"].chunk(3)
    deviations = [float(each.std()) for each in query_key_value]
    assert deviations == pytest.approx([(64 * 32) ** -0.5, 64**-0.5, 64**-0.5], rel=0.05)
