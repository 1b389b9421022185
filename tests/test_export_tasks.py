"""Exports of fine-tuned models: the stock class of a task says what `predict` says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decoding_toys import loaded
from nlu_toys import recipe_for, start, write
from unicloze import verbs
from unicloze.errors import UsageError
from unicloze.finetuning.run import finetune_run
from unicloze.interop import check
from unicloze.interop.stock import STOCK
from unicloze.model.model import UnifiedModel
from unicloze.model.task_heads import HeadSettings
from unicloze.tasks import TASKS
from unicloze.training.models import LoadedModel, load_model

transformers = pytest.importorskip("transformers")

PAIRS = [("the list is empty", "not given"), ("a", "the value of the state and a list of items")]


@pytest.fixture(autouse=True)
def _silence() -> Any:
    with check.quietly(transformers):
        yield


def a_finetuned(
    folder: Path, task: str, records: list[dict[str, Any]], model: LoadedModel, **settings: Any
) -> LoadedModel:
    file = write(folder / "train.jsonl", records)
    recipe = recipe_for(model, task, **{"finetuning__epochs": 2} | settings)
    finetune_run(recipe, model, file, file, folder / "run", progress=False)
    return load_model(folder / "run")


def classes(pairs: bool) -> list[dict[str, Any]]:
    words = ["anna", "berlin", "carl", "dublin"]
    second = {"pair": "eva leaves"} if pairs else {}
    return [{"text": f"{words[i % 4]} sees {words[i // 4]}", **second, "label": "yn"[i % 3 == 0]} for i in range(16)]


FAMILIES = {"bert": "bert-base", "mpnet": "unilmv2-base", "roberta": "bert-base", "albert": "albert-base"}


@pytest.mark.parametrize("to", FAMILIES)
def test_a_classifier_under_the_stock_pipeline(tmp_path: Path, to: str) -> None:
    records = classes(pairs=to == "bert")
    model = a_finetuned(tmp_path, "classification", records, start(FAMILIES[to]), model__dropout=0.1)
    result = verbs.export(model, to, tmp_path / "out")
    assert result.architecture == f"{STOCK[to].prefix}ForSequenceClassification"
    assert max(result.differences.values()) < 1e-5
    ask = transformers.pipeline("text-classification", model=str(tmp_path / "out"))
    asked = [
        {"text": each["text"], "text_pair": each.get("pair")} if to == "bert" else each["text"] for each in records
    ]
    said = ask(asked, top_k=None, batch_size=4)
    for ours, found in zip(verbs.predict(model, tmp_path / "train.jsonl", quiet=True), said, strict=True):
        assert found[0]["label"] == ours["prediction"]
        assert {each["label"]: each["score"] for each in found} == pytest.approx(ours["probabilities"], abs=1e-5)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.id2label, config.label2id) == ({0: "n", 1: "y"}, {"n": 0, "y": 1})
    assert not (tmp_path / "out/modules.json").exists()


def test_a_regression(tmp_path: Path) -> None:
    records = [{**each, "label": float(number % 5)} for number, each in enumerate(classes(pairs=False))]
    model = a_finetuned(tmp_path, "regression", records, start())
    verbs.export(model, "bert", tmp_path / "out")
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert (peer.config.num_labels, peer.config.problem_type) == (1, "regression")
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    with torch.inference_mode():
        found = peer(**auto([each["text"] for each in records], padding=True, return_tensors="pt")).logits[:, 0]
    ours = [each["prediction"] for each in verbs.predict(model, tmp_path / "train.jsonl", quiet=True)]
    assert found.tolist() == pytest.approx(ours, abs=1e-5)


@pytest.mark.parametrize("to", ["bert", "mpnet", "electra"])
def test_a_tagger_under_the_stock_pipeline(tmp_path: Path, to: str) -> None:
    words = ["anna", "sees", "berlin", "playing", "carl"]
    records = [
        {"tokens": words[i:] + words[:i], "tags": (["B-X", "O", "B-Y", "O", "B-X"] * 2)[i : i + 5]} for i in range(5)
    ]
    base = "unilmv2-base" if to == "mpnet" else "bert-base"
    model = a_finetuned(tmp_path, "tagging", records, start(base), finetuning__epochs=20)
    result = verbs.export(model, to, tmp_path / "out")
    assert result.architecture == f"{STOCK[to].prefix}ForTokenClassification"
    ask = transformers.pipeline("token-classification", model=str(tmp_path / "out"), ignore_labels=[])
    for record, ours in zip(records, verbs.predict(model, tmp_path / "train.jsonl", quiet=True), strict=True):
        text = " ".join(record["tokens"])
        found = {each["start"]: each["entity"] for each in ask(text)}
        starts = np.cumsum([0, *(len(word) + 1 for word in record["tokens"][:-1])])
        assert [found[int(at)] for at in starts] == ours["prediction"]


@pytest.mark.parametrize("to", ["bert", "mpnet"])
def test_a_choice(tmp_path: Path, to: str) -> None:
    records = [{"cloze": f"{word} sees _ .", "choices": ["anna", "berlin", "eva"], "label": i % 3}
               for i, word in enumerate(["anna", "carl", "eva", "fargo"])]  # fmt: skip
    base = "unilmv2-base" if to == "mpnet" else "bert-base"
    model = a_finetuned(tmp_path, "choice", records, start(base), task__pooling="first", task__head="dense")
    result = verbs.export(model, to, tmp_path / "out")
    assert result.architecture == f"{STOCK[to].prefix}ForMultipleChoice"
    peer = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path / "out").eval()
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for record, ours in zip(records, verbs.predict(model, tmp_path / "train.jsonl", quiet=True), strict=True):
        inputs = auto(
            [record["cloze"].replace("_", each) for each in record["choices"]], padding=True, return_tensors="pt"
        )
        with torch.inference_mode():
            shares = peer(**{key: value[None] for key, value in inputs.items()}).logits.softmax(-1)[0]
        assert shares.tolist() == pytest.approx(ours["probabilities"], abs=1e-5)


def with_heads(model: LoadedModel, heads: dict[str, HeadSettings], kind: str, **task: Any) -> LoadedModel:
    """An untrained model with heads of a task."""
    network = UnifiedModel(
        model.model.settings, vocab_size=len(model.tokenizer), max_positions=32, targets=(), heads=heads
    )
    network.initialize(2)
    recipe = dataclasses.replace(model.recipe, task=dataclasses.replace(model.recipe.task, kind=kind, **task))
    return dataclasses.replace(model, model=network.eval(), recipe=recipe)


@pytest.fixture
def extraction(monkeypatch: pytest.MonkeyPatch) -> dict[str, HeadSettings]:
    """Heads of a task that chooses where an answer starts and where it ends."""
    heads = dict.fromkeys(("start", "end"), HeadSettings(kind="choice", dense=False))
    known = dataclasses.replace(TASKS["classification"], heads=lambda _: heads)
    monkeypatch.setitem(TASKS, "an extraction", known)  # type: ignore[arg-type]
    return heads


def test_spans(tmp_path: Path, extraction: dict[str, HeadSettings]) -> None:
    model = with_heads(loaded(), extraction, "an extraction", head="plain")
    result = verbs.export(model, "bert", tmp_path / "out")
    assert result.architecture == "BertForQuestionAnswering"
    assert max(result.differences.values()) < 1e-5
    peer = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out").eval()
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = auto(*PAIRS[1], return_tensors="pt")
    with torch.inference_mode():
        output, hidden = peer(**inputs), peer.bert(**inputs).last_hidden_state
        for name in ("start", "end"):
            expected = model.model.task_head(name).output(hidden).squeeze(-1)
            torch.testing.assert_close(output[f"{name}_logits"], expected, atol=1e-5, rtol=0)
    assert peer.qa_outputs.weight.shape == (2, 32)


def test_tasks_that_no_class_computes_are_refused(tmp_path: Path, extraction: dict[str, HeadSettings]) -> None:
    plain = with_heads(loaded(), {"label": HeadSettings(kind="classes", outputs=2, dense=False)}, "classification",
                       labels=["a", "b"], head="plain", pooling="first")  # fmt: skip
    with pytest.raises(UsageError, match=r"task.head is plain.*has a dense layer.*fine-tune it with --task.head dense"):
        verbs.export(plain, "bert", tmp_path / "out")
    dense = with_heads(
        loaded(), {"label": HeadSettings(kind="classes", outputs=2)}, "classification", labels=["a", "b"]
    )
    pooled = changed_task(dense, pooling="mean")
    with pytest.raises(UsageError, match=r"task.pooling is mean.*first slot.*fine-tune it with --task.pooling first"):
        verbs.export(pooled, "bert", tmp_path / "out")
    with pytest.raises(UsageError, match="has gelu and no tanh in its classifier: export it with --to bert"):
        verbs.export(dense, "electra", tmp_path / "out")
    with pytest.raises(UsageError, match=r"no class for the heads of a task: export it with --to bert"):
        verbs.export(dense, "unicloze", tmp_path / "out")
    with pytest.raises(UsageError, match=r"task.head is dense.*has no dense layer before.*--task.head plain"):
        verbs.export(with_heads(loaded(), extraction, "an extraction"), "bert", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def changed_task(model: LoadedModel, **task: Any) -> LoadedModel:
    recipe = dataclasses.replace(model.recipe, task=dataclasses.replace(model.recipe.task, **task))
    return dataclasses.replace(model, recipe=recipe)


def test_pairs_of_two_segments_are_not_for_mpnet(tmp_path: Path) -> None:
    model = a_finetuned(tmp_path, "classification", classes(pairs=True), start("unilmv2-base"))
    assert json.loads((model.path / "state.json").read_text())["segments"] == 2
    with pytest.raises(
        UsageError, match=r"classification on pairs, whose second part is segment 1.* no segments: predict"
    ):
        verbs.export(model, "mpnet", tmp_path / "out")


def test_the_card_of_a_task(tmp_path: Path) -> None:
    model = a_finetuned(tmp_path, "classification", classes(pairs=True), start())
    verbs.export(model, "bert", tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    assert "records to train on: 16" in card
    assert "accuracy on 16 records" in card
    assert "unicloze finetune --task recipe.yaml" in card
