"""Texts are encoded, embedded and filled alike by tasks, exports, Transformers and sentence-transformers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

from conftest import slow_except
from decoding_toys import byte_level, loaded, plain_format, roberta_like, sentencepiece, wordpiece
from interop_toys import save
from nlu_toys import recipe_for, write
from unicloze import verbs
from unicloze.decoding.embed import embed
from unicloze.decoding.inputs import text_format
from unicloze.errors import UniclozeError
from unicloze.finetuning.run import finetune_run
from unicloze.interop import check as peers
from unicloze.interop.check import odd_texts
from unicloze.interop.export import stock_format, write_export
from unicloze.interop.read import import_checkpoint, open_model
from unicloze.interop.tokenizer_files import write_tokenizer
from unicloze.recipes import load_recipe
from unicloze.settings import UseSettings
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.initial import inherited, shared_tokens
from unicloze.training.loading import LoadedModel, load_model

transformers = pytest.importorskip("transformers")


def unsplit() -> Tokenizer:
    return sentencepiece(split=False)


def normalising() -> Tokenizer:
    """Byte-level after a normaliser whose result for a text differs from that for its parts."""
    steps = [tokenizers.normalizers.Lowercase(), tokenizers.normalizers.Strip()]
    return roberta_like(lstrip=False, normalizer=tokenizers.normalizers.Sequence(steps))


KINDS = {
    "wordpiece": wordpiece,
    "bpe": byte_level,
    "roberta": roberta_like,
    "sentencepiece": sentencepiece,
    "unsplit": unsplit,
    "normalising": normalising,
    "nfc": lambda: roberta_like(lstrip=False, normalizer=tokenizers.normalizers.NFC()),
}
FORMATS = ["bert", "roberta", "mpnet", "unicloze"]
TEXTS = [
    "the list [MASK] empty", "[MASK] of a list", "the list of [MASK] [MASK], [MASK].", "Return a ([MASK])[MASK] x",
    "is\n[MASK] a\t[MASK]  [MASK] of", "of[MASK]s, a [MASK]", " [MASK]",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _silence() -> Any:
    with peers.quietly(transformers):
        yield


def masked(tokenizer: Tokenizer, to: str, **objective: Any) -> LoadedModel:
    return loaded(tokenizer, relative=to == "mpnet", name="masked", targets=["ae"], positions=64, **objective)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", FORMATS)
def test_the_stock_pipeline_fills_as_fill_does(tmp_path: Path, to: str, kind: str) -> None:
    model = masked(KINDS[kind](), to)
    result = verbs.export(model, to, tmp_path / "out")
    assert result.differences["texts with masks"] < 1e-5
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ask = transformers.pipeline("fill-mask", model=str(tmp_path / "out"))
    special = set(model.tokenizer.tokens(model.tokenizer.vocabulary.special))
    for text in TEXTS:
        text = text.replace("[MASK]", auto.mask_token)
        said = ask(text, top_k=len(model.tokenizer))
        said = said if isinstance(said[0], list) else [said]
        for mask, candidates in zip(verbs.fill(model, text).masks, said, strict=True):
            found = {auto.convert_ids_to_tokens(each["token"]): each["score"] for each in candidates}
            total = sum(score for token, score in found.items() if token not in special)
            assert {token: found[token] / total for token, _ in mask.top} == pytest.approx(dict(mask.top), abs=1e-5), (
                text
            )


def with_a_token_too_many(folder: Path) -> None:
    """Before its masks."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    for token in content["added_tokens"]:
        token["normalized"] = False
    file.write_text(json.dumps(content | {"normalizer": None}))


def padded_on_the_left(folder: Path) -> None:
    """BERT counts positions from the beginning of the row, padding or not."""
    file = folder / "tokenizer_config.json"
    file.write_text(file.read_text().replace('"padding_side": "right"', '"padding_side": "left"'))


@pytest.mark.parametrize(("kind", "spoil", "message"), [
    ("bpe", with_a_token_too_many, r"AutoTokenizer gives different ids for 'a .* b'"),
    ("unsplit", with_a_token_too_many, r"AutoTokenizer gives different ids for 'a .* b'"),
    ("wordpiece", padded_on_the_left, r"differs from the model by .* on texts"),
])  # fmt: skip
def test_an_export_that_reads_texts_otherwise_is_refused(tmp_path: Path, kind: str, spoil: Any, message: str) -> None:
    model = masked(KINDS[kind](), "bert")
    export = stock_format(model, "bert")

    def wrongly(folder: Path) -> None:
        export.write(folder)
        spoil(folder)

    with pytest.raises(UniclozeError, match=message):
        write_export(model, dataclasses.replace(export, write=wrongly), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_tokenizer_is_read_as_what_it_was(tmp_path: Path, kind: str) -> None:
    own = KINDS[kind]()
    write_tokenizer(own, tmp_path, plain_format(own, 64))
    again = Tokenizer.load(tmp_path)
    assert kind in ("normalising", "nfc") or again.fingerprint == own.fingerprint
    for text in (*TEXTS, "a <mask> x", "x\n<mask> </s> [SEP]"):
        assert again.encode(text).tolist() == own.encode(text).tolist()


@pytest.mark.whole
def test_special_tokens_in_texts_are_read_by_stock_tokenizers_alone(tmp_path: Path) -> None:
    """The model card mentions it."""
    for kind, make in KINDS.items():
        out = tmp_path / kind
        verbs.export(masked(make(), "bert"), "bert", out)
        auto = transformers.AutoTokenizer.from_pretrained(out)
        assert auto(f"a {auto.sep_token}")["input_ids"].count(auto.sep_token_id) == 2
        (ids,) = make().encode_batch([f"a {auto.sep_token}"])
        assert auto.sep_token_id not in ids
        split = auto(f"a {auto.sep_token}", split_special_tokens=True)["input_ids"][1:-1]
        unigram = kind in ("sentencepiece", "unsplit")
        assert (split == ids.tolist()) is not unigram
        card = " ".join((out / "README.md").read_text().split())
        assert f"reads the name of a special token in a text, such as `{auto.sep_token}`, as that token" in card
        assert ("split_special_tokens=True" in card) is not unigram
        assert ("Remove such names from untrusted texts" in card) is unigram


LETTERS = ["a b c", "ab, cd. ef", "x", "g h i j k l m n"]

DENSE = [{"type": "a.Transformer", "path": ""}, {"type": "a.Dense", "path": "2_Dense"}]


def test_a_pair_is_cut_as_tokenizers_truncates_it() -> None:
    own = wordpiece()
    form, ids = plain_format(own, 8), own.vocabulary.ordinary[:12]
    backend = tokenizers.Tokenizer.from_str(json.dumps(own.exported()))
    for first, second in itertools.product(range(12), range(12)):
        texts = [" ".join(own.tokens(ids[:size])) for size in (first, second)]
        parts = [own.encode(text) for text in texts]
        for longest in range(3, 16):
            backend.enable_truncation(longest, strategy="longest_first")
            short = dataclasses.replace(form, longest=longest)
            row, _ = short.row(short.fit(parts))
            assert row.tolist() == backend.encode(*texts).ids, (first, second, longest)


@pytest.mark.parametrize("prompt", ["", "b a: "])
@pytest.mark.parametrize("normalize", slow_except([True], [False, True]))
@pytest.mark.parametrize("pooling", ["cls", "mean", "lasttoken"])
def test_folders_of_sentence_transformers(tmp_path: Path, pooling: str, normalize: bool, prompt: str) -> None:
    """Written by them and opened here, exported from here and opened by both: the same vectors."""
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.base.modules")
    pools = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    save("BertModel", tmp_path / "bert")
    transformers.BertTokenizerFast.from_pretrained(tmp_path / "bert").save_pretrained(tmp_path / "bert")
    parts = [modules.Transformer(str(tmp_path / "bert"), max_seq_length=20), pools.Pooling(32, pooling)]
    prompts = {"prompts": {"text": prompt}, "default_prompt_name": "text"} if prompt else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = library.SentenceTransformer(
            modules=[*parts, *([modules.Normalize()] if normalize else [])], device="cpu", **prompts
        )
        model.save(str(tmp_path / "theirs"))
        expected = model.encode(LETTERS, show_progress_bar=False)
        own = open_model(tmp_path / "theirs")
        np.testing.assert_allclose(embed(own, LETTERS), expected, atol=1e-5)
        assert own.recipe.data.window == 20
        verbs.export(own, "bert", tmp_path / "out")
        again = library.SentenceTransformer(str(tmp_path / "out"), device="cpu", local_files_only=True)
        np.testing.assert_allclose(again.encode(LETTERS, show_progress_bar=False), expected, atol=1e-5)
        np.testing.assert_allclose(embed(open_model(tmp_path / "out"), LETTERS), expected, atol=1e-5)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("modules.json", DENSE, "no Dense after the encoder: pass --allow '2_Dense'"),
    ("modules.json", [{"type": "a.Transformer", "path": "../x"}], "does not list modules by type and path"),
    ("1_Pooling/config.json", {"pooling_mode": "max"}, "pools by .'max'., and embed"),
    ("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "pools by"),
    ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case is true"),
])  # fmt: skip
def test_what_embed_cannot_do_is_refused(tmp_path: Path, name: str, content: Any, message: str) -> None:
    verbs.export(loaded(byte_level()), "bert", tmp_path / "out")
    (tmp_path / "out" / name).write_text(json.dumps(content))
    with pytest.raises(UniclozeError, match=message):
        open_model(tmp_path / "out")


def test_a_module_may_be_left_out_on_request(tmp_path: Path) -> None:
    verbs.export(loaded(), "bert", tmp_path / "out")
    (tmp_path / "out/modules.json").write_text(json.dumps(DENSE))
    assert import_checkpoint(tmp_path / "out", allow=["2_Dense"]).recipe.use.pooling == "first"


@pytest.mark.parametrize("kind", ["RobertaModel", "MPNetModel", "BartModel"])
def test_pairs_have_the_separators_of_their_family(tmp_path: Path, kind: str) -> None:
    """Imported without a head and fine-tuned, exported again: two, as in the family's own tokenizer."""
    if kind == "BartModel":
        config = transformers.BartConfig(
            vocab_size=300, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=40,
        )  # fmt: skip
        transformers.BartModel(config).save_pretrained(tmp_path / "their")
    else:
        save(kind, tmp_path / "their", vocab_size=300, pad_token_id=1)
    (tmp_path / "their/vocab.txt").unlink(missing_ok=True)
    own = roberta_like()
    template = {"type": "RobertaProcessing", "sep": ["</s>", own.vocabulary.eos], "cls": ["<s>", own.vocabulary.sos],
                "trim_offsets": True, "add_prefix_space": False}  # fmt: skip
    own.save(tmp_path / "their")
    file = tmp_path / "their/tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "post_processor": template}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = open_model(tmp_path / "their")
    assert opened.recipe.use.separators == 2
    expected = tokenizers.Tokenizer.from_file(str(file)).encode("a list", "return").ids
    recipe = opened.recipe if kind == "BartModel" else recipe_for(opened, "classification")
    assert recipe.use.separators == 2
    form = text_format(dataclasses.replace(opened, recipe=recipe))
    assert form.row([own.encode("a list"), own.encode("return")])[0].tolist() == expected
    write_tokenizer(own, tmp_path, form, takes_segments=False)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)("a list", "return")["input_ids"] == expected


def test_a_token_with_several_roles_starts_as_the_end_of_a_text() -> None:
    """A vocabulary with one special token (GPT-2) takes the row of [EOS], not that of the mask."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(letters)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(["<|endoftext|>"])
    old, new = wordpiece(), Tokenizer(backend)
    shared = shared_tokens(old, new)
    assert new.vocabulary.mask == new.vocabulary.eos and shared[new.vocabulary.eos] == old.vocabulary.eos
    back = shared_tokens(new, old)
    roles = [old.vocabulary.pad, old.vocabulary.mask, old.vocabulary.sos, old.vocabulary.eos]
    assert {int(back[role]) for role in roles} == {new.vocabulary.eos}


@pytest.mark.parametrize("task", ["classification", "tagging"])
@pytest.mark.parametrize("make", [None, byte_level, roberta_like])
def test_a_finetuned_export_reads_odd_texts_as_we_do(tmp_path: Path, task: str, make: Any) -> None:
    """Its limit is the task's: cut by the stock tokenizer and by ours, and again after opening the folder here."""
    own = loaded(make() if make else None, name="masked", targets=["ae"], positions=64)
    record = {"text": "return a list", "label": "x"}, {"text": "the café is empty", "label": "y"}
    if task == "tagging":
        record = {"tokens": ["return", "a"], "tags": ["B-X", "O"]}, {"tokens": ["the", "café"], "tags": ["O", "B-X"]}
    file = write(tmp_path / "train.jsonl", [*record] * 4)
    asked = {"task__max_length": 24, "task__pooling": "first", "task__head": "plain" if task == "tagging" else "dense"}
    recipe = recipe_for(own, task, finetuning__epochs=1, **asked)
    finetune_run(recipe, own, file, None, tmp_path / "run", progress=False)
    model = load_model(tmp_path / "run")
    verbs.export(model, "bert", tmp_path / "out")
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert auto.model_max_length == 24
    again = open_model(tmp_path / "out")
    assert again.recipe.task.max_length == 24 and text_format(again) == text_format(model)
    texts = [text for text in odd_texts(model, longest=24) if text.strip()]
    if task == "classification":
        peer = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
        with torch.inference_mode():
            expected = peer(**auto(texts, padding=True, truncation=True, return_tensors="pt")).logits.softmax(1)
        records = write(tmp_path / "odd.jsonl", [{"text": text} for text in texts])
        for opened in (model, again):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                said = verbs.predict(opened, records, quiet=True)
            found = [list(each["probabilities"].values()) for each in said]
            np.testing.assert_allclose(found, expected, atol=1e-5)


USES = {
    "bert": UseSettings(pooling="mean", normalize=True, prompt="a "),
    "mpnet": UseSettings(pooling="first", separators=2),
    "roberta": UseSettings(pooling="last", separators=3, normalize=True),
    "electra": UseSettings(pooling="mean", prompt="b"),
    "distilbert": UseSettings(normalize=True),
}


@pytest.mark.parametrize("to", USES)
def test_what_a_model_does_with_texts_survives_an_export(tmp_path: Path, to: str) -> None:
    """Every field of `use`, and the longest row; a new field that an export forgets fails here."""
    own = loaded(relative=to == "mpnet", use=USES[to], name="masked", targets=["ae"], positions=40)
    own = dataclasses.replace(own, recipe=own.recipe.changed("data", window=24))
    verbs.export(own, to, tmp_path / "out")
    again = open_model(tmp_path / "out")
    assert again.recipe.use == own.recipe.use
    forms = [
        dataclasses.replace(text_format(each), segments=(0, 0), start=(), between=(), end=()) for each in (own, again)
    ]
    assert forms[0] == forms[1] and forms[0].longest == 24
    texts = ["the list of items is empty", "return x"]
    np.testing.assert_allclose(embed(again, texts), embed(own, texts), atol=1e-5)


@pytest.mark.parametrize("to", USES)
def test_what_a_model_does_with_texts_survives_more_pre_training(to: str) -> None:
    own = loaded(use=USES[to], name="masked", targets=["ae"], positions=40)
    changes, _ = inherited(load_recipe("mpnet-base"), own, {"use.normalize": False})
    kept = {f"use.{name}": value for name, value in dataclasses.asdict(USES[to]).items()}
    del kept["use.visibility"], kept["use.normalize"]
    assert {key: value for key, value in changes.items() if key.startswith("use.")} == kept
    assert "use.pooling" not in inherited(load_recipe("gpt"), own, {})[0], "the first slot would see itself alone"


def test_every_field_of_the_text_settings_is_exported_in_a_test() -> None:
    plain = UseSettings()
    for field in dataclasses.fields(UseSettings):
        if field.name != "visibility":  # stock classes read in both directions
            assert any(getattr(use, field.name) != getattr(plain, field.name) for use in USES.values()), field.name
