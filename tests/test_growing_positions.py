"""Rows longer than the model a task starts from: its positions are repeated, and this is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import nlu_toys
from nlu_toys import WORDS, events_of, finetuned
from unicloze import verbs
from unicloze.decoding.generate import generate
from unicloze.errors import UsageError
from unicloze.finetuning.initial import untrained
from unicloze.finetuning.run import finetune_run
from unicloze.recipes import load_recipe
from unicloze.settings import DecodingSettings, Recipe
from unicloze.training.initial import POSITION_ROWS
from unicloze.training.loading import LoadedModel, load_model


def start_of(recipe: str = "quickstart", **shape: Any) -> LoadedModel:
    return nlu_toys.start(recipe, **{"data__window": 512, "model__num_layers": 1, **shape})


def recipe_for(start: LoadedModel, task: str = "xsum", **overrides: Any) -> Recipe:
    return nlu_toys.recipe_for(start, task, **{"finetuning__epochs": 1, "training__batch_size": 2, **overrides})


def pairs(path: Path) -> Path:
    lines = [{"source": " ".join(WORDS * 90), "target": " ".join(WORDS[n:] * 6)} for n in range(4)]
    return nlu_toys.write(path, lines)


def test_a_source_of_720_and_a_target_of_48_tokens_are_learned_from_512_positions_which_are_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a learning rate that changes nothing."""
    start = start_of()
    recipe = recipe_for(start, training__learning_rate=1e-30, training__weight_decay=0.0)
    assert (recipe.model.max_positions, recipe.task.max_length) == (768, 768)
    with (
        pytest.warns(UserWarning, match="4 of 4 sources are longer than 720 tokens"),
        pytest.warns(UserWarning, match="learn almost nothing"),
    ):
        result = finetune_run(recipe, start, pairs(tmp_path / "train.jsonl"), None, tmp_path / "run")
    assert result.step == 2
    assert "positions 512 to 767 start as copies of the 512 that none has" in capsys.readouterr().err
    assert events_of(tmp_path / "run")[0]["changed"] == {"model.max_positions": [512, 768]}
    tuned = load_model(tmp_path / "run")
    known, grown = (each.model.state_dict()[POSITION_ROWS[0]] for each in (start, tuned))
    assert torch.equal(grown, torch.cat([known, known[:256]]))
    with pytest.warns(UserWarning, match="1 of 1 sources are longer than 720 tokens"):
        (written,) = verbs.generate(tuned, text=" ".join(WORDS * 90), quiet=True, overrides={"decoding.beams": 1})
    assert written["prediction"] is not None


@pytest.mark.parametrize(("task", "longest"), [
    ("cnndm", 768), ("xsum", 768), ("cnndm-v1", 768), ("gigaword", 512), ("generation", 512),
    ("squad-question-generation", 512), ("glue-mnli", 512),
])  # fmt: skip
def test_a_task_has_the_positions_its_rows_need(task: str, longest: int) -> None:
    recipe = recipe_for(start_of(), task)
    assert recipe.model.max_positions == longest
    assert recipe.task.max_length == load_recipe(task).task.max_length


def test_the_number_of_positions_may_be_given() -> None:
    start = start_of(data__window=32)
    assert recipe_for(start, "classification").model.max_positions == 128
    more = recipe_for(start, "classification", model__max_positions=200)
    assert (more.model.max_positions, more.task.max_length) == (200, 128)
    kept = recipe_for(start, "classification", model__max_positions=32)
    assert (kept.model.max_positions, kept.task.max_length) == (32, 32)
    with pytest.raises(UsageError, match=r"model\.max_positions is 31, but the model none has 32 .*: give 32 or"):
        recipe_for(start, "classification", model__max_positions=31)


def test_the_auxiliary_objective_has_the_positions_its_rows_need() -> None:
    start = start_of("prefix-denoising-base", data__window=32, model__max_positions=None)
    given = {"finetuning__auxiliary": {"lm": 0.5}, "task__max_length": 100}
    recipe = recipe_for(start, "classification", **given)
    assert recipe.model.max_positions is not None and recipe.model.max_positions > 128
    with pytest.raises(UsageError, match=r"needs \d+ positions for rows of 100 tokens, but the model has 128"):
        recipe_for(start, "classification", **given, model__max_positions=128)


@pytest.mark.parametrize("recipe", ["xlnet-base", "unilmv2-ablation-ae-par-relpos"])
def test_distances_need_no_rows(recipe: str, tmp_path: Path) -> None:
    """XLNet has no table; a relative bias is kept while the table grows."""
    start = start_of(recipe, data__window=32, **({"model__memory": 0} if recipe == "xlnet-base" else {}))
    task = recipe_for(start, "classification", task__max_length=80)
    assert task.model.max_positions == 80
    lines = ({"text": " ".join(WORDS * (1 + n)), "label": "ab"[n % 2]} for n in range(4))
    train = nlu_toys.write(tmp_path / "train.jsonl", list(lines))
    finetuned(task, start, train, None, tmp_path / "run")
    state = load_model(tmp_path / "run").model.state_dict()
    assert (POSITION_ROWS[0] in state) == (recipe != "xlnet-base")


def test_a_setting_of_the_model_that_a_task_changes_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = start_of(data__window=128)
    task = recipe_for(start, "classification", model__dropout=0.3)
    train = nlu_toys.write(tmp_path / "train.jsonl", [{"text": "anna", "label": "ab"[n % 2]} for n in range(4)])
    finetune_run(task, start, train, None, tmp_path / "run")
    assert "model.dropout is 0.3 (none: 0.0)" in capsys.readouterr().err
    assert events_of(tmp_path / "run")[0]["changed"] == {"model.dropout": [0.0, 0.3]}
    with pytest.raises(UsageError, match=r"model\.num_layers is 3, but the model none was trained with 1: leave it"):
        recipe_for(start, "classification", model__num_layers=3)


# Fine-tuning that starts from the random weights of a recipe.


GERMAN = {"rote": "red", "blaue": "blue", "alte": "old", "neue": "new", "gute": "good", "kleine": "small"}


def german_pairs(folder: Path) -> Path:
    (folder / "network.yaml").write_text(
        "base: transformer-tiny\ntokenizer: {vocab_size: 300}\n"
        "model: {num_layers: 1, decoder_layers: 1, hidden_size: 32, dropout: 0.0}\n"
    )
    lines = [{"source": f"{one} katze", "target": f"{two} cat"} for one, two in GERMAN.items()]
    return nlu_toys.write(folder / "pairs.jsonl", lines)


def test_the_tokenizer_learns_from_sources_and_targets_and_the_weights_repeat(tmp_path: Path) -> None:
    file, network = german_pairs(tmp_path), load_recipe("transformer-tiny", {"tokenizer.vocab_size": 300})
    task = load_recipe("transformer-multi30k")
    first, second = untrained(network, task, file), untrained(network, task, file)
    assert first.tokenizer.fingerprint == second.tokenizer.fingerprint
    assert len(first.tokenizer.encode("katze")) < 5 and len(first.tokenizer.encode(" cat")) < 3
    states = first.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    with pytest.raises(UsageError, match="recipe electra-small trains two networks: give a recipe of one"):
        untrained(load_recipe("electra-small"), task, file)


def test_the_tokenizer_of_a_choice_learns_from_its_texts_and_choices(tmp_path: Path) -> None:
    lines = [
        {"context": f"eine {one} katze", "choices": [one, f"{two} dog"], "label": 0} for one, two in GERMAN.items()
    ]
    shape = {"model.hidden_size": 24, "model.num_layers": 1, "model.num_heads": 2}
    network = load_recipe("bert-base", {"tokenizer.vocab_size": 300, **shape})
    model = untrained(network, load_recipe("choice"), nlu_toys.write(tmp_path / "choices.jsonl", lines))
    assert len(model.tokenizer.encode("katze")) == len(model.tokenizer.encode("dog")) == 1


@pytest.mark.slow
def test_a_transformer_learns_to_translate_from_nothing(tmp_path: Path) -> None:
    file = german_pairs(tmp_path)
    overrides = {
        "finetuning.epochs": 150, "finetuning.warmup_share": 0.2, "training.batch_size": 6, "training.device": "cpu",
        "training.label_smoothing": 0.0, "training.learning_rate": 0.01,
    }  # fmt: skip
    verbs.finetune(
        task="transformer-multi30k", model=tmp_path / "network.yaml", train=file, out=tmp_path / "run", quiet=True,
        overrides=overrides,
    )  # fmt: skip
    model = load_model(tmp_path / "run")
    assert model.recipe.model.decoder_layers == 1
    sources = [f"{one} katze" for one in GERMAN]
    for beams in (1, 4):
        found = generate(model, sources, DecodingSettings(beams=beams, max_length=8))
        assert [one.text for one in found] == [f"{two} cat" for two in GERMAN.values()]
