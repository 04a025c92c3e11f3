"""The measuring of the controller prolog: what Slurm says of the job, the run over its nodes' resident agents, and whether the job is still the same afterwards."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from preflight.config import Site
from preflight.errors import SlurmError, WorldError
from preflight.model.hostlist import unfold
from preflight.slurm.commands import Slurm
from preflight.slurm.controller_decide import decide
from preflight.slurm.controller_plan import Wanted, what_to_measure
from preflight.slurm.controller_record import Decision
from preflight.slurm.controller_world import patient_world
from preflight.slurm.directive import Directive
from preflight.slurm.job import SlurmJobContext
from preflight.slurm.jobs import SlurmJob
from preflight.slurm.nodes import SlurmNode

if TYPE_CHECKING:
    from preflight.fleet.local import Address
    from preflight.fleet.munge import Munge
    from preflight.fleet.world import World
    from preflight.model import Check, Report

SHORTEST_S = 30.0  # less measures nothing: starting and ending workers takes 10 to 20 s
KEPT_S = 6.0  # of the budget, for what Slurm is asked afterwards
MARGIN_S = 15.0  # before Slurm's own time-out, for draining under the brake
UNLIMITED = 65534
STARTING = {"CONFIGURING", "RUNNING"}  # the state of a job whose controller prolog runs


def measure_and_decide(
    context: SlurmJobContext,
    directive: Directive,
    site: Site,
    slurm: Slurm,
    *,
    world: "World | None" = None,
    spent_s: float = 0.0,
) -> "tuple[Decision, Report | None]":
    """The decision, and the report that it rests on; None: nothing was measured. Raises PreflightError: nothing is known of the job's nodes, through no fault of theirs."""
    assert context.job_id is not None
    job = slurm.job(context.job_id)
    _refuse_other(job, context)
    nodes = slurm.nodes(job.nodes)
    wanted = what_to_measure(job.nodes, job.gpu_numbers or {}, directive, site, slurm.version())
    if wanted is None:
        if job.gpu_numbers is None:
            raise SlurmError("which GPUs the job has can't be found out: does gres.conf name their files?")
        return Decision(course="start", text="the job has no GPUs"), None
    crowded = others_on(slurm, context.job_id, job.nodes)
    budget_s = min(site.slurm.controller_budget_s, directive.budget_s or site.slurm.controller_budget_s)
    left_s = budget_s - spent_s - KEPT_S
    limit_s = time_out_s(slurm)
    if limit_s is not None and limit_s - spent_s - MARGIN_S < min(left_s, SHORTEST_S):
        remedy = f"set it to {site.slurm.controller_budget_s + 120:.0f} or more"
        raise WorldError(f"Slurm's time-out of prologs is {limit_s:.0f} s, too short to measure anything: {remedy}")
    left_s = left_s if limit_s is None else min(left_s, limit_s - spent_s - MARGIN_S)
    if left_s < SHORTEST_S:
        raise WorldError(f"{left_s:.0f} s are left of its budget, too short to measure anything: set controller_budget")
    report, checks = _run(wanted, nodes, context, site, world=world, budget_s=left_s)
    crowded |= others_on(slurm, context.job_id, job.nodes)
    _refuse_other(slurm.job(context.job_id), context)
    decision = decide(
        report,
        job.nodes,
        {check.name: check.uses for check in checks},
        nobody_guilty=site.slurm.nobody_guilty,
        crowded=crowded,
        alike=site.brake.alike,
    )
    return decision, report


def others_on(slurm: Slurm, job: int, nodes: Sequence[str]) -> frozenset[str]:
    """The nodes on which other jobs are now too. Raises SlurmError."""
    from preflight.model.hostlist import fold_for_slurm

    states = "--states=RUNNING,CONFIGURING,COMPLETING,SUSPENDED"
    said = slurm.run("squeue", "--noheader", states, f"--nodelist={fold_for_slurm(nodes)}", "--format=%A %N")
    found: set[str] = set()
    for line in said.splitlines():
        number, _, listed = line.strip().partition(" ")
        if number != str(job) and listed:
            try:
                found.update(unfold(listed))
            except ValueError as error:
                raise SlurmError(f"squeue answers {line[:80]!r}") from error
    return frozenset(found & set(nodes))


def time_out_s(slurm: Slurm) -> float | None:
    """After how long Slurm ends a controller prolog, and requeues its job whatever it says; None: never. Raises SlurmError.

    Called PrologEpilogTimeout, since 25.05 PrologTimeout; 65534 (no value, in 16 bits) or a word where none is set.
    """
    told = re.findall(
        r"^Prolog(?:Epilog)?Timeout\s*=\s*([0-9]+)\b", slurm.run("scontrol", "show", "config"), re.MULTILINE
    )
    limits = [int(text) for text in told if 0 < int(text) < UNLIMITED]
    return float(min(limits)) if limits else None


def _refuse_other(job: SlurmJob, context: SlurmJobContext) -> None:
    """Raises WorldError unless the job still waits for us, on the same nodes: what was measured on nodes that others may have by now is held against nobody."""
    restart = context.restart_count or 0
    same = job.restarts in {None, restart} and set(job.nodes) == set(context.nodes or ())
    if not same or job.state not in STARTING:
        raise WorldError(f"the job is {job.state} by now, or on other nodes")


def _run(
    wanted: Wanted,
    nodes: Mapping[str, SlurmNode],
    context: SlurmJobContext,
    site: Site,
    *,
    world: "World | None",
    budget_s: float,
) -> "tuple[Report, tuple[Check, ...]]":
    """The run, judged. Raises PreflightError."""
    from preflight.fleet.interrupt import Interruptions
    from preflight.fleet.run import run
    from preflight.fleet.world import World
    from preflight.plan.rules import check_rules
    from preflight.registry import load_checks

    assert context.job_id is not None
    checks = load_checks()
    check_rules(wanted.job.source, wanted.job.rules, {check.name: check.limits for check in checks})
    patient = patient_world(world or World(), wanted.job.launch.node_gpus, wait_s=budget_s / 2)
    with Interruptions() as interruptions:
        report = run(
            wanted.job,
            checks,
            progress=lambda *_: None,
            budget_s=budget_s,
            agents=addresses(wanted.nodes, nodes, site.agent.port),
            key=_key(site),
            interruptions=interruptions,
            world=patient,
            command="slurm prolog-slurmctld",
            slurm_job=str(context.job_id),
        )
    return msgspec.structs.replace(report, run_id=f"controller-{context.attempt}"), checks


def addresses(names: Sequence[str], nodes: Mapping[str, SlurmNode], port: int) -> "tuple[Address, ...]":
    """Where the resident agents of these nodes listen: at the node's address in Slurm, else under its name."""
    from preflight.fleet.local import Address

    told = {name: nodes[name].address if name in nodes else None for name in names}
    return tuple(Address(name=name, host=told[name] or name, port=port) for name in names)


def _key(site: Site) -> "bytes | Munge":
    """The agents' key where the site has one, else munge. Raises ConfigError."""
    if site.agent.key_file is not None:
        from preflight.fleet.auth import read_key

        return read_key(site.agent.key_file)
    from preflight.fleet.munge import Munge

    return Munge(agent_uid=0, socket=site.agent.munge_socket)
