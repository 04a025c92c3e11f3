"""The fabric in reports: culprits with reasons, references, notes and next probes; GPUs alone; coverage; SIMULATED wherever results show."""

import json
import re

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from preflight.errors import ConfigError
from preflight.model import (
    Ask,
    Baseline,
    BaselineEntry,
    Coverage,
    Culprit,
    Ends,
    Evidence,
    Localisation,
    Report,
    RouteReference,
    Settings,
    Topology,
    to_json,
)
from preflight.report.console import coverage_text, report_text
from preflight.report.document import load_report
from preflight.report.fabric import MAX_CULPRITS, MAX_NOTES, fabric_lines
from preflight.report.junit import junit_text
from preflight.report.prometheus import metrics_text
from preflight.report.rates import alone_rates, group_rates, leaf_of, pair_rates
from tests.builders import make_evidence, make_measurement, make_plan

ENDS = Ends(nodes=("n0", "n1", "n2", "n3"), node=(0, 0, 1, 1, 2, 2, 3, 3), slot=(0, 1) * 4, leaves=("a", "a", "b", "b"))
NODE = Culprit(
    kind="node",
    nodes=("n2",),
    direction="sending",
    ops=("send",),
    observed_bytes_per_s=20e9,
    reference_bytes_per_s=47e9,
    depth=0.57,
    reference="upper mode of 8 ends' best",
    reason="all 6 pairs of n2 are slow, its partners are fast with others",
    evidence=("pair 0-4 send_recv alone 0",),
)


def found(*culprits: Culprit, **facts) -> Localisation:
    reference = RouteReference(
        op="send_recv",
        route="other leaf, like slots",
        bytes_per_s=47e9,
        shots=24,
        source="upper mode of 8 ends' best",
        noise=0.012,
        expected_bytes_per_s=48e9,
        expected_source="formula: 400 Gbit/s x 0.96 = 48.0 GB/s",
    )
    base = {"ends": ENDS, "references": (reference,), "floor": 0.1, "cleared_ends": 8, "shots": 40}
    return Localisation(**{**base, "culprits": culprits, **facts})


def lines(*culprits: Culprit, **facts) -> str:
    return "\n".join(fabric_lines(found(*culprits, **facts), width=200))


def make_report(evidence: Evidence | None = None, **facts) -> Report:
    base = {"run_id": "r", "command": "run", "started_at_s": 1.0, "duration_s": 2.0, "answer": "go", "findings": ()}
    return Report(**{**base, "evidence": evidence or Evidence(), **facts})


# --- culprits ---


def test_a_culprit_is_told_with_figures_reference_and_reason():
    text = lines(NODE)
    assert "  slow        node n2, sending (likely)" in text
    assert "20.0 GB/s of 47.0 GB/s, 57% less, upper mode of 8 ends' best" in text
    assert "all 6 pairs of n2 are slow" in text


def test_what_is_not_identifiable_lists_what_remains_and_the_probes_that_would_decide():
    unclear = Culprit(kind=None, reason="one pair is slow", candidates=(NODE, Culprit(kind="nic", ends=(0,))))
    asks = (Ask(a=0, b=1, reason="GPU or NIC of n0"), Ask(a=4, b=4, op="host_to_device"))
    text = lines(unclear, asks=asks)
    assert "not identifiable: one of node n2, sending; NIC of n0 GPU 0" in text
    assert "next probe  send_recv n0 GPU 0 - n0 GPU 1: GPU or NIC of n0" in text
    assert "next probe  host_to_device n2 GPU 0" in text


def test_a_failed_part_is_called_so_and_a_clean_fabric_too():
    assert "  failed      node n2" in lines(Culprit(kind="node", nodes=("n2",), failed=True))
    assert "no part is slower than its peers: 8 of 8 GPUs have a probe at the reference, of 40 probes" in lines()
    assert "no probe gave a figure" in lines(cleared_ends=0)


def test_references_floor_and_notes_are_told():
    text = lines(NODE, notes=("unlike slots are 8% slower", "one transient"))
    assert "reference   send_recv other leaf, like slots: 47.0 GB/s, upper mode of 8 ends' best, 24 probes" in text
    assert "repeats differ by 1.2%; expected 48.0 GB/s, formula: 400 Gbit/s x 0.96" in text
    assert "nothing is called slow above 90% of its reference" in text
    assert "note        unlike slots are 8% slower" in text


def test_what_was_not_judged_says_why_and_nothing_else():
    text = lines(unjudged="3 pairs: too few", references=())
    assert text == "  unjudged    3 pairs: too few"
    assert fabric_lines(None, width=80) == []


def test_many_culprits_and_notes_are_cut():
    many = [Culprit(kind="nic", ends=(0,), reason=f"reason {i}") for i in range(MAX_CULPRITS + 3)]
    text = lines(*many, notes=tuple(f"note {i}" for i in range(MAX_NOTES + 2)))
    assert "... and 3 more: see --format json" in text
    assert "... and 2 more" in text


def test_texts_from_elsewhere_cannot_steer_a_terminal():
    nasty = Culprit(kind="leaf", leaf="\x1b[2Jleaf", reason="a\nb\x07")
    text = lines(nasty, notes=("\x1b]0;x",), asks=(Ask(a=0, b=1, reason="\x9b"),))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


# --- the whole report ---


def gpu_alone(rank, op, rate, *, flops=0):
    measurement = make_measurement((rank,), subject=f"gpu {rank}", collective=op, algbw_bytes_per_s=rate)
    return msgspec.structs.replace(measurement, probe=msgspec.structs.replace(measurement.probe, flops=flops))


def rich(**settings) -> Evidence:
    plan = make_plan(nodes=4, gpus_per_node=2, tp=2, dp=4)
    alone = [gpu_alone(r, "host_to_device", (50 - r) * 1e9) for r in range(8)]
    alone += [gpu_alone(r, "matmul", 1e9, flops=10**12 * (8 - r)) for r in range(8)]
    pairs = [make_measurement((a, b), algbw_bytes_per_s=47e9) for a in range(8) for b in range(a + 1, 8)]
    pairs += [make_measurement((0, 2), collective="send", algbw_bytes_per_s=1e9)]
    groups = [
        make_measurement(
            (0, 2, 4, 6), subject="dp0", axis="dp", collective="all_to_all", mode=mode, algbw_bytes_per_s=r
        )
        for mode, r in (("alone", 40e9), ("together", 38e9), ("mixed", 20e9))
    ]
    skewed = msgspec.structs.replace(
        groups[0], probe=msgspec.structs.replace(groups[0].probe, split=(0.4, 0.2, 0.2, 0.2))
    )
    return make_evidence(
        plan=plan,
        measurements=(*alone, *pairs, *groups, skewed),
        settings=Settings(**settings),
        localisation=found(NODE),
        topology=Topology(switches={f"node{i}": ("ab"[i // 2],) for i in range(4)}),
    )


def test_gpus_by_themselves_are_summarised_with_the_slowest():
    text = report_text(make_report(rich()))
    assert re.search(r"host to GPU +rank 7, node3 +43\.0 GB/s +46\.5 GB/s +50\.0 GB/s +8", text)
    assert re.search(r"matrix product +rank 7, node3 +\S+ TFLOP/s", text)
    assert alone_rates(rich().measurements)["matmul"][0] > alone_rates(rich().measurements)["matmul"][7]


def test_groups_have_columns_for_the_mixed_step_and_the_skewed_split_where_they_were_timed():
    text = report_text(make_report(rich()))
    assert re.search(r"alone +together +ratio +mixed +skewed", text)
    assert re.search(r"dp0 +all_to_all +67\.1 MB +30\.0 GB/s +28\.5 GB/s +0\.95 +15\.0 GB/s +30\.0 GB/s", text)
    [rate] = group_rates(rich().measurements)
    assert rate.contention == pytest.approx(0.95)


def test_one_way_probes_are_not_mixed_with_pairs():
    assert pair_rates(rich().measurements)[0, 2] == pytest.approx(47e9)


def test_coverage_tells_links_uplinks_leaf_pairs_and_the_scan():
    seen = Coverage(
        pairs_planned=120,
        pairs_measured=56,
        groups_planned=12,
        groups_measured=12,
        links_planned=64,
        links_measured=64,
        uplinks_planned=4,
        uplinks_measured=4,
        leaf_pairs_planned=6,
        leaf_pairs_measured=5,
        scan="rounds 6 to 10 of 63",
    )
    text = "56 of 120 pairs, 12 of 12 groups measured; 64 of 64 GPUs' ways out of their nodes; 4 of 4 leaves' ways up; 5 of 6 pairs of leaves; scan rounds 6 to 10 of 63"
    assert coverage_text(seen) == text
    assert coverage_text(Coverage()) == ""
    assert coverage_text(Coverage(pairs_planned=2)) == "0 of 2 pairs measured"
    assert "5 of 6 pairs of leaves" in report_text(make_report(coverage=seen), width=300)


def test_simulated_results_are_marked_wherever_they_show():
    report = make_report(rich(simulated=True))
    text = report_text(report)
    for title in ("Bandwidth of pairs", "GPUs by themselves", "Bandwidth of groups", "Fabric"):
        assert re.search(rf"^{title}.*\[SIMULATED\]$", text, re.MULTILINE)
    assert text.startswith("preflight run, run r")
    assert "SIMULATED: a modelled cluster" in text
    assert text.splitlines()[-1].endswith("[SIMULATED]")
    assert '<property name="simulated" value="true"/>' in junit_text(report)
    assert json.loads(to_json(report))["evidence"]["settings"]["simulated"] is True
    families = text_string_to_metric_families(metrics_text(report))
    assert all(sample.labels["simulated"] == "true" for family in families for sample in family.samples)
    assert "SIMULATED" not in report_text(make_report(rich()))


# --- metrics ---


def samples(report: Report) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name.removeprefix("preflight_"), tuple(v for k, v in sample.labels.items() if k != "command")): (
            sample.value
        )
        for family in text_string_to_metric_families(metrics_text(report))
        for sample in family.samples
    }


def test_metrics_tell_gpus_alone_pairs_of_leaves_the_slowest_pairs_and_slow_parts():
    got = samples(make_report(rich()))
    assert got["gpu_host_to_device_minimum_bytes_per_second", ("node3",)] == pytest.approx(43e9)
    assert got["gpu_host_to_device_median_bytes_per_second", ("node0",)] == pytest.approx(49.5e9)
    assert ("gpu_matmul_minimum_operations_per_second", ("node0",)) in got
    assert got["leaf_pair_bus_bandwidth_minimum_bytes_per_second", ("a", "b")] == pytest.approx(47e9)
    assert got["leaf_pair_bus_bandwidth_median_bytes_per_second", ("a", "a")] == pytest.approx(47e9)
    assert sum(name == "slowest_pair_bus_bandwidth_bytes_per_second" for name, _ in got) == 28
    assert got["fabric_slow_parts", ("node",)] == 1
    assert got["fabric_slow_parts", ("unclear",)] == 0
    assert got["fabric_reference_bytes_per_second", ("send_recv", "other leaf, like slots")] == pytest.approx(47e9)
    name = "group_bus_bandwidth_minimum_bytes_per_second"
    assert got[name, ("dp", "all_to_all", str(2**26), "mixed")] == pytest.approx(15e9)
    assert got[name, ("dp", "all_to_all", str(2**26), "skewed")] == pytest.approx(30e9)


def test_metrics_of_coverage_leave_out_what_is_not_there():
    got = samples(make_report(coverage=Coverage(pairs_planned=2, links_planned=8, links_measured=6)))
    assert got["links_measured", ()] == 6
    assert not any("uplinks" in name for name, _ in got)


def test_leaves_come_from_the_topology_or_else_from_the_placement():
    evidence = rich()
    assert [leaf_of(evidence, rank) for rank in (0, 7, 99)] == ["a", "b", None]
    plan = evidence.plan
    placed = msgspec.structs.replace(
        plan, placement=msgspec.structs.replace(plan.placement, leaves=("x", "x", "y", "y"))
    )
    assert leaf_of(msgspec.structs.replace(evidence, topology=None, plan=placed), 7) == "y"
    assert leaf_of(msgspec.structs.replace(evidence, topology=None), 7) is None


# --- saved and loaded ---


def test_a_report_with_all_of_it_comes_back_and_an_old_one_without_loads(tmp_path):
    entry = BaselineEntry(subject="dp0", collective="all_to_all", size_bytes=1, busbw_bytes_per_s=(1e9,))
    report = make_report(msgspec.structs.replace(rich(), baseline=Baseline(entries=(entry,))))
    path = tmp_path / "report.json"
    path.write_bytes(to_json(report))
    assert load_report(path) == report
    old = json.loads(to_json(report))
    del old["evidence"]["localisation"], old["evidence"]["baseline"]
    old["evidence"]["measurements"] = [m for m in old["evidence"]["measurements"] if len(m["probe"]["ranks"]) > 1]
    path.write_text(json.dumps(old))
    assert load_report(path).evidence.localisation is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda e: e["localisation"]["ends"]["node"].append(1), "a slot for each of 9"),
        (lambda e: e["localisation"]["ends"].update(node=[9] * 8), "a node of 4"),
        (lambda e: e["localisation"]["ends"].update(leaves=["a"]), "for each of 4 nodes"),
        (lambda e: e["localisation"]["ends"].update(classes={"driver": ["1"]}), "for each of 4 nodes"),
        (lambda e: e["localisation"]["culprits"][0].update(ends=[8]), "end 8: there are 8"),
        (lambda e: e["localisation"].update(asks=[{"a": -1, "b": 0}]), "end -1"),
        (lambda e: e["measurements"][0]["probe"].update(ranks=[]), "expected one rank"),
        (lambda e: e["measurements"][0]["probe"].update(ranks=[1, 2]), "expected one rank"),
        (lambda e: e["measurements"][0]["probe"].update(flops=-1), "flops: expected no negative number"),
        (lambda e: e["measurements"][-1]["probe"].update(split=[0.0] * 4), "a share for each of 4"),
        (lambda e: e["measurements"][-1]["probe"].update(split=[1.0]), "a share for each of 4"),
        (
            lambda e: e.update(
                baseline={"entries": [{"subject": "s", "collective": "c", "size_bytes": 1, "busbw_bytes_per_s": [0]}]}
            ),
            "expected positive",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_place(tmp_path, change, complaint):
    document = json.loads(to_json(make_report(rich())))
    change(document["evidence"])
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load_report(path)


def test_a_single_explanation_is_not_one_of_many_and_a_probe_asked_for_twice_is_one_line():
    unclear = Culprit(kind=None, reason="one pair is slow", candidates=(NODE,))
    asks = (Ask(a=0, b=1, reason="again"), Ask(a=0, b=1, reason="again"))
    text = lines(unclear, asks=asks)
    assert "not identifiable: perhaps node n2, sending" in text
    assert text.count("next probe") == 1
    assert "next probe  send_recv n0 GPU 0 - n0 GPU 1: again (2 times)" in text
