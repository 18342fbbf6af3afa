"""The emulator over HTTP: what a client of vLLM would see."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from hexprefect.completion import Message, Prompt
from hexprefect.errors import CallerMistake
from hexprefect.instances.client import InstanceClient
from hexprefect.instances.emulator import (
    Behind,
    Computed,
    Emulator,
    EngineOptions,
    Fault,
    Filler,
    Replay,
    serve_fleet,
)
from hexprefect.instances.emulator.__main__ import emulator_parser, main, read_cluster
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.errors import (
    InstanceRefused,
    InstanceTimeout,
    InstanceUnavailable,
    PromptRejected,
)
from hexprefect.scheduling.cost import Profile

QUICK = Profile("quick", fixed_s=0.01, input_s_per_token=1e-5, output_s_per_token=1e-3)
SLOW = Profile("slow", fixed_s=0.0, input_s_per_token=0.0, output_s_per_token=0.05)


def ask(text: str = "How many singers?", output_tokens: int = 8) -> Prompt:
    return Prompt("judge", (Message("user", text),), max_output_tokens=output_tokens)


@pytest.fixture
async def client() -> AsyncIterator[InstanceClient]:
    async with InstanceClient() as client:
        yield client


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as http:
        yield http


async def test_it_answers_as_long_as_asked_and_counts_what_it_did(client):
    async with Emulator.serve(profile=QUICK, port=0) as endpoint:
        completion = await client.complete(endpoint, ask("word " * 64, 20), timeout_s=20)
        again = await client.complete(endpoint, ask("word " * 64, 20), timeout_s=20)
        load = await client.load(endpoint)
    assert completion.output_tokens == 20
    assert len(completion.text) == pytest.approx(20 * 3.2, abs=2)
    assert completion.input_tokens == pytest.approx(
        ask("word " * 64).estimated_input_tokens(), abs=8
    )
    assert (completion.cached_tokens, again.cached_tokens) == (0, 96)
    assert load.running == 0
    assert load.kv_usage == 0.0
    assert load.prefix_hits == 96


async def test_a_time_scale_makes_it_faster_and_its_metrics_agree_with_the_clock(client):
    prompt = ask(output_tokens=40)
    async with Emulator(SLOW, time_scale=20) as endpoint:
        completion = await client.complete(endpoint, prompt, timeout_s=20)
    told = completion.extra["metrics"]
    emulated_s = 40 * 0.05 / 20
    assert told["time_to_first_token_ms"] + told["generation_time_ms"] == pytest.approx(
        1000 * emulated_s, rel=1e-3
    )
    assert completion.ran_s >= emulated_s


async def test_a_stream_comes_piece_by_piece_with_usage_at_its_end(client):
    pieces: list[str] = []
    async with Emulator(SLOW, time_scale=2) as endpoint:
        completion = await client.stream(
            endpoint, ask(output_tokens=20), timeout_s=20, on_text=pieces.append
        )
    assert len(pieces) > 3
    assert "".join(pieces) == completion.text
    assert (completion.output_tokens, completion.finish_reason) == (20, "length")
    assert completion.extra["time_to_first_token_s"] < completion.ran_s / 2


async def test_the_other_routes(http):
    async with Emulator(QUICK, model="tiny", max_model_len=2048) as endpoint:
        assert (await http.get(endpoint.route("/health"))).status_code == 200
        assert (await http.get(endpoint.route("/version"))).json() == {"version": "0.32.0"}
        assert (await http.get(endpoint.route("/load"))).json() == {"server_load": 0}
        [card] = (await http.get(endpoint.route("/v1/models"))).json()["data"]
        assert (card["id"], card["max_model_len"]) == ("tiny", 2048)
        metrics = (await http.get(endpoint.route("/metrics"))).text
    for name in (
        "num_requests_running{",
        "num_requests_waiting{",
        "kv_cache_usage_perc{",
        "prefix_cache_queries_total{",
        "prefix_cache_hits_total{",
        "num_preemptions_total{",
        "cache_config_info{",
        "request_queue_time_seconds_bucket{",
        "request_prefill_time_seconds_bucket{",
        "request_decode_time_seconds_bucket{",
        "request_inference_time_seconds_bucket{",
        "time_to_first_token_seconds_bucket{",
        "inter_token_latency_seconds_bucket{",
        "e2e_request_latency_seconds_bucket{",
    ):
        assert f"\nvllm:{name}" in metrics


async def test_too_long_a_prompt_tells_the_client_how_long_it_was(client):
    async with Emulator(QUICK, max_model_len=100) as endpoint:
        with pytest.raises(PromptRejected) as caught:
            await client.complete(endpoint, ask("x" * 3200), timeout_s=20)
    assert caught.value.too_long
    assert caught.value.n_ctx == 100
    # As vLLM, which stops counting one token beyond its context.
    assert caught.value.n_prompt_tokens == 101


async def test_the_key_is_required_where_one_is_set(client):
    async with Emulator(QUICK, api_key="sk-right") as endpoint:
        await client.complete(endpoint, ask(), timeout_s=20)
        wrong = Endpoint("quick", endpoint.url, endpoint.model, SecretStr("sk-wrong"))
        with pytest.raises(InstanceRefused):
            await client.complete(wrong, ask(), timeout_s=20)


async def until(condition, limit_s: float = 20) -> None:
    async with asyncio.timeout(limit_s):
        while not await condition():  # noqa: ASYNC110 (the other side tells only when asked)
            await asyncio.sleep(0.01)


async def test_the_lowest_priority_value_is_served_first(client):
    done: list[int] = []
    emulator = Emulator(SLOW, time_scale=5, options=EngineOptions(max_num_seqs=1))

    async def send(priority: int, tokens: int = 4) -> None:
        await client.complete(endpoint, ask(output_tokens=tokens), timeout_s=90, priority=priority)
        done.append(priority)

    async with emulator as endpoint:
        # So slow that the first one runs until the others wait, however long that takes.
        await emulator.set_fault("slow:100")
        first = asyncio.create_task(send(100, tokens=60))
        await until(lambda: _true(emulator.instance.engine.running == 1))
        sends = [asyncio.create_task(send(priority)) for priority in (5, 1, 3, -2, 9)]
        await until(lambda: _true(emulator.instance.engine.waiting == 5))
        await emulator.set_fault(None)
        await asyncio.gather(first, *sends)
    assert done == [100, -2, 1, 3, 5, 9]


async def _true(value: bool) -> bool:
    return value


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_client_that_leaves_frees_its_slot_and_blocks(client, streaming):
    emulator = Emulator(SLOW)
    async with emulator as endpoint:
        call = client.stream if streaming else client.complete
        leaving = asyncio.create_task(call(endpoint, ask(output_tokens=2000), timeout_s=60))
        await until(lambda: _true(emulator.instance.engine.running == 1))
        leaving.cancel()
        await until(lambda: _true(emulator.instance.engine.running == 0))
        assert emulator.instance.engine.blocks.used == 0
        await until(lambda: _true(emulator.instance.in_flight == 0))


async def test_a_full_queue_sheds_load(client):
    emulator = Emulator(SLOW, options=EngineOptions(max_num_seqs=1), max_num_queued_reqs=2)
    async with emulator as endpoint:
        calls = []
        for number in (1, 2):
            calls.append(
                asyncio.create_task(client.complete(endpoint, ask(output_tokens=500), timeout_s=60))
            )
            await until(lambda n=number: _true(emulator.instance.in_flight == n))
        await until(lambda: _true(emulator.instance.engine.waiting == 1))
        with pytest.raises(InstanceUnavailable) as caught:
            await client.complete(endpoint, ask(), timeout_s=20)
        assert caught.value.kind == "overloaded"
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


# -- faults ------------------------------------------------------------------------------------


async def test_hang_takes_requests_and_stays_healthy(client):
    async with Emulator(QUICK, fault="hang") as endpoint:
        with pytest.raises(InstanceTimeout):
            await client.complete(endpoint, ask(), timeout_s=0.3)
        assert (await client.health(endpoint)).healthy


async def test_error_answers_500_and_can_be_switched_off_over_http(client, http):
    async with Emulator(QUICK, fault="500") as endpoint:
        with pytest.raises(InstanceUnavailable) as caught:
            await client.complete(endpoint, ask(), timeout_s=20)
        assert caught.value.status == 500
        answer = await http.post(endpoint.route("/emulator/fault"), json={"fault": "none"})
        assert answer.json() == {"fault": None}
        assert (await client.complete(endpoint, ask(), timeout_s=20)).text


async def test_a_share_of_requests_fails_the_same_way_each_time(client):
    async def failures() -> list[bool]:
        async with Emulator(QUICK, time_scale=100, fault="error@0.5", seed=3) as endpoint:
            outcomes = []
            for _ in range(12):
                try:
                    await client.complete(endpoint, ask(), timeout_s=20)
                    outcomes.append(False)
                except InstanceUnavailable:
                    outcomes.append(True)
            return outcomes

    once, again = await failures(), await failures()
    assert once == again
    assert 0 < sum(once) < 12


async def test_refuse_closes_the_port_and_it_comes_back(client, http):
    async with Emulator(QUICK) as endpoint:
        await client.complete(endpoint, ask(), timeout_s=20)
        switched = await http.post(
            endpoint.route("/emulator/fault"), json={"fault": "refuse", "for_s": 1.0}
        )
        assert switched.status_code == 200

        async def refused() -> bool:
            return (await client.health(endpoint)).kind == "refused"

        async def back() -> bool:
            return (await client.health(endpoint)).healthy

        await until(refused)
        with pytest.raises(InstanceUnavailable):
            await client.complete(endpoint, ask(), timeout_s=20)
        await until(back)
        assert (await client.complete(endpoint, ask(), timeout_s=20)).text


async def test_refuse_for_ever_cannot_be_asked_for_over_http(http):
    async with Emulator(QUICK) as endpoint:
        answer = await http.post(endpoint.route("/emulator/fault"), json={"fault": "refuse"})
        assert answer.status_code == 400
        nonsense = await http.post(endpoint.route("/emulator/fault"), json={"fault": "sulk"})
        assert nonsense.status_code == 400
        assert "sulk" in nonsense.json()["error"]["message"]


@pytest.mark.parametrize("streaming", [False, True])
async def test_die_breaks_the_connection_within_the_answer(client, streaming):
    async with Emulator(QUICK, fault="die") as endpoint:
        call = client.stream if streaming else client.complete
        with pytest.raises(InstanceUnavailable) as caught:
            await call(endpoint, ask(output_tokens=100), timeout_s=20)
    assert caught.value.kind == "died"


async def test_a_dead_engine_fails_what_runs_and_says_so(client):
    emulator = Emulator(SLOW)
    async with emulator as endpoint:
        whole = asyncio.create_task(
            client.complete(endpoint, ask(output_tokens=2000), timeout_s=60)
        )
        streamed = asyncio.create_task(
            client.stream(endpoint, ask(output_tokens=2000), timeout_s=60)
        )
        await until(lambda: _true(emulator.instance.engine.running == 2))
        await emulator.set_fault("engine-death")
        for call in (whole, streamed):
            with pytest.raises(InstanceUnavailable, match="EngineCore"):
                await call
        assert not (await client.health(endpoint)).healthy


async def test_slow_takes_longer(client):
    emulator = Emulator(SLOW, time_scale=50)
    async with emulator as endpoint:
        usual = await client.complete(endpoint, ask(output_tokens=10), timeout_s=20)
        await emulator.set_fault(Fault("slow", factor=10))
        slow = await client.complete(endpoint, ask(output_tokens=10), timeout_s=20)
    usual_ms = usual.extra["metrics"]["generation_time_ms"]
    assert slow.extra["metrics"]["generation_time_ms"] == pytest.approx(10 * usual_ms)


@pytest.mark.parametrize("text", ["sulk", "slow:0", "slow:x", "slow:nan", "error@2", "error@x"])
def test_a_fault_that_does_not_exist_is_refused(text):
    with pytest.raises(CallerMistake, match="There is no fault"):
        Fault.parse(text)


# -- content -----------------------------------------------------------------------------------


async def test_filler_of_a_given_length(client):
    async with Emulator(QUICK, content=Filler(5)) as endpoint:
        completion = await client.complete(endpoint, ask(output_tokens=100), timeout_s=20)
    assert (completion.output_tokens, completion.finish_reason) == (5, "stop")


async def test_replay_of_recorded_answers(client, tmp_path: Path):
    recorded = tmp_path / "answers.jsonl"
    record = {"prompt": "How many singers?", "answer": "SELECT 6", "note": "a\u2028b"}
    recorded.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
    async with Emulator(QUICK, content=Replay.read(recorded)) as endpoint:
        known = await client.complete(endpoint, ask("How many singers?"), timeout_s=20)
        other = await client.complete(endpoint, ask("How many pets?"), timeout_s=20)
    assert (known.text, known.output_tokens) == ("SELECT 6", 3)
    assert other.text.startswith("SELECT name")


def test_a_recording_that_is_none_is_refused(tmp_path: Path):
    recorded = tmp_path / "answers.jsonl"
    recorded.write_text("{}\n")
    with pytest.raises(CallerMistake, match="Line 1"):
        Replay.read(recorded)


async def test_a_function_answers_and_the_limit_cuts(client):
    content = Computed(lambda generation: str(generation.messages[-1]["content"]) * 50)
    async with Emulator(QUICK, content=content) as endpoint:
        completion = await client.complete(endpoint, ask("abc", output_tokens=10), timeout_s=20)
    assert completion.text == ("abc" * 50)[:32]
    assert completion.finish_reason == "length"


async def test_a_real_server_may_stand_behind(client):
    async with (
        Emulator(QUICK, content=Filler(7)) as real,
        Emulator(SLOW, time_scale=20, content=Behind(client, real)) as endpoint,
    ):
        completion = await client.complete(endpoint, ask(output_tokens=50), timeout_s=20)
    assert completion.output_tokens == 7


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_failure_of_the_server_behind_is_passed_on(client, streaming):
    async with (
        Emulator(QUICK, fault="error") as real,
        Emulator(QUICK, content=Behind(client, real)) as endpoint,
    ):
        call = client.stream if streaming else client.complete
        with pytest.raises(InstanceUnavailable, match="emulated"):
            await call(endpoint, ask(), timeout_s=20)


# -- many --------------------------------------------------------------------------------------


async def test_a_fleet_serves_and_its_speeds_differ(client):
    async with serve_fleet({"h100": 1, "a6000": 2}, time_scale=50) as fleet:
        assert list(fleet) == ["h100-0", "a6000-0", "a6000-1"]
        took = {
            name: (await client.complete(emulator.endpoint, ask(output_tokens=100), timeout_s=20))
            for name, emulator in fleet.items()
        }
    ran = {n: c.extra["metrics"]["generation_time_ms"] for n, c in took.items()}
    assert ran["a6000-0"] == pytest.approx(3.09 * ran["h100-0"], rel=0.01)


async def test_a_fleet_under_load_costs_little_cpu(client):
    # 4 instances, 50 requests a second: what the emulator itself may use of one core.
    async with serve_fleet({"a100": 2, "l40s": 1, "a6000": 1}, time_scale=20) as fleet:
        endpoints = [emulator.endpoint for emulator in fleet.values()]
        await client.complete(endpoints[0], ask(), timeout_s=20)
        started, cpu = time.perf_counter(), time.process_time()
        calls = []
        for number in range(150):
            prompt = ask(f"question {number} " + "word " * 300, 150)
            calls.append(
                asyncio.create_task(client.complete(endpoints[number % 4], prompt, timeout_s=60))
            )
            await asyncio.sleep(0.02)
        await asyncio.gather(*calls)
        used, wall = time.process_time() - cpu, time.perf_counter() - started
    # Client and servers share this process. A core's worth would mean no headroom at all.
    assert used / wall < 0.9, f"{used:.2f} s of CPU in {wall:.2f} s"


def test_a_cluster_is_read_from_text():
    assert read_cluster("a100:2,a6000:1,l40s") == {"a100": 2, "a6000": 1, "l40s": 1}
    for odd in ("a100:two", "a100:0", "a100:²", "a100:99999999"):
        with pytest.raises(CallerMistake, match="cannot be read"):
            read_cluster(odd)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--port", "99999"], "--port"),
        (["--max-num-seqs", "0"], "--max-num-seqs"),
        (["--kv-tokens", "-1"], "--kv-tokens"),
        (["--max-model-len", "x"], "--max-model-len"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(capsys, options, named):
    with pytest.raises(SystemExit) as ended:
        emulator_parser().parse_args(options)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_scale_that_makes_no_sense_is_refused(scale):
    with pytest.raises(CallerMistake, match="time scale"):
        Emulator(QUICK, time_scale=scale)


def test_recorded_answers_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("binary", "missing"):
        with pytest.raises(CallerMistake, match=f"{name} cannot be read"):
            Replay.read(tmp_path / name)


@pytest.mark.parametrize("text", ["", ",", "a100:0", "a100:-1", "a100:²", ":2"])
def test_what_is_no_cluster_is_refused(text):
    with pytest.raises(CallerMistake, match="Write it as"):
        read_cluster(text)


@pytest.mark.parametrize(
    "wrong",
    [
        *(("--port", "99999"), ("--port", "-1"), ("--max-num-seqs", "0")),
        *(("--max-num-batched-tokens", "0"), ("--kv-tokens", "-5"), ("--max-model-len", "0")),
        *(("--output-tokens", "-3"), ("--max-num-queued-reqs", "0"), ("--max-num-seqs", "few")),
    ],
)
def test_what_an_engine_cannot_run_with_is_refused_before_it_starts(wrong, capsys):
    """It would have listened, and answered nothing."""
    with pytest.raises(SystemExit):
        emulator_parser().parse_args(wrong)
    assert wrong[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--time-scale", "nan"), "time scale"),
        (("--time-scale", "inf"), "time scale"),
        (("--replay", "/nowhere"), "cannot be read"),
        (("--cluster", "a100:2", "--port", "8000"), "neither one port"),
        (("--cluster", "a100:2", "--name", "gpu"), "neither one port"),
    ],
)
def test_a_callers_mistake_is_said_without_a_traceback(wrong, said, capsys):
    assert main(wrong) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


async def test_an_answer_as_long_as_is_allowed_fits_into_the_memory(client):
    """Of 100 tokens, 96 are whole blocks."""
    async with Emulator(QUICK, kv_tokens=100) as endpoint:
        completion = await client.complete(endpoint, ask(output_tokens=90), timeout_s=20)
    assert completion.finish_reason == "length"
    assert completion.input_tokens + completion.output_tokens == 96


async def test_a_message_in_parts_is_answered_as_its_text(http, tmp_path: Path):
    recording = tmp_path / "answers.jsonl"
    recording.write_text('{"prompt": "How many?", "answer": "SELECT 6"}\n')
    parts = [{"type": "text", "text": "How "}, {"type": "text", "text": "many?"}]
    body = {"messages": [{"role": "user", "content": parts}]}
    async with Emulator(QUICK, content=Replay.read(recording)) as endpoint:
        answer = await http.post(endpoint.route("/v1/chat/completions"), json=body)
    assert answer.json()["choices"][0]["message"]["content"] == "SELECT 6"


async def test_the_command_line_serves_until_sigterm(client):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hexprefect.instances.emulator", "--profile", "h100"),
        *("--time-scale", "50", "--max-num-seqs", "4", "--output-tokens", "9"),
        *("--with-parent", str(os.getpid())),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            told = json.loads(await process.stdout.readline())
        endpoint = Endpoint(told["name"], told["url"], told["model"])
        completion = await client.complete(endpoint, ask(output_tokens=50), timeout_s=20)
        assert completion.output_tokens == 9
    finally:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            status = await process.wait()
    assert status == 0


async def test_a_server_that_is_stopped_does_not_say_that_it_is_well(http):
    """Not for the tenth of a second either that its end takes: it is to look like a killed one."""
    emulator = Emulator(QUICK)
    endpoint = await emulator.start()
    stopping = asyncio.create_task(emulator.stop())
    await asyncio.sleep(0)
    with pytest.raises(httpx.TransportError):
        await http.get(endpoint.route("/health"))
    await stopping


async def test_a_taken_port_is_named():
    async with Emulator(QUICK) as endpoint:
        port = httpx.URL(endpoint.url).port
        with pytest.raises(CallerMistake, match=f"Port {port}"):
            await Emulator(QUICK, port=port or 0).start()
