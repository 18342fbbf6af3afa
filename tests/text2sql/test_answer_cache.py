"""The same question is answered once: on the same rows, for whoever may read the same."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.completion import Completion, Prompt
from hexprefect.text2sql import AgentOptions, Answer, Database, answer
from hexprefect.text2sql.access import Access
from hexprefect.text2sql.answer_cache import AnswerCache
from tests.text2sql.conftest import Engine


class Counting:
    """Writes one statement and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, prompt: Prompt) -> Completion:
        self.calls += 1
        return Completion("SELECT COUNT(*) FROM customer", 1, 1)


async def ask(
    model: Counting,
    url: str,
    *,
    question: str = "How many customers?",
    seconds: float = 3_600,
    access: tuple[Access, ...] = (),
    name: str = "tiny",
) -> Answer:
    async with await Database.connect(url, access=access) as database:
        return await answer(
            question,
            database=database,
            complete=model,
            options=AgentOptions(candidates=1, reuse_answers_s=seconds),
            model=name,
        )


async def test_a_question_is_asked_once(shop_file: Path) -> None:
    model = Counting()
    first = await ask(model, f"sqlite:///{shop_file}")
    again = await ask(model, f"sqlite:///{shop_file}", question=" How many  customers?\n")
    assert model.calls == 1
    assert (first.from_cache, again.from_cache) == (False, True)
    assert again.rows == first.rows == ((3,),)


async def test_it_is_off_by_default(shop_file: Path) -> None:
    model = Counting()
    for _ in range(2):
        assert not (await ask(model, f"sqlite:///{shop_file}", seconds=0)).from_cache
    assert model.calls == 2


@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_a_changed_row_is_seen_at_once(shop_file: Path, journal: str) -> None:
    model = Counting()
    writer = sqlite3.connect(shop_file)
    writer.execute(f"PRAGMA journal_mode = {journal}")
    assert (await ask(model, f"sqlite:///{shop_file}")).rows == ((3,),)
    writer.execute("INSERT INTO customer VALUES (4, 'Barbara', NULL)")
    writer.commit()
    assert (await ask(model, f"sqlite:///{shop_file}")).rows == ((4,),)
    writer.close()


async def test_a_changed_duckdb_file_is_seen(duckdb_file: Path) -> None:
    model = Counting()
    assert (await ask(model, f"duckdb:///{duckdb_file}")).rows == ((3,),)
    with duckdb.connect(str(duckdb_file)) as writer:
        writer.execute("DELETE FROM customer WHERE customer_id = 3")
    assert (await ask(model, f"duckdb:///{duckdb_file}")).rows == ((2,),)


async def test_a_question_is_asked_once_on_every_engine(engine: Engine) -> None:
    model = Counting()
    asked = f"How many customers on {engine.dialect}?"
    first = await ask(model, engine.url, question=asked)
    again = await ask(model, engine.url, question=asked)
    assert (first.from_cache, again.from_cache) == (False, True)
    assert again.rows == first.rows == ((3,),)


async def test_other_rights_are_another_question(shop_file: Path) -> None:
    model = Counting()
    url = f"sqlite:///{shop_file}"
    await ask(model, url)
    hidden = Access(columns={"customer": ("customer_id",)})
    assert not (await ask(model, url, access=(hidden,))).from_cache
    forbidden = await ask(model, url, access=(Access(tables=("Größe",)),))
    assert (forbidden.state, forbidden.rows, forbidden.from_cache) == ("failed", (), False)
    assert (await ask(model, url, access=(hidden,))).from_cache


async def test_another_model_is_another_question(shop_file: Path) -> None:
    model = Counting()
    url = f"sqlite:///{shop_file}"
    await ask(model, url)
    assert not (await ask(model, url, name="large")).from_cache


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 4))
def test_never_more_than_the_most_are_kept_and_the_last_used_stay(
    keys: list[int], most: int
) -> None:
    cache = AnswerCache(most=most)
    used: dict[int, None] = {}
    for key in keys:
        if cache.find(str(key), within_s=60) is None:
            cache.keep(str(key), Answer("answered", sql=str(key)))
        used.pop(key, None)
        used[key] = None
        assert len(cache) <= most
    for key in list(used)[-most:]:
        found = cache.find(str(key), within_s=60)
        assert found is not None
        assert found.sql == str(key)


def test_an_answer_grows_old_by_the_clock() -> None:
    now = [0.0]
    cache = AnswerCache(clock=lambda: now[0])
    cache.keep("key", Answer("answered"))
    now[0] = 10.0
    assert cache.find("key", within_s=10) is not None
    assert cache.find("key", within_s=9) is None


@pytest.mark.parametrize(
    "unfit",
    [
        Answer("failed", reason="no"),
        Answer("abstained", missing=("blood",)),
        Answer("answered", dropped_work=("judge: 0.1 s left",)),
        Answer("answered", columns=("n",), rows=((1,),) * 20_001),
    ],
)
def test_what_could_be_better_next_time_is_not_kept(unfit: Answer) -> None:
    cache = AnswerCache()
    cache.keep("key", unfit)
    assert len(cache) == 0
