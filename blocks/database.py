"""`Text2SQLDatabase`: a database that may be asked, by whom, how far, and in which words."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from prefect.blocks.core import Block
from pydantic import BaseModel, Field, HttpUrl, SecretStr, field_validator, model_validator

from hexprefect.blocks import logos
from hexprefect.blocks.connection import check_url
from hexprefect.errors import CallerMistake

if TYPE_CHECKING:
    from hexprefect.text2sql.access import Access
    from hexprefect.text2sql.schema import Vocabulary


_NAMES = {"postgres": "postgresql"}
"""SQLAlchemy's name of a dialect, where sqlglot has another."""


class VerifiedExample(BaseModel):
    """A question with a statement that somebody who knows the database has verified."""

    question: str = Field(min_length=1)
    sql: str = Field(min_length=1)


class TenantAccess(BaseModel):
    """What one tenant may read, within what the block allows everybody."""

    schemas: list[str] = Field(
        default_factory=list, description="Schemas; empty for all that the block allows."
    )
    tables: list[str] = Field(
        default_factory=list,
        description="Tables and views, as schema.table or table; empty for all of the schemas. "
        "A view that is named here may be read whatever it is made of.",
    )
    columns: dict[str, list[str]] = Field(
        default_factory=dict,
        description="For a table, the columns that may be read; other tables keep all.",
    )


class Text2SQLDatabase(Block):
    """A database that questions may be asked of: the connection, who may ask, and its vocabulary.

    The connection is a URL, or the name of a `SqlAlchemyConnector` block of prefect-sqlalchemy, so
    that a connection kept there is not kept twice.

    Example:
        Load a stored database and see whether it answers:
        ```python
        from hexprefect.blocks import Text2SQLDatabase

        database = Text2SQLDatabase.load("BLOCK_NAME")
        print(database.test_connection())
        ```
    """

    _block_type_name: ClassVar[str | None] = "Text2SQL Database"
    _block_type_slug: ClassVar[str | None] = "hexprefect-text2sql-database"
    _logo_url: ClassVar[HttpUrl | None] = logos.DATABASE
    _documentation_url: ClassVar[HttpUrl | None] = logos.DOCUMENTATION
    _description: ClassVar[str | None] = (
        "A database that questions may be asked of: connection, allowed schemas, glossary, tenants."
    )

    url: SecretStr | None = Field(
        default=None,
        description="SQLAlchemy URL, best of a role that can only read; or give a connector.",
    )
    connector: str | None = Field(
        default=None,
        description="Name of a SqlAlchemyConnector block of prefect-sqlalchemy, instead of a URL.",
    )
    schemas: list[str] = Field(
        default_factory=list,
        description="Schemas that may be read; empty for the database's default schema.",
    )
    glossary: dict[str, str] = Field(
        default_factory=dict,
        description="What words of the business mean, for example churned: no order for a year.",
    )
    examples: list[VerifiedExample] = Field(
        default_factory=list,
        description="Questions with verified statements; shown to the model as far as they fit.",
    )
    tables: list[str] = Field(
        default_factory=list,
        description="Tables and views that may be read, as schema.table or table; empty for all.",
    )
    columns: dict[str, list[str]] = Field(
        default_factory=dict,
        description="For a table, the columns that may be read; other tables keep all.",
    )
    tenants: dict[str, list[str] | TenantAccess] = Field(
        default_factory=dict,
        description="Who may ask, and for each the schemas it may read (empty: all allowed ones), "
        "or schemas, tables and columns; without any entry everybody may ask.",
    )

    @field_validator("url")
    @classmethod
    def _must_be_a_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            check_url("database", url)
        return url

    @model_validator(mode="after")
    def _must_be_consistent(self) -> Text2SQLDatabase:
        if (self.url is None) == (self.connector is None):
            raise ValueError("Give either `url` or `connector`, and not both.")
        allowed = set(self.schemas)
        for tenant in self.tenants:
            schemas = set(self._of_tenant(tenant).schemas)
            if beyond := sorted(schemas - allowed) if allowed else []:
                raise ValueError(
                    f"The tenant {tenant!r} may read {', '.join(beyond)}, which `schemas` does not "
                    "allow."
                )
        return self

    def schemas_for(self, tenant: str) -> tuple[str, ...]:
        """The schemas that a tenant may read; empty for the database's default schema.

        Raises:
            CallerMistake: the tenant may not ask this database.
        """
        return tuple(self._of_tenant(tenant).schemas or self.schemas)

    def access_for(self, tenant: str) -> tuple[Access, ...]:
        """What a tenant may read: what the block allows, and of that what the tenant may.

        Raises:
            CallerMistake: the tenant may not ask this database.
        """
        from hexprefect.text2sql.access import Access

        own = self._of_tenant(tenant)
        return (
            Access(
                schemas=tuple(self.schemas),
                tables=tuple(self.tables),
                columns=_frozen(self.columns),
            ),
            Access(
                schemas=tuple(own.schemas) or None,
                tables=tuple(own.tables),
                columns=_frozen(own.columns),
            ),
        )

    def vocabulary(self) -> Vocabulary:
        """Glossary and verified examples, as the prompts show them."""
        from hexprefect.text2sql.schema import Example, Vocabulary

        return Vocabulary(
            glossary=tuple(self.glossary.items()),
            examples=tuple(Example(item.question, item.sql) for item in self.examples),
        )

    def get_url(self) -> SecretStr:
        """The SQLAlchemy URL, password included, also when it comes from a connector block.

        Raises:
            CallerMistake: there is no such connector, or prefect-sqlalchemy is not installed.
        """
        if self.url is not None:
            return self.url
        connector: Any = _connector_class()
        try:
            return _url_of(connector.load(self.connector, _sync=True))
        except ValueError as missing:
            raise self._no_connector() from missing

    async def aget_url(self) -> SecretStr:
        """`get_url` without blocking the event loop."""
        if self.url is not None:
            return self.url
        connector: Any = _connector_class()
        try:
            return _url_of(await connector.aload(self.connector))
        except ValueError as missing:
            raise self._no_connector() from missing

    def test_connection(self) -> str:
        """Connect and disconnect.

        Returns:
            The dialect, for example `postgresql`.

        Raises:
            CallerMistake: the database does not answer; with the reason and without the password.
        """
        return _try(self.get_url())

    async def atest_connection(self) -> str:
        """`test_connection` without blocking the event loop."""
        url = await self.aget_url()
        return await asyncio.to_thread(_try, url)

    def _of_tenant(self, tenant: str) -> TenantAccess:
        if not self.tenants:
            return TenantAccess()
        if tenant not in self.tenants:
            raise CallerMistake(
                f"The tenant {tenant!r} may not ask the database {self._name()!r}.",
                remedy="Add it to the block's `tenants`.",
            )
        found = self.tenants[tenant]
        return found if isinstance(found, TenantAccess) else TenantAccess(schemas=found)

    def _name(self) -> str:
        return self._block_document_name or "unnamed"

    def _no_connector(self) -> CallerMistake:
        return CallerMistake(
            f"The database {self._name()!r} names the SqlAlchemyConnector block "
            f"{self.connector!r}, which does not exist.",
            remedy="Create that block, or give a URL.",
        )


def _try(url: SecretStr) -> str:
    """As a question would be asked: with the same driver, and an account that is let in."""
    from hexprefect.text2sql.dialects.registry import adapter_for

    adapter = adapter_for(url.get_secret_value())
    adapter.open().close()
    return _NAMES.get(adapter.dialect, adapter.dialect)


def _frozen(columns: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {table: tuple(names) for table, names in columns.items()}


def _connector_class() -> Any:
    try:
        from prefect_sqlalchemy import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
            SqlAlchemyConnector,
        )
    except ImportError as missing:
        raise CallerMistake(
            "A database with a connector needs the package prefect-sqlalchemy.",
            remedy="Install it, or give a URL in place of the connector.",
        ) from missing
    return SqlAlchemyConnector


def _url_of(connector: Any) -> SecretStr:
    info = connector.connection_info
    if hasattr(info, "create_url"):
        return SecretStr(info.create_url().render_as_string(hide_password=False))
    return SecretStr(str(info))
