"""Facts of all ranks to rank 0 and its answer back to all, with tensors over the job's own process group. No pickle, no object collectives.

Two collectives: every rank sends a row of fixed size to rank 0, rank 0 sends one text of fixed size to all. On CPU tensors where the group has a backend
for them, else on the GPU that the job bound to its rank. Everything has a deadline: a rank that never comes must not hold the others.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

ROW_BYTES = 1024
ANSWER_BYTES = 16384
_HEAD = 4  # bytes of the length before what a row or an answer holds
_FIRST = 0  # the rank that judges


class RanksApart(Exception):  # noqa: N818 - a fact about ranks
    """Not every rank came in time, or one left meanwhile."""


class Exchange:
    """The default process group of this job: one gather within `deadline_s` seconds, then one answer, for which the others wait `grace_s` longer, so
    that rank 0 can still tell them that somebody is missing.
    """

    def __init__(self, deadline_s: float, grace_s: float, environ: Mapping[str, str] = os.environ) -> None:
        self.rank, self.size = int(dist.get_rank()), int(dist.get_world_size())
        self.group: Any = dist.group.WORLD
        self.timeout = timedelta(seconds=deadline_s)
        self.patience = timedelta(seconds=deadline_s + grace_s)
        self.device = _device(self.group, environ)
        # NCCL: along the rings that the job needs anyway, where a gather would connect rank 0 with every other
        self.along_rings = self.device.type == "cuda"

    def gather(self, row: bytes) -> list[bytes] | None:
        """What each rank gave, in rank order; None on all ranks but 0. Raises RanksApart, ValueError (row too long)."""
        mine = _pack(row, ROW_BYTES).to(self.device)
        rows = []
        if self.along_rings:
            options = _with_timeout(distributed_c10d.AllgatherOptions(), self.timeout)
            rows = [torch.empty_like(mine) for _ in range(self.size)]
            _wait(lambda: self.group.allgather([rows], [mine], options), self.timeout)
        else:
            options = _with_timeout(distributed_c10d.GatherOptions(), self.timeout)
            options.rootRank = _FIRST
            rows = [torch.empty_like(mine) for _ in range(self.size)] if self.rank == _FIRST else []
            _wait(lambda: self.group.gather([rows] if rows else [], [mine], options), self.timeout)
        if self.rank != _FIRST:
            return None
        return [_unpack(data) for data in torch.stack(rows).cpu()]

    def answer(self, text: bytes) -> bytes:
        """What rank 0 says, on every rank; the others' text doesn't matter. Raises RanksApart, ValueError (text too long)."""
        shared = _pack(text if self.rank == _FIRST else b"", ANSWER_BYTES).to(self.device)
        options = _with_timeout(distributed_c10d.BroadcastOptions(), self.patience)
        options.rootRank, options.rootTensor = _FIRST, 0
        _wait(lambda: self.group.broadcast([shared], options), self.patience)
        return _unpack(shared.cpu())


def _wait(start: Callable[[], Any], timeout: timedelta) -> None:
    try:
        start().wait(timeout)
    except RuntimeError as error:  # torch's errors of time-outs and lost peers are its children
        raise RanksApart(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}") from error


def gpu_of_this_process() -> str | None:
    """UUID of the GPU that the job uses here, if it already uses one; asking must not take a GPU. None else."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return None
    uuid = str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))
    return f"GPU-{uuid.removeprefix('GPU-')}" if uuid else None


def _device(group: Any, environ: Mapping[str, str]) -> torch.device:
    """Where the tensors lie. Without a CPU backend: the device the group is bound to, else the current one, else that of the local rank, so that
    no two ranks meet on GPU 0 because a script sets its device later.
    """
    config = (
        str(dist.get_backend_config(group)) if hasattr(dist, "get_backend_config") else str(dist.get_backend(group))
    )
    if "cpu:" in config or not torch.cuda.is_available():
        return torch.device("cpu")
    bound = getattr(group, "bound_device_id", None)
    if bound is not None:
        return torch.device(bound)
    current, local = torch.cuda.current_device(), environ.get("LOCAL_RANK", "")
    if current == 0 and local.isdigit() and int(local) < torch.cuda.device_count():
        return torch.device("cuda", int(local))
    return torch.device("cuda", current)


def _with_timeout(options: Any, timeout: timedelta) -> Any:
    with suppress(AttributeError):  # a torch without it: waiting has the same limit
        options.timeout = timeout
    return options


def _pack(data: bytes, size: int) -> torch.Tensor:
    """The bytes with their length before them, padded."""
    if len(data) > size - _HEAD:
        raise ValueError(f"{len(data)} bytes, at most {size - _HEAD} fit")
    padded = bytearray(size)
    padded[:_HEAD] = len(data).to_bytes(_HEAD, "little")
    padded[_HEAD : _HEAD + len(data)] = data
    return torch.frombuffer(padded, dtype=torch.uint8)


def _unpack(row: torch.Tensor) -> bytes:
    data = bytes(row.tolist())
    return data[_HEAD : _HEAD + int.from_bytes(data[:_HEAD], "little")]
