"""Imported models with another vocabulary or more positions, and runs that start from them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

import nlu_toys
from conftest import slow_except
from decoding_toys import roberta_like, wordpiece
from interop_toys import SPECIALS, VOCABULARY, batch_of, save, write_vocabulary
from test_import_unilm import released
from unicloze.errors import UniclozeError, UsageError
from unicloze.interop.read import import_checkpoint, open_model
from unicloze.pretraining.data import inherited_settings
from unicloze.recipes import load_recipe
from unicloze.settings import TokenizerSettings
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.initial import repeated, rows_of_segments, shared_tokens
from unicloze.training.loading import LoadedModel, load_model
from unicloze.verbs import embed, finetune, predict, pretrain

TOKENS = "backbone.embeddings.tokens.weight"
SEGMENTS = "backbone.embeddings.segments.weight"
POSITIONS = "backbone.embeddings.positions.weight"
STILL = {"data.heldout_share": 0.2, "training.learning_rate": 1e-12, "training.weight_decay": 0.0}


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """Two segments, 40 positions, a masked language modelling head, 50 tokens."""
    place = tmp_path / "bert"
    released(place, fused=False, relative=False, segments=2, model_type="bert")
    return place


# Vocabularies


def test_tokens_are_shared_by_spelling_and_by_whether_they_begin_a_word() -> None:
    pieces, spaced = wordpiece(), roberta_like()
    trained = Tokenizer.train(
        ["the list, the listing of lists. café"] * 9, TokenizerSettings(kind="bpe", vocab_size=285)
    )
    found = shared_tokens(pieces, trained)
    same = {"Ġthe": "the", "Ġlist": "list", ",": ",", "Ġof": "of", "s": "##s", "ing": "##ing"}
    for token, other in {**same, "Ġ": None, "list": None}.items():
        i = trained.token_id(token)
        if i is not None:
            assert found[i] == (-1 if other is None else pieces.token_id(other)), token
    assert trained.token_id("Ġlist") is not None
    back = shared_tokens(trained, pieces)
    word = pieces.token_id("the")
    assert word is not None and back[word] == trained.token_id("Ġthe")
    roles = shared_tokens(spaced, pieces)
    for role in ("sos", "eos", "pad", "unk", "mask"):
        assert roles[getattr(pieces.vocabulary, role)] == getattr(spaced.vocabulary, role)
    assert roles[pieces.vocabulary.pseudo] == spaced.vocabulary.mask, "a pseudo mask starts as a copy of the mask"
    assert shared_tokens(pieces, pieces).tolist() == list(range(len(pieces)))


def test_an_imported_model_with_another_vocabulary(bert: Path, tmp_path: Path) -> None:
    start = open_model(bert)
    old = start.model.state_dict()
    other = write_vocabulary(tmp_path / "other", [*SPECIALS, "z", "New", "a", "##a"])
    with pytest.warns(
        UserWarning, match=r"^10 of 11 tokens take their rows from .*bert, the other 1 start at the mean$"
    ):
        loaded = import_checkpoint(bert, tokenizer=other)
    new = loaded.model.state_dict()
    places = [*range(7), VOCABULARY.index("z"), VOCABULARY.index("a"), VOCABULARY.index("##a")]
    kept = [0, 1, 2, 3, 4, 5, 6, 7, 9, 10]
    for name in (TOKENS, "token_head.bias"):
        assert torch.equal(new[name][kept], old[name][places])
        torch.testing.assert_close(new[name][8], old[name][7:].mean(0))
    assert loaded.model.vocab_size == 11 and loaded.recipe.tokenizer.path == str(other)
    assert start.recipe.tokenizer.lowercase and not loaded.recipe.tokenizer.lowercase
    assert all(torch.equal(new[name], old[name]) for name in old if name not in (TOKENS, "token_head.bias"))


def test_rows_beyond_the_vocabulary_are_left_out_with_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    peer = save("BertForMaskedLM", tmp_path, vocab_size=56)
    with pytest.warns(UserWarning, match=r"has 56 token rows but its tokenizer only 50 tokens: the other 6 rows"):
        loaded = open_model(tmp_path)
    batch, real = batch_of(loaded.tokenizer.vocabulary, segments=True)
    with torch.no_grad():
        own = loaded.model.token_logits(loaded.model.backbone(batch)[-1])
        theirs = peer(batch.input_ids, attention_mask=real.long(), token_type_ids=batch.segment_ids).logits
    torch.testing.assert_close(own[real], theirs[real][:, :50], atol=1e-5, rtol=1e-5)


def test_roles_are_those_the_tokenizers_configuration_names(tmp_path: Path) -> None:
    """MPNet's vocabulary also contains BERT's special tokens, which have no meaning there."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "<mask>"]
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "[UNK]", "<mask>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    named = {"cls": "<s>", "sep": {"content": "</s>"}, "pad": "<pad>", "mask": "<mask>", "unk": "[UNK]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({f"{role}_token": it for role, it in named.items()}))
    for file in (tmp_path, tmp_path / "tokenizer.json"):
        tokenizer = Tokenizer.load(file)
        found = tokenizer.vocabulary
        assert (found.sos, found.pad, found.eos, found.unk, found.mask) == (0, 1, 2, 5, 11)
        tokenizer.save(tmp_path)


def test_sentencepieces_words_begin_with_their_mark() -> None:
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁a", "b", ".", "▁.", "<mask>"]
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram([(token, -1.0) for token in tokens], unk_id=3))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    backend.decoder = tokenizers.decoders.Metaspace()
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer = Tokenizer(backend)
    continues, ends = tokenizer.vocabulary.continues, tokenizer.vocabulary.ends_sentence
    assert np.flatnonzero(continues).tolist() == [5]
    assert np.flatnonzero(ends).tolist() == [6, 7]


# Positions and segments


def test_positions_are_repeated_when_asked_for(bert: Path) -> None:
    old = open_model(bert).model.state_dict()[POSITIONS]
    with pytest.warns(UserWarning, match=r"^positions 40 to 99 start as copies of the 40 that .*bert has$"):
        loaded = import_checkpoint(bert, positions=100)
    new = loaded.model.state_dict()[POSITIONS]
    assert torch.equal(new, torch.cat([old, old, old])[:100])
    assert loaded.model.max_positions == loaded.recipe.data.window == 100
    long = " ".join("abcdefghij"[i % 10] for i in range(90))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert embed(loaded, [long]).shape == (1, 32)
    assert torch.equal(repeated(old, 7), old[:7])


@pytest.mark.parametrize(("recipe", "known", "rows"), [
    ("unilm-v1-base", 2, [0, 1, 0, 0, 0, 1]),
    ("unilm-v1-base", 6, [0, 1, 2, 3, 4, 5]),
    ("unilm-v1-base", 1, [0, 0, 0, 0, 0, 0]),
    ("bert-base", 2, [0, 1]),
    ("bert-base", 1, [0, 0]),
])  # fmt: skip
def test_segments_start_as_what_they_name(recipe: str, known: int, rows: list[int]) -> None:
    assert rows_of_segments(load_recipe(recipe), known).tolist() == rows


# Runs


def run(
    recipe: str, init: Path, out: Path, corpus: Path, *, new_tokenizer: bool = False, **overrides: Any
) -> LoadedModel:
    changes = {**STILL, "data.corpus": [str(corpus)]} | {
        key.replace("__", "."): each for key, each in overrides.items()
    }
    pretrain(recipe, out, toy=True, quiet=True, overrides=changes, init=init, new_tokenizer=new_tokenizer)
    return load_model(out)


def same(found: LoadedModel, expected: LoadedModel, *, but: tuple[str, ...] = ()) -> None:
    """All common weights are equal, except some."""
    theirs = expected.model.state_dict()
    names = [name for name in found.model.state_dict() if name in theirs and name not in but]
    assert sum(name.startswith("backbone.layers.") for name in names) > 10
    for name in names:
        torch.testing.assert_close(found.model.state_dict()[name], theirs[name], atol=1e-6, rtol=0)


@pytest.mark.whole
def test_a_run_has_shape_tokenizer_and_weights_of_what_it_starts_from(bert: Path, corpus: Path, tmp_path: Path) -> None:
    shape = (
        r"the model's shape is that of .*bert: num_layers 3 \(recipe: 2\), num_heads 4 \(recipe: 2\), "
        r"max_positions 40 \(recipe: 32\)"
    )
    with pytest.warns(UserWarning, match=shape + r", relative_bias False \(recipe: True\)$"):
        found = run("unilmv2-base", bert, tmp_path / "run", corpus)
    same(found, open_model(bert))
    assert len(found.tokenizer) == 50 and found.recipe.objective.name == "unilmv2"
    with pytest.warns(UserWarning, match="trained to step 2"):
        assert pretrain(out=tmp_path / "run", quiet=True).step == 2
    with pytest.warns(UserWarning) as said:
        again = run("unilmv2-base", tmp_path / "run", tmp_path / "second", corpus, model__relative_bias=True)
    sentences = [str(one.message) for one in said]
    assert any("has no backbone.relative.weight of the right shape: they are newly" in one for one in sentences)
    assert not any("relative_bias" in one for one in sentences)
    same(again, found)
    assert again.recipe.tokenizer.path == str(tmp_path / "run" / "tokenizer.json")


def test_unilm_v1_starts_from_bert_as_its_paper_says(bert: Path, corpus: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning) as said:
        found = run("unilm-v1-base", bert, tmp_path / "run", corpus)
    sentences = [str(one.message) for one in said]
    assert any("segments 0 to 5 start as copies of segments 0, 1, 0, 0, 0, 1 of" in one for one in sentences)
    assert any("has no pair_head" in one for one in sentences)
    start = open_model(bert)
    same(found, start, but=(SEGMENTS,))
    expected = start.model.state_dict()[SEGMENTS][[0, 1, 0, 0, 0, 1]]
    torch.testing.assert_close(found.model.state_dict()[SEGMENTS], expected, atol=1e-6, rtol=0)


def test_a_run_with_another_vocabulary_longer_windows_and_fewer_layers(
    bert: Path, corpus: Path, tmp_path: Path
) -> None:
    sizes = {"tokenizer__vocab_size": 120, "data__window": 64, "model__num_layers": 2}
    with pytest.warns(UserWarning) as said:
        found = run("bert-base", bert, tmp_path / "run", corpus, new_tokenizer=True, **sizes)
    start, sentences = open_model(bert), [str(one.message) for one in said]
    assert found.recipe.model.num_layers == 2
    shared = shared_tokens(start.tokenizer, found.tokenizer)
    count = int((shared >= 0).sum())
    assert 20 < count < len(found.tokenizer)
    assert any(f"{count} of {len(found.tokenizer)} tokens take their rows from" in one for one in sentences)
    assert any("positions 40 to 63 start as copies of the 40 that" in one for one in sentences)
    same(found, start, but=(TOKENS, POSITIONS, "token_head.bias"))
    new, before = found.model.state_dict(), start.model.state_dict()
    torch.testing.assert_close(
        new[POSITIONS], torch.cat([before[POSITIONS], before[POSITIONS][:24]]), atol=1e-6, rtol=0
    )
    rows, old = new[TOKENS], before[TOKENS]
    torch.testing.assert_close(rows[shared >= 0], old[shared[shared >= 0]], atol=1e-6, rtol=0)
    torch.testing.assert_close(rows[shared < 0], old[7:].mean(0).expand(len(rows) - count, -1), atol=1e-6, rtol=0)


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("kind", "recipe", "changes"),
    slow_except([("MPNetModel", "mpnet-base", {}), ("BertForMaskedLM", "xlnet-base", {})], [
        ("DistilBertForMaskedLM", "bert-base", {}),
        ("RobertaForMaskedLM", "roberta-base", {"type_vocab_size": 1}),
        ("MPNetModel", "mpnet-base", {}),
        ("ElectraForPreTraining", "electra-small", {"embedding_size": 16}),
        ("AlbertForPreTraining", "albert-base", {"embedding_size": 16}),
        ("BertForMaskedLM", "xlnet-base", {}),  # without XLNet's memory, which needs its distances
    ]),
)  # fmt: skip
def test_each_family_starts_a_run_of_its_own_objective(
    kind: str, recipe: str, changes: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    save(kind, tmp_path / "theirs", padding=2 if kind[:2] in ("Ro", "MP") else 0, **changes)
    start = open_model(tmp_path / "theirs")
    if start.recipe.model.num_segments == 0 and kind.startswith("Distil"):
        with pytest.warns(UserWarning, match=r"has no segments: their embeddings start at 0"):
            found = run(recipe, tmp_path / "theirs", tmp_path / "run", corpus)
        assert not found.model.state_dict()[SEGMENTS].abs().max() > 1e-6
    else:
        window = 120 if kind.startswith("Albert") else 32  # whole sentences, spelled letter by letter
        found = run(recipe, tmp_path / "theirs", tmp_path / "run", corpus, data__window=window)
    same(found, start, but=(SEGMENTS, POSITIONS))


@pytest.mark.parametrize(
    ("kind", "changes"), [("RobertaForMaskedLM", {"type_vocab_size": 1}), ("DistilBertModel", {}), ("BertModel", {})]
)
def test_an_imported_model_is_fine_tuned_on_pairs(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Also if segments are not distinguished."""
    pytest.importorskip("transformers")
    save(kind, tmp_path / "theirs", padding=2 if kind.startswith("Ro") else 0, **changes)
    records = [{"text": "a b", "pair": "c.", "label": "x"}, {"text": "b", "pair": "d e f", "label": "y"}]
    pairs, out = nlu_toys.write(tmp_path / "pairs.jsonl", records), tmp_path / "run"
    overrides = {"task.fields": {"text": "text", "pair": "pair", "label": "label"}, "finetuning.epochs": 1.0}
    finetune("classification", tmp_path / "theirs", pairs, out=out, quiet=True, overrides=overrides)
    assert len(predict(out, pairs, quiet=True)) == 2


def test_what_a_start_refuses(bert: Path, corpus: Path, tmp_path: Path) -> None:
    given = {"data.corpus": [str(corpus)], "data.heldout_share": 0.2}
    with pytest.raises(UsageError, match=r"tokenizer.vocab_size applies to training a tokenizer.*--new-tokenizer"):
        pretrain("bert-base", tmp_path / "a", toy=True, overrides={**given, "tokenizer.vocab_size": 99}, init=bert)
    with pytest.raises(UsageError, match="--new-tokenizer has no effect without --init"):
        pretrain("bert-base", tmp_path / "b", toy=True, overrides=given, new_tokenizer=True)
    with pytest.raises(UsageError, match="--init starts a new run: give --recipe"):
        pretrain(out=tmp_path / "c", init=bert)
    with pytest.raises(UniclozeError, match="there is no model at"):
        pretrain("bert-base", tmp_path / "d", toy=True, overrides=given, init=tmp_path / "none")
    with pytest.raises(UniclozeError, match=r"no weight of .* fits"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sizes = {"hidden_size": 16, "intermediate_size": 8, "head": "linear", "head_bias": False}
        given |= {f"model.{name}": value for name, value in sizes.items()}
        pretrain("bert-base", tmp_path / "e", toy=True, quiet=True, overrides=given, init=bert)
    assert not any((tmp_path / name).exists() for name in "abcd")


@pytest.mark.parametrize(
    ("name", "kind", "what"), [("elmo", "a Transformer", "an LSTM"), ("gpt", "an LSTM", "a Transformer")]
)
def test_an_lstm_does_not_start_from_a_transformer_nor_the_reverse(name: str, kind: str, what: str) -> None:
    start = nlu_toys.start("awd-lstm" if name == "gpt" else "t5-base")
    recipe = load_recipe(name, {"training.initialize_from": "runs/other"})
    with pytest.raises(UsageError, match=rf"the model runs/other is {kind}, and recipe {name} trains {what}"):
        inherited_settings(recipe, start, {}, new_tokenizer=False)
