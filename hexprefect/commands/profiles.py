"""`hexprefect instances profile` and `… learn`: what predicts durations, and how well."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table

from hexprefect.commands.fleet import Name, open_store
from hexprefect.commands.output import Json, StoreUrl, out, print_json
from hexprefect.errors import CallerMistake
from hexprefect.scheduling import Profile
from hexprefect.scheduling.profile_fitting import FitOptions, RelativeError, relative_error
from hexprefect.store import Store
from hexprefect.store.learning import Learning, Observed, learn, learn_all, observe
from hexprefect.store.profiles import LEARNED, forget_learned, pin_profile, profile_history

Hours = Annotated[
    float, typer.Option(min=0.01, max=100_000, help="How far back is looked, in hours.")
]


def profile_command(
    name: Name,
    pin: Annotated[
        bool | None,
        typer.Option(
            "--pin/--unpin", help="Hold the profile as it is, or let it be learned again."
        ),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Forget what was learned; learn from what starts now.")
    ] = False,
    hours: Hours = 24.0,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Show what predicts an instance's durations, how far it is off, and what it was before.

    The error is that of the profile on the finished requests of the window, outliers included.
    """
    with open_store(store, as_json=as_json) as opened:
        if reset:
            opened.transact(lambda tx: forget_learned(tx, name))
        if pin is not None:
            held = pin
            opened.transact(lambda tx: pin_profile(tx, name, pinned=held))
        observed = observe(opened, name, window_s=3600 * hours)
        history = opened.read(lambda connection: profile_history(connection, name))
    if as_json:
        print_json(_record(observed, history))
        return
    _show(observed)
    _show_history(history)


def learn_command(
    name: Annotated[
        str | None, typer.Argument(help="Name of the instance; all of them when left out.")
    ] = None,
    hours: Hours = 24.0,
    least: Annotated[
        int, typer.Option(min=12, help="Finished requests of an instance to learn from at least.")
    ] = FitOptions().least_requests,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Fit, but write nothing.")] = False,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Fit profiles to finished requests, as the flow `learn-profiles` does every hour."""
    options = FitOptions(least_requests=least)
    with open_store(store, as_json=as_json) as opened:
        learnings = _learn(opened, name, 3600 * hours, options, dry_run)
        if not learnings:
            raise CallerMistake(
                "The store has no instance.", remedy="Add one with `hexprefect instances add`."
            )
    if as_json:
        print_json({"dry_run": dry_run, "instances": [one.as_record() for one in learnings]})
        return
    table = Table(
        "instance", "outcome", *_SHORT.values(), "requests", "rejected", "before", "after"
    )
    for learning in learnings:
        fit = learning.fit
        profile = fit.profile if fit is not None else learning.observed.state.current
        table.add_row(
            learning.observed.state.instance,
            learning.outcome,
            *_coefficients(profile),
            str(len(learning.observed.requests)),
            str(fit.rejected) if fit else "",
            _error(fit.before) if fit else "",
            _error(fit.after) if fit else "",
        )
    out.print(table)


def _learn(
    store: Store, name: str | None, window_s: float, options: FitOptions, dry_run: bool
) -> list[Learning]:
    if name is not None:
        return [learn(store, name, window_s=window_s, options=options, dry_run=dry_run)]
    return list(learn_all(store, window_s=window_s, options=options, dry_run=dry_run))


_SHORT = {
    "fixed_s": "c ms",
    "input_s_per_token": "a ms/token",
    "output_s_per_token": "b ms/token",
    "batch_growth": "growth",
}


def _coefficients(values: Profile | dict[str, Any]) -> list[str]:
    numbers = asdict(values) if isinstance(values, Profile) else values
    return [f"{numbers[key] * (1.0 if key == 'batch_growth' else 1e3):.4g}" for key in LEARNED]


def _error(error: RelativeError | None) -> str:
    return "" if error is None else f"{error.median:.1%}, P95 {error.p95:.1%}"


def _show(observed: Observed) -> None:
    state = observed.state
    table = Table(state.instance, *_SHORT.values(), "error (median, P95)")
    described = relative_error(state.described, observed.requests) if observed.requests else None
    table.add_row("as described", *_coefficients(state.described), _error(described))
    if state.learned:
        table.add_row("as learned", *_coefficients(state.current), _error(observed.error))
    out.print(table)
    holds = "pinned" if state.pinned else "learned every hour" if state.learns else "not learned"
    out.print(f"{len(observed.requests)} finished requests in the window; the profile is {holds}.")


def _show_history(history: list[dict[str, Any]]) -> None:
    if not history:
        out.print("It has not changed yet.")
        return
    table = Table("when", "change", *_SHORT.values(), "requests", "rejected", "before", "after")
    for row in history:
        table.add_row(
            _moment(row["learned_at"]),
            row["change"],
            *_coefficients(row),
            str(row["sample"] or ""),
            str(row["rejected"] or ""),
            _error(_error_of(row, "before")),
            _error(_error_of(row, "after")),
        )
    out.print(table)


def _error_of(row: dict[str, Any], when: str) -> RelativeError | None:
    median, p95 = row[f"median_error_{when}"], row[f"p95_error_{when}"]
    return None if median is None else RelativeError(median, p95)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _record(observed: Observed, history: list[dict[str, Any]]) -> dict[str, Any]:
    state = observed.state
    return {
        "instance": state.instance,
        "described": asdict(state.described),
        "current": asdict(state.current),
        "learned": state.learned,
        "learns": state.learns,
        "pinned": state.pinned,
        "requests": len(observed.requests),
        "error": None if observed.error is None else asdict(observed.error),
        "history": history,
    }
