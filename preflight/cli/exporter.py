"""`preflight exporter`: /metrics of the fleet, from the history that scans and runs keep."""

from pathlib import Path

import click

DEFAULT = "127.0.0.1:9948"  # beside the agent's port; unassigned with IANA


@click.command(name="exporter")
@click.option(
    "--listen",
    "--web.listen-address",
    "listen",
    envvar="PREFLIGHT_EXPORTER_LISTEN",
    default=DEFAULT,
    show_default=True,
    metavar="ADDRESS:PORT",
    help="IP address and port to serve /metrics on; anyone who reaches it may read.",
)
@click.option(
    "--history",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The history. Default: the site's file, or history.sqlite in the state folder.",
)
@click.option("--topology", metavar="FILE", help="Which leaf each node is on. Default: as the site's file says.")
@click.option("--age", help="How long a figure counts, such as 36h. Default: the site's [scan] age.")
def command(*, listen: str, history: Path | None, topology: str | None, age: str | None) -> int:
    """Serve the newest results of the fleet to Prometheus, from the history that `preflight scan` and `preflight run` keep. Reads only, and needs no more than the right to read that file.

    Simulated runs are left out. deploy/systemd/preflight-exporter.service runs it as a service.
    """
    import asyncio

    from preflight.config import read_config
    from preflight.fleet.exporter import Exporter, listening_socket, serve

    site = read_config()
    path = history or Path(site.scan.history or Path(site.slurm.state_dir) / "history.sqlite")
    exporter = Exporter(path, age_s=_seconds(age) or site.scan.age_s, leaves=_leaves(topology or site.slurm.topology))
    listening = listening_socket(*_address(listen))
    asyncio.run(serve(exporter, listening))
    return 0


def _address(listen: str) -> tuple[str, int]:
    from preflight.errors import UsageError

    host, _, port = listen.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--listen {listen!r}: give ADDRESS:PORT, such as {DEFAULT}; 0.0.0.0 is every address")
    return host.strip("[]"), int(port)


def _seconds(text: str | None) -> float | None:
    from preflight.errors import UsageError
    from preflight.model.units import parse_seconds

    if text is None:
        return None
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise UsageError(f"--age {error}; give for example 36h") from error


def _leaves(topology: str | None) -> dict[str, str]:
    """Node -> its leaf switch; empty where nobody told. Raises ConfigError."""
    if topology is None:
        return {}
    from preflight.discover.topology_files import read_topology

    switches = read_topology(topology).switches or {}
    return {node: above[0] for node, above in switches.items() if above}
