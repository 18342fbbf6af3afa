"""A Prefect server of our own: on a free port, with its own home, tuned to what we tell it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from hexprefect.embedded.children import Child, free_port

START_TIMEOUT_S = 120.0

SERVER_SETTINGS: Mapping[str, str] = {
    # At its default batch of one, the recorder of task-run states lags behind a busy worker.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    "DO_NOT_TRACK": "1",
}


def client_environment(home: Path, api_url: str) -> dict[str, str]:
    """The environment of a process that uses this server and nobody's profile but its own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_API")}
    # Beside the programs of this environment, whether or not it has been activated.
    programs = str(Path(sys.executable).parent)
    return {
        **kept,
        "PATH": os.pathsep.join([programs, kept.get("PATH", "")]),
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": api_url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
    }


@asynccontextmanager
async def prefect_server(home: Path, log_folder: Path) -> AsyncIterator[str]:
    """Run a Prefect server; yields the URL of its API.

    Raises:
        ChildFailed: when it ends or does not get healthy.
    """
    port = free_port()
    api_url = f"http://127.0.0.1:{port}/api"
    environment = {
        **client_environment(home, api_url),
        **SERVER_SETTINGS,
        "PREFECT_UI_API_URL": api_url,
    }
    environment.pop("PREFECT_API_URL")
    command = [
        *(sys.executable, "-m", "prefect", "server", "start"),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    await asyncio.to_thread(home.mkdir, parents=True, exist_ok=True)
    server = Child("prefect-server", command, environment=environment, log_folder=log_folder)
    async with server:
        await _until_healthy(server, api_url)
        yield api_url


async def _until_healthy(server: Child, api_url: str) -> None:
    try:
        async with asyncio.timeout(START_TIMEOUT_S), httpx.AsyncClient() as client:
            while True:
                if server.has_ended:
                    raise server.failure("ended while it was starting")
                try:
                    answer = await client.get(f"{api_url}/health", timeout=2.0)
                except httpx.HTTPError:
                    answer = None
                if answer is not None and answer.status_code == httpx.codes.OK:
                    return
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise server.failure(f"was not healthy after {START_TIMEOUT_S:.0f} s") from None
