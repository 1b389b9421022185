"""The masked-LM family: UniLM v1's four visibilities, SpanBERT's boundaries, and the uses of a masked model."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import toys
from brute_force import Slot, matrix
from toys import EOS, FIRST_ORDINARY, MASK, SOS, random_windows, vocabulary
from unicloze import keyed, visibility
from unicloze.example import Examples, Kind, collate
from unicloze.model.dropout import DropoutKey
from unicloze.model.heads import BoundaryHead
from unicloze.model.model import UnifiedModel
from unicloze.objectives import defined, make_examples
from unicloze.objectives.masked import MaskedSettings, _boundary_target, causal, cloze, masked
from unicloze.objectives.unilmv2 import UniLMv2Settings
from unicloze.settings import ModelSettings
from unicloze.text.windows import Windows, windows_of

VISIBILITIES = ["bidirectional", "left_to_right", "right_to_left", "prefix"]
PLAIN: dict[str, Any] = dict(name="masked", targets=["ae"], mask_share=1.0, random_share=0.0)


def read_by(name: str, **others: Any) -> MaskedSettings:
    return MaskedSettings(**(PLAIN | {"visibility": name} | others))


def paper_window() -> Windows:
    """UniLM v1, Section 2.3: [SOS] t1 t2 [EOS] t3 t4 t5 [EOS]."""
    return windows_of([[np.array([11, 12]), np.array([13, 14, 15])]], vocabulary(), keys=keyed.key(0, 0, np.arange(1)))


# Who reads whom


READS: dict[str, list[str]] = {
    "bidirectional": ["11111111"] * 8,
    "left_to_right": ["1" * (i + 1) + "0" * (7 - i) for i in range(8)],
    "right_to_left": ["0" * i + "1" * (8 - i) for i in range(8)],
    "prefix": ["11110000"] * 4 + ["11111000", "11111100", "11111110", "11111111"],
}


@pytest.mark.parametrize("name", VISIBILITIES)
def test_the_papers_example(name: str) -> None:
    steps = np.array([[-1, 0, -1, -1, -1, 1, -1, -1]], dtype=np.int32)
    example = cloze(paper_window(), steps, vocabulary(), read_by(name, segment_ids=[4, 5]))
    assert example.input_ids.tolist() == [[SOS, MASK, 12, EOS, 13, MASK, 15, EOS]]
    assert example.segment_ids.tolist() == [[4, 4, 4, 4, 5, 5, 5, 5]]
    target = example.targets["ae"]
    real = target.weights[0] > 0
    assert (target.slots[0][real].tolist(), target.labels[0][real].tolist()) == ([1, 5], [11, 14])
    assert ["".join(map(str, row)) for row in example.visible(0).astype(int)] == READS[name]


def unilm(name: str, source: int) -> Any:
    """UniLM v1, Section 2.3, token by token."""

    def reads(q: Slot, k: Slot) -> bool:
        if name == "bidirectional":
            return True
        if name == "prefix" and k.place < source:
            return True
        if name == "prefix" and q.place < source:
            return False
        return k.place >= q.place if name == "right_to_left" else k.place <= q.place

    return reads


@pytest.mark.parametrize("name", VISIBILITIES)
def test_rows_read_what_the_paper_says(name: str) -> None:
    windows = random_windows(40, 24, short=True, seed=3)
    examples = masked(windows, vocabulary(), read_by(name))
    for row in range(40):
        length = int(windows.lengths[row])
        source = int((windows.segment_ids[row, :length] == 0).sum())
        slots = [Slot("token", place) for place in range(length)]
        assert np.array_equal(examples.visible(row), matrix(slots, slots, unilm(name, source)))
        padding = examples.intervals[row, length:]
        assert (padding[:, 1] - padding[:, 0] == 1).all()
        assert np.array_equal(padding[:, 0], np.arange(length, 24))


def test_one_segment_id_names_both_segments() -> None:
    windows = random_windows(5, 16)
    assert (masked(windows, vocabulary(), read_by("left_to_right", segment_ids=[2])).segment_ids == 2).all()
    assert np.array_equal(masked(windows, vocabulary(), read_by("prefix")).segment_ids, windows.segment_ids)


def changed(windows: Windows, position: int) -> Windows:
    tokens = windows.token_ids.copy()
    tokens[0, position] = FIRST_ORDINARY + (tokens[0, position] - FIRST_ORDINARY + 1) % (50 - FIRST_ORDINARY)
    return dataclasses.replace(windows, token_ids=tokens)


@pytest.mark.parametrize("name", VISIBILITIES)
@pytest.mark.parametrize("targets", [["ae"], ["ae", "sbo"]])
@pytest.mark.parametrize("training", [False, True])
def test_a_prediction_sees_what_it_may_and_nothing_else(name: str, targets: list[str], training: bool) -> None:
    """Change a token of the window, remake the example and compare every prediction."""
    model = toys.model(dropout=0.1, attention_dropout=0.1)
    windows = random_windows(1, 26, seed=12)
    source = int((windows.segment_ids == 0).sum())
    reads = unilm(name, source)
    settings = read_by(name, targets=targets, masking="geometric", max_span=4)

    def states(windows: Windows) -> tuple[Examples, list[tuple[str, int, torch.Tensor]]]:
        examples = masked(windows, vocabulary(), settings)
        batch = collate(examples)
        with torch.no_grad():
            dropout = DropoutKey(1, 2, 3) if training else None
            found = model.backbone(batch, select=True, dropout=dropout)[-1][0]
        slots = [(name, slot) for name, target in batch.targets.items() for slot in target.slots[0].flatten().tolist()]
        return examples, [(*place, state) for place, state in zip(slots, found, strict=True)]

    before, reference = states(windows)
    hidden = set(np.flatnonzero(before.steps[0] >= 0).tolist())
    seen = 0
    for position in np.flatnonzero(windows.maskable[0]).tolist():
        after, found = states(changed(windows, position))
        assert np.array_equal(after.steps, before.steps)
        for (_, slot, old), (_, _, new) in zip(reference, found, strict=True):
            # The rules are transitive: three layers reach what one layer reads, and nothing else.
            reaches = position not in hidden and reads(Slot("token", slot), Slot("token", position))
            assert torch.equal(old, new) != reaches, (slot, position)
            seen += reaches
    assert seen > 10


# The chain rule in one pass


def test_causal_row_slot_by_slot() -> None:
    example = causal(paper_window(), vocabulary(), read_by("left_to_right", segment_ids=[2]))
    assert example.input_ids.tolist() == [[SOS, 11, 12, EOS, 13, 14, 15, EOS, MASK, MASK, MASK, MASK, MASK]]
    assert example.position_ids.tolist() == [[*range(8), 1, 2, 4, 5, 6]]
    assert (example.segment_ids == 2).all()
    assert example.kinds.tolist() == [[Kind.CONTEXT] * 8 + [Kind.PSEUDO] * 5]
    assert example.targets["ae"].labels.tolist() == [[11, 12, 13, 14, 15]]
    assert ["".join(map(str, row)) for row in example.visible(0).astype(int)][8:] == [
        "10000000" + "10000",
        "11000000" + "01000",
        "11110000" + "00100",
        "11111000" + "00010",
        "11111100" + "00001",
    ]


@pytest.mark.parametrize("relative_bias", [False, True])
def test_a_causal_row_equals_a_row_per_token(relative_bias: bool) -> None:
    model = toys.model(relative_bias=relative_bias)
    windows = random_windows(5, 20, short=True, seed=9)
    settings = read_by("left_to_right", segment_ids=[1])
    together = causal(windows, vocabulary(), settings)
    with torch.no_grad():
        logits = model.logits(collate(together))["ae"]
        for row in range(5):
            places = np.flatnonzero(windows.maskable[row])
            alone = windows[row : row + 1]
            steps = np.full((len(places), 20), -1, dtype=np.int32)
            steps[np.arange(len(places)), places] = 0
            repeated = Windows(
                **{
                    field.name: np.repeat(getattr(alone, field.name), len(places), axis=0)
                    for field in dataclasses.fields(Windows)
                    if getattr(alone, field.name) is not None
                }
            )
            one_by_one = model.logits(collate(cloze(repeated, steps, vocabulary(), settings)))["ae"][:, 0]
            torch.testing.assert_close(logits[row, : len(places)], one_by_one, atol=1e-5, rtol=1e-5)


def test_what_a_masked_model_defines() -> None:
    abilities = {name: defined(read_by(name)) for name in VISIBILITIES}
    assert {name for name, has in abilities.items() if has.cloze} == {"bidirectional"}
    assert {name for name, has in abilities.items() if has.causal} == {"left_to_right"}
    assert not any(has.stepwise for has in abilities.values())
    detects = defined(read_by("left_to_right", targets=["ae", "rtd"]))
    assert (detects.cloze, detects.causal) == (None, None), "the generator's predictions are not used"
    assert defined(UniLMv2Settings()).causal and defined(UniLMv2Settings(targets=["ae"])).causal is None


# SpanBERT


def test_boundary_predictions_by_hand() -> None:
    window = windows_of([[np.arange(11, 18)]], vocabulary(), keys=keyed.key(0, 0, np.arange(1)))
    steps = np.array([[-1, 1, 1, 1, -1, 0, -1, 2, -1]], dtype=np.int32)
    settings = read_by("bidirectional", targets=["ae", "sbo"])
    example = cloze(window, steps, vocabulary(), settings)
    target = _boundary_target(example.targets["ae"], example.steps)
    real = target.weights[0] > 0
    assert target.labels[0][real].tolist() == [15, 11, 12, 13, 17]
    assert target.slots[0][real].tolist() == [[4, 6], [0, 4], [0, 4], [0, 4], [6, 8]]
    assert target.places is not None
    assert target.places[0][real].tolist() == [1, 1, 2, 3, 1]


def test_boundaries_of_many_rows() -> None:
    windows = random_windows(200, 40, short=True, seed=1)
    settings = read_by(
        "bidirectional", targets=["ae", "sbo"], masking="geometric", max_span=10, mask_unit="word", mask_rate=0.4
    )
    examples = make_examples(windows, vocabulary(), settings)
    ae, sbo = examples.targets["ae"], examples.targets["sbo"]
    assert sbo.places is not None
    assert np.array_equal(ae.labels, sbo.labels)
    assert np.array_equal(ae.weights, sbo.weights)
    for row in range(200):
        for j in np.flatnonzero(sbo.weights[row] > 0):
            left, right = sbo.slots[row, j]
            span = examples.steps[row, left + 1 : right]
            slot = left + sbo.places[row, j]
            assert len(set(span.tolist())) == 1 and span[0] >= 0
            assert examples.steps[row, left] != span[0] != examples.steps[row, right]
            assert windows.token_ids[row, slot] == sbo.labels[row, j] and slot == ae.slots[row, j]


@pytest.mark.parametrize("name", VISIBILITIES)
def test_rows_are_the_same_alone_and_among_others(name: str) -> None:
    windows = random_windows(30, 32, short=True)
    settings = read_by(name, targets=["ae", "sbo"], masking="geometric", mask_unit="word", corruption_unit="span")
    together = make_examples(windows, vocabulary(), settings)
    for row in (0, 7, 29):
        alone = make_examples(windows[row : row + 1], vocabulary(), settings)
        for column in ("input_ids", "position_ids", "segment_ids", "kinds", "steps", "intervals"):
            assert np.array_equal(getattr(alone, column)[0], getattr(together, column)[row])
        for target, found in alone.targets.items():
            assert np.array_equal(found.slots[0], together.targets[target].slots[row])


def test_only_named_targets_are_made() -> None:
    windows = random_windows(3, 16)
    for targets in (["ae"], ["sbo"], ["ae", "sbo"]):
        assert list(masked(windows, vocabulary(), read_by("bidirectional", targets=targets)).targets) == targets


def model_of(targets: list[str], **settings: Any) -> UnifiedModel:
    shape: dict[str, Any] = dict(
        hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, dropout=0.0, attention_dropout=0.0
    )
    built = UnifiedModel(ModelSettings(**(shape | settings)), vocab_size=50, max_positions=40, targets=targets)
    built.initialize(0)
    return built


def test_boundary_head_is_the_papers() -> None:
    settings = ModelSettings(hidden_size=32, layer_norm_eps=1e-5, initializer_range=0.2)
    head = BoundaryHead(settings, vocab_size=50)
    reference = nn.Sequential(
        nn.Linear(2 * 32 + 200, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32)
    )
    with torch.no_grad():
        for module in (head, *head.children()):
            for parameter in module.parameters(recurse=False):
                parameter.normal_(0, 0.3)
    for own, other in ((head.inner, 0), (head.inner_norm, 2), (head.outer, 3), (head.outer_norm, 5)):
        reference[other].load_state_dict(own.state_dict())
    boundary, embeddings = torch.randn(7, 2, 32), torch.randn(50, 32)
    places = torch.tensor([1, 2, 3, 10, 128, 129, 500])
    h0 = torch.cat([boundary[:, 0], boundary[:, 1], head.places.weight[places.clamp(max=128) - 1]], dim=1)
    expected = reference(h0) @ embeddings.T + head.bias
    logits = head(boundary, places, embeddings)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    weight = reference[0].weight
    assert isinstance(weight, nn.Parameter)
    (ours,), (theirs,) = (
        torch.autograd.grad(out.square().mean(), parameter)
        for out, parameter in ((logits, head.inner.weight), (expected, weight))
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_boundary_loss_is_the_mean_over_its_predictions() -> None:
    windows = random_windows(4, 20, short=True, seed=3)
    batch = collate(masked(windows, vocabulary(), read_by("bidirectional", targets=["ae", "sbo"])))
    model = model_of(["ae", "sbo"], initializer_range=0.2)
    loss = model(batch)["sbo"]
    target = batch.targets["sbo"]
    assert target.places is not None
    states = model.backbone(batch)[-1]
    total = 0.0
    for row, j in (target.weights > 0).nonzero().tolist():
        boundary = states[row, target.slots[row, j]][None]
        logits = model.boundary_head(boundary, target.places[row, j][None], model.backbone.embeddings.tokens.weight)
        total += nn.functional.cross_entropy(logits, target.labels[row, j][None]).item()
    assert loss.total.item() == pytest.approx(total, rel=1e-4)
    assert loss.weight == float((target.weights > 0).sum())


# What can be learned


def train(model: UnifiedModel, batches: Any, steps: int, learning_rate: float) -> list[dict[str, float]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    history = []
    for step in range(steps):
        losses = model(collate(batches(step)))
        means = {name: loss.total / loss.weight for name, loss in losses.items()}
        optimizer.zero_grad()
        torch.stack(list(means.values())).sum().backward()
        optimizer.step()
        history.append({name: float(mean.detach()) for name, mean in means.items()})
    return history


@pytest.mark.slow
@pytest.mark.parametrize("name", VISIBILITIES)
def test_a_small_batch_is_memorised(name: str) -> None:
    targets = ["ae", "sbo"] if name == "bidirectional" else ["ae"]
    settings = read_by(name, targets=targets, masking="geometric", max_span=4)
    examples = masked(random_windows(6, 20, seed=2), vocabulary(), settings)
    history = train(model_of(targets), lambda step: examples, 140, 8e-3)
    assert max(history[-1].values()) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("targets", [["ae"], ["ae", "sbo"]])
def test_random_tokens_cannot_be_learned_better_than_chance(targets: list[str]) -> None:
    """With V tokens: ln V under a mask; a token that is shown is the answer in half of the cases."""
    tokens = 8
    settings = MaskedSettings(targets=targets, mask_rate=0.3, masking="token")
    if "sbo" in targets:
        settings = dataclasses.replace(settings, mask_share=1.0, random_share=0.0, masking="geometric", max_span=3)
    same = 0.5 + 0.5 / tokens
    shown = -same * math.log(same) - (1 - same) * math.log((1 - same) / (tokens - 1))
    floor = settings.mask_share * math.log(tokens) + (1 - settings.mask_share) * shown
    small = FIRST_ORDINARY + tokens

    def batch(step: int) -> Examples:
        return masked(random_windows(64, 14, vocab=small, seed=100 + step), vocabulary(small), settings)

    model = UnifiedModel(
        dataclasses.replace(model_of(targets).settings, num_layers=1, initializer_range=0.05),
        vocab_size=small,
        max_positions=14,
        targets=targets,
    )
    model.initialize(0)
    late = train(model, batch, 350, 4e-3)[-100:]
    for name in targets:
        found = float(np.mean([losses[name] for losses in late]))
        assert floor - 0.03 < found < floor + 0.06, (name, found, floor)


# Parity


def peer_mask(examples: Examples) -> torch.Tensor:
    """Mask added to a peer's scores. *Shape:* (rows, 1, slots, slots)"""
    reads = torch.from_numpy(visibility.bool_mask(examples.intervals, examples.input_ids.shape[1]))
    return torch.where(reads, 0.0, torch.finfo(torch.float32).min)[:, None]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", VISIBILITIES)
def test_bert_with_the_papers_masks(name: str, training: bool) -> None:
    transformers = pytest.importorskip("transformers")
    from test_parity import SHAPE, bert_names, copy, pairs, same_gradients

    model = toys.model(relative_bias=False, num_segments=6).train(training)
    config = transformers.BertConfig(
        **SHAPE, max_position_embeddings=40, type_vocab_size=6, attn_implementation="eager"
    )
    peer = transformers.BertForMaskedLM(config).train(training)
    found = pairs(model, peer, bert_names, "bert.")
    own, theirs = dict(model.named_parameters()), dict(peer.named_parameters())
    for ours, other in {
        "backbone.embeddings.tokens.weight": "bert.embeddings.word_embeddings.weight",
        "backbone.embeddings.positions.weight": "bert.embeddings.position_embeddings.weight",
        "backbone.embeddings.segments.weight": "bert.embeddings.token_type_embeddings.weight",
        "token_head.dense.weight": "cls.predictions.transform.dense.weight",
        "token_head.dense.bias": "cls.predictions.transform.dense.bias",
        "token_head.norm.weight": "cls.predictions.transform.LayerNorm.weight",
        "token_head.norm.bias": "cls.predictions.transform.LayerNorm.bias",
        "token_head.bias": "cls.predictions.bias",
    }.items():
        found.append((own[ours], [theirs[other]]))
    copy(found)
    windows = random_windows(6, 24, short=True, seed=2)
    examples = masked(windows, vocabulary(), read_by(name, segment_ids=[4, 5]))
    batch = collate(examples)
    target = batch.targets["ae"]
    labels = torch.full_like(batch.input_ids, -100)
    row, j = target.weights.nonzero(as_tuple=True)
    labels[row, target.slots[row, j]] = target.labels[row, j]
    expected = peer(
        input_ids=batch.input_ids,
        token_type_ids=batch.segment_ids,
        attention_mask=peer_mask(examples)[:, :, : batch.input_ids.shape[1], : batch.input_ids.shape[1]],
        labels=labels,
    )
    logits = model.logits(batch)["ae"]
    torch.testing.assert_close(logits[row, j], expected.logits[row, target.slots[row, j]], atol=1e-5, rtol=1e-5)
    loss = model(batch, DropoutKey(0) if training else None)["ae"]
    mean = loss.total / loss.weight
    torch.testing.assert_close(mean, expected.loss, atol=1e-5, rtol=1e-5)
    mean.backward()
    expected.loss.backward()
    same_gradients(found)
