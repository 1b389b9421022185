"""Folders of Transformers with the heads of tasks: imported, used, fine-tuned further and exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import processors

import language_model_toys
import nlu_toys
from interop_toys import same_gradients, save, table_of
from unicloze import verbs
from unicloze.errors import UniclozeError
from unicloze.example import collate
from unicloze.finetuning.run import finetune_run
from unicloze.interop.read import import_checkpoint, open_model, write_model
from unicloze.model.dropout import DropoutKey
from unicloze.records import read_records
from unicloze.tasks import TASKS
from unicloze.training.loading import LoadedModel, load_model

transformers = pytest.importorskip("transformers")

FAMILY: dict[str, dict[str, Any]] = {
    "Bert": {},
    "Roberta": {"type_vocab_size": 1},
    "XLMRoberta": {"type_vocab_size": 1},
    "MPNet": {},
    "Electra": {"embedding_size": 16},
    "Albert": {"embedding_size": 16, "classifier_dropout_prob": 0.0},
    "DistilBert": {"seq_classif_dropout": 0.0, "qa_dropout": 0.0},
}
TEXTS = ["a bad cab.", "bc", "abc de fgh, a."]
CLASSES = ["cat", "dog", "B-X"]


def folder(kind: str, place: Path, **changes: Any) -> Any:
    """A random model with a head, saved; MPNet and RoBERTa pad with id 1, which no text has."""
    family = kind.partition("For")[0]
    names = {"id2label": dict(enumerate(CLASSES)), "label2id": {name: i for i, name in enumerate(CLASSES)}}
    own = names if "Sequence" in kind or "Token" in kind else {}
    padding = 2 if family in ("Roberta", "XLMRoberta", "MPNet") else 0
    return save(kind, place, padding=padding, **FAMILY[family] | own | changes)


def rows(loaded: LoadedModel, place: Path, records: list[dict[str, Any]]) -> Any:
    """The batch of some records."""
    recipe = loaded.recipe
    task = TASKS[recipe.task.kind]
    found = read_records(nlu_toys.write(place / "records.jsonl", records), recipe.task)
    encoded = task.encode(found, loaded.tokenizer, recipe)
    return collate(task.lay_out(encoded, loaded.tokenizer.vocabulary, recipe, None))


def their_inputs(kind: str, place: Path, texts: list[Any], pairs: list[Any] | None = None) -> Any:
    """Texts through the stock tokenizer of a vocab.txt."""
    tokenizer = transformers.BertTokenizer(str(place / "vocab.txt"), do_lower_case=True)
    if "Roberta" in kind or "MPNet" in kind:
        tokenizer.pad_token = "[unused1]"
    segments = kind.startswith(("Bert", "Electra", "Albert"))
    return tokenizer(texts, pairs, padding=True, return_tensors="pt", return_token_type_ids=segments)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("family", FAMILY)
def test_classes_of_texts(tmp_path: Path, family: str, training: bool) -> None:
    """Logits, loss and every gradient, of texts through the tokenizer."""
    kind = f"{family}ForSequenceClassification"
    peer = folder(kind, tmp_path).train(training)
    loaded = open_model(tmp_path)
    assert loaded.recipe.task.labels == CLASSES
    loaded.model.train(training)
    batch = rows(loaded, tmp_path, [{"text": text, "label": CLASSES[i]} for i, text in enumerate(TEXTS)])
    answer = peer(**their_inputs(kind, tmp_path, TEXTS), labels=torch.tensor([0, 1, 2]))
    torch.testing.assert_close(loaded.model.outputs(batch)["label"][:, 0], answer.logits, atol=1e-5, rtol=1e-5)
    loss = loaded.model(batch, DropoutKey(0) if training else None)["label"]
    torch.testing.assert_close(loss.total / loss.weight, answer.loss, atol=1e-5, rtol=1e-5)
    (loss.total / loss.weight).backward()
    answer.loss.backward()
    own = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in loaded.model.named_parameters()}
    for name, gradient in table_of(tmp_path)[1].to_theirs(own).items():
        expected = peer.get_parameter(name).grad
        if expected is None:
            assert not gradient.any(), name
        elif "position_embeddings" not in name:  # with rows for padding
            torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def predicted(loaded: LoadedModel, place: Path, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return verbs.predict(loaded, nlu_toys.write(place / "asked.jsonl", records), quiet=True)


@pytest.mark.parametrize("family", ["Bert", "Electra", "Albert"])
def test_classes_of_pairs(tmp_path: Path, family: str) -> None:
    kind = f"{family}ForSequenceClassification"
    peer = folder(kind, tmp_path)
    with torch.no_grad():
        shares = peer(**their_inputs(kind, tmp_path, TEXTS, TEXTS[::-1])).logits.softmax(-1)
    records = [{"text": one, "pair": two} for one, two in zip(TEXTS, TEXTS[::-1], strict=True)]
    for own, expected in zip(predicted(open_model(tmp_path), tmp_path, records), shares, strict=True):
        assert own["prediction"] == CLASSES[int(expected.argmax())]
        assert list(own["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-5)


def roberta_tokenizer(place: Path) -> Any:
    """The folder's tokenizer as RoBERTa's, which puts two </s> between texts."""
    vocabulary = transformers.BertTokenizer(str(place / "vocab.txt"), do_lower_case=True).backend_tokenizer
    vocabulary.post_processor = processors.RobertaProcessing(("[SEP]", 4), ("[CLS]", 3))
    vocabulary.save(str(place / "tokenizer.json"))
    return vocabulary


def test_classes_of_robertas_pairs(tmp_path: Path) -> None:
    """Whether its tokenizer's file says so or not; an export too, which says so."""
    peer = folder("RobertaForSequenceClassification", tmp_path / "theirs")
    vocabulary = roberta_tokenizer(tmp_path / "theirs")
    records = [{"text": one, "pair": two} for one, two in zip(TEXTS, TEXTS[::-1], strict=True)]
    expected = []
    for record in records:
        ids = vocabulary.encode(record["text"], record["pair"]).ids
        assert ids.count(4) == 3
        with torch.no_grad():
            expected.append(peer(torch.tensor([ids])).logits.softmax(-1)[0].tolist())
    loaded = open_model(tmp_path / "theirs")
    verbs.export(loaded, "roberta", tmp_path / "ours")
    (tmp_path / "theirs" / "tokenizer.json").unlink()
    for each in (loaded, open_model(tmp_path / "theirs"), open_model(tmp_path / "ours")):
        found = [list(one["probabilities"].values()) for one in predicted(each, tmp_path, records)]
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), atol=1e-5, rtol=1e-5)
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert auto(TEXTS[0], TEXTS[1])["input_ids"] == vocabulary.encode(TEXTS[0], TEXTS[1]).ids


@pytest.mark.parametrize("changes", [{"num_labels": 1}, {"num_labels": 1, "problem_type": "regression"}])
def test_a_quantity(tmp_path: Path, changes: dict[str, Any]) -> None:
    kind = "BertForSequenceClassification"
    peer, loaded = save(kind, tmp_path, **changes), open_model(tmp_path)
    records = [{"text": text, "label": float(number)} for number, text in enumerate(TEXTS)]
    answer = peer(**their_inputs(kind, tmp_path, TEXTS), labels=torch.tensor([0.0, 1.0, 2.0]))
    found = [each["prediction"] for each in predicted(loaded, tmp_path, records)]
    assert found == pytest.approx(answer.logits[:, 0].tolist(), abs=1e-5)
    loss = loaded.model(rows(loaded, tmp_path, records))["label"]
    torch.testing.assert_close(loss.total / loss.weight, answer.loss, atol=1e-5, rtol=1e-5)
    (loss.total / loss.weight).backward()
    answer.loss.backward()
    same_gradients(table_of(tmp_path)[1], loaded.model, peer)


@pytest.mark.parametrize("family", FAMILY)
def test_tags_of_words(tmp_path: Path, family: str) -> None:
    """The tag of a word is that of its first piece; a pooler that the class does not use is ignored."""
    kind = f"{family}ForTokenClassification"
    peer = folder(kind, tmp_path)
    if family == "Bert":
        file = tmp_path / "model.safetensors"
        pooler = {"bert.pooler.dense.weight": torch.zeros(32, 32), "bert.pooler.dense.bias": torch.zeros(32)}
        save_file(load_file(file) | pooler, file)
    loaded = open_model(tmp_path)
    assert (loaded.recipe.task.metrics, loaded.recipe.model.pooler) == (["tag-accuracy"], False)
    batch = rows(loaded, tmp_path, [{"tokens": text.split()} for text in TEXTS])
    own = loaded.model.outputs(batch)["tags"]
    with torch.no_grad():
        logits = peer(**their_inputs(kind, tmp_path, TEXTS)).logits
    for number, text in enumerate(TEXTS):
        count = len(text.split())
        slots = batch.targets["tags"].slots[number, :count]
        torch.testing.assert_close(own[number, :count], logits[number, slots], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["Bert", "Roberta", "Electra", "Albert", "DistilBert"])
def test_answers_in_passages(tmp_path: Path, family: str) -> None:
    kind = f"{family}ForQuestionAnswering"
    peer = folder(kind, tmp_path)
    if family == "Roberta":
        inputs = {"input_ids": torch.tensor([roberta_tokenizer(tmp_path).encode(TEXTS[0], TEXTS[2]).ids])}
    else:
        inputs = their_inputs(kind, tmp_path, TEXTS[:1], TEXTS[2:])
    loaded = open_model(tmp_path)
    assert loaded.recipe.task.unanswerable is False
    record = {"id": "1", "question": TEXTS[0], "context": TEXTS[2]}
    batch = rows(loaded, tmp_path, [record])
    assert torch.equal(batch.input_ids.long(), inputs["input_ids"])
    with torch.no_grad():
        answer, own = peer(**inputs), loaded.model.outputs(batch)
    for name, logits in (("start", answer.start_logits), ("end", answer.end_logits)):
        slots = batch.targets[name].slots[0, 0]
        torch.testing.assert_close(own[name][0, 0], logits[0, slots], atol=1e-5, rtol=1e-5)
    assert batch.input_ids[0, slots[1:]].tolist() == loaded.tokenizer.encode(TEXTS[2]).tolist()
    (said,) = predicted(loaded, tmp_path, [record])
    assert said["prediction"] and said["prediction"] in TEXTS[2]


@pytest.mark.parametrize("family", ["Bert", "Roberta", "Albert", "DistilBert"])
def test_choices(tmp_path: Path, family: str) -> None:
    kind = f"{family}ForMultipleChoice"
    peer = folder(kind, tmp_path)
    record = {"cloze": "a _ .", "choices": ["cab", "bed", "fig"]}
    inputs = their_inputs(kind, tmp_path, [f"a {choice} ." for choice in record["choices"]])
    with torch.no_grad():
        shares = peer(**{name: values[None] for name, values in inputs.items()}).logits.softmax(-1)[0]
    (said,) = predicted(open_model(tmp_path), tmp_path, [record])
    assert said["probabilities"] == pytest.approx(shares.tolist(), abs=1e-5)


@pytest.mark.parametrize("family", ["Bert", "Roberta", "Electra", "Albert", "DistilBert"])
@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"])
def test_exported_again_it_is_the_same(tmp_path: Path, family: str, kind: str) -> None:
    folder(family + kind, tmp_path / "theirs", **{"qa_dropout": 0.3} if "Answering" in kind else {})
    loaded = open_model(tmp_path / "theirs")
    result = verbs.export(loaded, family.lower(), tmp_path / "ours")
    assert result.architecture == family + kind and max(result.differences.values()) < 1e-5
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    _, table = table_of(tmp_path / "theirs")
    assert before.keys() == after.keys() | {name for name in before if table.ignores(name)}
    for name, tensor in after.items():
        same = slice(-40, None) if "position_embeddings" in name else slice(None)  # without the rows of padding
        assert torch.equal(tensor[same], before[name][same]), name
    rates = {"hidden_dropout_prob", "dropout", "classifier_dropout_prob", "seq_classif_dropout", "qa_dropout"}
    first, second = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("theirs", "ours"))
    assert first.get("id2label") == second.get("id2label")
    assert all(first[name] == second[name] for name in rates & first.keys() & second.keys())


@pytest.mark.whole
def test_an_imported_classifier_learns_further(tmp_path: Path) -> None:
    """Its head is kept with the same classes, and a checkpoint of ours predicts the same."""
    folder("ElectraForSequenceClassification", tmp_path / "theirs", hidden_dropout_prob=0.0)
    start = open_model(tmp_path / "theirs")
    write_model(start, tmp_path / "ours")
    records = [{"text": f"{one} {two}", "label": CLASSES["abc".index(one)]} for one in "abc" for two in "defgh"]
    asked = [{"text": record["text"]} for record in records]
    assert predicted(load_model(tmp_path / "ours"), tmp_path, asked) == predicted(start, tmp_path, asked)
    file = nlu_toys.write(tmp_path / "train.jsonl", records)
    with pytest.warns(UserWarning, match=r"is newly initialised; give --task\.head dense_gelu to keep what it learned"):
        other = nlu_toys.recipe_for(start, "classification", task__labels=CLASSES, training__steps=1)
        finetune_run(other, start, file, file, tmp_path / "other", progress=False)
    recipe = nlu_toys.recipe_for(start, "classification", task__labels=CLASSES, task__head="dense_gelu")
    finetune_run(recipe, start, file, file, tmp_path / "run", progress=False)
    tuned = load_model(tmp_path / "run")
    right = [record["label"] for record in records]
    assert [each["prediction"] for each in predicted(tuned, tmp_path, asked)] == right
    verbs.export(tuned, "electra", tmp_path / "out")
    ask = transformers.pipeline("text-classification", model=str(tmp_path / "out"))
    assert [each["label"] for each in ask([record["text"] for record in records])] == right


CLASSIFIER, TAGGER = "BertForSequenceClassification", "BertForTokenClassification"


@pytest.mark.parametrize(("kind", "changes", "message"), [
    (CLASSIFIER, {"problem_type": "multi_label_classification"}, "only one class or one"),
    (CLASSIFIER, {"problem_type": "regression"}, "not 3"),
    (CLASSIFIER, {"problem_type": "single_label_classification", "id2label": {"0": "a"}}, "there is only one class"),
    (TAGGER, {"id2label": {"0": "a", "1": "a"}}, "a name of its own"),
    (TAGGER, {"id2label": {"0": "a", "2": "b"}}, "a name of its own"),
    (TAGGER, {"id2label": ["a", "b"]}, "a name of its own"),
    ("ElectraForMultipleChoice", {}, "a head of this class cannot be imported; pass --allow"),
])  # fmt: skip
def test_other_heads_are_refused(tmp_path: Path, kind: str, changes: dict[str, Any], message: str) -> None:
    folder(kind, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UniclozeError, match=message) as error:
        open_model(tmp_path)
    assert "config.json: " in str(error.value)


@pytest.mark.parametrize(("make", "family"), [(language_model_toys.gpt2, "GPT2"), (language_model_toys.xlnet, "XLNet")])
def test_heads_of_language_models_are_refused(tmp_path: Path, make: Any, family: str) -> None:
    kind = f"{family}ForSequenceClassification"
    make(tmp_path, kind, pad_token_id=5)
    with pytest.raises(UniclozeError, match=rf"architectures is \['{kind}.*: a head of this class cannot be imported"):
        open_model(tmp_path)


def test_the_encoder_alone_is_imported_where_that_is_allowed(tmp_path: Path) -> None:
    folder("ElectraForMultipleChoice", tmp_path)
    with pytest.warns(UserWarning, match="4 tensors of .* ignored, as allowed"):
        loaded = import_checkpoint(tmp_path, allow=["sequence_summary.*", "classifier.*"])
    assert not loaded.recipe.task.kind and not loaded.model.task_heads
