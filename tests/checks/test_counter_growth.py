"""counter_growth: what grew between two snapshots, and what can't be told."""

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from preflight.model import Clocks, Ecc, Finding, Gpu, Hca, Link, Node, Part, PcieLink, Port, Verdict
from preflight_checks.counter_growth import CHECK
from tests.builders import make_gpu
from tests.checks.nodes import blamed, judged, lost_gpu, only, verdicts

GPU_0 = "node1 GPU 0 (GPU-node1-0)"


def gpu(index: int = 0, *, name: str = "node1", link: dict[str, int] | None = None, **changes: Any) -> Gpu:
    facts: dict[str, Any] = {
        "ecc": Ecc(corrected_volatile=0, uncorrected_volatile=0, corrected_aggregate=0, uncorrected_aggregate=0),
        "links": (
            Link(index=14, active=True, counters={"recovery": 0, "replay": 0, "crc": 0} if link is None else link),
        ),
    }
    return make_gpu(name, index, **{**facts, **changes})


def node(*gpus: Gpu, at: float | None = 0.0, ports: dict[str, int] | None = None, **changes: Any) -> Node:
    layer = changes.pop("link_layer", "InfiniBand")
    port = Port(number=1, state="active", link_layer=layer, rate_bytes_per_s=50_000_000_000, counters=ports or {})
    name = changes.pop("name", "node1")
    return Node(name=name, gpus=gpus, taken_at_s=at, hcas=(Hca(name="mlx5_0", ports=(port,)),), **changes)


def grown(before: Node, after: Node, **settings: Any) -> list[Finding]:
    return judged(CHECK, after, before=(before,), **settings)


def memory(**changes: int) -> Ecc:
    return Ecc(**{"corrected_volatile": 0, "uncorrected_volatile": 0, **changes})


def words(findings: Iterable[Finding]) -> str:
    return "; ".join(finding.observed for finding in findings)


def test_a_quiet_node_is_one_pass_that_says_how_long():
    (finding,) = grown(node(gpu(), gpu(1)), node(gpu(), gpu(1), at=60.0))
    assert finding.verdict is Verdict.PASS
    assert finding.observed == "14 error counters in 60 s: no growth that matters"


def test_new_uncorrected_errors_fail_their_gpu_and_count_once():
    ecc = memory(uncorrected_volatile=2, uncorrected_aggregate=6)
    before = memory(uncorrected_volatile=0, uncorrected_aggregate=4)
    finding = only(grown(node(gpu(ecc=before), gpu(1)), node(gpu(ecc=ecc), gpu(1), at=60.0)), Verdict.FAIL)
    assert finding.observed == "uncorrected memory errors: 2 more in 60 s"
    assert blamed(finding) == Part(kind="gpu", name=GPU_0)


# DCGM issue 313: 17,700 per second under load, 9.6e9 since the driver was loaded
@pytest.mark.parametrize(
    ("per_second", "verdict"), [(17_700, Verdict.FAIL), (1000, Verdict.FAIL), (999, Verdict.WARN), (1, Verdict.WARN)]
)
def test_corrected_errors_are_judged_by_their_rate(per_second, verdict):
    before, after = memory(corrected_volatile=9_600_000_000), memory(corrected_volatile=9_600_000_000 + per_second * 60)
    finding = grown(node(gpu(ecc=before)), node(gpu(ecc=after), at=60.0))[0]
    assert finding.verdict is verdict
    assert f"{per_second} per second" in finding.observed
    assert blamed(finding).name == GPU_0


def test_a_few_corrected_errors_and_any_old_total_pass():
    before, after = memory(corrected_volatile=54_731_746_511), memory(corrected_volatile=54_731_746_521)
    assert [f.verdict for f in grown(node(gpu(ecc=before)), node(gpu(ecc=after), at=60.0))] == [Verdict.PASS]


# marin issue 8934: 3 more in 21 minutes
def test_recoveries_that_grow_warn_and_name_the_link():
    finding = only(grown(node(gpu(link={"recovery": 505})), node(gpu(link={"recovery": 508}), at=1260.0)), Verdict.WARN)
    assert finding.observed == "recovery grew by 3 in 1260 s, to 508"
    assert blamed(finding) == Part(kind="link", name=f"{GPU_0} link 14", confidence="likely")


@pytest.mark.parametrize(
    ("counter", "more", "verdict"),
    [
        ("recovery_failed", 1, Verdict.FAIL),
        ("recovery_ok", 1, Verdict.WARN),
        ("overrun", 1, Verdict.WARN),
        ("crc", 5999, Verdict.PASS),
        ("crc", 6000, Verdict.WARN),
    ],
)
def test_a_link_is_judged_by_what_its_counters_mean(counter, more, verdict):
    findings = grown(node(gpu(link={counter: 7})), node(gpu(link={counter: 7 + more}), at=60.0))
    assert [f.verdict for f in findings] == [verdict]


@pytest.mark.parametrize("counter", ["received_remote_errors", "effective_errors", "recovery_events"])
def test_growth_that_the_link_is_not_to_blame_for_is_no_finding(counter):
    before, after = {counter: 0, "recovery": 0}, {counter: 10**6, "recovery": 0}
    assert [f.verdict for f in grown(node(gpu(link=before)), node(gpu(link=after), at=60.0))] == [Verdict.PASS]


@pytest.mark.parametrize(("replays", "seconds", "verdict"), [(9, 60.0, "WARN"), (8, 60.0, "PASS"), (8, 1.0, "PASS")])
def test_pcie_replays_are_judged_per_minute(replays, seconds, verdict):
    before, after = node(gpu(pcie=PcieLink(replays=0))), node(gpu(pcie=PcieLink(replays=replays)), at=seconds)
    finding = grown(before, after)[0]
    assert finding.verdict.value == verdict


def test_time_under_hardware_slowdown_is_judged_by_its_share():
    def held(reason: str, seconds: float) -> Gpu:
        return gpu(clocks=Clocks(throttled_ns={reason: int(seconds * 1e9)}))

    hot = only(grown(node(held("hw thermal slowdown", 0)), node(held("hw thermal slowdown", 6), at=60.0)), Verdict.WARN)
    assert "held down by hw thermal slowdown for 6.0 s of 60 s" in hot.observed
    capped = grown(node(held("sw power cap", 0)), node(held("sw power cap", 60), at=60.0))
    assert [f.verdict for f in capped] == [Verdict.PASS]


def test_a_port_next_to_a_gpu_that_went_down_fails_and_another_warns():
    near, far = gpu(nics={"mlx5_0": "PIX"}), gpu(nics={"mlx5_0": "SYS"})
    after = {"link_downed": 1}
    finding = only(grown(node(near, ports={"link_downed": 0}), node(near, ports=after, at=60.0)), Verdict.FAIL)
    assert blamed(finding) == Part(kind="nic", name="node1 mlx5_0 port 1", confidence="likely")
    other = grown(node(far, ports={"link_downed": 0}), node(far, ports=after, at=60.0))
    assert [f.verdict for f in other] == [Verdict.WARN]


# 400 Gb/s for 60 s are 2.4e13 bits: 24 errors are a bit error rate of 1e-12
@pytest.mark.parametrize(("errors", "verdict"), [(23, Verdict.PASS), (24, Verdict.WARN)])
def test_symbol_errors_are_held_against_a_bit_error_rate(errors, verdict):
    before, after = node(gpu(), ports={"symbol_error": 0}), node(gpu(), ports={"symbol_error": errors}, at=60.0)
    assert [f.verdict for f in grown(before, after)] == [verdict]


def test_lost_packets_of_the_path_blame_no_port():
    before = node(gpu(), ports={"local_ack_timeout_err": 0})
    finding = only(grown(before, node(gpu(), ports={"local_ack_timeout_err": 2705}, at=60.0)), Verdict.WARN)
    assert finding.blames is None
    assert "flow control" in finding.remedy


@pytest.mark.parametrize(("layer", "verdict"), [("InfiniBand", Verdict.PASS), ("Ethernet", Verdict.WARN)])
def test_packets_out_of_sequence_are_normal_on_infiniband(layer, verdict):
    before, after = {"out_of_sequence": 0}, {"out_of_sequence": 5000}
    findings = grown(node(gpu(), ports=before, link_layer=layer), node(gpu(), ports=after, link_layer=layer, at=60.0))
    assert [f.verdict for f in findings] == [verdict]


def test_a_reboot_between_is_unknown_and_blames_nothing():
    before, after = (
        node(gpu(link={"recovery": 505}), boot_id="a"),
        node(gpu(link={"recovery": 0}), boot_id="b", at=60.0),
    )
    findings = grown(before, after)
    assert "the node was rebooted" in only(findings, Verdict.UNKNOWN).observed
    assert all(f.blames is None for f in findings)


def test_lifelong_uncorrected_errors_over_a_reboot_fail_all_the_same():
    before = node(gpu(ecc=memory(uncorrected_aggregate=4)), boot_id="a")
    after = node(gpu(ecc=memory(uncorrected_aggregate=5)), boot_id="b", at=60.0)
    assert only(grown(before, after), Verdict.FAIL).observed == "uncorrected memory errors: 1 more in 60 s"


def test_a_counter_that_started_over_is_unknown_and_not_healthy():
    findings = grown(node(gpu(link={"recovery": 505})), node(gpu(link={"recovery": 2}), at=60.0))
    unknown = only(findings, Verdict.UNKNOWN)
    assert unknown.observed.startswith("started over between the snapshots: ")
    assert "GPU 0 link 14 recovery" in unknown.observed


def test_a_counter_at_its_ceiling_is_unknown():
    full = {"link_downed": 255, "port_xmit_wait": 4294967295}
    findings = grown(node(gpu(), ports=full), node(gpu(), ports=full, at=60.0))
    assert only(findings, Verdict.UNKNOWN).observed.endswith("new errors can't be seen: mlx5_0 port 1 link_downed")


def test_a_counter_missing_on_a_side_is_unknown():
    findings = grown(node(gpu(ecc=None)), node(gpu(), at=60.0))
    assert "not in the earlier snapshot: GPU 0 corrected_volatile" in only(findings, Verdict.UNKNOWN).observed
    findings = grown(node(gpu(1), gpu()), node(gpu(1), lost_gpu(), at=60.0))
    assert [f.verdict for f in findings] == [Verdict.PASS]  # of the other GPU; the lost one is told by gpus_answer


def test_a_node_without_an_earlier_snapshot_is_unknown_and_others_are_judged():
    findings = judged(
        CHECK,
        node(gpu(), at=60.0),
        node(gpu(name="node2"), name="node2", at=60.0),
        before=(node(gpu()),),
    )
    assert verdicts(findings) == [("node1", Verdict.PASS), ("node2", Verdict.UNKNOWN)]


def test_without_times_uncorrected_errors_still_fail_and_rates_are_unknown():
    before = node(gpu(ecc=memory()), at=None)
    findings = grown(before, node(gpu(ecc=memory(uncorrected_volatile=1, corrected_volatile=10**6))))
    assert [f.verdict for f in findings] == [Verdict.FAIL, Verdict.UNKNOWN]
    assert "rates are too" in words(findings)


def test_snapshots_in_the_wrong_order_are_unknown():
    assert [f.verdict for f in grown(node(gpu(), at=60.0), node(gpu(), at=0.0))] == [Verdict.UNKNOWN]


def test_counters_that_no_snapshot_has_yield_nothing():
    bare = gpu(ecc=None, links=None)
    assert grown(node(bare), node(bare, at=60.0)) == []
    assert grown(Node(name="node1", gpus=()), Node(name="node1", gpus=())) == []


def test_where_no_gpu_is_meant_only_ports_are_judged():
    before, after = node(gpu(ecc=memory())), node(gpu(ecc=memory(uncorrected_volatile=9)), at=60.0)
    assert grown(before, after, cpu_declared=True) == []


def test_the_check_explains_itself():
    assert CHECK.uses == ("health", "before")
    assert CHECK.need == "advisory"
    assert all(text.endswith(".") for text in (CHECK.claim, CHECK.why, CHECK.source, CHECK.remedy))


def test_an_earlier_snapshot_of_another_node_is_named():
    before, now = node(gpu()), replace(node(gpu(), at=60.0), name="node7")
    finding = only(grown(before, now), Verdict.UNKNOWN)
    assert finding.observed == f"not in the earlier snapshot, which is of {before.name}"
    assert "snapshot of node7" in finding.remedy
