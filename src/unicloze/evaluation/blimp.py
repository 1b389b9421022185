"""BLiMP (Warstadt et al. 2020): how often a model finds the acceptable sentence of a minimal pair likelier.

A sentence's score is its pseudo-log-likelihood (Salazar et al. 2020, Section 3) or its log-likelihood by the chain rule,
in both cases a sum over its tokens, not a mean. The model is not trained on the pairs.
"""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import numpy as np

from unicloze.decoding.inputs import objective_of, pieces_of
from unicloze.decoding.likelihood import Measure, defines, log_probabilities, measures_of
from unicloze.errors import UniclozeError, check_at_least
from unicloze.files import Plain, at_home, read_bytes
from unicloze.progress import Progress
from unicloze.records.files import decoded, jsonl, read_text
from unicloze.settings import DataSettings, Mode
from unicloze.text.documents import Document
from unicloze.text.lineage import read_lineage
from unicloze.text.sources import documents_of
from unicloze.training.loading import LoadedModel

LARGEST_FILE = 64 * 2**20
"""Maximum size of a set in bytes; BLiMP's have half a megabyte."""
LARGEST_ARCHIVE = 2**28
"""Maximum size of an archive in bytes, unpacked; BLiMP's has 30 megabytes."""
_COMPRESSIONS: Mapping[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
"""Functions to open compressed files, by their first bytes."""

_FIELDS = "sentence_good", "sentence_bad", "UID", "field", "linguistics_term"
_AS_PUBLISHED = {"syntax/semantics": "syntax_semantics", "s-selection": "argument_structure"}
"""Names in the files that differ from the paper, which has four fields and twelve phenomena."""


@dataclass(frozen=True, kw_only=True)
class PairSet:
    """A set of minimal pairs of one kind."""

    name: str  # its UID
    field: str  # field of linguistics, such as `morphology`
    term: str  # the phenomenon, such as `anaphor_agreement`
    pairs: Sequence[tuple[str, str]]  # pairs of an acceptable and an unacceptable sentence
    filtered: int = 0  # number of pairs removed by a filter


def read_pairs(path: str | Path) -> list[PairSet]:
    """The sets of a folder of .jsonl files, a .tar archive of them (also .gz, .bz2, .xz), or one file, sorted by name.

    An archive is read in memory and never unpacked to disk; members other than regular .jsonl files are ignored.
    """
    place = at_home(path)
    if not place.exists():
        raise UniclozeError(f"There is no file or folder {place}: name the folder of BLiMP's sets, or their archive.")
    if place.is_file() and not _is_set(place.name):
        contents = _members(place)
    else:
        files = sorted(file for file in place.iterdir() if _is_set(file.name)) if place.is_dir() else [place]
        contents = ((str(file), read_bytes(file, LARGEST_FILE)) for file in files if file.is_file())
    sets: dict[str, PairSet] = {}
    for name, content in contents:
        one = _parse(name, content)
        if one.name in sets:
            raise UniclozeError(f"{name} is a second file of the set {one.name}: remove one of them.")
        sets[one.name] = one
    if not sets:
        raise UniclozeError(f"{place} has no .jsonl files: name the folder of BLiMP's sets, or an archive of them.")
    return [sets[name] for name in sorted(sets)]


def _is_set(name: str) -> bool:
    return name.endswith(".jsonl") and not name.startswith(".")


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each set of an archive."""
    try:
        with archive.open("rb") as raw:
            start = raw.read(8)
        unpack = next((opener for magic, opener in _COMPRESSIONS.items() if start.startswith(magic)), open)
        with unpack(archive, "rb") as unpacked:
            content = unpacked.read(LARGEST_ARCHIVE + 1)  # to the end, whose checksum reveals damage
        if len(content) > LARGEST_ARCHIVE:
            raise UniclozeError(f"{archive} unpacks to far more than BLiMP: name another archive.")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isreg() else None
                if file is not None and _is_set(PurePosixPath(member.name).name):
                    if member.size > LARGEST_FILE:
                        raise UniclozeError(f"{archive} unpacks to far more than BLiMP: {member.name}; name another.")
                    yield f"{archive}:{member.name}", file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UniclozeError(f"{archive} is not an archive, or is damaged ({error}): fetch it again.") from error


def _parse(name: str, content: bytes) -> PairSet:
    kinds, pairs = [], []
    for number, record in jsonl(decoded(content, name), name):
        place = f"{name}, line {number}"
        for field in _FIELDS:
            if not isinstance(record.get(field), str) or not record[field].strip():
                raise UniclozeError(f'{place} has no text in the field "{field}": fix or remove the line.')
        good, bad, *kind = (record[field] for field in _FIELDS)
        kinds.append(kind)
        pairs.append((good, bad))
        if kind != kinds[0]:
            sets = f"the set {kind[0]}, but the lines before it to {kinds[0][0]}"
            raise UniclozeError(f"{place} belongs to {sets}: fix the line.")
    if not kinds:
        raise UniclozeError(f"{name} has no pairs: remove it, or fetch it again.")
    uid, field, term = kinds[0]
    return PairSet(name=uid, field=_AS_PUBLISHED.get(field, field), term=_AS_PUBLISHED.get(term, term), pairs=pairs)


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
    place = at_home(file)
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
        yield from documents_of(corpus, text_field)


CORPUS = "corpus"
"""Name of the filter that keeps the words of the model's training corpus."""
TIE = 1e-4
"""Sums of log-probabilities closer than this count as equal, because of rounding in float32."""
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True)
class SetResult:
    """Results of one set.

    Args:
        name: Name of the set.
        field: Field of linguistics.
        term: The phenomenon.
        pairs: Number of pairs compared.
        unknown: Pairs left out because one of their tokens cannot be scored ([UNK]).
        filtered: Pairs left out by the filter.
        accuracy: Share of the compared pairs whose acceptable sentence is likelier, by measure; empty without such pairs.
        ties: Pairs whose sentences are equally likely, by measure. They count as wrong.
    """

    name: str
    field: str
    term: str
    pairs: int
    unknown: int
    filtered: int
    accuracy: Mapping[Measure, float]
    ties: Mapping[Measure, int]


@dataclass(frozen=True, kw_only=True)
class BlimpResult(Plain):
    """Results of all sets. Means weight each set equally, whatever its number of pairs.

    Args:
        model: The checkpoint.
        measures: Measures used to compare sentences: `pseudo`-log-likelihood, `chain` rule.
        accuracy: Mean accuracy of all sets, by measure.
        fields: Mean accuracy of the sets of each field, by measure.
        terms: Mean accuracy of the sets of each phenomenon, by measure.
        sets: Results of each set.
        pairs: Number of pairs compared.
        unknown: Pairs left out because one of their tokens cannot be scored ([UNK]).
        filtered: Pairs left out by the filter.
        ties: Pairs whose sentences are equally likely, by measure. They count as wrong.
    """

    model: str
    measures: list[Measure]
    accuracy: Mapping[Measure, float]
    fields: Mapping[str, Mapping[Measure, float]]
    terms: Mapping[str, Mapping[Measure, float]]
    sets: list[SetResult]
    pairs: int
    unknown: int
    filtered: int
    ties: Mapping[Measure, int]

    def __str__(self) -> str:
        compared = [one for one in self.sets if one.pairs]
        width = max(len(name) for name in [*self.fields, *self.terms]) + 4
        lines = [f"{'BLiMP accuracy':<{width}}  sets" + "".join(f"  {name:>7}" for name in self.measures)]

        def row(name: str, accuracy: Mapping[Measure, float], sets: int) -> str:
            return f"{name:<{width}}  {sets:>4}" + "".join(f"  {accuracy[measure]:>7.1%}" for measure in self.measures)

        for kind, means in (("field", self.fields), ("term", self.terms)):
            names = [getattr(one, kind) for one in compared]
            lines += [*(row(name, accuracy, names.count(name)) for name, accuracy in means.items()), ""]
        ties = ", ".join(f"{count:,} by {name}" for name, count in self.ties.items())
        lines += [
            row("overall", self.accuracy, len(compared)),
            f"\n{self.pairs:,} pairs of {len(compared)} sets compared; ties, counted as wrong: {ties}",
        ]
        if self.unknown:
            lines.append(f"{self.unknown:,} pairs left out: they have tokens not in the vocabulary")
        if self.filtered:
            lines.append(f"{self.filtered:,} pairs left out by the filter")
        return "\n".join(lines)


def blimp(
    model: LoadedModel,
    path: str | Path,
    *,
    mode: Mode | None = None,
    limit: int | None = None,
    filter_by: str | Path | None = None,
    batch_size: int = _ROWS_AT_ONCE,
    progress: bool = True,
) -> BlimpResult:
    """Compare the sentences of all pairs."""
    check_at_least(1, limit=limit)
    objective = objective_of(model.recipe)
    measures = measures_of(objective, mode or ("pseudo" if defines(objective, "pseudo") else "chain"))
    sets = read_pairs(path)
    if filter_by is not None:
        wanted = {word for one in sets for pair in one.pairs for text in pair for word in words_of(text)}
        if filter_by == CORPUS:
            sets = keep_known(sets, frequent_word_list(model.recipe.data, wanted, progress=progress))
        else:
            sets = keep_known(sets, listed_words(filter_by))
    sets = [dataclasses.replace(one, pairs=one.pairs[:limit]) for one in sets]
    sentences = dict.fromkeys(text for one in sets for pair in one.pairs for text in pair)
    if not sentences:
        raise UniclozeError(f"The filter {filter_by} leaves no pair of {path}: give it more words.")
    scores = _score(model, list(sentences), measures, batch_size, progress)
    results = [_compare(one, scores) for one in sets]
    compared = [one for one in results if one.pairs]
    if not compared:
        raise UniclozeError(f"Every pair of {path} has tokens not in the model's vocabulary: use another model.")
    return BlimpResult(
        model=str(model.path), measures=measures, accuracy=_mean(compared, measures),
        fields=_means(compared, "field", measures), terms=_means(compared, "term", measures), sets=results,
        pairs=sum(one.pairs for one in results), unknown=sum(one.unknown for one in results),
        filtered=sum(one.filtered for one in results),
        ties={measure: sum(one.ties[measure] for one in results) for measure in measures},
    )  # fmt: skip


def accuracies(
    model: LoadedModel, path: str | Path, *, limit: int | None = None, progress: bool = True
) -> dict[str, float | None]:
    """Mean accuracy over all sets in percent: `blimp_pseudo` and `blimp_chain`, None if the objective does not define it."""
    known = measures_of(objective_of(model.recipe), None)
    result: dict[str, float | None] = {f"blimp_{measure}": None for measure in get_args(Measure)}
    if known:
        mode: Mode = "both" if len(known) == 2 else known[0]
        judged = blimp(model, path, mode=mode, limit=limit, progress=progress)
        result |= {f"blimp_{measure}": 100 * value for measure, value in judged.accuracy.items()}
    return result


def _score(
    loaded: LoadedModel, sentences: Sequence[str], measures: Iterable[Measure], batch_size: int, progress: bool
) -> dict[Measure, dict[str, float]]:
    """Score of each sentence by measure, nan if a token cannot be scored; equal token sequences are scored once."""
    is_special = np.zeros(loaded.tokenizer.vocabulary.size, dtype=bool)
    is_special[loaded.tokenizer.vocabulary.special] = True
    tokens = loaded.tokenizer.encode_batch(sentences)
    distinct = {ids.tobytes(): ids for ids in tokens if len(ids) and not is_special[ids].any()}
    numbers = {spelled: number for number, spelled in enumerate(distinct)}
    number_of = [numbers.get(ids.tobytes(), -1) for ids in tokens]
    pieces, total = pieces_of(loaded, list(distinct.values()), remembers=True), sum(map(len, distinct.values()))
    result = {}
    for measure in measures:
        name = {"pseudo": "pseudo-log-likelihood", "chain": "chain rule"}[measure]
        with Progress(name, total, "tokens", show=progress) as bar:
            logs = log_probabilities(loaded, pieces, measure, batch_size=batch_size, progress=bar.update)
        sums = np.zeros(len(distinct) + 1)
        sums[-1] = np.nan
        for piece, part in zip(pieces, logs, strict=True):
            sums[piece.text] += part.sum()
        result[measure] = dict(zip(sentences, sums[number_of].tolist(), strict=True))
    return result


def _compare(one: PairSet, scores: Mapping[Measure, Mapping[str, float]]) -> SetResult:
    accuracy, ties, pairs = {}, {}, 0
    for measure, score in scores.items():
        margins = np.array([score[good] - score[bad] for good, bad in one.pairs])
        margins = margins[~np.isnan(margins)]
        pairs = len(margins)
        ties[measure] = int((np.abs(margins) <= TIE).sum())
        if pairs:
            accuracy[measure] = float((margins > TIE).mean())
    return SetResult(
        name=one.name, field=one.field, term=one.term, pairs=pairs, unknown=len(one.pairs) - pairs,
        filtered=one.filtered, accuracy=accuracy, ties=ties,
    )  # fmt: skip


def _means(
    sets: Sequence[SetResult], kind: Literal["field", "term"], measures: Iterable[Measure]
) -> dict[str, dict[Measure, float]]:
    """Mean accuracy of the sets of each kind."""
    names = sorted({getattr(one, kind) for one in sets})
    return {name: _mean([one for one in sets if getattr(one, kind) == name], measures) for name in names}


def _mean(sets: Sequence[SetResult], measures: Iterable[Measure]) -> dict[Measure, float]:
    return {measure: float(np.mean([one.accuracy[measure] for one in sets])) for measure in measures}
