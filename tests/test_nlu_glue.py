"""GLUE: its files, its recipes, the files for its server; Adamax."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from nlu_toys import recipe_for, start
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.labels import GLUE
from unicloze.evaluation.metrics.registry import METRICS
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.evaluation.metrics.standard_errors import binomial_error, bootstrap_errors
from unicloze.finetuning.predict import as_glue
from unicloze.finetuning.run import finetune_run
from unicloze.recipes import load_recipe, task_names
from unicloze.records import FORMATS, read_records
from unicloze.records.published import LAYOUTS
from unicloze.records.record import Record
from unicloze.settings import TrainingSettings
from unicloze.tasks import TASKS, task_settings
from unicloze.training.checkpoint import load_checkpoint, save_checkpoint
from unicloze.training.loading import LoadedModel
from unicloze.training.optimizers import build_optimizers

MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
)


def read(folder: Path, task: str, content: str, name: str = "train.tsv") -> list[Record]:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return read_records(path, task_settings(kind="classification", format=f"glue-{task}"))


@pytest.mark.parametrize(("task", "content", "text", "pair", "label", "name"), [
    ("cola", 'gj04\t0\t*\tHe said "no.\n', 'He said "no.', None, "0", "0"),
    ("cola", "index\tsentence\n7\tBill ran.\n", "Bill ran.", None, None, "7"),
    ("sst-2", "sentence\tlabel\nso good \t1\n", "so good ", None, "1", "0"),
    ("sst-2", "index\tsentence\n3\tso good\n", "so good", None, None, "3"),
    ("mrpc", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t70\t71\tA a.\tB \"b\".\r\n",
     "A a.", 'B "b".', "1", "0"),
    ("mrpc", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n5\t70\t71\tA\tB\n", "A", "B", None, "5"),
    ("sts-b", "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
     "2\tg\tf\t2012\t1\tnone\tnone\tA plane\tA jet\t4.25\n", "A plane", "A jet", "4.25", "2"),
    ("sts-b", "g\tf\t2012\t0001\t5.000\tA plane\tA jet\n", "A plane", "A jet", "5.000", "0"),
    ("sts-b", "g\tf\t2012\t0001\t5.000\tA plane\tA jet\tone\ttwo\n", "A plane", "A jet", "5.000", "0"),
    ("qqp", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n9\t1\t2\tHow?\tWhy?\t0\n", "How?", "Why?", "0", "9"),
    ("qqp", "id\tquestion1\tquestion2\n4\tHow?\tWhy?\n", "How?", "Why?", None, "4"),
    ("mnli", f"{MNLI}\tsentence1\tsentence2\tlabel1\tgold_label\n0\t1\t1n\tg\ta\tb\tc\td\tP.\tH.\tneutral\tentailment\n",
     "P.", "H.", "entailment", "0"),
    ("mnli", f"{MNLI}\tsentence1\tsentence2\n8\t1\t1n\tg\ta\tb\tc\td\tP.\tH.\n", "P.", "H.", None, "8"),
    ("mnli", "index\tsentence1\tsentence2\n1\tP.\tH.\n", "P.", "H.", None, "1"),  # AX
    ("mnli", "Lexical Semantics\tLogic\tDomain\tPremise\tHypothesis\tLabel\n\t\tnews\tP.\tH.\tneutral\n",
     "P.", "H.", "neutral", "0"),  # AX with its labels
    ("qnli", "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tentailment\n", "Who?", "He.", "entailment", "0"),
    ("qnli", "index\tquestion\tsentence\n6\tWho?\tHe.\n", "Who?", "He.", None, "6"),
    ("rte", "index\tsentence1\tsentence2\tlabel\n0\tP.\tH.\tnot_entailment\n", "P.", "H.", "not_entailment", "0"),
    ("wnli", "index\tsentence1\tsentence2\tlabel\n0\tP.\tH.\t1\n", "P.", "H.", "1", "0"),
])  # fmt: skip
def test_the_files_of_every_task(
    tmp_path: Path, task: str, content: str, text: str, pair: str | None, label: str | None, name: str
) -> None:
    (record,) = read(tmp_path, task, content)
    settings = task_settings(kind="classification")
    found = [record.get(settings, role) for role in ("text", "pair", "label")]
    assert (found, record.id) == ([text, pair, label], name)


@pytest.mark.parametrize(("task", "content", "message"), [
    ("cola", "gj04\t0\t*\tHe ran.\ngj04\t0\tHe ran.\n", r"line 2: 3 columns where 4 are expected"),
    ("sts-b", "g\tf\t2012\t1\t5.000\tA\tB\ng\tf\n", r"line 2: 2 columns where 7 or 9 are expected"),
    ("rte", "index\tsentence1\tsentence2\tlabel\n0\tP.\tH.\n", r"line 2: 3 columns where 4 are expected"),
    ("rte", "0\tP.\tH.\tentailment\n", r"line 1: the columns 0, P., H., entailment are not those of GLUE's rte"),
    ("rte", "index\tsentence1\tlabel\n0\tP.\tentailment\n", r"not those of GLUE's rte: its header names sentence1 and"),
    ("qqp", "id\tquestion1\tquestion2\n4\tHow?\n", r"line 2: 2 columns where 3 are expected"),
    ("sst-2", "\n\n", r"contains no records"),
])  # fmt: skip
def test_a_file_that_does_not_fit_the_task_is_named(tmp_path: Path, task: str, content: str, message: str) -> None:
    with pytest.raises(UniclozeError, match=message):
        read(tmp_path, task, content)


def test_the_broken_lines_of_qqp_are_left_out_and_named(tmp_path: Path) -> None:
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    with pytest.warns(UserWarning, match=r"train.tsv: 1 broken lines are skipped \(3\)"):
        records = read(tmp_path, "qqp", f'{header}9\t1\t2\tHow?\tWhy?\t0\n"\tWhy? What?\t0\n8\t1\t2\tHow?\tWho?\t1\n')
    assert [record.id for record in records] == ["9", "8"]


def test_a_file_may_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv.gz"
    path.write_bytes(gzip.compress(b"sentence\tlabel\ngood\t1\n"))
    assert len(read_records(path, task_settings(kind="classification", format="glue-sst-2"))) == 1


@pytest.mark.whole
@pytest.mark.parametrize(("task", "file", "count", "positive"), [
    ("cola", "CoLA/train.tsv.gz", 8551, 6023), ("cola", "CoLA/dev_in.tsv.gz", 527, 365),
    ("cola", "CoLA/dev_out.tsv.gz", 516, 354),
    ("mrpc", "MRPC/msr_paraphrase_train.tsv.gz", 4076, 2753), ("mrpc", "MRPC/msr_paraphrase_test.tsv.gz", 1725, 1147),
    ("rte", "RTE/train.tsv.gz", 2490, 1249), ("rte", "RTE/dev.tsv.gz", 277, 146),
    ("sst-2", "SST-2/train.tsv.gz", 60614, 33828), ("sst-2", "SST-2/dev.tsv.gz", 6735, 3741),
    ("sst-2", "SST-2/test.tsv.gz", 872, 444),
    ("sts-b", "STS-B/sts-train.csv.gz", 5749, None), ("sts-b", "STS-B/sts-dev.csv.gz", 1500, None),
    ("sts-b", "STS-B/sts-test.csv.gz", 1379, None),
])  # fmt: skip
def test_the_real_files_are_read_whole(
    shared_data: Path, task: str, file: str, count: int, positive: int | None
) -> None:
    settings = task_settings(kind="classification", format=f"glue-{task}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records = read_records(shared_data / "glue" / file, settings)
    assert len(records) == count
    assert all(record.text(settings, "text").strip() for record in records)
    assert not LAYOUTS[task].pair or all(record.text(settings, "pair").strip() for record in records)
    labels = [record.text(settings, "label") for record in records]
    if positive is None:
        assert all(0 <= float(label) <= 5 for label in labels)
    else:
        assert sum(label in ("1", "entailment") for label in labels) == positive
        assert set(labels) == set(load_recipe(f"glue-{task}").task.labels or ())


# Recipes


@pytest.mark.parametrize("name", task_names())
def test_a_task_recipe_names_the_source_of_its_values(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.task.kind in TASKS and all((recipe.provenance.paper, recipe.provenance.place))
    assert recipe.task.format == "auto" or recipe.task.format in FORMATS
    assert set(recipe.task.metrics) <= set(METRICS)
    assert set(recipe.task.fields) <= {*TASKS[recipe.task.kind].roles, "id"}


UNILM_V1_TABLE_8 = {"cola": "matthews", "mrpc": "f1", "qqp": "f1", "sts-b": "spearman"}
"""The metric it reports for each task; accuracy for all others."""


@pytest.mark.parametrize("task", LAYOUTS)
def test_the_recipes_of_glue_are_those_of_both_papers(task: str) -> None:
    second, first = load_recipe(f"glue-{task}"), load_recipe(f"glue-{task}-v1")
    for recipe in (first, second):
        assert (recipe.task.format, recipe.task.head) == (f"glue-{task}", "plain")
        assert recipe.task.kind == ("regression" if task == "sts-b" else "classification")
        assert (recipe.training.schedule, recipe.finetuning.warmup_share) == ("linear", 0.1)
        first_of_v2 = task == "sts-b" and recipe is second
        assert ("pearson" if first_of_v2 else GLUE[task].metric) in recipe.task.metrics
        assert len(getattr(recipe.task, "labels", ())) == {"mnli": 3, "sts-b": 0}.get(task, 2)
    training = second.training
    assert training.batch_size in (16, 32) and training.learning_rate in (5e-6, 1e-5, 1.5e-5, 2e-5, 3e-5)  # Table 9
    assert training.weight_decay in (0.01, 0.1) and second.finetuning.epochs in (10, 15)
    training = first.training
    assert (training.optimizer, training.learning_rate, training.batch_size) == ("adamax", 5e-5, 32)  # Section 3.5
    assert (first.finetuning.epochs, training.clip_norm, first.task.max_length) == (5, 1.0, 512)
    assert first.task.head_dropout == {"mnli": 0.3, "cola": 0.05, "sst-2": 0.05}.get(task, 0.1)


# Adamax


def test_adamax_is_the_papers_algorithm_2() -> None:
    """Against Algorithm 2 of Kingma and Ba (2015), written out."""
    layer = torch.nn.Linear(3, 2)
    settings = TrainingSettings(optimizer="adamax", learning_rate=0.1, betas=(0.9, 0.99), epsilon=1e-8, weight_decay=0)
    (optimizer,) = build_optimizers(layer, settings)
    weight = layer.weight.detach().clone().double()
    moment, largest = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(1, 6):
        gradient = torch.randn(2, 3, generator=torch.Generator().manual_seed(step))
        layer.weight.grad, layer.bias.grad = gradient.clone(), torch.zeros(2)
        optimizer.step()
        moment = 0.9 * moment + 0.1 * gradient
        largest = torch.maximum(0.99 * largest, gradient.abs().double() + 1e-8)
        weight -= 0.1 / (1 - 0.9**step) * moment / largest
        torch.testing.assert_close(layer.weight.detach().double(), weight, atol=1e-6, rtol=1e-5)


def test_adamax_resumes_exactly_from_a_checkpoint(tmp_path: Path) -> None:
    settings = TrainingSettings(optimizer="adamax", learning_rate=0.1, weight_decay=0)
    layers = [torch.nn.Linear(3, 2) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    optimizers = [build_optimizers(layer, settings) for layer in layers]

    def step(number: int, seed: int) -> None:
        for parameter in layers[number].parameters():
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
        optimizers[number][0].step()

    step(0, 1)
    path = save_checkpoint(
        tmp_path, step=1, model=layers[0].state_dict(), optimizers=optimizers[0], state={}, files=[], keep=1
    )
    checkpoint = load_checkpoint(path)
    layers[1].load_state_dict(checkpoint.model)
    optimizers[1][0].load_state_dict(checkpoint.optimizers[0])
    for number in range(2):
        step(number, 2)
    assert torch.equal(layers[0].weight, layers[1].weight)


def test_adamax_decays_no_weights() -> None:
    with pytest.raises(UsageError, match=r"training.weight_decay is 0.01; Adamax does not support"):
        load_recipe("classification", {"training.optimizer": "adamax"})


# From a file to a submission


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return start()


def test_from_the_files_of_a_task_to_its_submission(model: LoadedModel, tmp_path: Path) -> None:
    words, header = ["anna", "carl", "eva", "fargo"], "index\tsentence1\tsentence2"
    labels = ["not_entailment" if i // 4 in (0, 3) else "entailment" for i in range(16)]
    lines = [f"{i}\t{words[i % 4]} sees\t{words[i // 4]}" for i in range(16)]
    train, test = tmp_path / "train.tsv", tmp_path / "test.tsv"
    train.write_text("\n".join([f"{header}\tlabel", *(f"{a}\t{b}" for a, b in zip(lines, labels, strict=True))]))
    test.write_text("\n".join([header, *lines]))
    recipe = recipe_for(model, "glue-rte-v1", training__learning_rate=1e-2, task__head_dropout=0.0)
    result = finetune_run(recipe, model, train, train, tmp_path / "run", progress=False)
    accuracy = result.scores["accuracy"]
    assert accuracy.values["accuracy"] == 100 and accuracy.errors["accuracy"] == binomial_error(100, 16) == 0
    verbs.predict(tmp_path / "run", test, out=tmp_path / "RTE.tsv", format="glue", quiet=True)
    sent = (tmp_path / "RTE.tsv").read_text().splitlines()
    assert sent == ["index\tprediction", *(f"{i}\t{label}" for i, label in enumerate(labels))]
    with pytest.raises(UsageError, match="format is 'csv': give one of jsonl, json, glue"):
        verbs.predict(tmp_path / "run", test, format="csv", quiet=True)


def test_quantities_and_other_predictions_as_glue() -> None:
    assert as_glue([{"id": "3", "prediction": 2.34567}]) == "index\tprediction\n3\t2.346\n"
    with pytest.raises(UsageError, match="the prediction of 3 is not a class"):
        as_glue([{"id": "3", "prediction": ["O"]}])


def test_standard_errors_of_the_best_checkpoint(model: LoadedModel, tmp_path: Path) -> None:
    rows = [f"{'anna' if i % 2 else 'carl'} plays\t{int(i % 2 == (i % 8 > 1))}" for i in range(64)]
    train = tmp_path / "train.tsv"
    train.write_text("\n".join(["sentence\tlabel", *rows]))
    recipe = recipe_for(model, "glue-sst-2", finetuning__epochs=2, finetuning__evaluations=1.0)
    result = finetune_run(recipe, model, train, train, tmp_path / "run", progress=False)
    accuracy = result.scores["accuracy"]
    expected = binomial_error(accuracy.values["accuracy"], 64)
    assert accuracy.errors["accuracy"] == pytest.approx(expected, rel=0.25)
    assert f"(standard error {accuracy.errors['accuracy']:.2f})" in str(accuracy)
    with pytest.warns(UserWarning, match="already fully trained"):
        again = finetune_run(recipe, model, train, train, tmp_path / "run", progress=False)
    assert again.scores == result.scores


def test_samples_without_a_value_do_not_count() -> None:
    """F1 of a class is undefined in a resampled set without that class."""

    def share_of_yes(found: Sequence[str], _: Sequence[str]) -> MetricResult:
        return MetricResult(metric="", values={"share": 1.0} if "yes" in found else {}, items=len(found))

    assert bootstrap_errors(share_of_yes, ["yes", "no"], ["no", "no"], samples=40) == {"share": 0.0}
    assert bootstrap_errors(share_of_yes, ["no", "no"], ["no", "no"], samples=40) == {}
