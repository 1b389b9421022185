"""Fine-tuning that starts from the random weights of a recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from unicloze import verbs
from unicloze.decoding.generate import generate
from unicloze.errors import UsageError
from unicloze.finetuning.initial import untrained
from unicloze.recipes import load_recipe
from unicloze.settings import DecodingSettings
from unicloze.training.loading import load_model

WORDS = {"rote": "red", "blaue": "blue", "alte": "old", "neue": "new", "gute": "good", "kleine": "small"}


def pairs(folder: Path) -> Path:
    lines = [json.dumps({"source": f"{one} katze", "target": f"{two} cat"}) for one, two in WORDS.items()]
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    (folder / "network.yaml").write_text(
        "base: transformer-tiny\ntokenizer: {vocab_size: 300}\n"
        "model: {num_layers: 1, decoder_layers: 1, hidden_size: 32, dropout: 0.0}\n"
    )
    return folder / "pairs.jsonl"


def test_the_tokenizer_learns_from_sources_and_targets_and_the_weights_repeat(tmp_path: Path) -> None:
    file, network = pairs(tmp_path), load_recipe("transformer-tiny", {"tokenizer.vocab_size": 300})
    task = load_recipe("transformer-multi30k")
    first, second = untrained(network, task, file), untrained(network, task, file)
    assert first.tokenizer.fingerprint == second.tokenizer.fingerprint
    assert len(first.tokenizer.encode("katze")) < 5 and len(first.tokenizer.encode(" cat")) < 3
    states = first.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    with pytest.raises(UsageError, match="recipe electra-small trains two networks: give a recipe of one"):
        untrained(load_recipe("electra-small"), task, file)


@pytest.mark.slow
def test_a_transformer_learns_to_translate_from_nothing(tmp_path: Path) -> None:
    file = pairs(tmp_path)
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
    sources = [f"{one} katze" for one in WORDS]
    for beams in (1, 4):
        found = generate(model, sources, DecodingSettings(beams=beams, max_length=8))
        assert [one.text for one in found] == [f"{two} cat" for two in WORDS.values()]
