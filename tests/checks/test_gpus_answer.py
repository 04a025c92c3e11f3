"""gpus_answer: a GPU that doesn't answer is blamed alone; a driver that doesn't is unknown, and never healthy."""

import pytest
from msgspec.structs import replace

from preflight.judge.run import judge as judge_run
from preflight.model import Evidence, Inventory, Mask, Node, Platform, Problem, Settings, Verdict
from preflight_checks.gpus_answer import CHECK
from tests.builders import make_gpu, make_node

DENIED = "Insufficient Permissions (NVML 4)"


def judged(*nodes, **settings):
    return list(CHECK.judge(Evidence(inventory=Inventory(nodes=nodes), settings=Settings(**settings))))


def unopened(index, text, **changes):
    problem = Problem(source="nvmlDeviceGetHandleByIndex", text=text)
    return make_gpu("node0", index, uuid=None, name=None, problems=(problem,), **{"pci_bus_id": None, **changes})


def node_with(*bad, **changes):
    gpus = {i: make_gpu("node0", i) for i in range(8)} | {gpu.index: gpu for gpu in bad}
    return replace(make_node(), gpus=tuple(gpus.values()), **changes)


def test_eight_gpus_that_answer_pass_in_one_line():
    [finding] = judged(make_node())
    assert (finding.verdict, finding.subject, finding.observed) == (Verdict.PASS, "node0", "8 GPUs answer")


def test_a_driver_that_hangs_leaves_the_run_undecided():
    node = make_node(gpus=None, gpu_note="the driver did not answer within 20 s")
    findings, _, answer = judge_run(Evidence(inventory=Inventory(nodes=(node,))), [CHECK])
    assert findings[0].verdict is Verdict.UNKNOWN
    assert "did not answer within 20 s" in findings[0].observed
    assert findings[0].blames is None
    assert answer == "undecided"


@pytest.mark.parametrize(
    "text",
    [
        "GPU is lost (NVML 15)",
        "GPU requires reset (NVML 16)",
        "Insufficient External Power (NVML 8)",
        "Unknown Error (NVML 999)",
    ],
)
def test_one_gpu_that_cannot_be_opened_fails_and_is_blamed_alone(text):
    bad, passed = judged(node_with(unopened(3, text)))
    assert bad.verdict is Verdict.FAIL
    assert text in bad.observed
    assert (bad.blames.kind, bad.blames.name) == ("gpu", "node0 GPU 3")
    assert bad.remedy
    assert passed.observed == "7 GPUs answer"


def test_a_gpu_lost_while_it_was_read_is_named_by_uuid():
    lost = make_gpu("node0", 5, problems=(Problem(source="nvmlDeviceGetEccMode", text="GPU is lost (NVML 15)"),))
    assert judged(node_with(lost))[0].blames.name == "node0 GPU 5 (GPU-node0-5)"


def test_a_failed_question_of_a_gpu_that_answers_is_not_its_loss():
    odd = make_gpu("node0", 5, problems=(Problem(source="nvmlDeviceGetEccMode", text="Unknown Error (NVML 999)"),))
    assert [f.verdict for f in judged(node_with(odd))] == [Verdict.PASS]


def test_gpus_that_all_fail_alike_are_the_nodes_matter():
    [finding] = judged(node_with(*(unopened(i, "Unknown Error (NVML 999)") for i in range(8))))
    assert finding.verdict is Verdict.FAIL
    assert (finding.blames.kind, finding.blames.name) == ("node", "node0")
    assert "none of 8 GPUs answers" in finding.observed


def test_a_container_that_lost_its_right_to_all_devices_is_unknown():
    node = node_with(*(unopened(i, "Unknown Error (NVML 999)") for i in range(8)))
    [finding] = judged(replace(node, platform=Platform(container="docker")))
    assert (finding.verdict, finding.blames) == (Verdict.UNKNOWN, None)
    one = replace(node, gpus=node.gpus[:1], platform=Platform(container="docker"))
    assert judged(one)[0].verdict is Verdict.UNKNOWN
    node = node_with(*(unopened(i, "GPU is lost (NVML 15)") for i in range(8)))
    [finding] = judged(replace(node, platform=Platform(container="docker")))
    assert finding.verdict is Verdict.FAIL


def test_two_lost_gpus_are_two_findings():
    findings = judged(node_with(unopened(1, "GPU is lost (NVML 15)"), unopened(2, "GPU is lost (NVML 15)")))
    assert [f.subject for f in findings if f.verdict is Verdict.FAIL] == ["node0 GPU 1", "node0 GPU 2"]


def test_a_gpu_that_may_not_be_opened_is_unknown():
    unknown, passed = judged(node_with(unopened(7, DENIED)))
    assert (unknown.verdict, unknown.subject) == (Verdict.UNKNOWN, "node0 GPU 7")
    assert DENIED in unknown.observed
    assert passed.observed == "7 GPUs answer"


def test_gpus_kept_from_a_job_that_was_given_the_others_are_no_question():
    mask = Mask(variables={"SLURM_JOB_GPUS": "2,3,4,5,6,7"})
    [finding] = judged(node_with(unopened(0, DENIED), unopened(1, DENIED), mask=mask))
    assert finding.verdict is Verdict.PASS
    assert finding.observed == "6 GPUs answer; 2 GPUs kept from this job"


def test_a_gpu_kept_from_a_job_that_was_given_all_is_unknown():
    mask = Mask(variables={"SLURM_JOB_GPUS": "0-7"})
    assert judged(node_with(unopened(0, DENIED), mask=mask))[0].verdict is Verdict.UNKNOWN


def test_nodes_without_gpus_and_runs_without_them_say_nothing():
    assert judged(make_node(gpus=0, gpu_note="no NVIDIA driver")) == []
    assert judged(make_node(gpus=None), cpu_declared=True) == []
    assert judged(Node(name="box", source="topo", gpus=(make_gpu("box", 0),))) == []
