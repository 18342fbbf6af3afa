"""`tune-alpha/hourly`: replay the last window in the simulator, and dispatch by the best α.

Running dispatchers take the newest row of the α history at their next dispatch; nothing is
restarted. `watch_alpha` tunes only when the window's P95 has worsened.
"""

import asyncio
import time
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from prefect import flow
from prefect.artifacts import acreate_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from hexprefect.errors import HexprefectError
from hexprefect.settings import settings
from hexprefect.simulator.arrivals import parse_arrivals
from hexprefect.simulator.experiment import Experiment
from hexprefect.simulator.policies import Policy, named_policy
from hexprefect.simulator.recorded import NothingRecorded, Window, read_cluster, read_window
from hexprefect.simulator.tuner import Objective, Point, Tuning, tune
from hexprefect.store import tables
from hexprefect.store.alpha import set_policy
from hexprefect.store.opening import open_current
from hexprefect.store.store import Store
from hexprefect.store.values import DispatchSettings

MOST_QUERIES = 300
"""Queries of a window at most: enough for a P95, and seconds of tuning."""

WindowHours = Annotated[float, Field(gt=0)]


@flow(
    name="tune-alpha",
    description="Replay the last queries over a grid of α and write the best into the α history.",
)
async def tune_alpha(
    store_url: str | None = None,
    window_hours: WindowHours = 24.0,
    objective: Objective = "p95",
    jointly: bool = False,
    dry_run: bool = False,
) -> State[dict[str, Any]]:
    """Tune α on a window of the store, or α with the rest of its policy.

    Args:
        store_url: URL of the store; HEXPREFECT_STORE when left out.
        window_hours: How far the window of finished queries reaches back, in hours.
        objective: What is made best: p95 (the 95th percentile of the latencies), attainment (the
            fraction of queries in time) or mean.
        jointly: Tune order, depth and overload policy together with α.
        dry_run: Choose and show the curve, but write nothing.

    Returns:
        Completed with the choice and the curve. Completed with the name `NothingToTune` when the
        window is too small, or nothing was better than the present policy; then nothing is written.
        Where round-robin was better than every α, which no store can dispatch by, the choice is
        still the best of them, and the message says so.
    """
    try:
        store = await asyncio.to_thread(_open_store, store_url)
    except HexprefectError as mistake:
        return Failed(message=str(mistake))
    try:
        since = time.time() - 3600 * window_hours
        try:
            window, tuning = await asyncio.to_thread(_tune, store, since, objective, jointly)
        except NothingRecorded as nothing:
            return Completed(name="NothingToTune", message=str(nothing), data={"tuned": False})
        except HexprefectError as mistake:
            return Failed(message=str(mistake))
        await acreate_markdown_artifact(
            curve_markdown(window, tuning, jointly=jointly),
            key="alpha-curve",
            description=f"P95 over α on the last {len(window.queries)} queries.",
        )
        return await _follow(store, window, tuning, dry_run=dry_run)
    finally:
        await asyncio.to_thread(store.close)


@flow(
    name="watch-alpha",
    description="Tune α when the P95 of the last window is worse than that of the one before.",
)
async def watch_alpha(
    store_url: str | None = None,
    window_hours: WindowHours = 1.0,
    worse_by: Annotated[float, Field(gt=0)] = 0.2,
) -> State[dict[str, Any]]:
    """Compare two windows of finished queries, and run `tune-alpha` when the newer is worse.

    Args:
        store_url: URL of the store; HEXPREFECT_STORE when left out.
        window_hours: Length of each of the two windows, in hours; the newer ends now.
        worse_by: By which fraction the P95 must have worsened: 0.2 is a fifth.

    Returns:
        Completed with what the tuning did. Completed with the name `NothingToCompare` when there
        are no two windows with answered queries.
    """
    try:
        store = await asyncio.to_thread(_open_store, store_url)
    except HexprefectError as mistake:
        return Failed(message=str(mistake))
    try:
        now = time.time()
        before, after = await asyncio.to_thread(_two_windows, store, now, 3600 * window_hours)
    except NothingRecorded as nothing:
        return Completed(name="NothingToCompare", message=str(nothing), data={"tuned": False})
    finally:
        await asyncio.to_thread(store.close)
    if not worsened(before, after, worse_by=worse_by):
        return Completed(message="The P95 has not worsened.", data={"tuned": False})
    state: Any = await tune_alpha(
        store_url=store_url, window_hours=2 * window_hours, return_state=True
    )
    return Completed(
        message=f"The P95 has worsened: {state.message}",
        data=await state.aresult(raise_on_failure=False),
    )


def policy_of(settings: DispatchSettings) -> Policy:
    """What the store does under these settings, as the simulator's policy."""
    return replace(
        named_policy("hexprefect"),
        alpha=settings.alpha,
        beta=settings.beta,
        dispatch=settings.policy,
        order=settings.order,
        slowdown=settings.slowdown,
        late_penalty=settings.late_penalty,
        stretch=settings.stretch,
    )


def settings_of(policy: Policy, before: DispatchSettings) -> DispatchSettings:
    """The inverse of `policy_of`; the form of the score is not tuned, and stays."""
    return replace(
        before,
        alpha=policy.alpha,
        order=policy.order,
        slowdown=policy.slowdown,
        late_penalty=policy.late_penalty,
        stretch=policy.stretch,
    )


def worsened(before: Window, after: Window, *, worse_by: float) -> bool:
    """Whether the newer window's P95 is worse than the older one's by more than a fraction."""
    return p95(after) > (1.0 + worse_by) * p95(before)


def p95(window: Window) -> float:
    """95th percentile of the latencies that queries really had, in seconds."""
    return float(np.percentile(window.latency_s, 95))


def curve_markdown(window: Window, tuning: Tuning, *, jointly: bool = False) -> str:
    """The points as a table in the order of α, the choice and the present policy marked.

    Args:
        window: what was replayed.
        tuning: what was found.
        jointly: whether to show what else differs between the points.
    """

    def line(point: Point) -> str:
        return "| " + " | ".join([*_names(point, tuning), *_figures(point, jointly)]) + " |"

    columns = ["α", "", *(_JOINT_COLUMNS if jointly else ()), "P95 s", "mean s", "SLO attainment"]
    points = sorted(tuning.points, key=lambda point: (point.policy.tunes_alpha, point.policy.alpha))
    return "\n".join(
        [
            f"{len(window.queries)} queries at {window.rate:.3g} a second, replayed.",
            *(["", _round_robin_note(tuning)] if tuning.round_robin_wins else []),
            "",
            f"| {' | '.join(columns)} |",
            "| --- " * len(columns) + "|",
            *map(line, points),
        ]
    )


_JOINT_COLUMNS = ("order", "slowdown", "late penalty", "stretch")


def _names(point: Point, tuning: Tuning) -> tuple[str, str]:
    marks = ["← chosen"] if point.policy == tuning.best_tuned.policy else []
    if point.policy == tuning.present.policy:
        marks.append("present")
    alpha = f"{point.policy.alpha:g}" if point.policy.tunes_alpha else "round-robin"
    return alpha, ", ".join(marks)


def _figures(point: Point, jointly: bool) -> list[str]:
    policy = point.policy
    differing: list[str] = []
    if jointly:
        limits = (policy.slowdown, policy.late_penalty, policy.stretch)
        differing = [policy.order, *("none" if each is None else f"{each:g}" for each in limits)]
    return [
        *differing,
        f"{point.p95_s:.2f}",
        f"{point.mean_s:.2f}",
        f"{100 * point.slo_attainment:.1f} %",
    ]


def _round_robin_note(tuning: Tuning) -> str:
    return f"Round-robin would have been better on this window: {tuning.comparison}."


async def _follow(
    store: Store, window: Window, tuning: Tuning, *, dry_run: bool
) -> State[dict[str, Any]]:
    """Write the best α that a store can dispatch by, where it is better than the present policy."""
    chosen, present = tuning.best_tuned, tuning.present
    better = chosen.policy != present.policy
    # The choice of the record is what the store does next, never round-robin.
    evidence = {**tuning.as_record(), "choice": chosen.as_record()}
    note = _round_robin_note(tuning) if tuning.round_robin_wins else ""
    if better and not dry_run:
        reason = f"tuned for {tuning.objective} on {len(window.queries)} queries"
        await store.run(
            lambda tx: set_policy(
                tx,
                settings_of(chosen.policy, tx.settings),
                reason=f"{reason}; round-robin would have been better" if note else reason,
                evidence=evidence,
            )
        )
    record = {"tuned": better and not dry_run, "queries": len(window.queries), **evidence}
    if not better:
        message = f"Nothing is better than the present policy, α = {present.policy.alpha:g}. {note}"
        return Completed(name="NothingToTune", message=message.rstrip(), data=record)
    message = f"α = {chosen.policy.alpha:g}"
    return Completed(message=f"{message}. {note}" if note else message, data=record)


def _tune(store: Store, since: float, objective: Objective, jointly: bool) -> tuple[Window, Tuning]:
    window = store.read(lambda c: read_window(c, since=since, most=MOST_QUERIES))
    cluster = store.read(read_cluster)
    experiment = Experiment(
        trace="recorded",
        queries=window.queries,
        cluster=cluster,
        policy=policy_of(store.transact(lambda tx: tx.settings)),
        rate=window.rate,
        arrivals=parse_arrivals("recorded"),
    )
    # Recorded arrivals are the same for every seed.
    tuning = tune(
        experiment, objective=objective, seeds=(0,), jointly=jointly, orders=tables.LIVE_ORDERS
    )
    return window, tuning


def _two_windows(store: Store, now: float, seconds: float) -> tuple[Window, Window]:
    def look(since: float, until: float) -> Window:
        return store.read(lambda c: read_window(c, since=since, until=until))

    return look(now - 2 * seconds, now - seconds), look(now - seconds, now)


def _open_store(url: str | None) -> Store:
    return open_current(url or settings().store.get_secret_value())
