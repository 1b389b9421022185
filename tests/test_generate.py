"""Generation with the cache against an ordinary forward pass over the whole row at every step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

import toys
from decoding_toys import generate_tokens
from toys import EOS, MASK, PSEUDO, SOS
from unicloze.decoding.search import Hypothesis
from unicloze.decoding.steppers import Branches
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind, Target, collate
from unicloze.model import inference_model
from unicloze.model.inference_model import IncrementalModel, linear_for
from unicloze.model.model import UnifiedModel
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.settings import DecodingSettings, ModelSettings

Ids = npt.NDArray[np.int64]

PSEUDO_LAYOUT = GenerationFormat(predicts="pseudo", start=(SOS,), stop=EOS, pseudo=PSEUDO)
NEXT_LAYOUT = GenerationFormat(predicts="next", start=(SOS,), stop=EOS)
OPENED_LAYOUT = GenerationFormat(predicts="next", start=(SOS, 9), stop=EOS, opening=(MASK,))
CAUSAL_LAYOUT = GenerationFormat(predicts="next", start=(SOS,), stop=EOS, target_segment=0, decoder_only=True)
LAYOUTS = {"pseudo": PSEUDO_LAYOUT, "next": NEXT_LAYOUT, "opened": OPENED_LAYOUT, "causal": CAUSAL_LAYOUT}

MODELS: dict[str, dict[str, Any]] = {
    "unilmv2": {},
    "learned positions": dict(relative_bias=False),
    "pre": dict(norm="pre", relative_bias=False, activation="gelu_tanh", head="linear", head_bias=False),
    "t5": dict(norm="pre", encoding="none"),
    "albert": dict(share_layers="all", embedding_size=16),
    "no segments": dict(num_segments=0, share_layers="attention"),
}


def build(positions: int = 40, **settings: Any) -> UnifiedModel:
    """A toy model, `encoding` being its `ModelSettings.positions`."""
    model = toys.model(positions=positions).eval()
    shape = dataclasses.asdict(model.settings) | {"positions": settings.pop("encoding", "learned")} | settings
    built = UnifiedModel(ModelSettings(**shape), vocab_size=50, max_positions=positions, targets=["par"])
    built.initialize(1)
    return built.eval()


def sources(*lengths: int, vocab: int = 50) -> list[Ids]:
    draw = np.random.default_rng(sum(lengths))
    return [draw.integers(toys.FIRST_ORDINARY, vocab, length) for length in lengths]


def uncached(model: UnifiedModel, layout: GenerationFormat, source: Ids, target: Sequence[int]) -> Tensor:
    """Logits of the token after a target, from one row of `Examples`. *Shape:* (vocabulary,)"""
    before = [*layout.start, *source.tolist(), *([] if layout.decoder_only else [layout.stop])]
    after = [*(layout.opening), *target]
    width = len(before)
    slots = [
        (token, layout.source_segment, (0, slot + 1 if layout.decoder_only else width))
        for slot, token in enumerate(before)
    ]
    for token in after:
        slots.append((token, layout.target_segment, (0, len(slots) + 1)))
    if layout.predicts == "pseudo":
        assert layout.pseudo is not None
        slots.append((layout.pseudo, layout.target_segment, (0, len(slots) + 1)))
    n = len(slots)
    intervals = np.array([[[*reads, 0, 0] for _, _, reads in slots]], dtype=np.int32)
    local = None
    if layout.local_width is not None:
        local = intervals.copy()
        local[0, :, 0] = np.maximum(0, np.arange(n) - layout.local_width)
    one = np.ones((1, 1), dtype=np.int32)
    examples = Examples(
        input_ids=np.array([[token for token, _, _ in slots]], dtype=np.int32),
        position_ids=np.arange(n, dtype=np.int32)[None],
        segment_ids=np.array([[segment for _, segment, _ in slots]], dtype=np.int32),
        kinds=np.full((1, n), Kind.CONTEXT, dtype=np.uint8),
        steps=np.full((1, n), -1, dtype=np.int32),
        intervals=intervals,
        local=local,
        lengths=n * one[0],
        mutual=0 * one[0],
        text_tokens=n * one[0],
        targets={"p": Target(slots=(n - 1) * one, labels=0 * one, weights=one.astype(np.float32))},
    )
    with torch.no_grad():
        return model.logits(collate(examples))["p"][0, 0]


class Uncached:
    """What `Branches` does, without a cache."""

    def __init__(self, model: UnifiedModel, layout: GenerationFormat, given: Sequence[Ids], count: int) -> None:
        self.model, self.layout, self.given, self.count = model, layout, list(given), count
        self.targets: list[list[list[int]]] = [[[] for _ in range(count)] for _ in given]

    def first(self) -> Tensor:
        return torch.stack([uncached(self.model, self.layout, source, []) for source in self.given])

    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        if parents is None:
            parents = torch.arange(self.count).expand(len(self.given), -1)
        self.targets = [
            [[*targets[parent], token] for token, parent in zip(new, old, strict=True)]
            for targets, new, old in zip(self.targets, tokens.tolist(), parents.tolist(), strict=True)
        ]
        return torch.stack(
            [
                torch.stack([uncached(self.model, self.layout, source, target) for target in targets])
                for source, targets in zip(self.given, self.targets, strict=True)
            ]
        )

    def keep(self, rows: Tensor) -> None:
        self.given = [self.given[row] for row in rows.tolist()]
        self.targets = [self.targets[row] for row in rows.tolist()]


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *(("unilmv2", layout) for layout in LAYOUTS),
        *((name, "pseudo") for name in MODELS if name != "unilmv2"),
        ("pre", "causal"),
        ("t5", "next"),
    ],
)
def test_the_cache_changes_nothing(name: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources of different lengths, random changes of parents, sources that finish, evicted tokens."""
    monkeypatch.setattr("unicloze.decoding.steppers.STEPS_AT_ONCE", 4)
    monkeypatch.setattr("unicloze.model.readers._aligned", int)
    model = build(60, **MODELS[name])
    given, count, steps = sources(9, 4, 12), 3, 18
    cached = Branches(IncrementalModel(model, torch.float32), LAYOUTS[layout], given, count=count, max_length=steps)
    whole = Uncached(model, LAYOUTS[layout], given, count)
    torch.testing.assert_close(cached.first(), whole.first(), atol=1e-5, rtol=1e-5)
    draw = torch.Generator().manual_seed(3)
    swept = grown = False
    for number in range(steps - 1):
        rows = len(cached)
        tokens = torch.randint(toys.FIRST_ORDINARY, 50, (rows, count), generator=draw)
        parents = torch.randint(count, (rows, count), generator=draw) if number % 5 else None
        before = cached._sources.cache.filled
        torch.testing.assert_close(cached.step(tokens, parents), whole.step(tokens, parents), atol=2e-5, rtol=1e-5)
        swept |= cached._sources.cache.filled < before + count
        grown |= cached._sources.cache.filled > 14 + 5 * count
        if number == 4:
            kept = torch.tensor([2, 0])
            cached.keep(kept)
            whole.keep(kept)
    assert swept and grown


def test_layers_that_read_nearby_slots_only() -> None:
    layout = dataclasses.replace(CAUSAL_LAYOUT, local_width=3)
    model = toys.model(relative_bias=False, norm="pre", layer_visibility=["full", "local"]).eval()
    given = sources(9, 4)
    cached = Branches(IncrementalModel(model, torch.float32), layout, given, count=2, max_length=5)
    whole = Uncached(model, layout, given, 2)
    torch.testing.assert_close(cached.first(), whole.first(), atol=1e-5, rtol=1e-5)
    for _ in range(4):
        tokens, parents = torch.randint(7, 50, (2, 2)), torch.randint(2, (2, 2))
        torch.testing.assert_close(cached.step(tokens, parents), whole.step(tokens, parents), atol=1e-5, rtol=1e-5)


def test_a_cache_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    given = sources(9, 4)
    model = toys.model(positions=60).eval()
    settings = DecodingSettings(beams=3, max_length=20, min_length=20)
    expected = generate_tokens(model, given, settings, PSEUDO_LAYOUT)
    monkeypatch.setattr("unicloze.decoding.steppers.STEPS_AT_ONCE", 1)
    monkeypatch.setattr("unicloze.model.readers._aligned", int)
    assert approximately(generate_tokens(model, given, settings, PSEUDO_LAYOUT)) == approximately(expected)


def approximately(results: list[list[Hypothesis]]) -> list[list[tuple[Any, ...]]]:
    return [
        [(h.tokens, h.ended, pytest.approx(h.log_probability, abs=1e-4), pytest.approx(h.score, abs=1e-4)) for h in row]
        for row in results
    ]


def naive_beam_search(
    model: UnifiedModel, layout: GenerationFormat, source: Ids, settings: DecodingSettings
) -> list[tuple[list[int], float, float, bool]]:
    """Beam search to the end, one hypothesis at a time, without a cache."""
    beams, alpha = settings.beams, settings.length_penalty
    live: list[tuple[list[int], float]] = [([], 0.0)]
    ended: list[tuple[list[int], float, float, bool]] = []
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
                ended.append((text[:-1], total, total / penalty, True))
        live = [pair for pair in continued[: 2 * beams] if pair[0][-1] != layout.stop][:beams]
    ended += [(text, total, total / penalty, False) for text, total in live]
    return sorted(ended, key=lambda found: -found[2])[: settings.num_results]


SEARCHES: dict[str, dict[str, Any]] = {
    "plain": dict(),
    "long texts": dict(length_penalty=1.2, min_length=2),
    "short texts": dict(length_penalty=-0.7),
    "no repetition": dict(no_repeat_ngram=2, length_penalty=0.6),
    "one beam": dict(beams=2, num_results=1),
}


@pytest.mark.parametrize("layout", ["pseudo", "next"])
@pytest.mark.parametrize("name", SEARCHES)
def test_beam_search_is_the_naive_one(name: str, layout: str) -> None:
    """Equal tokens and scores, in a batch of sources of different lengths."""
    model = talkative()
    settings = DecodingSettings(**(dict(beams=4, num_results=3, max_length=8) | SEARCHES[name]))
    rules = dataclasses.replace(LAYOUTS[layout], never=(0, 1, 2, 3, 5, 6), may_repeat=(8, 9, 10))
    given = sources(7, 3, 11, 5, vocab=20)
    found = generate_tokens(model, given, settings, rules)
    ended = 0
    for source, hypotheses in zip(given, found, strict=True):
        expected = naive_beam_search(model, rules, source, settings)
        assert [h.tokens for h in hypotheses] == [text for text, _, _, _ in expected]
        assert [h.ended for h in hypotheses] == [end for _, _, _, end in expected]
        np.testing.assert_allclose(
            [h.log_probability for h in hypotheses], [log for _, log, _, _ in expected], atol=1e-4
        )
        np.testing.assert_allclose([h.score for h in hypotheses], [score for _, _, score, _ in expected], atol=1e-4)
        ended += sum(h.ended for h in hypotheses)
    assert ended, "the toy model never ends a text, so the test would not check that"


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


@pytest.mark.parametrize("layout", ["pseudo", "next", "causal"])
def test_greedy_takes_the_likeliest_token_each_time(layout: str) -> None:
    model = talkative()
    given = sources(7, 3, 11, vocab=20)
    found = generate_tokens(model, given, DecodingSettings(max_length=10), LAYOUTS[layout])
    for source, (hypothesis,) in zip(given, found, strict=True):
        text: list[int] = []
        log = 0.0
        while len(text) < 10 and EOS not in text:
            logs = torch.log_softmax(uncached(model, LAYOUTS[layout], source, text), dim=0)
            text.append(int(logs.argmax()))
            log += float(logs.max())
        assert hypothesis.tokens == [token for token in text if token != EOS]
        assert hypothesis.ended == (EOS in text)
        assert hypothesis.log_probability == pytest.approx(log, abs=1e-4)


def test_a_source_too_long_is_refused() -> None:
    with pytest.raises(UsageError, match="give a source of at most 28"):
        generate_tokens(toys.model().eval(), sources(29), DecodingSettings(max_length=10), PSEUDO_LAYOUT)


def test_transformer_xl_is_refused() -> None:
    model = build(encoding="transformer_xl", relative_bias=False)
    with pytest.raises(UsageError, match="transformer_xl"):
        generate_tokens(model, sources(5), DecodingSettings(), NEXT_LAYOUT)


def test_linear_layers_that_torch_cannot_pack_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    weight, bias, hidden = (torch.randn(*shape, generator=draw) for shape in ((6, 4), (6,), (3, 4)))
    packed = linear_for(weight, bias, torch.float32)(hidden)
    monkeypatch.setattr(inference_model, "_packs", lambda dtype: False)
    plain = linear_for(weight, bias, torch.float32)
    assert type(plain) is nn.Linear
    torch.testing.assert_close(plain(hidden), packed)
    assert linear_for(weight, bias, torch.bfloat16)(hidden.bfloat16()).dtype == torch.bfloat16
