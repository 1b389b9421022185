"""Worker processes, started once and used in groups of any size, as torchrun would start them. Used by test_parallel.py.

    python crew.py NUMBER
    torchrun crew.py --job JSON    runs one job; process 1 injects its failure at the first attempt

The first reads a job as a line of JSON on stdin, runs it and writes a line of JSON to stdout. A job has the environment that
torchrun would set, what to run, and the failure to inject.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

Job = dict[str, Any]


class Crew:
    """The workers, and the store that torchrun's agent would hold."""

    def __init__(self) -> None:
        from torch._C._distributed_c10d import TCPStore

        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._attempt = itertools.count()
        self._workers: list[subprocess.Popen[str]] = []

    def _start(self, number: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, __file__, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def run(self, jobs: Sequence[Job | None], *, ends_all: bool = False) -> list[Job | None]:
        """Run a job on each of the first workers, as one group; return each answer, None for a killed worker.

        A job of None stands for a process that never joins. With `ends_all` the end of the first worker ends all, as
        torchrun's agent does.
        """
        while len(self._workers) < len(jobs):
            self._workers.append(self._start(len(self._workers)))
        environment = {
            "WORLD_SIZE": len(jobs),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": self._store.port,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": next(self._attempt),
        }
        for rank, job in enumerate(jobs):
            if job is not None:
                stream = self._workers[rank].stdin
                assert stream is not None
                stream.write(
                    json.dumps({**job, "environment": {**environment, "RANK": rank, "LOCAL_RANK": rank}}) + "\n"
                )
                stream.flush()
        answers: list[Job | None] = []
        for rank, job in enumerate(jobs):
            if ends_all and answers and answers[0] is None:
                self._workers[rank].kill()
            answers.append(None if job is None else self._answer(rank))
        return answers

    def _answer(self, rank: int) -> Job | None:
        stream = self._workers[rank].stdout
        assert stream is not None
        for line in stream:
            if line.startswith("{"):
                answer: Job = json.loads(line)
                return answer
        self._workers[rank].communicate()
        self._workers[rank] = self._start(rank)
        return None

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.kill()
            worker.communicate()


def work(job: Job) -> Job:
    """Run one job; return its result or its error."""
    os.environ |= {name: str(value) for name, value in job["environment"].items()}
    import pytest

    from unicloze.errors import UniclozeError
    from unicloze.training import parallel

    os.chdir(job.get("folder", "."))
    parallel._JOINED = 0
    laid_out: list[int] = []
    evaluated: list[int] = []
    with pytest.MonkeyPatch.context() as patch, Path(job.get("stderr", os.devnull)).open("w") as stderr:
        go_wrong(job, patch)
        count_rows(laid_out, patch)
        count_passes(evaluated, patch)
        if "stderr" in job:
            patch.setattr(sys, "stderr", stderr)
        try:
            result = finetune(job) if job.get("model") else pretrain(job)
        except UniclozeError as error:
            return {"error": str(error), "kind": type(error).__name__}
    done = {"step": result.step, "stopped_by": result.stopped_by}
    return {**done, "laid_out": sum(laid_out), "evaluated": len(evaluated)}


def pretrain(job: Job) -> Any:
    from unicloze.pretraining.run import pretrain_run
    from unicloze.recipes import load_recipe
    from unicloze.verbs import pretrain

    if "toy_after" in job:
        time.sleep(job["toy_after"])
        return pretrain(job["recipe"], job["out"], toy=True, quiet=True, overrides=job["overrides"])
    return pretrain_run(load_recipe(job["recipe"], job.get("overrides")), Path(job["out"]), progress=False)


def finetune(job: Job) -> Any:
    from unicloze.finetuning.initial import task_recipe
    from unicloze.finetuning.run import finetune_run
    from unicloze.recipes import load_recipe
    from unicloze.training.loading import load_model

    start = load_model(job["model"])
    recipe = task_recipe(load_recipe(job["task"], job["overrides"]), start, list(job["overrides"]))
    records = Path(job["records"])
    return finetune_run(recipe, start, records, records, Path(job["out"]), progress=False)


def count_rows(laid_out: list[int], patch: Any) -> None:
    """Note how many rows of records this process lays out to train on."""
    from unicloze.finetuning import data

    lay_out = data._micro_batch

    def counted(records: Any, numbers: Any, *others: Any) -> Any:
        laid_out.append(len(numbers))
        return lay_out(records, numbers, *others)

    patch.setattr(data, "_micro_batch", counted)


def count_passes(evaluated: list[int], patch: Any) -> None:
    """Note the forward passes of this process's evaluations, those of records with few rows each."""
    from unicloze.example import collate
    from unicloze.finetuning import predict
    from unicloze.training import loop

    def counted(examples: Any, **others: Any) -> Any:
        evaluated.append(len(examples))
        return collate(examples, **others)

    for module in (loop, predict):
        patch.setattr(module, "collate", counted)
    patch.setattr(predict, "SLOTS_AT_ONCE", 48)


def go_wrong(job: Job, patch: Any) -> None:
    """Inject a failure, at a step or from the start.

    `kill` or `signal` this process, `nan` in its loss, `drift` of its weights, an `update` that is not finite, `hang`, a
    `full` disk, different `code`; a `slow` disk, on which files are written only once the step begins, and to `die` when the
    run waits for what is written in the background.
    """
    from unicloze.model.model import UnifiedModel
    from unicloze.training import loop, parallel

    step, what = job.get("at", -1), job.get("wrong")
    if job.get("late"):  # reads numbers as from a GPU
        patch.setattr(loop.Compute, "queues", True)
    if what == "code":
        patch.setattr(parallel, "code_fingerprint", lambda: "f" * 64)
    if "joining" in job:
        patch.setattr(parallel, "JOINING", job["joining"])
    if "patience" in job:
        patch.setattr(parallel, "PATIENCE", job["patience"])
    if what == "nan":
        forward = UnifiedModel.forward

        def spoilt(*arguments: Any) -> Any:
            losses = forward(*arguments)
            if state["step"] < step:
                return losses
            return {name: dataclasses.replace(loss, total=loss.total * float("nan")) for name, loss in losses.items()}

        patch.setattr(UnifiedModel, "forward", spoilt)
    state, begun = {"step": 0}, threading.Event()
    begin = loop.set_learning

    def beginning(optimizers: Any, number: int) -> None:
        state["step"] = number
        if number == step:
            begun.set()
        begin(optimizers, number)
        if number == step and what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if number == step and what == "signal":
            signal.raise_signal(signal.SIGTERM)
        if number == step and what == "drift":
            optimizers[0].param_groups[0]["params"][0].detach().mul_(1.5)
        if number == step and what == "update":
            optimizers[0].register_step_post_hook(spoil)
        if number == step and what == "hang":
            patch.setattr(loop, "with_memory", hang)

    def spoil(optimizer: Any, *_: Any) -> None:
        if state["step"] == step:
            weight = optimizer.param_groups[0]["params"][0].detach()
            getattr(weight, "to_local", lambda: weight)().fill_(float("nan"))

    with_memory = loop.with_memory

    def hang(*arguments: Any) -> Any:
        threading.Event().wait(job["seconds"])
        return with_memory(*arguments)

    patch.setattr(loop, "set_learning", beginning)
    if what == "slow":
        from unicloze.training import checkpoint

        save_file = checkpoint.save_file

        def slowly(*arguments: Any) -> None:
            begun.wait()
            save_file(*arguments)

        patch.setattr(checkpoint, "save_file", slowly)
    if what == "die":
        die_writing(patch)
    if what == "full":
        full = Mock(side_effect=OSError(28, "No space left on device"))
        patch.setattr("unicloze.training.checkpoint.save_file", full)


def die_writing(patch: Any) -> None:
    """Kill this process when a checkpoint is being written in the background and the run waits for it."""
    from unicloze.training import checkpoint

    waited_for = threading.Event()
    save_file, finish = checkpoint.save_file, checkpoint.Background.finish

    def killed(*arguments: Any) -> None:
        save_file(*arguments)
        waited_for.wait()
        os.kill(os.getpid(), signal.SIGKILL)

    def finishing(jobs: Any) -> None:
        if jobs._jobs:
            waited_for.set()
        finish(jobs)

    patch.setattr(checkpoint, "save_file", killed)
    patch.setattr(checkpoint.Background, "finish", finishing)


def main() -> None:
    import unicloze.finetuning.run
    import unicloze.pretraining.run  # noqa: F401 - while other workers do something else

    if sys.argv[1] == "--job":
        job = json.loads(sys.argv[2])
        if os.environ["RANK"] != "1" or os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
            job.pop("wrong")
        answer = work({**job, "environment": {}})
        sys.exit(answer.get("error"))
    for line in sys.stdin:
        print(json.dumps(work(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
