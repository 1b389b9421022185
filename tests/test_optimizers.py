"""Optimisers chosen by the settings: what decays, the learning rate of every step, every constant, and NT-ASGD."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor, nn

import toys
from corpora import toy_corpus
from hf_toys import cut_after, same_ends
from toys import random_windows, vocabulary
from unicloze.errors import UsageError
from unicloze.model.attention import RelativeBias
from unicloze.model.build import build
from unicloze.model.transformer_xl import RelativeTerms
from unicloze.objectives import settings_of
from unicloze.objectives.unilmv2 import unilmv2
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe
from unicloze.settings import HeadSettings, ModelSettings, TrainingSettings
from unicloze.training.batches import MicroBatch
from unicloze.training.checkpoint import Checkpoint, list_checkpoints, load_checkpoint
from unicloze.training.ledger import read_ledger
from unicloze.training.loading import load_model
from unicloze.training.loop import Compute, Hooks, TrainState, fit
from unicloze.training.optimizers import Lamb, NtAsgd, averaged, build_optimizers, schedule_factor
from unicloze.training.process import load_moments

CPU = Compute(device=torch.device("cpu"), precision="fp32")
SHAPE = ModelSettings(hidden_size=32, num_layers=2, num_heads=4, intermediate_size=64, initializer_range=0.15)
MODELS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unilmv2": ({"relative_bias": True}, ("ae", "par", "nsp")),
    "spanbert": ({"relative_bias": False, "pooler": True}, ("ae", "sbo")),
    "electra": ({"relative_bias": False, "generator_size": 0.5, "embedding_size": 16}, ("ae", "rtd")),
    "xlnet": ({"relative_bias": False, "positions": "transformer_xl", "head": "linear"}, ("par",)),
    "gpt": ({"relative_bias": False, "norm": "pre", "head_bias": False, "num_segments": 0}, ("lm",)),
    "albert": ({"relative_bias": False, "share_layers": "all", "embedding_size": 16}, ("ae", "sop")),
}


def model_of(name: str) -> nn.Module:
    changes, targets = MODELS[name]
    settings = dataclasses.replace(SHAPE, **changes)
    heads = {} if name == "electra" else {"label": HeadSettings(kind="classes", outputs=2)}
    model = build(settings, vocab_size=50, max_positions=40, targets=targets, heads=heads)
    model.initialize(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)  # biases too are not 0, so that decay would show
    return model


def undecayed(model: nn.Module) -> set[str]:
    """Biases, normalisations, the relative bias, and the vectors that Transformer-XL's encoding adds to queries."""
    found = set()
    for name, module in model.named_modules():
        own = [f"{name}.{parameter}".lstrip(".") for parameter, _ in module.named_parameters(recurse=False)]
        if isinstance(module, nn.LayerNorm | RelativeBias):
            found |= set(own)
        elif isinstance(module, RelativeTerms):
            found |= {f"{name}.{vector}" for vector in ("content", "position", "segment")}
        else:
            found |= {each for each in own if each.endswith("bias")}
    return found


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", MODELS)
def test_every_matrix_decays_and_nothing_else(name: str, optimizer: Any) -> None:
    """Without a gradient, a step is only the decay: each weight times 1 - learning rate x decay, or unchanged."""
    model = model_of(name)
    settings = TrainingSettings(optimizer=optimizer, learning_rate=0.1, muon_learning_rate=0.2, weight_decay=0.3)
    before = {key: weight.detach().clone() for key, weight in model.named_parameters()}
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    for built in build_optimizers(model, settings):
        built.step()
    constant = undecayed(model)
    assert constant < before.keys()
    for key, weight in model.named_parameters():
        hidden = optimizer == "muon" and ".layers." in key and weight.ndim == 2
        factor = 1.0 if key in constant else 1 - (0.2 if hidden else 0.1) * 0.3
        torch.testing.assert_close(weight.detach(), factor * before[key], msg=key)


def test_lamb_adapts_every_matrix_and_nothing_else() -> None:
    model = model_of("albert")
    (built,) = build_optimizers(model, TrainingSettings(optimizer="lamb"))
    groups = {id(weight): group["adapt"] for group in built.param_groups for weight in group["params"]}
    found = {name for name, weight in model.named_parameters() if not groups[id(weight)]}
    assert found == undecayed(model)
    bias, zero = nn.Parameter(torch.tensor([3.0])), nn.Parameter(torch.zeros(1, 2))
    bias.grad, zero.grad = torch.tensor([-2.0]), torch.tensor([[2.0, -1.0]])
    Lamb([{"params": [bias], "adapt": False}, {"params": [zero]}], lr=0.1, eps=0.0).step()
    torch.testing.assert_close(bias.detach(), torch.tensor([3.1]))
    torch.testing.assert_close(zero.detach(), torch.tensor([[-0.1, 0.1]]), msg="a tensor of zeros moves as by Adam")


def gradients(weight: Tensor) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(weight.shape, generator=generator) * 1e-3


def adam(weight: Tensor, steps: int, settings: TrainingSettings, *, adapts: bool = False) -> Tensor:
    """Kingma and Ba 2015, Algorithm 1, with the decoupled decay of Loshchilov and Hutter 2019, Algorithm 2.

    If it adapts, it is LAMB, You et al. 2020, Algorithm 2, with phi the identity.
    """
    first_decay, second_decay = settings.betas
    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    for step, gradient in zip(range(1, steps + 1), gradients(weight), strict=False):
        first = first_decay * first + (1 - first_decay) * gradient
        second = second_decay * second + (1 - second_decay) * gradient**2
        ratio = first / (1 - first_decay**step) / ((second / (1 - second_decay**step)).sqrt() + settings.epsilon)
        update = ratio + settings.weight_decay * weight
        weight = weight - settings.learning_rate * (weight.norm() / update.norm() if adapts else 1) * update
    return weight


def adamax(weight: Tensor, steps: int, settings: TrainingSettings) -> Tensor:
    """Kingma and Ba 2015, Algorithm 2; torch adds epsilon to the gradients that are compared."""
    (first_decay, second_decay), rate = settings.betas, settings.learning_rate
    first, largest = torch.zeros_like(weight), torch.zeros_like(weight)
    for step, gradient in zip(range(1, steps + 1), gradients(weight), strict=False):
        first = first_decay * first + (1 - first_decay) * gradient
        largest = torch.maximum(second_decay * largest, gradient.abs() + settings.epsilon)
        weight = weight - rate / (1 - first_decay**step) * first / largest
    return weight


def sgd(weight: Tensor, steps: int, settings: TrainingSettings) -> Tensor:
    """Gradient descent with a velocity (Polyak 1964), as Sutskever et al. 2013 write it, at a constant rate."""
    velocity = torch.zeros_like(weight)
    for _, gradient in zip(range(steps), gradients(weight), strict=False):
        velocity = settings.momentum * velocity - settings.learning_rate * gradient
        weight = weight + velocity
    return weight


def adafactor(weight: Tensor, steps: int, settings: TrainingSettings) -> Tensor:
    """Transformers' own, with the learning rate of the settings."""
    optimization = pytest.importorskip("transformers.optimization")
    parameter = nn.Parameter(weight.clone())
    optimizer = optimization.Adafactor(
        [parameter], lr=settings.learning_rate, weight_decay=settings.weight_decay, relative_step=False
    )
    for _, gradient in zip(range(steps), gradients(weight), strict=False):
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("optimizer", get_args(get_type_hints(TrainingSettings)["optimizer"]))
def test_every_optimiser_resumes_exactly(optimizer: Any) -> None:
    """Stored moments fit the weights, those of fused matrices and of vectors too, and the next steps are the same."""
    settings = TrainingSettings(optimizer=optimizer, learning_rate=1e-2)
    first, second = (toys.model(num_layers=1, decoder_layers=1) for _ in range(2))

    def step(model: nn.Module, optimizers: list[torch.optim.Optimizer], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for weight in model.parameters():
            weight.grad = torch.randn(weight.shape, generator=generator)
        for each in optimizers:
            each.step()

    whole, resumed = build_optimizers(first, settings), build_optimizers(second, settings)
    step(first, whole, 0)
    second.load_state_dict(first.state_dict())
    load_moments(resumed, Checkpoint(Path("step-1"), {}, copy.deepcopy([each.state_dict() for each in whole]), {}))
    for model, optimizers in ((first, whole), (second, resumed)):
        step(model, optimizers, 1)
    for name, weight in first.named_parameters():
        assert torch.equal(weight, second.get_parameter(name)), name


def muon(weight: Tensor, steps: int, settings: TrainingSettings) -> Tensor:
    """Nesterov momentum, made orthogonal by Newton-Schulz, scaled to the size of AdamW's update (Liu et al. 2025)."""
    rate = (settings.muon_learning_rate or 0.0) * 0.2 * math.sqrt(max(weight.shape))
    decay, momentum = (settings.muon_learning_rate or 0.0) * settings.weight_decay, torch.zeros_like(weight)
    for _, gradient in zip(range(steps), gradients(weight), strict=False):
        momentum = settings.muon_momentum * momentum + (1 - settings.muon_momentum) * gradient
        matrix = ((1 - settings.muon_momentum) * gradient + settings.muon_momentum * momentum).bfloat16()
        turned = len(matrix) > matrix.shape[1]
        matrix = matrix.T if turned else matrix
        matrix = matrix / matrix.norm().clamp(min=1e-7)
        for _ in range(5):
            gram = matrix @ matrix.T
            polynomial = torch.addmm(
                gram, gram, gram, beta=-4.7750, alpha=2.0315
            )  # rounded once, since bfloat16 is coarse
            matrix = torch.addmm(matrix, polynomial, matrix, beta=3.4445)
        weight = weight - decay * weight - rate * (matrix.T if turned else matrix).float()
    return weight


UNUSUAL = TrainingSettings(
    learning_rate=0.02, muon_learning_rate=0.03, muon_momentum=0.6, betas=(0.7, 0.8), epsilon=1e-3, weight_decay=0.3
)
"""No constant is a default of torch's, and epsilon is as large as the gradients."""


@pytest.mark.parametrize(
    ("optimizer", "name", "reference", "share"),
    [
        ("adamw", "layers.0.feed_forward.inner.weight", adam, 1e-4),
        ("muon", "embeddings.tokens.weight", adam, 1e-4),
        ("muon", "layers.0.feed_forward.inner.weight", muon, 0.05),
        ("muon", "layers.0.attention.output.weight", muon, 0.05),
        ("adamax", "layers.0.feed_forward.inner.weight", adamax, 1e-4),
        ("sgd", "layers.0.feed_forward.inner.weight", sgd, 1e-4),
        ("lamb", "layers.0.feed_forward.inner.weight", partial(adam, adapts=True), 1e-4),
        ("adafactor", "layers.0.feed_forward.inner.weight", adafactor, 1e-5),
        ("adafactor", "layers.0.attention.output.bias", adafactor, 1e-5),
    ],
)
def test_an_optimiser_has_the_constants_of_the_settings(
    optimizer: Any, name: str, reference: Any, share: float
) -> None:
    """Four updates equal those of a reference up to a small share of their norm; a bias of zeros does not decay."""
    decay = 0.0 if optimizer in ("adamax", "sgd") else UNUSUAL.weight_decay
    settings = dataclasses.replace(UNUSUAL, optimizer=optimizer, weight_decay=decay, momentum=0.7)
    model = toys.model()
    weight = model.backbone.get_parameter(name)
    if weight.ndim == 1:
        nn.init.zeros_(weight)
    start = weight.detach().clone()
    undecayed = dataclasses.replace(settings, weight_decay=0.0)
    expected = reference(start, 4, settings if weight.ndim > 1 else undecayed)
    built = build_optimizers(model, settings)
    for _, gradient in zip(range(4), gradients(weight), strict=False):
        weight.grad = gradient
        for each in built:
            each.step()
    assert (weight.detach() - expected).norm() < share * (start - expected).norm()


def test_the_rate_of_cvt() -> None:
    """0.5 / (1 + 0.005 t^0.5) after t updates, times the warm-up of the released code."""
    settings = TrainingSettings(steps=10**6, warmup_steps=5000, learning_rate=0.5, schedule="slow_inverse_sqrt")
    for step in (0, 2499, 4999, 10_000, 250_000):
        expected = min(1, (step + 1) / 5000) * 0.5 / (1 + 0.005 * math.sqrt(step))
        assert 0.5 * schedule_factor(step, settings) == pytest.approx(expected)
    assert 0.5 * schedule_factor(40_000, settings) == pytest.approx(0.25)
    none = dataclasses.replace(settings, warmup_steps=0)
    assert schedule_factor(0, none) == 1.0


def test_every_update_has_the_learning_rate_of_its_step() -> None:
    """Up to the peak at the last step of the warm-up, then down to 0."""
    settings = TrainingSettings(optimizer="adamw", steps=8, warmup_steps=3, learning_rate=1e-3, save_every=0)
    model, windows, rates = toys.model(), random_windows(4, 24), list[float]()
    state = TrainState(model=model, optimizers=build_optimizers(model, settings))
    state.optimizers[0].register_step_pre_hook(lambda one, *_: rates.append(1000 * one.param_groups[0]["lr"]))
    batch = MicroBatch(unilmv2(windows, vocabulary(), settings_of()), windows)
    hooks = Hooks(log=lambda *_: None, evaluate=lambda _: False, save=lambda _: None, describe=str)
    fit(state, itertools.repeat([batch]), settings, CPU, hooks)
    assert rates == pytest.approx([1 / 3, 2 / 3, 1, 1, 4 / 5, 3 / 5, 2 / 5, 1 / 5])


@pytest.mark.parametrize("name", ["lamb", "adafactor", "adamw"])
def test_queries_keys_and_values_move_as_matrices_of_their_own(name: Any) -> None:
    """One step of the fused projections, beside the same optimiser on a model of their parts."""
    model = toys.model(num_layers=1, decoder_layers=1)
    generator = torch.Generator().manual_seed(0)
    fused = {"qkv": 3, "key_value": 2}
    parts: dict[str, list[nn.Parameter]] = {}
    for key, weight in model.named_parameters():
        weight.data = torch.randn(weight.shape, generator=generator) * torch.linspace(0.1, 3, len(weight)).view(
            -1, *[1] * (weight.ndim - 1)
        )
        weight.grad = torch.randn(weight.shape, generator=generator)
        if count := fused.get(key.split(".")[-2]):
            parts[key] = [nn.Parameter(each.clone()) for each in weight.data.chunk(count)]
            for each, gradient in zip(parts[key], weight.grad.chunk(count), strict=True):
                each.grad = gradient.clone()
    assert {key.split(".")[-2] for key in parts} == set(fused)
    apart = nn.ModuleDict({"backbone": nn.ModuleDict({"layers": nn.ModuleList(map(nn.ParameterList, parts.values()))})})
    settings = TrainingSettings(optimizer=name, learning_rate=0.1, weight_decay=0.1)
    for optimizer in (*build_optimizers(model, settings), *build_optimizers(apart, settings)):
        optimizer.step()
    for key, each in parts.items():
        torch.testing.assert_close(model.get_parameter(key), torch.cat(list(each)), rtol=1e-5, atol=1e-3)


# NT-ASGD against torch's SGD and ASGD, when it starts, and that a resumed run goes on alike


def gradient(weight: torch.Tensor, step: int) -> torch.Tensor:
    return torch.sin(weight.detach() * (step + 1)) + 0.1 * step


def test_it_is_sgd_and_then_asgd() -> None:
    ours, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 6)) for _ in range(2))
    optimizer = NtAsgd([ours], lr=0.1, weight_decay=0.01)
    sgd = torch.optim.SGD([theirs], lr=0.1, weight_decay=0.01)
    asgd = torch.optim.ASGD([theirs], lr=0.1, lambd=0.0, t0=0, weight_decay=0.01)
    for step in range(10):
        if step == 4:
            for loss in (1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0):
                optimizer.hear(loss)
            assert optimizer.averages
        ours.grad, theirs.grad = gradient(ours, step), gradient(theirs, step)
        optimizer.step()
        (sgd if step < 4 else asgd).step()
        torch.testing.assert_close(ours, theirs)
    assert asgd.state[theirs]["step"].item() == 6
    with averaged([optimizer]):
        torch.testing.assert_close(ours.detach(), asgd.state[theirs]["ax"])
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("losses", "starts"), [
    ([5, 4, 3, 2, 1], None),
    ([1, 2, 2], None),
    ([1, 2, 2, 2], 3),
    ([3, 2, 2, 2.5, 2.6, 2.7], 4),
    ([3, 3, 3, 3, 3], None),
])  # fmt: skip
def test_it_averages_once_an_evaluation_is_worse_than_the_best_before_the_latest(
    losses: list[float], starts: int | None
) -> None:
    optimizer = NtAsgd([torch.nn.Parameter(torch.zeros(2))], patience=2)
    started = []
    for loss in losses:
        optimizer.hear(loss)
        started.append(optimizer.averages)
    assert (started.index(True) if True in started else None) == starts


@pytest.mark.whole
@pytest.mark.parametrize("cut_at", [4, 8])
def test_a_resumed_run_averages_alike(cut_at: int, tmp_path: Path) -> None:
    """Cut before and after the average starts; the saved model is the average."""
    overrides = toy_corpus(tmp_path, {
        "training.steps": 12, "training.save_every": 4, "training.evaluate_every": 2, "training.keep_checkpoints": 9,
        "training.average_patience": 1, "training.learning_rate": 400.0, "training.clip_norm": 5.0,
    })  # fmt: skip
    recipe, whole = load_recipe("awd-lstm", overrides), tmp_path / "whole"
    pretrain_run(recipe, whole, progress=False)
    saved = [load_checkpoint(path) for path in list_checkpoints(whole / "checkpoints")]
    assert [bool(one.optimizers[0]["state"]) for one in saved] == [False, True, True]
    pretrain_run(recipe, cut := cut_after(whole, cut_at), progress=False)
    averages = [state["average"] for state in same_ends(whole, cut).optimizers[0]["state"].values()]
    weights = list(load_model(cut).model.parameters())
    assert any(
        not torch.equal(weight, average)
        for weight, average in zip(weights, averages, strict=False)
        if weight.shape == average.shape
    )
    events = [read_ledger(run / "ledger.jsonl") for run in (whole, cut)]
    losses = [[event["loss"] for event in run if event["event"] == "evaluate"][-1] for run in events]
    assert losses[0] == losses[1]


def test_a_resumed_run_evaluates_as_often_and_as_much_as_before(tmp_path: Path) -> None:
    """Evaluations decide when the averaging starts."""
    settings = toy_corpus(tmp_path, {"training.save_every": 1})
    pretrain_run(load_recipe("awd-lstm", settings), tmp_path / "run", progress=False)
    for key in ("training.evaluate_every", "training.evaluate_windows"):
        with pytest.raises(UsageError, match=f"holds a run with {key}"):
            pretrain_run(load_recipe("awd-lstm", settings | {key: 1}), tmp_path / "run", progress=False)
