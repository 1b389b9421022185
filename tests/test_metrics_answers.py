"""SQuAD against published scores; CoQA and the best threshold against cases computed by hand and by brute force."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from unicloze.errors import UniclozeError
from unicloze.evaluation.metrics.answers import (
    Answer,
    Gold,
    Turn,
    best_threshold,
    coqa,
    exact_match,
    normalise,
    squad,
    token_f1,
    turn_f1,
)
from unicloze.evaluation.metrics.files import read_pairs, read_squad, read_squad_predictions


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Denver Broncos!", "denver broncos"),
        ("an A. B. the", "b"),  # "A." is an article without its full stop
        ("theory", "theory"),
        ("U.S.-based", "usbased"),
        ("“Quoted”", "“quoted”"),  # only ASCII punctuation is removed
        ("...", ""),
    ],
)
def test_answers_are_normalised_as_the_official_scripts_do(text: str, normal: str) -> None:
    assert normalise(text) == normal


def test_token_f1_by_hand() -> None:
    # "red red car" and "red car of mine" share one "red" and "car": precision 2/3, recall 2/4
    assert token_f1("red red car", "the red car of mine") == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert (token_f1("", ""), token_f1("the", ""), token_f1("x", ""), token_f1("", "x")) == (1, 1, 0, 0)
    assert (exact_match("The cat.", "cat"), exact_match("cats", "cat")) == (1, 0)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("version", "system", "exact", "f1"),
    [
        ("1.1", "BERT_ensemble_Google_AI_Language", 86.21, 92.20),
        ("2.0", "BERT_single_model_Google_AI_Language", 78.74, 81.78),
    ],
)
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


def test_best_threshold_by_hand() -> None:
    # kept up to 0.3: right, right, and the unanswerable question is dropped
    references = {"a": ["cat"], "b": ["dog"], "c": []}
    predictions = {
        "a": Answer(text="cat", na_probability=0.1),
        "b": Answer(text="dog", na_probability=0.3),
        "c": Answer(text="cow", na_probability=0.8),
    }
    values = squad(predictions, references).values
    assert values["exact"] == pytest.approx(200 / 3)
    assert (values["best_exact"], values["best_exact_threshold"]) == (100, 0.3)
    assert (values["best_f1"], values["best_f1_threshold"]) == (100, 0.3)


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

    story["additional_answers"] = {"0": answers("Ada Lovelace")}
    gold.write_text(json.dumps({"data": [story]}))
    with pytest.raises(UniclozeError, match="story s, turn 2: an annotator's answer is missing"):
        read_pairs(found, [gold], "coqa")
    story["additional_answers"] = {"0": answers("Ada Lovelace", "in London")[::-1]}
    gold.write_text(json.dumps({"data": [story]}))
    with pytest.raises(UniclozeError, match="story s, turn 1: the answer in its place is for turn 2"):
        read_pairs(found, [gold], "coqa")
    del story["additional_answers"]
    gold.write_text(json.dumps({"data": [story, story]}))
    with pytest.raises(UniclozeError, match="story s, turn 1: the id 's-1' is twice in its file"):
        read_pairs(found, [gold], "coqa")
    found.write_bytes(gzip.compress(json.dumps(rows * 2).encode()))
    with pytest.raises(UniclozeError, match="entry 2 answers turn 1 of the story s again"):
        read_pairs(found, [gold], "coqa")
    found.write_bytes(gzip.compress(b'{"s": "Ada"}'))
    with pytest.raises(UniclozeError, match="is not a list of records"):
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
        (f'{{"a": 1{"0" * 400}, "b": 1}}', "has 10+ for a: give finite numbers"),
        ('{"a": 0, "b": 1, "a": 1}', "the key a occurs twice"),
        ("[]", "is not a JSON object such as"),
    ):
        sure.write_text(text)
        with pytest.raises(UniclozeError, match=message):
            read_pairs(found, [gold], "squad", na_probabilities=sure)
    found.write_text('{"a": "cat", "b": "dog", "b": ""}')
    with pytest.raises(UniclozeError, match=r"found\.json: the key b occurs twice; remove one of them"):
        read_squad_predictions(found)
    found.write_text('{\n"a": "cat"\n"b": "dog"}')
    with pytest.raises(UniclozeError, match=r"found\.json, line 3: this is not JSON"):
        read_squad_predictions(found)
    gold.write_text(dev(cat, cat))
    with pytest.raises(UniclozeError, match="question a: the id 'a' is twice in its file"):
        read_squad(gold)
    gold.write_text(dev({"id": "a", "answers": [{"answer": "cat"}]}))
    with pytest.raises(UniclozeError, match="question a: the answers are not a list of texts"):
        read_squad(gold)
