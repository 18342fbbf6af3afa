"""Three automations on our events: made once, kept as described, and they fire."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.events.actions import DoNothing, SendNotification
from prefect.events.schemas.automations import AutomationCore

from hexprefect.errors import CallerMistake
from hexprefect.orchestration import events
from hexprefect.orchestration.automations import (
    DESCRIBED,
    PREFIX,
    apply_automations,
    remove_automations,
)

pytestmark = pytest.mark.usefixtures("seen_by_prefect")

NAMES = [described.name for described in DESCRIBED]


@pytest.fixture(autouse=True)
async def none_are_left(prefect_client: PrefectClient):
    await remove_automations(prefect_client)
    yield
    await remove_automations(prefect_client)


async def ours(client: PrefectClient) -> list[Any]:
    return [one for one in await client.read_automations() if one.name.startswith(PREFIX)]


async def webhook_block(client: PrefectClient, name: str) -> str:
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    block = CustomWebhookNotificationBlock(name=name, url="http://127.0.0.1:9/")
    await block.asave(name, overwrite=True)
    return f"custom-webhook/{name}"


async def test_they_are_made_once(prefect_client: PrefectClient) -> None:
    assert await apply_automations(prefect_client) == dict.fromkeys(NAMES, "created")
    assert await apply_automations(prefect_client) == dict.fromkeys(NAMES, "unchanged")
    made = await ours(prefect_client)
    assert sorted(one.name for one in made) == sorted(NAMES)
    assert all(one.enabled for one in made)
    assert {type(action) for one in made for action in one.actions} == {DoNothing}


async def test_a_notification_block_is_added_to_those_that_are_there(
    prefect_client: PrefectClient,
) -> None:
    await apply_automations(prefect_client)
    notify = await webhook_block(prefect_client, "ops")
    applied = await apply_automations(prefect_client, notify=notify)
    assert applied == dict.fromkeys(NAMES, "changed")
    assert await apply_automations(prefect_client, notify=notify) == dict.fromkeys(
        NAMES, "unchanged"
    )
    made = await ours(prefect_client)
    assert len(made) == len(NAMES)
    assert all(isinstance(one.actions[0], SendNotification) for one in made)


async def test_one_that_a_person_has_paused_stays_paused(prefect_client: PrefectClient) -> None:
    await apply_automations(prefect_client)
    [first, *_] = await ours(prefect_client)
    await prefect_client.pause_automation(first.id)
    notify = await webhook_block(prefect_client, "ops")
    await apply_automations(prefect_client, notify=notify)
    paused = await prefect_client.read_automation(first.id)
    assert paused is not None
    assert not paused.enabled


async def test_one_that_stands_twice_is_made_one(prefect_client: PrefectClient) -> None:
    await apply_automations(prefect_client)
    [first, *_] = await ours(prefect_client)
    again = AutomationCore.model_validate(first.model_dump(exclude={"id"}))
    await prefect_client.create_automation(again)
    assert len(await ours(prefect_client)) == len(NAMES) + 1
    applied = await apply_automations(prefect_client)
    assert applied[first.name] == "changed"
    assert len(await ours(prefect_client)) == len(NAMES)


async def test_only_some_of_them(prefect_client: PrefectClient) -> None:
    applied = await apply_automations(prefect_client, only=["instance-down"])
    assert list(applied) == [f"{PREFIX}instance down"]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"notify": "slack-webhook/nobody"}, "no notification block"),
        ({"notify": "ops"}, "no notification block"),
        ({"only": ["nothing"]}, "slo-at-risk"),
    ],
)
async def test_what_does_not_exist_is_the_callers_mistake(
    prefect_client: PrefectClient, wanted: dict[str, Any], said: str
) -> None:
    with pytest.raises(CallerMistake, match=said):
        await apply_automations(prefect_client, **wanted)
    assert await ours(prefect_client) == []


async def test_every_event_that_they_wait_for_is_one_of_ours() -> None:
    assert {event for one in DESCRIBED for event in one.expect} <= set(events.EVENTS)


async def test_an_event_of_ours_arrives_once_however_often_it_is_told(
    prefect_client: PrefectClient,
) -> None:
    """Two processes may tell the same change: its id follows from it."""
    from prefect.events.filters import EventFilter, EventNameFilter

    name = f"gpu-{time.time_ns()}"
    for _ in range(2):
        events.emit(
            events.INSTANCE_STATES["dead"],
            subject=f"instance.{name}",
            name=name,
            payload={"before": "alive", "reason": "refused"},
            labels={"pool": "a100"},
            occurred_at=time.time() // 1,
        )
    wanted = EventFilter(event=EventNameFilter(name=["hexprefect.instance.dead"]))
    body = {"filter": wanted.model_dump(mode="json")}
    async with asyncio.timeout(60):
        while True:
            answer = await prefect_client._client.post("/events/filter", json=body)
            found = [
                event
                for event in answer.json()["events"]
                if event["resource"]["prefect.resource.id"] == f"hexprefect.instance.{name}"
            ]
            if found:
                break
            await asyncio.sleep(0.2)
    [event] = found
    assert event["payload"] == {"before": "alive", "reason": "refused"}
    assert event["resource"]["hexprefect.pool"] == "a100"


def test_an_event_that_cannot_be_sent_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no server")

    monkeypatch.setattr(events, "emit_event", broken)
    events.emit(events.ALPHA_CHANGED, subject="alpha", name="α", payload={})
