"""CoVe's translation model: the encoder against `nn.LSTM`, the decoder by its equations, steps against whole rows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import single_rows
from test_two_stacks import prefix_rows, whole_row
from toys import FIRST_ORDINARY, random_windows, vocabulary
from unicloze.decoding.generate import generate
from unicloze.decoding.steppers import CarriedStates, prepared
from unicloze.errors import UsageError
from unicloze.example import Batch, collate
from unicloze.model.build import build
from unicloze.model.dropout import DropoutKey
from unicloze.model.recurrent.layers import CharacterCnn
from unicloze.model.recurrent.model import TranslationModel
from unicloze.model.recurrent.translation import TranslationBackbone, find_pairs
from unicloze.objectives.causal import CausalSettings, causal
from unicloze.objectives.seq2seq import PrefixSettings, generates
from unicloze.packing import pack
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import HeadSettings, ModelSettings, TokenizerSettings
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.initial import initialize_from
from unicloze.training.loading import LoadedModel, build_model, spell_tokens
from unicloze.training.optimizers import depths

ROWS = PrefixSettings(target_start=["sos"], mask_rate=0.5)


def model_of(heads: dict[str, HeadSettings] | None = None, **settings: Any) -> TranslationModel:
    shape: dict[str, Any] = dict(
        kind="recurrent", hidden_size=8, num_layers=2, decoder_layers=2, intermediate_size=12, embedding_size=6,
        directions="both", head="linear", tied_output=False, dropout=0.0, initializer_range=0.5,
    )  # fmt: skip
    targets = () if heads else ("lm",)
    made = build(ModelSettings(**(shape | settings)), vocab_size=50, max_positions=40, targets=targets, heads=heads)
    assert isinstance(made, TranslationModel)
    made.initialize(0)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.endswith("bias") and "lstm" not in name:
                weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(2)) * 0.3)
    return made.eval()


def backbone_of(model: TranslationModel) -> TranslationBackbone:
    assert isinstance(model.backbone, TranslationBackbone)
    return model.backbone


def encoder_by_torch(backbone: TranslationBackbone, ids: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """States of one source and the last outputs and cells of each layer, by bidirectional `nn.LSTM`s of the same weights."""
    x, final = backbone.embeddings.tokens(ids)[None], []
    for layer in backbone.layers:
        weights = {}
        for direction, suffix in (("left_to_right", ""), ("right_to_left", "_reverse")):
            lstm = layer.cells[direction].lstm  # type: ignore[union-attr,index]
            weights |= {f"{name}{suffix}": weight for name, weight in lstm.named_parameters()}
        theirs = nn.LSTM(x.shape[2], lstm.hidden_size, batch_first=True, bidirectional=True)
        x, (h, c) = torch.func.functional_call(theirs, weights, (x,))
        final.append((h.flatten(), c.flatten()))
    return x[0], final


def row_by_hand(backbone: TranslationBackbone, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Encoder states of a source and attentional states of its target, token by token and equation by equation."""
    states, final = encoder_by_torch(backbone, source)
    decoder = backbone.decoder
    carried = list(final)
    attended, found = torch.zeros(decoder.combine.out_features), []
    for token in target:
        x = torch.cat([decoder.embeddings.tokens(token), attended])
        for number, lstm in enumerate(decoder.layers):
            w = dict(lstm.named_parameters())
            h, c = carried[number]
            gates = w["weight_ih_l0"] @ x + w["bias_ih_l0"] + w["weight_hh_l0"] @ h + w["bias_hh_l0"]
            i, f, g, o = gates.chunk(4)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            x = torch.sigmoid(o) * torch.tanh(c)
            carried[number] = x, c
        asked = decoder.query.weight @ x + decoder.query.bias
        scores = torch.stack([state @ asked for state in states])
        shares = scores.exp() / scores.exp().sum()
        context = sum((share * state for share, state in zip(shares, states, strict=True)), torch.zeros(len(x)))
        attended = torch.tanh(decoder.combine.weight @ torch.cat([context, x]) + decoder.combine.bias)
        found.append(attended)
    return states, torch.stack(found)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_row_by_hand_in_values_and_gradients(packed: bool, layers: int) -> None:
    """Rows of different lengths: padding in sources and targets changes neither states nor gradients."""
    model = model_of(num_layers=layers, decoder_layers=layers)
    backbone, examples = backbone_of(model), prefix_rows(ROWS)
    head, whole = model.token_head, collate(examples)
    assert head.output is not None and head.output.shape == (50, 8) and head.bias is not None
    torch.testing.assert_close(model.logits(whole)["lm"], backbone(whole, select=True)[-1] @ head.output.T + head.bias)
    assert len(set(examples.mutual.tolist())) > 1 and len(set((examples.lengths - examples.mutual).tolist())) > 1
    batch = pack([collate(examples[:1]), collate(examples[1:])]) if packed else collate(examples)
    embedded, states = backbone(batch)
    weigh = torch.Generator().manual_seed(7)
    ours, theirs, first = torch.zeros(()), torch.zeros(()), 0
    for row, (length, source) in enumerate(zip(examples.lengths.tolist(), examples.mutual.tolist(), strict=True)):
        ids = torch.from_numpy(examples.input_ids[row, :length]).long()
        encoded, written = row_by_hand(backbone, ids[:source], ids[source:])
        wanted = torch.cat([encoded, written])
        width = int(examples.lengths[:1].max()) if row == 0 else int(examples.lengths[1:].max())
        got = states[0, first : first + length] if packed else states[row, :length]
        shown = embedded[0, first : first + length] if packed else embedded[row, :length]
        first += width
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(shown[:source], backbone.embeddings.tokens(ids[:source]))
        factors = torch.randn(wanted.shape, generator=weigh)
        ours, theirs = ours + (factors * got).sum(), theirs + (factors * wanted).sum()
    names, weights = zip(*backbone.named_parameters(), strict=True)
    gradients = torch.autograd.grad(ours, weights), torch.autograd.grad(theirs, weights)
    for name, gradient, wanted in zip(names, *gradients, strict=True):
        assert wanted.abs().max() > 0, name
        torch.testing.assert_close(gradient, wanted, atol=2e-5, rtol=1e-4)


def test_no_prediction_sees_its_answer_or_another_row() -> None:
    model, examples = model_of(), prefix_rows(ROWS)
    with torch.no_grad():
        before = model.backbone(collate(examples))[-1]
        slot, real = int(examples.mutual[0]) + 2, int(examples.lengths[0])
        ids = examples.input_ids.copy()
        ids[0, slot] += 1
        after = model.backbone(collate(dataclasses.replace(examples, input_ids=ids)))[-1]
        changed = (before - after).abs().amax(dim=2) > 1e-7
        assert not changed[0, :slot].any() and changed[0, slot:real].all() and not changed[1:].any()
        ids[0, 1] += 1
        after = model.backbone(collate(dataclasses.replace(examples, input_ids=ids)))[-1]
        assert ((before - after).abs().amax(dim=2) > 1e-7)[0, :real].all()


@pytest.mark.parametrize("tied", [False, True])
def test_a_step_predicts_what_the_whole_row_does(tied: bool) -> None:
    """Sources of different lengths; the second hypothesis differs, both change places, and a source finishes."""
    model = model_of(tied_output=tied)
    layout = generates(ROWS, vocabulary())
    sources = [np.arange(8, 8 + size) for size in (2, 7, 5)]
    steps = CarriedStates(prepared(model, torch.float32), layout, sources, count=2)  # type: ignore[arg-type]
    written: list[list[list[int]]] = [[[], []] for _ in sources]
    found = steps.first()[:, None].expand(-1, 2, -1)
    draw = np.random.default_rng(0)
    for number in range(5):
        for row, source in enumerate(sources):
            for text in range(2):
                wanted = whole_row(model, ROWS, source, written[row][text])[-1]
                torch.testing.assert_close(found[row, text], wanted, atol=1e-5, rtol=1e-5)
        if number == 2:
            steps.keep(torch.tensor([2, 0]))
            sources, written = [sources[2], sources[0]], [written[2], written[0]]
        tokens = draw.integers(FIRST_ORDINARY, 50, size=(len(sources), 2))
        parents = draw.integers(2, size=tokens.shape) if number % 2 else None
        chosen = np.broadcast_to([0, 1], tokens.shape) if parents is None else parents
        written = [
            [[*written[row][chosen[row, text]], int(tokens[row, text])] for text in range(2)]
            for row in range(len(sources))
        ]
        found = steps.step(torch.from_numpy(tokens), None if parents is None else torch.from_numpy(parents))


def test_dropout_has_one_mask_for_all_steps_of_a_text() -> None:
    model = model_of(dropout=0.5, hidden_dropout=0.5, input_dropout=0.5).train()
    examples = prefix_rows(ROWS)
    _, states = backbone_of(model)(collate(examples), dropout=DropoutKey(3))
    for row, (length, source) in enumerate(zip(examples.lengths.tolist(), examples.mutual.tolist(), strict=True)):
        for part in (states[row, :source], states[row, source:length]):
            zero = part == 0
            assert (zero == zero[:1]).all() and zero.any() and not zero.all()
    again = backbone_of(model)(collate(examples), dropout=DropoutKey(3))[-1]
    assert torch.equal(states, again)


def test_sources_and_targets_in_the_visibility_of_a_row() -> None:
    rows = single_rows.packed([single_rows.prefix(3, 2), single_rows.bidirectional(2), single_rows.prefix(1, 1)])
    pairs = find_pairs(rows[None])
    assert list(zip(pairs.starts.tolist(), pairs.lengths.tolist(), pairs.targets.tolist(), strict=True)) == [
        (0, 3, 2), (5, 2, 0), (7, 1, 1),
    ]  # fmt: skip
    assert pairs.with_targets().tolist() == [0, 2]


@pytest.mark.parametrize("rule", [
    single_rows.right_to_left(3), single_rows.pseudo_masked(2, [1]), single_rows.permuted(0, 2, [1]),
    np.array([[0, 3, 0, 0], [1, 3, 0, 0], [0, 3, 0, 0]]),
    np.array([[0, 2, 0, 0], [0, 2, 0, 0], [0, 4, 0, 0], [0, 4, 0, 0]]),
], ids=["right to left", "pseudo", "permuted", "nested", "target sees its future"])  # fmt: skip
def test_what_it_cannot_follow_is_refused(rule: np.ndarray[Any, Any]) -> None:
    with pytest.raises(UsageError, match="reads a source in both directions and writes a target from left to right"):
        find_pairs(rule[None])


def test_a_left_to_right_text_is_a_source_of_one_slot_and_a_target() -> None:
    rows = causal(random_windows(2, 8), vocabulary(), CausalSettings(targets=["lm"], visibility="left_to_right"))
    pairs = find_pairs(collate(rows).intervals.numpy())
    assert pairs.lengths.tolist() == [1, 1] and pairs.targets.tolist() == [7, 7]


@pytest.mark.parametrize(("changes", "said"), [
    ({"model.decoder_layers": 1}, r"set it to model\.num_layers, 2"),
    ({"model.directions": "forward"}, r"reads in both directions: set it to both"),
    ({"model.hidden_size": 601}, r"give an even number"),
    ({"model.weight_dropout": 0.5}, r"model\.weight_dropout is 0\.5; an LSTM encoder-decoder does not support it"),
    ({"objective.target_start": []}, r"a decoder needs a start slot before the target"),
    ({"objective.name": "causal", "objective.visibility": "left_to_right"}, r"have no source and target"),
    ({"use.visibility": "left_to_right"}, r"an encoder reads in both directions"),
])  # fmt: skip
def test_a_recipe_that_it_cannot_follow_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_recipe("cove", changes)


def test_the_layers_of_the_decoder_are_above_those_of_the_encoder() -> None:
    found = depths(model_of())
    assert found["token_head.output"] == 0 and found["backbone.decoder.layers.1.weight_hh_l0"] == 1
    assert found["backbone.layers.0.cells.left_to_right.lstm.weight_hh_l0"] == 4
    assert found["backbone.embeddings.tokens.weight"] == 5
    assert found["backbone.decoder.query.weight"] == found["backbone.decoder.combine.weight"] == 1


def test_a_batch_of_sources_alone_is_encoded() -> None:
    """Two texts in a row read only themselves."""
    model = model_of()
    ids = torch.tensor([[8, 9, 10, 11, 12]])
    rows = single_rows.packed([single_rows.bidirectional(3), single_rows.bidirectional(2)])
    batch = dataclasses.replace(
        collate(prefix_rows(ROWS)[:1]), input_ids=ids, intervals=torch.from_numpy(rows)[None], targets={}
    )
    assert isinstance(batch, Batch)
    with torch.no_grad():
        states = model.backbone(batch)[-1][0]
        torch.testing.assert_close(states[:3], encoder_by_torch(backbone_of(model), ids[0, :3])[0])
        torch.testing.assert_close(states[3:], encoder_by_torch(backbone_of(model), ids[0, 3:])[0])


def tokenizer_of(text: str) -> Tokenizer:
    return Tokenizer.train([text] * 5, TokenizerSettings(kind="wordpiece", vocab_size=60))


PLAIN = {key: value for key, value in toy_overrides().items() if not key.startswith("model.character")}


def test_both_token_tables_follow_another_vocabulary() -> None:
    recipe = load_recipe("cove", PLAIN)
    old, new = tokenizer_of("anna sees the old cat"), tokenizer_of("zora xi sees the old cat")
    before = LoadedModel(build_model(recipe, len(old)).for_use(), old, recipe, Path("before"), 0)
    model = build_model(recipe, len(new)).for_use()
    with pytest.warns(UserWarning, match="tokens take their rows from before"):
        initialize_from(model, before, new, recipe)
    (there,), (here,) = old.encode("cat"), new.encode("cat")
    assert there != here
    for name in ("backbone.embeddings.tokens.weight", "backbone.decoder.embeddings.tokens.weight"):
        assert torch.equal(model.state_dict()[name][int(here)], before.model.state_dict()[name][int(there)])


def test_encoder_and_decoder_read_the_characters_of_their_tokens() -> None:
    recipe = load_recipe("cove", {**toy_overrides(), "model.embeddings": "characters"})
    tokenizer = tokenizer_of("the old cat")
    model = build_model(recipe, len(tokenizer)).for_use().eval()
    spell_tokens(model, tokenizer.symbols)
    backbone = backbone_of(model)  # type: ignore[arg-type]
    ids = torch.arange(len(tokenizer))
    for part in (backbone, backbone.decoder):
        assert isinstance(part.embeddings.tokens, CharacterCnn)
        expected = part.embeddings.tokens.vectors(torch.from_numpy(tokenizer.symbols()))
        torch.testing.assert_close(part.embeddings(ids), expected)
    (text,) = generate(LoadedModel(model, tokenizer, recipe, Path("none"), 0), ["the old cat"])
    assert text is not None
