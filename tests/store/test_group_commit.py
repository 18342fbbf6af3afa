"""Transitions that share a commit are each atomic: none is harmed by its neighbours' failures."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest
from sqlalchemy import insert
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DatabaseError

from hexprefect.errors import CallerMistake
from hexprefect.store import LeaseLost, tables
from hexprefect.store import transitions as move_request
from hexprefect.store.alpha import set_alpha
from hexprefect.store.engine import SCHEDULING_LOCK, STALLED_MS
from hexprefect.store.queries import end_query
from hexprefect.store.store import Store
from hexprefect.store.values import Outcome, QueryEnded


class Held:
    """Keeps a store's thread busy, so that what is handed in meanwhile shares the next commit."""

    def __init__(self, store: Store) -> None:
        self._go = threading.Event()
        self._busy = threading.Event()
        store.enqueue(self._wait)
        assert self._busy.wait(30)

    def _wait(self, tx: object) -> None:
        self._busy.set()
        self._go.wait(30)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._go.set()


@pytest.fixture
def commits(process):
    """The number of transitions in each commit, as they happen."""
    sizes: list[int] = []
    once = process.store._once

    def counted(jobs):
        sizes.append(len(jobs))
        return once(jobs)

    process.store._once = counted
    return sizes


def test_what_waits_together_is_committed_together_in_order(process, commits):
    process.instance("m", slots=3)
    query = process.query()
    commits.clear()
    with Held(process.store):
        futures = [
            process.store.enqueue_submit(process.request(query, f"r{index}")) for index in range(5)
        ]
    states = [future.result(30).state for future in futures]
    assert states == ["running", "running", "running", "waiting", "waiting"]
    assert commits == [1, 5]


def test_a_refused_transition_does_not_harm_those_that_share_its_commit(process, commits):
    process.instance("m", slots=4)
    query, ended = process.query(), process.query()
    process.end(ended)
    commits.clear()
    with Held(process.store):
        good = process.store.enqueue_submit(process.request(query, "good"))
        refused = process.store.enqueue_submit(process.request(ended, "refused"))
        also = process.store.enqueue_submit(process.request(query, "also good"))
    assert good.result(30).state == also.result(30).state == "running"
    with pytest.raises(QueryEnded):
        refused.result(30)
    assert commits == [1, 3]


def test_what_is_submitted_later_in_a_commit_was_not_overtaken_by_what_started_in_it(
    process, commits
):
    """A query that ends amid a commit lets in who waits; a more urgent one then comes too late."""
    process.instance("m")
    patient, ends, urgent = process.query(slo_s=500.0), process.query(), process.query(slo_s=5.0)
    running = process.submit(patient, "running")
    process.submit(patient, "patient")
    commits.clear()
    with Held(process.store):
        done = process.store.enqueue(
            lambda tx: move_request.finish(
                tx, request_id="running", attempt=running.grant.attempt, outcome=Outcome({})
            )
        )
        process.store.enqueue(lambda tx: end_query(tx, ends.id, state="answered"))
        late = process.store.enqueue_submit(process.request(urgent, "urgent"))
    done.result(30)
    assert late.result(30).state == "waiting"
    assert commits == [1, 3]
    first, second = process.row("patient"), process.row("urgent")
    assert first["state"] == "running"
    assert second["order_key"] < first["order_key"]
    assert second["submitted_at"] == first["admitted_at"]
    process.finish(next(grant for grant in process.granted if grant.request_id == "patient"))
    assert process.state("urgent") == "running"
    assert process.violations() == []


def test_an_unexpected_error_rolls_back_and_the_others_are_committed_without_it(process, commits):
    process.instance("m", slots=4)
    query = process.query()

    def broken(tx):
        move_request.submit(tx, process.request(query, "half done"))
        tx.flush()
        tx.connection.execute(insert(tables.tenants), [{"name": "default", "created_at": 0.0}])

    commits.clear()
    with Held(process.store):
        before = process.store.enqueue_submit(process.request(query, "before"))
        failing = process.store.enqueue(broken)
        after = process.store.enqueue_submit(process.request(query, "after"))
    assert before.result(30).state == after.result(30).state == "running"
    with pytest.raises(DatabaseError):
        failing.result(30)
    assert process.counts() == {"running": 2}
    assert process.view("m").occupied == 2
    assert commits == [1, 3, 1, 1, 1]


def test_an_error_in_what_is_written_at_the_end_is_the_failing_transitions_own(process):
    """On PostgreSQL these statements are sent together, and fail together."""
    process.instance("m", slots=4)
    query = process.query()

    def broken(tx):
        tx.record_attempt(
            request_id="of no request",
            number=1,
            instance="m",
            owner="nobody",
            admitted_at=0.0,
            started_at=0.0,
            ended_at=0.0,
            outcome="finished",
        )

    with Held(process.store):
        good = process.store.enqueue_submit(process.request(query, "good"))
        failing = process.store.enqueue(broken)
    assert good.result(30).state == "running"
    with pytest.raises((DatabaseError, psycopg.Error)):
        failing.result(30)
    process.finish(good.result())


def test_a_finish_and_its_repetition_may_share_a_commit(process):
    process.instance("m")
    submitted = process.submit(process.query(), "r")

    def finish(tx):
        move_request.finish(
            tx, request_id="r", attempt=1, outcome=Outcome({"text": "once"}, 100, 10)
        )

    def fail(tx):
        move_request.fail(tx, request_id="r", attempt=1, error="no")

    with Held(process.store):
        first = process.store.enqueue(finish, about="r")
        second = process.store.enqueue(finish, about="r")
        other = process.store.enqueue(fail, about="r")
    first.result(30)
    second.result(30)
    with pytest.raises(LeaseLost):
        other.result(30)
    assert submitted.grant is not None
    assert [a["outcome"] for a in process.attempts("r")] == ["finished"]


def test_a_retry_may_share_the_commit_of_the_failure_before_it(process):
    process.instance("m")
    query = process.query()
    process.submit(query, "r")
    with Held(process.store):
        process.store.enqueue(
            lambda tx: move_request.fail(tx, request_id="r", attempt=1, error="no"), about="r"
        )
        again = process.store.enqueue_submit(process.request(query, "r"))
    assert again.result(30).grant.attempt == 2


def test_a_need_may_finish_in_the_commit_in_which_its_follower_is_submitted(process):
    process.instance("m", slots=2)
    query = process.query()
    process.submit(query, "need")
    outcome = Outcome({"text": ""}, 1, 1)
    with Held(process.store):
        process.store.enqueue(
            lambda tx: move_request.finish(tx, request_id="need", attempt=1, outcome=outcome)
        )
        follower = process.store.enqueue_submit(process.request(query, "r", needs=("need",)))
    assert follower.result(30).state == "running"


def test_what_is_cancelled_in_the_commit_of_its_submission_is_granted_to_nobody(process):
    process.instance("m")
    query = process.query()
    with Held(process.store):
        process.store.enqueue_submit(process.request(query, "r"))
        process.store.enqueue(lambda tx: move_request.cancel(tx, request_id="r", why="changed"))
        ended = process.store.enqueue_submit(process.request(query, "s"))
        process.store.enqueue(lambda tx: end_query(tx, query.id, state="answered"))
    assert ended.result(30).state == "cancelled"
    process.store.enqueue(lambda tx: None).result(30)
    assert process.granted == []
    assert process.counts() == {"cancelled": 2}


def test_grants_that_cannot_be_handed_on_do_not_stop_the_store(process, caplog):
    def unable(grants):
        raise RuntimeError("the loop is closed")

    process.instance("m")
    process.store.on_granted = unable
    query = process.query()
    assert process.submit(query, "r").state == "running"
    assert process.submit(query, "s").state == "waiting"
    assert "1 grants could not be handed on" in caplog.text


def test_a_new_alpha_counts_from_the_next_dispatch_of_every_process(process, other):
    process.instance("fast", slots=1)
    process.instance("slow", type(process.view("fast").spec.profile)("slow", 5.0, 0.1, 0.1))
    query = other.query()
    process.store.transact(lambda tx: set_alpha(tx, 1.0, reason="a test"))
    assert [other.submit(query).instance for _ in range(3)] == ["fast", "fast", "fast"]
    process.store.transact(lambda tx: set_alpha(tx, 0.0, reason="a test", evidence={"p95": 1}))
    submitted = other.submit(query)
    assert (submitted.instance, submitted.alpha) == ("slow", 0.0)
    for alpha in (-0.1, 1.1, float("nan")):
        with pytest.raises(CallerMistake):
            process.store.transact(lambda tx, alpha=alpha: set_alpha(tx, alpha, reason="no"))


def test_a_connection_that_died_while_idle_is_replaced(process, store_url):
    if not store_url.startswith("postgresql"):
        pytest.skip("SQLite has no server to lose")
    process.instance("m")
    query = process.query()
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
    assert process.submit(query, "r").state == "running"
    assert process.state("r") == "running"


def test_a_look_over_a_connection_that_died_while_idle_is_repeated(process, store_url):
    if not store_url.startswith("postgresql"):
        pytest.skip("SQLite has no server to lose")
    process.instance("m")
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
    assert process.view("m").state == "alive"


def test_a_process_that_stalls_amid_a_transaction_loses_the_lock(process, store_url):
    if not store_url.startswith("postgresql"):
        pytest.skip("SQLite's lock ends with the process only")
    ours = process.store.read(
        lambda connection: connection.exec_driver_sql(
            "SHOW idle_in_transaction_session_timeout"
        ).scalar_one()
    )
    assert ours == f"{STALLED_MS // 1000}s"
    stalled = psycopg.connect(store_url)
    stalled.execute("SET idle_in_transaction_session_timeout = 200")
    stalled.commit()
    stalled.execute(f"SELECT pg_advisory_xact_lock({SCHEDULING_LOCK})".encode())
    assert process.store.enqueue(lambda tx: tx.now).result(30) > 0
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        stalled.execute("SELECT 1")
    stalled.close()


def test_a_servers_default_isolation_does_not_make_a_decision_of_old_news(store_url, new_process):
    if not store_url.startswith("postgresql"):
        pytest.skip("SQLite has one isolation only")
    with psycopg.connect(store_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(
            f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'".encode()
        )
    one, two = new_process(), new_process()
    one.instance("m", slots=1)
    queries = [process.query() for process in (one, two)]
    busy, go = threading.Event(), threading.Event()

    def early(tx):
        move_request.submit(tx, one.request(queries[0], "early"))
        busy.set()
        go.wait(30)

    holding = one.store.enqueue(early)
    assert busy.wait(30)
    late = two.store.enqueue_submit(two.request(queries[1], "late"))
    time.sleep(0.3)  # until it waits for the lock
    go.set()
    holding.result(30)
    assert late.result(30).state == "waiting"


def test_a_server_that_is_gone_without_a_word_is_not_waited_for_for_hours(store_url, open_store):
    if not store_url.startswith("postgresql"):
        pytest.skip("SQLite has no server to lose")

    def told(store, name):
        def look(connection):
            return connection.connection.driver_connection.info.get_parameters().get(name)

        return store.read(look)

    assert told(open_store(store_url), "keepalives_idle") == "10"
    assert told(open_store(store_url), "connect_timeout") == "10"
    own = make_url(store_url).update_query_dict({"keepalives_idle": "99"})
    assert told(open_store(own.render_as_string(hide_password=False)), "keepalives_idle") == "99"
