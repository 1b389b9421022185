from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import unicloze
from unicloze import keyed


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 1000, 4097])
def test_permutation_visits_everything_once(size: int) -> None:
    result = keyed.permutation(np.arange(size), size, 7)
    assert sorted(result.tolist()) == list(range(size))


def test_permutation_depends_on_the_key_alone() -> None:
    whole = keyed.permutation(np.arange(1000), 1000, 3)
    assert (keyed.permutation(np.array([500, 3]), 1000, 3) == whole[[500, 3]]).all()
    assert (keyed.permutation(np.arange(1000), 1000, 4) != whole).any()


def test_permutation_is_uniform_over_keys() -> None:
    size, bins, keys = 1000, 10, 1000
    counts = np.zeros((bins, bins))
    for key in keyed.key(np.arange(keys)):
        result = keyed.permutation(np.arange(0, size, bins), size, key)
        np.add.at(counts, (np.arange(0, size, bins) * bins // size, result * bins // size), 1)
    expected = counts.sum() / bins**2
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 81 + 5 * np.sqrt(2 * 81)  # mean and five deviations of (10 - 1)^2 degrees of freedom


def test_keys_of_rows_do_not_depend_on_other_rows() -> None:
    rows = keyed.key(1, np.arange(100), 5)
    assert rows.shape == (100,)
    assert len(set(rows.tolist())) == 100
    assert keyed.key(1, 42, 5)[0] == rows[42]
    assert keyed.key(1, 5, 42)[0] != rows[42]


def test_streams_and_counters_are_independent() -> None:
    keys, counters = keyed.key(np.arange(2000))[:, None], np.arange(8)[None, :]
    first, second = (keyed.uniform(keyed.bits(keys, stream, counters)) for stream in (0, 1))
    assert first.shape == (2000, 8)
    assert first.min() >= 0 and first.max() < 1
    for left, right in ((first, second), (first[:, :-1], first[:, 1:])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 4 / np.sqrt(left.size)
    assert abs(first.mean() - 0.5) < 4 * np.sqrt(1 / 12 / first.size)


def test_below_a_large_limit_is_the_upper_half_of_the_product() -> None:
    bits = keyed.bits(keyed.key(np.arange(50)), 0, np.zeros(1, np.int64))
    for limit in (2**32, 2**32 + 1, 3 * 10**10, 2**63 - 1):
        assert keyed.below(bits, limit).tolist() == [value * limit >> 64 for value in bits.tolist()]
    mixed = keyed.below(bits, np.where(np.arange(50) % 2, 2**40, 1000))
    assert (mixed[::2] == keyed.below(bits[::2], 1000)).all() and (mixed[1::2] == keyed.below(bits[1::2], 2**40)).all()


def test_below_stays_below_and_reaches_everything() -> None:
    keys = keyed.key(np.arange(3000))
    limits = np.array([1, 2, 7] * 1000)
    draws = keyed.below(keyed.bits(keys, 0, np.zeros(1, np.int64)), limits)
    for limit in (1, 2, 7):
        assert set(draws[limits == limit].tolist()) == set(range(limit))


def draws_in_source() -> Iterator[tuple[str, ast.Call]]:
    for file in sorted(Path(unicloze.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("keyed.bits", "keyed.key"):
                yield f"{file.name}: {ast.unparse(node)}", node


@pytest.mark.whole
def test_draws_name_their_stream_and_keys_their_purpose() -> None:
    calls = dict(draws_in_source())
    assert len(calls) > 30
    bare = [said for said, node in calls.items() if node.func.attr == "bits" and isinstance(node.args[1], ast.Constant)]
    # The key of `inspect` is (seed, 0, 0): the first sample of the first epoch.
    named = [
        arg for said, node in calls.items() if node.func.attr == "key" and "seed, 0, 0" not in said for arg in node.args
    ]
    assert not bare
    assert not [ast.unparse(arg) for arg in named if isinstance(arg, ast.Constant)]


def test_no_two_streams_of_one_key_have_one_number() -> None:
    of_a_row = [stream for stream in keyed.Stream.__members__.items() if stream[0] not in ("ONLY", "CONTENT_WORD")]
    numbers = [number for _, number in of_a_row]
    assert len(set(numbers)) == len(numbers)
    of_a_run = "EPOCH_ORDER", "SOURCE_ORDER", "LANE_SHIFT", "STATIC_COPY"
    of_finetuning = "RECORD_ORDER", "RECORD", "RECORD_OF_AUXILIARY"
    assert [int(keyed.Purpose[name]) for name in of_a_run] == [1, 2, 3, 4]
    assert [int(keyed.Purpose[name]) for name in of_finetuning] == [1, 2, 3]
