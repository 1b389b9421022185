"""Checks that an exported folder, loaded by Transformers alone, computes what our model computes.

The same texts go through the exported tokenizer, with its truncation, padding, pairs and special tokens, into the exported
model, and through ours. Ids, segments, hidden states of all layers and logits of tokens must be equal; tests compare the
other heads of each class.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unicloze.arrays import Int32s, Int64s
from unicloze.decoding.inputs import text_format
from unicloze.decoding.steppers import Branches
from unicloze.errors import UniclozeError
from unicloze.example import collate
from unicloze.interop.stock import StockExport, layout_of
from unicloze.interop.tokenizer_files import swapped_ids
from unicloze.model.inference_model import IncrementalModel
from unicloze.tasks.rows import Row, TextFormat, lay_out
from unicloze.tasks.tagging import word_tokens
from unicloze.training.loading import LoadedModel

LARGEST_DIFFERENCE = 1e-4
"""Largest accepted difference between an export and its model."""
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Naïve café, ÉCOLE déjà vu; straße ΣΊΣΥΦΟΣ İstanbul",
    "東京は日本の首都です。 한국어 العربية हिन्दी ไทย",
    "🙂👩‍👩‍👧 x\u200by\u00a0z\u2028end\tof  line\r\n",
    "def f(x): return x**2 # it's a_b-c/d 3.14e-5",
    "a" * 107,
    "",
)
"""Texts that are compared, besides texts made of the vocabulary's own tokens."""
MASKED = (
    "a {} b",
    "{}",
    "The {} {}{} fox.",
    " {} jumps ({}), \u201c{}\u201d",
    "x  {}\ty\n{}\r\n  {}\u00a0{} z",
    "Na\u00efve {} \u6771{}\u4eac",
)
"""Texts with masks."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """An exported folder, loaded by Transformers."""

    model: Any  # the model, in evaluation mode
    tokenizer: Any  # the tokenizer as loaded by AutoTokenizer
    heads: Sequence[str]  # our names of its heads, in the order of its logits
    form: TextFormat  # its rows
    ids: Int64s  # Their id of each of our ids. *Shape:* (vocabulary,)
    has_segments: bool = True  # whether it takes `token_type_ids`; else it reads both texts of a pair as the first


def transformers_library() -> Any:
    """Import Transformers."""
    try:
        import transformers
    except ImportError as error:
        raise UniclozeError(
            'exports are verified with Transformers, which is not installed: in the clone, pip install -e ".[hf]"'
        ) from error
    return transformers


@contextlib.contextmanager
def quietly(library: Any) -> Iterator[None]:
    """Silence Transformers' messages while it loads."""
    logging = library.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def check_stock(export: StockExport, folder: Path) -> dict[str, float]:
    """Load a written folder as a user would, and compare it: the largest difference for each kind of text."""
    library, name = transformers_library(), export.architecture
    try:
        with quietly(library):
            model, found = getattr(library, name).from_pretrained(
                folder, local_files_only=True, output_loading_info=True
            )
            tokenizer = library.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise UniclozeError(f"Transformers cannot load the {name} ({str(error)[:200]})") from error
    # A bare encoder's class has an untrained pooler; a masked language model's class lacks the trained one.
    free = {"missing_keys": name.endswith("Model"), "unexpected_keys": name.endswith("MaskedLM")}
    wrong = [str(key) for kind, keys in found.items() for key in keys if not (free.get(kind) and "pooler" in str(key))]
    if wrong:
        raise UniclozeError(f"Transformers reports weights that do not match a {name}: {', '.join(wrong[:4])}")
    peer = Peer(
        model=model.eval(),
        tokenizer=tokenizer,
        heads=export.heads,
        form=export.form,
        ids=swapped_ids(export.loaded.model.vocab_size, export.swapped),
        has_segments=export.family.has_segments,
    )
    writes = export.family.generates and not export.family.queries
    return _compare_writers(export.loaded, peer) if writes else compare_models(export.loaded, peer)


def odd_texts(loaded: LoadedModel, longest: int) -> list[str]:
    """`TEXTS`, and random texts of the vocabulary: short ones, one longer than a row, one over its half and one as long."""
    rng = np.random.default_rng(0)
    sizes = [*[40] * 8, longest + 1, longest * 3 // 5, longest - 1]
    ordinary = loaded.tokenizer.vocabulary.ordinary
    return [*TEXTS, *(loaded.tokenizer.decode(rng.choice(ordinary, size).tolist()) for size in sizes)]


def compare_models(loaded: LoadedModel, peer: Peer) -> dict[str, float]:
    """The largest difference of any output for each kind of text."""
    texts = odd_texts(loaded, peer.form.longest)
    kinds: dict[str, list[tuple[str, ...]]] = {"texts": [(text,) for text in texts]}
    if loaded.recipe.task.kind != "tagging":
        # Transformers treats an empty second text as absent, and of two texts that are each longer than a row, some releases
        # of tokenizers (0.23.1, 0.23.2) do not leave an odd token to the longer one.
        is_long = {text: len(loaded.tokenizer.encode(text)) >= peer.form.longest for text in texts}
        neighbours = itertools.pairwise(texts)
        kinds["pairs"] = [(one, two) for one, two in neighbours if two and not (is_long[one] and is_long[two])]
        kinds["texts with masks"] = [(text.replace("{}", loaded.tokenizer.masks[0]),) for text in MASKED]
    vocabulary = loaded.tokenizer.vocabulary
    roles = {"mask": vocabulary.mask, "unk": vocabulary.unk, "cls": vocabulary.sos, "sep": vocabulary.eos}
    for role, number in roles.items():
        if getattr(peer.tokenizer, f"{role}_token_id") != peer.ids[number]:
            raise UniclozeError(f"AutoTokenizer uses another id for the {role} token than ours, {peer.ids[number]}")
    with quietly(transformers_library()), torch.inference_mode():
        return {name: _difference(loaded, peer, each) for name, each in kinds.items()}


def _rows(loaded: LoadedModel, peer: Peer, texts: Sequence[tuple[str, ...]]) -> tuple[list[tuple[Int32s, Int32s]], Any]:
    """Our tokens and segments of each row, and what the exported tokenizer makes of the texts; they must be the same."""
    how = {"padding": True, "truncation": True, "return_tensors": "pt"}
    own, tagging = loaded.tokenizer, loaded.recipe.task.kind == "tagging"
    encoded: list[tuple[Int32s, ...]] = [tuple(own.encode(text) for text in each) for each in texts]
    parts: list[Any] = [list(part) for part in zip(*texts, strict=True)]
    if tagging:
        parts = [[text.split() for text in parts[0]]]
        encoded = [(np.concatenate([*word_tokens(words, own), np.zeros(0, np.int32)]),) for words in parts[0]]
    theirs = dict(peer.tokenizer(*parts, **how, **({"is_split_into_words": True} if tagging else {})))
    rows = [peer.form.row(peer.form.fit(each)) for each in encoded]
    for number, (ids, segments) in enumerate(rows):
        wanted = {"input_ids": peer.ids[ids].tolist(), "attention_mask": [1] * len(ids)}
        if peer.has_segments:
            wanted["token_type_ids"] = segments.tolist()
        real = theirs["attention_mask"][number].bool()
        shown = {name: values[number][real].tolist() for name, values in theirs.items()}
        if shown != wanted:
            raise UniclozeError(
                f"AutoTokenizer gives different ids for {' and '.join(texts[number])[:60]!r}: {shown['input_ids'][:12]}..."
            )
    # A class without segments reads both texts of a pair as the first.
    first, second = text_format(loaded).segments
    return [(ids, np.where(peer.has_segments & (part > 0), second, first)) for ids, part in rows], theirs


def _difference(loaded: LoadedModel, peer: Peer, texts: Sequence[tuple[str, ...]]) -> float:
    """Largest difference of hidden states of all layers and of logits of tokens; infinite if there is a NaN."""
    model, (rows, inputs) = loaded.model, _rows(loaded, peer, texts)
    asked = [Row(record=0, input_ids=ids, segment_ids=segments, targets={}) for ids, segments in rows]
    laid_out = lay_out(asked, loaded.tokenizer.vocabulary, loaded.recipe)
    if "choice" in peer.heads:
        inputs = {name: values[:, None] for name, values in inputs.items()}
    output, states = peer.model(**inputs, output_hidden_states=True), model.backbone(collate(laid_out))
    compared = [(torch.stack(states[1:], dim=2), torch.stack(output.hidden_states[1:], dim=2))]
    if "token" in peer.heads:
        logits = next(values for name, values in output.items() if name.endswith("logits"))
        compared.append((model.token_logits(states[-1]), logits[..., torch.from_numpy(peer.ids)]))
    real = torch.arange(laid_out.input_ids.shape[1]) < torch.from_numpy(laid_out.lengths)[:, None]
    differences = [float((own.reshape(other.shape) - other).abs()[real].amax()) for own, other in compared]
    return max(each if each == each else np.inf for each in differences)


def _compare_writers(loaded: LoadedModel, peer: Peer) -> dict[str, float]:
    """The largest difference of the logits of the first token of a target."""
    layout, start, end = layout_of(loaded), len(peer.form.start), len(peer.form.end)
    with quietly(transformers_library()), torch.inference_mode():
        rows, _ = _rows(loaded, peer, [(text,) for text in odd_texts(loaded, peer.form.longest)])
        sources = [ids[start : len(ids) - end] for ids, _ in rows if len(ids) > start + end]
        assert layout is not None
        room, first = layout.room(loaded.model.max_positions, 1), []
        opening = {"decoder_input_ids": torch.tensor([layout.opening])} if layout.opening else {}
        for source in (ids[:room] for ids in sources):
            row = torch.from_numpy(layout.row(source)).long()[None]
            theirs = peer.model(input_ids=row, attention_mask=torch.ones_like(row), **opening).logits[0, -1]
            incremental = IncrementalModel(loaded.model, torch.float32)
            own = Branches(incremental, layout, [source], count=1, max_length=1).first()[0]
            first.append(float((own - theirs).abs().max()))
        return {"logits": max(first)}
