"""`hexprefect top`, `metrics`, `reports` and `automations` as a person and a script use them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hexprefect.cli import app
from hexprefect.scheduling import Profile, RequestSize
from hexprefect.store import InstanceSpec, NewQuery, NewRequest, Outcome, Store, leases
from hexprefect.store import queries as move_query
from hexprefect.store import transitions as move_request
from hexprefect.store.fleet import enter_instance

REPORTS = Path(__file__).parents[2] / "flows" / "reports"


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "160", **environment})


@pytest.fixture
def busy_store(new_sqlite_url: str, open_store: Callable[..., Store]) -> str:
    """One instance with one slot: a query runs there, one waits, one was answered too late."""
    store = open_store(new_sqlite_url)
    store.transact(leases.join)
    profile = Profile("p", 10.0, 0.0, 0.0)
    spec = InstanceSpec("gpu-1", "http://127.0.0.1:9", profile, slots=1, pool="a100")
    store.transact(lambda tx: enter_instance(tx, spec))
    for name, slo_s, age_s in (("late", 5.0, 20.0), ("first", 60.0, 0.0), ("second", 3.0, 0.0)):
        query = NewQuery(name, "default", "shop", slo_s, store.now() - age_s, "how many?")
        store.transact(lambda tx, query=query: move_query.register_query(tx, query))
        request = NewRequest(
            f"r-{name}", name, "judge", RequestSize(10, 10), query.arrived_at + slo_s,
            predict_output=False,
        )  # fmt: skip
        store.transact(lambda tx, request=request: move_request.submit(tx, request))
        if name == "late":
            store.transact(
                lambda tx: move_request.finish(
                    tx, request_id="r-late", attempt=1, outcome=Outcome(None)
                )
            )
            store.transact(lambda tx: move_query.end_query(tx, "late", state="answered"))
    return new_sqlite_url


def test_top_shows_instances_queues_and_tenants(busy_store: str) -> None:
    shown = run("top", "--once", "--store", busy_store)
    assert shown.exit_code == 0, shown.output
    for words in ("2 queries, 1 requests running, 1 waiting", "gpu-1", "1/1", "second", "0.0 %"):
        assert words in shown.output, words


def test_top_for_a_program(busy_store: str) -> None:
    shown = json.loads(run("top", "--json", "--store", busy_store).stdout)
    [instance] = shown["instances"]
    assert (instance["instance"], instance["occupied"], instance["waiting"]) == ("gpu-1", 1, 1)
    [waiting] = shown["waiting"]
    assert waiting["query_id"] == "second"
    assert waiting["laxity_s"] < 0, "ten seconds of work are due in three"
    assert shown["window"]["answered"] == 1
    assert shown["window"]["attainment"] == 0
    assert shown["window"]["p95_s"] >= 20
    assert shown["open_requests"] == {"waiting": 1, "admitted": 0, "running": 1}
    [tenant] = shown["tenants"]
    assert (tenant["tenant"], tenant["running"]) == ("default", 2)


def test_top_of_an_empty_store(new_sqlite_url: str) -> None:
    shown = run("top", "--once", "--store", new_sqlite_url)
    assert shown.exit_code == 0, shown.output
    assert "hexprefect instances add" in shown.output


def hear_interrupts() -> None:
    """Where the tests run in the background, SIGINT is ignored, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_top_lives_in_a_terminal_until_it_is_interrupted(busy_store: str) -> None:
    command = [sys.executable, "-m", "hexprefect", "top", "--every", "0.1", "--store", busy_store]
    terminal, inside = os.openpty()
    process = subprocess.Popen(
        command,
        stdout=inside,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm"},
        preexec_fn=hear_interrupts,
    )
    os.close(inside)
    seen, deadline = b"", time.monotonic() + 90
    try:
        # The view is drawn again and again: wait for its second time.
        while seen.count(b"gpu-1") < 2 and time.monotonic() < deadline:
            if select.select([terminal], [], [], 1.0)[0]:
                seen += os.read(terminal, 65536)
        assert seen.count(b"gpu-1") >= 2, seen
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        os.close(terminal)
    assert process.returncode == 0, errors.decode()
    assert b"Traceback" not in errors


def test_metrics_once(busy_store: str) -> None:
    text = run("metrics", "--once", "--store", busy_store)
    assert 'hexprefect_instance_occupied{instance="gpu-1",pool="a100"} 1.0' in text.stdout
    record = json.loads(run("metrics", "--once", "--json", "--store", busy_store).stdout)
    values = {sample["name"]: sample["value"] for sample in record["samples"]}
    assert values["hexprefect_store_up"] == 1


def test_metrics_are_served_until_the_end(busy_store: str) -> None:
    command = [sys.executable, "-m", "hexprefect", "metrics", "--port", "0", "--store", busy_store]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    )
    try:
        assert process.stderr is not None
        url = process.stderr.readline().split()[0]
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert b"hexprefect_store_up 1.0" in answer.read()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_metrics_and_events_are_listed() -> None:
    metrics = json.loads(run("metrics", "--names", "--json").stdout)["metrics"]
    assert {"name", "kind", "labels", "meaning"} == set(metrics[0])
    assert json.loads(run("metrics", "--dashboard").stdout)["uid"] == "hexprefect-fleet"
    events = json.loads(run("automations", "events", "--json").stdout)["events"]
    assert "hexprefect.instance.dead" in events


@pytest.mark.parametrize("command", ["apply", "remove"])
def test_automations_need_a_server(command: str, tmp_path: Path) -> None:
    """The environment of the test has no Prefect server, and no profile that names one."""
    refused = run("automations", command, "--json", PREFECT_HOME=str(tmp_path), PREFECT_API_URL="")
    assert refused.exit_code == 2
    assert "PREFECT_API_URL" in json.loads(refused.stdout)["error"]


# -- reports ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shipped", sorted(REPORTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_reports_pass_their_check(shipped: Path, tmp_path: Path) -> None:
    """Every pinned statement passes the guard on the shop."""
    checked = run(
        *("reports", "check", str(shipped), "--connect", "demo", "--json"),
        HEXPREFECT_STATE=str(tmp_path),
    )
    assert checked.exit_code == 0, checked.output
    record = json.loads(checked.stdout)
    assert record["usable"] is True
    assert record["ready_by"]
    assert "{{" not in json.dumps(record["items"])


def test_a_broken_report_is_refused_with_line_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("title: x\ndatabse: demo\nitems: [{title: a, sql: SELECT 1}]\n")
    shown = run("reports", "check", str(path))
    assert shown.exit_code == 2
    assert "line 2" in shown.output
    assert "Did you mean 'database'?" in shown.output
    [problem] = json.loads(run("reports", "check", str(path), "--json").stdout)["problems"]
    assert (problem["line"], problem["place"]) == (2, "databse")


def test_a_pinned_statement_that_would_be_refused_is_found(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "title: x\ndatabase: demo\n"
        "items: [{title: a, sql: DELETE FROM customer}, {title: b, sql: SELECT 1}]\n"
    )
    assert run("reports", "check", str(path)).exit_code == 0
    checked = run(
        "reports", "check", str(path), "--connect", "demo", "--json", HEXPREFECT_STATE=str(tmp_path)
    )
    assert checked.exit_code == 1
    [problem] = json.loads(checked.stdout)["problems"]
    assert problem["place"] == "items.1.sql"


def test_past_nights_are_listed_and_shown(tmp_path: Path) -> None:
    import datetime

    from hexprefect.reports.archive import Archive
    from tests.reports.examples import item, report

    for day in (1, 2):
        date = datetime.date(2026, 12, day)
        night = Archive.of(tmp_path, "shop").night(date)
        night.keep_outcome(report(item("n", (day,)), date=date.isoformat()))
    listed = json.loads(run("reports", "list", "--archive", str(tmp_path), "--json").stdout)
    assert [night["date"] for night in listed["nights"]] == ["2026-12-02", "2026-12-01"]
    newest = json.loads(run("reports", "show", "shop", "--archive", str(tmp_path), "--json").stdout)
    assert newest["date"] == "2026-12-02"
    shown = run("reports", "show", "shop", "2026-12-01", "--archive", str(tmp_path))
    assert "Item" in shown.output
    missing = run("reports", "show", "shop", "2020-01-01", "--archive", str(tmp_path))
    assert missing.exit_code == 2
    assert run("reports", "show", "nobody", "--archive", str(tmp_path)).exit_code == 2
    assert run("reports", "list", "--archive", str(tmp_path / "none")).exit_code == 0


def test_the_commands_are_taught() -> None:
    for command in ("top", "metrics", "reports", "automations"):
        shown = run(command, "--help")
        assert shown.exit_code == 0
        assert len(shown.output) > 200
