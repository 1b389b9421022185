"""Phrases: found as collocations or given in a file, marked in windows, and masked whole in a run."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corpora import toy_corpus, write_corpus
from toys import EOS, SOS, token_source, vocabulary
from unicloze.errors import UniclozeError, UsageError
from unicloze.pretraining import data
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.text import phrases
from unicloze.text.phrases import PhraseTable, find_phrases, given_phrases
from unicloze.text.prepare import prepare_data
from unicloze.text.sampler import WindowSampler
from unicloze.text.shards import TokenSource
from unicloze.text.tokenizers import Tokenizer, whitespace_tokenizer


def table(*phrases: list[int]) -> PhraseTable:
    return PhraseTable([np.array(phrase) for phrase in phrases], vocabulary())


# Marking; every third id continues a word


def test_single_words_and_special_tokens_are_not_phrases() -> None:
    assert table([10], [10, 12], [10, EOS, 11], [10, 11], [10, 11], []).phrases == [(10, 11)]
    tokens = np.array([[SOS, 10, 11, EOS]], dtype=np.int32)
    assert len(table()) == 0 and not table().joined(tokens, tokens > 6).any()


def marked_by_hand(row: list[int], phrases: list[list[int]]) -> list[int]:
    """A plain search for the phrases with the most words first, each from the left."""
    words: list[list[int]] = []
    for position, token in enumerate(row):
        if position and token > 6 and row[position - 1] > 6 and token % 3 == 0:
            words[-1].append(position)
        else:
            words.append([position])
    spelled = [tuple(row[p] for p in word) for word in words]
    cut: list[list[tuple[int, ...]]] = []
    for phrase in phrases:
        parts: list[list[int]] = []
        for token in phrase:
            if parts and token % 3 == 0:
                parts[-1].append(token)
            else:
                parts.append([token])
        cut.append([tuple(part) for part in parts])
    result, taken = [0] * len(row), set()
    for size in range(6, 1, -1):
        for first in range(len(words) - size + 1):
            here = range(first, first + size)
            if spelled[first : first + size] in cut and not taken & set(here):
                taken |= set(here)
                for position in [p for word in here for p in words[word]][1:]:
                    result[position] = 1
    return result


def test_marking_equals_reading_by_hand() -> None:
    draw = random.Random(0)
    tokens = np.array([[draw.choice([7, 8, 9, 10, 12, EOS]) for _ in range(40)] for _ in range(300)], dtype=np.int32)
    phrases = [[draw.choice([7, 8, 9, 10, 12]) for _ in range(draw.randint(2, 6))] for _ in range(60)]
    found = table(*phrases).joined(tokens, tokens > 6)
    expected = [marked_by_hand(row, phrases) for row in tokens.tolist()]
    assert found.sum() > 1000
    # A phrase that begins in the middle of a word is a separate word; no row contains it.
    assert found.astype(int).tolist() == expected


# Finding


def shard_of(folder: Path, documents: list[list[int]], vocab_size: int = 1000) -> TokenSource:
    return token_source(folder, documents, name="text", vocab_size=vocab_size)


def source_of(folder: Path, texts: list[str]) -> tuple[TokenSource, Tokenizer]:
    tokenizer = whitespace_tokenizer(" ".join(texts))
    return shard_of(folder, [ids.tolist() for ids in tokenizer.encode_batch(texts)]), tokenizer


def planted(count: int, seed: int = 0) -> list[str]:
    """Texts of random words in which "new york" and "as soon as" occur far more often than by chance."""
    draw = random.Random(seed)
    words = [f"w{i}" for i in range(40)] + [",", "42", "new york", "as soon as"]
    return [" ".join(draw.choice(words) for _ in range(60)) for _ in range(count)]


def test_planted_collocations_are_found_and_nothing_else(tmp_path: Path) -> None:
    source, tokenizer = source_of(tmp_path, planted(120))
    found = find_phrases([source], tokenizer)
    assert {tokenizer.decode(phrase) for phrase in found.phrases} == {"new york", "as soon", "soon as", "as soon as"}
    with pytest.raises(UsageError, match=r"no phrase of up to 3 words .* --data\.phrases FILE"):
        find_phrases([source], tokenizer, least_count=100_000)


def test_counts_are_those_of_a_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair of words that passes both thresholds, independent of how the text is split into parts."""
    texts = planted(60, seed=3)
    source, tokenizer = source_of(tmp_path, texts)
    alone, pairs, total = Counter[str](), Counter[tuple[str, ...]](), 0
    for text in texts:
        words = text.split()
        lettered = [any(map(str.isalpha, word)) for word in words]
        alone.update(word for word, fit in zip(words, lettered, strict=True) if fit)
        for size in (2, 3):
            runs = zip(*(words[i:] for i in range(size)), strict=False)
            pairs.update(run for i, run in enumerate(runs) if all(lettered[i : i + size]))
    total = sum(alone.values())
    expected = set()
    for several, count in pairs.items():
        chance = sum(math.log(alone[word] / total) for word in several)
        measure = (math.log(count / total) - chance) / (-(len(several) - 1) * math.log(count / total))
        if count >= 3 and measure >= 0.1:
            expected.add(" ".join(several))
    assert 50 < len(expected) < len(pairs) / 2
    for part in (2**20, 600):
        monkeypatch.setattr(phrases, "TOKENS_AT_ONCE", part)
        found = find_phrases([source], tokenizer, least_count=3, least_npmi=0.1)
        assert {tokenizer.decode(phrase) for phrase in found.phrases} == expected


def test_memory_is_bounded_and_what_is_frequent_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrases, "TOKENS_AT_ONCE", 500)
    source, tokenizer = source_of(tmp_path, planted(200))
    found = find_phrases([source], tokenizer, most_counted=400, least_count=50)
    assert "as soon as" in {tokenizer.decode(phrase) for phrase in found.phrases}
    counted = phrases._Counts(100)
    for _ in range(50):
        counted.add(np.random.default_rng(0).integers(0, 2**60, 300).astype(np.uint64))
        assert len(counted._names) <= 400
    few = find_phrases([source], tokenizer, most_phrases=2, most_tokens=6_000)
    assert len(few) == 2


def test_long_documents_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrases, "TOKENS_AT_ONCE", 1000)
    source, tokenizer = source_of(tmp_path, [" ".join(planted(100)), "a b", *planted(20)])
    read = [ids for ids, _, _ in phrases._Text([source], tokenizer, 10**9)]
    assert np.array_equal(np.concatenate(read), source.shards[0].tokens.values)
    assert max(map(len, read)) <= 2000
    assert "new york" in {tokenizer.decode(phrase) for phrase in find_phrases([source], tokenizer).phrases}


# Files


def test_saved_phrases_are_opened_as_they_were(tmp_path: Path) -> None:
    source, tokenizer = source_of(tmp_path, planted(120))
    found = find_phrases([source], tokenizer)
    origin = {"fingerprint": "abc", "phrases": "collocations"}
    found.save(tmp_path / "phrases", tokenizer, origin)
    assert PhraseTable.load(tmp_path / "phrases", tokenizer.vocabulary, origin).phrases == found.phrases
    assert "as soon as" in (tmp_path / "phrases" / "phrases.txt").read_text().splitlines()
    with pytest.raises(UniclozeError, match=r"is from .*abc.* but the run needs .*xyz.*: remove"):
        PhraseTable.load(tmp_path / "phrases", tokenizer.vocabulary, origin | {"fingerprint": "xyz"})
    (tmp_path / "phrases" / "phrases.json").write_bytes(b"no table")
    with pytest.raises(UniclozeError, match="is damaged"):
        PhraseTable.load(tmp_path / "phrases", tokenizer.vocabulary, origin)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_given_phrases_are_found_in_running_text(kind: Any, tmp_path: Path) -> None:
    texts = ["The post office of New York is old.", "An old post office, they say."] * 40
    tokenizer = Tokenizer.train(texts, TokenizerSettings(kind=kind, vocab_size=330))
    path = tmp_path / "mine.txt"
    path.write_text("\ufeffpost office\n\n  New York \noffice\n", encoding="utf-8")
    with pytest.warns(
        UserWarning, match=r"data\.phrases: 1 of the 3 lines of .*mine\.txt are ignored, such as 'office'"
    ):
        known = given_phrases(path, tokenizer)
    ids = tokenizer.encode_batch(["The post office of New York is old (New York)."])[0]
    joined = known.joined(ids[None], np.ones((1, len(ids)), dtype=bool))[0]
    phrases, current = [], []
    for token, goes_on in zip(ids.tolist(), joined.tolist(), strict=True):
        current = [*current, token] if goes_on else [token]
        phrases.append(tokenizer.decode(current).strip().lower())
    assert (phrases.count("post office"), phrases.count("new york")) == (1, 2)
    path.write_text("office\n")
    with pytest.raises(UsageError, match="has no phrase of two or more words"):
        given_phrases(path, tokenizer)


# Runs


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def test_the_sampler_marks_its_windows(corpus: Path, tmp_path: Path) -> None:
    prepared = prepare_data(
        DataSettings(corpus=[str(corpus)]), TokenizerSettings(vocab_size=400), tmp_path / "data", progress=False
    )
    found = find_phrases(prepared.train, prepared.tokenizer)
    arguments: dict[str, Any] = dict(window=32, segments=1, vocabulary=prepared.tokenizer.vocabulary, seed=0)
    windows = WindowSampler(prepared.train, **arguments, phrases=found).read(0, 8)
    assert windows.joined is not None
    before = windows.token_ids[np.nonzero(windows.joined)[0], np.nonzero(windows.joined)[1] - 1]
    assert set(prepared.tokenizer.tokens(windows.token_ids[windows.joined])) == {"office"}
    assert set(prepared.tokenizer.tokens(before)) == {"post"}
    assert WindowSampler(prepared.train, **arguments).read(0, 8).joined is None


WORDS = {"objective.mask_unit": "word", "data.spans_field": None, "training.phases": "[]"}
"""Settings of ERNIE that mask single words only."""


@pytest.mark.whole
def test_a_run_finds_its_phrases_once(corpus: Path, tmp_path: Path) -> None:
    toy = toy_overrides() | {"data.corpus": [str(corpus)]}
    out = tmp_path / "run"
    pretrain_run(load_recipe("ernie-base", toy), out, progress=False)
    origin = json.loads((out / "phrases" / "phrases.json").read_text())["origin"]
    assert origin["phrases"] == "collocations"
    assert (out / "phrases" / "phrases.txt").read_text() == "post office\n"
    (out / "phrases" / "phrases.txt").write_text("for people only")
    with pytest.warns(UserWarning, match="changes from 2 to 3"):
        pretrain_run(load_recipe("ernie-base", toy | {"training.steps": 3}), out, progress=False)
    assert (out / "phrases" / "phrases.txt").read_text() == "for people only"
    pretrain_run(load_recipe("ernie-base", toy | WORDS), tmp_path / "words", progress=False)
    assert not (tmp_path / "words" / "phrases").exists()


def test_a_run_uses_given_phrases_and_reports_if_there_are_none(corpus: Path, tmp_path: Path) -> None:
    toy = toy_overrides() | {"data.corpus": [str(corpus)]}
    mine = tmp_path / "mine.txt"
    mine.write_text("the red\nthe old\n")
    pretrain_run(load_recipe("ernie-base", toy | {"data.phrases": str(mine)}), tmp_path / "given", progress=False)
    assert set((tmp_path / "given" / "phrases" / "phrases.txt").read_text().splitlines()) == {"the red", "the old"}
    with pytest.raises(UsageError, match=r"there is no file gone\.txt"):
        pretrain_run(load_recipe("ernie-base", toy | {"data.phrases": "gone.txt"}), tmp_path / "a", progress=False)
    few = load_recipe("ernie-base", toy_corpus(tmp_path / "few", documents=3))
    with pytest.raises(UsageError, match="the corpus has no phrase"):
        pretrain_run(few, tmp_path / "b", progress=False)


@pytest.mark.parametrize(
    "part",
    [
        {"objective.mixture": "[{share: 1, mask_unit: phrase}, {share: 1}]"},
        {"training.phases": "[{share: 1}, {share: 1, objective: {mask_unit: phrase}}]"},
    ],
    ids=["mixture", "phases"],
)
def test_a_part_of_the_run_may_ask_for_phrases(
    part: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(data, "open_phrases", lambda *_, **__: asked.append("phrases"))
    data.phrases_for(load_recipe("ernie-base", WORDS), None, tmp_path)  # type: ignore[arg-type]
    assert not asked
    data.phrases_for(load_recipe("ernie-base", WORDS | part), None, tmp_path)  # type: ignore[arg-type]
    assert asked == ["phrases"]
