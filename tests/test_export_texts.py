"""Exports tokenize texts, with masks and without, as the original model does: every family and kind of tokenizer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from decoding_toys import byte_level, loaded, plain_format, roberta_like, sentencepiece, wordpiece
from unicloze import verbs
from unicloze.errors import UniclozeError
from unicloze.interop import check as peers
from unicloze.interop.export import stock_format, write_export
from unicloze.interop.tokenizer_files import write_tokenizer
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.loading import LoadedModel

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
    "the list [MASK] empty",
    "[MASK] of a list",
    "the list of [MASK] [MASK], [MASK].",
    "Return a ([MASK])[MASK] x",
    "is\n[MASK] a\t[MASK]  [MASK] of",
    "of[MASK]s, a [MASK]",
    " [MASK]",
]


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
        for mask, candidates in zip(
            verbs.fill(model, text).masks, said if isinstance(said[0], list) else [said], strict=True
        ):
            found = {auto.convert_ids_to_tokens(each["token"]): each["score"] for each in candidates}
            total = sum(score for token, score in found.items() if token not in special)
            assert [found[token] / total for token, _ in mask.top] == pytest.approx(
                [share for _, share in mask.top], abs=1e-5
            ), text


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_is_where_the_masked_word_was(tmp_path: Path, kind: str) -> None:
    """As in training, where the mask replaces a token together with the space it includes."""
    tokenizer = KINDS[kind]()
    write_tokenizer(tokenizer, tmp_path, plain_format(tokenizer, 64))
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    word = "x" if kind in ("roberta", "normalising", "nfc") else "list"
    for text in ("the {} is", "{} of", "a {}", "({} is"):
        (ids,) = tokenizer.encode_batch([text.format(word)])
        (rest,) = tokenizer.encode_batch([text.format("")])
        found = auto(text.format(auto.mask_token))["input_ids"][1:-1]
        (place,) = [i for i, number in enumerate(found) if number == auto.mask_token_id]
        behind = len(found) - place - 1
        assert found[:place] == ids[:place].tolist(), text
        assert found[place + 1 :] == ids[len(ids) - behind :].tolist(), text
        assert len(rest) >= len(found) - 1


@pytest.mark.parametrize("kind", ["bpe", "unsplit"])
def test_an_export_with_a_token_too_many_before_its_masks_is_refused(tmp_path: Path, kind: str) -> None:
    model = masked(KINDS[kind](), "bert")
    export = stock_format(model, "bert")

    def without_dress(folder: Path) -> None:
        export.write(folder)
        file = folder / "tokenizer.json"
        content = json.loads(file.read_text())
        for token in content["added_tokens"]:
            token["normalized"] = False
        file.write_text(json.dumps(content | {"normalizer": None}))

    with pytest.raises(UniclozeError, match=r"AutoTokenizer gives different ids for 'a .* b'"):
        write_export(model, dataclasses.replace(export, write=without_dress), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_check_pads_and_cuts_texts_as_the_exported_tokenizer_does(tmp_path: Path) -> None:
    """BERT counts positions from the beginning of the row, padding or not."""
    model = masked(wordpiece(), "bert")
    export = stock_format(model, "bert")

    def wrongly(folder: Path) -> None:
        export.write(folder)
        file = folder / "tokenizer_config.json"
        file.write_text(file.read_text().replace('"right"', '"left"'))

    with pytest.raises(UniclozeError, match=r"differs from the model by .* on texts"):
        write_export(model, dataclasses.replace(export, write=wrongly), tmp_path / "out")


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
