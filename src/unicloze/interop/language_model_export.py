"""Writes a language model as Transformers' T5, BART, GPT-2 or XLNet."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from unicloze.decoding.inputs import text_format
from unicloze.decoding.model_format import find_generation_format
from unicloze.interop.configurations import Architecture
from unicloze.interop.decoding import longest_source
from unicloze.interop.families import CLASSES, FAMILIES
from unicloze.interop.tables import Table
from unicloze.interop.tokenizer_files import write_tokenizer
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.objectives.permuted import PermutedSettings
from unicloze.objectives.unilmv2 import pseudo_id
from unicloze.settings import ModelSettings
from unicloze.tasks.rows import TextFormat
from unicloze.training.loading import LoadedModel


def layout_of(loaded: LoadedModel) -> GenerationFormat | None:
    """How a model generates; None if it cannot."""
    return find_generation_format(loaded.recipe, loaded.tokenizer.vocabulary)


def table_of(to: str, settings: ModelSettings, query: int | None = None) -> Table:
    """The key table of a class.

    Args:
        to: The format.
        settings: Shape of the model.
        query: Id of the token whose row is the vector of predicted slots (XLNet).
    """
    family = FAMILIES[to]
    return family.table(
        Architecture(settings=settings, padding=family.configuration.padding, query=query), heads=["token"]
    )


def write(to: str, loaded: LoadedModel, folder: Path) -> None:
    """Write weights, configuration, generation settings and tokenizer."""
    model, settings, layout = loaded.model, loaded.model.settings, layout_of(loaded)
    vocabulary, state = loaded.tokenizer.vocabulary, dict(model.state_dict())
    if to == "bart" and not settings.head_bias:
        state["token_head.bias"] = torch.zeros(model.vocab_size)
        settings = dataclasses.replace(settings, head_bias=True)
    table = table_of(to, settings, query_of(loaded) if to == "xlnet" else None)
    weights = {name: tensor.detach().clone() for name, tensor in table.to_theirs(state).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    ids: dict[str, Any] = {
        "pad_token_id": vocabulary.pad,
        "eos_token_id": vocabulary.eos,
        "bos_token_id": vocabulary.sos,
    }
    if settings.decoder_layers:
        assert layout is not None
        ids["decoder_start_token_id"] = layout.opening[0]
    config = {
        "architectures": [CLASSES[to]],
        "model_type": to,
        "vocab_size": model.vocab_size,
        "dtype": "float32",
        **ids,
        **FAMILIES[to].configuration.write(settings, positions=model.max_positions, padding=0),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_tokenizer(loaded.tokenizer, folder, form_of(loaded), takes_segments=to == "xlnet")
    if layout is None:
        return
    generation = {**ids, "forced_eos_token_id": None}
    if len(layout.opening) > 1:
        generation["forced_bos_token_id"] = layout.opening[1]
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")


def form_of(loaded: LoadedModel) -> TextFormat:
    """The rows of a text: of a source, or of an XLNet's whole text."""
    layout, form = layout_of(loaded), text_format(loaded)
    if layout is None:
        return dataclasses.replace(form, segments=(0, 1), longest=loaded.model.max_positions)
    end = (loaded.tokenizer.vocabulary.eos,) if layout.ends_source else ()
    longest = longest_source(loaded) if loaded.recipe.task.kind else loaded.model.max_positions
    return dataclasses.replace(form, start=layout.start, end=end, longest=longest)


def query_of(loaded: LoadedModel) -> int:
    """Id of the token whose row is the vector of predicted slots."""
    settings = loaded.recipe.objective
    assert isinstance(settings, PermutedSettings)
    return pseudo_id(loaded.tokenizer.vocabulary, settings)
