"""Small random checkpoints of other libraries, made offline."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from toys import random_windows
from unicloze.example import Batch, collate
from unicloze.interop.families import family_of
from unicloze.interop.family import Architecture, Family, class_of
from unicloze.interop.files import Config, open_weights
from unicloze.interop.read import import_checkpoint, write_model
from unicloze.interop.tables import Table
from unicloze.model.model import UnifiedModel
from unicloze.objectives import make_examples, settings_of
from unicloze.text.vocabulary import Vocabulary
from unicloze.training.loading import LoadedModel, load_model

SPECIALS = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PSEUDO]"]
VOCABULARY = [*SPECIALS, *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmno"), ".", ","]
"""50 tokens."""

SHAPE: dict[str, Any] = dict(
    vocab_size=50, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
    max_position_embeddings=42, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.15,
)  # fmt: skip


def write_vocabulary(folder: Path, tokens: list[str] = VOCABULARY) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return folder / "vocab.txt"


def randomise(model: torch.nn.Module, padding: int = 0) -> None:
    """Randomise biases and normalisations too; set padding rows of position tables to 0."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name.lower():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
            if name.endswith("position_embeddings.weight"):
                parameter[:padding] = 0


def save(kind: str, folder: Path, *, padding: int = 0, **changes: Any) -> Any:
    """A randomly initialised Transformers model, saved with a vocabulary; returned in evaluation mode."""
    import transformers

    family = kind.partition("For")[0].removesuffix("Model")
    shape = SHAPE | changes
    if family == "DistilBert":
        names = dict(
            hidden_size="dim", num_hidden_layers="n_layers", num_attention_heads="n_heads", intermediate_size="hidden_dim",
            hidden_dropout_prob="dropout", attention_probs_dropout_prob="attention_dropout", hidden_act="activation",
        )  # fmt: skip
        shape = {names.get(key, key): value for key, value in shape.items()}
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**shape, attn_implementation="eager")
    model = getattr(transformers, kind)(config)
    randomise(model, padding)
    model.save_pretrained(folder)
    write_vocabulary(folder)
    return model.eval()


def table_of(folder: Path) -> tuple[Family, Table]:
    """The family of a checkpoint, and its table."""
    config, weights = Config.read(folder / "config.json"), open_weights(folder)
    family, task = family_of(config, weights), class_of(config)
    bare = not any(name.startswith(family.prefix) for name in weights)
    layout = family.read(config, weights.keys(), task)
    layout = dataclasses.replace(layout, query=layout.tokens if family.queries else None)
    return family, family.table(layout, import_checkpoint(folder).model.state_dict(), bare=bare)


def with_our_weights(family: Family, model: UnifiedModel, peer: nn.Module, *, query: int | None = None) -> Table:
    """Gives a model of Transformers our weights, none left out; returns the table between the two."""
    table = family.table(Architecture(settings=model.settings, query=query), model.state_dict())
    theirs = table.to_theirs(model.state_dict())
    peer.load_state_dict({**peer.state_dict(), **theirs})
    assert sum(p.numel() for p in peer.parameters()) == sum(tensor.numel() for tensor in theirs.values())
    return table


def same_there_and_back(folder: Path, model: UnifiedModel) -> None:
    """The weights of a folder are our model's under other names, bit for bit, and come back."""
    _, table = table_of(folder)
    stored, ours = load_file(folder / "model.safetensors"), model.state_dict()
    theirs = table.to_theirs(ours)
    assert all(table.ignores(name) for name in stored.keys() - theirs.keys())
    for name, tensor in theirs.items():
        assert tensor.shape == stored[name].shape and torch.equal(tensor, stored[name]), name
    again = dict(table.ours(theirs))
    assert again.keys() == ours.keys() and all(torch.equal(again[name], tensor) for name, tensor in ours.items())


def same_as_ours(loaded: LoadedModel, folder: Path) -> LoadedModel:
    """The model written as a checkpoint of ours and read again, after asserting that it is the same."""
    write_model(loaded, folder)
    again = load_model(folder)
    state = again.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in loaded.model.state_dict().items())
    assert (again.recipe.model, again.recipe.objective) == (loaded.recipe.model, loaded.recipe.objective)
    assert again.tokenizer.fingerprint == loaded.tokenizer.fingerprint
    return again


def same_gradients(table: Table, model: nn.Module, peer: nn.Module) -> None:
    own = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()}
    for name, gradient in table.to_theirs(own).items():
        expected = peer.get_parameter(name).grad
        assert expected is not None, name
        torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def labels_of(batch: Batch, target: str = "ae") -> Tensor:
    """The answers of a target at their slots, -100 elsewhere. *Shape:* (rows, slots)"""
    asked = batch.targets[target]
    row, column = asked.weights.nonzero(as_tuple=True)
    return torch.full_like(batch.input_ids, -100).index_put(
        (row, asked.slots[row, column]), asked.labels[row, column].to(batch.input_ids.dtype)
    )


def batch_of(vocabulary: Vocabulary, *, segments: bool) -> tuple[Batch, Tensor]:
    """Masked pairs in rows of several lengths, and which slots are not padding. *Shape:* (rows, slots)"""
    windows = random_windows(6, 24, short=True, seed=2)
    if not segments:
        windows.segment_ids[:] = 0
    batch = collate(make_examples(windows, vocabulary, settings_of(name="masked", targets=["ae"], masking="token")))
    return batch, torch.arange(batch.input_ids.shape[1]) < torch.from_numpy(windows.lengths)[:, None]


def noise(shape: torch.Size) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))
