"""A worker keeps the store's fleet in step with the work pools, so that nobody has to."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from prefect.client.orchestration import PrefectClient

from hexprefect.errors import HexprefectError
from hexprefect.settings import settings

if TYPE_CHECKING:
    from hexprefect.store import Store

Logger = logging.Logger | logging.LoggerAdapter[Any]

EVERY_S = 5.0
"""How soon a pool that was paused or changed in the UI is heard of."""


async def keep_fleet(client: PrefectClient, logger: Logger) -> None:
    """Read the pools into the store for ever. What is wrong is said once, until it changes."""
    # Every Prefect command loads the worker's class: only a worker that runs needs the store.
    from hexprefect.orchestration.fleet_sync import synchronise_fleet
    from hexprefect.store.opening import open_current

    url = settings().store.get_secret_value()
    said = ""
    store: Store | None = None
    try:
        while True:
            try:
                if store is None:
                    store = await asyncio.to_thread(open_current, url)
                changed = await synchronise_fleet(client, store)
                if changed:
                    logger.info("The fleet has changed: %s.", ", ".join(changed))
                said = ""
            except HexprefectError as error:
                if str(error) != said:
                    said = str(error)
                    logger.warning("%s", said)
            except Exception:
                logger.warning("The fleet could not be read; trying again.", exc_info=True)
            await asyncio.sleep(EVERY_S)
    finally:
        if store is not None:
            await asyncio.to_thread(store.close)
