"""The answer record: what `hexprefect ask --json` prints and the store keeps."""

from __future__ import annotations

from typing import Any, Literal

AnswerRecord = dict[str, Any]

ErrorKind = Literal["caller", "no_answer"]
"""Whose turn it is: the caller made a mistake, or no answer could be produced."""


def empty_record(
    *, question: str, database: str, tenant: str, slo_s: float | None = None
) -> AnswerRecord:
    """A record of a question that has no answer yet, with every field."""
    return {
        "query_id": None,
        "flow_run_id": None,
        "state": "failed",
        "question": question,
        "database": database,
        "tenant": tenant,
        "sql": None,
        "columns": [],
        "types": [],
        "rows": [],
        "truncated": False,
        "confidence": None,
        "chosen": None,
        "links": None,
        "missing": [],
        "readings": [],
        "refusals": [],
        "from_cache": False,
        "stages": [],
        "elapsed_s": 0.0,
        "slo_s": slo_s,
        "met_slo": False,
        "alpha": None,
        "dropped_work": [],
        "warnings": [],
        "error": None,
        "error_kind": None,
    }


def failed(record: AnswerRecord, error: str | None, kind: ErrorKind) -> AnswerRecord:
    """The record with the reason why there is no answer."""
    reason = error or "no answer could be produced"
    return {**record, "state": "failed", "error": reason, "error_kind": kind}
