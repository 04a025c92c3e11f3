"""Running an agent as a process: its key, its signals, its end."""

import asyncio
import json
import os
import resource
import signal
import sys

from preflight.errors import ConfigError
from preflight.fleet.agent import Agent, Settings, leave_with_parent, log
from preflight.fleet.auth import MIN_KEY_BYTES
from preflight.fleet.munge import MungeGate
from preflight.probe.process import die_with_parent


def serve(settings: Settings, *, key: bytes | None, parent: int | None, munge: MungeGate | None = None) -> None:
    """Serve until SIGTERM or SIGINT, or until the parent of a local run ends. Raises UsageError if the address can't be bound, or if there is neither key nor munge."""
    if parent is not None:
        die_with_parent(parent)
    _raise_file_limit()
    asyncio.run(_serve(settings, key, munge, parent))


async def _serve(settings: Settings, key: bytes | None, munge: MungeGate | None, parent: int | None) -> None:
    agent = Agent(settings, key, munge)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, agent.leave.set)
    watch = loop.create_task(leave_with_parent(agent, sys.stdin.fileno())) if parent is not None else None

    def ready(port: int) -> None:
        sys.stdout.write(json.dumps({"name": settings.name, "address": settings.address, "port": port}) + "\n")
        sys.stdout.flush()

    await agent.serve(ready)
    if watch:
        watch.cancel()
    else:
        log("ended")


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
