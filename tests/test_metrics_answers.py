"""SQuAD against published scores; CoQA and the best threshold against cases by hand and by brute force; files."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unicloze import cli, keyed, verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.answers import (
    Answer,
    Gold,
    Turn,
    best_threshold,
    coqa,
    exact_match,
    lambada,
    last_word,
    normalise,
    squad,
    token_f1,
    turn_f1,
)
from unicloze.evaluation.metrics.files import read_pairs, read_squad, read_squad_predictions
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
from unicloze.evaluation.metrics.registry import METRICS, MetricTable, binomial_error, bootstrap_errors, standard_errors
from unicloze.evaluation.metrics.result import Compared, MetricResult


@pytest.mark.parametrize(("text", "normal"), [
    ("The  Denver Broncos!", "denver broncos"),
    ("an A. B. the", "b"),  # "A." is an article without its full stop
    ("theory", "theory"),
    ("U.S.-based", "usbased"),
    ("“Quoted”", "“quoted”"),  # only ASCII punctuation is removed
    ("...", ""),
])  # fmt: skip
def test_answers_are_normalised_as_the_official_scripts_do(text: str, normal: str) -> None:
    assert normalise(text) == normal


def test_token_f1_by_hand() -> None:
    # "red red car" and "red car of mine" share one "red" and "car": precision 2/3, recall 2/4
    assert token_f1("red red car", "the red car of mine") == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert (token_f1("", ""), token_f1("the", ""), token_f1("x", ""), token_f1("", "x")) == (1, 1, 0, 0)
    assert (exact_match("The cat.", "cat"), exact_match("cats", "cat")) == (1, 0)


@pytest.mark.whole
@pytest.mark.parametrize(("version", "system", "exact", "f1"), [
    ("1.1", "BERT_ensemble_Google_AI_Language", 86.21, 92.20),
    ("2.0", "BERT_single_model_Google_AI_Language", 78.74, 81.78),
])  # fmt: skip
def test_published_scores_of_bert(shared_data: Path, version: str, system: str, exact: float, f1: float) -> None:
    predictions = shared_data / "metrics" / f"squad-v{version}.{system}.json.gz"
    references = shared_data / "qa" / f"squad-dev-v{version}.from-explorer.json.gz"
    result = squad(*read_pairs(predictions, [references], "squad"))
    assert (round(result.values["exact"], 2), round(result.values["f1"], 2)) == (exact, f1)
    assert result.items == (10_570 if version == "1.1" else 11_873)
    if version == "2.0":
        answerable, not_answerable = 5_928, 5_945
        mixed = answerable * result.values["has_answer_f1"] + not_answerable * result.values["no_answer_exact"]
        assert mixed / result.items == pytest.approx(result.values["f1"])
    assert not result.note


def test_missing_answers_count_as_wrong_and_spare_ones_not_at_all() -> None:
    result = squad({"a": "cat", "x": "dog"}, {"a": ["cat"], "b": ["dog"], "c": []})
    assert result.values["exact"] == pytest.approx(100 / 3)
    assert (result.values["has_answer_f1"], result.values["no_answer_exact"]) == (50, 0)
    assert "count as wrong: 2" in result.note and "ignored: 1" in result.note
    with pytest.raises(UniclozeError, match="No prediction has the id of a question"):
        squad({"x": "dog"}, {"a": ["cat"]})
    with pytest.raises(UniclozeError, match="references have no questions"):
        squad({"x": "dog"}, {})


def test_all_questions_unanswerable() -> None:
    result = squad({"a": "", "b": "x"}, {"a": [], "b": []})
    assert result.values == {"exact": 50, "f1": 50, "no_answer_exact": 50}


def test_best_threshold_equals_trying_all() -> None:
    draw = random.Random(5)
    for _ in range(50):
        names = [str(number) for number in range(draw.randint(1, 12))]
        certainties = {name: draw.choice([0.0, 0.25, 0.5, 0.75, 1.0]) for name in names}
        answerable = {name for name in names if draw.random() < 0.5}
        scores = {name: draw.random() if name in answerable else float(draw.random() < 0.3) for name in names}

        def at(threshold: float, c: dict = certainties, s: dict = scores, a: set = answerable) -> float:
            return 100 * sum(s[name] if c[name] <= threshold else float(name not in a) for name in c) / len(c)

        best, threshold = best_threshold(certainties, scores, answerable)
        tried = [at(value) for value in [-1.0, *certainties.values()]]
        assert best == pytest.approx(max(tried))
        assert at(threshold) == pytest.approx(best)


def test_coqa_by_hand() -> None:
    # Four annotators, one with a longer answer. Leaving out each in turn, the best of the others is 1 unless the only exact
    # answer is left out: against "in the white house", "white house" has precision 1, recall 2/3 ("the" is dropped), F1 0.8.
    answers = ["white house", "in the white house", "a big house", "house"]
    assert turn_f1("white house", answers) == pytest.approx((0.8 + 1 + 1 + 1) / 4)
    # two annotators: each is measured against the other
    assert turn_f1("yes", ["yes", "no"]) == pytest.approx((0 + 1) / 2)
    assert turn_f1("yes", ["yes"]) == 1
    assert turn_f1("", ["unknown"]) == 0

    references = {
        Turn("s", 1): Gold(answers=["yes", "no"], domain="news"),
        Turn("s", 2): Gold(answers=["blue"], domain="news"),
        Turn("t", 1): Gold(answers=answers, domain="wikipedia"),
    }
    predictions = {Turn("s", 1): "Yes.", Turn("s", 2): "a blue one", Turn("t", 1): "the white house"}
    # turns: 0.5; "blue one" against "blue": precision 1/2, recall 1, F1 2/3; 0.95
    values = coqa(predictions, references).values
    assert values["f1"] == pytest.approx(100 * (0.5 + 2 / 3 + 0.95) / 3)
    assert values["f1_news"] == pytest.approx(100 * (0.5 + 2 / 3) / 2)
    assert values["f1_wikipedia"] == pytest.approx(95)
    assert values["exact"] == pytest.approx(100 * (0.5 + 0 + 0.75) / 3)


def test_coqa_files(tmp_path: Path) -> None:
    def answers(*texts: str) -> list[dict[str, object]]:
        return [{"input_text": text, "turn_id": number} for number, text in enumerate(texts, start=1)]

    story = {
        "id": "s",
        "source": "cnn",
        "questions": [{"input_text": "Who?", "turn_id": 1}, {"input_text": "Where?", "turn_id": 2}],
        "answers": answers("Ada", "London"),
        "additional_answers": {"0": answers("Ada Lovelace", "in London")},
    }
    gold, found = tmp_path / "gold.json", tmp_path / "found.json.gz"
    gold.write_text(json.dumps({"version": "1.0", "data": [story]}))
    rows = [{"id": "s", "turn_id": 1, "answer": "Ada"}]
    found.write_bytes(gzip.compress(json.dumps(rows).encode()))
    result = coqa(*read_pairs(found, [gold], "coqa"))
    # turn 1: (2/3 against the longer, 1 against the same) / 2; turn 2 has no prediction
    assert result.values["f1"] == pytest.approx(100 * ((2 / 3 + 1) / 2) / 2)
    assert result.values["f1_cnn"] == result.values["f1"]
    assert "count as wrong: 1" in result.note

    fewer, turned = {"0": answers("Ada Lovelace")}, {"0": answers("Ada Lovelace", "in London")[::-1]}
    for stories, predicted, message in (
        ([{**story, "additional_answers": fewer}], rows, "story s, turn 2: an annotator's answer is missing"),
        ([{**story, "additional_answers": turned}], rows, "story s, turn 1: the answer in its place is for turn 2"),
        ([story, story], rows, "story s, turn 1: the id 's-1' is twice in its file"),
        ([story], rows * 2, "entry 2 answers turn 1 of the story s again"),
        ([story], {"s": "Ada"}, "is not a list of records"),
    ):
        gold.write_text(json.dumps({"data": stories}))
        found.write_bytes(gzip.compress(json.dumps(predicted).encode()))
        with pytest.raises(UniclozeError, match=message):
            read_pairs(found, [gold], "coqa")
    with pytest.raises(UniclozeError, match="No prediction has the id and turn"):
        coqa({}, {Turn("s", 1): Gold(answers=["x"])})


def test_squad_files(tmp_path: Path) -> None:
    def dev(*questions: dict[str, object]) -> str:
        return json.dumps({"data": [{"title": "x", "paragraphs": [{"context": "c", "qas": list(questions)}]}]})

    gold, found, sure = tmp_path / "gold.json", tmp_path / "found.json", tmp_path / "sure.json"
    cat = {"id": "a", "question": "?", "answers": [{"text": "cat", "answer_start": 0}]}
    gold.write_text(dev(cat, {"id": "b", "answers": [], "is_impossible": True}))
    found.write_text('{"a": "cat", "b": "dog"}')
    sure.write_text('{"a": -3, "b": 2.5}')
    assert read_squad(gold) == {"a": ["cat"], "b": []}
    predictions, references = read_pairs(found, [gold], "squad", na_probabilities=sure)
    assert squad(predictions, references).values["best_f1_threshold"] == -3

    lines = tmp_path / "found.jsonl"
    lines.write_text('{"id": "a", "prediction": "cat", "na_probability": 0}\n{"id": "b", "prediction": ""}\n')
    assert read_squad_predictions(lines) == {"a": Answer(text="cat", na_probability=0), "b": Answer(text="")}
    for text, message in (
        ('{"prediction": "cat"}', 'found.jsonl, line 1 has no "id"'),
        ('{"id": "a", "prediction": 1}', "found.jsonl, line 1 has no"),
        ('{"id": "a", "prediction": "x", "na_probability": "y"}', "has 'y' in \"na_probability\""),
        ('{"id": "a", "prediction": "x"}\n' * 2, "found.jsonl, line 2 answers the question a a second time"),
    ):
        lines.write_text(text)
        with pytest.raises(UniclozeError, match=message):
            read_squad_predictions(lines)

    for text, message in (
        ('{"a": -3}', "lacks 1 answers, such as b"),
        ('{"a": "x", "b": 1}', "has 'x' for a"),
        ('{"a": NaN, "b": 1}', "has nan for a"),
        ('{"a": 0, "b": 1, "": "x"}', "has 'x' for :"),
        (f'{{"a": 1{"0" * 400}, "b": 1}}', "has 10+ for a"),
        ('{"a": 0, "b": 1, "a": 1}', "the key a occurs twice"),
        ("[]", "is not a JSON object such as"),
    ):
        sure.write_text(text)
        with pytest.raises(UniclozeError, match=message):
            read_pairs(found, [gold], "squad", na_probabilities=sure)
    reader: Callable[[Path], object]
    for reader, path, text, message in (
        (read_squad_predictions, found, '{"b": "dog", "b": ""}', r"found\.json: the key b occurs twice; remove one"),
        (read_squad_predictions, found, '{\n"a": "cat"\n"b": "dog"}', r"found\.json, line 3: this is not JSON"),
        (read_squad, gold, dev(cat, cat), "question a: the id 'a' is twice in its file"),
        (read_squad, gold, dev({"id": "a", "answers": [{"answer": "cat"}]}), "question a: the answers are not a list"),
    ):
        path.write_text(text)
        with pytest.raises(UniclozeError, match=message):
            reader(path)


# Metrics of labels, numbers, tags, last words and likelihoods, and standard errors, against other definitions


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


def test_correlation_by_hand() -> None:
    found, right = [1.0, 2.0, 4.0, 3.0], [0.0, 1.0, 8.0, 9.0]
    # ranks 1 2 4 3 and 1 2 3 4: 1 - 6 (0 + 0 + 1 + 1) / (4 (16 - 1))
    assert correlation(found, right).values["spearman"] == pytest.approx(100 * (1 - 6 * 2 / 60))
    assert correlation(found, right).values["pearson"] == pytest.approx(100 * np.corrcoef(found, right)[0, 1])
    assert METRICS["pearson"](found, right) == correlation(found, right, metric="pearson") != correlation(found, right)
    with pytest.raises(UniclozeError, match="Prediction 2 is nan"):
        correlation([1, math.nan], [1, 2])


SAMPLES: dict[str, tuple[Any, Any]] = {
    "labels": ([0, 1], [0, 1]),
    "numbers": ([0, 1], [0, 1]),
    "tags": ([["B-X"]], [["B-X"]]),
    "texts": (["a b"], [["a b"]]),
    "squad": ({"q": "a"}, {"q": ["a"]}),
    "coqa": ({Turn("s", 1): "a"}, {Turn("s", 1): Gold(answers=["a"])}),
}


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_listed_and_gives_its_headline(name: str) -> None:
    one = METRICS[name]
    listed = str(MetricTable(METRICS))
    assert f"{name} " in listed and "\nlambada       percentage of right last words (texts)" in listed
    assert "F1 of one class, and accuracy (labels; positive)" in listed
    if one.extra is None and name != "rouge-perl":  # the others need a library or a program
        assert one.headline in one(*SAMPLES[one.compares]).values


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
    assert standard_errors("accuracy", list("abbb"), list("aaaa")) == {"accuracy": binomial_error(25, 4)}
    assert standard_errors("accuracy", [], []) == {}
    with pytest.raises(UsageError, match="2 samples"):
        bootstrap_errors(accuracy, [1], [1], samples=1)
    with pytest.raises(UniclozeError, match="There are 3 predictions and 2 references"):
        standard_errors("matthews", ["1", "0", "1"], ["1", "0"])


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
    assert errors == {"right": pytest.approx(np.std(rights, ddof=1)), "wanted": pytest.approx(np.std(counts, ddof=1))}
    assert min(errors.values()) > 0.5
    # F1 of a class is undefined in a resampled set without that class, which does not count
    assert bootstrap_errors(f1, [1, 0], [1, 1], samples=40)["precision"] == 0
    assert bootstrap_errors(f1, [0, 0], [1, 1], samples=40).keys() == {"f1", "recall", "accuracy"}


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
    constant = correlation([2, 2, 2], [1, 2, 3])
    assert constant.undefined == list(constant.values) == ["pearson", "spearman"]
    assert set(constant.values.values()) == {0} and "no correlation" in constant.note
    assert entity_f1([["O"]], [["O"]]).undefined == ["f1", "precision", "recall"]
    assert entity_f1([["O"]], [["B-X"]]).undefined == ["precision"]
    assert entity_f1([["B-X"]], [["O"]]).undefined == ["recall"]
    assert entity_f1([[]], [[]]).undefined == ["f1", "precision", "recall", "accuracy"]
    for result in (matthews(FOUND, RIGHT), f1(FOUND, RIGHT), correlation([1, 2], [2, 1])):
        assert result.undefined == []
    assert "0.00 % (undefined, given as 0)" in str(matthews([0, 0], [0, 1]))
    assert standard_errors("matthews", ["0"] * 9, ["0", "1", "1"] * 3).keys() == {"accuracy"}
    said, gold = ["0", "1", "1", "0"] * 9, ["0", "1"] * 18
    alone, ahead = (
        standard_errors("matthews", said, gold, **more)["matthews"] for more in ({}, {"against": ["1"] * 36})
    )
    assert alone == pytest.approx(ahead) and alone > 0, "answers that are always the same have 0 in every sample"


# Files of predictions and references, and `unicloze measure`


def write(folder: Path, **files: str) -> list[Path]:
    """Files of these texts; `a_txt_gz` is `a.txt.gz`."""
    paths = []
    for name, text in files.items():
        path = folder / name.replace("_", ".")
        raw = text.encode()
        path.write_bytes(gzip.compress(raw) if name.endswith("_gz") else raw)
        paths.append(path)
    return paths


def test_lines_keep_their_places(tmp_path: Path) -> None:
    found, wanted = write(tmp_path, p_txt="one\r\n\r\nthr\u2028ee\r\n", r_txt_gz="\ufeffa\nb\n\n")
    assert read_pairs(found, [wanted], "texts") == (["one", "", "thr\u2028ee"], [["a"], ["b"], [""]])


def test_several_references(tmp_path: Path) -> None:
    found, first, second, rows = write(
        tmp_path, p_txt="x\ny", r1_txt="a\nb\n", r2_txt="c\n\n",
        r3_jsonl='{"references": ["d", "e"]}\n{"reference": "f"}\n',
    )  # fmt: skip
    assert read_pairs(found, [first, second, rows], "texts")[1] == [["a", "c", "d", "e"], ["b", "f"]]


def test_tables_and_objects(tmp_path: Path) -> None:
    table, rows = write(
        tmp_path, p_tsv="id\tprediction\n7\t1\n8\t0\n",
        r_jsonl='{"id": 7, "reference": 1}\n\n{"id": 8, "reference": "0", "more": []}\n',
    )  # fmt: skip
    assert read_pairs(table, [rows], "labels") == (["1", "0"], ["1", "0"])
    assert read_pairs(table, [rows], "numbers") == ([1.0, 0.0], [1.0, 0.0])
    lines, lists = write(tmp_path, t_txt="O B-X\nO\n", u_jsonl='{"reference": ["O", "B-X"]}\n{"reference": "O"}')
    assert read_pairs(lines, [lists], "tags") == ([["O", "B-X"], ["O"]], [["O", "B-X"], ["O"]])


@pytest.mark.parametrize(("predictions", "references", "compares", "message"), [
    ("a\nb\nc\n", "a\nb\n", "texts", r"p.txt has 3 items and .*r.txt 2: nothing in .*r.txt matches .*p.txt, line 3"),
    ("a\n", "a\nb\n", "labels", r"p.txt has 1 items and .*r.txt 2: nothing in .*p.txt matches .*r.txt, line 2"),
    ("", "a", "texts", r"p.txt is empty"),
    ("1\nx\n", "1\n2\n", "numbers", r"p.txt, line 2 has 'x', which is not a finite number"),
    ("1\ninf\n", "1\n2\n", "numbers", r"p.txt, line 2 has 'inf'"),
    ("1\n \n", "1\n2\n", "labels", r"p.txt, line 2 has ' ', which is not a label"),
])  # fmt: skip
def test_broken_lines(tmp_path: Path, predictions: str, references: str, compares: Compared, message: str) -> None:
    found, wanted = write(tmp_path, p_txt=predictions, r_txt=references)
    with pytest.raises(UniclozeError, match=message):
        read_pairs(found, [wanted], compares)


@pytest.mark.parametrize(("name", "text", "message"), [
    ("p_jsonl", '{"prediction": "a"}\n{"prediction": \n',
     r"p.jsonl, line 2: this is not JSON \(Expecting value, column"),
    ("p_jsonl", '["a"]', r"p.jsonl, line 1: a record must be a JSON object"),
    ("p_jsonl", '{"text": "a", "id": 1}', r"p.jsonl, line 1: the field 'prediction' is missing \(it has text, id\)"),
    ("p_jsonl", '{"prediction": null}', r"p.jsonl, line 1 has None, which is not a text"),
    ("p_jsonl", "[" * 100_000, r"p.jsonl, line 1: this is not JSON \(nested too deep\)"),
    ("p_jsonl", '{"id": 2, "prediction": "a"}', r"p.jsonl, line 1 has the id 2, but .*r.jsonl, line 1 the id 1"),
    ("p_tsv", "index\tlabel\n0\ta\n",
     r"p.tsv, line 2: the field 'prediction' is missing \(it has index, label; the first line"),
    ("p_tsv", "id\tprediction\n0\n",
     r"p.tsv, line 2: 1 column where .* has 2 \(id, prediction\): give each line as many, or remove tabs"),
    ("p_csv", "a\n", r"p.csv is not of a known kind: give a file that ends in .txt, .tsv, .jsonl"),
])  # fmt: skip
def test_broken_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    found, wanted = write(tmp_path, **{name: text, "r_jsonl": '{"id": 1, "reference": "a"}'})
    with pytest.raises(UniclozeError, match=message):
        read_pairs(found, [wanted], "texts")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    wanted = write(tmp_path, r_txt="a\n")
    with pytest.raises(UniclozeError, match=r"There is no file .*none\.txt"):
        read_pairs(tmp_path / "none.txt", wanted, "texts")
    bad = tmp_path / "p.txt"
    bad.write_bytes(b"a\nb\xff\n")
    with pytest.raises(UniclozeError, match=r"p\.txt, line 2: this is not UTF-8"):
        read_pairs(bad, wanted, "texts")
    cut = tmp_path / "p.txt.gz"
    whole = gzip.compress(b"a\n" * 99)
    for raw in (whole[:-9], b"no gzip", whole[:14] + bytes([whole[14] ^ 255]) + whole[15:]):
        cut.write_bytes(raw)
        with pytest.raises(UniclozeError, match="is cut off or damaged"):
            read_pairs(cut, wanted, "texts")
    empty = write(tmp_path, e_jsonl='{"references": []}')
    with pytest.raises(UniclozeError, match=r"e\.jsonl, line 1 has no reference"):
        read_pairs(wanted[0], empty, "texts")
    with pytest.raises(UsageError, match="only texts can have more than one"):
        read_pairs(bad, wanted * 2, "labels")
    with pytest.raises(UsageError, match="Only the metric squad takes no-answer probabilities"):
        read_pairs(bad, wanted, "texts", na_probabilities=bad)


def test_measure_compares_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, first, second = write(tmp_path, p_txt="a b c d\n", r1_txt="a b c x\n", r2_txt="a b c d\n")
    words = ["measure", "coco", "--predictions", str(found), "--references", str(first), str(second)]
    assert cli.main(words) == 0
    assert "bleu_4      100.00 %" in capsys.readouterr().out
    assert cli.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["values"]["bleu_4"] == pytest.approx(100)
    result = verbs.measure("coco", found, first, options={"profile": "squad-qg"})
    assert result.values["bleu_3"] < 100 and result.note == "Profile squad-qg."
    assert verbs.measure("diversity", found).values["average_length"] == 4
    assert cli.main(["metrics"]) == 0
    assert re.search(r"\nsquad +exact match", capsys.readouterr().out)
    assert cli.main(["metrics", "--json"]) == 0
    assert "rouge" in json.loads(capsys.readouterr().out)


def test_predictions_are_measured_against_the_records_of_their_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, said = write(
        tmp_path, t_jsonl='{"id": "a", "sentence": "x", "label": 1}\n{"id": "b", "sentence": "y", "label": 0}\n',
        p_jsonl='{"id": "a", "prediction": "1", "scores": {}}\n{"id": "b", "prediction": "1"}\n',
    )  # fmt: skip
    files = ["--predictions", str(said), "--references", str(records)]
    assert cli.main(["measure-task", "classification", *files, "--task.fields", "{text: sentence}", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert results["accuracy"]["values"]["accuracy"] == 50 and results["accuracy"]["errors"]["accuracy"] > 30
    found = verbs.measure_task("classification", said, records, metric="f1", options={"positive": "1"})
    assert found.results["f1"].values["f1"] == pytest.approx(100 * 2 / 3)
    assert str(found).startswith("f1 of 2 items")


def test_a_choice_a_text_and_an_answer_are_measured_too(tmp_path: Path) -> None:
    chosen, choices, texts, pairs, answers, questions, turns, dialogue = write(
        tmp_path, c_jsonl='{"prediction": 1}\n{"prediction": 0}\n',
        d_jsonl='{"context": "x", "choices": ["p", "q"], "label": 1}\n{"context": "y", "choices": ["p", "q"], "label": 1}\n',
        e_txt="who ' s there ?\n", f_jsonl='{"context": "x", "answers": ["y"], "question": "Who\'s there?"}\n',
        g_jsonl='{"id": "q", "prediction": "Paris", "na_probability": -1.5}\n{"id": "r", "prediction": ""}\n',
        h_jsonl='{"id": "q", "context": "in Paris", "question": "?", "answers": [{"text": "Paris", "answer_start": 3}]}\n'
        '{"id": "r", "context": "in Rome", "question": "?", "answers": []}\n',
        i_jsonl='{"id": "0", "prediction": "two cats", "story": "s", "turn": 1}\n',
        j_jsonl='{"context": "x", "question": "How many?", "answers": ["Two cats"]}\n',
    )  # fmt: skip

    def values(task: str, predictions: Path, references: Path) -> dict[str, float]:
        results = verbs.measure_task(task, predictions, references).results
        return {name: value for result in results.values() for name, value in result.values.items()}

    assert values("choice", chosen, choices)["accuracy"] == 50
    assert values("squad-question-generation", texts, pairs)["bleu_4"] == pytest.approx(100)
    assert values("squad-v2", answers, questions)["f1"] == 100
    assert values("coqa-generative", turns, dialogue)["f1"] == 100


def test_how_sure_an_answer_is_may_be_a_whole_number(tmp_path: Path) -> None:
    """It was lost when records were given, and with it the best threshold."""
    questions, answers, odd = write(
        tmp_path,
        q_jsonl='{"id": "q", "context": "in Paris", "question": "?", "answers": [{"text": "Paris", "answer_start": 3}]}\n'
        '{"id": "r", "context": "in Rome", "question": "?", "answers": []}\n',
        a_jsonl='{"id": "q", "prediction": "Paris", "na_probability": 0}\n'
        '{"id": "r", "prediction": "Rome", "na_probability": 1}\n',
        o_jsonl='{"id": "q", "prediction": "Paris", "na_probability": "0.5"}\n{"id": "r", "prediction": ""}\n',
    )
    values = verbs.measure_task("squad-v2", answers, questions).results["squad"].values
    assert (values["exact"], values["best_exact"], values["best_exact_threshold"]) == (50, 100, 0)
    assert (values["best_f1"], values["best_f1_threshold"]) == (100, 0)
    with pytest.raises(UniclozeError, match=r"o\.jsonl, line 1 has '0.5' in \"na_probability\": give a finite number"):
        verbs.measure_task("squad-v2", odd, questions)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"task": "quickstart"}, "quickstart is not a task recipe"),
    ({"task": "glue-mrpc", "metric": "rouge"}, "which compares texts, but its predictions are labels"),
    ({"task": "generation", "metric": "accuracy"}, "which compares labels, but its predictions are texts or squad or coqa"),
    ({"task": "glue-mrpc", "overrides": {"task.labels": ["a"]}}, "task.labels cannot be changed here"),
    ({"task": "classification"}, "t.jsonl, line 2 the id b: put both files in the same order"),
])  # fmt: skip
def test_settings_that_do_not_fit_a_task_are_reported(
    tmp_path: Path, arguments: dict[str, object], message: str
) -> None:
    records, said = write(
        tmp_path, t_jsonl='{"text": "x", "id": "a", "label": 1}\n{"text": "y", "id": "b", "label": 0}\n',
        p_jsonl='{"id": "a", "prediction": "1"}\n{"id": "c", "prediction": "1"}\n',
    )  # fmt: skip
    with pytest.raises(UniclozeError, match=message):
        verbs.measure_task(predictions=said, references=records, **arguments)  # type: ignore[arg-type]


def test_a_label_that_is_not_a_class_of_the_model_is_refused(tmp_path: Path) -> None:
    recipe, records, said = write(
        tmp_path, mine_yaml="base: classification\ntask: {labels: [a, b]}\n",
        t_tsv="text\tlabel\nx\ta\ny\t?\n", p_txt="a\nb\n",
    )  # fmt: skip
    with pytest.raises(UniclozeError, match=r"t\.tsv, line 3: the label '\?' is not a label of the task \(a, b\)"):
        verbs.measure_task(recipe, said, records)
