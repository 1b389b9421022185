"""Compares beam search here with Transformers' `generate`, side by side in one run on one machine.

    python benchmarks/decode.py [--precision bf16|fp32] [--device cpu|cuda] [--size base|small] [--json FILE]
        [--batch N] [--beams N] [--source N] [--target N] [--rounds N] [--only NAME ...] [--toy]

Weights are random and the target's length is forced, so every contender does the same number of steps. Each is a separate
process; they generate a whole batch in turn (A B C A B C ...), so that drift of the machine affects all equally, and return
freed memory to the system before the next one's turn, so that the largest alone must fit; medians are compared. Each also
generates a single token in every turn: the time per step is the additional time of the full target divided by its further
tokens, which excludes encoding the sources. Samples per second include everything. The contenders:

  pseudo mask          here, as UniLMv2 predicts: token and pseudo mask in every step, relative position bias
  next token           here, a decoder-only model of GPT-2's layers
  eager, SDPA          GPT2LMHeadModel.generate, the same shape, with eager attention and with its default
  re-projecting        the same pseudo-masked search, but every layer projects the whole history to keys and values in every
                       step, with a copy of the source per beam, as in the released UniLM decoder
  BART                 BartForConditionalGeneration.generate, as many layers in encoder and decoder together

`base` is 12 layers of 768 (source 608, target 100, 5 beams, batch 8, vocabulary 30,522), `small` 6 of 384 (source 128, target
32, 5 beams, batch 8).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frame

SIZES: dict[str, dict[str, Any]] = {
    "small": dict(
        shape=dict(hidden_size=384, num_layers=6, num_heads=6, intermediate_size=1536),
        source=128,
        target=32,
        beams=5,
        batch=8,
    ),
    "base": dict(
        shape=dict(hidden_size=768, num_layers=12, num_heads=12, intermediate_size=3072),
        source=608,
        target=100,
        beams=5,
        batch=8,
    ),
    "toy": dict(shape=dict(hidden_size=64, num_layers=2, num_heads=2, intermediate_size=128)),
}  # fmt: skip
VOCABULARY = 30522
SPECIAL = 7
PAD, SOS, EOS, PSEUDO = 0, 3, 4, 6
CONTENDERS: dict[str, dict[str, Any]] = {
    "pseudo mask": dict(kind="ours", predicts="pseudo"),
    "next token": dict(kind="ours", predicts="next"),
    "eager": dict(kind="gpt2", attention="eager"),
    "SDPA": dict(kind="gpt2", attention="sdpa"),
    "re-projecting": dict(kind="reprojecting"),
    "BART": dict(kind="bart", attention="sdpa"),
}
CLAIMS = {
    "pseudo mask against eager": ("eager", "pseudo mask"),
    "pseudo mask against SDPA": ("SDPA", "pseudo mask"),
    "pseudo mask against re-projecting": ("re-projecting", "pseudo mask"),
    "pseudo mask against BART": ("BART", "pseudo mask"),
    "next token against eager": ("eager", "next token"),
    "next token against SDPA": ("SDPA", "next token"),
}
"""Reported ratios: the first one's time over the second one's."""

Run = Callable[[int], None]
"""Generates a batch of targets with this number of tokens."""


def sources(spec: dict[str, Any]) -> Any:
    """Token ids, the same for all contenders. *Shape:* (batch, source)"""
    import numpy as np

    return np.random.default_rng(0).integers(SPECIAL, VOCABULARY, (spec["batch"], spec["source"]))


def built(spec: dict[str, Any], predicts: str) -> tuple[Any, Any]:
    """A model of this package with random weights, and its way of generating."""
    import torch

    from unicloze.model.model import UnifiedModel
    from unicloze.objectives.generation_format import GenerationFormat
    from unicloze.settings import ModelSettings

    pseudo = predicts == "pseudo"
    as_gpt2: dict[str, Any] = dict(
        norm="pre", num_segments=0, relative_bias=False, head="linear", head_bias=False, activation="gelu_tanh"
    )
    settings = ModelSettings(**spec["shape"], **({} if pseudo else as_gpt2))
    positions = spec["source"] + spec["target"] + 8
    model = UnifiedModel(settings, vocab_size=VOCABULARY, max_positions=positions, targets=("par",))
    model.initialize(0)
    layout = GenerationFormat(
        predicts="pseudo" if pseudo else "next", start=(SOS,), stop=EOS, pseudo=PSEUDO if pseudo else None,
        target_segment=int(pseudo), decoder_only=not pseudo, ends_source=pseudo,
    )  # fmt: skip
    return model.to(torch.device(spec["device"])).eval(), layout


def ours(spec: dict[str, Any]) -> Run:
    """This package."""
    from unicloze.decoding.generate import generate_parts
    from unicloze.settings import DecodingSettings

    model, layout = built(spec, spec["predicts"])
    extra = 2 if spec["predicts"] == "pseudo" else 1  # [SOS] and [EOS] count as source
    given = list(sources(spec)[:, extra:])

    def run(target: int) -> None:
        settings = DecodingSettings(
            beams=spec["beams"],
            max_length=target,
            min_length=target,
            batch_size=spec["batch"],
            precision=spec["precision"],
        )
        results = [found for part in generate_parts(model, given, settings, layout) for found in part.results]
        assert all(len(result[0].tokens) == target for result in results)

    return run


def prepared(model: Any, spec: dict[str, Any]) -> Any:
    """A Transformers model on the device, in the precision."""
    import torch

    dtype = torch.bfloat16 if spec["precision"] == "bf16" else torch.float32
    return model.to(device=spec["device"], dtype=dtype).eval()


def forced(spec: dict[str, Any], target: int) -> dict[str, Any]:
    """Options of Transformers' `generate` for a beam search of forced length."""
    return dict(
        num_beams=spec["beams"], max_new_tokens=target, min_new_tokens=target, do_sample=False, early_stopping=False,
        length_penalty=0.0,
    )  # fmt: skip


def gpt2(spec: dict[str, Any]) -> Run:
    """Transformers' decoder-only model of the same shape."""
    import torch
    import transformers

    shape = spec["shape"]
    config: Any = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=spec["source"] + spec["target"] + 8, n_embd=shape["hidden_size"],
        n_layer=shape["num_layers"], n_head=shape["num_heads"], n_inner=shape["intermediate_size"], bos_token_id=SOS,
        eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip
    config._attn_implementation = spec["attention"]
    torch.manual_seed(0)
    model = prepared(transformers.GPT2LMHeadModel(config), spec)
    given = torch.from_numpy(sources(spec)).to(spec["device"])
    mask = torch.ones_like(given)

    def run(target: int) -> None:
        result = model.generate(given, attention_mask=mask, **forced(spec, target))
        assert result.shape[1] == spec["source"] + target

    return run


def bart(spec: dict[str, Any]) -> Run:
    """Transformers' encoder-decoder with half of the layers in each."""
    import torch
    import transformers

    shape = spec["shape"]
    half = shape["num_layers"] // 2
    config: Any = transformers.BartConfig(
        vocab_size=VOCABULARY, max_position_embeddings=spec["source"] + spec["target"] + 8, d_model=shape["hidden_size"],
        encoder_layers=half, decoder_layers=half, encoder_attention_heads=shape["num_heads"],
        decoder_attention_heads=shape["num_heads"], encoder_ffn_dim=shape["intermediate_size"],
        decoder_ffn_dim=shape["intermediate_size"], bos_token_id=SOS, eos_token_id=EOS, pad_token_id=PAD,
        decoder_start_token_id=SOS, forced_eos_token_id=None,
    )  # fmt: skip
    config._attn_implementation = spec["attention"]
    torch.manual_seed(0)
    model = prepared(transformers.BartForConditionalGeneration(config), spec)
    given = torch.from_numpy(sources(spec)).to(spec["device"])
    mask = torch.ones_like(given)

    def run(target: int) -> None:
        result = model.generate(given, attention_mask=mask, **forced(spec, target))
        assert result.shape[1] == target + 1

    return run


def reprojecting(spec: dict[str, Any]) -> Run:
    """The released UniLM decoder's method: it caches hidden states, not keys and values, separately for each beam."""
    import torch
    from torch.nn import functional

    model, layout = built(spec, "pseudo")
    backbone, beams, device = model.backbone, spec["beams"], torch.device(spec["device"])
    given = torch.stack([torch.from_numpy(layout.row(source)) for source in sources(spec)[:, 2:]]).long().to(device)

    def layers(
        hidden: torch.Tensor, history: list[torch.Tensor] | None, bias: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The last layer's states, and every layer's inputs, preceded by those of the history."""
        inputs = []
        for number, layer in enumerate(backbone.layers):
            whole = hidden if history is None else torch.cat([history[number], hidden], dim=1)
            inputs.append(whole)
            size = hidden.shape[-1]
            weights, biases = (
                part.split([size, 2 * size]) for part in (layer.attention.qkv.weight, layer.attention.qkv.bias)
            )
            query = functional.linear(hidden, weights[0], biases[0])
            key, value = functional.linear(whole, weights[1], biases[1]).chunk(2, dim=-1)
            query, key, value = (
                x.unflatten(-1, (layer.attention.num_heads, -1)).transpose(1, 2) for x in (query, key, value)
            )
            scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2) + bias
            attended = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
            hidden = layer.attention_norm(hidden + layer.attention.output(attended))
            hidden = layer.feed_forward_norm(hidden + layer.feed_forward(hidden))
        return hidden, inputs

    @torch.inference_mode()
    def run(target: int) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=spec["precision"] == "bf16"):
            search(target)

    def search(target: int) -> None:
        rows, width = given.shape
        place = torch.arange(width + target + 1, device=device)[None]
        ids = torch.cat([given, given.new_full((rows, 1), PSEUDO)], dim=1)
        segments = torch.zeros_like(ids)
        segments[:, -1] = 1
        history: list[torch.Tensor] | None = None
        totals = torch.zeros(rows, 1, device=device)
        for step in range(target):
            before = 0 if history is None else history[0].shape[1]
            slots = ids.shape[1]
            here = place[:, before : before + slots]
            bias = backbone.relative(here, place[:, : before + slots])
            reads = torch.ones(slots, before + slots, dtype=torch.bool, device=device)
            reads[:-1, -1] = False  # only the pseudo mask itself reads the pseudo mask
            bias = bias + torch.where(reads, 0.0, -torch.inf)
            hidden, inputs = layers(backbone.embeddings(ids, here, segments), history, bias)
            logs = model.token_logits(hidden[:, -1]).float().log_softmax(-1)
            logs[:, EOS] = -torch.inf
            logs[:, :SPECIAL] = -torch.inf
            best = (logs.view(rows, -1, VOCABULARY) + totals[:, :, None]).flatten(1).topk(beams)
            totals, parents, chosen = best.values, best.indices // VOCABULARY, best.indices % VOCABULARY
            every = totals.new_tensor(range(rows), dtype=torch.long)[:, None] * (1 if step == 0 else beams)
            order = (every + parents).flatten()
            history = [layer[:, :-1].index_select(0, order) for layer in inputs]
            ids = torch.stack([chosen.flatten(), torch.full_like(chosen.flatten(), PSEUDO)], dim=1)
            segments = torch.ones_like(ids)

    return run


def give_back() -> None:
    """Return the allocator's cached memory to the system, for the next contender."""
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def work(spec: dict[str, Any]) -> None:
    """Process of one contender: for each input line, generate a batch and print its seconds."""
    if spec["device"] == "cpu":
        from unicloze.cores import tune_allocator

        tune_allocator()
    import torch

    run = {"ours": ours, "gpt2": gpt2, "bart": bart, "reprojecting": reprojecting}[spec["kind"]](spec)

    def timed(_number: int, _line: str) -> dict[str, float]:
        seconds = []
        for target in (1, spec["target"]):
            start = time.perf_counter()
            run(target)
            if spec["device"] == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        peak = frame.peak_mb(spec["device"])
        give_back()
        return {"first_seconds": seconds[0], "seconds": seconds[1], "peak_mb": peak}

    frame.answer_lines(timed, {})


def measure(names: list[str], common: dict[str, Any], *, warmup: int, rounds: int) -> dict[str, dict[str, float]]:
    """Medians of some contenders, run interleaved."""
    workers = {name: frame.Worker(Path(__file__), CONTENDERS[name] | common) for name in names}
    results = {}
    for name, counted in frame.answers_in_turn(workers, warmup=warmup, rounds=rounds).items():
        seconds = statistics.median(answer["seconds"] for answer in counted)
        steps = statistics.median(answer["seconds"] - answer["first_seconds"] for answer in counted)
        results[name] = {
            "seconds": seconds,
            "ms_per_step": 1000 * steps / (common["target"] - 1),
            "samples_per_second": common["batch"] / seconds,
            "peak_mb": counted[-1]["peak_mb"],
        }
    return results


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = frame.options(__doc__)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", choices=list(SIZES), default="small")
    for name in ("batch", "beams", "source", "target"):
        parser.add_argument(f"--{name}", type=int, help="overrides the value of --size")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = frame.parsed(
        parser, "--size toy --precision fp32 --rounds 1 --warmup 0 --batch 1 --beams 2 --source 8 --target 4"
    )
    if options.worker is not None:
        work(options.worker)
        return
    given = {name: getattr(options, name) for name in ("batch", "beams", "source", "target") if getattr(options, name)}
    common = SIZES[options.size] | given | dict(precision=options.precision, device=options.device)
    results = measure(options.only, common, warmup=options.warmup, rounds=options.rounds)
    ratios = {
        name: {what: results[slow][what] / results[fast][what] for what in ("ms_per_step", "seconds")}
        for name, (slow, fast) in CLAIMS.items()
        if slow in results and fast in results
    }
    print(
        f"source {common['source']}, target {common['target']}, {common['beams']} beams, batch {common['batch']}, "
        f"{options.precision} on {options.device}"
    )
    print(f"{'':<16} {'ms per step':>12} {'samples/s':>10} {'peak MB':>9}")
    for name, result in results.items():
        print(
            f"{name:<16} {result['ms_per_step']:>12,.1f} {result['samples_per_second']:>10,.2f} {result['peak_mb']:>9,.0f}"
        )
    for name, ratio in ratios.items():
        print(f"  {name:<36} {ratio['ms_per_step']:.2f} per step, {ratio['seconds']:.2f} in total")
    frame.write(common | {"size": options.size, "results": results, "ratios": ratios}, options.json)


if __name__ == "__main__":
    main()
