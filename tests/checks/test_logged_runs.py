"""logged_runs: a run of the logs that died is unknown, unless a part that is named explains it."""

from preflight.model import Evidence, Failure, Measurement, Probe, Samples, Verdict
from preflight.model.localisation import Culprit, Ends, Localisation
from preflight_checks.logged_runs import CHECK

NODES = ("gpu-a1", "gpu-a2", "gpu-a3", "gpu-a4")


def run(subject, *, failure=None, stage="before its first size"):
    probe = Probe(
        subject=subject, axis="nodes", collective="all_to_all", ranks=(0, 8), size_bytes=2**30, size_source=""
    )
    if failure is None:
        return Measurement(probe=probe, samples=(Samples(rank=0, durations_s=(0.1,)),), data_correct=True)
    return Measurement(probe=probe, failure=Failure(kind=failure, text="Test NCCL failure", stage=stage))


def findings(*runs, culprits=(), leaves=None, plan=None, notes=()):
    ends = Ends(nodes=NODES, node=(0, 1, 2, 3), slot=(0,) * 4, leaves=leaves, whole_nodes=True)
    localisation = Localisation(ends=ends, culprits=tuple(culprits), notes=notes)
    return list(CHECK.judge(Evidence(measurements=tuple(runs), localisation=localisation, plan=plan)))


def test_logs_whose_runs_all_ended_pass():
    (finding,) = findings(run("gpu-a1-gpu-a2"), run("gpu-a1-gpu-a3"))
    assert (finding.verdict, finding.subject) == (Verdict.PASS, "logs")


def test_where_a_log_is_left_out_not_all_runs_ended():
    (finding,) = findings(
        run("gpu-a1-gpu-a2"), notes=("x.log doesn't tell which nodes took part: left out", "the noise of 1%")
    )
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)
    assert finding.observed == "1 run is not judged: x.log doesn't tell which nodes took part: left out"


def test_a_run_that_died_is_unknown_and_blames_nobody():
    (finding,) = findings(run("gpu-a1-gpu-a2"), run("gpu-a1-gpu-a3", failure="crashed"))
    assert (finding.verdict, finding.subject, finding.blames) == (Verdict.UNKNOWN, "gpu-a1-gpu-a3", None)
    assert "crashed before its first size" in finding.observed


def test_a_run_across_a_path_that_is_named_is_explained_by_it():
    path = Culprit(kind="path", nodes=NODES[:2], other_nodes=NODES[2:])
    not_explained, explained = findings(
        run("gpu-a1-gpu-a3", failure="crashed"), run("gpu-a1-gpu-a2", failure="timed_out"), culprits=[path]
    )
    assert (explained.verdict, not_explained.verdict) == (Verdict.WARN, Verdict.UNKNOWN)
    assert "the path between the two sets" in explained.observed


def test_a_run_with_a_node_that_is_named_is_explained_and_others_are_not():
    node = Culprit(kind="node", nodes=("gpu-a4",), failed=True)
    other, explained = findings(
        run("gpu-a1-gpu-a4", failure="crashed"),
        run("gpu-a1-gpu-a2", failure="crashed"),
        run("gpu-a[1-4]", failure="crashed"),
        culprits=[node],
    )
    assert (other.subject, other.verdict, explained.verdict) == ("gpu-a1-gpu-a2", Verdict.UNKNOWN, Verdict.WARN)
    assert "2 runs died, explained by the node gpu-a4: gpu-a1-gpu-a4, gpu-a[1-4]" in explained.observed


def test_an_uplink_explains_what_crosses_it_and_a_link_its_own_pair():
    leaves = ("l1", "l1", "l2", "l2")
    uplink = Culprit(kind="uplink", leaf="l1", nodes=NODES[:2])
    inside, across = findings(
        run("gpu-a1-gpu-a3", failure="crashed"),
        run("gpu-a3-gpu-a4", failure="crashed"),
        culprits=[uplink],
        leaves=leaves,
    )
    assert (across.verdict, inside.verdict) == (Verdict.WARN, Verdict.UNKNOWN)
    link = Culprit(kind="link", ends=(0, 1))
    other, mine = findings(
        run("gpu-a1-gpu-a2", failure="crashed"), run("gpu-a1-gpu-a3", failure="crashed"), culprits=[link]
    )
    assert (mine.verdict, other.verdict) == (Verdict.WARN, Verdict.UNKNOWN)


def test_what_is_not_identifiable_explains_nothing():
    (finding,) = findings(run("gpu-a1-gpu-a2", failure="crashed"), culprits=[Culprit(kind=None, nodes=NODES)])
    assert finding.verdict is Verdict.UNKNOWN


def test_a_run_that_died_after_its_last_size_lost_nothing():
    (finding,) = findings(run("gpu-a1-gpu-a2", failure="crashed", stage="after its last size"))
    assert finding.verdict is Verdict.WARN


def test_a_run_of_preflights_own_is_left_to_another_check():
    evidence = Evidence(measurements=(run("pair 0-1", failure="crashed"),))
    assert list(CHECK.judge(evidence)) == []
