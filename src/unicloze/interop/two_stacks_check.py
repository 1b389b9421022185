"""Checks that an exported T5 or BART, loaded by Transformers alone, computes what our model computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unicloze.decoding.branches import Branches
from unicloze.errors import UniclozeError
from unicloze.interop.check import STRINGS
from unicloze.interop.peer import quietly, transformers_library
from unicloze.interop.two_stacks_export import TWO_STACKS, layout_of
from unicloze.model.inference_model import IncrementalModel
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.training.loading import LoadedModel

PROBES = 4
"""Sources whose first logits are compared."""


def check(to: str, loaded: LoadedModel, folder: Path) -> dict[str, float]:
    """Load a written folder with Transformers and compare the logits of first tokens, and the ids of texts.

    Raises:
        UniclozeError: Transformers cannot load it, or its tokenizer gives other ids.
    """
    library, layout = transformers_library(), layout_of(loaded)
    assert layout is not None
    name = TWO_STACKS[to]
    try:
        with quietly(library):
            peer, found = getattr(library, name).from_pretrained(
                folder, local_files_only=True, output_loading_info=True
            )
            tokenizer = library.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise UniclozeError(f"Transformers cannot load the {name} ({str(error)[:200]})") from error
    if wrong := [str(key) for keys in found.values() for key in keys]:
        raise UniclozeError(f"Transformers reports weights that do not match a {name}: {', '.join(wrong[:4])}")
    own = loaded.tokenizer
    for text in STRINGS:
        ids = layout.row(own.encode(text)).tolist()
        if tokenizer(text)["input_ids"] != ids:
            raise UniclozeError(f"AutoTokenizer gives different ids for {text[:60]!r}")
    draw = np.random.default_rng(0)
    room = max(1, min(24, loaded.model.max_positions - len(layout.row([]))))
    sources = [draw.choice(own.vocabulary.ordinary, size) for size in np.linspace(1, room, PROBES).astype(int)]
    with torch.inference_mode():
        return {
            "logits": max(
                float((_ours(loaded, layout, ids) - _theirs(peer.eval(), layout, ids)).abs().max()) for ids in sources
            )
        }


def _ours(loaded: LoadedModel, layout: GenerationFormat, source: Any) -> Tensor:
    return Branches(IncrementalModel(loaded.model, torch.float32), layout, [source], count=1, max_length=1).first()[0]


def _theirs(peer: Any, layout: GenerationFormat, source: Any) -> Tensor:
    row = torch.from_numpy(layout.row(source)).long()[None]
    logits: Tensor = peer(input_ids=row, decoder_input_ids=torch.tensor([layout.opening])).logits[0, -1]
    return logits
