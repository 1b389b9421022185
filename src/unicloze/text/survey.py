"""Estimates size and kind of a corpus from file sizes and the beginning of each source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unicloze.settings import PYTHON_DOCS, DataSettings
from unicloze.text.dataset_source import is_dataset
from unicloze.text.documents import find_files, read_documents
from unicloze.text.python_docs import python_docs
from unicloze.text.tokenised import find_shards

SAMPLE = 200_000
"""Characters to read of each source."""
COMPRESSED = 3
"""Assumed ratio of text to compressed bytes."""
LONGEST_MEAN_WORD = 20
"""Mean characters between spaces above which a script is taken to be written without them."""


@dataclass(frozen=True)
class Survey:
    """What a look at a corpus tells."""

    size: int | None  # estimated number of characters; None if unknown
    spaced: bool  # whether words are separated by spaces


def survey(data: DataSettings) -> Survey:
    """Look at a corpus."""
    sizes = [None if is_dataset(corpus) else _characters(corpus, data.text_field) for corpus in data.corpus]
    texts = [text for corpus in data.corpus for text in _beginning(corpus, data.text_field)]
    words = sum(len(text.split()) for text in texts)
    known = [size for size in sizes if size is not None]
    spaced = not words or sum(map(len, texts)) / words <= LONGEST_MEAN_WORD
    return Survey(sum(known) if len(known) == len(sizes) else None, spaced)


def _characters(corpus: str, text_field: str) -> int | None:
    """Estimated characters of a source; None if it holds tokens."""
    if corpus == PYTHON_DOCS:
        return sum(len(document.text) for document in python_docs())
    if find_shards(corpus):
        return None
    sample = "".join(_beginning(corpus, text_field))
    of_a_byte = len(sample) / max(1, len(sample.encode()))
    plain = sum(
        file.stat().st_size * (COMPRESSED if file.suffix in {".gz", ".zst", ".parquet"} else 1)
        for file in find_files(corpus)
    )
    return round(plain * of_a_byte)


def _beginning(corpus: str, text_field: str) -> Iterator[str]:
    if is_dataset(corpus) or (corpus != PYTHON_DOCS and find_shards(corpus)):
        return
    room = SAMPLE
    for document in python_docs() if corpus == PYTHON_DOCS else read_documents(corpus, text_field):
        yield document.text[:room]
        room -= len(document.text)
        if room <= 0:
            return
