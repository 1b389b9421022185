"""Distributes one run over several processes; only this module and `meeting` use torch.distributed for it.

torchrun starts the processes, and `meeting` makes them a group. Each holds all weights and computes its own leaves of every
step (see `gradients`); then they exchange sums of gradients and all apply the same update. Only the first process writes: the
lock, the ledger, checkpoints and prepared data. A failure on one process fails all: a process that waits for others checks
every quarter of a second whether one has failed.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn
from torch._C._distributed_c10d import Store

from unicloze import cores
from unicloze.errors import FailedElsewhere, UniclozeError, UsageError
from unicloze.model.layers import Layer
from unicloze.model.sharing import owners
from unicloze.training.gradients import Gradients, Node, PartialSums, buckets, flatten, rounds, traffic
from unicloze.training.world import StepReport, World

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
    shares = {
        index: {name: _like(value, weights[index]) for name, value in values.items()}
        for index, values in state["state"].items()
    }
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


def own_share(tensor: Tensor) -> Tensor:
    """This process's share of a tensor, in the memory of the tensor; a tensor that is not sharded is returned unchanged."""
    if not _sharded(tensor):
        return tensor
    found: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return found


def _sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


@dataclass(frozen=True)
class WholeState:
    """The state of an optimiser gathered from all processes."""

    state: dict[str, Any]  # as of `torch.optim.Optimizer.state_dict`

    def state_dict(self) -> dict[str, Any]:
        """The state."""
        return self.state


def gathered(tensors: Mapping[str, Any], *, keep: bool) -> dict[str, Any]:
    """Copies of named tensors gathered one at a time, on the CPU; empty in a process that does not keep them."""
    found = {}
    for name, tensor in tensors.items():
        value = whole(tensor).detach() if isinstance(tensor, Tensor) else tensor
        if keep:
            found[name] = value.to("cpu", copy=not _sharded(tensor)) if isinstance(value, Tensor) else value
    return found


def gathered_state(optimizer: torch.optim.Optimizer, *, keep: bool) -> WholeState:
    """The state of an optimiser, see `gathered`."""
    state = optimizer.state_dict()
    return WholeState(
        {**state, "state": {index: gathered(values, keep=keep) for index, values in state["state"].items()}}
    )


T = TypeVar("T")

PATIENCE = 600.0
"""Seconds to wait for other processes in an exchange."""
SILENCE = 120.0
"""Seconds without a sign of life of the first process, after which the others no longer wait for it."""
LONGEST_PAUSE = 0.005
"""Longest time in seconds between two checks of what a process waits for."""
LOOK = 0.25
"""Seconds between two checks whether another process has failed."""
WATCH = 1.0
"""Seconds between two signs of life, and between two checks whether stack traces are requested."""
ENDED = "another process of the run ended or lost its connection: the same command resumes from the last checkpoint"
SILENT = (
    "process 0 of {} ended, or its machine did: it gave no sign of life for {} s; the same command resumes from the last "
    "checkpoint"
)
SIGNS = "signs-of-life"

_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Its name since torch 2.13, or its older one."""


class Group(World):
    """Several processes that communicate through a store and collectives.

    Args:
        store: Key-value store shared by the processes.
        rank: Number of this process.
        size: Number of processes.
        patience: Seconds to wait for other processes in an exchange.
    """

    def __init__(self, store: Store, rank: int, size: int, patience: float) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        self._store, self._patience = store, patience
        self._turn = self._exchange = self._begun = self._said = 0
        self._stopwatch = _Stopwatch()
        self._received: Callable[[], int] = lambda: 0

    def device(self, device: torch.device) -> torch.device:
        """`cuda:LOCAL_RANK` on a GPU."""
        if device.type != "cuda":
            return device
        number, there = cores.local_rank(), torch.cuda.device_count()
        if number >= there:
            raise UniclozeError(
                f"process {self.rank} has local rank {number}, but its machine has {there} CUDA devices: start one process "
                "per device (torchrun --nproc-per-node)"
            )
        torch.cuda.set_device(number)
        return torch.device("cuda", number)

    # Messages through the store: rare, and without a time limit while the first process lives.

    def only_first(self, do: Callable[[], T]) -> T:
        """Run `do` on the first process only; its failure fails the others."""
        self._turn += 1
        key = f"turn-{self._turn}"
        if self.first:
            value = do()  # if it fails, `joined` informs the others
            self._store.set(key, json.dumps(value))
            return value
        done, signs = lambda: self._store.check([key]), lambda: self._store.add(SIGNS, 0)
        try:
            self._wait(done, "the first process", limit=SILENCE, signs=signs)
            result: T = json.loads(self._store.get(key))
        except RuntimeError as error:  # the store is gone
            raise UniclozeError(ENDED) from error
        return result

    def in_turn(self, do: Callable[[], T]) -> T:
        """Run `do` on all processes, on the first one before the others."""
        if self.first:
            value = do()
            self.only_first(lambda: None)
            return value
        self.only_first(lambda: None)
        return do()

    def same(self, what: str, fingerprint: str, cure: str) -> None:
        """Reject differing fingerprints."""
        found = self.gather(fingerprint)
        for number, other in enumerate(found):
            if other != found[0]:
                raise UniclozeError(
                    f"{what} of process {number} differs from that of process 0 (fingerprints {other[:16]} and "
                    f"{found[0][:16]}): {cure}"
                )

    def leaves(self, parts: Sequence[int], most: int) -> dict[int, list[int]]:
        """Leaves of this process, see `World.leaves`; equally many micro-batches for each where the model is sharded."""
        if not self.sharded:
            return super().leaves(parts, most)
        each, rest = divmod(len(parts), self.size)
        if rest:
            raise UsageError(
                f"a step has {len(parts)} micro-batches, which cannot be divided equally among {self.size} processes, as "
                "training.parallel shard needs: set another training.batch_size or training.micro_batch_size"
            )
        return {number: [number] for number in range(self.rank * each, (self.rank + 1) * each)}

    @contextmanager
    def passes(self) -> Iterator[None]:
        """See `World.passes`."""
        try:
            yield
        except RuntimeError as error:
            if not self.sharded or not any(name in str(error).lower() for name in ("gloo", "nccl")):
                raise
            time.sleep(2 * LOOK)
            self.look()
            raise UniclozeError(ENDED) from error

    # Collectives.

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
        padded, found = torch.zeros(longest, dtype=torch.uint8), torch.empty(self.size * longest, dtype=torch.uint8)
        padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._do(_all_gather, found, padded)
        rows = zip(found.view(self.size, longest), sizes.tolist(), strict=True)
        return [row[:size].numpy().tobytes() for row, size in rows]

    def read(self, numbers: Tensor) -> list[float]:
        """See `World.read`; while the exchanges before it are computed by CUDA, it looks for failures."""
        if numbers.device.type != "cuda":
            return super().read(numbers)
        found = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        self._wait(copied.query, f"exchange {self._exchange}", limit=self._patience)
        return super().read(found)

    def begin_step(self, step: int) -> None:
        """Begin a step that processes may leave, and record its start time; a step may be repeated after going back."""
        self._begun, self._stopwatch = self._begun + 1, _Stopwatch()

    def leaving(self) -> bool:
        """Whether a process has announced that it leaves this step."""
        return bool(self._store.check([self._leave]))

    @property
    def _leave(self) -> str:
        return f"leave-{self._begun}"

    def meet(self, report: StepReport, received: Callable[[], int]) -> list[StepReport]:
        """Exchange reports; a signal that arrives while waiting asks the other processes to leave the step."""
        report.signal = received()
        report.seconds = self._stopwatch.seconds()
        if report.left or report.problem is not None:
            self._store.set(self._leave, str(report.signal))
        means = [[number, values] for number, values in report.means.items()]
        self._received = (lambda: 0) if report.signal else received
        try:
            found = self.gather([means, report.left, report.problem, report.signal, report.seconds])
        finally:
            self._received = lambda: 0
        reports = [StepReport(dict(means), *others) for means, *others in found]
        if any(each.left for each in reports) and not any(each.signal for each in reports):
            reports[0].signal = int(self._store.get(self._leave))
        self.seconds = [each.seconds for each in reports]
        return reports

    def add(self, sums: PartialSums[Gradients], leaves: int, weights: Sequence[nn.Parameter]) -> Gradients:
        """Exchange and sum gradients, one bucket of weights at a time."""
        self._say_traffic(leaves)
        mine = [gradients for _, gradients in sums.nodes]
        used = torch.tensor([any(one[number] is not None for one in mine) for number in range(len(weights))])
        used = used.to(torch.uint8)
        self._do(dist.all_reduce, used, op=dist.ReduceOp.MAX)
        numbers = [number for number, there in enumerate(used.tolist()) if there]
        total: Gradients = [None] * len(weights)
        for bucket in buckets([(number, weights[number].numel()) for number in numbers]):
            flat = self._add_flat(mine, bucket, leaves, weights)
            for number, values in zip(bucket, flat.split([weights[number].numel() for number in bucket]), strict=True):
                own = next((one[number] for one in mine if one[number] is not None), None)
                gradient = torch.empty_like(weights[number], requires_grad=False) if own is None else own
                total[number] = gradient.copy_(values.view_as(gradient))
        return total

    def _say_traffic(self, leaves: int) -> None:
        """Warn once if this number of processes exchanges more than necessary."""
        if leaves != self._said and (factor := traffic(leaves, self.size)) > 1:
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
        for turn, senders in enumerate(rounds(leaves, self.size)):
            sends = turn < len(mine)
            if sends:
                flatten(mine[turn], bucket, weights, whole)
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

    def _do(self, collective: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        """Take part in a collective."""
        self._exchange += 1
        try:
            work = collective(*arguments, **named, async_op=True)
            if all(one.device.type == "cpu" for one in arguments if isinstance(one, Tensor)):
                self._wait(work.is_completed, f"exchange {self._exchange}", limit=self._patience)
            work.wait()  # on a GPU, only what is queued after it waits; `read` looks for failures
        except RuntimeError as error:  # a connection was lost
            time.sleep(2 * LOOK)  # the other process may be about to report why
            self.look()
            raise UniclozeError(ENDED) from error

    def _wait(
        self, ready: Callable[[], bool], whom: str, *, limit: float, signs: Callable[[], int] | None = None
    ) -> None:
        """Wait, at most `limit` seconds; if the first process gives `signs` of life, that long after the last of them."""
        started = looked = time.monotonic()
        pause, seen = 1e-4, 0
        while not ready():
            time.sleep(pause)
            pause = min(1.1 * pause, LONGEST_PAUSE)
            now = time.monotonic()
            if now - looked < LOOK:
                continue
            looked = now
            self.look()
            if number := self._received():
                self._store.set(self._leave, str(number))
                self._received = lambda: 0
            self._store.set(f"waits-{self.rank}", whom)
            if signs is not None and (given := signs()) != seen:
                started, seen = now, given
            if now - started > limit and signs is not None:
                raise UniclozeError(SILENT.format(self.size, f"{limit:g}"))
            if now - started > limit:
                self._give_up(whom, limit)

    def _give_up(self, whom: str, limit: float) -> None:
        """Name the late processes, and have every process print its stack traces."""
        self._store.set("stacks", "1")
        time.sleep(3 * WATCH)
        keys = [f"waits-{process}" for process in range(self.size)]
        late = [
            n for n, key in enumerate(keys) if not self._store.check([key]) or self._store.get(key) != whom.encode()
        ]
        raise UniclozeError(
            f"process {', '.join(map(str, late))} did not reach {whom} within {limit:g} s, where process {self.rank} "
            "waited: the stack traces of all are above; run the same command again to resume"
        )

    def look(self) -> None:
        """Check whether another process has failed."""
        try:
            said = self._store.get("failed") if self._store.check(["failed"]) else None
        except RuntimeError as error:
            raise UniclozeError(ENDED) from error
        if said is not None:
            rank, message, kind = json.loads(said)
            raise FailedElsewhere(f"process {rank} of {self.size}: {message}", kind)

    def fail(self, error: BaseException) -> bool:
        """Report an error to the other processes; returns whether this process should print it."""
        if isinstance(error, FailedElsewhere):
            return True
        message = str(error) or type(error).__name__
        if self._store.add("failures", 1) == 1:
            self._store.set("failed", json.dumps([self.rank, message, type(error).__name__]))
            return True
        return bool(json.loads(self._store.get("failed"))[1] != message)

    def part(self) -> None:
        """Leave in order: the others wait for the first process to finish; it leaves last, as it may host the store."""
        self.only_first(lambda: None)
        self._store.set(f"gone-{self.rank}", "1")
        if self.first:
            keys = [f"gone-{process}" for process in range(self.size)]
            self._wait(lambda: self._store.check(keys), "the end", limit=60.0)


class _Stopwatch:
    """Measures from now until `seconds` is first called; on a GPU, the time it computes what is queued between."""

    def __init__(self) -> None:
        self._events = [_event()] if torch.cuda.is_initialized() else []
        self._began, self._seconds = time.monotonic(), 0.0

    def seconds(self) -> float:
        """The seconds; on a GPU, 0 until the second call, before which the GPU must have finished."""
        if len(self._events) == 1:
            self._events.append(_event())
        elif self._events:
            begun, ended = self._events
            self._seconds = begun.elapsed_time(ended) / 1000
        self._seconds = self._seconds or (0.0 if self._events else time.monotonic() - self._began)
        return self._seconds


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
