"""ELMo: the symbols of tokens, the character convolutions and the whole network by hand, and runs of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corpora import write_corpus
from decoding_toys import byte_level, roberta_like, sentencepiece, wordpiece
from objective_toys import CASES
from recurrent_toys import CHARACTERS, read_by_hand, recurrent_model
from toys import gradients_of, random_windows, vocabulary
from unicloze.characters import LONGEST, spell
from unicloze.errors import UniclozeError
from unicloze.example import Batch, collate
from unicloze.model.recurrent.layers import BACKWARD, CharacterCnn
from unicloze.objectives import make_examples
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import TokenizerSettings
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.windows import Windows
from unicloze.training.checkpoint import list_checkpoints, load_checkpoint
from unicloze.training.initial import initialize_from
from unicloze.training.loading import build_model, load_model, spell_tokens
from unicloze.verbs import embed, finetune, predict, score

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
    return collate(make_examples(windows, vocabulary(), CASES["elmo"]))


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
    gradients = gradients_of(cnn)
    assert cnn.symbols is not None
    wanted = torch.stack([vector_by_hand(cnn, cnn.symbols[number].tolist()) for number in ids.flatten().tolist()])
    (wanted.view(2, 3, 8) * weight).sum().backward()
    torch.testing.assert_close(found.flatten(0, 1), wanted)
    assert len(gradients) == len([*cnn.parameters()]) and all(each.any() for each in gradients.values())
    torch.testing.assert_close(gradients, gradients_of(cnn))


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


def by_hand(model: Any, tokens: Tensor, clip: float) -> dict[str, Tensor]:
    """Both losses of rows of one length."""
    states = {
        "lm": read_by_hand(model, tokens, clip=clip)[:, :-1],
        "lm_back": read_by_hand(model, tokens, BACKWARD, clip)[:, 1:],
    }
    labels = {"lm": tokens[:, 1:], "lm_back": tokens[:, :-1]}
    logits = {name: of_name @ model.token_head.output.T + model.token_head.bias for name, of_name in states.items()}
    return {
        name: nn.functional.cross_entropy(logits[name].flatten(0, 1), labels[name].flatten(), reduction="sum")
        for name in states
    }


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
    gradients = gradients_of(model)
    assert len(gradients) == len([*model.parameters()])
    wanted = by_hand(model, torch.from_numpy(windows.token_ids).long(), clip)
    (wanted["lm"] + wanted["lm_back"]).backward()
    for name, loss in wanted.items():
        torch.testing.assert_close(losses[name].total, loss)
    torch.testing.assert_close(gradients, gradients_of(model), atol=1e-4, rtol=1e-4)


def test_a_model_without_the_symbols_of_its_tokens_is_refused() -> None:
    model = elmo()
    model.backbone.embeddings.tokens.symbols = None
    with pytest.raises(UniclozeError, match="the model reads characters, but was not given those of its tokens"):
        model(batch_of(random_windows(1, 8)))


# Runs


def weights(run: Path) -> dict[str, Tensor]:
    return load_checkpoint(list_checkpoints(run / "checkpoints")[-1]).model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elmo")
    overrides = toy_overrides() | {
        "data.corpus": [str(write_corpus(folder / "corpus"))], "training.steps": 4, "training.micro_batch_size": 4,
        "training.learning_rate": 0.01,
    }  # fmt: skip
    pretrain_run(load_recipe("elmo", overrides), folder / "run", progress=False)
    return folder / "run"


@pytest.mark.whole
def test_a_loaded_model_reads_the_characters_of_its_tokenizer(run: Path) -> None:
    loaded = load_model(run)
    cnn: Any = loaded.model.backbone.embeddings.tokens
    assert torch.equal(cnn.symbols, torch.from_numpy(loaded.tokenizer.symbols()))
    words = loaded.tokenizer.vocabulary
    ids = torch.tensor([[words.sos, *loaded.tokenizer.encode("the old cat").tolist(), words.eos]])
    with torch.no_grad():
        wanted = by_hand(loaded.model, ids[:, :-1], 3.0)["lm"].item()
        state = read_by_hand(loaded.model, ids, clip=3.0)[0, -1]
    (found,) = score(run, "the old cat")
    assert found.chain_log_likelihood == pytest.approx(-wanted, rel=1e-5)
    np.testing.assert_allclose(embed(run, ["the old cat"])[0], state, atol=1e-5)


@pytest.mark.whole
def test_another_vocabulary_keeps_the_characters(run: Path, tmp_path: Path) -> None:
    """A word has the same vector under both vocabularies; only the softmax takes its rows by token."""
    loaded = load_model(run)
    other = Tokenizer.train(["the old cat sees the red window"] * 9, TokenizerSettings(kind="bpe", vocab_size=300))
    recipe = load_recipe("elmo", toy_overrides())
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
    finetune("tagging", run, file, file, tmp_path / "tagger", overrides=settings, quiet=True)
    before, after = weights(run), weights(tmp_path / "tagger")
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items() if name.startswith("backbone."))
    found = predict(tmp_path / "tagger", file, quiet=True)
    assert [each["prediction"] for each in found[:2]] == [each["tags"] for each in records]
