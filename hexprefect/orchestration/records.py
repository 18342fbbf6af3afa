"""The results of LLM tasks as the store keeps them, for flow runs that are started again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hexprefect.completion import Completion
from hexprefect.queue.query import completion_from_record, completion_record


def record_of(result: Any) -> dict[str, Any] | None:
    """A result as JSON; `None` when it cannot be kept, and the task would run again."""
    if isinstance(result, Completion):
        return {"kind": "completion", "value": completion_record(result)}
    try:
        text = json.dumps(result)
    except (TypeError, ValueError):
        return None
    if json.loads(text) != result:
        return None
    try:
        json.dumps(result, allow_nan=False)
    except ValueError:
        # An infinity: Python writes and reads it, PostgreSQL refuses it in JSON.
        return {"kind": "json text", "value": text}
    return {"kind": "json", "value": result}


def result_from(record: Mapping[str, Any]) -> Any:
    """The inverse of `record_of`; also reads what `Query.complete` has kept."""
    if record.get("kind") == "json":
        return record["value"]
    if record.get("kind") == "json text":
        return json.loads(record["value"])
    if record.get("kind") == "completion":
        return completion_from_record(record["value"])
    return completion_from_record(record)
