"""The job that `preflight plan` lays out: from a plan file, or imported from what the framework has, with the command line on top."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preflight.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from preflight.model import Job, Placement, Topology
    from preflight.plan.importers import Imported

COMMAND_LINE = "command line"


def read_input(plan: Path | None, from_files: Sequence[Path], *, advise: bool) -> "tuple[Job, Imported | None]":
    """The job, and with `from_files` what was imported. Raises UsageError, ConfigError."""
    from preflight.formats import readable
    from preflight.plan.planfile import job_of, read_job

    if (plan is None) == (not from_files):
        raise UsageError("give a PLAN file, or --from FILE once or more, not both")
    if plan is not None:
        return read_job(plan, need_layout=not advise), None
    from preflight.plan.importers import import_files

    imported = import_files(from_files)
    source = ",".join(readable(str(path)) for path in from_files)
    return job_of(imported.document, source, need_layout=not advise), imported


def override(job: "Job", launch: Mapping[str, Any]) -> "Job":
    """The job with what the command line says of the launch; what it leaves out (None) stays.

    With another launcher, what the plan file says of its own one's ways (its distribution, its hostfile, ...) goes.
    """
    import msgspec

    from preflight.model import Launch

    given = {key: value for key, value in launch.items() if value is not None}
    if "hosts" in given:
        from preflight.model.hostlist import unfold

        try:
            given["hosts"] = tuple(unfold(given["hosts"]))
        except ValueError as error:
            raise UsageError(f"--hosts: {error}") from error
    if not given:
        return job
    kept = job.launch
    if given.get("launcher", kept.launcher) != kept.launcher:
        kept = Launch(hosts=kept.hosts, master=kept.master, topology=kept.topology)
    return msgspec.structs.replace(job, launch=msgspec.structs.replace(kept, **given))


def read_surroundings(job: "Job", ranks: Path | None) -> "tuple[Placement | None, Topology | None]":
    """The measured placement of `--ranks`, and the topology file of the job; None: not given."""
    placement = topology = None
    if ranks is not None:
        from preflight.plan.measured import measured_placement, read_ranks

        placement = measured_placement(read_ranks(ranks))
    if job.launch.topology is not None:
        from preflight.discover.topology_files import read_topology

        topology = read_topology(Path(job.launch.topology))
    return placement, topology


def parse_measured_memory(text: str) -> dict[str, int]:
    """`--measured-memory`: "71.9GiB" (the total), or "total=71.9GiB,activations=20GB,...". Raises UsageError."""
    from typing import get_args

    from preflight.model import MemoryPart
    from preflight.model.units import parse_bytes

    known = ("total", *get_args(MemoryPart))
    measured = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        part, size = (name.strip(), value) if equals else ("total", name)
        if part not in known:
            raise UsageError(f"--measured-memory: {part!r} is not one of {', '.join(known)}")
        try:
            measured[part] = parse_bytes(size.strip())
        except ValueError as error:
            raise UsageError(f"--measured-memory: {error}") from error
    return measured


def parse_duration(option: str, text: str) -> float:
    """A duration above 0, such as "13.75s". Raises UsageError."""
    from preflight.model.units import parse_seconds

    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error
    if seconds <= 0:
        raise UsageError(f"{option}: {text!r} is not above 0")
    return seconds


def refuse_missing(job: "Job", what: str, why: str) -> None:
    """Raise ConfigError: an option asks for something that the plan file doesn't say enough for."""
    raise ConfigError(job.source, what, remedy=why)
