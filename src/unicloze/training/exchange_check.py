"""Measures how long two processes on this machine take to exchange gradients, as a run does it.

python -m unicloze.training.exchange_check    one of the two, with torchrun's environment variables
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time

import torch
from torch import nn

from unicloze.errors import UniclozeError
from unicloze.training.gradients import GradientSums
from unicloze.training.meeting import joined

WEIGHTS = 1 << 20
"""Number of weights: 4 MiB of gradients."""
TIMES = 5
"""Number of exchanges."""
LONGEST = 60.0
"""Seconds after which the processes are ended."""


def exchange_seconds(longest: float = LONGEST) -> float:
    """Median time in which two processes add 4 MiB of gradients through gloo; this takes a few seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    common["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env={**inherited, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    ends, said, errors = time.monotonic() + longest, "", []
    try:
        for process in processes:
            out, error = process.communicate(timeout=max(0.0, ends - time.monotonic()))
            said += out
            if process.returncode:
                errors.append(error.strip().rpartition("\n")[2] or f"a process ended with status {process.returncode}")
    except subprocess.TimeoutExpired:
        raise UniclozeError(f"they did not finish within {longest:g} s") from None
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    if errors:
        raise UniclozeError(errors[0])
    return float(json.loads(said))


def main() -> None:
    """Exchange gradients a few times; the first process prints the median of the seconds."""
    weight = nn.Parameter(torch.zeros(WEIGHTS))
    taken = []
    with joined(joining=LONGEST, patience=LONGEST) as world:
        for _ in range(TIMES):
            sums = GradientSums([weight], world.size, {})
            weight.grad = torch.full_like(weight, world.rank + 1.0)
            sums.take(world.rank)
            begun = time.perf_counter()
            (total,) = world.add(sums.sums, world.size, [weight])
            taken.append(time.perf_counter() - begun)
            if total is None or not bool((total == 3.0).all()):
                raise UniclozeError("the sum of the gradients of two processes is wrong")
        if world.first:
            print(json.dumps(statistics.median(taken)))


if __name__ == "__main__":
    main()
