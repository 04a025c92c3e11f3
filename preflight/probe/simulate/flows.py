"""How flows that run at the same time share capacities: max-min fairness.

A rate is max-min fair if no flow can get more without taking from one that has as little or less (Bertsekas, Gallager: Data Networks, section 6.5). TCP and the
congestion control of InfiniBand and RoCE only come near to it; which of two contending flows gets how much on real hardware is not modelled.

Method: exact progressive filling, with all bottlenecks of a step frozen at once. What makes that exact: a flow's rate is at least the smallest of its own limit and of
(capacity left / flows left) over the resources that it crosses, since a resource is never shared less evenly than equally. So (1) a flow whose own limit is the smallest of these has
its limit, and (2) on a resource whose equal share is the smallest for all its flows each of them has that share. A step freezes all flows of both kinds, at least those of one resource.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EXACTLY = 1e-9  # relative: below it two rates are one


class Crossings(NamedTuple):
    """Which flow crosses which resource, one entry for each; by flow, in ascending order. `weight`: how much of the resource one unit of the flow's rate takes, above 0."""

    flow: "NDArray[np.int64]"
    resource: "NDArray[np.int64]"
    weight: "NDArray[np.float64]"

    def where(self, mask: "NDArray[np.bool_]") -> "Crossings":
        """Some of them."""
        return Crossings(self.flow[mask], self.resource[mask], self.weight[mask])


def fair_rates(
    capacity: "NDArray[np.float64]", crossings: Crossings, limit: "NDArray[np.float64]"
) -> "NDArray[np.float64]":
    """The max-min fair rate of each flow.

    `capacity`: of each resource, 0 or more. `limit`: what each flow can do by itself, more than 0. All in one unit. shape: (resources,), (flows,) -> (flows,)

    Example: flows A and B on a link of 10, B and C on one of 4: B and C get 2, A gets 8.
    """
    import numpy as np

    rate = limit.astype(np.float64)
    taken = np.bincount(crossings.resource, crossings.weight * rate[crossings.flow], minlength=capacity.size)
    full = taken > capacity * (1 + EXACTLY)  # no other resource can ever be full: nobody does more than they can
    crossings = crossings.where(full[crossings.resource])
    if not crossings.flow.size:
        return rate
    left = capacity.astype(np.float64)
    while crossings.flow.size:
        frozen = _step(left, crossings, limit, rate)
        left -= np.bincount(
            crossings.resource,
            np.where(frozen[crossings.flow], crossings.weight * rate[crossings.flow], 0.0),
            minlength=left.size,
        )
        crossings = crossings.where(~frozen[crossings.flow])
    return rate


def _step(
    left: "NDArray[np.float64]", crossings: Crossings, limit: "NDArray[np.float64]", rate: "NDArray[np.float64]"
) -> "NDArray[np.bool_]":
    """Set the rates of the flows that can be told now. Gives which those are. shape: (flows,)"""
    import numpy as np

    flow, resource, weight = crossings
    total = np.bincount(resource, weight, minlength=left.size)
    share = np.full(left.size, np.inf)
    np.divide(np.maximum(left, 0.0), total, out=share, where=total > 0)
    offers = share[resource]
    starts = np.flatnonzero(np.diff(flow, prepend=-1))
    least = limit.copy()
    least[flow[starts]] = np.minimum(np.minimum.reduceat(offers, starts), limit[flow[starts]])
    tight = offers <= least[flow] * (1 + EXACTLY)  # this resource is what holds this flow back
    held = np.bincount(resource, weight * tight, minlength=left.size)
    bottleneck = held >= total * (1 - EXACTLY)
    frozen = np.zeros(limit.size, np.bool_)
    frozen[flow] = limit[flow] <= least[flow] * (1 + EXACTLY)
    frozen[flow[tight & bottleneck[resource]]] = True
    rate[frozen] = least[frozen]
    return frozen
