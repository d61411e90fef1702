"""The optimiser's state in safetensors files, one for each process that holds a share of it.

A tensor that is shared out over processes (FSDP2) is cut along its first dimension: the files hold the cuts, and put
together in order they are the whole, for any number of processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from diffclip.errors import InputError
from diffclip.training.distributed import is_sharded
from diffclip.weights import as_disk_error


def save_optimiser(
    folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, rank: int, world: int
) -> None:
    """Write this process's share of the optimiser's state; of a model that is whole in each, the first writes all."""
    shares = world if is_sharded(model) else 1
    if rank >= shares:
        return
    tensors = {
        f"{name}:{key}": _local(value).detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
        if rank == 0 or _is_share(value)
    }
    file = folder / _name(rank, shares)
    try:
        save_file(tensors, file, metadata={"sharded": " ".join(_shared_names(model))})
    except SafetensorError as error:
        raise as_disk_error(error) from error


def load_optimiser(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Give `optimiser` the state that lies in `folder`, cut anew for the processes there are now.

    Raises:
        InputError: files are missing or damaged, or belong to another model.
    """
    files = sorted(folder.glob("optimiser-*-of-*.safetensors"))
    if not files or len(files) != int(files[0].stem.rpartition("-")[2]):
        raise InputError(f"{folder} does not hold the optimiser's whole state: start a new run")
    parameters = dict(model.named_parameters())
    found: dict[str, dict[str, Tensor]] = {name: {} for name in parameters}
    try:
        opened: list[Any] = [safe_open(file, "pt") for file in files]
        cut = set((opened[0].metadata() or {}).get("sharded", "").split())
        entries = [set(file.keys()) for file in opened]
        for entry in sorted(entries[0]):
            name, _, key = entry.rpartition(":")
            pieces = [
                file.get_tensor(entry) for file, held in zip(opened, entries, strict=True) if entry in held
            ]
            whole = torch.cat(pieces) if name in cut and pieces[0].ndim else pieces[0]
            found[name][key] = _fitted(whole, parameters[name], key)
    except (SafetensorError, OSError, KeyError, RuntimeError, ValueError) as error:
        raise InputError(f"{folder} is no training state of this model ({error}): start a new run") from None
    if any(found.values()):
        for name, state in found.items():
            optimiser.state[parameters[name]] = state


def whole_state(model: nn.Module, keep: bool) -> dict[str, Tensor]:
    """The state dict of a model, its shared-out tensors brought together; all processes take part, and those that do
    not `keep` it get nothing."""
    state = {}
    for name, tensor in model.state_dict().items():
        whole = tensor.full_tensor() if _is_share(tensor) else tensor
        if keep:
            state[name] = whole.cpu()
    return state


def _fitted(whole: Tensor, parameter: Any, key: str) -> Tensor:
    """`whole` on the parameter's device, and cut as the parameter is."""
    if not whole.ndim and parameter.ndim:  # a count of steps
        return whole.to(parameter.device, copy=True)
    if whole.shape != parameter.shape:
        raise ValueError(
            f"{key} of shape {list(whole.shape)} for a parameter of shape {list(parameter.shape)}"
        )
    if not _is_share(parameter):
        return whole.to(parameter.device, copy=True)  # not a window into the file, which will be removed
    from torch.distributed.tensor import distribute_tensor

    mesh: Any = parameter.device_mesh
    cut: Tensor = distribute_tensor(
        whole.to(mesh.device_type), mesh, parameter.placements, src_data_rank=None
    )
    return cut


def _shared_names(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if _is_share(parameter)]


def _is_share(value: Any) -> bool:
    return hasattr(value, "full_tensor")


def _local(value: Any) -> Tensor:
    tensor: Tensor = value.to_local() if _is_share(value) else value
    return tensor


def _name(rank: int, shares: int) -> str:
    return f"optimiser-{rank:05d}-of-{shares:05d}.safetensors"
