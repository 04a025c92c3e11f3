"""Why a node is named, or why it can't be, with the figures of its runs: what somebody would look up in the logs."""

from collections.abc import Mapping, Sequence

import msgspec

from preflight.model.localisation import Culprit, Ends
from preflight.probe.nccl_tests.families import Family, figures_at

MAX_PAIRS = 4

Rates = Mapping[tuple[str, str], float]


def with_figures(
    culprit: Culprit, family: Family, size_bytes: int, ends: Ends, named: Sequence[Culprit] = ()
) -> Culprit:
    """The culprit, its reason followed by the figures of its pairs at this size in GB/s, as they are printed in the logs. `named`: all that are named
    at this size. Other kinds stay as they are.
    """
    if family.kind.num_hosts != 2 or culprit.failed:
        return culprit
    rates: dict[tuple[str, str], float] = {}
    for run in family.runs:
        figures = figures_at(run, size_bytes)
        if figures:
            rates[run.hosts[0], run.hosts[-1]] = figures.busbw_bytes_per_s / 1e9
    if culprit.kind == "path":
        told = _of_path(culprit, family, rates, named)
    elif culprit.kind == "node" and len(culprit.nodes) == 1:
        told = _of_node(culprit.nodes[0], rates, ends)
    elif culprit.kind is None:
        told = _of_candidates(culprit, rates, ends)
    else:
        return culprit
    return msgspec.structs.replace(culprit, reason=f"{culprit.reason}; {told}") if told else culprit


def _of_path(culprit: Culprit, family: Family, rates: Rates, named: Sequence[Culprit]) -> str:
    """How the pairs across compare with those inside either set, and how many runs across died."""
    one, other = set(culprit.nodes), set(culprit.other_nodes)
    across = [rate for (a, b), rate in rates.items() if (a in one and b in other) or (a in other and b in one)]
    others = [named_one for named_one in named if named_one is not culprit]
    inside = [
        rate
        for pair, rate in rates.items()
        if (set(pair) <= one or set(pair) <= other) and not any(_touches(named_one, pair) for named_one in others)
    ]
    hosts = [set(run.hosts) for run in family.runs if run.failure]
    dead = sum(bool(pair & one) and bool(pair & other) for pair in hosts)
    if not across or not inside:
        return ""
    died = f", {dead} runs across died" if dead else ""
    return (
        f"{len(across)} pairs across reach {min(across):.2f} to {max(across):.2f} GB/s{died}, "
        f"{len(inside)} pairs inside the sets {min(inside):.2f} to {max(inside):.2f}"
    )


def _touches(culprit: Culprit, pair: tuple[str, str]) -> bool:
    """Whether a pair crosses another part that is named."""
    mine = set(pair) & set(culprit.nodes)
    return bool(mine) and (culprit.kind != "path" or bool(set(pair) & set(culprit.other_nodes)))


def _of_node(node: str, rates: Rates, ends: Ends) -> str:
    mine = {_other(pair, node): rate for pair, rate in rates.items() if node in pair}
    shown = sorted(mine.items(), key=lambda item: item[1])[:MAX_PAIRS]
    with_whom = ", ".join(f"{rate:.2f} GB/s with {partner}" for partner, rate in shown)
    others = [
        f"{partner} reaches {best[1]:.2f} with {best[0]}"
        for partner, _ in shown
        if (best := _best_without(partner, node, rates))
    ]
    more = f" (and {len(mine) - len(shown)} more)" if len(mine) > len(shown) else ""
    return f"{with_whom}{more}, while {', '.join(others)}{_crossing(node, mine, rates, ends)}" if others else ""


def _best_without(partner: str, node: str, rates: Rates) -> tuple[str, float] | None:
    found = [(_other(pair, partner), rate) for pair, rate in rates.items() if partner in pair and node not in pair]
    return max(found, key=lambda item: item[1], default=None)


def _crossing(node: str, mine: Mapping[str, float], rates: Rates, ends: Ends) -> str:
    """That switches don't explain it: a pair that crosses between leaves and is fast, beside slow ones. Empty where nobody told the leaves, or there is none."""
    if ends.leaves is None:
        return ""
    leaf = dict(zip(ends.nodes, ends.leaves, strict=True))
    fast = {
        pair: rate
        for pair, rate in rates.items()
        if node not in pair
        and None not in (leaf[pair[0]], leaf[pair[1]])
        and leaf[pair[0]] != leaf[pair[1]]
        and rate > 1.1 * max(mine.values())
    }
    if not fast:
        return ""
    pair, rate = max(fast.items(), key=lambda item: item[1])
    return f"; crossing between leaves does not explain it: {pair[0]}-{pair[1]} crosses and reaches {rate:.2f}"


def _of_candidates(culprit: Culprit, rates: Rates, ends: Ends) -> str:
    """The pairs between candidates, and that none of them met another; of a single pair, what its nodes reach with others."""
    links = [candidate.ends for candidate in culprit.candidates if candidate.kind == "link"]
    if len(links) == len(culprit.candidates) == 1:
        a, b = (ends.nodes[ends.node[end]] for end in links[0])
        slow = rates.get((a, b), rates.get((b, a)))
        best = [(who, found) for who, partner in ((a, b), (b, a)) if (found := _best_without(who, partner, rates))]
        told = ", ".join(f"{who} reaches {rate:.2f} with {partner}" for who, (partner, rate) in best)
        return f"{a}-{b} {slow:.2f} GB/s, while {told}" if slow is not None and told else ""
    nodes = {name for candidate in culprit.candidates if candidate.kind == "node" for name in candidate.nodes}
    between = {pair: rate for pair, rate in rates.items() if set(pair) <= nodes}
    elsewhere = {name for pair in rates for name in pair if name in nodes and not set(pair) <= nodes}
    if not between or elsewhere:
        return ""
    shown = ", ".join(f"{a}-{b} {rate:.2f} GB/s" for (a, b), rate in list(between.items())[:MAX_PAIRS])
    return f"{shown}; none of them was run with a node that is known to be good"


def _other(pair: tuple[str, str], node: str) -> str:
    return pair[1] if pair[0] == node else pair[0]
