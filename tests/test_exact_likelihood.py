"""Exact texts, fields and notes of likelihoods."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest

from decoding_toys import loaded
from unicloze.decoding import likelihood as module
from unicloze.decoding.likelihood import Scores, TextScore, check_defines, log_probabilities, score, together
from unicloze.errors import UsageError
from unicloze.objectives import settings_of


def text_score(**changes: Any) -> TextScore:
    values: dict[str, Any] = {
        "text": "the café is",
        "tokens": ["the", "café", "is"],
        "chain_log_likelihood": -6.0,
        "chain_per_token": [-1.0, -2.0, -3.0],
        "chain_perplexity": 7.4,
        "chain_perplexity_per_word": 7.25,
        "bits_per_byte": 0.72135,
        "bits_per_character": 0.78693,
        "pseudo_log_likelihood": -3.0,
        "pseudo_per_token": [-1.0, -1.0, -1.0],
        "pseudo_perplexity": 2.72,
        "pseudo_perplexity_per_word": 1234.56,
        "windows": 1,
        "note": None,
    }
    return TextScore(**{**values, **changes})


def test_a_score_as_text() -> None:
    assert str(text_score()) == (
        "the café is\n"
        "  log-likelihood              -6.00  perplexity 7.4 (7.2 per word), 0.721 bits per byte, "
        "0.787 per character, 3 tokens\n"
        "  pseudo-log-likelihood       -3.00  perplexity 2.7 (1,234.6 per word), 3 tokens"
    )
    plain = {"bits_per_character": 0.72135, "chain_perplexity_per_word": None, "pseudo_perplexity_per_word": None}
    assert str(text_score(**plain)) == (
        "the café is\n"
        "  log-likelihood              -6.00  perplexity 7.4, 0.721 bits per byte, 3 tokens\n"
        "  pseudo-log-likelihood       -3.00  perplexity 2.7, 3 tokens"
    )
    unknown = {"bits_per_byte": None, "bits_per_character": None, "pseudo_log_likelihood": None}
    assert str(text_score(**unknown, tokens=["a"] * 1234)) == (
        "the café is\n  log-likelihood              -6.00  perplexity 7.4 (7.2 per word), 1,234 tokens"
    )
    assert str(text_score(chain_log_likelihood=None)) == (
        "the café is\n  pseudo-log-likelihood       -3.00  perplexity 2.7 (1,234.6 per word), 3 tokens"
    )


def test_a_text_without_scores_says_why() -> None:
    empty = {"chain_log_likelihood": None, "pseudo_log_likelihood": None}
    nothing = "the café is\n  nothing to score: none of its tokens is in the vocabulary"
    assert str(text_score(**empty)) == nothing
    assert str(text_score(**empty, chain_per_token=None)) == nothing
    assert str(text_score(**empty, pseudo_per_token=None)) == nothing
    undefined = "the café is\n  no score: the model's objective defines none"
    assert str(text_score(**empty, chain_per_token=None, pseudo_per_token=None)) == undefined


def test_a_long_text_is_shortened() -> None:
    assert str(text_score(text="x" * 100)).splitlines()[0] == "x" * 100
    assert str(text_score(text="x" * 101)).splitlines()[0] == "x" * 99 + "…"


def test_several_scores_end_with_their_total() -> None:
    one, other = text_score(), text_score(text="is", tokens=["is"], chain_per_token=[-2.0], pseudo_per_token=[-1.0])
    total = "2 texts together\n  log-likelihood              -8.00"
    assert str(Scores([])) == ""
    assert str(Scores([one])) == str(one)
    assert str(Scores([one, other])) == f"{one}\n{other}\n{together([one, other])}"
    assert str(together([one, other])).startswith(total)
    assert Scores([one, other]).to_dict() == [one.to_dict(), other.to_dict()]
    noted = [text_score(note=note) for note in ("b", None, "a", "b")]
    assert Scores(noted).notes == ["b", "a"]


def test_the_score_of_texts_together() -> None:
    one = text_score(windows=2, note="a note")
    other = text_score(text="a list", tokens=["a", "list"], chain_per_token=[-2.0, -4.0], pseudo_per_token=[None, -1.0])
    both = together([one, other])
    assert both == TextScore(
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
    unspelled = together([one, text_score(bits_per_byte=None, pseudo_per_token=None)])
    assert (unspelled.bits_per_byte, unspelled.bits_per_character, unspelled.chain_perplexity_per_word) == (None,) * 3
    assert (unspelled.pseudo_log_likelihood, unspelled.pseudo_per_token, unspelled.pseudo_perplexity) == (None,) * 3
    assert unspelled.chain_log_likelihood == -12.0
    nothing = together([])
    assert (nothing.text, nothing.chain_log_likelihood, nothing.chain_per_token) == ("0 texts together", None, None)


def test_tokens_that_are_all_unscored() -> None:
    silent = together([text_score(chain_per_token=[None, None], pseudo_per_token=[None])])
    assert (silent.chain_log_likelihood, silent.chain_per_token, silent.chain_perplexity) == (None, [None, None], None)
    assert (silent.bits_per_byte, silent.chain_perplexity_per_word) == (None, None)


CLOZE_ONLY = "the objective unilmv2 with the target ae does not define a log-likelihood by the chain rule"
MASKED = (
    "the chain rule masks the whole text, but the model was trained at mask rates of at most 15% (a part of "
    "objective.mixture can have a higher one): the first tokens have far less context than in training"
)


def note(unscored: int = 0, windows: int = 1, memory: int = 0, **objective: Any) -> str | None:
    return module._note(settings_of(**objective), unscored, windows, memory)


def test_notes() -> None:
    assert note(mask_rate=0.8) is None
    assert note() == note(mask_rate=0.15) == MASKED
    assert str(note(mask_rate=0.79)).startswith(
        "the chain rule masks the whole text, but the model was trained at mask rates of at most 79% "
    )
    assert note(mask_rate=0.8, unscored=2) == "2 tokens not in the vocabulary are not scored"
    assert note(mask_rate=0.8, unscored=1, windows=3) == (
        "1 tokens not in the vocabulary are not scored; the text was cut into 3 windows, each scored by itself"
    )
    assert note(mask_rate=0.8, windows=2, memory=1234) == (
        "the text was cut into 2 windows, each reads 1,234 tokens of memory"
    )
    assert note(targets=["ae"]) == CLOZE_ONLY
    assert note(targets=["ae"], unscored=3) == f"{CLOZE_ONLY}; 3 tokens not in the vocabulary are not scored"


def test_measures_that_an_objective_lacks() -> None:
    with pytest.raises(UsageError) as refused:
        check_defines(settings_of(targets=["ae"]), "chain")
    assert str(refused.value) == f"{CLOZE_ONLY}, which `chain` asks for: ask for `pseudo`"
    with pytest.raises(UsageError) as refused:
        check_defines(settings_of(targets=["par"]), "pseudo")
    assert str(refused.value) == (
        "the objective unilmv2 with the target par does not define a pseudo-log-likelihood, which `pseudo` asks for: ask for "
        "`chain`"
    )
    check_defines(settings_of(), "chain")
    check_defines(settings_of(), "pseudo")


def test_scores_of_a_model() -> None:
    model = loaded(positions=8)
    long, strange = "the list of items is empty and not", "the zzz list"
    with pytest.warns(UserWarning) as warned:
        found = score(model, [long, strange, "the list"])
    assert [warning.filename for warning in warned] == [__file__]
    assert [each.windows for each in found] == [2, 1, 1]
    assert found[0].note == f"{MASKED}; the text was cut into 2 windows, each scored by itself"
    assert found[1].note == f"{MASKED}; 1 tokens not in the vocabulary are not scored"
    assert found[1].tokens == ["the", "[UNK]", "list"]
    for each in (found[1].chain_per_token, found[1].pseudo_per_token):
        assert each is not None and each[1] is None and None not in (each[0], each[2])
    assert (found[1].bits_per_byte, found[1].pseudo_perplexity_per_word) == (None, None)
    assert found[2].chain_log_likelihood == pytest.approx(sum(found[2].chain_per_token or []))
    assert found[2].bits_per_byte == pytest.approx(
        -(found[2].chain_log_likelihood or 0) / math.log(2) / len("the list")
    )
    assert inspect.signature(score).parameters["batch_size"].default == 32


def test_progress_counts_scored_tokens() -> None:
    model = loaded(positions=16)
    _, pieces = module.cut(model, ["the zzz list", "of items"])
    for measure, batch_size, expected in (("chain", 2, [4]), ("chain", 1, [2, 2]), ("pseudo", 3, [3, 1])):
        counts: list[int] = []
        logs = log_probabilities(model, pieces, measure, batch_size=batch_size, progress=counts.append)  # type: ignore[arg-type]
        assert sorted(counts, reverse=True) == expected
        assert [np.isfinite(each).tolist() for each in logs] == [[True, False, True], [True, True]]
    assert log_probabilities(model, [], "pseudo", batch_size=1) == []
    assert log_probabilities(model, [], "chain", batch_size=1) == []
