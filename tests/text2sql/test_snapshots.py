"""Schemas are read once for all who ask, and again when the structure changed; missing keys."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from hexprefect.text2sql.access import Access
from hexprefect.text2sql.dialects.registry import adapter_for
from hexprefect.text2sql.inferred_keys import with_inferred_keys
from hexprefect.text2sql.rendering import render_table
from hexprefect.text2sql.schema import NO_VOCABULARY, Column, ForeignKey, Table
from hexprefect.text2sql.snapshots import Snapshots
from tests.text2sql.conftest import Engine, run_as_owner


def change(path: Path, sql: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(sql)
        connection.commit()


def test_a_catalogue_is_read_again_only_when_its_structure_changed(shop_file: Path) -> None:
    snapshots = Snapshots()
    adapter = adapter_for(f"sqlite:///{shop_file}")
    first = snapshots.current("shop", adapter)
    change(shop_file, "INSERT INTO customer VALUES (4, 'Emmy', 'Erlangen')")
    assert snapshots.current("shop", adapter) is first
    change(shop_file, "ALTER TABLE customer ADD COLUMN email TEXT")
    second = snapshots.current("shop", adapter)
    assert second is not first
    assert snapshots.reflections == 2
    customer = second.schema.table("customer")
    assert customer is not None
    assert customer.column("email") is not None


def test_example_values_are_read_anew_after_a_while(shop_file: Path) -> None:
    now = [0.0]
    snapshots = Snapshots(clock=lambda: now[0])
    adapter = adapter_for(f"sqlite:///{shop_file}")
    snapshots.current("shop", adapter)
    now[0] = 7_200.0
    snapshots.current("shop", adapter)
    assert snapshots.reflections == 2


def test_who_has_the_same_rights_shares_one_schema(shop_file: Path) -> None:
    snapshot = Snapshots().current("shop", adapter_for(f"sqlite:///{shop_file}"))
    narrow = (Access(tables=("customer",)),)
    assert snapshot.form((), NO_VOCABULARY) is snapshot.schema
    assert snapshot.form(narrow, NO_VOCABULARY) is snapshot.form(narrow, NO_VOCABULARY)
    other = snapshot.form((Access(tables=("order",)),), NO_VOCABULARY)
    assert snapshot.form(narrow, NO_VOCABULARY) is not other


CHANGES = {
    "a column is added": (
        "ALTER TABLE changing ADD COLUMN another INTEGER",
        {},
    ),
    "a column is renamed": ("ALTER TABLE changing RENAME COLUMN note TO remark", {}),
    "a column gets another type": (
        "ALTER TABLE changing ALTER COLUMN amount TYPE BIGINT",
        {"mysql": "ALTER TABLE changing MODIFY amount BIGINT", "sqlite": None},
    ),
    "a table is made": ("CREATE TABLE made (a INTEGER)", {}),
    "a table is renamed": ("ALTER TABLE changing RENAME TO renamed", {}),
    "a view is defined anew": (
        "CREATE OR REPLACE VIEW seen AS SELECT note FROM changing WHERE amount > 9",
        {
            "sqlite": "DROP VIEW seen; CREATE VIEW seen AS SELECT note FROM changing "
            "WHERE amount > 9"
        },
    ),
    "a key is declared": (
        "ALTER TABLE changing ADD FOREIGN KEY (amount) REFERENCES customer (customer_id)",
        {"sqlite": None, "duckdb": None},
    ),
    "a column is described": (
        "COMMENT ON COLUMN changing.note IS 'said by a customer'",
        {
            "sqlite": None,
            "mysql": "ALTER TABLE changing MODIFY note TEXT COMMENT 'said by a customer'",
        },
    ),
    "a table is described": (
        "COMMENT ON TABLE changing IS 'what changes'",
        {"sqlite": None, "mysql": "ALTER TABLE changing COMMENT 'what changes'"},
    ),
}
"""What changes a structure, and how other engines say it; None where one cannot."""


@pytest.fixture
def changing(engine: Engine) -> Iterator[Engine]:
    """The shop with a table and a view that a test may change."""
    for statement in (
        "CREATE TABLE changing (note TEXT, amount INTEGER)",
        "CREATE VIEW seen AS SELECT note FROM changing",
    ):
        run_as_owner(engine, statement)
    yield engine
    for kind, name in (("VIEW", "seen"), ("TABLE", "changing"), ("TABLE", "renamed"),
                       ("TABLE", "made")):  # fmt: skip
        with contextlib.suppress(Exception):
            run_as_owner(engine, f"DROP {kind} IF EXISTS {name}")


@pytest.mark.parametrize("change", CHANGES)
def test_the_version_follows_the_structure_on_every_engine(changing: Engine, change: str) -> None:
    usual, otherwise = CHANGES[change]
    statement = otherwise.get(changing.dialect, usual)
    if statement is None:
        pytest.skip(f"not on {changing.dialect}")
    snapshots = Snapshots()
    first = snapshots.current("shop", adapter_for(changing.url))
    assert snapshots.current("shop", adapter_for(changing.url)) is first
    if changing.dialect == "duckdb" and "changing" in statement and "OR REPLACE" not in statement:
        # DuckDB alters no table that a view depends on.
        run_as_owner(changing, "DROP VIEW seen")
        first = snapshots.current("shop", adapter_for(changing.url))
    run_as_owner(changing, statement)
    assert snapshots.current("shop", adapter_for(changing.url)) is not first


def test_a_changed_row_is_no_changed_structure(changing: Engine) -> None:
    if changing.dialect == "duckdb":
        pytest.skip("nobody can write to a DuckDB file while it is open: its version is its state")
    snapshots = Snapshots()
    first = snapshots.current("shop", adapter_for(changing.url))
    run_as_owner(changing, "INSERT INTO changing VALUES ('hello', 1)")
    assert snapshots.current("shop", adapter_for(changing.url)) is first


def table(name: str, *columns: str, key: str | None = None, kind: str = "INTEGER") -> Table:
    return Table(
        name,
        tuple(Column(column, kind) for column in columns),
        primary_key=(key,) if key else (),
    )


@pytest.mark.parametrize(
    ("column", "target"),
    [
        ("customer_id", ("customers", "id")),
        ("customerId", ("customers", "id")),
        ("customerid", ("customers", "id")),
        ("billing_customer_id", ("customers", "id")),
        ("product_code", ("product", "product_code")),
        ("customer", ("customers", "id")),
        ("Product", ("product", "product_code")),
        # How many, not whose.
        ("customers", None),
        ("num_customer", None),
        ("id", None),
        ("name", None),
        ("amount", None),
        ("paid", None),
    ],
)
def test_missing_keys_are_guessed_from_names(column: str, target: tuple[str, str] | None) -> None:
    tables = (
        table("customers", "id", "name", key="id"),
        table("product", "product_code", "name", key="product_code"),
        table("purchase", "purchase_id", column, key="purchase_id"),
    )
    purchase = with_inferred_keys(tables)[2]
    expected = (
        () if target is None else (ForeignKey((column,), target[0], (target[1],), is_guess=True),)
    )
    assert purchase.foreign_keys == expected


def test_what_is_ambiguous_or_of_another_type_is_not_guessed() -> None:
    twice = (
        table("a", "shared_id", key="shared_id"),
        table("b", "shared_id", key="shared_id"),
        table("c", "c_id", "shared_id", key="c_id"),
    )
    assert with_inferred_keys(twice)[2].foreign_keys == ()
    texts = (
        table("customer", "id", key="id"),
        table("note", "customer_id", kind="TEXT"),
    )
    assert with_inferred_keys(texts)[1].foreign_keys == ()


def test_a_declared_key_is_kept_and_a_guess_is_marked() -> None:
    declared = ForeignKey(("customer_id",), "customer", ("id",))
    tables = (
        table("customer", "id", key="id"),
        Table("order", (Column("customer_id", "INTEGER"),), foreign_keys=(declared,)),
        table("visit", "customer_id"),
    )
    _, order, visit = with_inferred_keys(tables)
    assert order.foreign_keys == (declared,)
    assert "guessed" not in render_table(order, "sqlite", True)
    assert "-- guessed from the names" in render_table(visit, "sqlite", True)
