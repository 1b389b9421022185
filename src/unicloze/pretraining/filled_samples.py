"""Sample predictions on held-out text, for people to look at."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unicloze.example import collate, select_rows
from unicloze.mixtures import parts
from unicloze.model.build import Model
from unicloze.objectives import make_examples
from unicloze.settings import ObjectiveSettings
from unicloze.text.sampler import WindowSampler, evenly_spaced
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.windows import Windows
from unicloze.training.loop import Compute

SAMPLES = 6
CANDIDATES = 3
"""Number of most likely tokens kept per prediction."""
AT_THEIR_PLACE = "ae", "par", "diffusion"
"""Targets predicted at slots with the position of the predicted token."""


def heldout_samples(
    model: Model, sampler: WindowSampler, tokenizer: Tokenizer, objective: ObjectiveSettings, compute: Compute
) -> list[dict[str, Any]]:
    """The most likely tokens at each masked position of a few held-out windows, with the truth, by target."""
    part = next((part for part in parts(objective) if part.evaluate), parts(objective)[0])
    windows = varied(sampler.sequential(4 * SAMPLES, pairs=part.settings.windows.pairs, lanes=4 * SAMPLES), SAMPLES)
    examples = make_examples(windows, sampler.vocabulary, part.settings.without_noise())
    batch = collate(examples, device=compute.device)
    model.eval()
    with torch.no_grad(), compute.autocast():
        logits = {name: values for name, values in model.logits(batch).items() if name in AT_THEIR_PLACE}
    best = {name: values.float().softmax(-1).topk(CANDIDATES, dim=-1) for name, values in logits.items()}
    samples = []
    for row in range(len(examples)):
        masked: dict[int, dict[str, Any]] = {}
        for name, (probabilities, tokens) in best.items():
            target = examples.targets[name]
            for j in range(int((target.weights[row] > 0).sum())):
                slot = target.slots[row, j]
                position = int(examples.position_ids[row, slot])
                place = masked.setdefault(position, {"position": position, "step": int(examples.steps[row, slot])})
                truth = int(target.labels[row, j])
                place["truth"] = tokenizer.tokens([truth])[0]
                place["word"] = any(map(str.isalpha, tokenizer.decode([truth])))
                likely = tokenizer.tokens(tokens[row, j].tolist())
                place[name] = likely[0]
                shares = [round(value, 4) for value in probabilities[row, j].tolist()]
                place.setdefault("top", {})[name] = list(zip(likely, shares, strict=True))
        shown = windows.token_ids[row, : windows.lengths[row]].copy()
        shown[list(masked)] = sampler.vocabulary.mask
        samples.append(
            {
                "document": str(sampler.name(int(windows.source[row]), int(windows.index[row]))),
                "tokens": tokenizer.tokens(shown),
                "masked": [masked[position] for position in sorted(masked)],
            }
        )
    return samples


def varied(windows: Windows, count: int) -> Windows:
    """Select up to `count` evenly spread windows, without those where one token makes up more than half of the text.

    If all windows are like that (underlines, tables of numbers), they are used anyway.
    """
    texts = (ids[real] for ids, real in zip(windows.token_ids, windows.maskable, strict=True))
    kept = np.flatnonzero([not _is_one_token(text) for text in texts])
    kept = kept if len(kept) else np.arange(len(windows))
    return select_rows(windows, kept[evenly_spaced(min(count, len(kept)), len(kept))])


def _is_one_token(text: npt.NDArray[np.int32]) -> bool:
    return len(text) > 0 and int(np.unique(text, return_counts=True)[1].max()) > len(text) / 2
