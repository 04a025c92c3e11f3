"""`preflight agent`: serve this node to a coordinator that has the key, or comes with munge."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from preflight.config import Site, read_config
from preflight.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from preflight.fleet.api import VerdictRequest

LOOPBACK = "127.0.0.1"


@click.command(name="agent")
@click.option(
    "--name",
    help="What this node calls itself, as Slurm does. Default: SLURMD_NODENAME if it is set, else the host name; with --munge or --give-way up to its first dot, as Slurm has it.",
)
@click.option(
    "--address",
    help="IP address to listen on, and for the data of its workers. Default: as the site's file says; 127.0.0.1 without one.",
)
@click.option("--interface", help="Listen on the address of this network interface.")
@click.option("--port", type=click.IntRange(0, 65535), help="0: any free port. Default: the site's file, or 9947.")
@click.option("--key-file", type=click.Path(path_type=Path), help="The shared key, at least 32 bytes, mode 0600.")
@click.option(
    "--munge",
    is_flag=True,
    help="Take requests with a munge credential of root, Slurm's user, or the site's [agent] users.",
)
@click.option(
    "--worker-user", help="Who the workers become when the agent is root. Default: the site's file, or nobody."
)
@click.option(
    "--give-way/--no-give-way",
    default=False,
    show_default=True,
    help="Refuse to probe while a job that the run is not for is at work here, and end when one comes.",
)
@click.option(
    "--check-every",
    metavar="TIME",
    help="How often to judge this node for /metrics; 0: never. Default: the site's file, or 5m.",
)
@click.option("--key-fd", type=int, hidden=True, help="Read the key from this descriptor.")
@click.option("--parent", type=int, hidden=True, help="Leave with this process; standard input is a pipe from it.")
def command(
    *,
    name: str | None,
    address: str | None,
    interface: str | None,
    port: int | None,
    key_file: Path | None,
    munge: bool,
    worker_user: str | None,
    give_way: bool,
    check_every: str | None,
    key_fd: int | None,
    parent: int | None,
) -> int:
    """Serve this node to a coordinator (`preflight run --hosts`, the controller prolog). Prints one line with its port when it is ready.

    Asks the site's file (/etc/preflight/preflight.toml, or PREFLIGHT_CONFIG) for what is not given here. deploy/systemd runs it as a service.
    """
    from preflight.fleet.agent import Settings
    from preflight.fleet.auth import can_be_target, read_key
    from preflight.fleet.history_keep import keeper_of_judgements
    from preflight.fleet.launch import launch_of
    from preflight.fleet.munge_users import gate_of
    from preflight.fleet.serve import read_inherited_key, serve

    site = Site() if parent else read_config()  # an agent of a local run belongs to that run alone
    agent = site.agent
    file = key_file or (Path(agent.key_file) if agent.key_file and not munge and key_fd is None else None)
    key = read_inherited_key(key_fd) if key_fd is not None else read_key(file) if file else None
    if key is None and not munge:
        raise UsageError(
            "an agent needs --munge, or --key-file: work is only done for those who come with one of them (openssl rand -hex 32 makes a key)"
        )
    name = name or own_name(short=munge or give_way)
    if not can_be_target(name):
        raise UsageError(f"--name {name!r}: a node's name is 1 to 253 letters of ASCII without spaces and commas")
    user = None if parent else unprivileged(worker_user, agent.worker_user)
    settings = Settings(
        name=name,
        address=listening_address(site, address, interface),
        port=agent.port if port is None else port,
        user=user,
        launch=launch_of(agent.worker_command, agent.worker_environment, user, source=site.source or ""),
        gives_way=give_way,
        check_every_s=0.0 if parent else _seconds(check_every, agent.check_every_s),
        rules=site.slurm.rules,
    )
    gate = gate_of(agent.users, agent.munge_socket) if munge else None
    keep = keeper(site.slurm.state_dir, name) if not parent else None
    judged = keeper_of_judgements(site, name) if not parent else None
    serve(settings, key=key, parent=parent, munge=gate, keep_verdict=keep, keep_report=judged)
    return 0


def _seconds(text: str | None, of_site: float) -> float:
    from preflight.model.units import parse_seconds

    try:
        return of_site if text is None else parse_seconds(text)
    except ValueError as error:
        raise UsageError(f"--check-every {error}") from error


def own_name(*, short: bool) -> str:
    """What this node calls itself. `short`: as Slurm does that was told no other name (slurm.conf(5), NodeName: what `hostname -s` gives), since its prologs ask for us and for our verdicts by that."""
    host = os.uname().nodename
    return os.environ.get("SLURMD_NODENAME") or (host.partition(".")[0] if short else host)


def listening_address(site: Site, address: str | None, interface: str | None) -> str:
    """What was asked for, else what the site's file says: an address, an interface, or nothing, which means the node's own address. Loopback where there is no file. Raises UsageError."""
    from preflight.fleet.interfaces import address_of, own_address

    if address and interface:
        raise UsageError("--address and --interface: give one of them")
    if address:
        return address
    if interface:
        return address_of(interface)
    if site.agent.address and site.agent.interface:
        raise ConfigError(site.source or "", "address and interface: give one of them", key="agent.interface")
    if site.agent.address:
        return site.agent.address
    if site.agent.interface:
        return address_of(site.agent.interface)
    return LOOPBACK if site.source is None else own_address()


def unprivileged(worker_user: str | None, of_site: str | None = None) -> tuple[int, int] | None:
    """The user that workers become: (uid, gid) if we are root, None if we are not. `of_site`: in the site's file, where it counts for root alone. Raises ConfigError, UsageError."""
    import pwd

    if os.geteuid() != 0:
        if worker_user:
            raise UsageError("--worker-user: only an agent that runs as root can start workers as another user")
        return None
    wanted = worker_user or of_site or "nobody"
    try:
        entry = pwd.getpwnam(wanted)
    except KeyError as error:
        raise ConfigError("--worker-user", f"there is no user {wanted!r} on this node") from error
    if entry.pw_uid == 0:
        sys.stderr.write("preflight agent: workers run as root, as asked for\n")
    return entry.pw_uid, entry.pw_gid


def keeper(state_dir: str, node: str) -> "Callable[[VerdictRequest], None]":
    """What keeps a verdict of this node where its prolog looks for it, with the boot that it is of."""

    def keep(request: "VerdictRequest") -> None:
        import time

        from preflight.errors import WorldError
        from preflight.slurm.verdicts import NodeVerdict, write_verdict

        now_s = time.time()
        try:
            boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            kept = NodeVerdict(
                node=node,
                run_id=request.run_id,
                verdict=request.verdict,
                boot_id=boot_id,
                written_at_s=now_s,
                expires_at_s=now_s + request.age_s,
                findings=request.findings,
                drained=request.drained,
                drained_at_s=now_s if request.drained else None,
            )
            write_verdict(state_dir, kept)
        except (OSError, ValueError) as error:
            raise WorldError(f"the verdict can't be kept: {error}") from error

    return keep
