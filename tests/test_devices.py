"""Device and precision of trained models, and errors about missing devices."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nlu_toys
from unicloze import cli, verbs
from unicloze.decoding import generate as generating
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.prompting import prompted
from unicloze.interop.read import open_model, write_model
from unicloze.settings import TrainingSettings
from unicloze.training import precision
from unicloze.training.loading import LoadedModel, build_model

TEXTS = ["the old cat sees the dog", "anna leaves berlin and a bird", "carl plays"]


@dataclasses.dataclass(frozen=True)
class Places:
    """Folders of models, and files for them."""

    pretrained: Path
    classifier: Path
    records: Path
    lambada: Path
    prompt: Path


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("devices")
    start = nlu_toys.start("quickstart")
    recipe = nlu_toys.recipe_for(start, "classification", task__labels=["no", "yes"])
    model = build_model(recipe, start.tokenizer.vocabulary.size).for_use().eval()
    names = "pretrained", "classifier", "records.jsonl", "lambada.jsonl", "p.yaml"
    places = Places(*(folder / name for name in names))
    write_model(start, places.pretrained)
    write_model(LoadedModel(model, start.tokenizer, recipe, Path("none"), 0), places.classifier)
    nlu_toys.write(places.records, [{"text": text} for text in TEXTS])
    nlu_toys.write(places.lambada, [{"text": text} for text in TEXTS])
    places.prompt.write_text('template: "{text} "\ngenerate: {max_length: 4}\n')
    return places


@pytest.fixture
def loaded(places: Places) -> LoadedModel:
    return verbs.load_model(places.pretrained)


WRITING = {"decoding.max_length": 5, "task.fields": {"source": "text"}}
CALLS: Mapping[str, Callable[..., Any]] = {
    "fill": lambda model, at, **where: verbs.fill(model, "the old [MASK] sees [MASK]", **where),
    "score": lambda model, at, **where: verbs.score(model, TEXTS[0], **where),
    "embed": lambda model, at, **where: verbs.embed(model, TEXTS, **where),
    "predict": lambda model, at, **where: verbs.predict(model, at.records, quiet=True, **where),
    "generate": lambda model, at, **where: verbs.generate(
        model, file=at.records, quiet=True, overrides=WRITING, **where
    ),
    "stream": lambda model, at, **where: "".join(verbs.stream(model, TEXTS[1], **where)),
    "lambada": lambda model, at, **where: verbs.evaluate_lambada(model, at.lambada, quiet=True, **where),
    "prompt": lambda model, at, **where: verbs.evaluate_prompt(model, at.prompt, at.records, quiet=True, **where),
}
"""Verbs that use a trained model."""
READS = "embed", "predict", "lambada"
"""Those with a precision option that affects their numbers."""


def model_for(name: str, places: Places) -> Path:
    return places.classifier if name == "predict" else places.pretrained


def leaves(result: Any) -> list[Any]:
    """All numbers and texts of a result, in their order."""
    if isinstance(result, np.ndarray):
        result = result.tolist()
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = dataclasses.asdict(result)
    if isinstance(result, Mapping):
        result = list(result.values())
    return [leaf for each in result for leaf in leaves(each)] if isinstance(result, list | tuple) else [result]


def numbers(result: Any) -> list[float]:
    return [float(leaf) for leaf in leaves(result) if isinstance(leaf, int | float)]


def cuda_devices(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


# Names of devices


@pytest.mark.parametrize(
    ("name", "count", "device"),
    [("auto", 0, "cpu"), ("auto", 2, "cuda"), ("cpu", 2, "cpu"), ("cuda", 1, "cuda"), ("cuda:1", 2, "cuda:1")],
)
def test_a_name_names_a_device(name: str, count: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_devices(count, monkeypatch)
    for found in (precision.named_device(name), precision.choose_device(TrainingSettings(device=name))):
        assert found == torch.device(device)


def test_an_unknown_device_is_refused() -> None:
    for name in ("gpu", "", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cuda:01", "cpu:0", "mps:0", "cuda:٣"):
        with pytest.raises(UsageError, match=f"^device is '{name}': give auto, cpu, cuda, cuda:N, xpu, xpu:N or mps$"):
            precision.named_device(name)


@pytest.mark.parametrize(("name", "count", "there"), [
    ("cuda", 0, "auto, cpu"),
    ("cuda:2", 2, "auto, cpu, cuda:0, cuda:1"),
    ("cuda:99999999999999999999", 1, "auto, cpu, cuda:0"),
])  # fmt: skip
def test_an_absent_device_is_refused(name: str, count: int, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_devices(count, monkeypatch)
    for other in (torch.xpu, torch.backends.mps):
        monkeypatch.setattr(other, "is_available", lambda: False)
    says = f"device is {name}, but torch finds no such device here: give one of {there}$"
    with pytest.raises(UsageError, match=f"^{says}"):
        precision.named_device(name)
    with pytest.raises(UsageError, match=rf"^training\.{says}"):
        precision.choose_device(TrainingSettings(device=name))


@pytest.mark.parametrize(("name", "device"), [("xpu", "xpu"), ("xpu:1", "xpu:1"), ("mps", "mps"), ("auto", "cpu")])
def test_other_accelerators_are_used_if_named(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_devices(0, monkeypatch)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"^device is mps, but torch finds no such device here: give one of auto"):
        precision.named_device("mps")
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert precision.named_device(name) == torch.device(device)
    with pytest.raises(UsageError, match=r"give one of auto, cpu, xpu:0, xpu:1, mps$"):
        precision.named_device("cuda")
    if name != "auto":
        assert precision.choose_precision(TrainingSettings(), torch.device(device)) == "fp32"


# Verbs


@pytest.mark.parametrize("name", CALLS)
def test_a_verb_refuses_a_device_before_it_reads_the_model(name: str, places: Places) -> None:
    with pytest.raises(UsageError, match="device is 'meta'"):
        CALLS[name](places.records.parent / "nowhere", places, device="meta")


@pytest.mark.parametrize("name", CALLS)
def test_a_verb_computes_on_the_cpu_by_default_and_on_request(name: str, places: Places) -> None:
    model = verbs.load_model(model_for(name, places))
    said = leaves(CALLS[name](model_for(name, places), places, device="cpu"))
    assert said == leaves(CALLS[name](model, places)) == leaves(CALLS[name](model, places, device="cpu"))


def test_a_model_named_by_its_place_is_put_on_the_chosen_device(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "named_device", lambda name: {"auto": torch.device("meta")}[name])
    opened = open_model(places.pretrained, "auto")
    assert {parameter.device.type for parameter in opened.model.parameters()} == {"meta"}
    assert opened.compute.device == torch.device("meta")
    assert verbs.load_model(places.pretrained, "auto").compute.device == torch.device("meta")


def test_a_loaded_model_stays_where_it_is(places: Places, loaded: LoadedModel) -> None:
    elsewhere = dataclasses.replace(loaded, model=verbs.load_model(places.pretrained).model.to("meta"))
    assert open_model(elsewhere) is open_model(elsewhere, "auto") is elsewhere
    said = r"is on meta, not on cpu: load it there with load_model\(..., device='cpu'"
    with pytest.raises(UsageError, match=said):
        verbs.embed(elsewhere, TEXTS, device="cpu")
    with pytest.raises(UsageError, match=said):
        verbs.export(elsewhere, "unicloze", "x")
    assert elsewhere.compute.device == torch.device("meta")
    assert open_model(loaded, "cpu") is loaded


# Precision


@pytest.mark.parametrize("name", READS)
def test_bf16_is_near_fp32_and_not_the_same(name: str, places: Places) -> None:
    model = verbs.load_model(model_for(name, places))
    full, half = (numbers(CALLS[name](model, places, precision=each)) for each in ("fp32", "bf16"))
    assert full == numbers(CALLS[name](model, places)), "fp32 by default"
    assert full != half
    np.testing.assert_allclose(half, full, rtol=0.05, atol=0.05)
    assert numbers(CALLS[name](model, places)) == full, "the given model is unchanged"


def test_a_precision_is_that_of_generating_too(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    half = open_model(loaded, precision="bf16")
    assert half.model is loaded.model
    assert half.precision == half.recipe.decoding.precision == "bf16"
    assert loaded.precision == loaded.recipe.decoding.precision == "fp32"
    monkeypatch.setattr(precision, "choose_precision", lambda settings, device: f"{settings.precision} on {device}")
    assert open_model(loaded, precision="auto").precision == "auto on cpu"


@pytest.mark.parametrize(("own", "written"), [("", "bf16"), ("precision: fp32, ", "fp32")])
def test_a_prompt_generates_in_the_precision_of_its_file_or_the_requested_one(
    own: str, written: str, places: Places, loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spy(model: LoadedModel, sources: list[str], settings: Any, **rest: Any) -> Any:
        seen.append(settings.precision)
        return original(model, sources, settings, **rest)

    original = generating.generate
    monkeypatch.setattr(generating, "generate", spy)
    (tmp_path / "p.yaml").write_text(f'template: "{{text}} "\ngenerate: {{{own}max_length: 4}}\n')
    prompted(dataclasses.replace(loaded, precision="bf16"), tmp_path / "p.yaml", places.records, progress=False)
    assert seen == [written]


def test_an_unknown_precision_is_refused(places: Places, loaded: LoadedModel) -> None:
    for model in (loaded, places.pretrained):
        with pytest.raises(UsageError, match="precision is 'fp16': give one of auto, bf16, fp32"):
            verbs.embed(model, TEXTS, precision="fp16")  # type: ignore[arg-type]


def test_predict_repeats_fine_tunings_predictions_of_the_dev_file(loaded: LoadedModel, tmp_path: Path) -> None:
    """Evaluation during training uses the training's device and precision."""
    records = [{"text": text, "label": label} for text, label in zip(TEXTS * 2, ["yes", "no"] * 3, strict=True)]
    file = nlu_toys.write(tmp_path / "train.jsonl", records)
    overrides = {**nlu_toys.QUICK, "finetuning.epochs": 2, "training.precision": "bf16"}
    verbs.finetune("classification", loaded, file, file, tmp_path / "run", quiet=True, overrides=overrides)
    said = [json.loads(line) for line in (tmp_path / "run" / "dev_predictions.jsonl").read_text().splitlines()]
    half, full = (
        verbs.predict(tmp_path / "run", file, device="cpu", precision=each, quiet=True) for each in ("bf16", "fp32")
    )
    assert said == [{**one, "reference": record["label"]} for one, record in zip(half, records, strict=True)]
    assert half != full


# GPU


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_a_gpu_gives_the_results_of_the_cpu(name: str, places: Places) -> None:
    here = leaves(CALLS[name](model_for(name, places), places, device="cpu"))
    moved = verbs.load_model(model_for(name, places), device="cuda:0")
    for there in (CALLS[name](model_for(name, places), places, device="cuda"), CALLS[name](moved, places)):
        for one, other in zip(leaves(there), here, strict=True):
            close = pytest.approx(other, rel=1e-3, abs=1e-3, nan_ok=True) if isinstance(other, float) else other
            assert one == close


@pytest.mark.gpu
@pytest.mark.parametrize("name", READS)
def test_a_gpu_in_bf16_is_near_the_cpu(name: str, places: Places) -> None:
    here = CALLS[name](model_for(name, places), places, device="cpu")
    there = CALLS[name](model_for(name, places), places, device="cuda", precision="bf16")
    np.testing.assert_allclose(numbers(there), numbers(here), rtol=0.05, atol=0.05)


# The remedies named in errors about records


def test_predict_reads_the_given_fields(places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = nlu_toys.write(tmp_path / "other.txt", [{"sentence": text} for text in TEXTS])
    with pytest.raises(UsageError, match=r"set it with --task\.format 'NAME', where NAME is one of jsonl"):
        verbs.predict(places.classifier, file, quiet=True, overrides={"task.format": "nonsense"})
    with pytest.raises(UniclozeError, match=r"name it with --task\.fields '{text: NAME}'"):
        verbs.predict(places.classifier, file, quiet=True, overrides={"task.format": "jsonl"})
    words = ["predict", "--model", str(places.classifier), "--file", str(file), "--quiet", "--device", "cpu"]
    assert cli.main([*words, "--task.format", "jsonl", "--task.fields", "{text: sentence}"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said == verbs.predict(places.classifier, places.records, device="cpu", quiet=True)


def test_predict_changes_nothing_else(places: Places) -> None:
    with pytest.raises(UsageError, match=r"task\.labels cannot be changed here: only task\.fields, task\.format can"):
        verbs.predict(places.classifier, places.records, overrides={"task.labels": ["a", "b"]})


def test_a_prompt_file_defines_the_fields(places: Places, loaded: LoadedModel, tmp_path: Path) -> None:
    file, prompt = nlu_toys.write(tmp_path / "a.jsonl", [{"sentence": text} for text in TEXTS]), tmp_path / "p.yaml"
    prompt.write_text(places.prompt.read_text())
    with pytest.raises(UniclozeError, match=r"name it with `fields: {text: NAME}` in the prompt file"):
        verbs.evaluate_prompt(loaded, prompt, file, quiet=True)
    prompt.write_text(places.prompt.read_text() + "fields: {text: sentence}\n")
    assert verbs.evaluate_prompt(loaded, prompt, file, quiet=True).records == 3
    with pytest.raises(UsageError, match="set it with `format: NAME` in the prompt file, where NAME is one of jsonl"):
        verbs.evaluate_prompt(loaded, prompt, file.rename(tmp_path / "a.rec"), quiet=True)


def test_lambada_has_fields_of_its_own(loaded: LoadedModel, tmp_path: Path) -> None:
    file = nlu_toys.write(tmp_path / "a.jsonl", [{"sentence": text} for text in TEXTS])
    with pytest.raises(UniclozeError, match=r"the field 'text' is missing \(it has sentence\); rename the field"):
        verbs.evaluate_lambada(loaded, file, quiet=True)
    with pytest.raises(UsageError, match="'rec' is not a known record format: give a file of one of jsonl"):
        verbs.evaluate_lambada(loaded, file.rename(tmp_path / "a.rec"), quiet=True)


def test_bf16_on_a_cpu_without_instructions_for_it_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = TrainingSettings(precision="bf16")
    for there in (True, False):
        abilities = {"amx_bf16": False, "avx512_bf16": there}
        monkeypatch.setattr(precision, "cpu_abilities", lambda abilities=abilities: abilities)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert precision.choose_precision(asked, torch.device("cpu")) == "bf16"
        assert [str(each.message).count("leave the precision at auto") for each in caught] == [1] * (not there)
