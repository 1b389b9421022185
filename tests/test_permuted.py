"""Permuted language models: XLNet's and MPNet's rows by hand, by brute force, by leakage through the window, and trained."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

import brute_force
import toys
from brute_force import by_step, group, matrix
from test_visibility import random_steps
from toys import EOS, FIRST_ORDINARY, MASK, PSEUDO, SOS, random_windows, vocabulary
from unicloze import keyed, visibility
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind, collate
from unicloze.objectives import OBJECTIVES, make_examples, settings_of
from unicloze.objectives.permuted import lay_out_compensated, lay_out_permuted
from unicloze.objectives.row_builder import in_turn
from unicloze.objectives.unilmv2 import ALL_MASKED, draw_steps
from unicloze.recipes import load_recipe
from unicloze.settings import ObjectiveSettings
from unicloze.text.windows import Windows
from xl_toys import xl_model

NAMES = ["permuted", "compensated"]
ROWS = {"permuted": visibility.permuted_rows, "compensated": visibility.compensated_rows}
GROUPS = {"permuted": "COP", "compensated": "COMQ"}
ORDINARY = 50 - FIRST_ORDINARY
PLAIN = settings_of(targets=["par"], mask_share=1.0, random_share=0.0)


def settings(name: str, **changes: Any) -> ObjectiveSettings:
    return settings_of(**{"name": name, "targets": ["par"], "factorization": "token"} | changes)


def alone(name: str, context: int, steps: list[int]) -> visibility.Intervals:
    return visibility.permuted(0, context, steps) if name == "permuted" else visibility.compensated(context, steps)


def six_tokens() -> Windows:
    """[SOS] and the tokens 11 .. 15."""
    tokens = np.array([[SOS, 11, 12, 13, 14, 15]], dtype=np.int32)
    return Windows(
        token_ids=tokens,
        segment_ids=np.array([[0, 0, 0, 1, 1, 1]], dtype=np.int32),
        lengths=np.array([6], dtype=np.int32),
        maskable=tokens > SOS,
        keys=keyed.key(0, 0, np.arange(1)),
        source=np.zeros(1, np.int32),
        index=np.zeros(1, np.int64),
    )


STEPS = np.array([[-1, 1, -1, 0, 0, -1]], dtype=np.int32)
"""13 and 14 are predicted first, then 11."""


def lines(examples: Examples, names: list[str], groups: list[int]) -> list[str]:
    length = int(examples.lengths[0])
    return visibility.text(examples.intervals[0, :length], length, query_names=names, groups=groups).splitlines()


def test_xlnets_row_slot_by_slot() -> None:
    example = lay_out_permuted(six_tokens(), STEPS, vocabulary(), pseudo=PSEUDO)
    assert example.lengths.tolist() == [9] and example.mutual.tolist() == [3]
    assert example.input_ids[0, :9].tolist() == [SOS, 12, 15, 13, 14, 11, PSEUDO, PSEUDO, PSEUDO]
    assert example.position_ids[0, :9].tolist() == [0, 2, 5, 3, 4, 1, 3, 4, 1]
    assert example.segment_ids[0, :9].tolist() == [0, 0, 1, 1, 1, 0, 1, 1, 0]
    assert example.steps[0, :9].tolist() == [-1, -1, -1, 0, 0, 1, 0, 0, 1]
    assert lines(example, ["C0", "C2", "C5", "O3", "O4", "O1", "P3", "P4", "P1"], [3, 3, 3]) == [
        "C0  111 000 000",
        "C2  111 000 000",
        "C5  111 000 000",
        "O3  111 110 000",
        "O4  111 110 000",
        "O1  111 111 000",
        "P3  111 000 000",
        "P4  111 000 000",
        "P1  111 110 000",
    ]
    target = example.targets["par"]
    assert target.slots[0, :3].tolist() == [6, 7, 8]
    assert target.labels[0, :3].tolist() == [13, 14, 11]
    assert target.weights.sum() == 3


def test_mpnets_row_slot_by_slot() -> None:
    example = lay_out_compensated(six_tokens(), STEPS, vocabulary(), ALL_MASKED, pseudo=PSEUDO)
    assert example.lengths.tolist() == [12]
    assert example.input_ids[0, :12].tolist() == [SOS, 12, 15, 13, 14, 11, *[MASK] * 3, *[PSEUDO] * 3]
    assert example.position_ids[0, :12].tolist() == [0, 2, 5, 3, 4, 1, 3, 4, 1, 3, 4, 1]
    assert lines(example, ["C0", "C2", "C5", "O3", "O4", "O1", "M3", "M4", "M1", "Q3", "Q4", "Q1"], [3] * 4) == [
        "C0  111 000 111 000",
        "C2  111 000 111 000",
        "C5  111 000 111 000",
        "O3  111 110 001 000",
        "O4  111 110 001 000",
        "O1  111 111 000 000",
        "M3  111 000 111 000",
        "M4  111 000 111 000",
        "M1  111 000 111 000",
        "Q3  111 000 111 000",
        "Q4  111 000 111 000",
        "Q1  111 110 001 000",
    ]
    target = example.targets["par"]
    assert (target.slots[0, :3].tolist(), target.labels[0, :3].tolist()) == ([9, 10, 11], [13, 14, 11])
    same_id = lay_out_compensated(six_tokens(), STEPS, vocabulary(), ALL_MASKED, pseudo=MASK)
    assert same_id.input_ids[0, 6:12].tolist() == [MASK] * 6


@pytest.mark.parametrize("name", NAMES)
def test_rows_made_together_equal_rows_made_alone_and_the_definition(name: str) -> None:
    rng = np.random.default_rng(0)
    contexts = rng.integers(1, 20, 50)
    steps = [random_steps(rng) if i % 7 else [] for i in range(50)]
    bounds = [visibility._step_bounds(sizes) for sizes in steps]
    row = np.repeat(np.arange(50), [sum(sizes) for sizes in steps])
    starts, ends = (np.concatenate([b[side] for b in bounds]) for side in (0, 1))
    capacity = 20 + 3 * 42
    together = ROWS[name](contexts, row, starts, ends, capacity=capacity)
    for i in range(50):
        expected = alone(name, int(contexts[i]), steps[i])
        length = len(expected)
        assert np.array_equal(together[i, :length], expected)
        slots = [
            slot
            for kind in GROUPS[name]
            for slot in (group("C", int(contexts[i])) if kind == "C" else by_step(kind, steps[i]))
        ]
        found = visibility.bool_mask(together[i], capacity)
        assert np.array_equal(found[:length, :length], matrix(slots, slots, getattr(brute_force, name)))
        assert np.array_equal(found[length:], np.eye(capacity, dtype=bool)[length:]), "padding reads itself"
        assert not found[:length, length:].any(), "and no slot reads it"


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_windows_follow_the_definition(name: str) -> None:
    windows = random_windows(30, 24, short=True)
    examples = make_examples(windows, vocabulary(), settings(name, mask_rate=0.3, factorization="block"))
    names = {Kind.CONTEXT: "C", Kind.ORIGINAL: "O", Kind.MASK: "M", Kind.PSEUDO: "P" if name == "permuted" else "Q"}
    for row in range(30):
        length = int(examples.lengths[row])
        kinds, steps = examples.kinds[row, :length], examples.steps[row, :length]
        slots = [brute_force.Slot(names[Kind(k)], i, int(s)) for i, (k, s) in enumerate(zip(kinds, steps, strict=True))]
        assert np.array_equal(examples.visible(row), matrix(slots, slots, getattr(brute_force, name)))
        content = np.isin(kinds, [Kind.CONTEXT, Kind.ORIGINAL])
        order = np.argsort(examples.position_ids[row, :length][content])
        text = examples.input_ids[row, :length][content][order]
        assert text.tolist() == windows.token_ids[row, : windows.lengths[row]].tolist(), "C and O are the text"
        assert (examples.input_ids[row, :length][kinds == Kind.CONTEXT][0]) == SOS


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("factorization", ["block", "token"])
@pytest.mark.parametrize("build", [toys.model, xl_model])
def test_a_predicted_token_reaches_only_later_steps(name: str, factorization: str, build: Any) -> None:
    """Independent of the rule: change x_m in the window, remake the example, compare every prediction."""
    model = build()
    objective = settings(name, mask_rate=0.4, factorization=factorization)
    windows = random_windows(1, 30, seed=11)

    def predictions(tokens: np.ndarray) -> tuple[dict[int, torch.Tensor], Examples]:  # type: ignore[type-arg]
        examples = make_examples(dataclasses.replace(windows, token_ids=tokens), vocabulary(), objective)
        batch = collate(examples)
        with torch.no_grad():
            logits = model.logits(batch)["par"][0]
        slots = batch.targets["par"].slots[0].tolist()
        return {int(examples.position_ids[0, s]): x for s, x in zip(slots, logits, strict=True)}, examples

    reference, before = predictions(windows.token_ids)
    queries = before.kinds[0] == Kind.PSEUDO
    step_of = dict(zip(before.position_ids[0][queries].tolist(), before.steps[0][queries].tolist(), strict=True))
    shows_a_mask = before.position_ids[0][queries & (before.input_ids[0] == PSEUDO)].tolist()
    assert len(shows_a_mask) > 5
    changed_later = 0
    for m in [*shows_a_mask, *np.flatnonzero(windows.maskable[0] & ~np.isin(np.arange(30), list(step_of)))]:
        tokens = windows.token_ids.copy()
        tokens[0, m] = FIRST_ORDINARY + (tokens[0, m] - FIRST_ORDINARY + 1) % ORDINARY
        for position, logits in predictions(tokens)[0].items():
            reads = m not in step_of or step_of[m] < step_of[position]
            assert torch.equal(logits, reference[position]) != reads, (m, position)
            changed_later += reads
    assert changed_later > 10


@pytest.mark.parametrize("name", NAMES)
def test_no_other_slot_reads_a_query(name: str) -> None:
    model = toys.model()
    batch = collate(make_examples(random_windows(4, 24), vocabulary(), settings(name)))
    queries = torch.zeros_like(batch.input_ids, dtype=torch.bool)
    row, j = batch.targets["par"].weights.nonzero(as_tuple=True)
    queries[row, batch.targets["par"].slots[row, j]] = True
    with torch.no_grad():
        before = model.backbone(batch)[-1]
        other = dataclasses.replace(batch, input_ids=torch.where(queries, 20, batch.input_ids))
        after = model.backbone(other)[-1]
    assert torch.equal(before[~queries], after[~queries])
    assert not torch.equal(before[queries], after[queries])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("relative_bias", [False, True])
def test_no_softmax_is_over_nothing(name: str, relative_bias: bool) -> None:
    """[SOS] is never predicted, so step 0 reads it even if nothing else is context."""
    model = toys.model(relative_bias=relative_bias)
    windows = random_windows(20, 24, short=True)
    objective = settings(name, mask_rate=1.0)
    everything = make_examples(windows, vocabulary(), objective)
    causal = OBJECTIVES[name].causal
    assert causal is not None
    for examples in (everything, causal(windows, vocabulary(), objective)):
        assert (visibility.bool_mask(examples.intervals, examples.input_ids.shape[1]).any(axis=-1)).all()
        batch = collate(examples, fixed_shape=True)
        for state in model.backbone(batch):
            assert torch.isfinite(state).all()
        loss = model(batch)["par"].total
        loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    whole = np.where(np.arange(24) < windows.lengths[:, None], 0, -1).astype(np.int32)
    with pytest.raises(UsageError, match=r"leave at least \[SOS\] as context"):
        OBJECTIVES[name].stepwise(windows, whole, vocabulary(), objective)  # type: ignore[misc]


@pytest.mark.parametrize("name", NAMES)
def test_causal_predicts_every_token_from_those_left_of_it(name: str) -> None:
    windows = random_windows(12, 20, short=True)
    objective = settings(name)
    examples = OBJECTIVES[name].causal(windows, vocabulary(), objective)  # type: ignore[misc]
    same = OBJECTIVES[name].stepwise(windows, in_turn(windows), vocabulary(), objective)  # type: ignore[misc]
    assert np.array_equal(examples.intervals, same.intervals)
    assert np.array_equal(examples.input_ids, same.input_ids)
    target = examples.targets["par"]
    for row in range(12):
        predicted = target.slots[row][target.weights[row] > 0]
        text = np.flatnonzero(windows.maskable[row])
        assert examples.position_ids[row, predicted].tolist() == text.tolist()
        assert target.labels[row][target.weights[row] > 0].tolist() == windows.token_ids[row, text].tolist()
        visible = examples.visible(row)
        for slot, position in zip(predicted, text, strict=True):
            read = np.flatnonzero(visible[slot])
            tokens = read[examples.kinds[row, read] != Kind.MASK]
            others = set(np.flatnonzero(~windows.maskable[row, : windows.lengths[row]]).tolist())
            assert set(examples.position_ids[row, tokens].tolist()) == others | set(text[text < position].tolist())
            if name == "compensated":
                assert sorted(examples.position_ids[row, read].tolist()) == list(range(int(windows.lengths[row])))
    assert not (examples.input_ids[examples.kinds == Kind.MASK] != MASK).any()
    assert (examples.input_ids[examples.kinds == Kind.PSEUDO] == PSEUDO).all()


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_the_same_alone_and_among_others(name: str) -> None:
    windows = random_windows(40, 32, short=True)
    together = make_examples(windows, vocabulary(), settings(name))
    for row in (0, 7, 39):
        single = make_examples(windows[row : row + 1], vocabulary(), settings(name))
        length = int(single.lengths[0])
        for field in ("input_ids", "position_ids", "segment_ids", "kinds", "steps", "intervals"):
            assert np.array_equal(getattr(single, field)[0, :length], getattr(together, field)[row, :length])
    assert (together.input_ids == EOS).sum() == 2 * len(windows)


def test_partial_prediction_and_its_spans() -> None:
    """One token in six, in spans whose mean length is that of 1 to 5 tokens drawn in proportion to 1/length."""
    windows = random_windows(3000, 128)
    objective = settings("permuted", mask_rate=1 / 6, block_probability=0.52, max_span=5)
    examples = make_examples(windows, vocabulary(), objective)
    text = windows.maskable.sum(axis=1)
    predicted = examples.targets["par"].weights.sum(axis=1)
    assert (predicted >= text / 6).all() and (predicted < text / 6 + 5).all()
    wanted = 5 / sum(1 / n for n in range(1, 6))
    whole = draw_steps(
        windows, dataclasses.replace(objective, factorization="block"), np.full(3000, 1 / 6), vocabulary()
    )
    spans = (whole >= 0).sum() / (whole.max(axis=1) + 1).sum()
    assert abs(spans - wanted) < 0.03
    assert all(len(set(s[s >= 0].tolist())) * 2 == (s >= 0).sum() for s in examples.steps[:100]), "one token per step"


def test_a_mask_and_its_query_show_the_same() -> None:
    windows = random_windows(600, 64, vocab=1000)
    examples = make_examples(windows, vocabulary(1000), settings("compensated"))
    by_position = {kind: examples.input_ids[examples.kinds == kind] for kind in (Kind.ORIGINAL, Kind.MASK, Kind.PSEUDO)}
    truth, mask, query = by_position.values()  # all by row, then step
    assert np.array_equal(np.where(mask == MASK, PSEUDO, mask), query)
    shares = {0.8: mask == MASK, 0.1: mask == truth}
    for share, hits in shares.items():
        assert abs(hits.mean() - share) < 4.5 * math.sqrt(share * (1 - share) / len(truth)) + 1e-3


def train(model: Any, batches: Any, rate: float) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
    loss = torch.tensor(math.nan)
    for batch in batches:
        result = model(batch)["par"]
        loss = result.total / result.weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "build"), [("permuted", xl_model), ("compensated", toys.model)])
def test_overfits_one_batch(name: str, build: Any) -> None:
    batch = collate(make_examples(random_windows(4, 24), vocabulary(), settings(name)))
    model = build(initializer_range=0.05)
    assert train(model, [batch] * 120, 1e-2) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_random_tokens_cost_their_entropy(name: str) -> None:
    """XLNet's queries reveal nothing of their answer; MPNet's show the answer at a known rate."""
    vocab = FIRST_ORDINARY + 8
    objective = settings(name, mask_rate=0.3)
    uniform = math.log(8)
    same = (0.1 + 0.1 / 8) / 0.2
    guess = -same * math.log(same) - (1 - same) * math.log((1 - same) / 7)
    floor = uniform if name == "permuted" else 0.8 * uniform + 0.2 * guess

    def batch(seed: int, rows: int) -> Any:
        windows = random_windows(rows, 20, vocab=vocab, seed=seed)
        return collate(make_examples(windows, vocabulary(vocab), objective))

    model = toys.model(vocab=vocab, num_layers=2, initializer_range=0.05)
    train(model, (batch(seed, 32) for seed in range(120)), 5e-3)
    train(model, (batch(seed, 64) for seed in range(120, 160)), 5e-4)
    with torch.no_grad():
        result = model(batch(999, 3000))["par"]
    loss = float(result.total / result.weight)
    error = 1.2 / math.sqrt(result.weight)
    assert floor - 4 * error < loss < floor + 0.05


def test_recipes_are_the_papers() -> None:
    xlnet, mpnet = load_recipe("xlnet-base"), load_recipe("mpnet-base")
    for recipe in (xlnet, mpnet):
        model = recipe.model
        assert (model.num_layers, model.hidden_size, model.intermediate_size, model.num_heads) == (12, 768, 3072, 12)
        assert (recipe.data.window, recipe.objective.targets, recipe.objective.factorization) == (512, ["par"], "token")
    assert (xlnet.objective.name, xlnet.model.positions, xlnet.model.memory) == ("permuted", "transformer_xl", 384)
    assert (xlnet.objective.mask_rate, xlnet.tokenizer.lowercase, xlnet.tokenizer.vocab_size) == (1 / 6, False, 32000)
    assert (xlnet.data.order, xlnet.model.relative_bias) == ("streams", False)
    assert (mpnet.objective.name, mpnet.objective.mask_rate, mpnet.objective.masking) == ("compensated", 0.15, "token")
    assert (mpnet.objective.mask_share, mpnet.objective.random_share) == (0.8, 0.1)
    assert (mpnet.model.relative_bias, mpnet.model.relative_buckets) == (True, 32)
    assert (mpnet.training.steps, mpnet.training.batch_size, mpnet.training.learning_rate) == (500_000, 8192, 6e-4)


def test_rows_have_room_for_one_predicted_token_or_as_many_as_asked_for() -> None:
    """A row of one predicted token: 6 - 1 context slots, and two slots per token there is room for."""
    one = np.where(STEPS == 1, 0, -1).astype(np.int32)
    permuted = {most: lay_out_permuted(six_tokens(), one, vocabulary(), pseudo=PSEUDO, most=most) for most in (1, 2)}
    assert (
        lay_out_permuted(six_tokens(), one, vocabulary(), pseudo=PSEUDO).input_ids.shape == permuted[1].input_ids.shape
    )
    assert permuted[2].input_ids.shape[1] > permuted[1].input_ids.shape[1]
    compensated = {
        most: lay_out_compensated(six_tokens(), one, vocabulary(), ALL_MASKED, pseudo=PSEUDO, most=most)
        for most in (1, 2)
    }
    default = lay_out_compensated(six_tokens(), one, vocabulary(), ALL_MASKED, pseudo=PSEUDO)
    assert default.input_ids.shape == compensated[1].input_ids.shape
    assert compensated[2].input_ids.shape[1] > compensated[1].input_ids.shape[1]
