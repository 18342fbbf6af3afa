"""A database block as the flows open it: who may ask, what each may read, in which words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hexprefect.blocks import Text2SQLDatabase
from hexprefect.errors import CallerMistake
from hexprefect.orchestration import databases
from hexprefect.text2sql.errors import StatementRefused
from hexprefect.text2sql.rendering import render_schema
from hexprefect.text2sql.value_index import keep_indexes_in


@pytest.fixture
def block(
    shop_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Text2SQLDatabase]:
    """What the server would have kept."""
    kept = Text2SQLDatabase(
        url=f"sqlite:///{shop_file}",  # type: ignore[arg-type]
        columns={"customer": ["customer_id", "name"]},
        tenants={"board": [], "support": {"tables": ["customer"]}},  # type: ignore[dict-item]
        glossary={"churned": "no order for a year"},
        examples=[{"question": "How many?", "sql": "SELECT COUNT(*) FROM customer"}],  # type: ignore[list-item]
    )

    async def stored(name: str) -> Text2SQLDatabase:
        assert name == "shop"
        return kept

    monkeypatch.setattr(databases, "_block", stored)
    monkeypatch.setattr(databases, "state_folder", lambda: tmp_path / "state")
    yield kept
    keep_indexes_in(None)


async def test_each_tenant_reads_what_it_may(block: Text2SQLDatabase) -> None:
    async with await databases.open_database("block:shop", tenant="board") as database:
        assert (await database.execute('SELECT COUNT(*) FROM "order"')).rows == ((3,),)
        rows = await database.execute("SELECT * FROM customer LIMIT 1")
        assert rows.columns == ("customer_id", "name")
    async with await databases.open_database("shop", tenant="support") as database:
        with pytest.raises(StatementRefused, match="access"):
            await database.execute('SELECT COUNT(*) FROM "order"')
        [refusal] = database.refusals
        assert refusal.tenant == "support"


async def test_a_tenant_that_is_not_named_may_not_ask(block: Text2SQLDatabase) -> None:
    with pytest.raises(CallerMistake, match="guest"):
        await databases.open_database("shop", tenant="guest")


async def test_the_words_of_a_block_reach_the_prompt(block: Text2SQLDatabase) -> None:
    async with await databases.open_database("shop", tenant="support") as database:
        text = render_schema(await database.schema(), token_budget=2_000).text
    assert "churned: no order for a year" in text
    assert "SELECT COUNT(*) FROM customer" in text
    assert "city" not in text


async def test_a_url_leaves_rights_to_its_account(shop_file: Path, block: Text2SQLDatabase) -> None:
    async with await databases.open_database(f"sqlite:///{shop_file}", tenant="a") as database:
        assert (await database.execute("SELECT MIN(city) FROM customer")).rows == (("London",),)
