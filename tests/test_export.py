"""Exports: stock classes and pipelines give the model's outputs; a model that fits no stock class is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from torch import Tensor

from conftest import slow_except
from decoding_toys import byte_level, loaded, roberta_like
from interop_toys import save
from nlu_toys import start
from unicloze import objectives, verbs
from unicloze.decoding.embed import embed
from unicloze.errors import UniclozeError, UsageError
from unicloze.interop import check as peers
from unicloze.interop.families import CLASSES, STOCK
from unicloze.interop.read import import_checkpoint
from unicloze.interop.stock import stock_export
from unicloze.model.model import UnifiedModel
from unicloze.recipes import recipe_names
from unicloze.settings import ModelSettings, UseSettings
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.loading import LoadedModel

transformers = pytest.importorskip("transformers")

TEXTS = [
    "the list of items is empty",
    "return x",
    "playing (lists), not given!",
    "Unknown wörds and a [MASK] of the state.",
]
PAIRS = [("the list is empty", "not given"), ("a", "the value of the state and a list of items")]


SHAPE: dict[str, Any] = dict(hidden_size=32, intermediate_size=64, initializer_range=0.15)


@pytest.fixture(autouse=True)
def _silence() -> Any:
    with peers.quietly(transformers):
        yield


def changed(model: LoadedModel, *, task: dict[str, Any] | None = None, objective: dict[str, Any] | None = None,
            use: dict[str, Any] | None = None, **settings: Any) -> LoadedModel:  # fmt: skip
    """A toy model of another shape, with a matching recipe."""
    shape = ModelSettings(**(SHAPE | dict(num_layers=2, num_heads=2, relative_bias=False) | settings))
    targets = (objective or {}).get("targets", model.recipe.objective.targets)
    positions = model.model.max_positions
    network = UnifiedModel(shape, vocab_size=len(model.tokenizer), max_positions=positions, targets=targets)
    network.initialize(1)
    recipe = dataclasses.replace(
        model.recipe,
        model=network.settings,
        objective=objectives.changed(model.recipe.objective, objective or {}),
        use=dataclasses.replace(model.recipe.use, **(use or {})),
        task=dataclasses.replace(model.recipe.task, **(task or {})),
    )
    return dataclasses.replace(model, model=network.eval(), recipe=recipe)


def states(out: Path, inputs: Any) -> Tensor:
    """Last hidden states from the stock class alone."""
    model = transformers.AutoModel.from_pretrained(out).eval()
    with torch.inference_mode():
        hidden: Tensor = model(**inputs).last_hidden_state
    return hidden


@pytest.mark.parametrize("to", ["bert", "mpnet", "roberta"])
@pytest.mark.parametrize("tokenizer", [None, byte_level, roberta_like])
def test_a_pretrained_model_is_a_stock_model(tmp_path: Path, to: str, tokenizer: Any) -> None:
    model = loaded(tokenizer() if tokenizer else None, relative=to == "mpnet", positions=300)
    result = verbs.export(model, to, tmp_path / "out")
    assert result.architecture == f"{STOCK[to].prefix_of_classes}ForMaskedLM"
    assert set(result.differences) == {"texts", "pairs", "texts with masks"}
    assert max(result.differences.values()) < 1e-5
    assert json.loads((tmp_path / "out/unicloze_export.json").read_text())["to"] == to
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (auto.model_max_length, auto.pad_token_id) == (300, 1 if to == "mpnet" else model.tokenizer.vocabulary.pad)
    inputs = auto(TEXTS, padding=True, return_tensors="pt")
    hidden, real = states(tmp_path / "out", inputs), inputs["attention_mask"].bool()
    vectors = embed(model, [text.replace("[MASK]", "x") for text in TEXTS], pooling="mean")
    for row in range(3):  # the fourth has a mask, which `embed` reads as text
        np.testing.assert_allclose(hidden[row, real[row]].mean(0), vectors[row], atol=1e-5)


@pytest.mark.parametrize("tokenizer", [None, byte_level, roberta_like])
@pytest.mark.parametrize("to", ["bert", "mpnet", "unicloze"])
def test_autotokenizer_gives_our_ids(tmp_path: Path, to: str, tokenizer: Any) -> None:
    model = loaded(tokenizer() if tokenizer else None, relative=to != "bert")
    verbs.export(model, to, tmp_path / "out")
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    own, vocabulary = model.tokenizer, model.tokenizer.vocabulary
    for text in (*TEXTS, "", "naïve café\u200b 東京 🙂", " two  spaces "):
        text = text.replace("[MASK]", auto.mask_token)
        assert auto(text)["input_ids"] == [vocabulary.sos, *own.encode(text), vocabulary.eos]
    for first, second in PAIRS:
        parts = [list(own.encode(text)) for text in (first, second)]
        said = auto(first, second)
        assert said["input_ids"] == [vocabulary.sos, *parts[0], vocabulary.eos, *parts[1], vocabulary.eos]
        if to == "mpnet":
            assert "token_type_ids" not in said
        else:
            assert said["token_type_ids"] == [0] * (len(parts[0]) + 2) + [1] * (len(parts[1]) + 1)
    roles = auto.mask_token_id, auto.unk_token_id, auto.cls_token_id, auto.sep_token_id
    assert roles == (vocabulary.mask, vocabulary.unk, vocabulary.sos, vocabulary.eos)


def compare_fills(model: LoadedModel, out: Path, text: str) -> None:
    """The stock pipeline's candidates are those of `fill`, which lists no special tokens."""
    ask = transformers.pipeline("fill-mask", model=str(out))
    auto, size = ask.tokenizer, len(model.tokenizer)
    special = set(model.tokenizer.tokens(model.tokenizer.vocabulary.special))
    found = {auto.convert_ids_to_tokens(each["token"]): each["score"] for each in ask(text, top_k=size)}
    found = {token: score for token, score in found.items() if token not in special}
    ours = verbs.fill(model, text, top_k=size).masks[0].top
    assert list(found)[:5] == [token for token, _ in ours][:5]
    total = sum(found.values())
    assert [found[token] / total for token, _ in ours] == pytest.approx([share for _, share in ours], abs=1e-5)


def test_mpnet_batches_may_be_padded_on_either_side(tmp_path: Path) -> None:
    """Padding has MPNet's own id, so that positions are counted from there."""
    model = loaded(relative=True)
    verbs.export(model, "mpnet", tmp_path / "out")
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    alone = states(tmp_path / "out", auto("the list", return_tensors="pt"))[0]
    for side in ("left", "right"):
        inputs = auto(["the list", TEXTS[0]], padding=True, padding_side=side, return_tensors="pt")
        hidden = states(tmp_path / "out", inputs)[0][inputs["attention_mask"][0].bool()]
        torch.testing.assert_close(hidden, alone, atol=1e-5, rtol=0)


def test_the_first_segment_is_folded_into_the_positions(tmp_path: Path) -> None:
    model = loaded(relative=True)
    result = verbs.export(model, "mpnet", tmp_path / "out")
    assert any("added to the positions" in each for each in result.said)
    stored = transformers.AutoModel.from_pretrained(tmp_path / "out").embeddings.position_embeddings.weight
    ours = model.model.backbone.embeddings
    assert ours.segments is not None and ours.positions is not None
    assert torch.equal(stored[2:], ours.positions.weight + ours.segments.weight[0])
    assert not stored[:2].any()
    again = import_checkpoint(tmp_path / "out")
    assert again.recipe.model.num_segments == 0
    np.testing.assert_allclose(embed(again, TEXTS[:3]), embed(model, TEXTS[:3]), atol=1e-5)


def japanese() -> Tokenizer:
    """A vocabulary whose id 1 is in use."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "list", "of", "items", "is", "empty", *"abcdefg"]
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens(words[:5])
    return Tokenizer(backend)


def test_a_used_id_1_changes_places_with_the_padding_of_mpnet(tmp_path: Path) -> None:
    model = loaded(japanese(), relative=True, name="masked", targets=["ae"])
    result = verbs.export(model, "mpnet", tmp_path / "out")
    assert result.said[-1] == "ids 0 and 1 are swapped, because padding has id 1 there"
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (auto.pad_token, auto.pad_token_id, auto.unk_token_id) == ("[PAD]", 1, 0)
    assert auto("the unknown list")["input_ids"] == [2, 5, 0, 6, 3]
    peer = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    weight = peer.get_input_embeddings().weight
    assert torch.equal(weight[[1, 0]], model.model.backbone.embeddings.tokens.weight[[0, 1]])
    compare_fills(model, tmp_path / "out", "the unknown [MASK] is empty")


def test_ids_that_cannot_be_swapped_are_refused(tmp_path: Path) -> None:
    pieces = [("[PAD]", 0.0), ("[UNK]", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[MASK]", 0.0), ("a", -1.0), ("b", -2.0)]
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=1))
    backend.add_special_tokens([piece for piece, _ in pieces[:5]])
    model = loaded(Tokenizer(backend), relative=True)
    with pytest.raises(
        UniclozeError, match=r"ids 0 and 1 .* be swapped.*Unigram model does not allow that: export it with --to uni"
    ):
        verbs.export(model, "mpnet", tmp_path / "out")
    assert not list(tmp_path.iterdir())
    verbs.export(model, "unicloze", tmp_path / "out")


@pytest.mark.parametrize("kind", ["BertForPreTraining", "BertForMaskedLM", "BertModel", "MPNetForMaskedLM", "MPNetModel",
                                  "RobertaForMaskedLM", "ElectraForPreTraining", "ElectraForMaskedLM", "AlbertForPreTraining",
                                  "AlbertForMaskedLM"])  # fmt: skip
def test_there_and_back_is_the_same_bit_for_bit(tmp_path: Path, kind: str) -> None:
    family = kind.partition("For")[0].removesuffix("Model")
    narrow = {"embedding_size": 16} if family in ("Electra", "Albert") else {}
    padding = 2 if family == "MPNet" else 1 if family == "Roberta" else 0
    changes = {"pad_token_id": 0} if family == "Roberta" else {}
    save(kind, tmp_path / "theirs", padding=padding, **narrow, **changes)
    model = import_checkpoint(tmp_path / "theirs")
    result = verbs.export(model, family.lower(), tmp_path / "out")
    assert result.architecture == kind
    again = import_checkpoint(tmp_path / "out").model.state_dict()
    assert again.keys() == model.model.state_dict().keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.model.state_dict().items())


@pytest.mark.parametrize(("to", "targets", "kind"), [
    ("electra", ["ae"], "ElectraForMaskedLM"),
    ("distilbert", ["ae"], "DistilBertForMaskedLM"),
    ("bert", ["ae", "nsp"], "BertForPreTraining"),
])  # fmt: skip
def test_a_pooler_that_a_class_lacks_is_omitted(tmp_path: Path, to: str, targets: list[str], kind: str) -> None:
    model = changed(loaded(), pooler=True, objective={"name": "masked", "targets": targets})
    result = verbs.export(model, to, tmp_path / "out")
    assert result.architecture == kind and "the pooler is omitted" in result.said


@pytest.mark.parametrize("role", ["mask", "unk", "cls", "sep"])
def test_an_export_whose_tokenizer_confuses_special_tokens_is_refused(tmp_path: Path, role: str) -> None:
    plan = stock_export(STOCK["bert"], changed(loaded()))
    plan.write(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), f"{role}_token": "[PAD]"}))
    with pytest.raises(UniclozeError, match=f"AutoTokenizer uses another id for the {role} token than ours"):
        peers.check_stock(plan, tmp_path)


def test_a_model_without_segments_or_positions_to_spare_is_a_bert(tmp_path: Path) -> None:
    for segments in (0, 1, 6):
        model = changed(loaded(), num_segments=segments)
        out = tmp_path / str(segments)
        verbs.export(model, "bert", out)
        auto = transformers.AutoTokenizer.from_pretrained(out)
        assert sum(auto(*PAIRS[0])["token_type_ids"]) == (3 if segments == 6 else 0)
        np.testing.assert_allclose(
            states(out, auto(TEXTS[0], return_tensors="pt"))[0].mean(0),
            embed(model, TEXTS[:1], pooling="mean")[0],
            atol=1e-5,
        )


@pytest.mark.whole
def test_segments_with_their_own_ids_come_first(tmp_path: Path) -> None:
    """UniLM v1 distinguishes its language models by segment ids; BERT has only 0 and 1."""
    model = changed(loaded(), num_segments=6, objective={"name": "masked", "targets": ["ae"], "segment_ids": [4, 5]})
    verbs.export(model, "bert", tmp_path / "out")
    stored = transformers.AutoModel.from_pretrained(tmp_path / "out").embeddings.token_type_embeddings.weight
    ours = model.model.backbone.embeddings.segments
    assert ours is not None
    assert torch.equal(stored, ours.weight[[4, 5, 0, 1, 2, 3]])


CAUSAL = dict(
    objective=dict(name="causal", targets=["lm"], visibility="left_to_right"), use=dict(visibility="left_to_right")
)
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "relative bias": ("bert", dict(relative_bias=True), "model.relative_bias is true.* has false: export it with --to mpnet"),
    "none": ("mpnet", {}, "model.relative_bias is false.* has true: export it with --to bert"),
    "buckets": ("mpnet", dict(relative_bias=True, relative_buckets=16), "model.relative_buckets is 16.*--to unicloze"),
    "distance": ("mpnet", dict(relative_bias=True, relative_max_distance=64), "relative_max_distance is 64"),
    "pre-LN": ("bert", dict(norm="pre"), "model.norm is pre.* has post: export it with --to unicloze"),
    "causal": ("bert", CAUSAL, "use.visibility is left_to_right.* reads texts in both directions.*--to unicloze"),
    "Transformer-XL": ("bert", dict(positions="transformer_xl"), "model.positions is transformer_xl.*--to unicloze"),
    "narrow": ("bert", dict(embedding_size=16), "model.embedding_size is 16.* has 32: export it with --to electra"),
    "wide": ("albert", dict(share_layers="all"), "model.embedding_size is 32.* has below 32.*--to unicloze"),
    "shared": ("bert", dict(share_layers="all"), "model.share_layers is all.* has none"),
    "local": ("bert", dict(layer_visibility=["full", "local"]), "model.layer_visibility is full local"),
    "no embedding norm": ("bert", dict(embedding_norm=False), "model.embedding_norm is false"),
    "head": ("bert", dict(head="linear"), "model.head is linear.* has transform"),
    "bias": ("bert", dict(head_bias=False), "model.head_bias is false"),
    "head width": ("bert", dict(num_heads=3, head_size=8), "model.head_size is 8.* has hidden_size / num_heads: export it"),
    "activation": ("mpnet", dict(relative_bias=True, activation="relu"), "model.activation is relu.* uses gelu in its head"),
    "format": ("gpt", {}, "--to is 'gpt': give one of bert, mpnet, .*, albert, distilbert, t5, bart, gpt2, xlnet, unicloze"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_class_cannot_be_is_refused_by_its_setting(tmp_path: Path, case: str) -> None:
    to, settings, sentence = REFUSED[case]
    with pytest.raises(UsageError, match=sentence):
        verbs.export(changed(loaded(), **settings), to, tmp_path / "out")
    assert not list(tmp_path.iterdir())


TAKEN = {
    "unilmv2-base": ["mpnet"],
    "bert-base": ["bert", "roberta", "electra", "distilbert"],
    "albert-base": ["albert"],
    "gpt": [],
    "gpt-2": ["gpt2"],
    "xlnet-base": ["xlnet"],
}
TWO_STACKS = {"t5-base": "t5", "t5-v1.1-base": "t5", "bart-base": "bart"}
"""Encoder-decoders that Transformers has; MASS keeps its positions, and the Transformer has sinusoids."""


KINDS = (
    *TAKEN, "t5-base", "bart-base", "electra-base", "roberta-base", "mpnet-base", "unilm-v1-base", "mass-base", "elmo",
)  # fmt: skip
"""Recipes whose models differ in what a format has to take."""


@pytest.mark.whole
@pytest.mark.parametrize("name", slow_except(KINDS, recipe_names()))
def test_every_recipe_has_a_format(tmp_path: Path, name: str) -> None:
    """Stock classes take a complete model or refuse it; the own format takes every Transformer of one stack."""
    model = start(name)
    taken, decodes, recurs = [], bool(model.recipe.model.decoder_layers), model.recipe.model.kind == "recurrent"
    for to in (*STOCK, *CLASSES, "unicloze"):
        try:
            result = verbs.export(model, to, tmp_path / to)
        except UsageError as error:
            assert to != "unicloze" or decodes or recurs, error
            assert "of Transformers" in str(error) or (decodes and "unicloze.hf has no class" in str(error))
            continue
        taken.append(to)
        assert max(result.differences.values()) < 1e-5
    if decodes:
        assert taken == ([TWO_STACKS[name]] if name in TWO_STACKS else [])
        return
    assert taken[-1:] == ([] if recurs else ["unicloze"])
    assert name not in TAKEN or taken[:-1] == TAKEN[name]


@pytest.mark.whole
@pytest.mark.parametrize("pooling", ["first", "mean", "last"])
@pytest.mark.parametrize("to", slow_except(["mpnet"], ["bert", "mpnet", "unicloze"]))
def test_sentence_transformers_gives_the_vectors_of_embed(tmp_path: Path, to: str, pooling: Any) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = loaded(relative=to != "bert", use=UseSettings(pooling=pooling))
    verbs.export(model, to, tmp_path / "out")
    assert import_pooling(tmp_path / "out") == pooling
    peer = library.SentenceTransformer(str(tmp_path / "out"), device="cpu", local_files_only=True)
    assert peer.max_seq_length == 32
    found = peer.encode(TEXTS[:3], show_progress_bar=False)
    np.testing.assert_allclose(found, embed(model, TEXTS[:3]), atol=1e-5)


def import_pooling(out: Path) -> str:
    modes = json.loads((out / "1_Pooling/config.json").read_text())
    names = {"cls_token": "first", "mean_tokens": "mean", "lasttoken": "last"}
    (mode,) = [key for key, value in modes.items() if value is True]
    return names[mode.removeprefix("pooling_mode_")]
