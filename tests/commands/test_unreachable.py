"""What a command needs and cannot use is named, with the way out; nobody sees a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from typer.testing import CliRunner, Result

from hexprefect.cli import app

pytestmark = pytest.mark.usefixtures("environment_as_before")

NO_SERVER = "postgresql://reader:hunter2@127.0.0.1:9/store"

ON_A_STORE = [
    ["store", "upgrade"],
    ["store", "check"],
    ["queries", "list"],
    ["instances", "list"],
    ["tenants", "list"],
    ["policy", "show"],
    ["top"],
    ["metrics", "--once"],
    ["ask", "How many?", "-d", "demo", "--in-process"],
]


def refused(*arguments: str, **environment: str) -> str:
    """What a command says that is the caller's mistake, with `--json`."""
    said: Result = CliRunner().invoke(app, [*arguments, "--json"], env=environment)
    assert isinstance(said.exception, SystemExit), said.exception
    assert said.exit_code == 2
    error: str = json.loads(said.stdout)["error"]
    return error


@pytest.mark.parametrize("command", ON_A_STORE, ids=lambda command: " ".join(command[:2]))
def test_a_store_that_cannot_be_reached_is_named(command: list[str]) -> None:
    error = refused(*command, "--store", NO_SERVER)
    assert "postgresql+psycopg://reader:***@127.0.0.1:9/store cannot be used" in error
    assert "HEXPREFECT_STORE" in error
    assert "hunter2" not in error


@pytest.mark.parametrize("command", ON_A_STORE, ids=lambda command: " ".join(command[:2]))
def test_a_store_that_is_no_database_is_named(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "report.pdf"
    file.write_bytes(b"%PDF-1.7 " * 200)
    error = refused(*command, "--store", f"sqlite:///{file}")
    assert f"{file} cannot be used: file is not a database." in error


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = refused("store", "upgrade", "--store", f"sqlite:///{tmp_path}/file/store.sqlite")
    assert f"folder {tmp_path}/file cannot be made" in error


@pytest.mark.parametrize(
    "command",
    [
        ["pools", "apply"],
        ["pools", "sync"],
        ["automations", "apply"],
        ["automations", "remove"],
        ["ask", "How many?", "-d", "demo"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_prefect_server_that_cannot_be_reached_is_named(
    new_sqlite_url: str, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    api = "http://127.0.0.1:9/api"
    monkeypatch.setenv("PREFECT_API_URL", api)
    with temporary_settings({PREFECT_API_URL: api, PREFECT_CLIENT_MAX_RETRIES: 0}):
        error = refused(*command, HEXPREFECT_STORE=new_sqlite_url)
    assert f"The Prefect server at {api} cannot be used: All connection attempts failed." in error
    assert "PREFECT_API_URL" in error
