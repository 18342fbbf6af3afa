"""Learned profiles: what finished requests say of an instance, and the history of its profile.

An instance has the profile that it was described with, and from its first fit on the coefficients
that were learned; dispatch uses these. They are kept beside the description, so that reading the
description again (a worker does so every few seconds) does not undo what was learned. They are
forgotten when the description names other hardware or another model, or says not to learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, null, select, update

from hexprefect.scheduling import Profile
from hexprefect.scheduling.profile_fitting import Fit, Run
from hexprefect.store import tables
from hexprefect.store.load import profile_of
from hexprefect.store.transaction import Transaction
from hexprefect.store.values import UnknownInstance

MOST_RUNS = 2000
"""The newest requests of an instance that a profile is learned from: what it does now, not what it
did before its driver was changed."""

LEARNED = ("fixed_s", "input_s_per_token", "output_s_per_token", "batch_growth")
"""What of a profile is learned; its name and its KV tokens are the description's."""

Record = dict[str, Any]

_attempt = tables.attempts.c
_request = tables.requests.c
_instance = tables.instances.c

_uncached = func.coalesce(
    _request.actual_input_tokens - func.coalesce(_request.cached_tokens, 0), _request.input_tokens
)
"""Input tokens that were computed; of an unfinished request, all that it was thought to have."""

_last_finished = (_attempt.outcome == "finished") & (_attempt.number == _request.attempt)
"""A request that was opened again has the lengths of its last attempt only."""


@dataclass(frozen=True, slots=True)
class ProfileState:
    """An instance's profile, and whether it may be learned."""

    instance: str
    described: Profile
    """As the operator or the work pool says."""
    current: Profile
    """What dispatch uses."""
    learned: bool
    """Whether `current` was learned."""
    learns: bool
    """Whether the description lets it be learned."""
    pinned: bool
    """Whether an operator holds it as it is."""
    since: float
    """Requests that started before this moment are of another engine; epoch seconds."""


def profile_states(connection: Connection) -> dict[str, ProfileState]:
    """Of every instance in the store, by name, in ascending order."""
    rows = connection.execute(select(tables.instances).order_by(_instance.name))
    return {row.name: _state(row._mapping) for row in rows}


def profile_state(connection: Connection, name: str) -> ProfileState:
    """Of one instance.

    Raises:
        UnknownInstance: when there is none of this name.
    """
    row = connection.execute(select(tables.instances).where(_instance.name == name)).first()
    if row is None:
        raise _unknown(name, connection.execute(select(_instance.name)).scalars().all())
    return _state(row._mapping)


def profile_history(connection: Connection, name: str, *, most: int = 20) -> list[Record]:
    """What an instance's profile became, newest first."""
    history = tables.profile_history
    rows = connection.execute(
        select(history).where(history.c.instance == name).order_by(history.c.id.desc()).limit(most)
    )
    return [row._asdict() for row in rows]


def runs_on(
    connection: Connection, name: str, *, since: float = 0.0, most: int = MOST_RUNS
) -> list[Run]:
    """What ran on an instance lately: the newest finished requests, and all that was beside them.

    Args:
        since: requests that started before this moment are left out; epoch seconds.
        most: finished requests at most.
    """
    finished = connection.execute(
        select(_attempt.started_at)
        .where(*_ran(name, since), _attempt.outcome == "finished")
        .order_by(_attempt.id.desc())
        .limit(most)
    )
    earliest = min(finished.scalars().all(), default=None)
    if earliest is None:
        return []
    ended = connection.execute(
        select(
            _attempt.started_at,
            _attempt.ended_at,
            _uncached.label("uncached"),
            _request.actual_output_tokens,
            _last_finished.label("finished"),
        )
        .join(tables.requests, _request.id == _attempt.request_id)
        .where(*_ran(name, max(since, earliest)))
        .order_by(_attempt.id)
    ).all()
    latest = max(row.ended_at for row in ended)
    running = connection.execute(
        select(_request.started_at, _request.input_tokens).where(
            _request.instance == name,
            _request.state == "running",
            _request.started_at < latest,
        )
    )
    return [
        Run(
            row.started_at,
            row.ended_at,
            row.uncached,
            row.actual_output_tokens if row.finished else None,
        )
        for row in ended
    ] + [Run(row.started_at, latest, row.input_tokens, None) for row in running]


def enter_learned(tx: Transaction, name: str, fit: Fit) -> bool:
    """Use a fitted profile from the next dispatch on; whether it may be used.

    It may not where an operator has pinned the profile, or its description says not to learn: that
    may have changed while the fit was made.

    Raises:
        UnknownInstance: when there is none of this name.
    """
    state = _stored(tx, name)
    if state.pinned or not state.learns:
        return False
    learned = {key: getattr(fit.profile, key) for key in LEARNED}
    _set(tx, name, learned_profile=learned)
    _remember(
        tx,
        name,
        "learned",
        sample=fit.sample,
        rejected=fit.rejected,
        median_error_before=fit.before.median,
        p95_error_before=fit.before.p95,
        median_error_after=fit.after.median,
        p95_error_after=fit.after.p95,
    )
    return True


def forget_learned(tx: Transaction, name: str) -> None:
    """Use the described profile again, and learn from what starts from now on.

    Raises:
        UnknownInstance: when there is none of this name.
    """
    _stored(tx, name)
    _set(tx, name, learned_profile=null(), profile_since=tx.now)
    _remember(tx, name, "reset")


def pin_profile(tx: Transaction, name: str, *, pinned: bool) -> None:
    """Hold the profile as it is, or let it be learned again.

    Raises:
        UnknownInstance: when there is none of this name.
    """
    if _stored(tx, name).pinned != pinned:
        _set(tx, name, profile_pinned=pinned)
        _remember(tx, name, "pinned" if pinned else "released")


def _ran(name: str, since: float) -> Sequence[Any]:
    return (
        _attempt.instance == name,
        _attempt.started_at.is_not(None),
        _attempt.started_at >= since,
    )


def _state(row: Mapping[Any, Any]) -> ProfileState:
    return ProfileState(
        instance=row["name"],
        described=Profile(**row["profile"]),
        current=profile_of(row),
        learned=row["learned_profile"] is not None,
        learns=row["learn_profile"],
        pinned=row["profile_pinned"],
        since=row["profile_since"] or 0.0,
    )


def _stored(tx: Transaction, name: str) -> ProfileState:
    if name not in tx.instances:
        raise _unknown(name, tuple(tx.instances))
    return profile_state(tx.connection, name)


def _set(tx: Transaction, name: str, **columns: Any) -> None:
    tx.connection.execute(update(tables.instances).where(_instance.name == name).values(**columns))
    tx.instances[name].profile = profile_state(tx.connection, name).current


def _remember(tx: Transaction, name: str, change: str, **columns: Any) -> None:
    current = tx.instances[name].profile
    tx.connection.execute(
        insert(tables.profile_history).inline(),
        [
            {
                "instance": name,
                "learned_at": tx.now,
                "change": change,
                **{key: getattr(current, key) for key in LEARNED},
                "sample": 0,
                "rejected": 0,
                **columns,
            }
        ],
    )


def _unknown(name: str, known: Sequence[str]) -> UnknownInstance:
    return UnknownInstance(
        f"No instance {name!r}.", remedy=f"Known: {', '.join(sorted(known)) or 'none'}."
    )
