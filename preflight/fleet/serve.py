"""Running an agent as a process: its key, its signals, its end."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys

from preflight.errors import ConfigError
from preflight.fleet.agent import Agent, KeepReport, KeepVerdict, Settings, leave_with_parent, log
from preflight.fleet.auth import MIN_KEY_BYTES
from preflight.fleet.munge import MungeGate
from preflight.fleet.notify import Notifier
from preflight.probe.process import die_with_parent


def serve(
    settings: Settings,
    *,
    key: bytes | None,
    parent: int | None,
    munge: MungeGate | None = None,
    keep_verdict: KeepVerdict | None = None,
    keep_report: KeepReport | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until the parent of a local run ends. Raises UsageError if the address can't be bound, or if there is neither key nor munge."""
    if parent is not None:
        die_with_parent(parent)
    _raise_file_limit()
    notifier = Notifier.from_environment(os.environ)
    asyncio.run(_serve(Agent(settings, key, munge, keep_verdict, keep_report), notifier, parent))


async def _serve(agent: Agent, notifier: Notifier, parent: int | None) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, agent.leave.set)
    tasks = [loop.create_task(_say_when_leaving(agent, notifier))]
    if parent is not None:
        tasks.append(loop.create_task(leave_with_parent(agent, sys.stdin.fileno())))
    if agent.munge is not None:
        tasks.append(loop.create_task(_say_if_munge_fails(agent.munge)))

    def ready(port: int) -> None:
        settings = agent.settings
        told = json.dumps({"name": settings.name, "address": settings.address, "port": port}) + "\n"
        with contextlib.suppress(OSError, AttributeError):  # closed, or on a full disk: those who dial us need no line
            os.write(sys.stdout.fileno(), told.encode())
        notifier.ready(f"listens on {settings.address} port {port}")
        tasks.append(loop.create_task(notifier.keep_telling(agent.status)))

    try:
        await agent.serve(ready)
    finally:
        for task in tasks:
            task.cancel()
    if parent is None:
        log("ended")


async def _say_when_leaving(agent: Agent, notifier: Notifier) -> None:
    await agent.leave.wait()
    notifier.stopping()


async def _say_if_munge_fails(munge: MungeGate) -> None:
    """An agent that nobody can reach would otherwise say nothing of it."""
    trouble = await munge.trouble()
    if trouble:
        log(f"munge does not work here now, so that nobody can ask with it: {trouble}")


def read_inherited_key(descriptor: int) -> bytes:
    """The key from a pipe that the parent filled. Raises ConfigError."""
    try:
        with os.fdopen(descriptor, "rb") as pipe:
            key = pipe.read(4096)
    except OSError as error:
        raise ConfigError("--key-fd", f"the key can't be read: {error.strerror}") from error
    if len(key) < MIN_KEY_BYTES:
        raise ConfigError("--key-fd", f"the key has {len(key)} bytes, at least {MIN_KEY_BYTES} are needed")
    return key


def _raise_file_limit() -> None:
    """The soft limit of open files is 1024 on many systems; each connection and each worker takes some."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
