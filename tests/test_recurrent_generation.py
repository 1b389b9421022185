"""Generation with LSTMs: the carried state against reading the whole text again, beams that change places, long sources."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import decoding_toys
from decoding_toys import ReadAgain, finish, generate_tokens
from objective_toys import row_of
from recurrent_toys import backbone_of, recurrent_model
from toys import FIRST_ORDINARY, vocabulary
from unicloze.decoding.generate import generate
from unicloze.decoding.inputs import generation_format_of
from unicloze.decoding.likelihood import score
from unicloze.decoding.search import TokenConstraints, search
from unicloze.decoding.steppers import CarriedStates, prepared
from unicloze.errors import UsageError
from unicloze.example import collate
from unicloze.model.recurrent.model import RecurrentModel
from unicloze.objectives import settings_of
from unicloze.settings import DataSettings, DecodingSettings, Recipe, UseSettings
from unicloze.training.loading import LoadedModel

CAUSAL = settings_of(name="causal", targets=["lm"], visibility="left_to_right")
KINDS: dict[str, dict[str, Any]] = {
    "awd-lstm": {"num_layers": 3, "initializer_range": 4.0},
    "wide embeddings": {"embedding_size": 10, "tied_output": False},
    "projected": {
        "projection": True, "intermediate_size": 16, "residual": True, "cell_clip": 0.2, "projection_clip": 0.1,
    },
    "both directions": {"directions": "both"},
}  # fmt: skip


LAYOUT = generation_format_of(Recipe(objective=CAUSAL), vocabulary())


def model_of(kind: str) -> RecurrentModel:
    model = recurrent_model(**KINDS[kind]).eval()
    with torch.no_grad():
        for name, weight in model.token_head.named_parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))) * 0.3)
    return model


def sources(*lengths: int) -> list[np.ndarray[Any, Any]]:
    draw = np.random.default_rng(1)
    return [draw.integers(FIRST_ORDINARY, 50, size=length) for length in lengths]


def again(model: RecurrentModel, ids: list[int]) -> Tensor:
    """Logits after the last of some tokens, from a forward pass over all of them. *Shape:* (vocabulary,)"""
    batch = collate(row_of(ids, range(1, len(ids) + 1), [0], [0]))
    with torch.no_grad():
        return model.token_logits(backbone_of(model)(batch)[-1])[0, -1]


def read_again(model: RecurrentModel, given: list[np.ndarray[Any, Any]], count: int) -> ReadAgain:
    rows = [LAYOUT.row(source).tolist() for source in given]
    return ReadAgain(lambda row, text: again(model, [*row, *text]), rows, count)


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources of different lengths, one empty and one read in parts; random changes of parents; sources that finish."""
    monkeypatch.setattr("unicloze.model.recurrent.model.STEPS_AT_ONCE", 4)
    model, given, count = model_of(kind), sources(3, 0, 9, 4), 3
    carried = CarriedStates(prepared(model, torch.float32), LAYOUT, given, count=count)  # type: ignore[arg-type]
    whole = read_again(model, given, count)
    torch.testing.assert_close(carried.first(), whole.first(), atol=1e-5, rtol=1e-5)
    draw = torch.Generator().manual_seed(3)
    for number in range(6):
        tokens = torch.randint(FIRST_ORDINARY, 50, (len(carried), count), generator=draw)
        parents = torch.randint(count, (len(carried), count), generator=draw) if number % 3 else None
        torch.testing.assert_close(carried.step(tokens, parents), whole.step(tokens, parents), atol=1e-5, rtol=1e-5)
        if number == 3:
            for each in (carried, whole):
                each.keep(torch.tensor([2, 0]))  # type: ignore[attr-defined]


@pytest.mark.parametrize("settings", [
    DecodingSettings(max_length=12, min_length=6, no_repeat_ngram=1),
    DecodingSettings(max_length=12, beams=4, length_penalty=0.7, num_results=3),
    DecodingSettings(max_length=9, sample=True, num_results=2, top_k=5),
], ids=["greedy", "beams", "sampled"])  # fmt: skip
def test_the_texts_are_those_of_reading_everything_again(settings: DecodingSettings) -> None:
    model, given = model_of("awd-lstm"), sources(5, 2, 7)
    count = settings.num_results if settings.sample else settings.beams
    expected = finish(search(read_again(model, given, count), TokenConstraints(settings, LAYOUT), range(3)))
    found = generate_tokens(model, given, settings, LAYOUT)
    assert [[one.tokens for one in each] for each in found] == [[one.tokens for one in each] for each in expected]
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.log_probability == pytest.approx(other.log_probability, abs=1e-4)
    assert len({tuple(one.tokens) for each in found for one in each}) > 1


def loaded(**settings: Any) -> LoadedModel:
    tokenizer = decoding_toys.wordpiece()
    model = recurrent_model(**settings).eval()
    use = UseSettings(visibility="left_to_right", pooling="last")
    recipe = Recipe(data=DataSettings(window=12), objective=CAUSAL, model=model.settings, use=use)
    return LoadedModel(model, tokenizer, recipe, Path("nowhere"), 0)


def test_a_source_longer_than_a_window_is_read_whole() -> None:
    """LSTMs have no positions, so neither the source nor the text is limited by the windows of the training."""
    model = loaded()
    source = " ".join(["the list of items is empty"] * 20)
    (found,) = generate(model, [source], DecodingSettings(max_length=50, min_length=50))
    assert len(found.candidates[0].tokens) == 50
    ids = [model.tokenizer.vocabulary.sos, *model.tokenizer.encode(source).tolist()]
    allowed = model.tokenizer.vocabulary.ordinary
    best = allowed[again(model.model, ids)[torch.from_numpy(allowed).long()].argmax()]  # type: ignore[arg-type]
    assert found.candidates[0].tokens[0] == best


def test_a_backward_model_does_not_generate() -> None:
    model = loaded(directions="backward")
    backward = dataclasses.replace(CAUSAL, visibility="right_to_left")
    model = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, objective=backward))
    with pytest.raises(UsageError, match="a model of the objective causal cannot generate text"):
        generate(model, ["the list"])


def test_bf16_products_are_close_to_those_of_fp32() -> None:
    model, given = model_of("projected"), sources(5, 2)
    exact, coarse = (
        CarriedStates(prepared(model, dtype), LAYOUT, given, count=1).first()  # type: ignore[arg-type]
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert coarse.dtype == torch.float32 and not torch.equal(exact, coarse)
    torch.testing.assert_close(exact, coarse, atol=0.05, rtol=0.05)


def test_a_long_text_is_scored_by_reading_each_window_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state carried from window to window is that of one long row with the same special tokens."""
    model = loaded(memory=1)
    texts = ["the list of items is empty and not given to the value " * 3, "a list is empty"]
    vocabulary, read = model.tokenizer.vocabulary, []
    backbone = backbone_of(model.model)  # type: ignore[arg-type]
    reads = backbone.read
    monkeypatch.setattr(backbone, "read", lambda *given: (read.append(1), reads(*given))[1])
    with pytest.warns(UserWarning, match="are cut into consecutive windows"):
        found = score(model, texts)
    tokens = [model.tokenizer.encode(text).tolist() for text in texts]
    assert len(read) == -(-len(tokens[0]) // 10) and len(tokens[0]) > 30
    for text, ids in enumerate(tokens):
        row: list[int] = []
        for first in range(0, len(ids), 10):
            row.append(vocabulary.sos)
            for number in range(first, min(first + 10, len(ids))):
                logs = torch.log_softmax(again(model.model, row), dim=0)  # type: ignore[arg-type]
                expected = found[text].chain_per_token
                assert expected is not None and expected[number] == pytest.approx(float(logs[ids[number]]), abs=1e-4)
                row.append(ids[number])
            row.append(vocabulary.eos)
