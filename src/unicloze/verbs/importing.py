"""Reading the checkpoints of other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unicloze.verbs.common import PathLike, folder_at, opening

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
    from unicloze.decoding.texts import open_model

    return open_model(opening(path, device))


def import_checkpoint(
    checkpoint: PathLike,
    out: PathLike,
    allow: Sequence[str] = (),
    positions: int | None = None,
    tokenizer: PathLike | None = None,
    pickle: bool = False,
) -> LoadedModel:
    """Write another library's checkpoint as one of ours: the verb `import`; see `unicloze.interop.read`.

    Args:
        checkpoint: Folder with its configuration, weights and tokenizer.
        out: Folder to write; every `--model` and `--init` takes it.
        allow: Patterns of tensors that may be missing, of another shape, or of no use.
        positions: Repeat the rows of the position table up to so many.
        tokenizer: Another vocabulary to have from now on.
        pickle: Read the tensors of a `.bin`.

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
