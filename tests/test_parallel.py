"""Several processes compute the same as one, bit for bit, stop together, and report why."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch._C._distributed_c10d import HashStore

import crew as crew_module
from conftest import REPOSITORY, slow_except
from corpora import write_corpus
from crew import Crew, Job
from nlu_toys import write
from unicloze import cli
from unicloze.errors import UniclozeError
from unicloze.recipes import load_recipe, save_recipe, toy_overrides
from unicloze.text.prepare import prepare_data
from unicloze.training.ledger import read_ledger
from unicloze.training.parallel import Group

pytestmark = pytest.mark.whole

STEPS = 4
SMALL: dict[str, Any] = {
    **toy_overrides(), "training.device": "cpu", "training.precision": "fp32", "training.steps": STEPS,
    "training.batch_size": 6, "training.micro_batch_size": 1, "training.evaluate_windows": 5,
    "training.evaluate_every": 2, "training.save_every": 1, "model.dropout": 0.1, "model.attention_dropout": 0.1,
    "tokenizer.vocab_size": 300,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "unilmv2-base": {},
    "electra-base": {},
    "xlnet-base": {"training.leaves": 4},
    "elmo": {},
    "quickstart": {
        "training.optimizer": "muon",
        "training.leaves": 2,
        "training.phases": [],
        "objective.mixture": [{"label": "low", "share": 3}, {"label": "high", "mask_rate": 0.9}],
    },
}
CLASSES = [
    {"text": f"the {one} cat sees the {other} dog .", "label": one} for one in ("old", "red") for other in "abcdefgh"
]
TASK: dict[str, Any] = {
    "training.device": "cpu", "training.precision": "fp32", "training.batch_size": 8,
    "training.micro_batch_size": 2, "training.learning_rate": 0.01, "finetuning.epochs": 2, "model.dropout": 0.1,
}  # fmt: skip


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, prepared for each model, and records."""
    folder = tmp_path_factory.mktemp("parallel")
    write_corpus(folder / "corpus")
    write(folder / "classes.jsonl", CLASSES)
    return folder


def prepared(place: Path, recipe: str) -> str:
    settings = load_recipe(recipe, {**SMALL, "data.corpus": [str(place / "corpus")]})
    folder = place / "prepared" / f"{settings.tokenizer.kind}-{settings.tokenizer.extra_tokens}"
    if not folder.exists():
        prepare_data(settings.data, settings.tokenizer, folder, progress=False)
    return str(folder)


def job(place: Path, out: str, recipe: str = "unilmv2-base", **changes: Any) -> Job:
    overrides = {**SMALL, **MODELS[recipe], "data.prepared": prepared(place, recipe), **changes}
    return {"recipe": recipe, "overrides": overrides, "out": str(place / out)}


def task(place: Path, out: str, **more: Any) -> Job:
    records, model = str(place / "classes.jsonl"), str(place / "unilmv2-base-1")
    overrides = {**TASK, **more}
    return {
        "task": "classification", "overrides": overrides, "model": model, "records": records,
        "out": str(place / out),
    }  # fmt: skip


def sha(out: Path, folder: str = "checkpoints") -> dict[str, str]:
    newest = sorted((out / folder).glob("step-*"))[-1]
    files = ("model.safetensors", "optimizer.safetensors", "memories.safetensors")
    there = [newest / name for name in files if (newest / name).is_file()]
    return {"checkpoint": newest.name, **{file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in there}}


def events(out: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in read_ledger(out / "ledger.jsonl") if event["event"] == name]


WITHOUT_TIMES = {"time", "seconds", "text_tokens_per_second"}


def measured(out: Path) -> list[dict[str, Any]]:
    """Losses, norms and evaluations of a run, from its ledger."""
    both = [event for event in read_ledger(out / "ledger.jsonl") if event["event"] in ("step", "evaluate")]
    return [{key: value for key, value in event.items() if key not in WITHOUT_TIMES} for event in both]


def done(crew: Crew, jobs: list[Job | None]) -> list[Job]:
    answers = crew.run(jobs)
    finished = [answer for answer in answers if answer is not None and "error" not in answer]
    assert len(finished) == len(jobs), answers
    return finished


def check_evaluations(answers: list[Job]) -> None:
    """The processes shared the forward passes of each of two evaluations."""
    passes = [answer["evaluated"] for answer in answers]
    whole = sum(passes) // 2
    assert whole >= 3 and sum(passes) == 2 * whole and max(passes) - min(passes) <= 4


@pytest.fixture(scope="module")
def alone(crew: Crew, place: Path) -> Mapping[str, Path]:
    """Each model trained by one process, when it is asked for; the first always."""

    class Alone(dict[str, Path]):
        def __missing__(self, recipe: str) -> Path:
            done(crew, [job(place, f"{recipe}-1", recipe)])
            self[recipe] = place / f"{recipe}-1"
            return self[recipe]

    trained = Alone()
    assert trained["unilmv2-base"].is_dir()
    return trained


@pytest.mark.parametrize(
    ("recipe", "size"),
    slow_except(
        [("unilmv2-base", 2), ("xlnet-base", 2)],
        [(recipe, size) for recipe in MODELS for size in (2, 3, 4) if recipe != "elmo" or size == 3],
    ),
)
def test_any_number_of_processes_gives_the_same_bits(
    recipe: str, size: int, crew: Crew, place: Path, alone: Mapping[str, Path]
) -> None:
    out = f"{recipe}-{size}"
    answers = done(crew, [job(place, out, recipe)] * size)
    if recipe != "xlnet-base":  # where each pass reads the memory of the one before
        check_evaluations(answers)
    assert sha(place / out) == sha(alone[recipe])
    assert measured(place / out) == measured(alone[recipe])
    assert ("memories.safetensors" in sha(place / out)) == (recipe == "xlnet-base")
    assert len(events(place / out, "step")[-1]["seconds"]) == size


@pytest.mark.parametrize(("name", "sizes", "more"), slow_except([("tuned", (1, 2), {})], [
    ("tuned", (1, 2), {}),
    ("tuned-by-three", (1, 3), {}),
    ("updated", (1, 3), {"finetuning.lora_rank": 2, "finetuning.lora_dropout": 0.1}),
    ("adapted", (1, 3), {"finetuning.adapter_size": 4}),
    ("beside", (1, 3), {"finetuning.auxiliary": {"ae": 0.5}}),
    ("averaged", (1, 3), {"finetuning.average_last": 2}),
]))  # fmt: skip
def test_any_number_of_processes_fine_tunes_identically(
    crew: Crew, place: Path, alone: Mapping[str, Path], name: str, sizes: tuple[int, ...], more: dict[str, Any]
) -> None:
    rows = {1: [32], 2: [16, 16], 3: [8, 8, 16] if name != "beside" else [8, 16, 16]}  # a micro-batch has two
    for size in sizes:
        answers = done(crew, [task(place, f"{name}-{size}", **more)] * size)
        assert [answer["laid_out"] for answer in answers] == rows[size]
        check_evaluations(answers)
        for folder in ("checkpoints", "best"):
            assert sha(place / f"{name}-{size}", folder) == sha(place / f"{name}-1", folder)
        assert measured(place / f"{name}-{size}") == measured(place / f"{name}-1")
        found = (place / f"{name}-{size}" / "dev_predictions.jsonl").read_bytes()
        assert found == (place / f"{name}-1" / "dev_predictions.jsonl").read_bytes()


@pytest.mark.parametrize("sizes", [(1, 2), pytest.param((1, 2, 4), marks=pytest.mark.slow)])
def test_killed_runs_resume_with_any_number_of_processes(
    sizes: tuple[int, ...], crew: Crew, place: Path, alone: Mapping[str, Path]
) -> None:
    whole = job(place, f"elastic-{len(sizes)}", "xlnet-base")
    for step, size in enumerate(sizes, start=1):
        victim = 1 if size == 2 else 0
        jobs = [{**whole, "wrong": "kill", "at": step} if rank == victim else whole for rank in range(size)]
        answers = crew.run(jobs)
        assert answers[victim] is None
        others = [answer for rank, answer in enumerate(answers) if rank != victim]
        assert all(answer is not None and "error" in answer for answer in others), answers
    done(crew, [whole])
    assert sha(Path(whole["out"])) == sha(alone["xlnet-base"])


@pytest.mark.parametrize("rank", slow_except([1], [0, 1]))
def test_a_signal_to_one_process_stops_all_with_one_checkpoint(
    rank: int, crew: Crew, place: Path, alone: Mapping[str, Path]
) -> None:
    out = place / f"stopped-{rank}"
    whole = job(place, out.name, **{"training.save_every": 0})
    answers = crew.run([{**whole, "wrong": "signal", "at": 2} if number == rank else whole for number in range(2)])
    assert [answer and answer["stopped_by"] for answer in answers] == [signal.SIGTERM] * 2
    assert answers[0] and answers[1] and answers[0]["step"] == answers[1]["step"] in (2, 3)
    assert len(list((out / "checkpoints").iterdir())) == 1
    assert [event["signal"] for event in events(out, "stop")] == [signal.SIGTERM]
    done(crew, [whole] * 3)
    assert sha(out)["model.safetensors"] == sha(alone["unilmv2-base"])["model.safetensors"]


def test_a_loss_that_is_not_finite_stops_all_with_the_weights_before(crew: Crew, place: Path) -> None:
    whole = job(place, "nan", **{"training.save_every": 0})
    answers = crew.run([whole, {**whole, "wrong": "nan", "at": 2}])
    for answer in answers:
        assert answer and "is nan in micro-batch" in answer["error"], answers
    (failed,) = events(place / "nan", "failed")
    assert "The finite weights of step 2 were saved" in failed["message"]
    assert sha(place / "nan")["checkpoint"] == "step-00000002"


def test_spikes_are_decided_alike_by_all(crew: Crew, place: Path) -> None:
    changes = {"training.steps": 24, "training.on_spike": "skip", "training.spike_factor": 1.05}
    changes |= {"training.save_every": 4, "training.evaluate_every": 24}
    for size in (1, 2):
        done(crew, [job(place, f"skip-{size}", **changes)] * size)
    one, two = (place / f"skip-{size}" for size in (1, 2))
    assert sha(one) == sha(two)
    found = [[{**event, "time": 0} for event in events(run, "spike")] for run in (one, two)]
    assert found[0] == found[1] != []


def test_a_loss_that_stays_not_finite_is_a_spike_until_all_stop(crew: Crew, place: Path) -> None:
    whole = job(place, "skip-nan", **{"training.steps": 24, "training.on_spike": "skip", "training.save_every": 2})
    for answer in crew.run([whole, {**whole, "wrong": "nan", "at": 2}]):
        assert answer and "more than 10 steps spiked in a row" in answer["error"], answer
    assert [event["step"] for event in events(place / "skip-nan", "spike")] == list(range(3, 13))


@pytest.mark.parametrize(("first", "second", "said"), [
    ({}, {"wrong": "drift", "at": 1}, "the model of process 1 differs from that of process 0"),
    ({"wrong": "full"}, {}, "the disk is full"),
    ({}, {"training.seed": 3}, "the recipe of process 1 differs from that of process 0 (fingerprints "),
    ({}, {"wrong": "code"}, f"the code of process 1 differs from that of process 0 (fingerprints {'f' * 16}"),
    ({}, {"wrong": "hang", "at": 1, "seconds": 3.0}, "the same command resumes from the last checkpoint (torch: "),
], ids=["weights", "disk", "settings", "code", "hangs"])  # fmt: skip
def test_what_is_wrong_with_one_process_stops_all_and_is_named(
    first: Job, second: Job, said: str, crew: Crew, place: Path, request: pytest.FixtureRequest
) -> None:
    """Weights that differ are found before they are saved."""
    jobs = []
    for given in (first, second):
        settings = {key: value for key, value in given.items() if "." in key}
        one = job(place, request.node.name, **{"training.save_every": 2}, **settings)
        jobs.append({**one, "patience": 1.0, **{key: value for key, value in given.items() if "." not in key}})
    answers = crew.run(jobs)
    assert all(answer and said in answer["error"] for answer in answers), answers
    if first:
        assert answers[1] and answers[1]["kind"] == "FailedElsewhere"
    elif "hang" not in second.values():
        assert not (place / request.node.name / "checkpoints").exists()


def test_processes_with_other_data_are_refused_with_both_fingerprints(crew: Crew, place: Path) -> None:
    jobs = []
    for seed in (0, 1):
        folder = place / f"machine-{seed}"
        write_corpus(folder / "corpus", seed=seed)
        settings = load_recipe("unilmv2-base", {**SMALL, "data.corpus": [str(folder / "corpus")]})
        prepare_data(settings.data, settings.tokenizer, folder / "prepared", progress=False)
        jobs.append({**job(place, "data", **{"data.prepared": "prepared"}), "folder": str(folder)})
    for answer in crew.run(jobs):
        assert answer and "the data of process 1 differs from that of process 0 (fingerprints " in answer["error"]


def test_only_the_first_process_writes_the_beginning_for_a_toy_run(crew: Crew, place: Path) -> None:
    write(place / "long.jsonl", [{"text": f"the cat {number} sees the dog . " * 40} for number in range(500)])
    overrides = {"data.corpus": [str(place / "long.jsonl")], "training.device": "cpu"}
    toy = {"recipe": "unilmv2-base", "overrides": overrides, "out": str(place / "toy")}
    answers = done(crew, [{**toy, "toy_after": 0.5}, {**toy, "toy_after": 0.0}])
    assert [answer["step"] for answer in answers] == [2, 2]
    assert load_recipe(place / "toy" / "recipe.yaml").data.corpus == [str(place / "toy" / "toy.jsonl")]


def test_a_process_that_never_joins_is_not_waited_for(crew: Crew, place: Path) -> None:
    answers = crew.run([{**job(place, "absent"), "joining": 0.5}, None])
    assert answers[0] and answers[0]["error"].startswith("process 0 did not meet all of 2 processes at 127.0.0.1:")


def test_a_first_process_that_takes_the_store_with_it_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(HashStore(), 1, 2)

    def gone(*_: object) -> bool:
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(HashStore, "check", gone)
    with pytest.raises(UniclozeError, match="another process of the run ended"):
        group.only_first(lambda: "")


@pytest.mark.slow
def test_torchrun_starts_the_processes_and_the_first_prints(place: Path, alone: Mapping[str, Path]) -> None:
    """With the example script, as a user would."""
    whole = job(place, "torchrun")
    overrides = {**whole["overrides"], "data.corpus": [str(place / "corpus")]}
    save_recipe(load_recipe("unilmv2-base", overrides), place / "torchrun.yaml")
    script = REPOSITORY / "examples" / "launch" / "torchrun.sh"
    found = subprocess.run(
        [str(script), "2", "--recipe", str(place / "torchrun.yaml"), "--quiet", "--out", whole["out"]],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("trained to step 4") == 1
    assert sha(place / "torchrun") == sha(alone["unilmv2-base"])


@pytest.mark.slow
def test_torchrun_restarts_all_processes_after_one_is_killed(place: Path, alone: Mapping[str, Path]) -> None:
    killed = {**job(place, "restarted"), "wrong": "kill", "at": 2}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    found = subprocess.run(
        [*torchrun, crew_module.__file__, "--job", json.dumps(killed)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert [event["resumed_from"] for event in events(place / "restarted", "start")] == [None, "step-00000002"]
    assert sha(place / "restarted") == sha(alone["unilmv2-base"])


@pytest.mark.parametrize("file", ["torchrun.sh", "slurm.sbatch"])
def test_examples_are_shell(file: str) -> None:
    shell = "sh" if file.endswith(".sh") else "bash"
    subprocess.run([shell, "-n", str(REPOSITORY / "examples" / "launch" / file)], check=True)


def test_the_job_of_kubernetes_starts_as_many_processes_as_it_has_pods_and_gpus() -> None:
    text = (REPOSITORY / "examples" / "launch" / "kubernetes.yaml").read_text(encoding="utf-8")
    service, policy, run = yaml.safe_load_all(text)
    template = run["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert f"--nnodes={run['spec']['parallelism']}" in container["args"]
    assert f"--nproc-per-node={container['resources']['limits']['nvidia.com/gpu']}" in container["args"]
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"] == template["metadata"]["labels"]
    assert template["spec"]["subdomain"] == service["metadata"]["name"]


def test_other_commands_do_not_run_in_several_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(["compare", "quickstart", "--budget", "steps=1"]) == 2
    assert "compare runs in one process" in capsys.readouterr().err
