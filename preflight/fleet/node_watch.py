"""Judges an agent's own node now and then, in a child with a deadline: `preflight node`. Nothing of a driver, and nothing heavy, comes into the agent."""

import asyncio
import contextlib
import os
import random
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from preflight.errors import PreflightError
from preflight.fleet.agent_metrics import AgentMetrics, own_environment
from preflight.fleet.threads import in_daemon_thread
from preflight.model import Report, from_json

READ_S = 20.0  # the driver's time to answer
DEADLINE_S = 60.0  # of the child; its imports on a busy node included
FIRST_S = 30.0  # at the latest so long after the start
MAX_BYTES = 16 * 2**20  # a report of 8 GPUs has some 100 kB
LOOK_S = 0.5
REAP_S = 2.0


class GaveWayError(Exception):
    """A run came: the node is not read beside it."""


class NodeWatch:
    """`every_s`: seconds between two judgements, give or take a tenth. `busy`: a run of ours is under way: then none is begun, and one that was begun ends. `judged`: is given each report, in a thread of its own. `say`: a line for the log."""

    def __init__(
        self,
        metrics: AgentMetrics,
        every_s: float,
        *,
        busy: Callable[[], bool],
        judged: Callable[[Report], object] | None = None,
        say: Callable[[str], object] = lambda _: None,
        rules: str | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        self.metrics, self.every_s, self.busy, self.judged, self.say = metrics, every_s, busy, judged, say
        more = ("--rules", rules) if rules else ()
        judge = child_command("from preflight.__main__ import main; main()")
        self.command = command or (*judge, "node", "--format", "json", "--timeout", f"{READ_S:g}s", *more)
        self._told = ""

    async def run(self) -> None:
        """Until it is cancelled."""
        await asyncio.sleep(random.uniform(0, min(self.every_s, FIRST_S)))
        while True:
            if self.busy():
                await asyncio.sleep(LOOK_S)
                continue
            try:
                await self.judge_once()
            except GaveWayError:
                continue
            await asyncio.sleep(self.every_s * random.uniform(0.9, 1.1))

    async def judge_once(self) -> None:
        """One judgement. Raises GaveWayError."""
        began_s = time.time()
        try:
            report = from_json(await self._ask(), Report)
        except (OSError, ValueError, PreflightError, msgspec.DecodeError) as error:
            self.metrics.no_judgement(began_s)
            self._note(f"this node could not be judged: {error}")
            return
        self.metrics.judgement(report)
        judged = self.judged
        if judged is not None:
            try:
                await in_daemon_thread(lambda: judged(report))
            except (OSError, PreflightError) as error:
                self._note(f"the judgement can't be kept: {error}")
                return
        self._told = ""

    def _note(self, text: str) -> None:
        """Said once, not every few minutes."""
        if text != self._told:
            self._told = text
            self.say(text)

    async def _ask(self) -> bytes:
        """The report. Raises OSError, ValueError: the child did not come up, ended badly, hung or said too much; GaveWayError."""
        ended = threading.Event()
        try:
            return await in_daemon_thread(lambda: _answer_of(self.command, lambda: ended.is_set() or self.busy()))
        finally:
            ended.set()  # cancelled: the thread ends the child


def child_command(program: str) -> list[str]:
    """A Python that runs this of the same preflight, and that the kernel kills when we end, however that comes about. The words that follow are its sys.argv[1:]."""
    path = [folder for folder in sys.path if folder]
    start = (
        "import sys; parent, n = map(int, sys.argv[1:3]); sys.path[:] = sys.argv[3:3 + n]; del sys.argv[1:3 + n]; "
        "from preflight.probe.process import die_with_parent; die_with_parent(parent); "
    )
    return [sys.executable, "-I", "-c", start + program, str(os.getpid()), str(len(path)), *path]


def _answer_of(command: Sequence[str], give_way: Callable[[], bool]) -> bytes:
    """What a child says, in a process group of its own, which is gone afterwards. This thread stays until then: the child dies with the thread that started it. Raises as `_ask`."""
    ends_at = time.monotonic() + DEADLINE_S
    with subprocess.Popen(  # noqa: S603 - our own program
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=own_environment(),
    ) as child:
        assert child.stdout is not None
        said, whole = bytearray(), False
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(child.stdout, selectors.EVENT_READ)
                while not whole:
                    if give_way():
                        raise GaveWayError
                    if time.monotonic() > ends_at:
                        raise ValueError(f"`preflight node` did not end within {DEADLINE_S:g} s")
                    if selector.select(LOOK_S):
                        part = os.read(child.stdout.fileno(), 2**16)
                        said += part
                        whole = not part
                    if len(said) > MAX_BYTES:
                        raise ValueError(f"`preflight node` said more than {MAX_BYTES // 2**20} MiB")
        finally:
            _end(child, whole=whole)
    if not said:
        raise ValueError("`preflight node` said nothing")
    return bytes(said)


def _end(child: "subprocess.Popen[bytes]", *, whole: bool) -> None:
    """The child and what it started; `whole`: nobody holds its output any more. One that the kernel holds is left behind."""
    if whole:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(REAP_S)
    if not whole or child.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(REAP_S)
    if child.returncode is None:
        child.returncode = -signal.SIGKILL  # leaving the block must not wait for it
