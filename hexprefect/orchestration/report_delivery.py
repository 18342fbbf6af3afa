"""A report brought to its readers: through Prefect's notification blocks and as artifacts."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable
from typing import Any

from prefect.artifacts import (
    acreate_image_artifact,
    acreate_link_artifact,
    acreate_markdown_artifact,
    acreate_table_artifact,
)
from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.core import Block

from hexprefect.errors import CallerMistake
from hexprefect.orchestration.artifacts import table_cell
from hexprefect.orchestration.report import Finished
from hexprefect.reports.archive import NightIsRunning
from hexprefect.reports.file import Recipient, Report, slug
from hexprefect.reports.html import png_url
from hexprefect.reports.markdown import message_line, message_text
from hexprefect.reports.outcome import summary_rows
from hexprefect.store.words import storable

logger = logging.getLogger(__name__)

EMAIL_BLOCK = "email-server-credentials"
"""Of prefect-email: sends the document itself; notification blocks send its text."""

SEND_TIMEOUT_S = 60.0


SEND_LOCK = ".sending"


async def deliver(report: Report, finished: Finished) -> tuple[str, ...]:
    """Send the report to each recipient who has not got this very document yet.

    Returns:
        What went wrong, a sentence for each recipient that could not be reached. A recipient is
        noted as served after the sending: one that a process died on may get it twice, never not.
    """
    try:
        with finished.folder.locked(SEND_LOCK):
            return await _deliver(report, finished)
    except NightIsRunning:
        return ("Another run of this night is sending it just now.",)


async def _deliver(report: Report, finished: Finished) -> tuple[str, ...]:
    served = finished.folder.delivered()
    problems = []
    for recipient in report.recipients:
        name = " ".join((recipient.block, *recipient.to))
        if recipient.when == "problems" and finished.outcome.state == "complete":
            continue
        if served.get(name) == finished.digest:
            continue
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await _send(recipient, finished)
        except Exception as error:
            logger.warning("The report did not reach %s.", name, exc_info=True)
            said = "it took too long" if isinstance(error, TimeoutError) else str(error)
            problems.append(f"It did not reach {name}: {said or type(error).__name__}")
            continue
        finished.folder.keep_delivered(name, finished.digest)
    return tuple(problems)


async def create_report_artifacts(finished: Finished) -> None:
    """The report in Prefect's UI: its text, a table of its items, its charts, its place.

    An artifact that Prefect does not take is logged: the report itself is in its folder.
    """
    outcome, key = finished.outcome, f"report-{slug(finished.outcome.name)}"
    about = storable(f"{outcome.title}, {outcome.date}")
    items = [
        {name: table_cell(value) for name, value in row.items()} for row in summary_rows(outcome)
    ]
    creating: list[Awaitable[Any]] = [
        acreate_markdown_artifact(storable(finished.written.markdown), key=key, description=about),
        acreate_table_artifact(items, key=f"{key}-items", description=f"{about}: its items."),
        acreate_link_artifact(
            finished.written.document.as_uri(),
            key=f"{key}-document",
            link_text=str(finished.written.document),
            description=f"{about}: the document, on the machine that ran it.",
        ),
    ]
    titles = {item.key: item.title for item in outcome.items}
    creating += [
        acreate_image_artifact(
            png_url(picture), key=f"{key}-{item}", description=storable(f"{about}: {titles[item]}")
        )
        for item, picture in finished.written.pictures.items()
    ]
    for result in await asyncio.gather(*creating, return_exceptions=True):
        if isinstance(result, Exception):
            logger.warning("An artifact of %s was not kept: %s", about, result)


async def _send(recipient: Recipient, finished: Finished) -> None:
    block = await _load(recipient.block)
    outcome = finished.outcome
    subject = message_line(f"{outcome.title}, {outcome.date}")
    if outcome.state != "complete":
        subject += f" ({outcome.state})"
    text = message_text(outcome, where=str(finished.written.document))
    if recipient.block.startswith(f"{EMAIL_BLOCK}/"):
        await _email(block, recipient, subject, text, finished)
        return
    if not isinstance(block, NotificationBlock):
        raise CallerMistake(
            f"The block {recipient.block} sends no notifications.",
            remedy="Name a notification block, such as slack-webhook/NAME.",
        )
    notify: Any = getattr(block, "anotify", block.notify)
    with block.raise_on_failure():
        sending = notify(body=text, subject=subject)
        if inspect.isawaitable(sending):
            await sending


async def _load(name: str) -> Any:
    if name.startswith(f"{EMAIL_BLOCK}/"):
        _email_package()
    try:
        return await Block.aload(name)
    except ValueError as error:
        raise CallerMistake(
            f"There is no block {name}.",
            remedy="Create it in Prefect's UI, or see `prefect block ls`.",
        ) from error


async def _email(
    block: Any, recipient: Recipient, subject: str, text: str, finished: Finished
) -> None:
    send: Any = _email_package().email_send_message.fn
    sending = send(
        subject=subject,
        msg=finished.written.html,
        msg_plain=text,
        email_server_credentials=block,
        email_to=list(recipient.to),
        # Most programs show no pictures that a message holds: the attached document has them.
        attachments=[str(finished.written.document)],
    )
    # It connects and logs in without giving way: not on the loop that other flow runs are on.
    await asyncio.to_thread(asyncio.run, sending)


def _email_package() -> Any:
    try:
        import prefect_email  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as missing:
        raise CallerMistake(
            f"Sending to {EMAIL_BLOCK} blocks needs the package prefect-email.",
            remedy="Install hexprefect[email].",
        ) from missing
    return prefect_email
