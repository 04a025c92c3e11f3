"""`srun preflight ranks` under a real Slurm: every rank tells what it is, and its variables alone give the placement of all."""

import sys

import pytest

from preflight.plan.derived import Seat, derive_placement
from preflight.plan.measured import measured_placement, read_ranks
from tests.builders import make_job
from tests.plan.launchers.slurm_box import slurm_box

pytestmark = [pytest.mark.root, pytest.mark.debian("slurm-wlm", "srun", "slurmctld", "slurmd", "munged")]


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    with slurm_box(tmp_path_factory.mktemp("slurm"), {"n1": 4, "n2": 4, "n10": 2}) as running:
        yield running


@pytest.mark.parametrize(
    "options",
    [
        ("-n10",),
        ("-n10", "--distribution=cyclic"),
        ("-n10", "--distribution=plane=3"),
        ("-n6", "--ntasks-per-node=2", "--distribution=block"),
        ("-n3",),
    ],
    ids=str,
)
def test_what_ranks_say_is_where_srun_put_them_and_each_can_derive_the_rest(box, options):
    options = ("-N3", *options)
    real = box.place(*options)
    lines = box.run("srun", "--time=1", "--immediate=30", *options, sys.executable, "-m", "preflight", "ranks")
    path = box.folder / "ranks.jsonl"
    path.write_text(lines)
    facts = read_ranks(path)
    assert [(one.node, one.local_rank) for one in facts] == [(node, local) for node, _, local in real]
    # one machine plays three nodes here, and its boot id says so: local ranks collide and are counted
    assert len(measured_placement(facts).nodes) == 1
    job = make_job(tp=1, nodes=None, gpus_per_node=None)
    for one in facts:
        seat = Seat(one.rank, one.world_size, one.local_rank, (one.node,))
        placement = derive_placement(job, one.environment, seat)
        assert [(rank.node, rank.local_rank) for rank in placement.ranks] == [(node, local) for node, _, local in real]
