"""Errors of NVSwitches: fatal ones are the switch's, unless a lost GPU made it speak; noise of the start-up is none."""

from msgspec import structs

from preflight.model import Evidence, Inventory, KernelEvent, KernelLog, Link, Profile, Rule, Settings, Verdict
from preflight_checks import nvswitch_errors as check
from tests.builders import H100, make_gpu, make_node

SWITCH = "0000:c1:00.0"


def sxid(code=12028, severity="Fatal", port=32, **fields):
    event = KernelEvent(kind="sxid", code=code, severity=severity, pci_bus_id=SWITCH, port=port, at_s=100.0)
    return structs.replace(event, **fields)


def switched(*events, log=None, peer_link=None):
    links = tuple(
        Link(index=i, active=True, peer_kind="switch", peer_pci_bus_id=SWITCH, peer_link=peer_link if i == 5 else None)
        for i in range(18)
    )
    gpus = tuple(make_gpu("node0", i, links=links if i == 3 or peer_link is None else ()) for i in range(8))
    log = log or KernelLog(events=events, starts_at_s=0.0, read_at_s=7200.0)
    return structs.replace(make_node(kernel_log=log), gpus=gpus)


def findings(node, **evidence):
    return list(check.judge(Evidence(inventory=Inventory(nodes=(node,)), **evidence)))


def only(node, **evidence):
    (finding,) = findings(node, **evidence)
    return finding


def test_a_quiet_switch_passes():
    assert only(switched()).verdict is Verdict.PASS


def test_a_fatal_error_is_the_switchs():
    finding = only(switched(sxid()))
    assert finding.verdict is Verdict.FAIL
    assert finding.blames is not None
    assert (finding.blames.kind, finding.blames.name) == ("switch", f"node0 NVSwitch {SWITCH}")
    assert "SXid 12028 (Fatal) on port 32" in finding.observed


def test_the_port_is_followed_to_the_gpus_link():  # NVIDIA/go-nvml 166
    finding = only(switched(sxid(port=28), peer_link=28))
    assert "node0 GPU 3 (GPU-node0-3) link 5" in finding.observed


def test_noise_of_the_start_up_passes():  # NVIDIA/nvtrust 124
    finding = only(switched(*[sxid(22013, "Non-fatal", port) for port in range(44, 48)]))
    assert finding.verdict is Verdict.PASS
    assert "4 non-fatal" in finding.observed


def test_one_port_that_goes_on_is_a_warning():
    node = switched(sxid(20009, "Non-fatal", count=500))
    assert only(node).verdict is Verdict.WARN
    assert only(node, rules={"nvswitch_errors": Rule(limits={"repeats_per_port": 1000})}).verdict is Verdict.PASS


def test_an_error_of_unknown_severity_is_a_warning():
    assert only(switched(sxid(severity=None, port=None))).verdict is Verdict.WARN


def test_links_that_went_down_with_a_lost_gpu_are_not_the_switchs():
    lost = KernelEvent(kind="xid", code=79, pci_bus_id="0000:91:00.0", at_s=100.0)
    ports = [sxid(20034, "Fatal", port, at_s=112.0) for port in (48, 63)]
    assert only(switched(lost, *ports)).verdict is Verdict.PASS


def test_old_errors_can_be_left_out():
    rules = {"nvswitch_errors": Rule(limits={"age_hours": 1})}
    assert only(switched(sxid()), rules=rules).verdict is Verdict.PASS


def test_an_error_of_before_the_driver_was_loaded_again_is_a_warning():
    def log(**fields):
        return KernelLog(events=(sxid(),), starts_at_s=0.0, read_at_s=90000.0, **fields)

    assert only(switched(log=log(driver_loaded_at_s=9.0))).verdict is Verdict.FAIL
    finding = only(switched(log=log(driver_loaded_at_s=5000.0)))
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)
    assert "loaded again since" in finding.observed


def test_a_log_that_may_not_be_read_is_unknown_where_there_are_switches():
    assert only(switched(log=KernelLog(note="Permission denied"))).verdict is Verdict.UNKNOWN
    assert findings(make_node(kernel_log=KernelLog(note="Permission denied"))) == []


def test_nothing_without_switches_without_gpus_and_where_cpus_are_meant():
    assert findings(make_node(kernel_log=KernelLog(events=()))) == []
    assert findings(make_node(gpus=0)) == []
    assert findings(switched(sxid()), settings=Settings(cpu_declared=True)) == []


def test_a_board_of_four_without_switches_has_no_switch_to_ask_about():
    links = tuple(Link(index=i, active=True, peer_kind="gpu") for i in range(12))
    four = structs.replace(make_node(kernel_log=None), gpus=tuple(make_gpu("node0", i, links=links) for i in range(4)))
    known = Profile(name="p", gpu_names=(H100,), fabric="manager")
    assert list(check.judge(Evidence(inventory=Inventory(nodes=(four,)), profiles={H100.casefold(): known}))) == []
