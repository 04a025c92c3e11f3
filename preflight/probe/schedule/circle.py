"""The circle method: who meets whom in which round, over plain numbers (pure)."""


def circle_rounds(num_players: int) -> list[list[tuple[int, int]]]:
    """All pairs of num_players in rounds of disjoint pairs: n-1 rounds, n if odd (one rests in each).

    Fix the last player, rotate the others by one place each round, pair opposite places (the circle method).

    >>> circle_rounds(4)
    [[(0, 3), (1, 2)], [(1, 3), (0, 2)], [(2, 3), (0, 1)]]
    """
    if num_players < 2:
        return []
    even = num_players + num_players % 2
    rounds = []
    for turn in range(even - 1):
        pairs = [(turn, even - 1)]
        pairs += [((turn + k) % (even - 1), (turn - k) % (even - 1)) for k in range(1, even // 2)]
        rounds.append([(min(pair), max(pair)) for pair in pairs if max(pair) < num_players])
    return rounds
