"""What a query leaves for a person to read, and that the UI never costs an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hexprefect.orchestration import artifacts
from hexprefect.orchestration.answer_record import empty_record, failed
from hexprefect.orchestration.artifacts import (
    LONGEST_CELL,
    ProgressArtifact,
    answer_markdown,
    answer_rows,
    create_answer_artifacts,
    timeline_rows,
)
from hexprefect.orchestration.ask import stages_with_scores
from hexprefect.scheduling import Decision
from hexprefect.scheduling.dispatch import InstanceScore
from hexprefect.text2sql import Progress


def stage(**changed: Any) -> dict[str, Any]:
    return {
        **dict.fromkeys(("input_tokens", "cached_tokens", "output_tokens", "error")),
        "stage": "judge",
        "branch": None,
        "request_id": "r1",
        "state": "finished",
        "instance": "fast",
        "waited_s": 1.0,
        "ran_s": 2.0,
        "budget_s": 10.0,
        "predicted_s": 2.5,
        "attempt": 1,
        **changed,
    }


def answered(**changed: Any) -> dict[str, Any]:
    record = empty_record(question="How many *orders*?", database="shop", tenant="t", slo_s=60.0)
    return {
        **record,
        "state": "answered",
        "sql": "SELECT COUNT(*) FROM t WHERE a = 1",
        "columns": ["n", "n"],
        "rows": [[1, 2]],
        "elapsed_s": 3.0,
        "met_slo": True,
        "confidence": 0.5,
        "warnings": ["<b>look</b>"],
        "dropped_work": ["judge: no time"],
        "stages": [stage()],
        **changed,
    }


def decision(*scores: tuple[str, float, float, float], request: str = "r1") -> dict[str, Any]:
    made = Decision("fast", 0.5, "normalised", 1.0, tuple(InstanceScore(*one) for one in scores))
    return {"request_id": request, "why": "submitted", "record": made, "stage": "judge"}


def test_the_answer_is_explained() -> None:
    decisions = [
        decision(("fast", 9.0, 9.0, 9.0)),
        decision(("fast", 1.25, 0.5, 0.4), ("slow", 2.5, 0.0, float("-inf"))),
    ]
    stages = stages_with_scores([stage()], decisions)
    text = answer_markdown(answered(stages=stages, alpha=0.5))
    assert "### How many \\*orders\\*?" in text
    assert "```sql\nSELECT\n  COUNT(*)\nFROM t\nWHERE\n  a = 1\n```" in text
    assert "3.0 s of 60 s: the SLO was **met**." in text
    assert "Confidence: 50 % of the candidates agree." in text
    assert "- Warning: \\<b\\>look\\</b\\>" in text
    assert "- Dropped for want of time: judge: no time" in text
    assert "α = 0.5" in text
    assert "fast 0.400 (1.25 s, 0.50 s), slow idle (2.50 s, 0.00 s)" in text
    assert "9.00 s" not in text, "the last dispatch is the one that counted"


def test_what_is_not_known_is_not_shown_as_a_value() -> None:
    stages = stages_with_scores([stage(branch=None)], [decision(("fast", 1.0, 0.0, 0.4))])
    text = answer_markdown(answered(stages=stages, alpha=0.5, confidence=None))
    assert "Confidence: not known, as one candidate has nothing to agree with." in text
    assert "NULL" not in text


def test_a_failure_says_why_and_explains_nothing_that_was_not() -> None:
    record = failed(
        {**answered(stages=[]), "sql": None, "confidence": None}, "no instance", "caller"
    )
    text = answer_markdown(record)
    assert "**No answer:** no instance" in text
    assert "Confidence" not in text
    assert "```" not in text
    assert "Where its calls went" not in text


def test_the_timeline_holds_budget_against_actual() -> None:
    [row] = timeline_rows(answered())
    assert row["of its budget"] == "30 %"
    [row] = timeline_rows(answered(stages=[stage(ran_s=None, state="cancelled")]))
    assert row["of its budget"] is None


def test_columns_of_one_name_are_kept_apart() -> None:
    assert answer_rows(answered()) == [{"n": 1, "n (2)": 2}]


def test_rows_are_shown_exactly_and_can_be_kept() -> None:
    """PostgreSQL keeps no NUL, UTF-8 no half of a character, and a browser no long integer."""
    wrapped = {"type": "decimal", "value": "1.10"}
    row = [2**53, 2**53 + 1, "a\0b\ud83d", wrapped, {"k": [1]}, None, True, 1.5, "x" * 5000]
    [shown] = answer_rows({"columns": [f"c{i}" for i in range(len(row))], "rows": [row]})
    *cells, long = shown.values()
    assert cells == [2**53, str(2**53 + 1), "a�b?", "1.10", '{"k": [1]}', None, True, 1.5]
    assert len(long) == LONGEST_CELL


async def test_a_ui_that_is_away_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("no server")

    for name in (
        "acreate_markdown_artifact",
        "acreate_table_artifact",
        "acreate_progress_artifact",
    ):
        monkeypatch.setattr(artifacts, name, away)
    await create_answer_artifacts(answered())
    progress = ProgressArtifact()
    progress.tell(Progress("judge", "Judging", 0.8))
    await progress.done()


async def test_progress_shows_the_step_and_ends_at_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[tuple[float, str]] = []

    async def create(*, progress: float, description: str) -> str:
        shown.append((progress, description))
        return "artifact"

    async def update(_: str, *, progress: float, description: str) -> None:
        shown.append((progress, description))

    monkeypatch.setattr(artifacts, "acreate_progress_artifact", create)
    monkeypatch.setattr(artifacts, "aupdate_progress_artifact", update)
    progress = ProgressArtifact()
    for step, fraction in (("Reading", 0.0), ("Writing candidates", 0.3), ("Judging", 0.31)):
        progress.tell(Progress("x", step, fraction))
        await asyncio.sleep(0.01)
    await progress.done()
    assert shown == [
        (0.0, "How far the query is: Reading"),
        (30.0, "How far the query is: Writing candidates"),
        (100.0, "How far the query is: Judging"),
    ]
