"""How sure a share is, and whether two runs differ: exact, without assumptions on large numbers."""

from __future__ import annotations

import math
from fractions import Fraction

_Z_95 = 1.959963984540054


def wilson_interval(right: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share after Wilson (1927), which holds near 0 and 1, too.

    Args:
        right: how many were right.
        of: of how many; 0 tells nothing: 0 to 1.
    """
    if of == 0:
        return 0.0, 1.0
    share, z2 = right / of, _Z_95**2
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = _Z_95 / (1 + z2 / of) * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    return max(0.0, middle - half), min(1.0, middle + half)


def mcnemar_exact(wins: int, losses: int) -> float:
    """The two-sided p of McNemar's test, by the binomial distribution.

    The chance to see wins and losses at least as unequal when neither of two runs is better:
    questions that both got right or both wrong tell nothing.
    """
    discordant = wins + losses
    if discordant == 0:
        return 1.0
    fewer = min(wins, losses)
    tail = sum(math.comb(discordant, count) for count in range(fewer + 1))
    return float(min(Fraction(1), Fraction(tail, 2 ** (discordant - 1))))
