"""Checks that an exported folder, loaded by Transformers alone, computes what our model computes.

The same texts go through the exported tokenizer, with its truncation, padding, pairs and special tokens, into the exported
model, and through ours. Ids, segments, hidden states of all layers and outputs of the heads must be equal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unicloze.arrays import Int32s
from unicloze.decoding.embed import rows_to_encode
from unicloze.decoding.inputs import one_segment, text_format
from unicloze.decoding.steppers import Branches
from unicloze.errors import UniclozeError
from unicloze.example import Batch, collate
from unicloze.interop.families import CLASSES
from unicloze.interop.stock_export import StockExport, form_of, layout_of, query_of
from unicloze.interop.tokenizer_files import swapped_ids
from unicloze.model.inference_model import IncrementalModel
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.objectives.permuted import lay_out_permuted
from unicloze.tasks import task_heads
from unicloze.tasks.rows import Row, RowTarget, TextFormat, lay_out
from unicloze.tasks.tagging import word_tokens
from unicloze.training.loading import LoadedModel


@dataclass(frozen=True, kw_only=True)
class Peer:
    """An exported folder, loaded by Transformers."""

    name: str  # name of its class
    model: Any  # the model, in evaluation mode
    tokenizer: Any  # the tokenizer as loaded by AutoTokenizer
    answers: Mapping[str, str]  # output attribute of each head, by our name of the head
    ids: npt.NDArray[np.int64]  # Their id of each of our ids. *Shape:* (vocabulary,)
    segments: tuple[int, int] | None  # `token_type_ids` of the two texts of a pair; None if the model has none
    longest: int  # most tokens of a row


ANSWERS: Mapping[str, Mapping[str, str]] = {
    "MaskedLM": {"token": "logits"},
    "PreTraining": {"token": "prediction_logits", "pair": "seq_relationship_logits"},
    "NextSentencePrediction": {"pair": "logits"},
    "SequenceClassification": {"label": "logits"},
    "TokenClassification": {"tags": "logits"},
    "QuestionAnswering": {"start": "start_logits", "end": "end_logits"},
    "MultipleChoice": {"choice": "logits"},
}
"""Output attribute of each head, by what follows "For" in a class name."""
OTHER_ANSWERS: Mapping[str, Mapping[str, str]] = {
    "ElectraForPreTraining": {"replaced": "logits"},
    "AlbertForPreTraining": {"token": "prediction_logits", "pair": "sop_logits"},
}
"""The same for classes with other attribute names."""


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


def load_folder(name: str, folder: Path, allowed: Mapping[str, bool] | None = None) -> tuple[Any, Any]:
    """The model, in evaluation mode, and the tokenizer of a folder, as a user would load them."""
    library = transformers_library()
    try:
        with quietly(library):
            model, found = getattr(library, name).from_pretrained(
                folder, local_files_only=True, output_loading_info=True
            )
            tokenizer = library.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise UniclozeError(f"Transformers cannot load the {name} ({str(error)[:200]})") from error
    free = allowed or {}
    wrong = [str(key) for kind, keys in found.items() for key in keys if not (free.get(kind) and "pooler" in str(key))]
    if wrong:
        raise UniclozeError(f"Transformers reports weights that do not match a {name}: {', '.join(wrong[:4])}")
    return model.eval(), tokenizer


def load_stock(export: StockExport, folder: Path) -> Peer:
    """An exported folder of a stock class, see `load_folder`."""
    name = export.architecture
    # A bare encoder's class has an untrained pooler; a masked language model's class lacks the trained one.
    free = {"missing_keys": name.endswith("Model"), "unexpected_keys": name.endswith("MaskedLM")}
    model, tokenizer = load_folder(name, folder, free)
    return Peer(
        name=name,
        model=model,
        tokenizer=tokenizer,
        answers=OTHER_ANSWERS.get(name) or ANSWERS.get(name.partition("For")[2], {}),
        ids=swapped_ids(export.loaded.model.vocab_size, export.swapped),
        segments=export.form.segments if export.family.configuration.has_segments else None,
        longest=export.form.longest,
    )


LARGEST_DIFFERENCE = 1e-4
"""Largest accepted difference between an export and its model."""

STRINGS = (
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

Texts = Sequence[tuple[str, ...]]
"""One text or two of each row."""
Answers = Mapping[str, Tensor]
"""Outputs of a model by name: `states` of all layers, and the heads. *Shape:* (rows, slots or predictions, ...) each"""


def odd_texts(loaded: LoadedModel, form: TextFormat | None = None) -> list[str]:
    """`STRINGS`, and random texts of the vocabulary: short ones, one as long as a row and a longer one."""
    rng, longest = np.random.default_rng(0), (form or text_format(loaded)).longest
    sizes = [*[40] * 8, longest - 1, longest + 1]
    ordinary = loaded.tokenizer.vocabulary.ordinary
    return [*STRINGS, *(loaded.tokenizer.decode(rng.choice(ordinary, size).tolist()) for size in sizes)]


def compare_models(loaded: LoadedModel, peer: Peer) -> dict[str, float]:
    """The largest difference of any output for each kind of text."""
    texts = odd_texts(loaded, _form(loaded, peer))
    kinds: dict[str, list[tuple[str, ...]]] = {"texts": [(text,) for text in texts]}
    if loaded.recipe.task.kind != "tagging":
        # Transformers treats an empty second text as absent.
        kinds["pairs"] = [pair for pair in itertools.pairwise(texts) if pair[1]]
        kinds["texts with masks"] = [(text.replace("{}", loaded.tokenizer.masks[0]),) for text in MASKED]
    with quietly(transformers_library()), torch.inference_mode():
        compare_roles(loaded, peer)
        return {name: _difference(loaded, peer, each) for name, each in kinds.items()}


def compare_roles(loaded: LoadedModel, peer: Peer) -> None:
    """Check the exported tokenizer's ids of special tokens."""
    vocabulary = loaded.tokenizer.vocabulary
    roles = {"pad": peer.ids.tolist().index(peer.tokenizer.pad_token_id), "mask": vocabulary.mask,
             "unk": vocabulary.unk, "cls": vocabulary.sos, "sep": vocabulary.eos}  # fmt: skip
    for role, number in roles.items():
        if getattr(peer.tokenizer, f"{role}_token_id") != peer.ids[number]:
            raise UniclozeError(f"AutoTokenizer uses another id for the {role} token than ours, {peer.ids[number]}")


def rows_of(loaded: LoadedModel, texts: Texts, form: TextFormat) -> list[tuple[Int32s, Int32s]]:
    """Our tokens of each row, and whether each belongs to the first text or the second, 0 or 1."""
    if loaded.recipe.task.kind == "tagging":
        words = [word_tokens(text.split(), loaded.tokenizer) for (text,) in texts]
        encoded: list[tuple[Int32s, ...]] = [(np.concatenate([*each, np.zeros(0, np.int32)]),) for each in words]
    else:
        encoded = [tuple(loaded.tokenizer.encode(text) for text in each) for each in texts]
    return [dataclasses.replace(form, segments=(0, 1)).row(form.fit(each)) for each in encoded]


def theirs(loaded: LoadedModel, peer: Peer, texts: Texts) -> dict[str, Tensor]:
    """What the exported tokenizer makes of the texts. *Shape:* (rows, slots) each"""
    how = {"padding": True, "truncation": True, "return_tensors": "pt"}
    if loaded.recipe.task.kind == "tagging":
        return dict(peer.tokenizer([text.split() for (text,) in texts], is_split_into_words=True, **how))
    parts = [list(part) for part in zip(*texts, strict=True)]
    return dict(peer.tokenizer(*parts, **how))


def _difference(loaded: LoadedModel, peer: Peer, texts: Texts) -> float:
    """Largest difference of any output for texts; those whose ids differ are refused."""
    form, inputs = _form(loaded, peer), theirs(loaded, peer, texts)
    rows = rows_of(loaded, texts, form)
    for number, (text, (ids, part)) in enumerate(zip(texts, rows, strict=True)):
        wanted = {"input_ids": peer.ids[ids], "attention_mask": np.ones(len(ids), dtype=np.int64)}
        if peer.segments is not None:
            wanted["token_type_ids"] = np.array(peer.segments)[part]
        real = inputs["attention_mask"][number].bool()
        shown = {name: values[number][real].tolist() for name, values in inputs.items()}
        if shown != {name: values.tolist() for name, values in wanted.items()}:
            raise UniclozeError(
                f"AutoTokenizer gives different ids for {' and '.join(text)[:60]!r}: {shown['input_ids'][:12]}..."
            )
    if peer.name.endswith("MultipleChoice"):
        inputs = {name: values[:, None] for name, values in inputs.items()}
    # A class without segments reads both texts of a pair as the first.
    segments = np.array(form.segments if peer.segments is not None else [form.segments[0]] * 2, dtype=np.int32)
    heads = task_heads(loaded.recipe)
    asked = [
        Row(
            record=0,
            input_ids=ids,
            segment_ids=segments[part],
            targets={name: _asked(name, len(ids)) for name in heads},
        )
        for ids, part in rows
    ]
    laid_out = lay_out(asked, loaded.tokenizer.vocabulary, loaded.recipe)
    output, answers = peer.model(**inputs, output_hidden_states=True), ours(loaded, collate(laid_out))
    is_text = torch.arange(laid_out.input_ids.shape[1]) < torch.from_numpy(laid_out.lengths)[:, None]
    said: dict[str, Tensor] = {"states": torch.stack(output.hidden_states[1:], dim=2)}
    said |= {name: output[key] for name, key in peer.answers.items()}
    return max(_largest(answers[name], other, name, peer, is_text) for name, other in said.items())


def _form(loaded: LoadedModel, peer: Peer) -> TextFormat:
    return dataclasses.replace(text_format(loaded), longest=peer.longest)


def _asked(name: str, slots: int) -> RowTarget:
    """A prediction from the first slot, a choice among all slots (`start`, `end`), or one from each slot (`tags`)."""
    every = list(range(slots))
    return RowTarget(
        slots={"start": [every], "end": [every], "tags": [[i] for i in every]}.get(name, [[0]]), labels=None
    )


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


def _largest(own: Tensor, other: Tensor, name: str, peer: Peer, real: Tensor) -> float:
    """The largest difference of an output at real slots; infinite if there is a NaN."""
    if name == "token":
        other = other[..., torch.from_numpy(peer.ids)]
    if name in ("pair", "choice"):
        own = own.view_as(other)
    if own.shape != other.shape:
        raise UniclozeError(f"{peer.name} gives outputs of shape {tuple(other.shape)}, ours {tuple(own.shape)}")
    if own.shape[:2] == real.shape and name not in ("label", "choice", "pair"):
        own, other = own[real], other[real]
    largest = float((own - other).abs().amax()) if own.numel() else 0.0
    return largest if largest == largest else np.inf


def check_language_model(to: str, loaded: LoadedModel, folder: Path) -> dict[str, float]:
    """Load a written folder with Transformers and compare what both make of texts: the logits of their first tokens.

    For an XLNet, which generates no texts: the logits of all tokens and of a predicted one.
    """
    model, tokenizer = load_folder(CLASSES[to], folder)
    form, layout, sources = form_of(loaded), layout_of(loaded), []
    for text in odd_texts(loaded, form):
        (ids,) = form.fit([loaded.tokenizer.encode(text)])
        sources.append(ids)
        if tokenizer(text, truncation=True)["input_ids"] != form.row([ids])[0].tolist():
            raise UniclozeError(f"AutoTokenizer gives different ids for {text[:60]!r}")
    with torch.inference_mode():
        if layout is None:
            return _permuted(loaded, model, [ids for ids in sources if len(ids)])
        room = layout.room(loaded.model.max_positions, 1) - form.specials()
        found = [_first_logits(loaded, model, layout, ids[:room]) for ids in sources if len(ids)]
        return {"logits": max(found)}


def _first_logits(loaded: LoadedModel, peer: Any, layout: GenerationFormat, source: Int32s) -> float:
    """Largest difference of the logits of the first token after a source."""
    given = torch.from_numpy(layout.row(source)).long()[None]
    opening = {"decoder_input_ids": torch.tensor([layout.opening])} if layout.opening else {}
    theirs: Tensor = peer(input_ids=given, attention_mask=torch.ones_like(given), **opening).logits[0, -1]
    incremental = IncrementalModel(loaded.model, torch.float32)
    own = Branches(incremental, layout, [source], count=1, max_length=1).first()[0]
    return float((own - theirs).abs().max())


def _permuted(loaded: LoadedModel, peer: Any, sources: Sequence[Int32s]) -> dict[str, float]:
    """Largest differences of an XLNet: where every slot reads all, and where no other reads the slot of the last token."""
    model, vocabulary, found = loaded.model, loaded.tokenizer.vocabulary, {"logits": 0.0, "predictions": 0.0}
    for ids in sources:
        windows = one_segment([ids], vocabulary)
        row = torch.from_numpy(windows.token_ids).long()
        batch = collate(rows_to_encode(windows, loaded.recipe))
        difference = model.token_logits(model.backbone(batch)[-1]) - peer(input_ids=row).logits
        found["logits"] = max(found["logits"], float(difference.abs().max()))
        place, width = len(ids), row.shape[1]
        steps = np.full((1, width), -1, dtype=np.int32)
        steps[0, place] = 0
        own = model.logits(collate(lay_out_permuted(windows, steps, vocabulary, pseudo=query_of(loaded))))["par"][0, 0]
        hidden, target = torch.zeros(1, width, width), torch.zeros(1, 1, width)
        hidden[0, :, place] = target[0, 0, place] = 1
        theirs = peer(input_ids=row, perm_mask=hidden, target_mapping=target).logits[0, 0]
        found["predictions"] = max(found["predictions"], float((own - theirs).abs().max()))
    return found
