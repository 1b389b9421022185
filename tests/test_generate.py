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
from toys import EOS, MASK, PAD, PSEUDO, SOS
from unicloze.decoding.search import Hypothesis
from unicloze.decoding.steppers import Branches
from unicloze.errors import UsageError
from unicloze.interop.families import FAMILIES
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
    whole = ReadAgain(partial(uncached, model, LAYOUTS[layout]), given, count)
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
    whole = ReadAgain(partial(uncached, model, layout), given, 2)
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
    "plain": dict(), "long texts": dict(length_penalty=1.2, min_length=2), "short texts": dict(length_penalty=-0.7),
    "no repetition": dict(no_repeat_ngram=2, length_penalty=0.6), "one beam": dict(beams=2, num_results=1),
}  # fmt: skip


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


# Greedy and beam search against Transformers' `generate` on a GPT-2 with the same weights


LAYOUT = GenerationFormat(predicts="next", start=(SOS,), stop=EOS, target_segment=0, decoder_only=True)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": (dict(), dict()),
    "greedy, long": (dict(min_length=6), dict(min_new_tokens=6)),
    "beams to the end": (
        dict(beams=4, num_results=4),
        dict(num_beams=4, num_return_sequences=4, early_stopping="never"),
    ),
    "beams, first": (
        dict(beams=4, num_results=3, early_stop="first", min_length=3),
        dict(num_beams=4, num_return_sequences=3, early_stopping=True, min_new_tokens=3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_texts_are_those_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    from interop_toys import with_our_weights
    from test_parity import GPT, SIZES

    model = toys.model(**GPT, norm="pre", intermediate_size=64).eval()
    with torch.no_grad():
        model.backbone.embeddings.tokens.weight[EOS] *= 2
    config = transformers.GPT2Config(
        **SIZES, n_inner=64, attn_implementation="eager", bos_token_id=SOS, eos_token_id=EOS, pad_token_id=PAD
    )
    peer = transformers.GPT2LMHeadModel(config).eval()
    with_our_weights(FAMILIES["gpt2"], model, peer)
    ours, theirs = CASES[name]
    settings = DecodingSettings(max_length=12, **ours)
    given = [np.random.default_rng(seed).integers(toys.FIRST_ORDINARY, 50, 5) for seed in range(12)]
    found = generate_tokens(model, given, settings, LAYOUT)
    prompt = torch.tensor([[SOS, *source] for source in given])
    expected = peer.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, length_penalty=0.0,
        return_dict_in_generate=True, output_scores=True, **theirs,
    )  # fmt: skip
    texts = [row[6:] for row in expected.sequences.tolist()]
    texts = [text[: text.index(EOS)] if EOS in text else text for text in texts]
    hypotheses = [hypothesis for row in found for hypothesis in row]
    assert [hypothesis.tokens for hypothesis in hypotheses] == texts
    assert any(hypothesis.ended for hypothesis in hypotheses)
    if settings.beams > 1:
        scores = expected.sequences_scores.tolist()
        np.testing.assert_allclose([hypothesis.score for hypothesis in hypotheses], scores, atol=1e-4)
