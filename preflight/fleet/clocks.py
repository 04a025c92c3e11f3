"""Clocks of this node's GPUs, what holds them down, and who is on them, around a round: read by a child under a deadline, as all of NVML is.

The first reading is started with the round and takes place while its ranks meet, so it costs no time. A second one, after the round, is made where its figure is of a GPU alone:
there the clock is what the figure is to be compared with; and where the node gives way to others: then no round counts in which somebody else was on the GPUs. It delays the answer by what it takes (some 0.1 s), READ_S at most. A driver that hangs once is not asked again.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from preflight.discover.nvml_run import NvmlRun, child_command
from preflight.fleet.threads import in_daemon_thread
from preflight.model import Clocks, Gpu, GpuAround, Probe
from preflight.model.bandwidth import ALONE

READ_S = 2.0


class ClockReader:
    """Reads while it gets answers. `command`: the program to run in the place of the child."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self.command = command
        self.silent = False

    async def gpus(self, deadline_s: float = READ_S) -> tuple[Gpu, ...] | None:
        """All GPUs, with their clocks and processes alone; None if nothing can be read."""
        if self.silent:
            return None
        found = await in_daemon_thread(lambda: self._read(deadline_s))
        self.silent = found is None
        return found

    def _read(self, deadline_s: float) -> tuple[Gpu, ...] | None:
        """In one thread: the child dies with the thread that started it."""
        with contextlib.closing(NvmlRun(deadline_s, self.command or child_command(only_load=True))) as run:
            return run.result().gpus


class Around:
    """The readings of one round. `gpus`: rank -> UUID, None: no GPU. `watched`: read after every round. `latest`: the last reading, None: nothing was read."""

    def __init__(
        self,
        reader: ClockReader,
        gpus: Mapping[int, str | None],
        jobs: Mapping[int, Probe],
        *,
        watched: bool = False,
    ) -> None:
        self.reader = reader
        self.gpus = {rank: uuid for rank in jobs if (uuid := gpus.get(rank)) is not None}
        self.again = watched or any(probe.collective in ALONE for probe in jobs.values())
        self.before = asyncio.ensure_future(reader.gpus()) if self.gpus else None
        self.latest: tuple[Gpu, ...] | None = None

    async def of_ranks(self) -> dict[int, GpuAround]:
        """The round is over: what was read, by rank."""
        if self.before is None:
            return {}
        first = await self.before
        last = await self.reader.gpus() if self.again else None
        self.latest = last if self.again else first
        before, after = _clocks(first), _clocks(last)
        return {
            rank: GpuAround(rank=rank, before=before.get(uuid), after=after.get(uuid))
            for rank, uuid in self.gpus.items()
            if uuid in before or uuid in after
        }


def _clocks(gpus: Sequence[Gpu] | None) -> dict[str, Clocks]:
    return {gpu.uuid: gpu.clocks for gpu in gpus or () if gpu.uuid and gpu.clocks}
