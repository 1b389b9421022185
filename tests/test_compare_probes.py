"""Probes of a comparison: the same fine-tuning for every model, scores equal to separate runs, nothing repeated."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nlu_toys
import toys
from corpora import ADJECTIVES, NOUNS, VERBS, write_corpus
from nlu_toys import write
from unicloze import cli, verbs
from unicloze.comparison import runs
from unicloze.comparison.probes import Probe, finetuning_flops, fit_probes, open_probe, recipe_for
from unicloze.comparison.table import Comparison, as_markdown, as_text, cells, page
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.registry import metric
from unicloze.example import Examples
from unicloze.finetuning.data import encoded, finetuning_steps, open_records
from unicloze.finetuning.run import FinetuneResult, finetune_run
from unicloze.finetuning.seeds import OverSeeds
from unicloze.model.flops import Amounts, backbone_flops
from unicloze.recipes import load_recipe, parse_options
from unicloze.records import read_records
from unicloze.settings import Recipe, UseSettings
from unicloze.tasks import TASKS
from unicloze.tasks.rows import pooling_of
from unicloze.training.loading import LoadedModel

NAMES = "unilmv2-ablation-ae", "gpt"
FAST = {"finetuning.epochs": 2, "training.batch_size": 8, "training.learning_rate": 3e-3, "finetuning.evaluations": 1}


def sentences(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Sentences with words in order or reversed, labelled accordingly; the target of generation is the verb."""
    found = []
    for i in range(first, first + count):
        words = ["the", ADJECTIVES[i % 10], NOUNS[i % 7], VERBS[i % 9], "the", NOUNS[i % 11]]
        shown = words if i % 2 else words[::-1]
        found.append({"text": " ".join(shown), "label": "01"[i % 2], "source": " ".join(shown), "target": words[3]})
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("probes")
    writer = folder / "writing.yaml"
    writer.write_text(
        "base: generation\ntask: {max_length: 24, metrics: [lambada]}\ngeneration: {max_target: 4, target_noise: 0.0}\n"
        "decoding: {beams: 1, max_length: 3, no_repeat_ngram: 0}\n"
    )
    return {
        "corpus": write_corpus(folder),
        "train": write(folder / "train.jsonl", sentences(24)),
        "dev": write(folder / "dev.jsonl", sentences(10, 24)),
        "writing": writer,
    }


def compared(files: dict[str, Path], out: Path, **options: Any) -> Comparison:
    toy = {**toys.toy_settings(), "data.corpus": [str(files["corpus"])], "data.heldout_share": 0.2}
    toy |= {"tokenizer.kind": "wordpiece", "tokenizer.lowercase": True, "tokenizer.strip_accents": False}
    del toy["training.steps"]
    chosen: dict[str, Any] = {"recipes": NAMES, "budget": "steps=2", "seeds": 1, "quiet": True}
    chosen["probes"] = [("classification", files["train"], files["dev"])]
    chosen["probe_overrides"] = FAST
    return verbs.compare(**(chosen | {"out": out, "overrides": toy | {"training.precision": "fp32"}} | options))


@pytest.fixture(scope="module")
def done(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Two objectives with two seeds each."""
    return compared(files, tmp_path_factory.mktemp("c") / "out", seeds=2)


@pytest.mark.whole
def test_every_run_is_fine_tuned_and_this_is_reported(done: Comparison) -> None:
    (probe,) = done.probes
    assert (probe.metric, probe.value, probe.unit) == ("accuracy", "accuracy", "%")
    assert probe.records == (24, 10) and not probe.not_defined
    for row in done.rows:
        spread, spent = row.scores["probe.classification"], row.probes["classification"]
        assert spread is not None and spread.deviation is not None and 0 <= spread.mean <= 100
        assert 0 < spent.flops != row.flops and spent.seconds > 0
    assert [row.reads for row in done.rows] == ["bidirectional, first", "left_to_right, last"]
    heading, _, line = cells(done)
    assert line[heading.index("probes: read, pooled")] == "left_to_right, last"
    text = as_text(done)
    assert "do not count against the budget" in text and "classification, accuracy %" in as_markdown(done)
    html = page(done)
    assert "<h2>Probes</h2>" in html and html.count("on the development file</h3>") == 1
    assert "<h3>classification, accuracy % <small>higher is better</small>" in html
    stored = json.loads((done.out / "comparison.json").read_text())
    ours = json.loads(json.dumps(done.to_dict()))
    assert (stored["results"], stored["probed"]) == (ours["rows"], ours["probes"])


@pytest.mark.whole
def test_what_a_model_cannot_do_is_undefined_and_the_reason_reported(files: dict[str, Path], tmp_path: Path) -> None:
    probes = [(files["writing"], files["train"], files["dev"])]
    both = compared(files, tmp_path / "c", recipes=["gpt", "xlnet-base"], probes=probes)
    gpt, xlnet = both.rows
    assert gpt.scores["probe.writing"] is not None and gpt.probes["writing"].flops > 0
    assert xlnet.scores["probe.writing"] is None and not xlnet.probes
    assert not (both.out / "xlnet-base" / "seed-0" / "probes").exists()
    heading, *lines = cells(both)
    at = [heading.index(title) for title in ("writing, accuracy %", "probes: FLOPs", "probes: seconds")]
    assert [lines[1][i] for i in at] == ["-"] * 3 and "-" not in [lines[0][i] for i in at]
    assert "writing is not defined for xlnet-base (a model with model.positions transformer_xl" in as_text(both)
    assert "writing, accuracy % on the development file" in page(both)


@pytest.mark.whole
@pytest.mark.parametrize(("name", "seed"), [("unilmv2-ablation-ae", 0), ("gpt", 1)])
def test_a_score_is_that_of_finetune_predict_and_metric(
    done: Comparison, files: dict[str, Path], tmp_path: Path, name: str, seed: int
) -> None:
    run = done.out / name / f"seed-{seed}"
    by_hand = {**FAST, "training.seed": seed, "training.device": "cpu", "training.precision": "fp32"}
    given = "classification", run, files["train"], files["dev"]
    verbs.finetune(*given, out=tmp_path / "f", quiet=True, overrides=by_hand)
    stored = [json.loads((run.parent / f"seed-{n}" / "scores.json").read_text()) for n in range(2)]
    each = [scores["probes"]["classification"]["score"] for scores in stored]
    answers = [record["label"] for record in sentences(10, 24)]
    for folder in (tmp_path / "f", run / "probes" / "classification"):
        said = [one["prediction"] for one in verbs.predict(folder, files["dev"], quiet=True)]
        assert metric("accuracy")(said, answers).values["accuracy"] == each[seed]
    row = next(row for row in done.rows if row.name == name)
    assert row.scores["probe.classification"] == OverSeeds(mean=np.mean(each), deviation=np.std(each, ddof=1))


class Stop(Exception):
    pass


@pytest.mark.whole
def test_a_stopped_comparison_resumes_and_repeats_nothing(
    done: Comparison, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned: list[str] = []
    stop_at = [4]

    def counted(recipe: Any, start: LoadedModel, *places: Any, **how: Any) -> FinetuneResult:
        tuned.append(start.recipe.name)
        return finetune_run(recipe, start, *places, **how)

    def stopping(*arguments: Any) -> Any:
        for number, step in enumerate(finetuning_steps(*arguments)):
            if len(tuned) == 2 and number == stop_at[0]:
                raise Stop  # of the second model, after its first epoch was saved
            yield step

    monkeypatch.setattr(runs, "finetune_run", counted)
    monkeypatch.setattr("unicloze.finetuning.run.finetuning_steps", stopping)
    with pytest.raises(Stop):
        compared(files, tmp_path / "c")
    assert tuned == [*NAMES] and (tmp_path / "c/gpt/seed-0/probes/classification/checkpoints").is_dir()
    stop_at[0] = -1
    first = compared(files, tmp_path / "c")
    assert tuned == [*NAMES, NAMES[1]]
    assert compared(files, tmp_path / "c") == first and len(tuned) == 3
    del tuned[:]
    plain = compared(files, tmp_path / "c", probes=[], probe_overrides={})
    assert not plain.probes and "probe.classification" not in plain.rows[0].scores and not plain.rows[0].probes
    more = compared(files, tmp_path / "c", seeds=2)
    assert tuned == [*NAMES] and [row.scores for row in more.rows] == [row.scores for row in done.rows]
    for ours, unbroken in zip(more.rows, done.rows, strict=True):
        assert ours.probes["classification"].flops == unbroken.probes["classification"].flops
    assert not list((tmp_path / "c").glob("*/*/probes/*/checkpoints"))


@pytest.mark.whole
def test_a_probe_of_other_files_or_settings_is_not_resumed(
    done: Comparison, files: dict[str, Path], tmp_path: Path
) -> None:
    before = (done.out / "comparison.json").read_text()
    train, dev = write(tmp_path / "t.jsonl", sentences(23)), write(tmp_path / "d.jsonl", sentences(9, 24))
    for options, message in (
        ({"probe_overrides": FAST | {"finetuning.epochs": 1}}, "finetuning.epochs 2.0, but this one has 1.0: give"),
        ({"probe_overrides": FAST | {"model.dropout": 0.0}}, "model.dropout None, but this one has 0.0"),
        ({"probes": [("classification", train, files["dev"])]}, "another training file, or one that has changed since"),
        ({"probes": [("classification", files["train"], dev)]}, "another development file, or one that has changed"),
    ):
        with pytest.raises(UsageError, match=rf"comparison.json has a probe classification with .*{message}"):
            compared(files, done.out, seeds=2, **options)
    assert (done.out / "comparison.json").read_text() == before


def test_columns_of_other_names_are_found_as_by_finetune(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, count in (("train", 24), ("dev", 10)):
        records = [{"sentence": one["text"], "label": one["label"]} for one in sentences(count)]
        write(tmp_path / f"{name}.jsonl", records)
    probe = open_probe("classification", tmp_path / "train.jsonl", tmp_path / "dev.jsonl", {})
    assert probe.recipe.task.fields == {"text": "sentence"}
    assert "reading text from 'sentence' (set --probe.task.fields to change)" in capsys.readouterr().err
    unlabelled = write(tmp_path / "new.jsonl", [{"sentence": "the old man"}])
    with pytest.raises(UniclozeError, match=r"the field 'label' is missing .*--probe\.task\.fields"):
        open_probe("classification", tmp_path / "train.jsonl", unlabelled, {})


UNLABELLED = [
    {"text": one["text"], "author": f"author {n}", "title": f"title {n}"} for n, one in enumerate(sentences(4))
]
SECTIONS = "task, generation, decoding, finetuning, training"


@pytest.mark.parametrize(("task", "train", "dev", "overrides", "message"), [
    ("classification", None, "nowhere.jsonl", {}, "nowhere.jsonl: there is no such file"),
    ("classification", None, UNLABELLED, {}, r"new.jsonl, line 1: the field 'label' is missing"),
    ("classification", UNLABELLED, None, {}, r"name it with --probe\.task\.fields '{label: NAME}'"),
    ("classification", UNLABELLED, None, {"task.labels": ["0", "1"]}, r"line 1: the field 'label' is missing"),
    ("classification", None, [{"text": "a", "label": "2"}], {},
     r"line 1: the label '2' is not a label .*fine-tune with --probe\.task\.labels listing all"),
    ("writing", UNLABELLED, None, {}, r"line 1: the field 'target' is missing"),
    ("clasification", None, None, {}, "did you mean 'classification'"),
    ("gpt", None, None, {}, "recipe gpt is for pre-training: give --probe a task"),
    ("classification", None, None, {"finetuning.epoch": 1}, "--probe.finetuning.epoch: .*'finetuning.epochs'"),
    ("classification", None, None, {"training.batch_size": "x"}, "option --probe.training.batch_size: "),
    ("classification", None, None, {"use.pooling": "mean"}, f"--probe.use.pooling: the comparison .* {SECTIONS}"),
    ("classification", None, None, {"task.pooling": "mean"}, "--probe.task.pooling: the comparison sets this"),
    ("classification", None, None, {"training.seed": 3}, "--probe.training.seed: the comparison sets this"),
    ("classification", None, None, {"task.metrics": ["squad"]}, "task.metrics names squad"),
    ("classification", None, None, {"task.metric_options": {"tokenize": "13a"}}, r"\(--probe\.task\.metric_options"),
])  # fmt: skip
def test_what_cannot_be_probed_is_refused_before_anything_is_trained(
    files: dict[str, Path], tmp_path: Path, task: str, train: Any, dev: Any, overrides: dict[str, Any], message: str
) -> None:
    def place(given: Any, own: Path) -> Path:
        if isinstance(given, list):
            return write(tmp_path / "new.jsonl", given)
        return own if given is None else tmp_path / given

    probe = (files.get(task, task), place(train, files["train"]), place(dev, files["dev"]))
    with pytest.raises(UniclozeError, match=message):
        compared(files, tmp_path / "c", probes=[probe], probe_overrides=overrides)
    assert not list((tmp_path / "c").glob("*/seed-*")) and not (tmp_path / "c" / "comparison.json").exists()


def test_a_probe_no_model_can_do_or_of_a_name_twice_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    writing = (files["writing"], files["train"], files["dev"])
    with pytest.raises(UsageError, match=r"probe writing: a model with model\.positions transformer_xl"):
        compared(files, tmp_path / "c", recipes=["xlnet-base"], probes=[writing])
    with pytest.raises(UsageError, match=r"two probes are named writing: .*base: writing"):
        compared(files, tmp_path / "c", probes=[writing, writing])
    assert not list((tmp_path / "c").glob("*/seed-*"))


def test_a_signal_during_a_probe_ends_the_comparison_with_its_number(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = FinetuneResult(tmp_path, 1, 1, 15, {})
    monkeypatch.setattr(runs, "finetune_run", lambda *_, **__: stopped)
    with pytest.raises(UniclozeError, match=r"stopped by SIGTERM in .*probes/classification") as error:
        compared(files, tmp_path / "c", recipes=NAMES[:1])
    assert error.value.exit_code == 143


def opened(files: dict[str, Path], task: str = "classification", **overrides: Any) -> Probe:
    return open_probe(task, files["train"], files["dev"], {key.replace("__", "."): v for key, v in overrides.items()})


def rows_read(
    files: dict[str, Path], start: LoadedModel, task: str = "classification", **overrides: Any
) -> tuple[Recipe, Examples]:
    """The rows of the development file as a model reads them in a probe, and the recipe for it."""
    recipe = recipe_for(opened(files, task, **overrides), start)
    recipe = dataclasses.replace(recipe, task=dataclasses.replace(recipe.task, labels=["0", "1"]))
    data = encoded(read_records(files["dev"], recipe.task), recipe, start.tokenizer)
    return recipe, TASKS["classification"].lay_out(data.rows, start.tokenizer.vocabulary, recipe, None)


@pytest.mark.parametrize(("name", "task", "visibility", "pooled"), [
    ("gpt", "classification", "left_to_right", "last"),
    ("bert-base", "classification", "bidirectional", "first"),
    ("bert-base", "gpt-classification", "bidirectional", "first"),
    ("prefix-denoising-base", "classification", "bidirectional", "mean"),
])  # fmt: skip
def test_a_model_is_read_and_pooled_as_its_recipe_declares(
    files: dict[str, Path], name: str, task: str, visibility: str, pooled: str
) -> None:
    """The task recipe's pooling is overridden."""
    recipe, examples = rows_read(files, nlu_toys.start(name), task, finetuning__auxiliary={})
    for row, length in enumerate(examples.lengths):
        slots = np.atleast_1d(examples.targets["label"].slots[row])
        wanted = {"first": [0], "last": [length - 1], "mean": list(range(length))}[pooled]
        assert [slot for slot in slots.ravel() if slot >= 0] == wanted
        sees = np.ones((length, length), dtype=bool)
        assert np.array_equal(examples.visible(row)[:length, :length], np.tril(sees) if pooled == "last" else sees)
    assert recipe.use.visibility == visibility


def test_an_encoder_decoder_is_read_twice_and_pooled_at_its_last_slot(files: dict[str, Path]) -> None:
    start = nlu_toys.start("bart-base")
    vocabulary = start.tokenizer.vocabulary
    _, examples = rows_read(files, start)
    for row, length in enumerate(examples.lengths):
        first, ids = int(length) // 2, examples.input_ids[row]
        assert examples.targets["label"].slots[row].ravel().tolist() == [length - 1]
        assert ids[first : first + 2].tolist() == [vocabulary.eos, vocabulary.sos]
        assert ids[first + 1 : length].tolist() == ids[: first - 1].tolist()
        assert examples.position_ids[row, :length].tolist() == [*range(first), *range(first)]
        after = np.arange(length) >= first
        sees = np.where(after[:, None], np.tri(length, dtype=bool), ~after)
        assert np.array_equal(examples.visible(row), sees)
    choice = Probe(recipe=load_recipe("choice"), overridden=(), files=(files["train"],) * 2, records=(1, 1))
    with pytest.raises(UsageError, match="which an encoder-decoder does not read"):
        recipe_for(choice, start)


@pytest.mark.parametrize("task", ["tagging", "squad-v2", "coqa-extractive"])
def test_words_and_answers_are_read_where_a_model_has_read_them(files: dict[str, Path], task: str) -> None:
    """The last slot of a causal model and the first of others, as in separate fine-tuning."""
    recipe = load_recipe(task, {} if task == "tagging" else {"task.pooling": "first"})  # its file says otherwise
    probe = Probe(recipe=recipe, overridden=(), files=(files["train"], files["dev"]), records=(1, 1))
    for name in ("gpt", "bert-base", "bart-base"):
        start = nlu_toys.start(name)
        pooling = pooling_of(recipe_for(probe, start))
        assert pooling == ("last" if name == "gpt" else "first")
        assert pooling == pooling_of(nlu_toys.recipe_for(start, task))


def test_a_first_slot_that_reads_nothing_is_refused() -> None:
    """With the visibility of a causal model, it would be the same in every record."""
    start = nlu_toys.start("gpt")
    for task in ("classification", "regression", "choice", "squad-v2", "coqa-extractive"):
        with pytest.raises(UsageError, match=r"task\.pooling is first, .* left to right.*: set --task\.pooling last"):
            nlu_toys.recipe_for(start, task, task__pooling="first")
    left = dataclasses.replace(start.recipe, use=UseSettings(visibility="left_to_right"))
    own = dataclasses.replace(start, recipe=left)
    with pytest.raises(UsageError, match=r"use\.pooling is first"):
        nlu_toys.recipe_for(own, "classification")


def test_rows_are_no_longer_than_any_model_has_positions_for(files: dict[str, Path]) -> None:
    start = nlu_toys.start("bert-base")
    recipes = [load_recipe("gpt", {"model.max_positions": n, "data.window": 9}) for n in (20, 11)]
    for given, kept in ((128, 11), (8, 8)):
        with pytest.warns(UserWarning, match=f"records are longer than the {kept} tokens"):
            (probe,) = fit_probes([opened(files, task__max_length=given)], recipes, start.tokenizer)
        assert probe.recipe.task.max_length == kept


def test_the_operations_of_a_fine_tuning_are_those_of_its_rows(files: dict[str, Path]) -> None:
    start = nlu_toys.start("bert-base")
    recipe = recipe_for(opened(files, training__batch_size=24), start)
    recipe = dataclasses.replace(recipe, task=dataclasses.replace(recipe.task, labels=["0", "1"]))
    recipe = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, steps=3))
    lengths = np.array([row.slots for row in open_records(files["train"], recipe, start.tokenizer).rows])
    slots, keys = int(lengths.sum()), float((lengths**2).sum() / lengths.sum())
    width = start.recipe.model.hidden_size
    head = 24 * 2 * (width * width + width * 2)  # a dense layer and two classes, from the first slot of each row
    counts = {"label": 24}
    asked = Amounts(rows=24, slots=slots, keys=keys, predictions=counts, predicting_slots=counts)
    epoch = 3 * (backbone_flops(start.recipe.model, asked) + head)
    # Keys are means over a pass; its predicted slots may have others.
    assert finetuning_flops(recipe, files["train"], start.tokenizer, 3) == pytest.approx(3 * epoch, rel=1e-3)


def test_the_operations_of_steps_on_unlabelled_text_count(tmp_path: Path) -> None:
    """Every second step is of them, here of the text of the labelled records, with five more heads."""
    small = {"model__hidden_size": 16, "model__intermediate_size": 12, "model__embedding_size": 8}
    start = nlu_toys.start("cvt", **small)
    words = [nlu_toys.WORDS[:count] for count in (3, 6, 5, 4)]
    train = write(tmp_path / "train.jsonl", [{"tokens": each, "tags": ["O"] * len(each)} for each in words])
    (tmp_path / "text.txt").write_text("\n".join(" ".join(each) for each in words))

    def flops(steps: int, **more: Any) -> float:
        recipe = nlu_toys.recipe_for(start, "cvt-tagging", task__labels=["B-a", "O"], training__batch_size=4, **more)
        recipe = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, steps=steps))
        return finetuning_flops(recipe, train, start.tokenizer, steps)

    unlabelled = {"finetuning__unlabelled": [str(tmp_path / "text.txt")]}
    step, both = flops(1), flops(2, **unlabelled)
    assert flops(1, **unlabelled) == step
    assert flops(40, **unlabelled) == pytest.approx(20 * both)
    assert 2 * step < both < 6 * step
    one_view = flops(
        2, finetuning__views=["full"], **unlabelled
    )  # the head of the task reads the text too, forward alone
    assert one_view == pytest.approx((1 + 1 + 1 / 3) * step)


def test_options_of_probes_are_distinguished_from_those_of_the_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--training.batch_size", "4", "--probe.training.batch-size", "8", "--probe.task.metrics", "f1", "accuracy"]
    assert parse_options(words, prefix="probe.") == {
        "training.batch_size": "4", "probe.training.batch_size": "8", "probe.task.metrics": ["f1", "accuracy"],
    }  # fmt: skip
    given = ["compare", "gpt", "--budget", "steps=1"]
    for more, message in {
        "--probe.training.batch_size 8": "--probe.training.batch_size needs --probe TASK TRAIN DEV",
        "--probe.training.batch 8": "option --probe.training.batch: there is no setting 'training.batch'",
    }.items():
        assert cli.main([*given, *more.split()]) == 2
        assert message in capsys.readouterr().err
    assert cli.main([*given, "--probe", "a", "b", "c", "--probe.training.batch_size", "8", "--help-settings"]) == 0
