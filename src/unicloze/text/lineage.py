"""`lineage.json`: what a prepared folder was made from, its fingerprint, and checks that it is unchanged."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from unicloze.errors import UniclozeError
from unicloze.files import LINEAGE, at_home, digest, misfit, parse_json
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.storage import File, Status
from unicloze.text.digests import SCHEMA, SEAL, seal
from unicloze.text.documents import files_at
from unicloze.text.sources import corpus_files, find_shards, read_as
from unicloze.text.tokenizers import Tokenizer

CODE = 7
"""Version of the rules that turn text into shards; part of the fingerprint."""
LOADED_TOKENIZER = "tokenizer.loaded"
"""Setting that holds the fingerprint of a tokenizer that was loaded, not trained."""

_COUNTS = {"documents": int, "tokens": int, "bytes": (int, type(None))}
_SHAPE = {
    "fingerprint": str,
    "settings": {"code": int},
    "tokenizer": {"fingerprint": str, "vocab_size": int},
    "digests": str,
    "seal": str,
    "decontamination?": {"names": [str], "ngram": int},
    "sources": [
        {
            "name": str,
            "corpus": str,
            "files": [{"path": str, "size": int, "mtime_ns": int, "hash": str, "read_as": str, "etag?": str}],
            "train": _COUNTS,
            "heldout": _COUNTS,
            "shards?": [str],
            "portions?": int,
        }
    ],
}


def describe_settings(data: DataSettings, tokenizer: TokenizerSettings) -> dict[str, Any]:
    """The settings that determine the content of a prepared folder, by dotted name."""
    if tokenizer.path is not None:
        described = {"loaded": Tokenizer.load(tokenizer.path).fingerprint}
    else:
        described = {name: value for name, value in dataclasses.asdict(tokenizer).items() if name != "path"}
    evaluation = [file for name in data.decontaminate for file in files_at(name)]
    files = [f"{file_hash(file)} as {read_as(file)}" for file in evaluation]
    cut = {"decontaminate.files": files, "decontaminate.ngram": data.decontaminate_ngram}
    return {
        "code": CODE,
        "data.text_field": data.text_field,
        **({} if data.spans_field is None else {"data.spans_field": data.spans_field}),
        "data.heldout_share": data.heldout_share,
        "data.deduplicate": data.deduplicate,
        **(cut if data.decontaminate else {}),
        "seed": 0,  # once salted the hashes; part of all fingerprints
        **{f"tokenizer.{name}": value for name, value in described.items()},
    }


def version(file: File) -> dict[str, Any]:
    """Size in bytes and modification time of a file, and what a storage calls this version of it."""
    status = file.stat()
    etag = {"etag": status.etag} if isinstance(status, Status) and status.etag else {}
    return {"size": status.st_size, "mtime_ns": max(0, status.st_mtime_ns), **etag}


def describe_file(file: File, hashed: str, how: str | None = None) -> dict[str, Any]:
    """Entry of a file: path or URL, its version, hash of its raw bytes, and how it is read."""
    return {"path": str(file), **version(file), "hash": hashed, "read_as": read_as(file) if how is None else how}


def describe_dataset(corpus: str) -> list[dict[str, Any]]:
    """Entries of a dataset: its files, and names that determine its content."""
    return [
        {"path": name, "size": 0, "mtime_ns": 0, "hash": name, "read_as": ""}
        if file is None
        else describe_file(file, file_hash(file), how)
        for name, file, how in corpus_files(corpus)
    ]


def fingerprint(settings: dict[str, Any], sources: Iterable[dict[str, Any]]) -> str:
    """Hash of the settings and the files' content, independent of where the files are."""
    content = [[[file["hash"], file["read_as"]] for file in source["files"]] for source in sources]
    return digest([settings, content])


def file_hash(file: File) -> str:
    """Hash of a file's raw bytes."""
    with file.open("rb") as raw:
        return hashlib.file_digest(raw, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def read_lineage(folder: Path) -> dict[str, Any]:
    """Read `lineage.json`."""
    path = folder / LINEAGE
    if not path.is_file():
        raise UniclozeError(
            f"{folder} is not a prepared corpus (no lineage.json): give another folder or run `prepare`."
        )
    try:
        lineage = parse_json(path.read_bytes())
    except ValueError as error:
        raise UniclozeError(f"{path} is damaged ({error}): remove the folder and prepare again.") from error
    if not isinstance(lineage, dict) or lineage.get("schema") != SCHEMA:
        problem = f"does not have schema {SCHEMA}"
    elif (wrong := misfit(lineage, _SHAPE)) is not None:
        problem = f"is damaged at {wrong.lstrip('.')}"
    elif any("/" in source["name"] for source in lineage["sources"]):
        problem = "is damaged at sources"
    elif lineage[SEAL] != seal(lineage):
        problem = "is damaged (its seal does not fit it)"
    else:
        return cast(dict[str, Any], lineage)
    raise UniclozeError(f"{path} {problem}: remove the folder and prepare again.")


def known_settings(lineage: Mapping[str, Any]) -> dict[str, Any]:
    """Data and tokenizer settings recorded in a lineage, by dotted name."""
    sections = {"data": DataSettings, "tokenizer": TokenizerSettings}
    names = {f"{section}.{field.name}" for section, cls in sections.items() for field in dataclasses.fields(cls)}
    known = {name: value for name, value in lineage["settings"].items() if name in names}
    known.setdefault("tokenizer.vocab_size", lineage["tokenizer"]["vocab_size"])
    cut = lineage.get("decontamination")
    known["data.decontaminate"] = cut["names"] if cut else []
    if cut:
        known["data.decontaminate_ngram"] = cut["ngram"]
    return {"data.corpus": [source["corpus"] for source in lineage["sources"]], **known}


def is_corpus(lineage: Mapping[str, Any], corpus: Sequence[str]) -> bool:
    """Whether a corpus is the one in a lineage: by name, or, if it was moved, by the content of its files."""
    sources = lineage["sources"]
    if [Path(source["corpus"]).resolve() for source in sources] == [Path(name).resolve() for name in corpus]:
        return True
    try:
        current = [corpus_files(name) for name in corpus]
    except UniclozeError:
        return False
    recorded = [source["files"] for source in sources]
    if list(map(len, recorded)) != list(map(len, current)):
        return False
    pairs = list(zip(itertools.chain(*recorded), itertools.chain(*current), strict=True))
    return all(
        before["path"] == path if file is None else (before["size"], before["read_as"]) == (file.stat().st_size, how)
        for before, (path, file, how) in pairs
    ) and all(file is None or file_hash(file) == before["hash"] for before, (_, file, _) in pairs)


def check_lineage(
    folder: Path, data: DataSettings, settings: dict[str, Any], *, cure: str | None = None, verify: bool = False
) -> None:
    """Check that a prepared folder was made from this corpus with these settings.

    Unless `verify` is set, a file is hashed again only if its size or modification time differs.
    """
    lineage = read_lineage(folder)
    changes = []
    if len(lineage["sources"]) != len(data.corpus):
        changes.append(f"data.corpus has {len(data.corpus)} entries instead of {len(lineage['sources'])}")
    sources = []
    for position, corpus in enumerate(data.corpus):
        recorded = lineage["sources"][position]["files"] if position < len(lineage["sources"]) else []
        files = []
        known = {file["path"]: file for file in recorded}
        for path, file, how in corpus_files(corpus):
            before = known.pop(path, None)
            if before and (file is None or not verify) and _unchanged(before, file):
                files.append(before)
                continue
            files.append({"hash": path if file is None else file_hash(file), "read_as": how})
            if before is None or before["hash"] != files[-1]["hash"]:
                changes.append(f"{path} {'is new' if before is None else 'has changed'}")
        tokens = find_shards(corpus) if known else []
        beside = f"is not read beside tokens ({tokens[0]})" if tokens else ""
        changes += [f"{path} {beside if beside and at_home(path).is_file() else 'is gone'}" for path in known]
        sources.append({"files": files})
    changes += _changed_settings(lineage["settings"], settings)
    now = fingerprint(settings, sources)
    if now != lineage["fingerprint"]:
        what = "; ".join(changes[:3]) + (f"; and {len(changes) - 3} more" if len(changes) > 3 else "")
        raise UniclozeError(
            f"{folder} was prepared from another corpus or with other settings ({what or 'the order of the files differs'}; "
            f"fingerprint {now[:16]} instead of {lineage['fingerprint'][:16]}): "
            f"{cure or f'give another --out or remove {folder}'}."
        )


def _changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words; a tokenizer is loaded (`tokenizer.loaded` holds its fingerprint) or trained."""
    names, changes = before.keys() | now.keys(), []
    was, loaded = before.get(LOADED_TOKENIZER), now.get(LOADED_TOKENIZER)
    if was != loaded:
        loading = "loaded (--tokenizer.path or --init)"
        kinds = f"{loading} instead of trained" if was is None else f"trained instead of {loading}"
        changes = [f"the tokenizer is {kinds}" if None in (was, loaded) else f"another tokenizer is {loading}"]
        names = {name for name in names if not name.startswith("tokenizer.")}
    return changes + [
        f"{name} is {now.get(name)} instead of {before.get(name)}"
        for name in sorted(names)
        if now.get(name) != before.get(name)
    ]


def _unchanged(before: dict[str, Any], file: File | None) -> bool:
    if file is None:  # the built-in corpus or a dataset: the name holds the versions it is made from
        return True
    now = version(file)
    if "etag" in before and "etag" in now:
        return bool((before["size"], before["etag"]) == (now["size"], now["etag"]))
    known = now["mtime_ns"] > 0 or (isinstance(file, Path) and file.stat().st_mtime_ns == 0)
    return bool(known and (before["size"], before["mtime_ns"]) == (now["size"], now["mtime_ns"]))
