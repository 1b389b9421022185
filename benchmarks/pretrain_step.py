"""Compares a training step with Transformers' BertForMaskedLM, side by side in one run on one machine.

    python benchmarks/pretrain_step.py [--precision bf16|fp32] [--device cpu|cuda] [--size small|base] [--json FILE] [--toy]

Every contender is a separate process and does one step in turn (A B C A B C ...), so that drift of the machine affects all
equally; medians are compared. A step is examples (here), forward, backward, fused AdamW. The peer gets its masked input and
labels ready-made. There are two baselines:

  default  SDPA attention and the default allocator, what a user gets
  best     eager attention on a CPU (SDPA on a GPU), the same tuned allocator as here

`small` is 6 layers of 384 (window 128 batch 32, window 512 batch 8), `base` is BERT's (window 512 batch 32); both have a
vocabulary of 30,522. The share of the peak is model FLOPs (slots and predictions, without what is skipped) over the speed
of a large matrix product measured in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frame

SIZES = {
    "small": (dict(hidden_size=384, num_layers=6, num_heads=6, intermediate_size=1536), ((128, 32), (512, 8))),
    "base": (dict(hidden_size=768, num_layers=12, num_heads=12, intermediate_size=3072), ((512, 32),)),
    "toy": (dict(hidden_size=64, num_layers=2, num_heads=2, intermediate_size=128), ((32, 4),)),
}
CONTENDERS: tuple[dict[str, dict[str, Any]], ...] = (
    {
        "product": dict(kind="product"),
        "AE": dict(kind="ours", targets=["ae"]),
        "AE+PAR": dict(kind="ours", targets=["ae", "par"]),
        "AE+PAR, relative bias": dict(kind="ours", targets=["ae", "par"], relative_bias=True),
        "Transformers best": dict(kind="peer"),
    },
    {
        "product": dict(kind="product"),
        "AE, dropout": dict(kind="ours", targets=["ae"], dropout=0.1),
        "AE+PAR, dropout": dict(kind="ours", targets=["ae", "par"], dropout=0.1),
        "Transformers best, dropout": dict(kind="peer", dropout=0.1),
        "Transformers default": dict(kind="peer", dropout=0.1, tuned=False),
    },
)
"""Two groups, each with all its processes alive at once; together they would not fit into 24 GB."""
PRODUCT = {"cpu": 2048, "cuda": 8192}


def ours(spec: dict[str, Any]) -> tuple[Callable[[int], None], dict[str, float]]:
    """A step of this package, and its FLOPs and tokens."""
    import torch

    from objectives import VOCABULARY, full_windows
    from unicloze.model.model import UnifiedModel
    from unicloze.objectives.unilmv2 import UniLMv2Settings, unilmv2
    from unicloze.pretraining.budget import flops_of
    from unicloze.settings import ModelSettings, TrainingSettings
    from unicloze.training.batches import MicroBatch
    from unicloze.training.loop import Compute, TrainState, losses_and_norm
    from unicloze.training.optimizers import build_optimizers

    dropout = spec.get("dropout", 0.0)
    settings = ModelSettings(
        **spec["shape"], relative_bias=spec.get("relative_bias", False), dropout=dropout, attention_dropout=dropout
    )
    objective = UniLMv2Settings(targets=spec["targets"])
    device = torch.device(spec["device"])
    model = UnifiedModel(settings, vocab_size=VOCABULARY.size, max_positions=spec["window"])
    model.initialize(0)
    training = TrainingSettings(learning_rate=1e-4)
    state = TrainState(model=model.to(device), optimizers=build_optimizers(model, training))
    compute = Compute(device=device, precision=spec["precision"], fixed_shape=device.type == "cuda")

    def step(number: int) -> None:
        windows = full_windows(spec["batch"], spec["window"], seed=number)
        micro_batch = MicroBatch(unilmv2(windows, VOCABULARY, objective), windows)
        losses_and_norm(state, [micro_batch], training, compute, str)
        for optimizer in state.optimizers:
            optimizer.step()

    examples = unilmv2(full_windows(256, spec["window"]), VOCABULARY, objective)
    return step, {"flops": flops_of(model, examples) * spec["batch"] / 256}


def peer(spec: dict[str, Any]) -> tuple[Callable[[int], None], dict[str, float]]:
    """A step of BertForMaskedLM with its own forward, labels and loss."""
    import numpy as np
    import torch
    import transformers

    shape, dropout, device = spec["shape"], spec.get("dropout", 0.0), spec["device"]
    eager = spec.get("tuned", True) and device == "cpu"
    config: Any = transformers.BertConfig(
        vocab_size=30522, hidden_size=shape["hidden_size"], num_hidden_layers=shape["num_layers"],
        num_attention_heads=shape["num_heads"], intermediate_size=shape["intermediate_size"],
        max_position_embeddings=spec["window"], hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    config._attn_implementation = "eager" if eager else "sdpa"
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    draw = np.random.default_rng(0)
    tokens = torch.from_numpy(draw.integers(7, 30522, (spec["batch"], spec["window"])))
    labels = torch.where(torch.from_numpy(draw.random(tokens.shape) < 0.155), tokens, -100)
    inputs = torch.where(labels >= 0, 5, tokens).to(device)
    mask, labels = torch.ones_like(inputs), labels.to(device)

    def step(_number: int) -> None:
        with torch.autocast(device, torch.bfloat16, enabled=spec["precision"] == "bf16"):
            loss = model(input_ids=inputs, attention_mask=mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, {}


def product(spec: dict[str, Any]) -> tuple[Callable[[int], None], dict[str, float]]:
    """A large matrix product, whose speed counts as the peak."""
    import torch

    size = PRODUCT[spec["device"]]
    dtype = torch.bfloat16 if spec["precision"] == "bf16" else torch.float32
    left, right = (torch.randn(size, size, device=spec["device"], dtype=dtype) for _ in range(2))

    def step(_number: int) -> None:
        for _ in range(4):
            left @ right

    return step, {"flops": 8.0 * size**3}


def work(spec: dict[str, Any]) -> None:
    """Process of one contender: for each input line, do a step and print its seconds."""
    if spec.get("tuned", True) and spec["device"] == "cpu":
        from unicloze.cores import tune_allocator

        tune_allocator()
    import torch

    step, facts = {"ours": ours, "peer": peer, "product": product}[spec["kind"]](spec)

    def timed(number: int, _line: str) -> dict[str, float]:
        start = time.perf_counter()
        step(number)
        if spec["device"] == "cuda":
            torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - start, "peak_mb": frame.peak_mb(spec["device"])}

    frame.answer_lines(timed, facts)


def measure(
    contenders: dict[str, dict[str, Any]], shape: dict[str, int], window: int, batch: int, options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Medians of some contenders, run interleaved."""
    common = dict(shape=shape, window=window, batch=batch, precision=options.precision, device=options.device)
    workers = {name: frame.Worker(Path(__file__), contender | common) for name, contender in contenders.items()}
    results = {}
    for name, answers in frame.answers_in_turn(workers, warmup=options.warmup, rounds=options.rounds).items():
        seconds = statistics.median(answer["seconds"] for answer in answers)
        results[name] = workers[name].facts | {"seconds": seconds, "peak_mb": answers[-1]["peak_mb"]}
        if name != "product":
            results[name]["text_tokens_per_second"] = window * batch / seconds
    peak = results["product"]["flops"] / results["product"]["seconds"]
    for result in results.values():
        if "flops" in result:
            result["share_of_peak"] = result["flops"] / result["seconds"] / peak
    return results


def ratios(results: dict[str, dict[str, float]]) -> dict[str, float]:
    """The reported ratios."""
    seconds = {name: result["seconds"] for name, result in results.items()}
    return {
        "AE against best, no dropout": seconds["Transformers best"] / seconds["AE"],
        "AE against best, dropout 0.1": seconds["Transformers best, dropout"] / seconds["AE, dropout"],
        "AE against default, dropout 0.1": seconds["Transformers default"] / seconds["AE, dropout"],
        "AE+PAR text tokens against best's AE": seconds["Transformers best"] / seconds["AE+PAR"],
        "AE+PAR step over AE step": seconds["AE+PAR"] / seconds["AE"],
        "relative bias over none": seconds["AE+PAR, relative bias"] / seconds["AE+PAR"],
    }


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = frame.options(__doc__)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = frame.parsed(parser, "--size toy --precision fp32 --rounds 1 --warmup 0")
    if options.worker is not None:
        work(options.worker)
        return
    shape, shapes = SIZES[options.size]
    report: dict[str, Any] = {
        "precision": options.precision,
        "device": options.device,
        "size": options.size,
        "windows": {},
    }
    for window, batch in shapes:
        results: dict[str, dict[str, float]] = {}
        for contenders in CONTENDERS:
            results |= measure(contenders, shape, window, batch, options)
        report["windows"][window] = {"batch": batch, "results": results, "ratios": ratios(results)}
        print(f"\nwindow {window}, batch {batch}, {options.precision} on {options.device}")
        print(f"{'':<28} {'text tokens/s':>14} {'peak MB':>9} {'of the peak':>12}")
        for name, result in results.items():
            speed = result.get("text_tokens_per_second")
            share = f"{result['share_of_peak']:.0%}" if "share_of_peak" in result else ""
            print(f"{name:<28} {(speed and f'{speed:,.0f}') or '':>14} {result['peak_mb']:>9,.0f} {share:>12}")
        for name, ratio in report["windows"][window]["ratios"].items():
            print(f"  {name:<40} {ratio:.2f}")
    frame.write(report, options.json)


if __name__ == "__main__":
    main()
