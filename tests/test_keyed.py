from __future__ import annotations

import numpy as np
import pytest

from unicloze import keyed


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 1000, 4097])
def test_permutation_visits_everything_once(size: int) -> None:
    result = keyed.permutation(np.arange(size), size, 7)
    assert sorted(result.tolist()) == list(range(size))


def test_permutation_depends_on_the_key_and_not_on_the_company() -> None:
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


def test_below_stays_below_and_reaches_everything() -> None:
    keys = keyed.key(np.arange(3000))
    limits = np.array([1, 2, 7] * 1000)
    draws = keyed.below(keyed.bits(keys, 0, np.zeros(1, np.int64)), limits)
    for limit in (1, 2, 7):
        assert set(draws[limits == limit].tolist()) == set(range(limit))
