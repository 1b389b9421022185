"""BabyLM's filter: keeps only pairs whose words all occur in the training corpus (Warstadt et al. 2023)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from unicloze.errors import UniclozeError
from unicloze.evaluation.minimal_pairs import PairSet
from unicloze.progress import Progress
from unicloze.records.plain_files import read_text
from unicloze.settings import PYTHON_DOCS, DataSettings
from unicloze.text.dataset_source import DatasetSource, is_dataset
from unicloze.text.documents import Document, Tally, read_documents
from unicloze.text.lineage import read_lineage
from unicloze.text.python_docs import python_docs

OFTEN_ENOUGH = 2
"""Minimum number of occurrences of a word in the model's training text."""
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def keep_known(sets: Iterable[PairSet], words: Collection[str]) -> list[PairSet]:
    """Keep the pairs whose words are all among the given ones; a set may become empty."""
    result = []
    for one in sets:
        kept = [pair for pair in one.pairs if all(word in words for text in pair for word in words_of(text))]
        filtered = one.filtered + len(one.pairs) - len(kept)
        result.append(dataclasses.replace(one, pairs=kept, filtered=filtered))
    return result


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation; an apostrophe within a word is part of it."""
    return _WORD.findall(text.lower().replace("\u2019", "'"))


def listed_words(file: str | Path) -> set[str]:
    """The words of a file with one word per line, in lower case."""
    place = Path(file).expanduser()
    if not place.is_file():
        raise UniclozeError(f"There is no file {place}: name a list of words, one per line, or `corpus`.")
    words = set()
    for number, line in enumerate(read_text(place).split("\n"), start=1):
        if len(line.split()) > 1:
            raise UniclozeError(f"{place}, line {number} has several words: give a list of words, one per line.")
        words.update(words_of(line))
    if not words:
        raise UniclozeError(f"{place} has no words: give a list of words, one per line.")
    return words


def frequent_word_list(data: DataSettings, wanted: Collection[str], *, progress: bool = True) -> set[str]:
    """The wanted words that occur often enough in a corpus, including its held-out documents."""
    counts = dict.fromkeys(wanted, 0)
    with Progress("words of the corpus", None, "documents", show=progress) as bar:
        for document in _documents(data):
            for word in words_of(document.text):
                if word in counts:
                    counts[word] += 1
            bar.update()
    return {word for word, count in counts.items() if count >= OFTEN_ENOUGH}


def _documents(data: DataSettings) -> Iterator[Document]:
    corpora, text_field = data.corpus, data.text_field
    if data.prepared is not None:
        lineage = read_lineage(Path(data.prepared))
        corpora = [source["corpus"] for source in lineage["sources"]]
        text_field = lineage["settings"]["data.text_field"]
    for corpus in corpora:
        if is_dataset(corpus):
            yield from DatasetSource.of(corpus).documents(text_field, Tally())
        else:
            yield from python_docs() if corpus == PYTHON_DOCS else read_documents(corpus, text_field)
