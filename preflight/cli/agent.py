"""`preflight agent`: serve this node to a coordinator that has the key."""

import os
import sys
from pathlib import Path

import click

from preflight.errors import ConfigError, UsageError


@click.command(name="agent")
@click.option("--name", help="What this node calls itself. Default: its host name.")
@click.option(
    "--address",
    default="127.0.0.1",
    show_default=True,
    help="IP address to listen on, and for the data of its workers.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=9947, show_default=True, help="0: any free port.")
@click.option("--key-file", type=click.Path(path_type=Path), help="The shared key, at least 32 bytes, mode 0600.")
@click.option("--worker-user", help="Who the workers become when the agent is root. Default: nobody.")
@click.option("--key-fd", type=int, hidden=True, help="Read the key from this descriptor.")
@click.option("--parent", type=int, hidden=True, help="Leave with this process; standard input is a pipe from it.")
def command(
    name: str | None,
    address: str,
    port: int,
    key_file: Path | None,
    worker_user: str | None,
    key_fd: int | None,
    parent: int | None,
) -> int:
    """Serve this node to a coordinator (`preflight run --hosts`). Prints one line with its port when it is ready."""
    from preflight.fleet.agent import Settings
    from preflight.fleet.auth import can_be_target, read_key
    from preflight.fleet.serve import read_inherited_key, serve

    if key_fd is not None:
        key = read_inherited_key(key_fd)
    elif key_file is not None:
        key = read_key(key_file)
    else:
        raise UsageError(
            "an agent needs --key-file: work is only done for those who have the key (openssl rand -hex 32 makes one)"
        )
    name = name or os.uname().nodename
    if not can_be_target(name):
        raise UsageError(f"--name {name!r}: a node's name is 1 to 253 letters of ASCII without spaces and commas")
    user = None if parent else unprivileged(worker_user)
    serve(Settings(name=name, address=address, port=port, user=user), key=key, parent=parent)
    return 0


def unprivileged(worker_user: str | None) -> tuple[int, int] | None:
    """The user that workers become: (uid, gid) if we are root, None if we are not. Raises ConfigError, UsageError."""
    import pwd

    if os.geteuid() != 0:
        if worker_user:
            raise UsageError("--worker-user: only an agent that runs as root can start workers as another user")
        return None
    try:
        entry = pwd.getpwnam(worker_user or "nobody")
    except KeyError as error:
        raise ConfigError("--worker-user", f"there is no user {worker_user or 'nobody'!r} on this node") from error
    if entry.pw_uid == 0:
        sys.stderr.write("preflight agent: workers run as root, as asked for\n")
    return entry.pw_uid, entry.pw_gid
