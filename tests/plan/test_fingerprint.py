"""Equal plans have equal fingerprints, however they were written down; what is computed elsewhere or otherwise has another."""

import os
import re
import subprocess
import sys

import msgspec
import pytest

from preflight.model import Placement
from preflight.plan.build import build_plan
from preflight.plan.fingerprint import fingerprint, same_layout
from preflight.plan.planfile import read_job
from tests.builders import make_plan

PLAIN = """
[model]
parameters = "70B"
layers = 80
hidden_size = 8192
[parallel]
framework = "megatron"
tp = 8
pp = 4
dp = 2
[training]
micro_batches = 32
micro_batch_size = 1
seq_length = 4096
[hardware]
nodes = 8
gpus_per_node = 8
"""
REORDERED = """
[hardware]
gpus_per_node = 8
nodes = 8
gpu = "H100-80GB"
[training]
seq_length = 4096
micro_batch_size = 1
global_batch_size = 64
[parallel]
pp = 4
tp = 8
cp = 1
[rules]
memory_fit = "warn"
[model]
hidden_size = 8192
layers = 80
parameters = 70_000_000_000
"""


def of_file(path, text):
    path.write_text(text)
    return fingerprint(build_plan(read_job(path)))


def test_it_is_short_and_of_a_known_form():
    assert re.fullmatch(r"pf1-[0-9a-f]{32}", fingerprint(make_plan()))


def test_a_plan_file_with_other_order_spelled_out_defaults_and_rules_has_the_same(tmp_path):
    assert of_file(tmp_path / "a.toml", PLAIN) == of_file(tmp_path / "b.toml", REORDERED)


def test_it_is_the_same_in_another_process_with_another_hash_seed(tmp_path):
    code = "import sys; from tests.builders import make_plan; from preflight.plan.fingerprint import fingerprint; print(fingerprint(make_plan()))"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stdout.strip() == fingerprint(make_plan())


@pytest.mark.parametrize(
    "change",
    [
        {"tp": 4, "pp": 8, "dp": 2},
        {"tp": 4, "pp": 4, "dp": 4},
        {"tp": 8, "pp": 2, "dp": 4},
        {"tp": 8, "pp": 4, "cp": 2},
        {"tp": 2, "pp": 4, "ep": 4, "model": {"experts": 8}},
        {"tp": 2, "pp": 4, "ep": 4, "etp": 1, "model": {"experts": 8}},
        {"tp": 8, "pp": 4, "dp": 2, "virtual_stages": 2},
        {"tp": 8, "pp": 4, "dp": 2, "zero_stage": 1},
        {"micro_batches": 16},
        {"seq_length": 8192},
        {"layers": 64},
        {"training": {"precision": "fp8"}},
    ],
    ids=str,
)
def test_another_degree_model_or_training_is_another_layout(change):
    other = fingerprint(make_plan(**change))
    assert other != fingerprint(make_plan())
    assert not same_layout(other, fingerprint(make_plan()))


def test_every_two_of_the_degrees_differ():
    layouts = [{"tp": t, "pp": p, "cp": c} for t in (1, 2, 4, 8) for p in (1, 2, 4) for c in (1, 2)]
    assert len({fingerprint(make_plan(**layout)) for layout in layouts}) == len(layouts)


def test_the_expert_degree_that_equals_the_default_changes_nothing():
    told, untold = ({"tp": 2, "pp": 4, "ep": 4, "model": {"experts": 8}, **more} for more in ({"etp": 2}, {}))
    assert fingerprint(make_plan(**told)) == fingerprint(make_plan(**untold))


@pytest.mark.parametrize(
    "told",
    [{"zero_stage": 0}, {"sequence_parallel": False}, {"schedule": "1f1b"}, {"order": ("tp", "cp", "ep", "dp", "pp")}],
    ids=str,
)
def test_any_default_that_is_written_out_changes_nothing(told):
    assert fingerprint(make_plan(tp=8, pp=4, dp=2, **told)) == fingerprint(make_plan())


def test_what_only_decides_how_fast_it_goes_changes_nothing():
    faster = {"training": {"overlap_gradients": True}, "hardware": {"nic_bytes_per_s": 10**9}}
    assert fingerprint(make_plan(**faster)) == fingerprint(make_plan())


def test_hosts_gpus_file_name_and_hardware_change_nothing():
    plan = make_plan()
    job = msgspec.structs.replace(plan.job, source="other.toml", rules={})
    assert fingerprint(msgspec.structs.replace(plan, job=job)) == fingerprint(plan)
    names = [f"x{i}" for i in range(8)]
    assert fingerprint(
        make_plan(node_names=names, gpu_uuids={n: [f"{n}{i}" for i in range(8)] for n in names})
    ) == fingerprint(plan)
    assert fingerprint(make_plan(gpu=None)) == fingerprint(plan)


def placed(node_ranks, local_ranks, **more):
    nodes = tuple(f"h{i}" for i in range(max(node_ranks) + 1))
    return Placement(
        source="measured", method="m", nodes=nodes, node_ranks=tuple(node_ranks), local_ranks=tuple(local_ranks), **more
    )


def test_another_placement_keeps_the_half_of_the_layout():
    block = placed([i // 8 for i in range(64)], [i % 8 for i in range(64)])
    renumbered = placed([7 - i // 8 for i in range(64)], [i % 8 for i in range(64)])
    cyclic = placed([i % 8 for i in range(64)], [i // 8 for i in range(64)])
    joined = placed([i // 8 for i in range(64)], [i % 8 for i in range(64)], domains=("d",) * 8)
    shown = {
        name: fingerprint(make_plan(placement=p))
        for name, p in (("block", block), ("cyclic", cyclic), ("joined", joined))
    }
    assert shown["block"] == fingerprint(make_plan()) == fingerprint(make_plan(placement=renumbered))
    assert len(set(shown.values())) == 3
    assert all(same_layout(one, shown["block"]) for one in shown.values())


def test_only_fingerprints_of_this_recipe_are_compared():
    own = fingerprint(make_plan())
    assert same_layout(own, own)
    assert not same_layout("pf1-", "pf1-")
    assert not same_layout("pf0" + own[3:], "pf0" + own[3:])


def test_the_recipe_has_not_changed():
    """Checkpoints carry fingerprints: who changes the recipe gives it another number (RECIPE) and then this text."""
    assert fingerprint(make_plan()) == "pf1-56328744dfcd15950a4a5f9d32c841e5"
