"""From what ranks say of themselves to the placement they form, and the placement that was expected of their launcher."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from preflight.errors import ConfigError
from preflight.formats import read_bytes, readable
from preflight.model import RANK_SCHEMA, Job, Placement, RankFacts, Topology
from preflight.model.hostlist import fold_numbers
from preflight.plan.layout import MAX_WORLD_SIZE
from preflight.plan.placement import launch_gpus_per_node, launch_hosts, predict_placement

DOMAIN_SOURCE = "from the NVLink fabric, as the ranks read it"
FILE_PATTERN = "rank-*.json"  # what `preflight ranks --out` writes, one file for each rank
MAX_RANK_BYTES = 65536  # of one rank's file; about 1 kB is usual
_MARK = f'{{"schema":"{RANK_SCHEMA}"'.encode()
_DECODER = msgspec.json.Decoder(RankFacts)
_AGAIN = "run `preflight ranks` once more, on all ranks, into a new file"


def read_ranks(path: str | Path) -> tuple[RankFacts, ...]:
    """What `srun preflight ranks > FILE` or `preflight ranks --out FOLDER` wrote, in rank order.

    Lines of others (banners, warnings) are passed over, and so is what a launcher puts before a line ("3: ", "[1,3]<stdout>:"). Raises ConfigError: nothing
    there, a line cut off, a rank missing, there twice or in contradiction to another; the first such rank is named.
    """
    source = readable(str(path))
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises where a name is too long or a folder closed
        files = sorted(Path(path).glob(FILE_PATTERN))
        facts = [_decode(f"{source}/{file.name}", 1, read_bytes(file, MAX_RANK_BYTES)) for file in files]
    else:
        lines = enumerate(read_bytes(path).split(b"\n"), start=1)
        facts = [_decode(source, number, line) for number, line in lines if _MARK in line]
    if not facts:
        raise ConfigError(
            source,
            "holds no rank",
            remedy="write it with the job's own launcher: srun preflight ranks > FILE, or --out FOLDER",
        )
    return verified(facts, source=source)


def _decode(source: str, number: int, line: bytes) -> RankFacts:
    begin, end = line.find(_MARK), line.rfind(b"}") + 1
    try:
        return _DECODER.decode(line[max(begin, 0) : end])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(source, f"line {number} is not what one rank wrote: {error}", remedy=_AGAIN) from error


def verified(facts: Sequence[RankFacts], *, source: str) -> tuple[RankFacts, ...]:
    """The facts in rank order, if each rank of one job is there once. Raises ConfigError, naming the first rank that isn't."""
    ordered = tuple(sorted(facts, key=lambda one: one.rank))
    told = next((one for one in ordered if one.world_size is not None), None)
    size = len(ordered) if told is None or told.world_size is None else told.world_size
    if max(size, len(ordered)) > MAX_WORLD_SIZE:
        raise ConfigError(source, f"{max(size, len(ordered))} ranks are more than {MAX_WORLD_SIZE}")
    for expected, one in enumerate(ordered):
        if told is not None and one.world_size not in (None, size):
            raise ConfigError(
                source,
                f"rank {one.rank} on {one.host} says there are {one.world_size} ranks, rank {told.rank} on {told.host} says {size}",
                remedy=f"facts of two jobs are mixed: {_AGAIN}",
            )
        if one.local_rank is not None and not 0 <= one.local_rank < MAX_WORLD_SIZE:
            problem = f"rank {one.rank} on {one.host} says that it is number {one.local_rank} on its node"
            raise ConfigError(source, problem, remedy=_AGAIN)
        if one.rank < expected:
            other = ordered[expected - 1]
            raise ConfigError(
                source,
                f"rank {one.rank} is there twice, on {other.host} and on {one.host}",
                remedy=f"the launcher gave a number twice, or two runs are in one file: {_AGAIN}",
            )
        if one.rank != expected:
            break
    _refuse_gaps(source, ordered, size)
    return ordered


def _refuse_gaps(source: str, ordered: Sequence[RankFacts], size: int) -> None:
    here = {one.rank for one in ordered}
    if here == set(range(size)):
        return
    last = ordered[-1]
    if last.rank >= size and last.world_size is not None:
        raise ConfigError(source, f"rank {last.rank} on {last.host} is none of {size} ranks", remedy=_AGAIN)
    missing = sorted(set(range(max(size, last.rank + 1))) - here)
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    shown = fold_numbers(missing) if len(missing) <= 10_000 else f"{missing[0]}, ..."
    raise ConfigError(
        source,
        f"rank {missing[0]}{more} of {max(size, last.rank + 1)} did not say where it is (missing: {shown[:200]})",
        remedy="start `preflight ranks` on all ranks, as the job is started, and look why these did not come",
    )


def measured_placement(facts: Sequence[RankFacts], *, source: str = "ranks") -> Placement:
    """The placement that these ranks form; nodes in the order in which ranks first reach them.

    A node is a kernel that was booted once: containers with different host names and one boot id are one node, and two nodes of one
    name and different boot ids are two, told apart as "name@boot". Without a boot id the host name counts. Local ranks that a launcher doesn't tell, or
    tells twice on one node (a container for each GPU), are counted in rank order, and `method` says so. Raises ConfigError as read_ranks does.
    """
    ordered = verified(facts, source=source)
    identities = _identities(ordered)
    numbers = {identity: number for number, identity in enumerate(dict.fromkeys(identities))}
    node_ranks = tuple(numbers[identity] for identity in identities)
    members: list[list[RankFacts]] = [[] for _ in numbers]
    for one, node in zip(ordered, node_ranks, strict=True):
        members[node].append(one)
    local_ranks, counted = _local_ranks(members)
    uuids = tuple(one.gpu_uuid for one in ordered)
    domains = tuple(_domain(of_node) for of_node in members)
    told = any(domain is not None for domain in domains)
    placement = Placement(
        source="measured",
        method="as each rank says"
        + (f", local ranks counted on {counted} node{'s' * (counted > 1)}" if counted else ""),
        nodes=_names(members),
        node_ranks=node_ranks,
        local_ranks=tuple(local_ranks[one.rank] for one in ordered),
        gpu_uuids=uuids if any(uuids) else None,
    )
    return msgspec.structs.replace(placement, domains=domains, domain_source=DOMAIN_SOURCE) if told else placement


def launch_of(job: Job, facts: Sequence[RankFacts]) -> Job:
    """The job with what its ranks say of their launcher, where the plan file names none: srun numbered all of them, and how it was asked to deal them.

    What a hostfile says is not known here: nothing is said then.
    """
    told = facts[0].environment
    if job.launch.launcher is not None or any(one.numbered_by != "SLURM_PROCID" for one in facts):
        return job
    method = told.get("SLURM_DISTRIBUTION") or job.launch.distribution
    if method is not None and method.split(":")[0] == "plane":
        method = f"plane={told.get('SLURM_DIST_PLANESIZE')}"
    counts = told.get("SLURM_STEP_TASKS_PER_NODE", "")
    if (method or "").startswith("arbitrary") or "," in counts:
        return job
    return msgspec.structs.replace(
        job, launch=msgspec.structs.replace(job.launch, launcher="slurm", distribution=method)
    )


def predict_for(job: Job, measured: Placement, topology: Topology | None = None) -> Placement | None:
    """The placement that the job's launcher was expected to make on these nodes. None where the plan file names no launcher: nothing was expected.

    The nodes are those that [launch] names, else those that were found, in the order in which ranks reach them. Raises ConfigError where [launch]
    contradicts itself.
    """
    if job.launch.launcher is None:
        return None
    per_node = job.hardware.gpus_per_node or launch_gpus_per_node(job) or max(Counter(measured.node_ranks).values())
    names = launch_hosts(job) or measured.nodes
    return predict_placement(job, node_names=names, gpus_per_node=per_node, topology=topology)


def _identities(ordered: Sequence[RankFacts]) -> list[str]:
    """What makes two ranks neighbours: the boot id; for ranks without one the host name, or the boot id that all others of that name have."""
    boots: dict[str, set[str]] = {}
    for one in ordered:
        if one.boot_id is not None:
            boots.setdefault(one.host, set()).add(one.boot_id)
    by_host = {host: next(iter(ids)) for host, ids in boots.items() if len(ids) == 1}
    return [one.boot_id or by_host.get(one.host) or f"host {one.host}" for one in ordered]


def _names(members: Sequence[Sequence[RankFacts]]) -> tuple[str, ...]:
    """One name for each node: the scheduler's, else the host name, of its first rank; with the boot id where a name is there twice."""
    names = [of_node[0].node or of_node[0].host for of_node in members]
    times = Counter(names)
    return tuple(
        name if times[name] == 1 else f"{name}@{(of_node[0].boot_id or 'unknown')[:13]}"
        for name, of_node in zip(names, members, strict=True)
    )


def _local_ranks(members: Sequence[Sequence[RankFacts]]) -> tuple[dict[int, int], int]:
    """Rank -> local rank, and on how many nodes they were counted."""
    local: dict[int, int] = {}
    counted = 0
    for of_node in members:
        told = [one.local_rank for one in of_node if one.local_rank is not None]
        if len(set(told)) == len(of_node):
            local |= {one.rank: number for one, number in zip(of_node, told, strict=True)}
        else:
            counted += 1
            local |= {one.rank: number for number, one in enumerate(of_node)}
    return local, counted


def _domain(of_node: Sequence[RankFacts]) -> str | None:
    domains = {one.domain for one in of_node if one.domain is not None}
    return domains.pop() if len(domains) == 1 else None
