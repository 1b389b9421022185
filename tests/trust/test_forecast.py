"""What does not fit in memory is refused before any work, with a suggestion that fits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import nlu_toys
from corpora import write_corpus
from unicloze import cores, doctor
from unicloze.comparison import compare
from unicloze.errors import UsageError
from unicloze.finetuning.run import finetune_run
from unicloze.model.build import shapes_only
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, recipe_names, toy_overrides
from unicloze.settings import Recipe
from unicloze.training import memory as forecast
from unicloze.training.loading import LoadedModel, shape_model
from unicloze.training.memory import memory_of, refuse_what_cannot_fit

CPU = torch.device("cpu")


def with_memory(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    monkeypatch.setattr(forecast, "memory_of", lambda _: int(size))


def weights_of(recipe: Recipe, vocabulary: int) -> int:
    with shapes_only():
        return sum(each.numel() for each in shape_model(recipe, vocabulary).parameters())


@pytest.mark.parametrize(("key", "value"), [
    ("tokenizer.vocab_size", 10**12), ("data.window", 10**9), ("training.batch_size", 10**9), ("model.num_layers", 10**6),
    ("model.hidden_size", 10**6), ("decoding.beams", 10**6),
])  # fmt: skip
def test_sizes_beyond_any_model_are_refused(key: str, value: int) -> None:
    with pytest.raises(UsageError, match=rf"{key} is {value}; it must be at most [\d,]+"):
        load_recipe("quickstart", {key: value})


def test_a_model_that_cannot_fit_is_refused_with_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("unilmv2-base")
    with_memory(monkeypatch, 2**30)
    with pytest.raises(UsageError, match=r"need 2 GiB .* only 1\.0 GiB: .* 67,108,864 weights or fewer"):
        refuse_what_cannot_fit(recipe, CPU, recipe.tokenizer.vocab_size)


@pytest.mark.whole
def test_rows_that_cannot_fit_are_refused_with_a_micro_batch_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("unilmv2-base", {"training.batch_size": 4096, "training.micro_batch_size": None})
    with_memory(monkeypatch, 16 * 2**30)
    with pytest.raises(UsageError, match=r"4,096 rows of 512 tokens .* --training\.micro_batch_size \d+$") as caught:
        refuse_what_cannot_fit(recipe, CPU, recipe.tokenizer.vocab_size)
    fits = int(str(caught.value).split()[-1])
    smaller = load_recipe("unilmv2-base", {"training.batch_size": 4096, "training.micro_batch_size": fits})
    refuse_what_cannot_fit(smaller, CPU, smaller.tokenizer.vocab_size)
    assert 1 < fits < 4096 and 4096 % fits == 0


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_fits_a_large_gpu_with_rows_one_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused where not even its weights with their gradients fit, and the refusal counts them right."""
    with_memory(monkeypatch, 80e9)
    recipe = load_recipe(name, {"training.micro_batch_size": 1})
    refuse_what_cannot_fit(recipe, CPU, recipe.tokenizer.vocab_size)
    with shapes_only():
        weights = sum(each.numel() for each in shape_model(recipe, recipe.tokenizer.vocab_size).state_dict().values())
    with_memory(monkeypatch, 4 * weights - 1)
    with pytest.raises(UsageError, match=r"the model has ([\d,]+) weights and would need") as caught:
        refuse_what_cannot_fit(recipe, CPU, recipe.tokenizer.vocab_size)
    said = int(re.findall(r"has ([\d,]+) weights", str(caught.value))[0].replace(",", ""))
    assert 0.99 * weights <= said <= weights


class TestTask:
    """Fine-tuning, whose rows are those of the records."""

    @pytest.fixture
    def start(self) -> LoadedModel:
        return nlu_toys.start()

    def records(self, place: Path, words: int, count: int = 8) -> Path:
        texts = [{"text": "the old cat " * words, "label": "ab"[number % 2]} for number in range(count)]
        return nlu_toys.write(place / "records.jsonl", texts)

    def test_a_model_that_cannot_fit_is_refused_before_anything_is_written(
        self, start: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe, place = nlu_toys.recipe_for(start, "classification"), self.records(tmp_path, 3)
        with_memory(monkeypatch, 1600)
        cure = r"start from a model of 100 weights or fewer, or train only its head \(--training\.frozen backbone\)"
        with pytest.raises(UsageError, match=cure):
            finetune_run(recipe, start, place, None, tmp_path / "run", progress=False)
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("few", [{"lora_rank": 2}, {"adapter_size": 2}])
    def test_frozen_weights_have_no_gradients_or_moments(
        self, start: LoadedModel, monkeypatch: pytest.MonkeyPatch, few: dict[str, int]
    ) -> None:
        values = {f"finetuning__{name}": value for name, value in few.items()}
        recipe = nlu_toys.recipe_for(start, "classification", task__labels=["a", "b"], **values)
        weights = weights_of(recipe, start.model.vocab_size)
        with_memory(monkeypatch, 4 * weights)
        forecast.refuse_task_that_cannot_fit(recipe, CPU, start.model.vocab_size, [20] * 8)
        whole = nlu_toys.recipe_for(start, "classification", task__labels=["a", "b"])
        with pytest.raises(UsageError, match="start from a model of"):
            forecast.refuse_task_that_cannot_fit(whole, CPU, start.model.vocab_size, [20] * 8)

    @pytest.mark.whole
    def test_rows_that_cannot_fit_are_refused_with_a_micro_batch_that_does(
        self, start: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = self.records(tmp_path, 12)
        recipe = nlu_toys.recipe_for(start, "classification", training__batch_size=8, finetuning__epochs=1)
        task = recipe.changed("task", labels=["a", "b"])
        weights = weights_of(task, start.model.vocab_size)
        model = recipe.model
        of_a_token = 2 * model.num_layers * (4 * model.hidden_size + 2 * model.intermediate_size)
        tokens = 2 + 36  # of a row: [SOS], the words, [EOS]
        with_memory(monkeypatch, 16 * weights + 5 * tokens * of_a_token)
        refused = r"^8 rows of 38 tokens at a time would need .*: give --training\.micro_batch_size 4$"
        with pytest.raises(UsageError, match=refused):
            finetune_run(recipe, start, place, None, tmp_path / "run", progress=False)
        smaller = nlu_toys.recipe_for(
            start, "classification", training__batch_size=8, training__micro_batch_size=4, finetuning__epochs=1
        )
        assert finetune_run(smaller, start, place, None, tmp_path / "run", progress=False).step == 1


def test_a_comparison_is_refused_before_its_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All contestants are checked, not the first alone, and probes too."""
    corpus = write_corpus(tmp_path / "corpus")
    file = tmp_path / "large.yaml"
    file.write_text("base: gpt\nname: large\n")
    small = {**toy_overrides(), "data.corpus": [str(corpus)]}
    large = load_recipe(str(file), {key: value for key, value in small.items() if key != "model.hidden_size"})
    with_memory(monkeypatch, 16 * weights_of(large, large.tokenizer.vocab_size) - 1)
    contestants = [load_recipe("gpt", small), large]
    monkeypatch.setattr(compare, "contestants", lambda *_, **__: contestants)
    with pytest.raises(UsageError, match=r"^large: the model has .* weights and would need"):
        compare.compare_recipes(["gpt", "large"], tmp_path / "out", budget=compare.Budget.parse("steps=1"), seeds=1)
    assert not (tmp_path / "out").exists()


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
    monkeypatch.setattr(cores, "CGROUPS", (limit,))
    limit.write_text(f"{2**27}\n")
    assert memory_of(CPU) == 2**27
    (found,) = doctor._memory()
    assert found.detail.startswith("0.1 GiB of this machine's ")
    limit.write_text("max\n")
    assert (memory_of(CPU) or 0) >= machine
