"""throttle, power_limit, temperature, persistence: what holds a GPU down."""

from typing import Any

import pytest

from preflight.model import Clocks, Expected, GpuProcess, Part, Power, Problem, Profile, Temperature, Verdict
from preflight_checks import persistence, power_limit, temperature, throttle
from tests.builders import H100, make_plan
from tests.checks.nodes import blamed, judged, node_with, only, verdicts


def held_down(*reasons: str) -> Clocks:
    return Clocks(throttle_reasons=reasons)


def power(enforced: float | None, default: float | None = 300.0, set_to: float | None = None) -> Power:
    return Power(enforced_limit_w=enforced, default_limit_w=default, limit_w=set_to)


@pytest.mark.parametrize(
    "reasons", [(), ("idle",), ("sw power cap",), ("application clocks",), ("sync boost",), ("reason 0x200",)]
)
def test_idle_caps_and_locked_clocks_pass(reasons):
    assert [f.verdict for f in judged(throttle.CHECK, node_with(held_down(*reasons), field="clocks"))] == [Verdict.PASS]


def test_a_power_cap_is_told_although_it_is_normal():
    finding = only(judged(throttle.CHECK, node_with(held_down("sw power cap"), field="clocks")), Verdict.PASS)
    assert "GPU 0: sw power cap" in finding.observed


@pytest.mark.parametrize(
    ("reason", "confidence"),
    [("hw slowdown", "possible"), ("hw thermal slowdown", "likely"), ("sw thermal slowdown", "likely")],
)
def test_slowdown_by_hardware_or_heat_warns_and_names_the_gpu(reason, confidence):
    finding = only(judged(throttle.CHECK, node_with(held_down("idle", reason), field="clocks")), Verdict.WARN)
    assert finding.observed == f"held down now by: {reason}"
    assert blamed(finding) == Part(kind="gpu", name="node1 GPU 0 (GPU-node1-0)", confidence=confidence)


def test_the_power_brake_is_one_warning_that_names_the_node():
    node = node_with(*(held_down("hw slowdown", "hw power brake slowdown"),) * 4, field="clocks")
    finding = only(judged(throttle.CHECK, node), Verdict.WARN)
    assert finding.subject == "node1"
    assert blamed(finding) == Part(kind="node", name="node1", confidence="likely")


def test_clocks_without_reasons_are_unknown():
    problem = Problem(source="nvml", text="Unknown Error", field="clocks")
    node = node_with(Clocks(sm_mhz=1980), field="clocks", problems=(problem,))
    assert "Unknown Error" in only(judged(throttle.CHECK, node), Verdict.UNKNOWN).observed


# l4rz, iDRAC issue 3: one of four V100 at 150 of 300 W
def test_one_gpu_at_half_the_power_of_the_others_fails_and_blames_the_setting():
    node = node_with(power(300), power(300), power(150), power(300), field="power")
    findings = judged(power_limit.CHECK, node)
    bad = only(findings, Verdict.FAIL)
    assert bad.subject == "node1 GPU 2 (GPU-node1-2)"
    assert bad.observed == "limited to 150 of 300 W, while most GPUs of this product here have 300 W"
    assert blamed(bad) == Part(kind="environment", name="power limit of node1")
    assert only(findings, Verdict.PASS).observed.startswith("3 GPUs")


def test_a_cluster_that_is_capped_on_purpose_is_one_warning_for_each_node():
    nodes = [
        node_with(power(200, set_to=200), power(200, set_to=200), field="power", name=name)
        for name in ("node1", "node2")
    ]
    findings = judged(power_limit.CHECK, *nodes)
    assert verdicts(findings) == [("node1", Verdict.WARN), ("node2", Verdict.WARN)]
    assert "nvidia-smi -pl 300" in findings[0].remedy


def test_a_node_that_is_capped_as_a_whole_fails_only_beside_others_of_one_plan():
    nodes = [node_with(power(700, 700), power(700, 700), field="power", name=f"node{i}") for i in range(3)]
    capped = node_with(power(350, 700), power(350, 700), field="power", name="node3")
    assert only(judged(power_limit.CHECK, *nodes, capped), Verdict.WARN).subject == "node3"
    plan = make_plan(nodes=4, gpus_per_node=2, tp=2, pp=1, dp=4, node_names=[f"node{i}" for i in range(4)])
    assert only(judged(power_limit.CHECK, *nodes, capped, plan=plan), Verdict.FAIL).subject == "node3"


def test_a_cap_set_out_of_band_is_to_be_lifted_there():
    finding = only(judged(power_limit.CHECK, node_with(power(200, set_to=300), field="power")), Verdict.WARN)
    assert "out of band" in finding.remedy


def test_a_board_with_a_lower_default_than_others_is_not_capped():
    node = node_with(power(700, 700), power(700, 700), power(500, 500), field="power")
    assert [f.verdict for f in judged(power_limit.CHECK, node)] == [Verdict.PASS]


def test_without_a_default_the_profile_and_then_the_peers_tell():
    profile = Profile(name="H100", gpu_names=(H100,), power_limit_w=Expected(value=700, source="test"))
    one = node_with(power(650, None), field="power")
    profiled = judged(power_limit.CHECK, one, profiles={H100.casefold(): profile})
    assert only(profiled, Verdict.WARN).observed == "limited to 650 of 700 W"
    peers = judged(power_limit.CHECK, node_with(power(700, None), power(700, None), power(300, None), field="power"))
    assert "300 of 700 W" in only(peers, Verdict.FAIL).observed
    assert "neither a default" in only(judged(power_limit.CHECK, one), Verdict.UNKNOWN).observed


def test_a_higher_limit_than_the_default_passes():
    assert [f.verdict for f in judged(power_limit.CHECK, node_with(power(350), field="power"))] == [Verdict.PASS]


@pytest.mark.parametrize(
    ("facts", "verdict", "text"),
    [
        ({"gpu_c": 85, "margin_c": 0}, Verdict.FAIL, "85 C, at the slowdown point"),
        ({"gpu_c": 87, "margin_c": -2}, Verdict.FAIL, "2 C above"),
        ({"gpu_c": 82, "margin_c": 3}, Verdict.WARN, "3 C below"),
        ({"gpu_c": 88, "slowdown_c": 87}, Verdict.FAIL, "1 C above"),
        ({"gpu_c": 30, "slowdown_c": 87}, Verdict.PASS, "far from"),
        ({"gpu_c": 30, "margin_c": 57}, Verdict.PASS, "far from"),
    ],
)
def test_the_distance_to_the_slowdown_point_counts(facts, verdict, text):
    cool = Temperature(gpu_c=30, margin_c=57)
    findings = judged(temperature.CHECK, node_with(Temperature(**facts), cool, field="temperature", processes=()))
    finding = findings[0]
    assert finding.verdict is verdict
    assert text in finding.observed


def test_a_gpu_at_work_may_touch_its_limit():
    hot, cool = Temperature(gpu_c=86, margin_c=0), Temperature(gpu_c=30, margin_c=57)
    at_work = node_with(hot, cool, field="temperature", processes=(GpuProcess(pid=1),))
    finding = only(judged(temperature.CHECK, at_work), Verdict.WARN)
    assert finding.observed == "86 C, at the slowdown point, while it is at work"


def test_if_all_gpus_are_hot_the_cooling_of_the_node_is_named():
    hot = Temperature(gpu_c=86, margin_c=1)
    finding = only(judged(temperature.CHECK, node_with(hot, hot, hot, hot, field="temperature")), Verdict.WARN)
    assert finding.subject == "node1"
    assert blamed(finding) == Part(kind="node", name="node1", confidence="likely")


def test_a_hot_gpu_of_which_nobody_knows_whether_it_works_only_warns():
    hot, cool = Temperature(gpu_c=86, margin_c=0), Temperature(gpu_c=30, margin_c=57)
    only(judged(temperature.CHECK, node_with(hot, cool, field="temperature", processes=None)), Verdict.WARN)
    only(judged(temperature.CHECK, node_with(hot, cool, field="temperature", processes=())), Verdict.FAIL)


@pytest.mark.parametrize(
    ("facts", "others", "verdict"),
    [
        ({"gpu_c": 40}, {"unsupported": ("margin_c", "slowdown_c")}, Verdict.SKIP),
        ({"gpu_c": 40}, {"unsupported": ("margin_c",)}, Verdict.UNKNOWN),
        ({"gpu_c": 40}, {}, Verdict.UNKNOWN),
        ({"slowdown_c": 87}, {"unsupported": ("margin_c",)}, Verdict.UNKNOWN),
        (
            {"gpu_c": 40},
            {"unsupported": ("slowdown_c",), "problems": (Problem(source="nvml", text="failed", field="margin_c"),)},
            Verdict.UNKNOWN,
        ),
    ],
)
def test_a_temperature_without_a_threshold_is_not_judged(facts: dict[str, int], others: dict[str, Any], verdict):
    node = node_with(Temperature(**facts), field="temperature", **others)
    assert [f.verdict for f in judged(temperature.CHECK, node)] == [verdict]


def test_persistence_off_is_one_warning_for_the_node_and_never_fails():
    finding = only(judged(persistence.CHECK, node_with(*(False,) * 8, field="persistence")), Verdict.WARN)
    assert finding.subject == "node1"
    assert "nvidia-smi -pm 1" in finding.remedy
    assert blamed(finding).kind == "environment"


def test_persistence_off_on_one_gpu_names_it():
    findings = judged(persistence.CHECK, node_with(True, False, field="persistence"))
    assert verdicts(findings) == [("node1 GPU 1 (GPU-node1-1)", Verdict.WARN), ("node1", Verdict.PASS)]
