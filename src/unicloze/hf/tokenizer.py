"""Loads a run's tokenizer as a Transformers tokenizer."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from unicloze.decoding.inputs import text_format
from unicloze.interop.opening import open_model
from unicloze.interop.tokenizer_files import write_tokenizer


def load_tokenizer(path: str | os.PathLike[str]) -> PreTrainedTokenizerFast:
    """The tokenizer of a run; it makes "[SOS] text [EOS]" and "[SOS] text [EOS] second part [EOS]".

    Args:
        path: A run directory, its checkpoints folder, or one checkpoint.

    Raises:
        UniclozeError: There is no intact checkpoint.
    """
    loaded = open_model(path)
    with tempfile.TemporaryDirectory(prefix="unicloze-") as folder:
        write_tokenizer(loaded.tokenizer, Path(folder), dataclasses.replace(text_format(loaded), segments=(0, 1)))
        tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return tokenizer
