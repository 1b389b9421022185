"""Names of the values that settings and options share."""

from __future__ import annotations

from typing import Literal

PYTHON_DOCS = "python-docs"
"""Name of the built-in corpus: the documentation that ships with Python."""

DEVICE = r"auto|cpu|mps|(cuda|xpu)(:(0|[1-9][0-9]*))?"
"""Pattern of device names; `auto` is a CUDA device if there is one, else the CPU."""

Precision = Literal["auto", "bf16", "fp32"]
"""Precision of forward passes: `bf16` (autocast), `fp32`, or `auto`: bf16 where it is faster."""

Order = Literal["confidence", "left-to-right", "span"]
"""Order in which masks are filled: most confident first, left to right, or one span of adjacent masks at a time."""

Mode = Literal["pseudo", "chain", "both"]
"""How sentences are compared: by pseudo-log-likelihood, by the chain rule, or by both."""

Pooling = Literal["mean", "first", "last"]
"""Which last hidden states become the vector of a text: the mean of all, or that of the first or last token."""

TaskPooling = Literal["first", "last", "mean", "concat", "decoder"]
"""Which hidden states represent a text in a task: as in `Pooling`, or the last one read, the maximum and the mean of all,
concatenated."""

HeadName = Literal["dense", "dense_gelu", "dense_relu", "plain", "batch_norm", "biattentive"]
"""Name of a task's head, a key of `unicloze.model.task_heads.TASK_HEADS`."""

SHORTEST_ROW = 8
"""Shortest row of a task, in tokens: the special tokens and some text."""

PredictionFormat = Literal["jsonl", "json", "glue"]
"""Format of prediction files: one object per line, the input of official scripts, or that of GLUE's server."""

Projection = Literal["query", "key", "value", "output", "inner", "outer"]
"""Projection of a layer: three of the attention's input and one of its output, and the two of the feed-forward network."""

Pairing = Literal["contiguous", "next_sentence", "sentence_order"]
"""How the second segment of a window relates to the first: it follows the first, comes from another document half the time
(BERT), or is swapped with the first half the time (ALBERT)."""

ViewName = Literal["full", "forward", "backward", "future", "past"]
"""What a head of cross-view training sees of a text, see `unicloze.model.recurrent.backbone`."""

Auto = Literal["auto"]
"""A value that the run chooses when it starts, from its model and records."""


def chosen(value: float | Auto) -> float:
    """The value, once it is no longer `auto`.

    Raises:
        ValueError: The value is still `auto`.
    """
    if value == "auto":
        raise ValueError("this value is chosen when the run starts")
    return value
