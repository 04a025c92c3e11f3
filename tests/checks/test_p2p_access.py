"""p2p_access: the driver lets GPUs access each other's memory where they would use it."""

import pytest

from preflight.model import Evidence, Finding, GpuPeer, Inventory, Node, Problem, Settings, Verdict
from preflight_checks.p2p_access import judge
from tests.builders import make_gpu, make_node, make_plan, uuids_of
from tests.checks.nvlink_nodes import changed
from tests.checks.topologies import BY_NAME, node_of

CARD = "NVIDIA A100 80GB PCIe"
GEFORCE = "NVIDIA GeForce RTX 5090"


def node_with(*statuses: str, product: str = CARD, links: int = 0, ancestor="PIX", number: int = 4, **of_pairs) -> Node:
    """All pairs have the first status; "p0_1" gives that pair another one (None: not told)."""
    special = {frozenset(map(int, pair.removeprefix("p").split("_"))): status for pair, status in of_pairs.items()}

    def peer(a: int, b: int) -> GpuPeer:
        status = special.get(frozenset((a, b)), statuses[0])
        told = {} if status is None else {"read": status, "write": status}
        return GpuPeer(index=b, num_nvlinks=links, ancestor=ancestor, p2p=told)

    gpus = tuple(
        make_gpu("node0", a, name=product, peers=tuple(peer(a, b) for b in range(number) if b != a))
        for a in range(number)
    )
    return changed(make_node("node0"), gpus=gpus)


def judged(node: Node, **others) -> list[Finding]:
    return list(judge(Evidence(inventory=Inventory(nodes=(node,)), **others)))


def test_pairs_that_reach_each_other_pass_as_one_line():
    (finding,) = judged(node_with("ok", links=12))
    assert (finding.verdict, finding.observed) == (Verdict.PASS, "6 pairs: ok")


def test_a_refusal_between_geforce_cards_is_as_usual():
    """noonghunna/club-3090 issue 1140."""
    (finding,) = judged(node_with("gpu", product=GEFORCE, number=2))
    assert finding.verdict is Verdict.PASS
    assert "not supported by this GPU (GNS), as usual for GeForce cards" in finding.observed


def test_access_over_pcie_between_geforce_cards_may_be_slower_than_none():
    """NVIDIA/nccl issue 814."""
    (finding,) = judged(node_with("ok", product="NVIDIA GeForce RTX 4090"))
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)
    assert [f.verdict for f in judged(node_with("ok", product="NVIDIA GeForce RTX 3090", links=4, number=2))] == [
        Verdict.PASS
    ]


@pytest.mark.parametrize("status", ["chipset", "topology", "not supported"])
def test_a_refusal_between_cpu_sockets_is_as_usual_and_one_below_a_switch_is_not(status):
    """NVIDIA/nccl issue 257."""
    assert [f.verdict for f in judged(node_with(status, ancestor="SYS"))] == [Verdict.PASS]
    (finding,) = judged(node_with(status, ancestor="PHB"))
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)
    assert "NCCL goes by way of host memory" in finding.observed


def test_a_registry_key_is_a_setting():
    (finding,) = judged(node_with("disabled"))
    assert finding.verdict is Verdict.WARN
    assert finding.blames is not None
    assert finding.blames.kind == "environment"
    assert "NVreg_RegistryDwords" in finding.remedy


def test_a_refusal_where_nvlink_joins_fails():
    (finding,) = judged(node_with("ok", links=12, p0_1="gpu"))
    assert finding.verdict is Verdict.FAIL
    assert finding.observed == "GPU pair 0-1: peer access not supported by this GPU (GNS), though NVLink joins them"
    assert finding.blames is not None
    assert finding.blames.name == "node0 GPU 0 - GPU 1"
    (setting,) = judged(node_with("disabled", links=12))
    assert setting.verdict is Verdict.FAIL
    assert setting.blames is not None
    assert setting.blames.kind == "environment"


def test_one_gpu_unlike_all_others_is_blamed():
    for links, verdict in ((12, Verdict.FAIL), (0, Verdict.WARN)):
        (finding, rest) = judged(node_with("ok", links=links, p0_2="gpu", p1_2="gpu", p2_3="gpu"))
        assert (finding.verdict, finding.subject) == (verdict, "node0 GPU 2 (GPU-node0-2)")
        assert finding.blames is not None
        assert finding.blames.name == "node0 GPU 2 (GPU-node0-2)"
        assert (rest.verdict, rest.observed) == (Verdict.PASS, "3 pairs: ok")


def test_only_groups_that_use_the_gpu_suffer():
    node = node_with("ok", links=12, p0_2="gpu", p1_2="gpu", p2_3="gpu")
    uuids = uuids_of(Inventory(nodes=(node,)))["node0"]
    plan = make_plan(
        tp=2, dp=1, pp=1, nodes=1, gpus_per_node=2, gpu=None, node_names=["node0"], gpu_uuids={"node0": uuids[:2]}
    )
    assert judged(node, plan=plan)[0].verdict is Verdict.WARN


def test_what_the_driver_does_not_tell_is_unknown():
    assert [f.verdict for f in judged(node_with("ok", p0_1=None))] == [Verdict.UNKNOWN]
    assert [f.verdict for f in judged(node_with("ok", p0_1="unknown"))] == [Verdict.UNKNOWN]
    node = node_with("ok", number=2)
    problem = Problem(source="nvmlDeviceGetP2PStatus", text="Insufficient Permissions", field="peers")
    silent = changed(node, gpus=tuple(changed(gpu, peers=(), problems=(problem,)) for gpu in node.gpus or ()))
    (finding,) = judged(silent)
    assert finding.verdict is Verdict.UNKNOWN
    assert "Insufficient Permissions" in finding.observed
    without = changed(node, gpus=tuple(changed(gpu, peers=(), unsupported=("peers",)) for gpu in node.gpus or ()))
    assert [f.verdict for f in judged(without)] == [Verdict.SKIP]


def test_a_text_that_does_not_tell_it_yields_nothing():
    assert judged(node_of(BY_NAME["t4-4gpu"])) == []


def test_nothing_is_said_without_pairs_or_where_no_gpus_are_meant():
    assert judged(make_node("node0", gpus=0)) == []
    assert judged(make_node("node0", gpus=None)) == []
    assert judged(node_with("ok", number=1)) == []
    assert judged(node_with("gpu"), settings=Settings(cpu_declared=True)) == []
