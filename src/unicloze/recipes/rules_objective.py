"""What the settings of an objective ask of each other and of the text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from unicloze import capacity
from unicloze.settings import ObjectiveSettings, Recipe

OBJECTIVE_TARGETS: Mapping[str, tuple[str, ...]] = {
    "unilmv2": ("ae", "par", "nsp", "sop"),
    "masked": ("ae", "nsp", "sop", "sbo", "rtd"),
    "causal": ("lm",),
    "masked_diffusion": ("diffusion",),
    "block_diffusion": ("diffusion",),
    **dict.fromkeys(capacity.SEQUENCE_TO_SEQUENCE, ("lm",)),
    "permuted": ("par", "nsp", "sop"),
    "compensated": ("par", "nsp", "sop"),
    "none": ("nsp", "sop", "rtd"),
}
"""Keys of `unicloze.objectives.OBJECTIVES`, repeated because importing that takes numpy (a test holds them together), and
the targets each can have."""

NO_TRAINING = "none"
"""What an imported encoder has as objective: its targets are the heads it came with, and there may be none."""
CAUSAL_VISIBILITIES = "left_to_right", "right_to_left"
"""What a causal language model can be."""
ALWAYS_STEPWISE = "permuted", "compensated"
"""Their rows hold predictions of `par`, whatever else is asked for."""
READERS: Mapping[str, tuple[str, ...]] = {
    "visibility": ("masked", "causal"),
    "segment_ids": ("masked", "causal", *capacity.SEQUENCE_TO_SEQUENCE),
}
"""The objectives that read a setting; with others it must keep its default."""
PAIRS_OF_TARGETS = {"nsp": "next_sentence", "sop": "sentence_order"}
"""How segments must be paired for a target to have two answers."""
NOISE = "mask", "delete", "infill", "permute_sentences", "rotate"
"""Keys of `unicloze.objectives.noise.NOISE`, repeated for the same reason (a test holds them together)."""


def objective_problems(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Keys with a value that the recipe's objective, a known one, cannot have, and what it must be."""
    objective, model = recipe.objective, recipe.model
    known = OBJECTIVE_TARGETS[objective.name]
    if not (objective.targets or objective.name == NO_TRAINING) or not set(objective.targets) <= set(known):
        yield "objective.targets", f"name at least one of {', '.join(map(repr, known))}"
    if len(set(objective.targets)) < len(objective.targets):
        yield "objective.targets", "name each target once; objective.coefficients weighs them"
    if objective.name in ALWAYS_STEPWISE and "par" not in objective.targets:
        yield "objective.targets", f"objective {objective.name} always predicts 'par'; name it"
    yield from _unread(objective)
    yield from _pair_problems(recipe)
    if not objective.masks_in_context and "ae" in objective.targets:
        yield "objective.masks_in_context", "the target 'ae' is predicted at the masks in the context; it must be true"
    if objective.mask_rate == 0:
        yield "objective.mask_rate", "nothing would be masked; it must be above 0"
    if objective.block_probability == 1 and objective.max_span > 1:
        yield (
            "objective.block_probability",
            "it must be below 1: a text without two free neighbours needs single tokens",
        )
    if objective.final_mask_rate == 0:
        yield "objective.final_mask_rate", "nothing would be masked; it must be above 0"
    if objective.mask_share + objective.random_share > 1 + 1e-9:
        yield "objective.random_share", f"with objective.mask_share {objective.mask_share} it exceeds 1"
    if objective.name == "causal" and objective.visibility not in CAUSAL_VISIBILITIES:
        yield "objective.visibility", f"objective causal reads {' or '.join(CAUSAL_VISIBILITIES)}"
    if objective.name == "masked" and objective.visibility == "prefix" and recipe.data.segments == 1:
        yield "objective.visibility", "the first segment is the prefix; without a second, set data.segments to 2"
    if "rtd" in objective.targets and "ae" not in objective.targets and objective.name != NO_TRAINING:
        yield "objective.targets", "the target 'rtd' needs 'ae', by which the generator of the replaced tokens learns"
    if objective.segment_ids is not None and not 1 <= len(objective.segment_ids) <= 2:
        yield "objective.segment_ids", "give one id for both segments or one for each"
    if not all(0 <= number < max(1, model.num_segments) for number in objective.segment_ids or []):
        yield "objective.segment_ids", f"model.num_segments {model.num_segments} has the ids below it"
    for target, coefficient in objective.coefficients.items():
        if target not in objective.targets:
            yield "objective.coefficients", f"'{target}' is none of objective.targets {objective.targets}"
        elif not 0 <= coefficient < math.inf:
            yield "objective.coefficients", f"the factor of '{target}' must not be negative"
    if objective.name in capacity.SEQUENCE_TO_SEQUENCE:
        yield from _sequence_to_sequence_problems(recipe)


def _unread(objective: ObjectiveSettings) -> Iterator[tuple[str, str]]:
    """Values that the objective would pass over."""
    defaults = ObjectiveSettings()
    for name, readers in READERS.items():
        default = getattr(defaults, name)
        if objective.name not in readers and getattr(objective, name) != default:
            cure = f"objective {objective.name} does not read it; set it to {'null' if default is None else default}"
            yield f"objective.{name}", cure


def _pair_problems(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Segments that cannot be paired so, and targets that ask for another pairing."""
    data, objective = recipe.data, recipe.objective
    if objective.pairs != "contiguous" and data.segments == 1:
        yield "objective.pairs", "there is one segment only: set data.segments to 2"
    if objective.pairs != "contiguous" and data.documents == "joined":
        yield "objective.pairs", "it relates segments of one document: set data.documents to separate"
    for target, pairs in PAIRS_OF_TARGETS.items():
        if target in objective.targets and objective.pairs != pairs:
            yield "objective.pairs", f"the target '{target}' needs {pairs}"
    if objective.static_copies is not None and objective.static_copies < 1:
        yield "objective.static_copies", "it must be at least 1; leave it out to draw anew each time"


def _sequence_to_sequence_problems(recipe: Recipe) -> Iterator[tuple[str, str]]:
    objective = recipe.objective
    if objective.name == "denoising" and (not objective.noise or not set(objective.noise) <= set(NOISE)):
        yield "objective.noise", f"name at least one of {', '.join(map(repr, NOISE))}"
    segments = (0, 1) if objective.segment_ids is None else tuple(objective.segment_ids)
    if len(segments) != 2 or min(segments) < 0:
        yield "objective.segment_ids", "give two numbers of 0 or more, for source and target"
    elif max(segments) >= recipe.model.num_segments > 0:
        yield (
            "model.num_segments",
            f"source and target are segments {segments[0]} and {segments[1]}; give a row to each",
        )
    sentinels = capacity.row_bounds(objective, recipe.data.window).sentinels
    mode = objective.mode_token
    if mode is not None and mode < sentinels:
        yield (
            "objective.mode_token",
            f"the first {sentinels} extra tokens are sentinels; it must be {sentinels} or more",
        )
    extra = max(sentinels, 0 if mode is None else mode + 1)
    trained = recipe.tokenizer.path is None and recipe.data.prepared is None
    if trained and recipe.tokenizer.extra_tokens < extra:
        yield "tokenizer.extra_tokens", f"objective {objective.name} needs {extra} in windows of {recipe.data.window}"
