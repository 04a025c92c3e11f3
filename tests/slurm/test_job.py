"""The job as Slurm's variables tell it, of every version from 22.05 on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.slurm.job import SlurmJobContext, read_job

# what slurmd 22.05.8 gave the prolog of a requeued job on two nodes (`env` there), with another user's name; of a constraint and a reservation it sets variables where the job has one
OF_22_05 = {
    "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    "GPU_DEVICE_ORDINAL": "0,1,2,3,4,5,6,7",
    "ROCR_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    "SLURMD_NODENAME": "n2",
    "SLURM_CLUSTER_NAME": "box",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "SLURM_JOBID": "4711",
    "SLURM_JOB_COMMENT": "preflight: off",
    "SLURM_JOB_CPUS_PER_NODE": "1(x4)",
    "SLURM_JOB_GID": "1000",
    "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7",
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_JOB_PARTITION": "all",
    "SLURM_JOB_RESTART_COUNT": "1",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_USER": "ada",
    "SLURM_NODELIST": "n[1-4]",
    "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
    "SLURM_UID": "1000",
    "ZE_AFFINITY_MASK": "0,1,2,3,4,5,6,7",
}
# differences of later versions: names from the table of variables in the prolog guides of 23.02 to 25.11
LATER = {
    "23.02": {"SLURM_JOB_EXTRA": "preflight: on"},
    "23.11": {"SLURM_JOB_NODELIST": "n[1-4]"},
    "25.11": {"SLURM_JOB_NODELIST": "n[1-4]", "SLURM_JOB_EXTRA": "preflight: on", "SLUID": "s7N8"},
}


def test_the_variables_of_slurm_22_05_are_understood():
    job = read_job(OF_22_05)
    assert (job.job_id, job.restart_count, job.attempt) == (4711, 1, "4711-1")
    assert (job.node, job.nodes) == ("n2", ("n1", "n2", "n3", "n4"))
    assert (job.user, job.uid, job.partition, job.comment) == ("ada", 1000, "all", "preflight: off")
    assert job.gpus == tuple(range(8))
    assert (job.constraints, job.extra, job.het_id, job.reservation) == (None, None, None, None)
    assert job.problems == ()


@pytest.mark.parametrize("version", LATER)
def test_so_are_those_of_later_versions(version):
    job = read_job(OF_22_05 | LATER[version])
    assert job.nodes == ("n1", "n2", "n3", "n4")
    assert job.extra == LATER[version].get("SLURM_JOB_EXTRA")


def test_the_name_of_the_list_that_came_with_23_11_wins():
    assert read_job({"SLURM_JOB_NODELIST": "a1", "SLURM_NODELIST": "b1"}).nodes == ("a1",)


def test_the_controllers_prolog_is_not_told_gpus_or_a_node():
    names = ("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURMD_NODENAME", "SLURM_NODELIST")
    job = read_job({key: value for key, value in OF_22_05.items() if key not in names} | {"SLURM_JOB_NODELIST": "n1"})
    assert (job.gpus, job.node, job.nodes) == (None, None, ("n1",))


def test_slurms_word_for_nothing_is_nothing():
    assert read_job({"SLURM_JOB_COMMENT": "(null)", "SLURM_JOB_CONSTRAINTS": "(null)"}) == SlurmJobContext()


def test_a_component_of_a_heterogeneous_job_knows_whose_it_is():
    job = read_job(OF_22_05 | {"SLURM_HET_JOB_ID": "4710", "SLURM_HET_JOB_OFFSET": "1"})
    assert (job.job_id, job.het_id, job.het_offset) == (4711, 4710, 1)


def test_an_empty_environment_is_a_job_of_which_nothing_is_known():
    job = read_job({})
    assert job == SlurmJobContext()
    assert job.attempt == "0"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SLURMD_NODENAME", "../../etc/passwd"),
        ("SLURMD_NODENAME", "n1/.."),
        ("SLURMD_NODENAME", ".hidden"),
        ("SLURM_JOB_ID", "1;reboot"),
        ("SLURM_JOB_ID", "99999999999"),
        ("SLURM_JOB_RESTART_COUNT", "-1"),
        ("SLURM_NODELIST", "n[1-"),
        ("SLURM_NODELIST", "n[1-9999999999]"),
        ("SLURM_NODELIST", "n1,../n2"),
    ],
)
def test_what_is_none_of_its_kind_is_unknown_and_said(variable, value):
    job = read_job({variable: value})
    assert len(job.problems) == 1
    assert variable in job.problems[0]
    assert (job.node, job.job_id, job.restart_count, job.nodes) == (None, None, None, None)


@given(
    st.dictionaries(
        st.sampled_from([*OF_22_05, "SLURM_JOB_EXTRA", "SLURM_JOB_NODELIST", "SLURM_HET_JOB_ID"]),
        st.text(st.characters(exclude_characters="\0"), max_size=60)
        | st.binary(max_size=40).map(lambda data: data.decode("utf-8", "surrogateescape")),
    )
)
def test_no_environment_breaks_the_reading_or_gets_into_a_path(environ):
    job = read_job(environ)
    assert "/" not in job.attempt
    assert job.node is None or "/" not in job.node
    for text in (job.user, job.comment, job.extra, job.partition, *job.problems):
        assert text is None or text.replace("\n", "").isprintable()
        (text or "").encode()
