from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from toys import token_shard, token_source
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Target
from unicloze.objectives import make_examples, settings_of
from unicloze.text.sampler import WindowName, WindowSampler
from unicloze.text.shards import ShardWriter, TokenShard, TokenSource
from unicloze.text.vocabulary import Boundaries, Vocabulary

PAD, UNK, SOS, EOS, MASK, FIRST = 0, 1, 2, 3, 4, 5
VOCABULARY = Vocabulary(
    size=3000,
    pad=PAD,
    unk=UNK,
    sos=SOS,
    eos=EOS,
    mask=MASK,
    pseudo=None,
    special=np.arange(FIRST, dtype=np.int32),
    ordinary=np.arange(FIRST, 3000, dtype=np.int32),
    extra=np.zeros(0, dtype=np.int32),
    boundaries=Boundaries.marked(np.zeros(3000, dtype=bool)),
    ends_sentence=np.arange(3000) % 7 == 0,
)
LENGTHS = [23, 1, 40, 0, 7, 12, 2, 100]


def make_source(folder: Path, lengths: list[int] = LENGTHS, *, name: str = "s", num_shards: int = 1) -> TokenSource:
    """Documents of ascending token ids, so that every token identifies its place."""
    shards, token = [], FIRST
    for i in range(num_shards):
        mine = lengths[i::num_shards]
        starts = token + np.cumsum([0, *mine])
        texts = [np.arange(start, start + length) for start, length in zip(starts, mine, strict=False)]
        shards.append(token_shard(folder / f"{name}{i}.ds", texts))
        token = int(starts[-1])
    return TokenSource(name=name, shards=tuple(shards))


def make_sampler(*sources: TokenSource, window: int = 13, segments: int = 2, **options: object) -> WindowSampler:
    arguments = {"vocabulary": VOCABULARY, "seed": 1, **options}
    return WindowSampler(list(sources), window=window, segments=segments, **arguments)  # type: ignore[arg-type]


def naive_texts(source: TokenSource, joined: bool) -> list[list[int]]:
    """Documents, or all documents of each shard with [EOS] between them."""
    texts = []
    for shard in source.shards:
        documents = [tokens.tolist() for tokens in shard.documents()]
        stream: list[int] = []
        for document in documents:
            stream += [EOS, *document] if stream and document else document
        texts += [stream] if joined else documents
    return texts


def naive_pieces(source: TokenSource, piece: int, least: int, joined: bool = False) -> list[list[int]]:
    texts = naive_texts(source, joined)
    pieces = [text[at : at + piece] for text in texts for at in range(0, len(text), piece)]
    return [piece for piece in pieces if len(piece) >= least]


naive_joined = partial(naive_pieces, joined=True)


@pytest.mark.parametrize("documents", ["separate", "joined"])
@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("window", [5, 8, 13, 64, 300])
def test_windows_are_the_pieces_of_the_documents(
    tmp_path: Path, window: int, segments: int, num_shards: int, documents: str
) -> None:
    source = make_source(tmp_path, [0, *LENGTHS, 3, 1, 1, 9, 0], num_shards=num_shards)
    sampler = make_sampler(source, window=window, segments=segments, documents=documents)
    expected = naive_pieces(source, window - 1 - segments, segments, documents == "joined")
    assert sampler.num_windows == sampler.epoch_size == len(expected)
    windows = sampler.read(0, sampler.epoch_size)
    assert sorted(windows.index.tolist()) == list(range(len(expected)))
    for row, index in enumerate(windows.index.tolist()):
        length = int(windows.lengths[row])
        tokens, segment = windows.token_ids[row, :length], windows.segment_ids[row, :length]
        parts = [tokens[segment == number].tolist() for number in range(segments)]
        assert parts[0].pop(0) == SOS and all(part.pop() == EOS and part for part in parts)
        assert [token for part in parts for token in part] == expected[index]
        assert (windows.token_ids[row, length:] == PAD).all() and not windows.segment_ids[row, length:].any()
    assert (windows.maskable == (windows.token_ids >= FIRST)).all(), "separators are not maskable"
    if documents == "joined":
        assert (windows.lengths < window).sum() <= num_shards, "all windows but the last of a shard are full"


def test_reading_is_random_access_over_epochs(tmp_path: Path) -> None:
    sampler = make_sampler(make_source(tmp_path))
    total = 3 * sampler.epoch_size
    whole = sampler.read(0, total)
    for start, count in ((0, 1), (5, 9), (sampler.epoch_size - 2, 5), (total - 1, 1)):
        part = make_sampler(make_source(tmp_path)).read(start, count)
        for name in ("token_ids", "segment_ids", "lengths", "maskable", "keys", "source", "index"):
            assert (getattr(part, name) == getattr(whole, name)[start : start + count]).all()


def test_epochs_have_orders_keys_and_splits_of_their_own(tmp_path: Path) -> None:
    sampler = make_sampler(make_source(tmp_path))
    size = sampler.epoch_size
    first, second = sampler.read(0, size), sampler.read(size, size)
    assert sorted(first.index.tolist()) == sorted(second.index.tolist())
    assert first.index.tolist() != second.index.tolist()
    assert len({*first.keys.tolist(), *second.keys.tolist()}) == 2 * size
    assert make_sampler(make_source(tmp_path), seed=2).read(0, size).index.tolist() != first.index.tolist()


def test_the_split_point_is_uniform(tmp_path: Path) -> None:
    sampler = make_sampler(make_source(tmp_path, [10] * 50), window=13)
    windows = sampler.read(0, 9000)
    splits = (windows.token_ids == EOS).argmax(axis=1) - 1
    counts = np.bincount(splits, minlength=10)
    assert counts[0] == 0 and len(counts) == 10
    assert (abs(counts[1:] - 1000) < 5 * np.sqrt(1000 * 8 / 9)).all()


@pytest.mark.parametrize(("weight", "epochs"), [(1.0, 1), (2.0, 1), (0.5, 2), (0.3, 10), (1.5, 2)])
def test_weights_pass_evenly_over_a_source(tmp_path: Path, weight: float, epochs: int) -> None:
    heavy = make_source(tmp_path, [10] * 20, name="heavy")
    light = make_source(tmp_path, [10] * 10, name="light")
    sampler = make_sampler(heavy, light, window=13, weights=[weight, 1.0])
    assert sampler.epoch_size == round(weight * 20) + 10
    assert sampler.rows_of_a_pass == sampler.epoch_size / max(weight, 1.0)
    windows = sampler.read(0, epochs * sampler.epoch_size)
    counts = np.bincount(windows.index[windows.source == 0], minlength=20)
    assert (counts == round(weight * epochs)).all()
    assert (np.bincount(windows.index[windows.source == 1]) == epochs).all()


def test_a_part_of_a_pass_is_not_the_beginning_of_the_source(tmp_path: Path) -> None:
    sampler = make_sampler(make_source(tmp_path, [10] * 40), window=13, weights=[0.25])
    assert sorted(sampler.read(0, 10).index.tolist()) != list(range(10))


def test_special_tokens_in_the_text_are_not_maskable(tmp_path: Path) -> None:
    source = token_source(tmp_path, [[10, UNK, 11, EOS, 12]])
    windows = make_sampler(source, window=8, segments=1).read(0, 1)
    assert windows.token_ids[0].tolist() == [SOS, 10, UNK, 11, EOS, 12, EOS, PAD]
    assert windows.maskable[0].tolist() == [False, True, False, True, False, True, False, False]
    assert windows.marks is None, "spans are only read if they are asked for"


def test_sequential_is_spread_and_fixed(tmp_path: Path) -> None:
    first, second = make_source(tmp_path, [100] * 10, name="a"), make_source(tmp_path, [100] * 10, name="b")
    sampler = make_sampler(first, second)
    windows = sampler.sequential(20)
    numbers = windows.source * 100 + windows.index
    assert numbers.tolist() == list(range(0, 200, 10))
    again = make_sampler(first, second, seed=99, weights=[1.0, 3.0]).sequential(20)
    assert (again.keys == windows.keys).all() and (again.token_ids == windows.token_ids).all()
    assert len(sampler.sequential(10_000)) == sampler.num_windows


@pytest.mark.parametrize("documents", ["separate", "joined"])
@pytest.mark.parametrize("num_shards", [1, 2])
def test_names_of_windows_are_of_their_first_token(tmp_path: Path, num_shards: int, documents: str) -> None:
    source = make_source(tmp_path, num_shards=num_shards)
    sampler = make_sampler(source, window=8, segments=1, documents=documents)
    windows = sampler.sequential(sampler.num_windows)
    separators = 0
    for row in range(len(windows)):
        name = sampler.name(int(windows.source[row]), int(windows.index[row]))
        shard = next(shard for shard in source.shards if name.file in dict(shard.files))
        document = [*shard.documents()][dict(shard.files)[name.file] + name.document]
        if windows.token_ids[row, 1] == EOS:
            separators += 1
            assert name.first_token == len(document), "a separator ends its document"
        else:
            assert document[name.first_token] == windows.token_ids[row, 1]
        assert name.byte == 10 * name.first_token
    assert bool(separators) == (documents == "joined")
    assert str(sampler.name(0, 1)) == "s0-0.txt, document 0, token 6, near byte 60"


def naive_borders(source: TokenSource, piece: int, least: int, joined: bool) -> dict[int, tuple[bool, bool]]:
    """By number of a piece: whether a document begins where it begins, and ends where it ends."""
    borders: list[tuple[bool, bool]] = []
    for text in naive_texts(source, joined):
        for at in range(0, len(text), piece):
            if len(text[at : at + piece]) >= least:
                begins, ends = text[at - 1 : at] in ([], [EOS]), text[at + piece : at + piece + 1] in ([], [EOS])
                borders.append((at == 0 or begins, ends))
    return dict(enumerate(borders))


@pytest.mark.parametrize("documents", ["separate", "joined"])
@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("window", [8, 13, 64, 300])
def test_the_end_of_a_document_is_predicted_and_a_cut_inside_it_is_not(
    tmp_path: Path, window: int, segments: int, documents: str
) -> None:
    """Labels of causal models from left to right and from right to left, and of prefix models, on windows of real shards."""
    source = make_source(tmp_path, [0, *LENGTHS, 3, 1, 1, 9, 0], num_shards=2)
    sampler = make_sampler(source, window=window, segments=segments, documents=documents)
    borders = naive_borders(source, window - 1 - segments, segments, documents == "joined")
    windows = sampler.read(0, sampler.epoch_size)
    assert len(borders) == len(windows) and all({ends for _, ends in borders.values()}) == (window > 64)
    rightward, leftward, prefix = (
        make_examples(windows, VOCABULARY, settings_of(targets=["lm"], **given)).targets["lm"]
        for given in (
            {"name": "causal", "visibility": "left_to_right"},
            {"name": "causal", "visibility": "right_to_left"},
            {"name": "prefix", "mask_rate": 0.5},
        )
    )
    for row, index in enumerate(windows.index.tolist()):
        (begins, ends), last = borders[index], int(windows.lengths[row]) - 1
        inner = [at for at in range(1, last) if windows.token_ids[row, at] == EOS]
        if segments == 2:
            inner.remove(int(windows.segment_ids[row].argmax()) - 1)  # the [EOS] of S1

        def predicted(target: Target, shift: int, row: int = row) -> list[int]:
            special = (target.labels[row] < FIRST) & (target.weights[row] > 0)
            return sorted((target.slots[row] + shift)[special].tolist())

        assert predicted(rightward, 1) == inner + [last] * ends
        assert predicted(leftward, -1) == [0] * begins + inner
        assert len(predicted(prefix, 1)) == ends


def test_joined_documents_of_a_part_of_a_shard(tmp_path: Path) -> None:
    """Held-out documents lie between others, whose tokens must not be read."""
    texts = np.split(np.arange(FIRST, FIRST + 26), [5, 11, 18])
    part = token_source(tmp_path, texts, chosen=[1, 3])
    windows = make_sampler(part, window=17, segments=1, documents="joined").read(0, 1)
    first, second = FIRST + 5, FIRST + 18
    assert windows.token_ids[0].tolist() == [
        SOS, *range(first, first + 6), EOS, *range(second, second + 8), EOS
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("window", "segments", "text"),
    [(4, 2, "3 special tokens and 2"), (0, 2, "3 special tokens and 2"), (2, 1, "2 special tokens and 1")],
)
def test_a_window_shorter_than_the_specials(tmp_path: Path, window: int, segments: int, text: str) -> None:
    source, least = make_source(tmp_path, [30]), 1 + 2 * segments
    assert make_sampler(source, window=least, segments=segments).num_windows == 30 // segments
    expected = f"data.window is {window}, too short for {text} of text: set it to at least {least}."
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
        make_sampler(source, window=window, segments=segments)


@pytest.mark.parametrize(
    ("lengths", "weights", "problem"),
    [
        ([30], [1.0, 2.0], "data.weights has 2 values for 1 sources: give one per source."),
        ([30], [-0.5], "data.weights contains -0.5: weights must be at least 0."),
        ([30], [0.1], "data.weights gives s 0.1 of its windows, which rounds to none: raise it, or drop the source."),
        ([30], [0.0], "There is no window in s: every document is too short"),
        ([1, 0], None, "There is no window in s: every document is too short"),
        ([], None, "There is no window in the sources: every document is too short"),
    ],
)
def test_bad_weights_and_missing_windows(
    tmp_path: Path, lengths: list[int], weights: list[float] | None, problem: str
) -> None:
    sources = [make_source(tmp_path, lengths)] if lengths else []
    with pytest.raises(UniclozeError, match=f"^{re.escape(problem)}"):
        make_sampler(*sources, weights=weights)


def test_an_empty_source_beside_a_full_one(tmp_path: Path) -> None:
    full, empty = make_source(tmp_path), make_source(tmp_path, [0, 1], name="e")
    shorter = make_source(tmp_path, [1], name="f")
    with pytest.warns(UserWarning) as found:
        sampler = make_sampler(empty, full, shorter, weights=[2.0, 1.0, 0.0])
    expected = "data.weights has no effect on e, f: none of their documents is long enough for a window"
    assert [(warning.filename, str(warning.message)) for warning in found] == [(__file__, expected)]
    assert set(sampler.read(0, sampler.epoch_size).source.tolist()) == {1}
    assert make_sampler(empty, full).num_windows == sampler.num_windows, "and without weights no warning"
    one = make_sampler(empty, make_source(tmp_path, [2], name="g"))
    assert one.rows_of_a_pass == one.num_windows == 1


def test_lines_of_windows(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a.ds", vocab_size=50, tokenizer_name="toy") as writer:
        for number, size in enumerate([25, 12, 11]):
            writer.begin_file(f"a{number // 2}.txt")
            writer.write(np.arange(size) + FIRST, 10 * size, line=(3 * number + 3) * (number < 2))
    sampler = make_sampler(TokenSource(name="a", shards=(TokenShard.open(tmp_path / "a.ds"),)))
    names = [sampler.name(0, index) for index in range(sampler.num_windows)]
    expected = [
        ("a0.txt", 3, 0, 0), ("a0.txt", 3, 0, 10), ("a0.txt", 3, 0, 20), ("a0.txt", 6, 1, 0), ("a0.txt", 6, 1, 10),
        ("a1.txt", None, 0, 0),
    ]  # fmt: skip
    assert names == [
        WindowName(source="a", file=file, line=line, document=document, first_token=token, byte=10 * token)
        for file, line, document, token in expected
    ]
    assert str(names[1]) == "a0.txt, line 3, token 10, near byte 100"
    assert str(replace(names[5], byte=None)) == "a1.txt, document 0, token 0"


@pytest.mark.parametrize(("weight", "windows"), [(0.58, 6), (0.55, 6), (0.54, 5), (1.46, 15)])
def test_a_weight_is_rounded_to_the_nearest_number_of_windows(tmp_path: Path, weight: float, windows: int) -> None:
    source = make_source(tmp_path, [10] * 10)
    assert make_sampler(source, window=13, weights=[weight]).epoch_size == windows


@pytest.mark.parametrize("token", [3000, 4000])
def test_ids_the_tokenizer_does_not_have(tmp_path: Path, token: int) -> None:
    source = token_source(tmp_path, [[10, token, 2999]], vocab_size=5000)
    with pytest.raises(UniclozeError, match=f"holds token id {token}, but the tokenizer has only 3000 ids"):
        make_sampler(source).read(0, 1)
