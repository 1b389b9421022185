"""Two builds of the wheel at different times and places are identical byte for byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.whole
def test_two_builds_of_the_wheel_are_identical(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    built = []
    for number, name in enumerate(("one", "two")):
        place = tmp_path / name
        shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / file, place / file)
        for file in place.rglob("*"):
            os.utime(file, (10**9 + number, 10**9 + number))
        program = "import hatchling.build; print(hatchling.build.build_wheel('out'))"
        (place / "out").mkdir()
        subprocess.run([sys.executable, "-c", program], cwd=place, check=True, capture_output=True)
        (wheel,) = (place / "out").iterdir()
        built.append((wheel.name, wheel.read_bytes()))
    assert built[0] == built[1]
    source = ROOT / "src"
    files = {str(file.relative_to(source)) for file in source.rglob("*") if file.is_file() and file.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as packed:
        assert files <= set(packed.namelist()), "templates, style sheets and recipes are in the wheel"
