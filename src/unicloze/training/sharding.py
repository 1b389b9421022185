"""`training.parallel: shard`: each process holds a share of all weights, gradients and moments (FSDP2).

Saved and loaded weights are whole: a checkpoint is the same files whether a run is sharded or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unicloze.model.layers import Layer
from unicloze.model.sharing import owners


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
