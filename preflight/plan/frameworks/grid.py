"""Ranks as a grid, and the groups along any set of its axes: pure index arithmetic.

With the sizes s1, s2, ... of the axes listed innermost first, the stride of axis i is s1 x ... x s(i-1), and rank = sum of
coordinate x stride. A group along a set of axes is made of the ranks that agree in all other coordinates. Worked example, order
tp-dp-pp with sizes 2, 2, 2: dp has stride 2, so its groups are [0, 2] [1, 3] [4, 6] [5, 7].

All groups of a kind are one group moved about, so a kind is described by a few pairs (size, stride), and its groups are made of slices of one
tuple of all ranks: for 131,072 ranks as fast as numpy, whose import alone takes longer than all groups of a job.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, compress
from typing import NamedTuple

Groups = tuple[tuple[int, ...], ...]
Run = tuple[int, int]  # how many, and how many ranks apart


class Pattern:
    """Groups of one kind: `members` of a group and `firsts` (first ranks of all groups) as runs, innermost first.

    Worked example, dp above: members ((2, 2),), firsts ((2, 1), (2, 4)).
    """

    def __init__(self, members: Iterable[Run], firsts: Iterable[Run]) -> None:
        self.members, self.firsts = _merged(members), _merged(firsts)

    def __eq__(self, other: object) -> bool:
        """Equal patterns are equal groups."""
        return isinstance(other, Pattern) and (self.members, self.firsts) == (other.members, other.firsts)

    def __hash__(self) -> int:
        """Of what is compared."""
        return hash((self.members, self.firsts))

    @property
    def size(self) -> int:
        """Ranks of one group."""
        return math.prod(size for size, _ in self.members)

    @property
    def number(self) -> int:
        """How many groups there are."""
        return math.prod(size for size, _ in self.firsts)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The ranks of the first group, ascending: those of every other group are so far from its first rank."""
        return _spread(self.members)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first rank of each group, ascending."""
        return _spread(self.firsts)

    def groups(self, ranks: tuple[int, ...]) -> Groups:
        """Every group, its ranks ascending, by first rank. `ranks`: 0, 1, 2, ... up to the world size. Five ways, the quickest one for each shape."""
        size, (length, step), (width, _) = self.size, self.members[0], self.firsts[0] if self.firsts else (1, 1)
        if self.members == ((size, 1),):
            return tuple(zip(*[iter(ranks)] * size, strict=True))
        if len(self.members) == 1 and size >= width:
            return tuple([ranks[start : start + size * step : step] for start in self.starts])
        # nanoseconds per rank, as measured: 8 to look at one under a mask, 250 for a slice, 1000 for a zip, 60 for a piece
        if size * 8 < (1000 + 250 * size) / (width * size):
            return self._by_masks(ranks)
        if width >= length or step > 1:
            return self._by_columns(ranks)
        if self.offsets[-1] * 8 < size * (10 + 60 / length):
            mask = _mask(self.members)
            return tuple([tuple(compress(ranks[start : start + len(mask)], mask)) for start in self.starts])
        offsets = _spread(self.members[1:])  # pieces of consecutive ranks, put together
        pieces = [[ranks[start + offset : start + offset + length] for offset in offsets] for start in self.starts]
        return tuple([tuple(chain.from_iterable(some)) for some in pieces])

    def _by_columns(self, ranks: tuple[int, ...]) -> Groups:
        """As many groups at once as have first ranks evenly apart: the n-th members of all of them are evenly apart too."""
        (width, step), offsets = self.firsts[0], self.offsets
        blocks = [
            zip(*[ranks[start + offset : start + offset + width * step : step] for offset in offsets], strict=True)
            for start in _spread(self.firsts[1:])
        ]
        return tuple(chain.from_iterable(blocks))

    def _by_masks(self, ranks: tuple[int, ...]) -> Groups:
        """All groups at once: the n-th members of all groups are the ranks under a mask, moved by the n-th offset."""
        mask = _mask(self.firsts)
        return tuple(zip(*[compress(ranks[offset:], mask) for offset in self.offsets], strict=True))

    def only_ends(self) -> "Pattern":
        """The first and the last member of each group."""
        return Pattern([(2, self.offsets[-1])], self.firsts)

    def split(self, sizes: Sequence[int]) -> list["Pattern"]:
        """Each group, whose members are evenly apart, cut into a grid of its own: the pattern of each level. `sizes`: innermost first, their product
        is the size of a group.

        Worked example, one group [0..15] with sizes 2, 2, 4: [0,1] [2,3] ..., then [0,2] [1,3] [4,6] [5,7] ..., then [0,4,8,12] [1,5,9,13] ...
        """
        step = self.members[0][1] if self.members else 1
        levels = [(size, step * math.prod(sizes[:level])) for level, size in enumerate(sizes)]
        return [
            Pattern([level], [*self.firsts, *(other for other in levels if other is not level)]) for level in levels
        ]


def _merged(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Runs by stride, those of one left out, those that go on where the one before ends joined with it."""
    merged: list[Run] = []
    for size, step in sorted((run for run in runs if run[0] > 1), key=lambda run: run[1]):
        if merged and merged[-1][0] * merged[-1][1] == step:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, step))
    return tuple(merged)


def _mask(runs: Iterable[Run]) -> bytes:
    """1 at each place that the runs name, 0 between them."""
    mask = b"\1"
    for size, step in runs:
        mask = mask.ljust(step, b"\0") * size
    return mask


def _spread(runs: Iterable[Run]) -> tuple[int, ...]:
    """All sums of one place of each run, ascending; each run is longer than those before it together, as in a grid."""
    places: tuple[int, ...] = (0,)
    for size, step in runs:
        outer = range(0, size * step, step)
        places = tuple(outer) if places == (0,) else tuple([place + more for more in outer for place in places])
    return places


class Layout(NamedTuple):
    """Axis -> degree; the axes innermost first; axis -> groups; name -> groups along several axes at once (Plan.composites); axis -> pattern of its
    groups, where they have one.
    """

    degrees: dict[str, int]
    order: tuple[str, ...]
    groups: dict[str, Groups]
    composites: dict[str, Groups]
    patterns: dict[str, Pattern]


class Grid:
    """All ranks of a job in one arrangement. `axes`: innermost first. `degrees`: axis -> size, for these axes at least."""

    def __init__(self, axes: Sequence[str], degrees: Mapping[str, int]) -> None:
        self.axes = tuple(axes)
        self.sizes = tuple(degrees[axis] for axis in axes)

    def stride(self, axis: str) -> int:
        """How many ranks apart two neighbours on an axis are."""
        return math.prod(self.sizes[: self.axes.index(axis)])

    def along(self, *axes: str) -> Pattern:
        """The groups along these axes."""
        runs = {axis: (size, self.stride(axis)) for axis, size in zip(self.axes, self.sizes, strict=True)}
        return Pattern([runs[axis] for axis in axes], [run for axis, run in runs.items() if axis not in axes])


class GroupTable:
    """Collects groups under their names. Equal groups are made once and shared; groups of one rank are left out."""

    def __init__(self, world_size: int) -> None:
        self._ranks = tuple(range(world_size))
        self._seen: dict[Pattern, Groups] = {}
        self._groups: dict[str, Groups] = {}
        self._composites: dict[str, Groups] = {}
        self._patterns: dict[str, Pattern] = {}

    def add(self, axis: str, pattern: Pattern) -> None:
        """The groups of an axis."""
        if pattern.size > 1:
            self._groups[axis] = self.made(pattern)
            self._patterns[axis] = pattern

    def add_groups(self, axis: str, groups: Iterable[Iterable[int]]) -> None:
        """Groups of an axis that have no pattern, in any order."""
        rows = sorted(tuple(sorted(ranks)) for ranks in groups)
        if len(rows[0]) > 1:
            self._groups[axis] = tuple(rows)

    def add_axes(self, grid: Grid, axes: Iterable[str]) -> None:
        """The groups of several axes of one grid, each alone."""
        for axis in axes:
            self.add(axis, grid.along(axis))

    def add_composites(self, grid: Grid, names: Mapping[str, Sequence[str]]) -> None:
        """Name -> groups along several axes of one grid. Left out where fewer than two of them have a degree above 1: they are that axis's groups."""
        sizes = dict(zip(grid.axes, grid.sizes, strict=True))
        for name, axes in names.items():
            if sum(sizes[axis] > 1 for axis in axes) > 1:
                self._composites[name] = self.made(grid.along(*axes))

    def made(self, pattern: Pattern) -> Groups:
        """The groups of a pattern, made once."""
        if pattern not in self._seen:
            self._seen[pattern] = pattern.groups(self._ranks)
        return self._seen[pattern]

    def layout(self, degrees: dict[str, int], order: tuple[str, ...]) -> Layout:
        """All that was collected."""
        return Layout(degrees, order, self._groups, self._composites, self._patterns)
