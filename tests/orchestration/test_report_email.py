"""A report by e-mail: the document in the message and attached, the text beside it."""

from __future__ import annotations

import asyncio
import datetime
import email
from collections.abc import AsyncIterator
from email.message import Message
from email.policy import default
from pathlib import Path
from typing import Any, cast

import pytest

from hexprefect.orchestration import report_delivery
from hexprefect.orchestration.report import Finished, digest_of
from hexprefect.orchestration.report_delivery import deliver
from hexprefect.reports.archive import Archive
from hexprefect.reports.file import Report
from hexprefect.reports.writing import write_report
from tests.reports.examples import item, report

prefect_email = pytest.importorskip("prefect_email", reason="prefect-email is not installed")


class MailServer:
    """An SMTP server that keeps what it is given."""

    def __init__(self) -> None:
        self.received: list[Message] = []
        self.recipients: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(line: str) -> None:
            writer.write(f"{line}\r\n".encode())
            await writer.drain()

        await say("220 test")
        while line := (await reader.readline()).decode().strip():
            command = line.split(" ")[0].upper().split(":")[0]
            if command == "DATA":
                await say("354 go on")
                content = await reader.readuntil(b"\r\n.\r\n")
                self.received.append(email.message_from_bytes(content[:-5], policy=default))
            if command == "RCPT":
                self.recipients.append(line.split("<")[1].split(">")[0])
            answers = {"QUIT": "221 bye", "EHLO": "250-test\r\n250 AUTH PLAIN", "AUTH": "235 ok"}
            await say(answers.get(command, "250 ok"))
            if command == "QUIT":
                break
        writer.close()


@pytest.fixture
async def mail(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MailServer]:
    kept = MailServer()
    server = await asyncio.start_server(kept.serve, "127.0.0.1", 0, limit=10_000_000)
    kept.port = server.sockets[0].getsockname()[1]
    credentials = prefect_email.EmailServerCredentials(
        username="reports@example.org",
        password="x",
        smtp_server="127.0.0.1",
        smtp_port=kept.port,
        smtp_type="insecure",
    )

    async def load(name: str) -> Any:
        assert name == "email-server-credentials/office"
        return credentials

    monkeypatch.setattr(report_delivery, "_load", load)
    async with server:
        yield kept


def finished(tmp_path: Path, described: Report, **changed: Any) -> Finished:
    outcome = report(item("n", (412,), key="customers", title="Customers"), **changed)
    folder = Archive.of(tmp_path, "shop").night(datetime.date.fromisoformat(outcome.date))
    written = write_report(described, outcome, folder)
    return Finished(written, folder, digest_of(written.outcome))


def described(**recipient: Any) -> Report:
    return Report.model_validate(
        {
            "title": "The shop",
            "database": "demo",
            "items": [{"title": "Customers", "sql": "SELECT 412"}],
            "recipients": [
                {"block": "email-server-credentials/office", "to": "a@example.org", **recipient}
            ],
        }
    )


async def test_the_document_is_in_the_message_and_attached(
    tmp_path: Path, mail: MailServer
) -> None:
    wanted = described(to=["a@example.org", "b@example.org"])
    night = finished(tmp_path, wanted, title="The\nshop")
    assert await deliver(wanted, night) == ()
    [message] = mail.received
    assert message["Subject"] == "The shop, 2026-12-01"
    assert mail.recipients == ["a@example.org", "b@example.org"]
    parts = {part.get_content_type(): part for part in message.walk()}
    assert "- Customers: 412" in cast(Any, parts["text/plain"]).get_content()
    assert "<h1>" in cast(Any, parts["text/html"]).get_content()
    attached = [part for part in message.walk() if part.get_filename()]
    [document] = attached
    assert str(document.get_filename()).endswith("report.html")
    assert cast(bytes, document.get_payload(decode=True)) == night.written.html.encode()


async def test_it_is_sent_once_and_only_for_problems_where_that_is_wanted(
    tmp_path: Path, mail: MailServer
) -> None:
    always, problems = described(), described(when="problems")
    night = finished(tmp_path, always)
    for wanted in (problems, always, always):
        assert await deliver(wanted, night) == ()
    assert len(mail.received) == 1


async def test_a_server_that_is_away_is_said_and_tried_again(
    tmp_path: Path, mail: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = described()
    night = finished(tmp_path, wanted)
    email_block = report_delivery._email

    async def away(*_: Any) -> None:
        raise ConnectionRefusedError("connection refused")

    monkeypatch.setattr(report_delivery, "_email", away)
    [problem] = await deliver(wanted, night)
    assert "did not reach email-server-credentials/office a@example.org" in problem
    assert "connection refused" in problem
    monkeypatch.setattr(report_delivery, "_email", email_block)
    assert await deliver(wanted, night) == ()
    assert len(mail.received) == 1


async def test_a_server_that_hangs_does_not_hold_the_report_up(
    tmp_path: Path, mail: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(report_delivery, "_email", hang)
    monkeypatch.setattr(report_delivery, "SEND_TIMEOUT_S", 0.05)
    wanted = described()
    [problem] = await deliver(wanted, finished(tmp_path, wanted))
    assert "it took too long" in problem
