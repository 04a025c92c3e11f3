"""What a collective should reach on the hardware that was found, by formula or by a profile's measured figure (pure).

`expected_of(evidence, collective, ranks, size_bytes)` for a run; `expected_of_profile(profile, ...)` where only the product is known (a log).
"""

from collections.abc import Sequence

from preflight.model.bandwidth import Collective
from preflight.model.base import Noun
from preflight.model.evidence import Evidence
from preflight.model.profile import Profile


class Expectation(Noun, frozen=True, kw_only=True):
    """busbw that healthy hardware reaches, in bytes per second; None: it can't be said, and `unknown` says why.

    `formula`: with the numbers put in ("ring ceiling 18 links x 20.6 GB/s = 371 GB/s"). `source`: where formula and constants come from. `at_least`: the share of it below which a
    figure is short. `firm`: False: a hint, on which no FAIL may rest. `may_reach`: what other algorithms (NVLS, a tree over two nodes) make of the same hardware; None: no more. A value above
    is never a fault. `unknown`: what was not read, or taken for granted, in words.
    """

    bytes_per_s: float | None
    formula: str = ""
    source: str = ""
    at_least: float = 0.9
    firm: bool = True
    may_reach: float | None = None
    unknown: tuple[str, ...] = ()

    @property
    def minimum_bytes_per_s(self) -> float | None:
        """Below this a figure is short; None: can't be said."""
        return None if self.bytes_per_s is None else self.at_least * self.bytes_per_s


def expected_of(evidence: Evidence, collective: Collective, ranks: Sequence[int], size_bytes: int) -> Expectation:
    """What this collective over these ranks of the plan should reach, from the inventory of the run.

    "send_recv" and "send" of two ranks: one direction's rate. "host_to_device", "device_to_host": of the slowest of the ranks' GPUs.
    """
    del evidence, collective, ranks, size_bytes
    return Expectation(bytes_per_s=None, unknown=("no formula yet",))


def expected_of_profile(
    profile: Profile | None,
    collective: Collective,
    *,
    gpus: int,
    nodes: int = 1,
    size_bytes: int,
    nic_bytes_per_s: float | None = None,
) -> Expectation:
    """The same where only the product is known: all its links are taken to be up, nodes to have equal shares of the `gpus`.

    `nic_bytes_per_s`: line rate of one GPU's NICs, one direction; None: not known, and nothing is said between nodes.
    """
    del profile, collective, gpus, nodes, size_bytes, nic_bytes_per_s
    return Expectation(bytes_per_s=None, unknown=("no formula yet",))
