"""Incidents in which everything is slow alike: a setting, a library, a module. No comparison of nodes finds them, and no node is to blame."""

import functools
import tempfile
from dataclasses import replace as with_fields
from pathlib import Path

import pytest

from preflight.cli.main import run_command_line
from preflight.model import Report, Setting, Verdict, from_json, to_json
from preflight.model.units import GIB
from tests import fake_gpus
from tests.incidents.boxes import changed, healthy
from tests.incidents.live import PHB, SYS, Box, Judged, discovered, kinds
from tests.incidents.measured import GB, all_judged, fleet, history, measured, plan_of, usual
from tests.incidents.test_settings_and_limits import peermem_only

STAGED, RDMA, SOCKET, PEER, HOST = "NET/IB/0", "NET/IB/0/GDRDMA", "NET/Socket/0", "P2P/CUMEM", "SHM/direct/direct"
HCAS = tuple(f"mlx5_{i}" for i in range(8))


def ways(plan, across):
    """NCCL's words: peer access inside nodes, and this between them."""
    places = plan.placement.node_ranks
    return lambda a, b: PEER if places[a] == places[b] else across


# --- case 8: NVIDIA/nccl issue 1676 ---


def upgraded(number, *, nccl="2.22.3", rate=10.0, via=STAGED, baseline=(180.0, 181.0, 179.0, 180.0, 182.0)):
    """Eight A100 with eight HCAs of 200 Gbit/s; after an image upgrade only nvidia_peermem is loaded, and nothing is registered. 180 GB/s before."""
    node = healthy("HGX A100")
    direct = changed(node.gpu_direct, peermem="nvidia_peermem", memory_peers=None, dmabuf=False, open_driver=False)
    nodes = fleet(changed(node, gpu_direct=direct, versions={"nccl": nccl}), number)
    plan = plan_of(nodes, tp=1, dp=8 * number)
    off = via == STAGED
    return measured(
        nodes,
        plan,
        usual(plan, ring=230, nic=rate / 8, copy=25),
        via=ways(plan, via),
        told=lambda _: {"gdr": not off, "gdr_disabled": HCAS if off else (), "version": nccl, "network": "IB"},
        baseline=history("dp0", GIB, *baseline),
    )


@pytest.mark.parametrize("number", [2, 4])
def test_gpudirect_off_everywhere_blames_the_software_and_no_node(number):
    found = all_judged(upgraded(number))
    assert found.answer == "no-go"
    # nothing is found by comparing the nodes; over four, slow_part names what all have in common
    assert set(found.failed) - {"slow_part"} == {"gpu_direct", "transport_used", "group_busbw"}
    assert kinds(found.suspected) == {"environment"}
    said = found.said("transport_used")
    assert f"node[1-{number}]" in said
    assert all(hca in said for hca in HCAS)
    group = found.said("group_busbw")
    assert "10.0" in group
    assert "below its own history (180 GB/s, the median of 5 earlier runs; in this run)" in group
    assert "GPUDirect RDMA is not active" in group
    software = found.said("gpu_direct")
    assert "where NCCL 2.22.3 looks (2.23.4 and later take the module itself)" in software


def test_a_loaded_module_is_not_gpudirect_in_use():
    """The trap: with NCCL 2.23.4 the same node tells no fault, and what NCCL says of its ways does."""
    found = all_judged(upgraded(2, nccl="2.23.4"))
    assert {finding.verdict for finding in found.of("gpu_direct")} == {Verdict.WARN}
    assert {"transport_used", "group_busbw"} <= set(found.failed)
    assert kinds(found.blamed) == {"environment"}


def test_gpudirect_in_use_is_healthy_whatever_sysfs_lacks():
    found = all_judged(upgraded(2, nccl="2.23.4", rate=180.0, via=RDMA))
    assert found.answer == "go"
    assert found.blamed == set()


def test_the_formula_finds_it_where_nobody_kept_a_history():
    found = all_judged(upgraded(2, baseline=()))
    assert "group_busbw" in found.failed
    assert "8 NICs x 24.0 GB/s = 192 GB/s" in found.said("group_busbw")


def test_the_node_and_its_versions_are_enough_before_anything_is_measured():
    """What `preflight node` on two nodes and a plan say already; the fleet of tests of settings."""
    nodes = [peermem_only(f"node{i}", "2.22.3") for i in (1, 2)]
    plan = plan_of(nodes, tp=1, dp=16)
    assert "gpu_direct" in all_judged(measured(nodes, plan, via=ways(plan, STAGED))).failed


# --- case 12: NVIDIA/nccl-tests issue 228 ---


def left_over(origin, *, rate=24.0, value="1"):
    """Eight A100, all twelve links of each at 25 GB/s, and NCCL_P2P_DISABLE left over: 24 in place of 220 GB/s."""
    setting = Setting(name="NCCL_P2P_DISABLE", value=value, origin=origin)
    node = changed(healthy("HGX A100"), settings=(setting,))
    plan = plan_of([node], tp=8, dp=1)
    file = () if origin == "environment" else ("NCCL_P2P_DISABLE",)
    speed = usual(plan, pair=rate / 2, ring=rate, copy=25)
    told = {"settings": {"NCCL_P2P_DISABLE": value}, "from_file": file}
    return measured([node], plan, speed, via=lambda _a, _b: HOST, told=lambda _: told)


@pytest.mark.parametrize("origin", ["environment", "/etc/nccl.conf", "/home/alice/.nccl.conf"])
def test_a_variable_left_over_is_blamed_with_its_place_and_the_hardware_passes(origin):
    found = all_judged(left_over(origin))
    assert found.answer == "no-go"
    assert set(found.failed) == {"nccl_settings", "transport_used", "group_busbw"}
    assert kinds(found.suspected) == {"environment"}
    for check in found.failed:
        assert f"NCCL_P2P_DISABLE=1 from {origin}" in str(found.blamed)
        assert origin in found.said(check), check
    assert "direct access between GPUs is off" in str(found.blamed)
    for check in ("nvlink_links", "nvlink_pairs", "nvlink_speed", "p2p_access"):
        assert {finding.verdict for finding in found.of(check)} == {Verdict.PASS}, check


def test_no_nvls_channels_on_a100_are_no_fault():
    """A100 has no NVLink SHARP; the variable once unset, all is well with 0 NVLS channels."""
    node = healthy("HGX A100")
    plan = plan_of([node], tp=8, dp=1)
    found = all_judged(measured([node], plan, usual(plan, pair=220, ring=225, copy=25)))
    assert found.answer == "go"
    assert found.suspected == set()
    assert not any("NVLS" in text for text in found.text(*Verdict))


def test_the_variable_set_to_0_switches_nothing_off():
    found = all_judged(left_over("environment", value="0", rate=225.0))
    assert not any("NCCL_P2P_DISABLE" in name for _, name in found.blamed)


# --- NVIDIA-NeMo/RL issue 1973, NVIDIA/nccl issues 229 and 959 ---


@pytest.mark.parametrize("number", [2, 4])
def test_sockets_in_place_of_the_network_that_is_configured(number):
    """The plugin is not on the library path: NCCL falls to sockets without a word. What was used counts, not what is configured."""
    nodes = fleet(healthy("HGX H100"), number)
    plan = plan_of(nodes)
    told = {"network": "Socket", "notes": ("NET/Plugin: Could not find: libnccl-net.so",)}
    found = all_judged(measured(nodes, plan, usual(plan, nic=2.5), via=ways(plan, SOCKET), told=lambda _: told))
    assert found.answer == "no-go"
    assert {"transport_used", "group_busbw"} <= set(found.failed)
    assert kinds(found.suspected) == {"environment"}
    assert "over TCP sockets" in found.said("transport_used")
    assert "Could not find: libnccl-net.so" in found.said("transport_used")


# --- NVIDIA/nccl issues 814 and 1817, nccl-tests issue 74 ---


@functools.cache
def six_4090():
    """Six RTX 4090 on PCIe, of which two pairs are below one host bridge, as in the report."""
    near = {frozenset((0, 1)), frozenset((3, 4))}
    first = fake_gpus.geforce()[0]
    gpus = [with_fields(first, uuid=f"GPU-4090-{i}", pcie=(1, 16, 4, 16, 4), memory_bytes=25 * 10**9) for i in range(6)]
    box = Box(
        gpus, (0,) * 6, switch=False, cards=False, relation=lambda a, b: PHB if frozenset((a, b)) in near else SYS
    )
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        return discovered(box, Path(folder), patch), near


@pytest.mark.parametrize("everywhere", [True, False], ids=["peer access everywhere", "between near pairs only"])
@pytest.mark.parametrize("rate", [9.9, 6.0])
def test_peer_access_that_is_slower_than_host_memory_is_worth_a_look(rate, everywhere):
    """9.9 GB/s peer to peer, and 22 with NCCL_P2P_DISABLE=1; about 6 across sockets. It is how such machines are, so that neither GPU nor link is bad."""
    node, near = six_4090()
    plan = plan_of([node], tp=6, dp=1)
    by_peer = lambda a, b: everywhere or frozenset((a, b)) in near  # noqa: E731 - as short as a table
    healthy_speed = usual(plan, ring=rate, copy=25)

    def speed(probe):
        if len(probe.ranks) == 2:
            return (rate if by_peer(*probe.ranks) else 22.0) * GB
        return healthy_speed(probe)

    found = all_judged(measured([node], plan, speed, via=lambda a, b: PEER if by_peer(a, b) else HOST))
    assert found.answer == "go", found.text(Verdict.FAIL, Verdict.UNKNOWN)
    assert found.suspected == set()
    (finding,) = [f for f in found.of("transport_used") if f.verdict is Verdict.WARN]
    assert "peer access may be slower than staging through host memory" in finding.observed
    assert f"{rate:.1f}"[:3] in finding.observed
    assert "25.0 GB/s" in finding.observed
    assert "NCCL_P2P_DISABLE=1" in finding.remedy


def test_peer_access_as_fast_as_copies_is_not_mentioned():
    node, _ = six_4090()
    plan = plan_of([node], tp=6, dp=1)
    found = all_judged(measured([node], plan, usual(plan, pair=22, ring=22, copy=25), via=lambda _a, _b: PEER))
    assert {finding.verdict for finding in found.of("transport_used")} == {Verdict.PASS}


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda: upgraded(2), "below its own history (180 GB/s"),
        (lambda: left_over("/etc/nccl.conf"), "NCCL_P2P_DISABLE=1 from /etc/nccl.conf"),
    ],
    ids=["case 8", "case 12"],
)
def test_a_saved_run_gives_the_same_on_the_command_line(run, words, tmp_path, capsys):
    """What people send with a bug report: `preflight judge report.json` needs no GPU and no cluster."""
    evidence = run()
    found = all_judged(evidence)
    report = Report(
        run_id="r",
        command="run",
        started_at_s=0.0,
        duration_s=1.0,
        answer=found.answer,
        evidence=evidence,
        findings=found.findings,
    )
    (tmp_path / "report.json").write_bytes(to_json(report))
    assert run_command_line(["judge", str(tmp_path / "report.json"), "--format", "json"]) == 10
    again = from_json(capsys.readouterr().out, Report)
    assert Judged(again.answer, again.findings).blamed == found.blamed
    assert any(words in f"{finding.observed} {finding.blames}" for finding in again.findings)
