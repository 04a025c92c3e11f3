"""A baseline is made of earlier reports: of the same hardware, whatever the groups are called now."""

import msgspec
import pytest

from preflight.model import Evidence, Report, Settings, to_json
from preflight.model.baseline import MAX_RUNS, baseline_of
from tests.builders import make_measurement, make_plan

GLOO = Settings(backend="gloo")


def report(number, rate=50e9, *, plan=None, settings=GLOO, run_id=None, groups=("tp0",), **measured) -> Report:
    plan = plan or make_plan(tp=4, dp=2, nodes=2, gpus_per_node=4, gpu=None)
    found = [make_measurement((0, 4), algbw_bytes_per_s=rate, repeat=r) for r in range(2)]
    for name in groups:
        ranks = plan.group("tp", int(name[2:])).ranks
        found += [
            make_measurement(
                ranks,
                subject=name,
                axis="tp",
                collective="all_gather",
                algbw_bytes_per_s=rate * (1 + r / 100),
                repeat=r,
                **measured,
            )
            for r in range(3)
        ]
    return Report(
        run_id=run_id or f"run{number}",
        command="run",
        started_at_s=1000.0 + number,
        duration_s=60,
        answer="go",
        findings=(),
        evidence=Evidence(settings=settings, plan=plan, measurements=tuple(found)),
    )


def entries(*reports, **of):
    return {(e.subject, e.collective): e.busbw_bytes_per_s for e in baseline_of(reports, **of).entries}


def test_each_run_gives_one_figure_oldest_first():
    found = entries(report(2, 60e9), report(1, 40e9), report(3, 50e9))
    assert found["tp0", "all_gather"] == pytest.approx((0.75 * 40.4e9, 0.75 * 60.6e9, 0.75 * 50.5e9))
    assert found["pair 0-4", "send_recv"] == pytest.approx((40e9, 60e9, 50e9))


def test_simulated_runs_other_backends_and_doubles_are_left_out():
    simulated = report(2, settings=Settings(backend="gloo", simulated=True))
    found = entries(report(1), simulated, report(3, settings=Settings(backend="nccl")), report(4), report(4))
    assert len(found["tp0", "all_gather"]) == 2
    assert entries(simulated) == {}
    assert entries() == {}


def test_a_group_is_known_again_by_its_place_and_not_by_its_name():
    plan = make_plan(tp=4, dp=2, nodes=2, gpus_per_node=4, gpu=None)
    swapped = msgspec.structs.replace(
        plan, placement=msgspec.structs.replace(plan.placement, nodes=tuple(reversed(plan.placement.nodes)))
    )
    found = entries(report(1), report(2), plan=swapped)
    assert ("tp0", "all_gather") not in found
    assert len(found["tp1", "all_gather"]) == 2
    elsewhere = make_plan(tp=4, dp=2, nodes=2, gpus_per_node=4, gpu=None, node_names=["other0", "other1"])
    assert entries(report(1), plan=elsewhere) == {}


def test_figures_together_or_of_a_search_are_no_history():
    assert ("tp0", "all_gather") not in entries(report(1, mode="together"))


def test_a_long_history_is_cut():
    found = entries(*(report(n) for n in range(MAX_RUNS + 5)))
    assert len(found["tp0", "all_gather"]) == MAX_RUNS


def test_reports_with_nothing_in_them_make_no_baseline():
    empty = msgspec.structs.replace(report(1), evidence=Evidence(settings=GLOO))
    assert entries(empty) == {}
    assert to_json(baseline_of([report(1)]))
