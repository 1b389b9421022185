"""ELECTRA: the generator's samples, what the discriminator learns from them, and runs of both."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from objective_toys import ELECTRA, changed, window_of
from toys import EOS, MASK, PAD, SOS, gradients_of, random_windows, vocabulary
from unicloze.decoding.embed import embed
from unicloze.decoding.infill import fill
from unicloze.decoding.likelihood import score
from unicloze.errors import UsageError
from unicloze.example import Batch, collate
from unicloze.model.build import (
    ReplacedTokenModel,
    build,
    draws_of_rows,
    generator_settings,
    sample_tokens,
    with_samples,
)
from unicloze.model.dropout import DropoutKey
from unicloze.model.model import UnifiedModel
from unicloze.objectives import make_examples
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import ModelSettings, ObjectiveSettings, TrainingSettings
from unicloze.text.windows import Windows
from unicloze.training.batches import MicroBatch
from unicloze.training.checkpoint import load_newest
from unicloze.training.ledger import read_ledger
from unicloze.training.loading import load_model
from unicloze.training.loop import Compute, TrainState, losses_and_norm

SHAPE = ModelSettings(
    hidden_size=32, num_layers=2, num_heads=4, intermediate_size=64, relative_bias=False, generator_size=0.5,
    dropout=0.0, attention_dropout=0.0, initializer_range=0.15,
)  # fmt: skip


def electra(vocab: int = 50, **changes: Any) -> ReplacedTokenModel:
    settings = dataclasses.replace(SHAPE, **changes)
    model = build(settings, vocab_size=vocab, max_positions=40, targets=ELECTRA.targets)
    assert isinstance(model, ReplacedTokenModel)
    model.initialize(0)
    return model


def batch_of(windows: Windows, objective: ObjectiveSettings = ELECTRA, vocab: int = 50) -> Batch:
    return collate(make_examples(windows, vocabulary(vocab), objective))


def detected(model: ReplacedTokenModel, batch: Batch, dropout: DropoutKey | None = None) -> tuple[Batch, Tensor]:
    """The discriminator's batch and its logit at every slot."""
    with torch.no_grad():
        _, following = model.generate(batch, dropout)
        states = model.discriminator.backbone(following, dropout=dropout)[-1]
        return following, model.discriminator.replaced_head(states).squeeze(-1)


def test_an_example_by_hand() -> None:
    """x3 and x5 are predicted; the sample for x3 is wrong, the one for x5 happens to be right."""
    windows = window_of([SOS, 11, 12, 13, EOS, 15, EOS, PAD], segments=[0, 0, 0, 0, 0, 1, 1, 0])
    tokens = windows.token_ids
    objective = dataclasses.replace(ELECTRA, mask_rate=0.5, mask_share=1.0)
    examples = make_examples(windows, vocabulary(), objective)
    ae, rtd = examples.targets["ae"], examples.targets["rtd"]
    assert rtd.slots.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert rtd.labels.tolist() == tokens.tolist()
    assert rtd.weights.tolist() == [[1, 1, 1, 1, 1, 1, 1, 0]]

    batch = collate(examples)
    first, second = (int(slot) for slot in ae.slots[0, :2])
    shown = tokens[0, :7].copy()
    shown[[first, second]] = MASK
    assert batch.input_ids.tolist() == [shown.tolist()]
    following = with_samples(batch, torch.tensor([49, int(tokens[0, second])]))
    written = tokens[0, :7].copy()
    written[first] = 49
    assert following.input_ids.tolist() == [written.tolist()]
    assert list(following.targets) == ["rtd"]
    assert following.targets["rtd"].labels.tolist() == [[int(slot == first) for slot in range(7)]]
    assert following.targets["rtd"].normaliser == 7
    assert batch.input_ids.tolist() == [shown.tolist()], "the generator's batch stays as it is"


def test_every_masked_slot_gets_a_sample_whatever_token_it_showed() -> None:
    objective = dataclasses.replace(ELECTRA, mask_rate=0.5, mask_share=0.3, random_share=0.3)
    batch = batch_of(random_windows(40, 24, short=True), objective)
    ae = batch.targets["ae"]
    row, j = ae.weights.nonzero(as_tuple=True)
    shown = batch.input_ids[row, ae.slots[row, j]]
    assert len(set(shown.tolist())) > 20, "masks, random tokens and the tokens themselves"
    following = with_samples(batch, torch.full((len(row),), 3))
    assert (following.input_ids[row, ae.slots[row, j]] == 3).all()
    changed = torch.zeros_like(batch.input_ids, dtype=torch.bool)
    changed[row, ae.slots[row, j]] = True
    assert torch.equal(following.input_ids[~changed], batch.input_ids[~changed])


def test_samples_follow_the_softmax() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 12, generator=generator) * 2
    logits[0, [0, 5, 11]] = -torch.inf
    count = 200_000
    key = DropoutKey(3, 1, 4)
    drawn = sample_tokens(logits.expand(count, -1), key.uniform(count))
    assert not torch.equal(key.uniform(count), DropoutKey(3, 1, 4).uniform(count)), "each draw is a site of its own"
    share = torch.bincount(drawn, minlength=12) / count
    expected = torch.softmax(logits[0], dim=-1)
    assert (share[[0, 5, 11]] == 0).all()
    assert ((share - expected).abs() <= 5 * (expected * (1 - expected) / count).sqrt()).all()
    ends = sample_tokens(logits.expand(2, -1), torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64))
    assert ends.tolist() == [1, 10], "the first and the last token that can be drawn"


def test_the_generators_shape_is_table_6s() -> None:
    for name, shape in {"electra-base": (256, 1024, 4, 12, 768), "electra-small": (64, 256, 1, 12, 128)}.items():
        own = generator_settings(load_recipe(name).model)
        found = own.hidden_size, own.intermediate_size, own.num_heads, own.num_layers, own.embedding_size
        assert found == shape
    for heads in range(1, 13):
        for size in (0.01, 0.1, 0.25, 0.3333, 0.5, 0.7, 1.0):
            shape = ModelSettings(hidden_size=20 * heads, num_heads=heads, intermediate_size=7, generator_size=size)
            own = generator_settings(shape)
            assert own.hidden_size % own.num_heads == own.hidden_size % 2 == 0 < own.hidden_size


def test_embeddings_are_shared_and_saved_once(tmp_path: Path) -> None:
    model = electra()
    state = model.state_dict()
    save_file(state, tmp_path / "model.safetensors")  # refuses a tensor under two names
    assert sum(tensor.numel() for tensor in state.values()) == model.num_parameters()
    fresh = electra()
    fresh.initialize(1)
    fresh.load_state_dict(load_file(tmp_path / "model.safetensors"))
    for twin in (model, fresh, copy.deepcopy(model)):
        lent, own = twin.generator.backbone.embeddings, twin.discriminator.backbone.embeddings
        assert lent.tokens.weight is own.tokens.weight and lent.projection is not own.projection
        assert (lent.positions is own.positions) and (lent.segments is own.segments) and (lent.norm is own.norm)
    batch = batch_of(random_windows(4, 24))
    with torch.no_grad():
        assert float(model(batch)["rtd"].total) == float(fresh(batch)["rtd"].total)


def test_samples_are_keyed_in_training_and_fixed_in_evaluation() -> None:
    model, batch = electra(), batch_of(random_windows(8, 24))

    def written(dropout: DropoutKey | None) -> Tensor:
        return model.generate(batch, dropout)[1].input_ids

    torch.manual_seed(0)
    first = written(None)
    torch.manual_seed(1)
    assert torch.equal(first, written(None))
    assert torch.equal(written(DropoutKey(0, 5, 1)), written(DropoutKey(0, 5, 1)))
    others = [written(DropoutKey(*name)) for name in ((1, 5, 1), (0, 6, 1), (0, 5, 2))]
    assert not any(torch.equal(written(DropoutKey(0, 5, 1)), other) for other in others)
    for dropout in (None, DropoutKey(0, 5, 1)):
        losses = model(batch, dropout)
        assert list(losses) == ["ae", "rtd"]
        assert losses["rtd"].weight == float(batch.targets["rtd"].weights.sum())


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_evaluation_does_not_depend_on_the_rows_of_a_pass(rows: int) -> None:
    """Windows of several lengths, so that blocks are padded to several widths."""
    model, windows = electra(), random_windows(16, 24, short=True)
    examples = make_examples(windows, vocabulary(), ELECTRA)
    with torch.no_grad():
        whole = model.generate(collate(examples))[1].input_ids
        loss = model(collate(examples))["rtd"]
        parts = [collate(part) for part in examples.split(rows)]
        cut = [model.generate(part)[1].input_ids for part in parts]
        losses = [model(part)["rtd"] for part in parts]
    for first, block in zip(range(0, 16, rows), cut, strict=True):
        assert torch.equal(block, whole[first : first + rows, : block.shape[1]])
    assert sum(float(part.total) for part in losses) == pytest.approx(float(loss.total), rel=1e-5)
    assert sum(part.weight for part in losses) == loss.weight


def test_draws_of_evaluated_rows_are_uniform_and_no_two_rows_share_theirs() -> None:
    draws = draws_of_rows(batch_of(random_windows(2000, 24)))
    assert len(set(draws.tolist())) == len(draws)
    counts = torch.histc(draws, bins=20, min=0, max=1)
    expected = len(draws) / 20
    assert ((counts - expected).abs() < 5 * math.sqrt(expected)).all()
    assert abs(float(torch.corrcoef(torch.stack([draws[:-1], draws[1:]]))[0, 1])) < 5 / math.sqrt(len(draws))


def test_no_gradient_flows_through_the_samples() -> None:
    model, batch = electra(), batch_of(random_windows(8, 24))
    model(batch)["rtd"].total.backward()
    assert all(parameter.grad is None for parameter in model.generator.parameters())
    assert model.discriminator.backbone.embeddings.tokens.weight.grad is not None
    model.zero_grad()
    model(batch)["ae"].total.backward()
    assert all(parameter.grad is not None for parameter in model.generator.parameters())
    own = {"tokens", "positions", "segments", "norm"}
    reached = [name for name, p in model.discriminator.named_parameters() if p.grad is not None]
    assert {name.split(".")[2] for name in reached} == own


@pytest.mark.parametrize("training", [False, True])
def test_the_discriminator_never_sees_what_stood_under_a_sample(training: bool) -> None:
    model, windows = electra(dropout=0.1, attention_dropout=0.1), random_windows(1, 30, seed=11)

    def look(windows: Windows) -> tuple[Batch, Batch, Tensor]:
        batch = batch_of(windows)
        return (batch, *detected(model, batch, DropoutKey(1, 2, 3) if training else None))

    batch, following, reference = look(windows)
    masked = set(batch.targets["ae"].slots[0].tolist())
    hidden = [slot for slot in sorted(masked) if batch.input_ids[0, slot] == MASK]
    assert len(hidden) > 5
    for slot in np.flatnonzero(windows.maskable[0]).tolist():
        other = changed(windows, slot, vocabulary())
        _, after, logits = look(other)
        if slot in hidden:
            assert torch.equal(after.input_ids, following.input_ids)
            assert torch.equal(logits, reference)
            written = int(following.input_ids[0, slot])
            assert int(after.targets["rtd"].labels[0, slot]) == int(written != other.token_ids[0, slot])
        elif slot not in masked:
            assert not torch.equal(logits, reference)


def test_a_forced_sample_hides_a_token_that_the_generator_saw() -> None:
    """A masked slot that shows its own token: the generator reads that token, the discriminator only the sample."""
    model, windows, objective = electra(), random_windows(1, 30, seed=3), dataclasses.replace(ELECTRA, mask_share=0.0)
    slot = int(batch_of(windows, objective).targets["ae"].slots[0, 0])
    results = []
    for each in (windows, changed(windows, slot, vocabulary())):
        batch = batch_of(each, objective)
        following = with_samples(batch, torch.full((batch.targets["ae"].predictions,), 20))
        with torch.no_grad():
            results.append((batch.input_ids, following.input_ids, model.discriminator.backbone(following)[-1]))
    assert [torch.equal(one, other) for one, other in zip(*results, strict=True)] == [False, True, True]


# Runs


CPU = Compute(device=torch.device("cpu"), precision="fp32")


def test_the_loss_is_the_generators_and_fifty_times_the_discriminators() -> None:
    windows = random_windows(6, 24, short=True)
    examples = make_examples(windows, vocabulary(), ELECTRA)

    def with_one_sample() -> ReplacedTokenModel:
        model = electra()
        with torch.no_grad():
            model.generator.token_head.bias[20] = 100.0  # every sample, independent of the draw
        return model

    model = with_one_sample()
    each = {name: loss.total / loss.weight for name, loss in model(collate(examples)).items()}
    (each["ae"] + 50 * each["rtd"]).backward()
    expected = gradients_of(model)
    for rows in (6, 2):  # micro-batches are weighted as one batch
        model = with_one_sample()
        parts = [MicroBatch(examples[i : i + rows], windows[i : i + rows], {"rtd": 50.0}) for i in range(0, 6, rows)]
        losses, _ = losses_and_norm(TrainState(model=model, optimizers=[]), parts, TrainingSettings(), CPU, str)
        assert losses == pytest.approx({name: float(value.detach()) for name, value in each.items()}, rel=1e-5)
        torch.testing.assert_close(gradients_of(model), expected, atol=2e-4, rtol=1e-4)


def toy(corpus: Path, **overrides: Any) -> dict[str, Any]:
    """Small enough for a test, with dropout, several micro-batches and no schedule that depends on the number of steps."""
    return toy_overrides() | {
        "data.corpus": [str(corpus)], "model.embedding_size": 16, "training.schedule": "constant",
        "training.micro_batch_size": 2, "training.precision": "fp32", **overrides,
    }  # fmt: skip


def test_a_run_keeps_the_discriminator_for_use(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = pretrain_run(load_recipe("electra-small", toy(corpus)), out, progress=False)
    assert set(result.perplexity) == {"ae"}
    events = list(read_ledger(out / "ledger.jsonl"))
    assert all(set(event["loss"]) == {"ae", "rtd"} for event in events if event["event"] in ("step", "evaluate"))
    samples = [sample for event in events if event["event"] == "samples" for sample in event["samples"]]
    expected = {"position", "step", "truth", "word", "ae", "top"}
    assert all(set(place) == expected for sample in samples for place in sample["masked"])

    loaded = load_model(out)
    saved = load_file(loaded.path / "model.safetensors")
    assert isinstance(loaded.model, UnifiedModel)
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, saved[f"discriminator.{name}"])
    assert embed(loaded, ["a b c", "d"]).shape == (2, 32)
    with pytest.raises(UsageError, match="a model without a head for tokens cannot score texts"):
        score(loaded, ["a b c"])
    with pytest.raises(UsageError, match="a model without a head for tokens cannot fill masks"):
        fill(loaded, "a [MASK] c")


@pytest.mark.whole
def test_a_run_starts_from_the_network_of_another_that_is_used(corpus: Path, tmp_path: Path) -> None:
    first, second, plain = tmp_path / "first", tmp_path / "second", tmp_path / "plain"
    pretrain_run(load_recipe("electra-small", toy(corpus)), first, progress=False)
    weights = load_model(first).model.state_dict()

    onward = {"training.initialize_from": str(first), "training.learning_rate": 1e-12, "training.weight_decay": 0.0}
    with pytest.warns(UserWarning, match=r"has 0 of the generator's 31 tensors in the right shape: the others are new"):
        pretrain_run(load_recipe("electra-small", toy(corpus) | onward), second, progress=False)
    for name, tensor in load_model(second).model.state_dict().items():
        torch.testing.assert_close(tensor, weights[name], atol=1e-6, rtol=0)

    alone = {"objective.targets": ["ae"], "objective.coefficients": {}, "model.generator_size": 0.0}
    with pytest.warns(UserWarning, match=r"has no token_head.*newly initialised"):
        pretrain_run(load_recipe("electra-small", toy(corpus) | onward | alone), plain, progress=False)
    found = load_model(plain).model.state_dict()
    assert {name for name in found if name in weights} == {name for name in weights if name.startswith("backbone.")}
    for name in weights:
        if name in found:
            torch.testing.assert_close(found[name], weights[name], atol=1e-6, rtol=0)


@pytest.mark.slow
def test_both_networks_start_from_a_masked_language_model_of_their_size(corpus: Path, tmp_path: Path) -> None:
    """Two stages, as the paper tries in Section 3.3: the generator alone, then a discriminator that starts from it."""
    alone = {"objective.targets": ["ae"], "objective.coefficients": {}, "model.generator_size": 0.0}
    pretrain_run(load_recipe("electra-small", toy(corpus) | alone), tmp_path / "first", progress=False)
    still = {"training.learning_rate": 1e-12, "training.weight_decay": 0.0, "model.generator_size": 1.0}
    onward = {"training.initialize_from": str(tmp_path / "first"), **still}
    with pytest.warns(UserWarning, match=r"has no replaced_head.*newly initialised"):
        pretrain_run(load_recipe("electra-small", toy(corpus) | onward), tmp_path / "second", progress=False)
    weights = load_model(tmp_path / "first").model.state_dict()
    saved = load_newest(tmp_path / "second" / "checkpoints")
    assert saved is not None
    for network in ("generator", "discriminator"):
        name = "backbone.layers.1.attention.qkv.weight"
        torch.testing.assert_close(saved.model[f"{network}.{name}"], weights[name], atol=1e-6, rtol=0)
    head = "token_head.dense.weight"
    torch.testing.assert_close(saved.model[f"generator.{head}"], weights[head], atol=1e-6, rtol=0)
