"""Runs of untrained models, for tests that load them."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoding_toys import loaded
from objective_toys import rows_of, target_of
from unicloze.example import Batch, collate
from unicloze.interop.read import write_weights
from unicloze.recipes import save_recipe
from unicloze.training.checkpoint import Checkpoint, list_checkpoints, load_checkpoint
from unicloze.training.loading import LoadedModel, load_model


def save_run(folder: Path, model: LoadedModel | None = None, **objective: Any) -> LoadedModel:
    """A run whose only checkpoint holds the given model, or one with random weights."""
    model = dataclasses.replace(model or loaded(**objective), step=1)
    write_weights(model, folder / "checkpoints" / "step-00000001")
    save_recipe(model.recipe, folder / "recipe.yaml")
    model.tokenizer.save(folder)
    return load_model(folder)


def cut_after(run: Path, last: int) -> Path:
    """A copy of a run, beside it, without the checkpoints after a step."""
    copy = shutil.copytree(run, run.with_name("cut"))
    for path in list_checkpoints(copy / "checkpoints"):
        if int(path.name.removeprefix("step-")) > last:
            shutil.rmtree(path)
    return copy


def same_ends(*runs: Path) -> Checkpoint:
    """The last checkpoint of two runs, after asserting that both hold the same bits."""
    one, other = (load_checkpoint(list_checkpoints(run / "checkpoints")[-1]) for run in runs)
    same_bits(one, other)
    return one


def same_bits(one: Checkpoint, other: Checkpoint) -> None:
    pairs = [(one.model, other.model), (one.memories, other.memories)]
    for mine, theirs in zip(one.optimizers, other.optimizers, strict=True):
        assert mine["param_groups"] == theirs["param_groups"]
        assert mine["state"].keys() == theirs["state"].keys()
        pairs += [(values, theirs["state"][index]) for index, values in mine["state"].items()]
    for own, wanted in pairs:
        assert own.keys() == wanted.keys()
        for name, tensor in own.items():
            assert torch.equal(tensor, wanted[name]), name


def slots_batch(
    tokens: list[int],
    positions: list[int],
    segments: list[int],
    intervals: list[list[int]],
    predict: list[int],
    labels: list[int],
) -> Batch:
    """One hand-written row whose slots read at most two intervals each."""
    columns = {"position_ids": positions, "segment_ids": segments, "mutual": 0}
    arrays = {name: np.array([values], np.int32) for name, values in columns.items()}
    ids, rules = np.array([tokens], np.int32), np.array([intervals], np.int32)
    return collate(rows_of(ids, rules, {"par": target_of([predict], [labels])}, **arrays))


def written_row(source: list[int], target: list[int], pseudo: int, predicted: int) -> Batch:
    """Source, target, and a pseudo mask for each of the last `predicted` tokens of the target (UniLMv2, Section 3.4)."""
    s, t = len(source), len(target)
    asked = list(range(t - predicted, t))
    return slots_batch(
        [*source, *target, *[pseudo] * predicted],
        [*range(s + t), *(s + i for i in asked)],
        [0] * s + [1] * (t + predicted),
        [[0, s, 0, 0]] * s
        + [[0, s + i + 1, 0, 0] for i in range(t)]
        + [[0, s + i, s + t + k, s + t + k + 1] for k, i in enumerate(asked)],
        [s + t + k for k in range(predicted)],
        [target[i] for i in asked],
    )


def padded(rows: list[list[int]], *, side: str, value: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of one length, and their attention mask."""
    ids = [torch.tensor(row) for row in rows]
    real = [torch.ones_like(row) for row in ids]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(ids, True, value, padding_side=side), pad(real, True, padding_side=side)
