"""The examples run unchanged."""

from __future__ import annotations

import json
import random
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPOSITORY
from corpora import write_corpus
from unicloze import verbs
from unicloze.text.documents import read_documents

EXAMPLES = {
    "fill": ["RUN", "the [MASK] cat [MASK] the dog"],
    "embed": ["RUN", "the cat", "a dog", "the old house"],
    "classify": ["RUN", "train.tsv", "new.tsv", "OUT"],
    "generate": ["RUN", "train.jsonl", "the cat", "OUT"],
    "atlas": ["OUT"],
    "quickstart": ["RUN"],
}


def test_every_example_is_run_here() -> None:
    assert {file.stem for file in (REPOSITORY / "examples").glob("*.py")} == EXAMPLES.keys()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    overrides = {"data.corpus": [str(write_corpus(folder))], "tokenizer.vocab_size": 300}
    verbs.pretrain("quickstart", folder / "run", toy=True, quiet=True, overrides=overrides)
    return folder / "run"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the text has 3. tokens, but the model reads 30")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(
    name: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.tsv").write_text("text\tlabel\nthe cat\tyes\na dog\tno\n")
    Path("new.tsv").write_text("text\nthe cat\nthe old dog\n")
    records = [{"source": "the cat", "target": "a dog"}, {"source": "the old house", "target": "a tree"}]
    Path("train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    words = [{"RUN": str(run), "OUT": str(tmp_path / "out")}.get(word, word) for word in EXAMPLES[name]]
    file = REPOSITORY / "examples" / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(file), *words])
    runpy.run_path(str(file), run_name="__main__")
    said = capsys.readouterr().out
    assert len(said.splitlines()) >= (1 if name == "generate" else 2)
    if name == "atlas":
        assert said.startswith("all at once:     0 of 12 agree, as in: Anna lives in ")
        assert "\nin PAR's order: 12 of 12 agree, as in: Anna lives in " in said
    if name == "quickstart":
        assert "Words it gets right, 0 of 8" in said and "Verdict: no better than counting words" in said


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_example_with_datatrove_drops_short_texts_and_near_copies(tmp_path: Path) -> None:
    pytest.importorskip("datatrove")
    pytest.importorskip("spacy", reason="datatrove splits English words with it")
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijkl", k=6)) for _ in range(500)]
    texts = [" ".join(draw.choices(words, k=80)) for _ in range(12)]
    near = [f"{text.rpartition(' ')[0]} other" for text in texts[:3]]
    raw, out = tmp_path / "raw", tmp_path / "clean"
    raw.mkdir()
    for number in range(2):
        chosen = [*texts, *near, "too short"][number::2]
        (raw / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in chosen))
    script = REPOSITORY / "examples" / "launch" / "prepare_datatrove.py"
    subprocess.run(
        [sys.executable, script, raw, out, "--tasks", "2", "--workers", "1"], check=True, capture_output=True
    )
    kept = [document.text for document in read_documents(f"file://{out}/texts/*.jsonl.gz")]
    assert len(kept) == 12
    assert {text[:200] for text in kept} == {text[:200] for text in texts}
