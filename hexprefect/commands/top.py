"""`hexprefect top`: the fleet at work, as a terminal shows it."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hexprefect.commands.fleet import open_store
from hexprefect.commands.output import Json, StoreUrl, out, print_json
from hexprefect.store import Store
from hexprefect.store.statistics import FleetState, TenantLoad, Window, fleet_state

STATE_STYLES = {"alive": "green", "suspect": "yellow", "draining": "cyan", "dead": "red"}
BAR_CELLS = 10
LONGEST_WINDOW_S = 366 * 86_400.0


def top_command(
    every: Annotated[
        float, typer.Option("--every", min=0.1, max=60, help="Seconds between two looks.")
    ] = 1.0,
    window: Annotated[
        float,
        typer.Option(
            min=1, max=LONGEST_WINDOW_S, help="Seconds that P50, P95 and attainment look back."
        ),
    ] = 600.0,
    rows: Annotated[int, typer.Option(min=0, max=200, help="Waiting requests shown.")] = 10,
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Watch the fleet: instances, queues by laxity, tenants, P50 and P95, α, SLO attainment.

    It only reads, without any lock. Laxity is how long a waiting request can still wait; what is
    late is red. With --json, or where there is no terminal, it shows it once.
    """
    with open_store(store, as_json=as_json) as opened:
        state = _look(opened, window, rows)
        if as_json:
            print_json(as_record(state))
            return
        if once or not out.is_terminal:
            out.print(rendered(state))
            return
        _live(opened, state, every=every, window=window, rows=rows)


def _live(store: Store, state: FleetState, *, every: float, window: float, rows: int) -> None:
    try:
        with Live(rendered(state), console=out, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(rendered(_look(store, window, rows)), refresh=True)
    except KeyboardInterrupt:
        return


def _look(store: Store, window: float, rows: int) -> FleetState:
    now = store.now()
    return store.read(
        lambda connection: fleet_state(connection, now=now, window_s=window, most_waiting=rows)
    )


def rendered(state: FleetState) -> RenderableType:
    """The whole view."""
    parts: list[RenderableType] = [_headline(state), _instances(state)]
    if state.waiting:
        parts.append(_queues(state))
    parts.append(_tenants(state))
    return Group(*parts)


def as_record(state: FleetState) -> dict[str, Any]:
    """As JSON: the figures of the view, and no cache contents."""
    return {
        "at": state.at,
        "alpha": None if state.alpha is None else asdict(state.alpha),
        "open_requests": state.open_requests,
        "window": _window_record(state.window),
        "instances": [
            {
                "instance": view.spec.name,
                "pool": view.spec.pool,
                "model": view.spec.model,
                "state": view.state,
                "reason": view.reason,
                "occupied": view.occupied,
                "capacity": view.spec.admission_depth or view.spec.slots,
                "waiting": view.waiting,
                "backlog_s": round(view.backlog_s, 3),
            }
            for view in state.instances
        ],
        "tenants": [
            {"tenant": load.tenant, "running": load.running, **_window_record(load.window)}
            for load in state.tenants
        ],
        "waiting": [asdict(waiting) for waiting in state.waiting],
    }


def _window_record(window: Window) -> dict[str, Any]:
    return {
        "seconds": window.seconds,
        "answered": window.answered,
        "failed": window.failed,
        "p50_s": _rounded(window.percentile_s(0.5)),
        "p95_s": _rounded(window.percentile_s(0.95)),
        "attainment": _rounded(window.attainment),
    }


def _headline(state: FleetState) -> Text:
    window = state.window
    alpha = "none" if state.alpha is None else f"{state.alpha.value:g}"
    waiting, running = state.open_requests["waiting"], state.open_requests["running"]
    queries = sum(load.running for load in state.tenants)
    text = Text(f"{datetime.fromtimestamp(state.at):%H:%M:%S}  ", style="bold")
    text.append(
        f"{queries} queries, {running} requests running, {waiting} waiting   α {alpha}   "
        f"last {_duration(window.seconds)}: P50 {_seconds(window.percentile_s(0.5))}, "
        f"P95 {_seconds(window.percentile_s(0.95))}, SLO ",
        style="not bold",
    )
    return text.append_text(_attainment(window))


def _instances(state: FleetState) -> Table:
    table = Table("instance", "pool", "state", "on it", "", "waiting", "backlog", expand=True)
    for view in state.instances:
        capacity = view.spec.admission_depth or view.spec.slots
        filled = min(BAR_CELLS, round(BAR_CELLS * view.occupied / capacity))
        table.add_row(
            view.spec.name,
            view.spec.pool,
            Text(view.state, style=STATE_STYLES[view.state]),
            f"{view.occupied}/{capacity}",
            Text("█" * filled + "░" * (BAR_CELLS - filled), style="blue"),
            str(view.waiting),
            f"{view.backlog_s:.1f} s",
        )
    if not state.instances:
        table.add_row("none: hexprefect instances add", *[""] * 6)
    return table


def _queues(state: FleetState) -> Table:
    table = Table(
        "must start in", "waited", "stage", "instance", "tenant", "query", expand=True,
        title="Waiting, the most urgent first",
    )  # fmt: skip
    for one in state.waiting:
        style = "red" if one.laxity_s < 0 else "yellow" if one.laxity_s < 5 else "default"
        table.add_row(
            Text(f"{one.laxity_s:+.1f} s", style=style),
            f"{one.waited_s:.1f} s",
            one.stage,
            one.instance or "none",
            one.tenant,
            one.query_id,
        )
    return table


def _tenants(state: FleetState) -> Table:
    table = Table("tenant", "running", "answered", "failed", "P50", "P95", "SLO", expand=True)
    for load in state.tenants:
        table.add_row(*_tenant_row(load))
    return table


def _tenant_row(load: TenantLoad) -> tuple[RenderableType, ...]:
    window = load.window
    return (
        load.tenant,
        str(load.running),
        str(window.answered),
        str(window.failed),
        _seconds(window.percentile_s(0.5)),
        _seconds(window.percentile_s(0.95)),
        _attainment(window),
    )


def _attainment(window: Window) -> Text:
    value = window.attainment
    if value is None:
        return Text("–")
    style = "green" if value >= 0.95 else "yellow" if value >= 0.8 else "red"
    return Text(f"{100 * value:.1f} %", style=style)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"


def _duration(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
