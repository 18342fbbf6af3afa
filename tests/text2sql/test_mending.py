"""What code makes of a statement: one step after another, and never at the price of the branch."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hexprefect.text2sql import Database, mending
from hexprefect.text2sql.mending import MOST_MENDINGS, Mender, Tried
from hexprefect.text2sql.respelling import Proposal
from hexprefect.text2sql.rows import Rows

TABLES = """
CREATE TABLE country (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT, country INTEGER REFERENCES country (id));
CREATE TABLE song (id INTEGER PRIMARY KEY, singer INTEGER REFERENCES singer (id), title TEXT);
INSERT INTO country VALUES (1, 'France'), (2, 'Chile');
INSERT INTO singer VALUES (1, 'Ada', 1), (2, 'Bo', 2);
INSERT INTO song VALUES (1, 1, 'A'), (2, 1, 'B'), (3, 2, 'C');
"""


@pytest.fixture
async def songs(tmp_path: Path) -> AsyncIterator[Database]:
    path = tmp_path / "songs.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(TABLES)
    connection.close()
    async with await Database.connect(f"sqlite:///{path}") as database:
        yield database


async def steps(database: Database, tried: Tried, question: str = "Who?") -> list[Tried]:
    mender = Mender(database, await database.schema(), question)
    found = []
    while (mended := await mender.mend(tried)) is not None:
        assert len(found) < MOST_MENDINGS, "it goes in a circle"
        found.append(mended)
        tried = mended
    return found


async def test_one_step_follows_the_other_until_nothing_is_to_mend(songs: Database) -> None:
    """The title's table is joined, the wrong join put right, and the singer named once."""
    sql = "SELECT s.name FROM singer s JOIN country c ON s.id = c.id WHERE title <> 'x'"
    found = await steps(songs, Tried(sql, None, "no such column: title"))
    assert [len(item.rows.rows) for item in found if item.rows] == [3, 3, 2]
    assert 's."country" = c."id"' in found[1].sql
    assert "DISTINCT" in found[2].sql


async def test_what_finds_nothing_or_does_not_run_is_no_mending(
    songs: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = Tried("SELECT name FROM singer WHERE 0", Rows(("name",), ()))
    found = "SELECT name FROM singer"
    for made in (
        Proposal("SELECT name FROM singer WHERE id > 5"),
        Proposal("SELECT nothing"),
        Proposal("DROP TABLE singer"),
        # A text is there after all, or nobody can say.
        Proposal(found, ("SELECT 1 WHERE 0", "SELECT 1")),
        Proposal(found, ("SELECT nothing",)),
    ):
        monkeypatch.setattr(mending, "respelled", lambda sql, schema, made=made: made)
        assert await steps(songs, empty) == []
    assert len((await songs.execute("SELECT 1 FROM singer")).rows) == 2


async def test_a_mistake_of_ours_costs_no_branch(
    songs: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(sql: str, schema: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(mending, "joined_by_keys", broken)
    rows = await songs.execute("SELECT name FROM singer")
    assert await steps(songs, Tried("SELECT name FROM singer", rows)) == []
    assert "could not be mended" in caplog.text
