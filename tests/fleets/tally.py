"""The scores of many fleets taken together, the targets that they are held against, and the tables for people."""

from collections import Counter
from collections.abc import Iterable

from tests.fleets.score import Score

FATES = ("exact", "listed", "wrong", "missed")
EXCLUDED = ("not crossed", "below the floor", "hidden", "no reference")
GROUPS = {
    "GPU, NIC, slot, node": ("gpu", "nic", "slot", "node"),
    "uplink, path, direction": (
        *("uplink", "way out of a leaf", "share of an uplink", "path"),
        *("nic one way", "node one way", "uplink one way"),
    ),
    "pair": ("link",),
}
TARGETS = {"GPU, NIC, slot, node": 0.995, "uplink, path, direction": 0.98, "pair": 0.90}
MAX_WRONG_MEMBERS = 0.005


class Tally:
    """Sums over fleets. `blamed`: fleets in which anything was blamed; `innocents`: fleets in which a healthy GPU, NIC, node, slot or pair was."""

    def __init__(self, scores: Iterable[Score] = ()) -> None:
        self.fates: Counter[tuple[str, str]] = Counter()
        self.culprits: Counter[tuple[str, str]] = Counter()
        self.fleets = self.blamed = self.innocents = self.members = self.wrong_members = self.unidentified = 0
        for one in scores:
            self.add(one)

    def add(self, one: Score) -> None:
        self.fleets += 1
        self.fates.update(one.faults)
        self.culprits.update(one.blamed)
        self.members += one.members
        self.wrong_members += one.wrong_members
        self.unidentified += one.unidentified
        self.blamed += bool(one.blamed)
        self.innocents += any(what == "innocent" for _, what in one.blamed)

    def counted(self, kinds: Iterable[str]) -> dict[str, int]:
        kinds = tuple(kinds)
        return {fate: sum(self.fates[kind, fate] for kind in kinds) for fate in (*FATES, *EXCLUDED)}

    def rate(self, group: str) -> float | None:
        """The share named exactly of the faults of a group that count; None: there was none."""
        counts = self.counted(GROUPS[group])
        all_that_count = sum(counts[fate] for fate in FATES)
        return counts["exact"] / all_that_count if all_that_count else None

    @property
    def wrong_member_share(self) -> float:
        return self.wrong_members / self.members if self.members else 0.0

    def table(self) -> str:
        """By kind: what became of the faults."""
        heads = (*FATES, *EXCLUDED)
        lines = [f"{'fault':24} {'exactly':>8}  " + "  ".join(heads)]
        for group, kinds in GROUPS.items():
            for name in (group, *kinds) if len(kinds) > 1 else (group,):
                counts = self.counted(kinds if name == group else (name,))
                told = sum(counts[fate] for fate in FATES)
                share = f"{counts['exact'] / told:8.2%}" if told else f"{'-':>8}"
                figures = "  ".join(f"{counts[head]:{len(head)}d}" for head in heads)
                lines.append(f"{name if name == group else '  ' + name:24} {share}  {figures}")
        blames = ", ".join(
            f"{count} {what} ({kind})" for (kind, what), count in sorted(self.culprits.items()) if what != "exact"
        )
        lines += [
            f"{self.fleets} fleets; {self.blamed} with any blame, {self.innocents} with a healthy part blamed; blamed but not exact: {blames or 'nothing'}",
            f"{self.wrong_members} wrong of {self.members} members of sets ({self.wrong_member_share:.2%}); {self.unidentified} said to be not identifiable",
        ]
        return "\n".join(lines)
