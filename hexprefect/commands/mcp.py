"""`hexprefect mcp`: ask databases from a program that speaks the Model Context Protocol."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from hexprefect.commands.output import StoreUrl, errors_for_people, run
from hexprefect.commands.store import existing, store_faults, url_of
from hexprefect.embedded.in_process import configured_api_url
from hexprefect.errors import CallerMistake
from hexprefect.store.opening import open_current


def mcp_command(
    tenant: Annotated[str, typer.Option(help="Whose questions they are.")] = "default",
    store: StoreUrl = None,
) -> None:
    """Serve the tools list_databases, ask_database and query_status over stdio, until it closes.

    Questions run as the deployment text2sql/ask of the configured Prefect server. Standard output
    belongs to the protocol.
    """
    with errors_for_people():
        if configured_api_url() is None:
            raise CallerMistake(
                "No Prefect server is configured, and questions run there.",
                remedy="Set PREFECT_API_URL; `hexprefect up` starts a server on this machine.",
            )
        # Logs of Prefect would stand between the messages.
        os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
        try:
            from hexprefect.mcp_server import Asking, mcp_server
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.split(".")[0] != "mcp":
                raise
            raise CallerMistake(
                "The package mcp is not installed.",
                remedy="Install it with `pip install 'hexprefect[mcp]'`.",
            ) from None
        with store_faults(url := url_of(store)):
            opened = open_current(existing(url))
        try:
            run(mcp_server(Asking(store=opened, tenant=tenant)).run_stdio_async())
        finally:
            opened.close()
