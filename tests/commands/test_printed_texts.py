"""What a person, a server or a database wrote is printed as it is, and is no markup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hexprefect.cli import app
from hexprefect.commands.output import err, out
from hexprefect.commands.queries import print_answer
from hexprefect.orchestration.answer_record import empty_record

pytestmark = pytest.mark.usefixtures("environment_as_before")

TEXT = "[/x] [bold] :100: C:\\[y]"


@pytest.fixture(autouse=True)
def wide_consoles(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is cut, whatever `COLUMNS` was when the consoles were made."""
    for console in (out, err):
        monkeypatch.setattr(console, "_width", 400)


def printed(*arguments: str) -> str:
    said = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "400"})
    assert said.exception is None or isinstance(said.exception, SystemExit), said.exception
    return said.output


@pytest.mark.parametrize(
    "command",
    [
        ["queries", "show", TEXT],
        ["instances", "drain", TEXT],
        ["reports", "show", TEXT],
        ["reports", "check", TEXT],
        ["ask", "How many?", "-d", "demo", "--in-process", "--tenant", TEXT],
        ["eval", TEXT, "-d", "databases", "--stack"],
        ["simulate", TEXT],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_message_quotes_what_was_given(new_sqlite_url: str, command: list[str]) -> None:
    takes_store = command[0] not in ("reports", "simulate")
    store = ["--store", new_sqlite_url] if takes_store else []
    assert "[/x] [bold] :100:" in printed(*command, *store)


def test_names_and_reasons_are_listed_as_they_are(new_sqlite_url: str) -> None:
    store = ["--store", new_sqlite_url]
    entered = printed("instances", "add", TEXT, "--url", "http://gpu-1:8000", *store)
    assert f"{TEXT}: entered." in entered
    assert TEXT in printed("instances", "list", *store)
    assert f"{TEXT}: is draining." in printed("instances", "drain", TEXT, *store)
    assert TEXT in printed("top", *store)
    assert f"{TEXT}: entered." in printed("tenants", "add", TEXT, *store)
    assert TEXT in printed("tenants", "list", *store)
    assert TEXT in printed("policy", "set", "--alpha", "0.3", "--reason", TEXT, *store)


def test_an_answer_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    record: dict[str, Any] = {
        **empty_record(question=TEXT, database="demo", tenant="default", slo_s=60.0),
        "columns": [TEXT],
        "rows": [[TEXT]],
        "warnings": [TEXT],
        "dropped_work": [TEXT],
    }
    print_answer(record)
    print_answer({**record, "error": TEXT})
    assert capsys.readouterr().out.count(TEXT) == 9


def test_a_report_with_a_password_in_its_url_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "report.yaml"
    database = "postgresql://reader:hunter2@host/shop"
    file.write_text(f"title: a\ndatabase: {database}\nitems:\n  - {{title: b, sql: SELECT 1}}\n")
    said = CliRunner().invoke(app, ["reports", "check", str(file), "--json"])
    assert said.exit_code == 2
    assert "postgresql://reader:***@host/shop" in said.stdout
    assert "hunter2" not in said.output
