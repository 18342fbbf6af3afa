"""An emulated fleet becomes attached instances of work pools, and is taken out of them again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Any

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.settings import PREFECT_API_URL, temporary_settings

from hexprefect.commands.emulate import entered
from hexprefect.orchestration.fleet_sync import synchronise_fleet
from hexprefect.orchestration.pools import read_pool_instances, set_pool_instances
from hexprefect.orchestration.pools_apply import apply_pools
from hexprefect.store import Store
from hexprefect.store.views import instance_views


def emulated(name: str, port: int, profile: str) -> dict[str, Any]:
    return {
        "name": name,
        "url": f"http://127.0.0.1:{port}",
        "model": "emulated",
        "profile": profile,
        "speaks": "vllm",
        "slots": 8,
        "admission_depth": 8,
        "context_tokens": 4096,
    }


@pytest.fixture
async def client(prefect_client: PrefectClient) -> AsyncIterator[PrefectClient]:
    """The session's server, without the pools of other tests."""
    for pool in await prefect_client.read_work_pools():
        await prefect_client.delete_work_pool(pool.name)
    yield prefect_client
    for pool in await prefect_client.read_work_pools():
        await prefect_client.delete_work_pool(pool.name)


async def test_a_fleet_is_in_its_pools_and_in_the_store_for_as_long_as_it_serves(
    client: PrefectClient, new_sqlite_url: str, open_store: Callable[..., Store]
) -> None:
    store = open_store(new_sqlite_url)
    await apply_pools(client, only={"a100"})
    real = {"name": "real", "url": "http://gpu-1:8000", "model": "m"}
    await set_pool_instances(client, "a100", [real])
    await synchronise_fleet(client, store)
    pools = {
        "a100": [emulated("a100-0", 11, "a100@20"), emulated("a100-1", 12, "a100@20")],
        "l40s": [emulated("l40s-0", 13, "l40s@20")],
    }

    def states() -> dict[str, tuple[str, str]]:
        views = store.read(instance_views)
        return {name: (view.spec.pool, view.state) for name, view in views.items()}

    async with entered(pools, store_url=store.url):
        found = {one.name: one for one in await read_pool_instances(client)}
        assert set(found) == {"real", "a100-0", "a100-1", "l40s-0"}
        assert (found["l40s-0"].pool, found["l40s-0"].profile) == ("l40s", "l40s@20")
        assert found["a100-0"].admission_depth == 8
        assert states() == {
            "a100-0": ("a100", "alive"),
            "a100-1": ("a100", "alive"),
            "l40s-0": ("l40s", "alive"),
            "real": ("a100", "alive"),
        }
        assert {pool.name for pool in await client.read_work_pools()} == {"a100", "l40s"}
    assert [one.name for one in await read_pool_instances(client)] == ["real"]
    assert states() == {
        "a100-0": ("a100", "draining"),
        "a100-1": ("a100", "draining"),
        "l40s-0": ("l40s", "draining"),
        "real": ("a100", "alive"),
    }


async def test_a_fleet_leaves_what_has_taken_over_its_names_in_the_pools(
    client: PrefectClient, new_sqlite_url: str, open_store: Callable[..., Store]
) -> None:
    store = open_store(new_sqlite_url)
    await apply_pools(client, only={"a100"})
    async with entered({"a100": [emulated("a100-0", 11, "a100")]}, store_url=store.url):
        await set_pool_instances(client, "a100", [emulated("a100-0", 12, "a100")])
    (left,) = await read_pool_instances(client)
    assert left.url == "http://127.0.0.1:12"
    assert store.read(instance_views)["a100-0"].state == "alive"


async def test_a_server_or_a_pool_that_has_gone_first_does_not_keep_a_fleet_from_ending(
    client: PrefectClient,
    new_sqlite_url: str,
    open_store: Callable[..., Store],
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = open_store(new_sqlite_url)
    pools = {"a100": [emulated("a100-0", 11, "a100")]}
    with ExitStack() as stack:
        async with entered(pools, store_url=store.url):
            stack.enter_context(temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}))
    assert "could not be taken out of the work pools a100" in capsys.readouterr().err
    assert store.read(instance_views)["a100-0"].state == "draining"
    async with entered(pools, store_url=store.url):
        assert store.read(instance_views)["a100-0"].state == "alive"
        await client.delete_work_pool("a100")
    assert store.read(instance_views)["a100-0"].state == "draining"


async def test_somebody_elses_bad_pool_does_not_keep_a_fleet_from_serving(
    client: PrefectClient,
    new_sqlite_url: str,
    open_store: Callable[..., Store],
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = open_store(new_sqlite_url)
    await apply_pools(client, only={"h100"})
    bad = {"name": "bad", "url": "http://gpu-1:8000", "profile": "abacus"}
    await set_pool_instances(client, "h100", [bad])
    async with entered({"a100": [emulated("a100-0", 11, "a100")]}, store_url=store.url):
        assert "abacus" in capsys.readouterr().err
        assert store.read(instance_views)["a100-0"].state == "alive"
    assert [one.name for one in await read_pool_instances(client)] == ["bad"]
