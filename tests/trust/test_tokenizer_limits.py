"""A malicious tokenizer.json in any place is refused before the library builds it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers

from decoding_toys import roberta_like, sentencepiece, wordpiece
from unicloze.errors import UniclozeError
from unicloze.settings import TokenizerSettings
from unicloze.text.tokenizer_files import beyond_bounds
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.checkpoint import load_checkpoint, save_checkpoint

Document = dict[str, Any]


def large_id(document: Document) -> None:
    document["model"]["vocab"]["huge"] = 2_000_000_000


def large_added_id(document: Document) -> None:
    document["added_tokens"][0]["id"] = 2_000_000_000


def doubled(document: Document) -> None:
    parts = [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40
    document["normalizer"] = {"type": "Sequence", "normalizers": parts}


def long_replacement(document: Document) -> None:
    document["normalizer"] = {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 1000}


def many(document: Document) -> None:
    document["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 1000}


def nested(document: Document) -> None:
    for _ in range(100):
        document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [document["pre_tokenizer"]]}


def slow(document: Document) -> None:
    document["pre_tokenizer"] = {
        "type": "Split", "pattern": {"Regex": r"(a+)+b"}, "behavior": "Isolated", "invert": False
    }  # fmt: skip


def without_unknown(document: Document) -> None:
    del document["model"]["vocab"]["[UNK]"]


@pytest.mark.parametrize(("change", "problem"), [
    (without_unknown, r"its vocabulary lacks its token of unknown words, '\[UNK\]'"),
    (large_id, "it has the id 2,000,000,000, above"),
    (large_added_id, "it has the id 2,000,000,000, above"),
    (doubled, "its normalizer may make a text .* times longer"),
    (long_replacement, "its normalizer may make a text 1,001 times longer"),
    (many, "its normalizer has 1,001 parts or more"),
    (nested, "its pre_tokenizer has 65 parts or more"),
    (slow, r"its pre_tokenizer has a nested repetition in the pattern '\(a\+\)\+b'"),
])  # fmt: skip
def test_hostile_tokenizers_are_refused(tmp_path: Path, change: Callable[[Document], None], problem: str) -> None:
    Tokenizer.train(["the cat sees a house"] * 5, TokenizerSettings(vocab_size=100)).save(tmp_path)
    file = tmp_path / "tokenizer.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    with pytest.raises(UniclozeError, match=rf"tokenizer\.json is refused because {problem}"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("make", [roberta_like, sentencepiece, wordpiece])
def test_tokenizers_in_use_are_within_the_bounds(tmp_path: Path, make: Callable[[], Tokenizer]) -> None:
    make().save(tmp_path)
    assert beyond_bounds(json.loads((tmp_path / "tokenizer.json").read_text())) is None


def test_patterns_in_use_are_within_the_bounds() -> None:
    known = [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r'(?:\A|\G[^"]*")(?:[^"]*"[^"]*")*?[^"]*"\K ',
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}",
    ]
    for pattern in known:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        assert beyond_bounds({"pre_tokenizer": json.loads(split.__getstate__())}) is None
    cleaning = normalizers.Sequence([normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace("``", '"')])
    assert beyond_bounds({"normalizer": json.loads(cleaning.__getstate__())}) is None


def test_links_out_of_a_checkpoint_are_not_followed_but_blobs_are(tmp_path: Path) -> None:
    folder = tmp_path / "models--me" / "snapshots" / "abc"
    save_checkpoint(folder.parent, step=1, model={}, optimizers=[], state={}, files=[], keep=1).rename(folder)
    for place, allowed in ((tmp_path / "models--me" / "blobs", True), (tmp_path / "elsewhere", False)):
        place.mkdir()
        (folder / "state.json").resolve().rename(place / "0123")
        (folder / "state.json").unlink(missing_ok=True)
        (folder / "state.json").symlink_to(place / "0123")
        if allowed:
            assert load_checkpoint(folder).state["step"] == 1
        else:
            with pytest.raises(UniclozeError, match=r"state\.json is a link out of its folder, to .*elsewhere/0123"):
                load_checkpoint(folder)
