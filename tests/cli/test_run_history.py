"""What `preflight run` leaves in the history: of each node what was said of it, and no verdict that nobody reached."""

import msgspec
import pytest

from preflight.cli.run_history import keep
from preflight.fleet.history import History
from preflight.model import Finding, Localisation, Part, Verdict
from preflight.model.ends import ends_of
from tests.slurm.standin_run import report_of

NODES = ("n1", "n2", "n3", "n4")
CLOCK = Finding(
    check="clock_sync",
    subject="n2",
    verdict=Verdict.WARN,
    observed="not synchronised",
    blames=Part(kind="environment", name="clock of n2"),
    need="advisory",
)
NOISE = Finding(check="slow_part", subject="fabric", verdict=Verdict.WARN, observed="too noisy")


@pytest.fixture
def story(tmp_path):
    """What a run with these findings leaves of a node. `unjudged`: why it judged no rate."""

    def of(node, *findings, unjudged=""):
        report = report_of(NODES, [])
        found = Localisation(ends=ends_of(report.evidence.plan), unjudged=unjudged)
        evidence = msgspec.structs.replace(report.evidence, localisation=found)
        history = History(tmp_path / "history.sqlite")
        keep(history, msgspec.structs.replace(report, evidence=evidence, findings=findings))
        return history.node_story(node)

    return of


def test_what_was_said_of_a_node_is_in_its_story_also_where_nothing_of_it_is_to_blame(story):
    assert [(f.check, f.verdict) for f in story("n2", CLOCK, NOISE).findings] == [("clock_sync", Verdict.WARN)]


def test_what_was_said_of_another_node_or_of_the_fabric_is_not(story):
    assert story("n1", CLOCK, NOISE).findings == ()


@pytest.mark.parametrize(
    ("unjudged", "verdict"), [("", Verdict.PASS), ("too noisy: 28 repeats differ by 21%", Verdict.UNKNOWN)]
)
def test_a_node_of_a_run_that_was_too_noisy_to_judge_has_not_passed(story, unjudged, verdict):
    (found,) = story("n1", NOISE, unjudged=unjudged).verdicts
    assert found.verdict is verdict
    assert unjudged in found.text
