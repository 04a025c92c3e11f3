"""What it costs a group to leave its NVLink domain, and the words for it (pure; the placement checks need it)."""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise

from preflight.model.base import Record
from preflight.model.domains import Domains
from preflight.model.estimate import Traffic
from preflight.model.hostlist import fold, fold_numbers
from preflight.model.plan import Plan
from preflight.model.units import show_bytes, show_seconds

MAX_LISTED = 16  # ranks, nodes or domains that a sentence names one by one
MAX_TEXT = 160  # characters of a folded list


class Cost(Record, frozen=True):
    """Traffic of one group per step. `crossing_bytes`: of the whole group, from one domain to another, with the collective's usual path.
    `inside_s`, `outside_s`: None if a rate isn't known. `hidden`: compute can hide all of it as far as it fits.
    """

    sent_bytes: int
    crossing_bytes: int
    inside_s: float | None
    outside_s: float | None
    hidden: bool


def cost_of(domains: Domains, axis: str, ranks: Sequence[int]) -> Cost | None:
    """What the ledger says about one group of an axis; None: nothing."""
    rows = [row for row in domains.plan.estimate.ledger if row.axis == axis]
    if not rows:
        return None
    places = [domains.of_rank(rank) for rank in ranks]
    inside, outside = [row.inside_s for row in rows], [row.outside_s for row in rows]
    return Cost(
        sent_bytes=sum(row.wire_bytes for row in rows),
        crossing_bytes=round(sum(row.wire_bytes * _crossings(row, places) for row in rows)),
        inside_s=None if None in inside else sum(seconds or 0.0 for seconds in inside),
        outside_s=None if None in outside else sum(seconds or 0.0 for seconds in outside),
        hidden=not any(row.exposed for row in rows),
    )


def _crossings(row: Traffic, places: Sequence[str | None]) -> float:
    """How often the bytes that one rank sends cross from domain to domain, over the whole group. `places`: the domain of each member.

    Rings (NCCL orders them by domain) cross once per domain. All-to-all: each of n ranks sends (n - c) / (n - 1) of its bytes out, c being the
    ranks in its own domain. Send and receive: once per pair of neighbours in different domains; along cp the last one sends to the first.
    Worked example, 4 ranks in two domains of 2: ring 2, all-to-all 4 x 2/3 = 2.67, pipeline 1.
    """
    sizes = Counter(places)
    if len(sizes) < 2:
        return 0.0
    if row.collective == "all_to_all":
        number = len(places)
        return sum(size * (number - size) for size in sizes.values()) / (number - 1)
    if row.collective == "send_recv":
        apart = sum(a != b for a, b in pairwise(places))
        return apart + (row.axis == "cp" and places[0] != places[-1])
    return float(len(sizes))


def cost_text(cost: Cost | None) -> str:
    """As in "600 GB per step cross between domains; each rank sends 301 GB per step: 6.7 s outside a domain, 0.81 s inside"."""
    if cost is None:
        return ""
    crossing = f"{show_bytes(cost.crossing_bytes)} per step cross between domains; " if cost.crossing_bytes else ""
    return f"{crossing}each rank sends {show_bytes(cost.sent_bytes)} per step{_times(cost)}"


def _times(cost: Cost) -> str:
    named = ((cost.outside_s, "outside a domain"), (cost.inside_s, "inside"))
    times = [f"{show_seconds(seconds)} {where}" for seconds, where in named if seconds is not None]
    hidden = " (beside compute, as far as it fits)" if cost.hidden else ""
    return (": " + ", ".join(times) if times else "") + hidden


def where_text(plan: Plan, ranks: Sequence[int], domains: Domains | None = None) -> str:
    """As in "ranks 0-7 on 2 nodes, node[0-1], in 2 NVLink domains, a.1 and b.1"; domains only where they are more than the nodes themselves."""
    nodes = plan.placement.nodes_of(ranks)
    text = f"ranks {ranks_text(ranks)} on {len(nodes)} node{'s' if len(nodes) > 1 else ''}, {shortened(fold(nodes))}"
    if domains is None:
        return text
    sizes = Counter(domains.of_rank(rank) for rank in ranks)
    names = [name for name in sizes if name is not None]
    if len(sizes) < 2 or set(names) <= set(nodes) or len(names) < 2:
        return text
    two = [f"{name} ({sizes[name]} rank{'s' if sizes[name] > 1 else ''})" for name in names[:2]]
    shown = " and ".join(two) if len(names) == 2 else fold(names)
    return f"{text}, in {len(names)} NVLink domains, {shortened(shown)}"


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as a short list; more than 16 in equal steps as "0,8,...,504 (64 ranks, every 8th)"."""
    text = fold_numbers(ranks)
    if text.count(",") < MAX_LISTED:
        return text
    steps = {b - a for a, b in pairwise(ranks)}
    if len(steps) == 1:
        return f"{ranks[0]},{ranks[1]},...,{ranks[-1]} ({len(ranks)} ranks, {steps.pop()} apart)"
    return f"{shortened(text)} ({len(ranks)} ranks)"


def subject_of(axis: str, indexes: Sequence[int]) -> str:
    """The names of groups as one: "tp3", "tp[0-7]". `indexes` ascending."""
    if len(indexes) == 1:
        return f"{axis}{indexes[0]}"
    first, last = indexes[0], indexes[-1]
    run = len(indexes) > 2 and last - first == len(indexes) - 1  # nearly always, and there may be 65,536
    return f"{axis}[{f'{first}-{last}' if run else fold_numbers(indexes)}]"


def shortened(text: str) -> str:
    """A list that fits into a sentence."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def span_text(numbers: Collection[int], noun: str) -> str:
    """How many nodes or domains several groups touch: "2 nodes", "2 to 8 domains"."""
    low, high = min(numbers), max(numbers)
    count = str(low) if low == high else f"{low} to {high}"
    return f"{count} {noun}{'s' if high != 1 else ''}"
