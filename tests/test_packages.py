"""Models as Python packages: exported and installed, opened by name after folders, and never imported."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import nlu_toys
from unicloze.errors import UniclozeError, UsageError
from unicloze.files import MANIFEST, RECIPE
from unicloze.interop.card import PLACES, verdict_of, without_places
from unicloze.interop.export import package_format
from unicloze.interop.read import GROUP, installed_models, open_model, packaged_model, write_model
from unicloze.recipes import load_recipe
from unicloze.training.checkpoint import load_checkpoint
from unicloze.verbs import export, fill, report, score

SHIPPED = Path(__file__).parents[1] / "models" / "unicloze-small-en"


def packaged(tmp_path: Path, name: str = "my-model") -> Path:
    write_model(nlu_toys.start(), tmp_path / "model")
    return export(tmp_path / "model", "package", out=tmp_path / name).out


def install(folder: Path, name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a model's module importable with its entry point, as `pip install` does; returns its metadata."""
    info = folder / "installed-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {module}\n")
    monkeypatch.syspath_prepend(str(folder))
    return info / "METADATA"


def test_a_packaged_model_opens_by_its_name_once_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code does not run, and a folder of that name comes first."""
    folder = packaged(tmp_path)
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["entry-points"] == {GROUP: {"my-model": "my_model"}}
    install(folder, "my-model", "my_model", monkeypatch)
    (folder / "my_model" / "__init__.py").write_text("raise RuntimeError('the code of a model package has run')\n")
    monkeypatch.chdir(tmp_path / "model")
    assert installed_models()["my-model"] == folder / "my_model"
    opened, ours = open_model("my-model"), nlu_toys.start()
    monkeypatch.chdir(tmp_path)
    assert open_model("my-model").path == Path("my-model/my_model"), "beside its own folder, as the card says"
    assert opened.path == folder / "my_model" and opened.recipe.name == "my-model" and "my_model" not in sys.modules
    assert opened.tokenizer.fingerprint == ours.tokenizer.fingerprint
    for name, weight in ours.model.state_dict().items():
        assert torch.equal(opened.model.state_dict()[name], weight.bfloat16().to(weight.dtype)), name
    filled = fill(model="my-model", text="the [MASK] of")
    assert filled.to_dict() == fill(model=opened, text="the [MASK] of").to_dict()


@pytest.mark.parametrize("value", ["os.path", "no_such_package", "empty", "../../etc", "small en"])
def test_an_entry_point_without_a_checkpoint_is_no_model(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    install(tmp_path, "bad", value, monkeypatch)
    assert "bad" not in installed_models()
    with pytest.raises(UniclozeError, match="there is no model at bad"):
        open_model("bad")


def test_a_package_keeps_the_verdict_of_its_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its folder, and installed, where only its description is left of the card."""
    folder = packaged(tmp_path)
    card = folder / "README.md"
    assert verdict_of(folder / "my_model") == ""
    card.write_text(card.read_text(encoding="utf-8") + "\nVerdict: 3.1 better than counting.\n", encoding="utf-8")
    assert verdict_of(folder / "my_model") == "3.1 better than counting."
    metadata = install(folder, "my-model", "my_model", monkeypatch)
    metadata.write_text(f"{metadata.read_text()}\n{card.read_text(encoding='utf-8')}", encoding="utf-8")
    card.unlink()
    assert verdict_of(folder / "my_model") == "3.1 better than counting." and verdict_of(tmp_path) == ""


def test_a_package_holds_bf16_weights_and_no_local_folder(tmp_path: Path) -> None:
    folder = packaged(tmp_path)
    stored = load_checkpoint(folder / "my_model").model
    assert {weight.dtype for weight in stored.values()} == {torch.bfloat16}
    texts = [path for path in folder.rglob("*") if path.suffix in {".md", ".toml", ".yaml", ".json", ".py"}]
    assert len(texts) >= 7
    for path in texts:
        assert str(tmp_path) not in path.read_text(encoding="utf-8"), path
    for project in (folder, SHIPPED):  # or a .gitignore would leave out the weights
        build = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
        assert build["ignore-vcs"] is True
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "# my-model\n" in card and "pip install ./my-model" in card and "`unicloze export RUN --to package`" in card


@pytest.mark.parametrize(("names", "message"), [
    (["My_Model", "1st", "a--b", "a b", "-a"], "lower-case letters, digits and single hyphens"),
    (["json", "numpy", "sys"], "is installed here, which this one would replace"),
])  # fmt: skip
def test_a_name_that_no_package_can_have_is_refused(tmp_path: Path, names: list[str], message: str) -> None:
    write_model(nlu_toys.start(), tmp_path / "model")
    for name in names:
        with pytest.raises(UsageError, match=message):
            export(tmp_path / "model", "package", out=tmp_path / name)
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("recipe", "tag", "verb"),
    [
        ("quickstart", "fill-mask", "fill"),
        ("gpt", "text-generation", "generate"),
        ("electra-base", "feature-extraction", "embed"),
        ("mpnet-base", "fill-mask", "fill"),
        ("prefix-masked-span-base", "text-generation", "generate"),
    ],
)
def test_a_card_shows_a_verb_that_the_model_can_do(recipe: str, tag: str, verb: str) -> None:
    loaded = dataclasses.replace(nlu_toys.start(), recipe=load_recipe(recipe))
    made = package_format(loaded, "mine")
    assert made.tag == tag and f"unicloze {verb} --model mine" in made.use


def test_a_package_of_electra_holds_its_discriminator(tmp_path: Path) -> None:
    loaded = nlu_toys.start("electra-small")
    made = package_format(loaded, "mine")
    made.write(tmp_path)
    assert made.check(tmp_path) == {"weights from those in bf16": 0.0}
    packed = open_model(tmp_path / "mine")
    assert (
        packed.recipe.objective.targets == ["rtd"]
        and packed.model.state_dict().keys() == loaded.model.state_dict().keys()
    )


def test_a_package_has_no_settings_of_merged_updates(tmp_path: Path) -> None:
    recipe = load_recipe("unilmv2-base", {"finetuning.lora_rank": 4, "finetuning.lora_alpha": 8.0})
    package_format(dataclasses.replace(nlu_toys.start(), recipe=recipe), "mine").write(tmp_path)
    kept = load_recipe(tmp_path / "mine" / RECIPE).finetuning
    assert (kept.lora_rank, kept.lora_alpha) == (None, None)


def test_no_setting_that_names_a_file_keeps_its_folder() -> None:
    recipe = load_recipe("quickstart")
    for section, key in PLACES:
        settings = getattr(recipe, section)
        value: Any = ["/home/me/x"] if isinstance(getattr(settings, key), list) else "/home/me/x"
        recipe = dataclasses.replace(recipe, **{section: dataclasses.replace(settings, **{key: value})})
    assert "/home/me" in str(recipe) and "/home/me" not in str(without_places(recipe))
    assert {("finetuning", "unlabelled"), ("distillation", "teacher"), ("data", "decontaminate")} <= {*PLACES}


def test_only_a_package_that_declares_its_model_opens_by_its_folder(tmp_path: Path) -> None:
    folder = packaged(tmp_path)
    module = next(path.parent for path in folder.glob(f"*/{MANIFEST}"))
    assert packaged_model(folder) == module
    project = folder / "pyproject.toml"
    for text in ("[project]", "not toml", f'[project.entry-points."{GROUP}"]\nmine = "../elsewhere"', "project = 1"):
        project.write_text(text, encoding="utf-8")
        assert packaged_model(folder) is None
    assert packaged_model(tmp_path) is None


def test_a_package_is_replaced_by_a_new_export_but_nothing_else_is(tmp_path: Path) -> None:
    folder = packaged(tmp_path)
    export(tmp_path / "model", "package", out=folder)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        export(tmp_path / "model", "package", out=folder)


@pytest.mark.parametrize("script", ["corpus", "evaluate", "package"])
def test_scripts_of_the_shipped_model_fit_this_package(script: str) -> None:
    file = SHIPPED.parents[0] / "training" / "unicloze-small-en" / f"{script}.py"
    spec = importlib.util.spec_from_file_location(f"small_en_{script}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert callable(module.main)


def test_the_shipped_model_is_an_intact_package_of_its_training_files() -> None:
    loaded = open_model(SHIPPED / "unicloze_small_en")
    training = SHIPPED.parents[0] / "training" / "unicloze-small-en"
    recipe = load_recipe(training / "recipe.yaml")
    assert loaded.step == recipe.training.steps and loaded.recipe.model == recipe.model
    evaluation = json.loads((training / "evaluation.json").read_text(encoding="utf-8"))
    assert evaluation["step"] == loaded.step and evaluation["blimp"]["accuracy"]["pseudo"] > 0.58
    card = (SHIPPED / "README.md").read_text(encoding="utf-8")
    for found in evaluation["text"].values():
        for name, perplexity in found["perplexity"].items():
            assert f"{perplexity:.3g} ({found['counts'][name]['trigram']:.3g})" in card
        assert found["perplexity"]["causal"] > found["counts"]["causal"]["trigram"], "the card says so"
    assert evaluation["words"]["counts_top_5"] > evaluation["words"]["top_5"], "the card says so"
    assert (
        fill(model=loaded, text="She opened the [MASK] and looked out.").filled == "She opened the door and looked out."
    )
    good, bad = (score(loaded, text=text)[0] for text in ("They were tired.", "They was tired."))
    assert good.pseudo_log_likelihood is not None and bad.pseudo_log_likelihood is not None
    assert good.pseudo_log_likelihood > bad.pseudo_log_likelihood + 3


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
