"""The runbook knows every alert that the software can give."""

from __future__ import annotations

import re

from hexprefect.orchestration import events
from hexprefect.orchestration.automations import DESCRIBED, PREFIX
from tests.docs.commands_in_docs import REPOSITORY

RUNBOOK = (REPOSITORY / "docs" / "runbook.md").read_text(encoding="utf-8")

GOOD_NEWS = {
    "hexprefect.query.answered",
    "hexprefect.instance.alive",
    "hexprefect.report.complete",
}


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.*)$", RUNBOOK, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_automation_has_a_section_with_meaning_place_and_remedy() -> None:
    for described in DESCRIBED:
        title = described.name.removeprefix(PREFIX)
        [section] = [text for name, text in sections().items() if name.lower() == title.lower()]
        for event in described.expect:
            assert f"`{event}`" in section
        assert re.findall(r"^- \*\*(.*?)\.\*\*", section, re.MULTILINE) == [
            "Meaning",
            "Look here",
            "Do this",
        ]


def test_every_event_that_is_no_good_news_is_in_it() -> None:
    told = set(events.EVENTS)
    assert len(told) >= 12
    assert sorted(event for event in told - GOOD_NEWS if f"`{event}`" not in RUNBOOK) == []
