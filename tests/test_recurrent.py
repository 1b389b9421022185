"""LSTMs: which slots they read, against `nn.LSTM`, weight drop and the other dropouts, AR and TAR, the carried state."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import golden_fastai as fastai
import single_rows
from objective_toys import CASES, rows_of, target_of
from recurrent_toys import backbone_of, read_by_hand, recurrent_model
from toys import random_windows, vocabulary
from unicloze import visibility
from unicloze.errors import UsageError
from unicloze.example import Batch, Memory, collate
from unicloze.interop.stock import check_format
from unicloze.model.build import build
from unicloze.model.dropout import DropoutKey
from unicloze.model.recurrent.backbone import layer_widths
from unicloze.model.recurrent.layers import BACKWARD, FORWARD, Direction, RecurrentLayer, find_runs, find_texts
from unicloze.objectives.causal import causal
from unicloze.packing import pack
from unicloze.recipes import load_recipe
from unicloze.settings import ModelSettings
from unicloze.text.windows import Windows
from unicloze.training.batches import MicroBatch, with_memory
from unicloze.visibility import bidirectional_rows, left_to_right_rows

LEFT_TO_RIGHT, RIGHT_TO_LEFT = CASES["gpt"], CASES["gpt, right_to_left"]
BOTH = FORWARD, BACKWARD


def batch_of(windows: Windows, settings: Any = LEFT_TO_RIGHT) -> Batch:
    return collate(causal(windows, vocabulary(), settings))


# Runs


def said(intervals: np.ndarray, *directions: Direction) -> dict[str, list[tuple[int, int, int]]]:
    """(row, leftmost slot, slots) of each run by direction."""
    found = find_runs(intervals, directions or BOTH)
    return {
        name: sorted(zip(*map(np.ndarray.tolist, (r.rows, r.starts, r.lengths)), strict=True))
        for name, r in found.items()
    }  # type: ignore[arg-type]


def test_a_slot_belongs_to_the_run_that_it_reads() -> None:
    rows = single_rows.packed(
        [single_rows.left_to_right(4), single_rows.right_to_left(3), single_rows.left_to_right(2)]
    )
    assert said(rows[None]) == {FORWARD: [(0, 0, 4), (0, 7, 2)], BACKWARD: [(0, 4, 3)]}
    padded = visibility.right_to_left_rows(np.array([3, 2]), capacity=4)
    assert said(padded, BACKWARD) == {BACKWARD: [(0, 0, 3), (0, 3, 1), (1, 0, 2), (1, 2, 1), (1, 3, 1)]}


@pytest.mark.parametrize("rule", [
    single_rows.bidirectional(3),
    single_rows.prefix(2, 2),
    single_rows.pseudo_masked(2, [1]),
    single_rows.permuted(0, 2, [1]),
    visibility.nearby(single_rows.left_to_right(4), 1),
], ids=["bidirectional", "prefix", "pseudo", "permuted", "local"])  # fmt: skip
def test_what_no_lstm_can_follow_is_refused(rule: np.ndarray) -> None:
    with pytest.raises(UsageError, match=r"model\.kind recurrent reads .* left to right or from right to left"):
        find_runs(rule[None], BOTH)


def test_a_direction_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match=r"read backward, but model\.directions is forward"):
        recurrent_model()(batch_of(random_windows(2, 8), RIGHT_TO_LEFT))


# The cells


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("outputs", [6, 4], ids=["plain", "projected"])
@pytest.mark.parametrize("lengths", [[5, 5, 5], [5, 3, 1]], ids=["alike", "different"])
@pytest.mark.parametrize("clip", [None, 100.0], ids=["torch's kernel", "own loop"])
def test_a_layer_is_an_lstm_in_values_and_gradients(outputs: int, lengths: list[int], clip: float | None) -> None:
    settings = ModelSettings(kind="recurrent", cell_clip=clip, projection_clip=clip)
    layer = RecurrentLayer(3, 6, outputs, settings)
    x = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(1))
    alone = [layer.lstm(x[row : row + 1, :length]) for row, length in enumerate(lengths)]
    sum(output.square().sum() for output, _ in alone).backward()
    gradients = {name: weight.grad.clone() for name, weight in layer.named_parameters() if weight.grad is not None}
    layer.zero_grad()
    state = torch.zeros(3, outputs), torch.zeros(3, 6)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True)
    alike = len(set(lengths)) == 1
    found, (h, c) = layer(x if alike else packed.data, None if alike else packed.batch_sizes, state)
    found.square().sum().backward()
    if not alike:
        together = nn.utils.rnn.PackedSequence(found, packed.batch_sizes)
        found, _ = nn.utils.rnn.pad_packed_sequence(together, batch_first=True)
    for row, (output, (_, cell)) in enumerate(alone):
        torch.testing.assert_close(found[row, : lengths[row]], output[0])
        torch.testing.assert_close(h[row], output[0, -1])
        torch.testing.assert_close(c[row], cell[0, 0])
    assert set(gradients) == {name for name, _ in layer.named_parameters()}
    for name, weight in layer.named_parameters():
        torch.testing.assert_close(weight.grad, gradients[name], atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("outputs", [6, 4], ids=["plain", "projected"])
@pytest.mark.parametrize("lengths", [[5, 5, 5], [5, 3, 1]], ids=["alike", "different"])
def test_weight_drop_on_a_gpu_warns_of_nothing(outputs: int, lengths: list[int]) -> None:
    layer = RecurrentLayer(3, 6, outputs, ModelSettings(kind="recurrent", weight_dropout=0.5)).cuda()
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(3, 5, 3, device="cuda"), torch.tensor(lengths), True)
    x, running = (packed.data, packed.batch_sizes) if len(set(lengths)) > 1 else (packed.data.view(5, 3, 3), None)
    rows = x.shape[0] if running is None else 3
    state = torch.zeros(rows, outputs, device="cuda"), torch.zeros(rows, 6, device="cuda")
    found, _ = layer(x, running, state, DropoutKey(7))
    found.sum().backward()
    assert all(weight.grad is not None for weight in layer.parameters())


def test_weight_drop_by_hand() -> None:
    """Recurrent weights are dropped once for all steps; the equations of an LSTM give the outputs, step by step."""
    layer = RecurrentLayer(3, 5, 5, ModelSettings(kind="recurrent", weight_dropout=0.5))
    weights = {name: weight.detach().clone() for name, weight in layer.lstm.named_parameters()}
    dropped = DropoutKey(7)(weights["weight_hh_l0"], 0.5)
    kept = dropped != 0
    assert 0.2 < kept.float().mean() < 0.8 and torch.equal(dropped[kept], 2 * weights["weight_hh_l0"][kept])
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    found, _ = layer(x, None, (torch.zeros(2, 5), torch.zeros(2, 5)), DropoutKey(7))
    h, c = torch.zeros(2, 5), torch.zeros(2, 5)
    for step in range(4):
        gates = x[:, step] @ weights["weight_ih_l0"].T + weights["bias_ih_l0"] + h @ dropped.T + weights["bias_hh_l0"]
        i, f, g, o = gates.chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        torch.testing.assert_close(found[:, step], h)
    found.sum().backward()
    gradient = layer.lstm.weight_hh_l0.grad
    assert gradient is not None and torch.equal(gradient != 0, kept)


# The network


@pytest.mark.parametrize("settings", [LEFT_TO_RIGHT, RIGHT_TO_LEFT], ids=["forward", "backward"])
def test_the_network_is_a_stack_of_lstms(settings: Any) -> None:
    direction = FORWARD if settings is LEFT_TO_RIGHT else BACKWARD
    model = recurrent_model(directions=direction).eval()
    windows = random_windows(5, 12, short=True)
    batch = batch_of(windows, settings)
    with torch.no_grad():
        states = backbone_of(model)(batch)
        for row, length in enumerate(windows.lengths.tolist()):
            wanted = read_by_hand(model, batch.input_ids[row : row + 1, :length], direction)[0]
            torch.testing.assert_close(states[-1][row, :length], wanted)
            torch.testing.assert_close(states[0][row], model.backbone.embeddings.tokens(batch.input_ids[row]))
    assert [state.shape[2] for state in states] == [8, 12, 8]


def test_a_dropout_mask_is_the_same_at_all_steps_of_a_row() -> None:
    model = recurrent_model(dropout=0.5).train()
    batch = batch_of(random_windows(3, 10))
    reading = backbone_of(model).read(batch, DropoutKey(3))
    raw, dropped = reading.states[-2], reading.states[-1]
    zero = dropped == 0
    assert zero.any() and not zero.all()
    assert (zero == zero[:, :1]).all() and not torch.equal(zero[0], zero[1])
    torch.testing.assert_close(dropped[~zero], 2 * raw[~zero])


def test_embedding_dropout_drops_every_occurrence_of_a_token() -> None:
    model = recurrent_model(embedding_dropout=0.5)
    tokens = torch.arange(50).repeat(2, 2)
    embedded = model.backbone.embeddings(tokens, DropoutKey(5))
    zero = (embedded == 0).all(dim=2)
    assert torch.equal(zero[0, :50], zero[0, 50:]) and torch.equal(zero[0], zero[1]) and 10 < zero[0, :50].sum() < 40
    table = model.backbone.embeddings.tokens.weight
    torch.testing.assert_close(embedded[0][~zero[0]], 2 * table[tokens[0]][~zero[0]])


def test_ar_and_tar_enter_the_gradient_and_not_the_loss() -> None:
    """Short rows: the means are over real slots, and no difference crosses the end of a row."""
    windows = random_windows(4, 9, short=True)
    batch = batch_of(windows)
    model = recurrent_model(dropout=0.5, activation_penalty=2.0, temporal_penalty=3.0).train()
    loss = model(batch, DropoutKey(1))["lm"]
    loss.total.backward()
    plain = recurrent_model(dropout=0.5).train()
    expected = plain(batch, DropoutKey(1))["lm"]
    states = backbone_of(plain).read(batch, DropoutKey(1)).states
    raw, shown = ([state[row, :length] for row, length in enumerate(windows.lengths)] for state in states[-2:])
    activation = torch.cat(shown).square().mean()
    temporal = torch.cat([each[1:] - each[:-1] for each in raw]).square().mean()
    (expected.total + expected.weight * (2 * activation + 3 * temporal)).backward()
    assert loss.total.item() == pytest.approx(expected.total.item(), rel=1e-6)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-4)


def test_nothing_is_dropped_or_penalised_in_evaluation() -> None:
    plain = recurrent_model()
    full = recurrent_model(dropout=0.5, embedding_dropout=0.5, weight_dropout=0.5, activation_penalty=2.0)
    batch = batch_of(random_windows(3, 9))
    assert plain.eval()(batch)["lm"].total.item() == full.eval()(batch)["lm"].total.item()


@pytest.mark.parametrize("to", ["bert", "unicloze"])
def test_no_format_of_transformers_holds_lstms(to: str) -> None:
    recipe = load_recipe("awd-lstm")
    loaded: Any = SimpleNamespace(model=SimpleNamespace(settings=recipe.model), recipe=recipe, path="runs/lstm")
    with pytest.raises(UsageError, match=r"runs/lstm: model\.kind is recurrent, and all formats but package "):
        check_format(to, loaded)


# The carried state


def in_windows(windows: Windows, first: int, last: int, *, continues: bool) -> MicroBatch:
    """Some slots of every row as windows of their own."""
    columns = {name: getattr(windows, name)[:, first:last] for name in ("token_ids", "segment_ids", "maskable")}
    lengths, rows = np.full(len(windows), last - first, np.int32), len(windows)
    part = dataclasses.replace(windows, **columns, lengths=lengths, continues=np.full(rows, continues))
    return MicroBatch(causal(part, vocabulary(), LEFT_TO_RIGHT), part)


def test_windows_with_a_carried_state_read_as_one_long_row() -> None:
    model = recurrent_model(memory=1).eval()
    windows = random_windows(3, 20)
    whole = read_by_hand(model, torch.from_numpy(windows.token_ids).long())
    memory, found = None, []
    with torch.no_grad():
        for first, continues in ((0, False), (5, True), (10, True), (15, True), (5, False)):
            micro_batch = in_windows(windows, first, first + 5, continues=continues)
            batch = with_memory(collate(micro_batch.examples), micro_batch, memory, model.settings)
            found.append(backbone_of(model)(batch)[-1])
            memory = batch.memory
        torch.testing.assert_close(torch.cat(found[:4], dim=1), whole)
        alone = read_by_hand(model, torch.from_numpy(windows.token_ids[:, 5:10]).long())
        torch.testing.assert_close(found[4], alone)


def test_the_state_of_a_short_row_is_that_of_its_last_token() -> None:
    model = recurrent_model(memory=1).eval()
    windows = dataclasses.replace(random_windows(6, 12, short=True), continues=np.zeros(6, bool))
    made = MicroBatch(causal(windows, vocabulary(), LEFT_TO_RIGHT), windows)
    batch = with_memory(collate(made.examples), made, None, model.settings)
    states = backbone_of(model)(batch)[-1]
    assert batch.memory is not None and not batch.memory.states.requires_grad
    last = torch.from_numpy(windows.lengths - 1).long()
    torch.testing.assert_close(batch.memory.states[2, :, 0, :8], states.detach()[torch.arange(6), last])


# Bidirectional layers, which read both directions of the layer below


BOTH_WAYS: dict[str, Any] = {"directions": "bidirectional"}


def texts(*lengths: int, seed: int = 0) -> Batch:
    """Rows of random tokens that read themselves in both directions; every slot predicts."""
    count = np.array(lengths, np.int32)
    slot, rng = np.arange(max(lengths), dtype=np.int32), np.random.default_rng(seed)
    real = slot < count[:, None]
    ids = np.where(real, rng.integers(6, vocabulary().size, real.shape), vocabulary().pad).astype(np.int32)
    target = target_of(np.where(real, slot, 0), 0 * ids)
    intervals = bidirectional_rows(count, capacity=len(slot))
    return collate(
        rows_of(ids, intervals, {"lm": dataclasses.replace(target, weights=real.astype(np.float32))}, lengths=count)
    )


def same_weights(model: Any) -> list[nn.LSTM]:
    """Torch's bidirectional layers with the weights of a model."""
    found = []
    for layer in backbone_of(model).layers:
        one, other = layer.of(FORWARD).lstm, layer.of(BACKWARD).lstm
        theirs = nn.LSTM(one.input_size, one.hidden_size, batch_first=True, bidirectional=True, proj_size=one.proj_size)
        weights = dict(one.named_parameters()) | {f"{k}_reverse": v for k, v in other.named_parameters()}
        with torch.no_grad():
            for name, weight in theirs.named_parameters():
                weight.copy_(weights[name])
        found.append(theirs)
    return found


@pytest.mark.parametrize("settings", [{}, {"projection": True, "intermediate_size": 10, "embedding_size": 6}])
@pytest.mark.parametrize("lengths", [(5, 5), (5, 3, 1)])
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_layers_are_those_of_torch_in_values_and_gradients(settings: Any, lengths: tuple[int, ...]) -> None:
    model, batch = recurrent_model(**BOTH_WAYS, **settings), texts(*lengths)
    theirs = same_weights(model)
    states = model.backbone(batch)
    embedded = backbone_of(model).embeddings(batch.input_ids).detach()
    total, reference = torch.zeros(()), torch.zeros(())
    for row, length in enumerate(lengths):
        x = embedded[row : row + 1, :length]
        for layer, lstm in enumerate(theirs):
            x, _ = lstm(x)
            torch.testing.assert_close(states[layer + 1][row, :length], x[0])
        total, reference = total + states[-1][row, :length].square().sum(), reference + x.square().sum()
    (total + reference).backward()
    lowest = backbone_of(model).layers[0].of(BACKWARD).lstm
    torch.testing.assert_close(lowest.weight_hh_l0.grad, theirs[0].weight_hh_l0_reverse.grad)


def test_packed_rows_read_as_rows_of_their_own() -> None:
    model, one, other = recurrent_model(**BOTH_WAYS), texts(5, 4), texts(3, seed=1)
    packed = model.backbone(pack([one, other]))[-1][0]
    torch.testing.assert_close(packed[:10].view(2, 5, -1), model.backbone(one)[-1])
    torch.testing.assert_close(packed[10:], model.backbone(other)[-1][0])


def test_the_last_layer_has_as_many_cells_as_outputs() -> None:
    """CVT: 1024 cells projected to 512, then 512 cells, which read both directions."""
    settings = ModelSettings(
        kind="recurrent", directions="bidirectional", hidden_size=1024, intermediate_size=1024, embedding_size=300,
        num_layers=2, projection=True,
    )  # fmt: skip
    assert layer_widths(settings) == [(300, 1024, 512), (1024, 512, 512)]


def test_a_dropout_mask_is_the_same_at_all_slots_of_a_row() -> None:
    model = recurrent_model(**BOTH_WAYS, hidden_dropout=0.5, dropout=0.5)
    reading = backbone_of(model).read(texts(6, 4), DropoutKey(3))
    assert len(reading.shown) == 2
    for raw, shown in zip(reading.states[1:3], reading.shown, strict=True):
        kept = (shown / raw)[0]
        torch.testing.assert_close(kept, kept[:1].expand_as(kept))
        assert set(kept[0].round(decimals=4).tolist()) == {0.0, 2.0}
        assert not torch.equal((shown / raw)[0, 0], (shown / raw)[1, 0])
    torch.testing.assert_close(reading.by_layer[-1], reading.shown[-1])


def test_only_whole_texts_are_read() -> None:
    rows = bidirectional_rows(np.array([4, 2]), capacity=4)
    found = find_texts(rows)[FORWARD]
    assert [found.rows.tolist(), found.starts.tolist(), found.lengths.tolist()] == [
        [0, 1, 1, 1], [0, 0, 2, 3], [4, 2, 1, 1],
    ]  # fmt: skip
    assert find_texts(rows)[BACKWARD].backward
    wider = rows.copy()
    wider[0, 1, 1] = 3
    for other in (left_to_right_rows(np.array([4, 2]), capacity=4), wider):
        with pytest.raises(UsageError, match=r"model\.directions bidirectional reads whole texts"):
            find_texts(other)


# Beside fastai's AWD-LSTM: losses, AR and TAR, and gradients of two batches with a carried state

SETTINGS = ModelSettings(
    kind="recurrent", hidden_size=fastai.EMBEDDING, intermediate_size=fastai.HIDDEN, num_layers=fastai.LAYERS, memory=1,
    head="linear", dropout=0.0, activation_penalty=fastai.ALPHA, temporal_penalty=fastai.BETA,
)  # fmt: skip


def batch_at(number: int, memory: Memory) -> Batch:
    tokens = fastai.tokens_of(number).numpy().astype(np.int32)
    rule = left_to_right_rows(np.full(fastai.ROWS, fastai.STEPS), capacity=fastai.STEPS)
    slots = np.tile(np.arange(fastai.STEPS), (fastai.ROWS, 1))
    batch = collate(rows_of(tokens[:, :-1], rule, {"lm": target_of(slots, tokens[:, 1:])}))
    return dataclasses.replace(batch, memory=memory, text_slots=torch.from_numpy(slots))


def test_losses_and_gradients_are_those_of_fastai() -> None:
    model = build(SETTINGS, vocab_size=fastai.VOCABULARY, max_positions=fastai.STEPS, targets=["lm"])
    weights: dict[str, Any] = dict(model.named_parameters())
    names = {"backbone.embeddings.tokens.weight": "tokens", "token_head.bias": "bias"}
    for layer in range(fastai.LAYERS):
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            names[f"backbone.layers.{layer}.cells.left_to_right.lstm.{name}"] = f"{layer}.{name}"
    assert set(names) == set(weights)
    with torch.no_grad():
        for name, named in names.items():
            weights[name].copy_(fastai.weight_of(named, tuple(weights[name].shape)))
    memory = Memory(
        states=torch.zeros(SETTINGS.memory_shape(fastai.ROWS)),
        lengths=torch.zeros(fastai.ROWS, dtype=torch.long),
    )
    for number, golden in enumerate(json.loads(fastai.FILE.read_text())["batches"]):
        model.zero_grad()
        batch = batch_at(number, memory)
        loss = model.train()(batch, DropoutKey(0))["lm"]
        mean = loss.total / loss.weight
        mean.backward()
        assert mean.item() == pytest.approx(golden["loss"], rel=1e-5)
        for name, named in names.items():
            expected = pytest.approx(golden["gradients"][named], rel=1e-3, abs=1e-5)
            assert fastai.summary(weights[name].grad) == expected, name
        assert batch.memory is not None
        memory = batch.memory
