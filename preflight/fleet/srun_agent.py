"""Under srun: the agent of one node of a step. It lives as long as the step's run, never longer: it leaves when the coordinator says so, when the coordinator is silent for a lease, and
some seconds after SIGTERM, so that a run that is being cancelled still gets its answers and doesn't take nodes for lost.
"""

import asyncio
import contextlib
import errno
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence

import msgspec

from preflight.config import AgentSite
from preflight.errors import PreflightError, ProbeError, UsageError
from preflight.fleet.agent import Agent, Settings, leave_with_parent
from preflight.fleet.interfaces import address_of
from preflight.fleet.munge import Munge
from preflight.fleet.server import bind
from preflight.fleet.srun import Step, own_uid
from preflight.fleet.srun_address import LookUp, own_address
from preflight.fleet.srun_key import agent_gate
from preflight.probe.process import die_with_parent

LEASE_S = 90.0  # longer than a coordinator looks for agents
GRACE_S = 8.0  # after SIGTERM; Slurm sends SIGKILL after 30 s (KillWait)
LEAVE_S = 6.0  # an agent ends its workers within 3 s


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How agents of a step serve. `interface`: for the data of their workers, None: the address that they listen on. `look_up`: Slurm's addresses of nodes."""

    site: AgentSite
    interface: str | None
    look_up: LookUp
    lease_s: float = LEASE_S

    def ports(self, step: Step) -> tuple[int, ...]:
        """The ports to try."""
        return step.ports(self.site.first_port, self.site.last_port)


def serve_step(
    step: Step,
    key: bytes | None,
    options: AgentOptions,
    on_ready: Callable[[str, int], None] | None = None,
    hold: int | None = None,
) -> None:
    """Serve this node until the run is over. `hold`: a pipe; the run is over when its other end closes. Raises WorldError, UsageError if it can't listen, MungeError if nobody could be believed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(_serve(step, key, options, on_ready or (lambda *_: None), hold))


async def _serve(
    step: Step, key: bytes | None, options: AgentOptions, on_ready: Callable[[str, int], None], hold: int | None
) -> None:
    if key is None:  # a munge that answers nobody keeps nobody waiting
        await Munge(own_uid(), options.site.munge_socket).tools.encode(b"", uid=own_uid())
    address = await own_address(step, options.look_up)
    listening = take_port(address, options.ports(step))
    settings = Settings(
        name=step.target(step.node),
        address=address_of(options.interface) if options.interface else address,
        listen=address,
        lease_s=options.lease_s,
        leave_with_lease=True,
    )
    agent = Agent(settings, key, agent_gate(key, options.site))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: loop.call_later(GRACE_S, agent.leave.set))
    watch = None if hold is None else loop.create_task(leave_with_parent(agent, hold))
    await agent.serve(lambda port: on_ready(address, port), listening)
    if watch is not None:
        watch.cancel()
    if agent.left == "lease":
        say(step, "the coordinator is gone" if agent.asked else f"no coordinator came within {options.lease_s:g} s")


def take_port(address: str, ports: Sequence[int]) -> socket.socket:
    """A socket that listens on the first of these ports that is free. Raises UsageError."""
    trouble: UsageError | None = None
    for port in ports:
        try:
            listening = bind(address, port)
        except UsageError as error:
            trouble = error
            continue
        try:
            listening.listen(256)  # two that bound the port at the same moment: only one may listen
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        return listening
    raise UsageError(
        f"none of ports {min(ports)} to {max(ports)} is free on {address}: give first_port and last_port under [agent]"
    ) from trouble


class OwnAgent:
    """The agent of the coordinator's own node, in a process of its own. It ends with the coordinator, however that comes about."""

    def __init__(self, step: Step, key: bytes | None, options: AgentOptions) -> None:
        """Start it. Before any thread or event loop of ours: it is a fork."""
        told_read, told_write = os.pipe()
        hold_read, self._hold = os.pipe()
        self._where: tuple[str, int] | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._hold)
            _child(parent, step, key, options, (told_write, hold_read))
            os._exit(0)
        os.close(told_write)
        os.close(hold_read)
        self._told = os.fdopen(told_read, "rb", buffering=0)

    async def address(self, deadline_s: float) -> tuple[str, int]:
        """Where it listens. Raises ProbeError: it did not come up."""
        if self._where is None:
            if self._told.closed:
                raise ProbeError("the agent of this node did not come up")
            self._where = await self._awaited(deadline_s)
        return self._where

    async def _awaited(self, deadline_s: float) -> tuple[str, int]:
        reader = asyncio.StreamReader(limit=4096)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._told)
        try:
            told = json.loads(await asyncio.wait_for(reader.readline(), deadline_s) or b"{}")
            return str(told["address"]), int(told["port"])
        except asyncio.TimeoutError:
            raise ProbeError(f"the agent of this node did not come up within {deadline_s:.0f} s") from None
        except (ValueError, KeyError) as error:
            raise ProbeError("the agent of this node did not come up") from error
        finally:
            transport.close()

    async def end(self, deadline_s: float = LEAVE_S) -> None:
        """Let it leave; then kill it, and its workers die with it."""
        os.close(self._hold)
        for number in (0, signal.SIGKILL):
            if number:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)
            until = asyncio.get_running_loop().time() + deadline_s
            while asyncio.get_running_loop().time() < until:
                if self._ended():
                    return
                await asyncio.sleep(0.05)

    def _ended(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG) != (0, 0)
        except ChildProcessError:
            return True


def _child(parent: int, step: Step, key: bytes | None, options: AgentOptions, pipes: tuple[int, int]) -> None:
    """Whatever happens is said, and nothing is raised: a fork must never go on as its parent."""
    told, hold = pipes

    def ready(address: str, port: int) -> None:
        os.write(told, json.dumps({"address": address, "port": port}).encode() + b"\n")
        os.close(told)

    try:
        os.setsid()  # Ctrl-C reaches the coordinator alone
        die_with_parent(parent)
        serve_step(step, key, options, ready, hold)
    except PreflightError as error:
        say(step, str(error))
    except BaseException as error:  # noqa: BLE001 - as said above
        say(step, f"{type(error).__name__}: {error}")


def say(step: Step, text: str) -> None:
    """One line on standard error, with the node's name."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"preflight: {step.node}: {text}\n")
        sys.stderr.flush()
