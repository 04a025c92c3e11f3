"""The agent's side of the zygote: start it, ask it for processes, notice when they or it end, kill what doesn't obey.

Processes are killed by group, reaped with a second deadline, and reported when they can't be reaped (uninterruptible sleep) instead of waited for.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import msgspec

from preflight.errors import ConfigError, ProbeError
from preflight.fleet.channel import Channel, Closed
from preflight.fleet.launch import Launch, refuse_foreign_program
from preflight.fleet.threads import in_daemon_thread
from preflight.probe.messages import Exited, FromZygote, Spawn, Spawned, SpawnFailed, ZygoteFailed, ZygoteReady
from preflight.probe.process import pid_namespace

LOOK_S = 10.0
REAP_S = 3.0  # after SIGKILL a process is gone within milliseconds, unless it sleeps uninterruptibly in a driver

NO_TORCH = (
    "torch is not installed in this environment, so nothing can be measured; everything but probing works without. "
    "Get it with: pip install 'cluster-preflight[fabric]', or run preflight with the Python of the job's own environment"
)
HINT = " (what it said stands in the agent's log; worker_command must end in a Python of 3.10 or newer that has torch and msgspec)"


class Child:
    """One forked process: a worker or a store host, with our end of its channel. `exit_code` is set when it has ended."""

    def __init__(self, channel: Channel, pid: int) -> None:
        self.channel = channel
        self.pid = pid
        self.ended = asyncio.Event()
        self.exit_code: int | None = None

    def describe(self) -> str:
        """What the kernel says of the process: "stopped (T)", "uninterruptible sleep (D)", ..."""
        return process_state(self.pid) if self.exit_code is None else exit_text(self.exit_code)

    async def kill(self) -> bool:
        """SIGKILL its process group and wait for the zygote's word. False: it could not be reaped in time."""
        if self.exit_code is None:
            for kill in (os.killpg, os.kill):  # right after the fork it has no group of its own yet
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(self.pid, signal.SIGKILL)
        self.channel.close()
        try:
            await asyncio.wait_for(self.ended.wait(), REAP_S)
        except asyncio.TimeoutError:
            # one that has ended and is not reaped yet (the zygote may be stopped) holds nothing any more
            return process_state(self.pid) in {GONE, ENDED}
        return True


class Zygote:
    """One zygote process. Once it has ended (or hangs) it is of no more use: start another."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, versions: dict[str, str]) -> None:
        self.process = process
        self.channel = channel
        self.versions = versions
        self.children: dict[int, Child] = {}
        self.waiting: dict[int, tuple[Channel, asyncio.Future[Child]]] = {}
        self.next_ticket = 0
        self.alive = True
        self.reader = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def start(cls, launch: Launch, deadline_s: float) -> "Zygote":
        """Start it and wait until torch is imported. Raises ProbeError."""
        if launch.command is not None:
            await _look_again(launch.command[0], min(LOOK_S, deadline_s))
        channel = Channel()
        try:
            process = _begin(launch, channel.theirs.fileno())
        except OSError as error:
            channel.close()
            raise ProbeError(f"the process that imports torch can't be started: {error.strerror}") from error
        channel.close_theirs()
        try:
            first = await channel.receive(ZygoteReady | ZygoteFailed, deadline_s)
        except BaseException as error:
            _end(process, channel)
            if isinstance(error, asyncio.TimeoutError):
                raise ProbeError(f"importing torch took more than {deadline_s:.3g} s") from None
            if isinstance(error, Closed):
                ended = exit_text(process.returncode) + (HINT if launch.is_sites else "")
                raise ProbeError(f"the process that imports torch ended: {ended}") from error
            raise
        if launch.is_sites and isinstance(first, ZygoteReady):
            await _refuse_foreign_ids(first, process, channel)
        if isinstance(first, ZygoteFailed):
            _end(process, channel)
            missing = "No module named 'torch'" in first.text
            raise ProbeError(NO_TORCH if missing else f"torch can't be imported: {first.text}")
        return cls(process, channel, first.versions)

    async def spawn(self, request: Spawn, deadline_s: float, descriptors: list[int] | None = None) -> Child:
        """Fork one process. Raises ProbeError if the zygote doesn't answer in time; it is then unusable."""
        self.next_ticket += 1
        ticket = self.next_ticket
        channel = Channel()
        future: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self.waiting[ticket] = (channel, future)
        try:
            message = msgspec.structs.replace(request, ticket=ticket)
            await self.channel.send(message, [channel.theirs.fileno(), *(descriptors or [])])
            channel.close_theirs()
            return await asyncio.wait_for(future, deadline_s)
        except (asyncio.TimeoutError, Closed) as error:
            channel.close()
            text = "the process that forks workers " + (process_state(self.process.pid) if self.alive else "has ended")
            self.alive = False
            raise ProbeError(text) from error
        except ProbeError:
            channel.close()
            raise
        finally:
            self.waiting.pop(ticket, None)

    async def _read(self) -> None:
        with contextlib.suppress(Closed):
            while True:
                message = await self.channel.receive(FromZygote, None)
                if isinstance(message, Spawned) and message.ticket in self.waiting:
                    channel, future = self.waiting[message.ticket]
                    child = self.children[message.ticket] = Child(channel, message.pid)
                    if not future.done():
                        future.set_result(child)
                elif isinstance(message, SpawnFailed) and message.ticket in self.waiting:
                    future = self.waiting[message.ticket][1]
                    if not future.done():
                        future.set_exception(ProbeError(message.text))
                elif isinstance(message, Exited) and message.ticket in self.children:
                    self._ended(self.children.pop(message.ticket), message.code)
        self.alive = False
        for child in list(self.children.values()):  # they die with it
            self._ended(child, -signal.SIGKILL)
        self.children.clear()

    @staticmethod
    def _ended(child: Child, code: int) -> None:
        child.exit_code = code
        child.ended.set()

    async def stop(self) -> tuple[str, ...]:
        """Kill all children, then the zygote. Gives a text for each process that could not be reaped."""
        children = list(self.children.values())
        reaped = await asyncio.gather(*(child.kill() for child in children))
        stuck = [
            f"process {c.pid}: {process_state(c.pid)}" for c, gone in zip(children, reaped, strict=True) if not gone
        ]
        self.reader.cancel()
        self.alive = False
        if not await _ended(self.process, self.channel):
            stuck.append(f"process {self.process.pid}: {process_state(self.process.pid)}")
        return tuple(stuck)


async def _look_again(program: str, deadline_s: float) -> None:
    """The site's program may lie on a file system that hangs, and starting it would hang us with it; or be another's by now. Raises ProbeError."""
    try:
        await asyncio.wait_for(in_daemon_thread(lambda: refuse_foreign_program(program, "worker_command")), deadline_s)
    except asyncio.TimeoutError:
        text = f"{program} of worker_command can't be reached: its file system gave no answer within {deadline_s:.3g} s"
        raise ProbeError(text) from None
    except ConfigError as error:
        raise ProbeError(str(error)) from error


def _begin(launch: Launch, theirs: int) -> subprocess.Popen[bytes]:
    """Raises OSError."""
    words = [*launch.words(), str(theirs), str(os.getpid())]
    null = subprocess.DEVNULL
    if launch.is_sites and launch.user is not None:
        uid, gid = launch.user
        return subprocess.Popen(  # noqa: S603 - the site's command, checked; as the workers' user
            words,
            pass_fds=[theirs],
            stdin=null,
            stdout=null,
            start_new_session=True,
            env=launch.environment,
            cwd="/",
            user=uid,
            group=gid,
            extra_groups=[],
        )
    cwd = "/" if launch.is_sites else None
    return subprocess.Popen(  # noqa: S603 - the command is our own or the site's
        words, pass_fds=[theirs], stdin=null, stdout=null, start_new_session=True, env=launch.environment, cwd=cwd
    )


async def _refuse_foreign_ids(ready: ZygoteReady, process: subprocess.Popen[bytes], channel: Channel) -> None:
    """Raises ProbeError where the process ids of workers are not ours: to kill one of them would hit somebody else."""
    if ready.pid_namespace is None or ready.pid_namespace != pid_namespace():
        await _ended(process, channel)
        raise ProbeError(
            "worker_command starts Python in a process namespace of its own, where workers can't be ended from outside: leave out --pid, --containall or the like"
        )


def _kill(process: subprocess.Popen[bytes], channel: Channel) -> None:
    channel.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes], channel: Channel) -> None:
    """At once: what is under way is being cancelled."""
    _kill(process, channel)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(REAP_S)


async def _ended(process: subprocess.Popen[bytes], channel: Channel) -> bool:
    """Kill it; whether it could be reaped in time. Others are served meanwhile."""
    _kill(process, channel)
    until = time.monotonic() + REAP_S
    while process.poll() is None:
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.005)
    return True


GONE, ENDED = "is gone", "is ended (Z)"
_STATES = {"R": "running", "S": "sleeping", "D": "uninterruptible sleep", "T": "stopped", "t": "traced", "Z": "ended"}


def process_state(pid: int) -> str:
    """The state of a process in words, from /proc/PID/stat."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return GONE
    return f"is {_STATES.get(letter, 'in state')} ({letter})"


def exit_text(code: int | None) -> str:
    """-9 -> "killed by SIGKILL", 70 -> "exit code 70"."""
    if code is None:
        return "no exit code"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
