"""The engine: exact times, batching, prefix cache, memory."""

from __future__ import annotations

import heapq
import math
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexprefect.scheduling import Profile, RequestSize, completion_seconds
from hexprefect.simulator.engine import Engine
from hexprefect.simulator.engine_values import EngineJob, EngineOptions

PROFILE = Profile("test", 0.014, 0.0003, 0.0215, 0.0013, 100_000)

Prefill = Literal["chunked", "first"]


def serve(engine: Engine, arrivals: list[tuple[float, EngineJob]]) -> list[tuple[float, EngineJob]]:
    """Drive an engine alone: `(moment, job)` of every end, in order."""
    ended: list[tuple[float, EngineJob]] = []
    queue = [(moment, number, job) for number, (moment, job) in enumerate(arrivals)]
    heapq.heapify(queue)
    while queue or engine.next_at < math.inf:
        if queue and queue[0][0] <= engine.next_at:
            moment, _, job = heapq.heappop(queue)
            engine.submit(job, moment)
        else:
            moment = engine.next_at
            ended.extend((moment, job) for job in engine.advance())
    return ended


@pytest.mark.parametrize("prefill", ["chunked", "first"])
@given(inputs=st.integers(1, 20_000), outputs=st.integers(0, 2_000))
def test_a_request_alone_takes_exactly_its_predicted_time(
    prefill: Prefill, inputs: int, outputs: int
) -> None:
    engine = Engine(PROFILE, EngineOptions(prefill=prefill))
    [(end, _)] = serve(engine, [(3.0, EngineJob(inputs, outputs))])
    expected = completion_seconds(RequestSize(inputs, outputs), PROFILE)
    assert end - 3.0 == pytest.approx(expected, rel=1e-9)


def stepwise(
    profile: Profile, options: EngineOptions, arrivals: list[tuple[float, int, int]]
) -> list[float]:
    """The same engine token by token: an independent, slow model of chunked prefill."""
    waiting = sorted(range(len(arrivals)), key=lambda i: (arrivals[i][0], i))
    left = [inputs for _, inputs, _ in arrivals]
    generated = [0] * len(arrivals)
    queue: list[int] = []
    running: list[int] = []
    ends = [0.0] * len(arrivals)
    now = 0.0
    while waiting or queue or running:
        while waiting and arrivals[waiting[0]][0] <= now + 1e-12:
            queue.append(waiting.pop(0))
        if not queue and not running:
            now = arrivals[waiting[0]][0]
            continue
        batch = len(running)
        budget = max(16, options.step_tokens - batch)
        done: list[int] = []
        used = 0
        while queue and used < budget:
            job = queue[0]
            take = min(left[job], budget - used)
            left[job] -= take
            used += take
            if left[job]:
                break
            done.append(queue.pop(0))
        step = profile.input_s_per_token * used + profile.fixed_s * len(done)
        if batch:
            context = sum(arrivals[job][1] + generated[job] for job in running)
            step += profile.output_s_per_token * (1 + profile.batch_growth * (batch - 1))
            step += options.attention_s_per_token * context * (batch - 1) / batch
        now += step
        for job in list(running):
            generated[job] += 1
            if generated[job] >= arrivals[job][2]:
                running.remove(job)
                ends[job] = now
        for job in done:
            if arrivals[job][2]:
                running.append(job)
            else:
                ends[job] = now
    return ends


@settings(max_examples=60)
@given(
    st.lists(
        # Irrational moments: which of two events at one instant comes first is not the question.
        st.tuples(
            st.integers(0, 20_000).map(lambda number: number * math.sqrt(2) / 1000),
            st.integers(1, 6_000),
            st.integers(0, 60),
        ),
        min_size=1,
        max_size=8,
        unique_by=lambda arrival: arrival[0],
    )
)
def test_events_agree_with_a_model_that_steps_token_by_token(
    arrivals: list[tuple[float, int, int]],
) -> None:
    profile = Profile("test", 0.014, 0.0003, 0.0215, 0.0013, None)
    options = EngineOptions()
    jobs = [EngineJob(inputs, outputs) for _, inputs, outputs in arrivals]
    moments = [moment for moment, _, _ in arrivals]
    engine = Engine(profile, options)
    ended = {id(job): end for end, job in serve(engine, list(zip(moments, jobs, strict=True)))}
    expected = stepwise(profile, options, arrivals)
    assert [ended[id(job)] for job in jobs] == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_answers_share_their_steps_and_prompts_do_not() -> None:
    profile = Profile("test", 0.0, 0.001, 0.02, 0.01, None)
    engine = Engine(profile, EngineOptions(prefill="first", attention_s_per_token=0.0))
    ended = serve(engine, [(0.0, EngineJob(1000, 100)), (0.0, EngineJob(1000, 100))])
    # Two prompts of 1 s one after the other, then 100 steps that both share.
    assert [end for end, _ in ended] == pytest.approx([2 + 100 * 0.02 * 1.01] * 2)


def test_a_cached_prefix_is_not_computed_again() -> None:
    engine = Engine(PROFILE, EngineOptions())
    prefix = (("static", 9_000), ("schema", 2_000))
    [(first, _)] = serve(engine, [(0.0, EngineJob(12_000, 10, prefix))])
    [(second, _)] = serve(engine, [(first, EngineJob(12_000, 10, prefix))])
    assert first - (second - first) == pytest.approx(11_000 * PROFILE.input_s_per_token)


def test_an_inner_segment_is_worthless_without_the_outer_one() -> None:
    engine = Engine(PROFILE, EngineOptions())
    serve(engine, [(0.0, EngineJob(5_000, 1, (("a", 1_000), ("schema", 2_000))))])
    job = EngineJob(5_000, 1, (("b", 1_000), ("schema", 2_000)))
    serve(engine, [(100.0, job)])
    assert job.uncached_tokens == 5_000


def test_without_prefix_cache_everything_is_computed() -> None:
    engine = Engine(PROFILE, EngineOptions(prefix_cache=False))
    job = EngineJob(5_000, 1, (("a", 4_000),))
    serve(engine, [(0.0, EngineJob(5_000, 1, (("a", 4_000),))), (100.0, job)])
    assert job.uncached_tokens == 5_000


def test_priority_orders_what_waits_in_the_engine_and_fcfs_does_not() -> None:
    def order(scheduling: Literal["fcfs", "priority"]) -> list[float]:
        engine = Engine(PROFILE, EngineOptions(scheduling=scheduling, slots=1))
        jobs = [EngineJob(100, 10) for _ in range(4)]
        for job, priority in zip(jobs, (0.0, 3.0, 1.0, 2.0), strict=True):
            job.priority = priority
        return [job.priority for _, job in serve(engine, [(0.0, job) for job in jobs])]

    assert order("priority") == [0.0, 1.0, 2.0, 3.0]
    assert order("fcfs") == [0.0, 3.0, 1.0, 2.0]


def test_sequences_that_outgrow_the_memory_are_preempted_and_still_finish() -> None:
    profile = Profile("small", 0.01, 0.0003, 0.02, 0.0, 4_000)
    engine = Engine(profile, EngineOptions())
    ended = serve(engine, [(0.0, EngineJob(1_200, 900)) for _ in range(3)])
    assert len(ended) == 3
    assert engine.preemptions > 0
    assert engine.used_kv_tokens == 0


@settings(max_examples=60)
@given(
    jobs=st.lists(
        st.tuples(
            st.floats(0, 50, allow_nan=False),
            st.integers(1, 3_000),
            st.integers(0, 900),
            st.sampled_from([(), (("a", 400),), (("a", 400), ("b", 300)), (("c", 900),)]),
        ),
        max_size=25,
    ),
    prefill=st.sampled_from(["chunked", "first"]),
    slots=st.integers(1, 8),
)
def test_everything_ends_and_memory_is_never_exceeded(
    jobs: list[tuple[float, int, int, tuple[tuple[str, int], ...]]],
    prefill: Prefill,
    slots: int,
) -> None:
    profile = Profile("small", 0.01, 0.0003, 0.02, 0.001, 6_000)
    engine = Engine(profile, EngineOptions(prefill=prefill, slots=slots))
    arrivals = []
    for moment, inputs, outputs, prefix in jobs:
        shared = sum(tokens for _, tokens in prefix)
        arrivals.append((moment, EngineJob(inputs + shared, outputs, prefix)))
    arrivals.sort(key=lambda arrival: arrival[0])
    ended = []
    pending = list(arrivals)
    while pending or engine.next_at < math.inf:
        if pending and pending[0][0] <= engine.next_at:
            moment, job = pending.pop(0)
            engine.submit(job, moment)
        else:
            ended.extend(engine.advance())
        assert engine.decoding <= slots
        if engine.decoding > 1:
            assert engine.used_kv_tokens <= 6_000
    assert sorted(map(id, ended)) == sorted(id(job) for _, job in arrivals)
    assert engine.idle
    assert engine.used_kv_tokens == engine.cached_total
