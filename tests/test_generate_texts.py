"""Generation from texts: how each recipe generates, streams, texts that are too long, and filling in any order."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toys
from decoding_toys import TEXT, Slot, byte_level, generate_tokens, loaded, logits, roberta_like, wordpiece
from test_generate import PSEUDO_LAYOUT, sources
from toys import EOS, PSEUDO
from unicloze import verbs
from unicloze.decoding.generate import Continuation, generate
from unicloze.decoding.inputs import generation_format_of
from unicloze.errors import UniclozeError, UsageError
from unicloze.model.model import UnifiedModel
from unicloze.objectives import settings_of
from unicloze.recipes import load_recipe
from unicloze.settings import DecodingSettings, Recipe
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.loading import LoadedModel

SOURCES = ["the list of items is empty", "return a value", "the state of play, given the list, is not the value of x"]


def test_how_the_recipes_generate() -> None:
    vocabulary = toys.vocabulary(extra=4)
    found = {}
    for name in ("unilmv2-base", "unilm-v1-base", "gpt-2", "t5-base", "mass-base", "quickstart", "bart-base",
                 "prefix-span-corruption-base", "prefix-masked-span-base"):  # fmt: skip
        layout = generation_format_of(load_recipe(name), vocabulary)
        segments = layout.source_segment, layout.target_segment
        found[name] = (layout.predicts, layout.pseudo, segments, layout.decoder_only, layout.opening)
    assert found == {
        "unilmv2-base": ("pseudo", PSEUDO, (0, 1), False, ()),
        "quickstart": ("pseudo", PSEUDO, (0, 1), False, ()),
        "unilm-v1-base": ("pseudo", toys.MASK, (4, 5), False, ()),
        "gpt-2": ("next", None, (0, 0), True, ()),
        "t5-base": ("next", None, (0, 1), False, (toys.PAD,)),
        "mass-base": ("next", None, (0, 1), False, (toys.MASK,)),
        "bart-base": ("next", None, (0, 1), False, (toys.EOS, toys.SOS)),
        "prefix-span-corruption-base": ("next", None, (0, 1), False, ()),
        "prefix-masked-span-base": ("next", None, (0, 1), False, (toys.MASK,)),
    }
    sentinels = set(vocabulary.extra.tolist())
    assert not sentinels & set(generation_format_of(load_recipe("t5-base"), vocabulary).never)
    assert sentinels < set(generation_format_of(load_recipe("gpt-2"), vocabulary).never)
    left_to_right = Recipe(objective=settings_of(name="masked", targets=["ae"], visibility="left_to_right"))
    assert generation_format_of(left_to_right, vocabulary).decoder_only
    ul2 = generation_format_of(Recipe(objective=settings_of(name="prefix", targets=["lm"], mode_token=3)), vocabulary)
    assert ul2.start == (toys.SOS, int(vocabulary.extra[3]))
    many = toys.vocabulary(extra=100)
    mixture = generation_format_of(load_recipe("ul2-base"), many)  # continues a text: the mode S of its prefixes
    assert mixture.start == (toys.SOS, int(many.extra[98])) and set(many.extra.tolist()) < set(mixture.never)
    assert len(ul2.row([])) == 3


@pytest.mark.parametrize(("name", "message"), [
    *((name, "cannot generate text") for name in ("bert-base", "electra-base", "mdlm-base")),
    ("xlnet-base", "cannot generate text.*not done"),
])  # fmt: skip
def test_recipes_that_cannot_generate(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        generation_format_of(load_recipe(name), toys.vocabulary(extra=4))


def test_pre_training_on_labelled_records_is_refused() -> None:
    with pytest.raises(UsageError, match=r"recipe translation is of a task, .* is not done"):
        verbs.pretrain("translation")


def stream(model: LoadedModel, source: str, settings: DecodingSettings) -> list[str]:
    decoding = {f"decoding.{name}": value for name, value in dataclasses.asdict(settings).items()}
    return list(verbs.stream(model, source, overrides=decoding))


OBJECTIVES: dict[str, dict[str, Any]] = {
    "unilmv2": {},
    "prefix": dict(name="prefix", targets=["lm"], mask_rate=0.5),
    "causal": dict(name="causal", targets=["lm"], visibility="left_to_right"),
}
SEARCHES: dict[str, DecodingSettings] = {
    "greedy": DecodingSettings(max_length=12),
    "beams": DecodingSettings(max_length=12, beams=3, num_results=1, length_penalty=0.8, no_repeat_ngram=2),
    "sampling": DecodingSettings(max_length=12, sample=True, top_p=0.9, seed=3),
    "parallel": DecodingSettings(max_length=12, min_length=10, parallel=4),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("tokenizer", [wordpiece, byte_level])
def test_a_stream_is_the_text(objective: str, tokenizer: Any) -> None:
    model = loaded(tokenizer(), positions=100, relative=True, **OBJECTIVES[objective])
    for settings in SEARCHES.values():
        if settings.parallel and objective != "unilmv2":
            continue
        (made,) = generate(model, [SOURCES[0]], settings)
        pieces = stream(model, SOURCES[0], settings)
        assert "".join(pieces) == made.text == str(made) == made.to_dict()["candidates"][0]["text"]
        assert len(pieces) > 1 or settings.beams > 1 or settings.parallel
        assert len(made.candidates[0].tokens) >= settings.min_length


def test_where_one_text_is_written_no_others_are_dropped(tmp_path: Path) -> None:
    """A stream, and a field of a record."""
    model, three = loaded(), {"decoding.beams": 3, "decoding.num_results": 3, "decoding.max_length": 6}
    with pytest.raises(UsageError, match="num_results is 3, but only one text can be streamed: set it to 1"):
        list(verbs.stream(model, SOURCES[0], overrides=three))
    (tmp_path / "s.txt").write_text("the list")
    for out in (None, tmp_path / "o.jsonl"):
        with pytest.raises(UsageError, match="num_results is 3, but into writes one text per record"):
            verbs.generate(model, file=tmp_path / "s.txt", into="more", out=out, overrides=three)
    assert list(tmp_path.iterdir()) == [tmp_path / "s.txt"]
    one = {**three, "decoding.num_results": 1}
    text = verbs.generate(model, text=SOURCES[0], overrides=one)[0]["prediction"]
    assert "".join(verbs.stream(model, SOURCES[0], overrides=one)) == text


def test_texts_hold_no_special_tokens() -> None:
    model = loaded(positions=60)
    special = set(model.tokenizer.vocabulary.special.tolist())
    settings = DecodingSettings(max_length=20, sample=True, num_results=8)
    for generation in generate(model, SOURCES, settings):
        assert len(generation.candidates) == 8
        for candidate in generation.candidates:
            assert not special & set(candidate.tokens)
            assert candidate.text == model.tokenizer.decode(candidate.tokens)


@pytest.mark.parametrize("objective", ["unilmv2", "causal"])
def test_long_sources_are_cut_with_one_warning(objective: str, tmp_path: Path) -> None:
    model = loaded(positions=32, **OBJECTIVES[objective])
    settings = DecodingSettings(max_length=8)
    long = " ".join(f"{TEXT} ." for _ in range(900))
    room = 22 if objective == "unilmv2" else 23
    with pytest.warns(UserWarning, match=rf"{room} tokens .* \(2 of 3\)") as said:
        found = generate(model, [long, "x", long + " x"], settings)
    assert len(said) == 1
    tokens = model.tokenizer.encode_batch([long, long + " x"])
    kept = [ids[:room] if objective == "unilmv2" else ids[-room:] for ids in tokens]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layout = generation_format_of(model.recipe, model.tokenizer.vocabulary)
        expected = generate_tokens(model.model, kept, settings, layout)
    assert [g.candidates[0].tokens for g in (found[0], found[2])] == [row[0].tokens for row in expected]
    (tmp_path / "s.txt").write_text(f"{long}\nx\n")
    with pytest.warns(UserWarning, match=r"\(1 of 2\)"):
        lines = verbs.generate(model, file=tmp_path / "s.txt", quiet=True)
    assert [line.get("truncated", False) for line in lines] == [True, False]


def test_what_is_refused() -> None:
    model = loaded(positions=32)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (["x", " "], {}, "source 2 of 2 is empty"),
        ("x", {}, "one string"),
        (["x"], {"max_length": 40}, "at most 29"),
        (["x"], {"sample": True, "seed": -1}, "seed is -1: give a number from 0"),
        (["x"], {"sample": True, "seed": 2**63}, f"seed is {2**63}: give a number from 0"),
        (["x"], {"no_repeat_ngram": 2, "may_repeat": ["zebra"]}, "'zebra'"),
    ]
    for texts, settings, message in cases:
        with pytest.raises(UsageError, match=message):
            generate(model, texts, DecodingSettings(**{"max_length": 8} | settings))
    assert generate(model, [], DecodingSettings(max_length=8)) == []


@pytest.mark.parametrize("settings", [{}, {"beams": 2}, {"sample": True}, {"parallel": 2}])
def test_a_model_that_predicts_no_numbers_is_refused(settings: dict[str, Any]) -> None:
    model = toys.model().eval()
    with torch.no_grad():
        model.backbone.embeddings.tokens.weight[5] = torch.nan
    with pytest.raises(UniclozeError, match=r"the model predicts nan: .* use another checkpoint"):
        generate_tokens(model, sources(3), DecodingSettings(max_length=4, **settings), PSEUDO_LAYOUT)


@pytest.mark.parametrize("objective", ["unilmv2", "causal"])
def test_no_verb_takes_nan_for_a_token_that_cannot_be_scored(objective: str, tmp_path: Path) -> None:
    """NaN scores must not be read as [UNK]: a diverged model seemed to have another language."""
    model = loaded(**OBJECTIVES[objective])
    with torch.no_grad():
        model.model.backbone.embeddings.tokens.weight[:] = torch.nan
    lambada, records, prompt, pairs = (tmp_path / name for name in ("l.jsonl", "r.jsonl", "p.yaml", "b.jsonl"))
    lambada.write_text('{"context": "the list of items is", "continuation": "empty"}\n')
    records.write_text('{"text": "the list", "label": "0"}\n')
    prompt.write_text('template: "{text} is {label}"\nlabels: {0: empty, 1: given}\n')
    kind = '"UID": "u", "field": "f", "linguistics_term": "t"'
    pairs.write_text(f'{{"sentence_good": "the list is", "sentence_bad": "list the is", {kind}}}\n')
    calls: list[Callable[[], object]] = [
        lambda: verbs.score(model, "the list is empty"),
        lambda: verbs.embed(model, ["the list"]),
        lambda: verbs.evaluate_blimp(model, pairs, quiet=True),
        lambda: verbs.evaluate_lambada(model, lambada, quiet=True),
        lambda: verbs.evaluate_prompt(model, prompt, records, quiet=True),
    ]
    if objective == "unilmv2":
        calls += [lambda: verbs.fill(model, "the [MASK] is"), lambda: verbs.fill(model, "the [MASK]", order="span")]
    for call in calls:
        with pytest.raises(UniclozeError, match="the model predicts nan: its training diverged"):
            call()


def test_in_bf16_the_texts_are_about_as_likely() -> None:
    model, given = toys.model(num_layers=2).eval(), sources(7, 3, 5)
    whole, half = (
        generate_tokens(model, given, DecodingSettings(max_length=1, precision=precision), PSEUDO_LAYOUT)
        for precision in ("fp32", "bf16")
    )
    assert whole != half
    for (exact,), (rounded,) in zip(whole, half, strict=True):
        assert rounded.log_probability == pytest.approx(exact.log_probability, abs=0.15)


def predicted(model: UnifiedModel, source: np.ndarray, groups: list[dict[int, int]], asked: list[int]) -> torch.Tensor:
    """log p at masks on some positions of a target, from one row: each reads the source, the known tokens and itself.

    Known tokens come in groups, in the order they were filled; each reads the source and the groups up to its own.
    """
    before = PSEUDO_LAYOUT.row(source).tolist()
    width = len(before)
    row = [Slot(token, place, width) for place, token in enumerate(before)]
    for group in groups:
        end = len(row) + len(group)
        row += [Slot(token, width + place, end, segment=1) for place, token in group.items()]
    known = len(row)
    row += [Slot(PSEUDO, width + place, known, itself=True, segment=1) for place in asked]
    return logits(model, row, list(range(known, len(row)))).log_softmax(-1)


def naive_parallel(model: UnifiedModel, source: np.ndarray, settings: DecodingSettings, never: list[int]) -> Any:
    groups: list[dict[int, int]] = []
    filled: dict[int, int] = {}
    logs: dict[int, float] = {}
    end = settings.max_length
    while asked := [place for place in range(end) if place not in filled]:
        allowed = predicted(model, source, groups, asked).clone()
        allowed[:, never] = -torch.inf
        for i, place in enumerate(asked):
            if place < settings.min_length:
                allowed[i, EOS] = -torch.inf
        best = sorted(
            zip(asked, allowed.max(-1).values.tolist(), allowed.argmax(-1).tolist(), strict=True), key=lambda b: -b[1]
        )
        new = best[: settings.parallel]
        groups.append({place: token for place, _, token in new})
        filled |= groups[-1]
        logs |= {place: log for place, log, _ in new}
        end = min([end, *(place for place, token in filled.items() if token == EOS)])
    tokens = [filled[place] for place in range(end)]
    ended = end < settings.max_length
    return tokens, ended, sum(logs[place] for place in range(end + ended))


@pytest.mark.parametrize("parallel", [1, 3, 20])
def test_positions_filled_in_parallel(parallel: int) -> None:
    model = toys.model().eval()
    with torch.no_grad():
        model.token_head.bias[EOS] += 4.0
    never = [0, 1, 2, 3, 5, 6]
    layout = dataclasses.replace(PSEUDO_LAYOUT, never=tuple(never))
    settings = DecodingSettings(max_length=9, min_length=3, parallel=parallel)
    given = sources(7, 3, 12, 5)
    found = generate_tokens(model, given, settings, layout)
    for source, (hypothesis,) in zip(given, found, strict=True):
        tokens, ended, log = naive_parallel(model, source, settings, never)
        assert (hypothesis.tokens, hypothesis.ended) == (tokens, ended)
        assert hypothesis.log_probability == pytest.approx(log, abs=1e-4)
    assert any(row[0].ended for row in found)


@pytest.mark.parametrize("make", [wordpiece, byte_level, roberta_like])
@pytest.mark.parametrize("prompt", ["return the", "return the list (of", "the (", "the list,", "play ", "not\n"])
def test_a_continuation_can_be_appended_to_its_prompt(make: Callable[[], Tokenizer], prompt: str) -> None:
    tokenizer, rng = make(), np.random.default_rng(3)
    spelling = Continuation(tokenizer, prompt)
    before = tokenizer.encode_batch([prompt])[0].tolist()
    for _ in range(20):
        ids = rng.choice(tokenizer.vocabulary.ordinary, size=5).tolist()
        text = spelling.decode(ids)
        if tokenizer.spaced:
            assert prompt + text == tokenizer.decode([*before, *ids])
        else:  # spelled as a whole, but for spaces of the prompt
            whole = tokenizer.decode([*before, *ids])
            assert whole.endswith(text) and "".join((prompt + text).split()) == "".join(whole.split())
            assert not prompt.endswith((" ", "\n")) or not text.startswith(" ")
        ends = [spelling.settled(ids[:count]) for count in range(len(ids) + 1)]
        assert all(text.startswith(end) for end in ends) and ends == sorted(ends, key=len)
    assert Continuation(wordpiece(), "a play").decode(wordpiece().encode("playing")[1:].tolist()) == "ing"
    assert Continuation(wordpiece(), "a play").decode(wordpiece().encode("list").tolist()) == " list"
    assert Continuation(wordpiece(), "a play ").decode(wordpiece().encode("list").tolist()) == "list"


def test_a_small_model_does_not_repeat_itself_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(relative=True)

    def texts(**settings: Any) -> list[str]:
        overrides = {f"decoding.{key}": value for key, value in settings.items()}
        (made,) = verbs.generate(model, text="the list", overrides={"decoding.max_length": 16, **overrides})
        words = made["prediction"].split()
        return [" ".join(words[first : first + 3]) for first in range(len(words) - 2)]

    assert len(set(texts())) == len(texts()) > len(set(texts(no_repeat_ngram=0)))
    monkeypatch.setattr("unicloze.decoding.inputs.WEIGHTS_TO_WRITE", 0)
    assert texts() == texts(no_repeat_ngram=0)
