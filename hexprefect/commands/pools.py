"""`hexprefect pools`: work pools as the fleet."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from hexprefect.commands.output import Json, StoreUrl, errors_for_people, out, print_json, run
from hexprefect.commands.prefect_faults import prefect_faults
from hexprefect.commands.store import existing, store_faults, url_of
from hexprefect.store.opening import open_current

app = typer.Typer(no_args_is_help=True, help="Work pools of a Prefect server as the fleet.")


@app.command("apply")
def apply_command(
    directory: Annotated[
        Path | None,
        typer.Argument(help="Folder of base job templates; the shipped ones by default."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create or update the work pools of the templates, and show the difference. Safe to repeat."""

    async def apply() -> list[dict[str, object]]:
        from prefect import get_client

        from hexprefect.orchestration.pools_apply import apply_pools

        async with get_client() as client:
            return [
                asdict(change) for change in await apply_pools(client, directory, dry_run=dry_run)
            ]

    with errors_for_people(as_json=as_json), prefect_faults():
        changes = run(apply())
    if as_json:
        print_json({"dry_run": dry_run, "pools": changes})
        return
    for change in changes:
        out.print(Text.assemble((str(change["pool"]), "bold"), f": {change['action']}"))
        if change["diff"]:
            out.print(str(change["diff"]), highlight=False, soft_wrap=True)


@app.command("sync")
def sync_command(store: StoreUrl = None, as_json: Json = False) -> None:
    """Read the instances from the server's pools into the store, as a hexgen worker does."""

    async def synchronise() -> tuple[str, ...]:
        from prefect import get_client

        from hexprefect.orchestration.fleet_sync import synchronise_fleet

        with store_faults(url := url_of(store)):
            opened = open_current(existing(url))
            try:
                async with get_client() as client:
                    return await synchronise_fleet(client, opened)
            finally:
                opened.close()

    with errors_for_people(as_json=as_json), prefect_faults():
        changed = run(synchronise())
    if as_json:
        print_json({"changed": list(changed)})
    else:
        out.print(f"Changed: {', '.join(changed) or 'nothing'}.")
