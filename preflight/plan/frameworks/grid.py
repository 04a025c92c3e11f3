"""Ranks as a grid, and the groups along any set of its axes: pure index arithmetic.

With the sizes s1, s2, ... of the axes listed innermost first, the stride of axis i is s1 x ... x s(i-1), and rank = sum of
coordinate x stride. A group along a set of axes is made of the ranks that agree in all other coordinates. Worked example, order
tp-dp-pp with sizes 2, 2, 2: dp has stride 2, so its groups are [0, 2] [1, 3] [4, 6] [5, 7].
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Groups = tuple[tuple[int, ...], ...]


class Layout(NamedTuple):
    """Axis -> degree; the axes innermost first; axis -> groups; name -> groups along several axes at once (Plan.composites)."""

    degrees: dict[str, int]
    order: tuple[str, ...]
    groups: dict[str, Groups]
    composites: dict[str, Groups]


class Grid:
    """All ranks of a job in one arrangement. `axes`: innermost first. `degrees`: axis -> size, for these axes at least."""

    def __init__(self, axes: Sequence[str], degrees: Mapping[str, int]) -> None:
        self.axes = tuple(axes)
        self.sizes = tuple(degrees[axis] for axis in axes)

    def stride(self, axis: str) -> int:
        """How many ranks apart two neighbours on an axis are."""
        return math.prod(self.sizes[: self.axes.index(axis)])

    def along(self, *axes: str) -> Any:
        """The groups along these axes: numpy array of ranks, (groups, members), each row ascending, the rows by their first rank."""
        import numpy as np

        ranks = np.arange(math.prod(self.sizes), dtype=np.int32).reshape(self.sizes[::-1])  # the last one is innermost
        moved = [index for index, axis in enumerate(reversed(self.axes)) if axis in axes]
        size = math.prod(ranks.shape[index] for index in moved)
        return np.moveaxis(ranks, moved, range(-len(moved), 0)).reshape(-1, size)


class GroupTable:
    """Collects groups under their names. Equal groups are converted once and shared; groups of one rank are left out."""

    def __init__(self) -> None:
        self.groups: dict[str, Groups] = {}
        self.composites: dict[str, Groups] = {}
        self._seen: dict[tuple[int, bytes], Groups] = {}

    def add(self, axis: str, members: Any) -> None:
        """The groups of an axis. `members`: ranks as (groups, members)."""
        if members.shape[1] > 1:
            self.groups[axis] = self._shared(members)

    def add_axes(self, grid: Grid, axes: Sequence[str]) -> None:
        """The groups of several axes of one grid, each alone."""
        for axis in axes:
            self.add(axis, grid.along(axis))

    def add_composites(self, grid: Grid, names: Mapping[str, Sequence[str]]) -> None:
        """Name -> groups along several axes of one grid. Left out where fewer than two of them have a degree above 1: they are that axis's groups."""
        sizes = dict(zip(grid.axes, grid.sizes, strict=True))
        for name, axes in names.items():
            if sum(sizes[axis] > 1 for axis in axes) > 1:
                self.composites[name] = self._shared(grid.along(*axes))

    def _shared(self, members: Any) -> Groups:
        key = (members.shape[1], members.tobytes())
        if key not in self._seen:
            self._seen[key] = as_groups(members)
        return self._seen[key]


def as_groups(members: Any) -> Groups:
    """Rows of ranks as tuples of plain numbers.

    zip over one iterator repeated takes as many ranks at a time as a group has, which is twice as fast as a tuple per row.
    """
    return tuple(zip(*[iter(members.ravel().tolist())] * members.shape[1], strict=True))


def by_first_rank(members: Any) -> Any:
    """Rows of ranks sorted by the first of each row."""
    return members[members[:, 0].argsort(kind="stable")]


def split(members: Any, sizes: Sequence[int]) -> list[Any]:
    """Each group cut into a grid of its own: for each level its groups, as (groups, size of the level). `sizes`: innermost first; their product
    is the size of a group.

    Worked example, one group [0..15] with sizes 2, 2, 4: [0,1] [2,3] ..., then [0,2] [1,3] [4,6] [5,7] ..., then [0,4,8,12] [1,5,9,13] ...
    """
    import numpy as np

    cut = members.reshape(-1, *sizes[::-1])
    levels = len(sizes)
    return [by_first_rank(np.moveaxis(cut, levels - level, -1).reshape(-1, size)) for level, size in enumerate(sizes)]
