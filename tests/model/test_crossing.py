"""How often bytes cross between domains, and the words for groups, ranks and places."""

import msgspec
import pytest

from preflight.model import Estimate, Topology, Traffic
from preflight.model.crossing import cost_of, cost_text, ranks_text, span_text, subject_of, where_text
from preflight.model.domains import Domains
from tests.builders import make_inventory, make_plan, uuids_of


def domains_with(*rows: Traffic, names: str = "aabb") -> Domains:
    """Four nodes of one GPU in the domains that the letters name, and this ledger."""
    topology = Topology(node_domains={f"node{i}": name for i, name in enumerate(names)}, source="t")
    plan = make_plan(nodes=len(names), gpus_per_node=1, gpu=None, tp=1, topology=topology)
    return Domains(msgspec.structs.replace(plan, estimate=Estimate(ledger=rows)), None)


def row(collective, axis="dp", sent=1000, **more) -> Traffic:
    return Traffic(
        axis=axis,
        purpose="test",
        collective=collective,
        calls=1,
        message_bytes=sent,
        wire_bytes=sent,
        **{"exposed": True, **more},
    )


@pytest.mark.parametrize(
    ("collective", "axis", "names", "crossing"),
    [
        ("all_reduce", "dp", "aabb", 2000),  # a ring leaves each domain once
        ("all_gather", "dp", "abab", 2000),  # NCCL orders the ring by domain
        ("reduce_scatter", "dp", "aaaa", 0),
        ("all_to_all", "ep", "aabb", 2667),  # each of 4 sends 2 of its 3 parts out
        ("all_to_all", "ep", "abcd", 4000),
        ("all_to_all", "ep", "aaab", 2000),  # 3 send a third out, 1 sends all
        ("send_recv", "pp", "aabb", 1000),  # one boundary of three
        ("send_recv", "pp", "abab", 3000),
        ("send_recv", "cp", "aabb", 2000),  # the last passes on to the first
        ("send_recv", "cp", "abba", 2000),
    ],
)
def test_bytes_that_cross_follow_the_path_of_the_collective(collective, axis, names, crossing):
    domains = domains_with(row(collective, axis), names=names)
    cost = cost_of(domains, axis, (0, 1, 2, 3))
    assert cost is not None
    assert (cost.crossing_bytes, cost.sent_bytes) == (crossing, 1000)


def test_rows_of_an_axis_add_up_and_a_missing_rate_leaves_the_seconds_out():
    domains = domains_with(
        row("all_gather", inside_s=0.1, outside_s=1.0, exposed=False),
        row("reduce_scatter", inside_s=0.2, outside_s=None, exposed=False),
        row("all_reduce", "tp"),
    )
    cost = cost_of(domains, "dp", (0, 1, 2, 3))
    assert cost is not None
    assert (cost.sent_bytes, cost.inside_s, cost.outside_s, cost.hidden) == (2000, pytest.approx(0.3), None, True)
    assert cost_text(cost) == (
        "4.00 kB per step cross between domains; each rank sends 2.00 kB per step: 300 ms inside (beside compute, as far as it fits)"
    )
    assert cost_of(domains, "pp", (0, 1)) is None
    assert cost_text(None) == ""


def test_ranks_in_equal_steps_and_long_lists_stay_short():
    assert ranks_text((0, 1, 2, 3)) == "0-3"
    assert ranks_text(range(0, 64, 8)) == "0,8,16,24,32,40,48,56"
    assert ranks_text(range(0, 512, 8)) == "0,8,...,504 (64 ranks, 8 apart)"
    uneven = [i * i for i in range(300)]
    assert len(ranks_text(uneven)) < 200
    assert ranks_text(uneven).endswith("... (300 ranks)")


def test_groups_have_one_name():
    assert subject_of("tp", [3]) == "tp3"
    assert subject_of("tp", [0, 1, 2]) == "tp[0-2]"
    assert subject_of("tp", [0, 2, 3]) == "tp[0,2-3]"
    assert subject_of("dp", range(5, 16384)) == "dp[5-16383]"


def test_spans():
    assert span_text([2, 2], "node") == "2 nodes"
    assert span_text([1], "domain") == "1 domain"
    assert span_text([2, 8, 3], "domain") == "2 to 8 domains"


def test_places_name_domains_only_where_they_are_not_the_nodes():
    domains = domains_with(names="aabb")
    assert where_text(domains.plan, (0, 1, 2), domains) == (
        "ranks 0-2 on 3 nodes, node[0-2], in 2 NVLink domains, a (2 ranks) and b (1 rank)"
    )
    assert where_text(domains.plan, (0, 1), domains) == "ranks 0-1 on 2 nodes, node[0-1]"
    plain = make_plan()
    assert (
        where_text(plain, plain.groups["pp"][0], Domains(plain, None)) == "ranks 0,16,32,48 on 4 nodes, node[0,2,4,6]"
    )


def test_measured_domains_count_more_than_the_plan_says():
    inventory = make_inventory(2, 8, domains=["rack.1", "rack.1"])
    names = [node.name for node in inventory.nodes]
    plan = make_plan(nodes=None, node_names=names, gpu_uuids=uuids_of(inventory), tp=16)
    assert Domains(plan, None).along("tp").apart == (0,)
    measured = Domains(plan, inventory)
    assert measured.along("tp").inside == (0,)
    assert (measured.sizes, measured.note) == ((16,), "")
