"""What the processes of a run tell each other, so that none waits for another that has left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from diffclip.errors import DiffCLIPError, InputError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

Value = TypeVar("Value")


def means(fabric: Any, *values: Tensor, own: Sequence[Tensor] = ()) -> list[float]:
    """The mean over processes of each 0-dim tensor, and after these the values of `own` (0-dim) in this process: a GPU
    is waited for once."""
    told = torch.stack([value.float() for value in values])
    if fabric.world_size > 1:
        torch.distributed.all_reduce(told)
    told = told / fabric.world_size
    numbers: list[float] = torch.cat([told, *(value.float().reshape(1) for value in own)]).tolist()
    return numbers


def agree(fabric: Fabric, samples: int, stop: bool) -> tuple[int, bool]:
    """The fewest samples that a process holds, and whether one is to stop: the same answer in every process."""
    if fabric.world_size == 1:
        return samples, stop
    told = torch.tensor([samples, -int(stop)], device=fabric.device)
    torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MIN)
    fewest, asked = told.tolist()
    return fewest, asked < 0


def share(fabric: Any, value: Value) -> list[Value]:
    """`value` of every process, by rank."""
    if fabric.world_size == 1:
        return [value]
    values: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(values, value)
    return values


def everybodys(error: DiffCLIPError) -> DiffCLIPError:
    """`error`, marked as one that every process raises."""
    error.shared = True
    return error


def share_or_raise(fabric: Any, value: Value | DiffCLIPError) -> list[Value]:
    """As `share`; an error of one process is raised in all, so that none waits for another that has left.

    Raises:
        DiffCLIPError: the first one among the processes; `shared` is set on it.
    """
    values = share(fabric, value)
    for found in values:
        if isinstance(found, DiffCLIPError):
            raise everybodys(found)
    return values  # type: ignore[return-value]


def all_do(fabric: Any, work: Callable[[], Value]) -> Value:
    """What `work` returns in this process; what it raises in one is raised in all.

    Raises:
        DiffCLIPError: of the first process that failed.
    """
    done, failed = tried(work)
    share_or_raise(fabric, failed)
    return done  # type: ignore[return-value]


def first_does(fabric: Any, work: Callable[[], Value]) -> Value:
    """What `work` returns, or raises, in the first process alone; the others wait for it and get the same.

    Raises:
        DiffCLIPError: what it raised.
    """
    done, failed = tried(work) if fabric.global_rank == 0 else (None, None)
    share_or_raise(fabric, failed)
    found: Any = share(fabric, done)[0]
    return found  # type: ignore[no-any-return]


def tried(work: Callable[[], Value]) -> tuple[Value | None, DiffCLIPError | None]:
    """What `work` returns, or what it raises, to be shared where all processes meet next."""
    try:
        return work(), None
    except DiffCLIPError as error:
        return None, error
    except OSError as error:
        return None, InputError(f"cannot read or write {error.filename}: {error.strerror or error}")


def is_lost(error: RuntimeError) -> bool:
    """Whether `error` is what an exchange raises when another process is gone."""
    text = str(error)
    return isinstance(error, torch.distributed.DistError) or any(
        mark in text
        for mark in ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo/transport")
    )
