"""The chain rule in one pass against one pass per step, pseudo-log-likelihood against single masked passes."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from decoding_toys import (
    TEXT,
    Slot,
    byte_level,
    context,
    loaded,
    probabilities,
    roberta_like,
    with_next_token,
    wordpiece,
)
from toys import random_windows, vocabulary
from unicloze.decoding.likelihood import TextScore, log_probabilities, score, together
from unicloze.errors import UsageError
from unicloze.mixtures import Part, parts
from unicloze.objectives import defined
from unicloze.objectives.unilmv2 import pseudo_id
from unicloze.recipes import load_recipe, recipe_names
from unicloze.settings import TrainingSettings
from unicloze.training.loading import LoadedModel

RELATIVE = pytest.mark.parametrize("relative", [False, True])


def window(model: LoadedModel, text: str) -> list[int]:
    vocabulary = model.tokenizer.vocabulary
    (ids,) = model.tokenizer.encode_batch([text])
    return [vocabulary.sos, *ids.tolist(), vocabulary.eos]


def chain_step_by_step(model: LoadedModel, text: str) -> list[float]:
    """log p of each token, each from a pass with only C, the O of the tokens before it, and its own P."""
    vocabulary, settings = model.tokenizer.vocabulary, model.recipe.objective
    tokens = window(model, text)
    positions = range(1, len(tokens) - 1)
    if settings.masks_in_context:
        c = context([vocabulary.mask if p in positions else token for p, token in enumerate(tokens)])
    else:
        c = context(tokens, without=frozenset(positions))
    logs = []
    for position in positions:
        o = [Slot(tokens[before], before, reads=len(c) + before) for before in range(1, position)]
        p = Slot(pseudo_id(vocabulary, settings), position, reads=len(c) + len(o), itself=True)
        (distribution,) = probabilities(model, [*c, *o, p], [len(c) + len(o)])
        logs.append(math.log(distribution[tokens[position]]))
    return logs


def pseudo_one_by_one(model: LoadedModel, text: str) -> list[float]:
    tokens, logs = window(model, text), []
    for position in range(1, len(tokens) - 1):
        masked = [*tokens[:position], model.tokenizer.vocabulary.mask, *tokens[position + 1 :]]
        (distribution,) = probabilities(model, context(masked), [position])
        logs.append(math.log(distribution[tokens[position]]))
    return logs


@RELATIVE
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"targets": ["par"]},
        {"targets": ["par"], "masks_in_context": False},
        {"pseudo_token": "mask", "factorization": "token"},
    ],
)
def test_one_pass_equals_a_pass_for_each_step(settings: dict, relative: bool) -> None:
    model = loaded(relative=relative, **settings)
    (result,) = score(model, [TEXT])
    expected = chain_step_by_step(model, TEXT)
    np.testing.assert_allclose(result.chain_per_token, expected, atol=1e-5)
    assert result.chain_log_likelihood == pytest.approx(sum(expected), abs=1e-4)
    assert result.chain_perplexity == pytest.approx(math.exp(-sum(expected) / len(expected)), rel=1e-4)
    assert result.bits_per_byte == pytest.approx(-sum(expected) / math.log(2) / len(TEXT), rel=1e-5)


@RELATIVE
def test_pseudo_log_likelihood_masks_each_token_alone(relative: bool) -> None:
    model = loaded(relative=relative)
    (result,) = score(model, [TEXT], batch_size=5)
    expected = pseudo_one_by_one(model, TEXT)
    np.testing.assert_allclose(result.pseudo_per_token, expected, atol=1e-5)
    assert result.pseudo_log_likelihood == pytest.approx(sum(expected), abs=1e-4)
    assert result.pseudo_perplexity == pytest.approx(math.exp(-sum(expected) / len(expected)), rel=1e-4)


@RELATIVE
def test_scores_do_not_depend_on_the_neighbours_or_the_batch_size(relative: bool) -> None:
    model = loaded(relative=relative)
    texts = [TEXT, "the", "play the list !", "empty " * 20, TEXT + " , or"]
    beside, again, small = score(model, texts), score(model, texts), score(model, texts[::-1], batch_size=2)[::-1]
    assert beside == again
    for text, one, other in zip(texts, beside, small, strict=True):
        (alone,) = score(model, [text])
        for name in ("chain_per_token", "pseudo_per_token"):
            np.testing.assert_allclose(getattr(one, name), getattr(alone, name), atol=1e-5)
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5)


def test_a_token_reads_nothing_right_of_it_in_the_chain_and_everything_in_the_other() -> None:
    model = loaded()
    one, other = score(model, ["the list of items is", "the list of value is"])
    np.testing.assert_allclose(one.chain_per_token[:3], other.chain_per_token[:3], atol=1e-6)
    assert abs(one.chain_per_token[4] - other.chain_per_token[4]) > 1e-4
    assert all(abs(one.pseudo_per_token[i] - other.pseudo_per_token[i]) > 1e-5 for i in (0, 1, 2, 4))


def test_no_bits_are_given_for_a_partly_scored_text() -> None:
    """The bytes of an unknown token would count, but not its surprisal."""
    model = loaded(wordpiece())
    whole, part = score(model, ["the list of items", "the list zzz of items"])
    assert whole.bits_per_byte is not None and whole.bits_per_character is not None
    assert "[UNK]" in part.tokens and part.chain_per_token is not None and part.chain_per_token.count(None) == 1
    assert part.chain_log_likelihood is not None and "1 tokens not in the vocabulary" in str(part.note)
    assert (part.bits_per_byte, part.bits_per_character, part.chain_perplexity_per_word) == (None, None, None)
    assert whole.chain_perplexity_per_word == pytest.approx(math.exp(-whole.chain_log_likelihood / 4))
    both = together([whole, part])
    assert both.chain_log_likelihood is not None and (both.bits_per_byte, both.bits_per_character) == (None, None)


def test_texts_together_are_one_text_of_all_their_tokens() -> None:
    model = loaded(byte_level())
    texts = ["the list", "naïve 列"]
    one, other = scores = score(model, texts)
    both = together(scores)
    logs = [*one.chain_per_token, *other.chain_per_token]
    assert both.chain_log_likelihood == pytest.approx(sum(logs))
    assert both.chain_perplexity == pytest.approx(math.exp(-sum(logs) / len(logs)))
    assert both.bits_per_character == pytest.approx(-sum(logs) / math.log(2) / len("".join(texts)))
    assert both.bits_per_byte == pytest.approx(-sum(logs) / math.log(2) / len("".join(texts).encode()))
    assert one.bits_per_byte == one.bits_per_character and other.bits_per_byte < other.bits_per_character
    assert both.pseudo_log_likelihood == pytest.approx(one.pseudo_log_likelihood + other.pseudo_log_likelihood)
    words = len(["the", "list"]) + len(["naïve", "列"])
    assert both.chain_perplexity_per_word == pytest.approx(math.exp(-sum(logs) / words))
    pseudo = one.pseudo_log_likelihood + other.pseudo_log_likelihood
    assert both.pseudo_perplexity_per_word == pytest.approx(math.exp(-pseudo / words))
    assert f"({both.chain_perplexity_per_word:,.1f} per word)" in str(both)
    assert "2 texts together" in str(both) and "per character" in str(both)
    assert together(score(loaded(wordpiece()), ["the list", "zzz"])).bits_per_byte is None
    assert together(score(loaded(targets=["ae"]), texts)).chain_log_likelihood is None


def test_what_the_model_was_not_trained_for_is_none() -> None:
    (ae,) = score(loaded(targets=["ae"]), [TEXT])
    assert (ae.chain_log_likelihood, ae.chain_per_token, ae.chain_perplexity, ae.bits_per_byte) == (None,) * 4
    assert ae.pseudo_log_likelihood is not None
    assert ae.note == "the objective unilmv2 with the target ae does not define a log-likelihood by the chain rule"
    (par,) = score(loaded(targets=["par"]), [TEXT])
    assert (par.pseudo_log_likelihood, par.pseudo_per_token, par.pseudo_perplexity) == (None,) * 3
    assert par.chain_log_likelihood is not None
    assert par.note is not None
    assert par.note.startswith("the objective unilmv2 with the target par does not define a pseudo-log-likelihood; ")


@RELATIVE
def test_a_causal_model_is_asked_for_the_next_token(relative: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(relative=relative, **with_next_token(monkeypatch))
    texts = [TEXT, "the list zzz of , items", "play"]
    for text, result in zip(texts, score(model, texts), strict=True):
        tokens = window(model, text)
        row = [Slot(token, position, reads=position + 1) for position, token in enumerate(tokens)]
        expected = []
        for position in range(1, len(tokens) - 1):
            (distribution,) = probabilities(model, row[:position], [position - 1])
            is_known = tokens[position] != model.tokenizer.vocabulary.unk
            expected.append(math.log(distribution[tokens[position]]) if is_known else math.nan)
        given = [math.nan if term is None else term for term in result.chain_per_token or []]
        np.testing.assert_allclose(given, expected, atol=1e-5)
        assert result.pseudo_log_likelihood is None and result.note is not None
        assert result.note.startswith("the objective next-token does not define a pseudo-log-likelihood")
        assert "mask rates" not in result.note


def test_of_a_mixture_the_first_part_that_defines_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    masked, next_one = {"name": "masked", "targets": ["ae"]}, with_next_token(monkeypatch)
    ae, chain = score(loaded(), [TEXT])[0].pseudo_per_token, score(loaded(**next_one), [TEXT])[0].chain_per_token
    both = loaded(mixture=[{**next_one, "share": 1}, {**masked, "share": 3}, {"label": "third"}])
    (result,) = score(both, [TEXT])
    assert (result.pseudo_per_token, result.chain_per_token, result.note) == (ae, chain, None)
    (result,) = score(loaded(mixture=[masked, {"label": "second"}]), [TEXT])
    assert (result.pseudo_per_token, result.chain_per_token) == (ae, score(loaded(), [TEXT])[0].chain_per_token)
    (result,) = score(loaded(mixture=[masked, {**masked, "label": "x"}, {"targets": ["ae"]}]), [TEXT])
    assert result.chain_log_likelihood is None
    assert result.note == (
        "none of the objectives masked with the target ae, unilmv2 with the target ae defines a log-likelihood by the "
        "chain rule"
    )


def test_of_a_run_in_phases_the_last_one_answers() -> None:
    model = loaded(targets=["par"])
    training = TrainingSettings(phases=[{}, {"objective": {"targets": ["ae"]}}])
    (result,) = score(dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, training=training)), [TEXT])
    assert result.pseudo_per_token == score(loaded(), [TEXT])[0].pseudo_per_token
    assert result.chain_per_token is None


def test_what_a_model_lacks_is_refused_when_asked_for() -> None:
    model = loaded(targets=["ae"])
    with pytest.raises(
        UsageError, match=r"unilmv2 with the target ae does not define .*, which `chain` asks for: ask for `pseudo`"
    ):
        log_probabilities(model, [], "chain", batch_size=2)
    assert log_probabilities(model, [], "pseudo", batch_size=2) == []


PARTS = [(name, part) for name in recipe_names() for part in parts(load_recipe(name).objective)]


@pytest.mark.parametrize(("name", "part"), PARTS, ids=[f"{name}:{part.label}" for name, part in PARTS])
def test_predictions_are_in_the_documented_order(name: str, part: Part) -> None:
    """By step and position for masked tokens, by position for the chain rule, in every recipe's objective."""
    words = vocabulary(60, extra=load_recipe(name).tokenizer.extra_tokens)
    windows = random_windows(20, 24, vocab=60, short=True)
    windows = dataclasses.replace(windows, maskable=~np.isin(windows.token_ids, words.special))
    settings = part.settings if words.pseudo is not None else dataclasses.replace(part.settings, pseudo_token="mask")
    rng = np.random.default_rng(0)
    steps = np.where(windows.maskable & (rng.random((20, 24)) < 0.4), rng.integers(0, 4, (20, 24)), -1).astype(np.int32)
    able = defined(settings)
    position = np.broadcast_to(np.arange(24), (20, 24))
    asked = [(f(windows, steps, words, settings), steps) for f in (able.cloze, able.stepwise) if f is not None]
    if able.causal is not None:
        asked.append((able.causal(windows, words, settings), np.where(windows.maskable, position, -1)))
    for examples, in_turn in asked:
        (target,) = examples.targets.values()
        for row in range(20):
            chosen = np.flatnonzero(in_turn[row] >= 0)
            chosen = chosen[np.argsort(in_turn[row, chosen], kind="stable")]
            given = target.weights[row] > 0
            assert given.sum() == len(chosen) == given[: len(chosen)].sum()
            np.testing.assert_array_equal(target.labels[row, given], windows.token_ids[row, chosen])


def test_an_ae_model_needs_no_pseudo_mask() -> None:
    model = loaded(roberta_like(), targets=["ae"])
    objective = dataclasses.replace(model.recipe.objective, pseudo_token="own")
    model = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, objective=objective))
    assert score(model, ["a list"])[0].pseudo_log_likelihood is not None


def test_a_note_is_printed_if_whole_texts_were_never_masked_in_training() -> None:
    (low,) = score(loaded(), [TEXT])
    assert low.note is not None and "mask rates of at most 15%" in low.note
    assert score(loaded(mixture=[{}, {"mask_rate": 1.0}]), [TEXT])[0].note is None


@RELATIVE
def test_long_texts_are_cut_into_windows_scored_one_by_one(relative: bool) -> None:
    model = loaded(positions=16, relative=relative)
    words = (TEXT + " " + TEXT + " play").split()
    with pytest.warns(UserWarning, match=r"longer than the 14 tokens .*\(1 of 2\)") as warned:
        long, short = score(model, [" ".join(words), "the list"])
    assert len(warned) == 1
    assert (long.windows, short.windows) == (2, 1)
    assert long.note is not None and "2 windows" in long.note
    parts = score(model, [" ".join(words[:14]), " ".join(words[14:])])
    np.testing.assert_allclose(long.chain_per_token, parts[0].chain_per_token + parts[1].chain_per_token, atol=1e-5)
    np.testing.assert_allclose(long.pseudo_per_token, parts[0].pseudo_per_token + parts[1].pseudo_per_token, atol=1e-5)


def test_unspellable_tokens_stay_in_view_and_are_not_scored() -> None:
    model = loaded()
    with_unknown, without = score(model, ["the list zzz of", "the list items of"])
    assert with_unknown.tokens[2] == "[UNK]"
    assert with_unknown.chain_per_token[2] is None and with_unknown.pseudo_per_token[2] is None
    assert with_unknown.chain_log_likelihood == pytest.approx(
        sum(t for t in with_unknown.chain_per_token if t is not None)
    )
    assert with_unknown.chain_per_token[0] != pytest.approx(without.chain_per_token[0], abs=1e-6)
    assert with_unknown.note is not None and "1 tokens not in the vocabulary" in with_unknown.note
    (nothing,) = score(model, ["zzz"])
    assert (nothing.chain_log_likelihood, nothing.chain_per_token, nothing.chain_perplexity) == (None, [None], None)


def test_names_of_special_tokens_are_plain_text() -> None:
    (result,) = score(loaded(byte_level()), ["a [MASK]"])
    assert "[MASK]" not in result.tokens and result.pseudo_log_likelihood is not None


def test_results_print_and_serialise() -> None:
    (result,) = score(loaded(), ["the list"])
    assert isinstance(result, TextScore)
    assert json.loads(json.dumps(result.to_dict()))["tokens"] == ["the", "list"]
    assert f"log-likelihood  {result.chain_log_likelihood:17.2f}" in str(result)
    assert score(loaded(), []) == []


@pytest.mark.parametrize(
    ("texts", "batch_size", "message"),
    [
        (["the", "  \n"], 2, "text 2 of 2 is empty"),
        (["the \udcff"], 2, "text 1 of 1 is not valid Unicode at character 4"),
        ("the list", 2, "texts is one string"),
        (["the"], 0, "batch_size is 0"),
        (["\u200b"], 2, "text 1 of 1 has no tokens"),
    ],
)
def test_bad_input_is_refused(texts: list[str], batch_size: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        score(loaded(wordpiece()), texts, batch_size=batch_size)
