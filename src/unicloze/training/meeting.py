"""Brings the processes that torchrun started together as a group, and ends it.

All meet in a store that torchrun or the first process hosts, and compare their code. A thread of each then prints its stack
traces on request, and the first process gives signs of life.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from unicloze import cores
from unicloze.errors import FailedElsewhere, UniclozeError
from unicloze.files import digest
from unicloze.training.parallel import PATIENCE, SIGNS, WATCH, Group
from unicloze.training.world import World
from unicloze.version import __version__

JOINING = 300.0
"""Seconds to wait for all processes to join."""


@contextmanager
def joined(*, joining: float | None = None, patience: float | None = None) -> Iterator[World]:
    """The processes that torchrun started for one run; a single process without torchrun."""
    if cores.processes() == 1:
        yield World()
        return
    store, rank, size = _store(JOINING if joining is None else joining)
    group = Group(store, rank, size, PATIENCE if patience is None else patience)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_watched(store, rank))
            _meet_all(store, rank, size, JOINING if joining is None else joining)
            backend, hook = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", sys.excepthook
            dist.init_process_group(
                backend,
                store=PrefixStore("group", store),
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=group._patience + 60),
            )
            stack.callback(dist.destroy_process_group)
            sys.excepthook = hook  # torch's hook prefixes every line with the rank
            if rank:
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")  # the first process prints the same
            yield group
            group.part()
        except BaseException as error:
            if _say(group, error) or not isinstance(error, Exception):
                raise
            raise FailedElsewhere(str(error)) from error


def _say(group: Group, error: BaseException) -> bool:
    """Report an error to the other processes; returns whether to print it here, as all do if the store is gone."""
    try:
        return group.fail(error)
    except RuntimeError:
        return True


_JOINED = 0


def _store(joining: float) -> tuple[Store, int, int]:
    """The store of this attempt; a prefix keeps it apart from entries of processes before a restart."""
    global _JOINED
    _JOINED += 1
    rank, size = cores.rank(), cores.processes()
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    hosts_it = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = TCPStore(
            host, int(port), size, hosts_it, timedelta(seconds=joining), wait_for_workers=False, multi_tenant=True
        )
    except (RuntimeError, ValueError) as error:
        raise UniclozeError(
            f"process {rank} of {size} could not reach {host or 'MASTER_ADDR'}:{port or 'MASTER_PORT'} within {joining:g} s: "
            "start all processes with torchrun, and open the port between their machines "
            f"({' '.join(str(error).split())[:200]})"
        ) from error
    attempt = f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}.{_JOINED}"
    return PrefixStore(attempt, store), rank, size


def _meet_all(store: Store, rank: int, size: int, joining: float) -> None:
    """Wait until all processes have joined, and compare their versions."""
    version = f"unicloze {__version__}, torch {torch.__version__}"
    said = {"code": code_fingerprint(), "version": version, "host": socket.gethostname()}
    store.set(f"here-{rank}", json.dumps(said))
    keys, started = [f"here-{process}" for process in range(size)], time.monotonic()
    while not store.check(keys):
        if time.monotonic() - started > joining:
            late = [str(process) for process, key in enumerate(keys) if not store.check([key])]
            raise UniclozeError(
                f"process {', '.join(late)} of {size} did not join within {joining:g} s: start as many processes as torchrun "
                "expects, with the same rendezvous"
            )
        time.sleep(0.02)
    all_said = [json.loads(store.get(key)) for key in keys]
    for number, other in enumerate(all_said):
        if other["code"] != all_said[0]["code"]:
            one = all_said[0]
            raise UniclozeError(
                f"process {number} on {other['host']} runs other code than process 0 on {one['host']} ({other['version']}, "
                f"fingerprint {other['code'][:16]}, and {one['version']}, fingerprint {one['code'][:16]}): install the same "
                "version on all machines"
            )


def backends() -> list[str]:
    """Available communication backends: gloo for CPUs, NCCL for GPUs."""
    if not dist.is_available():
        return []
    there = {"gloo": dist.is_gloo_available(), "NCCL": dist.is_nccl_available() and torch.cuda.is_available()}
    return [name for name, found in there.items() if found]


@functools.cache
def code_fingerprint() -> str:
    """SHA-256 of this package's source files and the version of torch."""
    package = Path(__file__).parents[1]
    files = {str(file.relative_to(package)): file.read_text("utf-8") for file in sorted(package.rglob("*.py"))}
    return digest([files, str(torch.__version__)])


@contextmanager
def _watched(store: Store, rank: int) -> Iterator[None]:
    """Print the stack traces of this process when another one that waited too long requests them.

    The first process also counts its signs of life in the store, as long as it runs, whatever it does.
    """
    ended = threading.Event()

    def watch() -> None:
        asked = False
        with contextlib.suppress(RuntimeError):  # the store is gone, and so is the run
            while not ended.wait(WATCH):
                if rank == 0:
                    store.add(SIGNS, 1)
                if not asked and store.check(["stacks"]):
                    asked = True
                    print(f"process {rank}:", file=sys.stderr, flush=True)
                    faulthandler.dump_traceback(sys.stderr)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
