"""Pools that nobody checked, moved instances and pauses: the store's fleet after reading them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import WorkPool

from hexprefect.orchestration.fleet_sync import synchronise_fleet
from hexprefect.orchestration.pools import PoolMistake, read_pool_instances
from hexprefect.store import Store
from hexprefect.store.views import instance_views

TEMPLATES = Path(__file__).parents[2] / "work_pools"


@dataclass
class Pools:
    """A Prefect API that has nothing but work pools."""

    pools: dict[str, dict[str, Any]] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)

    def set(self, name: str, *, kind: str = "a100", **defaults: Any) -> None:
        template = json.loads((TEMPLATES / f"{kind}.json").read_text("utf-8"))
        for variable, value in {"model": "m", **defaults}.items():
            template["variables"]["properties"][variable]["default"] = value
        self.pools[name] = template

    async def read_work_pools(self, *, limit: int, offset: int) -> list[WorkPool]:
        return [
            WorkPool(
                name=name,
                type="hexgen",
                is_paused=name in self.paused,
                base_job_template=template,
                default_queue_id=uuid4(),
            )
            for name, template in self.pools.items()
        ][offset : offset + limit]


@dataclass
class Fleet:
    pools: Any
    store: Store

    async def read(self) -> dict[str, tuple[str, str]]:
        """Read the pools, and say of which pool each instance is, and its state."""
        await synchronise_fleet(self.pools, self.store)
        return self.now()

    def now(self) -> dict[str, tuple[str, str]]:
        views = self.store.read(instance_views)
        return {name: (view.spec.pool, view.state) for name, view in views.items()}


@pytest.fixture
def fleet(new_sqlite_url: str, open_store: Callable[..., Store]) -> Fleet:
    return Fleet(Pools(), open_store(new_sqlite_url))


def at(host: str, **more: Any) -> dict[str, Any]:
    return {"url": f"http://{host}:8000", "name": host, **more}


@pytest.mark.parametrize(("before", "after"), [("a100", "h100"), ("h100", "a100")])
@pytest.mark.parametrize("was_paused", [False, True])
async def test_an_instance_that_moves_to_another_pool_serves_there(
    fleet: Fleet, before: str, after: str, was_paused: bool
) -> None:
    """Whichever of the two is read first."""
    fleet.pools.set(before, instances=[at("gpu-1")])
    fleet.pools.set(after)
    assert await fleet.read() == {"gpu-1": (before, "alive")}
    if was_paused:
        fleet.pools.paused.add(before)
        assert await fleet.read() == {"gpu-1": (before, "draining")}
    fleet.pools.set(before)
    fleet.pools.set(after, instances=[at("gpu-1")])
    assert await fleet.read() == {"gpu-1": (after, "alive")}


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        ({"instances": [at("bad", profile="abacus")]}, "no profile of the hardware 'abacus'"),
        ({"instances": [at("bad")], "model": "m" * 400}, "400 characters"),
        ({"launch": {"replicas": 1, "host": "a:b"}}, "could not be reached"),
    ],
)
async def test_what_the_store_cannot_take_is_one_pools_mistake(
    fleet: Fleet, defaults: dict[str, Any], said: str
) -> None:
    fleet.pools.set("a-bad-one", **defaults)
    fleet.pools.set("good", instances=[at("gpu-1")])
    with pytest.raises(PoolMistake, match=said) as mistake:
        await fleet.read()
    assert mistake.value.pool == "a-bad-one"
    assert fleet.now() == {"gpu-1": ("good", "alive")}


async def test_a_pool_whose_name_leaves_no_room_for_its_servers_is_a_mistake(fleet: Fleet) -> None:
    fleet.pools.set("p" * 195, launch={"replicas": 1})
    with pytest.raises(PoolMistake, match="could not be reached, or named"):
        await fleet.read()


@pytest.mark.parametrize("template", [{"variables": None}, {"variables": {"properties": None}}])
async def test_what_another_type_of_pool_has_for_variables_is_none_of_our_business(
    fleet: Fleet, template: dict[str, Any]
) -> None:
    fleet.pools.pools["other"] = template
    fleet.pools.set("good", instances=[at("gpu-1")])
    assert await fleet.read() == {"gpu-1": ("good", "alive")}


@pytest.mark.parametrize("host", ["::1", "::"])
async def test_a_launched_server_may_listen_on_ipv6(fleet: Fleet, host: str) -> None:
    fleet.pools.set("rack", launch={"replicas": 1, "host": host})
    (instance,) = await read_pool_instances(fleet.pools)
    assert instance.url == f"http://[{host}]:8000"


async def test_one_server_in_two_spellings_is_one_server(fleet: Fleet) -> None:
    spelt = ({"url": "http://gpu-1", "name": "a"}, {"url": "HTTP://GPU-1:80/v1", "name": "b"})
    fleet.pools.set("rack", instances=list(spelt))
    with pytest.raises(PoolMistake, match="the same server"):
        await read_pool_instances(fleet.pools)


async def test_pausing_counts_also_for_a_pool_that_cannot_be_read(fleet: Fleet) -> None:
    fleet.pools.set("rack", instances=[at("gpu-1")])
    assert await fleet.read() == {"gpu-1": ("rack", "alive")}
    fleet.pools.set("rack", instances=[at("gpu-1")], api_key_secret="env:NOT_SET_ANYWHERE")
    with pytest.raises(PoolMistake, match="not set"):
        await fleet.read()
    assert fleet.now() == {"gpu-1": ("rack", "alive")}, "what cannot be read stays as it is"
    fleet.pools.paused.add("rack")
    with pytest.raises(PoolMistake, match="not set"):
        await fleet.read()
    assert fleet.now() == {"gpu-1": ("rack", "draining")}
    fleet.pools.set("rack", instances=[at("gpu-1")])
    fleet.pools.paused.clear()
    assert await fleet.read() == {"gpu-1": ("rack", "alive")}
