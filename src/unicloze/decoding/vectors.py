"""Text embeddings as an array, and writing them to files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from unicloze.errors import UniclozeError, UsageError
from unicloze.files import real_place, write_file

BEGINNINGS: Mapping[str, bytes] = {".npy": rb"\x93NUMPY", ".jsonl": rb'\{"text": .*"vector": '}
"""How files of vectors begin, by the ending of their name."""


class Vectors(np.ndarray[Any, np.dtype[np.float32]]):
    """An array of vectors with their texts; `str` gives JSON lines, or a summary of the file they were written to.

    Attributes:
        texts: One per vector; None for arrays computed from this one, which print as plain arrays.
        out: The file the vectors were written to, if any.
    """

    texts: Sequence[str] | None = None
    out: str | os.PathLike[str] | None = None

    @classmethod
    def of(cls, vectors: npt.NDArray[np.float32], texts: Sequence[str], out: str | os.PathLike[str] | None) -> Self:
        """Attach texts and an output file to vectors. *Shape:* (texts, hidden size)"""
        found = vectors.view(cls)
        found.texts, found.out = list(texts), out
        return found

    def to_dict(self) -> list[dict[str, Any]]:
        """Each text with its vector, for JSON."""
        return list(self._rows())

    def __str__(self) -> str:
        if self.texts is None:
            return str(np.asarray(self))
        if self.out is not None:
            return f"{self.out}: {len(self.texts):,} vectors of {self.shape[1]}"
        return self.json_lines().removesuffix("\n")

    def json_lines(self) -> str:
        """One JSON object per line, with `text` and `vector`."""
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        for text, vector in zip(self.texts or (), np.asarray(self), strict=True):
            yield {
                "text": text,
                "vector": [float(number) for number in vector.astype(str)],
            }  # float32's shortest spelling


def check_ending(out: str | os.PathLike[str] | None) -> None:
    """Reject an output file with an unknown ending, before anything is computed.

    Raises:
        UsageError: The name does not end in .npy or .jsonl.
    """
    if out is not None and Path(out).suffix not in BEGINNINGS:
        raise UsageError(
            f"{out}: vectors are written as a NumPy array or as JSON lines: end the name in .npy or .jsonl."
        )


def write_vectors(vectors: Vectors, out: Path) -> None:
    """Write vectors in the format of the file's ending.

    Raises:
        UniclozeError: The file cannot be written.
    """
    if out.suffix == ".jsonl":
        write_file(out, vectors.json_lines(), "the vectors", "give another --out")
        return
    place = real_place(out)
    temporary = place.with_name(f".{place.name}-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            np.save(file, np.asarray(vectors), allow_pickle=False)
        temporary.replace(place)
    except OSError as error:
        raise UniclozeError(f"{out}: cannot write the vectors: {error.strerror}; give another --out.") from error
    finally:
        temporary.unlink(missing_ok=True)
