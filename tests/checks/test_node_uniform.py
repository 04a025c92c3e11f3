"""node_uniform: the odd one out is found, and only it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model import Finding, Inventory, Node, Settings, Verdict
from preflight_checks.node_uniform import judge
from tests.builders import make_evidence, make_gpu, make_inventory, make_node


def judged(nodes: list[Node], **facts) -> list[Finding]:
    return list(judge(make_evidence(inventory=Inventory(nodes=tuple(nodes)), settings=Settings(**facts))))


def nodes_with(*values, fact: str) -> list[Node]:
    return [make_node(f"node{i}", **{fact: value}) for i, value in enumerate(values)]


def bad(findings: list[Finding]) -> list[tuple[str, Verdict]]:
    return [(f.subject, f.verdict) for f in findings if f.verdict is not Verdict.PASS]


def test_equal_nodes_pass_on_every_fact():
    findings = judged(list(make_inventory(8).nodes))
    assert len(findings) == 6
    assert bad(findings) == []


def test_a_node_with_another_driver_fails_and_is_blamed():
    findings = judged(nodes_with("550", "550", "535", fact="driver_version"))
    assert bad(findings) == [("node2", Verdict.FAIL)]
    [finding] = [f for f in findings if f.verdict is Verdict.FAIL]
    assert finding.observed == "driver version 535"
    assert finding.expected.startswith("550, as on 2 of 3 nodes")
    assert finding.blames is not None
    assert finding.blames.name == "node2"


def test_another_kernel_or_cpu_count_is_only_a_warning():
    assert bad(judged(nodes_with("6.1", "6.8", "6.8", fact="kernel"))) == [("node0", Verdict.WARN)]
    assert bad(judged(nodes_with(64, 64, 32, fact="num_cpus"))) == [("node2", Verdict.WARN)]


def test_another_gpu_product_fails():
    other = Node(name="node2", gpus=tuple(make_gpu("node2", i, name="NVIDIA A100") for i in range(8)))
    findings = judged([make_node("node0"), make_node("node1"), other])
    assert ("node2", Verdict.FAIL) in bad(findings)


def test_a_node_with_fewer_gpus_fails():
    findings = judged([make_node("node0"), make_node("node1"), make_node("node2", gpus=7)])
    assert bad(findings) == [("node2", Verdict.FAIL)]


def test_memory_that_a_driver_reserves_differently_is_no_difference():
    gpus = tuple(make_gpu("node2", i, memory_bytes=85_899_345_920) for i in range(8))
    slightly = Node(name="node2", kernel="6.8.0", num_cpus=64, driver_version="550.54.15", gpus=gpus)
    assert bad(judged([make_node("node0"), make_node("node1"), slightly])) == []


def test_without_a_majority_nobody_is_blamed():
    [finding] = [
        f
        for f in judged(nodes_with("550", "550", "535", "535", fact="driver_version"))
        if f.verdict is not Verdict.PASS
    ]
    assert finding.verdict is Verdict.WARN
    assert finding.blames is None
    assert finding.observed == "550 on node[0-1]; 535 on node[2-3]"
    assert "not identifiable" in finding.expected


def test_a_fact_that_should_be_there_and_is_not_is_unknown():
    assert bad(judged(nodes_with("550", None, "550", fact="driver_version"))) == [("node1", Verdict.UNKNOWN)]


def test_a_node_without_gpus_owes_no_driver_version():
    nodes = [make_node(f"node{i}", gpus=0, driver_version=None) for i in range(3)]
    assert bad(judged(nodes)) == []


def test_only_facts_of_the_host_are_compared_where_a_run_without_gpus_is_meant():
    nodes = [make_node("node0", gpus=None, driver_version=None), make_node("node1", gpus=2), make_node("node2", gpus=0)]
    findings = judged(nodes, cpu_declared=True)
    assert {f.subject for f in findings} == {"kernel", "number of CPUs"}
    assert bad(findings) == []


def test_a_single_node_has_nothing_to_be_compared_with():
    assert judged([make_node()]) == []


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 30), st.data())
def test_a_minority_is_named_exactly(num_nodes, data):
    odd = data.draw(st.sets(st.integers(0, num_nodes - 1), max_size=(num_nodes - 1) // 2))
    versions = ["535" if i in odd else "550" for i in range(num_nodes)]
    assert {subject for subject, _ in bad(judged(nodes_with(*versions, fact="driver_version")))} == {
        f"node{i}" for i in odd
    }
