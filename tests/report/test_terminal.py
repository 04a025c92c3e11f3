"""The report in a terminal: answer first, a matrix that fits, nothing told by colour alone, nothing raw."""

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model import (
    Culprit,
    Evidence,
    Failure,
    Finding,
    Localisation,
    Measurement,
    Part,
    Placement,
    Report,
    RouteReference,
    Settings,
    Topology,
    Verdict,
)
from preflight.model.ends import ends_of
from preflight.report.matrix_text import MAX_WORST, matrix_lines
from preflight.report.matrix_view import pairs_of, square_of
from preflight.report.terminal import report_text
from preflight.report.text import cells
from tests.builders import make_evidence, make_measurement, make_plan, make_probe

SPEED = 100e9


def placed(nodes, slots, *, leaves=None):
    return Placement(
        source="predicted",
        method="block",
        nodes=tuple(nodes),
        node_ranks=tuple(n for n in range(len(nodes)) for _ in range(slots)),
        local_ranks=tuple(s for _ in nodes for s in range(slots)),
        leaves=leaves,
    )


def fabric(nodes, slots, *, slow=(), failed=(), missing=(), leaves=None, floor=0.1, known=True, culprits=()):
    """Like slots between nodes and all pairs inside them at SPEED; `slow`, `failed`, `missing`: pairs of ranks that are not."""
    placement = placed(nodes, slots, leaves=leaves)
    plan = make_plan(placement=placement, nodes=len(nodes), gpus_per_node=slots, tp=slots, dp=len(nodes))
    plan = msgspec.structs.replace(plan, placement=placement)
    number = len(nodes) * slots
    found = []
    for a in range(number):
        for b in range(a + 1, number):
            if (a // slots != b // slots and a % slots != b % slots) or (a, b) in missing:
                continue
            if (a, b) in failed:
                found.append(Measurement(probe=make_probe((a, b)), failure=Failure(kind="timed_out", text="no end")))
                continue
            found.append(make_measurement((a, b), algbw_bytes_per_s=SPEED * (0.55 if (a, b) in slow else 1), windows=1))
    routes = ("inside nodes", "same leaf, like slots", "other leaf, like slots", "leaves not known, like slots")
    references = tuple(
        RouteReference(op="send_recv", route=r, bytes_per_s=SPEED, shots=9, source="peers") for r in routes
    )
    localisation = Localisation(ends=ends_of(plan), references=references, floor=floor, culprits=culprits)
    return make_evidence(plan=plan, measurements=tuple(found), localisation=localisation if known else None)


def report_of(evidence=None, *findings, **facts):
    base = {"run_id": "r1", "command": "run", "started_at_s": 1767225600.0, "duration_s": 61.0, "answer": "no-go"}
    return Report(**{**base, "evidence": evidence or Evidence(), "findings": findings, **facts})


def shown(evidence, width=100):
    return matrix_lines(evidence, width=width, colour=False)


def names(number):
    return [f"gpu{i:03d}" for i in range(number)]


BAD = Finding(check="slow_part", subject="gpu001", verdict=Verdict.FAIL, observed="28 GB/s", remedy="leave it out")
GOOD = Finding(check="reachable", subject="ranks", verdict=Verdict.PASS, observed="all answered")


def test_the_answer_comes_first_then_its_reasons_and_what_passed_comes_late():
    lines = report_text(report_of(fabric(names(2), 2), GOOD, BAD), width=100, colour=False).splitlines()
    assert lines[0] == "no-go: 1 FAIL (slow_part)"
    assert lines[1].startswith("FAIL    slow_part: gpu001")
    assert lines.index("Passed and skipped") > lines.index("Bandwidth of pairs")
    assert lines[-1] == lines[0]


def test_few_gpus_get_every_figure_with_marks_at_the_slow_ones():
    lines = shown(fabric(names(2), 2, slow={(0, 2)}))
    assert lines[1:3] == ["  0  gpu000  .     100  55.0*    ?", "  1  gpu000   100  .       ?   100"] or [
        line.split() for line in lines[1:3]
    ] == [["0", "gpu000", ".", "100", "55.0*", "?"], ["1", "gpu000", "100", ".", "?", "100"]]
    assert any("* slow: below 90%" in line for line in lines)
    assert any("? not measured, so unknown" in line for line in lines)


def test_what_failed_and_what_was_not_measured_are_told_apart():
    text = "\n".join(shown(fabric(names(2), 1, failed={(0, 1)})))
    assert " x" in text
    assert "x failed" in text
    assert "not measured" not in text


@pytest.mark.parametrize(
    ("nodes", "slots", "width", "kind"),
    [
        (2, 4, 100, "GPU"),
        (8, 8, 100, "node"),
        (64, 2, 100, "node"),
        (64, 2, 40, "leaf"),
        (130, 1, 300, "leaf"),
    ],
)
def test_a_matrix_that_does_not_fit_is_reduced_and_says_so(nodes, slots, width, kind):
    leaves = tuple(f"leaf{i // 32}" for i in range(nodes))
    pairs = {(a, b) for a in range(nodes * slots) for b in range(nodes * slots) if (a // slots + b // slots) % 7}
    evidence = fabric(names(nodes), slots, leaves=leaves, missing=pairs if nodes > 60 else ())
    text = " ".join(" ".join(shown(evidence, width)).split())
    assert ("node x node: each square the worst" in text) == (kind == "node")
    assert ("leaf x leaf: each square the worst" in text) == (kind == "leaf")
    assert ("do not fit here" in text) == (kind != "GPU")


def test_without_leaves_too_many_nodes_become_a_list_of_the_worst():
    pairs = {(a, b) for a in range(130) for b in range(130) if a and b - a > 1}
    text = " ".join(" ".join(shown(fabric(names(130), 1, missing=pairs, slow={(0, 7)}))).split())
    assert "no matrix: 257 pairs of 130 GPUs" in text
    assert "gpu000 GPU 0 - gpu007 GPU 0 55.0 GB/s 55% slow" in text


def test_a_square_stands_for_its_worst_pair():
    square = square_of(pairs_of(fabric(names(2), 4, slow={(1, 5)}, failed={(2, 3)})), "node")
    assert square.at(0, 1).ratio == pytest.approx(0.55)
    assert square.at(0, 0).rate is None
    assert square.at(1, 1).ratio == pytest.approx(1)


def test_nodes_are_sorted_by_leaf_then_as_people_count():
    leaves = ("leaf2", "leaf10", "leaf2", "leaf10")
    square = square_of(pairs_of(fabric(["n10", "n2", "n9", "n1"], 1, leaves=leaves)), "node")
    assert square.names == ("n9", "n10", "n1", "n2")


def test_where_nothing_was_judged_nothing_is_called_slow():
    lines = shown(fabric(names(40), 1, slow={(0, 1)}, known=False), 60)
    text = " ".join(" ".join(lines).split())
    assert "nothing is called slow: there is no reference" in text
    assert " slow" not in text.replace("called slow", "")
    assert re.search(r"0 gpu000 \.5", text)


def test_a_way_that_the_localiser_accuses_is_shown_slow_although_it_is_its_routes_own_reference():
    evidence = fabric(["a", "b"], 1)
    slow = {"leaves not known, like slots": SPEED * 0.5}
    references = tuple(
        RouteReference(op="send_recv", route=r.route, bytes_per_s=slow.get(r.route, SPEED), shots=9, source="peers")
        for r in evidence.localisation.references
    )
    path = Culprit(kind="path", nodes=("a",), other_nodes=("b",), reference_bytes_per_s=2 * SPEED)
    ends = evidence.localisation.ends
    for culprits, ratio in (((), 2.0), ((path,), 0.5)):
        found = Localisation(ends=ends, references=references, floor=0.1, culprits=culprits)
        pair = pairs_of(make_evidence(plan=evidence.plan, measurements=evidence.measurements, localisation=found))[0]
        assert pair.ratio == pytest.approx(ratio)


def test_one_sick_node_does_not_hide_the_next():
    bad = {(3, b) for b in range(4, 20)} | {(a, 3) for a in range(3)} | {(10, 11)}
    lines = shown(fabric(names(20), 1, slow=bad))
    assert sum("gpu003 GPU 0" in line for line in lines) == 3
    assert any("gpu010 GPU 0 - gpu011 GPU 0" in line for line in lines)
    assert "  ... and 16 more that are slow or failed" in lines


def test_of_ranks_without_a_plan_nobody_knows_the_nodes():
    evidence = Evidence(measurements=(make_measurement((0, 1)), make_measurement((0, 2))))
    assert shown(evidence)[1].split() == ["0", "?", ".", "100", "100"]


def test_no_pairs_no_matrix():
    assert shown(Evidence()) == []
    assert "Bandwidth of pairs" not in report_text(report_of(Evidence(), BAD), width=80, colour=False)


@pytest.mark.parametrize("width", [40, 57, 80, 120, 300])
@pytest.mark.parametrize(("nodes", "slots"), [(1, 2), (2, 8), (24, 2)])
def test_no_line_is_wider_than_the_terminal(width, nodes, slots):
    node_names = [f"a-very-long-node-name-of-rack-{i:03d}.cluster.example" for i in range(nodes)]
    evidence = fabric(node_names, slots, slow={(0, 1)}, failed={(0, slots)})
    groups = [
        make_measurement((0, 1), subject="tp0", axis="tp", collective="all_reduce", mode=mode)
        for mode in ("alone", "together", "mixed")
    ]
    evidence = make_evidence(
        plan=evidence.plan, localisation=evidence.localisation, measurements=(*evidence.measurements, *groups)
    )
    blamed = Finding(
        check="slow_part",
        subject="x" * 400,
        verdict=Verdict.FAIL,
        observed="word " * 90,
        blames=Part(kind="node", name="y" * 300),
    )
    text = report_text(report_of(evidence, blamed, GOOD), width=width, colour=False)
    assert max(map(cells, text.splitlines())) <= width


def test_colour_changes_no_letter_and_each_colour_has_a_sign_of_its_own():
    report = report_of(fabric(names(3), 2, slow={(0, 2)}, failed={(1, 3)}, missing={(2, 4)}), BAD, GOOD)
    plain, painted = (report_text(report, width=90, colour=colour) for colour in (False, True))
    assert "\x1b[" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted).split() == plain.split()
    for code, sign in (("33", r"\S+\*"), ("1;31", "x"), ("35", r"\?")):
        assert re.search(rf"\x1b\[{code}m *{sign} *\x1b\[0m", painted), sign


def test_a_simulated_run_says_so_beside_the_answer_and_every_table():
    evidence = fabric(names(2), 2)
    simulated = make_evidence(plan=evidence.plan, measurements=evidence.measurements, settings=Settings(simulated=True))
    lines = report_text(report_of(simulated), width=100, colour=False).splitlines()
    assert "[SIMULATED]" in lines[0]
    assert lines[1].startswith("SIMULATED: a modelled cluster")
    assert "Bandwidth of pairs [SIMULATED]" in lines


def test_an_earlier_run_is_compared_or_it_is_said_why_not():
    report = report_of(fabric(names(2), 2), BAD)
    before = report_of(fabric(names(2), 2), GOOD, run_id="r0", answer="go")
    text = report_text(report, width=100, colour=False, previous=before)
    assert "Compared with run r0" in text
    assert "answer: go -> no-go" in text
    modelled = report_of(Evidence(settings=Settings(simulated=True)))
    assert "Not compared: " in report_text(report, width=100, colour=False, previous=modelled)


HOSTILE = "a\x1b]0;t\x07\u202e\u2066\u0301\x9b31m節点\u05d0\u3164\r\nb|<script>"


@pytest.mark.parametrize("width", [40, 100])
def test_names_of_strangers_steer_no_terminal_and_break_no_table(width):
    evidence = fabric([f"{HOSTILE}1", f"{HOSTILE}2", "節点" * 40], 2, slow={(0, 2)}, leaves=(HOSTILE, "l", "l"))
    bad = Finding(check=HOSTILE, subject=HOSTILE, verdict=Verdict.FAIL, observed=HOSTILE, remedy=HOSTILE)
    report = report_of(evidence, bad, run_id=HOSTILE, command=HOSTILE)
    text = report_text(report, width=width, colour=False, previous=report_of(evidence, run_id=HOSTILE + "0"))
    for char in "\x1b\x07\u202e\u2066\u0301\x9b\u05d0\u3164\r":
        assert char not in text, ascii(char)
    assert max(map(cells, text.splitlines())) <= width


@given(st.lists(st.text(max_size=12), min_size=3, max_size=3, unique=True), st.integers(40, 120))
@settings(max_examples=25, deadline=None)
def test_any_names_give_a_matrix_of_one_width(node_names, width):
    lines = shown(fabric(node_names, 1, slow={(0, 1)}), width)
    assert max(map(cells, lines)) <= width
    assert len(lines) > 3


def test_the_worst_are_a_few():
    assert (
        sum(" - " in line for line in shown(fabric(names(40), 1, slow={(a, b) for a in range(40) for b in range(40)})))
        <= MAX_WORST
    )


def test_leaves_of_the_topology_count_before_those_of_the_placement():
    evidence = fabric(["a", "b"], 1, leaves=("x", "y"))
    told = make_evidence(
        plan=evidence.plan, measurements=evidence.measurements, topology=Topology(switches={"a": ("l1",), "b": ("l2",)})
    )
    assert square_of(pairs_of(told), "leaf").names == ("l1", "l2")
