"""The files of an exported tokenizer, value for value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from decoding_toys import byte_level, plain_format, roberta_like, sentencepiece, wordpiece
from unicloze.errors import UniclozeError
from unicloze.interop.tokenizer_files import padding_of, swapped_ids, write_tokenizer
from unicloze.settings import TokenizerSettings
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import joining_decoder


def pieces(*words: str) -> Tokenizer:
    """Word pieces; those in brackets are special tokens."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens([word for word in words if word[0] in "[<"])
    return Tokenizer(backend)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    document, config = (json.loads((folder / name).read_text()) for name in ("tokenizer.json", "tokenizer_config.json"))
    return document, config


ROLES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize(("words", "wanted", "expected"), [
    (["[PAD]", "[unused1]", *ROLES[1:], "a"], None, (0, None)),
    (["[PAD]", "[unused1]", *ROLES[1:], "a"], 0, (0, None)),
    (["[PAD]", "[unused1]", *ROLES[1:], "a"], 1, (1, None)),
    (["[unused0]", "[PAD]", *ROLES[1:], "a"], 1, (1, None)),
    ([*ROLES, "a"], 1, (1, (0, 1))),
    (["[PAD]", "a", *ROLES[1:]], 1, (1, (0, 1))),
    (["[PAD]", "[MASK]", *ROLES[1:4], "a"], 1, (1, (0, 1))),
    (["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "a"], 1, (1, (2, 1))),
    (["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "a"], 0, (0, (2, 0))),
    (["[PAD]", "[EXTRA0]", *ROLES[1:], "[EXTRA1]", "a"], 1, (1, (0, 1))),
    (["[PAD]", "<extra_id_0>", *ROLES[1:], "a"], 1, (1, (0, 1))),
    (["[PAD]", "[P]", *ROLES[1:], "a"], 1, (1, (0, 1))),
    (["[unused5]", "[PAD]", *ROLES[1:], "a"], 0, (0, (1, 0))),
], ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else str(value))  # fmt: skip
def test_padding_is_an_id_that_means_nothing_or_changes_places(
    words: list[str], wanted: int | None, expected: tuple[int, tuple[int, int] | None]
) -> None:
    """[unused5] is the pseudo mask of a vocabulary without [P]; sentinels are used by objectives."""
    assert padding_of(pieces(*words), wanted) == expected


def test_two_ids_change_places() -> None:
    assert swapped_ids(6, None).tolist() == [0, 1, 2, 3, 4, 5]
    assert swapped_ids(6, (0, 4)).tolist() == [4, 1, 2, 3, 0, 5]
    assert swapped_ids(6, (4, 0)).dtype == np.int64


def test_the_files_of_word_pieces(tmp_path: Path) -> None:
    own = wordpiece()
    write_tokenizer(own, tmp_path, plain_format(own, 77))
    document, config = read(tmp_path)
    assert config == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[SOS]",
        "sep_token": "[EOS]",
        "mask_token": "[MASK]",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 77,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "padding_side": "right",
    }
    assert document["decoder"] == json.loads(joining_decoder("##").__getstate__())
    assert (document["normalizer"]["type"], document["pre_tokenizer"]) == (
        "BertNormalizer",
        {"type": "BertPreTokenizer"},
    )
    assert document["model"]["vocab"] == {token: i for i, token in enumerate(own.tokens(range(len(own))))}
    assert [(added["id"], added["content"]) for added in document["added_tokens"]] == [
        (i, token) for i, token in enumerate(own.tokens(range(7)))
    ]
    assert (document["padding"], document["truncation"]) == (None, None)


@pytest.mark.parametrize(("segments", "types", "names"), [
    ((0, 1), (0, 1), ["input_ids", "token_type_ids", "attention_mask"]),
    ((0, 0), (0, 0), ["input_ids", "token_type_ids", "attention_mask"]),
    (None, (0, 0), ["input_ids", "attention_mask"]),
])  # fmt: skip
def test_the_parts_of_a_pair(
    tmp_path: Path, segments: tuple[int, int] | None, types: tuple[int, int], names: list[str]
) -> None:
    form = plain_format(wordpiece(), 8, segments or (0, 1))
    write_tokenizer(wordpiece(), tmp_path, form, takes_segments=segments is not None)
    document, config = read(tmp_path)
    first, second = types
    assert document["post_processor"] == {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "[SOS]", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[EOS]", "type_id": 0}},
        ],
        "pair": [
            {"SpecialToken": {"id": "[SOS]", "type_id": first}},
            {"Sequence": {"id": "A", "type_id": first}},
            {"SpecialToken": {"id": "[EOS]", "type_id": first}},
            {"Sequence": {"id": "B", "type_id": second}},
            {"SpecialToken": {"id": "[EOS]", "type_id": second}},
        ],
        "special_tokens": {
            "[EOS]": {"id": "[EOS]", "ids": [4], "tokens": ["[EOS]"]},
            "[SOS]": {"id": "[SOS]", "ids": [3], "tokens": ["[SOS]"]},
        },
    }
    assert config["model_input_names"] == names


def test_swapped_ids_in_every_place(tmp_path: Path) -> None:
    own = pieces("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "a", "b")
    write_tokenizer(own, tmp_path, plain_format(own, 8), swapped=(2, 1), pad=1)
    document, config = read(tmp_path)
    theirs = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", "a", "b"]
    assert document["model"]["vocab"] == {token: i for i, token in enumerate(theirs)}
    assert [(added["id"], added["content"]) for added in document["added_tokens"]] == list(enumerate(theirs[:5]))
    assert document["post_processor"]["special_tokens"] == {
        "[CLS]": {"id": "[CLS]", "ids": [0], "tokens": ["[CLS]"]},
        "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]},
    }
    assert config["pad_token"] == "[PAD]"
    again = Tokenizer.load(tmp_path)
    assert again.tokens(range(7)) == theirs
    assert (again.vocabulary.pad, again.vocabulary.eos) == (1, 2)


def test_a_token_that_means_nothing_is_the_padding(tmp_path: Path) -> None:
    write_tokenizer(wordpiece(), tmp_path, plain_format(wordpiece(), 8), pad=1, takes_segments=False)
    document, config = read(tmp_path)
    assert config["pad_token"] == "[unused1]"
    assert document["model"]["vocab"]["[unused1]"] == 1
    write_tokenizer(wordpiece(), tmp_path, plain_format(wordpiece(), 8), pad=0, takes_segments=False)
    assert read(tmp_path)[1]["pad_token"] == "[PAD]"


def test_special_tokens_behind_the_vocabulary_can_be_swapped(tmp_path: Path) -> None:
    """As in a tokenizer built without them; the library would renumber them."""
    transformers = pytest.importorskip("transformers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(letters)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<unk>", "<pad>", "<mask>"])
    own = Tokenizer(backend)
    pad, swapped = padding_of(own, 1)
    assert (pad, swapped) == (1, (259, 1))
    write_tokenizer(own, tmp_path, plain_format(own, 64), swapped=swapped, pad=pad, takes_segments=False)
    ids = swapped_ids(len(own), swapped)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert [theirs.convert_tokens_to_ids(token) for token in own.tokens(range(len(own)))] == ids.tolist()
    text = 'x! <mask> "#'
    assert theirs(text)["input_ids"] == ids[[256, *own.encode(text), 257]].tolist()
    assert (theirs.pad_token_id, theirs.mask_token_id) == (1, 260)


def test_pieces_of_a_unigram_model_stay_where_they_are(tmp_path: Path) -> None:
    with pytest.raises(
        UniclozeError, match=r"ids 1 and 5 of the vocabulary .* and a Unigram model does not allow that"
    ):
        write_tokenizer(
            sentencepiece(), tmp_path, plain_format(sentencepiece(), 8), swapped=(1, 5), takes_segments=False
        )


@pytest.mark.parametrize(("make", "mask"), [(byte_level, "[MASK]"), (lambda: roberta_like(lstrip=False), "<mask>")])
def test_one_space_before_a_mask_is_taken_out(tmp_path: Path, make: Any, mask: str) -> None:
    write_tokenizer(make(), tmp_path, plain_format(make(), 8), takes_segments=False)
    document, _ = read(tmp_path)
    escaped = {"[MASK]": r"\[MASK\]"}.get(mask, mask)
    assert document["normalizer"] == {"type": "Replace", "pattern": {"Regex": f" (?={escaped})"}, "content": ""}
    assert [added["content"] for added in document["added_tokens"] if added["normalized"]] == [mask]
    assert not any(added["lstrip"] for added in document["added_tokens"])


def test_white_space_before_a_mask_that_takes_it_stays_as_it_is(tmp_path: Path) -> None:
    write_tokenizer(roberta_like(), tmp_path, plain_format(roberta_like(), 8), takes_segments=False)
    document, _ = read(tmp_path)
    assert document["normalizer"] is None
    assert [added["content"] for added in document["added_tokens"] if added["lstrip"]] == ["<mask>"]
    own = roberta_like(lstrip=False, normalizer=tokenizers.normalizers.NFC())
    write_tokenizer(own, tmp_path, plain_format(own, 8), takes_segments=False)
    document, _ = read(tmp_path)
    assert document["normalizer"] == {"type": "NFC"}
    assert [added["content"] for added in document["added_tokens"] if added["lstrip"]] == ["<mask>"]


def test_other_properties_of_a_mask_are_kept(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(json.dumps(roberta_like(lstrip=False).exported()))
    backend.normalizer = None
    backend.add_special_tokens([tokenizers.AddedToken("<mask>", rstrip=True, normalized=False)])
    write_tokenizer(Tokenizer(backend), tmp_path, plain_format(Tokenizer(backend), 8), takes_segments=False)
    (mask,) = [added for added in read(tmp_path)[0]["added_tokens"] if added["content"] == "<mask>"]
    assert (mask["rstrip"], mask["lstrip"], mask["normalized"]) == (True, False, True)


def test_word_pieces_know_no_spaces(tmp_path: Path) -> None:
    write_tokenizer(wordpiece(), tmp_path, plain_format(wordpiece(), 8), takes_segments=False)
    document, _ = read(tmp_path)
    assert not any(added["normalized"] or added["lstrip"] for added in document["added_tokens"])


def test_text_of_any_script_is_written_as_it_is(tmp_path: Path) -> None:
    own = Tokenizer.train(["été 東京"] * 3, TokenizerSettings(vocab_size=64, lowercase=False))
    write_tokenizer(own, tmp_path, plain_format(own, 8), takes_segments=False)
    assert "東" in (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
