"""Alembic's entry: runs the migrations on the connection that `upgrade` gives it."""

from __future__ import annotations

from alembic import context

from hexprefect.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    version_table="hexprefect_schema_version",
)
with context.begin_transaction():
    context.run_migrations()
