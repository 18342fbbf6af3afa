"""What one process has learnt of an instance holds for all, until it is known to be outdated."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import update

from hexprefect.queue.health import OVERRULE_AFTER_S
from hexprefect.store import tables
from hexprefect.store.fleet import set_instance_state


def said(fleet, state, *, ago_s):
    """Another process said so, some time ago."""
    fleet.store.transact(lambda tx: set_instance_state(tx, "m", state, reason="requests time out"))
    fleet.store.transact(
        lambda tx: tx.connection.execute(update(tables.instances).values(changed_at=tx.now - ago_s))
    )


@pytest.mark.parametrize("state", ["suspect", "dead"])
async def test_a_health_route_does_not_undo_what_another_process_just_saw(fleet, queue, state):
    """A hung engine says that it is well."""
    await fleet.start("m", fault="hang")
    said(fleet, state, ago_s=0.0)
    await asyncio.sleep(3.0)  # several probes
    assert fleet.state("m") == state


@pytest.mark.parametrize("state", ["suspect", "dead"])
async def test_the_word_of_a_process_that_is_gone_is_outdated(fleet, queue, eventually, state):
    await fleet.start("m")
    said(fleet, state, ago_s=OVERRULE_AFTER_S + 1)
    await eventually(lambda: fleet.state("m") == "alive")


async def test_an_instance_that_an_operator_drains_is_not_brought_back(fleet, queue, prompt):
    await fleet.start("m")
    said(fleet, "draining", ago_s=3600.0)
    await asyncio.sleep(2.0)
    assert fleet.state("m") == "draining"
