"""`generate` against plain loops that lay out a whole row by hand and recompute it at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_toys import padded, slots_batch
from unicloze.errors import UsageError
from unicloze.model.model import UnifiedModel

transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("unicloze.hf")

EOS, PSEUDO, WIDTH = 4, 6, 3
SOURCES = [[3, 10, 11, 12, 13, 4], [3, 20, 4], [3, 30, 31, 32, 4], [3, 40, 41, 42, 43, 44, 45, 4]]

WRITERS: dict[str, dict[str, Any]] = {
    "pseudo masks": {"predicts": "pseudo"},
    "pseudo masks, relative bias": {"predicts": "pseudo", "relative_bias": True},
    "pseudo masks, source from left to right": {
        "predicts": "pseudo", "source_visibility": "left_to_right", "generation_segments": [0, 0],
    },
    "prefix": {"predicts": "next", "norm": "pre", "relative_bias": True},
    "causal": {"predicts": "next", "source_visibility": "left_to_right", "share_layers": "all"},
    "local": {
        "predicts": "next", "source_visibility": "left_to_right", "generation_segments": [0, 0],
        "layer_visibility": ["full", "local"], "local_width": WIDTH,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.utils.logging.set_verbosity_error()


def writer(**settings: Any) -> Any:
    """A model with weights large enough for texts to differ, with [EOS] likely enough to occur."""
    shape: dict[str, Any] = dict(
        hidden_size=32, num_layers=3, num_heads=4, intermediate_size=64, dropout=0.0, attention_dropout=0.0,
        initializer_range=0.3, vocab_size=50, max_positions=40, eos_token_id=EOS, bos_token_id=3, pad_token_id=0,
        pseudo_token_id=PSEUDO, relative_bias=False,
    )  # fmt: skip
    torch.manual_seed(3)
    model = hf.UniclozeForConditionalGeneration(hf.UniclozeConfig(**(shape | settings))).eval()
    with torch.no_grad():
        model.backbone.embeddings.positions.weight.mul_(4)
        model.token_head.bias[EOS] += 1.2
    return model


Predict = Callable[[list[int], list[int]], Tensor]


def whole_rows(model: Any) -> Predict:
    """log p of the next token after a source and the target so far, from the backbone over a hand-written row."""
    config = model.config
    own = UnifiedModel(
        config.settings, vocab_size=config.vocab_size, max_positions=config.max_positions, targets=("par",)
    ).eval()
    own.load_state_dict(model.state_dict())
    both_ways, appends = config.source_visibility == "bidirectional", config.predicts == "pseudo"
    first, second = config.generation_segments

    def predict(source: list[int], target: list[int]) -> Tensor:
        s, n = len(source), len(source) + len(target) + appends
        intervals = [[0, s if both_ways and i < s else i + 1, 0, 0] for i in range(n)]
        tokens = [*source, *target, *[PSEUDO] * appends]
        segments = [first] * s + [second] * (n - s)
        batch = slots_batch(tokens, list(range(n)), segments, intervals, [n - 1], [0])
        if config.local_width is not None:
            near = batch.intervals.clone()
            near[0, :, 0] = torch.maximum(near[0, :, 0], torch.arange(n) - config.local_width)
            batch = type(batch)(**(vars(batch) | {"local": near}))
        with torch.no_grad():
            return own.logits(batch)["par"][0, 0].log_softmax(-1)

    return predict


def greedy(predict: Predict, source: list[int], steps: int, begun: Sequence[int] = ()) -> list[int]:
    target: list[int] = []
    while len(target) < steps and EOS not in target:
        target.append(int(predict(source, [*begun, *target]).argmax()))
    return target


def beam(predict: Predict, source: list[int], steps: int, beams: int) -> list[int]:
    """Beam search to the end; a text's score is its log-likelihood / length, including [EOS]."""
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for step in range(steps):
        grown = []
        for total, target in running:
            values, tokens = predict(source, target).topk(2 * beams)
            grown += [(total + v, [*target, t]) for v, t in zip(values.tolist(), tokens.tolist(), strict=True)]
        grown.sort(key=lambda each: -each[0])
        best = grown[: 2 * beams]
        ended = [each[1][-1] == EOS or step == steps - 1 for each in best]
        finished += [
            (total / len(target), target)
            for (total, target), end in zip(best[:beams], ended[:beams], strict=True)
            if end
        ]
        running = [each for each, end in zip(best, ended, strict=True) if not end][:beams]
    return max(finished)[1]


def texts_of(found: Tensor, width: int) -> list[list[int]]:
    """What was generated after prompts of the given width, without padding."""
    targets = []
    for row in found[:, width:].tolist():
        end = row.index(EOS) + 1 if EOS in row else len(row)
        assert set(row[end:]) <= {0, EOS}
        targets.append(row[:end])
    return targets


@pytest.mark.parametrize("settings", WRITERS.values(), ids=WRITERS.keys())
def test_greedy_texts_and_their_logits_are_those_of_a_plain_loop(settings: dict[str, Any]) -> None:
    model = writer(**settings)
    predict = whole_rows(model)
    expected = [greedy(predict, source, 12) for source in SOURCES]
    assert len({tuple(target) for target in expected}) == len(SOURCES)
    assert any(EOS in target for target in expected) or settings["predicts"] == "next"
    logs = [
        [predict(source, target[:n]) for n in range(len(target))]
        for source, target in zip(SOURCES, expected, strict=True)
    ]
    ids, mask = padded(SOURCES, side="left")
    for use_cache in (True, False):
        found = model.generate(
            ids, attention_mask=mask, max_new_tokens=12, use_cache=use_cache, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        assert texts_of(found.sequences, ids.shape[1]) == expected
        for row, of_steps in enumerate(logs):
            for step, wanted in enumerate(of_steps):
                torch.testing.assert_close(found.logits[step][row].log_softmax(-1), wanted, atol=1e-5, rtol=1e-5)
    for source, target in zip(SOURCES, expected, strict=True):
        found = model.generate(torch.tensor([source]), max_new_tokens=12)
        assert texts_of(found, len(source)) == [target]


@pytest.mark.parametrize("name", ["pseudo masks, relative bias", "prefix"])
def test_beam_search_is_that_of_a_plain_loop(name: str) -> None:
    model = writer(**WRITERS[name])
    predict = whole_rows(model)
    expected = [beam(predict, source, 8, 3) for source in SOURCES]
    assert expected != [greedy(predict, source, 8) for source in SOURCES]
    ids, mask = padded(SOURCES, side="left")
    for use_cache in (True, False):
        found = model.generate(
            ids, attention_mask=mask, max_new_tokens=8, num_beams=3, early_stopping="never", use_cache=use_cache
        )
        assert texts_of(found, ids.shape[1]) == expected


def test_prompts_padded_at_the_right_give_the_same_texts_at_pseudo_masks() -> None:
    model = writer(predicts="pseudo", relative_bias=True)
    left, left_mask = padded(SOURCES, side="left")
    right, right_mask = padded(SOURCES, side="right")
    expected = model.generate(left, attention_mask=left_mask, max_new_tokens=10)[:, left.shape[1] :]
    for use_cache in (True, False):
        found = model.generate(right, attention_mask=right_mask, max_new_tokens=10, use_cache=use_cache)
        assert torch.equal(found[:, right.shape[1] :], expected)


def test_a_given_beginning_of_the_target_is_continued() -> None:
    model = writer(predicts="pseudo")
    predict = whole_rows(model)
    source, begun = SOURCES[0], [21, 22]
    expected = greedy(predict, source, 5, begun)
    found = model.generate(
        torch.tensor([source + begun]),
        token_type_ids=torch.tensor([[0] * len(source) + [1] * len(begun)]),
        max_new_tokens=5,
    )
    assert texts_of(found, len(source + begun)) == [expected]


def test_what_cannot_be_generated_is_refused_in_a_sentence() -> None:
    ids, mask = padded(SOURCES, side="right")
    model = writer(predicts="next")
    with pytest.raises(UsageError, match="padding_side = 'left'"):
        model.generate(ids, attention_mask=mask, max_new_tokens=4)
    model = writer(predicts="pseudo")
    with pytest.raises(UsageError, match="StaticCache"):
        model.generate(ids, attention_mask=mask, max_new_tokens=4, cache_implementation="static")
    with pytest.raises(UsageError, match="prefill_chunk_size"):
        model.generate(ids, attention_mask=mask, max_new_tokens=4, prefill_chunk_size=2)
    with pytest.raises(ValueError, match="stateful"):
        model.generate(ids[:1], max_new_tokens=4, prompt_lookup_num_tokens=2)
    with pytest.raises(UsageError, match="position_ids"):
        model.generate(ids[:1], max_new_tokens=4, position_ids=torch.arange(8)[None])
    with pytest.raises(UsageError, match="41 tokens and the model has 40 positions"):
        model.generate(ids[:, :6], max_new_tokens=60, min_new_tokens=60)
