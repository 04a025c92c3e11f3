"""Incidents of NVLink and its fabric: links that are down, GPUs outside the fabric, products that are made oddly."""

from dataclasses import replace

import pytest

from preflight.model import Fabric, KernelEvent, Service, Verdict
from tests import fakes
from tests.builders import make_plan
from tests.fakes import FakeLink
from tests.incidents.boxes import (
    BOXES,
    changed,
    healthy,
    with_gpus,
    with_links,
)
from tests.incidents.live import discovered, judge_file, judged
from tests.topology_texts import load, render

INACTIVE = FakeLink(active=False)


def broken(name, gpus, tmp_path, monkeypatch, **box):
    """That box with some of its GPUs changed: place -> facts."""
    made = BOXES[name]()
    mended = [replace(gpu, **gpus.get(place, {})) for place, gpu in enumerate(made.gpus)]
    return discovered(replace(made, gpus=mended, **box), tmp_path, monkeypatch)


def without(links, *indices):
    return tuple(INACTIVE if index in indices else link for index, link in enumerate(links))


def test_completed_is_not_registered(tmp_path, monkeypatch):
    """Azure/azhpc-images pull request 506: state Completed, status Insufficient Resources, clique and UUID zero."""
    monkeypatch.setitem(fakes._WORDS, 23, b"Insufficient Resources")
    found = judged(broken("GB200 tray", {2: {"fabric": (3, 23, bytes(16), 0)}}, tmp_path, monkeypatch))
    assert found.answer == "no-go"
    assert found.failed == {"fabric_state": {"node1 GPU 2 (GPU-gb200-2)"}}
    assert found.blamed == {("gpu", "node1 GPU 2 (GPU-gb200-2)")}
    said = found.said("fabric_state")
    for words in ("state completed", "status Insufficient Resources, not success", "cluster UUID all zero", "clique 0"):
        assert words in said


def test_zero_clique_and_uuid_are_a_fault_in_a_rack_only():
    """NVIDIA/nccl issue 1672: on one HGX board both are zero and all is well."""
    assert judged(healthy("HGX H100")).answer == "go"
    zero = Fabric(state="completed", status=0, clique_id=0)
    found = judged(with_gpus(healthy("GB200 tray"), {index: {"fabric": zero} for index in range(4)}))
    assert set(found.failed) == {"fabric_state"}
    assert "cluster UUID all zero" in found.said("fabric_state")
    good = judged(healthy("GB200 tray"))
    assert good.answer == "go"
    assert "clique 7" in good.said("fabric_state")


def test_registration_under_way_is_unknown_and_blames_nobody(tmp_path, monkeypatch):
    """NVIDIA/gpu-driver-container issue 909: In Progress is normal until a partition is activated."""
    waiting = {i: {"fabric": (2, 0, bytes(16), 0), "links": (INACTIVE,) * 18} for i in range(8)}
    found = judged(broken("HGX H100", waiting, tmp_path, monkeypatch))
    assert found.answer != "go"
    assert "fabric_state" not in found.failed
    assert "registration in progress" in found.said("fabric_state")


def test_two_of_six_links_inactive_on_one_gpu(tmp_path, monkeypatch):
    """Azure/azhpc-diagnostics issue 73: GPU 3 of a V100 machine has links 3 and 5 inactive, its peers report six active each."""
    links = BOXES["DGX-1 V100"]().gpus[3].links
    found = judged(broken("DGX-1 V100", {3: {"links": without(links, 3, 5)}}, tmp_path, monkeypatch))
    assert found.answer == "no-go"
    said = found.said("nvlink_links")
    assert "4 of 6 links active, links 3 and 5 inactive" in said
    assert "the two ends disagree" in said
    assert found.blamed == {("gpu", "node1 GPU 3 (GPU-v100-3)")}


def test_both_ends_inactive_still_blame_the_gpu_that_they_share(tmp_path, monkeypatch):
    """The same, with the far ends on GPUs 2 and 7 inactive too."""
    gpus = BOXES["DGX-1 V100"]().gpus
    towards_3 = {
        place: next(i for i, link in enumerate(gpus[place].links) if link.far_id == "00000000:43:00.0")
        for place in (2, 7)
    }
    facts = {place: {"links": without(gpus[place].links, link)} for place, link in towards_3.items()}
    facts[3] = {"links": without(gpus[3].links, 3, 5)}
    found = judged(broken("DGX-1 V100", facts, tmp_path, monkeypatch))
    assert found.answer == "no-go"
    assert found.blamed == {("gpu", "node1 GPU 3 (GPU-v100-3)")}
    assert "GPUs 2, 7" in found.said("nvlink_links")


def outside_the_fabric(tmp_path, monkeypatch):
    facts = {2: {"links": (INACTIVE,) * 18, "fabric": (1, 0, bytes(16), 0)}}
    return broken("HGX B200", facts, tmp_path, monkeypatch)


def test_one_gpu_outside_the_switches_is_blamed_and_the_seven_others_are_not(tmp_path, monkeypatch):
    """vllm-project/vllm issue 16336: 21 of 28 pairs NV18, every pair with GPU 2 without NVLink."""
    found = judged(outside_the_fabric(tmp_path, monkeypatch))
    assert found.answer == "no-go"
    assert found.blamed == {("gpu", "node1 GPU 2 (GPU-b200-2)")}
    said = found.said("nvlink_pairs")
    assert "NVLink to 0 of 7 peers" in said
    assert "the others to 6 of 6" in said
    assert "fabric registration" in said


@pytest.mark.parametrize(("places", "answer"), [((4, 5, 6, 7), "go"), ((0, 1, 2, 3), "no-go")])
def test_a_sick_gpu_stops_only_the_groups_that_have_it(places, answer, tmp_path, monkeypatch):
    """The same machine: a group on GPUs 4 to 7 may run."""
    node = outside_the_fabric(tmp_path, monkeypatch)
    uuids = {"node1": [node.gpus[place].uuid for place in places]}
    plan = make_plan(
        tp=4, pp=1, dp=1, nodes=1, gpus_per_node=4, gpu="B200-180GB", node_names=["node1"], gpu_uuids=uuids
    )
    found = judged(node, plan=plan)
    assert found.answer == answer, found.text(Verdict.FAIL, Verdict.UNKNOWN)


def judge_text(tmp_path, capsys, name, *arguments):
    """Exit code, and the report on a matrix that somebody showed."""
    (tmp_path / "topo.txt").write_text(render(load(name)))
    return judge_file(tmp_path / "topo.txt", capsys, *arguments)


def test_a_bug_report_s_matrix_alone_is_enough_to_find_that_gpu(tmp_path, capsys):
    """The same machine as the text of `nvidia-smi topo -m`."""
    code, found = judge_text(tmp_path, capsys, "b200-8gpu-12nic-gpu2-no-nvlink", "--product", "NVIDIA B200")
    assert code == 10
    assert found.failed == {"nvlink_pairs": {"topo GPU 2"}}
    assert "NVLink to 0 of 7 peers" in found.said("nvlink_pairs")


@pytest.mark.parametrize(("product", "code"), [("NVIDIA A800-SXM4-80GB", 0), ("NVIDIA A100-SXM4-80GB", 10)])
def test_nv8_everywhere_is_an_a800_in_health_and_an_a100_in_pieces(product, code, tmp_path, capsys):
    """NVIDIA/nccl issue 933, pytorch/pytorch issue 106190: all 28 pairs NV8; nine NICs, of which NIC0 belongs to nobody."""
    name = "a800-8gpu-9nic-nv8-healthy"
    got, found = judge_text(tmp_path, capsys, name, "--product", product)
    assert got == code
    rails = found.said("nic_affinity")
    assert "GPU 0: NIC2, GPU 1: NIC4, GPU 2: NIC6, GPU 3: NIC8, GPU 4: NIC1, GPU 5: NIC3, GPU 6: NIC5" in rails
    assert "nobody's: NIC0" in rails
    assert ("8 of 12 NVLinks on every pair" if code else "NV8 on all 28 pairs") in found.said("nvlink_pairs")


def test_counters_of_one_link_warn_before_it_fails():
    """marin-community/marin issue 8934: 320 GPUs of 18 links, all zero but for GPU 0 link 14: 505 recoveries, 3 more in 21 minutes."""
    from preflight.model import Inventory

    node = healthy("GB200 tray")
    told = node.gpus[0].links[14].counters
    before, after = (
        with_gpus(node, {0: {"links": with_links(14, counters={**told, "recovery_ok": count})}}) for count in (502, 505)
    )
    after = changed(after, taken_at_s=(before.taken_at_s or 0.0) + 21 * 60)
    alone = judged(after)
    assert alone.answer == "go"
    assert "link 14" in alone.said("nvlink_errors")
    grown = judged(after, before=Inventory(nodes=(before,)))
    assert grown.answer == "go"
    assert "grew by 3 in 1260 s, to 505" in grown.said("counter_growth")
    assert {name for _, name in grown.suspected} == {"node1 GPU 0 (GPU-gb200-0) link 14"}


def xid(node, index, code, at_s, text, **facts):
    return KernelEvent(kind="xid", code=code, at_s=at_s, pci_bus_id=node.gpus[index].pci_bus_id, text=text, **facts)


def with_events(node, *events):
    return changed(node, kernel_log=changed(node.kernel_log, events=events))


def test_the_link_that_failed_is_one_gpu_and_not_the_64_that_spoke():
    """marin-community/marin issue 9086: Xid 149 on one GPU, Xid 145 on 63 others of the rack."""
    tray = healthy("GB200 tray")
    trays = [changed(tray, name=f"node{i}", hostname=f"node{i}", boot_id=f"boot-{i}") for i in range(1, 17)]
    trays = [
        with_gpus(t, {i: {"uuid": f"GPU-{t.name}-{i}", "nvlink_domain": "rack.7"} for i in range(4)}) for t in trays
    ]
    loud = []
    for tray in trays:
        events = [
            xid(tray, i, 145, 5000.5, "Xid 145, RLW_REMAP Nonfatal", subcode="RLW_REMAP", severity="Nonfatal")
            for i in range(4)
        ]
        if tray.name == "node1":
            tray = with_gpus(tray, {0: {"recovery_action": "reset"}})  # noqa: PLW2901 - what its driver then asks for
            events[0] = xid(
                tray, 0, 149, 5000.0, "Xid 149, NETIR_LINK_DOWN Fatal Link 14", subcode="NETIR", severity="Fatal"
            )
        loud.append(with_events(tray, *events))
    found = judged(*loud)
    assert found.answer == "no-go"
    assert found.blamed == {("gpu", "node1 GPU 0 (GPU-node1-0)")}
    assert "only reported what followed from it" in found.said("xid")


def test_an_error_names_its_own_cause():
    """NVIDIA/open-gpu-kernel-modules issues 1150 and 1355: Xid 45 caused by 149 on one GPU, 145 on its peer; all links of the first are down."""
    node = with_gpus(healthy("HGX B200"), {3: {"links": with_links(*range(18), active=False, state="inactive")}})
    node = with_events(
        node,
        xid(node, 5, 145, 900.0, "Xid 145, RLW_RSP Nonfatal", subcode="RLW_RSP", severity="Nonfatal"),
        xid(node, 3, 45, 900.2, "Ch 0000000b, caused by previous Xid 149"),
    )
    found = judged(node)
    assert found.answer == "no-go"
    assert {name for _, name in found.blamed} == {"node1 GPU 3 (GPU-b200-3)"}
    assert "Xid 149" in found.said("xid")


@pytest.mark.parametrize("name", ["HGX H100", "HGX A100", "HGX B200"])
def test_counters_that_a_generation_lacks_are_not_zero_and_not_a_fault(name):
    """NVIDIA/nvidia-resiliency-ext issue 302, NVIDIA/dcgm-exporter issues 581 and 473: counters stand under other fields in each generation."""
    node = healthy(name)
    bare = with_gpus(node, {i: {"links": with_links(*range(18), counters={})} for i in range(8)})
    found = judged(bare)
    assert found.answer == "go"
    assert {finding.verdict for finding in found.of("nvlink_errors")} == {Verdict.UNKNOWN}


def test_a_gpu_whose_links_cannot_be_read_beside_others_is_noticed():
    """NVIDIA/nccl issue 1182: NVML failed for the links of one GPU only; the others list four switches. The asymmetry is the sign."""
    from preflight.model import Problem

    trouble = (Problem(source="nvmlDeviceGetNvLinkState", text="Unknown Error (NVML 999)", field="links"),)
    found = judged(with_gpus(healthy("HGX H100"), {5: {"links": None, "problems": trouble}}))
    assert found.answer == "undecided"
    assert found.text(Verdict.FAIL) == []
    unknown = {finding.subject for finding in found.with_verdict(Verdict.UNKNOWN)}
    assert unknown == {"node1 GPU 5 (GPU-h100-5)"}


def test_a_bridge_with_partial_contact_is_blamed_and_no_card(tmp_path, capsys):
    """NVIDIA/nccl issues 557 and 340: NV3 on two cards that a bridge joins by four."""
    code, found = judge_text(tmp_path, capsys, "2gpu-bridge-nv3-partial", "--product", "NVIDIA RTX A6000")
    assert code == 10
    assert found.blamed == {("link", "topo GPU 0 - GPU 1")}


def test_a_dead_bridge_is_a_pair_s_and_the_other_pair_may_run(tmp_path, monkeypatch):
    """ "Your NVLink is half-down": four H100 NVL, GPUs 2 and 3 joined by 12 links, GPUs 0 and 1 by none; the tensor-parallel group sat on the dead pair."""
    dead = {place: {"links": (INACTIVE,) * 12} for place in (0, 1)}
    node = broken("H100 NVL in bridged pairs", dead, tmp_path, monkeypatch)
    found = judged(node)
    assert found.answer == "no-go"
    assert found.blamed == {("link", "node1 GPU 0 - GPU 1")}
    for places, answer in (((2, 3), "go"), ((0, 1), "no-go")):
        uuids = {"node1": [node.gpus[place].uuid for place in places]}
        plan = make_plan(
            tp=2, pp=1, dp=1, nodes=1, gpus_per_node=2, gpu="H100-NVL-94GB", node_names=["node1"], gpu_uuids=uuids
        )
        assert judged(node, plan=plan).answer == answer


@pytest.mark.parametrize("number", [5, 7, 9, 16, 24])
def test_any_number_of_links_counts_as_nvlink(number, tmp_path, capsys):
    """Osmantic/ODS issue 2112: code that listed 4, 6, 8, 12 and 18 ranked NV5 below SYS."""
    header = "\t" + "\t".join(f"GPU{i}" for i in range(4))
    rows = [f"GPU{a}\t" + "\t".join("X" if a == b else f"NV{number}" for b in range(4)) for a in range(4)]
    (tmp_path / "topo.txt").write_text("\n".join([header, *rows]) + "\n")
    _, found = judge_file(tmp_path / "topo.txt", capsys)
    assert f"NV{number} on all 6 pairs" in found.said("nvlink_pairs")
    assert found.text(Verdict.FAIL) == []


def test_a_switch_s_error_leads_to_the_gpu_s_link():
    """NVIDIA/go-nvml issue 166: SXids name a switch port; the driver tells which link of which GPU is at it."""
    node = healthy("HGX A100")
    link = node.gpus[3].links[5]
    error = KernelEvent(
        kind="sxid",
        code=12028,
        severity="Fatal",
        at_s=800.0,
        pci_bus_id=link.peer_pci_bus_id,
        port=link.peer_link,
        text="SXid 12028",
    )
    found = judged(with_events(node, error))
    assert found.answer == "no-go"
    assert {kind for kind, _ in found.blamed} == {"switch"}
    assert "GPU 3 (GPU-a100-sxm-3) link 5" in found.said("nvswitch_errors") or "link 5" in found.said("nvswitch_errors")


def test_a_machine_of_the_hypervisor_s_without_its_switches(tmp_path, monkeypatch):
    """NVIDIA/nccl-tests issue 260: two of eight GPUs in a virtual machine, without NVSwitches; the fabric manager belongs on the hypervisor."""
    made = BOXES["HGX H100"]()
    gpus = [replace(gpu, links=(INACTIVE,) * 18, fabric=(2, 0, bytes(16), 0)) for gpu in made.gpus[:2]]
    node = discovered(
        replace(made, gpus=gpus, sockets=(0, 0), virtual=True, cards=False, daemons=()), tmp_path, monkeypatch
    )
    found = judged(node)
    assert found.answer == "undecided"
    assert found.text(Verdict.FAIL) == []
    assert "hypervisor" in found.said("services")
    without_fabric = with_gpus(node, {place: {"fabric": Fabric(state="not supported")} for place in (0, 1)})
    found = judged(without_fabric)
    assert found.answer == "go"
    assert "given them without the switches" in found.said("nvlink_pairs") + found.said("nvlink_links")
    assert found.suspected == set()


def test_a_dead_fabric_manager_is_the_node_s_and_no_gpu_s(tmp_path, monkeypatch):
    """NVIDIA/NVSentinel issue 883: it died and nobody noticed for 20 days; the GPUs are still registered from before."""
    found = judged(broken("HGX H100", {}, tmp_path, monkeypatch, daemons=("nvidia-persistenced",)))
    assert found.answer == "no-go"
    assert found.blamed == {("node", "node1")}
    assert "nv-fabricmanager is not running" in found.said("services")


def test_two_boards_are_not_one_nvlink_domain():
    """NVIDIA/nvbandwidth issue 44: IMEX runs on both HGX B200 boxes, and a copy between them can't work."""
    from preflight.discover.topology import build_topology
    from preflight.model import Inventory

    node = healthy("HGX B200")
    services = (*node.services, Service(name="nvidia-imex", running=True))
    two = [
        with_gpus(
            changed(node, name=name, services=services),
            {i: {"uuid": f"GPU-{name}-{i}", "nvlink_domain": name} for i in range(8)},
        )
        for name in ("node1", "node2")
    ]
    domains = build_topology(Inventory(nodes=tuple(two))).nvlink_domains
    assert {name: len(uuids) for name, uuids in domains.items()} == {"node1": 8, "node2": 8}
    assert judged(*two).failed == {}


def test_a_degraded_fabric_is_read_from_the_health_mask(tmp_path, monkeypatch):
    """NVIDIA/nccl issues 1769 and 2186: clique id and health mask 0xaa in the logs are the mask of a healthy fabric; other bits are not."""
    assert judged(broken("GB200 tray", {}, tmp_path, monkeypatch)).answer == "go"
    sick = {2: {"fabric_health": (0x51AA ^ 0x3, 2)}}
    found = judged(broken("GB200 tray", sick, tmp_path / "sick", monkeypatch))
    assert found.failed == {"fabric_state": {"node1 GPU 2 (GPU-gb200-2)"}}
    assert "bandwidth" in found.said("fabric_state")


def test_the_setting_that_switches_the_rack_s_nvlink_off(tmp_path, monkeypatch):
    """vllm-project/vllm issue 16992: NCCL_CUMEM_ENABLE=0."""
    node = broken("GB200 tray", {}, tmp_path, monkeypatch, environ={"NCCL_CUMEM_ENABLE": "0"})
    alone = judged(node)
    assert alone.answer == "go"
    assert "switches NVLink between nodes off" in alone.said("nccl_settings")
    other = with_gpus(changed(node, name="node2", boot_id="2"), {i: {"uuid": f"GPU-other-{i}"} for i in range(4)})
    together = judged(node, other)
    assert together.answer == "no-go"
    assert {kind for kind, _ in together.blamed} == {"environment"}
