"""`HexgenStore`: the database in which the scheduler keeps its queue."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, SecretStr, field_validator

from hexprefect.blocks import logos
from hexprefect.blocks.connection import check_url, try_connection


class HexgenStore(Block):
    """The database in which the scheduler keeps queries, requests and instances.

    All processes of one fleet share one store. SQLite serves one machine, PostgreSQL many.

    Example:
        Load a stored block and see whether the database answers:
        ```python
        from hexprefect.blocks import HexgenStore

        store = HexgenStore.load("BLOCK_NAME")
        print(store.test_connection())
        ```
    """

    _block_type_name: ClassVar[str | None] = "HEXGEN Store"
    _block_type_slug: ClassVar[str | None] = "hexprefect-store"
    _logo_url: ClassVar[HttpUrl | None] = logos.STORE
    _documentation_url: ClassVar[HttpUrl | None] = logos.DOCUMENTATION
    _description: ClassVar[str | None] = (
        "The database in which the HEXGEN-FLOW scheduler keeps queries, requests and instances."
    )

    url: SecretStr = Field(
        description="SQLAlchemy URL of the store, for example postgresql+psycopg://user:pw@host/db."
    )

    @field_validator("url")
    @classmethod
    def _must_be_a_url(cls, url: SecretStr) -> SecretStr:
        check_url("store", url)
        return url

    def get_url(self) -> SecretStr:
        """The SQLAlchemy URL, password included."""
        return self.url

    def test_connection(self) -> str:
        """Connect and disconnect.

        Returns:
            The dialect, for example `postgresql`.

        Raises:
            CallerMistake: the database does not answer; with the reason and without the password.
        """
        return try_connection("store", self.url)

    async def atest_connection(self) -> str:
        """`test_connection` without blocking the event loop."""
        return await asyncio.to_thread(self.test_connection)
