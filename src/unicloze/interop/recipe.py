"""Makes the recipe of an imported model: its objective, data settings and provenance as far as known."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from unicloze.interop.checked_json import read_json
from unicloze.interop.families import TARGETS, Family, Head
from unicloze.interop.weights import inside
from unicloze.objectives.causal import CausalSettings
from unicloze.objectives.denoising import DenoisingSettings, SpanCorruptionSettings
from unicloze.objectives.groups import PseudoToken
from unicloze.objectives.masked import MaskedSettings
from unicloze.objectives.permuted import PermutedSettings
from unicloze.objectives.unilmv2 import UniLMv2Settings
from unicloze.objectives.untrained import UntrainedSettings
from unicloze.recipes import load_recipe, validate
from unicloze.settings import (
    DataSettings,
    ModelSettings,
    ObjectiveSettings,
    Provenance,
    Recipe,
    TaskSettings,
    TokenizerSettings,
    UseSettings,
)

UNKNOWN_CORPUS = "unknown"
"""Corpus of an imported model; not a path, so anything that needs the corpus reports it as missing."""
_PAIRS: dict[str, Literal["next_sentence", "sentence_order"]] = {"nsp": "next_sentence", "sop": "sentence_order"}
_POOLING: dict[str, Literal["first", "last", "mean"]] = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
"""Sentence-transformers' names of pooling modes."""

_OBJECTIVES: Mapping[str, ObjectiveSettings] = {
    "t5": SpanCorruptionSettings(
        targets=["lm"], source_start=False, target_start=["pad"], restart_positions=True, segment_ids=[0, 0]
    ),
    "bart": DenoisingSettings(
        targets=["lm"], mask_rate=0.3, noise=["infill", "permute_sentences"], target_start=["eos", "sos"],
        restart_positions=True, segment_ids=[0, 0],
    ),
    "gpt2": CausalSettings(targets=["lm"], visibility="left_to_right"),
    "xlnet": PermutedSettings(
        targets=["par"], masking="ngram", mask_rate=1 / 6, max_span=5, factorization="token", pseudo_token="own"
    ),
}  # fmt: skip
"""Training objective of the families that are not encoders, with the rows their released models read."""


def imported_recipe(
    place: Path,
    *,
    family: Family,
    model: ModelSettings,
    heads: Sequence[Head],
    task: TaskSettings | None,
    tokenizer: TokenizerSettings,
    has_pseudo: bool,
    window: int | None,
) -> Recipe:
    """Make the recipe of an imported model.

    Args:
        place: The checkpoint's folder.
        family: Its family.
        model: Model shape, with the number of positions.
        heads: Its heads.
        task: The task it is fine-tuned for, if any.
        tokenizer: Settings that load its tokenizer.
        has_pseudo: Whether its vocabulary has a [P] token.
        window: Largest number of tokens read at once; default: as its folder says.

    Raises:
        UsageError: No valid recipe fits the model, such as one that reads three tokens.
    """
    objective = _objective(model, heads, relative=family.name == "unilm" and model.relative_bias)
    if family.name in _OBJECTIVES and ("token" in heads or not family.queries):
        objective = _OBJECTIVES[family.name]
    if not has_pseudo and isinstance(objective, PseudoToken):
        objective = dataclasses.replace(objective, pseudo_token="mask")
    pairs = any(_PAIRS.get(TARGETS[head]) for head in heads) or bool(objective.mixture)
    positions = model.max_positions or 1
    recipe = Recipe(
        name=re.sub(r"[^\w.-]+", "-", place.resolve().name).lstrip(".-") or family.name,
        provenance=Provenance(
            paper=family.paper, place=f"imported from {place.resolve()}", note=_note(family, model, heads, task)
        ),
        data=DataSettings(
            corpus=[UNKNOWN_CORPUS],
            window=_fitting(objective, window or _window(place, positions), model),
            segments=2 if pairs and model.num_segments > 1 else 1,
            documents="joined" if model.memory else "separate",
            order="streams" if model.memory else "shuffled",
        ),
        tokenizer=tokenizer,
        objective=objective,
        model=model,
        task=TaskSettings() if task is None else dataclasses.replace(task, max_length=min(task.max_length, positions)),
        use=_use(place) if family.name != "gpt2" else UseSettings(visibility="left_to_right", pooling="last"),
    )
    validate(recipe)
    return recipe


def _objective(model: ModelSettings, heads: Sequence[Head], *, relative: bool) -> ObjectiveSettings:
    """The training objective, as far as heads and segments reveal it."""
    targets = [TARGETS[head] for head in heads]
    kind: Any = next((_PAIRS[target] for target in targets if target in _PAIRS), "contiguous")
    if "ae" not in targets:
        return UntrainedSettings(targets=targets, pairs=kind)
    if model.num_segments == 6:  # UniLM v1: one or two ids for each of its four objectives
        v1 = load_recipe("unilm-v1-base").objective
        if "nsp" in targets:
            return v1
        plain = [{**part, "pairs": "contiguous", "targets": ["ae"]} for part in v1.mixture]
        return dataclasses.replace(v1, mixture=plain)
    if relative:
        return UniLMv2Settings(targets=["ae", "par", *targets[1:]], pseudo_token="mask", pairs=kind)
    return MaskedSettings(targets=targets, masking="token", max_span=1, pairs=kind)


def _fitting(objective: ObjectiveSettings, window: int, model: ModelSettings) -> int:
    """The longest window up to a given one whose rows fit the positions of an encoder-decoder."""
    most = model.max_positions or window
    while model.decoder_layers and window > 1 and objective.bounds(window).positions > most:
        window -= 1
    return window


def _note(family: Family, model: ModelSettings, heads: Sequence[Head], task: TaskSettings | None) -> str:
    if task is not None:
        return f"A model of the family {family.name}, fine-tuned for {task.kind}."
    if family.always:
        return f"{'An encoder-decoder' if model.decoder_layers else 'A language model'} of the family {family.name}."
    predicts = {"token": "masked tokens", "next": "whether a segment follows", "order": "whether segments are in order",
                "replaced": "which tokens were replaced"}  # fmt: skip
    if not heads:
        return f"An encoder of the family {family.name} without heads, for text embeddings."
    return f"An encoder of the family {family.name} with heads that predict {' and '.join(predicts[head] for head in heads)}."


def _window(place: Path, positions: int) -> int:
    """Text length of a sentence-transformers model, if the folder is one; else all positions."""
    file = inside(place, "sentence_bert_config.json")
    longest = None if file is None else read_json(file).get("max_seq_length")
    if isinstance(longest, bool) or not isinstance(longest, int) or not 3 <= longest <= positions:
        return positions
    return longest


def _use(place: Path) -> UseSettings:
    """Pooling of a sentence-transformers model, if the folder is one; warns if `embed` does not support it."""
    file = inside(place, "1_Pooling/config.json")
    if file is None:
        return UseSettings()
    modes = [key for key, value in read_json(file).items() if key.startswith("pooling_mode_") and value is True]
    if len(modes) != 1 or modes[0] not in _POOLING:
        warnings.warn(f"{file} pools by {' and '.join(modes) or 'nothing'}, which embed does not support: first slot used",
                      stacklevel=2)  # fmt: skip
        return UseSettings()
    return UseSettings(pooling=_POOLING[modes[0]])
