"""Pairs of S1 and S2: next-sentence prediction, sentence order, and static copies of their draws."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import toys
from corpora import toy_corpus
from test_windows import FIRST, VOCABULARY, make_sampler, make_source
from toys import token_source
from unicloze import keyed
from unicloze.errors import UsageError
from unicloze.example import collate
from unicloze.model.model import UnifiedModel
from unicloze.objectives import make_examples, settings_of
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe
from unicloze.settings import ModelSettings
from unicloze.text import windows as pairing
from unicloze.text.sampler import WindowSampler, check_segment_pairs
from unicloze.text.shards import TokenSource
from unicloze.text.windows import Pairs, Places, Windows


def segments_of(windows: Windows) -> tuple[list[list[int]], list[list[int]]]:
    """S1 and S2 of every row, without special tokens."""
    first, second = [], []
    for tokens, segment, length in zip(windows.token_ids, windows.segment_ids, windows.lengths, strict=True):
        text = tokens[:length]
        first.append(text[segment[:length] == 0][1:-1].tolist())
        second.append(text[segment[:length] == 1][:-1].tolist())
    return first, second


def ascending(folder: Path, lengths: list[int], *, name: str, first: int = FIRST) -> TokenSource:
    """Documents of ascending token ids from `first` on, so that a token names its document."""
    starts = first + np.cumsum([0, *lengths])
    return token_source(folder, [np.arange(*both) for both in itertools.pairwise(starts)], name=name)


def sentences(
    rng: np.random.Generator, words: Any, ends: Any, count: int, most: int = 7
) -> list[npt.NDArray[np.int64]]:
    """So many of 1 to `most` words and an end each."""
    return [np.append(rng.choice(words, rng.integers(1, most + 1)), rng.choice(ends)) for _ in range(count)]


def sentence_source(folder: Path, documents: int = 40, *, name: str = "s", seed: int = 0) -> TokenSource:
    """Documents of random tokens in sentences of 2 to 8 tokens; every id that is a multiple of 7 ends one."""
    rng = np.random.default_rng(seed)
    words = np.array([token for token in range(FIRST, VOCABULARY.size) if token % 7])
    ends = np.arange(7, VOCABULARY.size, 7)
    texts = [np.concatenate(sentences(rng, words, ends, rng.integers(1, 30))) for _ in range(documents)]
    return token_source(folder, texts, name=name)


# Properties of whole windows


@pytest.mark.parametrize("weights", [None, [1.0, 2.5]])
def test_half_of_the_next_sentences_are_of_another_document(tmp_path: Path, weights: list[float] | None) -> None:
    lengths = [90] * 10, [9, 30, 55, 3] * 5
    sources = ascending(tmp_path, lengths[0], name="a"), ascending(tmp_path, lengths[1], name="b", first=FIRST + 900)
    starts = FIRST + np.cumsum([0, *lengths[0], *lengths[1]])
    windows = make_sampler(*sources, window=23, weights=weights).read(7, 4000, pairs="next_sentence")
    assert windows.negative is not None and windows.negative.dtype == np.bool_
    assert abs(windows.negative.mean() - 0.5) < 4 * 0.5 / math.sqrt(4000)
    documents = []
    for one, two, negative in zip(*segments_of(windows), windows.negative, strict=True):
        assert one == list(range(one[0], one[0] + len(one))) and two == list(range(two[0], two[0] + len(two)))
        of_one, of_two = np.searchsorted(starts, [one[0], two[0]], side="right") - 1
        assert (of_one != of_two) == negative
        assert negative or two[0] == one[-1] + 1
        assert two[0] not in starts, "the beginning of a document would give it away"
        if negative:
            documents.append(of_two)
    counts = np.bincount(documents, minlength=30)
    assert counts.min() > 0
    # Windows of other documents are drawn nearly as often as they are read: excluding a row's own document changes little.
    number = np.array([math.floor(n / 20) + (n % 20 >= 2) for n in (*lengths[0], *lengths[1])], dtype=float)
    number[10:] *= 1.0 if weights is None else weights[1]
    expected = number / number.sum() * len(documents)
    assert (abs(counts - expected) < 5 * np.sqrt(expected) + 0.06 * expected).all()


def test_the_other_window_is_uniform_over_all_but_the_own_documents() -> None:
    """Two sources, of 10 and of 6 windows; the own document has windows 3 to 5 of the first."""
    rows = 40_000
    column = np.zeros(rows, dtype=np.int64)
    places = Places(run=column, start=column, length=column, first=column + 3, last=column + 6)
    source, index = pairing.other_documents(
        column, places, keyed.key(np.arange(rows)), windows=np.array([10, 6]), shares=np.array([10.0, 12.0])
    )
    counts = np.bincount(source * 10 + index, minlength=16)
    expected = rows * np.array([1, 1, 1, 0, 0, 0, 1, 1, 1, 1, *[2] * 6]) / 19
    assert (abs(counts - expected) <= 5 * np.sqrt(expected)).all()


@pytest.mark.parametrize("pairs", ["next_sentence", "sentence_order"])
def test_no_segment_alone_reveals_the_label(tmp_path: Path, pairs: Pairs) -> None:
    """Neither by its length nor by its beginning and end."""
    source = sentence_source(tmp_path, 60)
    sampler = make_sampler(source, window=43)
    windows = sampler.read(0, 6000, pairs=pairs)
    assert windows.negative is not None
    second = windows.segment_ids.sum(axis=1) - 1
    lengths = np.stack([windows.lengths, second, windows.lengths - second - 3], axis=1).astype(float)
    edges = [[one[0], one[-1], two[0], two[-1]] for one, two in zip(*segments_of(windows), strict=True)]
    for kind in (lengths, lengths**2, lengths == lengths.max(axis=0), np.array(edges) % 7 == 0):
        low, high = kind[~windows.negative], kind[windows.negative]
        error = np.sqrt(low.var(axis=0) / len(low) + high.var(axis=0) / len(high))
        assert (abs(low.mean(axis=0) - high.mean(axis=0)) <= 4 * error).all()


def test_next_sentence_lengths_are_the_same_for_either_label() -> None:
    rng = np.random.default_rng(0)
    text, others = rng.integers(5, 50, (2, 500, 12)).astype(np.int32)
    lengths, other_lengths = rng.integers(2, 13, (2, 500))
    cuts = pairing.uniform_cuts(lengths, keyed.key(np.arange(500)))
    segments = pairing.Segments(text=text, lengths=lengths, cuts=cuts)
    pieces = pairing.Segments(text=others, lengths=other_lengths, cuts=other_lengths)
    follows, does_not = (pairing.next_sentence(segments, pieces, np.full(500, negative)) for negative in (False, True))
    assert (follows.lengths == does_not.lengths).all() and (follows.cuts == does_not.cuts).all()
    assert (follows.cuts == segments.cuts).all() and (follows.lengths > follows.cuts).all()
    full = other_lengths == 12
    assert (follows.lengths[full] == lengths[full]).all(), "among full windows nothing is lost"
    for row in range(500):
        cut, length = follows.cuts[row], follows.lengths[row]
        own = text[row, : lengths[row]].tolist()
        assert follows.text[row, :length].tolist() == own[-length:]
        assert does_not.text[row, :cut].tolist() == own[-length:][:cut]
        second = does_not.text[row, cut:length].tolist()
        assert second == others[row, : other_lengths[row]].tolist()[-len(second) :] and len(second) < other_lengths[row]


def test_sentence_order_swaps_whole_sentences(tmp_path: Path) -> None:
    source = sentence_source(tmp_path, 30)
    sampler = make_sampler(source, window=43)
    contiguous = sampler.read(0, 3000)
    windows = sampler.read(0, 3000, pairs="sentence_order")
    assert windows.negative is not None
    assert abs(windows.negative.mean() - 0.5) < 4 * 0.5 / math.sqrt(3000)
    rows = zip(*segments_of(windows), *segments_of(contiguous), windows.negative, strict=True)
    for number, (one, two, before, after, negative) in enumerate(rows):
        whole, piece = (two + one if negative else one + two), before + after
        ends = [i for i, token in enumerate(piece) if token % 7 == 0]
        begins = sampler.name(0, int(windows.index[number])).first_token == 0
        left = 0 if begins else ends[0] + 1 if ends else len(piece)
        inner = [i for i in ends[:-1] if i >= left]
        if not inner:
            bounds = [-1, *ends, len(piece)]
            stretches = [piece[a + 1 : b] for a, b in itertools.pairwise(bounds)]
            longest = max(stretches, key=len)
            assert whole == (longest if len(longest) > 1 else piece)
            continue
        assert whole == piece[left : ends[-1] + 1], "whole sentences only"
        assert one[-1] % 7 == two[-1] % 7 == 0
        assert len(two if negative else one) + left - 1 in inner


@pytest.mark.whole
@pytest.mark.parametrize("tail", [2, 5, 12])
def test_documents_that_break_off_reveal_nothing_by_lengths_or_ends(tmp_path: Path, tail: int) -> None:
    """A table of the labels of half of the rows predicts nothing about the other half, by any feature."""
    rng = np.random.default_rng(tail)
    words = np.array([token for token in range(FIRST, VOCABULARY.size) if token % 7])
    closing = np.arange(FIRST + (-FIRST) % 7, VOCABULARY.size, 7)
    texts = []
    for _ in range(6000):
        whole = sentences(rng, words, closing, 9)[: rng.integers(0, 9)]
        texts.append(np.concatenate([*whole, rng.choice(words, rng.integers(2, tail + 2))]))
    windows = make_sampler(token_source(tmp_path, texts), window=43).read(0, 6000, pairs="sentence_order")
    assert windows.negative is not None
    pairs = list(zip(*segments_of(windows), strict=True))
    for listed in (
        [(len(one), len(two)) for one, two in pairs],
        [tuple(token % 7 == 0 for token in (one[0], one[-1], two[0], two[-1])) for one, two in pairs],
    ):
        votes: Counter[tuple[int, ...]] = Counter()
        for seen, negative in zip(listed[:3000], windows.negative[:3000], strict=True):
            votes[seen] += 1 if negative else -1
        guessed = [votes[seen] > 0 for seen in listed[3000:]]
        right = (np.array(guessed) == windows.negative[3000:]).mean()
        assert abs(right - 0.5) < 4 * 0.5 / math.sqrt(3000)


def test_sentence_cuts_are_uniform_over_the_ends() -> None:
    """Of the text "A.BC.D.E.F", the first sentence and the last begin or end outside of the window."""
    words, index = np.array([1, 0, 1, 1, 0, 1, 0, 1, 0, 1], np.int32), np.ones(3000, np.int64)
    lengths, keys = 10 * index, keyed.key(np.arange(3000))
    places = Places(run=index, start=index, length=lengths, first=index * 0, last=index + 9)
    text, cuts = np.tile(words, (3000, 1)), pairing.uniform_cuts(lengths, keys)
    segments, ends_sentence = pairing.Segments(text=text, lengths=lengths, cuts=cuts), np.array([True, False])
    ordered = pairing.sentence_order(segments, places, index, keys, ends_sentence, np.zeros(3000, bool))
    counts = np.bincount(ordered.cuts, minlength=8)
    assert counts.nonzero()[0].tolist() == [3, 5] and abs(counts[3] - 1500) < 5 * math.sqrt(750)
    assert (ordered.text[:, :7] == words[2:9]).all() and (ordered.lengths == 7).all()


@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("pairs", ["next_sentence", "sentence_order"])
def test_pairs_are_functions_of_the_position(tmp_path: Path, pairs: Pairs, copies: int | None) -> None:
    sampler = make_sampler(sentence_source(tmp_path), window=23)
    whole = sampler.read(0, 900, pairs=pairs, static_copies=copies)
    for start, count in ((0, 1), (5, 9), (sampler.epoch_size - 2, 5), (899, 1)):
        again = make_sampler(sentence_source(tmp_path), window=23)
        part = again.read(start, count, pairs=pairs, static_copies=copies)
        for field in dataclasses.fields(Windows):
            expected = getattr(whole, field.name)
            if expected is not None:
                assert (getattr(part, field.name) == expected[start : start + count]).all()
    held = [
        make_sampler(sentence_source(tmp_path), window=23, seed=seed).sequential(50, pairs=pairs) for seed in (1, 2)
    ]
    assert (held[0].token_ids == held[1].token_ids).all() and held[0].negative is not None
    assert 0 < held[0].negative.sum() < 50


# Static copies


@pytest.mark.parametrize("weight", [1.0, 2.0, 0.3, 1.5])
@pytest.mark.parametrize("pairs", ["contiguous", "next_sentence"])
def test_static_copies_repeat_after_so_many_passes(tmp_path: Path, weight: float, pairs: Pairs) -> None:
    heavy, light = make_source(tmp_path, [50] * 8, name="heavy"), make_source(tmp_path, [50] * 4, name="light")
    sampler = make_sampler(heavy, light, weights=[weight, 1.0])
    windows = sampler.read(0, math.ceil(8 / min(weight, 1)) * sampler.epoch_size, pairs=pairs, static_copies=3)
    anew = sampler.read(0, len(windows), pairs=pairs)
    assert (anew.index == windows.index).all(), "the order does not change"
    assert len(set(anew.keys.tolist())) == len(anew)
    assert len(set(windows.keys.tolist())) == 3 * sampler.num_windows
    for number in range(sampler.num_windows):
        source = int(number >= sampler.source_windows[0])
        index = number - source * sampler.source_windows[0]
        rows = np.flatnonzero((windows.source == source) & (windows.index == index))
        copies, copy, counts = np.unique(windows.keys[rows], return_inverse=True, return_counts=True)
        assert len(copies) == 3 and counts.min() >= 2 and counts.max() - counts.min() <= 1, "in turn, pass by pass"
        for number_of_copy in range(3):
            same = windows.token_ids[rows[copy == number_of_copy]]
            assert (same == same[0]).all()
        if weight == 1:
            assert copy[:3].tolist() == copy[3:6].tolist()


# What cannot be paired


def test_one_document_has_no_other(tmp_path: Path) -> None:
    sampler = make_sampler(make_source(tmp_path, [300, 1]))
    with pytest.raises(UsageError, match=r"all windows are from one document: give more documents"):
        sampler.read(0, 4, pairs="next_sentence")
    with pytest.raises(UsageError, match=r"all windows are from one document"):
        check_segment_pairs(sampler, "next_sentence")
    check_segment_pairs(make_sampler(make_source(tmp_path, [300, 2])), "next_sentence")


def test_text_without_sentences_has_no_order(tmp_path: Path) -> None:
    flat = np.array([token for token in range(FIRST, 2000) if token % 7])
    source = token_source(tmp_path, [flat])
    with pytest.raises(UsageError, match=r"only 0% of the windows hold two whole sentences: raise --data\.window"):
        check_segment_pairs(make_sampler(source), "sentence_order")
    check_segment_pairs(make_sampler(sentence_source(tmp_path, name="long"), window=43), "sentence_order")


@pytest.mark.parametrize("options", [{"segments": 1}, {"documents": "joined"}])
@pytest.mark.parametrize("pairs", ["next_sentence", "sentence_order"])
def test_pairs_need_two_segments_of_one_document(tmp_path: Path, options: dict[str, Any], pairs: Pairs) -> None:
    sampler = make_sampler(make_source(tmp_path), **options)
    with pytest.raises(UsageError, match=rf"objective\.pairs is {pairs}, .*--data\.segments 2 and --data\.documents"):
        check_segment_pairs(sampler, pairs)


def test_a_run_is_refused_before_its_first_step(tmp_path: Path) -> None:
    recipe = load_recipe("bert-base", toy_corpus(tmp_path, documents=1))
    with pytest.raises(UsageError, match="all windows are from one document"):
        pretrain_run(recipe, tmp_path / "run", progress=False)
    assert not list((tmp_path / "run").glob("checkpoints/*"))


# What a model learns from them


def train(batches: Iterable[Windows], sampler: WindowSampler, target: str) -> list[float]:
    """Loss of the label at each step."""
    settings = ModelSettings(
        hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, dropout=0.0, attention_dropout=0.0
    )
    model = UnifiedModel(
        settings, vocab_size=sampler.vocabulary.size, max_positions=sampler.window, targets=["ae", target]
    )
    model.initialize(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    objective = settings_of(name="masked", targets=["ae", target], masking="token")
    losses = []
    for windows in batches:
        loss = model(collate(make_examples(windows, sampler.vocabulary, objective)))[target]
        optimizer.zero_grad()
        (loss.total / loss.weight).backward()
        optimizer.step()
        losses.append(float(loss.total.detach() / loss.weight))
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(("target", "pairs"), [("nsp", "next_sentence"), ("sop", "sentence_order")])
def test_on_random_text_the_loss_stays_at_its_floor(tmp_path: Path, target: str, pairs: Pairs) -> None:
    """The label of independent tokens is unpredictable: no loss is below ln 2.

    If partial sentences were kept, sentence order would be learned after 100 steps.
    """
    rng, kinds = np.random.default_rng(3), toys.vocabulary(20)
    ends = np.flatnonzero(kinds.ends_sentence)
    words = np.array([i for i in kinds.ordinary if not kinds.ends_sentence[i]])
    texts = [np.concatenate(sentences(rng, words, ends, rng.integers(8, 20), most=5)) for _ in range(3900)]
    source = token_source(tmp_path, texts, vocab_size=20)
    sampler = WindowSampler([source], window=27, segments=2, vocabulary=kinds, seed=0)
    steps, rows = 200, 48
    assert sampler.num_windows > steps * rows
    batches = (sampler.read(step * rows, rows, pairs=pairs) for step in range(steps))
    late = np.array(train(batches, sampler, target)[100:])
    assert abs(late.mean() - math.log(2)) < 0.012
    assert late.mean() > math.log(2) - 4 * late.std() / math.sqrt(len(late))
