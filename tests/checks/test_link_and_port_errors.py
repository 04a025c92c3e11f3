"""nvlink_errors and hca_errors: totals warn where one stands out, and never fail."""

from typing import Any

import pytest

from preflight.model import Hca, Link, Node, Part, Port, Problem, Verdict
from preflight_checks import hca_errors, nvlink_errors
from tests.builders import make_gpu
from tests.checks.nodes import blamed, judged, node_with, only, verdicts


def links(*bad: tuple[int, dict[str, int]], counter: str = "recovery", each: int = 0) -> tuple[Link, ...]:
    """18 links that count `each`, but for those named."""
    counters = dict(bad)
    return tuple(Link(index=i, active=True, counters=counters.get(i, {counter: each})) for i in range(18))


def rack(*first: tuple[int, dict[str, int]], taken_at_s: float = 0.0) -> list[Node]:
    """16 trays of 4 GPUs with 18 links each, all without errors but for GPU 0 of the first."""
    nodes = [node_with(*(links(),) * 4, field="links", name=f"node{i}", taken_at_s=taken_at_s) for i in range(1, 17)]
    sick = node_with(links(*first), *(links(),) * 3, field="links", taken_at_s=taken_at_s)
    return [sick, *nodes[1:]]


# marin issue 8934: one link of 5760 with 505 recoveries
def test_the_one_link_with_recoveries_is_named_and_no_peer_is():
    findings = judged(nvlink_errors.CHECK, *rack((14, {"recovery": 505})))
    warning = only(findings, Verdict.WARN)
    assert warning.subject == "node1 GPU 0 (GPU-node1-0)"
    assert warning.observed.endswith("link 14: recovery 505 (half of all other links: 0 or less)")
    assert blamed(warning) == Part(kind="link", name="node1 GPU 0 (GPU-node1-0) link 14", confidence="likely")
    assert sum(f.verdict is Verdict.PASS for f in findings) == 16


def test_many_links_of_one_gpu_point_at_the_gpu_as_possible():
    bad = [(index, {"recovery": 50}) for index in range(18)]
    warning = only(judged(nvlink_errors.CHECK, *rack(*bad)), Verdict.WARN)
    assert blamed(warning) == Part(kind="gpu", name="node1 GPU 0 (GPU-node1-0)", confidence="possible")


def test_errors_that_all_links_have_single_out_none():
    node = node_with(*(links(counter="symbol_errors", each=4000),) * 4, field="links")
    findings = judged(nvlink_errors.CHECK, node)
    assert verdicts(findings) == [("node1", Verdict.PASS)]
    assert "72000 errors on its links" in findings[0].observed


@pytest.mark.parametrize("counter", ["received_remote_errors", "effective_errors", "recovery_events", "traffic"])
def test_what_another_part_or_no_part_is_to_blame_for_passes(counter):
    findings = judged(nvlink_errors.CHECK, *rack((14, {counter: 5000})))
    assert {f.verdict for f in findings} == {Verdict.PASS}


@pytest.mark.parametrize(
    ("counters", "verdict"),
    [
        ({"recovery": 4}, Verdict.PASS),
        ({"recovery": 5}, Verdict.WARN),
        ({"recovery_failed": 1}, Verdict.WARN),
        ({"crc": 0}, Verdict.PASS),
        ({"crc": 99, "replay": 30}, Verdict.PASS),
        ({"crc": 100}, Verdict.WARN),
    ],
)
def test_a_few_repaired_errors_are_life_and_a_failed_recovery_is_not(counters, verdict):
    assert judged(nvlink_errors.CHECK, *rack((14, counters)))[0].verdict is verdict


def test_an_hour_without_growth_makes_it_history():
    before = rack((14, {"recovery": 505}), taken_at_s=0.0)
    later = rack((14, {"recovery": 505}), taken_at_s=3600.0)
    findings = judged(nvlink_errors.CHECK, *later, before=before)
    assert {f.verdict for f in findings} == {Verdict.PASS}
    assert "GPU 0: 505 errors on its links" in findings[0].observed


@pytest.mark.parametrize(("recoveries", "at_s"), [(508, 3600.0), (505, 60.0)])
def test_growth_or_a_short_time_keeps_the_warning(recoveries, at_s):
    before = rack((14, {"recovery": 505}), taken_at_s=0.0)
    findings = judged(nvlink_errors.CHECK, *rack((14, {"recovery": recoveries}), taken_at_s=at_s), before=before)
    assert findings[0].verdict is Verdict.WARN


def test_a_product_without_nvlink_and_links_without_counters_are_not_healthy_links():
    assert only(judged(nvlink_errors.CHECK, node_with((), (), field="links")), Verdict.SKIP).observed.endswith(
        "this product has no NVLink"
    )
    bare = (Link(index=0, active=True),)
    assert [f.verdict for f in judged(nvlink_errors.CHECK, node_with(bare, field="links"))] == [Verdict.UNKNOWN]
    inactive = (Link(index=0, active=False),)
    assert [f.verdict for f in judged(nvlink_errors.CHECK, node_with(inactive, field="links"))] == [Verdict.SKIP]


def port(number: int = 1, *, state: str = "active", **counters: int) -> Port:
    return Port(number=number, state=state, link_layer="InfiniBand", counters={"link_downed": 0, **counters})


def hcas(*ports: Port, **others: Any) -> tuple[Hca, ...]:
    return tuple(Hca(name=f"mlx5_{index}", ports=(one,), **others) for index, one in enumerate(ports))


def with_hcas(*ports: Port, name: str = "node1", **others: Any) -> Node:
    return Node(name=name, gpus=(make_gpu(name, 0),), hcas=hcas(*ports, **others))


def test_ports_without_errors_are_one_pass():
    findings = judged(hca_errors.CHECK, with_hcas(port(), port()), with_hcas(port(), name="node2"))
    assert verdicts(findings) == [("node1", Verdict.PASS), ("node2", Verdict.PASS)]
    assert findings[0].observed == "2 ports: no errors that stand out"


def test_a_port_that_stands_out_is_a_warning_and_never_more():
    findings = judged(
        hca_errors.CHECK, with_hcas(port(link_downed=40, symbol_error=9000), port(symbol_error=0), port())
    )
    warning = only(findings, Verdict.WARN)
    assert warning.subject == "node1 mlx5_0 port 1"
    assert "link_downed 40" in warning.observed
    assert "symbol_error 9000" in warning.observed
    assert blamed(warning) == Part(kind="nic", name="node1 mlx5_0 port 1", confidence="possible")
    assert only(findings, Verdict.PASS).observed.startswith("2 ports")


def test_all_ports_that_went_down_together_with_their_switch_pass():
    findings = judged(hca_errors.CHECK, with_hcas(*(port(link_downed=6),) * 8))
    assert [f.verdict for f in findings] == [Verdict.PASS]


# byteps issue 179
def test_timeouts_of_a_network_without_flow_control_are_seen():
    findings = judged(hca_errors.CHECK, with_hcas(port(local_ack_timeout_err=2705), port(local_ack_timeout_err=0)))
    assert "local_ack_timeout_err 2705" in only(findings, Verdict.WARN).observed


def test_packets_out_of_sequence_are_normal_on_infiniband_and_not_on_ethernet():
    roce = Port(number=1, state="active", link_layer="Ethernet", counters={"out_of_sequence": 5000})
    calm = Port(number=1, state="active", link_layer="Ethernet", counters={"out_of_sequence": 0})
    assert [f.verdict for f in judged(hca_errors.CHECK, with_hcas(port(out_of_sequence=5000)))] == [Verdict.PASS]
    assert judged(hca_errors.CHECK, with_hcas(roce, calm))[0].verdict is Verdict.WARN


# gpud issue 943
def test_a_counter_at_its_ceiling_is_unknown_and_blames_nothing():
    findings = judged(
        hca_errors.CHECK, with_hcas(port(link_downed=255, port_xmit_discards=65535, port_xmit_wait=4294967295))
    )
    finding = only(findings, Verdict.UNKNOWN)
    assert "mlx5_0 port 1 link_downed 255, mlx5_0 port 1 port_xmit_discards 65535" in finding.observed
    assert "port_xmit_wait" not in finding.observed
    assert finding.blames is None
    assert len(findings) == 1


def test_ports_that_are_down_are_not_judged():
    assert judged(hca_errors.CHECK, with_hcas(port(state="down", link_downed=200))) == []


def test_ports_without_counters_are_unknown_but_for_shares_of_a_card():
    bare = Port(number=1, state="active")
    assert "no error counters" in only(judged(hca_errors.CHECK, with_hcas(bare)), Verdict.UNKNOWN).observed
    assert judged(hca_errors.CHECK, with_hcas(bare, is_virtual_function=True)) == []


def test_hcas_that_cannot_be_read_are_unknown_where_there_are_gpus():
    problem = Problem(source="sysfs", text="Permission denied", field="hcas")
    node = Node(name="node1", gpus=(make_gpu("node1", 0),), problems=(problem,))
    assert only(judged(hca_errors.CHECK, node), Verdict.UNKNOWN).observed == "HCAs unknown: Permission denied"
    assert judged(hca_errors.CHECK, Node(name="node1", gpus=())) == []
    assert judged(hca_errors.CHECK, Node(name="node1", gpus=(make_gpu("node1", 0),), hcas=())) == []
