"""Which database a question is asked of: a block, an environment variable or a plain URL."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import sqlalchemy
from prefect.blocks.core import Block
from pydantic import SecretStr
from sqlalchemy.exc import ArgumentError

from hexprefect.demo.shop import build_shop
from hexprefect.errors import CallerMistake
from hexprefect.settings import state_folder
from hexprefect.text2sql.access import Access
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.limits import Limits
from hexprefect.text2sql.value_index import keep_indexes_in
from hexprefect.urls import is_url, refuse_secrets

DEMO = "demo"
BLOCK_PREFIX = "block:"
ENVIRONMENT_PREFIX = "env:"
BLOCK_TYPE = "hexprefect-text2sql-database"


async def open_database(database: str, *, tenant: str, limits: Limits | None = None) -> Database:
    """Open what the `database` parameter of a flow names, as this tenant may read it.

    A block says who may ask, what each may read, and what its words mean; a URL, a variable and the
    demo shop say nothing of it, and leave it to the account that they name.

    Args:
        database: as for `database_url`.
        tenant: who asks; recorded with every statement that is refused.
        limits: bounds on every statement.

    Raises:
        CallerMistake: there is no such database, it cannot be reached, or the tenant may not ask
            it.
    """
    keep_indexes_in(state_folder() / "value-indexes")
    name = database.strip()
    if not _is_block(name):
        return await Database.connect(await database_url(name), limits=limits, tenant=tenant)
    block = await _block(name.removeprefix(BLOCK_PREFIX))
    access: tuple[Access, ...] = block.access_for(tenant)
    url: SecretStr = await block.aget_url()
    return await Database.connect(
        url.get_secret_value(),
        limits=limits,
        tenant=tenant,
        access=access,
        vocabulary=block.vocabulary(),
    )


async def database_url(database: str) -> str:
    """The URL behind the `database` parameter of a flow, for what needs no more than the URL.

    Questions are asked through `open_database`, which also holds a tenant to what it may read.

    Parameters are kept by Prefect and shown in its UI, so that a URL with a password is refused
    there: a `Text2SQLDatabase` block keeps it encrypted, an environment variable out of sight.

    Args:
        database: `demo` (the shop that the project ships), `block:NAME` (or the bare name of a
            block), `env:VARIABLE`, or a URL.

    Raises:
        CallerMistake: when there is no such block or variable, or a URL holds a password.
    """
    database = database.strip()
    if database == DEMO:
        return await asyncio.to_thread(demo_database_url)
    if database.startswith(ENVIRONMENT_PREFIX):
        name = database.removeprefix(ENVIRONMENT_PREFIX)
        if not os.environ.get(name):
            raise CallerMistake(
                f"The database {database!r} names a variable that is not set here.",
                remedy="Set it where the flow runs, or give a URL or a block.",
            )
        return os.environ[name]
    if is_url(database):
        refuse_secrets(database)
        return database
    block = await _block(database.removeprefix(BLOCK_PREFIX))
    url: SecretStr = await block.aget_url()
    return url.get_secret_value()


def demo_database_url() -> str:
    """The shipped shop, as a file in the state folder; written when it is first asked for."""
    path = state_folder() / "shop.sqlite"
    if not path.exists():
        build_shop(path)
    return f"sqlite:///{path}"


def shown_database(database: str) -> str:
    """The `database` parameter as it may be shown and used as a tag: never with a password."""
    if database.startswith(ENVIRONMENT_PREFIX):
        value = os.environ.get(database.removeprefix(ENVIRONMENT_PREFIX))
        return shown_database(value) if value and "://" in value else database
    if "://" not in database:
        return database
    try:
        url = sqlalchemy.make_url(database)
    except (ArgumentError, ValueError):
        return "unreadable URL"
    if url.get_backend_name() in {"sqlite", "duckdb"} and url.database:
        return os.path.basename(url.database)
    return url.set(password=None, query={}).render_as_string()


def _is_block(database: str) -> bool:
    """Whatever is nothing else."""
    return database != DEMO and not database.startswith(ENVIRONMENT_PREFIX) and not is_url(database)


async def _block(name: str) -> Any:
    try:
        return await Block.aload(f"{BLOCK_TYPE}/{name}")
    except ValueError as error:
        raise CallerMistake(
            f"There is no database {name!r}.",
            remedy="Give a URL such as sqlite:////absolute/path.sqlite, "
            "or create a Text2SQLDatabase block of this name.",
        ) from error
