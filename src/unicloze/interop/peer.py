"""Loads an exported folder with Transformers, to compare it with the model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.errors import UniclozeError
from unicloze.interop.stock_export import StockExport
from unicloze.interop.tokenizer_files import swapped_ids


@dataclass(frozen=True, kw_only=True)
class Peer:
    """An exported folder, loaded by Transformers.

    Args:
        name: Name of its class.
        model: The model, in evaluation mode.
        tokenizer: The tokenizer as loaded by AutoTokenizer.
        answers: Output attribute of each head, by our name of the head.
        ids: Their id of each of our ids. *Shape:* (vocabulary,)
        segments: `token_type_ids` of the two texts of a pair; None if the model has none.
    """

    name: str
    model: Any
    tokenizer: Any
    answers: Mapping[str, str]
    ids: npt.NDArray[np.int64]
    segments: tuple[int, int] | None


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
    """Import Transformers.

    Raises:
        UniclozeError: It is not installed.
    """
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
    """The model, in evaluation mode, and the tokenizer of a folder, as a user would load them.

    Args:
        name: The class.
        folder: The folder.
        allowed: Whether a pooler may be among the missing or the unexpected weights.

    Raises:
        UniclozeError: Transformers is not installed, cannot load it, or reports missing or unexpected weights.
    """
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
    )
