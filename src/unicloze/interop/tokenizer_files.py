"""Reads other libraries' tokenizer files, and writes those of Transformers and of sentence-transformers."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unicloze.arrays import Int64s
from unicloze.errors import UniclozeError
from unicloze.files import TOKENIZER, TOKENIZER_CONFIG, at_home, replace_file
from unicloze.interop.files import inside, read_json
from unicloze.settings import Recipe, TokenizerSettings
from unicloze.tasks.rows import TextFormat, text_pooling
from unicloze.text.tokenizer_files import BYTE_VOCABULARY, LARGEST_FILE, MERGES
from unicloze.text.tokenizers import Tokenizer


def read_tokenizer(folder: Path) -> tuple[Tokenizer, TokenizerSettings] | None:
    """The tokenizer of a checkpoint folder, and settings that load it again; None if it has none."""
    inside(folder, TOKENIZER_CONFIG)
    file = inside(folder, TOKENIZER)
    if file is None:
        found = [path for name in sorted(folder.glob("*vocab.txt")) if (path := inside(folder, name.name)) is not None]
        if not found and inside(folder, MERGES) is not None and (pairs := inside(folder, BYTE_VOCABULARY)) is not None:
            found = [pairs]
        if len(found) != 1:
            return None
        file = found[0]
    return open_tokenizer(file)


def separators_in(path: str) -> int | None:
    """Number of tokens between two texts in the post-processor of a `tokenizer.json`; None if there is no such file."""
    for part in _processors(path):
        kind, pair = part.get("type"), part.get("pair")
        if kind in _OF_TWO_TOKENS:
            return _OF_TWO_TOKENS[kind]
        if kind == "TemplateProcessing" and isinstance(pair, list):
            texts = [place for place, piece in enumerate(pair) if isinstance(piece, dict) and "Sequence" in piece]
            return max(1, texts[1] - texts[0] - 1) if len(texts) == 2 else None
    return None


def ids_before_text(path: Path) -> list[int] | None:
    """Ids of the tokens before a text in the post-processor of a `tokenizer.json`; None if it names none of its kinds."""
    for part in _processors(str(path)):
        try:
            if part.get("type") in _OF_TWO_TOKENS:
                return [int(part["cls"][1])]
            if part.get("type") == "TemplateProcessing":
                before = itertools.takewhile(lambda piece: "SpecialToken" in piece, part["single"])
                names = [piece["SpecialToken"]["id"] for piece in before]
                return [int(number) for name in names for number in part["special_tokens"][name]["ids"]]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return None


_OF_TWO_TOKENS = {"RobertaProcessing": 2, "BertProcessing": 1}
"""Post-processors that name only the first token and the separator, with their number of separators between two texts."""


def _processors(path: str) -> list[Mapping[str, Any]]:
    """The post-processors of a `tokenizer.json`."""
    if not path.endswith(".json") or Path(path).name == BYTE_VOCABULARY:
        return []
    processor = read_json(Path(path), largest=LARGEST_FILE).get("post_processor")
    parts = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def open_tokenizer(path: str | Path) -> tuple[Tokenizer, TokenizerSettings]:
    """Load a tokenizer from a given file or folder, with settings that load it again."""
    file = at_home(path)
    if file.is_dir():
        found = read_tokenizer(file)
        if found is None:
            raise UniclozeError(f"{file} holds no tokenizer.json or vocab.txt: give a tokenizer file.")
        return found
    tokenizer = Tokenizer.load(file)
    settings = TokenizerSettings(path=str(file), vocab_size=max(16, len(tokenizer)), lowercase=tokenizer.lowercase)
    return tokenizer, settings


POOLING: Mapping[str, Literal["first", "mean", "last"]] = dict(cls_token="first", mean_tokens="mean", lasttoken="last")
"""Pooling by the name sentence-transformers had for it in `pooling_mode_...`."""


def padding_of(tokenizer: Tokenizer, wanted: int | None) -> tuple[int, tuple[int, int] | None]:
    """Padding id for a class that requires a certain one, and the two ids to swap for it."""
    vocabulary = tokenizer.vocabulary
    if wanted is None:
        return vocabulary.pad, None
    has_role = {vocabulary.unk, vocabulary.sos, vocabulary.eos, vocabulary.mask, vocabulary.pseudo}
    free = {*vocabulary.special.tolist()} - has_role - {*vocabulary.extra.tolist()}
    return wanted, None if wanted in free else (vocabulary.pad, wanted)


def swapped_ids(size: int, swapped: tuple[int, int] | None) -> Int64s:
    """Their id of each of our ids, and vice versa. *Shape:* (size,)"""
    ids = np.arange(size, dtype=np.int64)
    if swapped is not None:
        ids[list(swapped)] = swapped[::-1]
    return ids


def write_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    form: TextFormat,
    *,
    swapped: tuple[int, int] | None = None,
    pad: int | None = None,
    takes_segments: bool = True,
    words: bool = False,
) -> None:
    """Write `tokenizer.json` and its configuration, so that Transformers encodes a text and its masks as `fill` does."""
    tokenizer.save(folder)
    document, config = folder / "tokenizer.json", folder / "tokenizer_config.json"
    content = tokenizer.exported()
    ids = swapped_ids(tokenizer.vocabulary.size, swapped)
    content["post_processor"] = _template(
        tokenizer, form if takes_segments else dataclasses.replace(form, segments=(0, 0))
    )
    if swapped is not None:
        _renumber(content, {number: int(ids[number]) for number in swapped})
    if words:  # with a space before each
        part = content["pre_tokenizer"] or {}
        for inner in part.get("pretokenizers", [part]):
            if inner.get("type") == "ByteLevel":
                inner["add_prefix_space"] = True
    replace_file(document, json.dumps(content, ensure_ascii=False, indent=2))
    values = json.loads(config.read_text(encoding="utf-8"))
    if words:
        values["add_prefix_space"] = True
    if pad is not None:
        values["pad_token"] = tokenizer.tokens([int(ids[pad])])[0]
    asked = ["input_ids", *(["token_type_ids"] if takes_segments else []), "attention_mask"]
    values |= {"model_max_length": form.longest, "model_input_names": asked, "padding_side": "right"}
    values["truncation_side"] = "left" if form.keep == "end" else "right"
    replace_file(config, json.dumps(values, ensure_ascii=False, indent=2) + "\n")


def _template(tokenizer: Tokenizer, form: TextFormat) -> dict[str, Any]:
    """The post-processor that writes rows in a format."""

    def pieces(ids: Sequence[int], segment: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": token, "type_id": segment}} for token in tokenizer.tokens(ids)]

    texts = [{"Sequence": {"id": name, "type_id": segment}} for name, segment in zip("AB", form.segments, strict=True)]
    first, second = form.segments
    special = dict.fromkeys((*form.start, *form.between, *form.end))
    names = dict(zip(special, tokenizer.tokens(special), strict=True))
    begin = [*pieces(form.start, first), texts[0]]
    return {
        "type": "TemplateProcessing",
        "single": [*begin, *pieces(form.end, first)],
        "pair": [*begin, *pieces(form.between, first), texts[1], *pieces(form.end, second)],
        "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]} for number, name in names.items()},
    }


def _renumber(content: dict[str, Any], new: Mapping[int, int]) -> None:
    """Renumber some ids of a `tokenizer.json`."""
    vocabulary = content["model"].get("vocab")
    if not isinstance(vocabulary, dict):
        raise UniclozeError(
            f"ids {' and '.join(map(str, new))} of the vocabulary would have to be swapped, because MPNet pads with one of "
            f"them, and a {content['model'].get('type')} model does not allow that: export it with --to unicloze"
        )
    # Tokens missing from the model's vocabulary would be numbered after it, whatever the file says.
    vocabulary = vocabulary | {added["content"]: added["id"] for added in content["added_tokens"]}
    content["model"]["vocab"] = {token: new.get(number, number) for token, number in vocabulary.items()}
    for added in content["added_tokens"]:
        added["id"] = new.get(added["id"], added["id"])
    content["added_tokens"].sort(key=lambda added: added["id"])
    for special in content["post_processor"]["special_tokens"].values():
        special["ids"] = [new.get(number, number) for number in special["ids"]]


def write_sentence_files(folder: Path, recipe: Recipe, *, longest: int) -> None:
    """Write the files with which sentence-transformers embeds as `embed` does: `modules.json` and the files it names."""
    use = recipe.use
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    if use.normalize:
        modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
    flags = {f"pooling_mode_{name}": mode == text_pooling(recipe) for name, mode in POOLING.items()}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    prompts = {"prompts": {"text": use.prompt}, "default_prompt_name": "text"} if use.prompt else {}
    for name, content in (
        ("modules.json", modules),
        ("1_Pooling/config.json", {"word_embedding_dimension": recipe.model.hidden_size, **flags}),
        ("sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False}),
        ("config_sentence_transformers.json", prompts),
    ):
        if content:
            (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
