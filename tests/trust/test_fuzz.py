"""A minute of the search of `make fuzz`, with another seed than the few cases of test_signed_damage.py."""

from __future__ import annotations

import pytest

import fuzz

CASES = {
    "recipe": 200, "checkpoint-state": 230, "checkpoint-manifest": 900, "checkpoint-optimizer": 600, "lineage": 1100,
    "shard": 1400, "ledger": 90, "prompt": 1300, "tokenizer": 1100, "tokenizer-config": 850, "documents": 1800,
    "records": 1500, "squad": 1800, "answers": 1400, "config": 700, "arguments": 500,
    "vocabulary": 700, "task-config": 300, "sentence-files": 300,
}  # fmt: skip
"""As many of each format as take 4 seconds on one core."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> fuzz.World:
    return fuzz.World(tmp_path_factory.mktemp("world"))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(fuzz.FORMATS))
def test_mutations_end_in_one_sentence(
    world: fuzz.World, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(world.place)
    tried, found = fuzz.attack(world, name, CASES[name], 1)
    assert tried == CASES[name] and not found, found
