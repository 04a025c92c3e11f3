"""What groups touch where both they and the placement are regular, as nearly always: a few divisions in place of a look at every rank.

Consecutive ranks fill nodes of g ranks, domains of k nodes. All groups of a pattern are one group moved about, and what a group touches depends on
nothing but its first rank modulo g x k. Worked example, nodes of 8, tp 4 and dp 2 innermost: the dp group [0, 4] touches one node, and so do
[1, 5], [2, 6] and [3, 7]; 8 is 0 again.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import groupby

from preflight.model import Footprint, Placement
from preflight.plan.frameworks.grid import Pattern


def regular_footprints(placement: Placement, patterns: Mapping[str, Pattern]) -> dict[str, Footprint]:
    """Axis -> what its groups touch, in the order of Layout.groups; {} where the placement is not regular, or leaves or racks are known."""
    per_node, per_domain = _block_sizes(placement)
    if not per_domain or placement.leaves is not None or placement.racks is not None:
        return {}
    seen: dict[Pattern, Footprint] = {}
    for pattern in patterns.values():
        if pattern not in seen:
            seen[pattern] = _footprint(pattern, per_node, per_domain)
    return {axis: seen[pattern] for axis, pattern in patterns.items()}


def _block_sizes(placement: Placement) -> tuple[int, int]:
    """Ranks of a node and of a domain if all nodes and all domains are filled alike, in the order of ranks; else 0, 0."""
    counts, number = placement.ranks_per_node, len(placement.nodes)
    per_node = counts[0]
    if counts.count(per_node) < number or placement.local_ranks != tuple(range(per_node)) * number:
        return 0, 0
    if not placement.is_block:
        return 0, 0
    if placement.domains is None:
        return per_node, per_node
    runs = [(name, sum(1 for _ in same)) for name, same in groupby(placement.domains)]
    lengths = {length for _, length in runs}
    if len(lengths) > 1 or len({name for name, _ in runs} - {None}) < len(runs):
        return 0, 0
    return per_node, per_node * lengths.pop()


def _footprint(pattern: Pattern, per_node: int, per_domain: int) -> Footprint:
    """What the groups of one pattern touch."""
    remainders = {0}
    for size, step in pattern.firsts:
        # after per_domain steps they come round again
        more = {place * step % per_domain for place in range(min(size, per_domain))}
        remainders = {(one + other) % per_domain for one in remainders for other in more}
    touched = {first: _touched(pattern, first, per_node, per_domain) for first in remainders}
    if len(set(touched.values())) == 1:
        columns = [(count,) * pattern.number for count in touched[0]]
    else:
        columns = list(zip(*[touched[start % per_domain] for start in pattern.starts], strict=True))
    nodes, domains, slots, chunk = columns
    return Footprint(nodes=nodes, domains=domains, slots=slots, chunk=chunk)


def _touched(pattern: Pattern, first: int, per_node: int, per_domain: int) -> tuple[int, int, int, int]:
    """Nodes, domains, slots and chunk of the group with this first rank."""
    ranks = [first + offset for offset in pattern.offsets]
    domains = Counter(rank // per_domain for rank in ranks)
    nodes, slots = {rank // per_node for rank in ranks}, {rank % per_node for rank in ranks}
    return len(nodes), len(domains), len(slots), min(domains.values())
