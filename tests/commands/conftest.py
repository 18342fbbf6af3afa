"""What tests of commands share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def environment_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ask --in-process` points Prefect and the store at its folders, for the whole process."""
    for name in ("HEXPREFECT_STORE", "PREFECT_HOME", "PREFECT_LOGGING_LEVEL", "DO_NOT_TRACK"):
        before = os.environ.get(name)
        monkeypatch.setenv(name, before or "")
        if before is None:
            monkeypatch.delenv(name)
