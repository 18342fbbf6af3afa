"""Events of ours in Prefect, so that its automations can react.

They are handed to Prefect's own thread, which sends them: nothing waits for them, and one that
cannot be sent is no failure of what it tells of. An event may come twice, with the same id.
"""

from __future__ import annotations

import datetime
import logging
import uuid
from collections.abc import Mapping
from typing import Any

from prefect.events import emit_event

from hexprefect.orchestration.answer_record import AnswerRecord
from hexprefect.reports.outcome import ReportOutcome

logger = logging.getLogger(__name__)

QUERY_ANSWERED = "hexprefect.query.answered"
QUERY_FAILED = "hexprefect.query.failed"
QUERY_AT_RISK = "hexprefect.query.at-risk"
QUERY_OVERDUE = "hexprefect.query.overdue"
INSTANCE_STATES = {
    state: f"hexprefect.instance.{state}" for state in ("alive", "suspect", "draining", "dead")
}
ALPHA_CHANGED = "hexprefect.alpha.changed"
REPORT_STATES = {state: f"hexprefect.report.{state}" for state in ("complete", "partial", "failed")}

EVENTS: Mapping[str, str] = {
    QUERY_ANSWERED: "a question has an answer; the payload says whether in time",
    QUERY_FAILED: "a question has ended without one; the payload says why",
    QUERY_AT_RISK: "a running query has little time left, or less than what it has open will take",
    QUERY_OVERDUE: "a running query's deadline has passed",
    INSTANCE_STATES["alive"]: "an instance serves again, or for the first time",
    INSTANCE_STATES["suspect"]: "an instance failed a request or a probe; others are preferred",
    INSTANCE_STATES["draining"]: "an instance gets no new requests",
    INSTANCE_STATES["dead"]: "an instance is taken for dead; its queue has moved",
    ALPHA_CHANGED: "dispatch goes by another α from now on; the payload says why",
    REPORT_STATES["complete"]: "a report is ready, with every item as expected",
    REPORT_STATES["partial"]: "a report is ready, and says what is missing or strange",
    REPORT_STATES["failed"]: "a report was run, and no item was answered",
}
"""Every event and what it means."""

_LONGEST_TEXT = 500
_NAMESPACE = uuid.UUID("5f0f2f5e-6c0e-4c47-9a1d-2f4f6f1f0c55")


def emit(
    event: str,
    *,
    subject: str,
    name: str,
    payload: Mapping[str, Any],
    labels: Mapping[str, str] | None = None,
    flow_run_id: str | None = None,
    occurred_at: float | None = None,
) -> None:
    """Hand one event over. Never raises, never waits.

    Args:
        event: one of `EVENTS`.
        subject: what it is about, for example `query.<id>`.
        name: of that, for people.
        payload: JSON.
        labels: of the subject, for triggers to match: `tenant`, `database`.
        flow_run_id: of the flow run it belongs to.
        occurred_at: epoch seconds; an event with it has an id that follows from it, so that two
            processes that tell the same tell it once.
    """
    resource = {
        "prefect.resource.id": f"hexprefect.{subject}",
        "prefect.resource.name": _short(name) or subject,
        **{f"hexprefect.{key}": value for key, value in (labels or {}).items()},
    }
    options: dict[str, Any] = {}
    if flow_run_id is not None:
        related = {
            "prefect.resource.id": f"prefect.flow-run.{flow_run_id}",
            "prefect.resource.role": "flow-run",
        }
        options["related"] = [related]
    if occurred_at is not None:
        options["occurred"] = datetime.datetime.fromtimestamp(occurred_at, datetime.UTC)
        options["id"] = uuid.uuid5(_NAMESPACE, f"{event} {subject} {occurred_at:.6f}")
    try:
        emit_event(event, resource, payload=dict(payload), **options)
    except Exception:
        logger.debug("The event %s was not sent.", event, exc_info=True)


def query_ended(record: AnswerRecord) -> None:
    """A question has been answered, or not."""
    event = QUERY_ANSWERED if record["state"] == "answered" else QUERY_FAILED
    emit(
        event,
        subject=f"query.{record['query_id'] or record['flow_run_id'] or 'unregistered'}",
        name=record["question"],
        labels={"tenant": record["tenant"], "database": record["database"]},
        flow_run_id=record["flow_run_id"],
        payload={
            "elapsed_s": record["elapsed_s"],
            "slo_s": record["slo_s"],
            "met_slo": record["met_slo"],
            "rows": len(record["rows"]),
            "alpha": record["alpha"],
            "error": _short(record["error"] or ""),
            "error_kind": record["error_kind"],
            "dropped_work": [_short(work) for work in record["dropped_work"]],
        },
    )


def report_ended(outcome: ReportOutcome, document: str) -> None:
    """A report is ready; told again of a run of the night that brought nothing new, it is known."""
    emit(
        REPORT_STATES[outcome.state],
        subject=f"report.{outcome.name}",
        name=outcome.title,
        labels={"database": outcome.database},
        payload={
            "date": outcome.date,
            "message": _short(outcome.message),
            "in_time": outcome.in_time,
            "document": document,
        },
        occurred_at=outcome.ended_at,
    )


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
