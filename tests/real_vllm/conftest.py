"""The Prefect server and the store that the task runner's tests use."""

from __future__ import annotations

from tests.orchestration.conftest import (
    empty_store,
    fleet,
    prefect_client,
    prefect_server,
    seen_by_prefect,
)

__all__ = ["empty_store", "fleet", "prefect_client", "prefect_server", "seen_by_prefect"]
