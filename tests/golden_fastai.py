"""Makes `golden_fastai.json`: losses and gradients of fastai's AWD-LSTM, in an environment of its own.

    python -m venv E && E/bin/pip install -c constraints.txt torch fastai && E/bin/python tests/golden_fastai.py

Weights and tokens are formulas, so that the file holds results only: two consecutive batches whose second starts with the
state of the first, without dropout (whose draws differ), with AR 2 and TAR 1.
"""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

FILE = Path(__file__).with_suffix(".json")
VOCABULARY, EMBEDDING, HIDDEN, LAYERS, ROWS, STEPS = 50, 8, 12, 3, 3, 7
ALPHA, BETA = 2.0, 1.0


def weight_of(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The weight of a name."""
    count = math.prod(shape)
    values = 0.4 * np.sin((np.arange(count) + 1) * (1.7 + 0.13 * len(name)) + sum(map(ord, name)))
    return torch.from_numpy(values.astype(np.float32)).view(shape)


def tokens_of(batch: int) -> torch.Tensor:
    """Inputs and their last answers. *Shape:* (rows, steps + 1)"""
    place = np.arange(ROWS * (STEPS + 1)).reshape(ROWS, -1)
    return torch.from_numpy((place * 17 + batch * 29 + place**2 % 13) % VOCABULARY)


def summary(tensor: torch.Tensor) -> list[float]:
    """What is kept of a gradient: its sum, its norm, and a few values."""
    flat = tensor.detach().double().flatten()
    kept = flat[:: max(1, len(flat) // 10)][:10]
    return [float(value) for value in (flat.sum(), flat.norm(), *kept)]


def main() -> None:
    awdlstm: Any = importlib.import_module("fastai.text.models.awdlstm")
    core: Any = importlib.import_module("fastai.text.models.core")
    rnn: Any = importlib.import_module("fastai.callback.rnn")
    none = dict(hidden_p=0.0, input_p=0.0, embed_p=0.0, weight_p=0.0)
    encoder = awdlstm.AWD_LSTM(VOCABULARY, EMBEDDING, HIDDEN, LAYERS, **none)
    decoder = core.LinearDecoder(VOCABULARY, EMBEDDING, 0.0, tie_encoder=encoder.encoder, bias=True)
    model = core.SequentialRNN(encoder, decoder).train()
    names = {"0.encoder.weight": "tokens", "1.decoder.bias": "bias"}
    for layer in range(LAYERS):
        names[f"0.rnns.{layer}.weight_hh_l0_raw"] = f"{layer}.weight_hh_l0"
        for name in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0"):
            names[f"0.rnns.{layer}.module.{name}"] = f"{layer}.{name}"
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for theirs, ours in names.items():
            weights[theirs].copy_(weight_of(ours, tuple(weights[theirs].shape)))
    model.reset()
    found = []
    for batch in range(2):
        model.zero_grad()
        tokens = tokens_of(batch)
        logits, raw, dropped = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        regularizer = rnn.RNNRegularizer(alpha=ALPHA, beta=BETA)
        outputs = SimpleNamespace(raw_out=raw, out=dropped)
        learn = SimpleNamespace(training=True, loss_grad=loss.clone(), rnn=outputs)
        regularizer.learn = learn
        regularizer.after_loss()
        learn.loss_grad.backward()
        gradients = {ours: summary(weights[theirs].grad) for theirs, ours in names.items()}
        found.append(dict(loss=loss.item(), with_penalty=learn.loss_grad.item(), gradients=gradients))
    version = importlib.import_module("fastai").__version__
    FILE.write_text(json.dumps(dict(fastai=version, torch=torch.__version__, batches=found), indent=1) + "\n")


if __name__ == "__main__":
    main()
