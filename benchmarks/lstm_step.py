"""A training step of AWD-LSTM beside bare `nn.LSTM` layers with cross-entropy, and beside fastai's AWD-LSTM.

    python benchmarks/lstm_step.py [--rounds N] [--rows N] [--cells N] [--embedding N] [--vocabulary N] [--json FILE] [--toy]

A step is the forward and backward pass of a language model in float32 with a tied output, on the same tokens and with the
state of the step before. *plain* has no dropout and no penalties; *all* has the paper's dropouts, weight drop and penalties,
which the bare layers lack. A round takes one step of each in random order, and the median processor seconds are reported,
which other work on the machine affects least (with OMP_NUM_THREADS=1 they are those of one core). fastai takes part where
it is installed: `pip install -c constraints.txt . fastai` in an environment of its own.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import random
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

import frame
from unicloze.cores import tune_allocator
from unicloze.example import Batch, Leading, Memory, TargetBatch
from unicloze.model.build import build
from unicloze.model.dropout import DropoutKey
from unicloze.settings import ModelSettings
from unicloze.visibility import left_to_right_rows

LAYERS, WINDOW = 3, 70
OURS: dict[str, dict[str, Any]] = {
    "plain": dict(dropout=0.0),
    "all": dict(
        dropout=0.4, embedding_dropout=0.1, input_dropout=0.65, hidden_dropout=0.3, weight_dropout=0.5,
        activation_penalty=2.0, temporal_penalty=1.0,
    ),
}  # fmt: skip
FASTAI: dict[str, dict[str, float]] = {
    "plain": dict(hidden_p=0.0, input_p=0.0, embed_p=0.0, weight_p=0.0),
    "all": dict(hidden_p=0.3, input_p=0.65, embed_p=0.1, weight_p=0.5),
}
PENALTIES = dict(alpha=2.0, beta=1.0)
Step = Callable[[], Any]


def our_step(kind: str, tokens: torch.Tensor, asked: argparse.Namespace) -> Step:
    """A step of this package."""
    shape = ModelSettings(
        kind="recurrent", hidden_size=asked.embedding, intermediate_size=asked.cells, num_layers=LAYERS, memory=1,
        head="linear", initializer_range=0.1, **OURS[kind],
    )  # fmt: skip
    model = build(shape, vocab_size=asked.vocabulary, max_positions=WINDOW, targets=["lm"])
    model.initialize(0)
    model.train()
    slots = torch.arange(WINDOW).expand(asked.rows, -1)
    count = asked.rows * WINDOW
    memory = Memory(
        states=torch.zeros(shape.memory_shape(asked.rows)), lengths=torch.zeros(asked.rows, dtype=torch.long)
    )
    batch = Batch(
        input_ids=tokens[:, :-1],
        position_ids=slots,
        segment_ids=torch.zeros_like(slots),
        intervals=torch.from_numpy(left_to_right_rows(np.full(asked.rows, WINDOW), capacity=WINDOW)),
        leading=Leading(slots=0, keys=0, alike=True, in_order=True, shorter=None),
        targets={
            "lm": TargetBatch(
                slots=slots,
                labels=tokens[:, 1:],
                weights=torch.ones(asked.rows, WINDOW),
                normaliser=count,
                predictions=count,
            )
        },
        text_tokens=count,
        memory=memory,
        text_slots=slots,
    )
    taken = iter(range(1 << 30))

    def step() -> None:
        loss = model(batch, DropoutKey(next(taken)))["lm"]
        (loss.total / loss.weight).backward()
        model.zero_grad()

    return step


class Bare(nn.Module):
    """Layers of `nn.LSTM` between an embedding and the same table as output."""

    def __init__(self, vocabulary: int, embedding: int, cells: int) -> None:
        super().__init__()
        widths = [embedding, *[cells] * (LAYERS - 1), embedding]
        self.table = nn.Embedding(vocabulary, embedding)
        self.layers = nn.ModuleList(nn.LSTM(*pair, batch_first=True) for pair in itertools.pairwise(widths))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.states: list[Any] = [None] * LAYERS

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.table(tokens[:, :-1])
        for number, layer in enumerate(self.layers):
            hidden, state = layer(hidden, self.states[number])
            self.states[number] = tuple(part.detach() for part in state)
        logits = nn.functional.linear(hidden, self.table.weight, self.bias)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def bare_step(tokens: torch.Tensor, asked: argparse.Namespace) -> Step:
    """A step of the bare layers."""
    model = Bare(asked.vocabulary, asked.embedding, asked.cells)

    def step() -> None:
        model(tokens).backward()
        model.zero_grad()

    return step


def fastai_step(kind: str, tokens: torch.Tensor, asked: argparse.Namespace) -> Step:
    """A step of fastai's AWD-LSTM, with its penalties if they are asked for."""
    awdlstm: Any = importlib.import_module("fastai.text.models.awdlstm")
    core: Any = importlib.import_module("fastai.text.models.core")
    rnn: Any = importlib.import_module("fastai.callback.rnn")
    encoder = awdlstm.AWD_LSTM(asked.vocabulary, asked.embedding, asked.cells, LAYERS, **FASTAI[kind])
    output_p = 0.4 if kind == "all" else 0.0
    decoder = core.LinearDecoder(asked.vocabulary, asked.embedding, output_p, tie_encoder=encoder.encoder, bias=True)
    model = core.SequentialRNN(encoder, decoder).train()
    model.reset()

    def step() -> None:
        logits, raw, dropped = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        if kind == "all":
            regularizer = rnn.RNNRegularizer(**PENALTIES)
            learn = SimpleNamespace(training=True, loss_grad=loss, rnn=SimpleNamespace(raw_out=raw, out=dropped))
            regularizer.learn = learn
            regularizer.after_loss()
            loss = learn.loss_grad
        loss.backward()
        model.zero_grad()

    return step


def main() -> None:
    """Measure and print."""
    parser = frame.options(__doc__)
    for name, default in (("rounds", 10), ("rows", 16), ("cells", 1150), ("embedding", 400), ("vocabulary", 10000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = frame.parsed(parser, "--rounds 1 --rows 2 --cells 8 --embedding 8 --vocabulary 50")
    tune_allocator()
    torch.manual_seed(0)
    tokens = torch.randint(10, asked.vocabulary, (asked.rows, WINDOW + 1))
    steps = {
        "nn.LSTM": bare_step(tokens, asked),
        **{f"unicloze, {kind}": our_step(kind, tokens, asked) for kind in OURS},
    }
    if importlib.util.find_spec("fastai"):
        steps |= {f"fastai, {kind}": fastai_step(kind, tokens, asked) for kind in FASTAI}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(asked.rounds + 1):
        for name in random.sample(list(steps), len(steps)):
            started = time.process_time()
            steps[name]()
            if number:
                taken[name].append(time.process_time() - started)
    medians = {name: statistics.median(each) for name, each in taken.items()}
    for kind, (name, median) in itertools.product(OURS, medians.items()):
        if name == "nn.LSTM" or name == f"fastai, {kind}":
            own = medians[f"unicloze, {kind}"]
            print(f"unicloze, {kind:5} {own:.3f} s; {name:13} {median:.3f} s: {median / own:.2f}")
    shape = {name: getattr(asked, name) for name in ("rounds", "rows", "cells", "embedding", "vocabulary")}
    frame.write({**shape, "threads": torch.get_num_threads(), "processor seconds": medians}, asked.json)


if __name__ == "__main__":
    main()
