"""gpu_count: the GPUs that the plan needs are there."""

from msgspec.structs import replace

from preflight.discover.mask import read_mask
from preflight.model import Finding, Inventory, Node, Problem, Settings, Verdict
from preflight_checks.gpu_count import judge
from tests.builders import make_evidence, make_gpu, make_inventory, make_node, make_plan


def judged(*nodes, **settings) -> list[Finding]:
    plan = make_plan(nodes=2, tp=8, dp=2, pp=1)
    inventory = Inventory(nodes=nodes) if nodes else make_inventory(2)
    return list(judge(make_evidence(plan=plan, inventory=inventory, settings=Settings(**settings))))


def eight(name: str, **changes_of_gpu_3) -> Node:
    return Node(name=name, gpus=tuple(make_gpu(name, i, **(changes_of_gpu_3 if i == 3 else {})) for i in range(8)))


def test_a_healthy_cluster_passes_on_every_node():
    assert [f.verdict for f in judged()] == [Verdict.PASS, Verdict.PASS]


def test_a_node_with_a_gpu_too_few_fails_and_is_blamed():
    bad = judged(make_node("node0"), make_node("node1", gpus=7))[1]
    assert (bad.verdict, bad.subject) == (Verdict.FAIL, "node1")
    assert bad.blames is not None
    assert bad.blames.name == "node1"
    assert bad.observed.startswith("7 usable of 7")


def test_more_gpus_than_needed_pass():
    assert judged(make_node("node0", gpus=16), make_node("node1"))[0].verdict is Verdict.PASS


def test_unknown_gpus_are_unknown_with_the_reason_of_discovery():
    finding = judged(
        make_node("node0", gpus=None, gpu_note="the driver did not answer within 10 s"), make_node("node1")
    )[0]
    assert finding.verdict is Verdict.UNKNOWN
    assert "did not answer within 10 s" in finding.observed


def test_a_node_that_discovery_never_saw_is_unknown():
    assert judged(make_node("node0"), make_node("other"))[1].verdict is Verdict.UNKNOWN


def test_a_gpu_that_cannot_be_opened_is_blamed_by_its_index():
    lost = eight("node0", uuid=None, problems=(Problem(source="nvml", text="GPU is lost"),))
    finding = judged(lost, make_node("node1"))[0]
    assert finding.verdict is Verdict.FAIL
    assert finding.blames is not None
    assert (finding.blames.kind, finding.blames.name) == ("gpu", "node0 GPU 3 (0000:13:00.0)")
    assert "GPU is lost" in finding.observed


def test_a_gpu_lost_during_discovery_fails_although_its_uuid_is_known():
    lost = eight("node0", problems=(Problem(source="nvml", text="GPU is lost"),))
    assert judged(lost, make_node("node1"))[0].verdict is Verdict.FAIL


def test_a_gpu_in_mig_mode_does_not_count():
    finding = judged(eight("node0", mig_enabled=True), make_node("node1"))[0]
    assert finding.verdict is Verdict.FAIL
    assert "MIG" in finding.observed


def test_a_gpu_with_an_unclear_problem_is_unknown_not_fail():
    odd = eight("node0", problems=(Problem(source="nvml", text="Unknown Error"),))
    assert judged(odd, make_node("node1"))[0].verdict is Verdict.UNKNOWN


def test_a_single_fact_that_could_not_be_read_is_no_doubt_about_the_gpu():
    odd = eight("node0", problems=(Problem(source="nvml", text="Unknown Error", field="ecc"),))
    assert judged(odd, make_node("node1"))[0].verdict is Verdict.PASS


def masked(gpus: int, **variables) -> Node:
    node = make_node("node0", gpus=gpus)
    return replace(node, mask=read_mask(variables, node.gpus))


def test_a_mask_that_leaves_too_few_gpus_is_not_the_nodes_fault():
    finding = judged(masked(8, CUDA_VISIBLE_DEVICES="0,1"), make_node("node1"))[0]
    assert finding.verdict is Verdict.FAIL
    assert "8 usable of 8; the mask of this process shows 2 of 8" in finding.observed
    assert finding.blames is not None
    assert finding.blames.kind == "environment"


def test_a_scheduler_that_gave_fewer_gpus_is_not_the_nodes_fault():
    finding = judged(masked(4, CUDA_VISIBLE_DEVICES="0,1,2,3", SLURM_JOB_GPUS="4,5,6,7"), make_node("node1"))[0]
    assert finding.verdict is Verdict.FAIL
    assert "the scheduler gave 4 on this node" in finding.observed
    assert finding.blames is not None
    assert finding.blames.kind == "environment"


def test_a_mask_of_all_gpus_passes():
    assert judged(masked(8, CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7"), make_node("node1"))[0].verdict is Verdict.PASS


def test_gpus_that_only_this_tasks_cgroup_hides_count():
    step = {"SLURM_GTIDS": "0,1,2,3,4,5,6,7", "SLURM_STEP_GPUS": "0,1,2,3,4,5,6,7", "SLURM_LOCALID": "3"}
    finding = judged(masked(1, CUDA_VISIBLE_DEVICES="0", **step), make_node("node1"))[0]
    assert finding.verdict is Verdict.PASS
    assert "the step has 8; this task is bound to 1" in finding.observed
    own_mask = judged(masked(8, CUDA_VISIBLE_DEVICES="3", **step), make_node("node1"))[0]
    assert own_mask.verdict is Verdict.PASS


def test_what_an_ordinary_user_may_not_read_is_no_problem_of_the_gpu():
    plain = eight("node0", problems=(Problem(source="nvml", text="Insufficient Permissions"),))
    assert judged(plain, make_node("node1"))[0].verdict is Verdict.PASS


def test_nothing_is_said_where_a_run_without_gpus_is_meant():
    assert judged(make_node("node0", gpus=0), make_node("node1", gpus=0), cpu_declared=True) == []


def test_missing_gpus_fail_where_no_one_declared_a_run_without_them():
    findings = judged(make_node("node0", gpus=0, gpu_note="no NVIDIA driver"), make_node("node1"))
    assert findings[0].verdict is Verdict.FAIL
    assert "no NVIDIA driver" in findings[0].observed
