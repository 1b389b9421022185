"""GPT, ELECTRA and XLNet against Transformers at random initialisation; layers, selection and kernels against plain code.

`test_import_families`, `test_language_model_folders` and `test_two_stacks_parity` compare the other families.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import toys
from interop_toys import labels_of, same_gradients, with_our_weights
from toys import PSEUDO, random_windows, vocabulary
from unicloze.example import Batch, Memory, collate
from unicloze.interop.families import FAMILIES
from unicloze.interop.family import Architecture
from unicloze.interop.tables import Table
from unicloze.model.build import ReplacedTokenModel, build, generator_settings
from unicloze.model.dropout import DropoutKey
from unicloze.model.model import UnifiedModel
from unicloze.objectives import make_examples, settings_of
from unicloze.objectives.causal import causal
from unicloze.objectives.permuted import lay_out_permuted
from unicloze.objectives.unilmv2 import unilmv2
from unicloze.settings import ModelSettings
from xl_toys import two_streams, xl_model

transformers = pytest.importorskip("transformers")

LEFT_TO_RIGHT = settings_of(name="causal", targets=["lm"], visibility="left_to_right")
GPT: dict[str, Any] = dict(
    num_segments=0, relative_bias=False, head="linear", head_bias=False, activation="gelu_tanh", layer_norm_eps=1e-5
)
LAYERS, WIDTH = 3, 32
SIZES: dict[str, Any] = dict(
    vocab_size=50, n_positions=40, n_embd=WIDTH, n_layer=LAYERS, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
    attn_pdrop=0.0, layer_norm_epsilon=1e-5,
)  # fmt: skip


def real_slots(lengths: np.ndarray, slots: int) -> Tensor:
    return torch.arange(slots) < torch.from_numpy(lengths)[:, None]


@pytest.mark.parametrize("training", [False, True])
def test_gpt(training: bool) -> None:
    """Normalised after each residual, but not after the embeddings: hidden states, logits, the loss and every gradient."""
    model = toys.model(**GPT, embedding_norm=False, intermediate_size=4 * WIDTH).train(training)
    peer = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**SIZES)).train(training)
    gpt2 = FAMILIES["gpt2"]
    renamed = {"transformer.wte": "transformer.tokens_embed", "transformer.wpe": "transformer.positions_embed"}
    names = {ours: renamed.get(theirs, theirs) for ours, theirs in gpt2.names.items()}
    table = with_our_weights(dataclasses.replace(gpt2, names=names), model, peer)
    windows = random_windows(6, 24, short=True, seed=2)
    batch = collate(causal(windows, vocabulary(), LEFT_TO_RIGHT))
    real = real_slots(windows.lengths, batch.input_ids.shape[1])
    labels = torch.where(real, batch.input_ids, -100)  # the peer shifts them itself
    expected = peer(input_ids=batch.input_ids, attention_mask=real.long(), labels=labels, output_hidden_states=True)
    for ours, other in zip(model.backbone(batch), expected.hidden_states, strict=True):
        torch.testing.assert_close(ours[real], other[real], atol=1e-5, rtol=1e-5)
    target = batch.targets["lm"]
    row, j = target.weights.nonzero(as_tuple=True)
    assert len(row) == int(real.sum()) - len(real)
    logits = model.logits(batch)["lm"]
    torch.testing.assert_close(logits[row, j], expected.logits[row, target.slots[row, j]], atol=1e-5, rtol=1e-5)
    loss = model(batch, DropoutKey(0) if training else None)["lm"]
    torch.testing.assert_close(loss.total / loss.weight, expected.loss, atol=1e-5, rtol=1e-5)
    (loss.total / loss.weight).backward()
    expected.loss.backward()
    same_gradients(table, model, peer)


ELECTRA = settings_of(
    name="masked", targets=["ae", "rtd"], masking="token", mask_rate=0.3, mask_share=0.85, random_share=0.0
)


def chain(embedding_size: int | None) -> ReplacedTokenModel:
    changes = {"embedding_size": embedding_size, "generator_size": 0.5, "relative_bias": False}
    settings = ModelSettings(**(toys.SHAPE | changes))
    model = build(settings, vocab_size=50, max_positions=40, targets=ELECTRA.targets)
    assert isinstance(model, ReplacedTokenModel)
    toys.with_biases(model)
    return model


def electra_peer(settings: ModelSettings, kind: str) -> Any:
    config = transformers.ElectraConfig(
        vocab_size=50, embedding_size=settings.embedding_size or settings.hidden_size, hidden_size=settings.hidden_size,
        num_hidden_layers=settings.num_layers, num_attention_heads=settings.num_heads,
        intermediate_size=settings.intermediate_size, max_position_embeddings=40, type_vocab_size=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1e-12, pad_token_id=None,
        attn_implementation="eager",
    )  # fmt: skip
    return getattr(transformers, kind)(config)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("embedding_size", [None, 20, 16])
def test_both_networks_of_electra_and_their_joint_loss(embedding_size: int | None, training: bool) -> None:
    """At size 16 the generator needs no projection, at 20 both do, at the discriminator's 32 only the generator."""
    model = chain(embedding_size).train(training)
    settings = model.discriminator.settings
    generator = electra_peer(generator_settings(settings), "ElectraForMaskedLM").train(training)
    discriminator = electra_peer(settings, "ElectraForPreTraining").train(training)
    with_our_weights(FAMILIES["electra"], model.discriminator, discriminator)
    # The two share their embeddings: the generator's own state has the discriminator's tables.
    shared = {f"backbone.{name}": p for name, p in model.discriminator.backbone.named_parameters() if is_shared(name)}
    own = {**dict(model.generator.named_parameters()), **shared}
    table = FAMILIES["electra"].table(Architecture(settings=generator_settings(settings)), own)
    assert {name for name, _ in generator.named_parameters()} == {
        name for entry in table.entries for name in entry.theirs
    }
    generator.load_state_dict({**generator.state_dict(), **table.to_theirs({name: p.data for name, p in own.items()})})

    windows = random_windows(6, 24, short=True, seed=2)
    batch = collate(make_examples(windows, vocabulary(), ELECTRA))
    real = real_slots(windows.lengths, batch.input_ids.shape[1])
    inputs = {"token_type_ids": batch.segment_ids, "attention_mask": real.long()}
    target = batch.targets["ae"]
    row, j = target.weights.nonzero(as_tuple=True)
    mlm = generator(input_ids=batch.input_ids, labels=labels_of(batch), **inputs)
    logits = model.logits(batch)["ae"]
    torch.testing.assert_close(logits[row, j], mlm.logits[row, target.slots[row, j]], atol=1e-5, rtol=1e-5)

    _, following = model.generate(batch, DropoutKey(0) if training else None)
    replaced = (following.input_ids != batch.targets["rtd"].labels).long()
    assert 10 < int(replaced[real].sum()) < int(real.sum()) / 2
    rtd = discriminator(input_ids=following.input_ids, labels=replaced, output_hidden_states=True, **inputs)
    states = model.discriminator.backbone(following)
    for ours, theirs in zip(states, rtd.hidden_states, strict=True):
        torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=1e-5)
    verdicts = model.discriminator.replaced_head(states[-1]).squeeze(-1)
    torch.testing.assert_close(verdicts[real], rtd.logits[real], atol=1e-5, rtol=1e-5)

    losses = model(batch, DropoutKey(0) if training else None)
    means = {name: loss.total / loss.weight for name, loss in losses.items()}
    torch.testing.assert_close(means["ae"], mlm.loss, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(means["rtd"], rtd.loss, atol=1e-5, rtol=1e-5)
    (means["ae"] + 50 * means["rtd"]).backward()
    (mlm.loss + 50 * rtd.loss).backward()
    for network, peer in ((own, generator), (dict(model.discriminator.named_parameters()), discriminator)):
        found = FAMILIES["electra"].table(Architecture(settings=settings), network)
        for name, gradient in found.to_theirs({name: p.grad for name, p in network.items()}).items():
            expected = peer.get_parameter(name).grad
            if any(
                name.startswith(f"electra.embeddings.{part}") for part in ("word", "position", "token", "LayerNorm")
            ):
                expected = generator.get_parameter(name).grad + discriminator.get_parameter(name).grad
            # In units of the discriminator's mean loss, whose coefficient is 50.
            torch.testing.assert_close(gradient / 50, expected / 50, atol=1e-5, rtol=1e-4)


def is_shared(name: str) -> bool:
    return name.startswith("embeddings.") and "projection" not in name


@pytest.mark.parametrize("direction", ["left_to_right", "right_to_left"])
@pytest.mark.parametrize("relative_bias", [False, True])
def test_alternating_local_layers_against_a_full_matrix(direction: Any, relative_bias: bool) -> None:
    """GPT-3, Section 2.1: every second layer reads a band. The reference computes all scores of one row at a time."""
    width = 3
    model = toys.model(
        **GPT | {"relative_bias": relative_bias}, norm="pre", num_layers=4, layer_visibility=["full", "local"]
    )
    objective = dataclasses.replace(LEFT_TO_RIGHT, visibility=direction, local_width=width)
    windows = random_windows(4, 24, short=True, seed=3)
    batch = collate(causal(windows, vocabulary(), objective))
    backbone = model.backbone
    with torch.no_grad():
        together = backbone(batch)
        for row, length in enumerate(windows.lengths.tolist()):
            q, k = torch.meshgrid(torch.arange(length), torch.arange(length), indexing="ij")
            dense = k <= q if direction == "left_to_right" else k >= q
            band = dense & ((q - k).abs() <= width)
            x = together[0][row, :length]
            for number, layer in enumerate(backbone.layers):
                normed = layer.attention_norm(x)
                query, key, value = (
                    part.view(length, 4, -1).transpose(0, 1) for part in layer.attention.qkv(normed).chunk(3, dim=-1)
                )
                scores = query @ key.transpose(1, 2) / math.sqrt(WIDTH // 4)
                if backbone.relative is not None:
                    scores = scores + backbone.relative(torch.arange(length)[None], torch.arange(length)[None])[0]
                scores = scores.masked_fill(~(band if number % 2 else dense), -math.inf)
                attended = (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
                x = x + layer.attention.output(attended)
                inner = functional.gelu(layer.feed_forward.inner(layer.feed_forward_norm(x)), approximate="tanh")
                x = x + layer.feed_forward.output(inner)
                if number < 3:
                    torch.testing.assert_close(together[number + 1][row, :length], x, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(together[-1][row, :length], backbone.final_norm(x), atol=1e-5, rtol=1e-5)


def test_buckets_of_the_relative_bias_are_t5s() -> None:
    bias = toys.model(relative_buckets=32, relative_max_distance=128).backbone.relative
    assert bias is not None
    distance = torch.arange(-600, 601)
    theirs = transformers.models.mpnet.modeling_mpnet.MPNetEncoder.relative_position_bucket(
        distance, num_buckets=32, max_distance=128
    )
    assert torch.equal(bias.bucket(distance), theirs)
    found = bias(torch.zeros(1, 1, dtype=torch.long), distance[None])
    assert torch.equal(found[0, :, 0], bias.weight[:, theirs])


def early_is_as_late(model_of: Callable[[], UnifiedModel], batch: Batch, backend: Any = "explicit") -> None:
    """Compare the states of predicted slots, and all gradients, with explicit attention for all slots."""
    slots = torch.cat([target.slots for target in batch.targets.values()], dim=1)
    results = []
    for select, chosen in ((False, "explicit"), (True, backend)):
        model = model_of()
        model.backbone.backend = chosen
        states = model.backbone(batch, select=select)[-1]
        states = states if select else states.gather(1, slots[:, :, None].expand(-1, -1, WIDTH))
        states.pow(3).sum().backward()
        results.append((states, [p.grad for p in model.backbone.parameters()]))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-5, rtol=1e-5)
    for late, early in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(late, early, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("relative_bias", [False, True])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_selecting_slots_early_changes_no_value_and_no_gradient(relative_bias: bool, norm: Any) -> None:
    windows = random_windows(5, 24, short=True)
    batch = collate(unilmv2(windows, vocabulary(), settings_of()))
    early_is_as_late(lambda: toys.model(relative_bias=relative_bias, norm=norm), batch)


@pytest.mark.parametrize("relative_bias", [False, True])
@pytest.mark.parametrize("masks_in_context", [False, True])
def test_short_rows_among_long_ones_are_attended_as_alone(relative_bias: bool, masks_in_context: bool) -> None:
    """Originals and pseudo masks of a shorter row are at slots where longer rows have context."""
    objective = settings_of(targets=["par"], masks_in_context=masks_in_context)
    windows = random_windows(40, 32, short=True, seed=7)
    examples = unilmv2(windows, vocabulary(), objective)
    model = toys.model(relative_bias=relative_bias)
    together = collate(examples)
    assert together.leading.shorter is not None
    assert together.leading.slots == int(examples.mutual.max()) > int(examples.mutual.min())
    with torch.no_grad():
        states = model.backbone(together)[-1]
        for row in range(40):
            length = int(examples.lengths[row])
            alone = model.backbone(collate(examples[row : row + 1]))[-1]
            torch.testing.assert_close(states[row, :length], alone[0, :length], atol=1e-5, rtol=1e-5)


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("local", [False, True])
def test_explicit_attention_equals_torchs_kernels(local: bool) -> None:
    objective = dataclasses.replace(LEFT_TO_RIGHT, local_width=2) if local else settings_of()
    batch = collate(make_examples(random_windows(5, 24, short=True), vocabulary(), objective))
    shape = dict(GPT, norm="pre", layer_visibility=["full", "local"]) if local else {"relative_bias": False}
    model, results = toys.model(**shape), []
    for backend in ("explicit", "sdpa", "flex"):
        model.backbone.backend = backend  # type: ignore[assignment]
        with torch.no_grad():
            results.append({n: each[batch.targets[n].weights > 0] for n, each in model.logits(batch).items()})
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(results[2], results[0], atol=1e-5, rtol=1e-5)


# XLNet's rows against Transformers' two streams

WINDOW = 18
PERMUTED = settings_of(name="permuted", targets=["par"], mask_rate=0.35, factorization="token")
XLNET = dict(
    vocab_size=50, d_model=WIDTH, n_layer=LAYERS, n_head=4, d_inner=64, ff_activation="gelu", untie_r=True,
    dropout=0.0, layer_norm_eps=1e-12, initializer_range=0.15,
)  # fmt: skip


def same_gradients_of_xlnet(table: Table, model: UnifiedModel, peer: Any) -> None:
    """The query vector is the pseudo mask's row of our token table."""
    own = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    expected = {name: p.grad.clone() for name, p in peer.named_parameters()}
    query = expected.pop("transformer.mask_emb")
    expected["transformer.word_embedding.weight"][PSEUDO] += query[0, 0]
    found = table.to_theirs(own)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_unscaled_scores_are_those_of_scaled_queries() -> None:
    """All three terms of the scores follow `scale_scores`."""
    scaled, unscaled = xl_model().eval(), xl_model(scale_scores=False).eval()
    state = scaled.state_dict()
    unscaled.load_state_dict(state)
    for layer in scaled.backbone.layers:
        attention, terms = layer.attention, layer.attention.terms
        with torch.no_grad():
            for weight in (attention.qkv.weight[:WIDTH], terms.content, terms.position, terms.segment):
                weight *= (WIDTH / terms.segments.shape[1]) ** 0.5
    examples = make_examples(random_windows(4, WINDOW), vocabulary(), PERMUTED)
    with torch.no_grad():
        found, expected = (model.logits(collate(examples))["par"] for model in (scaled, unscaled))
    assert not torch.allclose(found, xl_model().eval().logits(collate(examples))["par"], atol=1e-3)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("memory", [WINDOW - 5, WINDOW + 7])
@pytest.mark.parametrize("training", [False, True])
def test_memory_is_xlnets(training: bool, memory: int) -> None:
    """Three windows of running text, shorter and longer than the memory."""
    model = xl_model().train(training)
    peer = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**XLNET)).train(training)
    table = with_our_weights(FAMILIES["xlnet"], model, peer, query=PSEUDO)
    peer.transformer.mem_len = memory
    mems = None
    recalled = Memory(states=torch.zeros(LAYERS, 4, memory, WIDTH), lengths=torch.zeros(4, dtype=torch.long))
    for seed in range(3):
        windows = random_windows(4, WINDOW, seed=seed)
        examples = make_examples(windows, vocabulary(), PERMUTED)
        batch = collate(examples)
        text = torch.from_numpy(examples.text_slots()).long()
        batch = dataclasses.replace(batch, memory=recalled, text_slots=text)
        labels = torch.where(batch.targets["par"].weights > 0, batch.targets["par"].labels, -100)
        inputs = two_streams(windows, examples)
        width = labels.shape[1]
        inputs["target_mapping"] = inputs["target_mapping"][:, :width]
        answer = peer(**inputs, labels=labels, mems=mems, use_mems=True)
        found = model(batch)["par"]
        loss = found.total / found.weight
        torch.testing.assert_close(loss, answer.loss, atol=1e-5, rtol=1e-5)
        model.zero_grad()
        peer.zero_grad()
        loss.backward()
        answer.loss.backward()
        same_gradients_of_xlnet(table, model, peer)
        mems = answer.mems
        filled = min(memory, (seed + 1) * WINDOW)
        assert recalled.lengths.tolist() == [filled] * 4
        for own, theirs in zip(recalled.states, mems, strict=True):
            assert not own.requires_grad
            torch.testing.assert_close(own[:, memory - filled :], theirs.transpose(0, 1), atol=1e-5, rtol=1e-5)


def test_without_segments_they_are_not_seen() -> None:
    model = xl_model(num_segments=0)
    peer = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**XLNET)).eval()
    table = FAMILIES["xlnet"].table(Architecture(settings=model.settings, query=PSEUDO), model.state_dict())
    peer.load_state_dict({**peer.state_dict(), **table.to_theirs(model.state_dict())})
    windows = random_windows(4, WINDOW)
    examples = make_examples(windows, vocabulary(), PERMUTED)
    inputs = two_streams(windows, examples)
    del inputs["token_type_ids"]
    batch = collate(examples, fixed_shape=True)
    states = model.backbone(batch, select=True)[-1]
    real = batch.targets["par"].weights > 0
    expected = peer.transformer(**inputs).last_hidden_state
    torch.testing.assert_close(states[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("masks", [0.0, 0.35])
@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
def test_early_selection_and_kernels_change_no_value_and_no_gradient(backend: Any, masks: float) -> None:
    """Selected queries of the last layer, regions with and without masks, rows with and without memory."""
    windows = random_windows(5, WINDOW, short=True)
    steps = np.where(windows.maskable & (np.random.default_rng(0).random(windows.maskable.shape) < masks), 0, -1)
    steps[:, 2] = np.where(windows.maskable[:, 2], 1, steps[:, 2])
    batch = collate(lay_out_permuted(windows, steps.astype(np.int32), vocabulary(), pseudo=PSEUDO))
    early_is_as_late(xl_model, batch, backend)
