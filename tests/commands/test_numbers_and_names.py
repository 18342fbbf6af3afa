"""Numbers that no column holds, no number at all, and empty names: refused, and named."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from typer.testing import CliRunner

from hexprefect.cli import app

ADD = ["instances", "add", "gpu-1", "--url", "http://gpu-1:8000"]
HUGE = "9" * 24


def outcome(*arguments: str) -> tuple[int, str]:
    """The exit code, and all that was said."""
    said = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "300"})
    assert said.exception is None or isinstance(said.exception, SystemExit), said.exception
    return said.exit_code, said.output


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ([*ADD, "--slots", HUGE], f"slots={HUGE}"),
        ([*ADD, "--depth", HUGE], f"admission_depth={HUGE}"),
        ([*ADD, "--context", HUGE], f"context_tokens={HUGE}"),
        (["instances", "add", " ", "--url", "http://gpu-1:8000"], "name of the instance is empty"),
        (["instances", "add", "gpu-1", "--url", "http://gpu-1:99999"], "the port 99999"),
        (["tenants", "add", ""], "name of the tenant is empty"),
        (["queries", "list", "--most", HUGE], "--most"),
        (["policy", "show", "--history", HUGE], "--history"),
        (["top", "--window", "inf"], "--window"),
        (["instances", "learn", "--hours", "inf"], "--hours"),
        (["instances", "learn"], "The store has no instance"),
        (["metrics", "--host", "nowhere.invalid", "--port", "0"], "nowhere.invalid, port 0"),
        (["ask", " ", "-d", "demo"], "The question is empty"),
        (["ask", "How many?", "-d", "demo", "--slo", "nan"], "An SLO of nan seconds"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_it_is_refused_and_named(
    new_sqlite_url: str, command: list[str], named: str, as_json: bool
) -> None:
    code, said = outcome(*command, "--store", new_sqlite_url, *(["--json"] if as_json else []))
    assert code == 2
    assert named in said
    if as_json and not said.startswith("Usage"):
        assert json.loads(said)["error"]


def test_a_port_that_is_taken_is_named(new_sqlite_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, said = outcome("metrics", "--port", port, "--store", new_sqlite_url)
    assert code == 2
    assert f"port {port}: Address already in use" in said


def test_a_password_in_the_address_of_an_instance_is_not_shown(new_sqlite_url: str) -> None:
    store = ["--store", new_sqlite_url]
    for name, url in (("a", "http://me:hunter2@gpu-1:8000"), ("b", "http://gpu-1:8000/x%2Fy")):
        assert outcome("instances", "add", name, "--url", url, *store)[0] == 0
    _, said = outcome("instances", "list", "--json", *store)
    listed: list[dict[str, Any]] = json.loads(said)["instances"]
    assert [instance["url"] for instance in listed] == [
        "http://me:***@gpu-1:8000",
        "http://gpu-1:8000/x%2Fy",
    ]


def test_a_local_model_that_there_is_not_is_the_callers_mistake() -> None:
    from hexprefect.errors import CallerMistake
    from hexprefect.instances.local_model import find_model

    with pytest.raises(CallerMistake, match=r"'3B'.*0\.5B, 1\.5B"):
        find_model("3B")
