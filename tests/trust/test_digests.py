"""Damaged prepared text is never trained on: it is detected and reported before an update."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corpora import write_corpus
from unicloze.cli import main
from unicloze.errors import UniclozeError
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.text import digests
from unicloze.text.counts import Counts
from unicloze.text.phrases import PhraseTable, find_phrases
from unicloze.text.prepare import Prepared, prepare_data
from unicloze.text.sampler import WindowSampler
from unicloze.text.tokenizers import Tokenizer
from unicloze.training import batches
from unicloze.training.checkpoint import list_checkpoints
from unicloze.training.ledger import read_ledger

BLOCK = 512
"""Bytes of a block here, so that a small corpus has many."""
TOKENIZER = TokenizerSettings(vocab_size=200)
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "BLOCK", BLOCK)
    monkeypatch.setattr(digests, "SMALL", 2 * BLOCK)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus", documents=120)


@pytest.fixture
def prepared(corpus: Path, tmp_path: Path) -> Path:
    data = DataSettings(corpus=[str(corpus)], heldout_share=0.1)
    return prepare_data(data, TOKENIZER, tmp_path / "data", progress=False).folder


def change(file: Path, how: Callable[[Bytes], object]) -> None:
    content = np.fromfile(file, dtype=np.uint8)
    how(content)
    content.tofile(file)


def flip(content: Bytes) -> None:
    content[2 * len(content) // 3] ^= 1


def reverse(content: Bytes) -> None:
    content[:] = content.view("<u2")[::-1].copy().view(np.uint8) if len(content) % 2 == 0 else content[::-1].copy()


def zero(content: Bytes) -> None:
    content[len(content) // 2 :] = 0


def swap_blocks(content: Bytes) -> None:
    content[: 2 * BLOCK] = np.concatenate([content[BLOCK : 2 * BLOCK], content[:BLOCK]])


def rows(folder: Path) -> WindowSampler:
    opened = Prepared.load(folder)
    return WindowSampler(opened.train, window=32, segments=1, vocabulary=opened.tokenizer.vocabulary, seed=0)


def read_all(folder: Path) -> None:
    sampler = rows(folder)
    for first in range(sampler.num_windows):
        sampler.read(first, 1)


@pytest.mark.parametrize("damage", [flip, reverse, zero, swap_blocks])
@pytest.mark.parametrize("part", ["train", "heldout"])
def test_damaged_tokens_are_found(prepared: Path, part: str, damage: Callable[[Bytes], None]) -> None:
    file = prepared / part / "corpus.ds"
    change(file, damage)
    with pytest.raises(UniclozeError, match=rf"{part}/corpus\.ds is damaged between bytes [\d,]+ and [\d,]+: remove"):
        Prepared.load(prepared, verify=True)
    if part == "train":
        with pytest.raises(UniclozeError, match=r"train/corpus\.ds is damaged between bytes"):
            read_all(prepared)


def test_heldout_text_in_the_place_of_training_text_is_found(prepared: Path) -> None:
    train, heldout = (np.fromfile(prepared / part / "corpus.ds", dtype=np.uint8) for part in ("train", "heldout"))
    train[: len(heldout)] = heldout
    train.tofile(prepared / "train" / "corpus.ds")
    with pytest.raises(UniclozeError, match=r"train/corpus\.ds is damaged between bytes 0 and 512"):
        Prepared.load(prepared)


ENDS = ".index", ".bytes", ".lines", ".json", ".metadata"
SMALL_FILES = [
    *(f"{part}/corpus.ds{end}" for part in ("train", "heldout") for end in ENDS),
    *("tokenizer.json", "tokenizer_config.json", "digests.json", "lineage.json"),
]


@pytest.mark.parametrize("damage", [flip, reverse, zero])
@pytest.mark.parametrize("name", SMALL_FILES)
def test_damage_to_every_small_file_is_found_when_the_folder_is_opened(
    prepared: Path, name: str, damage: Callable[[Bytes], None]
) -> None:
    change(prepared / name, damage)
    with pytest.raises(UniclozeError, match=rf"{Path(name).name} .*prepare again\.$"):
        Prepared.load(prepared)


def test_a_changed_figure_of_the_lineage_is_found(prepared: Path) -> None:
    file = prepared / "lineage.json"
    content = json.loads(file.read_text())
    content["sources"][0]["train"]["bytes"] += 1
    file.write_text(json.dumps(content))
    with pytest.raises(UniclozeError, match=r"lineage\.json is damaged \(its seal does not fit it\)"):
        Prepared.load(prepared)


def test_only_blocks_that_are_read_are_checked_and_each_once(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = prepared / "train" / "corpus.ds"
    last = file.stat().st_size // BLOCK
    change(file, lambda content: content.__setitem__(slice(last * BLOCK, None), 0))
    sampler, hashed = rows(prepared), list[int]()
    sha256 = digests.hashlib.sha256
    monkeypatch.setattr(digests.hashlib, "sha256", lambda raw: (hashed.append(len(raw)), sha256(raw))[1])
    sampler.sequential(10)
    once = len(hashed)
    assert 0 < once <= 10 < last
    sampler.sequential(10)
    assert len(hashed) == once
    with pytest.raises(UniclozeError, match=f"between bytes {last * BLOCK:,} and {file.stat().st_size:,}"):
        read_all(prepared)


def test_stretches_that_span_many_blocks_are_checked_throughout(prepared: Path) -> None:
    change(prepared / "train" / "corpus.ds", lambda content: content.__setitem__(3 * BLOCK, content[3 * BLOCK] ^ 1))
    opened = Prepared.load(prepared)
    for use in (
        lambda: Counts.of(opened.train, opened.tokenizer.vocabulary),
        lambda: find_phrases(opened.train, opened.tokenizer),
        lambda: WindowSampler(
            opened.train, window=900, segments=1, vocabulary=opened.tokenizer.vocabulary, seed=0, documents="joined"
        ).sequential(3),
    ):
        with pytest.raises(UniclozeError, match="between bytes 1,536 and 2,048"):
            use()


def test_shards_in_other_folders_are_checked_too(prepared: Path, tmp_path: Path) -> None:
    data = DataSettings(corpus=[str(prepared / "train")], heldout_share=0.1)
    second = prepare_data(data, TokenizerSettings(path=str(prepared)), tmp_path / "second", progress=False).folder
    names = json.loads((second / "digests.json").read_text())["files"]
    assert str(prepared / "train" / "corpus.ds") in names and "train/train.0.documents" in names
    decisions = second / "train" / "train.0.documents"
    before = decisions.read_bytes()
    change(decisions, lambda content: content.view("<u8").__setitem__(0, content.view("<u8")[0] + 1))
    with pytest.raises(UniclozeError, match=r"train\.0\.documents is damaged"):
        Prepared.load(second)
    decisions.write_bytes(before)
    change(prepared / "train" / "corpus.ds", reverse)
    with pytest.raises(UniclozeError, match=r"train/corpus\.ds is damaged between bytes 0 and 512"):
        Prepared.load(second)


def test_a_corpus_of_equal_size_and_time_is_read_when_it_is_prepared_again(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["prepare", "--data.corpus", str(corpus), "--tokenizer.vocab_size", "200", "--quiet"]
    words += ["--out", str(tmp_path / "data")]
    assert main(words) == main(words) == 0
    time = corpus.stat().st_mtime_ns
    change(corpus, lambda content: content.__setitem__(0, ord("T")))
    os.utime(corpus, ns=(time, time))
    assert main(words) == 1
    assert f"{corpus} has changed" in capsys.readouterr().err


@pytest.mark.whole
def test_a_run_stops_before_the_update_and_keeps_what_it_learnt(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "WINDOWS_AT_ONCE", 2)
    out = tmp_path / "run"
    settings = {
        **toy_overrides(), "data.corpus": [str(corpus)], "data.window": 32, "training.steps": 60,
        "training.batch_size": 2, "training.save_every": 50, "tokenizer.vocab_size": 200,
        "training.evaluate_every": 0, "training.precision": "fp32",
        "training.schedule": "constant",
    }  # fmt: skip
    pretrain_run(load_recipe("unilmv2-base", {**settings, "training.steps": 1}), out, progress=False)
    file = out / "data" / "train" / "corpus.ds"
    whole = file.read_bytes()
    change(file, lambda content: content.__setitem__(slice(4 * BLOCK, 5 * BLOCK), 0))
    recipe = load_recipe("unilmv2-base", settings)
    with pytest.raises(UniclozeError, match=r"corpus\.ds is damaged between bytes 2,048 and 2,560"):
        pretrain_run(recipe, out, progress=False)
    assert "prefetch" not in {thread.name for thread in threading.enumerate()}
    events = list(read_ledger(out / "ledger.jsonl"))
    saved = list_checkpoints(out / "checkpoints")
    assert events[-1]["event"] == "failed" and 1 < events[-1]["step"] < 50
    assert saved[-1].name == f"step-{events[-1]['step']:08d}"
    with pytest.raises(UniclozeError, match="between bytes 2,048 and 2,560"):
        pretrain_run(recipe, out, progress=False, verify=True)
    file.write_bytes(whole)
    assert pretrain_run(recipe, out, progress=False).step == 60


def test_damaged_phrases_are_found(prepared: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(prepared)
    PhraseTable([tokenizer.encode("the old cat"), tokenizer.encode("a red house")], tokenizer.vocabulary).save(
        tmp_path / "phrases", tokenizer, {}
    )
    file = tmp_path / "phrases" / "phrases.json"
    saved = json.loads(file.read_text())
    saved["phrases"][0][-1] += 1
    file.write_text(json.dumps(saved))
    with pytest.raises(UniclozeError, match=r"phrases\.json is damaged \(its SHA-256 is not the one"):
        PhraseTable.load(tmp_path / "phrases", tokenizer.vocabulary, {})
