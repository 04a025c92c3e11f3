"""Only what surely costs bandwidth is named as a cause, with the nodes that have it."""

import pytest

from preflight.model import GpuDirect, Setting
from preflight.model.slow_causes import slow_causes
from tests.fast_machines import machine


def setting(name, value):
    return Setting(name=name, value=value, origin="/etc/nccl.conf")


def causes(*, across, **node):
    return slow_causes([machine("node0", **node), machine("node1")], across=across)


@pytest.mark.parametrize(
    ("name", "value", "across", "named"),
    [
        ("NCCL_P2P_DISABLE", "1", False, True),
        ("NCCL_P2P_DISABLE", "0", False, False),
        ("NCCL_P2P_DISABLE", "true", False, False),  # NCCL reads a word as 0
        ("NCCL_P2P_DISABLE", "1", True, False),
        ("NCCL_P2P_LEVEL", "loc", False, True),
        ("NCCL_P2P_LEVEL", "NVL", False, False),
        ("NCCL_IB_DISABLE", "1", True, True),
        ("NCCL_IB_DISABLE", "1", False, False),
        ("NCCL_NET", "Socket", True, True),
        ("NCCL_NET", "IB", True, False),
        ("NCCL_NET_GDR_LEVEL", "LOC", True, True),
        ("NCCL_NET_GDR_LEVEL", "PHB", True, False),
        ("NCCL_DEBUG", "INFO", True, False),
    ],
)
def test_settings_that_cost_bandwidth_are_named_where_they_matter(name, value, across, named):
    found = causes(across=across, settings=(setting(name, value),))
    assert bool(found) is named
    if named:
        assert found[0].startswith(f"{name}={value} from /etc/nccl.conf: ")
        assert found[0].endswith("(node0)")


@pytest.mark.parametrize(
    ("direct", "nccl", "named"),
    [
        ({"peermem": "none", "dmabuf": False}, None, True),
        ({"peermem": "nvidia_peermem", "dmabuf": False}, "2.22.3", True),
        ({"peermem": "nvidia_peermem", "dmabuf": False}, "2.23.4", False),
        ({"peermem": "nvidia_peermem", "dmabuf": False}, None, False),  # depends on the version
        ({"peermem": "nvidia_peermem", "dmabuf": False, "memory_peers": ("nv_mem",)}, "2.22.3", False),
        ({"peermem": "none", "dmabuf": True}, None, False),
        ({"peermem": "none", "dmabuf": None}, None, False),
        ({"peermem": None, "dmabuf": False}, None, False),
    ],
)
def test_gpudirect_is_named_only_where_it_is_surely_off(direct, nccl, named):
    versions = {"nccl": nccl} if nccl else {}
    found = causes(across=True, gpu_direct=GpuDirect(**direct), versions=versions)
    assert bool(found) is named


def test_nothing_known_names_nothing():
    assert causes(across=True, settings=None) == ()
    assert slow_causes([], across=False) == ()


def test_nodes_with_the_same_cause_are_named_together():
    nodes = [machine(f"node{i}", settings=(setting("NCCL_NET", "socket"),)) for i in range(3)]
    assert slow_causes(nodes, across=True)[0].endswith("(node[0-2])")
