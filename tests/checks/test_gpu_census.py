"""gpu_census: lost GPUs are counted against bus, device files and machine type; GPUs kept away on purpose, and a scheduler that counts wrongly, are not lost.

Cases: NVSentinel issues 155 and 195, gpud 1209 (lost without an Xid), shine-cluster 171 (rev ff, 7 of 8), awsome-distributed-ai 195 (gres count).
"""

import pytest
from msgspec.structs import replace

from preflight.model import (
    Evidence,
    Inventory,
    KernelEvent,
    KernelLog,
    Link,
    Mask,
    Node,
    NvlinkLayout,
    OutsideVerdict,
    Platform,
    Problem,
    Profile,
    Settings,
    Verdict,
)
from preflight_checks.gpu_census import judge
from tests.builders import H100, make_gpu, make_node, make_plan

METAL = Platform(virtual_machine="none", container="none")
LAYOUTS = tuple(NvlinkLayout(gpus=n, kind="switched", per_pair=(18,), per_gpu=18, source="test") for n in (8, 4))
PROFILE = Profile(name="H100-80GB", gpu_names=(H100,), gpus_per_node=8, nvlink_layouts=LAYOUTS)
BUS = tuple(f"0000:{0x10 + i:02x}:00.0" for i in range(8))


def node(*indexes, name="node0", **changes) -> Node:
    gpus = tuple(make_gpu(name, i, minor_number=i) for i in (indexes or range(8)))
    return replace(make_node(name), gpus=gpus, **{"platform": METAL, "gpus_on_bus": BUS, **changes})


def judged(*nodes, profile=PROFILE, plan=None, **settings):
    profiles = {H100.casefold(): profile} if profile else {}
    inventory = Inventory(nodes=nodes)
    return list(judge(Evidence(inventory=inventory, profiles=profiles, plan=plan, settings=Settings(**settings))))


def only(*nodes, **others):
    [finding] = judged(*nodes, **others)
    return finding


def test_eight_gpus_by_every_count_pass_in_one_line():
    finding = only(node(device_files=tuple(range(8))))
    assert finding.verdict is Verdict.PASS
    assert finding.observed == ("8 by the driver, 8 on the PCI bus, 8 device files, H100-80GB machines have 8")


def test_a_gpu_on_the_bus_that_the_driver_does_not_show_is_blamed_by_its_address():
    finding = only(node(0, 1, 2, 4, 5, 6, 7))
    assert finding.verdict is Verdict.FAIL
    assert finding.blames.name == finding.subject == "node0 GPU at 0000:13:00.0"
    assert "Xid 79" in finding.remedy


@pytest.mark.parametrize(
    "changes",
    [
        {"mask": Mask(variables={"SLURM_JOB_GPUS": "2,5"})},
        {"mask": Mask(variables={"SLURM_GPUS_ON_NODE": "2"})},
        {"platform": Platform(virtual_machine="none", container="docker")},
        {"mask": Mask(variables={"SLURM_GTIDS": "0,1,2,3", "SLURM_STEP_GPUS": "0-7"})},
        {"closed_devices": (0, 1, 3, 4, 6, 7)},  # a login that was adopted into a job's cgroup, without its variables
    ],
)
def test_gpus_that_scheduler_cgroup_or_container_keep_away_are_not_lost(changes):
    finding = only(node(2, 5, **changes))
    assert finding.verdict is Verdict.PASS
    assert finding.observed.startswith("2 by the driver, 8 on the PCI bus")


def test_a_device_that_may_not_be_opened_does_not_excuse_two_that_are_missing():
    findings = judged(node(0, 1, 2, 3, 4, 5, closed_devices=(7,)))
    assert {finding.verdict for finding in findings} == {Verdict.FAIL}


def test_a_prolog_that_sees_seven_of_eight_for_a_job_of_two_has_lost_one():
    mask = Mask(variables={"SLURM_JOB_GPUS": "0,1"})
    assert only(node(0, 1, 2, 4, 5, 6, 7, mask=mask)).verdict is Verdict.FAIL


def test_a_job_that_was_given_eight_and_sees_seven_has_lost_one():
    mask = Mask(variables={"SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7"})
    assert only(node(0, 1, 2, 4, 5, 6, 7, mask=mask)).verdict is Verdict.FAIL


def test_where_a_container_cannot_be_ruled_out_it_is_unknown():
    for platform in (None, Platform(virtual_machine="none", container=None)):
        findings = judged(node(0, 1, 2, 3, 4, 5, 6, platform=platform))
        assert [f.verdict for f in findings] == [Verdict.UNKNOWN]
        assert findings[0].blames is None


def test_a_dead_gpu_reads_as_all_ones():
    findings = judged(node(0, 1, 2, 4, 5, 6, 7, dead_on_bus=("0000:13:00.0",)))
    assert [f.verdict for f in findings] == [Verdict.FAIL]
    assert "rev ff" in findings[0].observed
    assert findings[0].blames.name == "node0 GPU at 0000:13:00.0"


def test_a_dead_gpu_is_a_fault_even_where_the_driver_is_silent():
    assert only(make_node(gpus=None, dead_on_bus=("0000:13:00.0",))).verdict is Verdict.FAIL


def test_a_dead_gpu_that_answers_is_a_contradiction_and_unknown():
    assert only(node(dead_on_bus=("0000:13:00.0",))).verdict is Verdict.UNKNOWN


def test_a_gpu_that_cannot_be_opened_is_there_for_the_census():
    lost = make_gpu(
        "node0", 3, uuid=None, name=None, pci_bus_id=None, problems=(Problem(source="n", text="GPU is lost"),)
    )
    whole = node()
    assert only(replace(whole, gpus=(*whole.gpus[:3], lost, *whole.gpus[4:]))).verdict is Verdict.PASS


def seven(**changes):
    return node(0, 1, 2, 3, 4, 5, 6, gpus_on_bus=BUS[:7], **changes)


def test_seven_of_eight_without_a_trace_are_a_warning_that_blames_nobody():
    finding = only(seven())
    assert finding.verdict is Verdict.WARN
    assert finding.observed == "7 GPUs by driver and PCI bus; machines of H100-80GB have 8"
    assert finding.blames is None


def test_seven_of_eight_with_a_gap_in_the_minor_numbers_fail():
    finding = only(node(0, 1, 2, 4, 5, 6, 7, gpus_on_bus=(*BUS[:3], *BUS[4:])))
    assert finding.verdict is Verdict.FAIL
    assert "no GPU has minor number 3" in finding.observed
    assert (finding.blames.kind, finding.blames.name) == ("node", "node0")


def test_seven_of_eight_fail_where_kernel_plan_or_fleet_know_of_eight():
    fell = KernelLog(events=(KernelEvent(kind="fell off", pci_bus_id=BUS[7]),))
    assert f"the kernel saw {BUS[7]} fall off the bus" in only(seven(kernel_log=fell)).observed
    plan = make_plan(node_names=["node0"], nodes=1, gpus_per_node=8, tp=8, pp=1, dp=1)
    assert only(seven(), plan=plan).verdict is Verdict.FAIL
    fleet = judged(seven(), node(name="node1"), node(name="node2"))
    assert [f.verdict for f in fleet] == [Verdict.FAIL, Verdict.PASS, Verdict.PASS]
    assert "2 other nodes of this run have 8" in fleet[0].observed


def test_machines_of_another_maker_are_no_measure():
    few = node(0, 1, 2, 3, 4, gpus_on_bus=BUS[:5], platform=replace(METAL, machine="Dell C4140"))
    full = [node(name=f"n{i}", platform=replace(METAL, machine="NVIDIA DGX-1")) for i in range(3)]
    assert [f.verdict for f in judged(few, *full) if f.subject == "node0"] == [Verdict.WARN]
    same = [replace(other, platform=few.platform) for other in full]
    assert [f.verdict for f in judged(few, *same) if f.subject == "node0"] == [Verdict.FAIL]


def test_a_board_of_four_and_a_share_of_a_machine_are_whole():
    four = node(0, 1, 2, 3, gpus_on_bus=BUS[:4])
    assert only(four).verdict is Verdict.PASS
    virtual = seven(platform=Platform(virtual_machine="kvm", container="none"))
    assert only(virtual).verdict is Verdict.PASS


def test_an_unknown_product_is_counted_by_driver_and_bus_alone():
    assert only(seven(), profile=None).verdict is Verdict.PASS
    assert only(node(gpus_on_bus=None), profile=None).verdict is Verdict.SKIP


def test_virtual_functions_of_a_shown_gpu_are_not_missing_ones():
    assert only(node(gpus_on_bus=(*BUS, "0000:10:00.4", "0000:10:01.0"))).verdict is Verdict.PASS


def test_slurms_count_is_told_apart_from_lost_gpus():
    said = OutsideVerdict(
        origin="slurm", name="reason", verdict="FAIL", text="gres/gpu count reported lower than configured (0 < 8)"
    )
    passed, warned = judged(node(verdicts=(said,)))
    assert passed.verdict is Verdict.PASS
    assert warned.verdict is Verdict.WARN
    assert warned.blames.kind == "environment"
    assert "AutoDetect=nvml" in warned.remedy
    lost = judged(node(0, 1, 2, 4, 5, 6, 7, verdicts=(said,)))
    assert [f.blames.kind for f in lost] == ["gpu"]


def test_nodes_without_gpus_and_runs_without_them_say_nothing():
    assert judged(make_node(gpus=0), make_node("n1", gpus=None)) == []
    assert judged(node(0, 1), cpu_declared=True) == []


def test_a_bus_that_shows_none_of_the_gpus_that_answer_is_a_blind_look_and_no_count():
    finding = only(node(gpus_on_bus=(), device_files=()))
    assert (finding.verdict, finding.observed) == (
        Verdict.PASS,
        "8 by the driver, H100-80GB machines have 8; none seen: on the PCI bus, device files",
    )
    assert only(node(gpus_on_bus=(), device_files=()), profile=None).verdict is Verdict.SKIP


def test_fewer_in_a_virtual_machine_pass_with_the_reason():
    platform = Platform(virtual_machine="kvm", container="none")
    finding = only(node(0, 1, platform=platform, gpus_on_bus=BUS[:2], device_files=(0, 1)))
    assert finding.verdict is Verdict.PASS
    assert finding.observed.endswith("H100-80GB machines have 8; a virtual machine may be given fewer")


def test_a_gpu_that_answers_without_a_device_file_is_a_warning_that_blames_no_gpu():
    finding = only(node(device_files=(0, 1, 2, 3, 4, 6, 7)))
    assert finding.verdict is Verdict.WARN
    assert "/dev/nvidia5" in finding.observed
    assert finding.blames.kind == "environment"
    assert only(node(device_files=None)).verdict is Verdict.PASS


def test_four_gpus_behind_switches_are_no_board_of_four():
    layouts = tuple(
        NvlinkLayout(gpus=n, kind=kind, per_pair=(18,), per_gpu=18, source="test")
        for n, kind in ((8, "switched"), (4, "mesh"))
    )
    profile = Profile(name="H100-80GB", gpu_names=(H100,), gpus_per_node=8, nvlink_layouts=layouts)

    def four(kind, name="n4"):
        made = node(0, 1, 2, 3, name=name, gpus_on_bus=BUS[:4])
        links = (Link(index=0, active=True, peer_kind=kind),)
        return replace(made, gpus=tuple(replace(gpu, links=links) for gpu in made.gpus))

    assert only(four("gpu"), profile=profile).verdict is Verdict.PASS
    assert only(four("switch"), profile=profile).verdict is Verdict.WARN
    fleet = [node(name=f"n{i}") for i in range(3)]
    bad = [f for f in judged(four("switch"), *fleet, profile=profile) if f.verdict is Verdict.FAIL]
    assert [(f.subject, f.blames.kind) for f in bad] == [("n4", "node")]
