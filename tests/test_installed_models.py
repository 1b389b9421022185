"""Models installed as packages: found by name, never imported, and after folders of that name."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

import nlu_toys
from unicloze.errors import UniclozeError
from unicloze.interop.read import installed_models, open_model, write_model
from unicloze.verbs import report

CODE = "raise RuntimeError('the code of a model package has run')\n"


def install(site: Path, name: str, package: str, value: str = "") -> Path:
    """An installed package with code that must not run; returns its folder."""
    info = site / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[unicloze.models]\n{name} = {value or package}\n")
    (site / package).mkdir()
    return site / package


def of_these(group: str) -> list[EntryPoint]:
    """Entry points without that of a model which this environment may have."""
    return [point for point in entry_points(group=group) if point.name != "unicloze-small-en"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("unicloze.interop.read.entry_points", of_these)
    return tmp_path / "site"


def test_an_installed_model_is_opened_by_its_name_and_its_code_does_not_run(site: Path) -> None:
    folder = install(site, "small-en", "small_en")
    ours = nlu_toys.start()
    folder.rmdir()
    write_model(ours, folder)
    (folder / "__init__.py").write_text(CODE)
    assert installed_models() == {"small-en": folder}
    opened = open_model("small-en")
    assert opened.path == folder and "small_en" not in sys.modules
    assert opened.tokenizer.fingerprint == ours.tokenizer.fingerprint


def test_a_folder_of_that_name_comes_first(site: Path, tmp_path: Path) -> None:
    install(site, "small-en", "small_en")
    write_model(nlu_toys.start(), tmp_path / "small-en")
    assert open_model("small-en").path == Path("small-en")


@pytest.mark.parametrize("value", ["os.path", "no_such_package", "empty", "../../etc", "small en"])
def test_an_entry_point_without_a_checkpoint_is_no_model(site: Path, value: str) -> None:
    install(site, "bad", "empty", value)
    assert installed_models() == {}
    with pytest.raises(UniclozeError, match="there is no model at bad"):
        open_model("bad")


@pytest.mark.parametrize(
    ("wrong", "right"), [("runs/quikstart", "runs/quickstart"), ("unicloze-small", "unicloze-small-en")]
)
def test_a_misspelt_model_is_suggested(wrong: str, right: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "quickstart").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("unicloze.interop.read.installed_models", lambda: {"unicloze-small-en": tmp_path})
    for opens in (open_model, report) if "/" in wrong else (open_model,):
        with pytest.raises(UniclozeError, match=rf"; did you mean '{right}'\?"):
            opens(wrong)
