"""What an advice promises holds when a person does what it says, whatever the nodes, their domains and the launcher."""

import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model import Topology
from preflight.plan.advise.placement import advise_placement
from preflight.plan.advise.trial import helped_checks, outcome_of
from preflight.plan.build import build_plan
from tests.builders import make_job
from tests.plan.advise.judging import applied, one_per_group

LAUNCHES = (
    {},
    {"launcher": "slurm", "distribution": "block"},
    {"launcher": "slurm", "distribution": "cyclic"},
    {"launcher": "slurm", "distribution": "plane=2"},
    {"launcher": "mpi", "distribution": "by-node"},
    {"launcher": "mpi"},
    {"launcher": "torchrun", "rendezvous": "c10d"},
    {"launcher": "torchrun", "rendezvous": "static"},
    {"launcher": "deepspeed"},
    {"launcher": "kubernetes", "rendezvous": "c10d"},
)


@st.composite
def cases(draw):
    """A job on 8 to 12 nodes of 4 GPUs in up to three domains, listed in any order, and what is known of them."""
    count = draw(st.sampled_from([8, 12]))
    hosts = tuple(draw(st.permutations([f"gpu-{i}" for i in range(1, count + 1)])))
    owners = {host: f"rack{draw(st.integers(0, 2))}" for host in hosts}
    leaves = {host: (f"leaf{draw(st.integers(0, 2))}",) for host in hosts} if draw(st.booleans()) else None
    parallel = draw(
        st.sampled_from(
            [{"tp": 8}, {"tp": 4, "pp": 2}, {"tp": 2, "ep": 8, "sequence_parallel": True}, {"tp": 2, "cp": 4}]
        )
    )
    launch = draw(st.sampled_from(LAUNCHES)) | {"hosts": hosts}
    job = make_job(nodes=count, gpus_per_node=4, model={"experts": 8}, launch=launch, **parallel)
    return job, Topology(node_domains=owners, switches=leaves, source="racks.txt")


@settings(max_examples=60, deadline=None)
@given(cases())
def test_what_is_promised_is_kept(case):
    job, topology = case
    rules = [*(one_per_group(axis) for axis in ("tp", "ep", "cp")), one_per_group("dp", what="leaves")]

    def judged(plan):
        return [finding for rule in rules for finding in rule(plan)]

    plan = build_plan(job, topology=topology)
    before = outcome_of(plan, topology, judged)
    advices = advise_placement(job, plan, judged, topology=topology)
    if before.tally.warn == 0:
        assert advices == ()
    for advice in advices:
        assert advice.before == before.tally
        assert (advice.after.split_groups, advice.after.warn) < (before.tally.split_groups, before.tally.warn)
        if {"segment", "names"} & set(advice.kinds):
            continue  # these change the nodes, which is the scheduler's or the operator's to do
        with tempfile.TemporaryDirectory() as folder:
            after = outcome_of(applied(job, advice, folder, topology=topology), topology, judged)
        assert after.tally == advice.after
        assert not advice.complete or not helped_checks(before, after) & set(after.problems)
