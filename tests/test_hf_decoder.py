"""An exported writer under Transformers' `generate` gives the texts that our decoder gives: greedy, beams and drawn ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from decoding_toys import loaded
from unicloze import verbs
from unicloze.decoding.generate import generate
from unicloze.decoding.search import _uniform
from unicloze.interop.peer import quietly
from unicloze.settings import DecodingSettings
from unicloze.text.joining import join_words
from unicloze.training.loading import LoadedModel

transformers = pytest.importorskip("transformers")
pytest.importorskip("unicloze.hf")

SOURCES = ["return a list", "the value of the state and a list of items", "x", "playing (lists), not given!"]
LONGEST = 12
SEARCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": (dict(), dict(do_sample=False)),
    "beams": (dict(beams=4, num_results=4), dict(num_beams=4, num_return_sequences=4, early_stopping="never")),
    "beams, long": (dict(beams=3, min_length=5), dict(num_beams=3, min_new_tokens=5, early_stopping="never")),
    "beams, first": (
        dict(beams=4, min_length=3, early_stop="first"),
        dict(num_beams=4, min_new_tokens=3, early_stopping=True),
    ),
}
DRAWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "of the likeliest": (dict(temperature=1.4, top_k=6), dict(temperature=1.4, top_k=6, top_p=1.0)),
    "of a nucleus": (dict(temperature=1.2, top_p=0.7), dict(temperature=1.2, top_k=0, top_p=0.7)),
    "of both": (dict(top_k=8, top_p=0.8), dict(top_k=8, top_p=0.8)),
}


@pytest.fixture(autouse=True)
def _silence() -> Any:
    with quietly(transformers):
        yield


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """Weights so large that texts differ, and [EOS] likely enough to come."""
    found = loaded(relative=True, name="unilmv2", targets=["ae", "par"])
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in found.model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
        assert found.model.token_head.bias is not None
        found.model.token_head.bias[found.tokenizer.vocabulary.eos] += 2.0
    return found


@pytest.fixture(scope="module")
def folder(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return verbs.export(model, "unicloze", tmp_path_factory.mktemp("hf") / "out").out


def theirs(folder: Path, **how: Any) -> list[str]:
    """The texts of the exported folder, several of each source one after the other."""
    writer = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    prompt = tokenizer(SOURCES, padding=True, return_tensors="pt", return_token_type_ids=False)
    found = writer.generate(**prompt, max_new_tokens=LONGEST, length_penalty=0.0, **how)
    written: list[str] = tokenizer.batch_decode(found[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    return [join_words(text) for text in written]  # which Transformers leaves out


def ours(model: LoadedModel, **how: Any) -> list[str]:
    found = generate(model, SOURCES, DecodingSettings(max_length=LONGEST, **how))
    return [candidate.text for each in found for candidate in each.candidates]


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_finds_the_texts_of_our_decoder(model: LoadedModel, folder: Path, name: str) -> None:
    own, peer = SEARCHES[name]
    expected = ours(model, **own)
    assert theirs(folder, **peer) == expected
    assert len(set(expected)) > len(expected) // 2


@pytest.mark.parametrize("name", DRAWS)
def test_of_the_same_numbers_the_same_texts_are_drawn(
    model: LoadedModel, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, peer = DRAWS[name]
    count, steps = 5, iter(range(1, LONGEST + 1))

    def same_numbers(shares: Tensor, num_samples: int) -> Tensor:
        """In place of torch's generator the uniform numbers that our decoder draws by, tokens from the likeliest down."""
        assert num_samples == 1
        heights, order = shares.double().sort(dim=1, descending=True, stable=True)
        heights = heights.cumsum(dim=1)
        uniform = _uniform(0, range(len(SOURCES)), count, next(steps))
        place = torch.searchsorted(heights, uniform[:, None] * heights[:, -1:], right=True)
        return order.gather(1, place.clamp(max=shares.shape[1] - 1))

    expected = ours(model, sample=True, num_results=count, **own)
    monkeypatch.setattr(torch, "multinomial", same_numbers)
    assert theirs(folder, do_sample=True, num_return_sequences=count, **peer) == expected
    assert len(set(expected)) > len(expected) // 2
