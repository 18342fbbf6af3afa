"""Ready-made automations on our events: made once, kept as described, never doubled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.events.actions import DoNothing, RunDeployment, SendNotification
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound

from hexprefect.errors import CallerMistake
from hexprefect.orchestration import events

Applied = Literal["created", "changed", "unchanged"]

PREFIX = "hexprefect: "
"""Of the names of our automations: what bears it is ours to change."""

_EVENT = "{{ event.resource['prefect.resource.name'] }}"


@dataclass(frozen=True, slots=True)
class Described:
    """One automation, without what it does when it fires."""

    key: str
    name: str
    description: str
    expect: tuple[str, ...]
    threshold: int
    within: timedelta
    for_each: tuple[str, ...]
    subject: str
    body: str
    deployment: str | None = None
    """A deployment that it also runs, where there is one of this name."""


DESCRIBED: tuple[Described, ...] = (
    Described(
        key="slo-at-risk",
        name=f"{PREFIX}SLO at risk",
        description="Three queries of a tenant were at risk or overdue within five minutes; "
        "α is tuned if that has made the P95 worse.",
        expect=(events.QUERY_AT_RISK, events.QUERY_OVERDUE),
        threshold=3,
        within=timedelta(minutes=5),
        for_each=("hexprefect.tenant",),
        subject="Queries of {{ event.resource['hexprefect.tenant'] }} are at risk of their SLO",
        body=f"Three in five minutes, the last of them: {_EVENT}\n"
        "{{ event.payload.left_s }} s are left of {{ event.payload.slo_s }} s; what it has open "
        "takes {{ event.payload.open_s }} s.\nLook here: hexprefect top, hexprefect queries list.",
        deployment="watch-alpha/watch",
    ),
    Described(
        key="instance-down",
        name=f"{PREFIX}instance down",
        description="An instance is taken for dead; its queue has moved to the others.",
        expect=(events.INSTANCE_STATES["dead"],),
        threshold=1,
        within=timedelta(0),
        for_each=("prefect.resource.id",),
        subject=f"The instance {_EVENT} is down",
        body=f"{_EVENT} was {{{{ event.payload.before or 'unknown' }}}} and is dead: "
        "{{ event.payload.reason }}\nIts queue has moved to the other instances. "
        "It comes back by itself once it answers; look at its server's log.",
    ),
    Described(
        key="alpha-changed",
        name=f"{PREFIX}α changed",
        description="Dispatch goes by another α, chosen by the tuner or by a person.",
        expect=(events.ALPHA_CHANGED,),
        threshold=1,
        within=timedelta(0),
        for_each=(),
        subject="α is now {{ event.payload.alpha }}",
        body="α = {{ event.payload.alpha }} ({{ event.payload.policy }}), because: "
        "{{ event.payload.reason }}",
    ),
)
"""The three that `hexprefect automations apply` makes."""


async def apply_automations(
    client: PrefectClient,
    *,
    notify: str | None = None,
    only: Sequence[str] = (),
) -> dict[str, Applied]:
    """Make each automation, or make it as it is described here.

    Whether a person has paused one stays as it is.

    Args:
        client: of the Prefect server.
        notify: a notification block, `TYPE/NAME`; without one they are only seen in the event feed.
        only: keys of `DESCRIBED`; all when empty.

    Returns:
        What became of each, by its name.

    Raises:
        CallerMistake: no such block, or no automation of that key.
    """
    known = {described.key: described for described in DESCRIBED}
    if unknown := [key for key in only if key not in known]:
        raise CallerMistake(
            f"There is no automation {unknown[0]!r}.", remedy=f"Known: {', '.join(known)}."
        )
    block = None if notify is None else await _block_id(client, notify)
    applied: dict[str, Applied] = {}
    for described in DESCRIBED:
        if not only or described.key in only:
            applied[described.name] = await _apply(client, described, block)
    return applied


async def remove_automations(client: PrefectClient) -> tuple[str, ...]:
    """Remove ours; the names of those that there were."""
    removed = []
    for described in DESCRIBED:
        for automation in await client.read_automations_by_name(described.name):
            await client.delete_automation(automation.id)
            removed.append(described.name)
    return tuple(removed)


async def _apply(client: PrefectClient, described: Described, block: UUID | None) -> Applied:
    wanted = await _wanted(client, described, block)
    found = sorted(
        await client.read_automations_by_name(described.name), key=lambda one: str(one.id)
    )
    if not found:
        await client.create_automation(wanted)
        return "created"
    kept, *doubled = found
    for automation in doubled:
        await client.delete_automation(automation.id)
    wanted.enabled = kept.enabled
    if _says(kept) == _says(wanted) and not doubled:
        return "unchanged"
    await client.update_automation(kept.id, wanted)
    return "changed"


async def _wanted(
    client: PrefectClient, described: Described, block: UUID | None
) -> AutomationCore:
    actions: list[Any] = []
    if block is not None:
        actions.append(
            SendNotification(
                block_document_id=block, subject=described.subject, body=described.body
            )
        )
    if described.deployment is not None:
        try:
            deployment = await client.read_deployment_by_name(described.deployment)
        except ObjectNotFound:
            pass
        else:
            actions.append(RunDeployment(source="selected", deployment_id=deployment.id))
    return AutomationCore(
        name=described.name,
        description=described.description,
        trigger=EventTrigger(
            expect=set(described.expect),
            posture=Posture.Reactive,
            threshold=described.threshold,
            within=described.within,
            for_each=set(described.for_each),
        ),
        actions=actions or [DoNothing()],
    )


def _says(automation: AutomationCore | Automation) -> dict[str, Any]:
    """What two automations are compared by: what the server adds by itself is left out."""
    said = automation.model_dump(
        mode="json", include={"name", "description", "enabled", "trigger", "actions"}
    )
    trigger = said["trigger"]
    trigger.pop("id", None)
    for name in ("expect", "for_each", "after"):
        trigger[name] = sorted(trigger[name])
    return said


async def _block_id(client: PrefectClient, name: str) -> UUID:
    kind, _, document = name.partition("/")
    try:
        if not document:
            raise ValueError(name)
        found = await client.read_block_document_by_name(document, kind)
    except (ObjectNotFound, ValueError) as error:
        raise CallerMistake(
            f"There is no notification block {name!r}.",
            remedy="Give TYPE/NAME of one, such as slack-webhook/ops; see `prefect block ls`.",
        ) from error
    return found.id
