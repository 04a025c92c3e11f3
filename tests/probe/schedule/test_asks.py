"""What the localiser asks for becomes rounds of disjoint ends, the most telling first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.model.localisation import Ask
from preflight.probe.schedule.asks import ask_probe, can_run, pack_asks

ENDS = st.integers(0, 12)
ASKS = st.lists(
    st.builds(
        Ask, a=ENDS, b=ENDS, op=st.sampled_from(["send_recv", "send", "matmul", "warp"]), priority=st.integers(0, 3)
    )
)


@given(asks=ASKS, limit=st.none() | st.integers(1, 4))
def test_every_ask_that_can_run_is_in_one_round_and_no_end_is_busy_twice_in_it(asks, limit):
    rounds = pack_asks(asks, busy_limit=limit)
    packed = [ask for asked in rounds for ask in asked]
    assert sorted(map(repr, packed)) == sorted(repr(ask) for ask in asks if can_run(ask))
    for asked in rounds:
        busy = [end for ask in asked for end in {ask.a, ask.b}]
        assert asked
        assert len(busy) == len(set(busy))
        assert limit is None or len(asked) <= limit


@given(asks=ASKS)
def test_an_ask_waits_only_for_those_that_are_as_telling(asks):
    rounds = pack_asks(asks)
    for number, asked in enumerate(rounds):
        for ask in asked:
            for earlier in rounds[:number]:
                ends = {end for other in earlier if other.priority <= ask.priority for end in (other.a, other.b)}
                assert {ask.a, ask.b} & ends


@pytest.mark.parametrize(
    "ask", [Ask(a=1, b=1), Ask(a=1, b=2, op="matmul"), Ask(a=1, b=2, op="all_reduce"), Ask(a=-1, b=2)]
)
def test_what_no_worker_can_do_is_left_out(ask):
    assert pack_asks([ask]) == []


def test_an_ask_one_way_keeps_its_sender_and_a_pair_both_ways_its_name():
    assert ask_probe(Ask(a=5, b=2, op="send", reason="which way?"), "gloo").key == "pair 5-2 send alone 0"
    both = ask_probe(Ask(a=5, b=2, reason="again"), "nccl")
    assert (both.key, both.ranks, both.reason) == ("pair 2-5 send_recv alone 0", (2, 5), "again")


def test_what_the_localiser_says_of_the_route_is_no_part_of_the_operation():
    ask = Ask(a=0, b=1, op="send_recv over 18 NVLinks")
    assert pack_asks([ask]) == [[ask]]
    assert ask_probe(ask, "nccl").key == "pair 0-1 send_recv alone 0"


def test_an_ask_of_one_gpu_is_what_it_does_by_itself():
    probe = ask_probe(Ask(a=3, b=3, op="host_to_device"), "nccl")
    assert (probe.subject, probe.ranks, probe.flops) == ("gpu 3", (3,), 0)
    assert ask_probe(Ask(a=3, b=3, op="matmul"), "gloo").flops == 2 * 512**3
