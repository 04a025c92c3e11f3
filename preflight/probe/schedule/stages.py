"""The parts of an agenda in their order: each a number of rounds of one kind, made when they are due."""

from collections.abc import Callable, Iterator

from preflight.model import Group, Plan
from preflight.model.localisation import Ends
from preflight.probe.schedule.alone import ALONE_OPS, ALONE_REPEATS, alone_probe
from preflight.probe.schedule.axes import Message, messages_of, weight_of
from preflight.probe.schedule.groups import MIXED_ROLES, alone_rounds, group_round, mixed_groups
from preflight.probe.schedule.pair_stages import Rounds, inside_groups, inside_nodes, unlike_slots
from preflight.probe.schedule.probes import FULL_CROSS_NODES, GROUP_REPEATS, PAIR_REPEATS, Round, pair_probe, seconds_of
from preflight.probe.schedule.strata import FIRST_ROUNDS, Pairs, Tournament, pass_of

INSIDE, BETWEEN = "pairs inside nodes", "pairs between nodes"  # rounds of pairs, by what they cost
SHORT = 10  # rounds: a tournament that is through so soon is not broken off after the first five
NOT_MIXED = frozenset(
    {"tp", "etp", "cp", "ep", "pp", "embedding"}
)  # of what is left, the axis that carries most reduces gradients


class Stage:
    """`count` rounds of a kind (those of one kind take equally long). `when_done` is called with a round's number when it was run."""

    def __init__(
        self, kind: str, count: int, make: Callable[[int], Round], when_done: Callable[[int], None] | None = None
    ) -> None:
        self.kind = kind
        self.left = count
        self._count = count
        self._make = make
        self._when_done = when_done
        self._head: Round = ()
        self.head_s = 0.0  # what the next round takes, roughly

    def peek(self) -> Round | None:
        """The next round that has any probe; None: the stage is through."""
        while not self._head and self.left:
            self._head = self._make(self._count - self.left)
            if self._head:
                self.head_s = seconds_of(self._head)
            else:
                self.left -= 1
        return self._head or None

    def take(self) -> Callable[[], None]:
        """Move on; what is returned is to be called when the round was run."""
        number = self._count - self.left
        self.left -= 1
        self._head = ()
        return lambda: self._when_done(number) if self._when_done else None


class Stages:
    """Makes the stages of one run."""

    def __init__(self, plan: Plan, backend: str, ends: Ends, *, share_machine: bool) -> None:
        self.plan = plan
        self.backend = backend
        self.ends = ends
        self.tensor = plan.groups.get("tp", ())
        self.small = len(set(ends.node)) <= FULL_CROSS_NODES
        self._alone = {axis: alone_rounds(plan, ends, axis, share_machine=share_machine) for axis in plan.timed_axes}

    def gpus(self) -> Iterator[Stage]:
        """What each GPU does by itself, all at once; then all of it again, since one slow probe says nothing of a GPU."""
        for op in ALONE_REPEATS * ALONE_OPS[self.backend]:
            probes = tuple(alone_probe(rank, op, self.backend) for rank in range(len(self.ends.node)))
            yield Stage(op, 1, lambda _, probes=probes: probes)  # type: ignore[misc]

    def near(self) -> Iterator[Stage]:
        """Pairs inside nodes, then those of tensor-parallel groups that leave theirs."""
        yield self.pairs(inside_nodes(self.ends), kind=INSIDE)
        yield self.pairs(inside_groups(self.ends, self.tensor, like_slots=not self.small))

    def pairs(self, rounds: Rounds, when_done: Callable[[int], None] | None = None, *, kind: str = BETWEEN) -> Stage:
        """Rounds of pairs."""

        def make(number: int) -> Round:
            return tuple(pair_probe(pair, self.backend, 0) for pair in rounds.make(number))

        return Stage(kind, rounds.count, make, when_done)

    def unlike(self) -> Iterator[Stage]:
        """On few nodes, the pairs of unlike slots between them."""
        if self.small:
            yield self.pairs(unlike_slots(self.ends, self.tensor))

    def groups(self, repeat: int) -> Iterator[Stage]:
        """For each axis a group for each set of nodes alone, and all together: at a large size, then at the plan's own; axes mixed; uneven exchanges of experts."""
        each = self._messages()
        for axis, message in each:
            yield self._alone_stage(axis, message, "alone", self._alone[axis].first)
            yield from self._together(axis, message)
        yield from self._mixed(
            dict(reversed(each)), repeat
        )  # of each axis its first message: a large one, of what carries most
        for axis, message in each:
            if message.collective == "all_to_all" and not message.size_name:
                yield self._alone_stage(axis, message, "skewed", self._alone[axis].first[:1])

    def other_groups(self) -> Iterator[Stage]:
        """The groups that others stand for, alone."""
        for axis, message in self._messages():
            yield self._alone_stage(axis, message, "alone", self._alone[axis].others)

    def _messages(self) -> list[tuple[str, Message]]:
        """Large sizes first, and axes that carry something."""
        axes = sorted(self.plan.timed_axes, key=lambda axis: not weight_of(self.plan, axis))
        each = [(axis, message) for axis in axes for message in messages_of(self.plan, axis, self.backend)]
        return sorted(each, key=lambda item: bool(item[1].size_name))

    def _together(self, axis: str, message: Message) -> Iterator[Stage]:
        groups = self.plan.on_axis(axis)
        if len(groups) > 1:
            kind = f"{axis} {message.collective} {message.size_name} together"
            yield Stage(kind, 1, lambda _: group_round(groups, message, self.backend, mode="together"))

    def _alone_stage(self, axis: str, message: Message, word: str, rounds: list[tuple[Group, ...]]) -> Stage:
        def make(number: int) -> Round:
            return group_round(rounds[number], message, self.backend, skewed=word == "skewed")

        return Stage(f"{axis} {message.collective} {message.size_name} {word}", len(rounds), make)

    def _mixed(self, messages: dict[str, Message], repeat: int) -> Iterator[Stage]:
        """Gradients with the pipeline and the experts; each repetition begins with another axis, so that other groups are at work."""
        gradients = max(
            (axis for axis in messages if axis not in NOT_MIXED),
            key=lambda axis: weight_of(self.plan, axis),
            default="",
        )
        axes = [self.plan.on_axis(axis) for axis in (gradients, "pp", "ep") if axis in messages]

        def make(number: int) -> Round:
            chosen = mixed_groups(axes, MIXED_ROLES * repeat + number)
            rounds = (group_round([group], messages[group.axis], self.backend, mode="mixed") for group in chosen)
            return tuple(probe for probes in rounds for probe in probes)

        if len(axes) > 1:
            yield Stage("mixed", MIXED_ROLES if repeat == 0 else 1, make)

    def repeats(self, first: Rounds) -> Iterator[Stage]:
        """Again, for the noise: pairs once, groups twice. `first`: what is to be repeated of the first rounds between nodes."""
        for repeat in range(1, max(PAIR_REPEATS, GROUP_REPEATS)):
            if repeat < PAIR_REPEATS:
                yield from self.near()
                yield self.pairs(first)
                yield from self.unlike()
            if repeat < GROUP_REPEATS:
                yield from self.groups(repeat)


def pass_rounds(tournament: Tournament, inside: int, across: int, *, whole: bool) -> tuple[Rounds, list[bool]]:
    """The rounds between nodes that a run begins with, and which of them are inside leaves. All that there are, if they are SHORT or `whole` says so."""
    total = tournament.num_inside + tournament.num_across
    chosen = list(pass_of(tournament, inside, across, total if whole or total <= SHORT else FIRST_ROUNDS))
    return _rounds(tournament, chosen), [within for within, _ in chosen]


def rest_rounds(tournament: Tournament, inside: int, across: int) -> tuple[Rounds, list[bool]]:
    """What is left of the tournament after so many rounds of either kind: one inside leaves with four across, as long as there are both."""
    chosen: list[tuple[bool, int]] = []
    insides, acrosses = (
        [(within, number) for number in range(done, total)]
        for within, done, total in ((True, inside, tournament.num_inside), (False, across, tournament.num_across))
    )
    step = FIRST_ROUNDS - 1
    for number in range(max(len(insides), -(-len(acrosses) // step))):
        chosen += insides[number : number + 1] + acrosses[step * number : step * (number + 1)]
    return _rounds(tournament, chosen), [within for within, _ in chosen]


def _rounds(tournament: Tournament, chosen: list[tuple[bool, int]]) -> Rounds:
    def make(number: int) -> Pairs:
        within, turn = chosen[number]
        return tournament.inside(turn) if within else tournament.across(turn)

    return Rounds(len(chosen), make)
