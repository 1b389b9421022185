"""Exports a run to the classes of `unicloze.hf`, which hold every Transformer of one stack, and loads its tokenizer."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from transformers import PreTrainedTokenizerFast

from unicloze.decoding.inputs import objective_of, predicts_at_masks, text_format
from unicloze.hf.generation import UniclozeForConditionalGeneration
from unicloze.hf.models import UniclozeConfig, UniclozeForMaskedLM, UniclozeModel, UniclozePreTrainedModel
from unicloze.interop.card import Export
from unicloze.interop.check import Peer, compare_models, quietly, transformers_library
from unicloze.interop.read import open_model
from unicloze.interop.stock import OPENED, layout_of, not_said, source_format
from unicloze.interop.tokenizer_files import write_sentence_files, write_tokenizer
from unicloze.tasks.rows import TextFormat
from unicloze.training.loading import LoadedModel

AUTO: Mapping[type[UniclozePreTrainedModel], Any] = {
    UniclozeModel: transformers.AutoModel,
    UniclozeForMaskedLM: transformers.AutoModelForMaskedLM,
    UniclozeForConditionalGeneration: transformers.AutoModelForCausalLM,
}
"""The Auto class of each class."""


def form_of(loaded: LoadedModel) -> TextFormat:
    """The rows of a text or a pair; of a source, if the model was fine-tuned to generate."""
    layout = layout_of(loaded)
    if loaded.recipe.task.kind and layout is not None:
        return source_format(loaded, layout)
    return dataclasses.replace(text_format(loaded), segments=(0, 1))


def load_tokenizer(path: str | os.PathLike[str]) -> PreTrainedTokenizerFast:
    """The tokenizer of a run; it makes "[SOS] text [EOS]" and "[SOS] text [EOS] second part [EOS]".

    Args:
        path: A run directory, its checkpoints folder, or one checkpoint.
    """
    loaded = open_model(path)
    with tempfile.TemporaryDirectory(prefix="unicloze-") as folder:
        write_tokenizer(loaded.tokenizer, Path(folder), form_of(loaded))
        tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return tokenizer


def own_format(loaded: LoadedModel) -> Export:
    """Export as a class of `unicloze.hf`: one that generates, or else one that fills masks, if the model learned it."""
    kind: type[UniclozePreTrainedModel] = UniclozeModel
    objective, writes = objective_of(loaded.recipe), UniclozeConfig.of(loaded).predicts is not None
    if hasattr(loaded.model, "token_head"):
        if writes:
            kind = UniclozeForConditionalGeneration
        elif predicts_at_masks(objective):
            kind = UniclozeForMaskedLM
    kept = {"backbone"} if kind is UniclozeModel else {"backbone", "token_head"}
    modules = dict.fromkeys(name.partition(".")[0] for name in loaded.model.state_dict())
    said = [f"the class has no {name.replace('_', ' ')}" for name in modules if name not in kept]
    if kind is UniclozeForConditionalGeneration:
        said += not_said(loaded)
    elif layout_of(loaded) is not None:
        said.append(f"the class does not generate, since {OPENED}: generate with `unicloze generate`")
    return Export(
        to="unicloze",
        architecture=kind.__name__,
        write=lambda folder: _write(kind, loaded, folder),
        check=lambda folder: _check(kind, loaded, folder),
        said=tuple(said),
        imports="unicloze.hf",
    )


def _write(kind: type[UniclozePreTrainedModel], loaded: LoadedModel, folder: Path) -> None:
    with quietly(transformers_library()):
        kind.of(loaded).save_pretrained(folder)
    form = form_of(loaded)
    write_tokenizer(loaded.tokenizer, folder, form)
    write_sentence_files(folder, loaded.recipe, longest=form.longest)


def _check(kind: type[UniclozePreTrainedModel], loaded: LoadedModel, folder: Path) -> Mapping[str, float]:
    """Largest differences of the encoding class; the generating class has the same weights, which are compared too."""
    reading = UniclozeModel if kind is UniclozeModel else UniclozeForMaskedLM
    with quietly(transformers_library()):
        saved = AUTO[kind].from_pretrained(folder, local_files_only=True)
        model = reading.from_pretrained(folder, local_files_only=True).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)

    peer = Peer(
        model=model,
        tokenizer=tokenizer,
        heads=() if reading is UniclozeModel else ("token",),
        form=form_of(loaded),
        ids=np.arange(loaded.model.vocab_size),
    )
    own = loaded.model.state_dict()
    weights = max(float((tensor - own[name]).abs().max()) for name, tensor in saved.state_dict().items())
    return {**compare_models(loaded, peer), "weights": weights}
