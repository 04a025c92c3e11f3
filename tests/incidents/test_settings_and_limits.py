"""Incidents of what surrounds healthy GPUs: settings, limits, containers, versions, modes. The machine must not be blamed for them."""

import json
from dataclasses import replace

import pytest

from preflight.cli.main import run_command_line
from preflight.model import Limits, Platform, Power, Setting, Verdict, to_json
from tests.builders import make_plan
from tests.incidents.boxes import BOXES, changed, healthy, with_gpus, with_links
from tests.incidents.live import discovered, judged, kinds, plant
from tests.trees import Tree

GIB = 2**30


@pytest.mark.parametrize("where", ["environment", "/etc/nccl.conf", "/home/alice/.nccl.conf"])
def test_a_variable_that_switches_nvlink_off_is_blamed_and_no_hardware(where, tmp_path, monkeypatch):
    """NVIDIA/nccl-tests issue 228: eight A100, all links up, NCCL_P2P_DISABLE=1: 24 GB/s, and 220 after it was unset. Files count as environment (nccl issue 1008)."""
    box = BOXES["HGX A100"]()
    tree = Tree(tmp_path / "root")
    if where == "environment":
        box = replace(box, environ={"NCCL_P2P_DISABLE": "1"})
    if where == "/etc/nccl.conf":
        tree.write("etc/nccl.conf", "# left from a test\nNCCL_P2P_DISABLE=1\n")
    plant(tree, box)
    node = discovered(box, tmp_path, monkeypatch, tree=tree)
    if where.startswith("/home"):
        node = changed(node, settings=(Setting(name="NCCL_P2P_DISABLE", value="1", origin=where),))
    found = judged(node)
    assert found.answer == "no-go"
    assert found.blamed == {("environment", f"NCCL_P2P_DISABLE=1 from {where}")}
    assert set(found.failed) == {"nccl_settings"}
    said = found.said("nccl_settings")
    assert f"NCCL_P2P_DISABLE=1 (from {where}" in said
    assert "switches NVLink off, and 8 GPUs are joined by it" in said
    for check in ("nvlink_links", "nvlink_pairs", "nvlink_speed"):
        assert {finding.verdict for finding in found.of(check)} == {Verdict.PASS}
    # A100 has no NVLink SHARP: nothing is said of it
    assert "NVLS" not in found.said("nccl_settings")


def test_a_stale_graph_file_is_a_setting_s_fault(tmp_path, monkeypatch):
    """NVIDIA/nccl issue 1008: a graph file in /etc/nccl.conf broke jobs on two and three GPUs."""
    box, tree = BOXES["HGX A100"](), Tree(tmp_path / "root")
    tree.write("etc/nccl.conf", "NCCL_GRAPH_FILE=/opt/graph.xml\n")
    plant(tree, box)
    gone = judged(discovered(box, tmp_path, monkeypatch, tree=tree))
    assert kinds(gone.blamed) == {"environment"}
    assert "/opt/graph.xml" in gone.said("nccl_settings")
    tree.write("opt/graph.xml", "<graphs/>")
    there = judged(discovered(box, tmp_path, monkeypatch, tree=tree))
    assert there.answer == "go"
    assert "jobs on other or fewer GPUs may fail" in there.said("nccl_settings")


def peermem_only(name, nccl):
    """A node of the fleet after the image upgrade: nvidia_peermem without its entry in sysfs, and no dmabuf."""
    node = healthy("HGX H100")
    direct = changed(node.gpu_direct, peermem="nvidia_peermem", memory_peers=None, dmabuf=False, open_driver=False)
    own = {i: {"uuid": f"GPU-{name}-{i}"} for i in range(8)}
    return with_gpus(changed(node, name=name, gpu_direct=direct, versions={"nccl": nccl}, boot_id=name), own)


def plan_of(*nodes):
    uuids = {node.name: [gpu.uuid for gpu in node.gpus] for node in nodes}
    return make_plan(
        tp=8, pp=1, dp=len(nodes), nodes=len(nodes), node_names=[node.name for node in nodes], gpu_uuids=uuids
    )


def test_gpudirect_is_off_on_the_whole_fleet_alike():
    """NVIDIA/nccl issue 1676: after an image upgrade 180 GB/s fell to 10 on every pair; no comparison of nodes finds it, the versions do."""
    fleet = [peermem_only(f"node{i}", "2.22.3") for i in (1, 2)]
    found = judged(*fleet, plan=plan_of(*fleet))
    assert found.answer == "no-go"
    assert set(found.failed) == {"gpu_direct"}
    assert kinds(found.blamed) == {"environment"}  # the software, not a node
    said = found.said("gpu_direct")
    assert "nvidia_peermem is loaded, but has no entry in /sys/kernel/mm/memory_peers" in said
    assert "2.23.4" in said
    alone = judged(fleet[0])
    assert alone.answer == "go"  # within one node nothing needs it
    assert {finding.verdict for finding in alone.of("gpu_direct")} == {Verdict.WARN}


def test_a_newer_nccl_takes_the_module_itself():
    """The same fleet with NCCL 2.23.4; whether the module is registered can't be seen (nccl issues 1537 and 1939): a look, no fault."""
    fleet = [peermem_only(f"node{i}", "2.23.4") for i in (1, 2)]
    found = judged(*fleet, plan=plan_of(*fleet))
    assert found.answer == "go"
    assert {finding.verdict for finding in found.of("gpu_direct")} == {Verdict.WARN}


@pytest.mark.parametrize(("size", "answer"), [(64 * 2**20, "no-go"), (GIB, "go")])
def test_shared_memory_of_a_container(size, answer):
    """NVIDIA/nccl issues 342 and 290: 64 MB in a container; a channel's segment needs about 9.6 MB, and there are eight GPUs."""
    node = changed(healthy("HGX H100"), platform=Platform(virtual_machine="none", container="docker"))
    found = judged(changed(node, limits=changed(node.limits, shm_bytes=size, shm_free_bytes=size)))
    assert found.answer == answer, found.text(Verdict.FAIL)
    if answer == "no-go":
        assert found.blamed == {("environment", "/dev/shm on node1")}
        assert "--shm-size=1g" in found.said("shm_size")


@pytest.mark.parametrize("limit", [64 * 1024, 8192 * 1024])
def test_locked_memory_is_what_the_step_has_and_not_what_a_file_says(limit):
    """ai4d-iasc/trixie issue 81, NVIDIA/nccl-tests issue 206: 64K or 8192 KiB inside the job although the system's file says unlimited."""
    node = healthy("HGX H100")
    limits = Limits(memlock_bytes=limit, memlock_hard_bytes=limit, privileged=False, shm_bytes=GIB, shm_free_bytes=GIB)
    found = judged(changed(node, limits=limits))
    assert found.answer == "no-go"
    assert found.blamed == {("environment", "locked-memory limit on node1")}
    assert "LimitMEMLOCK=infinity" in found.said("memlock")


def test_libraries_of_size_zero_are_no_missing_driver():
    """nebius/soperator issue 2684: NVIDIA's libraries were there with size 0; the GPUs are on the bus. Unknown, not "no GPUs"."""
    note = "8 NVIDIA devices on the PCI bus, but no working driver (NVML Shared Library Not Found (NVML 12))"
    found = judged(changed(healthy("HGX H100"), gpus=None, gpu_note=note))
    assert found.answer == "undecided"
    assert found.text(Verdict.FAIL) == []
    assert note in found.said("gpus_answer")


def test_mig_is_a_setting_and_stops_a_planned_rank_only():
    """aws/aws-parallelcluster-cookbook issue 3183, NVIDIA/nccl issue 1716: MIG on: no peer access; mixed with whole GPUs on one node."""
    node = healthy("H100 with one in MIG mode")
    assert judged(node).answer == "go"
    uuids = {"node1": [gpu.uuid for gpu in node.gpus]}
    for ranks, answer in ((7, "go"), (8, "no-go")):
        plan = make_plan(
            tp=ranks,
            pp=1,
            dp=1,
            nodes=1,
            gpus_per_node=ranks,
            model={"attention_heads": 56},
            node_names=["node1"],
            gpu_uuids={"node1": uuids["node1"][:ranks]},
        )
        found = judged(node, plan=plan)
        assert found.answer == answer, found.text(Verdict.FAIL, Verdict.UNKNOWN)
        assert kinds(found.blamed) <= {"environment"}


def test_mig_mode_without_instances_is_said():
    """ComputeCanada/puppet-magic_castle issue 276: MIG mode on, no instances: slurmd refuses to start."""
    node = healthy("H100 with one in MIG mode")
    found = judged(with_gpus(node, {7: {"mig_devices": ()}}))
    assert "with 0 MIG devices" in found.said("mig_mode")
    assert kinds(found.suspected) == {"environment"}


def test_persistence_mode_off_is_a_warning_about_a_setting():
    """leptonai/gpud issues 431 and 137, AgentBaker issue 2829: read as off just after boot; enabling takes over 25 s on eight GPUs."""
    found = judged(with_gpus(healthy("HGX H100"), {i: {"persistence": False} for i in range(8)}))
    assert found.answer == "go"
    (finding,) = found.of("persistence")
    assert finding.verdict is Verdict.WARN
    assert finding.blames is not None
    assert finding.blames.kind == "environment"
    assert "after a minute" in finding.remedy


@pytest.mark.parametrize(
    ("reasons", "verdict"),
    [
        (("idle",), Verdict.PASS),
        (("sw power cap",), Verdict.PASS),
        (("hw slowdown",), Verdict.WARN),
        (("hw power brake slowdown",), Verdict.WARN),
    ],
)
def test_slowdown_by_hardware_is_told_from_idleness_and_power_caps(reasons, verdict):
    """mlfoundations/open_clip issue 703, azurehpc-health-checks issue 3, leptonai/gpud issue 331."""
    facts = {5: {"clocks": lambda clocks: changed(clocks, throttle_reasons=reasons)}}
    found = judged(with_gpus(healthy("HGX H100"), facts))
    assert found.answer == "go"
    assert min(finding.verdict.rank for finding in found.of("throttle")) == verdict.rank


def test_one_of_four_at_half_its_power_is_a_cap_and_no_broken_gpu():
    """l4rz, iDRAC issue 3: one of four V100 capped at 150 of 300 W."""
    capped = Power(draw_w=45.0, limit_w=150.0, default_limit_w=300.0, enforced_limit_w=150.0, max_limit_w=300.0)
    found = judged(with_gpus(healthy("DGX-1 V100"), {2: {"power": capped}}))
    assert found.answer == "no-go"
    assert found.blamed == {("environment", "power limit of node1")}
    assert "limited to 150 of 300 W" in found.said("power_limit")


@pytest.mark.parametrize("name", ["HGX H100", "HGX A100"])
def test_negative_lists_of_interfaces_leave_the_loopback_in(name, tmp_path, monkeypatch):
    """aws/aws-ofi-nccl issue 803, horovod issue 700: NCCL_SOCKET_IFNAME=^docker0 lets NCCL take lo; runs on one node hide it."""
    node = discovered(replace(BOXES[name](), environ={"NCCL_SOCKET_IFNAME": "^docker0"}), tmp_path, monkeypatch)
    alone = judged(node)
    assert alone.answer == "go"
    assert "leaves the loopback interface in" in alone.said("nccl_settings")
    other = with_gpus(changed(node, name="node2", boot_id="2"), {i: {"uuid": f"GPU-2-{i}"} for i in range(8)})
    together = judged(node, other)
    assert together.answer == "no-go"
    assert kinds(together.blamed) == {"environment"}


def test_names_of_interfaces_that_differ_per_node_are_told_by_class():
    """NVIDIA/nccl issues 286 and 1581."""
    node = healthy("HGX H100")
    nics = tuple(changed(nic, name="enp71s0") if nic.name == "eth0" else nic for nic in node.nics)
    odd = with_gpus(changed(node, name="node2", boot_id="2", nics=nics), {i: {"uuid": f"GPU-2-{i}"} for i in range(8)})
    others = [
        with_gpus(changed(node, name=f"node{n}", boot_id=str(n)), {i: {"uuid": f"GPU-{n}-{i}"} for i in range(8)})
        for n in (3, 4)
    ]
    found = judged(odd, *others)
    assert found.answer == "go"
    said = found.said("nic_uniform")
    assert "enp71s0" in said
    assert "node2" in said


@pytest.mark.parametrize("setting", ["NCCL_NET=Socket", "NCCL_IB_DISABLE=1"])
def test_sockets_beside_usable_cards_are_a_setting_s_fault(setting, tmp_path, monkeypatch):
    """NVIDIA-NeMo/RL issue 1973, InferenceX issue 2979, nccl issues 229 and 959: NCCL falls to Socket. What the job really used, only a run can tell."""
    name, _, value = setting.partition("=")
    node = discovered(replace(BOXES["HGX H100"](), environ={name: value}), tmp_path, monkeypatch)
    found = judged(node)
    assert found.answer == "go"
    assert "8 usable HCAs" in found.said("nccl_settings")
    assert {finding.verdict for finding in found.of("nccl_settings")} == {Verdict.WARN}


def test_json_of_a_report_can_be_judged_again_with_the_same_answer(tmp_path, capsys):
    """What is kept of an incident gives the same verdict later."""
    sick = with_gpus(healthy("HGX H100"), {6: {"links": with_links(3, active=False, state="inactive")}})
    (tmp_path / "node.json").write_bytes(to_json(sick))
    assert run_command_line(["node", "--from", str(tmp_path / "node.json"), "--format", "json"]) == 10
    text = capsys.readouterr().out
    assert json.loads(text)["answer"] == "no-go"
    (tmp_path / "report.json").write_text(text)
    assert run_command_line(["judge", str(tmp_path / "report.json")]) == 10
