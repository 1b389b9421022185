"""Encoder-decoders beside Transformers' T5 and BART: a training step, and generation with beam 5.

    python benchmarks/two_stacks.py [--rounds N] [--rows N] [--json FILE] [--toy]

Both have the same weights (T5 1.0 and BART of 4 and 4 layers of 256, vocabulary 8,192), get the same rows and run eagerly
with the same allocator and number of threads. A round takes one step, or one call of `generate`, of each in random order;
the median processor seconds of the rounds are reported, which other work on the machine affects least (with
OMP_NUM_THREADS=1 they are those of one core). A step is the forward and backward pass in float32 without dropout; sources
have 60 to 120 tokens and targets 20 to 60, padded to the longest. Generation writes exactly 32 tokens for each of 8 sources.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import frame
from unicloze.cores import tune_allocator
from unicloze.decoding.generate import generate_parts
from unicloze.example import Examples, collate
from unicloze.objectives.seq2seq import PrefixSettings, Ragged, generates, lay_out
from unicloze.settings import DecodingSettings
from unicloze.text.windows import windows_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import toys
import two_stack_toys

VOCABULARY, WIDTH, LAYERS, HEADS, INNER = 8192, 256, 4, 4, 1024
BEAMS, WRITTEN, SOURCES = 5, 32, 8
T5 = dict(vocab_size=VOCABULARY, d_model=WIDTH, d_kv=WIDTH // HEADS, d_ff=INNER, num_layers=LAYERS,
          num_decoder_layers=LAYERS, num_heads=HEADS, relative_attention_num_buckets=32,
          relative_attention_max_distance=128, n_positions=256)  # fmt: skip
BART = dict(vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS,
            encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=INNER,
            decoder_ffn_dim=INNER, max_position_embeddings=256)  # fmt: skip


def rows(kind: str, count: int) -> tuple[Examples, PrefixSettings]:
    """Random sources and targets of the lengths above."""
    draw, vocabulary = np.random.default_rng(0), toys.vocabulary(VOCABULARY)
    sources = [draw.integers(10, VOCABULARY, size).astype(np.int32) for size in draw.integers(60, 121, count)]
    targets = [draw.integers(10, VOCABULARY, size).astype(np.int32) for size in draw.integers(20, 61, count)]
    windows = windows_of(
        [list(pair) for pair in zip(sources, targets, strict=True)], vocabulary, keys=np.zeros(count, np.uint64)
    )
    settings = PrefixSettings(
        mask_rate=1.0, source_start=kind != "t5", target_start=["pad"] if kind == "t5" else ["eos"], restart_positions=True,
        segment_ids=[0, 0],
    )  # fmt: skip
    source = Ragged(np.concatenate(sources), np.array([len(each) for each in sources]))
    target = Ragged(np.concatenate(targets), np.array([len(each) for each in targets])).followed_by(vocabulary.eos)
    return lay_out(windows, source, target, vocabulary, settings, rates=np.ones(count)), settings


def seconds(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median processor seconds of each call."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name in random.sample(list(calls), len(calls)):
            started = time.process_time()
            calls[name]()
            if number:
                taken[name].append(time.process_time() - started)
    return {name: statistics.median(each) for name, each in taken.items()}


def measured(kind: str, rounds: int, count: int) -> dict[str, dict[str, float]]:
    """Seconds of both libraries for a step and for generation."""
    from test_two_stacks_parity import inputs_of

    two_stack_toys.VOCABULARY = VOCABULARY
    theirs = two_stack_toys.peer(kind, **(T5 if kind == "t5" else BART)).train()
    theirs.config._attn_implementation = "sdpa" if kind == "bart" else "eager"  # the fastest each class has
    ours, (examples, settings) = two_stack_toys.twin(theirs).train(), rows(kind, count)
    batch, inputs = collate(examples), inputs_of(examples)

    def our_step() -> None:
        loss = ours(batch)["lm"]
        (loss.total / loss.weight).backward()
        ours.zero_grad()

    def their_step() -> None:
        theirs(**inputs).loss.backward()
        theirs.zero_grad()

    vocabulary = toys.vocabulary(VOCABULARY)
    layout = dataclasses.replace(generates(settings, vocabulary), never=(vocabulary.pad,))
    sources = [examples.input_ids[row, : examples.mutual[row] - 1] for row in range(SOURCES)]
    sources = [ids[1:] if settings.source_start else ids for ids in sources]
    decoding = DecodingSettings(beams=BEAMS, max_length=WRITTEN, min_length=WRITTEN, batch_size=SOURCES)
    asked = {name: inputs[name][:SOURCES] for name in ("input_ids", "attention_mask")}

    def our_texts() -> None:
        list(generate_parts(ours.eval(), sources, decoding, layout))

    def their_texts() -> None:
        theirs.eval().generate(
            **asked, num_beams=BEAMS, min_new_tokens=WRITTEN, max_new_tokens=WRITTEN, do_sample=False
        )

    steps = seconds({"unicloze": our_step, "transformers": their_step}, rounds)
    texts = seconds({"unicloze": our_texts, "transformers": their_texts}, max(min(3, rounds), rounds // 4))
    return {"step": steps, "generate": texts}


def main() -> None:
    """Measure and print."""
    parser = frame.options(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rows", type=int, default=16)
    asked = frame.parsed(parser, "--rounds 1 --rows 8")
    tune_allocator()
    found = {kind: measured(kind, asked.rounds, asked.rows) for kind in ("t5", "bart")}
    for kind, both in found.items():
        for what, each in both.items():
            ratio = each["transformers"] / each["unicloze"]
            print(
                f"{kind:5} {what:9} unicloze {each['unicloze']:.3f} s, "
                f"transformers {each['transformers']:.3f} s: {ratio:.2f}x"
            )
    frame.write({"threads": torch.get_num_threads(), "seconds": found}, asked.json)


if __name__ == "__main__":
    main()
