"""Variables of the environment: what makes no sense is named, and so is what seems misspelt."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from hexprefect.cli import app
from hexprefect.errors import CallerMistake
from hexprefect.settings import settings


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEXPREFECT_SLO_S", "soon"),
        ("HEXPREFECT_SLO_S", "nan"),
        ("HEXPREFECT_LEASE_S", "1"),
        ("HEXPREFECT_LEASE_S", "inf"),
        ("HEXPREFECT_SHORTEST_TIMEOUT_S", "-5"),
        ("HEXPREFECT_SCHEMA_TOKENS", "6k"),
        ("HEXPREFECT_TELL_PREFECT", "nothing"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("HEXPREFECT_STORE", "postgresql://reader:hunter2@host/store")
    with pytest.raises(CallerMistake, match=rf"{name}='{value}': Input should be") as refused:
        settings()
    assert "hunter2" not in str(refused.value)


def test_a_command_says_so_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEXPREFECT_STORE", raising=False)
    monkeypatch.setenv("HEXPREFECT_SLO_S", "soon")
    said = CliRunner().invoke(app, ["store", "check", "--json"])
    assert said.exit_code == 2
    assert "HEXPREFECT_SLO_S='soon'" in json.loads(said.stdout)["error"]


def test_a_misspelt_variable_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("SLO", "TENNANT", "SCHEMA_TOKEN", "LEASE_S", "DATABASE_5", "TEST_RUNS_EACH"):
        monkeypatch.setenv(f"HEXPREFECT_{name}", "60")
    with caplog.at_level(logging.WARNING, "hexprefect.settings"):
        settings()
    assert [record.getMessage() for record in caplog.records] == [
        "HEXPREFECT_SCHEMA_TOKEN is no variable of hexprefect. "
        "Did you mean HEXPREFECT_SCHEMA_TOKENS?",
        "HEXPREFECT_SLO is no variable of hexprefect. Did you mean HEXPREFECT_SLO_S?",
        "HEXPREFECT_TENNANT is no variable of hexprefect. Did you mean HEXPREFECT_TENANT?",
    ]
