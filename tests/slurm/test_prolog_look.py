"""Whose GPU a finding is about, when a prolog judges the GPUs of one job among several on a node; pure."""

import msgspec
import pytest

from preflight.errors import ConfigError
from preflight.model import Evidence, Finding, Inventory, Verdict
from preflight.model.finding import Part
from preflight.model.surroundings import Mask
from preflight.slurm.job import SlurmJobContext
from preflight.slurm.look import judge_node, look, others_of
from tests.builders import make_gpu, make_node
from tests.trees import Tree


def uuids(*numbers):
    return tuple(f"GPU-n1-{number}" for number in numbers)


def named(*numbers):
    return {f"n1 GPU {number} (GPU-n1-{number})" for number in numbers}


def test_gpus_that_the_mask_does_not_name_are_others():
    node = make_node("n1", mask=Mask(variables={}, gpu_uuids=uuids(2, 5)))
    assert others_of(node, SlurmJobContext(gpus=(2, 5))) == named(0, 1, 3, 4, 6, 7)


def test_where_the_mask_does_not_resolve_slurms_numbers_count():
    node = make_node("n1", mask=Mask(variables={}, gpu_uuids=(None, None)))
    assert others_of(node, SlurmJobContext(gpus=(2, 5))) == named(0, 1, 3, 4, 6, 7)


def test_a_job_that_has_no_gpus_has_none_of_these():
    node = make_node("n1", mask=Mask(variables={}, gpu_uuids=()))
    assert others_of(node, SlurmJobContext()) == named(*range(8))


def test_slices_of_a_gpu_are_the_job_s_by_the_gpu_that_they_are_on():
    sliced = make_gpu("n1", 1, mig_enabled=True, mig_devices=("MIG-a", "MIG-b"))
    node = msgspec.structs.replace(make_node("n1"), gpus=(make_gpu("n1", 0), sliced))
    job = SlurmJobContext(gpus=(0, 1))
    known = msgspec.structs.replace(node, mask=Mask(variables={}, gpu_uuids=("MIG-a", "MIG-b")))
    assert others_of(known, job) == named(0)
    unknown = msgspec.structs.replace(node, mask=Mask(variables={}, gpu_uuids=("MIG-a", None)))
    assert others_of(unknown, job) == frozenset()


def test_inside_the_job_s_cgroup_all_that_is_seen_is_its_own():
    """PrologFlags=RunInJob: four GPUs are seen, and Slurm calls them 4 to 7."""
    node = make_node("n1", gpus=4, mask=Mask(variables={}, gpu_uuids=()))
    assert others_of(node, SlurmJobContext(gpus=(4, 5, 6, 7))) == frozenset()


def test_slurms_numbers_are_taken_before_cudas(tmp_path):
    tree = Tree(tmp_path)
    both = {"SLURM_JOB_GPUS": "4-7", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_JOB_ID": "1"}
    seen = look("n1", both, budget_s=10, root=tree.root).inventory.nodes[0].mask
    assert seen.variables == {"SLURM_JOB_GPUS": "4-7", "SLURM_JOB_ID": "1"}
    named_by_uuid = both | {"CUDA_VISIBLE_DEVICES": "GPU-1"}
    seen = look("n1", named_by_uuid, budget_s=10, root=tree.root).inventory.nodes[0].mask
    assert seen.variables["CUDA_VISIBLE_DEVICES"] == "GPU-1"


def test_rules_that_others_can_write_judge_nobody(tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text("")
    rules.chmod(0o666)
    with pytest.raises(ConfigError, match="others can write to it"):
        look("n1", {}, budget_s=10, root=Tree(tmp_path / "tree").root, rules=str(rules))


@pytest.mark.parametrize("job", [SlurmJobContext(), SlurmJobContext(gpus=(8,)), SlurmJobContext(gpus=(6, 9))])
def test_where_neither_is_certain_no_gpu_is_anothers(job):
    assert others_of(make_node("n1"), job) == frozenset()


def test_a_lost_gpu_of_which_only_the_number_is_known_goes_by_that():
    lost = make_gpu("n1", 7, uuid=None, name=None)
    gpus = (*(make_gpu("n1", number) for number in range(7)), lost)
    node = msgspec.structs.replace(make_node("n1"), gpus=gpus)
    assert "n1 GPU 7 (0000:17:00.0)" in others_of(node, SlurmJobContext(gpus=(0, 1)))
    assert others_of(node, SlurmJobContext(gpus=(6, 7))) == named(*range(6))


@pytest.mark.parametrize(
    ("part", "verdict"),
    [
        ("n1 GPU 7 (GPU-n1-7)", "WARN"),
        ("n1 GPU 7 (GPU-n1-7) link 3", "WARN"),
        ("n1 GPU 1 (GPU-n1-1)", "FAIL"),
        ("n1 GPU 1 (GPU-n1-1) link 3", "FAIL"),
        ("n1", "FAIL"),
        (None, "FAIL"),
    ],
)
def test_what_fails_on_anothers_gpu_is_a_warning_here(monkeypatch, part, verdict):
    blamed = Part(kind="gpu", name=part) if part else None
    bad = Finding(check="xid", subject="x", verdict=Verdict.FAIL, observed="Xid 79", blames=blamed)
    monkeypatch.setattr("preflight.judge.run.judge", lambda evidence, checks: ((bad,), (), "no-go"))
    node = make_node("n1", mask=Mask(variables={}, gpu_uuids=uuids(0, 1)))
    (found,) = judge_node(Evidence(inventory=Inventory(nodes=(node,))), SlurmJobContext(gpus=(0, 1)))
    assert found.verdict.value == verdict
    assert ("not a GPU of this job" in found.observed) == (verdict == "WARN")
