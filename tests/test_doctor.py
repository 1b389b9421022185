"""`unicloze doctor`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from conftest import REPOSITORY
from unicloze import cli, doctor
from unicloze.cores import WAITING
from unicloze.doctor import Examination, Finding, examine
from unicloze.model import dropout


def finding(examination: Examination, topic: str) -> Finding:
    (found,) = [one for one in examination.findings if one.topic == topic]
    return found


@pytest.mark.whole
def test_this_machine_can_run() -> None:
    examination = examine()
    assert examination.healthy
    topics = [one.topic for one in examination.findings]
    expected = ["Python", "packages", "CPU", "threads", "precision", "dropout", "allocator", "processes", "disk"]
    assert {*expected, "temporary files"} <= set(topics)
    assert any(topic.startswith("GPU") for topic in topics)
    precision = finding(examination, "precision").detail
    assert re.search(r"^(bf16|fp32) on the CPU: .* \d+ GF/s in bf16 and \d+ in fp32", precision)
    assert "torch 2" in finding(examination, "packages").detail
    assert all(one.detail and (one.cure or one.state != "problem") for one in examination.findings)


def test_it_prints_text_or_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    examination = Examination(findings=(Finding(topic="disk", state="note", detail="1 GiB free", cure="Free some."),))
    monkeypatch.setattr(doctor, "examine", lambda: examination)
    assert cli.VERBS["doctor"].examples == ("unicloze doctor", "unicloze doctor --json")
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said == "note     disk  1 GiB free\n               -> Free some.\nunicloze can run here.\n"
    assert cli.main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "healthy": True,
        "findings": [{"topic": "disk", "state": "note", "detail": "1 GiB free", "cure": "Free some."}],
    }


def test_a_missing_package_is_a_problem(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "REQUIRED", (*doctor.REQUIRED, "no-such-package"))
    assert cli.main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "problem  packages" in said and "-> pip install no-such-package" in said
    assert said.endswith("unicloze cannot run here; see the problems above.\n")
    assert "GF/s" not in said, "without its packages nothing is measured"


def test_what_could_be_better_is_noted_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.tempfile, "tempdir", str(tmp_path / "gone"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2**20})())
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(dropout, "_compiled", lambda: None)
    monkeypatch.setattr("unicloze.training.precision.product_seconds", lambda *_: 1.0)
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    found = examine()
    for topic, state, detail, cure in (
        ("temporary files", "problem", "not writable", "TMPDIR"),
        ("disk", "note", "GiB free", "--out"),
        ("dropout", "note", "/bin/cc cannot compile it", "/bin/cc"),
        ("threads", "note", "wait by spinning", "OMP_WAIT_POLICY=PASSIVE"),
    ):
        one = finding(found, topic)
        assert one.state == state and detail in one.detail and cure in one.cure
    monkeypatch.setattr(shutil, "which", lambda _: None)
    (one,) = doctor._dropout()
    assert one.state == "note" and "gcc" in one.cure


def test_it_lists_the_dependencies_of_the_project() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def names(requirements: list[str]) -> tuple[str, ...]:
        return tuple(re.split(r"[<>=\[; ]", requirement)[0] for requirement in requirements)

    assert names(project["dependencies"]) == doctor.REQUIRED
    extras = set(project["optional-dependencies"]) - {"browser", "minilm", "docs", "mutate", "dev"}
    assert extras == set(doctor.EXTRAS)
    for extra, packages in doctor.EXTRAS.items():
        assert names(project["optional-dependencies"][extra]) == packages


@pytest.mark.parametrize(
    ("chosen", "first", "expected"),
    [
        ({}, "", "OMP_WAIT_POLICY=PASSIVE"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "", "OMP_WAIT_POLICY=ACTIVE"),
        ({"GOMP_SPINCOUNT": "9"}, "", "GOMP_SPINCOUNT=9"),
        ({}, "torch", "None"),  # too late, and told by `doctor`
    ],
)
def test_threads_sleep_while_they_wait(chosen: dict[str, str], first: str, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in WAITING} | chosen
    hidden = f"import sys; sys.modules.update({{name: None for name in {first.split()}}})"
    asked = [sys.executable, "-c", f"{hidden}; import unicloze.cores as cores; print(cores.waiting())"]
    assert subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout.strip() == expected
