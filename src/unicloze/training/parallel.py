"""Distributes one run over several processes, and is alone in using torch.distributed for it.

torchrun starts the processes. Each holds all weights and computes its own leaves of every step (see `gradients`); then they
exchange sums of gradients and all apply the same update. Only the first process writes: the lock, the ledger, checkpoints and
prepared data. A process that fails says why in the store before it ends; its end breaks the connections of the others, which
then look there.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from unicloze import cores
from unicloze.errors import FailedElsewhere, UniclozeError, UsageError
from unicloze.files import digest
from unicloze.model.layers import Layer, owners
from unicloze.training import gradients as tree
from unicloze.training.gradients import Gradients, Node, PartialSums

T = TypeVar("T")


class World:
    """The processes of a run; this base class is a single process, which never waits."""

    rank, size = 0, 1
    sharded = False
    """Whether each process holds a share of the model; all then make equally many forward and backward passes."""

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def leaves(self, parts: Sequence[int], most: int) -> dict[int, list[int]]:
        """The leaves of a step that this process computes, with the indices of their micro-batches; see `leaves_of`.

        Equally many micro-batches for each process where the model is sharded.
        """
        if not self.sharded:
            found = tree.leaves_of(parts, most)
            return {leaf: found[leaf] for leaf in tree.share(self.rank, self.size, len(found))}
        each, rest = divmod(len(parts), self.size)
        if rest:
            raise UsageError(
                f"a step has {len(parts)} micro-batches, which cannot be divided equally among {self.size} processes, as "
                "training.parallel shard needs: set another training.batch_size or training.micro_batch_size"
            )
        return {number: [number] for number in range(self.rank * each, (self.rank + 1) * each)}

    def gather(self, value: Any) -> list[Any]:
        """Send a JSON-serialisable value to all processes; returns the values of all, in order."""
        return [value]

    def share_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Send named tensors to all processes; returns those of all. Each name is used by one process only."""
        return tensors

    def add(self, sums: PartialSums[Gradients], leaves: int, weights: Sequence[nn.Parameter]) -> Gradients:
        """The gradients of all leaves."""
        return sums.total()

    def only_first(self, do: Callable[[], T]) -> T:
        """Run `do` on the first process only; the others wait and get its JSON-serialisable result."""
        return do()

    def in_turn(self, do: Callable[[], T]) -> T:
        """Run `do` on all processes, on the first one before the others, which then only read what it wrote."""
        if not self.first:
            self.only_first(lambda: None)
            return do()
        value = do()
        self.only_first(lambda: None)
        return value

    def same(self, what: str, fingerprint: str, cure: str) -> None:
        """Reject processes with differing fingerprints."""
        fingerprints = self.gather(fingerprint)
        for number, other in enumerate(fingerprints):
            if other != fingerprints[0]:
                raise UniclozeError(
                    f"{what} of process {number} differs from that of process 0 (fingerprints {other[:16]} and "
                    f"{fingerprints[0][:16]}): {cure}"
                )

    def passes(self) -> AbstractContextManager[None]:
        """Context in which processes with a share of the model exchange weights."""
        return nullcontext()


JOINING, PATIENCE = 300.0, 660.0
"""Seconds to wait for all processes to join, and for an exchange."""
PAUSE = 0.01
"""Seconds between two looks for what the first process does alone."""
REPORTING = 0.5
"""Seconds in which a process that ended should have reported why."""
ENDED = (
    "another process of the run ended, lost its connection or hangs: the same command resumes from the last checkpoint"
)

_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Its name since torch 2.13, or its older one."""


class Group(World):
    """Several processes that communicate through a store and collectives.

    Args:
        store: Key-value store shared by the processes.
        rank: Number of this process.
        size: Number of processes.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._store = store
        self._turn = self._said = 0

    # Messages through the store: rare, and without a time limit.

    def only_first(self, do: Callable[[], T]) -> T:
        """Run `do` on the first process only; its failure fails the others."""
        self._turn += 1
        key = f"turn-{self._turn}"
        if self.first:
            value = do()  # if it fails, `joined` informs the others
            self._store.set(key, json.dumps(value))
            return value
        with self._explained():
            self._wait(key)
            result: T = json.loads(self._store.get(key))
        return result

    def _wait(self, *keys: str, limit: float = float("inf")) -> None:
        """Wait for values in the store, at most `limit` seconds."""
        until = time.monotonic() + limit
        while not self._store.check(list(keys)) and time.monotonic() < until:
            self.look()
            time.sleep(PAUSE)

    def look(self) -> None:
        """Check whether another process has failed."""
        if self._store.check(["failed"]):
            rank, message, kind = json.loads(self._store.get("failed"))
            raise FailedElsewhere(f"process {rank} of {self.size}: {message}", kind)

    def fail(self, error: BaseException) -> bool:
        """Report an error to the other processes; returns whether this process should print it."""
        if isinstance(error, FailedElsewhere):
            return True
        message = str(error) or type(error).__name__
        try:
            if self._store.add("failures", 1) == 1:
                self._store.set("failed", json.dumps([self.rank, message, type(error).__name__]))
                return True
            return bool(json.loads(self._store.get("failed"))[1] != message)
        except RuntimeError:  # the store is gone
            return True

    def part(self) -> None:
        """Leave in order: the others wait for the first process to finish; it leaves last, as it may host the store."""
        self.only_first(lambda: None)
        self._store.set(f"gone-{self.rank}", "1")
        if self.first:
            self._wait(*(f"gone-{process}" for process in range(self.size)), limit=60.0)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Report a lost connection as the failure of another process."""
        try:
            yield
        except RuntimeError as error:
            time.sleep(REPORTING)
            with suppress(RuntimeError):  # the store is gone too
                self.look()
            raise UniclozeError(f"{ENDED} (torch: {str(error).partition(chr(10))[0]})") from error

    @contextmanager
    def passes(self) -> Iterator[None]:
        """See `World.passes`."""
        try:
            yield
        except RuntimeError as error:
            if not self.sharded or not any(name in str(error).lower() for name in ("gloo", "nccl")):
                raise
            with self._explained():
                raise

    # Collectives, with torch's own time-out.

    def _do(self, collective: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        """Take part in a collective; on a GPU only what is queued after it waits."""
        with self._explained():
            collective(*arguments, **named)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, sent as JSON."""
        return [json.loads(each) for each in self._gather(json.dumps(value).encode())]

    def share_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Named tensors of all processes, on the CPU."""
        own = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
        return {name: value for each in self._gather(own) for name, value in load(each).items()}

    def _gather(self, data: bytes) -> list[bytes]:
        sizes = torch.empty(self.size, dtype=torch.int64)
        self._do(_all_gather, sizes, torch.tensor([len(data)]))
        longest = int(sizes.max())
        padded, gathered = torch.zeros(longest, dtype=torch.uint8), torch.empty(self.size * longest, dtype=torch.uint8)
        padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._do(_all_gather, gathered, padded)
        rows = zip(gathered.view(self.size, longest), sizes.tolist(), strict=True)
        return [row[:size].numpy().tobytes() for row, size in rows]

    def add(self, sums: PartialSums[Gradients], leaves: int, weights: Sequence[nn.Parameter]) -> Gradients:
        """Exchange and sum gradients, one bucket of weights at a time."""
        self._say_traffic(leaves)
        mine = [gradients for _, gradients in sums.nodes]
        used = torch.tensor([any(one[number] is not None for one in mine) for number in range(len(weights))])
        used = used.to(torch.uint8)
        self._do(dist.all_reduce, used, op=dist.ReduceOp.MAX)
        numbers = [number for number, there in enumerate(used.tolist()) if there]
        total: Gradients = [None] * len(weights)
        for bucket in tree.buckets([(number, weights[number].numel()) for number in numbers]):
            flat = self._add_flat(mine, bucket, leaves, weights)
            for number, values in zip(bucket, flat.split([weights[number].numel() for number in bucket]), strict=True):
                own = next((one[number] for one in mine if one[number] is not None), None)
                gradient = torch.empty_like(weights[number], requires_grad=False) if own is None else own
                total[number] = gradient.copy_(values.view_as(gradient))
        return total

    def _say_traffic(self, leaves: int) -> None:
        """Warn once if this number of processes exchanges more than necessary."""
        if leaves != self._said and (factor := tree.traffic(leaves, self.size)) > 1:
            warnings.warn(
                f"{self.size} processes send {factor:g} times the bytes of a ring all-reduce: use powers of 2 for the "
                f"number of processes and that of groups of micro-batches, now {leaves} (at most training.leaves)",
                stacklevel=2,
            )
        self._said = leaves

    def _add_flat(
        self, mine: list[Gradients], bucket: list[int], leaves: int, weights: Sequence[nn.Parameter]
    ) -> Tensor:
        """The sum of a bucket of gradients as one vector; each process adds up one slice of it."""
        like, length = weights[bucket[0]], sum(weights[number].numel() for number in bucket)
        slice_size = -(-length // self.size)
        whole = like.new_empty(slice_size * self.size, requires_grad=False)
        slices: PartialSums[Tensor] = PartialSums(leaves, lambda left, right: left.add_(right))
        received: dict[Node, Tensor] = {}
        for turn, senders in enumerate(tree.rounds(leaves, self.size)):
            sends = turn < len(mine)
            if sends:
                tree.flatten(mine[turn], bucket, weights, whole)
            found = like.new_empty(slice_size * len(senders), requires_grad=False)
            sending = {process for process, _ in senders}
            self._do(
                dist.all_to_all_single,
                found,
                whole if sends else whole[:0],
                output_split_sizes=[slice_size if process in sending else 0 for process in range(self.size)],
                input_split_sizes=[slice_size if sends else 0] * self.size,
            )
            received |= {node: part for (_, node), part in zip(senders, found.split(slice_size), strict=True)}
        for node in sorted(received, key=lambda node: node.first):
            slices.push(node, received[node])
        self._do(_all_gather, whole, slices.total())
        return whole[:length]


_JOINED = 0
_STORES: list[Store] = []  # kept, since the first process may host one that others still read when it joins again


@contextmanager
def joined() -> Iterator[World]:
    """The processes that torchrun started for one run; a single process without torchrun."""
    rank, size = cores.rank(), cores.processes()
    if size == 1:
        yield World()
        return
    store = _store(rank, size)
    group, hook = Group(store, rank, size), sys.excepthook
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=PrefixStore("group", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=PATIENCE),
        )
        sys.excepthook = hook  # torch's hook prefixes every line with the rank
        group.same("the code", code_fingerprint(), "install the same versions of unicloze and torch on all machines")
        with warnings.catch_warnings():
            if rank:
                warnings.simplefilter("ignore")  # the first process prints the same
            yield group
        group.part()
    except BaseException as error:
        if group.fail(error) or not isinstance(error, Exception):
            raise
        raise FailedElsewhere(str(error)) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _store(rank: int, size: int) -> Store:
    """The store of this attempt, once all processes have joined.

    A prefix keeps it apart from entries of processes before a restart.
    """
    global _JOINED
    _JOINED += 1
    try:
        store, _, _ = next(rendezvous("env://", rank=rank, world_size=size, timeout=timedelta(seconds=JOINING)))
        store = PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}.{_JOINED}", store)
        store.set(f"here-{rank}", "1")
        store.wait([f"here-{process}" for process in range(size)], timedelta(seconds=JOINING))
        _STORES.append(store)
    except (RuntimeError, ValueError) as error:
        place = f"{os.environ.get('MASTER_ADDR', 'MASTER_ADDR')}:{os.environ.get('MASTER_PORT', 'MASTER_PORT')}"
        raise UniclozeError(
            f"process {rank} did not meet all of {size} processes at {place} within {JOINING:g} s: start as many as torchrun "
            "expects, with the same rendezvous, and open the port between their machines "
            f"({' '.join(str(error).split())[:200]})"
        ) from error
    return store


@functools.cache
def code_fingerprint() -> str:
    """SHA-256 of this package's source files and the version of torch."""
    package = Path(__file__).parents[1]
    files = {str(file.relative_to(package)): file.read_text("utf-8") for file in sorted(package.rglob("*.py"))}
    return digest([files, str(torch.__version__)])


def backends() -> list[str]:
    """Available communication backends: gloo for CPUs, NCCL for GPUs."""
    if not dist.is_available():
        return []
    there = {"gloo": dist.is_gloo_available(), "NCCL": dist.is_nccl_available() and torch.cuda.is_available()}
    return [name for name, found in there.items() if found]


# Saved and loaded weights are whole: a checkpoint is the same files whether a run is sharded or not.


def shard(model: nn.Module, device: torch.device, processes: int) -> None:
    """Shard a model over all processes: each layer by itself, then the rest. Layers that share weights are sharded as one.

    Gradients are summed over the processes, not averaged. Only `forward` gathers the weights; everything else needs a
    whole copy.
    """
    from torch.distributed.device_mesh import init_device_mesh  # a second to import, which few runs need
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(device.type, (processes,))
    layers = [] if owners_of_layers(model) else [module for module in model.modules() if isinstance(module, Layer)]
    for module in [*layers, model]:
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no other


def owners_of_layers(model: nn.Module) -> bool:
    """Whether layers of the model share weights."""
    return any(isinstance(owner, Layer) for owner in owners(model))


def as_stored(weights: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors in the form of those stored under the same names: this process's share where they are sharded."""
    return {name: _like(weight, stored[name]) if name in stored else weight for name, weight in weights.items()}


def moments_as_stored(state: Mapping[str, Any], weights: Sequence[Tensor]) -> dict[str, Any]:
    """The state of an optimiser, with whole moments, in the form of its weights."""
    moments = state["state"].items()
    shares = {i: {name: _like(value, weights[i]) for name, value in values.items()} for i, values in moments}
    return {**state, "state": shares}


def _like(value: Any, stored: Tensor) -> Any:
    if not _sharded(stored) or not isinstance(value, Tensor) or value.shape != stored.shape:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(stored, DTensor)
    return distribute_tensor(value.to(stored.device), stored.device_mesh, stored.placements, src_data_rank=None)


def whole(tensor: Tensor) -> Tensor:
    """A tensor gathered from all processes, which all call this; others are returned unchanged."""
    if not _sharded(tensor):
        return tensor
    found: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return found


def _sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def gathered(tensors: Mapping[str, Any], *, keep: bool) -> dict[str, Any]:
    """Copies of named tensors gathered one at a time, on the CPU; empty in a process that does not keep them."""
    found = {}
    for name, tensor in tensors.items():
        value = whole(tensor).detach() if isinstance(tensor, Tensor) else tensor
        if keep:
            found[name] = value.to("cpu", copy=not _sharded(tensor)) if isinstance(value, Tensor) else value
    return found


def gathered_state(optimizer: torch.optim.Optimizer, *, keep: bool) -> dict[str, Any]:
    """The state of an optimiser, see `gathered`."""
    state = optimizer.state_dict()
    return {**state, "state": {index: gathered(values, keep=keep) for index, values in state["state"].items()}}
