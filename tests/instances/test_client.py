"""The client against real sockets: what is sent, what comes of each answer, when it gives up."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from pydantic import SecretStr

from hexprefect.completion import Message, Prompt
from hexprefect.instances.answers import error_for
from hexprefect.instances.client import ClientLimits, InstanceClient
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.errors import (
    InstanceRefused,
    InstanceTimeout,
    InstanceUnavailable,
    PromptRejected,
)


async def test_sends_the_prompt_and_reads_text_and_usage(serve, client, prompt, chat_answer):
    async with serve(lambda exchange: exchange.answer(chat_answer)) as server:
        completion = await client.complete(server.endpoint(), prompt, timeout_s=5)

    [request] = server.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.body == {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "You write SQL."},
            {"role": "user", "content": "How many singers?"},
        ],
        "max_tokens": 32,
        "temperature": 0.0,
    }
    assert completion.text == "SELECT 6"
    assert (completion.input_tokens, completion.output_tokens) == (40, 3)
    assert completion.cached_tokens == 32
    assert completion.instance == "scripted"
    assert completion.request_id == "chatcmpl-1"
    assert completion.ran_s > 0


async def test_llama_cpp_tells_its_cache_hits_in_its_timings(serve, client, prompt, chat_answer):
    del chat_answer["usage"]["prompt_tokens_details"]
    chat_answer["timings"] = {"cache_n": 21, "prompt_ms": 5.0}
    async with serve(lambda exchange: exchange.answer(chat_answer)) as server:
        completion = await client.complete(server.endpoint(speaks="llama.cpp"), prompt, timeout_s=5)
    assert completion.cached_tokens == 21
    assert completion.extra["timings"]["prompt_ms"] == 5.0


@pytest.mark.parametrize(
    ("speaks", "sent"), [("vllm", True), ("llama.cpp", False), ("openai", False)]
)
async def test_priority_is_sent_as_an_integer_to_vllm_only(
    serve, client, prompt, chat_answer, speaks, sent
):
    async with serve(lambda exchange: exchange.answer(chat_answer)) as server:
        await client.complete(server.endpoint(speaks=speaks), prompt, timeout_s=5, priority=-3)
    assert server.requests[0].body.get("priority") == (-3 if sent else None)


async def test_the_key_is_sent_and_a_base_url_may_end_in_v1(serve, client, prompt, chat_answer):
    async with serve(lambda exchange: exchange.answer(chat_answer)) as server:
        endpoint = server.endpoint(url=server.url + "/v1/", api_key=SecretStr("sk-1"))
        await client.complete(endpoint, prompt, timeout_s=5)
    assert server.requests[0].headers["authorization"] == "Bearer sk-1"
    assert server.requests[0].path == "/v1/chat/completions"


TOO_LONG_VLLM = {
    "error": {
        "message": "This model's maximum context length is 2048 tokens. However, your request "
        "has 2500 input tokens. Please reduce the length of the input messages.",
        "type": "BadRequestError",
        "param": "input_tokens",
        "code": 400,
    }
}
TOO_LONG_LLAMA = {
    "error": {
        "code": 400,
        "message": "the request exceeds the available context size, try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 2500,
        "n_ctx": 2048,
    }
}


@pytest.mark.parametrize("body", [TOO_LONG_VLLM, TOO_LONG_LLAMA], ids=["vllm", "llama.cpp"])
async def test_too_long_a_prompt_says_how_long_it_was(serve, client, prompt, body):
    async with serve(lambda exchange: exchange.answer(body, 400)) as server:
        with pytest.raises(PromptRejected) as caught:
            await client.complete(server.endpoint(), prompt, timeout_s=5)
    assert caught.value.too_long
    assert (caught.value.n_prompt_tokens, caught.value.n_ctx) == (2500, 2048)
    assert "Shorten the prompt" in str(caught.value)


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, PromptRejected, "rejected"),
        (404, PromptRejected, "rejected"),
        (413, PromptRejected, "rejected"),
        (422, PromptRejected, "rejected"),
        (401, InstanceRefused, "unauthorised"),
        (403, InstanceRefused, "unauthorised"),
        (429, InstanceUnavailable, "overloaded"),
        (500, InstanceUnavailable, "unavailable"),
        (502, InstanceUnavailable, "unavailable"),
        (503, InstanceUnavailable, "unavailable"),
        (302, InstanceUnavailable, "unavailable"),
    ],
)
async def test_each_status_becomes_the_error_that_says_what_to_do(
    serve, client, prompt, status, error, kind
):
    body = {"error": {"message": "no", "type": "SomeError", "param": None, "code": status}}
    async with serve(lambda exchange: exchange.answer(body, status)) as server:
        with pytest.raises(error) as caught:
            await client.complete(server.endpoint(), prompt, timeout_s=5)
    assert caught.value.instance == "scripted"
    assert caught.value.status == status
    assert caught.value.kind == kind
    assert "scripted" in str(caught.value)
    assert len(server.requests) == 1, "an answer is an answer: no retry"


@pytest.mark.parametrize(
    ("headers", "retry_after_s"),
    [
        ({"retry-after": "7"}, 7.0),
        (
            {
                "retry-after": "Wed, 02 Dec 2026 10:00:30 GMT",
                "date": "Wed, 02 Dec 2026 10:00:00 GMT",
            },
            30.0,
        ),
        ({"retry-after": "Wed, 02 Dec 2020 10:00:30 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_who_says_when_to_come_back_sheds_load(status, headers, retry_after_s):
    endpoint = Endpoint("a", "http://h:1", "m")
    error = error_for(endpoint, status, b"busy", headers)
    assert (error.kind, error.movable) == ("overloaded", True)
    assert error.retry_after_s == retry_after_s
    assert error_for(endpoint, 503, b"busy").kind == "unavailable"


def test_a_redirection_says_where_to_and_no_password():
    endpoint = Endpoint("a", "http://h:1", "m")
    error = error_for(endpoint, 307, b"", {"location": "https://user:pass-1@h/v1"})
    assert "https://user:***@h/v1 (307)" in str(error)
    assert "engine may have died" not in str(error)


async def test_a_key_that_the_server_echoes_does_not_reach_the_error(serve, client, prompt):
    body = {"error": {"message": "Incorrect API key provided: sk-secret."}}
    async with serve(lambda exchange: exchange.answer(body, 401)) as server:
        endpoint = server.endpoint(api_key=SecretStr("sk-secret"))
        with pytest.raises(InstanceRefused) as caught:
            await client.complete(endpoint, prompt, timeout_s=5)
    assert "sk-secret" not in str(caught.value)
    assert "sk-secret" not in repr(endpoint)


@pytest.mark.parametrize("before", range(580, 600))
async def test_no_part_of_an_echoed_key_is_left_where_the_message_is_cut(
    serve, client, prompt, before
):
    body = {"error": {"message": "x" * before + " key sk-secret-1"}}
    async with serve(lambda exchange: exchange.answer(body, 500)) as server:
        endpoint = server.endpoint(api_key=SecretStr("sk-secret-1"))
        with pytest.raises(InstanceUnavailable) as caught:
            await client.complete(endpoint, prompt, timeout_s=5)
    assert "sk" not in str(caught.value)


async def test_half_a_character_in_a_prompt_does_not_end_the_request(serve, client, chat_answer):
    """A surrogate without its other half: a database may hold one, and no UTF-8 can."""
    prompt = Prompt(stage="ask", messages=(Message("user", "caf\u00e9 \ud800!"),))
    async with serve(lambda exchange: exchange.answer(chat_answer)) as server:
        await client.complete(server.endpoint(), prompt, timeout_s=5)
    assert server.requests[0].body["messages"][0]["content"] == "caf\u00e9 ?!"
    assert server.requests[0].headers["content-type"] == "application/json"


async def test_a_proxys_page_is_not_taken_for_an_answer(serve, client, prompt):
    async with serve(
        lambda exchange: exchange.answer(b"<html>welcome</html>", kind="text/html")
    ) as server:
        with pytest.raises(InstanceUnavailable, match="OpenAI protocol"):
            await client.complete(server.endpoint(), prompt, timeout_s=5)


@pytest.mark.parametrize(
    ("odd", "usage"),
    [
        ({"usage": ["no object"]}, 0),
        ({"usage": {"prompt_tokens": "many", "prompt_tokens_details": 3}}, 0),
        ({"usage": {"prompt_tokens": 40.0}, "timings": "fast", "metrics": []}, 40),
    ],
)
async def test_odd_figures_do_not_spoil_an_answer(serve, client, prompt, chat_answer, odd, usage):
    async with serve(lambda exchange: exchange.answer({**chat_answer, **odd})) as server:
        completion = await client.complete(server.endpoint(), prompt, timeout_s=5)
    assert (completion.text, completion.input_tokens) == ("SELECT 6", usage)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("half \ud83d", "half \N{REPLACEMENT CHARACTER}"),
        (
            [{"type": "thinking", "thinking": [{}]}, {"type": "text", "text": "SELECT 6"}],
            "SELECT 6",
        ),
    ],
)
async def test_content_is_read_in_each_of_its_shapes(
    serve, client, prompt, chat_answer, content, text
):
    chat_answer["choices"][0]["message"]["content"] = content
    async with serve(lambda exchange: exchange.answer(chat_answer)) as server:
        completion = await client.complete(server.endpoint(), prompt, timeout_s=5)
    assert completion.text == text


@pytest.mark.parametrize(
    "choice", ["text", {"message": {"content": {"no": "text"}}}, {"message": 1}]
)
async def test_an_answer_of_another_shape_is_the_instances_fault(
    serve, client, prompt, chat_answer, choice
):
    chat_answer["choices"] = [choice]
    async with serve(lambda exchange: exchange.answer(chat_answer)) as server:
        with pytest.raises(InstanceUnavailable, match="OpenAI protocol"):
            await client.complete(server.endpoint(), prompt, timeout_s=5)


@pytest.mark.parametrize("choice", ["text", {"delta": "text"}, {"delta": {"content": 7}}])
async def test_an_event_of_another_shape_is_the_instances_fault(serve, client, prompt, choice):
    async def stream(exchange):
        await exchange.begin_stream()
        await exchange.event({"choices": [choice]})
        await exchange.end_stream()

    async with serve(stream) as server:
        with pytest.raises(InstanceUnavailable, match="OpenAI protocol"):
            await client.stream(server.endpoint(), prompt, timeout_s=5)


async def test_a_character_in_two_events_is_one(serve, client, prompt):
    async def stream(exchange):
        await exchange.begin_stream()
        await exchange.event({"choices": [{"delta": {"content": "\ud83d"}}]})
        await exchange.event(
            {"choices": [{"delta": {"content": "\ude00"}, "finish_reason": "stop"}]}
        )
        await exchange.end_stream()

    async with serve(stream) as server:
        assert (await client.stream(server.endpoint(), prompt, timeout_s=5)).text == "😀"


@pytest.mark.parametrize(
    "changes",
    [
        {"usage": [1]},
        {"usage": "40 tokens"},
        {"usage": {"prompt_tokens": "40", "completion_tokens": None}},
        {"usage": {"prompt_tokens": float("inf"), "completion_tokens": float("nan")}},
        {"usage": {"prompt_tokens": -5, "completion_tokens": 10**30}},
        {"usage": {"prompt_tokens": 0, "prompt_tokens_details": [1]}},
        {"usage": None, "timings": "fast", "metrics": 5},
    ],
)
async def test_counts_that_cannot_be_are_not_believed(serve, client, prompt, chat_answer, changes):
    async with serve(lambda exchange: exchange.answer({**chat_answer, **changes})) as server:
        completion = await client.complete(server.endpoint(), prompt, timeout_s=5)
    assert completion.text == "SELECT 6"
    told = (completion.input_tokens, completion.output_tokens, completion.cached_tokens)
    assert told == (0, 0, 0)
    assert not completion.extra


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"message": {"content": ["SELECT 6"]}}]},
        {"choices": [{"message": {"content": 6}}]},
        {"choices": [{"message": "SELECT 6"}]},
        {"choices": [None]},
        b"[" * 200_000,
        b"",
    ],
)
async def test_json_of_another_shape_is_the_instances_failure(serve, client, prompt, body):
    async with serve(lambda exchange: exchange.answer(body)) as server:
        with pytest.raises(InstanceUnavailable, match="something else"):
            await client.complete(server.endpoint(), prompt, timeout_s=5)


async def test_an_errors_body_may_be_anything(serve, client, prompt):
    async with serve(lambda exchange: exchange.answer(b"[" * 200_000, 500)) as server:
        with pytest.raises(InstanceUnavailable):
            await client.complete(server.endpoint(), prompt, timeout_s=5)


@pytest.mark.parametrize("text", [b"<html>a page</html>", b"vllm:num_requests_running many"])
async def test_what_is_no_metrics_is_an_instance_error_like_any(serve, client, text):
    async with serve(lambda exchange: exchange.answer(text, kind="text/plain")) as server:
        with pytest.raises(PromptRejected, match="metrics"):
            await client.load(server.endpoint(), timeout_s=5)


async def test_nothing_listening_is_refused_at_once(client, prompt, serve, chat_answer):
    async with serve(lambda exchange: exchange.answer(chat_answer)) as server:
        endpoint = server.endpoint()
    with pytest.raises(InstanceUnavailable) as caught:
        await client.complete(endpoint, prompt, timeout_s=5)
    assert caught.value.kind == "refused"


async def test_a_hung_server_costs_no_more_than_the_budget(serve, client, prompt):
    async with serve(lambda exchange: exchange.until_the_client_leaves()) as server:
        with pytest.raises(InstanceTimeout) as caught:
            await client.complete(server.endpoint(), prompt, timeout_s=0.3)
    assert caught.value.movable
    assert len(server.requests) == 1, "no retry after a timeout"


async def test_a_trickling_answer_does_not_outlast_the_budget(serve, client, prompt):
    async def trickle(exchange):
        await exchange.begin_stream()
        while True:
            await exchange.event({"choices": [{"delta": {"content": "x"}}]})
            await asyncio.sleep(0.02)

    async with serve(trickle) as server:
        with pytest.raises(InstanceTimeout):
            await client.stream(server.endpoint(), prompt, timeout_s=0.3)


async def test_no_time_left_is_told_without_a_request(serve, client, prompt, chat_answer):
    async with serve(lambda exchange: exchange.answer(chat_answer)) as server:
        with pytest.raises(InstanceTimeout):
            await client.complete(server.endpoint(), prompt, timeout_s=-1)
    assert server.requests == []


async def _die(exchange: Any) -> None:
    exchange.writer.transport.abort()


async def test_a_kept_connection_that_died_is_replaced_once(serve, client, prompt, chat_answer):
    seen: list[int] = []

    async def die_on_second_use(exchange):
        seen.append(exchange.request.connection)
        if seen == [0, 0]:
            await _die(exchange)
        else:
            await exchange.answer(chat_answer)

    async with serve(die_on_second_use) as server:
        await client.complete(server.endpoint(), prompt, timeout_s=5)
        completion = await client.complete(server.endpoint(), prompt, timeout_s=5)
    assert completion.text == "SELECT 6"
    assert seen == [0, 0, 1], "the second try went over a new connection"


async def test_a_new_connection_that_dies_is_not_tried_again(serve, client, prompt):
    async with serve(_die) as server:
        with pytest.raises(InstanceUnavailable) as caught:
            await client.complete(server.endpoint(), prompt, timeout_s=5)
    assert caught.value.kind == "died"
    assert len(server.requests) == 1


async def test_the_one_retry_is_the_last(serve, client, prompt, chat_answer):
    async def die_after_first(exchange):
        if len(server.requests) == 1:
            await exchange.answer(chat_answer)
        else:
            await _die(exchange)

    async with serve(die_after_first) as server:
        await client.complete(server.endpoint(), prompt, timeout_s=5)
        with pytest.raises(InstanceUnavailable):
            await client.complete(server.endpoint(), prompt, timeout_s=5)
    assert len(server.requests) == 3


async def test_a_connection_that_dies_within_the_answer_is_not_tried_again(
    serve, client, prompt, chat_answer
):
    async def die_inside(exchange):
        if len(server.requests) == 1:
            await exchange.answer(chat_answer)
        else:
            exchange.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
            await exchange.writer.drain()
            await asyncio.sleep(0.05)
            await _die(exchange)

    async with serve(die_inside) as server:
        await client.complete(server.endpoint(), prompt, timeout_s=5)
        with pytest.raises(InstanceUnavailable) as caught:
            await client.complete(server.endpoint(), prompt, timeout_s=5)
    assert caught.value.kind == "died"
    assert len(server.requests) == 2


async def test_cancelling_closes_the_connection_so_that_the_server_stops(serve, client, prompt):
    came, left = asyncio.Event(), asyncio.Event()

    async def notice(exchange):
        came.set()
        await exchange.until_the_client_leaves()
        left.set()

    async with serve(notice) as server:
        call = asyncio.create_task(client.complete(server.endpoint(), prompt, timeout_s=60))
        await came.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(left.wait(), 2)


async def test_a_hung_instance_does_not_hold_up_another(serve, prompt, chat_answer):
    limits = ClientLimits(max_connections=4)
    async with (
        InstanceClient(limits=limits) as client,
        serve(lambda exchange: exchange.until_the_client_leaves()) as hung,
        serve(lambda exchange: exchange.answer(chat_answer)) as healthy,
    ):
        stuck = [
            asyncio.create_task(client.complete(hung.endpoint(), prompt, timeout_s=30))
            for _ in range(12)
        ]
        await asyncio.sleep(0.1)
        done = await asyncio.gather(
            *(client.complete(healthy.endpoint(), prompt, timeout_s=5) for _ in range(12))
        )
        assert all(completion.text == "SELECT 6" for completion in done)
        assert not any(task.done() for task in stuck)
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


async def test_hundreds_of_requests_are_in_flight_at_once(serve, client, prompt, chat_answer):
    everybody = asyncio.Event()
    count = 1000

    async def answer_when_all_are_here(exchange):
        if len(server.requests) == count:
            everybody.set()
        await everybody.wait()
        await exchange.answer(chat_answer)

    async with serve(answer_when_all_are_here) as server:
        done = await asyncio.gather(
            *(client.complete(server.endpoint(), prompt, timeout_s=60) for _ in range(count))
        )
    assert len(done) == count


async def test_a_stream_is_collected_with_its_first_token_timed(serve, client, prompt):
    async def stream(exchange):
        assert exchange.request.body["stream_options"] == {"include_usage": True}
        await exchange.begin_stream()
        await exchange.event({"id": "c-1", "choices": [{"delta": {"role": "assistant"}}]})
        await exchange.event({"id": "c-1", "choices": [{"delta": {"content": "SELECT "}}]})
        # Cut in the middle of a character, and with a line separator that JSON need not escape.
        piece = 'data: {"choices":[{"delta":{"content":"\u2028é"},"finish_reason":"stop"}]}\n\n'
        raw = piece.encode()
        cut = raw.index("é".encode()) + 1
        await exchange.send(raw[:cut])
        await asyncio.sleep(0.02)
        await exchange.send(raw[cut:])
        await exchange.event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}})
        await exchange.send(b"data: [DONE]\n\n")
        await exchange.end_stream()

    pieces: list[str] = []
    async with serve(stream) as server:
        completion = await client.stream(
            server.endpoint(), prompt, timeout_s=5, on_text=pieces.append
        )
    assert completion.text == "SELECT \u2028é"
    assert pieces == ["SELECT ", "\u2028é"]
    assert (completion.input_tokens, completion.output_tokens) == (9, 2)
    assert 0 < completion.extra["time_to_first_token_s"] <= completion.ran_s


async def test_an_error_event_is_a_failure_although_done_follows(serve, client, prompt):
    async def engine_dies(exchange):
        await exchange.begin_stream()
        await exchange.event({"choices": [{"delta": {"content": "SELECT"}}]})
        await exchange.event({"error": {"message": "EngineCore died", "code": 500}})
        await exchange.send(b"data: [DONE]\n\n")
        await exchange.end_stream()

    async with serve(engine_dies) as server:
        with pytest.raises(InstanceUnavailable, match="EngineCore died"):
            await client.stream(server.endpoint(), prompt, timeout_s=5)


@pytest.mark.parametrize(
    "event",
    [
        {"choices": ["SELECT"]},
        {"choices": [{"delta": "SELECT"}]},
        {"choices": [{"delta": {"content": 6}}]},
        {"choices": [{"delta": {"content": ["SELECT"]}}]},
        {"choices": 6},
        ["SELECT"],
    ],
)
async def test_an_event_of_another_shape_is_the_instances_failure(serve, client, prompt, event):
    async def behave(exchange: Any) -> None:
        await exchange.begin_stream()
        await exchange.event(event)
        await exchange.end_stream()

    async with serve(behave) as server:
        with pytest.raises(InstanceUnavailable, match="something else"):
            await client.stream(server.endpoint(), prompt, timeout_s=5)


async def test_a_stream_that_ends_without_a_finish_reason_has_died(serve, client, prompt):
    async def cut(exchange):
        await exchange.begin_stream()
        await exchange.event({"choices": [{"delta": {"content": "SELECT"}}]})
        await exchange.end_stream()

    async with serve(cut) as server:
        with pytest.raises(InstanceUnavailable) as caught:
            await client.stream(server.endpoint(), prompt, timeout_s=5)
    assert caught.value.kind == "died"


async def test_health_is_reported_and_never_raised(serve, client):
    loading = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
    async with serve(lambda exchange: exchange.answer(loading, 503)) as server:
        report = await client.health(server.endpoint())
        assert not report.healthy
        assert "Loading model" in report.detail
        assert server.requests[0].path == "/health"
    gone = await client.health(server.endpoint())
    assert (gone.healthy, gone.kind) == (False, "refused")


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_server_without_a_health_route_is_asked_for_its_models(serve, client, status):
    models: list[int] = [200]

    async def behave(exchange: Any) -> None:
        here = exchange.request.path == "/v1/models"
        await exchange.answer({"data": []}, models[0] if here else status)

    async with serve(behave) as server:
        assert (await client.health(server.endpoint())).healthy
        models[0] = 404
        report = await client.health(server.endpoint())
    assert (report.healthy, report.kind) == (False, "rejected"), "it is no model server at all"


@pytest.mark.parametrize(
    ("speaks", "field"), [("vllm", "prompt"), ("llama.cpp", "content"), ("openai", None)]
)
async def test_tokenize_speaks_each_servers_dialect(serve, client, speaks, field):
    async with serve(lambda exchange: exchange.answer({"tokens": [1, 2, 3]})) as server:
        count = await client.tokenize(server.endpoint(speaks=speaks), "how many")
    if field is None:
        assert count is None
        assert server.requests == []
    else:
        assert count == 3
        assert server.requests[0].body[field] == "how many"


async def test_models_are_listed(serve, client):
    async with serve(lambda exchange: exchange.answer({"data": [{"id": "tiny"}]})) as server:
        assert await client.models(server.endpoint()) == ("tiny",)


async def test_the_environments_proxy_is_not_used(
    serve, prompt, chat_answer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with InstanceClient() as client, serve(lambda e: e.answer(chat_answer)) as server:
        assert (await client.complete(server.endpoint(), prompt, timeout_s=5)).text == "SELECT 6"


async def test_connecting_gives_up_long_before_a_long_budget(prompt):
    # A listener that never accepts, with a full backlog, looks like a host that drops packets.
    import socket

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        endpoint = Endpoint("deaf", f"http://127.0.0.1:{deaf.getsockname()[1]}", "tiny")
        started = time.monotonic()
        async with InstanceClient(limits=ClientLimits(connect_timeout_s=0.3)) as client:
            with pytest.raises(InstanceUnavailable) as caught:
                await client.complete(endpoint, prompt, timeout_s=60)
        assert caught.value.kind == "timeout"
        assert time.monotonic() - started < 30
        for filler in fillers:
            filler.close()


async def test_cancelled_and_failed_calls_leave_no_connection_taken(prompt, chat_answer, serve):
    async def answer_every_third(exchange):
        number = len(server.requests)
        if number % 3 == 0:
            await exchange.answer(chat_answer)
        elif number % 3 == 1:
            await _die(exchange)
        else:
            await exchange.until_the_client_leaves()

    limits = ClientLimits(max_connections=5)
    async with serve(answer_every_third) as server, InstanceClient(limits=limits) as client:
        for _ in range(6):
            calls = [
                asyncio.create_task(client.complete(server.endpoint(), prompt, timeout_s=0.3))
                for _ in range(20)
            ]
            for number, call in enumerate(calls):
                if number % 4 == 0:
                    await asyncio.sleep(0.005)
                    call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        server.behaviour = lambda exchange: exchange.answer(chat_answer)
        # All five connections must be there again, at once.
        done = await asyncio.gather(
            *(client.complete(server.endpoint(), prompt, timeout_s=20) for _ in range(20))
        )
    assert {completion.text for completion in done} == {"SELECT 6"}


async def test_closing_the_client_ends_the_calls_in_flight(serve, prompt):
    came = asyncio.Event()

    async def hold(exchange):
        came.set()
        await exchange.until_the_client_leaves()

    async with serve(hold) as server:
        client = InstanceClient()
        call = asyncio.create_task(client.complete(server.endpoint(), prompt, timeout_s=30))
        await came.wait()
        await client.aclose()
        with pytest.raises(InstanceUnavailable):
            await asyncio.wait_for(call, 10)
