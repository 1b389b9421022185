"""ELMo: the symbols of tokens, the character convolutions and the whole network by hand, and runs of it."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import toys
from corpora import write_corpus
from decoding_toys import byte_level, roberta_like, sentencepiece, wordpiece
from recurrent_toys import recurrent_model
from toys import random_windows, vocabulary
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Batch, collate
from unicloze.model.dropout import DropoutKey
from unicloze.model.recurrent.layers import CharacterCnn
from unicloze.objectives import make_examples, settings_of
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import TokenizerSettings
from unicloze.spelling import LONGEST, spell
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.windows import Windows
from unicloze.training.checkpoint import list_checkpoints, load_checkpoint
from unicloze.training.initial import initialize_from
from unicloze.training.loading import build_model, load_model, spell_tokens
from unicloze.verbs import embed, finetune, predict, score

CHARACTERS: dict[str, Any] = {
    "embeddings": "characters", "character_size": 3, "character_filters": [2, 3, 4], "tied_output": False,
    "activation": "relu",
}  # fmt: skip
OBJECTIVE = settings_of(name="bidirectional_lm", targets=["lm", "lm_back"])
BEGIN, END, PADDING = 258, 259, 260


def toy_symbols() -> Tensor:
    """Random words of 1 to 60 bytes for the toy vocabulary."""
    rng = np.random.default_rng(5)
    words = [rng.integers(0, 256, rng.integers(1, 12)).tolist() for _ in range(vocabulary().size)]
    words[10] = rng.integers(0, 256, 60).tolist()
    return torch.from_numpy(spell(words, [True] * len(words)))


def elmo(targets: tuple[str, ...] = ("lm", "lm_back"), **settings: Any) -> Any:
    shape = {"directions": "both", "projection": True, "residual": True, "intermediate_size": 12} | CHARACTERS
    model = recurrent_model(targets=targets, **(shape | settings))
    cnn = model.backbone.embeddings.tokens
    assert isinstance(cnn, CharacterCnn)
    cnn.symbols = toy_symbols()
    with torch.no_grad():
        for weight in cnn.parameters():
            weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(len(weight)))
    return model


def batch_of(windows: Windows) -> Batch:
    return collate(make_examples(windows, vocabulary(), OBJECTIVE))


# The symbols


def spelled(tokenizer: Tokenizer, token: str) -> list[int]:
    number = tokenizer.token_id(token)
    assert number is not None
    row = tokenizer.symbols()[number].tolist()
    end = row.index(PADDING)
    assert row[end:] == [PADDING] * (LONGEST - end)
    return row[:end]


def test_a_word_is_its_bytes_between_two_marks() -> None:
    settings = TokenizerSettings(vocab_size=300, lowercase=False)
    tokenizer = Tokenizer.train(["naïve naïve café café"] * 9, settings)
    assert spelled(tokenizer, "café") == [BEGIN, *b"caf\xc3\xa9", END]
    assert spelled(tokenizer, "[SOS]") == [BEGIN, 256, END] and spelled(tokenizer, "[EOS]") == [BEGIN, 257, END]
    assert spelled(tokenizer, "[UNK]") == [BEGIN, *b"[UNK]", END]


def test_a_token_that_continues_a_word_has_no_mark_of_a_beginning() -> None:
    assert spelled(wordpiece(), "##ing") == [*b"ing", END] and spelled(wordpiece(), "list") == [BEGIN, *b"list", END]
    level, newer = byte_level(), roberta_like()
    assert spelled(level, "\u0120list") == [BEGIN, *b"list", END] and spelled(level, "t") == [*b"t", END]
    assert spelled(newer, "\u00c3") == [0xC3, END]  # half a character
    assert spelled(newer, "<s>") == [BEGIN, 256, END] and spelled(newer, "<mask>") == [BEGIN, *b"<mask>", END]
    piece = sentencepiece()
    with_space = next(token for token in piece.tokens(range(len(piece))) if token.startswith("\u2581") and token[1:])
    assert spelled(piece, with_space) == [BEGIN, *with_space[1:].encode(), END]


@pytest.mark.parametrize("make", [wordpiece, byte_level, roberta_like, sentencepiece])
def test_every_token_has_symbols_of_its_own(make: Any) -> None:
    tokenizer = make()
    table = tokenizer.symbols()
    assert table.shape == (len(tokenizer), LONGEST) and table.min() >= 0 and table.max() <= PADDING
    assert len(np.unique(table, axis=0)) == len(table)


def test_long_words_are_cut_to_fifty_symbols() -> None:
    table = spell([b"x" * 48, b"x" * 60, b"x" * 60], [True, True, False])
    assert table[0].tolist() == table[1].tolist() == [BEGIN, *b"x" * 48, END]
    assert table[2].tolist() == [*b"x" * 48, END, PADDING]


# The network


def vector_by_hand(cnn: CharacterCnn, symbols: list[int]) -> Tensor:
    """The vector of one word, place by place over all fifty symbols."""
    embedded = [cnn.characters.weight[symbol] for symbol in symbols]
    found = []
    for each in cnn.filters:
        assert isinstance(each, nn.Conv1d) and each.bias is not None
        (width,) = each.kernel_size
        for kernel, bias in zip(each.weight, each.bias, strict=True):
            outputs = [
                bias + sum((kernel[:, step] * embedded[place + step]).sum() for step in range(width))
                for place in range(LONGEST - width + 1)
            ]
            found.append(torch.stack(outputs).max().clamp(min=0))
    x = torch.stack(found)
    for highway in cnn.highways:
        gate = 1 / (1 + torch.exp(-(highway.carry.weight @ x + highway.carry.bias)))
        x = gate * (highway.transform.weight @ x + highway.transform.bias).clamp(min=0) + (1 - gate) * x
    return cnn.projection.weight @ x + cnn.projection.bias


@pytest.mark.whole
def test_the_vector_of_a_token_by_hand_with_its_gradients() -> None:
    cnn = elmo().backbone.embeddings.tokens.double()
    ids = torch.tensor([[10, 9, 9], [12, 10, 9]])
    weight = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = cnn(ids)
    (found * weight).sum().backward()
    gradients = {name: each.grad.clone() for name, each in cnn.named_parameters()}
    cnn.zero_grad()
    assert cnn.symbols is not None
    wanted = torch.stack([vector_by_hand(cnn, cnn.symbols[number].tolist()) for number in ids.flatten().tolist()])
    (wanted.view(2, 3, 8) * weight).sum().backward()
    torch.testing.assert_close(found.flatten(0, 1), wanted)
    for name, each in cnn.named_parameters():
        assert each.grad is not None and each.grad.abs().max() > 0, name
        torch.testing.assert_close(gradients[name], each.grad)


def test_padding_reaches_the_maximum_in_short_batches_as_in_long_ones() -> None:
    """All words of a batch are cut to its longest; a filter may prefer padding all the same."""
    cnn = elmo().backbone.embeddings.tokens
    with torch.no_grad():
        cnn.characters.weight[PADDING] = 5.0
        for each in cnn.filters:
            each.weight.abs_()
        assert cnn.symbols is not None and (cnn.symbols[10] != PADDING).all() and (cnn.symbols[9] == PADDING).any()
        alone, beside = cnn(torch.tensor([9])), cnn(torch.tensor([9, 10]))
    torch.testing.assert_close(alone[0], beside[0])


def test_each_distinct_token_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cnn, seen = elmo().backbone.embeddings.tokens, []
    vectors = cnn.vectors
    monkeypatch.setattr(cnn, "vectors", lambda symbols: seen.append(len(symbols)) or vectors(symbols))
    assert cnn(torch.tensor([[9, 9, 7], [7, 9, 9]])).shape == (2, 3, 8) and seen == [2]


def test_the_weights_start_as_in_the_released_code() -> None:
    model = build_model(load_recipe("elmo", toy_overrides() | {"model.character_filters": [64, 64, 128]}), 300)
    cnn: Any = model.for_use().backbone.embeddings.tokens
    assert len(cnn.highways) == 2 and cnn.characters.weight.shape == (261, 16)
    assert 0.97 < cnn.characters.weight.abs().max() <= 1
    for each in cnn.filters:
        assert 0.048 < each.weight.abs().max() <= 0.05 and not each.bias.any()
    for highway in cnn.highways:
        assert (highway.carry.bias == -2).all() and not highway.transform.bias.any()
        assert highway.carry.weight.std().item() == pytest.approx(256**-0.5, rel=0.03)
    assert cnn.projection.weight.std().item() == pytest.approx(256**-0.5, rel=0.03)


def read_by_hand(model: Any, tokens: Tensor, direction: str, clip: float) -> Tensor:
    """Final states of rows of one length by `nn.LSTM` (clips off), or step by step with clips."""
    x = model.backbone.embeddings.tokens(tokens)
    x = x if direction == "left_to_right" else x.flip(1)
    for number, layer in enumerate(model.backbone.layers):
        lstm = layer.cells[direction].lstm
        output = lstm(x)[0] if clip == math.inf else clipped(lstm, x, clip)
        x = output + x if number else output
    return x if direction == "left_to_right" else x.flip(1)


def by_hand(model: Any, tokens: Tensor, clip: float) -> dict[str, Tensor]:
    """Both losses of rows of one length."""
    states = {
        "lm": read_by_hand(model, tokens, "left_to_right", clip)[:, :-1],
        "lm_back": read_by_hand(model, tokens, "right_to_left", clip)[:, 1:],
    }
    labels = {"lm": tokens[:, 1:], "lm_back": tokens[:, :-1]}
    logits = {name: of_name @ model.token_head.output.T + model.token_head.bias for name, of_name in states.items()}
    return {
        name: nn.functional.cross_entropy(logits[name].flatten(0, 1), labels[name].flatten(), reduction="sum")
        for name in states
    }


def clipped(lstm: nn.LSTM, x: Tensor, clip: float) -> Tensor:
    """LSTM with projection: cells are clipped before the output gate reads them, outputs after they are projected."""
    (into, recurrent, bias, other, projection), outputs = lstm.parameters(), []
    h, c = x.new_zeros(len(x), lstm.proj_size), x.new_zeros(len(x), lstm.hidden_size)
    for step in x.unbind(1):
        gates = step @ into.T + bias + h @ recurrent.T + other
        i, f, g, o = gates.split(lstm.hidden_size, dim=1)
        c = (torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)).clamp(-clip, clip)
        h = ((torch.sigmoid(o) * torch.tanh(c)) @ projection.T).clamp(-clip, clip)
        outputs.append(h)
    return torch.stack(outputs, dim=1)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("clip", [math.inf, 0.05], ids=["without clips", "clipped"])
def test_the_whole_network_by_hand_with_its_gradients(clip: float) -> None:
    """Embeddings and softmax are shared by both directions; the loss is the sum of both."""
    clips = {} if clip == math.inf else {"cell_clip": clip, "projection_clip": clip}
    model = elmo(**clips)
    windows = random_windows(3, 9, seed=4)
    batch = batch_of(windows)
    losses = model(batch)
    assert {name: loss.weight for name, loss in losses.items()} == {"lm": 24.0, "lm_back": 24.0}
    (losses["lm"].total + losses["lm_back"].total).backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters()}
    model.zero_grad()
    wanted = by_hand(model, torch.from_numpy(windows.token_ids).long(), clip)
    (wanted["lm"] + wanted["lm_back"]).backward()
    for name, loss in wanted.items():
        torch.testing.assert_close(losses[name].total, loss)
    for name, each in model.named_parameters():
        assert each.grad is not None, name
        torch.testing.assert_close(gradients[name], each.grad, atol=1e-4, rtol=1e-4)


def test_no_prediction_reads_its_answer_by_its_characters() -> None:
    model, windows = elmo(), random_windows(1, 12, seed=11)

    def logits(tokens: Any) -> dict[str, Tensor]:
        with torch.no_grad():
            return dict(model.logits(batch_of(dataclasses.replace(windows, token_ids=tokens))))

    reference = logits(windows.token_ids)
    for place in np.flatnonzero(windows.maskable[0]).tolist():
        tokens = windows.token_ids.copy()
        tokens[0, place] = toys.FIRST_ORDINARY + (tokens[0, place] - toys.FIRST_ORDINARY + 1) % 43
        found = logits(tokens)
        for prediction in range(11):
            forward, back = (  # rounding depends on the place of a token among the distinct ones
                torch.allclose(found[name][0, prediction], reference[name][0, prediction], rtol=0, atol=1e-6)
                for name in found
            )
            assert forward == (prediction < place) and back == (prediction + 1 > place)


def test_dropout_of_embeddings_drops_every_occurrence_of_a_token() -> None:
    embeddings = elmo(embedding_dropout=0.5).backbone.embeddings
    embedded = embeddings(torch.arange(50).repeat(2), DropoutKey(5))
    zero = (embedded == 0).all(dim=1)
    assert torch.equal(zero[:50], zero[50:]) and 10 < zero[:50].sum() < 40


def test_a_model_without_the_symbols_of_its_tokens_is_refused() -> None:
    model = elmo()
    model.backbone.embeddings.tokens.symbols = None
    with pytest.raises(UniclozeError, match="the model reads characters, but was not given those of its tokens"):
        model(batch_of(random_windows(1, 8)))


@pytest.mark.parametrize(
    ("recipe", "settings", "problem"),
    [
        ("elmo", {"model.tied_output": True}, r"model\.tied_output is True; embeddings made of characters cannot be shared"),
        ("elmo", {"model.character_filters": [8, 0]}, r"model\.character_filters is \[8, 0\]; list a number of filters"),
        ("elmo", {"model.character_filters": [1] * 51}, r"for each of up to 50 widths"),
        ("bert-base", {"model.embeddings": "characters"}, r"model\.embeddings is 'characters'; only LSTMs read characters"),
    ],
)  # fmt: skip
def test_settings_that_contradict_characters_are_refused(recipe: str, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        load_recipe(recipe, settings)


def test_the_recipe_is_the_papers() -> None:
    model = load_recipe("elmo").model
    assert model.character_filters == [32, 32, 64, 128, 256, 512, 1024] and model.character_highways == 2
    assert (model.num_layers, model.intermediate_size, model.hidden_size, model.residual) == (2, 4096, 512, True)
    assert model.cell_clip == model.projection_clip == 3 and model.embeddings == "characters" and not model.tied_output


# Runs


def overrides(corpus: Path) -> dict[str, Any]:
    return toy_overrides() | {
        "data.corpus": [str(corpus)],
        "model.character_filters": [8, 8, 16],
        "training.steps": 4,
        "training.save_every": 2,
        "training.micro_batch_size": 4,
        "training.learning_rate": 0.01,
    }


def weights(run: Path) -> dict[str, Tensor]:
    return load_checkpoint(list_checkpoints(run / "checkpoints")[-1]).model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elmo")
    write_corpus(folder / "corpus")
    pretrain_run(load_recipe("elmo", overrides(folder / "corpus")), folder / "run", progress=False)
    return folder


@pytest.mark.slow
def test_the_recipe_takes_a_step_at_full_size() -> None:
    recipe = load_recipe("elmo")
    model = build_model(recipe, 32000)
    spell_tokens(model, lambda: spell([str(number).encode() for number in range(32000)], [True] * 32000))
    assert sum(weight.numel() for weight in model.parameters()) == 110_082_384
    batch = batch_of(random_windows(1, 8))
    with torch.no_grad():
        before = {name: loss.total.item() / loss.weight for name, loss in model(batch).items()}
    assert all(value == pytest.approx(math.log(32000), abs=0.5) for value in before.values())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    torch.stack([loss.total / loss.weight for loss in model(batch, DropoutKey(1)).values()]).sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())
    optimizer.step()
    with torch.no_grad():
        after = {name: loss.total.item() / loss.weight for name, loss in model(batch).items()}
    assert all(after[name] < before[name] for name in before)


@pytest.mark.whole
def test_a_resumed_run_ends_with_the_same_bits(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "run", tmp_path / "cut")
    shutil.rmtree(list_checkpoints(tmp_path / "cut" / "checkpoints")[-1])
    pretrain_run(load_recipe("elmo", overrides(run / "corpus")), tmp_path / "cut", progress=False)
    whole, cut = weights(run / "run"), weights(tmp_path / "cut")
    assert set(whole) == set(cut) and not [name for name in whole if "symbols" in name]
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


@pytest.mark.whole
def test_characters_resume_with_a_carried_state(run: Path, tmp_path: Path) -> None:
    settings = overrides(run / "corpus") | {f"model.{name}": value for name, value in CHARACTERS.items()}
    recipe = load_recipe("awd-lstm", settings)
    pretrain_run(recipe, tmp_path / "whole", progress=False)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(list_checkpoints(tmp_path / "cut" / "checkpoints")[-1])
    pretrain_run(recipe, tmp_path / "cut", progress=False)
    whole, cut = (load_checkpoint(list_checkpoints(tmp_path / name / "checkpoints")[-1]) for name in ("whole", "cut"))
    assert whole.memories["0.states"].abs().max() > 0
    for one, other in ((whole.model, cut.model), (whole.memories, cut.memories)):
        assert set(one) == set(other) and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.whole
def test_a_loaded_model_reads_the_characters_of_its_tokenizer(run: Path) -> None:
    loaded = load_model(run / "run")
    cnn: Any = loaded.model.backbone.embeddings.tokens
    assert torch.equal(cnn.symbols, torch.from_numpy(loaded.tokenizer.symbols()))
    words = loaded.tokenizer.vocabulary
    ids = torch.tensor([[words.sos, *loaded.tokenizer.encode("the old cat").tolist(), words.eos]])
    with torch.no_grad():
        wanted = by_hand(loaded.model, ids[:, :-1], 3.0)["lm"].item()
        state = read_by_hand(loaded.model, ids, "left_to_right", 3.0)[0, -1]
    (found,) = score(run / "run", "the old cat")
    assert found.chain_log_likelihood == pytest.approx(-wanted, rel=1e-5)
    np.testing.assert_allclose(embed(run / "run", ["the old cat"])[0], state, atol=1e-5)


@pytest.mark.whole
def test_another_vocabulary_keeps_the_characters(run: Path, tmp_path: Path) -> None:
    """A word has the same vector under both vocabularies; only the softmax takes its rows by token."""
    loaded = load_model(run / "run")
    other = Tokenizer.train(["the old cat sees the red window"] * 9, TokenizerSettings(kind="bpe", vocab_size=300))
    recipe = load_recipe("elmo", toy_overrides() | {"model.character_filters": [8, 8, 16]})
    model = build_model(recipe, len(other))
    spell_tokens(model, other.symbols)
    with pytest.warns(UserWarning, match="tokens take their rows from"):
        initialize_from(model, loaded, other, recipe)
    (old,), (new,) = loaded.tokenizer.encode("the"), other.encode(" the")
    with torch.no_grad():
        before = loaded.model.backbone.embeddings.tokens(torch.tensor([int(old)]))
        after = model.for_use().backbone.embeddings.tokens(torch.tensor([int(new)]))
    assert torch.equal(before, after)
    own, theirs = model.for_use().token_head, loaded.model.token_head
    assert torch.equal(own.output[int(new)], theirs.output[int(old)])  # type: ignore[index]


@pytest.mark.whole
def test_a_tagger_reads_two_mixes_of_a_frozen_network(run: Path, tmp_path: Path) -> None:
    records = [{"tokens": ["the", "old", "cat"], "tags": ["D", "A", "N"]}, {"tokens": ["a", "cat"], "tags": ["D", "N"]}]
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in records * 8), encoding="utf-8")
    settings = {
        "use.visibility": "both_directions", "model.layer_mix": True, "training.frozen": ["backbone"], "task.head": "plain",
        "task.metrics": ["tag-accuracy"], "finetuning.epochs": 20, "training.learning_rate": 0.02, "training.batch_size": 8,
        "task.encoder_size": 8, "task.output_mix": True,
    }  # fmt: skip
    finetune("tagging", run / "run", file, file, tmp_path / "tagger", overrides=settings, quiet=True)
    before, after = weights(run / "run"), weights(tmp_path / "tagger")
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items() if name.startswith("backbone."))
    found = predict(tmp_path / "tagger", file, quiet=True)
    assert [each["prediction"] for each in found[:2]] == [each["tags"] for each in records]
