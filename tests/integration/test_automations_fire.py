"""The ready-made automations fire on what really happens to a store, and tell a webhook."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from hexprefect.embedded.folders import Folders
from hexprefect.embedded.prefect_server import prefect_server
from hexprefect.orchestration.automations import apply_automations
from hexprefect.orchestration.observer import observe_store
from hexprefect.scheduling import Profile
from hexprefect.store import InstanceSpec, NewQuery, Store, leases, upgrade
from hexprefect.store import queries as move_query
from hexprefect.store.alpha import set_alpha
from hexprefect.store.fleet import enter_instance, set_instance_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

GPU = InstanceSpec("gpu-1", "http://127.0.0.1:9", Profile("p", 1.0, 0.0, 0.0), 1, pool="a100")


@asynccontextmanager
async def webhook() -> AsyncIterator[tuple[str, asyncio.Queue[dict[str, Any]]]]:
    """A server's URL, and what it is sent."""
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        [length] = [line for line in head.split("\r\n") if line.startswith("content-length")]
        received.put_nowait(json.loads(await reader.readexactly(int(length.split(":")[1]))))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", received


async def messages(received: asyncio.Queue[dict[str, Any]], *wanted: str) -> dict[str, str]:
    """The messages whose subjects begin so, once all have come."""
    found: dict[str, str] = {}
    async with asyncio.timeout(120):
        while set(found) != set(wanted):
            message = await received.get()
            for words in wanted:
                if message["subject"].startswith(words):
                    found[words] = f"{message['subject']}\n{message['body']}"
    return found


async def test_people_hear_of_a_dead_instance_a_new_alpha_and_queries_at_risk(
    tmp_path: Path,
) -> None:
    folders = Folders(tmp_path / "state")
    upgrade(folders.store_url)
    store = Store(folders.store_url)
    server = prefect_server(folders.prefect_home, folders.logs)
    async with server as api_url, webhook() as (url, received):
        changed = {PREFECT_API_URL: api_url, PREFECT_HOME: folders.prefect_home}
        with temporary_settings(changed):
            block = CustomWebhookNotificationBlock(
                name="ops", url=url, json_data={"subject": "{{subject}}", "body": "{{body}}"}
            )
            await block.asave("ops")
            async with get_client() as client:
                await apply_automations(client, notify="custom-webhook/ops")
            # The server takes up new automations within seconds.
            await asyncio.sleep(5)
            await store.run(leases.join)
            await store.run(lambda tx: enter_instance(tx, GPU))
            thread = observe_store(store, every_s=0.2)
            await asyncio.sleep(1)
            await store.run(lambda tx: set_instance_state(tx, "gpu-1", "dead", reason="refused"))
            await store.run(lambda tx: set_alpha(tx, 0.25, reason="by hand"))
            for number in range(3):
                query = NewQuery(f"q{number}", "default", "shop", 10, store.now() - 9, "how many?")
                await store.run(lambda tx, query=query: move_query.register_query(tx, query))
            found = await messages(
                received,
                "The instance gpu-1 is down",
                "α is now 0.25",
                "Queries of default are at risk of their SLO",
            )
            await store.run(leases.leave)
            await asyncio.to_thread(thread.join, 20)
    store.close()
    assert "alive and is dead: refused" in found["The instance gpu-1 is down"]
    assert "because: by hand" in found["α is now 0.25"]
    assert "how many?" in found["Queries of default are at risk of their SLO"]
