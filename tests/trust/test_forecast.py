"""What does not fit in memory is refused before any work, with a suggestion that fits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from corpora import write_corpus
from unicloze.errors import UsageError
from unicloze.recipes import load_recipe, recipe_names, toy_overrides
from unicloze.training import forecast
from unicloze.training.forecast import memory_of, refuse_what_cannot_fit
from unicloze.training.run import pretrain_run

CPU = torch.device("cpu")


def with_memory(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    monkeypatch.setattr(forecast, "memory_of", lambda _: int(size))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.vocab_size", 10**12), ("data.window", 10**9), ("training.batch_size", 10**9), ("model.num_layers", 10**6),
        ("model.hidden_size", 10**6), ("decoding.beams", 10**6),
    ],
)  # fmt: skip
def test_sizes_beyond_any_model_are_refused(key: str, value: int) -> None:
    with pytest.raises(UsageError, match=rf"{key} is {value}; it must be at most [\d,]+"):
        load_recipe("quickstart", {key: value})


def test_a_model_that_cannot_fit_is_refused_with_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("unilmv2-base")
    with_memory(monkeypatch, 2**30)
    with pytest.raises(
        UsageError, match=r"would need 2 GiB .* there are only 1\.0 GiB: .* 67,108,864 weights or fewer"
    ):
        refuse_what_cannot_fit(recipe, CPU, recipe.tokenizer.vocab_size)


def test_rows_that_cannot_fit_are_refused_with_a_micro_batch_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("unilmv2-base", {"training.batch_size": 4096, "training.micro_batch_size": None})
    with_memory(monkeypatch, 16 * 2**30)
    with pytest.raises(
        UsageError, match=r"4,096 rows of 512 tokens .*: give --training\.micro_batch_size \d+$"
    ) as caught:
        refuse_what_cannot_fit(recipe, CPU, recipe.tokenizer.vocab_size)
    fits = int(str(caught.value).split()[-1])
    smaller = load_recipe("unilmv2-base", {"training.batch_size": 4096, "training.micro_batch_size": fits})
    refuse_what_cannot_fit(smaller, CPU, smaller.tokenizer.vocab_size)
    assert 1 < fits < 4096 and 4096 % fits == 0


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_fits_a_large_gpu_with_rows_one_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_memory(monkeypatch, 80e9)
    recipe = load_recipe(name, {"training.micro_batch_size": 1})
    refuse_what_cannot_fit(recipe, CPU, recipe.tokenizer.vocab_size)


def test_nothing_is_written_for_a_run_that_cannot_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    recipe = load_recipe("unilmv2-base", {**toy_overrides(), "data.corpus": [str(corpus)]})
    with_memory(monkeypatch, 1000)
    with pytest.raises(UsageError, match="would need"):
        pretrain_run(recipe, tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "data").exists() and not (tmp_path / "run" / "recipe.yaml").exists()


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = memory_of(CPU)
    assert machine is not None and machine > 2**28
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(forecast, "_CGROUPS", (limit,))
    limit.write_text("123456\n")
    assert memory_of(CPU) == 123456
    limit.write_text("max\n")
    assert (memory_of(CPU) or 0) >= machine
