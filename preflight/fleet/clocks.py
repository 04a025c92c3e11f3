"""Clocks of this node's GPUs, and what holds them down, around a round: read by a child under a deadline, as all of NVML is.

The first reading is started with the round and takes place while its ranks meet, so it costs no time. A second one, after the round, is made only where its figure is of a GPU alone:
there the clock is what the figure is to be compared with. It delays the answer by what it takes (some 0.1 s), READ_S at most. A driver that hangs once is not asked again.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from preflight.discover.nvml_run import NvmlRun, child_command
from preflight.fleet.threads import in_daemon_thread
from preflight.model import Clocks, GpuAround, Probe
from preflight.model.bandwidth import ALONE

READ_S = 2.0


class ClockReader:
    """Reads while it gets answers. `command`: the program to run in the place of the child."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self.command = command
        self.silent = False

    async def read(self) -> dict[str, Clocks]:
        """UUID -> clocks; empty if nothing can be read."""
        if self.silent:
            return {}
        found = await in_daemon_thread(self._read)
        self.silent = found is None
        return found or {}

    def _read(self) -> dict[str, Clocks] | None:
        """In one thread: the child dies with the thread that started it."""
        with contextlib.closing(NvmlRun(READ_S, self.command or child_command(only_clocks=True))) as run:
            reading = run.result()
        if reading.gpus is None:
            return None
        return {gpu.uuid: gpu.clocks for gpu in reading.gpus if gpu.uuid and gpu.clocks}


class Around:
    """The readings of one round. `gpus`: rank -> UUID, None: no GPU."""

    def __init__(self, reader: ClockReader, gpus: Mapping[int, str | None], jobs: Mapping[int, Probe]) -> None:
        self.reader = reader
        self.gpus = {rank: uuid for rank in jobs if (uuid := gpus.get(rank)) is not None}
        self.alone = any(probe.collective in ALONE for probe in jobs.values())
        self.before = asyncio.ensure_future(reader.read()) if self.gpus else None

    async def of_ranks(self) -> dict[int, GpuAround]:
        """The round is over: what was read, by rank."""
        if self.before is None:
            return {}
        before = await self.before
        after = await self.reader.read() if self.alone else {}
        return {
            rank: GpuAround(rank=rank, before=before.get(uuid), after=after.get(uuid))
            for rank, uuid in self.gpus.items()
            if uuid in before or uuid in after
        }
