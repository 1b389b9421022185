"""Tests whether the cost of a step depends only on its slots and predictions, for every objective.

    python benchmarks/step_costs.py [--precision bf16|fp32] [--rounds N] [--json FILE] [--toy]

One model (4 layers of 256, vocabulary 8,192, 16 windows of 128) takes steps of one objective after the other, in a different
order each round. Each step is run between two steps of AE and divided by their mean, so that a slowdown of the machine
affects both. Seconds = a x slots + b x predictions is fitted on AE and AE+PAR at several mask rates each: at 15 % alone,
predictions hardly vary, and a percent of noise would become ten for GPT, which predicts everywhere. For every other
objective the median is compared with the fitted value. Slots are those of the batch including padding, since these are
computed. Objectives with another architecture (ELECTRA's generator, Transformer-XL) are excluded: they do not only cost
slots. A step is a forward and backward pass without the optimiser.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import frame
from objectives import VOCABULARY, full_windows
from unicloze.cores import tune_allocator
from unicloze.example import Batch, collate
from unicloze.mixtures import parts
from unicloze.model.dropout import DropoutKey
from unicloze.model.model import UnifiedModel
from unicloze.objectives import make_examples
from unicloze.recipes import load_recipe
from unicloze.settings import ModelSettings, ObjectiveSettings
from unicloze.text.vocabulary import Boundaries

RECIPES = (
    "unilmv2-ablation-ae", "unilmv2-ablation-ae-par", "unilmv2-ablation-par", "unilmv2-ablation-ar", "unilm-v1-base",
    "bert-base", "roberta-base", "spanbert-base", "albert-base", "xlnet-base", "mpnet-base", "gpt",
    "prefix-span-corruption-base", "prefix-denoising-base", "prefix-masked-span-base", "prefix-lm-base", "mdlm-base",
    "bd3lm-base",
)  # fmt: skip
FITTED = "unilmv2-ablation-ae", "unilmv2-ablation-ae-par"
FURTHER_RATES = 0.4, 0.8
SHAPE = ModelSettings(
    hidden_size=256, num_layers=4, num_heads=4, intermediate_size=1024, num_segments=6, relative_bias=False, dropout=0.0,
    attention_dropout=0.0,
)  # fmt: skip
WINDOW, VOCABULARY_SIZE = 128, 8192
TARGETS = "ae", "par", "lm", "diffusion", "nsp", "sop", "sbo"


def contenders() -> dict[str, ObjectiveSettings]:
    """The objective of each part of each recipe, and those of the fit at additional mask rates, by name."""
    found = {}
    for name in FITTED:
        for rate in FURTHER_RATES:
            found[f"{name} at {rate:.0%}"] = load_recipe(name, {"objective.mask_rate": rate}).objective
    for name in RECIPES:
        several = parts(load_recipe(name).objective)
        for part in several:
            found[name if len(several) == 1 else f"{name}, {part.label}"] = part.settings
    return found


def batch_of(settings: ObjectiveSettings, rows: int) -> tuple[Batch, dict[str, int]]:
    """A batch and its numbers of slots and predictions."""
    vocabulary = dataclasses.replace(
        VOCABULARY,
        size=VOCABULARY_SIZE,
        ordinary=VOCABULARY.ordinary[VOCABULARY.ordinary < VOCABULARY_SIZE],
        boundaries=Boundaries.marked(np.arange(VOCABULARY_SIZE) % 4 == 0),
        ends_sentence=VOCABULARY.ends_sentence[:VOCABULARY_SIZE],
    )
    windows = full_windows(rows, WINDOW)
    text = windows.token_ids >= len(VOCABULARY.special)
    low = len(VOCABULARY.special)
    inside = (windows.token_ids - low) % (VOCABULARY_SIZE - low) + low
    windows = dataclasses.replace(windows, token_ids=np.where(text, inside, windows.token_ids).astype(np.int32))
    batch = collate(make_examples(windows, vocabulary, settings))
    predictions = sum(
        int((target.weights > 0).sum()) for name, target in batch.targets.items() if name not in ("nsp", "sop")
    )
    return batch, {"slots": batch.input_ids.numel(), "predictions": predictions}


def main() -> None:
    """Measure, fit and print."""
    parser = frame.options(__doc__)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="fp32")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--width", type=int, default=256)
    options = frame.parsed(parser, "--rounds 1 --rows 2 --width 16")
    tune_allocator()
    shape = dataclasses.replace(SHAPE, hidden_size=options.width, intermediate_size=4 * options.width)
    model = UnifiedModel(shape, vocab_size=VOCABULARY_SIZE, max_positions=4 * WINDOW, targets=TARGETS)
    model.initialize(0)
    batches = {name: batch_of(settings, options.rows) for name, settings in contenders().items()}
    relative: dict[str, list[float]] = {name: [] for name in batches}
    references: list[float] = []

    def seconds_of_step(batch: Batch) -> float:
        model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16"):
            losses = model(batch, DropoutKey(0))
        torch.stack([loss.total / loss.weight for loss in losses.values()]).sum().backward()
        return time.perf_counter() - start

    for batch, _ in batches.values():
        seconds_of_step(batch)
    reference = batches[FITTED[0]][0]
    order = random.Random(0)
    for _ in tqdm(range(options.rounds), desc="rounds"):
        references.append(seconds_of_step(reference))
        for name in order.sample(list(batches), len(batches)):
            taken = seconds_of_step(batches[name][0])
            references.append(seconds_of_step(reference))
            relative[name].append(taken / statistics.mean(references[-2:]))
    unit = statistics.median(references)
    medians = {name: unit * statistics.median(values) for name, values in relative.items()}
    counts = {name: count for name, (_, count) in batches.items()}
    fitted = [name for name in counts if name.startswith(FITTED)]
    shares = [[count / medians[name] for count in counts[name].values()] for name in fitted]
    (a, b), *_ = np.linalg.lstsq(np.array(shares), np.ones(len(fitted)), rcond=None)
    print(f"{options.precision}: a = {a * 1e6:.2f} us per slot, b = {b * 1e6:.2f} us per prediction")
    print(f"{'objective':<36} {'slots':>7} {'predictions':>11} {'ms':>8} {'fitted':>9} {'ratio':>6}")
    results: list[dict[str, Any]] = []
    for name, count in counts.items():
        foretold = a * count["slots"] + b * count["predictions"]
        results.append({"objective": name, **count, "seconds": medians[name], "ratio": medians[name] / foretold})
        print(
            f"{name:<36} {count['slots']:>7,} {count['predictions']:>11,} {medians[name] * 1e3:>8.1f} {foretold * 1e3:>9.1f} "
            f"{medians[name] / foretold:>6.2f}"
        )
    frame.write({"precision": options.precision, "a": a, "b": b, "results": results}, options.json)


if __name__ == "__main__":
    main()
