"""OpenTelemetry spans of a question: query → call → waiting and generation.

Only OpenTelemetry's API is used: without an SDK that a program sets up, spans are nothing and cost
nothing. Names follow OpenTelemetry's conventions for generative AI where there are some
(https://opentelemetry.io/docs/specs/semconv/gen-ai/).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

from hexprefect.completion import Complete, Completion, Prompt

_LONGEST_TEXT = 1000
_NANOSECONDS = 1_000_000_000


def _tracer() -> trace.Tracer:
    return trace.get_tracer("hexprefect")


@contextmanager
def query_span(*, question: str, database: str, tenant: str) -> Iterator[Span]:
    """The span of one question, under which those of its calls stand."""
    attributes = {
        "hexprefect.question": question[:_LONGEST_TEXT],
        "hexprefect.database": database,
        "hexprefect.tenant": tenant,
    }
    with _tracer().start_as_current_span("hexprefect.query", attributes=attributes) as span:
        yield span


def end_query_span(span: Span, record: Mapping[str, Any]) -> None:
    """Enter how the question ended: the answer record without its rows."""
    span.set_attributes(
        {
            "hexprefect.query_id": record["query_id"] or "",
            "hexprefect.state": record["state"],
            "hexprefect.elapsed_s": record["elapsed_s"],
            "hexprefect.slo_met": record["met_slo"],
            "hexprefect.rows": len(record["rows"]),
        }
    )
    if record["slo_s"] is not None:
        span.set_attribute("hexprefect.slo_s", record["slo_s"])
    if record["alpha"] is not None:
        span.set_attribute("hexprefect.alpha", record["alpha"])
    if record["sql"]:
        span.set_attribute("db.query.text", record["sql"][:_LONGEST_TEXT])
    if record["error"]:
        span.set_status(Status(StatusCode.ERROR, record["error"][:_LONGEST_TEXT]))


def traced(complete: Complete, *, now: Callable[[], float] = time.time) -> Complete:
    """The same, with a span for each call and, beneath it, one for waiting and one for running.

    Args:
        complete: serves a prompt.
        now: epoch seconds.
    """

    async def with_span(prompt: Prompt) -> Completion:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.max_tokens": prompt.max_output_tokens,
            "gen_ai.request.temperature": prompt.temperature,
            "hexprefect.stage": prompt.stage,
        }
        if prompt.branch is not None:
            attributes["hexprefect.branch"] = prompt.branch
        with _tracer().start_as_current_span(
            f"hexprefect.call {prompt.stage}", attributes=attributes
        ) as span:
            completion = await complete(prompt)
            if span.is_recording():
                _enter(span, completion, now())
            return completion

    return with_span


def _enter(span: Span, completion: Completion, ended_at: float) -> None:
    span.set_attributes(
        {
            "gen_ai.usage.input_tokens": completion.input_tokens,
            "gen_ai.usage.output_tokens": completion.output_tokens,
            "gen_ai.response.finish_reasons": (completion.finish_reason,),
            "hexprefect.cached_tokens": completion.cached_tokens,
            "hexprefect.instance": completion.instance,
            "hexprefect.request_id": completion.request_id,
            "hexprefect.attempt": completion.attempt,
        }
    )
    # The call is over when its parts are known: they are entered with the times that they had.
    started_at = ended_at - completion.ran_s
    ready_at = started_at - completion.waited_s
    for name, since, until in (
        ("hexprefect.wait", ready_at, started_at),
        ("hexprefect.run", started_at, ended_at),
    ):
        part = _tracer().start_span(
            name,
            start_time=round(since * _NANOSECONDS),
            attributes={"hexprefect.instance": completion.instance},
        )
        part.end(round(until * _NANOSECONDS))
