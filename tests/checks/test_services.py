"""Daemons: a dead fabric manager must be found, and what can't be seen from inside a container or a virtual machine isn't a fault."""

import pytest
from msgspec import structs

from preflight.model import (
    Evidence,
    Fabric,
    Inventory,
    Link,
    NvlinkLayout,
    Platform,
    Profile,
    Service,
    Settings,
    Verdict,
)
from preflight_checks import services as check
from tests.builders import H100, make_gpu, make_node, make_plan

DONE = Fabric(state="completed", status=0)


def node(running=None, *, fabric=None, version="4.0", name="node0", daemon="nv-fabricmanager", **fields):
    links = tuple(Link(index=i, active=True, peer_kind="switch", version=version) for i in range(18))
    gpus = tuple(make_gpu(name, i, links=links, fabric=fabric) for i in range(8))
    services = None if running is None else (Service(name=daemon, running=running),)
    return structs.replace(make_node(name, services=services, **fields), gpus=gpus)


def findings(*nodes, fabric="node", **evidence):
    profiles = {H100.casefold(): Profile(name="p", gpu_names=(H100,), fabric=fabric)} if fabric else {}
    return list(check.judge(Evidence(inventory=Inventory(nodes=nodes), profiles=profiles, **evidence)))


def verdict(*nodes, **evidence):
    return findings(*nodes, **evidence)[0].verdict


@pytest.mark.parametrize("fabric", ["node", "manager", None])
def test_a_running_manager_passes_and_a_dead_one_fails(fabric):
    assert verdict(node(running=True), fabric=fabric) is Verdict.PASS
    (finding,) = findings(node(running=False), fabric=fabric)
    assert finding.verdict is Verdict.FAIL
    assert finding.blames is not None
    assert (finding.blames.kind, finding.blames.confidence) == ("node", "certain")
    assert "nvidia-fabricmanager" in finding.remedy


def test_a_manager_that_died_after_its_work_fails_with_less_certainty():  # NVSentinel 883
    (finding,) = findings(node(running=False, fabric=DONE))
    assert finding.verdict is Verdict.FAIL
    assert finding.blames is not None
    assert finding.blames.confidence == "likely"


def test_processes_that_cannot_be_seen_are_unknown():
    assert verdict(node()) is Verdict.UNKNOWN
    assert verdict(structs.replace(node(), services=(Service(name="nv-fabricmanager"),))) is Verdict.UNKNOWN
    assert check.CHECK.need == "advisory"


def test_completed_registration_speaks_for_a_manager_that_cannot_be_seen():
    assert verdict(node(fabric=DONE)) is Verdict.PASS
    assert verdict(node(fabric=Fabric(state="in progress"))) is Verdict.UNKNOWN
    assert verdict(node(fabric=Fabric(state="completed", status=3))) is Verdict.UNKNOWN


def test_in_a_container_a_daemon_that_is_not_there_may_be_the_hosts():
    assert verdict(node(running=False, platform=Platform(container="docker"))) is Verdict.UNKNOWN


def test_in_a_virtual_machine_the_hypervisor_may_run_it():  # nccl-tests 260
    machine = Platform(virtual_machine="kvm", container="none")
    (finding,) = findings(node(running=False, platform=machine))
    assert finding.verdict is Verdict.UNKNOWN
    assert "hypervisor" in finding.observed
    assert verdict(node(running=False, platform=machine, fabric=DONE)) is Verdict.PASS


def test_nvlink_5_needs_the_subnet_manager_too():
    both = (Service(name="nv-fabricmanager", running=True), Service(name="nvlsm", running=False))
    (finding,) = findings(structs.replace(node(version="5.0"), services=both))
    assert finding.verdict is Verdict.FAIL
    assert "nvlsm" in finding.observed


def test_a_rack_needs_imex_and_no_fabric_manager_of_its_own():
    nodes = [node(running=False, daemon="nvidia-imex", name=f"node{i}") for i in range(2)]
    plan = make_plan(nodes=2, tp=16, pp=1, dp=1, node_names=["node0", "node1"])
    assert verdict(*nodes, fabric="rack", plan=plan) is Verdict.FAIL
    assert verdict(*nodes, fabric="rack") is Verdict.WARN  # an idle rack, where each job starts its own
    assert verdict(nodes[0], fabric="rack") is Verdict.WARN  # one node alone does without
    assert verdict(node(running=True, daemon="nvidia-imex"), fabric="rack") is Verdict.PASS


def test_nothing_where_nothing_is_switched():
    assert findings(make_node(), fabric=None) == []
    assert findings(make_node(), fabric="none") == []
    assert findings(make_node(gpus=0)) == []
    assert findings(node(running=False), settings=Settings(cpu_declared=True)) == []


@pytest.mark.parametrize("peer_kind", ["gpu", None])
def test_a_board_of_four_without_switches_needs_no_manager(peer_kind):
    links = tuple(Link(index=i, active=True, peer_kind=peer_kind) for i in range(12))
    four = structs.replace(
        node(running=False), gpus=tuple(make_gpu("node0", i, links=links, fabric=None) for i in range(4))
    )
    layouts = tuple(
        NvlinkLayout(gpus=gpus, kind=kind, per_pair=(per_pair,), per_gpu=12, source="test")
        for gpus, kind, per_pair in ((8, "switched", 12), (4, "mesh", 4))
    )
    known = Profile(name="p", gpu_names=(H100,), fabric="manager", nvlink_layouts=layouts)
    assert list(check.judge(Evidence(inventory=Inventory(nodes=(four,)), profiles={H100.casefold(): known}))) == []
    eight = structs.replace(four, gpus=tuple(make_gpu("node0", i, links=()) for i in range(8)))
    (dead,) = check.judge(Evidence(inventory=Inventory(nodes=(eight,)), profiles={H100.casefold(): known}))
    assert dead.verdict is Verdict.FAIL


def test_a_gpu_that_the_driver_knows_no_fabric_for_needs_no_manager():
    """One GPU of a board, passed through to a virtual machine."""
    links = tuple(Link(index=i, active=False) for i in range(18))
    lone = (make_gpu("node0", 0, links=links, fabric=Fabric(state="not supported")),)
    machine = structs.replace(node(running=False, platform=Platform(virtual_machine="kvm")), gpus=lone)
    assert findings(machine) == []
