"""Hugging Face datasets as a source: folders only, so no network is needed."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from unicloze.errors import UniclozeError, UsageError
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.text import sources
from unicloze.text.documents import Tally
from unicloze.text.prepare import Prepared, prepare_data
from unicloze.text.sources import DatasetSource

datasets = pytest.importorskip("datasets")

TEXTS = [f"Document {n} tells of {n * 7} things, and of a list of items.\n\nIt has two parts." for n in range(40)]
SMALL = TokenizerSettings(vocab_size=150)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


def saved(folder: Path, texts: list[Any] = TEXTS, column: str = "text") -> Path:
    datasets.Dataset.from_dict({column: texts, "number": list(range(len(texts)))}).save_to_disk(str(folder))
    return folder


def files(folder: Path, **splits: list[Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for split, texts in splits.items():
        lines = [json.dumps({"text": text, "number": number}) for number, text in enumerate(texts)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def read(corpus: str, tally: Tally | None = None) -> list[str]:
    return [document.text for document in DatasetSource.of(corpus).documents("text", tally or Tally())]


def prepare(corpus: str, out: Path, **settings: Any) -> Prepared:
    return prepare_data(DataSettings(corpus=[corpus], **settings), SMALL, out, progress=False)


def test_every_form_of_a_local_dataset_gives_its_texts(tmp_path: Path) -> None:
    assert read(f"hf:{saved(tmp_path / 'saved')}") == TEXTS
    assert read(f"hf:{files(tmp_path / 'files', train=TEXTS, test=TEXTS[:3])}") == TEXTS
    assert read(f"hf:{tmp_path / 'files'}:test") == TEXTS[:3]
    assert read(f"hf:{files(tmp_path / 'only', validation=TEXTS[:5])}") == TEXTS[:5]
    parts = {"train": TEXTS[:9], "validation": TEXTS[9:12]}
    both = datasets.DatasetDict({name: datasets.Dataset.from_dict({"body": texts}) for name, texts in parts.items()})
    both.save_to_disk(str(tmp_path / "both"))
    assert read(f"hf:{tmp_path / 'both'}:validation:body") == TEXTS[9:12]
    both = DatasetSource.of(f"hf:{tmp_path / 'both'}").documents("body", Tally())
    assert [document.text for document in both] == TEXTS[:9]


def test_texts_are_repaired_and_counted_like_those_of_files(tmp_path: Path) -> None:
    place, tally = saved(tmp_path / "saved", ["one", "", None, "two\0 and", "  ", "café"]), Tally()
    assert read(f"hf:{place}", tally) == ["one", "two and", "café"]
    assert (tally.documents, tally.empty, tally.nul, tally.first_bad) == (3, 3, 1, f"hf:{place}:4")
    documents = list(DatasetSource.of(f"hf:{place}").documents("text", Tally()))
    assert [(document.path, document.line) for document in documents] == [(f"hf:{place}", n) for n in (1, 4, 6)]


def test_a_dataset_is_prepared_like_a_file_of_its_texts(tmp_path: Path) -> None:
    files(tmp_path / "files", train=TEXTS)
    by_stream = prepare(f"hf:{tmp_path / 'files'}", tmp_path / "a")
    by_file = prepare(str(tmp_path / "files" / "train.jsonl"), tmp_path / "b")
    memory_mapped = prepare(f"hf:{saved(tmp_path / 'saved')}:train:text", tmp_path / "c")
    shards = [prepared.train[0].shards[0].path.read_bytes() for prepared in (by_stream, by_file, memory_mapped)]
    assert shards[0] == shards[1] == shards[2]
    assert by_stream.tokenizer.fingerprint == by_file.tokenizer.fingerprint
    assert by_stream.lineage["sources"][0]["documents"] == len(TEXTS)


def test_the_fingerprint_names_content_split_and_column(tmp_path: Path) -> None:
    place = files(tmp_path / "files", train=TEXTS, test=TEXTS[:20])
    first = prepare(f"hf:{place}", tmp_path / "a").fingerprint
    assert prepare(f"hf:{place}", tmp_path / "a").fingerprint == first
    assert prepare(f"hf:{place}:test", tmp_path / "b").fingerprint != first
    with pytest.raises(UniclozeError, match="was prepared from another corpus"):
        prepare(f"hf:{place}:test", tmp_path / "a")
    files(place, train=[*TEXTS, "one more"])
    with pytest.raises(UniclozeError, match=r"train\.jsonl has changed"):
        prepare(f"hf:{place}", tmp_path / "a")
    files(place, train=TEXTS)
    assert prepare(f"hf:{place}", tmp_path / "a").fingerprint == first
    moved = place.rename(tmp_path / "moved")
    assert prepare(f"hf:{moved}", tmp_path / "a").fingerprint == first


def test_a_dataset_of_the_hub_is_pinned_to_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub itself is not accessed: a folder replaces it, with a revision as its hash."""
    local = datasets.load_dataset_builder(str(files(tmp_path / "files", train=TEXTS)))
    calls = []

    def builder(name: str, config: str | None) -> Any:
        calls.append((name, config))
        return local

    monkeypatch.setattr(datasets, "load_dataset_builder", builder)
    monkeypatch.setattr(local, "hash", "1" * 40)
    sources._builder.cache_clear()
    corpus = "hf:owner/name/english:train"
    first = prepare(corpus, tmp_path / "out")
    assert calls == [("owner/name", "english")]
    assert first.lineage["sources"][0]["files"][0]["path"].startswith(f"hf:owner/name/english@{'1' * 40} (split train")
    assert prepare(corpus, tmp_path / "out").fingerprint == first.fingerprint
    monkeypatch.setattr(local, "hash", "2" * 40)
    with pytest.raises(UniclozeError, match=rf"{'2' * 40} \(split train, column data.text_field\) is new"):
        prepare(corpus, tmp_path / "out")
    sources._builder.cache_clear()


def test_a_dataset_that_changes_between_passes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = files(tmp_path / "files", train=TEXTS)
    real, passes = DatasetSource.documents, []

    def documents(self: DatasetSource, text_field: str, tally: Tally) -> Any:
        passes.append(1)
        if len(passes) == 2:
            files(place, train=[*TEXTS[:-1], TEXTS[-1].replace("parts", "halves")])
        return real(self, text_field, tally)

    monkeypatch.setattr(DatasetSource, "documents", documents)
    with pytest.raises(UniclozeError, match="changed while it was being read"):
        prepare(f"hf:{place}", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["files", "saved"])
def test_memory_does_not_grow_with_a_dataset(tmp_path: Path, form: str) -> None:
    import pyarrow

    text = "word " * 400

    def peak(count: int) -> tuple[int, int]:
        place = tmp_path / f"{form}{count}"
        texts = [f"{number} {text}" for number in range(count)]
        files(place, train=texts) if form == "files" else saved(place, texts)
        del texts
        before, most = pyarrow.total_allocated_bytes(), 0
        tracemalloc.start()
        for _ in DatasetSource.of(f"hf:{place}").documents("text", Tally()):
            most = max(most, pyarrow.total_allocated_bytes() - before)
        python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return python, most

    peak(50)  # what is imported and cached once
    small, large = peak(8000), peak(20000)  # 16 MB and 40 MB of text; the library reads files in blocks of 10 MB
    assert large[0] < small[0] + 6e6 and large[1] < small[1] + 6e6


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ("hf:", "is not a valid dataset name: give hf:NAME"),
        ("hf:a/b:train:text:more", "is not a valid dataset name"),
        ("hf:json", "There is no folder json, and datasets on the Hub are named OWNER/NAME"),
        ("hf:./nowhere", r"There is no folder \./nowhere"),
        ("hf:nobody/nothing", r"hf:nobody/nothing cannot be read \(Couldn't reach 'nobody/nothing' on the Hub"),
        ("hf:{files}:nope", "has no split nope: name one of its splits, train, test"),
        ("hf:{files}:train:body", r'has no column "body": name one of its columns \(text, number\)'),
        ("hf:{files}:train:number", 'row 1: the column "number" holds int, not text'),
        ("hf:{saved}:test", "has no split test: name one of its splits, train"),
        ("hf:{saved}/state.json", "is a file: name its folder"),
        ("hf:{empty}", "cannot be read .*doesn't contain any data files"),
        ("hf:{script}", "cannot be read .*scripts are no longer supported"),
        ("hf:{broken}", "cannot be read"),
        ("hf:{cut}", "cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path, corpus: str, message: str) -> None:
    files(tmp_path / "files", train=TEXTS, test=TEXTS)
    saved(tmp_path / "saved")
    for name in ("empty", "script", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "script" / "script.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    (tmp_path / "broken" / "train.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    arrow = next(saved(tmp_path / "cut").glob("*.arrow"))
    arrow.write_bytes(arrow.read_bytes()[:100])
    names = {name: tmp_path / name for name in ("files", "saved", "empty", "script", "broken", "cut")}
    with pytest.raises(UniclozeError, match=message):
        read(corpus.format(**names))
    assert not (tmp_path / "executed").exists()


def test_the_extra_is_named_where_the_package_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = saved(tmp_path / "saved")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r'hf: needs the package datasets: .* pip install -e "\.\[datasets\]"'):
        prepare(f"hf:{place}", tmp_path / "out")
