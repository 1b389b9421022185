"""Checks that an exported folder, loaded by Transformers alone, computes what our model computes.

Both models get the same inputs: single texts, pairs and padded batches, texts with masks encoded by the exported tokenizer,
and every id of the vocabulary. Hidden states of all layers, head outputs and embeddings are compared, and so are the
tokenizers' ids of texts.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unicloze.decoding.embed import rows_to_encode
from unicloze.errors import UniclozeError
from unicloze.example import Batch, Examples, Target, collate
from unicloze.interop.peer import Peer, quietly, transformers_library
from unicloze.tasks import task_heads
from unicloze.tasks.rows import separators_of
from unicloze.text.windows import Windows, windows_of
from unicloze.training.loading import LoadedModel

LARGEST_DIFFERENCE = 1e-4
"""Largest accepted difference between an export and its model."""
LONG_ROW = 128
"""Length in tokens of the compared rows, except one that uses all positions."""

STRINGS = (
    "The quick brown fox jumps over the lazy dog.",
    "Naïve café, ÉCOLE déjà vu; straße ΣΊΣΥΦΟΣ İstanbul",
    "東京は日本の首都です。 한국어 العربية हिन्दी ไทย",
    "🙂👩‍👩‍👧 x\u200by\u00a0z\u2028end\tof  line\r\n",
    "def f(x): return x**2 # it's a_b-c/d 3.14e-5",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "",
)
"""Texts whose ids are compared, besides texts made of the vocabulary's own tokens."""

MASKED = (
    "a {} b",
    "{}",
    "The {} {}{} fox.",
    " {} jumps ({}), \u201c{}\u201d",
    "x  {}\ty\n{}\r\n  {}\u00a0{} z",
    "Na\u00efve {} \u6771{}\u4eac",
)
"""Texts with masks; both their ids and the models' outputs are compared."""

Rows = Sequence[Sequence[npt.NDArray[np.integer]]]
Answers = Mapping[str, Tensor]
"""Outputs of a model by name: `states` of all layers, and the heads. *Shape:* (rows, slots or predictions, ...) each"""


def compare_models(loaded: LoadedModel, peer: Peer) -> dict[str, float]:
    """The largest difference for each kind of input, see above.

    Raises:
        UniclozeError: The tokenizers give different ids, or outputs have different shapes.
    """
    rng = np.random.default_rng(0)
    with quietly(transformers_library()):
        compare_tokenizers(loaded, peer, rng)
    found = {}
    with torch.inference_mode():
        for name, groups in probes(loaded, peer, rng).items():
            found[name] = max((_difference(loaded, peer, rows) for rows in groups if rows), default=0.0)
        found["texts with masks"] = _difference_of_texts(loaded, peer)
        found["all ids"] = _difference_of_embeddings(loaded, peer)
    return found


def probes(loaded: LoadedModel, peer: Peer, rng: np.random.Generator) -> dict[str, list[Rows]]:
    """Batches of rows for both models, by kind; each row's texts as tokens."""
    longest = loaded.model.max_positions
    vocabulary = loaded.tokenizer.vocabulary
    padding = {vocabulary.pad, int(np.flatnonzero(peer.ids == peer.tokenizer.pad_token_id)[0])}
    choices = np.array([i for i in range(vocabulary.size) if i not in padding])

    def row(length: int, texts: int = 1) -> list[npt.NDArray[np.integer]]:
        """Texts whose row has `length` tokens, special tokens included."""
        cuts = [(length - 1 - texts) // texts] * texts
        cuts[0] += length - 1 - texts - sum(cuts)
        return [rng.choice(choices, size) for size in cuts]

    most = min(longest, LONG_ROW)
    lengths = sorted({max(5, most * part // 8) for part in (1, 3, 5, 8)} & set(range(5, longest + 1)))
    return {
        "single texts": [[row(length)] for length in sorted({min(5, longest), most, longest})],
        "pairs": [[row(length, 2)] for length in lengths],
        "padded batches": [[row(length, 1 + number % 2) for number, length in enumerate(lengths * 2)]],
    }


def examples_of(loaded: LoadedModel, rows: Rows, segments: tuple[int, int] | None) -> Examples:
    """Rows laid out as by `embed` and the tasks, with a prediction of each head."""
    windows = windows_of(rows, loaded.tokenizer.vocabulary, keys=np.zeros(len(rows), dtype=np.uint64))
    if segments is None or segments[0] == segments[1]:
        windows.segment_ids[:] = 0
    examples = rows_to_encode(windows, loaded.recipe)
    heads = task_heads(loaded.recipe)
    if not heads:
        return examples
    targets = {name: _target(windows, whole=name in ("start", "end"), each=name == "tags") for name in heads}
    return dataclasses.replace(examples, segment_ids=windows.segment_ids, targets=targets)


def _target(windows: Windows, *, whole: bool, each: bool) -> Target:
    """A prediction from the first slot, a choice among all slots, or a prediction from each slot."""
    rows, width = windows.token_ids.shape
    slot = np.arange(width, dtype=np.int32)
    slots = (
        np.where(slot < windows.lengths[:, None], slot, -1) if whole or each else np.zeros((rows, 1), dtype=np.int32)
    )
    slots = slots[:, None, :] if whole else slots
    shape = slots.shape[:2]
    return Target(slots=slots, labels=np.zeros(shape, dtype=np.int32), weights=np.ones(shape, dtype=np.float32))


def ours(loaded: LoadedModel, batch: Batch) -> Answers:
    """Outputs of our model."""
    model = loaded.model
    states = model.backbone(batch)
    answers = {"states": torch.stack(states[1:], dim=2)}
    if hasattr(model, "token_head"):
        answers["token"] = model.token_logits(states[-1])
    if hasattr(model, "pair_head"):
        answers["pair"] = model.pair_head(states[-1][:, 0])
    if hasattr(model, "replaced_head"):
        answers["replaced"] = model.replaced_head(states[-1])
    outputs = model.outputs(batch) if batch.targets else {}
    return answers | {name: output if name == "tags" else output[:, 0] for name, output in outputs.items()}


def theirs(peer: Peer, examples: Examples) -> Any:
    """Outputs of the exported model for the same rows."""
    real = torch.arange(examples.input_ids.shape[1]) < torch.from_numpy(examples.lengths)[:, None]
    ids = torch.from_numpy(peer.ids)[torch.from_numpy(examples.input_ids).long()]
    inputs = {"input_ids": torch.where(real, ids, peer.tokenizer.pad_token_id), "attention_mask": real.long()}
    if peer.segments is not None:
        part = examples.segment_ids != examples.segment_ids[:, :1]
        inputs["token_type_ids"] = torch.from_numpy(part).long() * peer.segments[1] * real
    return _asked(peer, inputs)


def _asked(peer: Peer, inputs: Mapping[str, Tensor]) -> Any:
    if peer.name.endswith("MultipleChoice"):
        inputs = {name: values[:, None] for name, values in inputs.items()}
    return peer.model(**inputs, output_hidden_states=True)


def _difference(loaded: LoadedModel, peer: Peer, rows: Rows) -> float:
    examples = examples_of(loaded, rows, peer.segments)
    return _difference_of_answers(loaded, peer, examples, theirs(peer, examples))


def _difference_of_texts(loaded: LoadedModel, peer: Peer) -> float:
    """Largest difference on texts with masks, which the exported tokenizer encodes, truncates and pads."""
    mask, longest = loaded.tokenizer.masks[0], loaded.model.max_positions
    texts = [text.replace("{}", mask) for text in MASKED]
    inputs = peer.tokenizer(texts, padding=True, truncation=True, max_length=longest, return_tensors="pt")
    examples = examples_of(loaded, [[loaded.tokenizer.encode(text)[: longest - 2]] for text in texts], peer.segments)
    return _difference_of_answers(loaded, peer, examples, _asked(peer, inputs))


def _difference_of_answers(loaded: LoadedModel, peer: Peer, examples: Examples, output: Any) -> float:
    answers = ours(loaded, collate(examples))
    real = torch.arange(examples.input_ids.shape[1]) < torch.from_numpy(examples.lengths)[:, None]
    said = {"states": torch.stack(output.hidden_states[1:], dim=2)}
    said |= {name: output[key] for name, key in peer.answers.items()}
    largest = 0.0
    for name, other in said.items():
        own = answers[name]
        if name == "token":
            other = other[..., torch.from_numpy(peer.ids)]
        if name == "pair":
            own = own.view_as(other)
        if own.shape != other.shape:
            raise UniclozeError(f"{peer.name} gives outputs of shape {tuple(other.shape)}, ours {tuple(own.shape)}")
        if own.shape[:2] == real.shape and name not in ("label", "choice", "pair"):
            own, other = own[real], other[real]
        largest = max(largest, _largest(own - other))
    return largest


def _difference_of_embeddings(loaded: LoadedModel, peer: Peer) -> float:
    """Largest difference of the embeddings of all ids, which are the input of the layers."""
    size, most = loaded.model.vocab_size, loaded.model.max_positions
    largest = 0.0
    for first in range(0, size, most):
        ids = np.arange(first, min(size, first + most))
        examples = examples_of(loaded, [[ids[: len(ids) - 2]]], peer.segments)
        width = examples.input_ids.shape[1]  # the number of ids, unless only one or two are left
        batch = dataclasses.replace(examples, input_ids=np.resize(ids, width).astype(np.int32)[None], targets={})
        positions = torch.arange(width)[None]
        other = peer.embed(torch.from_numpy(peer.ids)[torch.from_numpy(batch.input_ids).long()], positions)
        rows = collate(batch)
        own = loaded.model.backbone.embeddings(rows.input_ids, rows.position_ids, rows.segment_ids)
        largest = max(largest, _largest(own - other))
    return largest


def _largest(difference: Tensor) -> float:
    """The largest absolute value; infinite if there is a NaN. *Shape:* any"""
    largest = float(difference.abs().amax()) if difference.numel() else 0.0
    return largest if largest == largest else np.inf


def compare_tokenizers(loaded: LoadedModel, peer: Peer, rng: np.random.Generator) -> None:
    """Check that an exported tokenizer gives the same ids, segments and special tokens for texts and pairs.

    Raises:
        UniclozeError: It does not; the message shows the text.
    """
    vocabulary = loaded.tokenizer.vocabulary
    own = [loaded.tokenizer.decode(rng.choice(vocabulary.ordinary, 40).tolist()) for _ in range(20)]
    texts = [*STRINGS, *own, *(text.replace("{}", loaded.tokenizer.masks[0]) for text in MASKED)]
    # Transformers treats an empty second text as absent.
    pairs = [(first, second) for first, second in itertools.pairwise(texts) if second]
    for first, second in [*((text, None) for text in texts), *pairs]:
        parts = [loaded.tokenizer.encode(text) for text in (first, second) if text is not None]
        windows = windows_of([parts], vocabulary, keys=np.zeros(1, dtype=np.uint64))
        said = peer.tokenizer(first, second)
        again = [1 + len(parts[0])] * (separators_of(loaded.recipe) - 1) * (len(parts) - 1)
        token_ids, segment_ids = (
            np.insert(values, again, values[again]) for values in (windows.token_ids[0], windows.segment_ids[0])
        )
        wanted = {"input_ids": peer.ids[token_ids].tolist(), "attention_mask": [1] * len(token_ids)}
        if peer.segments is not None:
            wanted["token_type_ids"] = (segment_ids * peer.segments[1]).tolist()
        if dict(said) != wanted:
            raise UniclozeError(f"AutoTokenizer gives different ids for {first[:60]!r}: {said['input_ids'][:12]}...")
    roles = {"pad": peer.ids.tolist().index(peer.tokenizer.pad_token_id), "mask": vocabulary.mask,
             "unk": vocabulary.unk, "cls": vocabulary.sos, "sep": vocabulary.eos}  # fmt: skip
    for role, number in roles.items():
        if getattr(peer.tokenizer, f"{role}_token_id") != peer.ids[number]:
            raise UniclozeError(f"AutoTokenizer uses another id for the {role} token than ours, {peer.ids[number]}")
