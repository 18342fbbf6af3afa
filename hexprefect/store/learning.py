"""Learning the profiles of a store's instances: look, fit, and write what predicts better.

The fit itself takes no lock: it works on what was read, and its result is written only where an
operator has not said otherwise meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hexprefect.scheduling.profile_fitting import (
    FinishedRequest,
    Fit,
    FitOptions,
    RelativeError,
    TooFewRequests,
    finished_requests,
    fit_profile,
    relative_error,
)
from hexprefect.store.profiles import (
    LEARNED,
    ProfileState,
    enter_learned,
    profile_state,
    profile_states,
    runs_on,
)
from hexprefect.store.store import Store

WINDOW_S = 24 * 3600.0
"""How far back is looked: a day has every hour's load in it."""


@dataclass(frozen=True, slots=True)
class Observed:
    """An instance's profile, and the finished requests that it is judged by."""

    state: ProfileState
    requests: tuple[FinishedRequest, ...]
    """Of the window, in the order of their ends."""

    @property
    def error(self) -> RelativeError | None:
        """How far the present profile is off on them; `None` where there are none."""
        return relative_error(self.state.current, self.requests) if self.requests else None


@dataclass(frozen=True, slots=True)
class Learning:
    """What one attempt to learn an instance's profile came to."""

    observed: Observed
    fit: Fit | None
    """`None` where too few requests have finished, or the profile is not to be learned."""
    entered: bool
    """Whether dispatch uses the fit from now on."""
    outcome: str
    """In words."""

    def as_record(self) -> dict[str, Any]:
        """Plain values, without the requests themselves."""
        state, fit = self.observed.state, self.fit
        return {
            "instance": state.instance,
            "entered": self.entered,
            "outcome": self.outcome,
            "requests": len(self.observed.requests),
            "before": {key: getattr(state.current, key) for key in LEARNED},
            "fitted": None if fit is None else {key: getattr(fit.profile, key) for key in LEARNED},
            "sample": 0 if fit is None else fit.sample,
            "rejected": 0 if fit is None else fit.rejected,
            "checked": 0 if fit is None else fit.checked,
            "error_before": None if fit is None else asdict(fit.before),
            "error_after": None if fit is None else asdict(fit.after),
        }


def observe(store: Store, name: str, *, window_s: float = WINDOW_S) -> Observed:
    """An instance's profile, and what finished there in the last `window_s` seconds.

    Raises:
        UnknownInstance: when there is none of this name.
    """
    now = store.now()

    def look(connection: Any) -> Observed:
        state = profile_state(connection, name)
        runs = runs_on(connection, name, since=max(state.since, now - window_s))
        return Observed(state, tuple(finished_requests(runs)))

    return store.read(look)


def learn(
    store: Store,
    name: str,
    *,
    window_s: float = WINDOW_S,
    options: FitOptions | None = None,
    dry_run: bool = False,
) -> Learning:
    """Fit one instance's profile, and use it where it predicts better than the present one.

    Args:
        window_s: seconds that are looked back.
        dry_run: fit, but write nothing.

    Raises:
        UnknownInstance: when there is none of this name.
    """
    observed = observe(store, name, window_s=window_s)
    state = observed.state
    if state.pinned or not state.learns:
        why = "pinned by an operator" if state.pinned else "its description says not to learn"
        return Learning(observed, None, False, f"not learned: {why}")
    try:
        fit = fit_profile(state.current, observed.requests, options)
    except TooFewRequests as few:
        return Learning(observed, None, False, f"not learned: {few.problem}")
    if not fit.improves:
        return Learning(observed, fit, False, "kept: the present profile predicts as well")
    if dry_run:
        return Learning(observed, fit, False, "would be learned")
    entered = store.transact(lambda tx: enter_learned(tx, name, fit))
    return Learning(observed, fit, entered, "learned" if entered else "pinned meanwhile")


def learn_all(
    store: Store,
    *,
    window_s: float = WINDOW_S,
    options: FitOptions | None = None,
    dry_run: bool = False,
) -> Sequence[Learning]:
    """`learn`, for every instance in the store, by name."""
    return [
        learn(store, name, window_s=window_s, options=options, dry_run=dry_run)
        for name in store.read(profile_states)
    ]
