"""The α history: every dispatch uses its newest row, in whichever process it happens.

A row is the whole policy: α with the form of the score, the order of the queues, and the depth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import insert

from hexprefect.errors import CallerMistake
from hexprefect.store import tables
from hexprefect.store.transaction import Transaction
from hexprefect.store.values import DispatchSettings


def set_alpha(
    tx: Transaction,
    alpha: float,
    *,
    reason: str,
    evidence: Mapping[str, Any] | None = None,
) -> None:
    """Dispatch by this α from now on, and order and admit as before.

    Args:
        alpha: in [0, 1]: 1 is the fastest instance, 0 the emptiest queue.
        reason: a person's, or the tuner's.
        evidence: what the tuner measured.

    Raises:
        CallerMistake: when α is outside its range.
    """
    set_policy(tx, replace(tx.settings, alpha=alpha), reason=reason, evidence=evidence)


def set_policy(
    tx: Transaction,
    settings: DispatchSettings,
    *,
    reason: str,
    evidence: Mapping[str, Any] | None = None,
) -> None:
    """Dispatch, order and admit by these settings from now on.

    What waits already keeps its place: the keys of all orders are moments, and so compare.

    Raises:
        CallerMistake: when a value is outside its range.
    """
    _check(settings)
    tx.settings = settings
    for load in tx.instances.values():
        load.learn_depth(settings.slowdown)
        tx.touch(load.name)
    tx.connection.execute(
        insert(tables.alpha_history).inline(),
        [
            {
                "alpha": settings.alpha,
                "policy": settings.policy,
                "beta": settings.beta,
                "queue_order": settings.order,
                "slowdown": settings.slowdown,
                "late_penalty": settings.late_penalty,
                "stretch": settings.stretch,
                "chosen_at": tx.now,
                "reason": reason,
                "evidence": dict(evidence or {}),
            }
        ],
    )


def _check(settings: DispatchSettings) -> None:
    if not 0 <= settings.alpha <= 1:
        raise CallerMistake(
            f"An α of {settings.alpha!r} makes no sense.", remedy="Give one from 0 to 1."
        )
    if not (math.isfinite(settings.beta) and settings.beta > 0):
        raise CallerMistake(f"A β of {settings.beta!r} makes no sense.", remedy="Give one above 0.")
    if settings.order not in tables.LIVE_ORDERS:
        raise CallerMistake(
            f"The queues of a store cannot be ordered by {settings.order!r}.",
            remedy=f"Use one of: {', '.join(tables.LIVE_ORDERS)}.",
        )
    for name, value, least in (
        ("slowdown", settings.slowdown, 1.0),
        ("late_penalty", settings.late_penalty, 0.0),
        ("stretch", settings.stretch, 0.0),
    ):
        if value is not None and not (math.isfinite(value) and value >= least):
            raise CallerMistake(
                f"A {name} of {value!r} makes no sense.", remedy=f"Give one of at least {least:g}."
            )
