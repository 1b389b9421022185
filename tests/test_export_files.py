"""Export folders: only the model's files are kept, only an earlier export is replaced; the card; the command line."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file, save_file

from corpora import write_corpus
from decoding_toys import loaded
from interop_toys import save
from unicloze import cli, verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import predicts_tokens
from unicloze.interop import check as peers
from unicloze.interop.card import verdict_of, without_places
from unicloze.interop.export import stock_format, write_export
from unicloze.recipes import load_recipe
from unicloze.settings import Recipe
from unicloze.training.ledger import figures_of, read_ledger
from unicloze.training.loading import load_model
from unicloze.training.verdict import is_beaten

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _silence() -> Any:
    with peers.quietly(transformers):
        yield


def test_a_difference_deletes_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded()
    export = stock_format(model, "bert")

    def wrongly(folder: Path) -> None:
        export.write(folder)
        weights = load_file(folder / "model.safetensors")
        weights["bert.encoder.layer.1.output.dense.bias"][3] += 0.01
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(UniclozeError, match=r"BertForMaskedLM differs from the model by .*e-03 .* was not written"):
        write_export(model, dataclasses.replace(export, write=wrongly), tmp_path / "out")
    assert not list(tmp_path.iterdir())

    def without(folder: Path) -> None:
        export.write(folder)
        weights = load_file(folder / "model.safetensors")
        del weights["bert.encoder.layer.1.output.dense.bias"]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(
        UniclozeError, match=r"weights that do not match a BertForMaskedLM: bert.encoder.layer.1.output"
    ):
        write_export(model, dataclasses.replace(export, write=without), tmp_path / "out")

    def otherwise(folder: Path) -> None:
        export.write(folder)
        file = folder / "tokenizer.json"
        file.write_text(file.read_text().replace('"lowercase": true', '"lowercase": false'))

    with pytest.raises(UniclozeError, match="AutoTokenizer gives different ids for 'The quick"):
        write_export(model, dataclasses.replace(export, write=otherwise), tmp_path / "out")
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
    recipe = load_recipe_text(card.split("```yaml\n")[1].split("```")[0], tmp_path)
    ours = load_model(tmp_path / "run").recipe
    assert recipe.model == ours.model
    assert recipe.objective == ours.objective
    assert "geometric_p" not in card, "default values are left out"


def test_a_card_names_datasets_of_the_hub_and_no_folders() -> None:
    named = ["hf:ann/tales:train:body", "hf:/private/tales", "/private/tales.txt"]
    recipe = without_places(load_recipe("quickstart", {"data.corpus": named}))
    assert recipe.data.corpus == ["hf:ann/tales:train:body", "tales", "tales.txt"]


def load_recipe_text(text: str, folder: Path) -> Recipe:
    (folder / "again.yaml").write_text(text)
    return load_recipe(folder / "again.yaml")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save("BertForMaskedLM", tmp_path / "theirs")
    assert cli.main(["export", str(tmp_path / "theirs"), "--to", "bert"]) == 0
    said = capsys.readouterr().out
    assert "theirs-bert: BertForMaskedLM" in said
    assert "loaded back, it differs from the model by at most: texts" in said
    card = (tmp_path / "theirs-bert/README.md").read_text()
    assert "No evaluation of this checkpoint is on record." in card
    assert str(tmp_path) not in card
    assert cli.main(["export", str(tmp_path / "theirs"), "--to", "mpnet"]) == 2
    assert "model.relative_bias is false" in capsys.readouterr().err
    assert cli.main(["export", str(tmp_path / "nothing"), "--to", "bert"]) == 1
    assert "nothing" in capsys.readouterr().err
