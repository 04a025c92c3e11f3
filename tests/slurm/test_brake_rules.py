"""The brake, without Slurm: what counts, and that no order of events lets more through than the limit."""

import random
import threading
import time
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.config import Brake
from preflight.errors import SlurmError
from preflight.slurm.brake import CLUSTER, STALE_S, Claim, View, allowed, judge, look
from preflight.slurm.commands import Slurm
from preflight.slurm.nodes import SlurmNode
from tests.slurm.storms import REASON, storm

NOW_S = 1_800_000_000.0


def node(name, *, drained_for=None, ago_s=10.0, claim=None, partitions=("all",), **facts):
    states = frozenset({"idle", "drain"} if drained_for else {"idle"})
    reason = f"preflight:{drained_for} x" if drained_for else None
    return SlurmNode(
        name=name, states=states, partitions=partitions, reason=reason, reason_at_s=NOW_S - ago_s, extra=claim, **facts
    )


def wants(check="row_remap", ago_s=1, by="0a0b0c0d"):
    return f"preflight-wants-drain:{check}@{int(NOW_S - ago_s)}#{by}"


@dataclass
class Controller(Slurm):
    """The controller's table of nodes in memory: each call is one indivisible step of it, after a wait of the test's choice."""

    table: dict[str, SlurmNode]
    clock_s: float = NOW_S
    wait_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)
    log: list[dict] = field(default_factory=list)
    most: int = 0

    def _pause(self):
        if self.wait_s:
            time.sleep(random.uniform(0, self.wait_s))

    def nodes(self, names=None):
        self._pause()
        with self.lock:
            return {name: node for name, node in self.table.items() if names is None or name in names}

    def now_s(self):
        return self.clock_s

    def update_node(self, names, **changes):
        self._pause()
        with self.lock:
            self.log.append({"names": names, **changes})
            for name in [names] if isinstance(names, str) else names:
                given = {key: text or None for key, text in changes.items() if key != "state"}
                if changes.get("state") == "drain":
                    given |= {"states": self.table[name].states | {"drain"}, "reason_at_s": self.clock_s}
                self.table[name] = msgspec.structs.replace(self.table[name], **given)
            self.most = max(self.most, sum(each.drained for each in self.table.values()))


def controller(*nodes, **facts):
    return Controller(table={each.name: each for each in nodes}, **facts)


def many(count, **facts):
    return [node(f"n{number}", **facts) for number in range(1, count + 1)]


def brake(**changes):
    return Brake(**{"nodes": 3, "percent": 100, "jitter_s": 0, "settle_s": 10, **changes})


def test_one_alone_is_allowed_and_announces_itself():
    slurm = controller(*many(8))
    decision = allowed(slurm, ["n3"], REASON, brake())
    assert (decision.allowed, decision.refused, decision.why) == (("n3",), (), "")
    assert slurm.table["n3"].extra == decision.claims["n3"].text


def test_what_was_drained_for_the_same_check_within_the_period_counts():
    slurm = controller(*many(3, drained_for="row_remap"), node("n9"))
    decision = allowed(slurm, ["n9"], REASON, brake())
    assert decision.allowed == ()
    assert decision.why == "brake: n9 not drained for row_remap; drained for it within 1 h: the cluster: 3 of at most 3"
    assert slurm.log == []


@pytest.mark.parametrize(
    "others",
    [
        many(3, drained_for="xid"),
        many(3, drained_for="row_remap", ago_s=3601),
        many(3, claim=wants("xid")),
        many(3, claim=wants(ago_s=STALE_S + 1)),
        many(3, claim="a note of the site's"),
        [msgspec.structs.replace(each, states=frozenset({"idle"})) for each in many(3, drained_for="row_remap")],
        [msgspec.structs.replace(each, reason="NHC: row_remap") for each in many(3, drained_for="row_remap")],
    ],
    ids=["other check", "long ago", "wants for another check", "stale", "no announcement", "resumed", "not ours"],
)
def test_what_does_not_count(others):
    assert allowed(controller(*others, node("n9")), ["n9"], REASON, brake()).allowed == ("n9",)


def test_a_share_of_each_partition_of_the_node_counts_and_is_one_node_at_least():
    small = [node(f"s{number}", partitions=("all", "small")) for number in range(4)]
    slurm = controller(*small, *many(96))
    rules = brake(nodes=50, percent=5)
    assert allowed(slurm, ["s0"], REASON, rules, dry=True).allowed == ("s0",)
    slurm.table["s1"] = node("s1", drained_for="row_remap", partitions=("all", "small"))
    decision = allowed(slurm, ["s0"], REASON, rules)
    assert decision.allowed == ()
    assert decision.why.endswith("within 1 h: small: 1 of at most 1")
    assert allowed(slurm, ["n1"], REASON, rules, dry=True).allowed == ("n1",)
    assert allowed(slurm, ["s0"], REASON, rules, partition="all", dry=True).allowed == ("s0",)


def test_of_several_nodes_of_one_process_as_many_as_there_is_room_for():
    slurm = controller(*many(8))
    decision = allowed(slurm, ["n5", "n10", "n2", "n4", "n3"], REASON, brake(nodes=2))
    assert (decision.allowed, decision.refused) == (("n2", "n3"), ("n5", "n10", "n4"))
    assert sorted(name for name, each in slurm.table.items() if each.extra) == ["n2", "n3"]


def test_those_who_announced_and_were_killed_hold_others_up_until_they_are_stale():
    slurm = controller(*many(3, claim=wants(ago_s=20)), node("n9"))
    assert allowed(slurm, ["n9"], REASON, brake(settle_s=0)).allowed == ()
    slurm.clock_s += STALE_S
    assert allowed(slurm, ["n9"], REASON, brake(settle_s=0)).allowed == ("n9",)


def test_one_who_waits_too_long_for_others_drains_nothing_and_takes_its_announcement_back():
    slurm = controller(*many(2), node("n9", claim=wants(ago_s=-5)))
    decision = allowed(slurm, ["n1"], REASON, brake(nodes=1, settle_s=0))
    assert decision.allowed == ()
    assert decision.why.startswith("brake: n1 not drained for row_remap; n9 want it at the same time")
    assert slurm.table["n1"].extra is None


def test_a_field_that_the_site_uses_is_left_alone_and_the_other_is_taken():
    slurm = controller(node("n1", claim='{"rack": 3}'))
    decision = allowed(slurm, ["n1"], REASON, brake())
    assert (slurm.table["n1"].extra, slurm.table["n1"].comment) == ('{"rack": 3}', decision.claims["n1"].text)


def test_where_both_fields_are_used_nothing_is_drained():
    slurm = controller(node("n1", claim="x", comment="y"))
    decision = allowed(slurm, ["n1"], REASON, brake())
    assert decision.allowed == ()
    assert "Extra and Comment of n1 are both in use" in decision.why
    assert (slurm.table["n1"].extra, slurm.table["n1"].comment) == ("x", "y")


def test_a_node_that_another_process_of_ours_announced_is_left_to_it():
    slurm = controller(node("n1", claim=wants("xid")), node("n2"))
    decision = allowed(slurm, ["n1"], REASON, brake())
    assert decision.why == "another preflight process is about to drain n1"
    assert slurm.table["n1"].extra == wants("xid")


def test_an_own_announcement_that_went_stale_is_replaced():
    slurm = controller(node("n1", claim=wants("xid", ago_s=STALE_S + 1)))
    assert allowed(slurm, ["n1"], REASON, brake()).allowed == ("n1",)


@pytest.mark.parametrize("call", ["nodes", "now_s", "update_node"])
def test_a_controller_that_does_not_answer_means_that_nothing_is_drained(call, monkeypatch):
    def silent(*_arguments, **_named):
        raise SlurmError("scontrol show node: no answer within 10 s")

    slurm = controller(*many(2))
    monkeypatch.setattr(slurm, call, silent)
    decision = allowed(slurm, ["n1"], REASON, brake())
    assert (decision.allowed, decision.refused) == ((), ("n1",))
    assert decision.why == ("nothing is drained: scontrol show node: no answer within 10 s")


def test_one_who_finds_its_announcement_gone_drains_nothing(monkeypatch):
    slurm = controller(*many(2))
    write = slurm.update_node

    def overwritten(names, **changes):
        write(names, **changes)
        slurm.table["n1"] = msgspec.structs.replace(slurm.table["n1"], extra="a note")

    monkeypatch.setattr(slurm, "update_node", overwritten)
    assert allowed(slurm, ["n1"], REASON, brake()).allowed == ()
    assert slurm.table["n1"].extra == "a note"


def test_one_who_was_stopped_for_longer_than_others_count_it_drains_nothing(monkeypatch):
    slurm, began = controller(*many(2)), time.monotonic()
    late = iter([began, *[began + STALE_S] * 9])
    monkeypatch.setattr("preflight.slurm.brake.time.monotonic", lambda: next(late))
    decision = allowed(slurm, ["n1"], REASON, brake())
    assert decision.allowed == ()
    assert "too long" in decision.why
    assert slurm.table["n1"].extra is None


def test_one_who_was_stopped_between_look_and_drain_drains_nothing(monkeypatch):
    slurm = controller(*many(2))
    decide = allowed

    def late(*arguments, **named):
        return decide(*arguments, **named).replace(ends_at=time.monotonic() - 1)

    monkeypatch.setattr("preflight.slurm.brake.allowed", late)
    result = storm(slurm, ["n1"], brake())["n1"]
    assert (result.done, result.failed) == ((), ("n1",))
    assert "too long" in result.text
    assert (slurm.most, slurm.table["n1"].extra) == (0, None)


claim_sets = st.dictionaries(st.integers(0, 19), st.tuples(st.integers(0, 3), st.booleans()), min_size=1)


@given(claims=claim_sets, drained=st.sets(st.integers(0, 19)), limit=st.integers(1, 6), share=st.integers(1, 6))
def test_whoever_is_sure_has_room_even_if_all_who_announced_drain(claims, drained, limit, share):
    """And as many as there is room for are not sent away."""
    names = {f"n{number}" for number in range(20)}
    groups = {name: (CLUSTER, "odd") if int(name[1:]) % 2 else (CLUSTER,) for name in names}
    limits = {CLUSTER: limit, "odd": share}
    announced = {
        f"n{number}": Claim("xid", at_s, f"{number:08x}", "extra")
        for number, (at_s, _) in claims.items()
        if number not in drained
    }
    gone = frozenset(f"n{number}" for number in drained)
    view = View(gone, announced, groups, limits)
    plans = {name: judge(view, {name: claim}) for name, claim in announced.items()}
    for name in (name for name, plan in plans.items() if plan.sure):
        for group in groups[name]:
            others = [each for each in {*gone, *announced} - {name} if group in groups[each]]
            assert len(others) < limits[group]
    stays = [name for name, plan in plans.items() if not plan.hopeless]
    room = min(limits[group] - len([each for each in gone if group in groups[each]]) for group in limits)
    assert len(stays) >= min(room, len(announced))


def check_storm(seed, count, limit, wait_s):
    random.seed(seed)
    slurm = controller(*many(count + 2), wait_s=wait_s)
    names = [f"n{number}" for number in range(1, count + 1)]
    results = storm(slurm, names, brake(nodes=limit, settle_s=20))
    drained = {name for name, each in slurm.table.items() if each.drained}
    assert {name for name, result in results.items() if result.done} == drained
    assert len(drained) == slurm.most == min(limit, count), (seed, drained)
    assert not any(each.extra or each.comment for each in slurm.table.values())


@pytest.mark.parametrize(("count", "limit"), [(1, 1), (4, 1), (8, 3), (16, 3)])
def test_nodes_that_fail_at_the_same_moment_fill_the_room_and_no_more(count, limit):
    check_storm(count, count, limit, 0.02)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200))
def test_no_order_of_events_lets_more_through(seed):
    check_storm(seed, 2 + seed % 15, 1 + seed % 5, 0.002 * (seed % 20))


def test_the_limits_are_told_by_the_partitions_of_all_nodes():
    view = look({each.name: each for each in many(40)}, "xid", NOW_S, Brake())
    assert view.limits == {CLUSTER: 3, "all": 2}
