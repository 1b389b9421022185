"""Where the weights of a run come from: another model, vectors of words, or counts of the training text."""

from __future__ import annotations

import dataclasses
import gzip
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unicloze.arrays import Int32s, Int64s
from unicloze.errors import UniclozeError, UsageError
from unicloze.files import open_bytes
from unicloze.mixtures import longest_row, parts, phases
from unicloze.model.build import Model
from unicloze.settings import Recipe
from unicloze.text.counts import Counts
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.loading import LoadedModel

Floats = npt.NDArray[np.float32]

LONGEST = 2**20
"""Longest line, in bytes."""


def start_from_vectors(model: Model, tokenizer: Tokenizer, path: Path) -> str:
    """Copy word vectors into the token embeddings; tokens without one keep their initial weights.

    A token takes the vector of the word that is spelled like it, unless it continues a word or is special. Of an
    encoder-decoder with two tables, only the encoder's changes.
    """
    tables = [network.backbone.embeddings.tokens for network in model.networks]
    words = words_of(tokenizer)
    ids = {word.encode(): number for number, word in words.items()}
    for table in tables:
        if not isinstance(table, nn.Embedding):
            raise UsageError("training.word_vectors needs embeddings of tokens: set model.embeddings to table")
        vectors = _read(path, ids, table.embedding_dim)
        with torch.no_grad():
            table.weight[list(vectors)] = torch.from_numpy(np.stack([*vectors.values()])).to(table.weight)
    return (
        f"{len(vectors):,} of {len(words):,} tokens that begin a word ({100 * len(vectors) / len(words):.0f} %) take their "
        f"embeddings from {path}; the others are newly initialised"
    )


LENGTH = 1.13
"""Root mean square length of embeddings that start from counts, 0.1 in each of 128 dimensions: a fifth gains far less."""


def start_from_counts(model: Model, counts: Counts, vectors_of: Callable[[int], Floats] | None) -> None:
    """Start output biases at the logarithms of the tokens' frequencies, less their mean, and token embeddings at vectors.

    Args:
        model: The model.
        counts: Counts of the training text; the biases of special tokens are 0.
        vectors_of: The vectors of a width; rows of zeros, and without it all embeddings, stay as they are drawn. The others
            get `LENGTH`, or the deviation of the drawn ones if that is larger (T5).
    """
    ordinary = counts.vocabulary.ordinary
    logarithms = np.zeros(counts.vocabulary.size)
    logarithms[ordinary] = np.log(counts.unigram[ordinary])
    logarithms[ordinary] -= logarithms[ordinary].mean()
    for network in model.networks:
        weights = dict(network.named_parameters())
        for name in filter(weights.__contains__, TOKEN_ROWS):
            rows = weights[name].data
            if name.endswith(".bias"):
                rows.copy_(torch.from_numpy(logarithms))
            elif "embeddings" in name and vectors_of is not None:
                vectors = torch.from_numpy(vectors_of(rows.shape[1])).to(rows)
                known = vectors.any(dim=1)
                rows[known] = vectors[known] * max(LENGTH / rows.shape[1] ** 0.5, float(rows.std()))


def require_vectors(path: Path) -> None:
    """Raise a UniclozeError if there is no such file."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UniclozeError(f"training.word_vectors is {path}, which {what}: give a file of word vectors")


def words_of(tokenizer: Tokenizer) -> dict[int, str]:
    """The tokens that begin a word and are not special, each with its spelling; the first of several with the same."""
    found: dict[str, int] = {}
    for number, (_, continues, text) in enumerate(spelled(tokenizer)):
        if text and not continues:
            found.setdefault(text, number)
    return {number: text for text, number in found.items()}


def _read(path: Path, ids: Mapping[bytes, int], width: int) -> dict[int, Floats]:
    """The vector of each id that has one; the first of several for a word counts."""
    found: dict[int, Floats] = {}
    for number, line in enumerate(_lines(path), 1):
        word, *numbers = line.rstrip(b"\r\n ").rsplit(b" ", width)  # some words of GloVe contain spaces
        if len(numbers) != width or not word:
            raise UniclozeError(
                f"{path}, line {number}: a line must be a word and {width} numbers, as many as the embeddings are wide, "
                "separated by spaces: give vectors of that width without a line of counts, or set model.embedding_size"
            )
        token = ids.get(word)
        if token is None or token in found:
            continue
        try:
            vector = np.array([float(each) for each in numbers], dtype=np.float32)
        except ValueError:
            vector = np.full(width, np.nan, dtype=np.float32)
        if not np.isfinite(vector).all():
            raise UniclozeError(f"{path}, line {number}: a number is not finite or not a number: correct the line")
        found[token] = vector
    if not found:
        raise UniclozeError(f"{path} has no word of the vocabulary: give vectors of this language and case")
    return found


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, decompressed if its name ends in .gz."""
    require_vectors(path)
    try:
        with open_bytes(path) as stream:
            number = 0
            while line := stream.readline(LONGEST + 1):
                number += 1
                if len(line) > LONGEST:
                    raise UniclozeError(f"{path}, line {number}: it has more than {LONGEST:,} bytes: give text vectors")
                yield line
    except PermissionError as error:
        raise UniclozeError(f"{path}: no permission to read it: change its permissions") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UniclozeError(f"{path} is cut off or damaged ({error}): fetch or write it again") from error


TOKEN_ROWS = (
    "backbone.embeddings.tokens.weight", "backbone.decoder.embeddings.tokens.weight", "token_head.bias",
    "boundary_head.bias", "token_head.output",
)  # fmt: skip
"""Tensors with one row per token; only an LSTM encoder-decoder has two tables."""
POSITION_ROWS = "backbone.embeddings.positions.weight", "backbone.decoder.embeddings.positions.weight"
"""Position tables; an encoder-decoder has two."""
SEGMENT_ROWS = "backbone.embeddings.segments.weight"

INHERITED = (
    "kind", "directions", "projection", "residual", "cell_clip", "projection_clip", "hidden_size", "num_layers",
    "num_heads", "intermediate_size", "max_positions", "num_segments", "embedding_size", "positions",
    "share_layers", "activation", "head_bias", "norm", "embedding_norm", "relative_bias",
    "relative_buckets", "relative_max_distance", "layer_norm_eps", "head", "decoder_layers", "head_size", "norm_kind",
    "biases", "scale_scores", "gated", "tied_output", "scale_output", "scale_embeddings", "embeddings", "character_size",
    "character_filters", "character_highways",
)  # fmt: skip
"""Model settings the weights depend on; a run that starts from a model inherits them."""


def shared_tokens(old: Tokenizer, new: Tokenizer) -> Int64s:
    """Id in the old vocabulary of each token in the new one, -1 if it has none.

    Tokens with a role ([SOS] or [CLS], [MASK] or <mask>) are matched by role; a pseudo mask missing from the old vocabulary
    is matched with its mask. Other tokens are matched if they have the same spelling and both or neither continue a word,
    however the vocabularies mark that.
    """
    exactly: dict[tuple[str, bool], int] = {}
    as_text: dict[tuple[str, bool], int] = {}
    for i, (token, continues, text) in enumerate(spelled(old)):
        exactly.setdefault((token, continues), i)
        if text:
            as_text.setdefault((text, continues), i)
    found = np.full(len(new), -1, dtype=np.int64)
    for i, (token, continues, text) in enumerate(spelled(new)):
        found[i] = exactly.get((token, continues), as_text.get((text, continues), -1) if text else -1)
    for role in ("unk", "mask", "pad", "sos", "eos"):  # a token with all roles (GPT-2's) separates texts, as [EOS] does
        found[getattr(new.vocabulary, role)] = getattr(old.vocabulary, role)
    if new.vocabulary.pseudo is not None:
        found[new.vocabulary.pseudo] = old.vocabulary.mask if old.vocabulary.pseudo is None else old.vocabulary.pseudo
    return found


def spelled(tokenizer: Tokenizer) -> list[tuple[str, bool, str]]:
    """Spelling of each token, whether it continues a word, and its text without markers."""
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


def rows_of_tokens(table: Tensor, shared: Int64s, ordinary: Int32s) -> Tensor:
    """Token rows of a new vocabulary: shared rows copied, the others set to the mean."""
    rows = table.index_select(0, torch.from_numpy(np.maximum(shared, 0)))
    rows[torch.from_numpy(shared < 0)] = table.index_select(0, torch.from_numpy(ordinary.astype(np.int64))).mean(dim=0)
    return rows


def said_of_tokens(shared: Int64s, place: object) -> str:
    """A sentence that says how much of a vocabulary is shared."""
    known = int((shared >= 0).sum())
    others = len(shared) - known
    return f"{known:,} of {len(shared):,} tokens take their rows from {place}, the other {others:,} start at the mean"


def repeated(table: Tensor, rows: int) -> Tensor:
    """A position table repeated or cut to `rows` rows.

    Args:
        table: *Shape:* (positions, width)
        rows: Number of rows.
    """
    return table.index_select(0, torch.arange(rows) % len(table))


def rows_of_segments(recipe: Recipe, known: int) -> Tensor:
    """Initial row of each segment id of a recipe: the id's own row if the old table has it.

    Any other id starts from row 0 or 1, depending on whether an objective uses it for a first or second segment: UniLM v1's
    six ids come from BERT's two. Ids that no objective uses start from row 0.
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
    """Copy another model's weights where name and shape fit, tables row by row; warns about everything else.

    From a chain of networks, the one kept after training is copied; every network of the new model takes what fits.
    """
    if other.recipe.model.adapter_size:
        raise UniclozeError(
            f"{other.path} has adapters, which pre-training does not: start from the model they were added to"
        )
    theirs, said = _adapted(model, other, tokenizer, recipe)
    for network in model.networks:
        own = network.state_dict()
        fitting = {name: theirs[name] for name in own if name in theirs and theirs[name].shape == own[name].shape}
        network.load_state_dict(fitting, strict=False)
        left = sorted(own.keys() - fitting.keys())
        if left and network is not model.for_use():
            said.append(
                f"{other.path} has {len(fitting)} of the generator's {len(own)} tensors in the right shape: the others "
                "are newly initialised"
            )
    if not fitting:
        raise UniclozeError(f"no weight of {other.path} fits the recipe's model: give it the same sizes")
    if SEGMENT_ROWS in left and SEGMENT_ROWS not in theirs:
        left.remove(SEGMENT_ROWS)
        network.get_parameter(SEGMENT_ROWS).data.zero_()
        said.append(f"{other.path} has no segments: their embeddings start at 0")
    if left:
        names = ", ".join(left[:4]) + (f" and {len(left) - 4} more" if len(left) > 4 else "")
        said.append(f"{other.path} has no {names} of the right shape: they are newly initialised")
    for sentence in said:
        warnings.warn(sentence, stacklevel=2)


def _adapted(
    model: Model, other: LoadedModel, tokenizer: Tokenizer, recipe: Recipe
) -> tuple[dict[str, Tensor], list[str]]:
    """The other model's state with tables resized to the new model, and sentences about the changes."""
    state, said = other.model.state_dict(), []
    if other.tokenizer.fingerprint != tokenizer.fingerprint:
        shared = shared_tokens(other.tokenizer, tokenizer)
        said.append(said_of_tokens(shared, other.path))
        for name in TOKEN_ROWS:
            if name in state:
                state[name] = rows_of_tokens(state[name], shared, other.tokenizer.vocabulary.ordinary)
    known = {len(state[name]) for name in POSITION_ROWS if name in state} - {model.max_positions}
    state |= {name: repeated(state[name], model.max_positions) for name in POSITION_ROWS if name in state}
    if known and max(known) < model.max_positions:
        said.append(said_of_positions(max(known), model.max_positions, other.path))
    if SEGMENT_ROWS in state and len(state[SEGMENT_ROWS]) != recipe.model.num_segments:
        rows = rows_of_segments(recipe, len(state[SEGMENT_ROWS]))
        if len(rows) > len(state[SEGMENT_ROWS]):
            ids = ", ".join(map(str, rows.tolist()))
            said.append(f"segments 0 to {len(rows) - 1} start as copies of segments {ids} of {other.path}")
        state[SEGMENT_ROWS] = state[SEGMENT_ROWS].index_select(0, rows)
    return state, said


def said_of_positions(known: int, wanted: int, place: object) -> str:
    """A sentence that says that positions are repeated."""
    return f"positions {known} to {wanted - 1} start as copies of the {known} that {place} has"


def inherited(recipe: Recipe, other: LoadedModel, given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Settings a run inherits from the model it starts from, unless given explicitly.

    These are its shape, so that the weights fit, with more positions or segments where the recipe's rows need them.
    """
    theirs = other.recipe.model
    unread = () if theirs.embeddings == "characters" else ("character_size", "character_filters", "character_highways")
    known: dict[str, Any] = {name: getattr(theirs, name) for name in INHERITED if name not in unread}
    known["max_positions"] = max(other.model.max_positions, longest_row(recipe))
    known["num_segments"] = max(theirs.num_segments, recipe.model.num_segments)
    if theirs.positions != "transformer_xl" and theirs.kind != "recurrent":
        known["memory"] = 0  # memory needs relative distances
    if not hasattr(other.model, "token_head"):
        for name in ("head", "head_bias", "tied_output", "scale_output"):
            del known[name]
    changes = {f"model.{name}": value for name, value in known.items() if f"model.{name}" not in given}
    use = dataclasses.asdict(other.recipe.use)
    if use.pop("visibility") != recipe.use.visibility:  # then another slot sees the whole text
        del use["pooling"]
    of_texts = {f"use.{name}": value for name, value in use.items()}
    changes |= {key: value for key, value in of_texts.items() if key not in given}
    before = dataclasses.replace(recipe.model, max_positions=recipe.model.max_positions or longest_row(recipe))
    differing = [
        f"{name} {value} (recipe: {getattr(before, name)})"
        for name, value in ((key.removeprefix("model."), changes[key]) for key in changes if key.startswith("model."))
        if value != getattr(before, name)
    ]
    said = f"the model's shape is that of {other.path}: {', '.join(differing)}" if differing else ""
    return changes, said
