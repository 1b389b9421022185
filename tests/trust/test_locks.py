"""Locks have the versions of constraints.txt and hashes of every file, the bill of materials all; two wheels are alike."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from conftest import REPOSITORY

sys.path.append(str(REPOSITORY / "benchmarks"))
import supply_chain
from supply_chain import CONSTRAINTS, CPU, CUDA, Locked, locked, normal, pinned

LOCKS = [CPU, CUDA]


def entries(file: Path) -> list[Locked]:
    return locked(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", LOCKS, ids=lambda file: file.name)
def test_a_lock_has_the_versions_of_the_constraints(file: Path) -> None:
    versions = {normal(one.name): one.version.removesuffix("+cpu") for one in entries(file)}
    known = pinned(CONSTRAINTS)
    assert len(known) > 100 and {name: versions.get(name) for name in known} == known


@pytest.mark.parametrize("file", LOCKS, ids=lambda file: file.name)
def test_every_package_of_a_lock_has_hashes_and_none_is_left_out(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    requirements = [line for line in text.splitlines() if line and not line.startswith(("#", "    --hash=sha256:"))]
    assert [line.partition("==")[0] for line in requirements] == [one.name for one in entries(file)]
    assert all(one.hashes and len(set(one.hashes)) == len(one.hashes) for one in entries(file))
    assert "://" not in text, "no index is named"


def test_the_cpu_lock_is_the_other_without_cuda() -> None:
    cpu, cuda = ({(one.name, one.version): one for one in entries(file)} for file in LOCKS)
    torch = pinned(CONSTRAINTS)["torch"]
    for_linux = cpu.pop(("torch", f"{torch}+cpu"))
    assert for_linux.marker == "sys_platform == 'linux'" and cpu["torch", torch].marker == "sys_platform != 'linux'"
    assert cpu["torch", torch].hashes == cuda["torch", torch].hashes
    left_out = {name for name, _ in cuda} - {name for name, _ in cpu}
    assert left_out and all(re.match("nvidia-|cuda-|triton", name) for name in left_out)
    assert all(cpu[key] == cuda[key] for key in cpu if key[0] != "torch")


@pytest.mark.parametrize("file", LOCKS, ids=lambda file: file.name)
def test_the_build_needs_nothing_beyond_the_lock(file: Path) -> None:
    requires = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    names = {f"{one.name}=={one.version}" for one in entries(file)}
    assert requires and names >= set(requires)


def test_the_bill_of_materials_lists_every_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supply_chain, "ROOT", tmp_path)
    monkeypatch.setattr(supply_chain, "SBOM", tmp_path / "build" / "sbom.json")
    assert supply_chain.sbom() == 0
    said = json.loads((tmp_path / "build" / "sbom.json").read_text(encoding="utf-8"))
    assert (said["bomFormat"], said["specVersion"]) == ("CycloneDX", "1.6")
    assert {(one["name"], one["version"]) for one in said["components"]} == {
        (one.name, one.version) for one in entries(CUDA)
    }
    assert all(one["purl"].startswith("pkg:pypi/") and one["hashes"] for one in said["components"])
    assert capsys.readouterr().out == f"build/sbom.json: {len(entries(CUDA))} packages\n"


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ("", 2, "The vulnerability service cannot be reached from here, so no package was checked."),
        ([{"name": "a", "skip_reason": "Dependency not found"}], 2, "The vulnerability service cannot be reached"),
        ([{"name": "a", "version": "1", "vulns": []}], 0, "1 packages, no known vulnerability"),
        ([{"name": "a", "version": "1", "vulns": [{"id": "CVE-1"}]}], 1, "a 1: CVE-1"),
        ([{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "?"}], 0, "does not know them: b"),
    ],
)  # fmt: skip
def test_an_audit_says_what_it_found_or_that_it_could_not_look(
    answer: Any, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = json.dumps({"dependencies": answer}) if answer else ""
    monkeypatch.setattr(
        supply_chain.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, stdout=output, stderr="")
    )
    assert supply_chain.audit() == code
    shown = capsys.readouterr()
    assert said in shown.out + shown.err


# The wheel


@pytest.mark.whole
def test_two_builds_of_the_wheel_are_identical(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    built = []
    for number, name in enumerate(("one", "two")):
        place = tmp_path / name
        shutil.copytree(REPOSITORY / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(REPOSITORY / file, place / file)
        for file in place.rglob("*"):
            os.utime(file, (10**9 + number, 10**9 + number))
        program = "import hatchling.build; print(hatchling.build.build_wheel('out'))"
        (place / "out").mkdir()
        subprocess.run([sys.executable, "-c", program], cwd=place, check=True, capture_output=True)
        (wheel,) = (place / "out").iterdir()
        built.append((wheel.name, wheel.read_bytes()))
    assert built[0] == built[1]
    source = REPOSITORY / "src"
    files = {str(file.relative_to(source)) for file in source.rglob("*") if file.is_file() and file.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as packed:
        assert files <= set(packed.namelist()), "templates, style sheets and recipes are in the wheel"
