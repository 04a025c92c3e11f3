"""Degrees and spans by arithmetic are what the frameworks' own layout and footprints give."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.errors import ConfigError
from preflight.plan.advise.degrees import quick_degrees, quick_orders
from preflight.plan.advise.layouts import nodes_per_domain
from preflight.plan.advise.spans import block_footprints
from preflight.plan.build import build_plan
from tests.builders import make_job

SMALL = st.sampled_from([1, 2, 3, 4, 8])


@st.composite
def jobs(draw):
    framework = draw(st.sampled_from(["megatron", "torchtitan", "deepspeed", "fsdp"]))
    parallel = {"framework": framework, "tp": draw(SMALL)}
    if framework != "fsdp":
        parallel |= {"pp": draw(SMALL), "ep": draw(SMALL)}
    if framework != "deepspeed":
        parallel["cp"] = draw(st.sampled_from([1, 2, 4]))
    if framework == "megatron":
        parallel["etp"] = draw(st.sampled_from([None, 1]))
        parallel["order"] = draw(st.sampled_from([None, ("tp", "cp", "ep", "pp", "dp")]))
    if framework in {"torchtitan", "fsdp"}:
        parallel["dp_replicate"] = draw(st.sampled_from([None, 2]))
    model = {"tied_embeddings": draw(st.booleans()), "experts": 64}
    return make_job(
        nodes=draw(st.sampled_from([1, 2, 6, 16])),
        gpus_per_node=draw(st.sampled_from([4, 6, 8])),
        layers=64,
        model=model,
        global_batch_size=None,
        hardware={"nodes_per_nvlink_domain": draw(st.sampled_from([None, 2]))},
        **parallel,
    )


@settings(max_examples=100, deadline=None)
@given(jobs())
def test_what_arithmetic_says_is_what_the_layout_has(job):
    hardware = job.hardware
    world_size = hardware.nodes * hardware.gpus_per_node
    quick = quick_degrees(job, world_size)
    try:
        plan = build_plan(job)
    except ConfigError:
        return  # quick_degrees may be more generous: what is printed is built as a whole plan
    assert quick == plan.degrees
    dense, expert = quick_orders(job)
    per_domain = hardware.gpus_per_node * min(hardware.nodes_per_nvlink_domain or 1, hardware.nodes)
    spans = block_footprints(quick, dense, expert, per_node=hardware.gpus_per_node, per_domain=per_domain)
    for axis, footprint in plan.footprints.items():
        if axis not in spans:
            continue
        assert spans[axis].nodes == (max(footprint.nodes),), axis
        assert spans[axis].domains == (max(footprint.domains),), axis
    carrying = {"tp", "cp", "dp", "pp", "dp_cp", "fsdp", "ep", "etp", "edp"} & set(plan.footprints)
    assert carrying <= set(spans) | {"etp"}


def test_what_a_framework_refuses_arithmetic_refuses_too():
    job = make_job(tp=2, pp=4, ep=8, etp=1, order=("tp", "cp", "ep", "pp", "dp"), nodes=16)
    with pytest.raises(ConfigError):
        build_plan(job)
    assert quick_degrees(job, 128) is None
    assert quick_degrees(msgspec.structs.replace(job), 100) is None


@pytest.mark.parametrize(
    ("domains", "nodes"),
    [(None, 1), (("a", None), 1), (("a",) * 18 + ("b",) * 14, 2), (("a",) * 16 + ("b",) * 16, 16), (("a", "b") * 4, 1)],
)
def test_runs_of_nodes_that_share_a_domain(domains, nodes):
    assert nodes_per_domain(domains) == nodes
