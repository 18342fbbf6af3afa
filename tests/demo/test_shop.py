"""The demo shop: the same rows for the same seed, real constraints, awkward names, sound money."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from hexprefect.demo import build_shop, load_shop
from hexprefect.demo.shop_rows import shop_rows
from hexprefect.demo.shop_schema import metadata
from hexprefect.errors import CallerMistake


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path = build_shop(tmp_path_factory.mktemp("shop") / "shop.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        yield connection


def test_one_seed_gives_one_file(tmp_path: Path) -> None:
    first = build_shop(tmp_path / "a.sqlite", seed=7)
    second = build_shop(tmp_path / "b.sqlite", seed=7)
    assert first.read_bytes() == second.read_bytes()


def test_another_seed_gives_other_rows() -> None:
    ours, theirs = shop_rows(seed=7), shop_rows(seed=8)
    assert ours["order"] != theirs["order"]
    assert ours["city"] == theirs["city"]


def test_many_threads_may_build_the_same_file_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        built = list(threads.map(build_shop, [tmp_path / "shop.sqlite"] * 8))
    assert {path.read_bytes() for path in built} == {build_shop(tmp_path / "one").read_bytes()}


def test_building_again_replaces_what_is_there_and_leaves_no_draft(tmp_path: Path) -> None:
    path = build_shop(tmp_path / "shop.sqlite")
    before = path.read_bytes()
    path.write_bytes(b"not a database")
    assert build_shop(path).read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["shop.sqlite"]


def test_foreign_keys_hold_and_are_declared(shop: sqlite3.Connection) -> None:
    assert shop.execute("PRAGMA foreign_key_check").fetchall() == []
    assert shop.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    declared = sum(
        len(shop.execute(f'PRAGMA foreign_key_list("{name}")').fetchall())
        for name in metadata.tables
    )
    assert declared >= 14


def test_it_has_a_few_thousand_rows_in_a_dozen_tables(shop: sqlite3.Connection) -> None:
    counts = {
        name: shop.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0]
        for name in metadata.tables
    }
    assert len(counts) == 12
    assert all(counts.values())
    assert 3_000 <= sum(counts.values()) <= 20_000


def test_every_column_that_may_be_null_has_nulls_and_values(shop: sqlite3.Connection) -> None:
    for table in metadata.tables.values():
        for column in table.columns:
            nulls, values = shop.execute(
                f'SELECT COUNT(*) - COUNT("{column.name}"), COUNT("{column.name}") '
                f'FROM "{table.name}"'
            ).fetchone()
            assert values > 0, column
            assert (nulls > 0) == bool(column.nullable), column


def test_names_are_as_awkward_as_real_ones(shop: sqlite3.Connection) -> None:
    columns = {column.name for table in metadata.tables.values() for column in table.columns}
    assert "order" in metadata.tables
    assert "café" in metadata.tables
    assert {"Größe", "Sitzplätze", "Coupon Code"} <= columns


def test_column_comments_are_kept_in_the_stored_statement(shop: sqlite3.Connection) -> None:
    for table in metadata.tables.values():
        [statement] = shop.execute(
            "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table.name,)
        ).fetchone()
        for column in table.columns:
            if column.comment:
                [line] = [part for part in statement.splitlines() if column.comment in part]
                assert column.name in line.split("--")[0]


def test_an_order_is_paid_what_it_costs(shop: sqlite3.Connection) -> None:
    rows = shop.execute(
        "SELECT t.total, p.amount FROM order_total AS t JOIN payment AS p USING (order_id) "
        "WHERE p.amount > 0"
    ).fetchall()
    assert len(rows) == 1200
    assert all(abs(total - amount) <= 0.011 for total, amount in rows)


def test_nothing_is_sold_before_its_launch_or_picked_up_before_the_opening(
    shop: sqlite3.Connection,
) -> None:
    assert shop.execute(
        'SELECT COUNT(*) FROM order_item AS i JOIN "order" AS o ON o.id = i.order_id '
        "JOIN product AS p ON p.id = i.product_id WHERE date(o.ordered_at) < p.launched_on"
    ).fetchone() == (0,)
    assert shop.execute(
        'SELECT COUNT(*) FROM "order" AS o JOIN "café" AS c ON c.id = o."café_id" '
        "WHERE date(o.ordered_at) < c.opened_on"
    ).fetchone() == (0,)


def test_money_is_exact_in_the_generator() -> None:
    for payment in shop_rows()["payment"]:
        assert isinstance(payment["amount"], Decimal)
        assert payment["amount"] == payment["amount"].quantize(Decimal("0.01"))


def test_the_module_builds_it_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "shop.sqlite"
    done = subprocess.run(
        [sys.executable, "-m", "hexprefect.demo", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == str(path)
    assert path.read_bytes() == build_shop(tmp_path / "other.sqlite").read_bytes()


def test_loading_twice_is_refused_and_names_the_tables(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.sqlite'}"
    build_shop(tmp_path / "shop.sqlite")
    with pytest.raises(CallerMistake, match="already has the tables café, category, city"):
        load_shop(url)
