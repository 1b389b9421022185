"""`training.parallel: shard`: two processes with a share of the model each compute what one computes, up to rounding."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import slow_except
from corpora import write_corpus
from crew import Crew, Job
from unicloze.errors import UsageError
from unicloze.recipes import load_recipe, save_recipe, toy_overrides
from unicloze.training import memory as forecast
from unicloze.training.checkpoint import checkpoint_name, list_checkpoints, load_checkpoint, load_newest
from unicloze.training.ledger import read_ledger

SMALL: dict[str, Any] = {
    **toy_overrides(),
    "training.device": "cpu",
    "training.precision": "fp32",
    "training.optimizer": "adamw",
    "training.steps": 2,
    "training.batch_size": 4,
    "training.micro_batch_size": 1,
    "training.evaluate_windows": 3,
    "training.evaluate_every": 1,
    "training.save_every": 1,
    "training.keep_checkpoints": 9,
    "training.clip_norm": 0.5,
    "training.epsilon": 1e-3,  # with a smaller one, Adam's first update is the sign of a gradient that is only rounding
    "training.phases": [],
    "model.dropout": 0.1,
    "model.attention_dropout": 0.1,
    "tokenizer.vocab_size": 300,
}
MODELS: dict[str, dict[str, Any]] = {
    "unilmv2-base": {"training.checkpoint_activations": True},
    "electra-base": {},
    "albert-base": {"model.embedding_size": 16},
    "bart-base": {},
}


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharding")
    write_corpus(folder / "corpus")
    return folder


def job(place: Path, name: str, out: str, **settings: Any) -> Job:
    recipe = load_recipe(name, {**SMALL, "data.corpus": [str(place / "corpus")], **MODELS.get(name, {}), **settings})
    file = place / f"{out}.yaml"
    save_recipe(recipe, file)
    return {"recipe": str(file), "out": str(place / out), "folder": str(place)}


def trained(crew: Crew, place: Path, name: str, out: str, **settings: Any) -> Path:
    answers = crew.run([job(place, name, out, **settings)] * 2)
    assert all(answer is not None and "error" not in answer for answer in answers), answers
    return place / out


def far(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Relative distance of tensors of the same names: the largest, and that of all of them together."""
    assert one.keys() == other.keys()
    floats = [name for name in one if one[name].is_floating_point()]
    distances = torch.stack([(one[name] - other[name]).norm() for name in floats])
    sizes = torch.stack([other[name].norm() for name in floats])
    return float((distances / sizes.clamp(min=1e-12)).max()), float(distances.norm() / sizes.norm())


def moments(checkpoint: Any) -> dict[str, torch.Tensor]:
    return {
        f"{number}.{index}.{name}": value
        for number, state in enumerate(checkpoint.optimizers)
        for index, values in state["state"].items()
        for name, value in values.items()
    }


@pytest.mark.whole
@pytest.mark.parametrize("name", slow_except(["unilmv2-base", "bart-base"], MODELS))
def test_a_step_of_a_sharded_model_is_that_of_a_whole_one(name: str, crew: Crew, place: Path) -> None:
    found = {}
    for parallel in ("replicate", "shard"):
        settings = {"training.parallel": parallel, "training.steps": 1}
        out = trained(crew, place, name, f"{name}-{parallel}", **settings)
        found[parallel] = load_newest(out / "checkpoints")
    whole, shares = found["replicate"], found["shard"]
    assert whole is not None and shares is not None
    files = [{file.name: file.stat().st_size for file in each.path.glob("*.safetensors")} for each in (whole, shares)]
    assert files[0] == files[1]
    for one, other, most in ((shares.model, whole.model, 1e-5), (moments(shares), moments(whole), 1e-4)):
        each, together = far(one, other)
        assert together < 1e-6
        assert each < most, "biases start at zero, and some gradients are little more than rounding"
    ledgers = [list(read_ledger(place / f"{name}-{each}" / "ledger.jsonl")) for each in ("replicate", "shard")]
    for event in ("step", "evaluate"):
        one, other = ([line for line in ledger if line["event"] == event] for ledger in ledgers)
        for mine, theirs in zip(one, other, strict=True):
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert sorted(line["event"] for line in ledgers[0]) == sorted(line["event"] for line in ledgers[1])


@pytest.mark.whole
def test_a_run_continues_sharded_and_whole(crew: Crew, place: Path) -> None:
    settings = {"training.schedule": "constant", "training.warmup_steps": 0}
    straight = trained(crew, place, "unilmv2-base", "straight", **settings, **{"training.steps": 3})
    for step, parallel in enumerate(("shard", "replicate", "shard"), start=1):
        changing = {"training.parallel": parallel, "training.steps": step}
        mixed = trained(crew, place, "unilmv2-base", "mixed", **settings, **changing)
    one, other = (load_newest(out / "checkpoints") for out in (mixed, straight))
    assert one is not None and other is not None and one.state["step"] == other.state["step"] == 3
    assert far(one.model, other.model)[1] < 1e-5 and far(moments(one), moments(other))[1] < 1e-4


@pytest.mark.whole
def test_checkpoints_of_a_sharded_model_are_written_while_it_trains(crew: Crew, place: Path) -> None:
    """They hold the step they are of. If the first process is killed meanwhile, a restart ends with the same bits."""
    settings = {"training.parallel": "shard", "training.steps": 4, "training.evaluate_every": 0}
    settings |= {"training.log_every": 1, "training.save_every": 2}
    one = job(place, "unilmv2-base", "slow", **settings, **{"training.copy_to": (place / "copies").as_uri()})
    crew.run([{**one, "wrong": "slow", "at": 3}, one])
    events = [(event["event"], event.get("step")) for event in read_ledger(place / "slow" / "ledger.jsonl")]
    assert events.index(("step", 3)) < events.index(("save", 2)) < events.index(("save", 4)) < events.index(("end", 4))
    for checkpoint in list_checkpoints(place / "slow" / "checkpoints"):
        copied = place / "copies" / checkpoint.name
        assert {file.name: file.read_bytes() for file in copied.iterdir()} == {
            file.name: file.read_bytes() for file in checkpoint.iterdir()
        }
    one = job(place, "unilmv2-base", "killed-writing", **settings)
    assert crew.run([{**one, "wrong": "die"}, one], ends_all=True) == [None, None]
    assert {path.name for path in (place / "killed-writing" / "checkpoints").iterdir()} == {".building-step-00000002"}
    trained(crew, place, "unilmv2-base", "killed-writing", **settings)
    for step in (2, 4):
        late, resumed = (
            load_checkpoint(place / name / "checkpoints" / checkpoint_name(step)) for name in ("slow", "killed-writing")
        )
        for before, after in ((late.model, resumed.model), (moments(late), moments(resumed))):
            assert all(torch.equal(value, after[name]) for name, value in before.items())
    one = job(place, "unilmv2-base", "full", **settings)
    answers = crew.run([{**one, "wrong": "full"}, one])
    assert all("could not write the checkpoint" in each["error"] for each in answers if each), answers
    assert "the disk is full" in answers[0]["error"]  # type: ignore[index]


@pytest.mark.whole
def test_processes_with_a_share_stop_together(crew: Crew, place: Path) -> None:
    """A signal to one, a loss of one that is not finite, or the death of one end the step on all."""
    settings = {"training.parallel": "shard", "training.steps": 4, "training.evaluate_every": 0}
    asked = job(place, "unilmv2-base", "asked", **settings)
    answers = crew.run([asked, {**asked, "wrong": "signal", "at": 1}])
    assert [(each["step"], each["stopped_by"]) for each in answers] == [(2, signal.SIGTERM)] * 2
    assert list_checkpoints(place / "asked" / "checkpoints")[-1].name == "step-00000002"
    spoilt = job(place, "unilmv2-base", "spoilt", **settings)
    answers = crew.run([spoilt, {**spoilt, "wrong": "nan", "at": 1}])
    assert all(
        "before the update of step 2: the loss of ae is nan in micro-batch 2" in each["error"]
        for each in answers
        if each
    )
    assert list_checkpoints(place / "spoilt" / "checkpoints")[-1].name == "step-00000001"
    killed = job(place, "unilmv2-base", "killed", **settings)
    survivor, gone = crew.run([killed, {**killed, "wrong": "kill", "at": 1}])
    assert gone is None and survivor is not None and "another process of the run ended" in survivor["error"]


@pytest.mark.whole
@pytest.mark.parametrize("parallel", slow_except(["shard"], ["replicate", "shard"]))
def test_processes_that_read_late_compute_and_stop_alike(parallel: str, crew: Crew, place: Path) -> None:
    """As on GPUs: one reading a step. Weights that an update made not finite are not saved."""
    settings = {"training.parallel": parallel, "training.steps": 3, "training.evaluate_every": 0}
    settings |= {"training.save_every": 0}
    found = []
    for late in (False, True):
        one = {**job(place, "unilmv2-base", f"{parallel}-late-{late}", **settings), "late": late}
        answers = crew.run([one, one])
        assert all(each is not None and each.get("step") == 3 for each in answers), answers
        found.append(load_newest(place / f"{parallel}-late-{late}" / "checkpoints"))
    assert found[0] is not None and found[1] is not None
    assert all(torch.equal(weight, found[1].model[name]) for name, weight in found[0].model.items())
    one = {**job(place, "unilmv2-base", f"{parallel}-nan", **settings), "late": True}
    answers = crew.run([one, {**one, "wrong": "nan", "at": 1}])
    assert all("step 2: the loss of ae is nan in micro-batch 2" in each["error"] for each in answers if each), answers
    one = {**job(place, "unilmv2-base", f"{parallel}-spoilt", **settings), "late": True, "wrong": "update", "at": 1}
    answers = crew.run([one, one])
    assert all("step 3: the loss of ae is nan" in each["error"] for each in answers if each), answers
    assert not list_checkpoints(place / f"{parallel}-spoilt" / "checkpoints")
    one = {**job(place, "unilmv2-base", f"{parallel}-asked", **settings), "late": True}
    answers = crew.run([one, {**one, "wrong": "signal", "at": 1}])
    assert {(each["step"], each["stopped_by"]) for each in answers if each} == {
        (2 if parallel == "shard" else 1, signal.SIGTERM)
    }


@pytest.mark.whole
def test_a_step_that_cannot_be_divided_equally_is_refused(crew: Crew, place: Path) -> None:
    answers = crew.run(
        [job(place, "unilmv2-base", "odd", **{"training.parallel": "shard", "training.batch_size": 3})] * 2
    )
    refused = "a step has 3 micro-batches, which cannot be divided equally among 2 processes"
    assert all(refused in each["error"] for each in answers if each)


def test_auto_shards_only_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("unilmv2-base", {"training.device": "cpu"})
    for memory, processes, found in ((2**40, 2, False), (2**20, 2, True), (2**20, 1, False)):
        monkeypatch.setattr(forecast, "memory_of", lambda _, memory=memory: memory)
        assert forecast.shards(recipe, processes) is found
    monkeypatch.setattr(forecast, "memory_of", lambda _: 2**20)
    for name, changes in (("quickstart", {}), ("unilmv2-base", {"training.parallel": "replicate"}), ("awd-lstm", {})):
        assert not forecast.shards(load_recipe(name, {"training.device": "cpu", **changes}), 2)
    assert forecast.shards(load_recipe("unilmv2-base", {"training.device": "cpu", "training.parallel": "shard"}), 2)


def test_what_fits_only_in_shares_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("unilmv2-base", {"training.micro_batch_size": 1, "training.batch_size": 4})
    monkeypatch.setattr(forecast, "memory_of", lambda _: 1200 * 2**20)
    with pytest.raises(UsageError, match="weights and would need"):
        forecast.refuse_what_cannot_fit(recipe, torch.device("cpu"), 30000)
    forecast.refuse_what_cannot_fit(recipe, torch.device("cpu"), 30000, 4)
