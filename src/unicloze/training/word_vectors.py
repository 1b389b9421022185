"""Starts token embeddings from word vectors in GloVe's text format (Pennington et al. 2014).

Each line is a word and its numbers, separated by spaces.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from unicloze.bounded import open_bytes
from unicloze.errors import UniclozeError, UsageError
from unicloze.model.build import Model
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.initial import spelled

Floats = npt.NDArray[np.float32]

LONGEST = 2**20
"""Longest line, in bytes."""


def start_from_vectors(model: Model, tokenizer: Tokenizer, path: Path) -> str:
    """Copy word vectors into the token embeddings; tokens without one keep their initial weights.

    A token takes the vector of the word that is spelled like it, unless it continues a word or is special. Of an
    encoder-decoder with two tables, only the encoder's changes.

    Args:
        model: The model, already initialised.
        tokenizer: Its tokenizer.
        path: The file: on each line a word and as many numbers as the embeddings are wide, separated by spaces; may be .gz.

    Returns:
        A sentence that says how many tokens have a vector.

    Raises:
        UsageError: The model has no table of tokens.
        UniclozeError: The file is missing or malformed, or has no word of the vocabulary.
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
