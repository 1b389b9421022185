"""Starting from other weights: tables of another length, another vocabulary, and whatever else does not fit as it is.

Rows of the token table go with their tokens, rows of the position table are repeated, rows of the segment table go with the
segments. Everything that was not simply copied is said.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unicloze.errors import UniclozeError
from unicloze.mixtures import longest_row, parts, phases
from unicloze.model.build import Model
from unicloze.settings import Recipe
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.models import LoadedModel

TOKEN_ROWS = "backbone.embeddings.tokens.weight", "token_head.bias", "boundary_head.bias"
"""Tensors with a row for each token."""
POSITION_ROWS = "backbone.embeddings.positions.weight"
SEGMENT_ROWS = "backbone.embeddings.segments.weight"

INHERITED = (
    "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions", "num_segments", "embedding_size",
    "positions", "share_layers", "activation", "head_bias", "norm", "embedding_norm", "relative_bias",
    "relative_buckets", "relative_max_distance", "layer_norm_eps", "head",
)  # fmt: skip
"""Settings of a model that its weights depend on: a run that starts from a model has these from it."""

Ids = npt.NDArray[np.int64]


def shared_tokens(old: Tokenizer, new: Tokenizer) -> Ids:
    """For each token of a new vocabulary its id in an old one, -1 where that has none.

    Tokens with a role ([SOS] or [CLS], [MASK] or <mask>) are shared by role, a pseudo mask that the old one lacks is its
    mask. All others are shared if they are spelled alike and both continue a word or both do not, however the vocabularies
    mark that.

    Returns:
        *Shape:* (size of the new vocabulary,)
    """
    exactly: dict[tuple[str, bool], int] = {}
    as_text: dict[tuple[str, bool], int] = {}
    for i, (token, continues, text) in enumerate(_spelled(old)):
        exactly.setdefault((token, continues), i)
        if text:
            as_text.setdefault((text, continues), i)
    found = np.full(len(new), -1, dtype=np.int64)
    for i, (token, continues, text) in enumerate(_spelled(new)):
        found[i] = exactly.get((token, continues), as_text.get((text, continues), -1) if text else -1)
    for role in ("pad", "unk", "sos", "eos", "mask"):
        found[getattr(new.vocabulary, role)] = getattr(old.vocabulary, role)
    if new.vocabulary.pseudo is not None:
        found[new.vocabulary.pseudo] = old.vocabulary.mask if old.vocabulary.pseudo is None else old.vocabulary.pseudo
    return found


def _spelled(tokenizer: Tokenizer) -> list[tuple[str, bool, str]]:
    """Each token as the vocabulary has it, whether it continues a word, and as text without its marks."""
    vocabulary = tokenizer.vocabulary
    special = set(vocabulary.special.tolist())
    result = []
    for i, token in enumerate(tokenizer.tokens(range(vocabulary.size))):
        continues = bool(vocabulary.continues[i])
        if i in special or tokenizer.token_id(token) != i:
            text = ""
        elif token.startswith("##"):
            text = token[2:]
        else:
            text = tokenizer.decode([i]).strip()
        result.append((token, continues, "" if "\ufffd" in text else text))
    return result


def rows_of_tokens(table: Tensor, shared: Ids, ordinary: npt.NDArray[np.int32]) -> Tensor:
    """A tensor with a row for each token of a new vocabulary: shared rows copied, the others the mean.

    Args:
        table: Of the old vocabulary. *Shape:* (old tokens, ...)
        shared: As `shared_tokens` gives it. *Shape:* (new tokens,)
        ordinary: Ids of the old vocabulary whose rows the mean is over.

    Returns:
        *Shape:* (new tokens, ...)
    """
    rows = table.index_select(0, torch.from_numpy(np.maximum(shared, 0)))
    rows[torch.from_numpy(shared < 0)] = table.index_select(0, torch.from_numpy(ordinary.astype(np.int64))).mean(dim=0)
    return rows


def said_of_tokens(shared: Ids, place: object) -> str:
    """How much of a vocabulary is shared, as a sentence."""
    known = int((shared >= 0).sum())
    others = len(shared) - known
    return f"{known:,} of {len(shared):,} tokens have their rows from {place}, the other {others:,} start at the mean"


def repeated(table: Tensor, rows: int) -> Tensor:
    """The rows of a position table over and over, until there are enough; a longer table is cut.

    Args:
        table: *Shape:* (positions, width)
        rows: How many are wanted.
    """
    return table.index_select(0, torch.arange(rows) % len(table))


def rows_of_segments(recipe: Recipe, known: int) -> Tensor:
    """For each segment id of a recipe the row it starts from: the id's own where that is known.

    Any other id starts from row 0 or 1 as it names the first or the second segment of some objective: so the six of UniLM
    v1 are made of BERT's two. Ids that no objective names start from row 0.

    Args:
        recipe: Says what the ids stand for.
        known: Rows of the table to start from.

    Returns:
        *Shape:* (segments,)
    """
    count = recipe.model.num_segments
    rows = [i if i < known else 0 for i in range(count)]
    for phase in phases(recipe):
        for part in parts(phase.recipe.objective):
            for segment, i in enumerate(part.settings.reading.segment_ids or [0, 1]):
                if known <= i < count:
                    rows[i] = min(segment, known - 1)
    return torch.tensor(rows, dtype=torch.long)


def initialize_from(model: Model, other: LoadedModel, tokenizer: Tokenizer, recipe: Recipe) -> None:
    """Copy the weights of another model wherever name and shape fit, tables row by row; says what is not as it was there.

    Of a chain of networks, the one that is used gives them, and every one takes what fits.

    Args:
        model: Its weights are drawn.
        other: The model to start from.
        tokenizer: The new model's.
        recipe: What the new model is trained by.

    Raises:
        UniclozeError: Nothing fits.
    """
    theirs, said = _adapted(model, other, tokenizer, recipe)
    for network in model.networks:
        own = network.state_dict()
        fitting = {name: theirs[name] for name in own if name in theirs and theirs[name].shape == own[name].shape}
        network.load_state_dict(fitting, strict=False)
        left = sorted(own.keys() - fitting.keys())
        if left and network is not model.for_use():
            said.append(
                f"{other.path} has {len(fitting)} of the generator's own {len(own)} tensors in the right shape: the others "
                "are newly initialised"
            )
    if not fitting:
        raise UniclozeError(f"no weight of {other.path} fits the recipe's model: give it the same sizes")
    if SEGMENT_ROWS in left and SEGMENT_ROWS not in theirs:
        left.remove(SEGMENT_ROWS)
        network.get_parameter(SEGMENT_ROWS).data.zero_()
        said.append(f"{other.path} knows no segments: their embeddings start at 0")
    if left:
        names = ", ".join(left[:4]) + (f" and {len(left) - 4} more" if len(left) > 4 else "")
        said.append(f"{other.path} has no {names} of the right shape: they are newly initialised")
    for sentence in said:
        warnings.warn(sentence, stacklevel=2)


def _adapted(
    model: Model, other: LoadedModel, tokenizer: Tokenizer, recipe: Recipe
) -> tuple[dict[str, Tensor], list[str]]:
    """The other model's state with as many rows in each table as the new model's, and what there is to say of it."""
    state, said = other.model.state_dict(), []
    if other.tokenizer.fingerprint != tokenizer.fingerprint:
        shared = shared_tokens(other.tokenizer, tokenizer)
        said.append(said_of_tokens(shared, other.path))
        for name in TOKEN_ROWS:
            if name in state:
                state[name] = rows_of_tokens(state[name], shared, other.tokenizer.vocabulary.ordinary)
    if POSITION_ROWS in state and len(state[POSITION_ROWS]) != model.max_positions:
        known = len(state[POSITION_ROWS])
        state[POSITION_ROWS] = repeated(state[POSITION_ROWS], model.max_positions)
        if known < model.max_positions:
            said.append(said_of_positions(known, model.max_positions, other.path))
    if SEGMENT_ROWS in state and len(state[SEGMENT_ROWS]) != recipe.model.num_segments:
        rows = rows_of_segments(recipe, len(state[SEGMENT_ROWS]))
        if len(rows) > len(state[SEGMENT_ROWS]):
            ids = ", ".join(map(str, rows.tolist()))
            said.append(f"the segments 0 to {len(rows) - 1} start as the segments {ids} of {other.path}")
        state[SEGMENT_ROWS] = state[SEGMENT_ROWS].index_select(0, rows)
    return state, said


def said_of_positions(known: int, wanted: int, place: object) -> str:
    """That positions are repeated, as a sentence."""
    return f"positions {known} to {wanted - 1} start as copies of the {known} that {place} has"


def inherited(recipe: Recipe, other: LoadedModel, given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """What a run has from the model it starts from, unless it is said otherwise.

    Its shape, so that the weights fit; more positions or segments where the recipe's rows need them.

    Args:
        recipe: The run's recipe.
        other: The model.
        given: Settings by dotted name that are asked for: these stay as they are.

    Returns:
        Settings by dotted name, and a sentence that says which are not the recipe's; empty if there are none.
    """
    theirs = other.recipe.model
    known: dict[str, Any] = {name: getattr(theirs, name) for name in INHERITED}
    known["max_positions"] = max(other.model.max_positions, longest_row(recipe))
    known["num_segments"] = max(theirs.num_segments, recipe.model.num_segments)
    if theirs.positions != "transformer_xl":
        known["memory"] = 0  # a segment is remembered by its distance
    if not hasattr(other.model, "token_head"):
        del known["head"], known["head_bias"]
    changes = {f"model.{name}": value for name, value in known.items() if f"model.{name}" not in given}
    before = dataclasses.replace(recipe.model, max_positions=recipe.model.max_positions or longest_row(recipe))
    differing = [
        f"{name} {value} (recipe: {getattr(before, name)})"
        for name, value in ((key.removeprefix("model."), value) for key, value in changes.items())
        if value != getattr(before, name)
    ]
    said = f"the model's shape is that of {other.path}: {', '.join(differing)}" if differing else ""
    return changes, said


Open = Callable[[str], LoadedModel]
"""Opens a model by the place that names it."""
