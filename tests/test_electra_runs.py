"""ELECTRA runs: memorising, loss floors, interruptions, and conversion from and to other models."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from corpora import write_corpus
from test_electra import ELECTRA, batch_of, electra
from toys import FIRST_ORDINARY, random_windows, vocabulary
from unicloze.decoding.embed import embed
from unicloze.decoding.infill import fill
from unicloze.decoding.likelihood import score
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import collate
from unicloze.model.build import ReplacedTokenModel
from unicloze.model.dropout import DropoutKey
from unicloze.model.model import UnifiedModel
from unicloze.objectives import defined, make_examples
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import TrainingSettings
from unicloze.training.batches import MicroBatch
from unicloze.training.checkpoint import list_checkpoints, load_newest
from unicloze.training.ledger import read_ledger
from unicloze.training.loading import load_model
from unicloze.training.loop import Compute, Hooks, TrainState, accumulate_gradients, fit
from unicloze.training.optimizers import build_optimizers


def test_a_model_with_a_generator_defines_no_cloze() -> None:
    assert defined(dataclasses.replace(ELECTRA, targets=["ae"])).cloze is not None
    abilities = defined(ELECTRA)
    assert (abilities.cloze, abilities.stepwise, abilities.causal) == (None, None, None)


CPU = Compute(device=torch.device("cpu"), precision="fp32")
HOOKS = Hooks(log=lambda *_: None, evaluate=lambda _: None, save=lambda _: None, describe=str)


def train(model: ReplacedTokenModel, steps: Iterator[list[MicroBatch]], count: int, rate: float) -> None:
    settings = TrainingSettings(learning_rate=rate, steps=count, warmup_steps=20, betas=(0.9, 0.98), save_every=0)
    state = TrainState(model=model, optimizers=build_optimizers(model, settings))
    fit(state, steps, settings, CPU, HOOKS)


@pytest.mark.slow
@pytest.mark.parametrize("learning", ["both", "discriminator"])
def test_a_batch_is_memorised(learning: str) -> None:
    """If the generator does not learn, nearly every sample is wrong, and samples differ at every step."""
    model = electra(initializer_range=0.02)
    windows = random_windows(4, 24)
    coefficients = {"ae": float(learning == "both")}
    micro_batch = MicroBatch(make_examples(windows, vocabulary(), ELECTRA), windows, coefficients)

    def steps() -> Iterator[list[MicroBatch]]:
        while True:
            yield [micro_batch]

    train(model, steps(), 300, 8e-3)
    model.eval()
    batch = collate(micro_batch.examples)
    with torch.no_grad():
        passes = [model(batch, DropoutKey(draw)) for draw in range(20)]
    ae, rtd = (
        np.mean([float(losses[name].total / losses[name].weight) for losses in passes]) for name in ("ae", "rtd")
    )
    assert ae < 0.02 if learning == "both" else ae > 3
    assert rtd < (0.01 if learning == "both" else 0.06)


def floors(ordinary: int, text: int, special: int, masked: int, shown: float) -> dict[str, float]:
    """Best losses on text of uniform tokens.

    A share `shown` of the masked slots shows a mask. The others show their own token, and as random ones are never shown the
    generator can copy it: its sample is the original. At a mask it samples uniformly out of `ordinary` tokens and hits the
    original once in `ordinary` times. Samples look like text: the discriminator can only learn how often a text slot is
    replaced, and that a special one never is.
    """
    replaced = masked / text * shown * (1 - 1 / ordinary)
    entropy = -replaced * math.log(replaced) - (1 - replaced) * math.log(1 - replaced)
    return {"ae": shown * math.log(ordinary), "rtd": entropy * text / (text + special)}


def test_the_floor_of_the_paper_setting() -> None:
    found = floors(30_000, 509, 3, round(0.15 * 509), 0.85)
    assert found == pytest.approx({"ae": 8.763, "rtd": 0.3783}, abs=1e-3)


@pytest.mark.slow
def test_random_tokens_are_learned_down_to_the_floor_and_no_further() -> None:
    ordinary = 8
    vocab = FIRST_ORDINARY + ordinary
    model = electra(vocab=vocab, initializer_range=0.02)

    def steps() -> Iterator[list[MicroBatch]]:
        step = 0
        while True:
            step += 1
            windows = random_windows(32, 13, vocab=vocab, seed=step)
            yield [MicroBatch(make_examples(windows, vocabulary(vocab), ELECTRA), windows)]

    train(model, steps(), 200, 6e-3)
    batch = batch_of(random_windows(3000, 13, vocab=vocab, seed=10_000), vocab=vocab)
    model.eval()
    with torch.no_grad():
        losses = model(batch)
    lowest = floors(ordinary, 10, 3, round(0.3 * 10), 0.85)
    for name, above, deviation in (("ae", 0.06, 1.5), ("rtd", 0.01, 0.6)):
        mean, count = float(losses[name].total / losses[name].weight), losses[name].weight
        noise = 4 * deviation / math.sqrt(count)
        assert mean > lowest[name] - noise, f"{name} is below its floor {lowest[name]:.3f}: {mean:.3f}"
        assert mean < lowest[name] + above, f"{name} did not come down to its floor {lowest[name]:.3f}: {mean:.3f}"


def test_the_loss_is_the_generators_and_fifty_times_the_discriminators() -> None:
    windows = random_windows(6, 24, short=True)
    examples = make_examples(windows, vocabulary(), ELECTRA)
    found = []
    for rows in (6, 2):  # micro-batches are weighted as one batch
        model = electra()
        with torch.no_grad():
            model.generator.token_head.bias[20] = 100.0  # every sample, independent of the draw
        parts = [MicroBatch(examples[i : i + rows], windows[i : i + rows], {"rtd": 50.0}) for i in range(0, 6, rows)]
        losses = accumulate_gradients(TrainState(model=model, optimizers=[]), parts, TrainingSettings(), CPU, str)
        found.append((losses, {name: parameter.grad for name, parameter in model.named_parameters()}))
    model = electra()
    with torch.no_grad():
        model.generator.token_head.bias[20] = 100.0
    each = {name: loss.total / loss.weight for name, loss in model(collate(examples)).items()}
    (each["ae"] + 50 * each["rtd"]).backward()
    for losses, gradients in found:
        assert losses == pytest.approx({name: float(value.detach()) for name, value in each.items()}, rel=1e-5)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, atol=2e-4, rtol=1e-4)


def test_logits_that_are_not_finite_stop_the_run_with_a_sentence() -> None:
    model = electra()
    with torch.no_grad():
        model.generator.token_head.bias[20] = math.nan
    windows = random_windows(4, 24)
    parts = [MicroBatch(make_examples(windows, vocabulary(), ELECTRA), windows)]
    with pytest.raises(UniclozeError, match="the loss of ae is nan"):
        accumulate_gradients(TrainState(model=model, optimizers=[]), parts, TrainingSettings(), CPU, str)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model.generator_size": 0.0}, "generator_size.*'rtd' needs a generator"),
        ({"model.generator_size": 1.5}, "generator_size.*between 0 and 1"),
        ({"objective.targets": ["rtd"]}, r"objective\.targets.*'rtd' needs 'ae'"),
        (
            {"objective.targets": ["ae"], "objective.coefficients": {}},
            "generator_size.*only a model with the target 'rtd'",
        ),
    ],
)
def test_conflicting_settings(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe("electra-small", overrides)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text")


def toy(corpus: Path, **overrides: Any) -> dict[str, Any]:
    """Small enough for a test, with dropout, several micro-batches and no schedule that depends on the number of steps."""
    return toy_overrides() | {
        "data.corpus": [str(corpus)], "model.embedding_size": 16, "training.schedule": "constant",
        "training.micro_batch_size": 2, "training.precision": "fp32", **overrides,
    }  # fmt: skip


@pytest.mark.whole
def test_a_resumed_run_ends_with_the_weights_of_one_that_never_stopped(corpus: Path, tmp_path: Path) -> None:
    def run(out: str, steps: int) -> dict[str, Tensor]:
        pretrain_run(
            load_recipe("electra-small", toy(corpus) | {"training.steps": steps}), tmp_path / out, progress=False
        )
        newest = list_checkpoints(tmp_path / out / "checkpoints")[-1]
        return {
            f"{part}:{name}": tensor
            for part in ("model", "optimizer")
            for name, tensor in load_file(newest / f"{part}.safetensors").items()
        }

    whole = run("whole", 6)
    halfway = run("stopped", 3)
    resumed = run("stopped", 6)
    assert whole.keys() == resumed.keys()
    assert not [name for name in whole if not torch.equal(whole[name], resumed[name])]
    assert not torch.equal(whole["model:generator.token_head.bias"], halfway["model:generator.token_head.bias"])
    assert {name.split(".")[0] for name in whole if name.startswith("model:")} == {
        "model:generator",
        "model:discriminator",
    }


def test_a_run_keeps_the_discriminator_for_use(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = pretrain_run(load_recipe("electra-small", toy(corpus)), out, progress=False)
    assert set(result.perplexity) == {"ae"}
    events = list(read_ledger(out / "ledger.jsonl"))
    assert all(set(event["loss"]) == {"ae", "rtd"} for event in events if event["event"] in ("step", "evaluate"))
    places = [
        place for event in events if event["event"] == "samples" for s in event["samples"] for place in s["masked"]
    ]
    assert all(set(place) == {"position", "step", "truth", "word", "ae", "top"} for place in places)

    loaded = load_model(out)
    saved = load_file(loaded.path / "model.safetensors")
    assert isinstance(loaded.model, UnifiedModel)
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, saved[f"discriminator.{name}"])
    assert embed(loaded, ["a b c", "d"]).shape == (2, 32)
    (scored,) = score(loaded, ["a b c"])
    assert scored.pseudo_log_likelihood is None
    assert scored.chain_log_likelihood is None
    with pytest.raises(UsageError, match="masked with the targets ae and rtd does not define filling masks"):
        fill(loaded, "a [MASK] c")


@pytest.mark.whole
def test_a_run_starts_from_the_network_of_another_that_is_used(corpus: Path, tmp_path: Path) -> None:
    first, second, plain = tmp_path / "first", tmp_path / "second", tmp_path / "plain"
    pretrain_run(load_recipe("electra-small", toy(corpus)), first, progress=False)
    weights = load_model(first).model.state_dict()

    onward = {"training.initialize_from": str(first), "training.learning_rate": 1e-12, "training.weight_decay": 0.0}
    with pytest.warns(
        UserWarning,
        match=r"has 0 of the generator's 31 tensors in the right shape: the others are newly initialised",
    ):
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

    learning = {
        **onward,
        "training.learning_rate": 1e-3,
        "training.weight_decay": 0.1,
        "training.frozen": ["generator"],
    }
    with pytest.warns(UserWarning, match="newly initialised"):
        pretrain_run(load_recipe("electra-small", toy(corpus) | learning), tmp_path / "frozen", progress=False)
    saved = load_newest(tmp_path / "frozen" / "checkpoints")
    assert saved is not None
    for name, tensor in saved.model.items():
        network, _, rest = name.partition(".")
        if rest in weights:
            assert torch.equal(tensor, weights[rest]) == (network == "generator"), name
