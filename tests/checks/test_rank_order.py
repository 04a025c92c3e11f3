"""rank_order catches placements that rest on what nobody said, and leaves alone those that follow from the plan file."""

from preflight.model import Finding, Placement, Rank, Topology, Verdict
from preflight_checks.rank_order import CHECK
from tests.builders import make_evidence, make_plan

HOSTS = ("n1", "n2", "n3", "n10")
LEAVES = Topology(switches={name: (f"leaf{i % 2}",) for i, name in enumerate(HOSTS)})


def judge(*, topology: Topology | None = None, **launch) -> list[Finding]:
    plan = make_plan(nodes=None, tp=8, topology=topology, launch={"hosts": HOSTS, **launch})
    return list(CHECK.judge(make_evidence(plan=plan)))


def test_an_order_that_the_launcher_fixes_passes():
    [finding] = judge(launcher="slurm", distribution="cyclic")
    assert (finding.verdict, finding.observed) == (Verdict.PASS, "slurm cyclic")
    assert judge(launcher="torchrun", rendezvous="c10d", topology=LEAVES)[0].verdict is Verdict.PASS


def test_a_doubt_that_nothing_rests_on_is_a_warning():
    [finding] = judge(launcher="torchrun")
    assert finding.verdict is Verdict.WARN
    assert "c10d would order the nodes otherwise" in finding.observed
    assert finding.observed.endswith("nothing judged here rests on it")


def test_a_doubt_that_other_findings_rest_on_is_unknown():
    [finding] = judge(launcher="slurm", slurm_version="26.05", topology=LEAVES)
    assert finding.verdict is Verdict.UNKNOWN
    assert "topology order" in finding.observed
    assert "--ranks" in finding.remedy


def test_a_method_settles_the_doubt():
    [finding] = judge(launcher="slurm", slurm_version="26.05", topology=LEAVES, distribution="block")
    assert finding.verdict is Verdict.PASS


def test_made_up_names_under_c10d_are_a_doubt():
    plan = make_plan(tp=8, launch={"launcher": "torchrun", "rendezvous": "c10d"})
    [finding] = CHECK.judge(make_evidence(plan=plan))
    assert finding.verdict is Verdict.WARN
    assert "host names are not known" in finding.observed


def test_without_a_launcher_or_when_measured_there_is_nothing_to_judge():
    assert judge() == []
    ranks = [Rank(rank=i, node=f"n{i}", node_rank=i, local_rank=0) for i in range(2)]
    placement = Placement.of(ranks, source="measured", method="environment")
    plan = make_plan(placement=placement, tp=1, nodes=None, launch={"launcher": "torchrun"})
    assert list(CHECK.judge(make_evidence(plan=plan))) == []
