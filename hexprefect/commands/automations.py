"""`hexprefect automations`: Prefect's automations on our events."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from hexprefect.commands.output import Json, errors_for_people, out, print_json, run
from hexprefect.commands.prefect_faults import prefect_faults
from hexprefect.embedded.in_process import configured_api_url
from hexprefect.errors import CallerMistake

app = typer.Typer(
    no_args_is_help=True,
    help="Let Prefect tell people when a query is at risk, an instance is down, or α has changed.",
)


@app.command("apply")
def apply(
    notify: Annotated[
        str | None,
        typer.Option(help="Notification block that is told, TYPE/NAME: slack-webhook/ops."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="slo-at-risk, instance-down or alpha-changed; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the three ready-made automations on the configured Prefect server. Safe to repeat.

    Without --notify they fire where you see them: in the event feed and on the automation's page.
    """

    async def applying() -> dict[str, Any]:
        from prefect.client.orchestration import get_client

        from hexprefect.orchestration.automations import apply_automations

        async with get_client() as client:
            return dict(await apply_automations(client, notify=notify, only=tuple(only or ())))

    with errors_for_people(as_json=as_json), prefect_faults():
        _need_server()
        applied = run(applying())
    if as_json:
        print_json({"automations": applied})
        return
    for name, state in applied.items():
        out.print(f"{name}: {state}.", highlight=False)
    if notify is None:
        out.print("Nobody is told: add --notify TYPE/NAME of a notification block.")


@app.command("remove")
def remove(as_json: Json = False) -> None:
    """Remove the automations that `apply` has made."""

    async def removing() -> list[str]:
        from prefect.client.orchestration import get_client

        from hexprefect.orchestration.automations import remove_automations

        async with get_client() as client:
            return list(await remove_automations(client))

    with errors_for_people(as_json=as_json), prefect_faults():
        _need_server()
        removed = run(removing())
    if as_json:
        print_json({"removed": removed})
    else:
        out.print("\n".join(f"{name}: removed." for name in removed) or "There were none.")


@app.command("events")
def events(as_json: Json = False) -> None:
    """List every event that hexprefect emits, for automations of your own."""
    from hexprefect.orchestration.events import EVENTS

    if as_json:
        print_json({"events": dict(EVENTS)})
        return
    table = Table("event", "when")
    for name, meaning in EVENTS.items():
        table.add_row(name, meaning)
    out.print(table)


def _need_server() -> None:
    if configured_api_url() is None:
        raise CallerMistake(
            "No Prefect server is configured.",
            remedy="Set PREFECT_API_URL, for example to what `hexprefect up` prints.",
        )
