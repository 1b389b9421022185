"""Zero- and few-shot prompting against scorers of one token at a time."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import decoding_toys
from decoding_toys import Slot, context, probabilities
from nlu_toys import write
from unicloze import verbs
from unicloze.decoding.generate import Candidate, Generation, generate
from unicloze.decoding.likelihood import Blank, fill_blanks, way_of
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.missing_words import lambada
from unicloze.evaluation.prompting import draw_examples, prompted, read_prompt
from unicloze.records import read_records
from unicloze.records.record import Record
from unicloze.settings import DecodingSettings, TaskSettings
from unicloze.tasks import TASKS, task_settings
from unicloze.training.loading import LoadedModel

CAUSAL: dict[str, Any] = {"name": "causal", "targets": ["lm"], "visibility": "left_to_right"}
PAR: dict[str, Any] = {"name": "unilmv2", "targets": ["ae", "par"], "pseudo_token": "own"}
TEXTS = ["the list of items", "a value is given to x", "return the playing state of a list"]
MODELS = {
    "causal": lambda: decoding_toys.loaded(**CAUSAL),
    "causal-bytes": lambda: decoding_toys.loaded(decoding_toys.byte_level(), positions=60, **CAUSAL),
    "par": lambda: decoding_toys.loaded(**PAR),
    "par-relative": lambda: decoding_toys.loaded(relative=True, **PAR),
}


def one_at_a_time(model: LoadedModel, before: str, answer: str, after: str = "") -> tuple[list[float], list[bool]]:
    """log p of each requested token and whether it is the most likely ordinary one, each from a separate forward pass."""
    vocabulary, encode = model.tokenizer.vocabulary, model.tokenizer.encode_batch
    head, tail = encode([before])[0].tolist(), encode([before + answer])[0].tolist()
    whole = encode([before + answer + after])[0].tolist()
    assert tail[: len(head)] == head and whole[: len(tail)] == tail  # pieces do not cross the borders here
    logs, greedy = [], []
    chain = way_of(model.recipe) == "chain"
    for place in range(len(head), len(whole if chain else tail)):
        if chain:
            ids = [vocabulary.sos, *whole[:place]]
            row = [Slot(token, position, reads=position + 1) for position, token in enumerate(ids)]
        else:
            masks = [vocabulary.mask] * (len(tail) - len(head))
            row = context([vocabulary.sos, *head, *masks, *whole[len(tail) :], vocabulary.eos])
            ids = [slot.token for slot in row]
            row += [Slot(whole[i], i + 1, reads=len(ids) + i - len(head) + 1) for i in range(len(head), place)]
            row.append(Slot(vocabulary.pseudo or 0, place + 1, reads=len(row), itself=True))
        shares = probabilities(model, row, [len(row) - 1])[0]
        logs.append(float(np.log(shares[whole[place]])))
        shares[vocabulary.special] = 0
        greedy.append(bool(shares.argmax() == whole[place]))
    return logs, greedy


@pytest.mark.parametrize("name", MODELS)
def test_a_blank_is_filled_as_one_token_at_a_time(name: str) -> None:
    model = MODELS[name]()
    blanks = [
        Blank(before=text, answer=answer, after=after)
        for text in TEXTS
        for answer in (" playing", " empty items", " x")
        for after in ("", " is a list")
    ]
    counts: list[int] = []
    found = fill_blanks(model, blanks, batch_size=5, progress=counts.append)
    assert sum(counts) == len(blanks) and max(counts) == 5
    for blank, filled in zip(blanks, found, strict=True):
        logs, greedy = one_at_a_time(model, blank.before, blank.answer, blank.after)
        np.testing.assert_allclose(filled.logs, logs, atol=2e-5)
        assert filled.greedy.tolist() == greedy
    alone = fill_blanks(model, blanks[3:4], batch_size=1)[0]
    np.testing.assert_allclose(alone.logs, found[3].logs, atol=2e-5)


@pytest.mark.parametrize("name", ["causal", "par"])
def test_a_long_context_loses_its_beginning_with_one_warning(name: str) -> None:
    model = MODELS[name]()
    long, by_one = (Blank(before=" ".join(["the list"] * times), answer=" empty") for times in (400, 15))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = fill_blanks(model, [long, by_one, Blank(before="the list", answer=" empty")])
    assert [str(one.message)[:42] for one in caught] == ["2 of 3 texts are longer than the 30 tokens"]
    kept = fill_blanks(model, [Blank(before=" ".join(["list", *["the list"] * 14]), answer=" empty")])[0]
    for each in found[:2]:
        np.testing.assert_allclose(each.logs, kept.logs, atol=1e-5)


def test_an_answer_that_cannot_be_scored_is_named() -> None:
    model = MODELS["causal"]()
    with pytest.raises(UniclozeError, match=r"f\.txt, line 3: the answer and what follows it have 40 tokens"):
        fill_blanks(model, [Blank(before="the", answer=" list" * 40, place="f.txt, line 3")])
    with pytest.warns(UserWarning, match="than the 30 tokens the model reads at once and lose their beginning"):
        assert len(fill_blanks(model, [Blank(before="the", answer=" list" * 30)])[0].logs) == 30
    with pytest.raises(UsageError, match="the answer of a text is empty"):
        fill_blanks(model, [Blank(before="the", answer=" ")])
    with pytest.raises(UniclozeError, match="a text: the answer ' \u200b' has no tokens: give it a word"):
        fill_blanks(model, [Blank(before="the", answer=" \u200b")])
    with pytest.raises(UsageError, match="does not define the likelihood of an answer"):
        fill_blanks(decoding_toys.loaded(name="masked", targets=["ae"]), [Blank(before="the", answer=" list")])
    unknown = fill_blanks(model, [Blank(before="the", answer=" zebra list")])[0]
    assert np.isnan(unknown.logs).tolist() == [True, False] and not unknown.greedy[0]


PASSAGES = [
    {"context": "the list of items is", "continuation": "empty"},
    {"context": "return the value of a", "continuation": "playing"},
    {"context": "x is in the", "continuation": "list"},
    {"context": "the state is not", "continuation": "given"},
]
STORY = """1 the list is empty .
2 a value is given .
3 return the XXXXX of a list .\tstate\t\tvalue|state|items|x

1 x is in the list .
2 XXXXX is not empty .\titems\t\titems|play|a
"""
LABELLED = [{"text": text, "label": label} for text, label in zip(TEXTS, ["0", "1", "1"], strict=True)]
TRAIN = [{"text": f"{word} is a list", "label": str(number % 2)} for number, word in enumerate(decoding_toys.WORDS)]


def prompt_file(folder: Path, **keys: Any) -> Path:
    path = folder / "state.json"
    settings = {"template": "{text} is {label} .", "labels": {"0": "empty", "1": "not given"}, "separator": " and "}
    path.write_text(json.dumps({**settings, **keys}))
    return path


@pytest.mark.parametrize("name", ["causal", "par"])
@pytest.mark.parametrize("normalise", ["sum", "token", "byte"])
def test_a_prompt_takes_the_likeliest_label(name: str, normalise: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    records = write(tmp_path / "dev.jsonl", LABELLED)
    result = prompted(model, prompt_file(tmp_path, normalise=normalise), records, progress=False)
    for said, record in zip(result.predictions, LABELLED, strict=True):
        for label, answer in (("0", "empty"), ("1", "not given")):
            logs = one_at_a_time(model, f"{record['text']} is", f" {answer}", " .")[0]
            length = {"sum": 1, "token": len(logs), "byte": len(answer) + 2 * (name == "causal")}[normalise]
            assert said["scores"][label] == pytest.approx(sum(logs) / length, abs=1e-4)
        assert said["prediction"] == max(said["scores"], key=lambda label: said["scores"][label])
    right = [said["prediction"] == said["reference"] for said in result.predictions]
    assert result.scores["accuracy"].values["accuracy"] == pytest.approx(100 * sum(right) / 3)
    assert set(result.scores["accuracy"].errors) == {"accuracy"} and "standard error" in str(result)


def test_examples_precede_the_record(tmp_path: Path) -> None:
    model = MODELS["causal"]()
    records, train = write(tmp_path / "dev.jsonl", LABELLED), write(tmp_path / "train.jsonl", TRAIN)
    path = prompt_file(tmp_path, instruction="return the state")
    result = prompted(model, path, records, examples=train, shots=1, seed=5, progress=False)
    drawn = draw_examples(read_prompt(path), read_records(records, TaskSettings()), train, 1, 5)
    for said, record, (example,) in zip(result.predictions, LABELLED, drawn, strict=True):
        answer = {"0": "empty", "1": "not given"}[example.fields["label"]]
        context = f"return the state and {example.fields['text']} is {answer} . and {record['text']} is"
        assert said["scores"]["0"] == pytest.approx(sum(one_at_a_time(model, context, " empty", " .")[0]), abs=1e-4)
    assert result.shots == 1 and "1 example in the prompt" in str(result)


def test_examples_are_different_and_depend_on_seed_and_record_alone(tmp_path: Path) -> None:
    prompt, train = read_prompt(prompt_file(tmp_path)), write(tmp_path / "train.jsonl", TRAIN)
    asked = [Record(str(number), {"text": f"record {number}"}, "here") for number in range(900)]
    few = draw_examples(prompt, asked[:40], train, 3, 1)
    assert all(len({record.id for record in drawn}) == 3 for drawn in few)
    assert few[:10] == draw_examples(prompt, asked[:10], train, 3, 1) != draw_examples(prompt, asked[:10], train, 3, 2)
    counts = np.bincount([int(record.id) for drawn in draw_examples(prompt, asked, train, 2, 0) for record in drawn])
    assert len(counts) == len(TRAIN) and counts.min() > 60 and counts.max() < 145  # 100 each
    with pytest.raises(UsageError, match="has 18 records: give as many"):
        draw_examples(prompt, asked[:1], train, 19, 0)
    with pytest.raises(UsageError, match="examples and shots go together"):
        draw_examples(prompt, asked[:1], train, 0, 0)


def test_a_record_is_not_its_own_example(tmp_path: Path) -> None:
    prompt, file = read_prompt(prompt_file(tmp_path)), write(tmp_path / "all.jsonl", [*LABELLED, LABELLED[0]])
    records = read_records(file, prompt.records)
    for seed in range(20):
        drawn = draw_examples(prompt, records, file, 2, seed)
        pairs = zip(records, drawn, strict=True)
        assert all(len(few) == 2 and record.fields not in [one.fields for one in few] for record, few in pairs)
    with pytest.raises(UsageError, match=r"shots is 3, but .* has 2 records other than the one to be answered"):
        draw_examples(prompt, records, file, 3, 0)


def test_a_record_may_bring_its_own_options(tmp_path: Path) -> None:
    model = MODELS["par"]()
    lines = [
        {"story": TEXTS[0], "two": ["empty", "given to x", "a list"], "right": 2},
        {"story": TEXTS[1], "two": ["empty", "not"], "right": "not"},
    ]
    fields = {"endings": "two", "label": "right"}
    path = prompt_file(
        tmp_path, template="{story} {label}", labels={}, options="endings", fields=fields, normalise="token"
    )
    result = prompted(model, path, write(tmp_path / "r.jsonl", lines), progress=False)
    assert [said["reference"] for said in result.predictions] == ["2", "1"]
    assert [len(said["scores"]) for said in result.predictions] == [3, 2]
    unlabelled = [{key: value for key, value in line.items() if key != "right"} for line in lines]
    without = prompted(model, path, write(tmp_path / "u.jsonl", unlabelled), progress=False)
    assert without.scores == {} and "not measured" in str(without)
    assert [said["prediction"] for said in without.predictions] == [said["prediction"] for said in result.predictions]


@pytest.mark.parametrize(("other", "chosen"), [("empty", "1"), ("yak", "")])
def test_an_answer_that_cannot_be_spelled_is_never_chosen(tmp_path: Path, other: str, chosen: str) -> None:
    path = prompt_file(tmp_path, labels={"0": "zebra", "1": other})
    result = prompted(MODELS["causal"](), path, write(tmp_path / "r.jsonl", LABELLED), progress=False)
    assert {said["prediction"] for said in result.predictions} == {chosen} and result.unknown == 3
    assert "3 records have answers with tokens not in the vocabulary" in str(result)
    assert chosen or result.scores["accuracy"].values["accuracy"] == 0


@pytest.mark.parametrize("name", ["causal", "par"])
def test_unspellable_text_after_the_blank_does_not_distinguish_answers(name: str, tmp_path: Path) -> None:
    model, records = MODELS[name](), write(tmp_path / "r.jsonl", LABELLED)
    found = prompted(model, prompt_file(tmp_path, template="{text} is {label} . zebra"), records, progress=False)
    assert found.unknown == 0
    if name == "causal":  # nothing after the unknown word depends on it
        plain = prompted(model, prompt_file(tmp_path), records, progress=False)
        for one, other in zip(found.predictions, plain.predictions, strict=True):
            assert one["scores"] == pytest.approx(other["scores"])


def test_metrics_that_do_not_fit_a_prompt_are_refused_before_the_model_is_asked(tmp_path: Path) -> None:
    records = write(tmp_path / "r.jsonl", LABELLED)
    for keys, message in (
        ({"metrics": ["rouge"]}, "chooses answers, but rouge compares texts: name metrics of labels"),
        ({"metrics": ["accuracy"], "template": "{text}", "labels": {}}, "writes texts, but accuracy compares labels"),
        ({"metrics": ["f1"], "labels": {"a": "empty", "b": "given"}}, "No reference has the label 1"),
        ({"metrics": ["rugue"]}, r"There is no metric rugue: did you mean rouge\? the metrics are \S+, "),
    ):
        with pytest.raises(UsageError, match=message):
            prompted("no model", prompt_file(tmp_path, **keys), records, progress=False)


def choices_by(folder: Path) -> list[Callable[[Record], Any]]:
    """The number of a record's label, as a prompt and as a task reads it."""
    settings = {"template": "{context} {label}", "labels": {}, "options": "choices"}
    prompt = read_prompt(prompt_file(folder, **settings))
    return [prompt.gold, lambda record: TASKS["choice"].reference(record, task_settings(kind="choice"))]


@pytest.mark.parametrize(("label", "number"), [("1", 2), (1, 1), ("0", 0), ("2", 0), ("three", 3), (3, 3)])
def test_a_label_is_the_same_choice_to_a_prompt_and_to_a_fine_tuning(tmp_path: Path, label: Any, number: int) -> None:
    """The text of a choice takes precedence over the number it spells."""
    record = Record("0", {"context": "x", "choices": ["2", "4", "1", "three"], "label": label}, "here")
    assert [read(record) for read in choices_by(tmp_path)] == [str(number), number]


@pytest.mark.parametrize("label", ["4", 4, -1, "-1", True, 1.0, "b", ["a"]])
def test_a_label_that_names_no_choice_is_refused_by_both(tmp_path: Path, label: Any) -> None:
    record = Record("0", {"context": "x", "choices": ["a", "b", "b", "c"], "label": label}, "here")
    for read in choices_by(tmp_path):
        with pytest.raises(UniclozeError, match=r"here: the label .* choices: .* a number from 0 to 3, or the text"):
            read(record)


@pytest.mark.parametrize(("answers", "message"), [
    ("{1: yes, 0: no}", "the answer of 1 is read as True: put the word in quotation marks"),
    ("{1: null, 0: 'no'}", "the answer of 1 is read as None: put the word in quotation marks"),
    ('{1: good, "1": bad, 2: fair}', "two labels read the same, such as 1 and '1': remove one"),
    ('{yes: good, "yes": bad, no: fair}', "two labels read the same"),
    ("{1: good, true: bad, 2: fair}", "p.yaml:2 is neither YAML nor JSON .duplicate key true; keep one"),
    ("{a: good, a: bad, b: fair}", "p.yaml:2 is neither YAML nor JSON .duplicate key a; keep one"),
    ("[", "p.yaml:3 is neither YAML nor JSON"),
])  # fmt: skip
def test_answers_that_yaml_reads_otherwise_are_refused(answers: str, message: str, tmp_path: Path) -> None:
    """Records have labels as text, but YAML takes 1 and true for one key: the last answer would win."""
    (tmp_path / "p.yaml").write_text(f"template: '{{text}} is {{label}}'\nlabels: {answers}\n")
    with pytest.raises(UniclozeError, match=message):
        read_prompt(tmp_path / "p.yaml")


def test_booleans_are_labels_as_records_spell_them(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("template: '{text} is {label}'\nlabels: {true: given, false: empty}\n")
    assert read_prompt(tmp_path / "p.yaml").gold(Record("0", {"text": "x", "label": True}, "here")) == "yes"


def test_a_seed_needs_examples_to_draw(tmp_path: Path) -> None:
    prompt, records = prompt_file(tmp_path), write(tmp_path / "r.jsonl", LABELLED)
    with pytest.raises(UsageError, match="seed is 7, but no examples are drawn: give examples and shots"):
        verbs.evaluate_prompt(decoding_toys.loaded(**CAUSAL), prompt, records, seed=7, quiet=True)


@pytest.mark.parametrize(("label", "message"), [
    ([1, 2], "line 2: the field 'label' is not a list of texts"),
    ([], "line 2: 'label' has no text to compare with"),
    (3, "line 2: the field 'label' is not a text"),
])  # fmt: skip
def test_a_reference_that_is_not_text_is_named_before_anything_is_written(
    label: Any, message: str, tmp_path: Path
) -> None:
    prompt = prompt_file(tmp_path, template="{text} to", labels={}, generate={"max_length": 5})
    records = write(tmp_path / "r.jsonl", [LABELLED[0], {"text": "a", "label": label}])
    with pytest.raises(UniclozeError, match=message):
        prompted("no model", prompt, records, progress=False)


def test_rows_at_once_hold_for_written_texts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, records = MODELS["causal"](), write(tmp_path / "r.jsonl", LABELLED)
    seen: list[int] = []

    def written(_: object, sources: list[str], settings: DecodingSettings, **__: object) -> list[Generation]:
        seen.append(settings.batch_size)
        one = Candidate(text="x", tokens=[], log_probability=0.0, score=0.0, ended=True)
        return [Generation(source=source, candidates=[one]) for source in sources]

    monkeypatch.setattr("unicloze.decoding.generate.generate", written)
    for keys, batch_size in (({}, 64), ({}, 3), ({"batch_size": 5}, 3)):
        prompt = prompt_file(tmp_path, template="{text} to", labels={}, generate=keys)
        prompted(model, prompt, records, batch_size=batch_size, progress=False)
    assert seen == [16, 3, 5]


def test_the_last_word_may_follow_any_white_space(tmp_path: Path) -> None:
    model = MODELS["causal"]()
    found = [
        lambada(model, write(tmp_path / "l.jsonl", [{"text": f"the list is{space}empty"}]), progress=False).perplexity
        for space in (" ", "\n", "\u00a0")
    ]
    assert found[1:] == pytest.approx(found[:1] * 2)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["causal", "par"])
def test_a_prompt_without_a_blank_is_continued(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    path = prompt_file(tmp_path, template="{text} to", labels={}, generate={"max_length": "5"}, separator=" .")
    result = prompted(model, path, write(tmp_path / "r.jsonl", LABELLED), progress=False)
    written = generate(model, [f"{text} to" for text in TEXTS], DecodingSettings(max_length=5))
    assert [(said["prediction"], said["reference"]) for said in result.predictions] == [
        (one.text.partition(" .")[0].strip(), [record["label"]]) for one, record in zip(written, LABELLED, strict=True)
    ]
    assert result.by == "generation" and "rouge1" in result.scores["rouge"].values


@pytest.mark.parametrize("name", ["causal", "par"])
def test_a_prompt_that_is_too_long_keeps_its_cue(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    records = write(tmp_path / "r.jsonl", [{"text": TEXTS * 20, "label": "x"}])  # a list of sentences, as SciTLDR has
    said = []
    for cue in ("return a list to", "the value is the playing"):
        path = prompt_file(tmp_path, template=f"{{text}} {cue}", labels={}, generate={"max_length": 5})
        with pytest.warns(UserWarning, match="keeping the end"):
            said.append(prompted(model, path, records, progress=False).predictions)
    assert said[0] != said[1]


@pytest.mark.parametrize(("keys", "message"), [
    ({"template": "{text} {label} {label}"}, "label} once or not at all"),
    ({"template": "{text} {label"}, "template cannot be read"),
    ({"template": 3}, "template is 3: give a text"),
    ({"labels": {"0": "empty"}}, "give either two or more labels"),
    ({"labels": {"0": "empty", "1": " "}}, "an answer in labels is empty"),
    ({"normalise": "word"}, "normalise is 'word'"),
    ({"shots": 3}, "there is no key 'shots'"),
    ({"template": None, "templates": "{text} {label}"}, "there is no key 'templates'"),
    ({"generate": {"beams": 2}}, "generate does not apply with"),
    ({"template": "{text}", "labels": {}, "generate": {"beam": 2}}, "no generation setting 'beam'"),
    ({"template": "{text}", "labels": {}, "generate": {"beams": "four"}}, "decoding.beams is 'four'; expected"),
    ({"template": "{text}", "labels": {}, "generate": {"max_length": None}}, "decoding.max_length is None; expected"),
    ({"template": "{text}", "labels": {}, "generate": {"num_results": 2, "beams": 2}}, "num_results is 2, but one text"),
    ({"template": "{text:.5} is {label}"}, "template formats text, and formats such as :.5 and !r are not supported"),
    ({"template": "{text} is {label!r}"}, "template formats label"),
    ({"template": "{text} is {label:{text}}"}, "template formats label"),
    ({"template": "{text}"}, "labels needs {label} in the template: put it where the answer goes, or leave out labels"),
    ({"template": "{text} is {{label}}"}, "labels needs {label} in the template"),
    ({"template": "{text}", "labels": {}, "options": "endings"}, "options needs {label} in the template"),
    ({"template": "{text}", "labels": {}, "normalise": "byte"}, "normalise needs {label} in the template"),
    ({"fields": {"txt": "sentence"}}, "txt is not used: give names from the template, id, label, text"),
    ({"labels": {"0": "empty", "1": " empty"}}, "two labels have the same answer"),
    ({"fields": {"text": 3}}, "fields is {'text': 3}: give text for each name"),
    ({"metrics": [1]}, "metrics is .1.: give text for each name"),
])  # fmt: skip
def test_a_prompt_file_that_cannot_be_is_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        read_prompt(prompt_file(tmp_path, **keys))


def test_a_record_that_does_not_fit_is_named(tmp_path: Path) -> None:
    model, path = MODELS["causal"](), prompt_file(tmp_path)
    for line, message in (
        ({"text": "a", "label": "2"}, "line 1: the label '2' is not one of those of the prompt \\(0, 1\\)"),
        ({"label": "1"}, "line 1: the field 'text' is missing"),
    ):
        with pytest.raises(UniclozeError, match=message):
            prompted(model, path, write(tmp_path / "r.jsonl", [line]), progress=False)


def test_a_loaded_model_of_a_mixture_uses_the_part_that_can() -> None:
    """A mixture of a masked model and PAR fills by PAR."""
    model = MODELS["par"]()
    parts = [{"name": "masked", "targets": ["ae"]}, {"name": "unilmv2", "targets": ["par"]}]
    objective = dataclasses.replace(model.recipe.objective, mixture=parts)
    mixed = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, objective=objective))
    blanks = [Blank(before=TEXTS[0], answer=" empty")]
    assert way_of(mixed.recipe) == "par"
    np.testing.assert_array_equal(fill_blanks(mixed, blanks)[0].logs, fill_blanks(model, blanks)[0].logs)
