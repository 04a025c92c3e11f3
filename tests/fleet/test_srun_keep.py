"""`--keep N`: which nodes of an allocation stay, for any standing of them."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.errors import UsageError
from preflight.fleet.keep import Kept, Standing, choose, kept_text, standings_of
from preflight.fleet.keep_job import block_of, job_for_all, job_of_kept
from preflight.model import Evidence, Finding, Inventory, Node, Part, Report, Verdict
from preflight.model.finding import Answer
from preflight.plan.build import build_plan
from tests.builders import make_job


@st.composite
def allocations(draw) -> list[Standing]:
    number = draw(st.integers(1, 24))
    return [
        Standing(
            node=f"n{i}",
            bad=draw(st.sampled_from(["", "", "", "a lost GPU"])),
            slow=draw(st.sampled_from([0.0, 0.0, 0.0, 0.06, 0.3])),
            leaf=draw(st.sampled_from(["a", "b", "c", None])),
            domain=draw(st.sampled_from(["x", "y", None])),
        )
        for i in range(number)
    ]


def leaves_of(standings: list[Standing]) -> set[str]:
    return {standing.leaf or f"?{standing.node}" for standing in standings}


@given(allocations(), st.integers(1, 24), st.sampled_from([1, 1, 2, 3]))
def test_good_nodes_alone_are_kept_as_many_as_are_wanted_in_the_allocations_order(standings, wanted, block):
    kept = choose(standings, wanted, block=block)
    good = [standing.node for standing in standings if not standing.bad]
    assert len(kept.nodes) == min(wanted, len(good))
    assert [name for name in good if name in kept.nodes] == list(kept.nodes)
    assert {*kept.nodes, *kept.left_out} == {standing.node for standing in standings}
    assert not set(kept.nodes) & set(kept.left_out)
    assert kept.enough == (len(good) >= wanted)


@given(allocations(), st.integers(1, 24))
def test_no_choice_lies_on_fewer_leaves(standings, wanted):
    kept = choose(standings, wanted)
    good = [standing for standing in standings if not standing.bad]
    sizes = sorted(Counter(s.leaf or f"?{s.node}" for s in good).values(), reverse=True)
    fewest = next((count for count in range(len(sizes) + 1) if sum(sizes[:count]) >= len(kept.nodes)), 0)
    assert len(leaves_of([s for s in good if s.node in kept.nodes])) == fewest


@given(allocations(), st.integers(1, 24))
def test_on_each_leaf_the_slowest_are_left_out(standings, wanted):
    kept = choose(standings, wanted)
    by_leaf: dict[str, list[Standing]] = {}
    for standing in standings:
        if not standing.bad:
            by_leaf.setdefault(standing.leaf or f"?{standing.node}", []).append(standing)
    for members in by_leaf.values():
        ins = [s.slow for s in members if s.node in kept.nodes]
        outs = [s.slow for s in members if s.node not in kept.nodes]
        if ins and outs:
            assert max(ins) <= min(outs)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 8))
def test_domains_are_used_in_whole_blocks_as_long_as_there_are_some(sizes, block, blocks):
    standings = [Standing(node=f"d{d}n{i}", domain=f"d{d}") for d, size in enumerate(sizes) for i in range(size)]
    if blocks > sum(size // block for size in sizes):
        return
    kept = choose(standings, blocks * block, block=block)
    assert all(count % block == 0 for count in Counter(name[:2] for name in kept.nodes).values())


def test_a_worked_example():
    leaves = ("a", "a", "a", "b", "b")
    standings = [Standing(node=f"n{i}", leaf=leaf) for i, leaf in enumerate(leaves)]
    standings[1] = msgspec.structs.replace(standings[1], bad="GPU 2 is lost", failed=True)
    standings[3] = msgspec.structs.replace(standings[3], slow=0.2)
    kept = choose(standings, 3)
    assert kept.nodes == ("n0", "n2", "n4")
    assert kept_text(kept) == (
        "kept 3 of 5 nodes: n[0,2,4]\n  left out n1: GPU 2 is lost\n  left out n3: its pairs are 20% slower than those of most, and 3 are enough\n"
    )


def test_too_few_are_said_to_be_too_few():
    kept = choose([Standing(node="n1", bad="it is down"), Standing(node="n2")], 2)
    assert kept == Kept(nodes=("n2",), left_out={"n1": "it is down"}, wanted=2)
    assert not kept.enough


# --- from a run's report ----------------------------------------------------------------------------------------------

NAMES = ("n1", "n2", "n3", "n4")


def report(*findings: Finding, answer: Answer = "no-go") -> Report:
    job = make_job(nodes=4, gpus_per_node=1, tp=1)
    plan = build_plan(job, node_names=NAMES)
    evidence = Evidence(inventory=Inventory(nodes=tuple(Node(name=name) for name in NAMES)), plan=plan)
    return Report(
        run_id="r",
        command="run",
        started_at_s=0,
        duration_s=1,
        answer=answer,
        findings=findings,
        evidence=evidence,
    )


def finding(subject: str, verdict: Verdict, part: Part | None = None, **more) -> Finding:
    return Finding(check=more.pop("check", "c"), subject=subject, verdict=verdict, observed="seen", blames=part, **more)


def bad(*findings: Finding) -> set[str]:
    return {standing.node for standing in standings_of(report(*findings)) if standing.bad}


@pytest.mark.parametrize(
    ("part", "nodes"),
    [
        (Part(kind="node", name="n3"), {"n3"}),
        (Part(kind="gpu", name="n3 GPU 2"), {"n3"}),
        (Part(kind="nic", name="NIC of n3 GPU 2"), {"n3"}),
        (Part(kind="rank", name="rank 4 on n3"), {"n3"}),
        (Part(kind="link", name="n1 GPU 0 to n2 GPU 0"), set()),
        (Part(kind="path", name="n[1-2] to n[3-4]"), set()),
        (Part(kind="uplink", name="uplink of n3"), set()),
        (Part(kind="environment", name="clock of n3"), set()),
        (Part(kind="plan", name="launch.distribution"), set()),
    ],
)
def test_a_node_is_out_for_what_lies_in_it_alone(part, nodes):
    assert bad(finding("fabric", Verdict.FAIL, part)) == nodes


def test_a_finding_that_blames_nothing_is_about_its_subject():
    assert bad(finding("n2", Verdict.FAIL)) == {"n2"}
    assert bad(finding("n2 GPU 3", Verdict.FAIL)) == {"n2"}
    assert bad(finding("n1 to n2", Verdict.FAIL)) == set()
    assert bad(finding("tp0", Verdict.FAIL)) == set()


def test_an_unknown_of_a_required_check_puts_its_node_out_but_fails_it_not():
    found = {standing.node: standing for standing in standings_of(report(finding("n2", Verdict.UNKNOWN)))}
    assert (found["n2"].bad, found["n2"].failed) == ("seen", False)
    assert bad(finding("n2", Verdict.UNKNOWN, need="advisory")) == set()
    assert bad(finding("n2", Verdict.WARN)) == set()


def test_what_is_unknown_alike_of_all_nodes_tells_none_from_another():
    everywhere = [finding(name, Verdict.UNKNOWN) for name in NAMES]
    assert bad(*everywhere) == set()
    assert bad(finding("n1", Verdict.FAIL, check="other"), *everywhere) == {"n1"}


# --- the two jobs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [1, 2, 8, 16])
def test_all_nodes_can_be_measured_whatever_the_layout(tp):
    job = make_job(nodes=8, gpus_per_node=8, tp=tp, pp=4, global_batch_size=64, micro_batches=None)
    plan = build_plan(job_for_all(job, 10), node_names=[f"n{i}" for i in range(10)])
    assert plan.world_size == 80
    assert plan.degrees["tp"] == (tp if tp <= 8 else 1)


def test_the_job_goes_to_the_nodes_that_were_kept_and_no_others():
    job = make_job(nodes=8, launch={"hosts": tuple(f"n{i}" for i in range(10))})
    assert job_of_kept(job, tuple(f"n{i}" for i in range(8))).launch.hosts is None
    with pytest.raises(UsageError, match=r"--keep 6, but job.toml is for 8 nodes: give --keep 8"):
        job_of_kept(job, tuple("abcdef"))
    with pytest.raises(UsageError, match="leave hostfile out"):
        job_of_kept(make_job(launch={"launcher": "slurm", "hostfile": "h"}), tuple("abcdefgh"))


def test_groups_that_need_nvlink_make_blocks_of_nodes():
    assert block_of(make_job(tp=8)) == 1
    assert block_of(make_job(tp=16)) == 2
    assert block_of(make_job(tp=8, cp=3)) == 3
    assert block_of(make_job(tp=16, gpus_per_node=None)) == 1
