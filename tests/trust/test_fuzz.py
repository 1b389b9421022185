"""A part of the search of `make fuzz`: little of it in `make test`, more with another seed in `make test-slow`."""

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
FEW = {"recipe": 60, "ledger": 60, "sentence-files": 150}
"""Of formats whose cases take long; 200 of the others."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> fuzz.World:
    return fuzz.World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.whole), pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(fuzz.FORMATS))
def test_mutations_end_in_one_sentence(
    world: fuzz.World, name: str, seed: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(world.place)
    cases = CASES[name] if seed else FEW.get(name, 200)
    tried, found = fuzz.attack(world, name, cases, seed)
    assert tried == cases and not found, found
