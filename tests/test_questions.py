"""Conversational question answering: history before the question, yes and no as well as spans, and CoQA's own file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nlu_toys import finetuned, write
from qa_toys import questions, recipe_for, small_model
from test_extraction import SETTINGS as OF_SPANS
from test_extraction import records_of, squad_json
from unicloze import verbs
from unicloze.errors import UniclozeError
from unicloze.evaluation.metrics.answers import Turn, token_f1
from unicloze.records import read_records
from unicloze.records.record import GoldAnswer as Given
from unicloze.records.record import Record, answers_of
from unicloze.tasks import TASKS, task_settings
from unicloze.tasks.extraction import ANSWERS, closest_span, history_of, kind_of, locate
from unicloze.training.loading import LoadedModel

SETTINGS = task_settings(kind="conversation")
TASK = TASKS["conversation"]
TURNS = [
    ("Who opens the door?", "Bo", "Bo opens the old door"),
    ("Is it red?", "No.", "the old door"),
    ("Is there a tree?", "yes", "a quiet tree"),
    ("Who is the king?", "unknown", ""),
]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return small_model(tmp_path_factory.mktemp("start"))


def stories(count: int) -> dict[str, Any]:
    """A file in CoQA's format; the second annotator's answer to the first turn is longer than the first one's."""
    data = []
    for number in range(count):
        name = ["Bo", "Li", "Mei", "Udo"][number % 4]
        story = f"In winter {name} opens the old door. Behind it stands a quiet tree."
        turns = [tuple(text.replace("Bo", name) for text in turn) for turn in TURNS]
        questions = [{"input_text": question, "turn_id": turn} for turn, (question, _, _) in enumerate(turns, 1)]
        answers = []
        for turn, (_, answer, span) in enumerate(turns, 1):
            first = story.find(span) if span else -1
            place = {"span_text": span, "span_start": first, "span_end": first + len(span) if span else -1}
            answers.append({"input_text": answer, "turn_id": turn, **place})
        others = [{**answers[0], "input_text": f"{name} opens it"}, *answers[1:]]
        known = {"answers": answers, "additional_answers": {"0": others}}
        source = ["wikipedia", "cnn"][number % 2]
        data.append({"id": f"s{number}", "source": source, "story": story, "questions": questions, **known})
    return {"version": "1.0", "data": data}


@pytest.fixture
def coqa_file(tmp_path: Path) -> Path:
    path = tmp_path / "coqa.json"
    path.write_text(json.dumps(stories(4)))
    return path


@pytest.mark.slow
def test_it_memorises_sixteen_turns(start: LoadedModel, coqa_file: Path, tmp_path: Path) -> None:
    recipe = recipe_for(start, "coqa-extractive", task__max_question=24)
    result = finetuned(recipe, start, coqa_file, coqa_file, tmp_path / "run")
    said = verbs.predict(tmp_path / "run", coqa_file, out=tmp_path / "said.json", quiet=True)
    records = read_records(coqa_file, recipe.task)
    wanted = [record.fields["answers"][0].rstrip(".").lower() for record in records]
    assert [one["prediction"].lower() for one in said] == wanted
    written = json.loads((tmp_path / "said.json").read_text())
    assert written[5] == {"id": "s1", "turn_id": 2, "answer": "no"}
    measured = verbs.measure("coqa", tmp_path / "said.json", [coqa_file])
    assert measured.values == result.scores["coqa"].values
    assert set(measured.values) == {"f1", "exact", "f1_cnn", "f1_wikipedia"} and measured.values["f1"] > 90
    assert all(max(one["scores"], key=one["scores"].get) in (one["prediction"], "span") for one in said)


def test_turns_are_records_with_the_previous_turns(coqa_file: Path) -> None:
    records = read_records(coqa_file, SETTINGS)
    assert len(records) == 16
    fourth = records[3]
    assert fourth.id == "s0-4" and fourth.place.endswith("coqa.json, story s0, turn 4")
    assert fourth.fields["history"] == [[question, answer] for question, answer, _ in TURNS[:3]]
    assert (fourth.fields["rationale_start"], fourth.fields["domain"]) == (-1, "wikipedia")
    assert records[0].fields["answers"] == ["Bo", "Bo opens it"]
    assert Turn(records[0].fields["story"], records[0].fields["turn"]) == Turn("s0", 1)


def test_a_row_is_history_question_and_window(start: LoadedModel, coqa_file: Path) -> None:
    recipe = recipe_for(start, "coqa-extractive", task__max_question=24)
    records = read_records(coqa_file, recipe.task)
    windows = TASK.encode(records, start.tokenizer, recipe)
    tokens = start.tokenizer.encode_batch([text for turn in TURNS for text in turn[:2]])
    whole = np.concatenate(tokens[:-1])
    assert len(whole) > 24 and windows[3].question.tolist() == whole[-24:].tolist()
    assert windows[0].question.tolist() == tokens[0].tolist()
    examples = TASK.lay_out(windows, start.tokenizer.vocabulary, recipe, None)
    target = examples.targets["answer"]
    assert not target.slots.any() and [ANSWERS[kind] for kind in target.labels[:4, 0]] == [
        "span",
        "no",
        "yes",
        "unknown",
    ]
    assert (examples.targets["start"].labels[1:4] == 0).all() and examples.targets["start"].labels[0, 0] > 0


def test_windows_without_the_rationale_say_unknown(start: LoadedModel) -> None:
    recipe = recipe_for(start, "coqa-extractive", task__max_length=30, task__max_question=8, task__stride=6)
    story = "the red door . " * 10 + "Bo sees a tree . " + "the red door . " * 10
    place = story.index("Bo")
    fields = {"context": story, "question": "who?", "rationale": "Bo sees a tree", "rationale_start": place}
    records = [
        Record(answer, {**fields, "answers": [answer]}, answer) for answer in ("Bo", "no", "unknown", "tree Bo sees")
    ]
    with pytest.warns(UserWarning, match="4 passages"):
        windows = TASK.encode(records, start.tokenizer, recipe)
    for number, record in enumerate(records):
        mine = [window for window in windows if window.record == number]
        span = mine[0].passage.covering(place, place + len("Bo" if record.id == "Bo" else "Bo sees a tree"))
        assert span is not None
        for window in mine:
            assert window.labels is not None
            inside = window.first <= span[0] and span[1] < window.last and record.id != "unknown"
            assert window.labels["answer"] == (kind_of(record.id) if inside else ANSWERS.index("unknown"))
            points = inside and kind_of(record.id) == 0
            assert window.labels["start"] == (span[0] - window.first + 1 if points else 0)
        assert any(window.labels and window.labels["answer"] == kind_of(record.id) for window in mine)


def test_a_rationale_without_tokens_is_no_evidence(start: LoadedModel) -> None:
    recipe = recipe_for(start, "coqa-extractive")
    fields = {"context": "Bo sees \u200b a tree .", "question": "does he?", "rationale": "\u200b", "answers": ["yes"]}
    with pytest.warns(UserWarning, match="1 answers fit in no window"):
        windows = TASK.encode([Record("0", fields, "here")], start.tokenizer, recipe)
    assert [window.labels["answer"] for window in windows if window.labels] == [ANSWERS.index("unknown")]


def test_the_window_with_most_of_a_rationale_learns_yes_or_no(start: LoadedModel) -> None:
    """If no window contains it entirely, an answer that is a span counts as out of reach."""
    recipe = recipe_for(start, "coqa-extractive", task__max_length=30, task__max_question=8, task__stride=6)
    story = "the red door . " * 4 + "Bo sees a tree and " * 6 + "the red door . " * 4
    first, last = story.index("Bo"), story.rindex("and") + 3
    fields = {"context": story, "question": "who?", "rationale": story[first:last], "rationale_start": first}
    with pytest.warns(UserWarning, match="of 1 records 1 passages are longer .* in windows$"):
        windows = TASK.encode([Record("0", {**fields, "answers": ["yes"]}, "here")], start.tokenizer, recipe)
    span = windows[0].passage.covering(first, last)
    assert span is not None
    shared = [min(window.last, span[1] + 1) - max(window.first, span[0]) for window in windows]
    assert max(shared) < span[1] + 1 - span[0]
    kinds = [ANSWERS[window.labels["answer"]] for window in windows if window.labels]
    assert kinds == ["yes" if count == max(shared) else "unknown" for count in shared] and "unknown" in kinds
    everything = {**fields, "answers": [story[first:last]]}
    with pytest.warns(UserWarning, match="1 answers fit in no window and count as having no answer"):
        TASK.encode([Record("0", everything, "here")], start.tokenizer, recipe)


def test_the_most_confident_window_decides(start: LoadedModel) -> None:
    recipe = recipe_for(start, "coqa-extractive", task__max_length=30, task__max_question=8)
    record = Record("0", {"context": "the red door sees a tree . " * 6, "question": "who?"}, "here")
    with pytest.warns(UserWarning, match="1 passages"):
        windows = TASK.encode([record], start.tokenizer, recipe)
    assert len(windows) >= 3

    def said(*logits: tuple[float, float, float, float]) -> Any:
        outputs = []
        for number, window in enumerate(windows):
            size = window.last - window.first + 1
            scores = np.full((1, size), -9, dtype=np.float32)
            scores[0, 3] = number
            answer = np.array([logits[min(number, len(logits) - 1)]], dtype=np.float32)
            outputs.append({"start": scores, "end": scores, "answer": answer})
        return TASK.predict(record, windows, outputs, recipe)["prediction"]

    last = windows[-1]
    assert said((0, 0, 0, 5)) == "unknown"
    assert said((0, 0, 0, 9), (0, 5, 0, 0), (0, 0, 0, 9)) == "yes"
    assert said((0, 0, 0, 9), (0, 0, 4, 0), (9, 0, 0, 0)) == last.passage.span(last.first + 2, last.first + 2)[1]


def test_a_long_story_is_read_in_windows_and_answered_in_its_own_characters(start: LoadedModel) -> None:
    recipe = recipe_for(start, "coqa-extractive", task__max_length=64, task__max_question=8)
    story = "door " * 10_000 + "Zoë\u0301 的 Straße. " + "tree " * 50
    record = Record("0", {"context": story, "question": "who?", "answers": ["Zoë\u0301 的 Straße"]}, "here")
    with pytest.warns(UserWarning, match="1 passages") as said:
        windows = TASK.encode([record], start.tokenizer, recipe)
    assert len(said) == 1 and windows[-1].last == len(windows[-1].passage) > 10_000
    holding = [window for window in windows if window.labels and window.labels["start"]]
    assert holding and all(window.labels["answer"] == ANSWERS.index("span") for window in holding)
    for window in holding:
        first, last = (window.first + window.labels[name] - 1 for name in ("start", "end"))
        assert window.passage.span(first, last) == (50_000, "Zoë\u0301 的 Straße")


@pytest.mark.parametrize(("answer", "kind"), [
    ("yes", "yes"), ("Yes!", "yes"), ("NO", "no"), ("unknown.", "unknown"),
    ("", "span"), ("no one", "span"), ("yesterday", "span"), ("Yes, she did", "span"),
])  # fmt: skip
def test_yes_no_and_unknown_are_not_spans(answer: str, kind: str) -> None:
    assert ANSWERS[kind_of(answer)] == kind


@pytest.mark.parametrize(
    "answer", ["a white cat", "She was in the barn", "with her mommy", "the cat cat", "painted white", "Cotton"]
)
def test_the_span_to_learn_has_the_highest_f1(answer: str) -> None:
    text = "Once upon a time, in a barn near a farm house, there lived a little white cat named Cotton with her mommy."
    places = range(len(text) + 1)
    best = max(token_f1(text[i:j], answer) for i in places for j in places[i:])
    span = closest_span(answer, text, 0, len(text))
    assert span is not None and token_f1(text[slice(*span)], answer) == pytest.approx(best)


def test_without_a_word_in_common_the_rationale_is_the_span() -> None:
    assert closest_span("three", "one two. one", 0, 8) == (0, 8)
    assert closest_span("three", "one two. one", 0, 12) is None
    assert closest_span("one", "one two. one", 4, 12) == (9, 12)
    assert closest_span("one", "one two. one", 0, 12) == (0, 3)  # the first of equals


@pytest.mark.parametrize(("change", "message"), [
    ({"answers": []}, "turn 1: an annotator's answer is missing"),
    ({"answers": stories(1)["data"][0]["answers"][::-1]}, "turn 1: the answer in its place is for turn [2-9]"),
    ({"questions": [{"turn_id": "1", "input_text": "a"}]}, "story s1: 'turn_id' is missing or has a different type"),
    ({"story": 3}, "story s1: 'story' is missing"),
])  # fmt: skip
def test_a_story_that_cannot_be_used_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    broken = stories(2)
    broken["data"][1] |= change
    path = tmp_path / "coqa.json"
    path.write_text(json.dumps(broken))
    with pytest.raises(UniclozeError, match=message):
        read_records(path, SETTINGS)


@pytest.mark.parametrize(("change", "message"), [
    ({"history": ["a", "b"]}, r"line 1: the history is not a list of \[question, answer\]"),
    ({"answers": []}, "line 1: there is no answer to train on"),
    ({"context": None}, "line 1: 'context' is null: fix the record or leave it out"),
])  # fmt: skip
def test_a_record_that_cannot_be_used_is_named(
    start: LoadedModel, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    record = {"context": "a door", "question": "what?", "answers": ["a door"], "history": [["who?", "Bo"]]}
    train = write(tmp_path / "train.jsonl", [{**record, **change}])
    with pytest.raises(UniclozeError, match=message):
        finetuned(recipe_for(start, "coqa-extractive"), start, train, None, tmp_path / "run")


def test_records_of_no_story_are_written_by_id(start: LoadedModel, tmp_path: Path) -> None:
    """A plain record, without history and rationale."""
    train = write(tmp_path / "x.jsonl", [{"context": "a red door", "question": "what?", "answers": ["red door"]}])
    recipe = recipe_for(start, "coqa-extractive", finetuning__epochs=1)
    finetuned(recipe, start, train, None, tmp_path / "run")
    blank = write(tmp_path / "y.jsonl", [{"context": "", "question": "what?"}, {"context": "a", "question": ""}])
    verbs.predict(tmp_path / "run", blank, out=tmp_path / "said.json", quiet=True)
    said = json.loads((tmp_path / "said.json").read_text())
    assert set(said) == {"0", "1"} and said["0"] in ANSWERS[1:]


def test_a_later_turn_without_a_history_is_refused(tmp_path: Path) -> None:
    """The history of a CoQA file without answers is unknown, not empty."""
    asked = [{"turn_id": turn, "input_text": f"who {turn}?"} for turn in (1, 2)]
    file = tmp_path / "coqa.json"
    file.write_text(json.dumps({"data": [{"id": "s", "source": "x", "story": "Bo.", "questions": asked}]}))
    first, second = read_records(file, SETTINGS)
    assert history_of(first, SETTINGS) == []
    with pytest.raises(UniclozeError, match="turn 2: there is no history, as the file has no answers to the earlier"):
        history_of(second, SETTINGS)


# Answers in records: their positions, their formats, and which cannot be used.


THEY_LEFT = "The man and he left; she, he."


@pytest.mark.parametrize(("passage", "text", "start", "place"), [
    ("ababab", "b", 3, 3), ("ababab", "b", None, 1), ("ababab", "b", 4, 3), ("ababab", "b", 0, 1), ("ababab", "b", 99, 5),
    ("ababab", "b", -1, 1), ("ababab", "x", 1, None), ("ababab", "ab", 3, 2),
    (THEY_LEFT, "he", None, 12), (THEY_LEFT, "he", 25, 26), (THEY_LEFT, "he", 2, 1),  # a given position is trusted
    ("1954: 5", "5", None, 6), ("1954", "95", None, 1),
])  # fmt: skip
def test_an_answer_is_found_where_it_is_or_nearest_to_that_as_a_word(
    passage: str, text: str, start: int | None, place: int | None
) -> None:
    assert locate(Given(text, start), passage) == place


@pytest.mark.parametrize("answers", [
    ["red", "big"], [{"text": "red"}, {"text": "big"}], {"text": ["red", "big"]},
    {"text": ["red", "big"], "answer_start": [3, 4]},
])  # fmt: skip
def test_answers_come_in_several_forms(answers: Any) -> None:
    found = answers_of(Record("0", {"answers": answers}, "here"), OF_SPANS)
    assert found is not None and [answer.text for answer in found] == ["red", "big"]


def test_moved_answers_are_counted() -> None:
    some = questions(4)
    some[1]["answers"][0]["answer_start"] = 3
    with pytest.warns(UserWarning, match="1 of 4 answers are not at"):
        TASKS["extraction"].resolve(OF_SPANS, records_of(some))


@pytest.mark.parametrize(("change", "message"), [
    ({"answers": [{"text": "nobody", "answer_start": 0}]}, "question q1: the passage does not contain the answer 'nobody'"),
    ({"answers": "Li"}, "question q1: the answers are not a list"),
    ({"answers": [{"text": "Li", "answer_start": "0"}]}, "question q1: the answers are not a list"),
    ({"question": 3}, "question q1: 'question' is missing or has a different type"),
    ({"id": "q0"}, "question q0: the id 'q0' is also that of"),
])  # fmt: skip
def test_a_question_that_cannot_be_used_is_named(
    start: LoadedModel, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    some = questions(2)
    some[1] |= change
    train = squad_json(tmp_path / "train.json", some)
    if "id" in change:  # equal positions, so another file's format
        train, message = write(tmp_path / "train.jsonl", some), "line 2: the id 'q0' is also that of"
    with pytest.raises(UniclozeError, match=message):
        finetuned(recipe_for(start, "squad-v1.1"), start, train, None, tmp_path / "run")


@pytest.mark.parametrize(("text", "message"), [
    ("{", "this is not JSON"),
    ('{"data": [{"paragraphs": [{"context": 3, "qas": []}]}]}', "article '': 'context' is missing or has a different type"),
    ('{"data": [{"paragraphs": [{"qas": [{"id": "a", "answers": []}]}]}]}', "question a: the field 'context' is missing"),
    ('{"data": [3]}', "'paragraphs' is missing"),
    ("{}", "'data' is missing"),
    ("[3]", "entry 1: a record must be a JSON object"),
    ('{"data": []}', "contains no records"),
    ('[{"context": "a \\ud800", "question": "b", "answers": []}]', "train.json: half of a surrogate pair after"),
])  # fmt: skip
def test_a_file_of_another_form_is_refused(start: LoadedModel, tmp_path: Path, text: str, message: str) -> None:
    train = tmp_path / "train.json"
    train.write_text(text)
    with pytest.raises(UniclozeError, match=message):
        finetuned(recipe_for(start, "squad-v1.1"), start, train, None, tmp_path / "run")


def test_answers_are_needed_to_learn_and_to_measure(start: LoadedModel, tmp_path: Path) -> None:
    some = questions(2)
    del some[1]["answers"]
    train = write(tmp_path / "train.jsonl", some)
    with pytest.raises(UniclozeError, match="line 2: the field 'answers' is missing"):
        finetuned(recipe_for(start, "squad-v1.1"), start, train, None, tmp_path / "run")
