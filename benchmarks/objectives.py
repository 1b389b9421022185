"""Measures how fast examples are made, including visibility, on one core.

    python benchmarks/objectives.py [--windows 1024] [--objective NAME] [--json FILE] [--toy]

Text tokens per second of `unilmv2` for AE and AE+PAR at windows of 128 and 512, over synthetic full windows: the median of
several calls. With `--objective`, each part of each recipe with that objective instead (`all` for every recipe), at the
recipe's own window; parts of a mixture are measured separately. Goal: 10 M text tokens/s per core. Seconds are the thread's
processor time, which other work on the core does not affect.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import frame
from unicloze import keyed
from unicloze.cores import tune_allocator
from unicloze.mixtures import parts
from unicloze.objectives import OBJECTIVES, make_examples, settings_of
from unicloze.recipes import load_recipe, recipe_names
from unicloze.settings import ObjectiveSettings
from unicloze.text.vocabulary import Boundaries, Vocabulary
from unicloze.text.windows import Windows

VOCABULARY = Vocabulary(
    size=30522, pad=0, unk=2, sos=3, eos=4, mask=5, pseudo=6,
    special=np.arange(107, dtype=np.int32), ordinary=np.arange(107, 30522, dtype=np.int32),
    extra=np.arange(7, 107, dtype=np.int32), boundaries=Boundaries.marked(np.arange(30522) % 4 == 0),
    ends_sentence=np.arange(30522) % 20 == 0,
)  # fmt: skip


def full_windows(rows: int, window: int, seed: int = 0, *, segments: int = 2) -> Windows:
    """Full windows "[SOS] S1 [EOS] S2 [EOS]" or "[SOS] S1 [EOS]" of random tokens, a third of them in phrases."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(107, VOCABULARY.size, (rows, window)).astype(np.int32)
    middle = window // 2 if segments == 2 else window - 1
    tokens[:, 0] = VOCABULARY.sos
    tokens[:, [middle, window - 1]] = VOCABULARY.eos
    maskable = np.ones((rows, window), dtype=bool)
    maskable[:, [0, middle, window - 1]] = False
    return Windows(
        token_ids=tokens,
        segment_ids=np.broadcast_to((np.arange(window) > middle).astype(np.int32), (rows, window)).copy(),
        lengths=np.full(rows, window, np.int32),
        maskable=maskable,
        keys=keyed.key(seed, 0, np.arange(rows)),
        source=np.zeros(rows, np.int32),
        index=np.arange(rows),
        negative=np.arange(rows) % 2 == 1,
        joined=maskable & np.roll(maskable, 1, axis=1) & (draw.random((rows, window)) < 1 / 3),
    )


def speed(windows: Windows, settings: ObjectiveSettings, repeats: int) -> float:
    """Text tokens per second of the thread's processor time: the median of several calls after a warm-up."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.thread_time()
        make_examples(windows, VOCABULARY, settings)
        seconds.append(time.thread_time() - start)
    return float(windows.lengths.sum() / statistics.median(seconds[1:]))


def of_unilmv2(windows: int, repeats: int) -> list[dict[str, Any]]:
    """One row of results per window and target."""
    print(f"{'window':>6}  {'targets':<8} {'M text tokens/s':>16}")
    results = []
    for window in (128, 512):
        block = full_windows(windows, window)
        for targets in (["ae"], ["ae", "par"]):
            found = speed(block, settings_of(targets=targets), repeats)
            results.append({"window": window, "targets": targets, "text_tokens_per_second": found})
            print(f"{window:>6}  {'+'.join(targets):<8} {found / 1e6:>16.1f}")
    return results


def of_recipes(objective: str, windows: int, repeats: int) -> list[dict[str, Any]]:
    """One row of results per part of each recipe; `windows` of 128 tokens per call, or as many tokens in longer ones."""
    print(f"{'recipe':<32} {'part':<16} {'objective':<20} {'window':>6} {'M text tokens/s':>16}")
    results = []
    for name in recipe_names():
        recipe = load_recipe(name)
        window = recipe.data.window
        block = full_windows(max(1, windows * 128 // window), window, segments=recipe.data.segments)
        for part in parts(recipe.objective):
            if objective not in ("all", part.settings.name):
                continue
            found = speed(block, part.settings, repeats)
            place = {"recipe": name, "part": part.label, "objective": part.settings.name, "window": window}
            results.append({**place, "text_tokens_per_second": found})
            print(f"{name:<32} {part.label:<16} {part.settings.name:<20} {window:>6} {found / 1e6:>16.1f}")
    return results


def main() -> None:
    """Measure and print."""
    parser = frame.options(__doc__)
    parser.add_argument("--windows", type=int, default=1024, help="windows per call")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--objective", choices=["all", *OBJECTIVES], help="measure the recipes with this objective")
    options = frame.parsed(parser, "--windows 16 --repeats 1")
    tune_allocator()
    if options.objective:
        results = of_recipes(options.objective, options.windows, options.repeats)
    else:
        results = of_unilmv2(options.windows, options.repeats)
    frame.write({"windows": options.windows, "results": results}, options.json)


if __name__ == "__main__":
    main()
