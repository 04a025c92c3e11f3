"""Workers that were merely late say nothing against their node: it may be busy, or its file system cold."""

import msgspec
import pytest

from preflight.model import Verdict
from tests.checks.test_reachable import Run, bad, incident, judged, plan_of


@pytest.mark.parametrize("ranks", [(3,), (0, 1, 2, 3)])
def test_a_worker_that_ended_and_whose_replacement_was_merely_late_is_unknown_and_blames_no_node(ranks):
    """A busy machine does not import torch in the few seconds that a replacement has: nothing is known of the node's parts."""
    good = Run(plan_of(), lambda *_: None).measurements
    late = [
        msgspec.structs.replace(incident(rank, "worker_not_started"), text="importing torch took more than 6 s")
        for rank in ranks
    ]
    found = judged(plan_of(), good, [*(incident(rank, "worker_died") for rank in ranks), *late])
    assert bad(found) == {f"rank {rank}": Verdict.UNKNOWN for rank in ranks}
    assert {f.blames for f in found.values()} == {None}


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("importing torch took more than 23.9 s", Verdict.UNKNOWN),
        ("it said nothing for 15 s and waits", Verdict.UNKNOWN),
        ("it said nothing for 15 s and is stopped (T)", Verdict.FAIL),
        ("it said nothing for 15 s and is in uninterruptible sleep (D)", Verdict.FAIL),
        ("torch can't be imported: libcuda.so.1", Verdict.FAIL),
    ],
)
def test_a_node_whose_workers_were_late_is_unknown_and_one_that_can_start_none_is_blamed(text, verdict):
    good = Run(plan_of(), lambda *_: None).measurements
    idle = msgspec.structs.replace(incident(None, "worker_not_started", node="node1"), text=text)
    found = judged(plan_of(), good, [idle])
    assert bad(found)["node1"] == verdict
    assert (found["node1"].blames is None) == (verdict is Verdict.UNKNOWN)
