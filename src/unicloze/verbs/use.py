"""Using a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unicloze.errors import UniclozeError, UsageError
from unicloze.verbs.common import PathLike

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from unicloze.decoding.embed import Pooling
    from unicloze.decoding.infill import FillResult, Order
    from unicloze.decoding.likelihood import TextScore
    from unicloze.evaluation.blimp import BlimpResult, Mode
    from unicloze.training.models import LoadedModel


def fill(model: PathLike | LoadedModel, text: str, top_k: int = 5, order: Order | None = None) -> FillResult:
    """Fill the masks of a text; see `unicloze.decoding.infill.fill`.

    Args:
        model: A run directory, a checkpoint or a loaded model.
        text: Has `[MASK]` where a token is missing.
        top_k: Candidates to list for each mask.
        order: `confidence`, `left-to-right` or `span` fill step by step by PAR; AE fills all at once if not given.

    Raises:
        UsageError: There is nothing to fill, or the model was not trained for the order.
        UniclozeError: There is no whole checkpoint.
    """
    from unicloze.decoding import infill

    return infill.fill(model, text, top_k=top_k, order=order)


def score(model: PathLike | LoadedModel, text: str | None = None, file: PathLike | None = None) -> list[TextScore]:
    """Log-likelihood and pseudo-log-likelihood of texts; see `unicloze.decoding.likelihood.score`.

    Args:
        model: A run directory, a checkpoint or a loaded model.
        text: One text.
        file: A file of texts instead, read as a corpus is: in .txt blank lines part them.

    Raises:
        UsageError: Neither or both of `text` and `file` are given, or the text is blank.
        UniclozeError: There is no whole checkpoint, or the file cannot be read.
    """
    from unicloze.decoding import likelihood

    if (text is None) == (file is None):
        raise UsageError("Give a text or a file to score, and not both.")
    texts = _texts(file) if text is None else [text]
    return likelihood.score(model, texts)


def _texts(file: PathLike | None) -> list[str]:
    from unicloze.text.readers import read_documents

    texts = [document.text for document in read_documents(Path(file or ""))]
    if not texts:
        raise UniclozeError(f"{file} holds no text: give a file with something to score.")
    return texts


def evaluate(
    model: PathLike | LoadedModel,
    blimp: PathLike,
    mode: Mode | None = None,
    limit: int | None = None,
    filter: PathLike | None = None,
    quiet: bool = False,
) -> BlimpResult:
    """Accuracy on BLiMP's minimal pairs, without any training on them; see `unicloze.evaluation.blimp.blimp`.

    Args:
        model: A run directory, a checkpoint or a loaded model.
        blimp: The folder of BLiMP's .jsonl files, an archive of them, or one of them.
        mode: `pseudo` compares pseudo-log-likelihoods, `chain` those of the chain rule, `both` both; `pseudo` if not given
            and the model's objective defines it, else `chain`.
        limit: Take only so many pairs of each set.
        filter: Keep only pairs of known words: a list of them, or `corpus`, the words of the model's own corpus.
        quiet: Show no progress.

    Raises:
        UsageError: The model's objective does not define the mode, or an argument cannot be.
        UniclozeError: There is no whole checkpoint, or the pairs or the filter cannot be read.
    """
    from unicloze.training.allocator import tune_allocator

    tune_allocator()
    from unicloze.evaluation import blimp as room

    return room.blimp(model, blimp, mode=mode, limit=limit, filter_by=filter, progress=not quiet)


def embed(
    model: PathLike | LoadedModel, texts: Sequence[str], pooling: Pooling | None = None, batch_size: int = 32
) -> npt.NDArray[np.float32]:
    """Vectors of texts; see `unicloze.decoding.embed.embed`. No verb of the command line.

    Args:
        model: A run directory, a checkpoint or a loaded model.
        texts: The texts.
        pooling: `mean` of the last hidden states, or that of the `first` or `last` token; the recipe's if not given.
        batch_size: Most rows of one forward pass.

    Returns:
        *Shape:* (texts, hidden size)

    Raises:
        UsageError: A text is blank.
        UniclozeError: There is no whole checkpoint.
    """
    from unicloze.decoding import embed as room

    return room.embed(model, texts, pooling=pooling, batch_size=batch_size)
