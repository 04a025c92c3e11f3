"""Xids: sick GPUs that must be blamed, programs and peers that must not be, and old, hidden or missing logs."""

import pytest
from msgspec import structs

from preflight.discover.kernel_lines import LogLine, parse_events
from preflight.model import Evidence, Inventory, KernelEvent, KernelLog, Platform, Rule, Settings, Verdict
from preflight_checks import xid as check
from tests.builders import make_gpu, make_node

PCI = [f"0000:{0x10 + index:02x}:00.0" for index in range(8)]  # of the builder's GPUs


def xid(code, gpu=0, at_s=100.0, text="", **fields):
    return KernelEvent(kind="xid", code=code, pci_bus_id=PCI[gpu], at_s=at_s, text=text, **fields)


def with_log(*events, name="node0", log=None, **node):
    log = log or KernelLog(events=events, starts_at_s=0.0, read_at_s=7200.0, source="/dev/kmsg")
    return make_node(name, kernel_log=log, **node)


def findings(*nodes, **evidence):
    return list(check.judge(Evidence(inventory=Inventory(nodes=nodes), **evidence)))


def only(*nodes, **evidence):
    (finding,) = findings(*nodes, **evidence)
    return finding


def test_a_clean_log_passes_once_for_the_node():
    finding = only(with_log())
    assert (finding.verdict, finding.subject, finding.observed) == (Verdict.PASS, "node0", "none since boot")


def test_a_lost_gpu_fails_and_is_blamed_by_uuid():
    finding = only(with_log(xid(79, gpu=3, text="GPU has fallen off the bus."), xid(45, gpu=3, at_s=101.0)))
    assert finding.verdict is Verdict.FAIL
    assert finding.blames is not None
    assert finding.blames.name == "node0 GPU 3 (GPU-node0-3)"
    assert "Xid 79" in finding.observed
    assert "then Xid 45" in finding.observed
    assert "reboot" in finding.remedy


def test_a_gpu_that_fell_off_without_an_xid_fails_too():
    lost = KernelEvent(kind="fell off", pci_bus_id="0000:b4:00.0", at_s=9.0)
    finding = only(with_log(lost))
    assert finding.verdict is Verdict.FAIL
    assert finding.subject == "node0 GPU at 0000:b4:00.0"


def test_a_program_error_is_a_warning_that_names_the_process():
    finding = only(with_log(xid(31, gpu=2, pid=4242, process="train.py", count=3)))
    assert finding.verdict is Verdict.WARN
    assert finding.blames is None
    assert "train.py (pid 4242)" in finding.observed
    assert "3 times" in finding.observed


def test_a_contained_memory_error_is_a_warning():
    assert only(with_log(xid(94))).verdict is Verdict.WARN


def test_an_unknown_number_is_a_warning():
    assert only(with_log(xid(777))).verdict is Verdict.WARN


def test_a_memory_error_whose_row_could_not_be_replaced_asks_for_a_new_gpu():
    finding = only(with_log(xid(48), xid(64, at_s=100.5), xid(154, at_s=101.0)))
    assert finding.verdict is Verdict.FAIL
    assert "replaced" in finding.remedy


def test_one_port_error_on_a_node_is_blamed_and_its_peers_are_not():  # open-gpu-kernel-modules 1150
    peers = [xid(145, gpu, 101.0, severity="Nonfatal", subcode="RLW_RXPIPE") for gpu in range(1, 8)]
    root = xid(149, 0, 100.0, severity="Fatal", subcode="NETIR_LINK_EVT")
    finding = only(with_log(root, *peers, xid(45, 0, 102.0, "Ch 1 caused by previous Xid 149")))
    assert finding.verdict is Verdict.FAIL
    assert finding.subject == "node0 GPU 0 (GPU-node0-0)"
    assert "7 other GPUs only reported" in finding.observed


def rack(*logs, taken_at_s=None):
    nodes = []
    for number, events in enumerate(logs):
        gpus = tuple(make_gpu(f"node{number}", i, nvlink_domain="cluster.1") for i in range(4))
        nodes.append(
            structs.replace(with_log(*events, name=f"node{number}", gpus=None, taken_at_s=taken_at_s), gpus=gpus)
        )
    return nodes


def test_one_port_error_in_a_rack_is_blamed_and_63_gpus_of_other_nodes_are_not():  # marin 8934, 9086
    peers = [xid(145, gpu, 101.0, severity="Nonfatal", subcode="RLW_RXPIPE") for gpu in range(4)]
    root = xid(149, 0, 100.0, severity="Fatal", subcode="NETIR_LINK_EVT")
    found = findings(*rack([root, *peers[1:]], *[peers] * 15))
    assert [(f.verdict, f.subject) for f in found if f.verdict is not Verdict.PASS] == [
        (Verdict.FAIL, "node0 GPU 0 (GPU-node0-0)")
    ]
    assert "60 GPUs of other nodes" in found[0].observed


def test_without_the_root_a_peer_is_a_warning_that_says_where_to_look():
    finding = only(*rack([xid(145, severity="Nonfatal", subcode="RLW_RXPIPE")]))
    assert finding.verdict is Verdict.WARN
    assert "149" in finding.remedy


def test_an_nvlink_error_of_marginal_signal_fails():
    finding = only(with_log(xid(74, 1, text="NVLink: fatal error detected on link 6(0x200000, 0x0, 0x0, 0x0, 0x0)")))
    assert finding.verdict is Verdict.FAIL
    assert "link 6" in finding.observed


def test_an_nvlink_error_with_only_ignorable_bits_passes():
    event = xid(74, 1, text="NVLink: fatal error detected on link 6(0x800001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")
    assert only(with_log(event)).verdict is Verdict.PASS


def test_a_parity_error_fails_from_the_third_on():
    text = "NVLink: fatal error detected on link 6(0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
    assert only(with_log(xid(74, text=text, count=2))).verdict is Verdict.WARN
    assert only(with_log(xid(74, text=text, count=3))).verdict is Verdict.FAIL


def test_two_ends_of_a_link_that_both_report_it_are_possible_culprits():
    text = "NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
    found = findings(with_log(xid(74, 1, text=text), xid(74, 2, text=text)))
    assert [f.blames.confidence for f in found if f.blames] == ["possible", "possible"]


def test_the_drivers_own_action_is_what_the_remedy_says():
    text = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    finding = only(with_log(xid(119), xid(154, at_s=101.0, text=text)))
    assert finding.verdict is Verdict.FAIL
    assert "reboot" in finding.remedy
    assert "Node Reboot Required" in finding.observed


def test_an_action_that_the_driver_took_back_is_only_looked_at():
    back = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    assert only(with_log(xid(119), xid(154, at_s=130.0, text=back))).verdict is Verdict.WARN


def test_old_xids_do_not_keep_a_repaired_node_drained():  # azurehpc-health-checks 648
    sick = with_log(xid(79, at_s=100.0), log=KernelLog(events=(xid(79, at_s=100.0),), starts_at_s=0, read_at_s=90000.0))
    assert only(sick).verdict is Verdict.FAIL
    rules = {"xid": Rule(limits={"age_hours": 24})}
    assert only(sick, rules=rules).verdict is Verdict.PASS
    again = KernelLog(events=(xid(79, at_s=100.0, count=2, last_at_s=89000.0),), starts_at_s=0, read_at_s=90000.0)
    assert only(with_log(log=again), rules=rules).verdict is Verdict.FAIL


def test_xids_of_before_the_driver_was_loaded_again_are_over_if_the_gpu_answers():
    def log(*events):
        return KernelLog(events=events, starts_at_s=0, read_at_s=90000.0, driver_loaded_at_s=5000.0)

    finding = only(with_log(log=log(xid(119, at_s=100.0))))
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)
    assert "the driver has been loaded again since" in finding.observed
    assert only(with_log(log=log(xid(119, at_s=6000.0)))).verdict is Verdict.FAIL
    assert only(with_log(log=log(xid(119, at_s=100.0, count=2, last_at_s=6000.0)))).verdict is Verdict.FAIL
    assert only(with_log(log=log(xid(64, at_s=100.0)))).verdict is Verdict.FAIL  # a row that is bad stays bad
    lost = structs.replace(with_log(log=log(xid(79, at_s=100.0))), gpus=(make_gpu("node0", 1),))
    assert only(lost).verdict is Verdict.FAIL


def test_no_permission_is_unknown():
    finding = only(with_log(log=KernelLog(note="/dev/kmsg: Operation not permitted")))
    assert finding.verdict is Verdict.UNKNOWN
    assert "not permitted" in finding.observed
    assert check.CHECK.need == "advisory"


def test_a_snapshot_without_the_log_is_unknown():
    assert only(make_node()).verdict is Verdict.UNKNOWN


def test_a_log_that_begins_late_says_from_when():
    finding = only(with_log(log=KernelLog(events=(), starts_at_s=7200.0)))
    assert finding.verdict is Verdict.PASS
    assert "after boot, where the log begins" in finding.observed


def test_a_log_that_leaves_something_out_is_no_pass():
    assert only(with_log(log=KernelLog(events=(), note="its end is missing"))).verdict is Verdict.UNKNOWN


def test_a_gpu_of_the_host_that_this_container_does_not_see_is_not_held_against_it():
    hidden = KernelEvent(kind="xid", code=79, pci_bus_id="0000:ff:00.0", at_s=5.0)
    finding = only(with_log(hidden, platform=Platform(container="docker")))
    assert finding.verdict is Verdict.WARN
    assert "not among those shown" in finding.observed


def test_a_gpu_that_the_driver_could_not_start_and_that_is_still_dead_fails():
    event = KernelEvent(kind="driver", pci_bus_id="0000:b4:00.0", at_s=5.0, text="RmInitAdapter failed")
    assert only(with_log(event)).verdict is Verdict.FAIL
    works_now = KernelEvent(kind="driver", pci_bus_id=PCI[0], at_s=5.0, text="RmInitAdapter failed")
    assert only(with_log(works_now)).verdict is Verdict.WARN


def test_pcie_errors_count_above_gpus_and_only_uncorrected_ones():
    def aer(bus_id, severity):
        return KernelEvent(kind="aer", pci_bus_id=bus_id, severity=severity, at_s=5.0)

    assert only(with_log(aer(PCI[0], "Uncorrected (Fatal)"))).verdict is Verdict.WARN
    assert only(with_log(aer(PCI[0], "Corrected"))).verdict is Verdict.PASS
    assert only(with_log(aer("0000:99:00.0", "Uncorrected (Fatal)"))).verdict is Verdict.PASS


def test_a_pcie_error_of_a_bridge_is_told_of_the_gpu_below_it():
    event = KernelEvent(kind="aer", pci_bus_id="0000:0f:01.0", severity="Uncorrected (Non-Fatal)", at_s=5.0)
    one = (make_gpu("node0", 0, pci_upstream=("0000:0f:01.0", "pci0000:0f")), make_gpu("node0", 1))
    assert only(structs.replace(with_log(event), gpus=one)).subject == "node0 GPU 0 (GPU-node0-0)"
    two = tuple(make_gpu("node0", i, pci_upstream=("0000:0f:01.0",)) for i in range(2))
    assert only(structs.replace(with_log(event), gpus=two)).subject == "node0 PCIe bridge 0000:0f:01.0"
    lost = structs.replace(with_log(event, xid(79, at_s=5.1)), gpus=one)
    assert only(lost).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("action", "at_s", "verdict"),
    [
        ("none", 100.0, Verdict.WARN),  # two hours ago, and the driver asks for nothing
        ("none", 7000.0, Verdict.FAIL),  # just now
        ("reset", 100.0, Verdict.FAIL),
        (None, 100.0, Verdict.FAIL),  # a driver too old to say
    ],
)
def test_an_error_of_long_ago_is_past_if_the_driver_asks_for_no_recovery(action, at_s, verdict):
    gpus = (make_gpu("node0", 0, recovery_action=action),)
    finding = only(structs.replace(with_log(xid(95, at_s=at_s)), gpus=gpus))
    assert finding.verdict is verdict
    assert (finding.blames is None) == (verdict is Verdict.WARN)
    assert ("asks for no recovery any more" in finding.observed) == (verdict is Verdict.WARN)


def test_a_gpu_that_must_be_replaced_is_never_past():
    gpus = (make_gpu("node0", 0, recovery_action="none"),)
    assert only(structs.replace(with_log(xid(64)), gpus=gpus)).verdict is Verdict.FAIL


def test_nothing_where_there_are_no_gpus_or_none_are_meant():
    assert findings(make_node(gpus=0)) == []
    assert findings(with_log(xid(79)), settings=Settings(cpu_declared=True)) == []
    assert findings(make_node(simulated=True)) == []


def lines(*texts):
    """A log as it was reported."""
    return parse_events(LogLine(100.0 + place, text) for place, text in enumerate(texts)).events


def at(*bus_ids):
    return tuple(make_gpu("node0", i, pci_bus_id=f"0000:{bus_id}:00.0") for i, bus_id in enumerate(bus_ids))


def test_the_log_of_a_port_error_as_it_was_reported():  # open-gpu-kernel-modules 1150
    found = lines(
        "NVRM: Xid (PCI:0000:dc:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)",
        "NVRM: Xid (PCI:0000:ed:00): 145, RLW_RXPIPE Nonfatal XC1 i0 Link 13 (0x0409a0c2 0x00000008)",
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
        "NVRM: Xid (PCI:0000:ed:00): 45, pid=1818992, name=python3, Ch 0000000c caused by previous Xid 145",
        "NVRM: Xid (PCI:0000:ba:00): 45, pid=1818989, name=python3, Ch 00000002 caused by previous Xid 145",
        "NVRM: Xid (PCI:0000:97:00): 45, pid=1818987, name=python3, Ch 00000003 caused by previous Xid 145",
    )
    for events in (found, found[2:]):  # the first lines may be gone
        finding = only(structs.replace(with_log(*events), gpus=at("97", "ba", "dc", "ed")))
        assert (finding.verdict, finding.subject) == (Verdict.FAIL, "node0 GPU 2 (GPU-node0-2)")
        assert "149" in finding.observed
        assert "3 other GPUs only reported" in finding.observed


def test_the_log_of_a_lost_gpu_whose_switches_spoke_too():
    found = lines(
        "NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.",
        "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
        "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00",
    )
    finding = only(structs.replace(with_log(*found), gpus=at("90", "91")))
    assert (finding.verdict, finding.subject) == (Verdict.FAIL, "node0 GPU 1 (GPU-node0-1)")


def test_the_log_of_a_gpu_that_fell_off_without_an_xid():  # NVSentinel 195, gpud 1209
    found = lines(
        "NVRM: The NVIDIA GPU 0000:b4:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
    )
    verdicts = {finding.subject: finding.verdict for finding in findings(with_log(*found))}
    assert verdicts == {"node0 GPU at 0000:b4:00.0": Verdict.FAIL, "node0": Verdict.WARN}


def test_switch_errors_are_another_checks_business():
    switch = KernelEvent(kind="sxid", code=12028, severity="Fatal", pci_bus_id="0000:c1:00.0", at_s=5.0)
    assert only(with_log(switch)).verdict is Verdict.PASS
