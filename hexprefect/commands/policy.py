"""`hexprefect policy`: by what a store dispatches, orders and admits; and to change it by hand."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime
from typing import Annotated, Any, cast

import typer
from rich.table import Table
from sqlalchemy import select

from hexprefect.commands.fleet import open_store
from hexprefect.commands.output import Json, StoreUrl, errors_for_people, out, print_json
from hexprefect.errors import CallerMistake
from hexprefect.scheduling.order import Order
from hexprefect.store import Store, tables
from hexprefect.store.alpha import set_policy
from hexprefect.store.values import DispatchSettings

app = typer.Typer(
    no_args_is_help=True, help="Show or change by what the store dispatches, orders and admits."
)

MEANINGS = {
    "alpha": "between the fastest instance (1) and the emptiest queue (0)",
    "policy": "form of the score: normalised, or paper",
    "beta": "the paper's scale between its two terms",
    "order": f"of the queues: {', '.join(tables.LIVE_ORDERS)}",
    "slowdown": "bounds each instance's depth; none: its slots do",
    "late_penalty": "SLOs by which what cannot be in time is put off; none: never",
    "stretch": "how much longer than predicted the rest is reckoned to take, for late_penalty",
}


@app.command("show")
def show_command(
    store: StoreUrl = None,
    history: Annotated[
        int, typer.Option(min=1, max=100_000, help="Rows of the history to show.")
    ] = 5,
    as_json: Json = False,
) -> None:
    """The policy that every dispatch uses now, and by whom or what it was chosen."""
    with open_store(store, as_json=as_json) as opened:
        record = _record(opened, history)
    _print(record, as_json=as_json)


@app.command("set")
def set_command(
    alpha: Annotated[float | None, typer.Option(help=MEANINGS["alpha"])] = None,
    order: Annotated[str | None, typer.Option(help=MEANINGS["order"])] = None,
    slowdown: Annotated[str | None, typer.Option(help=MEANINGS["slowdown"])] = None,
    late_penalty: Annotated[str | None, typer.Option(help=MEANINGS["late_penalty"])] = None,
    stretch: Annotated[float | None, typer.Option(help=MEANINGS["stretch"])] = None,
    reason: Annotated[str, typer.Option(help="Kept in the history.")] = "set by an operator",
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Change some of it; running processes follow at their next dispatch.

    Example, the paper's order: `hexprefect policy set --order urgency --slowdown none`. For
    attainment under overload: `--late-penalty 8 --stretch 2 --slowdown 2`.
    """
    with errors_for_people(as_json=as_json):
        changes: dict[str, Any] = {
            "alpha": alpha,
            "order": cast("Order | None", order),
            "stretch": stretch,
        }
        changes = {name: value for name, value in changes.items() if value is not None}
        for name, text in (("slowdown", slowdown), ("late_penalty", late_penalty)):
            if text is not None:
                changes[name] = _number_or_none(name, text)
        if not changes:
            raise CallerMistake("Nothing to change.", remedy="Give at least one of the options.")
    with open_store(store, as_json=as_json) as opened:
        opened.transact(lambda tx: set_policy(tx, replace(tx.settings, **changes), reason=reason))
        record = _record(opened, 1)
    _print(record, as_json=as_json)


def _number_or_none(name: str, text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise CallerMistake(
            f"A {name} of {text!r} makes no sense.", remedy="Give a number, or none."
        ) from None


def _record(store: Store, most: int) -> dict[str, Any]:
    history = tables.alpha_history.c
    rows = store.read(
        lambda connection: (
            connection.execute(
                select(
                    history.chosen_at,
                    history.reason,
                    history.alpha,
                    history.policy,
                    history.beta,
                    history.queue_order.label("order"),
                    history.slowdown,
                    history.late_penalty,
                    history.stretch,
                )
                .order_by(history.id.desc())
                .limit(most)
            )
            .mappings()
            .all()
        )
    )
    settings = asdict(DispatchSettings())
    if rows:
        settings = {name: rows[0][name] for name in settings}
    return {**settings, "history": [dict(row) for row in rows]}


def _print(record: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(record)
        return
    table = Table(show_header=False)
    for name, meaning in MEANINGS.items():
        value = record[name]
        table.add_row(name, "none" if value is None else str(value), meaning)
    out.print(table)
    if not record["history"]:
        out.print("The defaults: nobody has chosen anything yet.")
    for row in record["history"]:
        at = datetime.fromtimestamp(row["chosen_at"]).astimezone().isoformat(timespec="seconds")
        out.print(f"{at}  α {row['alpha']:g}, {row['order']}: {row['reason']}", soft_wrap=True)
