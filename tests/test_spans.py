"""Phrases and entities that documents give are masked as a whole, however the text is prepared and cut (ERNIE)."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corpora import write_corpus
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.mixtures import phases
from unicloze.objectives import settings_of
from unicloze.objectives.masking import LONGEST_UNIT, units_of
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.text import pipeline
from unicloze.text.documents import Spans, Tally, read_file
from unicloze.text.phrases import PhraseTable
from unicloze.text.prepare import Prepared, prepare_data
from unicloze.text.sampler import WindowSampler
from unicloze.text.shards import marks_of
from unicloze.text.windows import Windows

PLAIN = "zebra"
"""A word of documents without spans. Every other word begins with two letters that say where it stands: b begins an entity,
c continues one and d is outside; f begins a phrase, g continues one and h is outside."""


def document(seed: int, words: int = 60, gaps: Sequence[str] = (" ", " ", "  ", "\n")) -> tuple[str, list[Any]]:
    """A text with spans that cover the gap after their last word too, and these spans."""
    draw = random.Random(seed)
    text, spans = "\u00e9\U0001f600\0 " * draw.randrange(2), list[Any]()
    inside, open_spans = {"entity": False, "phrase": False}, dict[str, int]()
    for _ in range(words):
        letters = ""
        for kind, (begin, goes_on, outside) in {"entity": "bcd", "phrase": "fgh"}.items():
            if inside[kind] and draw.random() < 0.6:
                letters += goes_on
                continue
            if inside[kind]:
                spans.append([open_spans[kind], len(text), kind])
            inside[kind] = draw.random() < 0.4
            open_spans[kind] = len(text)
            letters += begin if inside[kind] else outside
        text += letters + draw.choice(["a", "oo", "ie"]) + draw.choice(gaps)
    spans += [[open_spans[kind], len(text), kind] for kind in inside if inside[kind]]
    if draw.random() < 0.5:
        spans = [span[:2] if span[2] == "entity" else span for span in spans]
    draw.shuffle(spans)
    return text, spans


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_documents(file: Path, **options: Any) -> Path:
    """Documents with both kinds of spans and without spans, and duplicates that give others."""
    both = [document(seed, **options) for seed in range(40)]
    records: list[dict[str, Any]] = [{"text": text, "spans": spans} for text, spans in both]
    records += [{"text": text.upper(), "spans": [[0, 40]]} for text, _ in both[:4]]
    records += [{"text": f"{PLAIN} {'quiet ' * 3}{i} {PLAIN} end"} for i in range(6)]
    records += [{"text": f"{PLAIN} {PLAIN} {i} last " * 5, "spans": None if i % 2 else []} for i in range(6)]
    return write(file, records)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "corpus" / "a.jsonl")


def prepared_from(corpus: Path, out: Path, kind: Any = "wordpiece", **options: Any) -> Prepared:
    data = DataSettings(corpus=[str(corpus)], **{"spans_field": "spans", "heldout_share": 0.1, **options})
    return prepare_data(data, TokenizerSettings(vocab_size=320, kind=kind), out, progress=False)


def words_of(windows: Windows, row: int, prepared: Prepared) -> list[str]:
    """The word of each token of a row; empty for special tokens."""
    length = int(windows.lengths[row])
    ids, maskable = windows.token_ids[row, :length], windows.maskable[row, :length]
    follows = prepared.tokenizer.vocabulary.boundaries.follows(windows.token_ids)[row, :length]
    words, starts = [""] * length, [at for at in range(length) if not (follows[at] and maskable[at])]
    for start, end in zip(starts, [*starts[1:], length], strict=True):
        if maskable[start]:
            words[start:end] = [prepared.tokenizer.decode(ids[start:end].tolist()).strip()] * (end - start)
    return words


def expected_begins(windows: Windows, row: int, prepared: Prepared, unit: str) -> list[bool]:
    """Where units begin, read off the words."""
    words, maskable = words_of(windows, row, prepared), windows.maskable[row]
    follows = prepared.tokenizer.vocabulary.boundaries.follows(windows.token_ids)[row]
    place, goes_on = {"entity": (0, "c"), "phrase": (1, "g")}[unit]
    begins: list[bool] = []
    size = 0
    for at, word in enumerate(words):
        spelled = word[:1] in tuple("bcd") and word[1:2] in tuple("fgh")
        joined = bool(at and maskable[at] and maskable[at - 1])
        joined &= bool(follows[at]) or (spelled and word[place] == goes_on)
        joined &= size < LONGEST_UNIT
        begins.append(not joined)
        size = size + 1 if joined else 1
    return begins


def sampler_of(prepared: Prepared, sources: Any, window: int, **options: Any) -> WindowSampler:
    given = {"segments": 1, "seed": 3, "spans": True, **options}
    return WindowSampler(sources, window=window, vocabulary=prepared.tokenizer.vocabulary, **given)


def have_their_spans(windows: Windows, prepared: Prepared, unit: Any) -> int:
    """Check every row, and count the tokens that continue a unit."""
    settings = settings_of(name="masked", masking="token", mask_unit=unit, unmarked_unit="word")
    units = units_of(windows, prepared.tokenizer.vocabulary, settings)
    assert units is not None
    continuing = 0
    for row in range(len(windows)):
        expected = expected_begins(windows, row, prepared, unit)
        assert units.begins[row, : len(expected)].tolist() == expected
        continuing += expected.count(False)
    return continuing


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
@pytest.mark.parametrize(("segments", "documents", "pairs"), [
    (1, "separate", "contiguous"), (2, "separate", "contiguous"), (1, "joined", "contiguous"), (2, "joined", "contiguous"),
    (2, "separate", "next_sentence"), (2, "separate", "sentence_order"),
])  # fmt: skip
def test_windows_know_the_spans_of_their_text(
    tmp_path: Path, kind: str, segments: Any, documents: Any, pairs: Any
) -> None:
    gaps = (" ",) if kind == "bpe" else (" ", "  ", "\n")  # further white space is tokens of its own there
    corpus = write_documents(tmp_path / "corpus" / "a.jsonl", gaps=gaps)
    prepared = prepared_from(corpus, tmp_path / "out", kind)
    assert prepared.lineage["sources"][0]["duplicates"] == 4
    for sources, tokens in ((prepared.train, 30), (prepared.heldout, 20)):
        windows = sampler_of(prepared, sources, tokens, segments=segments, documents=documents).read(0, 60, pairs=pairs)
        for unit in ("entity", "phrase"):
            assert have_their_spans(windows, prepared, unit) > 100


def test_long_and_cut_documents_keep_their_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document is read in pieces, its end is held out, and a part that an evaluation text shares is cut out."""
    monkeypatch.setattr("unicloze.text.documents.PIECE", 40)
    monkeypatch.setattr("unicloze.text.split.MARGIN", 30)
    text, spans = document(5, words=3000)
    middle = text[6000:6400].split(" ", 1)[1]
    corpus = write(tmp_path / "corpus" / "a.jsonl", [{"text": text, "spans": spans}])
    (tmp_path / "test.txt").write_text(middle)
    test = {"decontaminate": [str(tmp_path / "test.txt")], "decontaminate_ngram": 13}
    prepared = prepared_from(corpus, tmp_path / "out", **test)
    assert prepared.lineage["decontamination"]["documents_cut"] == 1
    assert prepared.train[0].num_documents > 1 and prepared.heldout[0].num_documents == 1
    for sources in (prepared.train, prepared.heldout):
        sampler = sampler_of(prepared, sources, 40)
        assert have_their_spans(sampler.sequential(sampler.num_windows), prepared, "entity")


def test_a_document_without_spans_is_masked_as_before(corpus: Path, tmp_path: Path) -> None:
    prepared = prepared_from(corpus, tmp_path / "out")
    vocabulary = prepared.tokenizer.vocabulary
    phrases = [prepared.tokenizer.encode(phrase) for phrase in (f"{PLAIN} {PLAIN}", "quiet quiet")]

    def units(field: bool, **settings: Any) -> tuple[Windows, Any]:
        sampler = sampler_of(prepared, prepared.train, 30, phrases=PhraseTable(phrases, vocabulary), spans=field)
        windows = sampler.sequential(sampler.num_windows)
        return windows, units_of(windows, vocabulary, settings_of(name="masked", **settings))

    windows, marked = units(True, mask_unit="entity")
    _, before = units(False, mask_unit="phrase")
    _, single = units(True, mask_unit="entity", unmarked_unit="word")
    plain = np.array([PLAIN in words_of(windows, row, prepared) for row in range(len(windows))])
    assert 5 < plain.sum() < len(plain)
    assert (marked.begins[plain] == before.begins[plain]).all()
    assert (marked.begins[plain] < single.begins[plain]).any()
    follows = vocabulary.boundaries.follows(windows.token_ids)
    assert (single.begins[plain] == (~(follows & windows.maskable))[plain]).all()


BAD = {
    "outside": ([[0, 5], [3000, 3004]], r"a\.jsonl:2: \[3000, 3004\] in the field \"spans\" is not within the 11 char"),
    "reversed": ([[5, 2]], r"a\.jsonl:2: \[5, 2\] .* first character before the end"),
    "empty": ([[4, 4]], r"a\.jsonl:2: \[4, 4\] .* first character before the end"),
    "negative": ([[-1, 4]], r"a\.jsonl:2: \[-1, 4\] "),
    "fractions": ([[0.0, 4.0]], r"a\.jsonl:2: \[0\.0, 4\.0\] .* is not a list of two whole numbers"),
    "truth": ([[False, True]], r"a\.jsonl:2: .* is not a list of two whole numbers"),
    "mapping": ([{"start": 0, "end": 3}], r"a\.jsonl:2: .* is not a list of two whole numbers"),
    "kind": ([[0, 3, "person"]], r"a\.jsonl:2: .* has a kind other than phrase and entity"),
    "blank": ([[3, 4]], r"a\.jsonl:2: .* covers only white space"),
    "overlap": ([[0, 7], [4, 11]], r"a\.jsonl:2: \[0, 7\] and \[4, 11\] .* overlap and are both of kind entity"),
    "not a list": ("0-5", r"a\.jsonl:2: the field \"spans\" is not a list of spans"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_spans_are_refused_with_file_and_line(name: str, tmp_path: Path) -> None:
    spans, message = BAD[name]
    file = write(tmp_path / "a.jsonl", [{"text": "an old door"}, {"text": "the big cat", "spans": spans}])
    with pytest.raises(UniclozeError, match=message):
        prepared_from(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(list(read_file(file, "text", Tally()))) == 2


def test_spans_of_different_kinds_may_overlap_and_white_space_is_left_out(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [{"text": "the big\0 cat", "spans": [[4, 8, "entity"], [0, 9, "phrase"]]}])
    (found,) = read_file(file, "text", Tally(), "spans")
    assert found.text == "the big cat"
    assert found.spans == Spans(found=((0, 7, "phrase"), (4, 7, "entity")), gives=frozenset({"phrase", "entity"}))


def test_spans_in_a_table_are_refused(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a cat"], "spans": [[[0, 1]]]}), file)
    with pytest.raises(UniclozeError, match=r'a\.parquet has a column "spans", but spans are read from \.jsonl only'):
        list(read_file(file, "text", Tally(), "spans"))
    assert len(list(read_file(file, "text", Tally(), "entities"))) == 1


def test_damaged_marks_are_found(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepared_from(corpus, out)
    (marks,) = (out / "train").glob("*.spans")
    whole = marks.read_bytes()
    marks.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(UniclozeError, match=r"\.spans"):
        Prepared.load(out, progress=False)
    marks.write_bytes(whole[:-1])
    with pytest.raises(UniclozeError, match=r"\.spans does not fit"):
        Prepared.load(out, progress=False)


def test_a_corpus_without_spans_has_no_file_of_marks(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    out = prepared_from(corpus, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.spans"))
    marks = sampler_of(out, out.train, 20).read(0, 4).marks
    assert marks is not None and not marks.any()


def test_portions_make_the_same_marks_in_any_number_of_processes(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = corpus.read_text().splitlines(keepends=True)
    corpus.write_text("".join(lines[:20]))
    (corpus.parent / "b.jsonl").write_text("".join(lines[20:]))
    whole = prepared_from(corpus.parent, tmp_path / "whole")
    monkeypatch.setattr(pipeline, "PORTION", 1)
    parts = prepared_from(corpus.parent, tmp_path / "parts")
    assert parts.lineage["sources"][0]["portions"] == 2
    for (one,), (other,) in ((whole.train, parts.train), (whole.heldout, parts.heldout)):
        marks = [b"".join(shard.marks.values for shard in source.shards if shard.marks) for source in (one, other)]
        assert marks[0] == marks[1] and any(marks[0])


def test_the_field_belongs_to_the_fingerprint(corpus: Path, tmp_path: Path) -> None:
    prepared_from(corpus, tmp_path / "out")
    with pytest.raises(UniclozeError, match=r"data\.spans_field is None instead of spans"):
        prepared_from(corpus, tmp_path / "out", spans_field=None)


def test_prepare_keeps_spans_whatever_its_recipe_masks(corpus: Path, tmp_path: Path) -> None:
    given = {"data.corpus": [str(corpus)], "data.spans_field": "spans", "tokenizer.vocab_size": 320}
    verbs.prepare(out=tmp_path / "out", quiet=True, overrides=given)
    assert (tmp_path / "out" / "train" / "a.ds.spans").is_file()
    with pytest.raises(UsageError, match=r"option --data\.spans_field: .* without objective\.mask_unit phrase"):
        verbs.pretrain("quickstart", tmp_path / "run", quiet=True, overrides=given)


def test_entities_need_a_field() -> None:
    with pytest.raises(UsageError, match=r"entities are those that documents mark: set data\.spans_field"):
        load_recipe("ernie-base", {"data.spans_field": None})


def test_a_token_belongs_to_the_first_span_it_shares_a_character_with() -> None:
    spans = Spans(found=((-3, 4, "entity"), (6, 9, "entity"), (8, 12, "phrase"), (9, 20, "entity")), gives=frozenset())
    offsets = np.array([[0, 3], [3, 5], [5, 7], [7, 8], [8, 10], [10, 12], [12, 12], [19, 21], [30, 31]])
    assert marks_of(spans, offsets).tolist() == [2, 2, 0, 2, 2, 1, 2, 2, 0]
    begins = Spans(found=((0, 4, "entity"),), gives=frozenset())
    assert marks_of(begins, offsets[:3]).tolist() == [0, 2, 0]


@pytest.mark.whole
def test_ernie_trains_in_three_stages(corpus: Path, tmp_path: Path) -> None:
    settings = toy_overrides() | {"data.corpus": [str(corpus)], "training.steps": 3, "objective.unmarked_unit": "word"}
    del settings["training.phases"]
    units = [phase.recipe.objective.windows.spans for phase in phases(load_recipe("ernie-base", settings))]
    assert units == [False, True, True]
    pretrain_run(load_recipe("ernie-base", settings), tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "data" / "train" / "a.ds.spans").is_file()
    assert not (tmp_path / "run" / "phrases").exists()
