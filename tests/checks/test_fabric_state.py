"""fabric_state: every GPU is registered in its NVLink fabric, without a fault."""

import pytest

from preflight.model import Fabric, Finding, Link, Node, Platform, Problem, Service, Settings, Topology, Verdict
from preflight_checks.fabric_state import judge
from tests.builders import make_plan, uuids_of
from tests.checks.nvlink_nodes import H100, changed, evidence, node_with
from tests.checks.topologies import A100_SXM, GB200, H100_SXM

RACK = "NVIDIA GB200"
A100 = "NVIDIA A100-SXM4-80GB"
UUID = "9c000000-0000-0000-0000-0000000000c3"
BOX = Fabric(
    state="completed",
    status=0,
    status_text="Success",
    clique_id=0,
    health_mask=0x2A,
    health={"degraded bandwidth": False},
)
IN_RACK = Fabric(state="completed", status=0, status_text="Success", clique_id=4026, cluster_uuid=UUID)
PROFILES = {H100: H100_SXM, RACK: GB200, A100: A100_SXM}


def node_of(*fabrics: Fabric | None, product: str = H100, name: str = "node0", **changes) -> Node:
    node = node_with(*[None] * len(fabrics), product=product, name=name)
    gpus = tuple(
        changed(gpu, fabric=fabric, unsupported=() if fabric else ("fabric",))
        for gpu, fabric in zip(node.gpus or (), fabrics, strict=True)
    )
    return changed(node, gpus=gpus, **changes)


def judged(*nodes: Node, **others) -> list[Finding]:
    return list(judge(evidence(*nodes, profiles=PROFILES, **others)))


def rack(*fabrics: Fabric | None, **others) -> Node:
    return node_of(*fabrics, product=RACK, **others)


def test_zero_clique_and_uuid_are_normal_on_one_board():
    """NVIDIA/nccl issue 1672."""
    (finding,) = judged(node_of(*[BOX] * 8))
    assert finding.verdict is Verdict.PASS


def test_a_registered_rack_passes_and_names_its_clique():
    (finding,) = judged(rack(*[IN_RACK] * 4))
    assert finding.verdict is Verdict.PASS
    assert "clique 4026" in finding.observed


def test_completed_is_not_success():
    """Azure/azhpc-images pull request 506."""
    bad = Fabric(state="completed", status=26, status_text="Insufficient Resources", clique_id=0)
    (bad_box, good_box) = judged(node_of(bad, *[BOX] * 7))
    assert (bad_box.verdict, good_box.verdict) == (Verdict.FAIL, Verdict.PASS)
    assert bad_box.observed == "state completed, status Insufficient Resources, not success"
    assert bad_box.blames is not None
    assert bad_box.blames.name == "node0 GPU 0 (GPU-node0-0)"
    (bad_rack, *_) = judged(rack(bad, *[IN_RACK] * 3))
    assert (
        bad_rack.observed
        == "state completed, status Insufficient Resources, not success, cluster UUID all zero, clique 0"
    )


def test_a_rack_without_cluster_uuid_fails_though_it_says_success():
    (bad, good) = judged(rack(BOX, *[IN_RACK] * 3))
    assert (bad.verdict, good.verdict) == (Verdict.FAIL, Verdict.PASS)
    assert bad.observed == "state completed, cluster UUID all zero, clique 0"


def test_clique_0_of_a_named_cluster_may_be_a_partition():
    found = judged(rack(*[changed(IN_RACK, clique_id=0)] * 4))
    assert [(finding.verdict, finding.subject, finding.blames) for finding in found] == [(Verdict.WARN, "node0", None)]


def test_a_recovery_that_is_under_way_may_end_and_a_degraded_fabric_is_a_fault():
    def told(**health):
        mask = {name.replace("_", " "): value for name, value in health.items()}
        return judged(rack(changed(IN_RACK, health=mask, health_summary="unhealthy"), *[IN_RACK] * 3))[0]

    assert (told(route_recovery=True).verdict, told(route_recovery=True).blames) == (Verdict.UNKNOWN, None)
    assert told(access_timeout_recovery=True).verdict is Verdict.UNKNOWN
    assert told(route_recovery=True, degraded_bandwidth=True).verdict is Verdict.FAIL
    assert told(route_unhealthy=True).verdict is Verdict.FAIL


@pytest.mark.parametrize("state", ["in progress", "not started"])
def test_registration_under_way_is_unknown(state):
    """NVIDIA/gpu-driver-container issue 909: normal until a partition is activated."""
    (finding,) = judged(node_of(*[Fabric(state=state)] * 8))
    assert (finding.verdict, finding.subject, finding.blames) == (Verdict.UNKNOWN, "node0", None)
    assert "partition" in finding.observed


def test_registration_that_cannot_end_because_the_fabric_manager_does_not_run_fails():
    services = (Service(name="nv-fabricmanager", running=False),)
    (finding,) = judged(node_of(*[Fabric(state="in progress")] * 8, services=services))
    assert finding.verdict is Verdict.FAIL
    assert finding.blames is not None
    assert (finding.blames.kind, finding.blames.name) == ("environment", "nv-fabricmanager of node0")


def test_a_subnet_manager_that_does_not_run_is_missed_with_nvlink_5_only():
    services = (Service(name="nv-fabricmanager", running=True), Service(name="nvlsm", running=False))
    waiting = [Fabric(state="in progress")] * 8
    assert [f.verdict for f in judged(node_of(*waiting, services=services))] == [Verdict.UNKNOWN]
    fifth = node_of(*waiting, services=services)
    gpus = tuple(changed(gpu, links=(Link(index=0, active=False, version="5.0"),)) for gpu in fifth.gpus)
    (finding,) = judged(changed(fifth, gpus=gpus))
    assert finding.verdict is Verdict.FAIL
    assert finding.observed == "state in progress, and nvlsm doesn't run"


def test_a_manager_that_the_hypervisor_or_the_host_may_run_is_not_missed():
    services = (Service(name="nv-fabricmanager", running=False),)
    for platform in (Platform(virtual_machine="kvm"), Platform(container="docker")):
        node = node_of(*[Fabric(state="in progress")] * 8, services=services, platform=platform)
        assert [f.verdict for f in judged(node)] == [Verdict.UNKNOWN]


@pytest.mark.parametrize("fabric", [Fabric(state="in progress"), Fabric(state="not supported"), None])
def test_one_gpu_unlike_the_others_is_at_fault_whatever_its_state(fabric):
    findings = judged(node_of(*[BOX] * 7, fabric))
    (bad,) = [f for f in findings if f.verdict is Verdict.FAIL]
    assert bad.subject == "node0 GPU 7 (GPU-node0-7)"
    assert "7 other GPUs of the node" in bad.observed


def test_what_has_no_fabric_is_skipped():
    assert [f.verdict for f in judged(node_of(*[None] * 8, product=A100))] == [Verdict.SKIP]
    assert [f.verdict for f in judged(node_of(Fabric(state="not supported")))] == [Verdict.SKIP]


def test_a_product_that_registers_nowhere_is_skipped_though_nothing_was_read():
    assert [f.verdict for f in judged(node_with(None, None, product=A100))] == [Verdict.SKIP]
    assert [f.verdict for f in judged(node_with(None, None))] == [Verdict.UNKNOWN]


def test_a_rack_product_that_knows_no_fabric_is_unknown():
    assert [f.verdict for f in judged(rack(*[Fabric(state="not supported")] * 4))] == [Verdict.UNKNOWN]


@pytest.mark.parametrize(
    ("sick", "words"),
    [
        ({"health": {"degraded bandwidth": True, "route unhealthy": False}}, "degraded bandwidth"),
        ({"health": {"route unhealthy": True}}, "route unhealthy"),
        ({"misconfiguration": "insufficient NVLinks"}, "misconfiguration: insufficient NVLinks"),
        ({"health_summary": "unhealthy"}, "summary unhealthy"),
    ],
)
def test_a_fault_in_the_health_mask_fails(sick, words):
    findings = judged(node_of(*[BOX] * 7, changed(BOX, **sick)))
    assert [f.verdict for f in findings] == [Verdict.FAIL, Verdict.PASS]
    assert words in findings[0].observed


def test_limited_capacity_is_worth_a_look():
    findings = judged(node_of(*[BOX] * 7, changed(BOX, health_summary="limited capacity")))
    assert [f.verdict for f in findings] == [Verdict.WARN, Verdict.PASS]


def test_an_unknown_status_is_unknown():
    assert [f.verdict for f in judged(node_of(*[Fabric(state="completed")] * 8))] == [Verdict.UNKNOWN]


def test_what_may_not_be_read_is_unknown_with_the_reason():
    problem = Problem(source="nvmlDeviceGetGpuFabricInfoV", text="Insufficient Permissions", field="fabric")
    node = node_of(*[BOX] * 8)
    hidden = changed(node, gpus=tuple(changed(gpu, fabric=None, problems=(problem,)) for gpu in node.gpus or ()))
    (finding,) = judged(hidden)
    assert finding.verdict is Verdict.UNKNOWN
    assert "Insufficient Permissions" in finding.observed


def test_a_gpu_in_another_clique_than_its_node_fails():
    findings = judged(rack(*[IN_RACK] * 3, changed(IN_RACK, clique_id=7)))
    (bad,) = [f for f in findings if f.verdict is Verdict.FAIL]
    assert bad.subject.startswith("node0 GPU 3")
    assert "clique 7" in bad.observed


def test_half_and_half_is_not_identifiable():
    findings = judged(rack(IN_RACK, IN_RACK, *[changed(IN_RACK, clique_id=7)] * 2))
    assert Verdict.FAIL not in {f.verdict for f in findings}
    assert "not identifiable" in findings[-1].observed


def two_trays(clique: int, *, domains: dict[str, str] | None) -> list[Finding]:
    """What fails where a group of 8 lies on two trays, the second in this clique."""
    nodes = (rack(*[IN_RACK] * 4), rack(*[changed(IN_RACK, clique_id=clique)] * 4, name="node1"))
    inventory = evidence(*nodes).inventory
    assert inventory is not None
    plan = make_plan(
        tp=8,
        dp=1,
        pp=1,
        nodes=2,
        gpus_per_node=4,
        gpu=None,
        backend="nccl",
        node_names=["node0", "node1"],
        gpu_uuids=uuids_of(inventory),
        topology=Topology(node_domains=domains) if domains else None,
    )
    return [f for f in judged(*nodes, plan=plan) if f.verdict is Verdict.FAIL]


def test_a_planned_group_that_counts_as_one_domain_must_be_in_one_clique():
    together = {"node0": "rack1", "node1": "rack1"}
    assert two_trays(4026, domains=together) == []
    (bad,) = two_trays(7, domains=together)
    assert bad.subject == "tp0"
    assert "clique 4026" in bad.observed
    assert "clique 7" in bad.observed
    assert bad.blames is None


def test_a_group_over_two_domains_is_the_business_of_the_placement_checks():
    assert two_trays(7, domains={"node0": "rack1", "node1": "rack2"}) == []


def test_with_a_plan_the_odd_gpu_of_a_group_is_blamed_and_an_unused_one_is_a_warning():
    node = rack(*[IN_RACK] * 3, changed(IN_RACK, clique_id=7))
    inventory = evidence(node).inventory
    assert inventory is not None
    uuids = uuids_of(inventory)["node0"]
    plan = make_plan(
        tp=4, dp=1, pp=1, nodes=1, gpus_per_node=4, gpu=None, node_names=["node0"], gpu_uuids={"node0": uuids}
    )
    (bad,) = [f for f in judged(node, plan=plan) if f.verdict is Verdict.FAIL]
    assert bad.subject == "tp0"
    assert bad.blames is not None
    assert bad.blames.name == "node0 GPU 3 (GPU-node0-3)"
    sick = Fabric(state="completed", status=26, status_text="Insufficient Resources")
    two = make_plan(
        tp=2, dp=1, pp=1, nodes=1, gpus_per_node=2, gpu=None, node_names=["node0"], gpu_uuids={"node0": uuids[:2]}
    )
    findings = judged(rack(*[IN_RACK] * 3, sick), plan=two)
    assert [f.verdict for f in findings] == [Verdict.WARN, Verdict.PASS]
    assert "no rank of the plan uses it" in findings[0].observed


def test_nothing_is_said_without_gpus_or_where_none_are_meant():
    assert judged(node_of()) == []
    assert judged(rack(*[BOX] * 4), settings=Settings(cpu_declared=True)) == []
