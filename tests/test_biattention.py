"""CoVe's transfer: the biattentive network by its equations, padding, texts that stay apart, a frozen backbone, resuming."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nlu_toys
from nlu_toys import events_of, finetuned, recipe_for, resumed_alike, write
from unicloze.errors import UsageError
from unicloze.example import Examples, collate
from unicloze.files import CHECKPOINTS
from unicloze.model.dropout import DropoutKey
from unicloze.model.flops import linear_flops
from unicloze.model.task_heads import POOL, Biattention, BiattentiveHead, Maxout, NormedLinear
from unicloze.packing import pack
from unicloze.recipes import load_recipe
from unicloze.records import read_records
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.rows import lay_out
from unicloze.training.checkpoint import load_checkpoint
from unicloze.training.loading import LoadedModel, ready_model

SIZE = 3
PAIRS = [
    {"text": "anna sees berlin", "pair": "eva leaves dublin playing", "label": "yes"},
    {"text": "carl plays", "pair": "fargo", "label": "no"},
    {"text": "dublin sees eva leaves carl plays berlin", "pair": "anna plays", "label": "yes"},
    {"text": "eva plays berlin", "pair": "berlin sees eva playing", "label": "no"},
]  # fmt: skip


def network(inputs: int = 5, rate: float = 0.0) -> Biattention:
    torch.manual_seed(0)
    made = Biattention(inputs, SIZE, rate)
    for module in made.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.weight, 1.0, 0.2)
            nn.init.normal_(module.bias, 0.0, 0.2)
            nn.init.normal_(module.running_mean, 0.0, 0.2)  # type: ignore[arg-type]
    return made


def by_hand(made: Biattention, x: Tensor, y: Tensor) -> Tensor:
    """The pooled vector of one pair without padding, token by token."""
    x, y = (made.encoder(torch.relu(text @ made.feed.weight.T + made.feed.bias)[None])[0][0] for text in (x, y))
    pooled = []
    for side, (own, other) in enumerate(((x, y), (y, x))):
        seen = []
        for token in own:
            affinity = torch.stack([token @ theirs for theirs in other])
            summary = sum(
                (share * theirs for share, theirs in zip(affinity.softmax(dim=0), other, strict=True)),
                torch.zeros(len(token)),
            )
            seen.append(torch.cat([token, token - summary, token * summary]))
        read = made.integrators[side](torch.stack(seen)[None])[0][0]
        scores = torch.stack([made.attentions[side](token)[0] for token in read])
        attended = sum(
            (share * token for share, token in zip(scores.softmax(dim=0), read, strict=True)),
            torch.zeros(read.shape[1]),
        )
        pooled += [read.max(dim=0).values, read.mean(dim=0), read.min(dim=0).values, attended]
    return torch.cat(pooled)


def maxout_by_hand(layer: Maxout, x: Tensor) -> Tensor:
    """Batch normalisation by torch, then the largest of four maps of each unit. *Shape:* (pairs, inputs)"""
    normed = layer.normed.norm(x)
    maps = normed @ layer.normed.linear.weight.T + layer.normed.linear.bias
    return torch.stack(
        [torch.stack([row[unit * POOL : (unit + 1) * POOL].max() for unit in range(len(row) // POOL)]) for row in maps]
    )


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("single", [False, True], ids=["pairs", "single"])
def test_the_network_by_hand_in_values_and_gradients(single: bool, training: bool) -> None:
    """Texts of different lengths in one batch, whose padding holds numbers that must not matter."""
    made, wanted_net = network().train(training), network().train(training)
    for module in wanted_net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = None  # the mean of all batches
    draw = torch.Generator().manual_seed(1)
    sides = [[torch.randn(length, 5, generator=draw) for length in lengths] for lengths in ((4, 1, 3), (2, 5, 3))]
    sides, texts, real = sides[: 1 if single else 2], [], []
    for side in sides:
        padded = nn.utils.rnn.pad_sequence(side, batch_first=True, padding_value=7.0)
        texts.append(nn.functional.pad(padded, (0, 0, 0, 1), value=7.0))
        real.append(torch.arange(texts[-1].shape[1]) < torch.tensor([[len(text)] for text in side]))
    found = made((texts[0], texts[-1]), (real[0], real[-1]), None)
    wanted = torch.stack([by_hand(wanted_net, *pair) for pair in zip(sides[0], sides[-1], strict=True)])
    for layer in wanted_net.maxouts:
        wanted = maxout_by_hand(layer, wanted)  # type: ignore[arg-type]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    factors = torch.randn(found.shape, generator=draw)
    (factors * found).sum().backward()
    (factors * wanted).sum().backward()
    theirs = dict(wanted_net.named_parameters())
    for name, weight in made.named_parameters():
        assert weight.grad is not None and weight.grad.isfinite().all(), name
        torch.testing.assert_close(weight.grad, theirs[name].grad, atol=5e-5, rtol=1e-3)
    for name, statistic in made.named_buffers():
        torch.testing.assert_close(statistic, wanted_net.get_buffer(name))


def test_running_statistics_are_a_mean_at_first_and_then_follow() -> None:
    layer, wanted = NormedLinear(3, 2, 0.0).train(), nn.BatchNorm1d(3, momentum=None).train()
    for number in range(14):
        x = 1e-3 * torch.randn(6, 3, generator=torch.Generator().manual_seed(number))
        wanted.momentum = None if number < 10 else 0.1
        layer(x, None)
        wanted(x)
        torch.testing.assert_close(layer.norm.running_var, wanted.running_var, atol=0, rtol=1e-5)
        torch.testing.assert_close(layer.norm.running_mean, wanted.running_mean, atol=0, rtol=1e-5)
    kept = layer.norm.running_var.clone()  # type: ignore[union-attr]
    layer(x[:1], None)
    layer.eval()(x, None)
    assert torch.equal(kept, layer.norm.running_var)  # type: ignore[arg-type]


def test_the_network_starts_with_orthogonal_lstms_that_remember() -> None:
    made = network()
    made.initialize(torch.Generator().manual_seed(3))
    for lstm in (made.encoder, *made.integrators):
        assert isinstance(lstm, nn.LSTM)
        for gate in lstm.weight_hh_l0.chunk(4):  # type: ignore[operator]
            torch.testing.assert_close(gate @ gate.T, torch.eye(SIZE))
        biases = lstm.bias_ih_l0.detach() + lstm.bias_hh_l0.detach()  # type: ignore[operator]
        assert biases.tolist() == [0.0] * SIZE + [1.0] * SIZE + [0.0] * 2 * SIZE
    assert made.feed.bias.count_nonzero() == 0
    wide = Biattention(400, 200, 0.0)
    wide.initialize(torch.Generator().manual_seed(3))
    assert wide.feed.weight.std().item() == pytest.approx((2 / 600) ** 0.5, rel=0.02)


def test_dropout_is_keyed() -> None:
    made = network(rate=0.5).eval()
    x, real = torch.randn(2, 3, 5), torch.ones(2, 3, dtype=torch.bool)
    once, again, other = (made((x, x), (real, real), DropoutKey(key)) for key in (1, 1, 2))
    assert torch.equal(once, again) and not torch.equal(once, other)


@pytest.fixture(scope="module")
def cove() -> LoadedModel:
    return nlu_toys.start("cove", model__embedding_size=12)


def task_of(start: LoadedModel, *, pair: bool = True, **settings: Any) -> Recipe:
    recipe = recipe_for(
        start, "cove-classification", **{"task__head_size": 4, "task__labels": ["no", "yes"], **settings}
    )
    optional = ["pair"] if pair else []
    return dataclasses.replace(recipe, task=dataclasses.replace(recipe.task, optional=optional))


def rows_of(start: LoadedModel, recipe: Recipe, records: list[dict[str, Any]], folder: Path) -> Examples:
    file = write(folder / "records.jsonl", records)
    rows = TASKS["classification"].encode(read_records(file, recipe.task), start.tokenizer, recipe)
    return lay_out(rows, start.tokenizer.vocabulary, recipe)


def without_pair(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "pair"} for record in records]


@pytest.mark.parametrize("pair", [False, True], ids=["single", "pairs"])
def test_the_head_reads_embeddings_and_states_of_each_text_alone(pair: bool, cove: LoadedModel, tmp_path: Path) -> None:
    """Against the encoder on each text by itself and the equations above; alone, in a batch and packed are the same."""
    recipe = task_of(cove, pair=pair)
    model = ready_model(recipe, cove.model.vocab_size, torch.device("cpu")).eval()
    head, backbone = model.task_head("label"), model.backbone  # type: ignore[operator,union-attr]
    assert isinstance(head, BiattentiveHead)
    records = PAIRS if pair else without_pair(PAIRS)
    examples = rows_of(cove, recipe, records, tmp_path)
    sos, eos = cove.tokenizer.vocabulary.sos, cove.tokenizer.vocabulary.eos
    with torch.no_grad():
        found = model.outputs(collate(examples))["label"][:, 0]  # type: ignore[operator]
        packed = model.outputs(pack([collate(examples[:1]), collate(examples[1:])]))["label"][0]  # type: ignore[operator]
        torch.testing.assert_close(packed, found, atol=1e-5, rtol=1e-5)
        vectors = []
        for number, record in enumerate(records):
            alone = model.outputs(collate(examples[number : number + 1]))["label"][0, 0]  # type: ignore[operator]
            torch.testing.assert_close(alone, found[number], atol=1e-5, rtol=1e-5)
            sides = []
            for role in ("text", "pair") if pair else ("text", "text"):
                ids = torch.tensor([[sos, *cove.tokenizer.encode(record[role]).tolist(), eos]])
                whole = np.tile([0, ids.shape[1], 0, 0], (1, ids.shape[1], 1)).astype(np.int32)
                one = dataclasses.replace(
                    collate(examples[:1]), input_ids=ids, intervals=torch.from_numpy(whole), targets={}
                )
                embedded, states = backbone(one)  # type: ignore[operator]
                sides.append(torch.cat([embedded, states], dim=2)[0])
            vectors.append(by_hand(head.biattention, sides[0], sides[1]))
        wanted = torch.stack(vectors)
        for layer in (*head.biattention.maxouts, head.output):
            wanted = maxout_by_hand(layer, wanted)  # type: ignore[arg-type]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_a_pair_fits_the_longest_row(cove: LoadedModel, tmp_path: Path) -> None:
    """Each text has both special tokens, one more than in a row that both share."""
    recipe = task_of(cove, task__max_length=12)
    with pytest.warns(UserWarning, match="longer"):
        examples = rows_of(cove, recipe, PAIRS, tmp_path)
    assert int(examples.lengths.max()) == 12


def test_a_transformer_may_be_read_by_the_network_too(tmp_path: Path) -> None:
    start = nlu_toys.start("gpt-2")
    recipe = task_of(start, pair=False, training__frozen=[])
    model = ready_model(recipe, start.model.vocab_size, torch.device("cpu")).train()
    batch = collate(rows_of(start, recipe, without_pair(PAIRS), tmp_path))
    model(batch, DropoutKey(1))["label"].total.backward()
    assert all(weight.grad is not None for name, weight in model.named_parameters() if "token_head" not in name)


@pytest.mark.parametrize(("task", "changes", "said"), [
    ("cove-classification", {"task.pooling": "mean"}, r"task\.pooling is 'mean'; a biattentive head has poolings"),
    ("cove-classification", {"task.both_orders": True, "task.pooling": "first"}, r"reads the texts of a pair apart"),
    ("cove-classification", {"task.head_size": 0}, r"task\.head_size is 0"),
    ("cove-classification", {"task.layers": "all"}, r"a biattentive head reads the embeddings and the last layer"),
    ("pos", {"task.head": "biattentive"}, r"biattentive needs one prediction per text"),
])  # fmt: skip
def test_what_the_network_does_not_read_is_refused(task: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_recipe(task, changes)


def test_its_operations_are_those_of_its_products(cove: LoadedModel) -> None:
    """A token of a pair passes through feed-forward layer, encoder and one integrator; of a single text, through both."""
    model = ready_model(task_of(cove), cove.model.vocab_size, torch.device("cpu"))
    head = model.task_head("label")  # type: ignore[operator]
    sizes = {name: weight.numel() for name, weight in head.named_parameters() if weight.ndim == 2}

    def of(*parts: str) -> int:
        return 2 * sum(size for name, size in sizes.items() if any(name.startswith(f"biattention.{p}") for p in parts))

    found = [head.biattention.flops(slots=10, texts=texts, predictions=2) for texts in (2, 1)]
    tokens, maxouts = of("feed", "encoder"), of("maxouts")
    assert found[0] == 10 * (tokens + of("integrators.0")) + 2 * maxouts
    assert found[1] == 10 * (tokens + of("integrators")) + 2 * maxouts
    assert linear_flops(head.output) == 2 * sizes["output.normed.linear.weight"]


@pytest.mark.slow
def test_the_head_memorises_sentences_despite_dropout_and_knows_them_when_evaluated(
    cove: LoadedModel, tmp_path: Path
) -> None:
    """Thirty-two sentences with random labels: what it learned in training mode holds with the running statistics."""
    draw = np.random.default_rng(0)
    labels = ["no", "yes"] * 16
    records = [{"text": " ".join(draw.choice(nlu_toys.WORDS, size=8)), "label": label} for label in labels]
    recipe = task_of(cove, pair=False, task__head_size=16, task__head_dropout=0.1)
    model = ready_model(recipe, cove.model.vocab_size, torch.device("cpu")).train()
    batch = collate(rows_of(cove, recipe, records, tmp_path))
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=0.01)
    for step in range(160):
        loss = model(batch, DropoutKey(step))["label"].total / len(records)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        found = model.eval().outputs(batch)["label"][:, 0].argmax(dim=1)  # type: ignore[operator]
    assert found.tolist() == [0, 1] * 16


@pytest.mark.whole
def test_a_run_resumes_exactly_and_leaves_the_frozen_layers_alone(cove: LoadedModel, tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", PAIRS)
    recipe = task_of(
        cove, finetuning__epochs=6, finetuning__evaluations=1 / 6, training__batch_size=2, training__learning_rate=5e-3,
        task__head_dropout=0.1, training__save_every=5,
    )  # fmt: skip
    resumed_alike(lambda out: finetuned(recipe, cove, train, train, tmp_path / out), 8, folder=tmp_path)
    starts = [event["step"] for event in events_of(tmp_path / "broken") if event["event"] == "start"]
    assert starts == [0, 5]
    after = load_checkpoint(tmp_path / "whole" / CHECKPOINTS / "step-00000012").model
    assert any("running_mean" in name for name in after)
    for name, weight in cove.model.backbone.state_dict().items():
        assert torch.equal(after[f"backbone.{name}"], weight) != (name == "embeddings.tokens.weight"), name
