"""Spans from question to tokens: one for the query, one for each call, and its waiting and run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace

from hexprefect.completion import Completion, Message, Prompt
from hexprefect.observability import tracing
from hexprefect.observability.tracing import end_query_span, query_span, traced
from hexprefect.orchestration.answer_record import empty_record, failed

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="OpenTelemetry's SDK is not installed")

PROMPT = Prompt("judge", (Message("user", "which?"),), max_output_tokens=9, branch="candidate-1")
DONE = Completion(
    "b", input_tokens=100, output_tokens=7, cached_tokens=60, ran_s=2.0, waited_s=0.5,
    instance="gpu", request_id="r1",
)  # fmt: skip


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[sdk.ReadableSpan]]:
    """Every span that ends, in a provider of the test's own."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(tracing, "_tracer", lambda: provider.get_tracer("test"))

    class Finished(list):  # type: ignore[type-arg]
        def __getitem__(self, name):  # type: ignore[no-untyped-def]
            [found] = [span for span in kept.get_finished_spans() if span.name == name]
            return found

    yield Finished()
    provider.shutdown()


async def complete(prompt: Prompt) -> Completion:
    return DONE


async def test_a_question_is_one_trace_down_to_its_tokens(spans) -> None:
    with query_span(question="How many?", database="shop", tenant="sales") as span:
        completion = await traced(complete, now=lambda: 1000.0)(PROMPT)
        record = empty_record(question="How many?", database="shop", tenant="sales", slo_s=60.0)
        end_query_span(
            span,
            {**record, "state": "answered", "met_slo": True, "sql": "SELECT 1", "alpha": 0.5,
             "query_id": "q1", "rows": [[1]]},
        )  # fmt: skip
    assert completion is DONE
    query, call = spans["hexprefect.query"], spans["hexprefect.call judge"]
    wait, run = spans["hexprefect.wait"], spans["hexprefect.run"]
    assert len({one.context.trace_id for one in (query, call, wait, run)}) == 1
    assert query.parent is None
    assert call.parent.span_id == query.context.span_id
    assert {wait.parent.span_id, run.parent.span_id} == {call.context.span_id}
    assert call.attributes["gen_ai.usage.input_tokens"] == 100
    assert call.attributes["gen_ai.usage.output_tokens"] == 7
    assert call.attributes["hexprefect.cached_tokens"] == 60
    assert call.attributes["hexprefect.instance"] == "gpu"
    assert call.attributes["hexprefect.branch"] == "candidate-1"
    assert query.attributes["hexprefect.slo_met"] is True
    assert query.attributes["db.query.text"] == "SELECT 1"
    seconds = 1_000_000_000
    assert (wait.start_time, wait.end_time) == (997.5 * seconds, 998 * seconds)
    assert (run.start_time, run.end_time) == (998 * seconds, 1000 * seconds)


async def test_a_question_without_an_answer_is_an_error_with_its_reason(spans) -> None:
    record = empty_record(question="?", database="shop", tenant="sales")
    with query_span(question="?", database="shop", tenant="sales") as span:
        end_query_span(span, failed(record, "no instance is alive", "no_answer"))
    found = spans["hexprefect.query"]
    assert found.status.status_code is trace.StatusCode.ERROR
    assert found.status.description == "no instance is alive"


async def test_a_call_that_fails_is_recorded_and_passed_on(spans) -> None:
    async def broken(prompt: Prompt) -> Completion:
        raise ConnectionError("the server hung up")

    with pytest.raises(ConnectionError):
        await traced(broken)(PROMPT)
    found = spans["hexprefect.call judge"]
    assert found.status.status_code is trace.StatusCode.ERROR
    assert found.events[0].attributes["exception.message"] == "the server hung up"


async def test_without_an_sdk_nothing_is_recorded_and_all_works() -> None:
    with query_span(question="?", database="", tenant="") as span:
        assert not span.is_recording()
        assert await traced(complete)(PROMPT) is DONE
