"""A real Prefect server of our own: free port, own home, one for the whole session.

With `HEXPREFECT_TEST_PREFECT_API_URL` a running one is used: its start is most of a short session.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prefect.client.orchestration import PrefectClient, get_client
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_LOGGING_TO_API_ENABLED,
    temporary_settings,
)

from hexprefect.settings import settings
from hexprefect.store import Store, upgrade
from tests.orchestration.bench import Fleet, SeenByPrefect, StandIn

START_LIMIT_S = 120.0

# Stand-ins hold requests while a test waits for what Prefect's server knows of them.
os.environ.setdefault("HEXPREFECT_SHORTEST_TIMEOUT_S", "300")
# On SQLite the server's writers wait for each other: leave out the services that no test needs.
FEW_WRITERS = {
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
}


@dataclass(frozen=True)
class PrefectServer:
    """Where the server listens, and the environment in which processes talk to it."""

    url: str
    environment: dict[str, str]


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    home = tmp_path_factory.mktemp("prefect-home")
    if running := os.environ.get("HEXPREFECT_TEST_PREFECT_API_URL"):
        yield PrefectServer(running, _client_environment(home, running))
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    server = PrefectServer(url, _client_environment(home, url))
    without_api = {key: v for key, v in server.environment.items() if key != "PREFECT_API_URL"}
    command = [sys.executable, "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"]
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env={**without_api, **FEW_WRITERS},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_healthy(server.url, process, home / "server.log")
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)


def _client_environment(home: Path, url: str) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT")}
    return {
        **inherited,
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
        "PREFECT_CLI_PROMPT": "false",
    }


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the Prefect server ended with {process.returncode}:\n{log.read_text()}")
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    pytest.fail(f"the Prefect server did not start in {START_LIMIT_S} s:\n{log.read_text()}")


@pytest.fixture
async def prefect_client(prefect_server: PrefectServer) -> AsyncIterator[PrefectClient]:
    """A client of the session's server, which is also the default server inside the test."""
    home = prefect_server.environment["PREFECT_HOME"]
    with temporary_settings({PREFECT_API_URL: prefect_server.url, PREFECT_HOME: home}):
        async with get_client() as client:
            yield client


@pytest.fixture
def seen_by_prefect(prefect_server: PrefectServer) -> Iterator[SeenByPrefect]:
    """What the session's server knows; flows inside the test use that server."""
    changed = {
        PREFECT_API_URL: prefect_server.url,
        PREFECT_HOME: prefect_server.environment["PREFECT_HOME"],
        PREFECT_LOGGING_TO_API_ENABLED: False,
    }
    with temporary_settings(changed):
        yield SeenByPrefect(prefect_server.url)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with its tables and nothing in it, to copy."""
    path = tmp_path_factory.mktemp("store") / "empty.sqlite"
    upgrade(f"sqlite:///{path}")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


@pytest.fixture
def fleet(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """A store of the test's own, without instances, which is the default store inside the test."""
    # Here, so that the test of what we import from Prefect can run when an import fails.
    from hexprefect.orchestration.background_loop import background_loop

    path = tmp_path / "store.sqlite"
    shutil.copy(empty_store, path)
    url = f"sqlite:///{path}"
    monkeypatch.setenv("HEXPREFECT_STORE", url)
    settings.cache_clear()
    fleet = Fleet(Store(url), url)
    yield fleet
    background_loop().run(background_loop().leave_queues()).result(30)
    fleet.stop()
    settings.cache_clear()


@pytest.fixture
def instance(fleet: Fleet) -> StandIn:
    """A stand-in for an instance, which the store's queue knows as `a`."""
    return fleet.add("a")
