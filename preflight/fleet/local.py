"""Agents for one run on this machine: `preflight run --local NxM`.

Each is a process of its own that binds loopback, gets the run's key through an inherited pipe, and leaves when the coordinator ends: the kernel kills it with its
parent, and the pipe on its standard input closes.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys

import msgspec

from preflight.errors import ProbeError
from preflight.fleet.zygotes import process_state

START_S = 30.0  # imports of aiohttp and psutil: 0.5 s, more on a cold or busy machine
LEAVE_S = 4.0  # an agent kills and reaps its workers within 3 s


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where an agent listens; `name` is the node's. `problem`: it did not come up, and why. `blameless`: that says nothing of its node."""

    name: str
    host: str
    port: int
    problem: str | None = None
    blameless: bool = False


class LocalAgents:
    """The agents of a local run, in node order."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.processes: list[subprocess.Popen[bytes]] = []

    async def start(self, num_nodes: int, deadline_s: float = START_S) -> tuple[Address, ...]:
        """Start them all at once. One that doesn't come up in time has a `problem`. Raises ProbeError if none can be started."""
        names = [f"node{i}" for i in range(num_nodes)]
        try:
            for name in names:
                self._launch(name)
        except OSError as error:
            raise ProbeError(f"no agent can be started: {error.strerror}") from error
        pairs = zip(self.processes, names, strict=True)
        return tuple(await asyncio.gather(*(self._address(process, name, deadline_s) for process, name in pairs)))

    def _launch(self, name: str) -> None:
        key_read, key_write = os.pipe()
        try:
            self.processes.append(
                subprocess.Popen(  # noqa: S603 - our own program, arguments of our own
                    [
                        *(*own_command(), "agent", "--name", name, "--address", "127.0.0.1"),
                        *("--port", "0", "--key-fd", str(key_read), "--parent", str(os.getpid())),
                    ],
                    pass_fds=[key_read],
                    stdin=subprocess.PIPE,  # closes when we end, however that comes about
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C reaches the coordinator alone
                )
            )
            os.write(key_write, self.key)
        finally:
            os.close(key_read)
            os.close(key_write)

    async def _address(self, process: subprocess.Popen[bytes], name: str, deadline_s: float) -> Address:
        assert process.stdout is not None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=4096)
        # a duplicate: the transport closes what it is given
        pipe = os.fdopen(os.dup(process.stdout.fileno()), "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            line = await asyncio.wait_for(reader.readline(), deadline_s)
            return Address(name=name, host="127.0.0.1", port=int(msgspec.json.decode(line)["port"]))
        except asyncio.TimeoutError:
            problem = f"it did not come up within {deadline_s:.0f} s and {process_state(process.pid)}"
        except (ValueError, KeyError, TypeError, msgspec.DecodeError):
            problem = f"it did not come up (exit code {process.poll()})"
        finally:
            transport.close()
        return Address(name=name, host="127.0.0.1", port=0, problem=f"the agent of {name}: {problem}")

    async def stop(self) -> None:
        """Ask them to leave by closing their input; kill what hasn't after LEAVE_S, and their children die with them."""
        for process in self.processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        await asyncio.gather(*(asyncio.to_thread(_wait, process, LEAVE_S) for process in self.processes))
        for process in self.processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        await asyncio.gather(*(asyncio.to_thread(_wait, process, LEAVE_S) for process in self.processes))


def own_command() -> list[str]:
    """This preflight by the same Python and path, not whatever lies in the working directory."""
    bootstrap = "import sys; n = int(sys.argv[1]); sys.path[:] = sys.argv[2:2 + n]; del sys.argv[1:2 + n]; from preflight.__main__ import main; main()"
    path = [folder for folder in sys.path if folder]
    return [sys.executable, "-I", "-c", bootstrap, str(len(path)), *path]


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
