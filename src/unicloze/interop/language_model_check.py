"""Checks that an exported language model, loaded by Transformers alone, computes what our model computes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unicloze.decoding.branches import Branches
from unicloze.decoding.embed import rows_to_encode
from unicloze.errors import UniclozeError
from unicloze.example import collate
from unicloze.interop.check import STRINGS
from unicloze.interop.language_model_export import CLASSES, layout_of, query_of
from unicloze.interop.peer import quietly, transformers_library
from unicloze.model.inference_model import IncrementalModel
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.objectives.permuted import lay_out_permuted
from unicloze.text.windows import windows_of
from unicloze.training.loading import LoadedModel

PROBES = 4
"""Sources whose first logits are compared."""


def check(to: str, loaded: LoadedModel, folder: Path) -> dict[str, float]:
    """Load a written folder with Transformers and compare the logits of first tokens, and the ids of texts.

    For an XLNet, which generates no texts: the logits of all tokens and of a predicted one.

    Raises:
        UniclozeError: Transformers cannot load it, or its tokenizer gives other ids.
    """
    library, layout = transformers_library(), layout_of(loaded)
    name = CLASSES[to]
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
        encoded = own.encode(text)
        ids = _whole(loaded, encoded) if layout is None else layout.row(encoded)
        if tokenizer(text)["input_ids"] != ids.tolist():
            raise UniclozeError(f"AutoTokenizer gives different ids for {text[:60]!r}")
    draw = np.random.default_rng(0)
    room = max(1, min(24, loaded.model.max_positions - (2 if layout is None else len(layout.row([])))))
    sources = [draw.choice(own.vocabulary.ordinary, size) for size in np.linspace(1, room, PROBES).astype(int)]
    with torch.inference_mode():
        if layout is None:
            return _permuted(loaded, peer.eval(), sources)
        return {
            "logits": max(
                float((_ours(loaded, layout, ids) - _theirs(peer.eval(), layout, ids)).abs().max()) for ids in sources
            )
        }


def _ours(loaded: LoadedModel, layout: GenerationFormat, source: Any) -> Tensor:
    return Branches(IncrementalModel(loaded.model, torch.float32), layout, [source], count=1, max_length=1).first()[0]


def _theirs(peer: Any, layout: GenerationFormat, source: Any) -> Tensor:
    row = torch.from_numpy(layout.row(source)).long()[None]
    opening = {"decoder_input_ids": torch.tensor([layout.opening])} if layout.opening else {}
    logits: Tensor = peer(input_ids=row, attention_mask=torch.ones_like(row), **opening).logits[0, -1]
    return logits


def _whole(loaded: LoadedModel, ids: Any) -> npt.NDArray[np.integer]:
    """The row of a text. *Shape:* (slots,)"""
    return np.array([loaded.tokenizer.vocabulary.sos, *ids, loaded.tokenizer.vocabulary.eos])


def _permuted(loaded: LoadedModel, peer: Any, sources: Sequence[Any]) -> dict[str, float]:
    """Largest differences of an XLNet: where every slot reads all, and where no other reads the slot of the last token."""
    model, vocabulary, found = loaded.model, loaded.tokenizer.vocabulary, {"logits": 0.0, "predictions": 0.0}
    for ids in sources:
        windows = windows_of([[ids]], vocabulary, keys=np.zeros(1, dtype=np.uint64))
        row = torch.from_numpy(windows.token_ids).long()
        batch = collate(rows_to_encode(windows, loaded.recipe))
        difference = model.token_logits(model.backbone(batch)[-1]) - peer(input_ids=row).logits
        found["logits"] = max(found["logits"], float(difference.abs().max()))
        place, width = len(ids), row.shape[1]
        steps = np.full((1, width), -1, dtype=np.int32)
        steps[0, place] = 0
        own = model.logits(collate(lay_out_permuted(windows, steps, vocabulary, pseudo=query_of(loaded))))["par"][0, 0]
        hidden, target = torch.zeros(1, width, width), torch.zeros(1, 1, width)
        hidden[0, :, place] = target[0, 0, place] = 1
        theirs = peer(input_ids=row, perm_mask=hidden, target_mapping=target).logits[0, 0]
        found["predictions"] = max(found["predictions"], float((own - theirs).abs().max()))
    return found
