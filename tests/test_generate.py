"""Generation with the cache against an ordinary forward pass over the whole row at every step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

import toys
from decoding_toys import ReadAgain, Slot, generate_tokens, logits
from toys import EOS, MASK, PSEUDO, SOS
from unicloze.decoding.search import Hypothesis
from unicloze.decoding.steppers import Branches
from unicloze.errors import UsageError
from unicloze.model import inference_model
from unicloze.model.inference_model import IncrementalModel, linear_for
from unicloze.model.model import UnifiedModel
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.settings import DecodingSettings

Ids = npt.NDArray[np.int64]

PSEUDO_LAYOUT = GenerationFormat(predicts="pseudo", start=(SOS,), stop=EOS, pseudo=PSEUDO)
NEXT_LAYOUT = GenerationFormat(predicts="next", start=(SOS,), stop=EOS)
OPENED_LAYOUT = GenerationFormat(predicts="next", start=(SOS, 9), stop=EOS, opening=(MASK,))
CAUSAL_LAYOUT = GenerationFormat(
    predicts="next", start=(SOS,), stop=EOS, target_segment=0, decoder_only=True, ends_source=False
)
LAYOUTS = {
    "pseudo": PSEUDO_LAYOUT, "next": NEXT_LAYOUT, "opened": OPENED_LAYOUT, "causal": CAUSAL_LAYOUT,
    "local": dataclasses.replace(CAUSAL_LAYOUT, local_width=3),
}  # fmt: skip

MODELS: dict[str, dict[str, Any]] = {
    "unilmv2": {},
    "learned positions": dict(relative_bias=False),
    "pre": dict(norm="pre", relative_bias=False, activation="gelu_tanh", head="linear", head_bias=False),
    "t5": dict(norm="pre", encoding="none"),
    "albert": dict(share_layers="all", embedding_size=16),
    "no segments": dict(num_segments=0, share_layers="attention"),
    "local layers": dict(norm="pre", layer_visibility=["full", "local"]),
}


def sources(*lengths: int, vocab: int = 50) -> list[Ids]:
    draw = np.random.default_rng(sum(lengths))
    return [draw.integers(toys.FIRST_ORDINARY, vocab, length) for length in lengths]


def uncached(model: UnifiedModel, layout: GenerationFormat, source: Ids, target: Sequence[int]) -> Tensor:
    """Logits of the token after a target, from one row of `Examples`. *Shape:* (vocabulary,)"""
    before = [*layout.start, *source.tolist(), *([] if layout.decoder_only else [layout.stop])]
    after, width = [*layout.opening, *target], len(before)
    if layout.predicts == "pseudo":
        assert layout.pseudo is not None
        after.append(layout.pseudo)
    row = [
        Slot(token, place, place + 1 if layout.decoder_only else width, segment=layout.source_segment)
        for place, token in enumerate(before)
    ]
    row += [Slot(token, n, n + 1, segment=layout.target_segment) for n, token in enumerate(after, start=width)]
    return logits(model, row, [len(row) - 1], layout.local_width)[0]


@pytest.mark.parametrize(("name", "layout"), [
    *(("unilmv2", layout) for layout in ("next", "opened", "causal")),
    *((name, "pseudo") for name in MODELS if name != "local layers"),
    ("pre", "causal"),
    ("t5", "next"),
    ("local layers", "local"),
])  # fmt: skip
def test_the_cache_changes_nothing(name: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources of different lengths, random changes of parents, sources that finish, evicted tokens, a cache that grows."""
    monkeypatch.setattr("unicloze.decoding.steppers.STEPS_AT_ONCE", 4)
    monkeypatch.setattr("unicloze.model.readers._aligned", int)
    model = toys.model(**MODELS[name]).eval()
    given, count, steps = sources(9, 4, 12), 3, 18
    cached = Branches(IncrementalModel(model, torch.float32), LAYOUTS[layout], given, count=count, max_length=steps)
    whole = ReadAgain(partial(uncached, model, LAYOUTS[layout]), given, count)
    torch.testing.assert_close(cached.first(), whole.first(), atol=1e-5, rtol=1e-5)
    draw = torch.Generator().manual_seed(3)
    swept = grown = False
    for number in range(steps - 1):
        rows = len(cached)
        tokens = torch.randint(toys.FIRST_ORDINARY, 50, (rows, count), generator=draw)
        parents = torch.randint(count, (rows, count), generator=draw) if number > 5 and number % 5 else None
        filled, capacity = cached._sources.cache.filled, cached._sources.cache.capacity
        torch.testing.assert_close(cached.step(tokens, parents), whole.step(tokens, parents), atol=2e-5, rtol=1e-5)
        swept |= cached._sources.cache.filled < filled + count
        grown |= cached._sources.cache.capacity > capacity
        if number == 4:
            kept = torch.tensor([2, 0])
            cached.keep(kept)
            whole.keep(kept)
    assert swept and grown


def approximately(results: list[list[Hypothesis]]) -> list[list[tuple[Any, ...]]]:
    return [
        [(h.tokens, h.ended, pytest.approx(h.log_probability, abs=1e-4), pytest.approx(h.score, abs=1e-4)) for h in row]
        for row in results
    ]


def naive_beam_search(
    model: UnifiedModel, layout: GenerationFormat, source: Ids, settings: DecodingSettings
) -> list[Hypothesis]:
    """Beam search to the end, one hypothesis at a time, without a cache."""
    beams, alpha = settings.beams, settings.length_penalty
    live: list[tuple[list[int], float]] = [([], 0.0)]
    ended: list[Hypothesis] = []
    for length in range(1, settings.max_length + 1):
        continued = []
        for text, total in live:
            logs = torch.log_softmax(uncached(model, layout, source, text), dim=0).tolist()
            for token, log in enumerate(logs):
                if token == layout.stop and len(text) < settings.min_length:
                    continue
                n = settings.no_repeat_ngram
                gram = [*text, token][-n:]
                seen = [text[i : i + n] for i in range(len(text) - n + 1)]
                if n and len(gram) == n and gram in seen and not set(gram) & set(layout.may_repeat):
                    continue
                if token not in layout.never:
                    continued.append(([*text, token], total + log))
        continued.sort(key=lambda pair: -pair[1])
        penalty = ((5 + length) / 6) ** alpha
        for text, total in continued[:beams]:
            if text[-1] == layout.stop:
                ended.append(Hypothesis(tokens=text[:-1], log_probability=total, score=total / penalty, ended=True))
        live = [pair for pair in continued[: 2 * beams] if pair[0][-1] != layout.stop][:beams]
    ended += [
        Hypothesis(tokens=text, log_probability=total, score=total / penalty, ended=False) for text, total in live
    ]
    return sorted(ended, key=lambda found: -found.score)[: settings.num_results]


SEARCHES: dict[str, dict[str, Any]] = {
    "plain": dict(), "long texts": dict(length_penalty=1.2, min_length=2), "short texts": dict(length_penalty=-0.7),
    "no repetition": dict(no_repeat_ngram=2, length_penalty=0.6), "one text": dict(beams=2, num_results=1),
    "greedy": dict(beams=1, num_results=1),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "layout"), [*((name, layout) for name in SEARCHES for layout in ("pseudo", "next")), ("greedy", "causal")]
)
def test_a_search_is_the_naive_one(name: str, layout: str) -> None:
    """Equal tokens and scores, in a batch of sources of different lengths."""
    model = talkative()
    settings = DecodingSettings(**(dict(beams=4, num_results=3, max_length=8) | SEARCHES[name]))
    rules = dataclasses.replace(LAYOUTS[layout], never=(0, 1, 2, 3, 5, 6), may_repeat=(8, 9, 10))
    given = sources(7, 3, 11, 5, vocab=20)
    found = generate_tokens(model, given, settings, rules)
    assert approximately(found) == approximately(
        [naive_beam_search(model, rules, source, settings) for source in given]
    )
    assert any(h.ended for row in found for h in row), "the toy model never ends a text, so that is not checked"


def talkative() -> UnifiedModel:
    """A model with few words that sometimes ends its texts."""
    model = toys.model(vocab=20, num_layers=2).eval()
    with torch.no_grad():
        model.token_head.bias[EOS] += 1.5
    return model


@pytest.mark.parametrize("settings", [dict(), dict(beams=3, num_results=2), dict(sample=True, num_results=2, seed=4)])
def test_a_batch_is_its_sources_one_at_a_time(settings: dict[str, Any]) -> None:
    model = talkative()
    chosen = DecodingSettings(max_length=10, **settings)
    given = sources(7, 3, 11, 5, 2, vocab=20)
    together = generate_tokens(model, given, chosen, PSEUDO_LAYOUT)
    by_two = generate_tokens(model, given, dataclasses.replace(chosen, batch_size=2), PSEUDO_LAYOUT)
    assert approximately(by_two) == approximately(together)
    if not chosen.sample:
        alone = [generate_tokens(model, [source], chosen, PSEUDO_LAYOUT)[0] for source in given]
        assert approximately(alone) == approximately(together)


def test_what_a_model_cannot_read_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a source of 29 tokens and .* give a source of at most 28"):
        generate_tokens(toys.model().eval(), sources(29), DecodingSettings(max_length=10), PSEUDO_LAYOUT)
    distances = toys.model(encoding="transformer_xl", relative_bias=False).eval()
    with pytest.raises(UsageError, match=r"model\.positions transformer_xl cannot generate a target step by step"):
        generate_tokens(distances, sources(5), DecodingSettings(), NEXT_LAYOUT)


def test_linear_layers_that_torch_cannot_pack_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    weight, bias, hidden = (torch.randn(*shape, generator=draw) for shape in ((6, 4), (6,), (3, 4)))
    packed = linear_for(weight, bias, torch.float32)(hidden)
    monkeypatch.setattr(inference_model, "_packs", lambda dtype: False)
    plain = linear_for(weight, bias, torch.float32)
    assert type(plain) is nn.Linear
    torch.testing.assert_close(plain(hidden), packed)
    assert linear_for(weight, bias, torch.bfloat16)(hidden.bfloat16()).dtype == torch.bfloat16
