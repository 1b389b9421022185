"""Scores of a trained model on held-out text, the same for every objective that defines them.

All models see the same windows and the same masked positions, drawn by Algorithm 1: `ae` predicts them all at once from
the rest, `par` predicts them block by block, `causal` predicts every token from those to its left. A score that an
objective does not define is None. A model with a memory also reads the text before each window, as far as its memory goes
back and no further than the window's document.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from unicloze.arrays import Int32s
from unicloze.decoding.abilities import objective_of, part_with
from unicloze.decoding.inputs import ReadWindow
from unicloze.decoding.likelihood import rows_of, with_memories
from unicloze.example import Examples, collate, select_rows
from unicloze.objectives import Ability, defined
from unicloze.objectives.causal import CausalSettings, chain
from unicloze.objectives.unilmv2 import UniLMv2Settings, cloze, draw_steps, stepwise
from unicloze.pretraining.count_baselines import perplexities_of
from unicloze.text.counts import Counts
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows
from unicloze.training.ledger import Figure
from unicloze.training.loading import LoadedModel
from unicloze.training.loop import Compute, evaluate

MEASURES: Mapping[str, Ability] = {"ae": "cloze", "par": "stepwise", "causal": "causal"}
"""The ability of an objective that each measure needs."""


def masked_steps(windows: Windows, vocabulary: Vocabulary) -> npt.NDArray[np.int32]:
    """Step of each masked position of held-out windows, -1 elsewhere. *Shape:* (rows, window)"""
    plain = UniLMv2Settings()
    return draw_steps(windows, plain, np.full(len(windows), plain.mask_rate), vocabulary)


def held_out(
    loaded: LoadedModel,
    windows: Windows,
    compute: Compute,
    rows: int,
    before: Callable[[int], Sequence[Sequence[Int32s]]] | None = None,
) -> dict[str, Figure | None]:
    """The loss by measure; None if it is undefined."""
    vocabulary = loaded.tokenizer.vocabulary
    steps = masked_steps(windows, vocabulary)
    result: dict[str, Figure | None] = {}
    for measure, ability in MEASURES.items():
        settings = part_with(objective_of(loaded.recipe), ability)
        lay_out = None if settings is None else getattr(defined(settings), ability)
        if lay_out is None:
            result[measure] = None
            continue
        asked = (windows,) if measure == "causal" else (windows, steps)
        examples = lay_out(*asked, vocabulary, settings)
        if before is None or not loaded.model.settings.memory:
            (figure,) = evaluate(loaded.model, examples, compute, rows).values()
        else:
            count = math.ceil(loaded.model.settings.memory / (windows.token_ids.shape[1] - 2))
            figure = _with_memory(loaded, examples, windows, before(count), compute, rows)
        result[measure] = figure  # these rows predict ordinary tokens that they show nowhere
    return result


def counted(counts: Counts, windows: Windows) -> dict[str, dict[str, float]]:
    """Perplexities of counts on the same predictions, by measure and by kind of count."""
    vocabulary, settings = counts.vocabulary, UniLMv2Settings()
    steps = masked_steps(windows, vocabulary)
    rows = {
        "ae": cloze(windows, steps, vocabulary, settings),
        "par": stepwise(windows, steps, vocabulary, settings),
        "causal": chain(windows, vocabulary, CausalSettings(visibility="left_to_right")),
    }
    found = {
        measure: perplexities_of(counts, examples, next(iter(examples.targets)), windows)
        for measure, examples in rows.items()
    }
    return {measure: perplexities for measure, perplexities in found.items() if perplexities}


def _with_memory(
    loaded: LoadedModel,
    examples: Examples,
    windows: Windows,
    before: Sequence[Sequence[Int32s]],
    compute: Compute,
    rows: int,
) -> Figure:
    """The summed losses of the only target, each row with the memory of its past."""
    loaded, figure = (
        dataclasses.replace(loaded, precision=compute.precision),
        Figure(target=next(iter(examples.targets))),
    )
    texts = [
        [*past, tokens[1 : length - 1]]
        for past, tokens, length in zip(before, windows.token_ids, windows.lengths, strict=True)
    ]
    pieces = [ReadWindow(text=row, first=0, tokens=piece) for row, each in enumerate(texts) for piece in each]
    own = set((np.cumsum([len(each) for each in texts]) - 1).tolist())
    model = loaded.model.eval()
    for numbers, memory, _ in with_memories(loaded, pieces, rows):
        places = np.array([place for place, number in enumerate(numbers) if number in own], dtype=np.int64)
        if not len(places):
            continue
        chosen = np.array([pieces[numbers[place]].text for place in places])
        batch = collate(select_rows(examples, chosen), device=compute.device)
        if memory is not None:
            batch = dataclasses.replace(batch, memory=rows_of(memory, places))
        with torch.no_grad(), compute.autocast():
            (loss,) = model(batch).values()
        figure += Figure(target=figure.target, nats=float(loss.total), weight=float(loss.weight))
    return figure


def bits_per_byte(nats: float | None, tokens_per_byte: float | None) -> float | None:
    """Convert nats per token to bits per byte of text; None if either is unknown."""
    return None if nats is None or tokens_per_byte is None else nats / math.log(2) * tokens_per_byte
