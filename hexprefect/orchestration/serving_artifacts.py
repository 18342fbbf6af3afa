"""What a flow run that serves an instance shows in Prefect's UI: its start, and its state."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from types import TracebackType
from typing import Any, Self

from prefect import get_client
from prefect.artifacts import (
    acreate_markdown_artifact,
    acreate_progress_artifact,
    aupdate_progress_artifact,
)
from prefect.client.schemas.actions import ArtifactUpdate

from hexprefect.orchestration.serving import ServingReport

logger = logging.getLogger(__name__)

LAST_WORD_S = 5.0


class ServingArtifacts:
    """A progress bar of the start and a page about the instance, as an async context manager.

    They are written beside the serving, the newest report last; Prefect's API may be slow or away
    without holding anything up.
    """

    def __init__(self) -> None:
        self._report: ServingReport | None = None
        self._news = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._page: uuid.UUID | None = None
        self._progress: uuid.UUID | None = None
        self._shown = -1.0

    def tell(self, report: ServingReport) -> None:
        """Take note of what has changed."""
        self._report = report
        self._news.set()

    async def __aenter__(self) -> Self:
        self._writing = asyncio.create_task(self._write_for_ever())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._writing is not None
        self._writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._writing
        with contextlib.suppress(asyncio.CancelledError, TimeoutError):
            await asyncio.wait_for(self._write(), LAST_WORD_S)

    async def _write_for_ever(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self._write()

    async def _write(self) -> None:
        report = self._report
        if report is None:
            return
        try:
            await self._write_progress(report)
            await self._write_page(report)
        except Exception as error:
            logger.warning("The artifacts of %s were not written: %s", report.name, error)

    async def _write_progress(self, report: ServingReport) -> None:
        if report.fraction == self._shown:
            return
        self._shown = report.fraction
        if self._progress is None:
            created: Any = await acreate_progress_artifact(
                progress=100 * report.fraction, description=f"The start of {report.name}."
            )
            self._progress = created
        else:
            await aupdate_progress_artifact(self._progress, progress=100 * report.fraction)

    async def _write_page(self, report: ServingReport) -> None:
        page = page_of(report)
        if self._page is None:
            created: Any = await acreate_markdown_artifact(
                page, description=f"Instance {report.name}."
            )
            self._page = created
        else:
            async with get_client() as client:
                await client.update_artifact(self._page, ArtifactUpdate(data=page))


def page_of(report: ServingReport) -> str:
    """The instance as a person looks at it."""
    rows = [
        ("State", f"**{report.state}**"),
        ("URL", _code(report.url)),
        ("Model", _code(report.model)),
        ("Running there", str(report.running)),
        ("Waiting there", str(report.waiting)),
        ("Deaths", str(report.deaths)),
    ]
    table = ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)]
    head = [f"### {_code(report.name)}", "", *table]
    if not report.detail:
        return "\n".join(head)
    fence = "`" * 4
    said = report.detail.replace(fence, "''''")
    return "\n".join([*head, "", f"{fence}text", said, fence])


def _code(text: str) -> str:
    """A name as it is, in a table or a title, whatever is in it."""
    return "`" + " ".join(text.replace("`", "'").split()).replace("|", "\\|") + "`"
