"""GPT-2 and XLNet folders of Transformers against Transformers at random initialisation."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import language_model_toys as folders
import nlu_toys
import toys
from corpora import write_corpus
from interop_toys import same_as_ours, same_gradients, same_there_and_back, table_of
from unicloze import verbs
from unicloze.decoding.embed import embed
from unicloze.decoding.generate import generate
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import collate
from unicloze.interop.read import open_model, write_model
from unicloze.model.dropout import DropoutKey
from unicloze.objectives import make_examples
from unicloze.objectives.causal import causal
from unicloze.objectives.permuted import PermutedSettings
from unicloze.pretraining.data import inherited_settings
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import DecodingSettings
from unicloze.training.loading import LoadedModel, load_model
from xl_toys import two_streams

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{}, {"n_inner": None, "scale_attn_weights": False, "activation_function": "relu"}, {"tie_word_embeddings": False}],
    ids=["plain", "other settings", "untied"],
)
def test_gpt2(tmp_path: Path, changes: dict[str, Any], training: bool) -> None:
    peer = folders.gpt2(tmp_path, **changes).train(training)
    loaded = open_model(tmp_path)
    loaded.model.train(training)
    windows = toys.random_windows(6, 24, short=True, seed=2)
    batch = collate(causal(windows, toys.vocabulary(), loaded.recipe.objective))
    real = torch.arange(batch.input_ids.shape[1]) < torch.from_numpy(windows.lengths)[:, None]
    labels = torch.where(real, batch.input_ids, -100)  # the peer shifts them itself
    expected = peer(input_ids=batch.input_ids, attention_mask=real.long(), labels=labels, output_hidden_states=True)
    for ours, theirs in zip(loaded.model.backbone(batch), expected.hidden_states, strict=True):
        torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=1e-5)
    loss = loaded.model(batch, DropoutKey(0) if training else None)["lm"]
    torch.testing.assert_close(loss.total / loss.weight, expected.loss, atol=1e-5, rtol=1e-5)
    (loss.total / loss.weight).backward()
    expected.loss.backward()
    same_gradients(table_of(tmp_path)[1], loaded.model, peer)
    same_there_and_back(tmp_path, loaded.model)


def test_gpt2_of_the_hub(tmp_path: Path) -> None:
    """Without prefix, with the causal mask among the weights, and with only vocab.json and merges.txt."""
    folders.gpt2(tmp_path)
    expected = open_model(tmp_path).model.state_dict()
    saved = load_file(tmp_path / "model.safetensors")
    stored = {name.removeprefix("transformer."): tensor for name, tensor in saved.items()}
    for number in range(3):
        stored[f"h.{number}.attn.bias"] = torch.ones(1, 1, 40, 40, dtype=torch.bool).tril()
        stored[f"h.{number}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(stored, tmp_path / "model.safetensors")
    found = open_model(tmp_path).model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("prefix_space", [False, True])
def test_a_vocabulary_and_its_merges_encode_as_gpt2s_tokenizer(tmp_path: Path, prefix_space: bool) -> None:
    folders.gpt2(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": prefix_space}))
    loaded = open_model(tmp_path)
    files = (str(tmp_path / name) for name in ("vocab.json", "merges.txt"))
    peer = transformers.GPT2Tokenizer(*files, add_prefix_space=prefix_space)
    for text in folders.TEXTS:
        ids = loaded.tokenizer.encode(text).tolist()
        assert ids == peer(text)["input_ids"]
        assert loaded.tokenizer.decode(ids) == peer.decode(ids)
    end = peer.convert_tokens_to_ids("<|endoftext|>")
    vocabulary = loaded.tokenizer.vocabulary
    assert {vocabulary.sos, vocabulary.eos, vocabulary.pad} == {end} and vocabulary.special.tolist() == [end]


@pytest.mark.parametrize("beams", [1, 3])
def test_gpt2_continues_texts_as_transformers_does(tmp_path: Path, beams: int) -> None:
    peer = folders.gpt2(tmp_path)
    loaded = open_model(tmp_path)
    end = loaded.tokenizer.vocabulary.eos
    found = generate(loaded, folders.TEXTS, DecodingSettings(beams=beams, max_length=9))
    scores = {"num_beams": beams, "length_penalty": 0.0} if beams > 1 else {}
    for text, own in zip(folders.TEXTS, found, strict=True):
        row = torch.tensor([loaded.tokenizer.encode(text).tolist()])
        written = peer.generate(
            row, attention_mask=torch.ones_like(row), max_new_tokens=9, do_sample=False, pad_token_id=end, **scores
        )[0, row.shape[1] :].tolist()
        assert own.candidates[0].tokens == (written[: written.index(end)] if end in written else written)


def test_gpt2_scores_a_text_as_transformers_does(tmp_path: Path) -> None:
    peer = folders.gpt2(tmp_path)
    loaded = open_model(tmp_path)
    end = loaded.tokenizer.vocabulary.eos
    row = torch.tensor([[end, *loaded.tokenizer.encode(folders.TEXTS[0]).tolist()]])
    with torch.no_grad():
        expected = -peer(row, labels=row).loss * (row.shape[1] - 1)
    (score,) = verbs.score(loaded, folders.TEXTS[0])
    assert score.chain_log_likelihood == pytest.approx(float(expected), abs=1e-4)


def test_written_as_a_checkpoint_of_ours_they_are_the_same(tmp_path: Path) -> None:
    for name, make in {"gpt2": folders.gpt2, "xlnet": folders.xlnet}.items():
        make(tmp_path / name)
        same_as_ours(open_model(tmp_path / name), tmp_path / f"our {name}")


def test_an_exported_gpt2_writes_as_its_recipe_says(tmp_path: Path) -> None:
    folders.gpt2(tmp_path / "theirs")
    loaded = open_model(tmp_path / "theirs")
    asked = loaded.recipe.changed("decoding", beams=3, min_length=25, max_length=30)
    verbs.export(dataclasses.replace(loaded, recipe=asked), "gpt2", tmp_path / "ours")
    written = json.loads((tmp_path / "ours" / "generation_config.json").read_text())
    assert (written["num_beams"], written["min_new_tokens"]) == (3, 25)
    assert written["max_new_tokens"] == 25, "at most half of the 40 positions, but not below the minimum"
    again = open_model(tmp_path / "ours").recipe.decoding
    assert again == dataclasses.replace(asked.decoding, max_length=25)
    text = folders.TEXTS[0]
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")(text, return_tensors="pt")
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").generate(**inputs)
    (own,) = generate(loaded, [text], DecodingSettings(beams=3, min_length=25, max_length=25))
    assert found[0, inputs["input_ids"].shape[1] :].tolist() == own.candidates[0].tokens


def test_the_tokenizer_of_an_exported_gpt2_keeps_the_end_of_a_prompt(tmp_path: Path) -> None:
    folders.gpt2(tmp_path / "theirs")
    loaded, text = open_model(tmp_path / "theirs"), " ".join(folders.TEXTS) * 3
    verbs.export(loaded, "gpt2", tmp_path / "ours")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    last = loaded.tokenizer.encode(text)[-20:].tolist()
    assert tokenizer(text, truncation=True)["input_ids"] == last, "half of the 40 positions are left to the target"
    assert open_model(tmp_path / "ours").recipe.data.window == loaded.recipe.data.window == 40, "a text has them all"


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False}], ids=["tied", "untied"])
def test_gpt2_is_exported_bit_by_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    peer = folders.gpt2(tmp_path / "theirs", **changes)
    loaded = open_model(tmp_path / "theirs")
    result = verbs.export(loaded, "gpt2", tmp_path / "ours")
    assert result.architecture == "GPT2LMHeadModel" and result.differences["logits"] < 1e-5
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert all(torch.equal(again.state_dict()[name], weight) for name, weight in peer.state_dict().items())
    assert (again.config.n_inner, again.config.n_positions) == (64, 40)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer(folders.TEXTS)["input_ids"] == [
        each.tolist() for each in loaded.tokenizer.encode_batch(folders.TEXTS)
    ]
    card = (tmp_path / "ours" / "README.md").read_text()
    assert "pipeline_tag: text-generation" in card and "AutoModelForCausalLM.from_pretrained" in card
    assert "SentenceTransformer" not in card


def test_our_own_gpt2_is_exported(tmp_path: Path) -> None:
    """Its rows begin with [SOS], and so do those of the exported tokenizer."""
    loaded = nlu_toys.start("gpt-2", model__max_positions=40)
    verbs.export(loaded, "gpt2", tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    first, *others = tokenizer("anna sees")["input_ids"]
    assert first == loaded.tokenizer.vocabulary.sos and others == loaded.tokenizer.encode("anna sees").tolist()
    refused = {"bart": "decoder_layers is 0", "xlnet": "objective.name is causal, .* predicts permuted tokens"}
    for to, message in refused.items():
        with pytest.raises(UsageError, match=message):
            verbs.export(loaded, to, tmp_path / "other")


def test_xlnet_is_exported(tmp_path: Path) -> None:
    """With a row of its own for the query vector, which no text has."""
    peer = folders.xlnet(tmp_path / "theirs", mem_len=11)
    loaded = open_model(tmp_path / "theirs")
    assert (loaded.recipe.model.memory, loaded.recipe.data.order) == (11, "streams")
    result = verbs.export(loaded, "xlnet", tmp_path / "ours")
    assert result.architecture == "XLNetLMHeadModel" and max(result.differences.values()) < 1e-4
    again = transformers.XLNetLMHeadModel.from_pretrained(tmp_path / "ours")
    for name, weight in peer.state_dict().items():
        assert torch.equal(again.state_dict()[name][: len(weight)], weight)
    assert again.config.mem_len == 11
    second = open_model(tmp_path / "ours")
    assert second.recipe.model == loaded.recipe.model and second.tokenizer.fingerprint == loaded.tokenizer.fingerprint
    assert all(torch.equal(second.model.state_dict()[name], own) for name, own in loaded.model.state_dict().items())


def test_our_own_xlnet_is_exported(tmp_path: Path) -> None:
    """Its pseudo mask lies within its vocabulary."""
    loaded = nlu_toys.start("xlnet-base")
    result = verbs.export(loaded, "xlnet", tmp_path / "out")
    assert max(result.differences.values()) < 1e-5
    assert torch.equal(
        transformers.XLNetModel.from_pretrained(tmp_path / "out").mask_emb[0, 0],
        loaded.model.backbone.embeddings.tokens.weight[loaded.tokenizer.vocabulary.pseudo],
    )


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "inverse": (folders.gpt2, {"scale_attn_by_inverse_layer_idx": True}, "layer_idx is True: only False is supported"),
    "rates": (folders.gpt2, {"embd_pdrop": 0.3}, r"embd_pdrop is 0.3: only 0.0 is supported"),
    "cross": (folders.gpt2, {"add_cross_attention": True}, "add_cross_attention is True: only False"),
    "one way": (folders.xlnet, {"attn_type": "uni"}, "attn_type is uni: only bi"),
    "tied": (folders.xlnet, {"untie_r": False}, "untie_r is False: only True"),
    "halves": (folders.xlnet, {"bi_data": True}, "bi_data is True: only False"),
    "clamped": (folders.xlnet, {"clamp_len": 400}, "clamp_len is 400: only -1 or 0"),
    "spans": (folders.xlnet, {"same_length": True}, "same_length is True: only False"),
    "reused": (folders.xlnet, {"reuse_len": 9}, "reuse_len is 9: only 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_our_networks_lack_is_refused(tmp_path: Path, name: str) -> None:
    make, changes, message = REFUSED[name]
    make(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UniclozeError, match=message):
        open_model(tmp_path)


def test_damaged_merges_are_refused(tmp_path: Path) -> None:
    folders.gpt2(tmp_path)
    for content, message in {
        b"#version: 0.2\nt h\nthe\n": r"merges.txt:3 is not a pair of tokens",
        b"t h\n\xff\n": r"merges.txt is not valid UTF-8 at byte 4",
        b"t q\n": r"vocab.json is damaged or not a tokenizer.json of the tokenizers library \(.*`tq` out of vocabulary",
    }.items():
        (tmp_path / "merges.txt").write_bytes(content)
        with pytest.raises(UniclozeError, match=message):
            open_model(tmp_path)
    (tmp_path / "merges.txt").write_bytes(b"t h\n")
    (tmp_path / "vocab.json").write_text('{"a": "b"}')
    with pytest.raises(UniclozeError, match=r"vocab.json does not give every token a number"):
        open_model(tmp_path)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("accents", [False, True])
def test_texts_are_encoded_as_by_xlnets_tokenizer(tmp_path: Path, lower: bool, accents: bool) -> None:
    """Its normalisation is that of the file; `do_lower_case` of the configuration repeats it."""
    folders.xlnet(tmp_path)
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    peer = transformers.XLNetTokenizer(
        vocab=[tuple(each) for each in vocabulary], unk_id=0, do_lower_case=lower, keep_accents=accents
    )
    peer.save_pretrained(tmp_path)
    loaded = open_model(tmp_path)
    for text in [*folders.TEXTS, "  The  ``end''"]:
        assert loaded.tokenizer.encode(text).tolist() == peer(text, add_special_tokens=False)["input_ids"]
    own = loaded.tokenizer.vocabulary
    assert loaded.tokenizer.tokens([own.pad, own.unk, own.sos, own.eos, own.mask]) == [
        "<pad>", "<unk>", "<cls>", "<sep>", "<mask>",
    ]  # fmt: skip
    assert own.pseudo == 50


def permuted_batch(loaded: LoadedModel, seed: int = 2, short: bool = True) -> Any:
    """Windows of running text with special tokens of XLNet's, and their rows."""
    objective = loaded.recipe.objective
    assert isinstance(objective, PermutedSettings)
    windows = toys.random_windows(6, 18, short=short, seed=seed)
    return windows, make_examples(windows, loaded.tokenizer.vocabulary, dataclasses.replace(objective, mask_rate=0.35))


def their_loss(peer: Any, inputs: dict[str, Tensor], batch: Any, **more: Any) -> Any:
    target = batch.targets["par"]
    labels = torch.where(target.weights > 0, target.labels, -100)
    width = labels.shape[1]
    return peer(**inputs | {"target_mapping": inputs["target_mapping"][:, :width]}, labels=labels, **more)


@pytest.mark.parametrize("training", [False, True])
def test_xlnet(tmp_path: Path, training: bool) -> None:
    """Both streams, the loss over their vocabulary alone, and all gradients, that of the query vector included."""
    peer = folders.xlnet(tmp_path).train(training)
    loaded = open_model(tmp_path)
    loaded.model.train(training)
    windows, examples = permuted_batch(loaded)
    batch = collate(examples, fixed_shape=True)
    inputs = two_streams(windows, examples)
    expected = peer(**inputs, output_hidden_states=True)
    content = torch.from_numpy(examples.text_slots()).long()
    real, key = content >= 0, DropoutKey(0) if training else None
    row, j = (batch.targets["par"].weights > 0).nonzero(as_tuple=True)
    for number, state in enumerate(loaded.model.backbone(batch, dropout=key)):
        in_order = state.gather(1, content.clamp(min=0)[:, :, None].expand(-1, -1, 32))
        torch.testing.assert_close(in_order[real], expected.hidden_states[2 * number][real], atol=1e-5, rtol=1e-5)
        queries = expected.hidden_states[2 * number + 1][row, j]
        torch.testing.assert_close(state[row, batch.targets["par"].slots[row, j]], queries, atol=1e-5, rtol=1e-5)
    loss, answer = loaded.model(batch, key)["par"], their_loss(peer, inputs, batch)
    torch.testing.assert_close(loss.total / loss.weight, answer.loss, atol=1e-5, rtol=1e-5)
    (loss.total / loss.weight).backward()
    answer.loss.backward()
    same_gradients(table_of(tmp_path)[1], loaded.model, peer)
    same_there_and_back(tmp_path, loaded.model)


def test_a_bare_xlnet_reads_texts(tmp_path: Path) -> None:
    peer = folders.xlnet(tmp_path, "XLNetModel")
    loaded = open_model(tmp_path)
    assert not loaded.recipe.objective.trains and not hasattr(loaded.model, "token_head")
    vocabulary = loaded.tokenizer.vocabulary
    assert loaded.tokenizer.tokens([vocabulary.sos, vocabulary.eos]) == ["<cls>", "<sep>"]
    ids = torch.tensor([[vocabulary.sos, *loaded.tokenizer.encode(folders.TEXTS[0]).tolist(), vocabulary.eos]])
    with torch.no_grad():
        expected = peer(ids).last_hidden_state[0].mean(dim=0)
    found = torch.from_numpy(embed(loaded, folders.TEXTS[:1], pooling="mean"))
    torch.testing.assert_close(found.flatten(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:the model.s shape is that of")
def test_pre_training_continues_an_imported_xlnet(tmp_path: Path) -> None:
    """Its query vector keeps its row, for which the tokenizer of the folder itself has no token."""
    folders.xlnet(tmp_path / "theirs")
    recipe = load_recipe("xlnet-base", {"training.initialize_from": str(tmp_path / "theirs")})
    with pytest.raises(UsageError, match=r"run `unicloze import .*theirs --out DIR` first, and start from DIR"):
        inherited_settings(recipe, open_model(tmp_path / "theirs"), {}, new_tokenizer=False)
    write_model(open_model(tmp_path / "theirs"), tmp_path / "ours")
    recipe = load_recipe("xlnet-base", {"training.initialize_from": str(tmp_path / "ours")})
    changes = inherited_settings(recipe, open_model(tmp_path / "ours"), {}, new_tokenizer=False)
    assert changes["tokenizer.path"] == str(tmp_path / "ours" / "tokenizer.json")
    assert changes["model.positions"] == "transformer_xl"


def test_gpt2s_vocabulary_trains_left_to_right_alone(tmp_path: Path) -> None:
    """It has no mask token, whose role <|endoftext|> takes elsewhere."""
    folders.gpt2(tmp_path / "gpt2")
    corpus = write_corpus(tmp_path / "corpus", documents=30)
    given = {**toy_overrides(), "data.corpus": [str(corpus)], "tokenizer.path": str(tmp_path / "gpt2" / "vocab.json"),
             "training.precision": "fp32", "training.steps": 1}  # fmt: skip
    with pytest.raises(UsageError, match="objective masked masks tokens, but the tokenizer has no mask token"):
        pretrain_run(load_recipe("bert-base", given), tmp_path / "bert", progress=False)
    pretrain_run(load_recipe("gpt-2", given), tmp_path / "run", progress=False)
    assert load_model(tmp_path / "run").tokenizer.vocabulary.mask == 261
