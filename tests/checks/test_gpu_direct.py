"""GPUDirect RDMA: on, off on the whole fleet, loaded but not registered, not needed."""

import pytest
from msgspec.structs import replace

from preflight.model import GpuDirect, Setting, Verdict
from preflight_checks import gpu_direct
from tests.builders import make_gpu, make_node, make_plan
from tests.checks.nodes_found import findings_of, make_hca, only

TWO_NODES = make_plan(nodes=2, tp=8, pp=1, dp=2, node_names=["n1", "n2"])


def node(direct, nccl="2.27.5", name="n1", **changes):
    versions = {"nccl": nccl} if nccl else {}
    return make_node(name, hcas=(make_hca(),), gpu_direct=direct, versions=versions, **changes)


@pytest.mark.parametrize(
    "direct",
    [
        GpuDirect(peermem="none", open_driver=True, dmabuf=True),
        GpuDirect(peermem="nvidia_peermem", memory_peers=("nv_mem",), dmabuf=False),
        GpuDirect(peermem="nv_peer_mem", memory_peers=("nv_mem",), dmabuf=None),
    ],
)
def test_dmabuf_or_a_registered_module_passes(direct):
    assert only(gpu_direct.CHECK, node(direct), plan=TWO_NODES).verdict is Verdict.PASS


def test_a_fleet_whose_nccl_looks_for_the_older_module_fails_alike_and_no_node_is_blamed():
    """NVIDIA/nccl issue 1676: 180 GB/s became 10 on every pair after an image upgrade."""
    direct = GpuDirect(peermem="nvidia_peermem", memory_peers=None, open_driver=False, dmabuf=False)
    nodes = [node(direct, "2.22.3", name) for name in ("n1", "n2")]
    findings = findings_of(gpu_direct.CHECK, *nodes, plan=TWO_NODES)
    assert [finding.verdict for finding in findings] == [Verdict.FAIL, Verdict.FAIL]
    assert {finding.blames.kind for finding in findings} == {"environment"}
    assert "NCCL 2.22.3" in findings[0].observed
    assert "2.23.4" in findings[0].observed


def test_what_a_job_on_one_node_does_not_need_is_a_warning():
    direct = GpuDirect(peermem="none", dmabuf=False)
    assert only(gpu_direct.CHECK, node(direct)).verdict is Verdict.WARN
    assert findings_of(gpu_direct.CHECK, node(direct), plan=TWO_NODES)[0].verdict is Verdict.FAIL


def test_where_every_hca_is_beyond_a_host_bridge_nccl_would_not_use_it():
    far = tuple(make_gpu("n1", i, nics={"mlx5_0": "NODE"}) for i in range(8))
    apart = replace(node(GpuDirect(peermem="none", dmabuf=False)), gpus=far)
    assert findings_of(gpu_direct.CHECK, apart, plan=TWO_NODES)[0].verdict is Verdict.WARN


def test_the_driver_of_efa_needs_none_of_these_modules():
    efa = replace(node(GpuDirect(peermem="none", dmabuf=False)), hcas=(make_hca(driver="efa"),))
    assert only(gpu_direct.CHECK, efa, plan=TWO_NODES).verdict is Verdict.SKIP


def test_a_module_without_an_entry_is_a_warning_for_new_nccl_and_unknown_for_an_unknown_one():
    direct = GpuDirect(peermem="nvidia_peermem", memory_peers=(), dmabuf=False)
    assert only(gpu_direct.CHECK, node(direct, "2.27.5")).verdict is Verdict.WARN
    assert only(gpu_direct.CHECK, node(direct, None)).verdict is Verdict.UNKNOWN
    assert only(gpu_direct.CHECK, node(direct, "built from source")).verdict is Verdict.UNKNOWN


def test_dmabuf_that_is_switched_off_or_too_new_for_nccl_does_not_count():
    direct = GpuDirect(peermem="none", dmabuf=True)
    off = (Setting(name="NCCL_DMABUF_ENABLE", value="0", origin="environment"),)
    assert only(gpu_direct.CHECK, node(direct, settings=off)).verdict is not Verdict.PASS
    assert only(gpu_direct.CHECK, node(direct, "2.11.4")).verdict is not Verdict.PASS


@pytest.mark.parametrize("direct", [None, GpuDirect(), GpuDirect(peermem="none")])
def test_what_could_not_be_found_out_is_unknown_and_advisory(direct):
    finding = only(gpu_direct.CHECK, node(direct), plan=TWO_NODES)
    assert (finding.verdict, finding.need) == (Verdict.UNKNOWN, "advisory")


def test_nodes_without_hcas_or_gpus_are_not_judged():
    assert only(gpu_direct.CHECK, make_node("n1", hcas=(), gpu_direct=GpuDirect())).verdict is Verdict.SKIP
    assert only(gpu_direct.CHECK, make_node("n1", gpus=0, hcas=(make_hca(),))).verdict is Verdict.SKIP
