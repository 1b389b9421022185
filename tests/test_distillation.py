"""Distillation: soft labels beside labels, with values and gradients by hand, in pre-training and in fine-tuning."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nlu_toys
from hf_toys import save_run
from test_adaptation import step_of
from test_finetuning_resume import files, stop_behind
from toys import gradients_of
from unicloze import keyed
from unicloze.comparison.contestants import contestants
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Batch, SoftLabels, collate
from unicloze.finetuning.data import encoded, finetuning_steps
from unicloze.finetuning.initial import start_weights
from unicloze.finetuning.run import finetune_run, with_steps
from unicloze.model.heads import soft_losses
from unicloze.model.model import UnifiedModel
from unicloze.objectives import make_examples
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.records import read_records
from unicloze.settings import Recipe
from unicloze.text.windows import windows_of
from unicloze.training.distillation import Teacher
from unicloze.training.loading import LoadedModel, build_model, load_model
from unicloze.training.loop import Compute

CPU = Compute(device=torch.device("cpu"), precision="fp32")
SHORT = {"finetuning__epochs": 3, "finetuning__evaluations": 1, "training__batch_size": 8, "task__labels": ["a", "b"]}


def test_the_soft_loss_is_the_divergence_at_the_temperature_by_hand() -> None:
    """T squared times the sum of p log(p / q); its gradient is T (q - p), by Hinton et al., equations 2 to 4."""
    draw = np.random.default_rng(3)
    logits, theirs = draw.normal(size=(2, 5, 7)) * 3
    for temperature in (1.0, 2.0, 5.0):

        def softmax(x: np.ndarray[Any, Any], t: float = temperature) -> np.ndarray[Any, Any]:
            each = np.exp(x / t - (x / t).max(axis=1, keepdims=True))
            return np.asarray(each / each.sum(axis=1, keepdims=True))

        p, q = softmax(theirs), softmax(logits)
        own = torch.tensor(logits, dtype=torch.float32, requires_grad=True)
        found = soft_losses(own, SoftLabels(torch.tensor(theirs, dtype=torch.float32), temperature, 0.5))
        np.testing.assert_allclose(found.detach(), temperature**2 * (p * np.log(p / q)).sum(axis=1), rtol=1e-4)
        found.sum().backward()
        assert own.grad is not None
        np.testing.assert_allclose(own.grad, temperature * (q - p), atol=1e-5)


def pretrained(name: str, **more: Any) -> LoadedModel:
    return nlu_toys.start(name, model__dropout=0.0, model__attention_dropout=0.0, **more)


def a_batch(start: LoadedModel) -> Batch:
    """Rows of the objective of a model."""
    vocabulary, objective = start.tokenizer.vocabulary, start.recipe.objective
    texts = [[vocabulary.ordinary[row : row + count]] for row, count in enumerate((10, 7, 5))]
    if objective.name != "causal":
        objective = dataclasses.replace(objective, mask_rate=0.4)
    return collate(make_examples(windows_of(texts, vocabulary, keys=keyed.key(5, np.arange(3))), vocabulary, objective))


@pytest.mark.parametrize(("name", "targets"), [("bert-base", ["ae"]), ("unilmv2-base", ["ae", "par"]), ("gpt", ["lm"])])
def test_losses_and_gradients_of_tokens_are_those_by_hand(name: str, targets: list[str]) -> None:
    """Each target mixed on its own; the teacher knows the first one only."""
    more = {"objective__targets": targets, "objective__pairs": "contiguous"} if name == "bert-base" else {}
    start, other = pretrained(name, **more), pretrained(name, **more, training__seed=9)
    settings = dataclasses.replace(start.recipe.distillation, teacher="it", temperature=3.0, weight=0.3)
    recipe = dataclasses.replace(start.recipe, distillation=settings)
    teacher = Teacher(other, recipe, targets[:1])
    batch = a_batch(start)
    taught = teacher(batch, CPU)
    assert {key for key, target in taught.targets.items() if target.soft is not None} == set(targets[:1])
    model = start.model.train()
    losses = {key: loss.total for key, loss in model(taught).items()}
    sum(losses.values(), torch.zeros(())).backward()
    found = gradients_of(model)

    expected = torch.zeros(())
    logits = model.logits(batch)
    with torch.no_grad():
        theirs = other.model.logits(batch)
    for key, target in batch.targets.items():
        hard = torch.nn.functional.cross_entropy(logits[key].transpose(1, 2), target.labels, reduction="none")
        p = torch.softmax(theirs[key] / 3.0, dim=-1)
        cross = -(p * torch.log_softmax(logits[key] / 3.0, dim=-1)).sum(dim=-1)
        entropy = -(p * p.log()).sum(dim=-1)
        mixed = 0.7 * hard + 0.3 * 9.0 * (cross - entropy) if key in targets[:1] else hard
        by_hand = (mixed * target.weights).sum()
        torch.testing.assert_close(losses[key], by_hand, rtol=1e-5, atol=1e-4)
        expected = expected + by_hand
    expected.backward()
    torch.testing.assert_close(found, gradients_of(model), rtol=1e-4, atol=1e-5)
    model.eval()


def test_soft_labels_do_not_depend_on_the_answers() -> None:
    """The teacher sees what the student sees: other labels under the same masks give the same soft labels."""
    start, other = pretrained("unilmv2-base"), pretrained("unilmv2-base", training__seed=9)
    recipe = dataclasses.replace(
        start.recipe, distillation=dataclasses.replace(start.recipe.distillation, teacher="it")
    )
    batch = a_batch(start)
    changed = {key: dataclasses.replace(target, labels=target.labels.flip(1)) for key, target in batch.targets.items()}
    one, two = (
        Teacher(other, recipe, ["ae", "par"])(each, CPU)
        for each in (batch, dataclasses.replace(batch, targets=changed))
    )
    for key in ("ae", "par"):
        soft = [each.targets[key].soft for each in (one, two)]
        assert soft[0] is not None and soft[1] is not None and torch.equal(soft[0].outputs, soft[1].outputs)


@pytest.mark.parametrize("kind", ["classification", "regression", "tagging"])
def test_losses_and_gradients_of_a_task_are_those_by_hand(tmp_path: Path, kind: str) -> None:
    start = pretrained("bert-base")
    settings: dict[str, Any] = {"training__batch_size": 8, "distillation__weight": 0.6}
    if kind != "regression":
        settings |= {"distillation__temperature": 2.0, "task__labels": ["a", "b"]}
    if kind == "tagging":
        settings["task__metrics"] = "tag-accuracy"
    recipe = nlu_toys.recipe_for(start, kind, **settings)
    words = [*enumerate(nlu_toys.WORDS)]
    records: list[dict[str, Any]] = {
        "classification": [{"text": f"anna {word}", "label": "ab"[n % 2]} for n, word in words],
        "regression": [{"text": f"anna {word}", "label": n / 3} for n, word in words],
        "tagging": [{"tokens": ["anna", word][n % 2 :], "tags": ["a", "b"][n % 2 :]} for n, word in words],
    }[kind]
    nlu_toys.write(tmp_path / "train.jsonl", records)
    rows = read_records(tmp_path / "train.jsonl", recipe.task)
    recipe = with_steps(recipe, len(rows))
    data = encoded(rows, recipe, start.tokenizer)
    ((step,),) = [next(finetuning_steps(data, recipe, start.tokenizer.vocabulary, "cpu", 0))]
    batch = step.batch(torch.device("cpu"))

    def model_of(seed: int) -> UnifiedModel:
        seeded = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, seed=seed))
        model = build_model(seeded, start.model.vocab_size)
        start_weights(model, start, recipe.task)
        return model.for_use()

    student, other = model_of(1), model_of(2)
    (name,) = batch.targets
    teacher = Teacher(LoadedModel(other.eval(), start.tokenizer, recipe, Path("it"), 0), recipe, [name])
    loss = student.train()(teacher(batch, CPU))[name].total
    loss.backward()
    found = gradients_of(student)
    outputs, target = student.outputs(batch)[name], batch.targets[name]
    with torch.no_grad():
        theirs = other.outputs(batch)[name]
    if kind == "regression":
        hard = (outputs[..., 0] - target.labels).square()
        soft = (outputs[..., 0] - theirs[..., 0]).square()
    else:
        hard = -torch.log_softmax(outputs, -1).gather(2, target.labels[..., None])[..., 0]
        p = torch.softmax(theirs / 2, -1)
        soft = 4.0 * (p * (p.log() - torch.log_softmax(outputs / 2, -1))).sum(-1)
    expected = ((0.4 * hard + 0.6 * soft) * target.weights).sum()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    expected.backward()
    torch.testing.assert_close(found, gradients_of(student), rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A start model, and a teacher fine-tuned from it."""
    folder = tmp_path_factory.mktemp("taught")
    start = save_run(folder / "start", nlu_toys.start())
    train, dev = files(folder)
    recipe = nlu_toys.recipe_for(start, "classification", **SHORT, training__seed=3)
    finetune_run(recipe, start, train, dev, folder / "teacher", progress=False)
    return folder


def taught(place: Path, out: Path, **more: Any) -> Any:
    start = load_model(place / "start")
    values = {**SHORT, "distillation__teacher": str(place / "teacher"), "model__dropout": 0.1, **more}
    recipe = nlu_toys.recipe_for(start, "classification", **values)
    return finetune_run(recipe, start, place / "train.jsonl", place / "dev.jsonl", out, progress=False)


def assert_equal(one: torch.nn.Module, other: torch.nn.Module, different: torch.nn.Module) -> None:
    """The first two have the same bits, and the third has not."""
    weights, others, rest = (model.state_dict() for model in (one, other, different))
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert not all(torch.equal(weights[name], rest[name]) for name in weights)


@pytest.mark.whole
def test_a_stopped_run_ends_with_the_same_bits_and_its_own_teacher_only(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(place / "teacher", tmp_path / "moved")
    start = load_model(place / "start")
    other = nlu_toys.recipe_for(start, "classification", **SHORT, training__seed=4)
    finetune_run(other, start, place / "train.jsonl", None, tmp_path / "other", progress=False)
    taught(place, tmp_path / "whole")
    alone = taught(place, tmp_path / "alone", distillation__teacher=None)
    with monkeypatch.context() as patch:
        stop_behind(patch, 5)
        assert taught(place, tmp_path / "broken").stopped_by
    for another in (str(tmp_path / "other"), None):
        with pytest.raises(UniclozeError, match="holds a run with another teacher"):
            taught(place, tmp_path / "broken", distillation__teacher=another)
    assert taught(place, tmp_path / "broken", distillation__teacher=str(tmp_path / "moved")).step == alone.step == 9
    one, two, without = (load_model(tmp_path / out / "checkpoints").model for out in ("whole", "broken", "alone"))
    assert_equal(one, two, without)


def test_evaluations_are_of_the_labels_alone(place: Path, tmp_path: Path) -> None:
    """A teacher changes what is learned, not what is measured."""
    taught(place, tmp_path / "run", distillation__weight=1.0)
    model = load_model(tmp_path / "run").model
    recipe = nlu_toys.recipe_for(load_model(place / "start"), "classification", **SHORT)
    _, step = step_of(load_model(place / "start"), recipe, tmp_path)
    batch = step.batch(torch.device("cpu"))
    expected = -torch.log_softmax(model.outputs(batch)["label"], -1).gather(2, batch.targets["label"].labels[..., None])
    torch.testing.assert_close(model(batch)["label"].total, expected.sum(), rtol=1e-5, atol=1e-5)


def student_of(start: LoadedModel, task: str = "classification", **more: Any) -> Recipe:
    values = {"task__labels": ["a", "b"], "distillation__teacher": "it", **more}
    return nlu_toys.recipe_for(start, task, **values)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"task__labels": ["b", "a"]}, r"with task\.labels \['a', 'b'\], but the run has \['b', 'a'\]"),
    ({"task__pooling": "mean"}, r"with task\.pooling first, but the run has mean"),
    ({"use__separators": 2}, r"with use\.separators 1, but the run has 2"),
    ({"task__head": "biattentive"}, r"with task\.head dense, but the run has biattentive"),
    ({"task__max_length": 200}, r"has 128 positions, but the rows have up to 200: lower task\.max_length"),
]


def test_a_teacher_that_does_not_fit_is_refused(place: Path) -> None:
    start, teacher = load_model(place / "start"), load_model(place / "teacher")
    assert Teacher.of(teacher, student_of(start), start.tokenizer) is not None
    for changes, message in REFUSED:
        with pytest.raises(UsageError, match=message):
            Teacher.of(teacher, student_of(start, **changes), start.tokenizer)
    with pytest.raises(UsageError, match="has another tokenizer than this run"):
        Teacher.of(teacher, student_of(start), nlu_toys.start("gpt").tokenizer)
    with pytest.raises(UsageError, match="trained for pre-training only, but the run is for classification"):
        Teacher.of(start, student_of(start), start.tokenizer)
    choice = nlu_toys.recipe_for(start, "choice", distillation__teacher="it")
    with pytest.raises(UsageError, match="a choice task has no soft labels; only classification, regression, tagging"):
        Teacher.of(teacher, choice, start.tokenizer)
    masked = dataclasses.replace(start.recipe.distillation, teacher="it")
    with pytest.raises(UsageError, match=r"predicts no tokens, but the run trains"):
        Teacher.of(teacher, dataclasses.replace(start.recipe, distillation=masked), start.tokenizer)


LEFT = {"objective.visibility": "left_to_right", "objective.targets": ["ae"]}


@pytest.mark.parametrize(
    ("teacher", "student", "changes", "message"),
    [
        ("bart-base", "gpt", {}, r"predicts lm in rows of denoising \(bidirectional, targets begin with .*\), but"),
        ("bert-base", "bert-base", LEFT, r"ae in rows of masked \(bidirectional\), but .* masked \(left_to_right\)"),
        ("gpt", "prefix-lm-base", {}, r"lm in rows of causal \(left_to_right\), but .* prefix \(bidirectional\)"),
        ("bert-base", "unilmv2-ablation-ae", {}, ""),
    ],
)
def test_a_teacher_of_tokens_predicts_them_in_such_rows(
    teacher: str, student: str, changes: dict[str, Any], message: str
) -> None:
    recipe = load_recipe(student, toy_overrides() | changes | {"distillation.teacher": "it"})
    opened = nlu_toys.start(teacher)
    with pytest.raises(UsageError, match=message) if message else contextlib.nullcontext():
        assert Teacher.of(opened, recipe, opened.tokenizer)


def pretraining(corpus: Path, out: Path, name: str = "unilmv2-base", **more: Any) -> Any:
    overrides = {
        **toy_overrides(), "data.corpus": [str(corpus)], "tokenizer.vocab_size": 300, "training.steps": 4,
        "training.save_every": 1, "training.precision": "fp32", **{k.replace("__", "."): v for k, v in more.items()},
    }  # fmt: skip
    return pretrain_run(load_recipe(name, overrides), out, progress=False)


@pytest.mark.whole
def test_pretraining_learns_from_a_teacher_and_resumes_exactly(corpus: Path, tmp_path: Path) -> None:
    pretraining(corpus, tmp_path / "teacher", training__seed=7)
    more = {"distillation__teacher": str(tmp_path / "teacher"), "data__prepared": str(tmp_path / "teacher" / "data")}
    pretraining(corpus, tmp_path / "whole", **more)
    pretraining(corpus, tmp_path / "broken", **more)
    shutil.rmtree(tmp_path / "broken" / "checkpoints" / "step-00000004")
    pretraining(corpus, tmp_path / "broken", **more)
    pretraining(corpus, tmp_path / "alone", data__prepared=more["data__prepared"])
    assert_equal(*(load_model(tmp_path / out).model for out in ("whole", "broken", "alone")))
    shutil.rmtree(tmp_path / "broken" / "checkpoints" / "step-00000004")
    with pytest.raises(UniclozeError, match=r"a run with another distillation\.teacher"):
        pretraining(corpus, tmp_path / "broken", **{**more, "distillation__teacher": str(tmp_path / "alone")})
    assert load_recipe(tmp_path / "broken" / "recipe.yaml").distillation.teacher == more["distillation__teacher"]
    with pytest.raises(UsageError, match="has another tokenizer than this run"):
        teacher = more["distillation__teacher"]
        pretraining(corpus, tmp_path / "own", distillation__teacher=teacher, tokenizer__kind="bpe")


def test_a_comparison_refuses_a_teacher(tmp_path: Path) -> None:
    file = tmp_path / "taught.yaml"
    file.write_text("base: quickstart\ndistillation: {teacher: runs/one}\n")
    with pytest.raises(UsageError, match=r"recipe taught sets distillation\.teacher, a model that no budget trains"):
        contestants([str(file)], like=None, overrides={})
