"""A run is held against earlier ones of the same nodes."""

import msgspec

from preflight.fleet.run import _with_history
from preflight.model import Environment, Evidence, Report, Settings
from tests.builders import make_evidence, make_measurement, make_plan

PLAN = make_plan(tp=4, dp=2, nodes=2, gpus_per_node=4, gpu=None, backend="gloo")


def evidence(rate: float) -> Evidence:
    measured = make_measurement((0, 1, 2, 3), subject="tp0", axis="tp", collective="send_recv", algbw_bytes_per_s=rate)
    return make_evidence(plan=PLAN, measurements=(measured,), settings=Settings(backend="gloo"))


def earlier(number: int, rate: float) -> Report:
    return Report(
        run_id=f"run{number}",
        command="run",
        started_at_s=float(number),
        duration_s=1,
        answer="go",
        findings=(),
        evidence=evidence(rate),
        environment=Environment(),
    )


def test_the_figures_of_earlier_runs_become_the_history_oldest_first():
    now = _with_history(evidence(1e9), [earlier(2, 2e9), earlier(1, 1e9)])
    assert now.baseline is not None
    (entry,) = now.baseline.entries
    assert entry.subject == "tp0"
    assert [round(rate / 1e9, 3) for rate in entry.busbw_bytes_per_s] == [1.0, 2.0]


def test_without_earlier_runs_there_is_no_history():
    now = evidence(1e9)
    assert _with_history(now, []) == msgspec.structs.replace(now, baseline=None)


def test_earlier_reports_that_break_the_history_cost_no_measurement(monkeypatch, capsys):
    def broken(*_, **__):
        raise KeyError("tp")

    monkeypatch.setattr("preflight.fleet.run.baseline_of", broken)
    now = evidence(1e9)
    assert _with_history(now, [earlier(1, 1e9)]) == now
    assert "tell no history: KeyError" in capsys.readouterr().err
