"""How nodes hang together: switch tiers, rails and NVLink domains. Lists run closest-first (leaf, spine, core)."""

from preflight.model.base import Noun


class Topology(Noun, frozen=True, kw_only=True):
    """Named sets. A part that nobody told us about is None, not empty.

    `switches`: node name -> the switches above it, closest first. `rails`: rail name -> "node/nic" members.
    `nvlink_domains`: domain -> GPU UUIDs. `node_domains`: node name -> NVLink domain, from a file that knows nodes only. `racks`: node name -> rack.
    `blocks`: node name -> Slurm block (or capacity block), which is an NVLink domain only on machines whose NVLink joins nodes, such as NVL72.
    `source`: the file it comes from.
    """

    switches: dict[str, tuple[str, ...]] | None = None
    rails: dict[str, tuple[str, ...]] | None = None
    nvlink_domains: dict[str, tuple[str, ...]] | None = None
    node_domains: dict[str, str] | None = None
    racks: dict[str, str] | None = None
    blocks: dict[str, str] | None = None
    source: str | None = None

    def leaf_of(self, node: str) -> str | None:
        """The leaf switch of a node, None if unknown."""
        above = (self.switches or {}).get(node, ())
        return above[0] if above else None
