"""Fine-tuning's automatic settings, its baselines, and its verdict on the scores."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss

from nlu_toys import events_of, finetuned, recipe_for, start, write
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.labels import calibration
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.files import CHECKPOINTS
from unicloze.finetuning import initial
from unicloze.finetuning.data import open_records
from unicloze.finetuning.predict import outputs_of, predicted
from unicloze.finetuning.run import finetune_run
from unicloze.finetuning.scores import (
    BaselineScores,
    baseline_scores,
    check_answers,
    headline_error,
    right_classes,
    temperature,
    verdict_on,
)
from unicloze.finetuning.seeds import finetune_seeds
from unicloze.recipes import load_recipe, save_recipe, task_names
from unicloze.records import read_records
from unicloze.records.record import Record
from unicloze.report.history import History
from unicloze.report.task_page import task_page
from unicloze.settings import Recipe
from unicloze.tasks import TASKS, task_settings
from unicloze.tasks.columns import resolved, with_columns
from unicloze.training.loading import LoadedModel, load_model, ready_model


def records(*fields: dict[str, Any]) -> list[Record]:
    return [Record(id=str(number), fields=one, place=f"line {number + 1}") for number, one in enumerate(fields)]


def task(kind: str, **settings: Any) -> Recipe:
    return Recipe(task=task_settings(kind=kind, **settings))


CASES = {
    "classification": (
        task("classification"),
        [{"text": "a", "label": 2}, {"text": "b", "label": "1"}, {"text": "c", "label": "2"}],
        [{"text": "d"}, {"text": "e"}],
        ("always answering '2'", ["2", "2"]),
    ),
    "regression": (
        task("regression"),
        [{"text": "a", "label": 1}, {"text": "b", "label": 4.5}],
        [{"text": "d"}],
        ("always answering the mean, 2.75", [2.75]),
    ),
    "choice": (
        task("choice"),
        [{"choices": ["x", "y"], "label": 1}, {"choices": ["x", "y"], "label": "y"}, {"choices": ["x", "y"], "label": 0}],
        [{"choices": ["x", "y"]}],
        ("always taking choice 2", [1]),
    ),
    "tagging": (
        task("tagging"),
        [{"tokens": ["the", "cat"], "tags": ["D", "N"]}, {"tokens": ["cat", "cat", "sat"], "tags": ["V", "N", "N"]}],
        [{"tokens": ["the", "cat", "unseen"], "task": "a field of its own"}],
        ("the most common tag of each word or its ending", [["D", "N", "N"]]),
    ),
    "generation": (
        task("generation"),
        [],
        [{"source": "It is 3.5 m long. It ends."}, {"source": "\u4e00\u3002\u4e8c"}, {"source": "no mark"}, {"source": " "},
         {"source": "Dr. A. Who met U.S. aides on Sept. 3. He left Mr."}],
        ("repeating the first sentence of the source",
         ["It is 3.5 m long.", "\u4e00\u3002", "no mark", "", "Dr. A. Who met U.S. aides on Sept. 3."]),
    ),
    "extraction": (
        task("extraction", unanswerable=True),
        [],
        [{"question": "why?"}, {"question": "who?"}],
        ("never giving an answer", ["", ""]),
    ),
    "conversation": (
        task("conversation"),
        [{"context": "yes no", "answers": [{"text": "yes"}]},
         {"context": "yes no", "answers": [{"text": "no"}, {"text": "yes"}]},
         {"context": "yes no", "answers": [{"text": "no"}]}],
        [{"context": "c"}],
        ("always answering 'no'", ["no"]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TASKS)
def test_what_a_model_has_to_beat_is_made_of_the_training_records(kind: str) -> None:
    recipe, train, dev, (name, answers) = CASES[kind]
    found = TASKS[kind].baseline(records(*train), records(*dev), recipe)
    assert found is not None
    assert (found.name, list(found.answers)) == (name, answers)


def test_questions_that_all_have_answers_have_no_baseline() -> None:
    recipe = task("extraction", unanswerable=False)
    assert TASKS["extraction"].baseline([], records({"question": "why?"}), recipe) is None


def test_a_baseline_is_measured_as_predictions_are() -> None:
    recipe = task(
        "classification", metrics=["accuracy", "f1"], labels=["no", "yes"], metric_options={"positive": "yes"}
    )
    train = records(*({"text": "t", "label": label} for label in ("yes", "yes", "no")))
    dev = records(*({"text": "t", "label": label} for label in ("yes", "no", "no", "no")))
    scores = baseline_scores(train, dev, recipe)
    assert scores[0].results["accuracy"].values == {"accuracy": 25.0}
    assert scores[0].results["f1"].values["f1"] == pytest.approx(40)


ONE, RAISE = ", with a standard error of 1.00", "raise finetuning.epochs"
FEWER, LOWER = "fewer epochs are enough", "lower training.learning_rate"
BELOW, FITTED = "the last evaluation is", (0, 60.0)


@pytest.mark.parametrize(
    ("value", "error", "course", "said"),
    [
        (52.0, 1.0, [52.0], "equal to BASE"),
        (52.0, None, [52.0], "equal to BASE"),
        (40.0, 1.0, [40.0], f"12.00 worse than BASE{ONE}: use that instead, or more records or another model"),
        (50.1, 1.0, [50.1], "no different from BASE: -1.90 with a standard error of 1.00"),
        (53.9, 1.0, [53.9], "no different from BASE: +1.90 with a standard error of 1.00"),
        (54.1, None, [54.1, 1.0], "2.10 better than BASE; the standard error of the difference is not known"),
        (54.1, 1.0, [54.1], f"2.10 better than BASE{ONE}"),
        (60.0, 1.0, [50.0, 60.0], f"8.00 better than BASE{ONE}; still improving at the last evaluation: {RAISE}"),
        (60.0, 1.0, [59.6, 60.0], f"8.00 better than BASE{ONE}"),
        (60.0, 1.0, [60.0, 57.0], f"8.00 better than BASE{ONE}; the last evaluation is 3.00 below the highest one: {FEWER}"),
        (60.0, 3.5, [60.0, 57.0], "8.00 better than BASE, with a standard error of 3.50"),
        (60.0, 1.0, [FITTED, 58.5, 57.0], f"8.00 better than BASE{ONE}; {BELOW} 3.00 below the fitted head: {LOWER}"),
        (61.0, 1.0, [FITTED, 61.0, 50.0], f"9.00 better than BASE{ONE}; {BELOW} 11.00 below the highest one: {FEWER}"),
    ],
)  # fmt: skip
def test_a_verdict_says_what_a_score_is_worth(value: float, error: float | None, course: list[Any], said: str) -> None:
    """A tie is no failure; differences within two standard errors are neither failure nor gain; an unknown error is named."""
    errors = {} if error is None else {"accuracy": error}

    def result(value: float) -> dict[str, MetricResult]:
        return {"accuracy": MetricResult(metric="accuracy", values={"accuracy": value}, items=9, errors=errors)}

    baseline = BaselineScores("always answering 'a'", result(52.0))
    recipe = task("classification", metrics=["accuracy"])
    steps = [one if isinstance(one, tuple) else (step, one) for step, one in enumerate(course, 1)]
    found = verdict_on(result(value), steps, [baseline], recipe, lambda _: error)
    assert found == said.replace("BASE", "always answering 'a' (accuracy 52.00)")


@pytest.mark.parametrize("pair", [False, True])
def test_words_tell_what_a_majority_does_not(pair: bool) -> None:
    """The rival beats the majority where words decide, and the paired error is that of the difference on the same records."""
    recipe = task("classification", metrics=["accuracy"], labels=["no", "yes"])
    every = [
        {"text": f"the {'good' if n % 2 else 'bad'} one {n}", "label": "yes" if n % 2 else "no"} for n in range(40)
    ]
    every = [{**one, "pair": "a film"} for one in every] if pair else every
    majority, rival = baseline_scores(records(*every[:20]), records(*every[20:]), recipe)
    assert majority.results["accuracy"].values["accuracy"] == 50
    assert rival.name == "logistic regression on TF-IDF of words and characters"
    assert rival.results["accuracy"].values["accuracy"] == 100
    dev = records(*every[20:])
    assert headline_error(rival.answers, dev, recipe, majority.answers) == pytest.approx(100 * 0.5 / 20**0.5, rel=0.15)
    assert headline_error(rival.answers, dev, recipe, rival.answers) == 0
    quantities = [{"text": f"{'good ' * (n % 5)}film", "label": float(n % 5)} for n in range(40)]
    found = baseline_scores(
        records(*quantities[:20]), records(*quantities[20:]), task("regression", metrics=["pearson"])
    )
    assert [one.results["pearson"].values["pearson"] > 70 for one in found] == [False, True]


def test_passages_and_sources_have_rivals_too() -> None:
    passage = {"context": "Anna lives in Rome. Carl was born in 1950. He sings.", "question": "When was Carl born?"}
    found = TASKS["extraction"].rival([], records(passage), task("extraction"))
    assert found is not None and found.answers == ["Carl was born in 1950."]
    sources = records(
        {"source": "A one. B two. C three. D four."}, {"source": "One only."}, {"source": "Go. Be. So. Do. We."}
    )
    lead = TASKS["generation"].rival([], sources, task("generation"))
    assert lead is not None and list(lead.answers) == ["A one. B two. C three.", "One only.", "Go. Be. So."]
    assert TASKS["generation"].rival([], sources[1:2], task("generation")) is None


def test_small_models_learn_faster_and_few_rows_more_often() -> None:
    rates = {10_000: 3e-3, 1_500_000: 2.2e-3, 22_700_000: 1.5e-4, 110_000_000: 3e-5}
    assert {weights: initial.learning_rate(weights) for weights in rates} == pytest.approx(rates)
    epochs = {1: 10, 1000: 10, 1600: 7, 5000: 3, 1_000_000: 3}
    assert {rows: initial.epochs(rows) for rows in epochs} == epochs
    frozen = load_recipe("tagging", {"training.frozen": ["backbone"]})
    chosen = initial.with_chosen(frozen, 110_000_000, 9)
    assert chosen.training.learning_rate == 5e-3
    said = initial.what_was_chosen(frozen, chosen, 110_000_000, 9)
    assert said.startswith("learning rate 0.005 for a head over a frozen network, ")


def test_quantities_start_near_their_labels_where_no_head_is_fitted(tmp_path: Path) -> None:
    rows = [{"text": one["text"], "label": 1000.0 + 50 * (one["label"] == "yes")} for one in labelled(24)]
    train, model = write(tmp_path / "train.jsonl", rows), start()
    recipe = recipe_for(model, "regression", training__learning_rate=1e-3, finetuning__epochs=1)
    finetuned(recipe, model, train, train, tmp_path / "run")
    said = [
        each["prediction"] for each in verbs.predict(tmp_path / "run", train, out=tmp_path / "said.jsonl", quiet=True)
    ]
    assert abs(np.mean(said) - np.mean([row["label"] for row in rows])) < 50


def test_rouge_is_said_to_read_no_other_script() -> None:
    russian = records(*({"source": "a", "target": text} for text in ("Кошка сидит на окне 1", "The cat")))
    pytest.importorskip("rouge_score")
    with pytest.warns(UserWarning, match=r"ROUGE reads the letters a to z and digits alone.*--task\.metrics bleu"):
        check_answers(russian, task("generation", metrics=["rouge"]))


def test_recipes_of_papers_choose_nothing_by_themselves() -> None:
    every = {name: load_recipe(name) for name in task_names()}
    chosen = {name for name, each in every.items() if "auto" in (each.training.learning_rate, each.finetuning.epochs)}
    assert chosen == {"choice", "classification", "generation", "pos", "regression", "tagging", "translation"}


def labelled(count: int) -> list[dict[str, Any]]:
    two = {"text": "berlin leaves", "label": "no"}, {"text": "anna sees", "label": "yes"}
    return [{**(one := two[n % 3 > 0]), "text": " ".join([one["text"]] * (1 + n // 3 % 2))} for n in range(count)]


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_head_is_fitted_on_frozen_features_before_anything_learns(tmp_path: Path, kind: str) -> None:
    """It is the first evaluation of a run with automatic rates, keeps the network's weights, and already separates words."""
    model = start()
    rows = labelled(24)
    if kind == "regression":
        rows = [{"text": one["text"], "label": float(one["label"] == "yes")} for one in rows]
    train = write(tmp_path / "train.jsonl", rows)
    metrics = ["accuracy"] if kind == "classification" else ["pearson"]
    recipe = recipe_for(model, kind, training__learning_rate="auto", finetuning__epochs=1, task__metrics=metrics)
    fixed = recipe_for(model, kind, training__learning_rate=1e-3, finetuning__epochs=1, task__metrics=metrics)
    finetuned(recipe, model, train, train, tmp_path / "run")
    own = load_recipe(tmp_path / "run" / "recipe.yaml")  # repeats the run
    found = {}
    for name, each in (("run", recipe), ("again", own), ("fixed", fixed)):
        if name != "run":
            finetuned(each, model, train, train, tmp_path / name)
        found[name] = [event for event in events_of(tmp_path / name) if event["event"] == "evaluate"]
    assert own.finetuning.fit_head is True and own.training.learning_rate != "auto"
    assert found["run"][0]["step"] == 0 and found["run"][0]["headline"] > 99
    assert [one["results"] for one in found["again"]] == [one["results"] for one in found["run"]]
    assert found["fixed"][0]["step"] > 0
    assert kind == "classification" or not any("error" in one for one in found["run"]), "no probabilities need it"


def folds(answers: npt.NDArray[np.int64]) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    return initial.folds(answers, np.arange(len(answers)), int(answers.max()) + 1)


def test_rows_that_repeat_do_not_choose_the_regularisation_of_a_fitted_head() -> None:
    """All rows twice are held out together: class probabilities and quantities are those of the rows once, or nearly."""
    rng = np.random.default_rng(0)
    features, right = 0.1 * rng.normal(size=(64, 96)), np.arange(64) % 4
    features[:, :4] += 0.08 * np.eye(4)[right]
    rows = np.arange(64)
    twice, texts = rows.repeat(2), rows.repeat(2) * 2
    split = initial.folds(right[twice], texts, 4)
    assert len(split) == 5 and not any(set(texts[train]) & set(texts[held]) for train, held in split)
    assert sorted(np.concatenate([held for _, held in split])) == [*range(128)]
    assert initial.folds(right[twice[:6]], texts[:6], 4) == [], "a class has a single text"
    weight, bias = initial.logistic(features[twice], right[twice], split)
    shares = torch.from_numpy(0.1 * rng.normal(size=(500, 96)) @ weight.T + bias).softmax(-1)
    assert float(shares.max(-1).values.mean()) < 0.3, "noise is not certain: 0.33 where both rows of a text are apart"
    features *= 10
    wanted = features @ rng.normal(size=96) + 20 * rng.normal(size=64)
    once, again = initial.ridge(features, wanted, rows), initial.ridge(features[twice], wanted[twice], texts)
    assert np.abs(again[0]).mean() < 1.5 * np.abs(once[0]).mean()
    conflicting = initial.ridge(features[twice], np.stack([wanted + 1, wanted - 1], axis=1).ravel(), texts)
    np.testing.assert_allclose(conflicting[0], again[0], atol=1e-8)


@pytest.mark.parametrize(("classes", "noise"), [(2, 0.6), (4, 1.0)])
def test_the_fitted_head_beats_a_cross_validated_likelihood_on_few_rows(classes: int, noise: float) -> None:
    """From eight noisy rows per class its answers are right more often and likelier; few rows give no certainty."""
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        means = 0.3 * rng.normal(size=(classes, 64))
        right = np.arange(2_000) % classes
        features = means[right] + noise * rng.normal(size=(2_000, 64))
        rows, tested = slice(8 * classes), slice(8 * classes, None)
        features = (features - features[rows].mean(axis=0)) / np.linalg.norm(features[rows], axis=1).mean()
        rival = LogisticRegressionCV(
            Cs=13, cv=5, scoring="neg_log_loss", max_iter=1000, use_legacy_attributes=False, l1_ratios=(0,)
        )
        rival.fit(features[rows], right[rows])
        weight, bias = initial.logistic(features[rows], right[rows], folds(right[rows]))
        for shares in (
            torch.from_numpy(features[tested] @ weight.T + bias).softmax(-1).numpy(),
            rival.predict_proba(features[tested]),
        ):
            found.append((np.mean(shares.argmax(1) == right[tested]), log_loss(right[tested], shares)))
    own, theirs = np.mean(found[::2], axis=0), np.mean(found[1::2], axis=0)
    assert own[0] > theirs[0] and own[1] < theirs[1]
    right = np.arange(classes).repeat(2)
    weight, bias = initial.logistic(means.repeat(2, axis=0), right, folds(right))
    sure = torch.from_numpy(means @ weight.T + bias).softmax(-1).diagonal().numpy()
    assert np.all(sure > 1 / classes) and np.all(sure < 0.95)


def test_a_fitted_head_is_calibrated_by_the_development_file(tmp_path: Path) -> None:
    """The checkpoint kept has its logits divided by the likeliest temperature; training goes on without it."""
    model, rows = start(), labelled(24)
    train = write(tmp_path / "train.jsonl", rows)
    wrong = [{**one, "label": "no"} if number % 4 == 1 else one for number, one in enumerate(rows)]
    dev = write(tmp_path / "dev.jsonl", wrong)
    settings = {"training__learning_rate": 5e-4, "finetuning__epochs": 1, "finetuning__fit_head": True}
    recipe = recipe_for(model, "classification", **settings)
    finetuned(recipe, model, train, dev, tmp_path / "run")
    kept = load_model(tmp_path / "run")
    plain = load_model(next((tmp_path / "run" / CHECKPOINTS).glob("step-*")))
    found = []
    for loaded in (kept, plain):
        data = open_records(dev, loaded.recipe, loaded.tokenizer)
        outputs = outputs_of(loaded, data.rows)
        logits = np.concatenate([row["label"] for row in outputs])
        found.append(temperature(logits, right_classes(data.records, loaded.recipe.task))[0])
        losses = []
        for softer in (found[-1], found[-1] * 1.05, max(1.0, found[-1] / 1.05)):
            said = predicted(data, [{"label": row["label"] / softer} for row in outputs], loaded.recipe)
            shares, right = [one["probabilities"] for one in said], [one["label"] for one in wrong]
            spread = -float(np.log(np.array([list(each.values()) for each in shares])).mean())
            losses.append(len(right) * calibration(shares, right).values["log_loss"] + spread)
        assert losses[0] <= min(losses) + 1e-5
    assert found[0] < 1.1 and found[1] > 1.5
    if kept.step == plain.step:
        divided, whole = (each.model.task_heads["label"].output.weight for each in (kept, plain))
        torch.testing.assert_close(divided * found[1], whole, rtol=0.05, atol=1e-5)


def test_a_head_of_recurrent_states_is_fitted_on_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their lengths differ with the text, so that equal lengths would be other features."""
    fitted, model = [], start("ulmfit")
    logistic = initial.logistic

    def noted(features: Any, *given: Any) -> Any:
        weight, bias = logistic(features, *given)
        fitted.append(features @ weight.T + bias)
        return weight, bias

    monkeypatch.setattr(initial, "logistic", noted)
    texts = [{**one, "text": " ".join([one["text"]] * (1 + number % 5))} for number, one in enumerate(labelled(24))]
    train = write(tmp_path / "train.jsonl", texts)
    recipe = recipe_for(model, "classification", finetuning__fit_head=True, task__pooling="mean", task__head="plain")
    recipe = dataclasses.replace(recipe, task=resolved(recipe.task, read_records(train, recipe.task)))
    own = ready_model(recipe, model.model.vocab_size, torch.device("cpu"))
    initial.start_weights(own, model, recipe.task)
    begun = LoadedModel(own.for_use(), model.tokenizer, recipe, tmp_path, 0, "fp32")
    data = open_records(train, recipe, model.tokenizer)
    assert initial.fit_head(begun, data)
    logits = np.concatenate([each["label"] for each in outputs_of(begun, data.rows)])
    np.testing.assert_allclose(logits, fitted[0], atol=1e-3)


def test_a_head_that_is_trained_frozen_or_weighted_is_not_fitted_anew(tmp_path: Path) -> None:
    model = start()
    train = write(tmp_path / "train.jsonl", labelled(24))
    settings: dict[str, Any] = {"training__learning_rate": "auto", "finetuning__epochs": 1}
    finetuned(recipe_for(model, "classification", **settings), model, train, train, tmp_path / "first")
    for name, begun, more in (
        ("trained", load_model(tmp_path / "first"), {}),
        ("frozen", model, {"training__frozen": ["task_heads"]}),
        ("weighted", model, {"task__class_weights": {"no": 50.0, "yes": 1.0}}),
    ):
        recipe = recipe_for(begun, "classification", **settings, **more)
        finetuned(recipe, begun, train, train, tmp_path / name)
        events = events_of(tmp_path / name)
        assert min(event["step"] for event in events if event["event"] == "evaluate") > 0, name


def test_a_head_that_must_be_fitted_but_cannot_be_is_reported(tmp_path: Path) -> None:
    model, train = start(), write(tmp_path / "train.jsonl", labelled(24))
    recipe = recipe_for(
        model, "classification", finetuning__fit_head=True, finetuning__epochs=1, task__class_weights="balanced"
    )
    with pytest.warns(UserWarning, match="finetuning.fit_head is true, but no head is fitted"):
        finetuned(recipe, model, train, train, tmp_path / "run")


@pytest.mark.whole
def test_a_run_chooses_settings_reports_baselines_and_resumes(tmp_path: Path) -> None:
    model = start()
    train = write(tmp_path / "train.jsonl", labelled(24))
    recipe = recipe_for(
        model, "classification", training__learning_rate="auto", finetuning__epochs="auto", finetuning__evaluations=0.5
    )
    summary = finetune_seeds(recipe, model, train, train, tmp_path / "run", progress=False)
    saved = load_recipe(tmp_path / "run" / "recipe.yaml")
    assert saved.training.learning_rate == initial.learning_rate(model.model.num_parameters())
    assert (saved.finetuning.epochs, saved.training.steps) == (10, 20)
    events = events_of(tmp_path / "run")
    baseline, result = events[0]["rivals"][0], summary.runs[0]
    assert baseline["name"] == "always answering 'yes'"
    assert baseline["results"]["accuracy"]["values"] == {"accuracy": pytest.approx(200 / 3)}
    assert events[-1]["event"] == "end"
    assert events[-1]["verdict"] == result.verdict
    assert "always answering 'yes' (accuracy 66.67)" in result.verdict
    assert result.verdict in str(summary)
    assert json.loads((tmp_path / "run" / "results.json").read_text())["runs"][0]["verdict"] == result.verdict
    assert result.verdict in unescape(task_page(History.read(tmp_path / "run")))
    with pytest.warns(UserWarning, match="already fully trained"):
        again = finetuned(recipe, model, train, train, tmp_path / "run")
    assert again.verdict == result.verdict


def test_a_rate_for_much_larger_models_gives_a_warning(tmp_path: Path) -> None:
    model = start()
    train = write(tmp_path / "train.jsonl", labelled(6))
    with pytest.warns(UserWarning, match="--training.learning_rate auto uses 0.003"):
        finetuned(
            recipe_for(model, "classification", training__learning_rate=2e-5, finetuning__epochs=1),
            model, train, None, tmp_path / "run")  # fmt: skip


def table(count: int = 8, **columns: Sequence[Any]) -> list[dict[str, Any]]:
    """Records whose columns repeat these values; `{}` in a text becomes the record's number."""

    def value(values: Sequence[Any], n: int) -> Any:
        one = values[n % len(values)]
        return one.format(n) if isinstance(one, str) else one

    return [{name: value(values, n) for name, values in columns.items()} for n in range(count)]


IT, TEMPLATES = ["it is {}"], ["anna sees it", "eva leaves"]


@pytest.mark.parametrize(
    ("kind", "rows", "fields"),
    [
        ("classification", table(sentence=IT, sentiment="01", id=["{}"]), {"text": "sentence", "label": "sentiment"}),
        ("classification", table(sentence=IT, label=[0, 1]), {"text": "sentence"}),
        ("classification", table(Text=IT, Label=[0, 1]), {"text": "Text", "label": "Label"}),
        ("classification", table(sentence=TEMPLATES, label="abcb"), {"text": "sentence"}),
        ("classification", table(review=TEMPLATES, sentiment="abcb"), {"text": "review", "label": "sentiment"}),
        ("classification", table(name=["Anna", "Bo", "Cy{}"], label="ab"), {"text": "name"}),
        ("classification", table(content=IT, kind=["not bad", "bad"]), {"text": "content", "label": "kind"}),
        ("classification", table(text=IT, note=["x{}"]), {"label": "note"}),
        ("classification", table(text=IT, label=[0, 1], note=["was {}"]), {}),
        ("classification", table(one=IT, a=[0, 1], b=[0, 1, 2]), {"text": "one"}),
        ("classification", table(airline="ab", sentiment="01", said=IT), {"text": "said", "label": "sentiment"}),
        ("classification", table(**{"": ["{}"], "sentence": IT, "label": "01"}), {"text": "sentence"}),
        ("classification", table(premise=TEMPLATES, hypothesis=IT, gold_label="abc"),
         {"text": "premise", "pair": "hypothesis", "label": "gold_label"}),
        ("classification", table(sentence1=IT, sentence2=IT, label="ab"), {"text": "sentence1", "pair": "sentence2"}),
        ("classification", table(text_a=IT, text_b=IT, label="ab"), {"text": "text_a", "pair": "text_b"}),
        ("classification", table(文=["一二三四{}"], 類=[0, 1]), {"text": "文", "label": "類"}),
        ("regression", table(review=IT, stars=["{}.5"]), {"text": "review", "label": "stars"}),
        ("regression", table(nr=["{}"], review=IT, stars=["{}"]), {"text": "review", "label": "stars"}),
        ("regression", table(review=IT, label=["x"]), {"text": "review"}),
        ("generation", table(long=IT, short=["{} it"]), {}),
    ],
)  # fmt: skip
def test_columns_are_guessed_where_only_one_guess_is_possible(
    kind: str, rows: list[dict[str, Any]], fields: dict[str, str]
) -> None:
    assert with_columns(task_settings(kind=kind), records(*rows)).fields == fields


def test_two_columns_that_may_be_the_text_are_named() -> None:
    with pytest.raises(UniclozeError) as raised:
        with_columns(task_settings(kind="classification"), records(*table(title=IT, content=IT, label="ab")))
    assert str(raised.value).endswith(
        ": the text may be 'title' or 'content': name it with --task.fields '{text: title}', or as "
        "'{text: title, pair: content}' if they are a pair"
    )


@pytest.mark.parametrize("text", ["a good film\tgood\nhow bad\tbad\nso good\tgood\nno, bad\tbad\nyes, good\tgood\n"])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_table_without_a_header_is_refused(tmp_path: Path, kind: str, text: str) -> None:
    path = tmp_path / "table.tsv"
    path.write_text(text if kind == "classification" else text.replace("\tgood", "\t4").replace("\tbad", "\t1.5"))
    settings = task_settings(kind=kind)
    found = "good" if kind == "classification" else "4"
    with pytest.raises(UniclozeError) as raised:
        with_columns(settings, read_records(path, settings))
    assert str(raised.value) == (
        f"{path}, line 1: this is a record and not a header ('a good film', '{found}'): put a line with the names of the "
        "columns above it, such as text and label"
    )


def test_a_spreadsheet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.xlsx").write_bytes(b"PK")
    with pytest.raises(UsageError, match=r"table\.xlsx: a spreadsheet cannot be read: save the table as \.csv$"):
        read_records(tmp_path / "table.xlsx", task_settings(kind="classification"))


def test_guessed_columns_are_printed_and_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, table = start(), tmp_path / "table.csv"
    lines = [f"{'anna sees' if n % 2 else 'eva leaves'} {'berlin' * (n % 5)},{n % 2}" for n in range(12)]
    table.write_text("\n".join(["sentence,sentiment", *lines]))
    recipe = recipe_for(model, "classification", finetuning__epochs=1)
    finetune_run(recipe, model, table, table, tmp_path / "run")
    said = "reading text from 'sentence', label from 'sentiment' (set --task.fields to change)"
    assert said in capfd.readouterr().err
    saved = load_recipe(tmp_path / "run" / "recipe.yaml").task
    assert (saved.fields, saved.labels) == ({"text": "sentence", "label": "sentiment"}, ["0", "1"])


@pytest.mark.parametrize(("weights", "rows", "rate", "epochs"), [
    (22_000_000, 300, 1.5e-4, 10), (110_000_000, 300, 3e-5, 10), (110_000_000, 88_000, 2e-5, 4),
    (22_000_000, 88_000, 1.5e-4, 3),
])  # fmt: skip
def test_questions_keep_a_papers_rate_only_at_its_size(weights: int, rows: int, rate: float, epochs: float) -> None:
    found = initial.with_chosen(initial.adaptable(load_recipe("squad-v2"), []), weights, rows)
    assert (found.training.learning_rate, found.finetuning.epochs) == (rate, epochs)
    given = load_recipe("squad-v2", {"training.learning_rate": 7e-6, "finetuning.epochs": 2})
    assert initial.adaptable(given, ["training.learning_rate", "finetuning.epochs"]) == given
    own = load_recipe("squad-v2")
    assert initial.adaptable(own, ["training.learning_rate"]).training == own.training, "given, though it is the same"
    assert initial.adaptable(load_recipe("glue-rte"), []) == load_recipe("glue-rte")


def test_a_file_keeps_a_papers_rate_and_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the recipe of a former run, whose command would otherwise train differently."""
    asked: list[Recipe] = []
    monkeypatch.setattr("unicloze.finetuning.seeds.finetune_seeds", lambda recipe, *_, **__: asked.append(recipe))
    file, model = tmp_path / "recipe.yaml", start()
    save_recipe(load_recipe("squad-v1.1"), file)
    for task in ("squad-v1.1", file):
        verbs.finetune(task, model, file, out=tmp_path / "run")
    found = [(one.name, one.training.learning_rate, one.finetuning.epochs) for one in asked]
    assert found == [("squad-v1.1", "auto", "auto"), ("squad-v1.1", 2e-5, 4)]
