"""`hexprefect store`: create, migrate and check the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import typer
from psycopg.errors import InsufficientPrivilege
from rich.text import Text
from sqlalchemy.exc import DatabaseError, DBAPIError, InterfaceError, OperationalError

from hexprefect.commands.output import FAILED, Json, StoreUrl, errors_for_people, out, print_json
from hexprefect.settings import settings
from hexprefect.store import StoreUnavailable, check_laws, upgrade
from hexprefect.store.engine import store_url
from hexprefect.store.opening import open_current
from hexprefect.store.upgrade import StoreNotReady
from hexprefect.store.views import request_counts
from hexprefect.urls import shown_url, without_secrets

app = typer.Typer(no_args_is_help=True, help="Create, migrate and check the store.")


def url_of(given: str | None) -> str:
    """The store's URL: as given, or from the settings."""
    return given or settings().store.get_secret_value()


def existing(url: str) -> str:
    """The URL of a store that exists: opening an SQLite file that does not would make one.

    Raises:
        StoreNotReady: when there is no such file.
    """
    parsed = store_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).is_file():
        raise StoreNotReady(
            f"There is no store at {parsed.database}.",
            remedy="Run `hexprefect store upgrade`, or give the right --store.",
        )
    return url


@contextmanager
def store_faults(url: str) -> Iterator[None]:
    """What a database that cannot be reached, read or written does to a command, said to a person.

    A statement of ours that the database does not understand is a bug, and stays what it is.

    Raises:
        StoreNotReady: naming the store without its secrets, and what its database said.
    """
    try:
        yield
    except StoreUnavailable as away:
        raise StoreNotReady(away.problem, remedy=away.remedy) from away
    except DBAPIError as error:
        if not _is_the_databases(error):
            raise
        parsed = store_url(url)
        said = without_secrets(str(error.orig), parsed).partition("\n")[0].rstrip(" .")
        raise StoreNotReady(
            f"The store {shown_url(parsed)} cannot be used: {said}.",
            remedy="Check --store or HEXPREFECT_STORE, and that its database can be reached.",
        ) from error


def _is_the_databases(error: DBAPIError) -> bool:
    if isinstance(error, (OperationalError, InterfaceError)):
        return True
    # SQLite's for a file that is no database is of the general kind; the others are subclasses.
    return type(error) is DatabaseError or isinstance(error.orig, InsufficientPrivilege)


@app.command("upgrade")
def upgrade_command(store: StoreUrl = None, as_json: Json = False) -> None:
    """Bring the store's tables to this version, from none at all if need be. Safe to repeat."""
    with errors_for_people(as_json=as_json):
        url = url_of(store)
        with store_faults(url):
            revision = upgrade(url)
        shown = shown_url(store_url(url))
    if as_json:
        print_json({"store": shown, "revision": revision})
    else:
        out.print(f"{shown} is at revision {revision}.", soft_wrap=True)


@app.command("check")
def check_command(store: StoreUrl = None, as_json: Json = False) -> None:
    """Verify the laws on a live store, and say what is broken. Takes no lock.

    Exit code 0: every law holds. 1: at least one is broken. 2: the store cannot be read.
    """
    with errors_for_people(as_json=as_json), store_faults(url := url_of(store)):
        opened = open_current(existing(url))
        try:
            now = opened.now()
            violations = opened.read(lambda connection: check_laws(connection, now=now))
            counts = opened.read(request_counts)
        finally:
            opened.close()
    if as_json:
        print_json(
            {
                "clean": not violations,
                "violations": [asdict(v) for v in violations],
                "requests": counts,
            }
        )
    else:
        total = sum(counts.values())
        states = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        out.print(f"{total} requests: {states or 'none'}.")
        for violation in violations:
            out.print(
                Text.assemble(
                    (f"Law {violation.law} ({violation.name})", "red"),
                    f" {violation.subject}: {violation.detail}",
                ),
                soft_wrap=True,
            )
        out.print("Every law holds." if not violations else f"{len(violations)} violations.")
    if violations:
        raise typer.Exit(FAILED)
