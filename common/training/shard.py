"""FSDP2: parameters, gradients and optimizer state cut into shards, one for each process.

The whole model is put together where it is validated or saved, so that files and figures do not know of shards. The
functions take models and tensors without shards as well, and then do nothing to them.
"""

import copy
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

if TYPE_CHECKING:  # takes half a second, and few runs need it
    from torch.distributed.tensor import DTensor


def shard(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy of a model, of which this process keeps its shard on a device; layers of a ``ModuleList`` are units.

    A unit's parameters are gathered just before it computes and let go after it.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    sharded = copy.deepcopy(model)
    for module in list(sharded.modules()):
        if isinstance(module, nn.ModuleList):
            for layer in module:
                fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    return sharded


@torch.no_grad()
def gather_into(model: nn.Module, trained: nn.Module) -> None:
    """Copies the shards of all processes into the whole model of each."""
    if trained is not model:
        for whole, part in zip(model.parameters(), trained.parameters(), strict=True):
            whole.copy_(_whole(part))


@torch.no_grad()
def scatter_from(model: nn.Module, trained: nn.Module) -> None:
    """Copies each process's shard out of the whole model, which is the same in all of them."""
    if trained is not model:
        for whole, part in zip(model.parameters(), trained.parameters(), strict=True):
            part.copy_(_cut(whole.detach(), part))


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state dict as it is without shards; every process calls it."""
    state = optimizer.state_dict()
    whole = {i: {key: _whole(value) for key, value in entry.items()} for i, entry in state["state"].items()}
    return {**state, "state": whole}


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads what ``optimizer_state`` gave; every process calls it."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    cut = {i: {key: _cut(value, parameters[i]) for key, value in entry.items()} for i, entry in state["state"].items()}
    optimizer.load_state_dict({**state, "state": cut})


def local(tensor: Tensor) -> Tensor:
    """This process's shard of a tensor; it shares its memory."""
    return tensor.to_local() if _is_sharded(tensor) else tensor


def total_norm(gradients: list[Tensor]) -> Tensor:
    """The norm of all gradients together, over the shards of all processes."""
    norm = torch.nn.utils.get_total_norm([local(g) for g in gradients])
    if any(_is_sharded(g) for g in gradients):
        square = norm**2
        dist.all_reduce(square)
        norm = square.sqrt()
    return norm


def _is_sharded(value: Any) -> "TypeGuard[DTensor]":
    return hasattr(value, "full_tensor")


def _whole(value: Any) -> Any:
    return value.full_tensor() if _is_sharded(value) else value


def _cut(value: Any, like: Tensor) -> Any:
    """A tensor cut as a parameter of its shape is; anything else as it is."""
    if not (isinstance(value, Tensor) and _is_sharded(like) and value.shape == like.shape):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
