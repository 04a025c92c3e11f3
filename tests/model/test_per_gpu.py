"""per_gpu: what becomes of GPUs whose fact is good, bad, unknown, or not there."""

from preflight.model import Evidence, Gpu, Inventory, Node, Part, Problem, Settings, Verdict
from preflight.model.per_gpu import Fault, gpus_subject, judge_gpus, missing_fault, setting_part
from tests.builders import make_gpu


def node_of(*persistence: bool | None, name: str = "node1", **others) -> Node:
    return Node(
        name=name, gpus=tuple(make_gpu(name, i, persistence=value, **others) for i, value in enumerate(persistence))
    )


def judged(*nodes: Node, fault: Fault | None = None, settings: Settings | None = None, **more):
    evidence = Evidence(inventory=Inventory(nodes=nodes), settings=settings or Settings())
    bad = fault or Fault(Verdict.FAIL, "off", "on", "switch it on")

    def judge(_node: Node, _gpu: Gpu, value: bool) -> Fault | None:
        return None if value else bad

    return list(judge_gpus("check", evidence, "persistence", judge, good="on", expected="on", **more))


def test_healthy_gpus_are_one_pass_for_each_node():
    findings = judged(node_of(True, True), node_of(True, name="node2"))
    assert [(f.subject, f.verdict, f.observed) for f in findings] == [
        ("node1", Verdict.PASS, "2 GPUs: on"),
        ("node2", Verdict.PASS, "1 GPU: on"),
    ]


def test_a_faulty_gpu_is_blamed_by_its_whole_name_and_the_others_pass():
    bad, good = judged(node_of(True, False))
    assert (bad.verdict, bad.subject) == (Verdict.FAIL, "node1 GPU 1 (GPU-node1-1)")
    assert bad.blames == Part(kind="gpu", name="node1 GPU 1 (GPU-node1-1)")
    assert (good.verdict, good.observed) == (Verdict.PASS, "1 GPU: on")


def test_equal_faults_of_a_setting_are_one_finding_that_blames_no_gpu():
    node = node_of(False, True, False)
    fault = Fault(Verdict.WARN, "off", "on", "switch it on", part=setting_part(node, "persistence mode"))
    bad, _good = judged(node, fault=fault)
    assert (bad.subject, bad.verdict) == ("node1 GPU 0 (GPU-node1-0), GPU 2 (GPU-node1-2)", Verdict.WARN)
    assert bad.blames == Part(kind="environment", name="persistence mode of node1")
    everything = judged(node_of(False, False), fault=fault)
    assert [f.subject for f in everything] == ["node1"]


def test_a_failed_read_is_unknown_with_its_reason_and_never_a_pass():
    problem = Problem(source="nvml", text="Unknown Error", field="persistence")
    findings = judged(node_of(None, None, problems=(problem,)))
    assert [(f.subject, f.verdict) for f in findings] == [("node1", Verdict.UNKNOWN)]
    assert findings[0].observed == "persistence unknown: nvml: Unknown Error"


def test_what_the_product_does_not_have_is_skipped():
    assert [f.verdict for f in judged(node_of(None, unsupported=("persistence",)))] == [Verdict.SKIP]


def test_a_judge_may_say_that_the_part_that_matters_is_unknown_or_does_not_apply():
    assert [f.verdict for f in judged(node_of(False), fault=Fault(Verdict.UNKNOWN, "half of it"))] == [Verdict.UNKNOWN]
    assert [f.verdict for f in judged(node_of(False), fault=Fault(Verdict.SKIP, "not here"))] == [Verdict.SKIP]
    assert [f.verdict for f in judged(node_of(True), unless=lambda _gpu: "not here")] == [Verdict.SKIP]


def test_a_note_names_the_healthy_gpu_that_it_is_about():
    findings = judged(node_of(True, True), note=lambda gpu, _value: "for years" if gpu.index == 1 else None)
    assert findings[0].observed == "2 GPUs: on (GPU 1: for years)"


def test_a_gpu_that_cannot_be_opened_is_left_to_another_check():
    lost = Gpu(index=0, problems=(Problem(source="nvml", text="GPU is lost"),))
    assert judged(Node(name="node1", gpus=(lost,))) == []


def test_nothing_is_said_of_nodes_without_gpus_of_texts_and_where_no_gpu_is_meant():
    assert judged(Node(name="node1", gpus=())) == []
    assert judged(Node(name="node1", gpus=None)) == []
    assert judged(node_of(False).__class__(name="node1", source="topo", gpus=node_of(False).gpus)) == []
    assert judged(node_of(False), settings=Settings(cpu_declared=True)) == []


def test_several_gpus_are_called_by_number_and_uuid():
    node = node_of(True, True, True)
    assert node.gpus is not None
    assert gpus_subject(node, node.gpus[1:]) == "node1 GPU 1 (GPU-node1-1), GPU 2 (GPU-node1-2)"


def test_a_missing_part_of_a_fact_is_explained_by_the_narrowest_reason():
    failed = Problem(source="nvml", text="No Permission", field="clocks")
    assert missing_fault(make_gpu("n", 0, problems=(failed,)), "throttle_reasons", "clocks").observed == (
        "throttle_reasons unknown: nvml: No Permission"
    )
    older = make_gpu("n", 0, unsupported=("throttle_reasons",), problems=(failed,))
    assert missing_fault(older, "throttle_reasons", "clocks").verdict is Verdict.SKIP
    assert missing_fault(make_gpu("n", 0), "throttle_reasons", "clocks").verdict is Verdict.UNKNOWN
