"""A job's mask is resolved to physical GPUs, by UUID, and never by guessing.

The three cases of a mask are those of SlinkyProject/slurm-operator PR 112 (UUIDs are invented).
"""

import pytest

from preflight.discover.mask import MAX_KEPT, read_mask
from preflight.model import Problem
from tests.builders import make_gpu


def uuid_of(number):
    return f"GPU-{number}{number}{number}{number}aaaa-0000-0000-0000-00000000000{number}"


def gpus(*numbers, **changes):
    """GPUs with these numbers on the machine, as a process sees them: from 0 on."""
    return tuple(make_gpu("n", index, uuid=uuid_of(number), **changes) for index, number in enumerate(numbers))


EIGHT = gpus(*range(8))


def test_uuids_from_slurm_name_the_physical_gpus_2_and_5():
    mask = read_mask({"CUDA_VISIBLE_DEVICES": f"{uuid_of(2)},{uuid_of(5)}", "SLURM_JOB_GPUS": "2,5"}, EIGHT)
    assert mask.gpu_uuids == (uuid_of(2), uuid_of(5))
    assert mask.physical == (2, 5)
    assert mask.problems == mask.doubts == ()
    assert mask.variables["SLURM_JOB_GPUS"] == "2,5"


def test_numbers_renumbered_by_a_cgroup_are_the_two_visible_gpus_and_physical_4_and_5():
    mask = read_mask({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "4,5"}, gpus(4, 5))
    assert mask.gpu_uuids == (uuid_of(4), uuid_of(5))
    assert mask.physical == (4, 5)
    assert mask.problems == ()


def test_a_mask_of_gpus_that_are_not_in_this_view_is_a_problem_and_falls_back_to_nothing():
    mask = read_mask({"CUDA_VISIBLE_DEVICES": "4,5"}, gpus(4, 5))
    assert mask.gpu_uuids == ()
    assert "'4' is no index of 2 GPUs" in mask.problems[0]
    assert mask.doubts == ()


def test_device_files_tell_the_physical_number_where_the_scheduler_does_not():
    view = tuple(make_gpu("n", i, uuid=uuid_of(6 + i), minor_number=6 + i) for i in range(2))
    assert read_mask({"CUDA_VISIBLE_DEVICES": "1"}, view).physical == (7,)


def test_where_scheduler_and_device_file_differ_the_physical_number_is_not_guessed():
    view = tuple(make_gpu("n", i, uuid=uuid_of(4 + i), minor_number=5 - i) for i in range(2))
    mask = read_mask({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "4,5"}, view)
    assert mask.physical == (None, None)
    assert mask.gpu_uuids == (uuid_of(4), uuid_of(5))


def test_a_prolog_that_is_told_numbers_only_knows_the_jobs_gpus():
    mask = read_mask({"SLURM_JOB_GPUS": "2,5"}, EIGHT)
    assert mask.gpu_uuids == (uuid_of(2), uuid_of(5))
    assert mask.physical == (2, 5)
    assert read_mask({"SLURM_JOB_GPUS": "6-7"}, gpus(6, 7)).gpu_uuids == (uuid_of(6), uuid_of(7))


def test_the_step_counts_before_the_job():
    mask = read_mask({"SLURM_JOB_GPUS": "0,1,2,3", "SLURM_STEP_GPUS": "3"}, gpus(3))
    assert (mask.gpu_uuids, mask.physical) == ((uuid_of(3),), (3,))


def test_a_task_that_sees_one_of_the_steps_gpus_does_not_know_its_number():
    mask = read_mask({"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "4,5,6,7"}, gpus(6))
    assert mask.gpu_uuids == (uuid_of(6),)
    assert mask.physical == (None,)


def test_mig_devices_stand_for_themselves_with_the_number_of_their_gpu():
    mig = "MIG-aaaaaaaa-0000-0000-0000-000000000001"
    view = (make_gpu("n", 0, uuid=uuid_of(3), mig_enabled=True, mig_devices=(mig,), minor_number=3),)
    mask = read_mask({"CUDA_VISIBLE_DEVICES": mig}, view)
    assert (mask.gpu_uuids, mask.physical, mask.problems) == ((mig,), (3,), ())


@pytest.mark.parametrize("value", ["all", "void", "none", "", uuid_of(0)])
def test_a_container_runtimes_words_are_kept_and_hide_nothing_by_themselves(value):
    mask = read_mask({"NVIDIA_VISIBLE_DEVICES": value}, gpus(0))
    assert mask.gpu_uuids is None
    assert mask.problems == ()


def test_a_container_runtimes_numbers_are_those_of_the_host():
    mask = read_mask({"NVIDIA_VISIBLE_DEVICES": "6,7", "CUDA_VISIBLE_DEVICES": "1"}, gpus(6, 7))
    assert (mask.gpu_uuids, mask.physical) == ((uuid_of(7),), (7,))


def test_without_a_variable_about_gpus_there_is_no_mask():
    assert read_mask({"SLURM_JOB_ID": "7", "PATH": "/bin"}, EIGHT) is None


def test_gpus_that_are_not_known_leave_only_whole_uuids():
    mask = read_mask({"CUDA_VISIBLE_DEVICES": f"{uuid_of(2)}", "SLURM_JOB_GPUS": "2"}, None)
    assert (mask.gpu_uuids, mask.physical) == ((uuid_of(2),), (None,))
    assert read_mask({"SLURM_JOB_GPUS": "2,5"}, None).gpu_uuids is None


def test_a_lost_gpu_makes_the_mask_doubtful_and_not_wrong():
    lost = make_gpu("n", 3, uuid=None, name=None, problems=(Problem(source="nvml", text="GPU is lost (NVML 15)"),))
    mask = read_mask({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, (*EIGHT[:3], lost, *EIGHT[4:]))
    assert mask.problems == ()
    assert "GPU 3 can't be opened" in mask.doubts[0]
    assert mask.gpu_uuids == (None,) * 8


def test_gpus_kept_from_the_job_are_not_counted_among_those_it_was_given():
    kept = tuple(
        make_gpu("n", i, uuid=None, name=None, problems=(Problem(source="open", text="Insufficient Permissions"),))
        for i in range(2)
    )
    mask = read_mask({"SLURM_JOB_GPUS": "2,3"}, (*kept, *(make_gpu("n", i, uuid=uuid_of(i)) for i in (2, 3))))
    assert (mask.gpu_uuids, mask.physical) == ((uuid_of(2), uuid_of(3)), (2, 3))


@pytest.mark.parametrize(
    "value", ["x" * 10**6, "\udcff\udc00", "1" * 400, "0,,\x00", "9999-0", "0-9999," * 500, "GPU-", "\n"]
)
def test_whatever_the_environment_holds_is_no_traceback(value):
    names = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "NVIDIA_VISIBLE_DEVICES", "SLURM_GTIDS", "CUDA_DEVICE_ORDER")
    for name in names:
        mask = read_mask({name: value, "SLURM_STEP_GPUS": value}, EIGHT)
        assert all(len(kept) <= MAX_KEPT for kept in mask.variables.values())
        for kept in mask.variables.values():
            kept.encode()
