"""Exports: stock classes give the model's outputs, what fits none is refused, and only earlier exports are replaced."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from conftest import slow_except
from corpora import write_corpus
from decoding_toys import byte_level, loaded, roberta_like
from interop_toys import save
from nlu_toys import start
from unicloze import cli, objectives, verbs
from unicloze.decoding.embed import embed
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import predicts_tokens
from unicloze.interop import check as peers
from unicloze.interop.card import Export, model_card, verdict_of, without_places
from unicloze.interop.card import _recipe as shown_recipe
from unicloze.interop.export import stock_format, write_export
from unicloze.interop.families import CLASSES, STOCK
from unicloze.interop.read import import_checkpoint
from unicloze.interop.stock import stock_export
from unicloze.model.model import UnifiedModel
from unicloze.recipes import load_recipe, recipe_names
from unicloze.settings import ModelSettings, UseSettings
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.ledger import figures_of, read_ledger
from unicloze.training.loading import LoadedModel, load_model
from unicloze.training.verdict import is_beaten

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
    with pytest.raises(UniclozeError, match=r"ids 0 and 1 .* be swapped.*Unigram model does not allow that.*--to uni"):
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
        pooled = states(out, auto(TEXTS[0], return_tensors="pt"))[0].mean(0)
        np.testing.assert_allclose(pooled, embed(model, TEXTS[:1], pooling="mean")[0], atol=1e-5)


@pytest.mark.whole
def test_segments_with_their_own_ids_come_first(tmp_path: Path) -> None:
    """UniLM v1 distinguishes its language models by segment ids; BERT has only 0 and 1."""
    model = changed(loaded(), num_segments=6, objective={"name": "masked", "targets": ["ae"], "segment_ids": [4, 5]})
    verbs.export(model, "bert", tmp_path / "out")
    stored = transformers.AutoModel.from_pretrained(tmp_path / "out").embeddings.token_type_embeddings.weight
    ours = model.model.backbone.embeddings.segments
    assert ours is not None
    assert torch.equal(stored, ours.weight[[4, 5, 0, 1, 2, 3]])


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "relative bias": ("bert", dict(relative_bias=True), "model.relative_bias is true.* has false: export it with --to mpnet"),
    "buckets": ("mpnet", dict(relative_bias=True, relative_buckets=16), "model.relative_buckets is 16.*--to unicloze"),
    "distance": ("mpnet", dict(relative_bias=True, relative_max_distance=64), "relative_max_distance is 64"),
    "pre-LN": ("bert", dict(norm="pre"), "model.norm is pre.* has post: export it with --to unicloze"),
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


# Folders, cards and the command line


BIAS = "bert.encoder.layer.1.output.dense.bias"


def with_another_bias(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[BIAS][3] += 0.01
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def without_a_bias(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights[BIAS]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def with_capitals(folder: Path) -> None:
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"lowercase": true', '"lowercase": false'))


@pytest.mark.parametrize(("damage", "message"), [
    (with_another_bias, r"BertForMaskedLM differs from the model by .*e-03 .* was not written"),
    (without_a_bias, r"weights that do not match a BertForMaskedLM: bert.encoder.layer.1.output"),
    (with_capitals, "AutoTokenizer gives different ids for 'The quick"),
])  # fmt: skip
def test_a_difference_deletes_the_output(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    model = loaded()
    export = stock_format(model, "bert")

    def write(folder: Path) -> None:
        export.write(folder)
        damage(folder)

    with pytest.raises(UniclozeError, match=message):
        write_export(model, dataclasses.replace(export, write=write), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_only_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    verbs.export(loaded(), "bert", out)
    (tmp_path / "link").symlink_to(out)
    verbs.export(loaded(), "roberta", tmp_path / "link")
    assert json.loads((out / "config.json").read_text())["model_type"] == "roberta"
    (tmp_path / "link").unlink()
    (out / ".git").mkdir()
    (out / ".git" / "HEAD").write_text("somebody's")
    with pytest.raises(UsageError, match=r"out holds .git/HEAD besides an export, which would be lost: give another"):
        verbs.export(loaded(), "bert", out)
    (out / ".git" / "HEAD").unlink()
    with pytest.raises(UsageError, match=r"model.relative_bias"):
        verbs.export(loaded(relative=True), "bert", out)
    assert (out / "model.safetensors").is_file()
    (out / "unicloze_export.json").unlink()
    with pytest.raises(UsageError, match="holds files that are not an export: give another --out"):
        verbs.export(loaded(), "bert", out)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is a file"):
        verbs.export(loaded(), "bert", tmp_path / "file")
    (tmp_path / "empty").mkdir()
    verbs.export(loaded(), "bert", tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "out"]
    with pytest.raises(UsageError, match="out is not given"):
        verbs.export(loaded(), "bert")


def test_without_transformers_the_error_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UniclozeError, match=r"in the clone, pip install -e \"\.\[hf\]\""):
        verbs.export(loaded(), "bert", tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.whole
@pytest.mark.parametrize(("recipe", "to"), [("bert-base", "bert"), ("unilm-v1-base", "unicloze")])
def test_every_figure_of_a_card_is_that_of_the_ledger(tmp_path: Path, recipe: str, to: str) -> None:
    """By what each figure counts: a perplexity of ordinary tokens, and a loss of what predicts no tokens."""
    overrides = {
        "data.corpus": [str(write_corpus(tmp_path / "text"))], "tokenizer.vocab_size": 300, "data.heldout_share": 0.3,
    }  # fmt: skip
    verbs.pretrain(recipe, tmp_path / "run", toy=True, quiet=True, overrides=overrides)
    verbs.export(tmp_path / "run", to, tmp_path / "out")
    table = (tmp_path / "out" / "README.md").read_text().split("## Evaluation\n\n")[1].split("\n\n")[0]
    rows = dict([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:])
    start, *events = read_ledger(tmp_path / "run/ledger.jsonl")
    figures = figures_of([event for event in events if event["event"] == "evaluate"][-1])
    expected = {
        f"of a Kneser-Ney trigram: held-out perplexity, {name}": found["trigram"]
        for name, found in start["baselines"]["perplexity"].items()
    }
    assert expected
    for figure in figures:
        assert figure.mean is not None
        if predicts_tokens(figure.target):
            expected[f"held-out perplexity, {figure.name}"] = math.exp(figure.counted_nats / figure.counted_weight)
        else:
            expected[f"held-out loss in nats per prediction, {figure.name}"] = figure.nats / figure.weight
    found = {name: float(value.replace(",", "")) for name, value in rows.items() if "bits per byte" not in name}
    assert found == pytest.approx(expected, abs=1e-3) and len(figures) > 1
    bits = {name.rpartition(", ")[2] for name in rows if "bits per byte" in name}
    assert bits == {figure.name for figure in figures if predicts_tokens(figure.target)}
    verdict = verdict_of(tmp_path / "run")
    assert verdict_of(tmp_path / "out") == f"{verdict}." and is_beaten(verdict), "two steps beat no counts"


@pytest.mark.whole
def test_the_card_shows_the_values_of_the_ledger(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "private")
    overrides = {"data.corpus": [str(corpus)], "tokenizer.vocab_size": 300}
    verbs.pretrain("quickstart", tmp_path / "run", toy=True, quiet=True, overrides=overrides)
    assert cli.main(["export", str(tmp_path / "run"), "--to", "mpnet"]) == 0
    card = (tmp_path / "run-mpnet/README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert front == {"library_name": "transformers", "pipeline_tag": "fill-mask", "tags": ["unicloze", "unilmv2"]}
    assert "# license: add one before you publish" in card
    assert str(tmp_path) not in card
    evaluation = [event for event in read_ledger(tmp_path / "run/ledger.jsonl") if event["event"] == "evaluate"][-1]
    assert f"perplexity, ae | {evaluation['perplexity']['ae']:,.3f} |" in " ".join(card.split())
    assert f"- text: {corpus.name} (" in card
    assert "unicloze pretrain --recipe recipe.yaml" in card
    (tmp_path / "again.yaml").write_text(card.split("```yaml\n")[1].split("```")[0])
    recipe = load_recipe(tmp_path / "again.yaml")
    ours = load_model(tmp_path / "run").recipe
    assert (recipe.model, recipe.objective) == (ours.model, ours.objective)
    assert "geometric_p" not in card, "default values are left out"
    ledger = tmp_path / "run/ledger.jsonl"
    ledger.write_text(ledger.read_text().replace(f'"corpus": "{corpus}"', '"corpus": "hf:ann/tales"'))
    plain = Export(to="", architecture="", write=lambda _: None, check=lambda _: {})
    assert "- text: hf:ann/tales (" in model_card(load_model(tmp_path / "run"), plain, {})


def test_a_card_names_datasets_of_the_hub_and_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clients/acme").mkdir(parents=True)
    of_the_hub = ["hf:ann/tales:train:body", "hf:my.org/tales/short"]
    folders = [
        "hf:clients/acme",
        "hf:~/private/tales",
        "hf:~nobody-here/tales",
        "hf:/private/tales:train:body",
        "/private/tales.txt",
    ]
    recipe = without_places(load_recipe("quickstart", {"data.corpus": [*of_the_hub, *folders]}))
    assert recipe.data.corpus == [*of_the_hub, "acme", "tales", "tales", "tales", "tales.txt"]
    assert "prepared" not in shown_recipe(load_recipe("quickstart", {"data.prepared": "runs/data"}))


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save("BertForMaskedLM", tmp_path / "theirs")
    assert cli.main(["export", str(tmp_path / "theirs"), "--to", "bert"]) == 0
    said = capsys.readouterr().out
    assert "theirs-bert: BertForMaskedLM" in said
    assert "loaded back, it differs from the model by at most: texts" in said
    card = (tmp_path / "theirs-bert/README.md").read_text()
    assert "No evaluation of this checkpoint is on record." in card
    assert str(tmp_path) not in card
