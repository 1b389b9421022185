"""Compares training steps whose rows a thread makes ahead with steps that make their own: wall and processor time.

    python benchmarks/prefetch.py [--recipe NAME] [--corpus FILES ...] [--window N] [--batch N] [--only cpu|device]
        [--steps N] [--rounds N] [--json FILE] [--toy]

Both take turns on one model, for some steps each, with one torch thread. `cpu` computes the step here. `device` waits
instead, for as long as the rows of a step take to make, as for an accelerator that is as fast as this processor makes rows.
Ratios are the medians over the rounds of the time with the thread over that without; rows that are made ahead at the end of
a turn are counted too, so `--steps` should be many.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import frame


class InTurn:
    """Stands in for the thread: makes the rows of a step when they are asked for."""

    def __init__(self, items: Iterator[Any], ahead: int) -> None:
        self._items = items

    def __enter__(self) -> Iterator[Any]:
        return self._items

    def __exit__(self, *_: object) -> None:
        """Nothing is left to end."""


def main() -> None:
    parser = frame.options(__doc__)
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--corpus", nargs="*")
    parser.add_argument("--window", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--only", choices=["cpu", "device"])
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = frame.parsed(parser, "--steps 2 --rounds 1 --window 32 --batch 16")
    import torch

    from unicloze.cores import tune_allocator, usable_cores
    from unicloze.pretraining.data import build_sampler
    from unicloze.recipes import load_recipe
    from unicloze.text.prepare import prepare_data
    from unicloze.training import batches, loop
    from unicloze.training.batches import training_steps
    from unicloze.training.loading import ready_model
    from unicloze.training.optimizers import build_optimizers

    tune_allocator()
    torch.set_num_threads(1)
    given = {"data.corpus": arguments.corpus, "data.window": arguments.window, "training.batch_size": arguments.batch}
    given = {key: value for key, value in given.items() if value}
    recipe = load_recipe(arguments.recipe, {**given, "training.phases": [], "training.evaluate_every": 0})
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare_data(recipe.data, recipe.tokenizer, Path(folder), progress=False)
        sampler = build_sampler(recipe, prepared)
        device = torch.device("cpu")
        model = ready_model(recipe, prepared.tokenizer.vocabulary.size, device)
        state = loop.TrainState(model=model, optimizers=build_optimizers(model, recipe.training))
        hooks = loop.Hooks(
            log=lambda *_: None, evaluate=lambda _: False, save=lambda _: None, describe=lambda _: "the corpus"
        )
        compute = loop.Compute(device=device, precision="fp32")
        end, threaded, computed = recipe.training.steps, batches.Prefetch, loop.losses_and_norm

        def segment(kind: Any) -> tuple[float, float]:
            vars(loop)["Prefetch"] = kind
            until = dataclasses.replace(recipe.training, steps=state.step + arguments.steps, save_every=0)
            begun = time.perf_counter(), time.process_time()
            loop.fit(state, training_steps(recipe, lambda _: sampler, state.step), until, compute, hooks)
            state.step %= end // 2
            return time.perf_counter() - begun[0], time.process_time() - begun[1]

        def compare() -> dict[str, float]:
            for kind in (threaded, InTurn):
                segment(kind)
            found = []
            for number in range(arguments.rounds):
                kinds = (threaded, InTurn) if number % 2 else (InTurn, threaded)
                times = {kind: segment(kind) for kind in kinds}
                found.append((times[threaded], times[InTurn]))
            ratios = [[one / other for one, other in zip(*pair, strict=True)] for pair in found]
            wall, used = (statistics.median(column) for column in zip(*ratios, strict=True))
            ms = [1000 * statistics.median(pair[which][0] for pair in found) / arguments.steps for which in (0, 1)]
            return {"wall": wall, "processor": used, "ms_with": ms[0], "ms_without": ms[1]}

        begun = time.process_time()
        for _, _rows in zip(range(arguments.steps), training_steps(recipe, lambda _: sampler, 0), strict=False):
            pass
        made = (time.process_time() - begun) / arguments.steps

        def wait(*_: Any) -> tuple[dict[str, float], float]:
            time.sleep(made)
            return {}, 0.0

        def with_loop(gradients: Callable[..., Any], update: Callable[..., Any]) -> dict[str, float]:
            loop.losses_and_norm, loop.update = gradients, update
            return compare()

        kinds = {"cpu": (computed, loop.update), "device": (wait, lambda *_: None)}
        chosen = {kind: with_loop(*how) for kind, how in kinds.items() if arguments.only in (None, kind)}
        results = {"cores": usable_cores(), "rows_ms": 1000 * made, **chosen}
    print(json.dumps(results, indent=1))
    frame.write(results, arguments.json)


if __name__ == "__main__":
    main()
