"""node_uniform: the classes are named with who is in them, and a mixed partition is no fault."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.model import Evidence, Finding, Inventory, Node, Settings, Verdict
from preflight_checks.node_uniform import judge
from tests.builders import make_gpu, make_inventory, make_node


def judged(nodes: list[Node], **facts) -> list[Finding]:
    return list(judge(Evidence(inventory=Inventory(nodes=tuple(nodes)), settings=Settings(**facts))))


def nodes_with(*values, fact: str) -> list[Node]:
    return [make_node(f"node{i}", **{fact: value}) for i, value in enumerate(values)]


def bad(findings: list[Finding]) -> list[tuple[str, Verdict]]:
    return [(f.subject, f.verdict) for f in findings if f.verdict is not Verdict.PASS]


def the_bad_one(findings: list[Finding]) -> Finding:
    [finding] = [f for f in findings if f.verdict is not Verdict.PASS]
    return finding


def test_equal_nodes_pass_on_every_fact():
    findings = judged(list(make_inventory(8).nodes))
    assert [f.subject for f in findings] == [
        "number of GPUs",
        "GPU product",
        "GPU memory",
        "driver version",
        "CUDA version of the driver",
        "kernel",
        "number of CPUs",
        "CPU model",
        "GPUs of one node",
    ]
    assert bad(findings) == []


def test_a_node_with_another_driver_is_named_with_its_class_and_only_suspected():
    finding = the_bad_one(judged(nodes_with("550", "550", "535", fact="driver_version")))
    assert (finding.subject, finding.verdict) == ("driver version", Verdict.WARN)
    assert finding.observed == "550 on node[0-1]; 535 on node2"
    assert finding.expected == "550, as on 2 of 3 nodes"
    assert (finding.blames.name, finding.blames.confidence) == ("node2", "possible")
    assert finding.remedy


def test_a_partition_of_two_kinds_is_no_fault_of_any_node():
    mixed = nodes_with("550", "550", "550", "535", "535", fact="driver_version")
    finding = the_bad_one(judged(mixed))
    assert finding.verdict is Verdict.WARN
    assert finding.blames is None
    assert finding.observed == "550 on node[0-2]; 535 on node[3-4]"


def test_another_kernel_cpu_count_or_library_is_a_warning():
    assert bad(judged(nodes_with("6.1", "6.8", "6.8", fact="kernel"))) == [("kernel", Verdict.WARN)]
    assert bad(judged(nodes_with(64, 64, 32, fact="num_cpus"))) == [("number of CPUs", Verdict.WARN)]
    nccl = nodes_with({"nccl": "2.27.3"}, {"nccl": "2.27.3"}, {"nccl": "2.21.5"}, fact="versions")
    assert the_bad_one(judged(nccl)).observed == "2.27.3 on node[0-1]; 2.21.5 on node2"


def test_another_gpu_product_and_another_count_are_named():
    other = Node(name="node2", gpus=tuple(make_gpu("node2", i, name="NVIDIA A100") for i in range(8)))
    assert ("GPU product", Verdict.WARN) in bad(judged([make_node("node0"), make_node("node1"), other]))
    fewer = judged([make_node("node0"), make_node("node1"), make_node("node2", gpus=7)])
    assert the_bad_one(fewer).observed == "8 on node[0-1]; 7 on node2"


def test_memory_that_a_driver_reserves_differently_is_no_difference():
    gpus = tuple(make_gpu("node2", i, memory_bytes=85_899_345_920) for i in range(8))
    slightly = replace(make_node("node2"), gpus=gpus)
    assert bad(judged([make_node("node0"), make_node("node1"), slightly])) == []


def test_without_a_majority_nobody_is_blamed():
    finding = the_bad_one(judged(nodes_with("550", "550", "535", "535", fact="driver_version")))
    assert finding.blames is None
    assert "not identifiable" in finding.expected


def test_a_fact_that_should_be_there_and_is_not_is_unknown():
    assert bad(judged(nodes_with("550", None, "550", fact="driver_version"))) == [("node1", Verdict.UNKNOWN)]
    assert bad(judged([make_node("node0"), make_node("node1", gpus=None)])) == [
        ("node1", Verdict.UNKNOWN),
        ("node1", Verdict.UNKNOWN),
        ("node1", Verdict.UNKNOWN),
    ]


def test_a_fact_that_nobody_owes_is_said_to_be_unknown_beside_those_that_tell_it():
    findings = judged(nodes_with({"nccl": "2.27.3"}, {"nccl": "2.27.3"}, {}, fact="versions"))
    assert bad(findings) == []
    assert "2.27.3 on 2 nodes; unknown on node2" in [f.observed for f in findings]


def test_a_node_without_gpus_owes_no_driver_version():
    nodes = [make_node(f"node{i}", gpus=0, driver_version=None) for i in range(3)]
    assert bad(judged(nodes)) == []


def test_only_facts_of_the_host_are_compared_where_a_run_without_gpus_is_meant():
    nodes = [make_node("node0", gpus=None, driver_version=None), make_node("node1", gpus=2), make_node("node2", gpus=0)]
    findings = judged(nodes, cpu_declared=True)
    assert {f.subject for f in findings} == {"kernel", "number of CPUs", "CPU model"}
    assert bad(findings) == []


def test_a_topology_text_owes_nothing_but_its_number_of_gpus():
    texts = [
        Node(name=f"box{i}", source="topo", gpus=tuple(make_gpu("b", g, name=None) for g in range(8))) for i in (1, 2)
    ]
    findings = judged(texts)
    assert bad(findings) == []
    assert "number of GPUs" in {f.subject for f in findings}


def test_one_gpu_of_eight_with_another_vbios_is_named_by_uuid():
    gpus = tuple(make_gpu("node0", i, vbios_version="96.00.A" if i != 3 else "96.00.B") for i in range(8))
    finding = the_bad_one(judged([Node(name="node0", gpus=gpus)]))
    assert finding.verdict is Verdict.WARN
    assert finding.subject == "node0 GPU 3 (GPU-node0-3)"
    assert finding.observed == "VBIOS version: 96.00.A on GPUs 0-2, 4-7; 96.00.B on GPU 3"
    assert finding.blames.confidence == "possible"


def test_a_node_of_two_products_is_a_warning_and_one_class_of_its_own():
    two = tuple(make_gpu("node2", i, name="NVIDIA A100" if i < 4 else "NVIDIA H100 80GB HBM3") for i in range(8))
    findings = judged([make_node("node0"), make_node("node1"), replace(make_node("node2"), gpus=two)])
    shown = [f.observed for f in findings if f.subject == "GPU product"]
    assert shown == ["NVIDIA H100 80GB HBM3 on node[0-1]; NVIDIA A100 and NVIDIA H100 80GB HBM3 on node2"]
    assert any(
        "GPU product: NVIDIA A100 on GPUs 0-3; NVIDIA H100 80GB HBM3 on GPUs 4-7" in f.observed for f in findings
    )


def test_a_single_node_is_compared_only_with_itself():
    assert [f.subject for f in judged([make_node()])] == ["node0"]
    assert judged([make_node(gpus=1)]) == []


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 30), st.data())
def test_a_minority_is_named_exactly(num_nodes, data):
    odd = data.draw(st.sets(st.integers(0, num_nodes - 1), max_size=(num_nodes - 1) // 2))
    versions = ["535" if i in odd else "550" for i in range(num_nodes)]
    found = bad(judged(nodes_with(*versions, fact="driver_version")))
    assert found == ([("driver version", Verdict.WARN)] if odd else [])
