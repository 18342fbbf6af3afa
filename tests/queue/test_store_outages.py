"""The store's database is away for a while: nothing stays held, nobody is taken for dead."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, select
from sqlalchemy.engine import make_url

from hexprefect.queue import SharedQueue
from hexprefect.scheduling import RequestSize
from hexprefect.store import Store, StoreUnavailable, tables
from hexprefect.store.store import _ConnectionLost

from .conftest import OPTIONS

SIZE = RequestSize(10, 5.0)

Outage = Callable[..., Any]


@pytest.fixture
def outage(store_url: str) -> Outage:
    """`with outage(*stores)`: none of them can use its database."""
    return _postgresql_outage if store_url.startswith("postgresql") else _sqlite_outage


@contextmanager
def _postgresql_outage(*stores: Store) -> Iterator[None]:
    url = stores[0].engine.url
    other = make_url(url).set(drivername="postgresql", database="postgres")
    with psycopg.connect(other.render_as_string(hide_password=False), autocommit=True) as server:

        def allow(whether: str) -> None:
            server.execute(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS {whether}".encode())

        allow("false")
        try:
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                (url.database,),
            )
            yield
        finally:
            allow("true")


@contextmanager
def _sqlite_outage(*stores: Store) -> Iterator[None]:
    def fail(_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    for store in stores:
        event.listen(store.engine, "begin", fail)
    try:
        yield
    finally:
        for store in stores:
            event.remove(store.engine, "begin", fail)


def query_state(store: Store, id: str) -> tuple[str, str | None]:
    query = tables.queries.c
    row = store.read(
        lambda connection: connection.execute(
            select(query.state, query.reason).where(query.id == id)
        ).one()
    )
    return row.state, row.reason


async def test_a_server_that_does_not_answer_does_not_stop_the_loop():
    longest, before = 0.0, time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/store?connect_timeout=2"

        async def open_queue() -> None:
            await SharedQueue(url, options=OPTIONS).start()

        opening = asyncio.ensure_future(open_queue())
        while not opening.done():
            await asyncio.sleep(0.02)
            now = time.monotonic()
            longest, before = max(longest, now - before), now
    with pytest.raises(StoreUnavailable):
        await opening
    assert longest < 1.5


async def test_what_ends_while_it_is_away_for_a_moment_is_kept(fleet, queue, outage):
    await fleet.start("m")
    query = await queue.query(slo_s=60)
    request = await query.submit("ask", SIZE)
    with outage(queue.store):
        finishing = asyncio.ensure_future(request.finish({"text": "SELECT 1"}))
        looking = asyncio.ensure_future(queue.directory.views(fresh=True))
        await asyncio.sleep(0.7)
        assert not finishing.done()
        assert not looking.done()
    await asyncio.wait_for(finishing, 20)
    assert set(await asyncio.wait_for(looking, 20)) == {"m"}
    await query.end("answered")
    assert fleet.counts() == {"finished": 1}


async def test_what_it_could_not_be_told_for_long_it_is_told_when_it_is_back(
    fleet, new_queue, outage, eventually
):
    await fleet.start("m", slots=2)
    queue = await new_queue(replace(OPTIONS, beat_every_s=0.3, store_patience_s=0.3))
    one, two = [await queue.query(slo_s=60) for _ in range(2)]
    finished = await one.submit("ask", SIZE)
    failed = await two.submit("ask", SIZE)
    with outage(queue.store, fleet.store):
        with pytest.raises(StoreUnavailable, match="cannot be used"):
            await finished.finish({"text": ""})
        with pytest.raises(StoreUnavailable):
            await failed.fail("it broke")
        with pytest.raises(StoreUnavailable):
            await one.end("failed", reason="the store was away")
        await asyncio.sleep(0.5)
    await eventually(lambda: fleet.counts() == {"cancelled": 2} and fleet.idle())
    await eventually(lambda: query_state(fleet.store, one.id) == ("failed", "the store was away"))
    # What begins anew owes nothing.
    assert (await two.submit("ask", SIZE, id=failed.id)).attempt == 2
    await asyncio.sleep(1.0)
    assert fleet.counts() == {"cancelled": 1, "running": 1}
    await two.end("answered")


async def test_a_grant_whose_news_was_lost_is_found(fleet, queue, monkeypatch):
    await fleet.start("m")
    query = await queue.query(slo_s=60)
    first = await query.submit("ask", SIZE)
    second = await query.submit("ask", SIZE)
    once, lost = Store._once, []

    def unconfirmed(store: Store, jobs: Any) -> Any:
        done = once(store, jobs)
        if not lost and jobs[0].request == first.id:
            lost.append(done)
            raise _ConnectionLost(psycopg.OperationalError("the connection is lost"))
        return done

    monkeypatch.setattr(Store, "_once", unconfirmed)
    await first.finish({})
    assert lost
    assert second.grant is None
    await asyncio.wait_for(second.admitted(), 20)
    await second.finish({})
    await query.end("answered")


async def test_what_can_no_longer_wait_is_not_granted_to_nobody(
    fleet, queue, prompt, monkeypatch, eventually
):
    await fleet.start("m")
    query = await queue.query(slo_s=60)
    first = await query.submit("ask", SIZE)
    waits = asyncio.ensure_future(query.complete(prompt()))
    await eventually(lambda: fleet.counts() == {"running": 1, "waiting": 1})

    async def broken(**_: Any) -> Any:
        raise ValueError("something unexpected")

    monkeypatch.setattr(queue.directory, "open_requests", broken)
    with pytest.raises(ValueError, match="unexpected"):
        await waits
    await eventually(lambda: fleet.counts() == {"running": 1, "cancelled": 1})
    await first.finish({})
    await query.end("answered")


async def test_after_it_was_away_for_longer_than_a_lease_nobody_is_taken_for_dead(
    fleet, new_queue, outage, caplog
):
    await fleet.start("m", slots=2)
    options = replace(OPTIONS, lease_s=2.0, beat_every_s=0.5, store_patience_s=0.3)
    queues: list[SharedQueue] = [await new_queue(options) for _ in range(2)]
    queries = [await queue.query(slo_s=60) for queue in queues]
    requests = [await query.submit("ask", SIZE) for query in queries]
    with outage(fleet.store, *(queue.store for queue in queues)):
        await asyncio.sleep(4.5)
    await asyncio.sleep(1.5)
    for request, query in zip(requests, queries, strict=True):
        await request.finish({})
        await query.end("answered")
    assert "was taken for dead" not in caplog.text
    assert fleet.counts() == {"finished": 2}
