"""Every recipe memorises one row at toy size: its layout, heads and losses fit together.

One row, because a causal model has to guess where two rows begin identically.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from conftest import slow_except
from toys import random_windows, vocabulary
from unicloze.characters import spell
from unicloze.example import collate
from unicloze.interop.family import OF_TRAINING
from unicloze.mixtures import parts
from unicloze.model.dropout import DropoutKey
from unicloze.objectives import make_examples
from unicloze.recipes import load_recipe, recipe_names, toy_overrides
from unicloze.settings import ModelSettings, Recipe
from unicloze.training.loading import shape_model, spell_tokens

STEPS, RATE = {"transformer": 260, "recurrent": 2000}, 4e-3
OF_LSTMS = (
    "model.embedding_dropout", "model.input_dropout", "model.hidden_dropout", "model.weight_dropout",
    "model.activation_penalty", "model.temporal_penalty",
)  # fmt: skip


def toy(name: str) -> Recipe:
    """A recipe at toy size, without dropout."""
    still = {f"model.{name}": 0.0 for name in OF_TRAINING} | {"model.initializer_range": 0.05, "data.window": 16}
    model = load_recipe(name).model
    if model.kind == "recurrent":
        still |= dict.fromkeys(OF_LSTMS, 0.0)
    if attends(model):  # small weights would make its steps alike for a thousand updates
        still |= {"model.initializer_range": 0.3}
    return load_recipe(name, toy_overrides() | still)


def attends(model: ModelSettings) -> bool:
    """Whether it is an LSTM encoder-decoder."""
    return model.kind == "recurrent" and model.decoder_layers > 0


def cases() -> list[tuple[str, int]]:
    """A recipe and a part for each network and objective that differ at toy size."""
    found = {}
    for name in recipe_names():
        if not name.startswith("ulmfit"):  # ulmfit trains the network of awd-lstm
            recipe = toy(name)
            for number, part in enumerate(parts(recipe.objective)):
                reads = recipe.data.segments, recipe.tokenizer.extra_tokens > 0
                found.setdefault(repr((recipe.model, part.settings, *reads)), (name, number))
    return list(found.values())


QUICK = [
    ("bert-base", 0), ("gpt", 0), ("unilmv2-ablation-ae-par", 0), ("mdlm-base", 0), ("bart-base", 0), ("xlnet-base", 0),
]  # fmt: skip
"""One objective for each mechanism."""


@pytest.mark.whole
@pytest.mark.parametrize(("name", "number"), slow_except(QUICK, cases()), ids=str)
def test_every_part_of_every_recipe_memorises_a_row(name: str, number: int) -> None:
    recipe = toy(name)
    settings = parts(recipe.objective)[number].settings
    words = vocabulary(120, extra=100 if recipe.tokenizer.extra_tokens else 0)
    windows = random_windows(1, 16, vocab=120, seed=3)
    text = windows.maskable
    windows.token_ids[text] = words.ordinary[windows.token_ids[text] % len(words.ordinary)]
    windows = dataclasses.replace(
        windows,
        segment_ids=windows.segment_ids * (recipe.data.segments == 2),
        negative=np.ones(1, dtype=bool),
        joined=text & np.roll(text, 1, axis=1) & (windows.token_ids % 2 == 0),
    )
    batch = collate(make_examples(windows, words, settings))
    model = shape_model(recipe, words.size)
    model.initialize(0)
    spell_tokens(model, lambda: spell([str(number).encode() for number in range(words.size)], [True] * words.size))
    steps = STEPS["transformer" if attends(recipe.model) else recipe.model.kind]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 20, 2 * (steps - step) / steps)
        losses = model(batch, DropoutKey(0, step, 0))
        drawn = "rtd" in losses  # a sample of the generator may be easy by chance
        if not drawn and step % 10 == 0 and max(loss.total.item() / loss.weight for loss in losses.values()) < 0.01:
            break
        optimizer.zero_grad(set_to_none=True)
        torch.stack([loss.total / loss.weight for loss in losses.values()]).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        losses = model(batch, DropoutKey(0, steps, 0))
    found = {target: float(loss.total) / loss.weight for target, loss in losses.items()}
    assert set(found) == set(settings.targets)
    assert max(found.values()) < 0.05, found
