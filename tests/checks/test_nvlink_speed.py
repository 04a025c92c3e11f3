"""nvlink_speed: every active link runs at the line rate of its generation."""

from preflight.model import Finding, Node, Problem, Rule, Settings, Verdict
from preflight_checks.nvlink_speed import judge
from tests.checks.nvlink_nodes import changed, evidence, links, node_with
from tests.checks.topologies import A100_SXM, NO_NVLINK, V100_SXM2

V100 = "Tesla V100-SXM2-32GB"
A100 = "NVIDIA A100-SXM4-80GB"


def judged(*nodes: Node, **others) -> list[Finding]:
    return list(judge(evidence(*nodes, **others)))


def test_links_at_their_rate_pass():
    (finding,) = judged(node_with(*[links(18)] * 8))
    assert finding.verdict is Verdict.PASS
    assert finding.observed == "8 GPUs: 144 active links at 26.56 GB/s or more"


def test_the_same_link_printed_by_another_driver_passes():
    node = node_with(*[links(12, gb_per_s=25.781)] * 4, *[links(12, gb_per_s=25)] * 4, product=A100)
    assert [f.verdict for f in judged(node, profiles={A100: A100_SXM})] == [Verdict.PASS]
    coded = node_with(*[links(18, gb_per_s=25)] * 8)
    assert [f.verdict for f in judged(coded)] == [Verdict.PASS]


def test_one_slow_link_is_named_and_blamed_alone():
    slow = links(6, gb_per_s=25.781, rates={5: 20.0})
    (finding,) = judged(node_with(*[links(6, gb_per_s=25.781)] * 7, slow, product=V100), profiles={V100: V100_SXM2})
    assert (finding.verdict, finding.subject) == (Verdict.FAIL, "node0 GPU 7 (GPU-node0-7)")
    assert finding.observed == "link 5 at 20 GB/s, the other 5 links at 25.78 GB/s or more"
    assert finding.blames is not None
    assert (finding.blames.kind, finding.blames.name) == ("link", "node0 GPU 7 (GPU-node0-7) link 5")


def test_a_gpu_with_several_slow_links_is_blamed():
    (finding,) = judged(node_with(*[links(18)] * 7, links(18, gb_per_s=12.5)))
    assert finding.blames is not None
    assert finding.blames.kind == "gpu"


def test_a_node_that_is_slow_all_over_is_one_finding_that_blames_no_gpu():
    (finding,) = judged(node_with(*[links(18, gb_per_s=12.5)] * 8))
    assert (finding.verdict, finding.subject) == (Verdict.FAIL, "node0")
    assert finding.blames is not None
    assert (finding.blames.kind, finding.blames.confidence) == ("node", "likely")


def test_a_faster_link_is_no_fault():
    assert [f.verdict for f in judged(node_with(*[links(18, gb_per_s=53.125)] * 8))] == [Verdict.PASS]


def test_an_unknown_product_is_compared_with_its_peers():
    slow = links(18, gb_per_s=60, rates={4: 30})
    findings = judged(node_with(*[links(18, gb_per_s=60)] * 3, slow, product="B900"), profiles={})
    assert [f.verdict for f in findings] == [Verdict.FAIL]
    assert "as 71 of 72 links" in findings[0].expected
    assert findings[0].blames is not None
    assert findings[0].blames.confidence == "likely"


def test_an_unknown_product_with_two_links_is_unknown():
    (finding,) = judged(node_with(links(2, rates={0: 20.0}), product="X1"), profiles={})
    assert finding.verdict is Verdict.UNKNOWN
    assert "no profile exists for X1" in finding.observed


def test_speeds_that_the_driver_does_not_tell_are_skipped_and_those_it_refuses_are_unknown():
    silent = node_with(*[links(18, gb_per_s=None)] * 8)
    assert [f.verdict for f in judged(silent)] == [Verdict.SKIP]
    problem = Problem(source="nvmlDeviceGetFieldValues", text="Insufficient Permissions", field="links")
    refused = changed(silent, gpus=tuple(changed(gpu, problems=(problem,)) for gpu in silent.gpus or ()))
    (finding,) = judged(refused)
    assert finding.verdict is Verdict.UNKNOWN
    assert "Insufficient Permissions" in finding.observed


def test_one_link_without_a_speed_keeps_the_node_from_passing():
    odd = tuple(changed(link, speed_bytes_per_s=None) if link.index == 2 else link for link in links(18))
    (finding,) = judged(node_with(*[links(18)] * 7, odd))
    assert finding.verdict is Verdict.UNKNOWN
    assert finding.observed == "speed of links 2 unknown"


def test_inactive_links_have_no_speed_to_judge():
    assert judged(node_with(*[links(12, inactive=range(12))] * 4)) == []
    assert judged(node_with((), (), product="Tesla T4"), profiles={"Tesla T4": NO_NVLINK}) == []


def test_a_site_may_narrow_the_tolerance():
    node = node_with(*[links(18)] * 7, links(18, gb_per_s=25))
    rules = {"nvlink_speed": Rule(limits={"speed_tolerance_ratio": 0.02})}
    assert [f.verdict for f in judged(node, rules=rules)] == [Verdict.FAIL]


def test_nothing_is_said_without_gpus_or_where_none_are_meant():
    assert judged(node_with()) == []
    assert judged(node_with(links(18, gb_per_s=1)), settings=Settings(cpu_declared=True)) == []
