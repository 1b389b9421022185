"""Vectors of tokens by the company they keep: singular vectors of the positive pointwise mutual information with neighbours.

Levy, Goldberg and Dagan, "Improving distributional similarity with lessons learned from word embeddings" (2015): contexts
smoothed by the power 0.75 (Section 3.2), vectors U S^0.5 (Section 3.3). A context is an ordinary token and where it stands:
next to the token on the left, or the right, or within `REACH` of it on either side.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Int64s
from unicloze.files import digest
from unicloze.text.counts import counted, stretches
from unicloze.text.prepare import Prepared
from unicloze.text.shards import TokenSource, kept_arrays
from unicloze.text.vocabulary import Vocabulary

SCHEMA = 1
REACH = 4
"""Farthest neighbour that counts, in tokens."""
SMOOTHING = 0.75
"""Power of the counts of contexts, which makes rare ones less surprising."""
MOST_READ = 2**22
"""Of longer texts, evenly spread stretches of about this many tokens are read."""
Vectors = npt.NDArray[np.float32]


def open_vectors(prepared: Prepared, sources: Sequence[TokenSource], width: int) -> Vectors:
    """The vectors of the tokens in some training sources of prepared text, which are kept in its folder.

    Returns:
        Zero for tokens without neighbours; the others have a standard deviation of 1, as far as the text has so many
            dimensions, and zeros beyond them. *Shape:* (vocabulary, width)
    """
    made_from = digest([SCHEMA, prepared.fingerprint, [source.name for source in sources], width])
    kept = kept_arrays(
        prepared.folder / "index" / f"vectors-{made_from[:16]}.npz",
        lambda: {"vectors": vectors_of(sources, prepared.tokenizer.vocabulary, width)},
    )
    vectors: Vectors = kept["vectors"]
    return vectors


def vectors_of(sources: Sequence[TokenSource], vocabulary: Vocabulary, width: int) -> Vectors:
    """The vectors of the tokens in some sources, as `open_vectors` returns them."""
    counts = neighbours_of(sources, vocabulary)
    found, size = np.zeros((vocabulary.size, width), np.float32), min(width, vocabulary.size - 1)
    seen = np.flatnonzero(np.asarray(counts.sum(axis=1)).ravel())
    if not len(seen):
        return found
    with importlib.import_module("threadpoolctl").threadpool_limits(1, "blas"):  # the same bits on any number of cores
        left, values, _ = importlib.import_module("sklearn.utils.extmath").randomized_svd(
            information(counts), size, n_iter=2, random_state=0
        )
    vectors = left[seen] * np.sqrt(values)
    vectors -= vectors.mean(axis=0)
    found[seen, :size] = vectors / max(vectors.std(), np.finfo(np.float32).tiny)
    return found


def neighbours_of(sources: Sequence[TokenSource], vocabulary: Vocabulary) -> Any:
    """How often each token has each context, as a sparse matrix. *Shape:* (vocabulary, 4 x vocabulary)"""
    sparse, size = importlib.import_module("scipy.sparse"), vocabulary.size
    ordinary = np.zeros(size, dtype=bool)
    ordinary[vocabulary.ordinary] = True
    pairs: tuple[list[Int64s], list[Int64s]] = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]  # next, and near
    for tokens, begins in stretches(sources, MOST_READ):
        document = np.cumsum(begins)
        for distance in range(1, REACH + 1):
            left, right = tokens[:-distance], tokens[distance:]
            both = (document[distance:] == document[:-distance]) & ordinary[left] & ordinary[right]
            pairs[distance > 1].append(left[both] * size + right[both])
    sides = []
    for codes, times in map(counted, pairs):
        after = sparse.csr_matrix((times.astype(np.float32), (codes // size, codes % size)), shape=(size, size))
        sides += [after, after.T]
    return sparse.hstack(sides, format="csr")


def information(counts: Any) -> Any:
    """The positive pointwise mutual information of tokens and contexts, as a sparse matrix of the same shape."""
    of_tokens, of_contexts = (np.asarray(counts.sum(axis=axis)).ravel() for axis in (1, 0))
    smoothed = of_contexts**SMOOTHING
    places = counts.tocoo()
    expected = of_tokens[places.row] * smoothed[places.col] / max(smoothed.sum(), 1)
    found = places.copy()
    found.data = np.maximum(np.log(places.data / expected), 0)
    found.eliminate_zeros()
    return found.tocsr()
