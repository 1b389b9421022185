"""Writes the corpus of unicloze-small-en: the books that books.yaml allows, and OpenStax textbooks.

    python models/training/unicloze-small-en/corpus.py FOLDER --out build/small-en

FOLDER holds `books_train_*.jsonl.gz`, `books_valid.jsonl.gz` (fields author, title, text; from the repository
mlschmitt/classic-books-markdown) and `openstax_train.jsonl.gz`, `openstax_valid.jsonl.gz` (book, title, text; CC BY 4.0). The
training text chooses settings on what pre-training holds out of it; `report.jsonl`, from the `valid` files, reports.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
LATEST_DEATH = 1955
"""Copyright that lasts for 70 years after the author's death has ended for those who died in this year or earlier."""


def allowed_authors() -> dict[str, int]:
    authors: dict[str, int] = yaml.safe_load((HERE / "books.yaml").read_text(encoding="utf-8"))
    late = [name for name, year in authors.items() if year > LATEST_DEATH]
    if late:
        raise SystemExit(f"books.yaml: {', '.join(late)} died after {LATEST_DEATH}")
    return authors


def records(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def texts(folder: Path, part: str, authors: dict[str, int], left_out: Counter[str]) -> Iterator[dict[str, str]]:
    """Allowed texts of a part, with their source; the authors of the others are counted."""
    for path in sorted(folder.glob(f"books_{part}*.jsonl.gz")):
        for book in records(path):
            if book["author"] in authors:
                yield {"source": f"{book['author']}: {book['title']}", "text": book["text"]}
            else:
                left_out[book["author"]] += 1
    for section in records(folder / f"openstax_{part}.jsonl.gz"):
        yield {"source": f"OpenStax: {section['book']}: {section['title']}", "text": section["text"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    authors, left_out = allowed_authors(), Counter[str]()
    for part, name in (("train", "train.jsonl"), ("valid", "report.jsonl")):
        documents = characters = 0
        with (asked.out / name).open("w", encoding="utf-8") as file:
            for document in texts(asked.folder, part, authors, left_out):
                file.write(json.dumps(document, ensure_ascii=False) + "\n")
                documents, characters = documents + 1, characters + len(document["text"])
        print(f"{name}: {documents:,} texts, {characters:,} characters")
    print(f"left out: {sum(left_out.values())} books by {len(left_out)} authors who are not in books.yaml")


if __name__ == "__main__":
    main()
