"""What prolog and health program have in common: look at this node, judge it, and put the findings in order. Measures nothing, and asks Slurm nothing.

Light to import: what judges is loaded while the driver is being asked.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from preflight import __version__

if TYPE_CHECKING:
    from preflight.model import Check, Evidence, Finding, Node, Report, Rule
    from preflight.slurm.job import SlurmJobContext

FACTS = {"inventory", "health"}  # what is there without a plan, without measuring and without an earlier look
WAITS_S = 3.0  # of a budget, kept for ending a driver's reader that hangs, and for telling of it
LEAST_S = 1.0


def look(
    name: str | None, environ: Mapping[str, str], *, budget_s: float, root: Path = Path("/"), rules: str | None = None
) -> "Evidence":
    """The evidence about this node. `name`: as Slurm calls it, None: the host's. `environ`: the job's variables, for which GPUs are its own. `rules`: the site's file.

    `budget_s` is for everything: the driver has to answer earlier. Raises PreflightError for bad files and broken installations; never for a broken node.
    """
    from preflight.discover.node import discover_node

    deadline_s = max(LEAST_S, budget_s - WAITS_S)
    node = discover_node(name, root=root, deadline_s=deadline_s, environ=_variables(environ), meanwhile=_load)

    from preflight.model import Evidence, Inventory
    from preflight.plan.profiles import profiles_of
    from preflight.registry import profile_folders

    inventory = Inventory(nodes=(node,))
    profiles = profiles_of(inventory, profile_folders())
    return Evidence(inventory=inventory, profiles=profiles, rules=_rules(rules))


def _variables(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The variables without CUDA's, where Slurm's say the same in numbers of the machine: those hold outside the job's cgroup and (PrologFlags=RunInJob) inside it."""
    from preflight.model.job_gpus import JOB_GPUS, parse_numbers

    numbered = all(parse_numbers(environ.get(name, "")) for name in (JOB_GPUS, "CUDA_VISIBLE_DEVICES"))
    return {name: value for name, value in environ.items() if not (numbered and name == "CUDA_VISIBLE_DEVICES")}


def judge_node(evidence: "Evidence", job: "SlurmJobContext") -> tuple["Finding", ...]:
    """What the checks of nodes say, worst first; what they say against GPUs that are surely not the job's is lowered to a warning."""
    from preflight.judge.run import judge

    assert evidence.inventory is not None
    node = evidence.inventory.nodes[0]
    findings, _, _ = judge(evidence, checks_of_nodes())
    return worst_first([_lowered(finding, others_of(node, job)) for finding in findings])


def checks_of_nodes() -> "tuple[Check, ...]":
    """The checks that need neither a plan nor measurements nor an earlier look."""
    from preflight.registry import load_checks

    return tuple(check for check in load_checks(of_nodes=True) if check.uses and set(check.uses) <= FACTS)


def report_of(
    command: str,
    run_id: str,
    findings: "Sequence[Finding]",
    evidence: "Evidence | None",
    *,
    began_s: float,
    duration_s: float,
) -> "Report":
    """The report. `evidence` None: nothing could be looked at. `began_s` is Unix time."""
    from preflight.judge.run import answer_of
    from preflight.model import Environment, Evidence, Report

    return Report(
        run_id=run_id,
        command=command,
        started_at_s=began_s,
        duration_s=duration_s,
        answer=answer_of(findings),
        findings=tuple(findings),
        evidence=evidence or Evidence(),
        environment=Environment(versions={"preflight": __version__}),
    )


def worst_first(findings: "Sequence[Finding]") -> "tuple[Finding, ...]":
    """By verdict; otherwise as they came."""
    return tuple(sorted(findings, key=lambda finding: finding.verdict.rank))


def others_of(node: "Node", job: "SlurmJobContext") -> frozenset[str]:
    """Names of the GPUs, as findings blame them, that surely are not the job's; none where that isn't certain of a GPU.

    By UUID where the job's are known; else by number, where Slurm's numbers fit the GPUs that the driver counts.
    """
    from preflight.model.job_gpus import job_uuids
    from preflight.model.per_gpu import gpu_name

    gpus = node.gpus or ()
    uuids = job_uuids(node, None)
    mig = any(uuid is not None and uuid.startswith("MIG-") for uuid in (node.mask and node.mask.gpu_uuids) or ())
    if uuids is not None and job.gpus is not None and not mig and len(uuids) != len(set(job.gpus)):
        uuids = None  # the mask is of another view of the machine
    # Slurm numbers MIG devices, not the GPUs that they are on
    fits = not mig and job.gpus is not None and max(job.gpus, default=0) < len(gpus)
    others = set()
    for gpu in gpus:
        if uuids is not None and gpu.uuid is not None:
            is_other = gpu.uuid not in uuids
        else:
            is_other = fits and job.gpus is not None and gpu.index not in job.gpus
        if is_other:
            others.add(gpu_name(node, gpu))
    return frozenset(others)


def _lowered(finding: "Finding", others: frozenset[str]) -> "Finding":
    import msgspec

    from preflight.model import Verdict

    name = finding.blames.name if finding.blames is not None else ""
    if finding.verdict is not Verdict.FAIL or not any(f"{name} ".startswith(f"{other} ") for other in others):
        return finding  # a part of a GPU is called after it: "n1 GPU 7 (GPU-...) link 3"
    observed = f"{finding.observed}; not a GPU of this job"
    return msgspec.structs.replace(finding, verdict=Verdict.WARN, observed=observed)


def _rules(path: str | None) -> "dict[str, Rule]":
    if path is None:
        return {}
    from preflight.errors import ConfigError, WorldError
    from preflight.plan.rules import check_rules, read_rules_file
    from preflight.registry import load_checks
    from preflight.slurm.state import refuse_foreign

    try:
        refuse_foreign(Path(path).stat(), path)
    except OSError as error:
        raise ConfigError(path, f"can't be read: {error.strerror or error}") from error
    except WorldError as error:
        raise ConfigError(path, str(error), remedy="it decides what is drained: make it root's (chmod go-w)") from error
    rules = read_rules_file(path)
    check_rules(path, rules, {check.name: check.limits for check in load_checks()})
    return rules


def _load() -> None:
    """What is needed once the driver has answered, loaded while it is being asked."""
    from preflight.judge import run
    from preflight.plan import profiles
    from preflight.slurm import verdicts

    del run, profiles, verdicts
    checks_of_nodes()
