"""Values of goldens: digests, and differences between two files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ABSENT = "(absent)"


def digest(value: Any) -> str:
    """SHA-256 of a JSON-serialisable value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def array_digest(array: Any) -> str:
    """SHA-256 of an array's type, shape and bytes."""
    content = array.detach().numpy() if hasattr(array, "detach") else array
    return f"{content.dtype} {list(content.shape)} {hashlib.sha256(content.tobytes()).hexdigest()}"


def weights(file: Path) -> dict[str, str]:
    """The digest of every tensor of a .safetensors file."""
    from safetensors.torch import load_file

    return {name: array_digest(tensor) for name, tensor in sorted(load_file(file).items())}


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The leaves of a nested value by their path."""
    if isinstance(value, Mapping | list) and value:
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from leaves(inner, f"{name} > {key}")
    else:
        yield name, value


def compare(first: Path, second: Path) -> int:
    """Print the differences between two files of goldens.

    Returns:
        0 if there are none, otherwise 1.
    """
    before, after = (json.loads(file.read_text(encoding="utf-8")) for file in (first, second))
    for what in ("machine", "versions"):
        if before["about"][what] != after["about"][what]:
            print(f"note: {what} differs, so values may: {before['about'][what]} and {after['about'][what]}")
    sections = [name for name in before["about"]["sections"] if name in after["about"]["sections"]]
    both = [
        {name: value for name, value in side["values"].items() if name.partition("/")[0] in sections}
        for side in (before, after)
    ]
    names = list(dict.fromkeys([*both[0], *both[1]]))
    differing = [name for name in names if both[0].get(name, ABSENT) != both[1].get(name, ABSENT)]
    for name in differing:
        old, new = (dict(leaves(values.get(name, ABSENT), name)) for values in both)
        for leaf in dict.fromkeys([*old, *new]):
            if old.get(leaf, ABSENT) != new.get(leaf, ABSENT):
                print(f"{leaf}\n  - {old.get(leaf, ABSENT)}\n  + {new.get(leaf, ABSENT)}")
    print(f"{len(names) - len(differing)} of {len(names)} values of {', '.join(sections)} are the same")
    return int(bool(differing) or not names)
