"""The verb `import`, and opening a model in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from unicloze.verbs.common import PathLike, folder_at
from unicloze.verbs.options import Folder, Number, Option

if TYPE_CHECKING:
    from unicloze.training.loading import LoadedModel


def load_model(path: PathLike, device: str = "cpu") -> LoadedModel:
    """Load a trained model from a run, a checkpoint or a Hugging Face model folder.

    Args:
        path: The directory.
        device: Where to put it and compute with it: `cpu`, `cuda`, `cuda:N`, or `auto` for a CUDA device if there is
            one.

    Raises:
        UsageError: There is no such device.
        UniclozeError: There is no model.
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
    """Import a checkpoint of BERT, RoBERTa, MPNet, ELECTRA, ALBERT, DistilBERT, MiniLM, UniLM, T5, BART, GPT-2 or XLNet.

    It is saved as a unicloze model, with the head of its task if it is fine-tuned; see `unicloze.interop.read`.

    Args:
        checkpoint: Folder with config.json, weights and tokenizer.
        out: Folder to write; any `--model` and `--init` takes it.
        allow: Tensors that may be missing, unused or of another shape, such as 'classifier.*'; may be repeated.
        positions: Repeat the rows of the position table up to N.
        tokenizer: New vocabulary; tokens in both vocabularies keep their embeddings.
        pickle: Read tensors from a .bin file, a format that can contain code (none is run).

    Examples:
        unicloze import bert-base-uncased/ --out models/bert
        unicloze import bert-base-uncased/ --positions 1024 --tokenizer mine/tokenizer.json --out models/mine

    Returns:
        The imported model.

    Raises:
        UsageError: An argument is invalid, or `out` is not empty.
        UniclozeError: The checkpoint is invalid or unsupported.
    """
    from unicloze.interop.read import import_checkpoint as read
    from unicloze.interop.read import write_model

    folder = folder_at(out)
    return write_model(read(checkpoint, allow=allow, positions=positions, tokenizer=tokenizer, pickle=pickle), folder)
