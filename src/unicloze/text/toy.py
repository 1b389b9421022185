"""The beginning of a corpus, to try a recipe on in seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from unicloze.files import write_file
from unicloze.settings import PYTHON_DOCS, DataSettings
from unicloze.text.dataset_source import is_dataset
from unicloze.text.documents import find_files, read_documents
from unicloze.text.python_docs import python_docs
from unicloze.text.tokenised import find_shards

ENOUGH = 500_000
"""Number of characters to copy; a corpus of fewer bytes is used whole."""


def beginning_of(data: DataSettings, folder: Path) -> Path | None:
    """Write the beginnings of a corpus's sources, in equal shares, to one file in a folder."""
    if data.prepared is not None or not data.corpus or any(map(is_dataset, data.corpus)):
        return None
    sizes = [ENOUGH if each == PYTHON_DOCS else _size(each) for each in data.corpus]
    if None in sizes or sum(size or 0 for size in sizes) < ENOUGH:
        return None
    lines = [
        json.dumps({data.text_field: text}, ensure_ascii=False) + "\n"
        for corpus in data.corpus
        for text in _texts(corpus, data.text_field, ENOUGH // len(data.corpus))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "toy.jsonl"
    write_file(file, "".join(lines), "the beginning of the corpus")
    return file


def _size(corpus: str) -> int | None:
    """Bytes of the files of a source, None if it holds tokens."""
    if find_shards(corpus):
        return None
    return sum(file.stat().st_size for file in find_files(corpus))


def _texts(corpus: str, text_field: str, room: int) -> Iterator[str]:
    documents = python_docs() if corpus == PYTHON_DOCS else read_documents(corpus, text_field)
    for document in documents:
        yield document.text[: max(room, 200)]
        room -= len(document.text)
        if room <= 0:
            return
