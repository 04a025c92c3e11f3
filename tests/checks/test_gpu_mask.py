"""gpu_mask: masks as discovery reads them, good ones with UUIDs and physical numbers, bad ones blamed on the environment.

Cases of SlinkyProject/slurm-operator PR 112 (UUIDs are invented).
"""

from msgspec.structs import replace

from preflight.discover.mask import read_mask
from preflight.model import Evidence, Inventory, Problem, Settings, Verdict
from preflight_checks.gpu_mask import judge
from tests.builders import make_gpu, make_node

TWO, FIVE = "GPU-2222aaaa-0000-0000-0000-000000000002", "GPU-5555bbbb-0000-0000-0000-000000000005"


def judged(gpus, environment, **settings):
    node = replace(make_node("node1"), gpus=gpus, mask=read_mask(environment, gpus))
    return list(judge(Evidence(inventory=Inventory(nodes=(node,)), settings=Settings(**settings))))


def eight(**changes):
    return tuple(make_gpu("n", i, **{"uuid": {2: TWO, 5: FIVE}.get(i, f"GPU-n-{i}"), **changes}) for i in range(8))


def two(**changes):
    return tuple(make_gpu("n", i, uuid=uuid, **changes) for i, uuid in enumerate((TWO, FIVE)))


def test_uuids_that_slurm_hands_out_are_gpus_2_and_5():
    [finding] = judged(eight(), {"CUDA_VISIBLE_DEVICES": f"{TWO},{FIVE}", "SLURM_JOB_GPUS": "2,5"})
    assert finding.verdict is Verdict.PASS
    assert finding.observed == f"2 GPUs: {TWO} (physical 2), {FIVE} (physical 5)"


def test_two_visible_gpus_are_reported_as_physical_4_and_5():
    [finding] = judged(two(), {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "4,5"})
    assert finding.verdict is Verdict.PASS
    assert finding.observed == f"2 GPUs: {TWO} (physical 4), {FIVE} (physical 5)"


def test_a_mask_of_gpus_that_this_view_does_not_have_fails_and_blames_the_environment():
    [finding] = judged(two(), {"CUDA_VISIBLE_DEVICES": "4,5"})
    assert finding.verdict is Verdict.FAIL
    assert "CUDA_VISIBLE_DEVICES='4,5': '4' is no index of 2 GPUs" in finding.observed
    assert f"this process sees 2 GPUs: {TWO}, {FIVE}" in finding.observed
    assert (finding.blames.kind, finding.blames.name) == ("environment", "CUDA_VISIBLE_DEVICES on node1")
    assert "0 to 1" in finding.remedy


def test_gpus_hidden_on_purpose_are_only_a_warning():
    for value in ("", "-1", "NoDevFiles"):
        assert judged(two(), {"CUDA_VISIBLE_DEVICES": value})[0].verdict is Verdict.WARN


def test_numbers_of_gpus_of_two_kinds_are_undetermined_and_nobodys_fault():
    mixed = (*two(), make_gpu("n", 2, uuid="GPU-small", name="NVIDIA T400"))
    [finding] = judged(mixed, {"CUDA_VISIBLE_DEVICES": "0"})
    assert finding.verdict is Verdict.UNKNOWN
    assert finding.blames is None
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in finding.observed
    [by_bus] = judged(mixed, {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert by_bus.verdict is Verdict.PASS


def test_a_lost_gpu_is_not_blamed_on_the_mask():
    lost = make_gpu("n", 3, uuid=None, name=None, problems=(Problem(source="nvml", text="GPU is lost (NVML 15)"),))
    gpus = tuple(lost if gpu.index == 3 else gpu for gpu in eight())
    [finding] = judged(gpus, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"})
    assert finding.verdict is Verdict.UNKNOWN


def test_without_a_mask_gpus_or_wish_for_them_nothing_is_said():
    assert judged(two(), {}) == []
    assert judged(two(), {"NVIDIA_VISIBLE_DEVICES": "all"}) == []
    assert judged((), {"CUDA_VISIBLE_DEVICES": "0,1"}) == []
    assert judged(None, {"CUDA_VISIBLE_DEVICES": "0,1"}) == []
    assert judged(two(), {"CUDA_VISIBLE_DEVICES": "4,5"}, cpu_declared=True) == []


def test_a_mask_that_fits_what_the_scheduler_gave_is_not_to_blame_for_a_lost_gpu():
    given = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "SLURM_JOB_GPUS": "0-7"}
    [finding] = judged(eight()[:7], given)
    assert (finding.verdict, finding.blames) == (Verdict.FAIL, None)
    assert "8 GPUs given, 7 here" in finding.observed
    [finding] = judged(two(), {"CUDA_VISIBLE_DEVICES": "4,5", "SLURM_JOB_GPUS": "4,5"})
    assert finding.blames.kind == "environment"  # as many as were given: the numbers are wrong
