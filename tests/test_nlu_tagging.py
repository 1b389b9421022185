"""Tagging: columns to records, words to sub-tokens and windows, predicates, and learning."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nlu_toys import WORDS, finetuned, recipe_for, record, rows_of, write
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.labels import tag_accuracy
from unicloze.records import read_records
from unicloze.records.record import Record
from unicloze.settings import Recipe, TaskSettings
from unicloze.tasks import tagging, task_settings
from unicloze.training.loading import LoadedModel

NER = "-DOCSTART- -X- -X- O\n\nEva NNP B-NP B-PER\nsees VBZ B-VP O\n\n\n# SYM O O\nde\u00a0Carl NNP B-NP B-PER"
CONLLU = (
    "# text = du chat\n1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_\n1\tde\tde\tADP\tX\t_\t0\troot\t_\t_\n"
    "2\tle\tle\tDET\tX\t_\t1\tdet\t_\t_\n2.1\tnul\tnul\tX\tX\t_\t_\t_\t_\t_\n3\tle chat\tchat\tNOUN\tX\t_\t1\tobj\t_\t_\n\n"
)


def read(folder: Path, format_: str, content: str, **settings: Any) -> list[Record]:
    path = folder / "file"
    path.write_text(content, encoding="utf-8")
    return read_records(path, task_settings(kind="tagging", format=format_, **settings))


# Files


def test_sentences_in_columns(tmp_path: Path) -> None:
    settings = task_settings(kind="tagging")
    found = read(tmp_path, "conll", NER)
    assert [one.texts(settings, "tokens") for one in found] == [["Eva", "sees"], ["#", "de\u00a0Carl"]]
    assert [one.texts(settings, "tags") for one in found] == [["B-PER", "O"], ["O", "B-PER"]]
    assert [one.place.rpartition(" ")[2] for one in found] == ["3", "7"]
    parts_of_speech = task_settings(kind="tagging", fields={"tags": "1"})
    assert tagging.tags_of(found[0], parts_of_speech) == ["NNP", "VBZ"]
    tabs = read(tmp_path, "conll", "New York\tB-LOC\r\nis\tO\r\n\r\n")
    assert tabs[0].fields["tokens"] == ["New York", "is"] and tabs[0].fields["tags"] == ["B-LOC", "O"]
    (words,) = read(tmp_path, "conll", "Eva\nsees\n")
    assert words.get(settings, "tags") is None and words.texts(settings, "tokens") == ["Eva", "sees"]


def test_conllu(tmp_path: Path) -> None:
    (found,) = read(tmp_path, "conllu", CONLLU)
    assert found.id == "0" and "id" not in found.fields, "its column is of the words"
    assert (found.fields["tokens"], found.fields["tags"]) == (["de", "le", "le chat"], ["ADP", "DET", "NOUN"])
    assert tagging.tags_of(found, TaskSettings(fields={"tags": "deprel"})) == ["root", "det", "obj"]


@pytest.mark.parametrize(("format_", "content", "message"), [
    ("conll", "Eva NNP O\nsees O\n", "line 2: 2 columns where the first line has 3: give each"),
    ("conllu", "1\tde\tADP\n", "line 1: 3 columns where CoNLL-U has 10"),
    ("conllu", "Eva NNP O\n", "line 1: 1 column where CoNLL-U has 10: separate .* --task.format"),
    ("conll", "\n\n", "contains no records"),
    ("conll", '{"tokens": ["Eva"], "tags": ["O"]}\n', "line 1: this is JSON, .* --task.format jsonl"),
])  # fmt: skip
def test_a_broken_line_is_named(tmp_path: Path, format_: str, content: str, message: str) -> None:
    with pytest.raises(UniclozeError, match=message):
        read(tmp_path, format_, content)


# Rows


def recipe_with(model: LoadedModel, labels: list[str], name: str = "tagging", **settings: Any) -> Recipe:
    return recipe_for(model, name, task__labels=labels, **settings)


def test_a_word_is_predicted_from_its_first_sub_token(bert: LoadedModel) -> None:
    words = ["zorro", "sees", "\u200b", "xylofon", ""]
    recipe = recipe_with(bert, ["O", "B-X"])
    (row,) = rows_of(bert, recipe, record(tokens=words, tags=["B-X", "O", "O", "B-X", "O"]))
    tokens = bert.tokenizer.tokens(row.input_ids)
    firsts = [tokens[slot] for (slot,) in row.targets["tags"].slots]
    assert firsts == ["z", "sees", "[UNK]", "x", "[UNK]"]
    assert not any(token.startswith("##") for token in firsts) and row.targets["tags"].labels == [1, 0, 0, 1, 0]
    last = recipe_with(bert, ["O", "B-X"], task__pooling="last")
    (row,) = rows_of(bert, last, record(tokens=words[:2]))
    assert [slots[0] for slots in row.targets["tags"].slots] == [tokens.index("sees") - 1, tokens.index("sees")]
    assert row.targets["tags"].labels is None


def test_a_causal_model_tags_a_word_where_it_has_read_all_of_it(gpt: LoadedModel) -> None:
    recipe = recipe_with(gpt, ["O", "B-X"])
    (row,) = rows_of(gpt, recipe, record(tokens=["zorro", "xylofon"]))
    tokens = gpt.tokenizer.tokens(row.input_ids)
    first, second = (place for place, token in enumerate(tokens) if token.startswith("\u0120"))
    assert [list(slots) for slots in row.targets["tags"].slots] == [[second - 1], [len(tokens) - 2]]
    assert first == 1 and second > 2, "a word of several pieces"
    recipe = recipe_with(gpt, ["O", "B-X"], task__pooling="first")
    (row,) = rows_of(gpt, recipe, record(tokens=["zorro", "xylofon"]))
    assert [list(slots) for slots in row.targets["tags"].slots] == [[1], [second]]


def test_sub_tokens_of_bytes_are_those_of_the_sentence(gpt: LoadedModel) -> None:
    words = ["anna", "sees", "berlin"]
    (row,) = rows_of(gpt, recipe_with(gpt, ["O"]), record(tokens=words))
    assert np.array_equal(row.input_ids[1:-1], gpt.tokenizer.encode_batch(["".join(f" {word}" for word in words)])[0])


@pytest.mark.parametrize("seed", range(30))
def test_windows_lose_no_word_and_repeat_none(seed: int) -> None:
    rng = np.random.default_rng(seed)
    room = int(rng.integers(1, 40))
    sizes = rng.integers(1, min(room, 6) + 1, int(rng.integers(0, 120))).tolist()
    found = list(tagging.windows(sizes, room))
    assert [word for _, predicted in found for word in predicted] == list(range(len(sizes)))
    for shown, predicted in found:
        assert sum(sizes[word] for word in shown) <= room
        assert set(predicted) <= set(shown)
    assert len(found) == 1 or sum(sizes) > room


def test_neighbouring_windows_share_words() -> None:
    found = list(tagging.windows([1] * 30, 16))
    assert found == [(range(16), range(14)), (range(12, 28), range(14, 26)), (range(24, 30), range(26, 30))]


def test_a_predicate_is_marked_by_its_segment_or_repeated(bert: LoadedModel) -> None:
    one = record(tokens=["anna", "sees", "carl"], tags=["B-A0", "O", "B-A1"], predicate=1)
    labels = ["B-A0", "B-A1", "O"]
    (row,) = rows_of(bert, recipe_with(bert, labels, "srl", task__predicate="segment"), one)
    assert row.segment_ids.tolist() == [0, 0, 1, 0, 0]
    (row,) = rows_of(bert, recipe_with(bert, labels, "srl"), one)
    assert bert.tokenizer.decode(row.input_ids) == "[SOS] anna sees carl [EOS] sees [EOS]"
    assert row.segment_ids.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert row.targets["tags"].slots == [[1], [2], [3]]


def test_every_window_shows_a_repeated_predicate(bert: LoadedModel) -> None:
    one = record(tokens=["anna"] * 30 + ["sees"], tags=["O"] * 31, predicate=30)
    recipe = recipe_with(bert, ["O"], "srl", task__max_length=16)
    with pytest.warns(UserWarning, match="1 of 1 sentences are longer than the 16 tokens"):
        rows = rows_of(bert, recipe, one)
    assert len(rows) > 1 and all(row.slots <= 16 for row in rows)
    assert all(bert.tokenizer.decode(row.input_ids).endswith("[EOS] sees [EOS]") for row in rows)


@pytest.mark.parametrize(("fields", "message"), [
    ({"tokens": "a b", "tags": ["O"]}, "the field 'tokens' is not a list of texts"),
    ({"tokens": ["a", "b"], "tags": ["O"]}, "1 tags for 2 tokens"),
    ({"tokens": ["a"], "tags": ["B-Y"]}, "the tag 'B-Y' is not a tag of the task (O, B-X)"),
    ({"tokens": ["a"], "tags": ["S-X"]}, "the tag 'S-X' is not one of B-KIND, I-KIND and O"),
    ({"tokens": ["a"], "tags": ["O"], "predicate": 1}, "the predicate is 1; it must be the number of one of its 1 tokens"),
])  # fmt: skip
def test_a_record_that_cannot_be_tagged_is_named(bert: LoadedModel, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UniclozeError, match="here, line 1: " + re.escape(message)):
        rows_of(bert, recipe_with(bert, ["O", "B-X"]), record(**fields))


def test_a_long_predicate_leaves_half_a_row_to_the_sentence(bert: LoadedModel) -> None:
    recipe = recipe_with(bert, ["O", "B-X"], task__predicate="repeat", task__max_length=16)
    words = ["anna", "zorroxylofonzebra", "sees"]
    with pytest.warns(UserWarning, match="are read in windows"):
        rows = rows_of(bert, recipe, record(tokens=words, tags=["O", "B-X", "O"], predicate=1))
    pieces = bert.tokenizer.encode_batch(words[1:2])[0]
    assert len(pieces) > 7
    for row in rows:
        assert row.slots <= 16 and row.input_ids[-8:-1].tolist() == pieces[:7].tolist(), "half of 14 tokens"
    assert sum(len(row.targets["tags"].slots) for row in rows) == 3


def test_a_model_of_one_segment_has_the_predicate_repeated(gpt: LoadedModel) -> None:
    one = record(tokens=["anna", "sees"], predicate=1)
    with pytest.raises(UsageError, match=r"fine-tune with --task\.predicate repeat"):
        rows_of(gpt, recipe_with(gpt, ["O"], "srl", task__predicate="segment"), one)
    assert rows_of(gpt, recipe_with(gpt, ["O"], "srl"), one)


# Learning


def sentences(count: int = 16) -> list[dict[str, Any]]:
    """Names are entities, including unknown words; their type depends on the adjacent verb."""
    found = []
    for i in range(count):
        verb, kind = (("sees", "PER"), ("leaves", "LOC"))[i % 2]
        name = [WORDS[i % 6], "Zorro\u0301", "\u200b", "🎉"][i // 4]
        found.append({"tokens": [name, verb, "the", name], "tags": [f"B-{kind}", "O", f"B-{kind}", f"I-{kind}"]})
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tagging", "pos"])
def test_it_memorises_sixteen_sentences(bert: LoadedModel, tmp_path: Path, name: str) -> None:
    records = sentences()
    train = write(tmp_path / "train.jsonl", records)
    recipe = recipe_for(bert, name, task__format="auto", finetuning__epochs=60)
    result = finetuned(recipe, bert, train, train, tmp_path / "run")
    metric = "entity-f1" if name == "tagging" else "tag-accuracy"
    assert result.scores[metric].values[{"tagging": "f1", "pos": "accuracy"}[name]] == 100
    assert result.scores[metric].errors["accuracy"] == 0
    said = verbs.predict(
        tmp_path / "run", write(tmp_path / "test.jsonl", [{"tokens": one["tokens"]} for one in records]), quiet=True
    )
    assert [one["prediction"] for one in said] == [one["tags"] for one in records]


@pytest.mark.whole
def test_ten_thousand_words_one_and_none(bert: LoadedModel, tmp_path: Path) -> None:
    records = [
        {"tokens": ["anna"] * 10_000, "tags": ["B-PER"] * 10_000},
        {"tokens": ["sees"], "tags": ["O"]},
        {"tokens": [], "tags": []},
        {"tokens": ["abc" * 30, "carl"], "tags": ["O", "B-PER"]},
    ]
    train = write(tmp_path / "train.jsonl", records)
    recipe = recipe_for(bert, "tagging", task__max_length=32, finetuning__epochs=1, training__batch_size=512)
    with pytest.warns(UserWarning, match="2 of 4 sentences are longer than the 32 tokens") as caught:
        finetuned(recipe, bert, train, None, tmp_path / "run")
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="are read in windows"):
        said = verbs.predict(tmp_path / "run", train, quiet=True)
    assert [len(one["prediction"]) for one in said] == [10_000, 1, 0, 2]


# Metric


def test_accuracy_of_tags() -> None:
    predictions: Sequence[Sequence[str]] = [["A", "B"], ["C"], []]
    result = tag_accuracy(predictions, [["A", "C"], ["C"], []])
    assert result.values == {"accuracy": pytest.approx(200 / 3), "sentences": pytest.approx(200 / 3)}
    with pytest.raises(UniclozeError, match="Sentence 2 has 1 predicted and 0 right tags"):
        tag_accuracy(predictions, [["A", "C"], [], []])
    with pytest.raises(UniclozeError, match="no tags to compare"):
        tag_accuracy([[]], [[]])
