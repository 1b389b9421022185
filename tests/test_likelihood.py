"""The chain rule in one pass against one pass per step, pseudo-log-likelihood against single masked passes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

import decoding_toys
import nlu_toys
from decoding_toys import CAUSAL, TEXT, Slot, byte_level, context, loaded, one_by_one, probabilities, wordpiece
from objective_toys import rows_of
from toys import random_windows, vocabulary
from unicloze.decoding import likelihood as module
from unicloze.decoding.inputs import one_segment
from unicloze.decoding.likelihood import Scores, TextScore, log_probabilities, score, together
from unicloze.errors import UsageError
from unicloze.example import Memory, collate
from unicloze.mixtures import Part, parts
from unicloze.objectives import defined, settings_of
from unicloze.objectives.permuted import causal
from unicloze.objectives.unilmv2 import pseudo_id
from unicloze.recipes import load_recipe, recipe_names
from unicloze.settings import TrainingSettings
from unicloze.training.loading import LoadedModel

RELATIVE = pytest.mark.parametrize("relative", [False, True])


def chain_step_by_step(model: LoadedModel, text: str) -> list[float]:
    """log p of each token, each from a pass with only C, the O of the tokens before it, and its own P."""
    vocabulary, settings = model.tokenizer.vocabulary, model.recipe.objective
    tokens = decoding_toys.window(model, text)
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


@RELATIVE
@pytest.mark.parametrize("settings", [
    {},
    {"targets": ["par"]},
    {"targets": ["par"], "masks_in_context": False},
    {"pseudo_token": "mask", "factorization": "token"},
])  # fmt: skip
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
    expected = one_by_one(model, TEXT, "pseudo")
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


@RELATIVE
def test_a_causal_model_is_asked_for_the_next_token(relative: bool) -> None:
    model = loaded(relative=relative, **CAUSAL)
    texts = [TEXT, "the list zzz of , items", "play"]
    for text, result in zip(texts, score(model, texts), strict=True):
        expected = one_by_one(model, text, "chain")
        given = [math.nan if term is None else term for term in result.chain_per_token or []]
        np.testing.assert_allclose(given, expected, atol=1e-5)
        assert result.pseudo_log_likelihood is None and result.note is not None
        assert "causal does not define a pseudo-log-likelihood" in result.note and "mask rates" not in result.note


def test_a_mask_in_the_text_and_an_encoder_without_a_head_are_named() -> None:
    model = loaded()
    (result,) = score(model, ["the [MASK] of items"])
    assert "[MASK] is scored as plain text: `unicloze fill` predicts" in (result.note or "")
    del model.model.token_head
    with pytest.raises(
        UsageError, match="a model without a head for tokens cannot score texts; it turns texts into vectors"
    ):
        score(model, [TEXT])


def test_of_a_mixture_the_first_part_that_defines_it_answers() -> None:
    masked = {"name": "masked", "targets": ["ae"]}
    ae, chain = score(loaded(), [TEXT])[0].pseudo_per_token, score(loaded(**CAUSAL), [TEXT])[0].chain_per_token
    both = loaded(mixture=[{**CAUSAL, "share": 1}, {**masked, "share": 3}, {"label": "third"}])
    (result,) = score(both, [TEXT])
    assert (result.pseudo_per_token, result.chain_per_token, result.note) == (ae, chain, None)
    (result,) = score(loaded(mixture=[masked, {"label": "second"}]), [TEXT])
    assert (result.pseudo_per_token, result.chain_per_token) == (ae, score(loaded(), [TEXT])[0].chain_per_token)


def test_of_a_run_in_phases_the_last_one_answers() -> None:
    model = loaded(targets=["par"])
    training = TrainingSettings(phases=[{}, {"objective": {"targets": ["ae"]}}])
    (result,) = score(dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, training=training)), [TEXT])
    assert result.pseudo_per_token == score(loaded(), [TEXT])[0].pseudo_per_token
    assert result.chain_per_token is None


def test_an_ae_model_needs_no_pseudo_mask() -> None:
    model = loaded(decoding_toys.roberta_like(), targets=["ae"])
    objective = dataclasses.replace(model.recipe.objective, pseudo_token="own")
    model = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, objective=objective))
    assert score(model, ["a list"])[0].pseudo_log_likelihood is not None


@RELATIVE
def test_long_texts_are_cut_into_windows_scored_one_by_one(relative: bool) -> None:
    model = loaded(positions=16, relative=relative)
    words = (TEXT + " " + TEXT + " play").split()
    with pytest.warns(UserWarning, match=r"longer than the 14 tokens .*\(1 of 2\)") as warned:
        long, short = score(model, [" ".join(words), "the list"])
    assert [warning.filename for warning in warned] == [__file__]
    assert (long.windows, short.windows) == (2, 1)
    assert long.note is not None and "2 windows" in long.note
    first, second = score(model, [" ".join(words[:14]), " ".join(words[14:])])
    np.testing.assert_allclose(long.chain_per_token, first.chain_per_token + second.chain_per_token, atol=1e-5)
    np.testing.assert_allclose(long.pseudo_per_token, first.pseudo_per_token + second.pseudo_per_token, atol=1e-5)


def test_names_of_special_tokens_are_plain_text() -> None:
    (result,) = score(loaded(byte_level()), ["a [MASK]"])
    assert "[MASK]" not in result.tokens and result.pseudo_log_likelihood is not None


@pytest.mark.parametrize(("texts", "batch_size", "message"), [
    (["the", "  \n"], 2, "text 2 of 2 is empty"),
    (["the \udcff"], 2, "text 1 of 1 is not valid Unicode at character 4"),
    ("the list", 2, "texts is one string"),
    (["the"], 0, "batch_size is 0"),
    (["\u200b"], 2, "text 1 of 1 has no tokens"),
])  # fmt: skip
def test_bad_input_is_refused(texts: list[str], batch_size: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        score(loaded(wordpiece()), texts, batch_size=batch_size)


# Texts, fields and notes of likelihoods


def text_score(**changes: Any) -> TextScore:
    values: dict[str, Any] = {
        "text": "the café is", "tokens": ["the", "café", "is"], "chain_log_likelihood": -6.0,
        "chain_per_token": [-1.0, -2.0, -3.0], "chain_perplexity": 7.4, "chain_perplexity_per_word": 7.25,
        "bits_per_byte": 0.72135, "bits_per_character": 0.78693, "pseudo_log_likelihood": -3.0,
        "pseudo_per_token": [-1.0, -1.0, -1.0], "pseudo_perplexity": 2.72, "pseudo_perplexity_per_word": 1234.56,
        "windows": 1, "note": None,
    }  # fmt: skip
    return TextScore(**{**values, **changes})


CHAIN = "  log-likelihood              -6.00  perplexity 7.4"
PSEUDO = "  pseudo-log-likelihood       -3.00  perplexity 2.7"
NOTHING: dict[str, Any] = {"chain_log_likelihood": None, "pseudo_log_likelihood": None}


@pytest.mark.parametrize(("changes", "lines"), [
    ({}, [f"{CHAIN} (7.2 per word), 0.721 bits per byte, 0.787 per character, 3 tokens",
          f"{PSEUDO} (1,234.6 per word), 3 tokens"]),
    ({"bits_per_character": 0.72135, "chain_perplexity_per_word": None, "pseudo_log_likelihood": None},
     [f"{CHAIN}, 0.721 bits per byte, 3 tokens"]),
    ({"bits_per_byte": None, "bits_per_character": None, "pseudo_perplexity_per_word": None, "tokens": ["a"] * 1234},
     [f"{CHAIN} (7.2 per word), 1,234 tokens", f"{PSEUDO}, 1,234 tokens"]),
    ({"chain_log_likelihood": None}, [f"{PSEUDO} (1,234.6 per word), 3 tokens"]),
    (NOTHING, ["  nothing to score: none of its tokens is in the vocabulary"]),
    ({**NOTHING, "chain_per_token": None}, ["  nothing to score: none of its tokens is in the vocabulary"]),
    ({**NOTHING, "pseudo_per_token": None}, ["  nothing to score: none of its tokens is in the vocabulary"]),
    ({**NOTHING, "chain_per_token": None, "pseudo_per_token": None}, ["  no score: the model's objective defines none"]),
])  # fmt: skip
def test_a_score_as_text(changes: dict[str, Any], lines: list[str]) -> None:
    assert str(text_score(**changes)).splitlines() == ["the café is", *lines]


def test_a_long_text_is_shortened() -> None:
    assert str(text_score(text="x" * 100)).splitlines()[0] == "x" * 100
    assert str(text_score(text="x" * 101)).splitlines()[0] == "x" * 99 + "…"


def test_several_scores_end_with_their_total() -> None:
    one, other = text_score(note="b"), text_score(text="is", note="a", chain_per_token=[-2.0])
    assert str(Scores([])) == "" and str(Scores([one])) == str(one)
    assert str(Scores([one, other])) == f"{one}\n{other}\n{together([one, other])}"
    assert Scores([one, other]).to_dict() == [one.to_dict(), other.to_dict()]
    assert Scores([one, text_score(), other, one]).notes == ["b", "a"]


def test_the_score_of_texts_together() -> None:
    one = text_score(windows=2, note="a note")
    other = text_score(text="a list", tokens=["a", "list"], chain_per_token=[-2.0, -4.0], pseudo_per_token=[None, -1.0])
    assert together([one, other]) == TextScore(
        text="2 texts together",
        tokens=["the", "café", "is", "a", "list"],
        chain_log_likelihood=-12.0,
        chain_per_token=[-1.0, -2.0, -3.0, -2.0, -4.0],
        chain_perplexity=pytest.approx(math.exp(12 / 5)),
        chain_perplexity_per_word=pytest.approx(math.exp(12 / 5)),
        bits_per_byte=pytest.approx(12 / math.log(2) / 18),
        bits_per_character=pytest.approx(12 / math.log(2) / 17),
        pseudo_log_likelihood=-4.0,
        pseudo_per_token=[-1.0, -1.0, -1.0, None, -1.0],
        pseudo_perplexity=pytest.approx(math.e),
        pseudo_perplexity_per_word=pytest.approx(math.exp(4 / 5)),
        windows=3,
        note=None,
    )
    pseudo = together([text_score(chain_per_token=None, bits_per_byte=None)])
    assert pseudo.pseudo_perplexity_per_word is not None and pseudo.bits_per_byte is None
    unspelled = together([one, text_score(chain_per_token=[-2.0, None, -4.0], pseudo_per_token=None)])
    assert (unspelled.bits_per_byte, unspelled.bits_per_character, unspelled.chain_perplexity_per_word) == (None,) * 3
    assert (unspelled.pseudo_log_likelihood, unspelled.pseudo_per_token, unspelled.pseudo_perplexity) == (None,) * 3
    assert unspelled.chain_log_likelihood == -12.0
    silent, nothing = together([text_score(chain_per_token=[None, None])]), together([])
    assert (silent.chain_log_likelihood, silent.chain_per_token, silent.chain_perplexity) == (None, [None, None], None)
    assert (silent.bits_per_byte, silent.chain_perplexity_per_word) == (None, None)
    assert (nothing.text, nothing.chain_log_likelihood, nothing.chain_per_token) == ("0 texts together", None, None)


@pytest.mark.parametrize(("objective", "unscored", "windows", "memory", "notes"), [
    ({}, 0, 1, 0, ["at mask rates of at most 15% "]),
    ({"mask_rate": 0.79}, 0, 1, 0, ["at mask rates of at most 79% "]),
    ({"mask_rate": 0.8}, 0, 1, 0, []),
    ({"mixture": [{}, {"mask_rate": 1.0}]}, 0, 1, 0, []),
    ({"mask_rate": 0.8}, 1, 3, 0, ["1 token not in the vocabulary is", "cut into 3 windows, each scored by itself"]),
    ({"mask_rate": 0.8}, 0, 2, 1234, ["cut into 2 windows, each reads 1,234 tokens of memory"]),
    ({"targets": ["ae"]}, 3, 1, 0,
     ["unilmv2 with the target ae does not define a log-likelihood by the chain rule", "3 tokens not in the vocabulary"]),
    ({"targets": ["par"]}, 0, 1, 0,
     ["unilmv2 with the target par does not define a pseudo-log-likelihood", "at mask rates of at most 15% "]),
    ({"mixture": [{"name": "masked", "targets": ["ae"]}, {"targets": ["ae"]}]}, 0, 1, 0,
     ["none of the objectives masked with the target ae, unilmv2 with the target ae defines a log-likelihood by the chain"]),
])  # fmt: skip
def test_notes(objective: dict[str, Any], unscored: int, windows: int, memory: int, notes: list[str]) -> None:
    found = module._note(settings_of(**objective), ("chain", "pseudo"), unscored, windows, memory, None)
    sentences = found.split("; ") if found else []
    assert len(sentences) == len(notes) and all(map(str.__contains__, sentences, notes))


@pytest.mark.parametrize(("target", "measure", "other"), [("ae", "chain", "pseudo"), ("par", "pseudo", "chain")])
def test_a_measure_that_the_objective_lacks_is_none_and_refused(target: str, measure: Any, other: str) -> None:
    model = loaded(targets=[target])
    (found,) = score(model, [TEXT])
    for field in ("log_likelihood", "per_token", "perplexity"):
        assert getattr(found, f"{measure}_{field}") is None and getattr(found, f"{other}_{field}") is not None
    assert (found.bits_per_byte is None) == (measure == "chain")
    with pytest.raises(UsageError, match=f"does not define .*, which `{measure}` asks for: ask for `{other}`"):
        log_probabilities(model, [], measure, batch_size=2)


@pytest.mark.parametrize("mode", ["chain", "pseudo"])
def test_one_measure_alone_is_the_same_number(mode: Any) -> None:
    model = loaded()
    (both,), (alone,) = score(model, [TEXT]), score(model, [TEXT], mode=mode)
    assert score(model, [TEXT], mode="both") == [both]
    for name in ("chain", "pseudo"):
        expected = getattr(both, f"{name}_per_token") if name == mode else None
        assert getattr(alone, f"{name}_per_token") == expected
    assert len(str(alone).split("\n")) < len(str(both).split("\n"))
    assert ("the chain rule" in (alone.note or "")) == (mode == "chain")


def test_an_unknown_token_is_read_and_not_scored() -> None:
    """Its bytes would count in the bits per byte, but not its surprisal."""
    whole, part, nothing = score(loaded(wordpiece()), ["the list", "the zzz list", "zzz"])
    assert part.tokens == ["the", "[UNK]", "list"] and "1 token not in the vocabulary is not scored" in str(part.note)
    for terms in (part.chain_per_token, part.pseudo_per_token):
        assert terms is not None and [term is None for term in terms] == [False, True, False]
    assert whole.pseudo_per_token and part.pseudo_per_token
    assert part.pseudo_per_token[0] != pytest.approx(whole.pseudo_per_token[0], abs=1e-6)
    assert whole.chain_perplexity_per_word == pytest.approx(math.exp(-(whole.chain_log_likelihood or 0) / 2))
    for each in (part, together([whole, part])):
        assert each.chain_log_likelihood is not None
        assert (each.bits_per_byte, each.bits_per_character, each.chain_perplexity_per_word) == (None, None, None)
    assert (nothing.chain_log_likelihood, nothing.chain_per_token, nothing.chain_perplexity) == (None, [None], None)


def test_progress_counts_scored_tokens() -> None:
    model = loaded(positions=16)
    _, pieces = module.inputs.cut(model, ["the zzz list", "of items"])
    for measure, batch_size, expected in (("chain", 2, [4]), ("chain", 1, [2, 2]), ("pseudo", 3, [3, 1])):
        counts: list[int] = []
        logs = log_probabilities(model, pieces, measure, batch_size=batch_size, progress=counts.append)  # type: ignore[arg-type]
        assert sorted(counts, reverse=True) == expected
        assert [np.isfinite(each).tolist() for each in logs] == [[True, False, True], [True, True]]
    assert score(model, []) == []


# Scores of long texts by a model with a memory: which earlier windows a window reads, and which not


WINDOW = 12
ONE = "anna sees berlin"
LONG = " ".join(["anna sees berlin", "eva plays the old cat", "carl leaves dublin", "fargo sees a bird"] * 3)
CUT = pytest.mark.filterwarnings("ignore:texts longer than the 10 tokens the model reads at once")


def start(memory: int, **settings: Any) -> LoadedModel:
    return nlu_toys.start("xlnet-base", data__window=WINDOW, model__memory=memory, **settings)


def chain(model: LoadedModel, *texts: str, batch_size: int = 32) -> list[list[float]]:
    found = []
    for one in score(model, texts, batch_size=batch_size):
        assert one.chain_per_token is not None
        found.append([term for term in one.chain_per_token if term is not None])
    return found


@CUT
def test_a_window_reads_the_memory_of_those_before_it() -> None:
    model = start(memory=8)
    (whole,) = chain(model, LONG)
    (tokens,) = model.tokenizer.encode_batch([LONG])
    settings, vocabulary, expected = model.model.settings, model.tokenizer.vocabulary, []
    memory = Memory(states=torch.zeros(settings.num_layers, 1, 8, settings.hidden_size), lengths=torch.zeros(1).long())
    for first in range(0, len(tokens), WINDOW - 2):
        windows = one_segment([tokens[first : first + WINDOW - 2]], vocabulary)
        asked = causal(windows, vocabulary, model.recipe.objective)
        with torch.no_grad():
            batch = dataclasses.replace(collate(asked), memory=memory)
            logs = model.model.logits(batch)["par"].log_softmax(-1)[0]
            count = int(asked.targets["par"].weights.sum())
            labels = torch.from_numpy(asked.targets["par"].labels[0, :count]).long()
            expected += logs[torch.arange(count), labels].tolist()
            ids, slots = windows.token_ids, windows.token_ids.shape[1]  # a whole window whose slots all read each other
            every = rows_of(ids, np.array([[[0, slots, 0, 0]] * slots], np.int32), {}, segment_ids=windows.segment_ids)
            model.model.backbone(
                dataclasses.replace(collate(every), memory=memory, text_slots=torch.arange(slots)[None])
            )
    np.testing.assert_allclose(whole, expected, atol=1e-5)
    assert memory.lengths.tolist() == [8]


@CUT
def test_what_is_remembered_changes_only_later_windows_and_as_far_as_it_reaches() -> None:
    one_layer = start(memory=4, model__num_layers=1)
    words = LONG.split()
    (ids,) = one_layer.tokenizer.encode_batch([LONG])
    changed = " ".join(["bird", *words[1:]])
    assert len(one_layer.tokenizer.encode_batch([changed])[0]) == len(ids)
    one, other = chain(one_layer, LONG, changed)
    np.testing.assert_allclose(one[10:], other[10:], atol=1e-6, err_msg="the first word is no longer remembered")
    far = start(memory=40)
    one, other = chain(far, LONG, changed)
    assert all(abs(a - b) > 1e-7 for a, b in zip(one[10:14], other[10:14], strict=True))


@CUT
def test_scores_depend_neither_on_other_texts_nor_on_the_batch_size() -> None:
    model = start(memory=8)
    texts = [LONG, ONE, " ".join([ONE] * 8), LONG + " " + ONE]
    together = chain(model, *texts)
    for text, found, small in zip(texts, together, chain(model, *texts, batch_size=2), strict=True):
        (alone,) = chain(model, text)
        np.testing.assert_allclose(found, alone, atol=1e-5)
        np.testing.assert_allclose(found, small, atol=1e-5)
    (said,) = score(model, [LONG])
    assert said.note is not None and "windows, each reads 8 tokens of memory" in said.note


def test_a_text_of_one_window_is_scored_as_without_a_memory() -> None:
    model = start(memory=8)
    without = dataclasses.replace(model, model=start(memory=0).model)
    without.model.load_state_dict(model.model.state_dict())
    assert chain(model, ONE) == chain(without, ONE)


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
