"""Metrics of labels, numbers, tags, last words and likelihoods, and standard errors, against other definitions."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from unicloze import keyed
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.answers import lambada, last_word
from unicloze.evaluation.metrics.labels import (
    Entity,
    accuracy,
    correlation,
    entities,
    entity_f1,
    f1,
    macro_f1,
    matthews,
)
from unicloze.evaluation.metrics.registry import METRICS, MetricTable
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.evaluation.metrics.standard_errors import binomial_error, bootstrap_errors, standard_errors

# 3 true positives, 1 false positive, 2 false negatives, 4 true negatives
FOUND = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
RIGHT = [1, 1, 1, 0, 1, 1, 0, 0, 0, 0]


def test_labels_by_hand() -> None:
    assert accuracy(FOUND, RIGHT).values == {"accuracy": pytest.approx(70)}
    values = f1(FOUND, RIGHT).values
    assert values["precision"] == pytest.approx(100 * 3 / 4)
    assert values["recall"] == pytest.approx(100 * 3 / 5)
    assert values["f1"] == pytest.approx(100 * 2 * 3 / (4 + 5))
    assert values["accuracy"] == pytest.approx(70)
    assert macro_f1(FOUND, RIGHT).values["macro_f1"] == pytest.approx(100 * (6 / 9 + 8 / 11) / 2)
    assert matthews(FOUND, RIGHT).values["matthews"] == pytest.approx(
        100 * (3 * 4 - 1 * 2) / math.sqrt((3 + 1) * (3 + 2) * (4 + 1) * (4 + 2))
    )


def test_labels_may_be_strings_or_integers() -> None:
    assert accuracy(["1", "0"], [1, 0]).values["accuracy"] == 100
    names = [("no", "yes")[one] for one in RIGHT]
    assert f1([("no", "yes")[one] for one in FOUND], names, positive="yes").values == f1(FOUND, RIGHT).values
    with pytest.raises(UsageError, match="No reference has the label 1: set the option positive to one of no, yes"):
        f1(names, names)


def test_models_that_predict_one_class_or_number_have_no_correlation() -> None:
    assert matthews([1, 1, 1], [1, 0, 1]).values["matthews"] == 0
    assert f1([0, 0], [1, 0]).values["f1"] == 0
    result = correlation([2, 2, 2], [1, 2, 3])
    assert result.values == {"pearson": 0, "spearman": 0} and "no correlation" in result.note


def test_correlation_by_hand() -> None:
    found, right = [1.0, 2.0, 4.0, 3.0], [0.0, 1.0, 8.0, 9.0]
    # ranks 1 2 4 3 and 1 2 3 4: 1 - 6 (0 + 0 + 1 + 1) / (4 (16 - 1))
    assert correlation(found, right).values["spearman"] == pytest.approx(100 * (1 - 6 * 2 / 60))
    assert correlation(found, right).values["pearson"] == pytest.approx(100 * np.corrcoef(found, right)[0, 1])
    with pytest.raises(UniclozeError, match="Prediction 2 is nan"):
        correlation([1, math.nan], [1, 2])


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_listed_and_gives_its_headline(name: str) -> None:
    one = METRICS[name]
    assert f"{name} " in str(MetricTable(METRICS))
    if one.compares in ("labels", "numbers"):
        assert one.headline in one([0, 1], [0, 1]).values


def test_entities_as_conlleval_finds_them() -> None:
    tags = ["B-PER", "I-PER", "O", "I-LOC", "I-LOC", "B-LOC", "I-ORG", "O", "B-PER", "B-PER"]
    assert entities(tags) == [
        Entity("PER", 0, 2),
        Entity("LOC", 3, 5),  # an I- after O begins one
        Entity("LOC", 5, 6),  # a B- ends the one before it
        Entity("ORG", 6, 7),  # an I- of another kind too
        Entity("PER", 8, 9),
        Entity("PER", 9, 10),
    ]
    assert entities([]) == entities(["O", "O"]) == []
    for tag in ("S-PER", "PER", "B", "B-", "I"):
        with pytest.raises(UniclozeError, match=f"the tag '{tag}' of token 2 is not B-KIND"):
            entities(["O", tag])


def test_entity_f1_by_hand() -> None:
    right = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG", "I-ORG", "O"]]
    found = [["B-PER", "I-PER", "O", "B-ORG"], ["O", "B-ORG", "O", "B-ORG"]]
    # of 4 predicted and 3 gold entities, only the first is right. ORG: 3 predicted, 1 gold, 0 right. Tags: 5 of 8.
    values = entity_f1(found, right).values
    assert values["precision"] == pytest.approx(100 / 4)
    assert values["recall"] == pytest.approx(100 / 3)
    assert values["f1"] == pytest.approx(200 / 7)
    assert values["accuracy"] == pytest.approx(100 * 5 / 8)
    assert (values["f1_PER"], values["f1_LOC"], values["f1_ORG"]) == (100, 0, 0)
    assert entity_f1([["O"]], [["O"]]).values["f1"] == 0
    with pytest.raises(UniclozeError, match="Sentence 2 has 1 predicted and 2 right tags"):
        entity_f1([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(UniclozeError, match="Sentence 1: the tag 'X' of token 1"):
        entity_f1([["X"]], [["O"]])


def test_both_kinds_of_iob_name_the_same_entities() -> None:
    draw = random.Random(3)
    for _ in range(100):
        second = []
        for _ in range(12):
            open_kind = second[-1][2:] if second and second[-1] != "O" else ""
            second.append(draw.choice(["O", "B-X", "B-Y", f"I-{open_kind}" if open_kind else "O"]))
        # IOB1 writes B- only between two entities of a kind that touch
        first = [
            tag
            if tag[0] != "B" or (place and second[place - 1] != "O" and second[place - 1][2:] == tag[2:])
            else f"I-{tag[2:]}"
            for place, tag in enumerate(second)
        ]
        assert entities(first) == entities(second)


def test_last_words() -> None:
    assert [last_word(text) for text in ("He saw Ann.", "“Ann”", "it's", "... !", "", "naïve")] == [
        "Ann", "Ann", "it's", "", "", "naïve",
    ]  # fmt: skip
    passages = [["She called Ann."], ["He said menu"], ["no"], ["..."]]
    assert lambada(["Ann", "the Menu", "no", ""], passages).values["accuracy"] == 50


def test_standard_errors() -> None:
    assert binomial_error(90, 900) == pytest.approx(1)
    with pytest.raises(UsageError, match="give 1 or more"):
        binomial_error(90, 0)
    found = [int(number % 10 != 0) for number in range(400)]
    errors = bootstrap_errors(accuracy, found, [1] * 400, samples=400, seed=1)
    assert errors["accuracy"] == pytest.approx(binomial_error(90, 400), rel=0.15)
    assert errors == bootstrap_errors(accuracy, found, [1] * 400, samples=400, seed=1)
    assert errors != bootstrap_errors(accuracy, found, [1] * 400, samples=400, seed=2)
    with pytest.raises(UsageError, match="2 samples"):
        bootstrap_errors(accuracy, found, [1] * 400, samples=1)


def moments(found: list[str], wanted: list[str]) -> MetricResult:
    """Values that can be recomputed from a sample by hand."""
    right = sum(map(str.__eq__, found, wanted))
    return MetricResult(metric="", values={"right": right, "wanted": wanted.count("1")}, items=len(found))


def test_a_standard_error_is_the_sample_deviation_over_resampled_pairs() -> None:
    """Predictions and references are resampled together, by keyed draws; the deviation divides by n - 1."""
    found, wanted = list("1101000"), list("1011010")
    places = np.arange(len(found))
    drawn = [keyed.below(keyed.bits(keyed.key(3, number), 0, places), len(found)) for number in range(5)]
    rights = [sum(found[i] == wanted[i] for i in sample) for sample in drawn]
    counts = [sum(wanted[i] == "1" for i in sample) for sample in drawn]
    errors = bootstrap_errors(moments, found, wanted, samples=5, seed=3)
    assert errors == {
        "right": pytest.approx(np.std(rights, ddof=1)),
        "wanted": pytest.approx(np.std(counts, ddof=1)),
    }
    assert min(errors.values()) > 0.5


@pytest.mark.parametrize(("name", "items"), [
    ("matthews", ["1", *"0" * 9]),
    ("f1", ["1", *"0" * 9]),
    ("correlation", [1.0, *[0.0] * 9]),
    ("entity-f1", [["B-X"], *[["O"]] * 9]),
])  # fmt: skip
def test_perfect_predictions_have_no_standard_error(name: str, items: list[Any]) -> None:
    """A third of the samples have only one class, or no entity: their value is undefined, not 0."""
    errors = standard_errors(name, items, items)
    assert set(errors) == {key for key in METRICS[name](items, items).values}
    assert max(errors.values()) == pytest.approx(0, abs=1e-9)


def test_a_value_that_is_undefined_is_named() -> None:
    assert matthews([0, 0], [0, 1]).undefined == matthews([0, 1], [1, 1]).undefined == ["matthews"]
    assert matthews([0, 0], [0, 0]).values == {"matthews": 0, "accuracy": 100}
    assert f1([0, 0], [0, 1]).undefined == ["precision"] and f1([0, 1], [0, 0]).undefined == ["recall"]
    assert correlation([1, 1], [1, 2]).undefined == ["pearson", "spearman"]
    assert entity_f1([["O"]], [["O"]]).undefined == ["f1", "precision", "recall"]
    assert entity_f1([["O"]], [["B-X"]]).undefined == ["precision"]
    assert entity_f1([["B-X"]], [["O"]]).undefined == ["recall"]
    assert entity_f1([[]], [[]]).undefined == ["f1", "precision", "recall", "accuracy"]
    for result in (matthews(FOUND, RIGHT), f1(FOUND, RIGHT), correlation([1, 2], [2, 1])):
        assert result.undefined == []
    assert "0.00 % (undefined, given as 0)" in str(matthews([0, 0], [0, 1]))
    assert standard_errors("matthews", ["0"] * 9, ["0", "1", "1"] * 3).keys() == {"accuracy"}


def test_what_cannot_be_compared_has_no_standard_error() -> None:
    with pytest.raises(UniclozeError, match="There are 3 predictions and 2 references"):
        standard_errors("matthews", ["1", "0", "1"], ["1", "0"])
    with pytest.raises(UniclozeError, match="Sentence 1: the tag 'X' of token 1"):
        standard_errors("entity-f1", [["X"], ["O"]], [["O"], ["O"]])
    with pytest.raises(UsageError, match="set the option positive"):
        standard_errors("f1", ["a", "b"], ["a", "b"])
