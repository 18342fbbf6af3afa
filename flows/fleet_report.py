"""`fleet-report/daily`: how the fleet did, as one artifact with plots, for whoever operates it."""

import asyncio
import time
from typing import Annotated, Any

from prefect import flow
from prefect.artifacts import acreate_image_artifact, acreate_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from hexprefect.errors import HexprefectError
from hexprefect.orchestration.fleet_figures import FleetFigures, read_figures
from hexprefect.orchestration.fleet_plots import fleet_markdown, fleet_plots
from hexprefect.reports.html import png_url
from hexprefect.settings import settings
from hexprefect.store.opening import open_current

KEY = "fleet-report"


@flow(
    name="fleet-report",
    description="Utilisation, queue delay, attainment by tenant and cost by stage, with plots.",
)
async def fleet_report(
    hours: Annotated[float, Field(gt=0, le=24 * 31)] = 24.0,
    store_url: str | None = None,
) -> State[dict[str, Any]]:
    """Report on the fleet.

    Args:
        hours: How far the report reaches back.
        store_url: URL of the store; HEXPREFECT_STORE when left out.

    Returns:
        Completed with the figures; with the name `NothingToReport` when nothing ended meanwhile.
    """
    try:
        figures = await asyncio.to_thread(_read, store_url, 3600 * hours)
    except HexprefectError as mistake:
        return Failed(message=str(mistake))
    record = figures.as_record()
    if not figures.queries and not figures.requests:
        return Completed(
            name="NothingToReport", message=f"Nothing ended in {hours:g} hours.", data=record
        )
    plots = await asyncio.to_thread(fleet_plots, figures)
    await asyncio.gather(
        acreate_markdown_artifact(
            fleet_markdown(figures), key=KEY, description=f"The fleet in the last {hours:g} hours."
        ),
        *(
            acreate_image_artifact(png_url(plot), key=f"{KEY}-{name}", description=title)
            for name, (title, plot) in plots.items()
        ),
    )
    return Completed(message=figures.summary, data=record)


def _read(store_url: str | None, seconds: float) -> FleetFigures:
    store = open_current(store_url or settings().store.get_secret_value())
    try:
        now = time.time()
        return store.read(lambda connection: read_figures(connection, now - seconds, now))
    finally:
        store.close()
