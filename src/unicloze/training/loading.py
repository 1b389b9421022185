"""Builds and loads models: newly initialised from a recipe, or from a checkpoint."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unicloze import keyed
from unicloze.arrays import Int64s
from unicloze.devices import widest_float
from unicloze.errors import UniclozeError, UsageError, option_of
from unicloze.example import predicts_tokens
from unicloze.files import BEST, CHECKPOINTS, MANIFEST, RECIPE, TOKENIZER, is_run
from unicloze.mixtures import all_targets, longest_row
from unicloze.model.attention import Backend, head_width
from unicloze.model.backbone import Stack
from unicloze.model.build import Model, build, generator_settings
from unicloze.model.initialization import add_low_rank, learning, merge_low_rank
from unicloze.model.layers import Layer
from unicloze.model.model import UnifiedModel
from unicloze.model.recurrent.layers import CharacterCnn
from unicloze.recipes import load_recipe
from unicloze.settings import Recipe, TrainingSettings
from unicloze.tasks import TASKS, task_heads
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.checkpoint import (
    START,
    Checkpoint,
    StartModel,
    fingerprint,
    list_checkpoints,
    load_checkpoint,
    load_newest,
)
from unicloze.training.loop import Compute
from unicloze.training.parallel import World, as_stored


@dataclass(frozen=True)
class LoadedModel:
    """A trained model ready for use.

    Args:
        model: The model in evaluation mode, float32; on the CPU unless moved.
        tokenizer: Its tokenizer.
        recipe: The recipe it was trained with.
        path: The checkpoint it was loaded from.
        step: Number of steps it was trained for.
        precision: `fp32` or `bf16` (autocast) for encoding. Generation uses that of the recipe's `decoding`.
        world: The processes that share the work of predicting a file.
    """

    model: UnifiedModel
    tokenizer: Tokenizer
    recipe: Recipe
    path: Path
    step: int
    precision: str = "fp32"
    world: World = field(default_factory=World)

    @property
    def compute(self) -> Compute:
        """Device of its weights, precision for encoding, and processes."""
        device = next(self.model.parameters()).device
        return Compute(device=device, precision=self.precision, world=self.world)

    def to_dict(self) -> dict[str, Any]:
        """Description and origin as a JSON-serialisable dictionary."""
        return {
            "path": str(self.path),
            "step": self.step,
            "parameters": self.model.num_parameters(),
            "vocabulary": len(self.tokenizer),
            "recipe": self.recipe.to_dict(),
        }

    def __str__(self) -> str:
        model, provenance = self.recipe.model, self.recipe.provenance
        shape = f"{model.num_layers} layers of {model.hidden_size}, {len(self.tokenizer):,} tokens"
        return (
            f"{self.path}: {self.model.num_parameters():,} weights ({shape}, {model.max_positions:,} positions), "
            f"{provenance.place}\n{provenance.note}"
        )


def build_model(recipe: Recipe, vocab_size: int) -> Model:
    """The model a recipe describes, initialised."""
    with torch.random.fork_rng(devices=[]):  # modules draw weights, which are drawn again
        model = shape_model(recipe, vocab_size)
    model.initialize(int(keyed.key(recipe.training.seed)[0] >> 1))
    return model


def spell_tokens(model: Model, symbols: Callable[[], Int64s]) -> None:
    """Give a model that reads characters those of each token; does nothing to other models."""
    tables = [module for module in model.modules() if isinstance(module, CharacterCnn)]
    found = torch.from_numpy(symbols()) if tables else None
    for tokens in tables:  # a decoder has its own
        tokens.symbols = found


def ready_model(recipe: Recipe, vocab_size: int, device: torch.device) -> Model:
    """The initialised model on a device, with the recipe's frozen parts, smoothing, checkpoints and attention backend."""
    check_smoothing(recipe)
    _check_attention(recipe, device)
    model = build_model(recipe, vocab_size).to(device)
    freeze(model, recipe.training.frozen)
    learns = learning(model, recipe.finetuning)
    for name, weight in model.named_parameters():
        weight.requires_grad_(weight.requires_grad and name in learns)
    for network in model.networks:
        network.label_smoothing = recipe.training.label_smoothing
    for module in model.modules():
        if isinstance(module, Stack):
            module.checkpoint_activations = recipe.training.checkpoint_activations
    backend = attention_backend(recipe, device)
    for network in model.networks if backend else ():
        network.backbone.backend = backend
    return model


LEAST_WIDTH = 16
"""Width of the narrowest head that FlexAttention compiles."""


def attention_backend(recipe: Recipe, device: torch.device) -> Backend | None:
    """The attention backend of a run; None if each batch decides, see `choose_backend`."""
    training, model = recipe.training, recipe.model
    if training.attention != "auto":
        return training.attention
    plain = model.kind == "transformer" and model.positions != "transformer_xl" and not model.decoder_layers
    networks = [model, *([generator_settings(model)] if model.generator_size else [])]
    wide = min(map(head_width, networks)) >= LEAST_WIDTH
    free = model.attention_dropout == 0 and not training.deterministic and wide
    return "flex" if device.type == "cuda" and plain and free else None


def compile_layers(model: Model) -> None:
    """Compile each layer. All but the last share one graph, so that the time does not grow with their number."""
    for module in model.modules():
        if isinstance(module, Layer):
            module.compile()


@contextmanager
def explain_compile_errors(settings: TrainingSettings) -> Iterator[None]:
    """Say in one sentence what torch cannot compile: layers, or FlexAttention, which a GPU compiles always."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch._dynamo.exc.TorchDynamoException):
            raise
        reason = " ".join(str(error).partition("\n\n")[0].split())
        what, cure = "FlexAttention", f"start a run with {option_of('training.attention')} sdpa"
        if settings.compile:
            what, cure = "a layer of this model", f"run the same command with {option_of('training.compile')} false"
        raise UniclozeError(f"torch cannot compile {what} ({reason}): {cure}") from error


def check_smoothing(recipe: Recipe) -> None:
    """Reject label smoothing where no token is predicted, because it would have no effect."""
    smoothing = recipe.training.label_smoothing
    if smoothing and not any(map(predicts_tokens, _targets(recipe))):
        what = f"a {recipe.task.kind} task" if recipe.task.kind else "this objective"
        raise UsageError(
            f"training.label_smoothing is {smoothing}, but {what} predicts no tokens, and only token labels are smoothed: "
            "set it to 0"
        )


def _check_attention(recipe: Recipe, device: torch.device) -> None:
    """Reject, or warn about, an attention backend that does not train on a CPU."""
    asked, rate = recipe.training.attention, recipe.model.attention_dropout
    if device.type != "cpu":
        return
    if asked == "flex":
        raise UsageError("training.attention is flex, which trains only on a GPU: set it to auto")
    if asked == "sdpa" and rate > 0:
        warnings.warn(
            f"training.attention is sdpa, but training on a CPU does not use it with model.attention_dropout {rate}",
            stacklevel=3,
        )


def freeze(model: Model, parts: Sequence[str]) -> None:
    """Freeze parts of a model: their weights get no gradient and belong to no optimiser."""
    weights = dict(model.named_parameters())
    for part in parts:
        found = [weight for name, weight in weights.items() if f"{name}.".startswith(f"{part}.")]
        if not found:
            known = dict.fromkeys(name.partition(".")[0] for name in weights)
            raise UsageError(f"training.frozen names {part!r}; the parts of this model are {', '.join(known)}")
        for weight in found:
            weight.requires_grad_(False)
    if not any(weight.requires_grad for weight in weights.values()):
        raise UsageError("training.frozen names all weights of the model: leave out those to train")


def shape_model(recipe: Recipe, vocab_size: int) -> Model:
    """The model a recipe describes, not initialised."""
    positions, targets = recipe.model.max_positions or longest_row(recipe), _targets(recipe)
    heads = task_heads(recipe)
    model = build(recipe.model, vocab_size=vocab_size, max_positions=positions, targets=targets, heads=heads)
    add_low_rank(model, recipe.finetuning)
    return model


def _targets(recipe: Recipe) -> Sequence[str]:
    """Targets of a recipe's model, except those with a task head."""
    task = recipe.task.kind
    return [*TASKS[task].token_targets, *recipe.finetuning.auxiliary] if task else all_targets(recipe)


def fit_weights(model: Model, checkpoint: Checkpoint, others: Mapping[str, Tensor] | None = None) -> None:
    """Copy a checkpoint's weights into a model."""
    own = model.state_dict()
    left_out = {name: weight for name, weight in (others or {}).items() if name in own}
    weights = {**left_out, **checkpoint.model}
    for name in sorted(own.keys() | weights.keys()):
        ours, theirs = own.get(name), weights.get(name)
        if ours is None or theirs is None or ours.shape != theirs.shape:
            shapes = ["missing" if t is None else "x".join(map(str, t.shape)) for t in (ours, theirs)]
            hint = " (the tokenizer's vocabulary is not the one it was trained with)" if "tokens" in name else ""
            raise UniclozeError(
                f"{checkpoint.path} does not fit the recipe: {name} is {shapes[1]} there and {shapes[0]} here{hint}; use the "
                "recipe and tokenizer it was trained with"
            )
    model.load_state_dict(as_stored(weights, own))


Open = Callable[[Path], LoadedModel]
"""Opens the model at a place."""


def load_model(path: str | os.PathLike[str], opens: Open | None = None) -> LoadedModel:
    """Load a trained model from a run directory, its checkpoints folder, or one checkpoint.

    Of a run, the best checkpoint is loaded if it was kept, else the newest. A run that trained a few weights is put together
    with the model it started from, and its low-rank updates are merged into the weights.

    Args:
        path: The folder.
        opens: Opens the model that such a run started from; default: this function.
    """
    place = Path(path)
    if not place.is_dir():
        raise UniclozeError(
            f"there is no model at {place}: give the --out of a pretrain run, or the name of an installed model"
        )
    folder = next((folder for folder in (place / BEST, place / CHECKPOINTS) if list_checkpoints(folder)), place)
    checkpoint = load_checkpoint(place, weights_only=True) if (place / MANIFEST).is_file() else load_newest(folder)
    if checkpoint is None:
        inside = sorted(file.parent.name for file in place.glob("*/ledger.jsonl"))
        if inside:
            raise UniclozeError(f"{place} holds several runs: give one of its folders {', '.join(inside)}")
        if is_run(place):
            raise UniclozeError(f"{place} holds no checkpoint yet: give the --out of a run that has saved one")
        cure = "give the --out of a pretrain run, or a folder of Transformers (with config.json, weights and tokenizer)"
        raise UniclozeError(f"{place} holds no model: {cure}")
    recipe = load_recipe(checkpoint.path / RECIPE)
    tokenizer = Tokenizer.load(checkpoint.path / TOKENIZER)
    model = build_model(recipe, tokenizer.vocabulary.size)
    spell_tokens(model, tokenizer.symbols)
    fit_weights(model, checkpoint, _left_out(checkpoint, opens or load_model))
    merge_low_rank(model)
    return LoadedModel(model.for_use().eval(), tokenizer, recipe, checkpoint.path, checkpoint.state["step"])


def _left_out(checkpoint: Checkpoint, opens: Open) -> Mapping[str, Tensor]:
    """The weights that a checkpoint leaves to the model its run started from; empty if it holds all."""
    if START not in checkpoint.state:
        return {}
    start = StartModel.read(checkpoint)
    place = start.found(checkpoint.path)
    opened = opens(place)
    start.check(checkpoint.path, place, fingerprint(opened.tokenizer, opened.model.state_dict()))
    return opened.model.state_dict()


@contextmanager
def mean_weights(model: nn.Module, checkpoints: Sequence[Path]) -> Iterator[None]:
    """Give a model the mean of the weights in some checkpoints within this context, and its own back afterwards.

    Weights that the checkpoints leave out stay as they are.
    """
    with given_weights(model, _mean(load_checkpoint(path, weights_only=True).model for path in checkpoints)):
        yield


@contextmanager
def given_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Give a model some other weights within this context, and its own back afterwards."""
    own = {name: weight.detach().clone() for name, weight in model.state_dict().items() if name in weights}
    model.load_state_dict(weights, strict=False)
    try:
        yield
    finally:
        model.load_state_dict(own, strict=False)


def _mean(states: Iterator[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Mean of several sets of weights, computed in double precision."""
    sums: dict[str, Tensor] = {}
    count = 0
    for count, state in enumerate(states, 1):
        for name, weight in state.items():
            sums[name] = weight.to(widest_float(weight.device), copy=True) if count == 1 else sums[name].add_(weight)
        kinds = {name: weight.dtype for name, weight in state.items()}
    return {name: (total / count).to(kinds[name]) for name, total in sums.items()}
