"""Models of tasks against Transformers' own, with the same weights: losses, gradients and outputs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from unicloze.example import collate
from unicloze.finetuning.data import open_records
from unicloze.finetuning.initial import start_weights, task_recipe
from unicloze.interop.read import import_checkpoint
from unicloze.recipes import load_recipe
from unicloze.tasks import TASKS
from unicloze.training.loading import ready_model

TEXTS = [
    ("the cat sees", "a dog", "yes"),
    ("a bird", "the old house is small", "no"),
    ("road", "tree and river", "yes"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig, BertForSequenceClassification

    place = tmp_path_factory.mktemp("bert")
    words = sorted({word for first, second, _ in TEXTS for word in f"{first} {second}".split()})
    vocabulary = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (place / "vocab.txt").write_text("\n".join(vocabulary))
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=24, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2,
    )  # fmt: skip
    BertForSequenceClassification(config).bert.save_pretrained(place)
    return place


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_class_or_quantity_is_that_of_transformers(folder: Path, tmp_path: Path, kind: str) -> None:
    from transformers import BertForSequenceClassification, BertTokenizer

    labels: list[Any] = [label if kind == "classification" else float(len(first)) for first, _, label in TEXTS]
    records = [{"text": a, "pair": b, "label": label} for (a, b, _), label in zip(TEXTS, labels, strict=True)]
    train = tmp_path / "train.jsonl"
    train.write_text("".join(json.dumps(record) + "\n" for record in records))
    start = import_checkpoint(folder)
    recipe = task_recipe(load_recipe(kind), start)
    if kind == "classification":
        recipe = dataclasses.replace(recipe, task=dataclasses.replace(recipe.task, labels=["no", "yes"]))
    data = open_records(train, recipe, start.tokenizer)
    model = ready_model(recipe, start.model.vocab_size, torch.device("cpu"))
    drawn = start_weights(model, start, recipe.task)
    assert drawn == ["task_heads.label.output.bias", "task_heads.label.output.weight"]

    outputs = 2 if kind == "classification" else 1
    theirs = BertForSequenceClassification.from_pretrained(folder, num_labels=outputs).train()
    with torch.no_grad():
        theirs.classifier.weight.copy_(model.get_parameter("task_heads.label.output.weight"))
        theirs.classifier.bias.copy_(model.get_parameter("task_heads.label.output.bias"))
    batch = collate(TASKS[kind].lay_out(data.rows, start.tokenizer.vocabulary, recipe, None))
    encoded = BertTokenizer(str(folder / "vocab.txt"))(
        [a for a, _, _ in TEXTS], [b for _, b, _ in TEXTS], padding=True, return_tensors="pt"
    )
    answers = batch.targets["label"].labels[:, 0]
    expected = theirs(**encoded, labels=answers)
    torch.testing.assert_close(model.outputs(batch)["label"][:, 0], expected.logits, atol=1e-5, rtol=1e-5)
    loss = model(batch)["label"]
    torch.testing.assert_close(loss.total / loss.weight, expected.loss, atol=1e-5, rtol=1e-5)
    (loss.total / loss.weight).backward()
    expected.loss.backward()
    for own, other in (
        ("task_heads.label.output.weight", "classifier.weight"),
        ("task_heads.label.dense.weight", "bert.pooler.dense.weight"),
        ("backbone.embeddings.tokens.weight", "bert.embeddings.word_embeddings.weight"),
        ("backbone.layers.0.feed_forward.inner.weight", "bert.encoder.layer.0.intermediate.dense.weight"),
    ):
        torch.testing.assert_close(
            model.get_parameter(own).grad, theirs.get_parameter(other).grad, atol=1e-5, rtol=1e-4, check_stride=False
        )
