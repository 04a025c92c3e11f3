"""The job that `preflight plan` lays out: from a plan file, or imported from what the framework has, with the command line on top."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preflight.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from preflight.model import Job, Placement, Topology
    from preflight.plan.importers import Imported
    from preflight.plan.importers.facts import Fact

HARDWARE = ("nodes", "gpus_per_node", "gpu")  # the options that belong there; the others say how the job is launched
OF_ANY_LAUNCHER = ("hosts", "master", "topology")


def read_input(
    plan: Path | None, from_files: Sequence[Path], said: Mapping[str, Any], *, advise: bool
) -> "tuple[Job, Imported | None]":
    """The job, and with `from_files` what was imported; what the command line says goes before both. Raises UsageError, ConfigError.

    `said`: options by key of the plan file, None where not given.
    """
    from preflight.formats import readable
    from preflight.plan.planfile import job_of, read_job

    if (plan is None) == (not from_files):
        raise UsageError(
            "give a PLAN file, or --from FILE once or more, not both; one of the --from files may be a plan file"
        )
    if plan is not None:
        return override(read_job(plan, need_layout=not advise), said), None
    from preflight.plan.importers import NOT_GIVEN, import_files

    imported = import_files(from_files, told(said))
    source = ",".join(readable(str(path)) for path in from_files)
    try:
        return job_of(imported.document, source, need_layout=not advise), imported
    except ConfigError as error:
        if "is missing" not in error.problem:
            raise
        remedy = f"{error.remedy}; a small plan file with just that may be one more --from"
        remedy = "\n  ".join([remedy, *(note for note in imported.notes if NOT_GIVEN in note)])
        raise ConfigError(error.source, error.problem, key=error.key, remedy=remedy) from None


def override(job: "Job", said: Mapping[str, Any]) -> "Job":
    """The job with what the command line says; what it leaves out (None) stays.

    With another launcher, what the plan file says of its own one's ways (its distribution, its hostfile, ...) goes.
    """
    import msgspec

    from preflight.model import Launch

    given = {key: value for key, value in said.items() if value is not None}
    hardware = {key: given.pop(key) for key in HARDWARE if key in given}
    if hardware:
        job = msgspec.structs.replace(job, hardware=msgspec.structs.replace(job.hardware, **hardware))
    if "hosts" in given:
        given["hosts"] = _host_names(given["hosts"])
    if not given:
        return job
    kept = job.launch
    if given.get("launcher", kept.launcher) != kept.launcher:
        kept = Launch(**{key: getattr(kept, key) for key in OF_ANY_LAUNCHER})
    return msgspec.structs.replace(job, launch=msgspec.structs.replace(kept, **given))


def told(said: Mapping[str, Any]) -> "dict[str, Fact]":
    """What the command line says, by key of the plan file and with its origin: an import shows it, reckons with it and saves it."""
    from preflight.plan.importers.facts import Fact

    facts = {}
    for key, value in said.items():
        if value is None:
            continue
        if key == "hosts":
            _host_names(value)
        section = "hardware" if key in HARDWARE else "launch"
        # a relative path is meant from here, while those of a plan file begin at the file
        here = str(Path(value).absolute()) if key in {"hostfile", "topology"} else value
        facts[f"{section}.{key}"] = Fact(here, f"command line --{key.replace('_', '-')} {value}")
    return facts


def _host_names(text: str) -> tuple[str, ...]:
    from preflight.model.hostlist import unfold

    try:
        return tuple(unfold(text))
    except ValueError as error:
        raise UsageError(f"--hosts: {error}") from error


def read_surroundings(job: "Job", ranks: Path | None) -> "tuple[Job, Placement | None, Topology | None]":
    """The measured placement of `--ranks`, and the topology file of the job; None: not given. The job with what its ranks say of their launcher."""
    placement = topology = None
    if ranks is not None:
        from preflight.plan.measured import launch_of, measured_placement, read_ranks

        facts = read_ranks(ranks)
        placement, job = measured_placement(facts), launch_of(job, facts)
    if job.launch.topology is not None:
        from preflight.discover.topology_files import read_topology

        topology = read_topology(Path(job.launch.topology))
    return job, placement, topology


def parse_measured_memory(text: str) -> dict[str, int]:
    """`--measured-memory`: "71.9GiB" (the total), or "total=71.9GiB,activations=20GB,...". Raises UsageError."""
    from typing import get_args

    from preflight.model import MemoryPart
    from preflight.model.units import MEGA, parse_bytes

    known = ("total", *get_args(MemoryPart))
    measured = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        part, size = (name.strip(), value) if equals else ("total", name)
        if part not in known:
            raise UsageError(f"--measured-memory: {part!r} is not one of {', '.join(known)}")
        if part in measured:
            raise UsageError(f"--measured-memory: {part} is given twice")
        try:
            measured[part] = parse_bytes(size.strip())
        except ValueError as error:
            raise UsageError(f"--measured-memory: {error}") from error
        if measured[part] < MEGA:
            raise UsageError(
                f'--measured-memory: {size.strip()!r} is {measured[part]} bytes: give a unit, as in "71.9GiB"'
            )
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
