"""`preflight judge --nccl-tests`: logs that somebody's nccl-tests wrote, judged as a run of preflight's own would be."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from preflight.cli.judged import judged_report
from preflight.cli.logs_combined import Said, combined
from preflight.judge.localise import localise
from preflight.model import Check, Coverage, Evidence, Localisation, Report, Rule, Settings, Topology
from preflight.model.expected_rate import expected_of_profile
from preflight.model.localisation import Ends
from preflight.probe.nccl_tests.died import culprits_of_deaths
from preflight.probe.nccl_tests.families import Family, families_of, figures_at
from preflight.probe.nccl_tests.files import Logs, read_logs
from preflight.probe.nccl_tests.groups import judge_groups
from preflight.probe.nccl_tests.reasons import with_figures
from preflight.probe.nccl_tests.run import COLLECTIVES
from preflight.probe.nccl_tests.shots import Book, ends_of_logs, shots_of
from preflight.probe.nccl_tests.singles import Hint, judge_singles
from preflight.report.text import clean

MAX_SAID = 10  # files whose being left out is told one by one


def report_of_logs(
    paths: Sequence[Path], topology: Path | None, rules: dict[str, Rule], checks: Sequence[Check]
) -> Report:
    """The report of these logs. Raises ConfigError: not one run in them, a topology file that is wrong."""
    began_s, began = time.time(), time.perf_counter()
    logs = read_logs(paths)
    told = _topology(topology)
    evidence, families = evidence_of_logs(logs, told, rules)
    _say_what_is_left_out(logs)
    wanted = [check for check in checks if "measurements" in check.uses and "plan" not in check.uses]
    report = judged_report("judge", evidence, wanted, began_s=began_s, began=began)
    versions = sorted({run.version for run in logs.runs if run.version})
    environment = msgspec.structs.replace(
        report.environment,
        versions={**report.environment.versions, **({"nccl-tests": ", ".join(versions)} if versions else {})},
    )
    return msgspec.structs.replace(report, environment=environment, coverage=_coverage(families))


def evidence_of_logs(logs: Logs, topology: Topology | None, rules: dict[str, Rule]) -> tuple[Evidence, list[Family]]:
    """What the logs say, with what the localiser makes of it."""
    families, left_out = families_of(logs.runs)
    leaf_of = topology.leaf_of if topology and topology.switches else None
    ends = ends_of_logs(families, leaf_of)
    book = Book(ends, families)
    said, others, notes = (
        [],
        list(culprits_of_deaths(logs.runs, ends)),
        [f"{source} {why}: left out" for source, why in left_out],
    )
    for family in families:
        if family.why:
            notes.append(f"{family.name}: not judged: {family.why}")
        said += [Said(family, size, found) for size in family.sizes if (found := _localised(family, size, ends, book))]
    localisation = combined(said, ends, others, [*notes, *_transport_notes(families)])
    measurements = tuple(measurement for family in families for measurement in book.measurements(family))
    settings = Settings(backend="nccl", backend_reason="logs of nccl-tests")
    return Evidence(
        settings=settings, topology=topology, rules=rules, measurements=measurements, localisation=localisation
    ), families


def _localised(family: Family, size_bytes: int, ends: Ends, book: Book) -> Localisation | None:
    """What the runs of a family say at one size; None: it has none that can be judged."""
    if family.kind.num_hosts == 1:
        return judge_singles(family, size_bytes, ends, book, _hint(family, size_bytes))
    if family.kind.num_hosts > 2:
        return judge_groups(family, size_bytes, ends)
    shots = shots_of(family, size_bytes, ends, book)
    if shots is None:
        return None
    found = localise(ends, shots)
    named = tuple(culprit for culprit in found.culprits if culprit.kind is not None)
    culprits = tuple(with_figures(culprit, family, size_bytes, ends, named) for culprit in found.culprits)
    return msgspec.structs.replace(found, culprits=culprits)


def _hint(family: Family, size_bytes: int) -> Hint | None:
    """What a formula allows inside a node of this product; None: none is known. Between nodes it needs the NICs, which logs don't tell."""
    from preflight.plan.profiles import find_profile

    kind = family.kind
    collective = COLLECTIVES.get(kind.program)
    if collective is None or kind.gpus is None or len(kind.products) != 1 or kind.groups != 1:
        return None
    profile = find_profile(kind.products[0])
    expected = expected_of_profile(profile, collective, gpus=kind.gpus, size_bytes=size_bytes)
    if expected.bytes_per_s is None:
        return None
    return Hint(expected.bytes_per_s, expected.at_least, f"{expected.formula}; {expected.source}")


def _transport_notes(families: Sequence[Family]) -> list[str]:
    """Where some runs of a family used another transport than the rest."""
    notes = []
    for family in families:
        by_hints: dict[tuple[str, ...], list[str]] = {}
        for run in family.runs:
            if run.hints:
                by_hints.setdefault(tuple(sorted(run.hints)), []).append("-".join(run.hosts))
        if len(by_hints) > 1:
            told = "; ".join(
                f"{', '.join(hints)}: {len(who)} runs ({', '.join(who[:4])}{', ...' if len(who) > 4 else ''})"
                for hints, who in by_hints.items()
            )
            notes.append(f"{family.name}: NCCL chose unlike transports: {told}")
    return notes


def _topology(path: Path | None) -> Topology | None:
    if path is None:
        return None
    from preflight.discover.topology_files import read_topology

    return read_topology(path)


def _coverage(families: Sequence[Family]) -> Coverage:
    """Pairs of nodes with a run, and those with a figure."""
    tried: set[frozenset[str]] = set()
    measured: set[frozenset[str]] = set()
    for family in families:
        for run in family.runs:
            if len(run.hosts) == 2:
                tried.add(frozenset(run.hosts))
                if any(figures_at(run, size) for size in family.sizes):
                    measured.add(frozenset(run.hosts))
    return Coverage(pairs_planned=len(tried), pairs_measured=len(measured))


def _say_what_is_left_out(logs: Logs) -> None:
    for source, why in logs.skipped[:MAX_SAID]:
        print(f"preflight: {clean(source)} {clean(why)}: left out", file=sys.stderr)
    if len(logs.skipped) > MAX_SAID:
        print(f"preflight: and {len(logs.skipped) - MAX_SAID} more of {logs.num_files} files left out", file=sys.stderr)
