"""Exports of fine-tuned models: the stock class of a task predicts what `predict` does."""

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
from unicloze.interop import check as peers
from unicloze.interop.families import STOCK
from unicloze.model.model import UnifiedModel
from unicloze.tasks import task_heads, task_settings
from unicloze.training.loading import LoadedModel, load_model

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _silence() -> Any:
    with peers.quietly(transformers):
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
    rate = 0.0 if to == "albert" else 0.2  # ALBERT's default is 0.1
    model = a_finetuned(tmp_path, "classification", records, start(FAMILIES[to]), model__dropout=rate)
    result = verbs.export(model, to, tmp_path / "out")
    assert result.architecture == f"{STOCK[to].prefix_of_classes}ForSequenceClassification"
    ask = transformers.pipeline("text-classification", model=str(tmp_path / "out"))
    pairs = [{"text": each["text"], "text_pair": each.get("pair")} for each in records]
    said = ask(pairs if to == "bert" else [each["text"] for each in records], top_k=None, batch_size=4)
    for ours, found in zip(verbs.predict(model, tmp_path / "train.jsonl", quiet=True), said, strict=True):
        assert found[0]["label"] == ours["prediction"]
        assert {each["label"]: each["score"] for each in found} == pytest.approx(ours["probabilities"], abs=1e-5)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.id2label, config.label2id) == ({0: "n", 1: "y"}, {"n": 0, "y": 1})
    dropout = getattr(ask.model, "dropout", None) or ask.model.classifier.dropout
    assert dropout.p == model.model.task_head("label").rate == rate
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
    tags = ["B-X", "O", "B-Y", "O", "B-X"]
    records = [{"tokens": words[i:] + words[:i], "tags": tags[i:] + tags[:i]} for i in range(5)]
    base = "unilmv2-base" if to == "mpnet" else "bert-base"
    model = a_finetuned(tmp_path, "tagging", records, start(base), finetuning__epochs=20)
    result = verbs.export(model, to, tmp_path / "out")
    assert result.architecture == f"{STOCK[to].prefix_of_classes}ForTokenClassification"
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
    assert result.architecture == f"{STOCK[to].prefix_of_classes}ForMultipleChoice"
    peer = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path / "out").eval()
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for record, ours in zip(records, verbs.predict(model, tmp_path / "train.jsonl", quiet=True), strict=True):
        texts = [record["cloze"].replace("_", each) for each in record["choices"]]
        inputs = auto(texts, padding=True, return_tensors="pt")
        with torch.inference_mode():
            shares = peer(**{key: value[None] for key, value in inputs.items()}).logits.softmax(-1)[0]
        assert shares.tolist() == pytest.approx(ours["probabilities"], abs=1e-5)


@pytest.mark.parametrize("pairs", [True, False])
def test_spans(tmp_path: Path, pairs: bool) -> None:
    """The stock class's best span is the answer, also for MPNet, which has no segments."""
    base = start("bert-base") if pairs else start("unilmv2-base", model__num_segments=1, data__segments=1)
    records = [{"id": str(i), "context": f"{w} sees berlin .", "question": f"who sees {i} ?",
                "answers": [{"text": w, "answer_start": 0}]} for i, w in enumerate(["anna", "carl", "eva"])]  # fmt: skip
    model = a_finetuned(tmp_path, "squad-v1.1", records, base, finetuning__epochs=3, task__max_length=40)
    result = verbs.export(model, "bert" if pairs else "mpnet", tmp_path / "out")
    assert result.architecture == f"{'Bert' if pairs else 'MPNet'}ForQuestionAnswering"
    peer = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out").eval()
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for record, ours in zip(records, verbs.predict(model, tmp_path / "train.jsonl", quiet=True), strict=True):
        inputs = auto(record["question"], record["context"], return_tensors="pt")
        with torch.inference_mode():
            output = peer(**inputs)
        scores = output.start_logits[0][:, None] + output.end_logits[0]
        inside = torch.tensor([part == 1 for part in inputs.sequence_ids(0)])
        allowed = inside[:, None] & inside & torch.ones_like(scores, dtype=torch.bool).triu()
        first, last = divmod(int(scores.masked_fill(~allowed, -torch.inf).argmax()), len(inside))
        text = record["context"][inputs.token_to_chars(0, first).start : inputs.token_to_chars(0, last).end]
        assert (text, float(scores[first, last])) == (ours["prediction"], pytest.approx(ours["score"], abs=1e-5))


def untrained(kind: str, **task: Any) -> LoadedModel:
    """A model with newly initialised heads of a task."""
    model = loaded()
    recipe = dataclasses.replace(model.recipe, task=task_settings(kind, **task))
    network = UnifiedModel(
        recipe.model, vocab_size=len(model.tokenizer), max_positions=32, targets=(), heads=task_heads(recipe)
    )
    network.initialize(2)
    return dataclasses.replace(model, model=network.eval(), recipe=recipe)


TWO = {"labels": ["a", "b"]}
REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "plain": ("bert", "classification", TWO | {"head": "plain"},
              r"task.head is plain.*has dense: fine-tune it with --task.head dense"),
    "pooling": ("bert", "classification", TWO | {"pooling": "mean"},
                r"task.pooling is mean.*has first: fine-tune it with --task.pooling first"),
    "no answer": ("bert", "extraction", {"head": "plain", "pooling": "last"},
                  r"task.pooling is last.*has first: fine-tune it with --task.pooling first"),
    "whole words": ("bert", "tagging", {"head": "plain", "pooling": "mean", "labels": ["O"]},
                    r"task.pooling is mean.*has first: fine-tune it with --task.pooling first"),
    "predicate": ("bert", "tagging", {"head": "plain", "labels": ["O"], "optional": ["predicate"]},
                  r"task.optional is predicate.*marks no predicate: predict with"),
    "encoder": ("bert", "tagging", {"head": "plain", "encoder_size": 4, "labels": ["O"]},
                r"task.encoder_size is 4.*has 0: fine-tune it with --task.encoder_size 0"),
    "delimiter": ("bert", "classification", TWO | {"delimiter": True}, r"task.delimiter is true.*has false.*delimiter false"),
    "orders": ("bert", "classification", TWO | {"both_orders": True}, r"task.both_orders is true.*has false"),
    "ELECTRA": ("electra", "classification", TWO,
                r"task.head is dense, .* has dense_gelu: export it with --to bert"),
    "twice": ("roberta", "classification", TWO | {"pooling": "last"}, r"--task.pooling first$"),
    "nearly": ("mpnet", "classification", TWO | {"pooling": "mean"},
               r"model.relative_bias is false.*: fine-tune it with --task.pooling first, then export it with --to bert"),
    "own": ("unicloze", "classification", TWO, r"has no class for the heads of a task: export it with --to bert"),
    "dense": ("bert", "extraction", {}, r"task.head is dense.*has plain: fine-tune it with --task.head plain"),
    "narrow": ("mpnet", "classification", TWO, r"model.relative_bias is false.* has true: export it with --to bert"),
    "conversation": ("bert", "conversation", {"head": "plain"}, r"task.kind is conversation.*has no class for it: predict"),
    "a class of none": ("bert", "extraction", {"head": "plain", "no_answer": "class"},
                  r"task.no_answer is class.*scores the span of the whole row: fine-tune with --task.no_answer span"),
    "nobody": ("unicloze", "conversation", {}, r"no class for the heads of a task: predict with `unicloze predict`"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_tasks_that_no_class_computes_are_refused(tmp_path: Path, case: str) -> None:
    to, kind, task, sentence = REFUSED[case]
    with pytest.raises(UsageError, match=sentence):
        verbs.export(untrained(kind, **task), to, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_pairs_of_two_segments_are_not_for_mpnet(tmp_path: Path) -> None:
    model = a_finetuned(tmp_path, "classification", classes(pairs=True), start("unilmv2-base"))
    assert json.loads((model.path / "state.json").read_text())["segments"] == 2
    with pytest.raises(UsageError, match=r"classification on pairs, whose second part is segment 1.* no segments"):
        verbs.export(model, "mpnet", tmp_path / "out")


def test_the_card_of_a_task(tmp_path: Path) -> None:
    lineage = {"fingerprint": "abc", "sources": [{"corpus": "/private/texts", "train": {"documents": 3, "tokens": 70}}]}
    begun = dataclasses.replace(start(), path=tmp_path / "pre-trained" / "checkpoints" / "step-00000007", step=7)
    begun.path.mkdir(parents=True)
    ledger = tmp_path / "pre-trained" / "ledger.jsonl"
    ledger.write_text(json.dumps({"event": "start", "lineage": lineage}) + "\n")
    model = a_finetuned(tmp_path, "classification", classes(pairs=True), begun)
    verbs.export(model, "bert", tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    assert "- started from: pre-trained, trained for 7 steps\n" in card
    assert "- training records: 16 of train.jsonl\n" in card
    assert "- text that model was trained on: texts (3 documents, 70 tokens)\n- fingerprint of the text: abc\n" in card
    assert "accuracy on 16 records" in card
    command = "unicloze finetune --task recipe.yaml --model pre-trained --train train.jsonl --dev train.jsonl\n"
    assert command in card and str(tmp_path) not in card and "/private" not in card
