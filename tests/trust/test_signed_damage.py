"""Complete files with correct checksums and invalid contents: one sentence each, not reported as a bug."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fuzz
from corpora import write_corpus
from unicloze import terminal
from unicloze.cli import main
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides

STATE, MOMENTS, MANIFEST = "state.json", "optimizer.json", "manifest.json"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trained")
    corpus = write_corpus(place / "corpus")
    overrides = {**toy_overrides(), "data.corpus": [str(corpus)], "training.precision": "fp32"}
    pretrain_run(load_recipe("unilmv2-base", overrides), place / "run", progress=False)
    return place / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def checkpoint_of(run: Path) -> Path:
    return next((run / "checkpoints").iterdir())


def sign(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["sha256"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in manifest["sha256"]}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def said_by(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = main(words)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(("name", "text"), [
    *((STATE, text) for text in ("{}", "[]", '{"step": "x"}', '{"step": -1}', '{"step": true}', "[" * 100_000)),
    *((MOMENTS, text) for text in ("{}", "[{}]", "[[]]", "[" * 100_000)),
    *((MANIFEST, text) for text in ("[]", '{"schema": 1, "sha256": {}}', "[" * 100_000)),
    ("model.safetensors", "xx"),
    ("optimizer.safetensors", "xx"),
])  # fmt: skip
@pytest.mark.parametrize("verb", ["fill", "pretrain"])
def test_a_signed_folder_that_is_not_a_checkpoint(
    run: Path, name: str, text: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint_of(run)
    (folder / name).write_text(text)
    if name != MANIFEST:
        sign(folder)
    words = ["fill", "--model", str(run), "--text", "the [MASK]"] if verb == "fill" else ["pretrain", "--out", str(run)]
    code, said = said_by(words, capsys)
    assert code == 1 and str(folder) in said and "bug" not in said


@pytest.mark.parametrize("name", ["\0", "a\0b", "", ".", "..", "../x", "a/b"])
def test_a_manifest_that_names_no_file(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Found by `make fuzz`: a NUL in a name was reported as a bug."""
    file = checkpoint_of(run) / MANIFEST
    manifest = json.loads(file.read_text())
    manifest["sha256"][name] = "0" * 64
    file.write_text(json.dumps(manifest))
    code, said = said_by(["fill", "--model", str(run), "--text", "the [MASK]"], capsys)
    assert code == 1 and ("is missing or damaged" in said or "link out of its folder" in said)


def without_a_tensor(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[next(name for name in tensors if name.endswith("exp_avg"))]


def of_other_shape(tensors: dict[str, torch.Tensor]) -> None:
    name = next(name for name in tensors if name.endswith("exp_avg"))
    tensors[name] = torch.zeros(3)


def of_no_weight(tensors: dict[str, torch.Tensor]) -> None:
    tensors["strange"] = torch.zeros(3)


@pytest.mark.parametrize("change", [of_other_shape, of_no_weight, without_a_tensor])
def test_moments_of_other_weights(
    run: Path, change: Callable[[dict[str, torch.Tensor]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint_of(run)
    tensors = load_file(folder / "optimizer.safetensors")
    change(tensors)
    save_file(tensors, folder / "optimizer.safetensors")
    sign(folder)
    code, said = said_by(["pretrain", "--out", str(run), "--training.steps", "4", "--quiet"], capsys)
    assert code == 1 and str(folder) in said and "bug" not in said


@pytest.mark.parametrize("weight", ["1e300", "1e17", "1e7"])
def test_a_weight_without_bounds(tmp_path: Path, weight: str, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    words = ["pretrain", "--recipe", "unilmv2-base", "--toy", "--data.corpus", str(corpus), "--data.weights", weight]
    code, said = said_by([*words, "--out", str(tmp_path / "run")], capsys)
    assert code == 2 and "at most 1,000,000 times" in said


@pytest.mark.parametrize(
    "words", ["prepare --out", "pretrain --recipe unilmv2-base --out", "report run --out", "inspect --text a --picture"]
)
def test_a_nul_in_a_name(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = said_by([*words.split(), "a\0b.svg"], capsys)
    assert code == 2 and "'a[NUL]b.svg' holds a NUL character" in said


@pytest.mark.parametrize("digits", [30, 400, 4200])
def test_huge_numbers_in_a_ledger(run: Path, digits: int, capsys: pytest.CaptureFixture[str]) -> None:
    huge = "9" * digits
    events = f'{{"event": "step", "step": {huge}, "loss": {{"ae": 1.0}}}}\n'
    events += f'{{"event": "evaluate", "step": 2, "loss": {{"ae": {huge}}}}}'
    with (run / "ledger.jsonl").open("a") as ledger:
        ledger.write(events + "\n")
    assert said_by(["report", str(run)], capsys)[0] == 0


def test_a_terminal_that_cannot_print_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    for json_wanted, expected in ((False, b"\\u4e2d\xe9"), (True, b'"\\u4e2d\\u00e9"')):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
        terminal.escape_what_stdout_lacks()
        terminal.show("中é", json=json_wanted)
        assert raw.getvalue().strip() == expected


def test_a_name_does_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.say("error", "there is no \x1b[31mred\nline\u202e here")
    assert capsys.readouterr().err == "unicloze: error: there is no \\x1b[31mred\\nline\\u202e here\n"


def test_mutations_change_what_they_are_given() -> None:
    seen: list[Any] = []
    base = {"a": [1, 2], "b": {"c": "d"}}

    def make(_world: Any) -> tuple[Any, Callable[[Any], None]]:
        return base, seen.append

    fuzz.FORMATS["probe"] = make
    try:
        assert fuzz.attack(None, "probe", 50) == (50, {})  # type: ignore[arg-type]
    finally:
        del fuzz.FORMATS["probe"]
    assert base == {"a": [1, 2], "b": {"c": "d"}} and sum(value != base for value in seen) > 40
