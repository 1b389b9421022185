"""Operation counts equal those of torch's counter, for every layer and head of every recipe and task."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import nlu_toys
import toys
from corpora import write_corpus
from test_questions import stories
from unicloze.example import Examples, collate
from unicloze.finetuning.data import encoded
from unicloze.mixtures import parts, phases
from unicloze.model import attention as planning
from unicloze.model.build import Model
from unicloze.objectives import make_examples, settings_of
from unicloze.pretraining.budget import amounts_of, flops_of, measure_slots
from unicloze.pretraining.data import build_sampler, phrases_for
from unicloze.recipes import load_recipe, recipe_names, toy_overrides
from unicloze.records import read_records
from unicloze.settings import DataSettings, Recipe, TokenizerSettings
from unicloze.tasks import TASKS
from unicloze.text.prepare import Prepared, open_or_prepare
from unicloze.training.loading import build_model, spell_tokens

RECORDS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "classification": ("classification", [{"text": "anna sees", "pair": "eva", "label": label} for label in "ab"]),
    "regression": ("regression", [{"text": "anna sees", "pair": "eva leaves", "label": 0.5}]),
    "choice": ("choice", [{"context": "anna sees", "choices": ["eva", "carl plays"], "label": 1}]),
    "tagging": ("tagging", [{"tokens": ["anna", "sees", "eva"], "tags": ["B-PER", "O", "B-PER"]}]),
    "extraction": (
        "squad-v2",
        [{"context": "anna sees eva", "question": "who?", "answers": [{"text": "eva", "answer_start": 10}]}],
    ),
    "conversation": ("coqa-extractive", [stories(1)]),
    "generation": ("generation", [{"source": "anna sees", "target": "eva leaves"}]),
}
"""A recipe and records of every kind of task."""


@pytest.fixture(autouse=True)
def _all_slots_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Includes the last layer, whose savings depend on what the slots of a batch have in common."""
    monkeypatch.setattr(planning, "MOST_SELECTED", 0.0)


def counted(model: Model, examples: Examples) -> tuple[float, float]:
    """Operations of a forward pass of one row, as counted by torch: linear layers, and the products of attention.

    Neither includes what Transformer-XL's encoding adds to the scores.
    """
    model.eval()
    for network in model.networks:
        network.backbone.backend = "explicit"  # torch does not count its own kernel on a CPU
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(collate(examples))
    linear = attention = 0.0
    for module, operations in counter.get_flop_counts().items():
        sign = 1 if module == "Global" else -1 if module.endswith(NOT_COUNTED) else 0
        for operation, count in operations.items():
            if str(operation) in ("aten.mm", "aten.addmm"):
                linear += sign * count
            else:
                attention += sign * count
    return linear, attention


NOT_COUNTED = ".attention.terms", ".embeddings.tokens"
"""Modules whose products the package does not count: character convolutions are a look-up, once per distinct token."""


def compare(model: Model, examples: Examples) -> None:
    """Linear layers match exactly; attention counts products of slots and keys, some of which are computed needlessly."""
    asked = amounts_of(model, examples)
    slots, own = asked.slots, [network.settings for network in model.networks]
    linear, attention = counted(model, examples)
    if own[0].cell_clip is not None:  # its own loop, whose products torch counts
        assert model.flops(asked) / 3 == linear
        return
    if own[0].kind == "recurrent" and own[0].decoder_layers:  # torch counts the steps of its decoder, but no LSTMs
        encoder = sum(weight.numel() for weight in model.backbone.layers.parameters() if weight.dim() == 2)
        assert model.flops(asked) / 3 == pytest.approx(linear + attention + 2 * asked.source_slots * encoder)
        return
    if own[0].kind == "recurrent":  # torch counts none without projections; each weight is used once per slot
        lstms = [each for each in model.modules() if isinstance(each, torch.nn.LSTM) and not each.proj_size]
        weights = sum(weight.numel() for each in lstms for weight in each.parameters() if weight.dim() == 2)
        directions = 2 if own[0].directions == "both" else 1
        assert model.flops(asked) / 3 == linear + 2 * slots * weights / directions
        return
    if own[0].decoder_layers:
        of_keys = (model.flops(asked) - linear * 3) / 3
        source, rest = asked.source_slots, slots - asked.source_slots
        pairs = own[0].num_layers * source**2 + own[0].decoder_layers * rest * slots
        source_alone = model.flops(replace(asked, keys=asked.source_pairs / slots)) / 3
        assert source_alone - 4 * own[0].hidden_size * own[0].num_layers * source**2 == pytest.approx(linear, rel=1e-12)
        assert of_keys <= attention == 4 * own[0].hidden_size * pairs
        return
    skipped = 0.0
    for number, shape in enumerate(own):
        names = [name for name in asked.predictions if len(own) == 1 or (name == "ae") == (number == 0)]
        selected = min(slots, sum(asked.predicting_slots[name] for name in names))
        width, inner = shape.hidden_size, shape.intermediate_size
        skipped += (slots - selected) * (4 * width * width + 4 * width * inner)  # the last layer's, of the other slots
    assert model.flops(replace(asked, keys=0.0)) / 3 + skipped == linear
    pairs = sum(4 * shape.hidden_size * shape.num_layers for shape in own) * slots * slots
    of_keys = (model.flops(asked) - model.flops(replace(asked, keys=0.0))) / 3
    if own[-1].positions != "transformer_xl":
        assert of_keys <= attention <= pairs
    if asked.keys == slots:
        assert attention == pairs


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("flops")
    data, tokenizer = (
        DataSettings(corpus=[str(write_corpus(folder))]),
        TokenizerSettings(vocab_size=640, extra_tokens=128),
    )
    return open_or_prepare(data, tokenizer, folder / "data", progress=False)


def recipe_of(name: str, **settings: Any) -> Recipe:
    return load_recipe(name, toy_overrides() | {"tokenizer.extra_tokens": 128, "model.memory": 0, **settings})


def examples_of(recipe: Recipe, prepared: Prepared, folder: Path) -> Iterator[Examples]:
    """A row of every part of every phase."""
    phrases = phrases_for(recipe, prepared, folder, progress=False)
    for phase in phases(recipe):
        sampler = build_sampler(phase.recipe, prepared, phrases=phrases)
        for part in parts(phase.recipe.objective):
            windows = sampler.read(0, 1, pairs=part.settings.windows.pairs)
            yield make_examples(windows, sampler.vocabulary, part.settings)


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_costs_what_torch_counts(name: str, prepared: Prepared, tmp_path: Path) -> None:
    recipe = recipe_of(name)
    model = build_model(recipe, prepared.tokenizer.vocabulary.size)
    spell_tokens(model, prepared.tokenizer.symbols)
    for examples in examples_of(recipe, prepared, tmp_path):
        compare(model, examples)


@pytest.mark.parametrize("size", [{}, {"model.embedding_size": 16}], ids=["", "narrow"])
@pytest.mark.parametrize(
    "targets", [["ae", "par", "nsp"], ["ae", "par", "sop"], ["ae", "rtd", "nsp"], ["ae", "sbo", "nsp"]]
)
def test_targets_together_cost_what_torch_counts(
    targets: list[str], size: dict[str, Any], prepared: Prepared, tmp_path: Path
) -> None:
    pairs = {"nsp": "next_sentence", "sop": "sentence_order"}
    settings = {
        "objective.name": "unilmv2" if "par" in targets else "masked",
        "objective.targets": targets,
        "objective.pairs": next((pairs[name] for name in targets if name in pairs), "contiguous"),
        "model.generator_size": 0.5 if "rtd" in targets else 0.0,
        "data.segments": 2,
        "model.num_segments": 2,
        **size,
    }
    recipe = recipe_of("unilmv2-ablation-ae-par", **settings)
    model = build_model(recipe, prepared.tokenizer.vocabulary.size)
    for examples in examples_of(recipe, prepared, tmp_path):
        compare(model, examples)


POOLED = [("classification", {"task__pooling": pooling}) for pooling in ("first", "mean")]


@pytest.mark.parametrize(("kind", "settings"), [*((kind, {}) for kind in sorted(TASKS)), *POOLED], ids=str)
def test_a_task_costs_what_torch_counts(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    name, given = RECORDS[kind]
    start = nlu_toys.start("unilmv2-base", data__window=96)
    recipe = nlu_toys.recipe_for(start, name, **settings)
    file = tmp_path / f"records.{'json' if kind == 'conversation' else 'jsonl'}"
    file.write_text("".join(json.dumps(record) + "\n" for record in given))
    records = read_records(file, recipe.task)
    recipe = dataclasses.replace(recipe, task=TASKS[kind].resolve(recipe.task, records))
    rows = encoded(records, recipe, start.tokenizer).rows
    examples = TASKS[kind].lay_out(rows[:1], start.tokenizer.vocabulary, recipe, None)
    compare(build_model(recipe, start.model.vocab_size), examples[:1])
    if settings:
        (slots,) = measure_slots(examples[:1]).predicting_slots.values()
        assert slots == (examples.lengths[0] if settings["task__pooling"] == "mean" else 1)


def test_the_last_layer_is_counted_for_the_slots_that_predict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MOST_SELECTED", 1.0)
    model = toys.model()
    examples = make_examples(toys.random_windows(1, 40), toys.vocabulary(), settings_of())
    asked = measure_slots(examples)
    assert asked.predicting_slots == asked.predictions and sum(asked.predictions.values()) < asked.slots
    assert model.flops(replace(asked, keys=0.0)) / 3 == counted(model, examples)[0]


def test_a_slot_that_many_predictions_share_is_counted_once() -> None:
    settings = settings_of(
        name="masked", targets=["ae", "sbo"], masking="geometric", max_span=6, mask_rate=0.4, corruption_unit="span"
    )
    examples = make_examples(toys.random_windows(4, 40, short=True), toys.vocabulary(), settings)
    boundary = examples.targets["sbo"]
    expected = {
        (row, int(slot))
        for row in range(4)
        for prediction in np.flatnonzero(boundary.weights[row])
        for slot in boundary.slots[row, prediction]
    }
    found = measure_slots(examples)
    assert found.predicting_slots["sbo"] == len(expected) < 2 * found.predictions["sbo"]


def test_layers_take_turns_over_all_of_them() -> None:
    objective = settings_of(name="causal", targets=["lm"], visibility="left_to_right", local_width=2)
    examples = make_examples(toys.random_windows(2, 24), toys.vocabulary(), objective)
    model = toys.model(targets=("lm",), layer_visibility=["full", "local"])  # of three layers
    full, local = (measure_slots(examples, [name]) for name in ("full", "local"))
    keys = (2 * full.keys + local.keys) / 3
    assert flops_of(model, examples) == pytest.approx(model.flops(replace(full, keys=keys)))
