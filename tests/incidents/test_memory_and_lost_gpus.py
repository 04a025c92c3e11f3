"""Incidents of GPU memory, of errors that the driver reports (Xids), and of GPUs that are gone."""

from dataclasses import replace

import pytest

from preflight.discover.kernel_lines import LogLine, parse_events
from preflight.model import Ecc, Gpu, Inventory, KernelLog, Problem, RetiredPages, RowRemap, Verdict
from tests import fake_gpus
from tests.config_spaces import DEAD
from tests.incidents.boxes import BOXES, changed, healthy, with_gpus
from tests.incidents.live import discovered, judged, plant
from tests.trees import Tree

H100 = "HGX H100"


def gpu_of(node, index):
    return f"{node.name} GPU {index} ({node.gpus[index].uuid})"


def with_log(node, *lines, at_s=3600.0):
    """The node with these lines of its kernel's in its log, a second apart. `{3}`: the PCI id of GPU 3 as the driver's lines spell it."""
    ids = [(gpu.pci_bus_id or "").removesuffix(".0") for gpu in node.gpus]
    parsed = parse_events(LogLine(at_s + i, line.format(*ids)) for i, line in enumerate(lines))
    log = KernelLog(events=parsed.events, starts_at_s=0.0, read_at_s=90_000.0, source="/var/log/kern.log")
    return changed(node, kernel_log=log)


def test_row_remapping_is_pending_or_failed_or_done(tmp_path, monkeypatch):
    """leptonai/gpud pull requests 80 and 108, awslabs/awsome-distributed-ai pull request 1190, aws/eks-node-monitoring-agent issue 245.

    GPU 0: four rows, pending. GPU 1: eight, failed, with Xid 64. GPU 2: four, done. The library tells correctable, uncorrectable, pending, failed.
    """
    rows = {0: (0, 4, 1, 0), 1: (0, 8, 0, 1), 2: (0, 4, 0, 0)}
    box = BOXES[H100]()
    gpus = [replace(gpu, remapped=rows.get(place, gpu.remapped)) for place, gpu in enumerate(box.gpus)]
    log = ("NVRM: Xid (PCI:0000:41:00): 64, pid='<unknown>', name=<unknown>, Row Remapper Error: Failed",)
    node = discovered(replace(box, gpus=gpus, log=log), tmp_path, monkeypatch)
    found = judged(node)
    assert found.answer == "no-go"
    assert found.failed["row_remap"] == {gpu_of(node, 0), gpu_of(node, 1)}
    assert found.blamed == {("gpu", gpu_of(node, 0)), ("gpu", gpu_of(node, 1))}
    by_gpu = {finding.subject: finding for finding in found.of("row_remap")}
    pending, failed = by_gpu[gpu_of(node, 0)], by_gpu[gpu_of(node, 1)]
    assert "pending yes, failed no" in pending.observed
    assert "uncorrectable errors 4" in pending.observed
    assert "reset GPU 0 or reboot" in pending.remedy
    assert "pending no, failed yes" in failed.observed
    assert "replaced; a reset doesn't help" in failed.remedy
    assert "GPU 2: rows replaced for uncorrectable errors 4" in by_gpu["node1"].observed
    (reported,) = found.of("xid")
    assert reported.subject == gpu_of(node, 1)
    assert "replace" in reported.remedy
    assert "reset" not in reported.remedy


def test_rows_that_were_replaced_are_healthy(tmp_path, monkeypatch):
    """IBM/autopilot issue 55: a warning on any remapping evicted nodes."""
    box = BOXES[H100]()
    gpus = [replace(gpu, remapped=(8, 4, 0, 0)) for gpu in box.gpus]
    assert judged(discovered(replace(box, gpus=gpus), tmp_path, monkeypatch)).answer == "go"


def test_a_product_without_row_remapping_is_not_judged_by_it():
    """Case of V100: the fields are not supported. Retired pages take their place."""
    found = judged(healthy("DGX-1 V100"))
    assert found.answer == "go"
    assert {finding.verdict for finding in found.of("row_remap")} == {Verdict.SKIP}
    waiting = RetiredPages(single_bit=2, double_bit=1, pending=True)
    sick = judged(with_gpus(healthy("DGX-1 V100"), {6: {"retired_pages": waiting}}))
    assert sick.blamed == {("gpu", "node1 GPU 6 (GPU-v100-6)")}


def test_corrected_errors_are_judged_by_their_rate_and_not_by_their_sum():
    """NVIDIA/DCGM issue 313, NVIDIA/NVSentinel issue 1748: 5.47e10 corrected errors on one GB200, 17,700 per second under load, 8 rows, 0 uncorrectable."""
    total = 54_700_000_000
    node = healthy("GB200 tray")
    rows = RowRemap(correctable=8, uncorrectable=0, pending=False, failed=False)

    def with_errors(count, at_s):
        ecc = Ecc(
            corrected_volatile=count,
            uncorrected_volatile=0,
            corrected_aggregate=count,
            uncorrected_aggregate=0,
            sram_threshold_exceeded=False,
        )
        return changed(with_gpus(node, {1: {"ecc": ecc, "row_remap": rows}}), taken_at_s=at_s)

    assert judged(with_errors(total, 0.0)).answer == "go"
    idle = judged(with_errors(total, 60.0), before=Inventory(nodes=(with_errors(total, 0.0),)))
    assert idle.answer == "go"
    loaded = judged(with_errors(total, 60.0), before=Inventory(nodes=(with_errors(total - 60 * 17_700, 0.0),)))
    assert loaded.answer == "no-go"
    assert loaded.blamed == {("gpu", "node1 GPU 1 (GPU-gb200-1)")}
    assert "17700 per second" in loaded.said("counter_growth")


def test_a_driver_call_that_hangs_leaves_the_node_unknown_and_not_clean():
    """The same incident: vendor calls blocked for 45 s under load. The child's deadline ends that, and the node is neither healthy nor broken."""
    node = changed(
        healthy(H100), gpus=None, gpu_note="NVML did not answer within 20 s: the driver hangs (see the kernel log)"
    )
    found = judged(node)
    assert found.answer == "undecided"
    assert found.text(Verdict.FAIL) == []
    assert "NVML did not answer within 20 s" in found.said("gpus_answer")


FELL_OFF = (
    "NVRM: The NVIDIA GPU {3}.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
    "NVRM: The NVIDIA probe routine failed for 1 device(s).",
)


def test_a_gpu_that_fell_off_without_an_xid_is_counted_and_named(tmp_path, monkeypatch):
    """NVIDIA/NVSentinel issues 155 and 195, leptonai/gpud issue 1209: no Xid line, text over several lines, driver probe failed for one device."""
    box = replace(BOXES[H100](), shown=(0, 1, 2, 4, 5, 6, 7))
    log = [line.format(*(f"0000:{0x40 + i:02x}:00" for i in range(8))) for line in FELL_OFF]
    tree = Tree(tmp_path / "root")
    plant(tree, replace(box, log=[f"{20 + i}|{line}" for i, line in enumerate(log)]))
    found = judged(discovered(box, tmp_path, monkeypatch, tree=tree))
    assert found.answer == "no-go"
    assert {name for _, name in found.blamed} == {"node1 GPU at 0000:43:00.0"}
    assert "0000:43:00.0" in found.said("gpu_census")
    assert "fallen off the bus" in found.said("xid")


def test_a_listing_with_rev_ff_is_a_dead_gpu(tmp_path, monkeypatch):
    """lyulyul/shine-cluster issues 171 and 172, cBio 24 and 365: PCI listing `rev ff`, seven of eight after a reboot."""
    box = replace(BOXES[H100](), shown=(0, 1, 2, 3, 4, 5, 6))
    tree = Tree(tmp_path / "root")
    plant(tree, box)
    dead = next((tmp_path / "root/sys/devices").rglob("0000:47:00.0/config"))
    dead.write_bytes(DEAD)
    found = judged(discovered(box, tmp_path, monkeypatch, tree=tree))
    assert found.answer == "no-go"
    assert {name for _, name in found.blamed} == {"node1 GPU at 0000:47:00.0"}
    assert "rev ff" in found.said("gpu_census")


def test_a_gpu_that_neither_driver_nor_bus_shows_is_missed_by_its_gap_and_its_peers():
    """aws/eks-node-monitoring-agent issue 94: a count below what is expected is more than a warning, and the seven others are not to blame."""
    node = healthy(H100)
    left = tuple(
        changed(gpu, index=i, peers=tuple(peer for peer in gpu.peers if peer.index != 7))
        for i, gpu in enumerate(gpu for gpu in node.gpus if gpu.index != 3)
    )
    short = changed(
        node,
        gpus=tuple(changed(gpu, peers=()) for gpu in left),
        gpus_on_bus=tuple(gpu.pci_bus_id for gpu in left),
        device_files=tuple(gpu.minor_number for gpu in left),
    )
    found = judged(short)
    assert found.failed.get("gpu_census") == {"node1"}
    assert {kind for kind, _ in found.blamed} <= {"node"}
    assert "no GPU has minor number 3" in found.said("gpu_census")


def test_one_lost_gpu_costs_its_own_facts_only(tmp_path, monkeypatch):
    """NVIDIA/gpu-monitoring-tools issue 35, pytorch/serve issue 1722: one failing call stopped the whole collector."""
    box = BOXES[H100]()
    gpus = [fake_gpus.lost(gpu) if place == 5 else gpu for place, gpu in enumerate(box.gpus)]
    node = discovered(replace(box, gpus=gpus), tmp_path, monkeypatch)
    found = judged(node)
    assert found.answer == "no-go"
    assert found.failed["gpus_answer"] == {next(name for _, name in found.blamed)}
    assert all("GPU 5" in name for _, name in found.blamed)
    assert "GPU is lost" in found.said("gpus_answer")
    assert "7 GPUs: no uncorrected errors" in found.said("ecc_errors")


# one that can't say which recovery it wants
OLD_DRIVER = {"recovery_action": None, "unsupported": lambda named: (*named, "recovery_action")}


def test_xids_of_before_the_repair_don_t_keep_a_node_drained():
    """Azure/azurehpc issue 648, NVIDIA/dcgm-exporter issue 95: a check over the whole log keeps a repaired node out."""
    from preflight.model import Rule

    log = with_log(healthy(H100), "NVRM: Xid (PCI:{2}): 79, pid=4711, name=python3, GPU has fallen off the bus.")
    mended = judged(log)  # the box is healthy: its driver asks for nothing
    assert (mended.answer, mended.blamed) == ("go", set())
    assert "the driver asks for no recovery any more" in mended.said("xid")
    log = with_gpus(log, {2: OLD_DRIVER})
    found = judged(log)
    assert found.blamed == {("gpu", gpu_of(log, 2))}
    rules = {"xid": Rule(limits={"age_hours": 24.0})}  # the line is 24 h old: 86,400 of 90,000 s after boot
    assert judged(log, rules={"xid": Rule(limits={"age_hours": 23.9})}).answer == "go"
    assert judged(log, rules=rules).answer == "no-go"


@pytest.mark.parametrize("code", [94, 31, 43, 45, 13])
def test_xids_of_programs_do_not_cordon_a_node(code):
    """NVIDIA/gpu-operator issue 1065, NVIDIA/NVSentinel issue 911."""
    node = with_log(healthy(H100), f"NVRM: Xid (PCI:{{4}}): {code}, pid=4711, name=train.py, Ch 00000008")
    found = judged(node)
    assert found.answer == "go"
    assert found.suspected == set()
    (said,) = found.of("xid")
    assert said.verdict is Verdict.WARN
    assert "train.py" in said.observed


REGISTERS = "NVRM: Xid (PCI:{{4}}): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6(0x{:x}, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"


@pytest.mark.parametrize(("bit", "answer"), [(21, "no-go"), (22, "no-go"), (0, "go"), (23, "go"), (30, "go")])
def test_a_link_error_is_decoded_bit_by_bit(bit, answer):
    """NVIDIA/NVSentinel issues 364, 516 and 545: bits 21 and 22 are of the signal; 0, 23 and 30 are to be ignored."""
    node = with_gpus(with_log(healthy(H100), REGISTERS.format(1 << bit)), {4: OLD_DRIVER})
    found = judged(node)
    assert found.answer == answer, found.text(Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN)
    if answer == "no-go":
        assert found.blamed == {("gpu", gpu_of(node, 4))}
        assert "signal" in found.said("xid")


@pytest.mark.parametrize(("bit", "times", "answer"), [(4, 1, "go"), (4, 3, "no-go")])
def test_parity_errors_of_a_link_count_when_they_repeat(bit, times, answer):
    """The same: bits 4 and 5 are of parity."""
    node = with_gpus(with_log(healthy(H100), *[REGISTERS.format(1 << bit)] * times), {4: OLD_DRIVER})
    assert judged(node).answer == answer


def test_nvlink_xids_are_weighed_by_their_own_words():
    """leptonai/gpud issues 1160 and 1174: Xids 144 to 150 carry sub-codes and the words Fatal and Nonfatal."""
    line = "NVRM: Xid (PCI:{{1}}): 145, RLW_REMAP {} XC0 i0 Link 14 (0x00000004 0x00000000)"
    mild = with_log(healthy("HGX B200"), line.format("Nonfatal"))
    assert judged(mild).answer == "go"
    assert "RLW_REMAP Nonfatal" in judged(mild).said("xid")
    bad = with_gpus(with_log(healthy("HGX B200"), line.format("Fatal")), {1: OLD_DRIVER})
    assert judged(bad).blamed == {("gpu", gpu_of(bad, 1))}


def test_a_gpu_that_can_t_be_opened_is_not_a_missing_right(tmp_path, monkeypatch):
    """A GPU without a working interrupt answers neither: blamed alone, and the seven others pass."""
    node = healthy(H100)
    sick = Gpu(index=4, problems=(Problem(source="nvmlDeviceGetHandleByIndex", text="IRQ Issue (NVML 11)"),))
    gpus = tuple(sick if gpu.index == 4 else gpu for gpu in node.gpus)
    found = judged(changed(node, gpus=gpus))
    assert found.answer == "no-go"
    assert found.failed["gpus_answer"] == {"node1 GPU 4"}
    assert all("GPU 4" in name or "0000:44" in name for _, name in found.blamed)
