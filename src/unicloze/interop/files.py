"""Reads other libraries' files: configurations and weights, checked before anything of their size is allocated.

Safetensors hold numbers and no code. A `.bin` is a pickle: it is opened only on request, and then with torch's weights-only
reader, which rejects everything but tensors.
"""

from __future__ import annotations

import functools
import json
import math
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unicloze.errors import UniclozeError, UsageError
from unicloze.files import leads_out

LARGEST_FILE = 4 << 20
"""Largest configuration in bytes; real ones have a few thousand."""
LARGEST = {"vocab_size": 1 << 22, "layers": 1 << 10, "size": 1 << 18}
"""Upper bounds for tables, stacks and widths, since a configuration may ask for more than its weights hold."""

Activation = Literal["gelu", "gelu_tanh", "relu"]

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""Our names of their activations."""


def read_json(path: Path, *, largest: int = LARGEST_FILE, kind: type = dict) -> Any:
    """The JSON object in a file, or its list if `kind` is one."""
    try:
        size = path.stat().st_size
        if size > largest:
            raise UniclozeError(f"{path} has {size:,} bytes, too many for such a file: download it again")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UniclozeError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # from the JSON and UTF-8 decoders
        raise UniclozeError(f"{path} is not valid JSON ({error}): download it again") from error
    if not isinstance(content, kind):
        raise UniclozeError(f"{path} is not a JSON {'object' if kind is dict else 'list'}: download it again")
    return content


@dataclass(frozen=True)
class Config:
    """A model's `config.json`. Errors name the file and the key."""

    path: Path  # the file
    values: Mapping[str, Any]  # its content

    @classmethod
    def read(cls, path: Path) -> Config:
        """Read a configuration file."""
        config = cls(path, read_json(path))
        if config.values.get("auto_map"):
            raise config.refused(
                "auto_map",
                "the model needs custom code, and a checkpoint's code is never run; if it is a standard "
                "model of its model_type, remove the key",
            )
        return config

    def refused(self, key: str, why: str) -> UniclozeError:
        """The error for an unsupported value."""
        return UniclozeError(f"{self.path}: {key} is {str(self.values.get(key))[:60]}: {why}")

    def only(self, key: str, *allowed: Any, why: str) -> None:
        """Reject a key whose value is not allowed; a missing key is accepted."""
        if key in self.values and self.values[key] not in allowed:
            raise self.refused(key, why)

    def whole(self, key: str, default: int | None = None, *, kind: str = "size", least: int = 1) -> int:
        """A bounded integer."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST[kind]:
            expected = f"expected a whole number from {least} to {LARGEST[kind]:,}"
            if value is None:
                raise UniclozeError(f"{self.path} has no {key}: {expected}")
            raise self.refused(key, expected)
        return value

    def number(self, key: str, default: float, *, most: float = math.inf) -> float:
        """A number in [0, `most`)."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < most:
            raise self.refused(key, f"expected a number from 0 to below {most:g}")
        return float(value)

    def activation(self, key: str, default: str) -> Activation:
        """Our name of an activation."""
        name = self.values.get(key, default)
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise self.refused(key, f"supported activations are {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[name]


SAFETENSORS, BINARY = "model.safetensors", "pytorch_model.bin"
LARGEST_HEADER = 16 << 20
"""Largest safetensors header in bytes; a model of 1,000 tensors needs about 100,000."""
LARGEST_INDEX = 64 << 20
CONSTANTS = "position_ids", "token_type_ids", ".attn.bias", ".attn.masked_bias"
"""Endings of names that are not weights; GPT-2's two are its causal mask."""
FLOATS = {"F16", "BF16", "F32", "F64"}
_LEGACY = {".gamma": ".weight", ".beta": ".bias"}
"""Names of normalisation weights in checkpoints converted from TensorFlow."""


Stored = tuple[tuple[int, ...], Callable[[], Tensor]]
"""Shape of a tensor, and what reads it."""


class Weights(Mapping[str, Tensor]):
    """Tensors of a file, or of an index of several, by name; each is read on access and not kept."""

    def __init__(self, path: Path, stored: Mapping[str, Stored]) -> None:
        self.path = path
        self._stored = {_current(name): found for name, found in stored.items()}
        self.shapes = {name: shape for name, (shape, _) in self._stored.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._stored[name][1]()

    def under_first_names(self, copies: Mapping[str, str]) -> Weights:
        """These weights, with tensors stored only as a copy renamed to their original."""
        first = {copy: name for copy, name in copies.items() if name not in self}
        return Weights(self.path, {first.get(name, name): found for name, found in self._stored.items()})

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def inside(folder: Path, name: str) -> Path | None:
    """Path of a file in a folder; None if it does not exist.

    Links may point within the folder, and from a snapshot of Hugging Face's cache to its sibling `blobs` folder.
    """
    path = folder / name
    if not path.exists():
        if path.is_symlink():
            raise UniclozeError(f"{path} is a link to a file that is not there: download the checkpoint again")
        return None
    if leads_out(path, folder):
        raise UniclozeError(
            f"{path} is a link out of its folder, to {path.resolve()}: replace the link with a copy of the file"
        )
    if not path.is_file():
        raise UniclozeError(f"{path} is not a regular file: download the checkpoint again")
    return path


def open_weights(folder: Path, *, pickle: bool = False) -> Weights:
    """Open the weights of a checkpoint folder: safetensors, whole or sharded, or on request a `.bin`."""
    if (file := inside(folder, SAFETENSORS)) is not None:
        return _together(file, [file], _safetensors)
    if (index := inside(folder, f"{SAFETENSORS}.index.json")) is not None:
        return _together(index, _shards(folder, index), _safetensors)
    index = inside(folder, f"{BINARY}.index.json")
    found = [name.name for name in sorted(folder.glob("*.bin")) if name.name != "training_args.bin"]
    binaries = [file for name in found if (file := inside(folder, name)) is not None]
    if index is None and len(binaries) != 1:
        several = f", and {len(binaries)} .bin files without an index" if binaries else ""
        raise UniclozeError(f"{folder} holds no {SAFETENSORS}{several}: give the folder of one checkpoint")
    if not pickle:
        raise UsageError(
            f"{folder} holds its weights only as a pickle ({binaries[0].name if binaries else BINARY}), a format that can "
            "carry code: read only its tensors with `unicloze import --pickle`, or use a checkpoint in safetensors"
        )
    if index is not None:
        return _together(index, _shards(folder, index), _binary)
    return _together(binaries[0], binaries, _binary)


def _together(path: Path, files: Iterable[Path], open_one: Callable[[Path], Mapping[str, Stored]]) -> Weights:
    stored: dict[str, Stored] = {}
    for file in files:
        found = open_one(file)
        if twice := sorted(found.keys() & stored.keys()):
            raise UniclozeError(f"{file} holds {twice[0]}, and so does another file of {path.name}: download it again")
        stored |= found
    return Weights(path, stored)


def _shards(folder: Path, index: Path) -> list[Path]:
    """The files an index names, which must be plain names of files in its folder."""
    places: Any = read_json(index, largest=LARGEST_INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise UniclozeError(f"{index} has no weight_map of file names: download it again")
    files = []
    for name in dict.fromkeys(places.values()):
        if not name or Path(name).name != name or "\\" in name or "\0" in name or name in (".", ".."):
            raise UniclozeError(f"{index} names the file {name[:80]!r}, which is not in its folder: it is not read")
        file = inside(folder, name)
        if file is None:
            raise UniclozeError(f"{index} names {name}, which is not there: download it again")
        files.append(file)
    return files


def _safetensors(file: Path) -> Mapping[str, Stored]:
    size, stored = file.stat().st_size, {}
    with file.open("rb") as stream:
        claimed = int.from_bytes(stream.read(8), "little")
    if size < 8 or claimed > size - 8:
        raise UniclozeError(f"{file} is truncated or not a safetensors file: download it again")
    if claimed > LARGEST_HEADER:
        raise UniclozeError(f"{file} has a header of {claimed:,} bytes, more than any model needs: it is not read")

    def read(name: str) -> Tensor:
        # Opened for every tensor, so that the other tensors' pages are not kept in memory.
        with safe_open(file, framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
            return tensor

    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is not a mapping
                part = opened.get_slice(name)
                if part.get_dtype() not in FLOATS and not name.endswith(CONSTANTS):
                    raise UniclozeError(
                        f"{file}: {name} holds {part.get_dtype()} numbers: use the unquantised checkpoint"
                    )
                stored[name] = tuple(part.get_shape()), functools.partial(read, name)
    except (SafetensorError, OSError, ValueError) as error:
        raise UniclozeError(f"{file} is damaged ({error}): download it again") from error
    return stored


def _binary(file: Path) -> Mapping[str, Stored]:
    try:
        with warnings.catch_warnings():  # about old pickles, which are read or rejected anyway
            warnings.simplefilter("ignore")
            # Only torch's newer zip format can be memory-mapped.
            content: Any = torch.load(
                file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file) or None
            )
    except pickle.UnpicklingError as error:
        raise UniclozeError(f"{file} holds more than tensors, which may be code: it is not read") from error
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, TypeError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UniclozeError(f"{file} is damaged or not a torch.save file ({reason}): download it again") from error
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    ):
        raise UniclozeError(f"{file} does not hold tensors by name: give a model state")
    for name, tensor in content.items():
        if (
            tensor.layout != torch.strided
            or tensor.device.type != "cpu"
            or tensor.nbytes > tensor.untyped_storage().nbytes()
        ):
            # a pickle can expand one number to any shape
            raise UniclozeError(f"{file}: {name} holds fewer numbers than its shape requires: it is not read")
        if not tensor.is_floating_point() and not name.endswith(CONSTANTS):
            raise UniclozeError(f"{file}: {name} holds {tensor.dtype} numbers: use the unquantised checkpoint")
    return {name: (tuple(part.shape), functools.partial(content.__getitem__, name)) for name, part in content.items()}


def _current(name: str) -> str:
    for old, new in _LEGACY.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
