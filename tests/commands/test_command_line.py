"""The command line as a person and a script use it: exit codes, errors with a way out, `--json`."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hexprefect.store import Store, upgrade
from hexprefect.store.fleet import enter_instance

COMMANDS = [
    ["ask"],
    ["eval"],
    ["eval-compare"],
    ["demo"],
    ["up"],
    ["queries", "list"],
    ["queries", "show"],
    ["instances", "list"],
    ["instances", "add"],
    ["instances", "drain"],
    ["instances", "resume"],
    ["instances", "remove"],
    ["instances", "profile"],
    ["instances", "learn"],
    ["tenants", "list"],
    ["tenants", "add"],
    ["pools", "apply"],
    ["pools", "sync"],
    ["store", "upgrade"],
    ["store", "check"],
    ["policy", "show"],
    ["policy", "set"],
]


def hexprefect(
    *arguments: str, environment: dict[str, str] | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    import os

    kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    return subprocess.run(
        [sys.executable, "-m", "hexprefect", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**kept, "COLUMNS": "200", **(environment or {})},
        check=False,
    )


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    upgrade(url)
    return url


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: list[str]) -> None:
    from typer.testing import CliRunner

    from hexprefect.cli import app

    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "Usage" in shown.output


def test_the_command_line_starts_without_prefect() -> None:
    script = (
        "import sys; import hexprefect.cli; "
        "sys.exit([name for name in sys.modules if name.split('.')[0] == 'prefect'] != [])"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=120).returncode == 0


def test_a_new_store_is_upgraded_and_clean(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'deep' / 'store.sqlite'}"
    missing = hexprefect("store", "check", "--store", url, "--json")
    assert missing.returncode == 2
    assert "hexprefect store upgrade" in json.loads(missing.stdout)["error"]
    assert not (tmp_path / "deep").exists()

    assert hexprefect("store", "upgrade", "--store", url).returncode == 0
    checked = hexprefect("store", "check", "--store", url, "--json")
    assert checked.returncode == 0
    assert json.loads(checked.stdout)["clean"] is True


def test_a_broken_law_is_named_and_fails_the_check(store_url: str) -> None:
    assert add_instance(store_url, "gpu-1")["changed"] is True
    store = Store(store_url)
    with store.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE instances SET backlog_us = 7")
    store.close()
    checked = hexprefect("store", "check", "--store", store_url, "--json")
    assert checked.returncode == 1
    (violation,) = json.loads(checked.stdout)["violations"]
    assert (violation["law"], violation["subject"]) == (8, "gpu-1")


@pytest.mark.parametrize(
    "command", [("store", "check"), ("store", "upgrade"), ("queries", "list"), ("top", "--once")]
)
@pytest.mark.parametrize("kind", ["postgresql", "garbage"])
def test_a_store_that_cannot_be_used_is_told_from_one_whose_laws_are_broken(
    tmp_path: Path, command: tuple[str, ...], kind: str
) -> None:
    (tmp_path / "garbage.sqlite").write_text("no database, but long enough to be read as one" * 9)
    urls = {
        "garbage": f"sqlite:///{tmp_path / 'garbage.sqlite'}",
        "postgresql": "postgresql://me:hunter2@127.0.0.1:1/store",
    }
    refused = hexprefect(*command, "--store", urls[kind])
    assert refused.returncode == 2
    assert "cannot be used" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "hunter2" not in refused.stderr + refused.stdout


def test_the_policy_is_shown_changed_and_remembered(store_url: str) -> None:
    shown = json.loads(hexprefect("policy", "show", "--store", store_url, "--json").stdout)
    assert (shown["order"], shown["history"]) == ("laxity", [])
    changed = hexprefect(
        *("policy", "set", "--order", "urgency", "--slowdown", "none", "--late-penalty", "8"),
        *("--reason", "a trial", "--store", store_url),
    )
    assert changed.returncode == 0, changed.stderr
    shown = json.loads(hexprefect("policy", "show", "--store", store_url, "--json").stdout)
    assert (shown["order"], shown["slowdown"], shown["late_penalty"]) == ("urgency", None, 8.0)
    assert shown["alpha"] == 0.5
    assert [row["reason"] for row in shown["history"]] == ["a trial"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ([], "at least one"),
        (["--order", "attained"], "laxity"),
        (["--slowdown", "much"], "number, or none"),
        (["--alpha", "2"], "from 0 to 1"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(
    store_url: str, options: list[str], named: str
) -> None:
    refused = hexprefect("policy", "set", *options, "--store", store_url, "--json")
    assert refused.returncode == 2
    assert named in json.loads(refused.stdout)["error"]


def add_instance(store_url: str, name: str, *more: str) -> dict[str, Any]:
    added = hexprefect(
        *("instances", "add", name, "--url", "http://127.0.0.1:9", "--profile", "l40s"),
        *("--slots", "4", "--store", store_url, "--json"),
        *more,
    )
    assert added.returncode == 0, added.stderr
    record: dict[str, Any] = json.loads(added.stdout)
    return record


def test_instances_are_added_drained_and_resumed(store_url: str) -> None:
    add_instance(store_url, "gpu-1")
    assert add_instance(store_url, "gpu-1")["changed"] is False
    assert hexprefect("instances", "drain", "gpu-1", "--store", store_url).returncode == 0
    listed = hexprefect("instances", "list", "--store", store_url, "--json")
    (instance,) = json.loads(listed.stdout)["instances"]
    assert (instance["name"], instance["state"], instance["slots"]) == ("gpu-1", "draining", 4)
    assert hexprefect("instances", "resume", "gpu-1", "--store", store_url).returncode == 0


def test_the_password_in_an_instances_url_is_not_listed(store_url: str) -> None:
    add_instance(store_url, "gpu-1", "--url", "http://user:pass-1@127.0.0.1:9")
    listed = hexprefect("instances", "list", "--store", store_url, "--json")
    (instance,) = json.loads(listed.stdout)["instances"]
    assert instance["url"] == "http://user:***@127.0.0.1:9"
    assert "pass-1" not in listed.stdout


def test_an_unknown_instance_or_profile_is_the_callers_mistake(store_url: str) -> None:
    drained = hexprefect("instances", "drain", "nobody", "--store", store_url)
    assert drained.returncode == 2
    assert "nobody" in drained.stderr
    added = hexprefect(
        *("instances", "add", "x", "--url", "http://127.0.0.1:9"),
        *("--profile", "abacus", "--store", store_url),
    )
    assert added.returncode == 2
    assert "a100" in added.stderr


def test_nonsense_slo_is_refused_before_anything_starts(store_url: str) -> None:
    asked = hexprefect("ask", "How many?", "--database", "demo", "--slo", "-3", "--json")
    assert asked.returncode == 2
    assert "-3" in json.loads(asked.stdout)["error"]


@pytest.mark.model
@pytest.mark.timeout(900)
def test_a_question_is_answered_in_process_by_a_real_model(tmp_path: Path) -> None:
    """With nothing configured: a server, two local instances and the flow, all by itself."""
    path = tmp_path / "choir.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as choir:
        choir.execute("CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT, voice TEXT)")
        singers = [(number, f"Singer {number}", "alto") for number in range(1, 7)]
        choir.executemany("INSERT INTO singer VALUES (?, ?, ?)", singers)
        choir.commit()
    asked = hexprefect(
        *("ask", "How many singers do we have?", "--database", f"sqlite:///{path}"),
        *("--slo", "600", "--json"),
        environment={"HEXPREFECT_STATE": str(tmp_path / "state")},
        timeout_s=900,
    )
    assert asked.returncode == 0, asked.stderr[-3000:]
    record = json.loads(asked.stdout)
    assert record["rows"] == [[6]], record
    assert record["state"] == "answered"
    assert {stage["instance"] for stage in record["stages"]} <= {"local-fast", "local-slow"}
    store_url = f"sqlite:///{tmp_path / 'state' / 'store.sqlite'}"
    assert hexprefect("store", "check", "--store", store_url).returncode == 0
    shown = hexprefect("queries", "show", record["query_id"], "--store", store_url, "--json")
    assert json.loads(shown.stdout)["decisions"]


@pytest.mark.timeout(600)
def test_callers_mistakes_exit_with_2(tmp_path: Path) -> None:
    """With an instance in the store, so that no model is needed: none of these reaches it."""
    from hexprefect.instances.profiles import default_profile
    from hexprefect.store import InstanceSpec

    state = tmp_path / "state"
    url = f"sqlite:///{state / 'store.sqlite'}"
    upgrade(url)
    with serving_health() as address:
        store = Store(url)
        spec = InstanceSpec(
            name="here", url=address, profile=default_profile("a100"), slots=1, speaks="vllm"
        )
        store.transact(lambda tx: enter_instance(tx, spec))
        store.close()
        environment = {"HEXPREFECT_STATE": str(state)}
        missing = hexprefect(
            *("ask", "How many?", "--database", f"sqlite:///{tmp_path}/nowhere.sqlite", "--json"),
            environment=environment,
            timeout_s=300,
        )
        assert missing.returncode == 2, missing.stderr[-2000:]
        assert "nowhere.sqlite" in json.loads(missing.stdout)["error"]
        unknown = hexprefect(
            *("ask", "How many?", "--database", "demo", "--tenant", "nobody", "--json"),
            environment=environment,
            timeout_s=300,
        )
        assert unknown.returncode == 2, unknown.stderr[-2000:]
        assert "default" in json.loads(unknown.stdout)["error"]


class serving_health:  # noqa: N801 (used as a function)
    """A server that only says that it is well."""

    def __enter__(self) -> str:
        import http.server
        import threading

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Silence."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
