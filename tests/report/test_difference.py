"""Two runs beside each other: what is beyond the noise of both is called, what is not is not, and what can't be told is said."""

import random
import re
from itertools import combinations

import msgspec
import pytest

from preflight.errors import UsageError
from preflight.model import (
    Environment,
    Failure,
    Finding,
    Inventory,
    Measurement,
    Node,
    Placement,
    Report,
    Settings,
    Verdict,
    from_json,
    to_json,
)
from preflight.report.difference import Difference, difference
from preflight.report.difference_text import difference_text
from preflight.report.text import cells
from tests.builders import make_evidence, make_measurement, make_plan, make_probe

SPEED = 100e9
NODES = tuple(f"n{i}" for i in range(6))
SLOTS = 2


def place(nodes=NODES, *, turned=False, leaves=None):
    """Block placement; `turned`: ranks are dealt the other way round, so that the same places have other numbers."""
    order = [(n, s) for n in range(len(nodes)) for s in range(SLOTS)]
    order = order[::-1] if turned else order
    placement = Placement(
        source="predicted",
        method="block",
        nodes=tuple(nodes),
        node_ranks=tuple(n for n, _ in order),
        local_ranks=tuple(s for _, s in order),
        leaves=leaves,
    )
    plan = make_plan(placement=placement, nodes=len(nodes), gpus_per_node=SLOTS, tp=SLOTS, dp=len(nodes))
    return msgspec.structs.replace(plan, placement=placement)


def a_run(
    change=lambda _a, _b: 1.0,
    *,
    plan=None,
    noise=0.005,
    repeats=3,
    seed=1,
    findings=(),
    size_bytes=2**26,
    failed=(),
    settings=None,
    inventory=None,
    **facts,
):
    """All pairs of like slots and all inside nodes; `change`: factor on the rate of a pair of places, each (node, local rank)."""
    plan, chance = plan or place(), random.Random(seed)
    placement, found = plan.placement, []
    where = [(placement.nodes[n], s) for n, s in zip(placement.node_ranks, placement.local_ranks, strict=True)]
    for a, b in combinations(range(len(where)), 2):
        if where[a][0] != where[b][0] and where[a][1] != where[b][1]:
            continue
        ends = sorted((where[a], where[b]))
        for repeat in range(repeats):
            if tuple(ends) in failed:
                probe = make_probe((a, b), repeat=repeat)
                found.append(Measurement(probe=probe, failure=Failure(kind="timed_out", text="no end")))
                continue
            rate = SPEED * change(*ends) * chance.gauss(1, noise)
            found.append(
                make_measurement((a, b), algbw_bytes_per_s=rate, windows=1, repeat=repeat, size_bytes=size_bytes)
            )
    evidence = make_evidence(
        plan=plan, measurements=tuple(found), settings=settings or Settings(backend="nccl"), inventory=inventory
    )
    base = {"run_id": f"r{seed}", "command": "run", "started_at_s": 1.7e9 + seed, "duration_s": 60.0, "answer": "go"}
    ran = Finding(check="reachable", subject="ranks", verdict=Verdict.PASS, observed="all answered")
    return Report(**{**base, "evidence": evidence, "findings": (*findings, ran), **facts})


def of_node(name, factor):
    return lambda a, b: factor if a[0] != b[0] and name in {a[0], b[0]} else 1.0


def slower(found):
    return [(change.level, change.subject) for change in found.slower]


def said(check="slow_part", subject="n1", verdict=Verdict.FAIL, **facts):
    return Finding(check=check, subject=subject, verdict=verdict, observed="28 GB/s", **facts)


def test_two_healthy_runs_differ_in_nothing():
    for seed in range(2, 12):
        found = difference(a_run(), a_run(seed=seed))
        assert (found.outcome, found.slower, found.faster) == ("no worse", (), ())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (of_node("n3", 0.8), [("node", "n3")]),
        (lambda a, b: 0.8 if a[0] != b[0] else 1.0, [("everything", "all 30 pairs")]),
        (lambda a, b: 0.7 if ("n2", 1) in {a, b} and a[0] != b[0] else 1.0, [("GPU", "n2 GPU 1")]),
        (lambda a, b: 0.5 if {a, b} == {("n2", 1), ("n4", 1)} else 1.0, [("pair", "n2 GPU 1 - n4 GPU 1")]),
        (lambda a, b: 0.9 if a[0] == b[0] == "n5" else 1.0, [("pair", "n5 GPU 0 - n5 GPU 1")]),
    ],
)
def test_what_got_slower_is_said_once_of_the_largest_part_that_explains_it(change, expected):
    found = difference(a_run(), a_run(change, seed=2))
    assert slower(found) == expected
    assert found.outcome == "worse"
    assert found.faster == ()
    back = difference(a_run(change, seed=2), a_run())
    assert [(c.level, c.subject) for c in back.faster] == expected
    assert back.outcome == "no worse"


def test_a_way_between_leaves_accuses_no_node():
    plan = place(leaves=("l0",) * 3 + ("l1",) * 3)
    across = lambda a, b: 0.6 if (a[0] < "n3") != (b[0] < "n3") else 1.0  # noqa: E731
    assert slower(difference(a_run(plan=plan), a_run(across, plan=plan, seed=2))) == [("leaf pair", "l0 - l1")]


def test_a_change_within_the_noise_is_no_change_and_the_limit_is_told():
    found = difference(a_run(noise=0.02), a_run(of_node("n3", 0.92), noise=0.02, seed=2))
    assert found.slower == ()
    between = next(each for each in found.compared if each.what == "pairs between nodes")
    assert 0.1 < between.least < 0.25
    assert f"changes of {max(e.least for e in found.compared):.0%}" in difference_text(found, width=200, colour=False)


def test_too_noisy_runs_can_tell_nothing():
    found = difference(a_run(noise=0.2), a_run(noise=0.2, seed=2))
    assert found.outcome == "cannot tell"
    assert any("too noisy" in text for text in found.incomparable)
    assert found.slower == ()


def test_what_was_never_repeated_has_no_noise_and_nothing_is_called():
    found = difference(a_run(repeats=1), a_run(of_node("n3", 0.5), repeats=1, seed=2))
    assert (found.outcome, found.slower) == ("cannot tell", ())
    assert any("its noise is not known" in text for text in found.incomparable)


def test_a_single_slow_message_is_counted_and_called_nothing():
    run = a_run(seed=2)
    measurements = list(run.evidence.measurements)
    once = next(i for i, m in enumerate(measurements) if m.probe.subject == "pair 0-2")
    measurements[once] = make_measurement((0, 2), algbw_bytes_per_s=SPEED / 3, windows=1)
    kept = [m for i, m in enumerate(measurements) if i == once or m.probe.subject != "pair 0-2"]
    found = difference(
        a_run(), msgspec.structs.replace(run, evidence=msgspec.structs.replace(run.evidence, measurements=tuple(kept)))
    )
    assert (found.outcome, found.slower) == ("no worse", ())
    assert sum(each.doubtful for each in found.compared) == 1


def test_places_are_compared_and_not_rank_numbers():
    found = difference(a_run(of_node("n3", 0.8)), a_run(of_node("n3", 0.8), plan=place(turned=True), seed=2))
    assert (found.outcome, found.slower, found.faster) == ("no worse", (), ())
    assert [change.kind for change in found.setup] == ["placement"]


def test_a_fault_that_moved_is_a_node_that_got_slower_and_one_that_got_faster():
    moved = difference(a_run(of_node("n3", 0.8)), a_run(of_node("n2", 0.8), plan=place(turned=True), seed=2))
    assert slower(moved) == [("node", "n2")]
    assert [change.subject for change in moved.faster] == ["n3"]


def test_findings_about_ranks_and_groups_are_the_same_where_they_sit_at_the_same_places():
    old = [said(subject="pair 0-2"), said("group_busbw", "tp0")]
    new = [said(subject="pair 9-11"), said("group_busbw", "tp5")]
    found = difference(a_run(findings=old), a_run(findings=new, plan=place(turned=True), seed=2))
    assert (found.came, found.went) == ((), ())


def test_other_nodes_are_told_and_not_compared():
    strange = place([*NODES[:4], "x1", "x2"])
    found = difference(a_run(), a_run(of_node("x1", 0.5), plan=strange, seed=2, findings=[said(subject="x1")]))
    assert found.incomparable[:2] == (
        "only the first run had n[4-5] (2 nodes)",
        "only the second run had x[1-2] (2 nodes)",
    )
    assert [(c.subject, c.counts) for c in found.came] == [("x1", False)]
    assert found.slower == ()


def test_runs_with_nothing_in_common_can_tell_nothing():
    found = difference(a_run(), a_run(plan=place([f"x{i}" for i in range(6)]), seed=2))
    assert found.outcome == "cannot tell"


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"settings": Settings(backend="gloo")}, "nccl moved the data of the first run, gloo that of the second"),
        ({"size_bytes": 2**20}, "messages of 1.05 MB now, of 67.1 MB before"),
    ],
)
def test_another_backend_or_message_is_not_compared(facts, text):
    found = difference(a_run(), a_run(lambda _a, _b: 0.1, seed=2, **facts))
    assert any(text in reason for reason in found.incomparable)
    assert (found.slower, found.outcome) == ((), "cannot tell")


@pytest.mark.parametrize("first", [True, False])
def test_a_simulated_run_beside_a_measured_one_is_refused(first):
    runs = a_run(settings=Settings(backend="nccl", simulated=True)), a_run()
    with pytest.raises(UsageError, match="simulated and the other was measured"):
        difference(*(runs if first else runs[::-1]))


def test_two_simulated_runs_say_so():
    modelled = Settings(backend="nccl", simulated=True)
    found = difference(a_run(settings=modelled), a_run(settings=modelled, seed=2))
    assert difference_text(found, width=80, colour=False).startswith("SIMULATED: ")


def test_a_new_fail_is_worse_only_where_the_first_run_judged_that():
    judged = Finding(check="xid", subject="n2", verdict=Verdict.PASS, observed="none")
    blind = Finding(check="xid", subject="n2", verdict=Verdict.UNKNOWN, observed="no log")
    sick = a_run(seed=2, findings=[said("xid", "n1")])
    assert difference(a_run(findings=[judged]), sick).outcome == "worse"
    for before in ([], [blind]):
        found = difference(a_run(findings=before), sick)
        assert found.outcome == "no worse"
        assert "the first run did not judge this" in {change.note for change in found.came}


def test_a_fail_that_is_no_longer_judged_may_still_be_there():
    found = difference(a_run(findings=[said("xid", "n1")]), a_run(seed=2))
    assert [(c.check, c.note) for c in found.went] == [("xid", "the second run did not judge this: it may still be so")]


def test_what_was_known_and_is_unknown_now_leaves_the_question_open():
    known = Finding(check="xid", subject="n2", verdict=Verdict.PASS, observed="none")
    for need, outcome in (("required", "cannot tell"), ("advisory", "no worse")):
        unknown = Finding(check="xid", subject="n2", verdict=Verdict.UNKNOWN, observed="no log", need=need)
        assert difference(a_run(findings=[known]), a_run(seed=2, findings=[unknown])).outcome == outcome


def test_a_warning_that_came_is_told_and_makes_nothing_worse():
    passed = Finding(check="clock", subject="n2", verdict=Verdict.PASS, observed="steady")
    found = difference(a_run(findings=[passed]), a_run(seed=2, findings=[said("clock", "n2", Verdict.WARN)]))
    assert [(c.before, c.after) for c in found.came] == [("PASS", "WARN")]
    assert found.outcome == "no worse"


def test_what_gave_a_figure_and_fails_now_leaves_the_question_open():
    found = difference(a_run(), a_run(seed=2, failed={(("n0", 1), ("n1", 1))}))
    assert found.failing == ("n0 GPU 1 - n1 GPU 1",)
    assert found.outcome == "cannot tell"


def test_a_partial_second_run_is_no_proof_of_health():
    found = difference(a_run(), a_run(seed=2, partial=True, partial_reason="interrupted"))
    assert (found.outcome, found.reasons) == ("cannot tell", ("the second run is partial",))


def test_software_hardware_and_settings_that_differ_are_told():
    def nodes(driver):
        return Inventory(nodes=tuple(Node(name=name, driver_version=driver, kernel="6.8") for name in NODES))

    def uuids(plan, first):
        placement = msgspec.structs.replace(plan.placement, gpu_uuids=(first, *(f"GPU-{i}" for i in range(11))))
        return msgspec.structs.replace(plan, placement=placement)

    old = a_run(
        inventory=nodes("550"), plan=uuids(place(), "GPU-a"), environment=Environment(versions={"torch": "2.4"})
    )
    new = a_run(
        seed=2,
        inventory=nodes("570"),
        plan=uuids(place(), "GPU-b"),
        environment=Environment(versions={"torch": "2.5"}, variables={"NCCL_ALGO": "Ring"}),
    )
    told = {(c.kind, c.name, c.before, c.after, c.nodes) for c in difference(old, new).setup}
    assert told == {
        ("version", "torch", "2.4", "2.5", ""),
        ("variable", "NCCL_ALGO", None, "Ring", ""),
        ("software", "driver", "550", "570", "n[0-5]"),
        ("GPU", "n0 GPU 0", "GPU-a", "GPU-b", "n0"),
    }


def test_a_plan_of_other_degrees_is_told_and_pairs_are_compared_all_the_same():
    other = make_plan(placement=place().placement, nodes=6, gpus_per_node=SLOTS, tp=1, dp=12)
    found = difference(a_run(), a_run(of_node("n3", 0.8), plan=other, seed=2))
    assert ("plan", "parallel.tp", "2", "1") in {(c.kind, c.name, c.before, c.after) for c in found.setup}
    assert slower(found) == [("node", "n3")]


def test_runs_without_measurements_are_compared_by_their_findings():
    quiet = {"evidence": make_evidence(), "command": "node"}
    judged = Finding(check="xid", subject="n1", verdict=Verdict.PASS, observed="none")
    assert (
        difference(a_run(findings=[judged], **quiet), a_run(seed=2, findings=[judged], **quiet)).outcome == "no worse"
    )
    assert (
        difference(a_run(findings=[judged], **quiet), a_run(seed=2, findings=[said("xid")], **quiet)).outcome == "worse"
    )


def test_the_comparison_survives_its_own_document():
    found = difference(a_run(), a_run(of_node("n3", 0.8), seed=2, findings=[said()]))
    assert from_json(to_json(found), Difference) == found
    assert b'"schema": "preflight.compare/1"' in to_json(found)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_text_fits_and_steers_no_terminal(width):
    evil = "a\x1b[31m\u202e節\r\n|"
    nodes = [f"{evil}{i}" for i in range(6)]
    old = a_run(plan=place(nodes), run_id=evil, findings=[said(evil, evil)])
    new = a_run(
        of_node(nodes[3], 0.8),
        plan=place(nodes),
        seed=2,
        run_id=evil,
        findings=[said(evil, evil * 20, Verdict.UNKNOWN)],
        environment=Environment(versions={evil: evil}, variables={evil * 30: evil * 30}),
        partial=True,
        partial_reason=evil,
    )
    text = difference_text(difference(old, new), width=width, colour=False)
    assert not re.search("[\x1b\u202e\r]", text)
    assert max(map(cells, text.splitlines())) <= width


def test_colour_changes_no_letter():
    found = difference(a_run(), a_run(of_node("n3", 0.8), seed=2, findings=[said()]))
    plain, painted = (difference_text(found, width=90, colour=colour) for colour in (False, True))
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == plain
    assert plain.startswith("worse: ")
