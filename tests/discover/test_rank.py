"""A process learns from its launcher, the kernel and the driver which rank it is and where."""

import pytest

from preflight.discover import rank as module
from preflight.discover.nvml_reading import NvmlReading
from preflight.discover.rank import place_of, this_rank, with_gpu
from preflight.errors import ConfigError
from preflight.model import RankFacts
from tests.builders import make_gpu
from tests.jobs import write_node

BOOT = "0c9b2d7e-1111-4222-8333-0123456789ab"


@pytest.fixture
def root(tmp_path):
    return write_node(tmp_path / "root", "gpu-3", BOOT)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (5, 8, 1, "RANK")),
        ({"SLURM_PROCID": "9", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1"}, (9, 16, 1, "SLURM_PROCID")),
        # a step of an allocation counts its own tasks
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "16", "SLURM_STEP_NUM_TASKS": "4"}, (1, 4, None, "SLURM_PROCID")),
        # torchrun inside one Slurm task per node
        (
            {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"},
            (9, 16, 1, "RANK"),
        ),
        # a script that exports RANK=$SLURM_PROCID
        ({"RANK": "9", "WORLD_SIZE": "16", "SLURM_PROCID": "9", "SLURM_LOCALID": "1"}, (9, 16, 1, "RANK")),
        # mpirun inside a batch step, which is Slurm's rank 0
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "SLURM_PROCID": "0",
                "SLURM_LOCALID": "0",
            },
            (3, 4, 1, "OMPI_COMM_WORLD_RANK"),
        ),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "SLURM_PROCID": "1"}, (2, 4, 0, "PMI_RANK")),
        ({"PMIX_RANK": "2", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}, (2, 4, 0, "PMIX_RANK")),
        ({"RANK": " 3 ", "WORLD_SIZE": ""}, (3, None, None, "RANK")),
    ],
)
def test_each_launcher_numbers_its_ranks_in_its_own_variables(environ, place):
    assert place_of(environ) == place


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "no launcher numbers this process: none of RANK, "),
        ({"JOB_COMPLETION_INDEX": "3"}, "JOB_COMPLETION_INDEX='3' numbers pods, not ranks"),
        ({"RANK": "eight"}, "RANK: 'eight' is no number from 0 on"),
        ({"RANK": "-1"}, "RANK: '-1' is no number from 0 on"),
        ({"RANK": "0", "WORLD_SIZE": "2x"}, "WORLD_SIZE: '2x'"),
        ({"RANK": "8", "WORLD_SIZE": "8"}, "RANK: 8, but WORLD_SIZE says that there are 8 ranks, so the last is 7"),
        ({"SLURM_PROCID": "4", "SLURM_NTASKS": "4"}, "SLURM_STEP_NUM_TASKS or SLURM_NTASKS"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_with_their_variable(environ, words):
    with pytest.raises(ConfigError) as caught:
        place_of(environ)
    assert words in str(caught.value)


def test_a_rank_without_a_gpu_says_where_it_is(root):
    environ = {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "SLURMD_NODENAME": "cn3",
        "CUDA_VISIBLE_DEVICES": "",
        "HOME": "/x",
    }
    assert this_rank(environ, root) == RankFacts(
        rank=5,
        world_size=8,
        local_rank=1,
        numbered_by="RANK",
        host="gpu-3",
        node="cn3",
        boot_id=BOOT,
        visible_devices="",
        environment={"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "SLURMD_NODENAME": "cn3"},
    )


def test_a_long_variable_and_broken_bytes_do_not_break_the_line(root):
    facts = this_rank({"RANK": "0", "SLURM_STEP_NODELIST": "n" * 5000, "MASTER_ADDR": "\udcff"}, root)
    assert facts.environment == {"RANK": "0", "MASTER_ADDR": "\\xff"}


def test_without_a_driver_nvml_is_not_asked(root, monkeypatch):
    def refuse(*_):
        raise AssertionError("a child was started")

    monkeypatch.setattr(module, "NvmlRun", refuse)
    assert this_rank({"RANK": "0"}, root).gpu_uuid is None


def test_a_driver_that_hangs_leaves_the_gpu_unknown_with_a_reason(root, monkeypatch):
    (root / "proc/driver/nvidia").mkdir(parents=True)

    class Hanging:
        def __init__(self, deadline_s):
            self.deadline_s = deadline_s

        def result(self):
            from preflight.model import Problem

            text = f"NVML did not answer within {self.deadline_s:g} s"
            return NvmlReading(note=text, problems=(Problem(source="NVML", text=text),))

        def close(self):
            pass

    monkeypatch.setattr(module, "NvmlRun", Hanging)
    facts = this_rank({"RANK": "0", "LOCAL_RANK": "0"}, root, deadline_s=3)
    assert facts.gpu_uuid is None
    assert facts.problems[0].text == "NVML did not answer within 3 s"


def reading(**changes):
    return NvmlReading(gpus=tuple(make_gpu("n", i, **changes) for i in range(4)))


def facts(**changes):
    return RankFacts(rank=2, host="n", local_rank=2, **changes)


def test_the_gpu_is_that_of_the_local_rank_among_the_visible_ones():
    found = with_gpu(facts(visible_devices="3,2,1,0"), reading(nvlink_domain="abc.1"))
    assert (found.gpu_uuid, found.pci_bus_id, found.domain) == ("GPU-n-1", "0000:11:00.0", "abc.1")
    assert found.problems == ()


def test_a_rank_that_sees_too_few_gpus_says_so_and_still_knows_the_domain_of_its_node():
    found = with_gpu(facts(visible_devices="0,1"), reading(nvlink_domain="abc.1"))
    assert (found.gpu_uuid, found.domain) == (None, "abc.1")
    assert found.problems[-1].text == "local rank 2 has no GPU: only 2 are visible"


def test_where_nvlink_ends_at_the_node_no_domain_is_given():
    assert with_gpu(facts(), reading(nvlink_domain=None)).domain is None
