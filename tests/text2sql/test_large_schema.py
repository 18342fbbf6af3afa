"""A catalogue of 1,000 tables with 30 columns each: linked, rendered and guarded without a wait.

To see the figures: pytest -s -m benchmark PATH_OF_THIS_FILE
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from hexprefect.completion import Completion, Prompt
from hexprefect.text2sql.access import Access, restricted
from hexprefect.text2sql.agent import answer
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.guard import check
from hexprefect.text2sql.linking import Links, link_by_words, rank_tables
from hexprefect.text2sql.options import AgentOptions
from hexprefect.text2sql.rendering import RenderedSchema, render_schema
from hexprefect.text2sql.schema import Column, ForeignKey, Schema, Table

TABLES, COLUMNS = 1_000, 30
BUDGET = 6_000
QUESTION = "What is the total invoice amount of customers in Trondheim by payment method?"
_WORDS = str.split(
    "account address amount balance batch branch carrier category channel claim code contract "
    "country currency date delivery department discount driver employee event fee folder group "
    "history item journal key label ledger line load location lot machine margin material member "
    "meter note number office offer order owner package part period person phase plan plant price "
    "process product profile project quantity rate reason region report request role route rule "
    "sale sample schedule score sector segment sensor series service session shift site source "
    "stage state status step stock store supplier task tax team term ticket title topic track "
    "trade train transfer trip type unit usage user value vehicle version visit volume wage week"
)


@cache
def large_schema(tables: int = TABLES) -> Schema:
    draw = random.Random(11)
    made = []
    for number in range(tables):
        columns = [Column(f"t{number}_id", "INTEGER")]
        columns += [
            Column(
                f"{draw.choice(_WORDS)}_{draw.choice(_WORDS)}_{index}",
                draw.choice(("TEXT", "INTEGER", "DATE")),
                values=tuple(f"{draw.choice(_WORDS)} {draw.choice(_WORDS)} {n}" for n in range(16))
                if number < 200
                else (),
            )
            for index in range(1, COLUMNS)
        ]
        keys = (
            (ForeignKey((columns[1].name,), f"{_name(number - 1)}", (f"t{number - 1}_id",)),)
            if number
            else ()
        )
        made.append(
            Table(_name(number), tuple(columns), primary_key=(columns[0].name,), foreign_keys=keys)
        )
    made[tables // 2] = Table(
        "customer_invoice",
        (
            Column("customer_id", "INTEGER"),
            Column("invoice_amount", "REAL"),
            Column("payment_method", "TEXT", values=("card", "cash")),
            Column("customer_city", "TEXT", values=("Trondheim", "Bergen")),
        ),
    )
    return Schema("sqlite", tuple(made))


def _name(number: int) -> str:
    return f"{_WORDS[number % len(_WORDS)]}_{_WORDS[number // len(_WORDS)]}_{number}"


def link(schema: Schema) -> tuple[Links, RenderedSchema]:
    """What a question costs of code before the model is asked."""
    links = link_by_words(QUESTION, schema)
    ranking = rank_tables(QUESTION, schema, linked=links.tables)
    return links, render_schema(schema, token_budget=BUDGET, ranking=ranking)


def seconds(work: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(times):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def test_the_right_table_is_shown_within_the_budget() -> None:
    links, rendered = link(large_schema())
    assert [item.value for item in links.values] == ["Trondheim"]
    assert "CREATE TABLE customer_invoice" in rendered.text
    assert rendered.tokens <= BUDGET + 40
    assert len(rendered.omitted_tables) > 900
    assert "less relevant tables are not shown" in rendered.text


def test_the_second_question_builds_nothing() -> None:
    schema = large_schema()
    link(schema)
    tracemalloc.start()
    try:
        link(schema)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The indexes of 30,000 columns and 90,000 values take tens of megabytes.
    assert peak < 4_000_000


def test_what_the_guard_costs_does_not_follow_the_catalogue() -> None:
    """Counted in memory, which is the same on every machine."""
    schema = large_schema()
    sql = "SELECT SUM(invoice_amount) FROM customer_invoice WHERE customer_city = 'Trondheim'"
    check(sql, dialect="sqlite", schema=schema)
    tracemalloc.start()
    try:
        check(sql, dialect="sqlite", schema=schema)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


async def is_read_once(folder: Path, tables: int) -> None:
    path = folder / "large.sqlite"
    connection = sqlite3.connect(path)
    for table in large_schema().tables[:tables]:
        columns = ", ".join(f'"{column.name}" {column.type}' for column in table.columns)
        connection.execute(f'CREATE TABLE "{table.name}" ({columns})')
    connection.commit()
    connection.close()
    async with await Database.connect(f"sqlite:///{path}") as first:
        schema = await first.schema()
    async with await Database.connect(f"sqlite:///{path}") as second:
        assert await second.schema() is schema
    assert len(schema.tables) == tables


async def test_a_catalogue_is_read_once_for_all_who_ask(tmp_path: Path) -> None:
    await is_read_once(tmp_path, 60)


@pytest.mark.slow
async def test_a_catalogue_of_this_size_is_read_once_for_all_who_ask(tmp_path: Path) -> None:
    await is_read_once(tmp_path, TABLES)


async def is_answered(folder: Path, tables: int) -> list[Prompt]:
    """Ask on a real file of that many tables; returns the prompts that it took."""
    path = folder / "large.sqlite"
    known = large_schema().tables
    chosen = {table.name: table for table in (*known[:tables], known[TABLES // 2])}
    with sqlite3.connect(path) as connection:
        for table in chosen.values():
            columns = ", ".join(f'"{column.name}" {column.type}' for column in table.columns)
            connection.execute(f'CREATE TABLE "{table.name}" ({columns})')
        connection.executemany(
            "INSERT INTO customer_invoice VALUES (?, ?, ?, ?)",
            [(1, 10.5, "card", "Trondheim"), (2, 4.5, "cash", "Trondheim"), (3, 9, "cash", "Oslo")],
        )
    connection.close()
    prompts: list[Prompt] = []

    async def complete(prompt: Prompt) -> Completion:
        prompts.append(prompt)
        if prompt.stage == "schema_linking":
            return Completion(json.dumps({"columns": ["customer_invoice.invoice_amount"]}), 1, 1)
        return Completion(
            "SELECT payment_method, SUM(invoice_amount) FROM customer_invoice "
            "WHERE customer_city = 'Trondheim' GROUP BY payment_method ORDER BY 1",
            1,
            1,
        )

    async with await Database.connect(f"sqlite:///{path}") as database:
        found = await answer(
            QUESTION,
            database=database,
            complete=complete,
            options=AgentOptions(schema_token_budget=BUDGET),
        )
    assert found.rows == (("card", 10.5), ("cash", 4.5))
    return prompts


def fits_the_context(prompt: Prompt) -> bool:
    """Whether it fits an instance of 8,192 tokens, as the local ones have."""
    return prompt.estimated_input_tokens() + prompt.max_output_tokens <= 8_192


async def test_a_question_on_many_tables_is_answered_within_the_context(tmp_path: Path) -> None:
    prompts = await is_answered(tmp_path, 120)
    assert {prompt.stage for prompt in prompts} == {"schema_linking", "candidate_generation"}
    assert all(fits_the_context(prompt) for prompt in prompts)
    written = [prompt for prompt in prompts if prompt.stage == "candidate_generation"]
    assert all("customer_invoice" in prompt.messages[-1].content or "customer_invoice"
               in prompt.messages[0].content for prompt in written)  # fmt: skip


@pytest.mark.slow
async def test_a_question_on_a_thousand_tables_is_answered_within_the_context(
    tmp_path: Path,
) -> None:
    assert all(fits_the_context(prompt) for prompt in await is_answered(tmp_path, TABLES))


@pytest.mark.benchmark
def test_linking_is_fast_when_warm() -> None:
    schema = large_schema()
    cold = seconds(lambda: link(Schema(schema.dialect, schema.tables)), 1)
    warm = seconds(lambda: link(schema), 5)
    small = seconds(lambda: link(large_schema(100)), 5)
    guard = seconds(
        lambda: check(
            "SELECT invoice_amount FROM customer_invoice", dialect="sqlite", schema=schema
        ),
        5,
    )
    narrow = seconds(lambda: restricted(schema, Access(tables=("customer_invoice",))), 3)
    tracemalloc.start()
    other = Schema(schema.dialect, schema.tables)
    link(other)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(
        f"\n1,000 x 30: cold {cold * 1e3:.0f} ms, warm {warm * 1e3:.1f} ms "
        f"(100 tables: {small * 1e3:.1f} ms), guard {guard * 1e3:.1f} ms, "
        f"allow-list {narrow * 1e3:.1f} ms, Python memory kept {kept / 1e6:.0f} MB, "
        f"peak {peak / 1e6:.0f} MB"
    )
    assert warm < cold / 3
