"""On a real GPU: the snapshot is complete. Each fact that a data-centre GPU must tell is named here; each that is missing gives its reason."""

import pytest

from preflight.discover.node import discover_node
from preflight.model import Gpu, Node, from_json, to_json

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

# told by every data-centre GPU since Volta
ALWAYS = (
    *("uuid", "name", "pci_bus_id", "minor_number", "memory_bytes", "memory_used_bytes", "vbios_version"),
    *("persistence", "ecc_enabled", "ecc_pending", "links", "pcie", "clocks", "power", "temperature", "processes"),
)
# the source is another one than NVML, or it is filled only where there is something to tell
NOT_ASKED = {"nics", "pci_upstream", "numa_node", "cpus", "nvlink_domain"}
PARTS = {
    "pcie": ("generation", "width", "max_generation", "max_width", "replays"),
    "clocks": ("sm_mhz", "memory_mhz", "max_sm_mhz", "max_memory_mhz", "throttle_reasons"),
    "power": ("draw_w", "limit_w", "default_limit_w", "enforced_limit_w", "max_limit_w"),
    "temperature": ("gpu_c",),
}


@pytest.fixture(scope="module")
def node() -> Node:
    node = discover_node()
    if not node.gpus:
        pytest.skip(node.gpu_note or "no GPU")
    return node


@pytest.fixture(scope="module")
def gpus(node) -> list[Gpu]:
    """Those of data centres: consumer cards lack much."""
    found = [
        gpu for gpu in node.open_gpus if not any(word in (gpu.name or "") for word in ("GeForce", "RTX", "Quadro"))
    ]
    if not found:
        pytest.skip("no data-centre GPU")
    return found


def test_the_versions_are_told(node):
    assert node.driver_version
    assert node.cuda_version
    assert node.nvml_version


def test_a_data_centre_gpu_tells_each_fact_that_it_must(gpus):
    for gpu in gpus:
        assert [name for name in ALWAYS if getattr(gpu, name) is None] == []
        for name, parts in PARTS.items():
            fact = getattr(gpu, name)
            assert [
                f"{name}.{part}" for part in parts if getattr(fact, part) is None and part not in gpu.unsupported
            ] == []
        assert gpu.uuid.startswith("GPU-")
        assert gpu.memory_bytes > 10**9
        assert gpu.memory_used_bytes < gpu.memory_bytes
        assert 1 <= gpu.pcie.generation <= gpu.pcie.max_generation
        assert 1 <= gpu.pcie.width <= gpu.pcie.max_width <= 16
        assert 0 < gpu.power.draw_w < 2 * gpu.power.max_limit_w
        assert 0 < gpu.temperature.gpu_c < 120


def test_memory_errors_are_told_where_ecc_is_on(gpus):
    for gpu in (gpu for gpu in gpus if gpu.ecc_enabled):
        assert gpu.ecc is not None
        assert gpu.ecc.uncorrected_aggregate is not None
        assert gpu.ecc.uncorrected_volatile is not None or gpu.mig_enabled
        assert gpu.row_remap is not None or gpu.retired_pages is not None or gpu.mig_enabled


def test_the_slowdown_point_is_told_as_a_margin_or_in_degrees(gpus):
    for gpu in gpus:
        slowdown_c, margin_c = gpu.temperature.slowdown_c, gpu.temperature.margin_c
        assert slowdown_c is not None or margin_c is not None
        if slowdown_c is not None:
            assert 60 < slowdown_c < 130


def test_every_fact_that_is_missing_gives_its_reason(gpus):
    for gpu in gpus:
        missing = [name for name in Gpu.__struct_fields__ if getattr(gpu, name) is None and name not in NOT_ASKED]
        assert [name for name in missing if gpu.why_unknown(name).kind == "not told"] == []
        failed = [(problem.source, problem.text) for problem in gpu.problems if not problem.not_allowed]
        assert failed == []


def test_every_link_tells_its_state_and_every_active_one_its_speed_and_far_end(gpus):
    for gpu in gpus:
        for link in gpu.links:
            assert link.state is not None
            assert link.active is (link.state in {"active", "sleep"})
        for link in (link for link in gpu.links if link.active):
            assert link.version is not None
            assert link.speed_bytes_per_s is not None
            assert link.peer_kind is not None
            assert link.counters


def test_every_pair_tells_its_ancestor_and_peer_access(node, gpus):
    for gpu in gpus:
        others = [other.index for other in node.gpus if other.index != gpu.index]
        assert [peer.index for peer in gpu.peers] == others
        for peer in gpu.peers:
            assert peer.ancestor is not None
            assert {"read", "write", "nvlink"} <= set(peer.p2p)


def test_the_snapshot_is_loaded_as_it_was_saved(node):
    assert from_json(to_json(node), Node) == node
