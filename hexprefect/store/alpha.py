"""The α history: every dispatch uses its newest row, in whichever process it happens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy import insert

from hexprefect.errors import CallerMistake
from hexprefect.scheduling import DispatchPolicy
from hexprefect.store import tables
from hexprefect.store.transaction import Transaction
from hexprefect.store.values import DispatchSettings


def set_alpha(
    tx: Transaction,
    alpha: float,
    *,
    reason: str,
    policy: DispatchPolicy = "normalised",
    beta: float = 1.0,
    evidence: Mapping[str, Any] | None = None,
) -> None:
    """Dispatch by this α from now on.

    Args:
        alpha: in [0, 1]: 1 is the fastest instance, 0 the emptiest queue.
        reason: a person's, or the tuner's.
        policy: the form of the score; see `hexprefect.scheduling.dispatch`.
        beta: the paper's scale between its two terms; above 0.
        evidence: what the tuner measured.

    Raises:
        CallerMistake: when α or β is outside its range.
    """
    if not 0 <= alpha <= 1:
        raise CallerMistake(f"An α of {alpha!r} makes no sense.", remedy="Give one from 0 to 1.")
    if not (math.isfinite(beta) and beta > 0):
        raise CallerMistake(f"A β of {beta!r} makes no sense.", remedy="Give one above 0.")
    tx.settings = DispatchSettings(alpha=alpha, policy=policy, beta=beta)
    tx.connection.execute(
        insert(tables.alpha_history).inline(),
        [
            {
                "alpha": alpha,
                "policy": policy,
                "beta": beta,
                "chosen_at": tx.now,
                "reason": reason,
                "evidence": dict(evidence or {}),
            }
        ],
    )
