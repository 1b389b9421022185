"""Reading the checkpoints of other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from unicloze.verbs.common import PathLike, folder_at
from unicloze.verbs.options import Folder, Number, Option

if TYPE_CHECKING:
    from unicloze.training.models import LoadedModel


def load_model(path: PathLike, device: str = "cpu") -> LoadedModel:
    """A trained model: of a run, of a checkpoint, or of the folder of another library's checkpoint.

    Args:
        path: The directory.
        device: Where to put it, and where whatever it is given to computes: `cpu`, `cuda`, `cuda:N`, or `auto`: a CUDA
            device where there is one.

    Raises:
        UsageError: There is no such device.
        UniclozeError: There is no model, or it cannot be read.
    """
    from unicloze.interop.opening import open_model

    return open_model(path, device)


def import_checkpoint(
    checkpoint: Annotated[PathLike, Option("CHECKPOINT", word=True)],
    out: Folder,
    allow: Annotated[Sequence[str], Option("PATTERN", repeated=True)] = (),
    positions: Number | None = None,
    tokenizer: Annotated[PathLike, Option("PATH")] | None = None,
    pickle: bool = False,
) -> LoadedModel:
    """Read a checkpoint of BERT, RoBERTa, MPNet, ELECTRA, ALBERT, DistilBERT, MiniLM or UniLM.

    It is written as one of ours; see `unicloze.interop.read`.

    Args:
        checkpoint: Folder with a config.json, its weights and its tokenizer.
        out: Folder to write, for any `--model` and `--init`.
        allow: Tensors that may be missing, of another shape or of no use, such as 'classifier.*'; may be given again.
        positions: Repeat the rows of the position table up to N.
        tokenizer: Vocabulary to have from now on; shared tokens keep their rows.
        pickle: Read the tensors of a .bin, a format that can carry code (it is not run).

    Examples:
        unicloze import bert-base-uncased/ --out models/bert
        unicloze import bert-base-uncased/ --positions 1024 --tokenizer mine/tokenizer.json --out models/mine

    Returns:
        The model.

    Raises:
        UsageError: An argument cannot be, or there is something at `out`.
        UniclozeError: The checkpoint cannot be read, or `out` cannot be written.
    """
    from unicloze.interop.read import import_checkpoint as read
    from unicloze.interop.read import write_model

    folder = folder_at(out)
    return write_model(read(checkpoint, allow=allow, positions=positions, tokenizer=tokenizer, pickle=pickle), folder)
