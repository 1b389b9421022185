"""A toy world that a model learns in seconds: eight countries with capitals and languages, and twelve people."""

from __future__ import annotations

from pathlib import Path

COUNTRIES = {
    "France": ("Paris", "French"),
    "Italy": ("Rome", "Italian"),
    "Spain": ("Madrid", "Spanish"),
    "Poland": ("Warsaw", "Polish"),
    "Japan": ("Tokyo", "Japanese"),
    "Vietnam": ("Hanoi", "Vietnamese"),
    "Iran": ("Tehran", "Persian"),
    "Nepal": ("Kathmandu", "Nepali"),
}
LANGUAGES = dict(COUNTRIES.values())
"""Language by capital."""
NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ines", "Jonas", "Karl", "Lena"]
SENTENCES = (
    "{name} lives in {capital} and speaks {language}.",
    "{name} visits {capital}, the capital of {country}.",
    "{name} is from {country} and speaks {language}.",
)


def write_texts(folder: str | Path) -> None:
    """Write every sentence of this world as a document in `FOLDER/atlas.txt`, separated by blank lines."""
    texts = [
        sentence.format(name=name, country=country, capital=capital, language=language)
        for name in NAMES
        for country, (capital, language) in COUNTRIES.items()
        for sentence in SENTENCES
    ]
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "atlas.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
