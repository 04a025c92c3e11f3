"""33 real machines: the verdict of all checks of how a node is joined, what the reasons say, and who is blamed."""

import pytest

from preflight.judge.run import run_checks
from preflight.model import Evidence, Failure, Finding, Inventory, Measurement, Verdict
from preflight_checks import (
    fabric_state,
    nic_affinity,
    nvlink_links,
    nvlink_pairs,
    nvlink_speed,
    p2p_access,
    pcie_acs,
)
from tests.builders import make_measurement, make_plan, make_probe
from tests.checks.topologies import A100_SXM, BY_NAME, MACHINES, Machine, node_of, profiles_of

CHECKS = (
    nvlink_links.CHECK,
    nvlink_speed.CHECK,
    nvlink_pairs.CHECK,
    fabric_state.CHECK,
    p2p_access.CHECK,
    pcie_acs.CHECK,
    nic_affinity.CHECK,
)


def found(evidence: Evidence) -> list[Finding]:
    return [finding for finding in run_checks(CHECKS, evidence)[0] if finding.verdict is not Verdict.SKIP]


def hung_pair(a: int, b: int) -> Measurement:
    return Measurement(probe=make_probe((a, b)), failure=Failure(kind="timed_out", text="cut off after 20 s"))


def evidence_of(machine: Machine) -> Evidence:
    """What a text tells of the machine; of the one whose report measured pairs, these too."""
    inventory = Inventory(nodes=(node_of(machine),))
    if machine.name != "pcie-4gpu-pxb-pix":
        return Evidence(inventory=inventory, profiles=profiles_of(machine))
    across = [make_measurement((a, b)) for a in (0, 1) for b in (2, 3)]
    plan = make_plan(tp=4, dp=1, pp=1, nodes=1, gpus_per_node=4, gpu=None, backend="nccl", node_names=["node0"])
    return Evidence(inventory=inventory, plan=plan, measurements=(hung_pair(0, 1), hung_pair(2, 3), *across))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_real_machine_gets_the_right_verdict_for_the_right_reason(machine: Machine):
    findings = found(evidence_of(machine))
    worst = min((finding.verdict for finding in findings), key=lambda verdict: verdict.rank)
    assert worst.value == machine.verdict
    said = " | ".join(f"{finding.observed} | {finding.remedy}" for finding in findings)
    for fact in machine.facts:
        assert fact in said
    blamed = {finding.subject.removeprefix("node0 ") for finding in findings if finding.verdict is Verdict.FAIL}
    assert blamed == set(machine.blamed)
    assert all(finding.blames for finding in findings if finding.verdict is Verdict.FAIL)


def test_all_machines_are_there_and_differ():
    assert len(BY_NAME) == len(MACHINES) == 33


def test_eight_links_everywhere_are_whole_on_an_a800_and_too_few_on_an_a100():
    machine = BY_NAME["a800-8gpu-9nic-nv8-healthy"]
    product = "NVIDIA A100-SXM4-80GB"
    evidence = Evidence(
        inventory=Inventory(nodes=(node_of(machine._replace(product=product)),)),
        profiles={product.casefold(): A100_SXM},
    )
    bad = [finding for finding in found(evidence) if finding.verdict is Verdict.FAIL]
    assert [finding.observed for finding in bad] == ["8 of 12 NVLinks on every pair (28)"]
    assert bad[0].blames is not None
    assert bad[0].blames.kind == "node"


@pytest.mark.parametrize("name", [machine.name for machine in MACHINES if machine.profile])
def test_a_view_that_hides_nvlink_blames_nobody(name: str):
    machine = BY_NAME[name]
    hidden = machine._replace(pairs=[["SYS" if cell != "X" else "X" for cell in row] for row in machine.pairs])
    evidence = Evidence(inventory=Inventory(nodes=(node_of(hidden, source="topo -mp"),)), profiles=profiles_of(machine))
    assert not [finding for finding in found(evidence) if finding.verdict is Verdict.FAIL]
