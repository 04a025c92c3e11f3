"""Who meets whom in which round, over plain numbers (pure)."""

from math import gcd


def num_circle_rounds(num_players: int) -> int:
    """How many rounds it takes until all have met all: n - 1, n if odd (one rests in each); 0 below two players."""
    return 0 if num_players < 2 else num_players - 1 + num_players % 2


def circle_round(num_players: int, turn: int) -> list[tuple[int, int]]:
    """One round of the circle method: fix the last player, rotate the others by one place each round, pair opposite places. Lower number first.

    >>> circle_round(4, 1)
    [(1, 3), (0, 2)]
    """
    even = num_players + num_players % 2
    pairs = [(turn, even - 1)]
    pairs += [((turn + k) % (even - 1), (turn - k) % (even - 1)) for k in range(1, even // 2)]
    return [(min(pair), max(pair)) for pair in pairs if max(pair) < num_players]


def circle_rounds(num_players: int) -> list[list[tuple[int, int]]]:
    """All pairs of num_players in rounds of disjoint pairs: n-1 rounds, n if odd (one rests in each).

    >>> circle_rounds(4)
    [[(0, 3), (1, 2)], [(1, 3), (0, 2)], [(2, 3), (0, 1)]]
    """
    return [circle_round(num_players, turn) for turn in range(num_circle_rounds(num_players))]


def crossing_round(left: int, right: int, turn: int) -> list[tuple[int, int]]:
    """One of max(left, right) rounds in which all of one side meet all of the other: (number on the left, number on the right).

    The smaller side is always busy; consecutive rounds reach those of the larger side that rested.

    >>> [crossing_round(3, 2, turn) for turn in range(3)]
    [[(0, 0), (1, 1)], [(2, 0), (0, 1)], [(1, 0), (2, 1)]]
    """
    large, small = max(left, right), min(left, right)
    if small == 0 or turn >= large:
        return []
    shift = (turn * small + turn // (large // gcd(large, small))) % large
    pairs = [((j + shift) % large, j) for j in range(small)]
    return pairs if left >= right else [(b, a) for a, b in pairs]
