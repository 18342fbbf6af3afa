"""The published traces, where they are beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexprefect.simulator import Query, read_workload

SHARED = Path(__file__).resolve().parents[3] / "shared"


@pytest.fixture(scope="session", params=["trace1", "formula1"])
def published_trace(request: pytest.FixtureRequest) -> tuple[Query, ...]:
    path = SHARED / "traces" / f"{request.param}.json"
    if not path.exists():
        pytest.skip("the published traces are not beside this checkout")
    return read_workload(path)
