"""Values that a question mentions, found in an index that is kept and brought up to date."""

from __future__ import annotations

import random
import sqlite3
import stat
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hexprefect.completion import Completion, Prompt
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.linking import link_by_model, link_by_words
from hexprefect.text2sql.prompting import PromptBook
from hexprefect.text2sql.rendering import render_schema
from hexprefect.text2sql.schema import Column, Schema, Table
from hexprefect.text2sql.value_index import ValueIndex, keep_indexes_in, value_index


def schema_with(**columns: tuple[str, ...]) -> Schema:
    table = Table(
        "place", tuple(Column(name, "TEXT", values=values) for name, values in columns.items())
    )
    return Schema("sqlite", (table,), identity="a database")


CITIES = ("London", "New York", "Oslo", "São Paulo", "Köln", "Sankt Petersburg")


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("who lives in london", "London"),
        ("people of New Yorck", "New York"),
        ("people of sao paulo or São Paulo", "São Paulo"),
        ("Wer wohnt in Köln?", "Köln"),
        ("flights to Sankt Peterburg", "Sankt Petersburg"),
    ],
)
def test_values_are_found_however_they_are_spelt(question: str, expected: str) -> None:
    found = ValueIndex(schema_with(city=CITIES)).find(question)
    assert found[0].value == expected
    assert (found[0].table, found[0].column) == ("place", "city")


def test_a_value_in_two_columns_is_found_in_both() -> None:
    found = ValueIndex(schema_with(city=("Oslo",), origin=("oslo", "Rome"))).find("from Oslo")
    assert {(item.column, item.value) for item in found} == {("city", "Oslo"), ("origin", "oslo")}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    values=st.lists(st.text(max_size=20), max_size=12, unique=True).map(tuple),
    question=st.text(max_size=60),
)
def test_no_text_makes_the_index_fail(values: tuple[str, ...], question: str) -> None:
    index = ValueIndex(schema_with(city=values))
    for item in index.find(question, phrases=[question[:10]]):
        assert item.value in values


def test_an_exact_value_is_found_among_very_many() -> None:
    draw = random.Random(3)
    many = tuple(
        " ".join("".join(draw.choices("abcdefghij", k=6)) for _ in range(2)) for _ in range(20_000)
    )
    index = ValueIndex(schema_with(city=many))
    for value in draw.sample(many, 20):
        assert index.find(f"which shop is in {value} today")[0].value == value


def test_an_index_that_is_being_built_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = schema_with(city=CITIES), schema_with(city=("Rome",))
    begun, may_go_on = threading.Event(), threading.Event()
    update = ValueIndex._update

    def slowly(self: ValueIndex, connection: sqlite3.Connection, schema: Schema) -> None:
        if schema is large:
            begun.set()
            assert may_go_on.wait(60)
        update(self, connection, schema)

    monkeypatch.setattr(ValueIndex, "_update", slowly)
    with ThreadPoolExecutor(2) as threads:
        first, second = [threads.submit(value_index, large) for _ in range(2)]
        assert begun.wait(60)
        try:
            other = threading.Thread(target=value_index, args=(small,), daemon=True)
            other.start()
            other.join(60)
            assert not other.is_alive()
        finally:
            may_go_on.set()
        assert first.result() is second.result()


async def test_links_are_looked_up_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = schema_with(city=CITIES)
    looked_up: list[threading.Thread] = []
    find = ValueIndex.find

    def watched(self: ValueIndex, question: str, *, phrases: Iterable[str] = ()) -> Any:
        looked_up.append(threading.current_thread())
        return find(self, question, phrases=phrases)

    async def complete(prompt: Prompt) -> Completion:
        return Completion('{"tables": ["place"], "columns": [], "values": ["Oslo"]}', 1, 1)

    monkeypatch.setattr(ValueIndex, "find", watched)
    rendered = render_schema(schema, token_budget=1_000)
    book = PromptBook(schema.dialect, rendered, "Who lives in Oslo?", "")
    links = await link_by_model(book, schema, complete)
    assert [item.value for item in links.values] == ["Oslo"]
    assert threading.main_thread() not in looked_up


def test_only_what_changed_is_indexed_anew(tmp_path: Path) -> None:
    file = tmp_path / "kept" / "index.sqlite"
    before = schema_with(city=CITIES, country=("Norway", "Brazil"))
    first = ValueIndex(before, file)
    assert first.indexed_columns == 2
    first.close()
    again = ValueIndex(before, file)
    assert again.indexed_columns == 0
    assert again.find("in Oslo")[0].value == "Oslo"
    again.close()
    after = schema_with(city=(*CITIES[1:], "Bergen"), country=("Norway", "Brazil"))
    changed = ValueIndex(after, file)
    assert changed.indexed_columns == 1
    assert changed.find("in Bergen")[0].value == "Bergen"
    assert changed.find("in London") == ()
    changed.close()
    less = ValueIndex(schema_with(country=("Norway", "Brazil")), file)
    assert less.indexed_columns == 0
    assert less.find("in Bergen") == ()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    less.close()


def test_a_file_that_is_no_index_is_done_without(tmp_path: Path) -> None:
    file = tmp_path / "index.sqlite"
    file.write_text("Dear all, this is not a database. " * 100)
    assert ValueIndex(schema_with(city=CITIES), file).find("in Oslo")[0].value == "Oslo"


def test_rights_have_files_of_their_own(tmp_path: Path) -> None:
    """What one tenant may not read must not come out of an index that another's question built."""
    try:
        keep_indexes_in(tmp_path)
        whole = schema_with(city=CITIES, country=("Norway",))
        part = schema_with(city=CITIES)
        of_nothing = replace(whole, identity="")
        assert value_index(whole).find("Norway")
        assert value_index(part).find("Norway") == ()
        assert value_index(of_nothing).find("Norway")
        assert len(list(tmp_path.glob("*.sqlite"))) == 2
    finally:
        keep_indexes_in(None)


async def test_questions_are_linked_to_values_on_every_engine(any_shop: Database) -> None:
    links = link_by_words("Which customers live in New Yorck?", await any_shop.schema())
    assert [item.value for item in links.values] == ["New York"]
