"""transport_used: what NCCL says that it used, against what the machine offers; a setting that explains it is named with its place."""

from collections.abc import Sequence

import msgspec
import pytest

from preflight.model import Evidence, Failure, GpuPeer, Route, Setting, Settings, Transport, Verdict
from preflight_checks.transport_used import CHECK
from tests.builders import make_inventory, make_measurement, make_plan, uuids_of
from tests.checks.clusters import said
from tests.checks.nodes_found import make_hca

P2P, SHM, SOCKET, RDMA, STAGED = "P2P/CUMEM", "SHM/direct/direct", "NET/Socket/0", "NET/IB/0/GDRDMA", "NET/IB/0"
BRIDGES = ("0000:01:00.0", "0000:00:01.0", "pci0000:00")
FAR = ("0000:81:00.0", "0000:80:01.0", "pci0000:80")


def machines(
    *,
    nvlink: int | None = 12,
    hcas: bool = True,
    near: bool = True,
    p2p: dict | None = None,
    ancestor=None,
    settings: Sequence[Setting] = (),
):
    """Two nodes of two GPUs; `nvlink`: links between the two; `hcas`: an HCA with an active port, `near` the GPUs or beyond the CPU."""
    inventory = make_inventory(nodes=2, gpus=2)
    nodes = []
    for node in inventory.nodes:
        gpus = tuple(
            msgspec.structs.replace(
                gpu,
                pci_upstream=BRIDGES,
                nics={"mlx5_0": "PIX" if near else "SYS"} if hcas else {},
                peers=(GpuPeer(index=1 - gpu.index, num_nvlinks=nvlink, ancestor=ancestor, p2p=p2p or {}),),
            )
            for gpu in node.gpus
        )
        found = (make_hca(pci_upstream=BRIDGES if near else FAR),) if hcas else ()
        nodes.append(msgspec.structs.replace(node, gpus=gpus, hcas=found, settings=tuple(settings)))
    return msgspec.structs.replace(inventory, nodes=tuple(nodes))


def run(
    inside: str | None = P2P, across: str | None = RDMA, *, inventory=None, backend="nccl", told: dict | None = None
) -> Evidence:
    """Four ranks on two nodes; a pair inside each node and one between them, each telling its ways."""
    inventory = inventory or machines()
    plan = make_plan(
        tp=2,
        dp=2,
        nodes=2,
        gpus_per_node=2,
        gpu=None,
        gpu_memory_bytes=10**12,
        parameters=10**9,
        node_names=[node.name for node in inventory.nodes],
        gpu_uuids=uuids_of(inventory),
    )
    found = []
    for (a, b), via in (((0, 1), inside), ((2, 3), inside), ((0, 2), across)):
        kind = via.partition("/")[0] if via else ""
        transports = tuple(
            Transport(
                rank=rank, routes=(Route(sender=a, receiver=b, kind=kind, via=via),) if via else (), **(told or {})
            )
            for rank in (a, b)
        )
        found.append(msgspec.structs.replace(make_measurement((a, b)), transports=transports))
    return Evidence(settings=Settings(backend=backend), plan=plan, inventory=inventory, measurements=tuple(found))


def test_peer_access_and_rdma_pass_in_one_finding():
    [finding] = said(CHECK, run())
    assert finding.verdict is Verdict.PASS
    assert "P2P" in finding.observed


def test_a_variable_that_switches_peer_access_off_is_blamed_with_its_place_and_no_node():
    """NVIDIA/nccl-tests issue 228: NVLink healthy, NCCL_P2P_DISABLE=1 left over; no NVLS channels on A100 are no part of it."""
    setting = Setting(name="NCCL_P2P_DISABLE", value="1", origin="/etc/nccl.conf")
    evidence = run(
        SHM,
        inventory=machines(settings=[setting]),
        told={"settings": {"NCCL_P2P_DISABLE": "1"}, "from_file": ("NCCL_P2P_DISABLE",), "nvls_channels": 0},
    )
    found = said(CHECK, evidence, Verdict.FAIL)
    assert {f.subject for f in found} == {"node0", "node1"}
    assert {(f.blames.kind, f.blames.name) for f in found} == {
        ("environment", "NCCL_P2P_DISABLE=1 from /etc/nccl.conf")
    }
    assert all("without peer access (SHM/direct/direct), though NVLink joins" in f.observed for f in found)
    assert not any("nvls" in f.observed.lower() for f in found)


@pytest.mark.parametrize(
    ("from_file", "place"), [((), "the environment"), (("NCCL_P2P_LEVEL",), "NCCL's configuration file")]
)
def test_where_a_setting_stands_is_told_though_the_node_does_not_tell_it(from_file, place):
    evidence = run(SHM, told={"settings": {"NCCL_P2P_LEVEL": "LOC"}, "from_file": from_file})
    assert {f.blames.name for f in said(CHECK, evidence, Verdict.FAIL)} == {f"NCCL_P2P_LEVEL=LOC from {place}"}


def test_host_memory_in_place_of_nvlink_without_a_known_reason_blames_nothing():
    found = said(CHECK, run(SHM), Verdict.FAIL)
    assert len(found) == 2
    assert {f.blames for f in found} == {None}


def test_host_memory_between_gpus_without_peer_access_is_normal():
    evidence = run(SHM, inventory=machines(nvlink=0, p2p={"read": "chipset", "write": "chipset"}, ancestor="SYS"))
    assert {f.verdict for f in said(CHECK, evidence)} == {Verdict.PASS}


def test_host_memory_where_the_driver_allows_peer_access_over_pcie_is_a_warning():
    evidence = run(SHM, inventory=machines(nvlink=0, p2p={"read": "ok", "write": "ok"}, ancestor="PIX"))
    assert {f.verdict for f in said(CHECK, evidence)} == {Verdict.WARN}


def test_what_the_machine_offers_is_not_known():
    assert {f.verdict for f in said(CHECK, run(SHM, inventory=machines(nvlink=None)))} == {Verdict.UNKNOWN}


def test_sockets_beside_active_hcas_are_the_environments_fault():
    """NVIDIA-NeMo/RL issue 1973: the plugin is not on the library path."""
    evidence = run(
        across=SOCKET, told={"notes": ("INFO NET/Plugin: Could not find: libnccl-net.so",), "network": "Socket"}
    )
    [finding] = said(CHECK, evidence, Verdict.FAIL)
    assert finding.blames.kind == "environment"
    assert "Could not find: libnccl-net.so" in finding.observed
    evidence = run(across=SOCKET, told={"settings": {"NCCL_IB_DISABLE": "1"}})
    [finding] = said(CHECK, evidence, Verdict.FAIL)
    assert finding.blames.name == "NCCL_IB_DISABLE=1 from the environment"


def test_sockets_without_hcas_are_normal():
    assert {f.verdict for f in said(CHECK, run(across=SOCKET, inventory=machines(hcas=False)))} == {Verdict.PASS}


def test_gpudirect_that_is_off_on_all_nodes_blames_the_software_and_no_node():
    """NVIDIA/nccl issue 1676: all pairs alike."""
    evidence = run(across=STAGED, told={"gdr_disabled": ("mlx5_0",), "network": "IB"})
    [finding] = said(CHECK, evidence, Verdict.FAIL)
    assert finding.blames.kind == "environment"
    assert "GPUDirect RDMA is disabled for mlx5_0" in finding.observed


def test_gpudirect_is_not_expected_of_an_hca_beyond_the_cpu():
    assert {f.verdict for f in said(CHECK, run(across=STAGED, inventory=machines(near=False)))} == {Verdict.PASS}


def with_copies(evidence, copy):
    """The same run, with the copies of each GPU at this rate, and the pairs at 10 GB/s."""
    pairs = [
        msgspec.structs.replace(make_measurement(m.probe.ranks, algbw_bytes_per_s=10e9), transports=m.transports)
        for m in evidence.measurements
    ]
    alone = [
        make_measurement((rank,), subject=f"gpu {rank}", collective=op, algbw_bytes_per_s=copy)
        for rank in range(4)
        for op in ("host_to_device", "device_to_host")
    ]
    return msgspec.structs.replace(evidence, measurements=(*pairs, *alone))


@pytest.mark.parametrize(("copy", "nvlink", "slow"), [(25e9, 0, True), (16e9, 0, False), (25e9, 12, False)])
def test_peer_access_over_pcie_that_is_slower_than_host_memory_is_worth_a_look(copy, nvlink, slow):
    """NVIDIA/nccl issue 814: 9.9 GB/s by peer access, 22 through host memory."""
    found = said(CHECK, with_copies(run(inventory=machines(nvlink=nvlink)), copy))
    assert {f.verdict for f in found} == ({Verdict.WARN} if slow else {Verdict.PASS})
    assert all(f.blames is None for f in found)
    if slow:
        assert [f.subject for f in found] == ["node0", "node1"]
        assert "10.0 GB/s at most by peer access over PCIe" in found[0].observed


def test_nccl_ran_and_said_nothing_is_unknown_and_gloo_is_not_judged():
    assert [f.verdict for f in said(CHECK, run(None, None))] == [Verdict.UNKNOWN]
    assert said(CHECK, run(SHM, SOCKET, backend="gloo")) == []


def test_nothing_is_said_where_no_probe_worked():
    evidence = run()
    failed = tuple(
        msgspec.structs.replace(m, samples=(), transports=(), failure=Failure(kind="error", text="x"))
        for m in evidence.measurements
    )
    assert said(CHECK, msgspec.structs.replace(evidence, measurements=failed)) == []
