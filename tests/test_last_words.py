"""LAMBADA and the Children's Book Test: the last word of a passage and a missing word, against brute force."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import decoding_toys
from decoding_toys import Slot, probabilities
from test_prompting import MODELS, PASSAGES, STORY, TEXTS, one_at_a_time, write
from unicloze.errors import UniclozeError
from unicloze.evaluation.missing_words import childrens_books, lambada, read_questions, spelling


@pytest.mark.parametrize("name", ["causal", "par"])
def test_lambada_is_the_brute_forces(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    best = "x"
    for word in decoding_toys.WORDS:  # so that one passage is right
        if one_at_a_time(model, PASSAGES[0]["context"], f" {word}")[1] == [True]:
            best = word
    passages = [*PASSAGES, {"context": PASSAGES[0]["context"], "continuation": best}]
    result = lambada(model, write(tmp_path / "l.jsonl", passages), progress=False)
    said = [one_at_a_time(model, one["context"], f" {one['continuation']}") for one in passages]
    logs = np.array([sum(one) for one, _ in said])
    right = sum(all(greedy) for _, greedy in said)
    assert result.accuracy == pytest.approx(100 * right / 5) and result.by == ("par" if name == "par" else "chain")
    assert result.perplexity == pytest.approx(math.exp(-logs.mean()), rel=1e-4)
    assert result.accuracy_error == pytest.approx(100 * math.sqrt(right / 5 * (1 - right / 5) / 5))
    error = result.perplexity * logs.std(ddof=1) / math.sqrt(5)
    assert result.perplexity_error == pytest.approx(error, rel=1e-3)
    whole = write(tmp_path / "t.jsonl", [{"text": f"{one['context']} {one['continuation']}"} for one in passages])
    again = lambada(model, whole, progress=False, batch_size=2)
    assert (again.accuracy, again.passages) == (result.accuracy, 5)
    assert again.perplexity == pytest.approx(result.perplexity, rel=1e-5)
    assert "LAMBADA, 5 passages" in str(result) and result.to_dict()["perplexity"] == result.perplexity


def test_stop_words_are_not_predicted(tmp_path: Path) -> None:
    """The most likely token that does not spell a stop word, by brute force; a stop word is never right."""
    model = MODELS["causal"]()
    vocabulary = model.tokenizer.vocabulary
    for context in (*TEXTS, *(f"{one} {two}" for one in TEXTS for two in decoding_toys.WORDS)):
        ids = [vocabulary.sos, *model.tokenizer.encode_batch([context])[0].tolist()]
        row = [Slot(token, position, reads=position + 1) for position, token in enumerate(ids)]
        shares = probabilities(model, row, [len(row) - 1])[0]
        shares[vocabulary.special] = 0
        order = model.tokenizer.tokens(np.argsort(-shares))
        if order[0] in decoding_toys.WORDS and order[1] in decoding_toys.WORDS:
            break
    words = [word for word in order if word in decoding_toys.WORDS]
    listed = tmp_path / "stop.txt"
    listed.write_text(words[0].upper())
    passages = write(tmp_path / "l.jsonl", [{"context": context, "continuation": word} for word in words])
    plain = lambada(model, passages, progress=False)
    filtered = lambada(model, passages, stop_words=listed, progress=False)
    first, second = (
        write(tmp_path / f"{word}.jsonl", [{"context": context, "continuation": word}]) for word in words[:2]
    )
    assert lambada(model, first, progress=False).accuracy == 100
    assert lambada(model, first, stop_words=listed, progress=False).accuracy == 0
    assert lambada(model, second, progress=False).accuracy == 0
    assert lambada(model, second, stop_words=listed, progress=False).accuracy == 100
    assert plain.accuracy == filtered.accuracy == pytest.approx(100 / len(words))
    assert filtered.perplexity == plain.perplexity
    assert "stop words are excluded from prediction" in str(filtered)
    found = spelling({"the", "s"}, model.tokenizer)
    assert model.tokenizer.tokens(found) == ["the"]
    in_bytes = decoding_toys.byte_level()
    assert set(in_bytes.tokens(spelling({"a"}, in_bytes))) <= {"a", "A", "Ġa", "ĠA"}


def test_words_that_cannot_be_spelled_count_as_wrong(tmp_path: Path) -> None:
    model = MODELS["causal"]()
    passages = [*PASSAGES[:1], {"context": "the list is", "continuation": "zebra"}]
    result = lambada(model, write(tmp_path / "l.jsonl", passages), progress=False)
    logs = one_at_a_time(model, PASSAGES[0]["context"], " empty")[0]
    assert result.unknown == 1 and result.perplexity == pytest.approx(math.exp(-sum(logs)), rel=1e-4)
    with pytest.raises(UniclozeError, match=r"No last word of .* is in the model's vocabulary"):
        lambada(model, write(tmp_path / "z.jsonl", passages[1:]), progress=False)
    with pytest.raises(UniclozeError, match=r"z\.jsonl, line 1: a passage needs a last word"):
        lambada(model, write(tmp_path / "z.jsonl", [{"text": "word"}]), progress=False)


@pytest.mark.parametrize("name", ["causal", "par"])
def test_a_missing_word_is_the_likeliest_one(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    (tmp_path / "cbt.txt").write_text(STORY)
    result = childrens_books(model, tmp_path / "cbt.txt", progress=False)
    befores = ["the list is empty . a value is given . return the", "x is in the list ."]
    afters = [" of a list .", " is not empty ."]
    candidates = [["value", "state", "items", "x"], ["items", "play", "a"]]
    right = 0
    for said, before, after, words, gold in zip(
        result.predictions, befores, afters, candidates, ["state", "items"], strict=True
    ):
        scores = {word: sum(one_at_a_time(model, before, f" {word}", after)[0]) for word in words}
        assert said["scores"] == pytest.approx(scores, abs=1e-4)
        assert said["prediction"] == max(scores, key=lambda word: scores[word]) and said["reference"] == gold
        right += said["prediction"] == gold
    assert result.scores["accuracy"].values["accuracy"] == 50 * right
    assert "Children's Book Test, 2 records" in str(result)


@pytest.mark.parametrize(("text", "message"), [
    ("1 a story\nno number\n", "line 2: a line must begin with its number"),
    ("1 a story\n2 no blank\tx\t\tx|y\n", "line 2: a question is a sentence with one XXXXX"),
    ("1 a story\n2 the XXXXX\tz\t\tx|y\n", "line 2: a question is"),
    ("1 a story\n2 the XXXXX\tx\n", "line 2: a question is"),
    ("1 a story\n", "has no questions"),
])  # fmt: skip
def test_a_broken_question_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "cbt.txt").write_text(text)
    with pytest.raises(UniclozeError, match=message):
        read_questions(tmp_path / "cbt.txt")
