"""The engine against what vLLM does, and against arithmetic that a person can do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexprefect.instances.emulator.blocks import BLOCK_TOKENS, BlockPool
from hexprefect.instances.emulator.engine import Engine, EngineOptions, Sequence
from hexprefect.scheduling.cost import Profile

PROFILE = Profile("test", fixed_s=0.5, input_s_per_token=0.01, output_s_per_token=0.1)


def engine(kv_tokens: int = 100_000, profile: Profile = PROFILE, **options: object) -> Engine:
    settings = {"attention_s_per_context_token": 0.0, **options}
    return Engine(profile, kv_tokens=kv_tokens, options=EngineOptions(**settings))  # type: ignore[arg-type]


def run_out(subject: Engine) -> list[Sequence]:
    """Run until idle; returns what finished, in order."""
    finished: list[Sequence] = []
    while (at := subject.next_at) is not None:
        finished += subject.advance(at)
    return finished


def test_a_request_alone_takes_exactly_what_its_profile_says() -> None:
    subject = engine()
    alone = Sequence(prompt_tokens=300, output_tokens=50)
    subject.submit(alone, 2.0)
    run_out(subject)
    assert alone.finished_at == pytest.approx(2.0 + 0.5 + 0.01 * 300 + 0.1 * 50)
    assert alone.first_token_at == pytest.approx(2.0 + 0.5 + 0.01 * 300 + 0.1)


def test_a_long_prompt_is_computed_in_chunks_and_still_costs_the_same() -> None:
    subject = engine(max_num_batched_tokens=128)
    alone = Sequence(prompt_tokens=1000, output_tokens=5)
    subject.submit(alone, 0.0)
    run_out(subject)
    assert alone.finished_at == pytest.approx(0.5 + 10.0 + 0.5)


def test_the_batch_slows_each_of_its_sequences_by_its_growth() -> None:
    growing = Profile("test", 0.0, 0.0, 0.1, batch_growth=0.5)
    subject = engine(profile=growing)
    pair = [Sequence(prompt_tokens=16, output_tokens=10) for _ in range(2)]
    for sequence in pair:
        subject.submit(sequence, 0.0)
    run_out(subject)
    # The first begins alone: one step of 0.1, then nine with two sequences, 0.15 each.
    assert pair[0].finished_at == pytest.approx(0.1 + 9 * 0.15)


def test_one_slot_serves_the_lowest_priority_first_and_ties_by_arrival() -> None:
    subject = engine(max_num_seqs=1)
    sequences = [
        Sequence(prompt_tokens=16, output_tokens=4, priority=priority)
        for priority in (5, 1, 3, -2, 0, 9, 1, -2)
    ]
    subject.submit(Sequence(prompt_tokens=16, output_tokens=50, priority=100), 0.0)
    for sequence in sequences:
        subject.submit(sequence, 0.1)
    order = run_out(subject)
    assert order[0].priority == 100, "a running request is never preempted for a slot"
    assert [s.priority for s in order[1:]] == [-2, -2, 0, 1, 1, 3, 5, 9]
    assert order[1] is sequences[3]
    assert order[2] is sequences[7]


def test_fcfs_ignores_priorities() -> None:
    subject = engine(max_num_seqs=1, scheduling_policy="fcfs")
    sequences = [Sequence(prompt_tokens=16, output_tokens=2, priority=p) for p in (5, -1, 0)]
    for sequence in sequences:
        subject.submit(sequence, 0.0)
    assert run_out(subject) == sequences


def test_a_prompt_that_does_not_fit_holds_up_those_behind_it() -> None:
    subject = engine(kv_tokens=64 * BLOCK_TOKENS)
    running = Sequence(prompt_tokens=40 * BLOCK_TOKENS - 20, output_tokens=10)
    large = Sequence(prompt_tokens=40 * BLOCK_TOKENS, output_tokens=2)
    small = Sequence(prompt_tokens=16, output_tokens=2)
    for sequence in (running, large, small):
        subject.submit(sequence, 0.0)
    assert run_out(subject)[0] is running
    assert small.first_scheduled_at == pytest.approx(running.finished_at)


def test_out_of_memory_the_least_urgent_is_preempted_and_computed_again() -> None:
    subject = engine(kv_tokens=10 * BLOCK_TOKENS)
    lax = Sequence(prompt_tokens=60, output_tokens=40, priority=9)
    urgent = Sequence(prompt_tokens=60, output_tokens=60, priority=1)
    subject.submit(lax, 0.0)
    subject.submit(urgent, 0.0)
    finished = run_out(subject)
    assert finished == [urgent, lax]
    assert (urgent.preemptions, lax.preemptions) == (0, 1)
    assert subject.counters.preemptions == 1
    assert lax.generated == 40


def test_among_equals_the_latest_arrival_is_preempted() -> None:
    subject = engine(kv_tokens=10 * BLOCK_TOKENS)
    first = Sequence(prompt_tokens=60, output_tokens=60)
    second = Sequence(prompt_tokens=60, output_tokens=60)
    subject.submit(first, 0.0)
    subject.submit(second, 0.0)
    run_out(subject)
    assert (first.preemptions, second.preemptions) == (0, 1)


def test_admission_leaves_running_sequences_room_to_grow() -> None:
    subject = engine(kv_tokens=100 * BLOCK_TOKENS, watermark=0.1)
    running = Sequence(prompt_tokens=45 * BLOCK_TOKENS, output_tokens=20)
    beside = Sequence(prompt_tokens=46 * BLOCK_TOKENS, output_tokens=20)
    subject.submit(running, 0.0)
    subject.submit(beside, 0.0)
    run_out(subject)
    assert beside.first_scheduled_at == pytest.approx(running.finished_at)
    assert subject.counters.preemptions == 0


def test_a_shared_beginning_is_computed_once() -> None:
    subject = engine()
    schema = tuple(range(1, 11))
    first = Sequence(prompt_tokens=200, output_tokens=2, block_hashes=(*schema, 100, 101))
    second = Sequence(prompt_tokens=200, output_tokens=2, block_hashes=(*schema, 200, 201))
    subject.submit(first, 0.0)
    run_out(subject)
    subject.submit(second, 100.0)
    run_out(subject)
    assert (first.cached_tokens, second.cached_tokens) == (0, 160)
    assert second.finished_at == pytest.approx(100.0 + 0.5 + 0.01 * 40 + 0.1 * 2)
    assert (subject.counters.prefix_queries, subject.counters.prefix_hits) == (400, 160)


def test_the_last_token_of_a_cached_prompt_is_computed_all_the_same() -> None:
    subject = engine()
    for start in (0.0, 100.0):
        sequence = Sequence(prompt_tokens=32, output_tokens=1, block_hashes=(1, 2))
        subject.submit(sequence, start)
        run_out(subject)
    assert sequence.cached_tokens == 16


def test_the_least_recently_used_prefix_is_evicted() -> None:
    subject = engine(kv_tokens=6 * BLOCK_TOKENS)
    for start, hashes in enumerate([(1, 2), (3, 4), (1, 2), (5, 6)]):
        sequence = Sequence(prompt_tokens=33, output_tokens=1, block_hashes=hashes)
        subject.submit(sequence, 100.0 * start)
        run_out(subject)
    assert subject.blocks.cached_blocks((1, 2)) == 2
    assert subject.blocks.cached_blocks((3, 4)) == 1, "its end goes first"


def test_without_prefix_caching_nothing_is_shared() -> None:
    subject = engine(prefix_caching=False)
    for start in (0.0, 100.0):
        sequence = Sequence(prompt_tokens=33, output_tokens=1, block_hashes=(1, 2))
        subject.submit(sequence, start)
        run_out(subject)
    assert sequence.cached_tokens == 0


def test_an_arrival_joins_at_the_next_step_boundary() -> None:
    subject = engine(profile=Profile("test", 0.0, 0.0, 1.0))
    subject.submit(Sequence(prompt_tokens=16, output_tokens=100), 0.0)
    subject.advance(10.3)
    late = Sequence(prompt_tokens=16, output_tokens=1)
    subject.submit(late, 10.3)
    subject.advance(11.0)
    assert late.first_scheduled_at == pytest.approx(11.0)


def test_an_abort_frees_slot_and_blocks_within_a_step() -> None:
    subject = engine(profile=Profile("test", 0.0, 0.0, 1.0), max_num_seqs=1)
    dropped = Sequence(prompt_tokens=160, output_tokens=1000)
    waiting = Sequence(prompt_tokens=16, output_tokens=1)
    never = Sequence(prompt_tokens=16, output_tokens=1)
    for sequence in (dropped, waiting, never):
        subject.submit(sequence, 0.0)
    subject.advance(5.5)
    subject.abort(never, 5.5)
    subject.abort(dropped, 5.5)
    assert run_out(subject) == [waiting]
    assert waiting.first_scheduled_at == pytest.approx(6.0)
    assert subject.blocks.used == 0
    assert (subject.running, subject.waiting) == (0, 0)


def test_slowing_down_stretches_the_steps_that_remain() -> None:
    subject = engine(profile=Profile("test", 0.0, 0.0, 1.0))
    sequence = Sequence(prompt_tokens=16, output_tokens=10)
    subject.submit(sequence, 0.0)
    subject.advance(4.5)
    subject.slow_down(3.0, 4.5)
    run_out(subject)
    assert sequence.finished_at == pytest.approx(5.0 + 3.0 * 5)


def test_tokens_are_told_while_they_come() -> None:
    subject = engine(profile=Profile("test", 0.0, 0.0, 1.0))
    sequence = Sequence(prompt_tokens=16, output_tokens=10)
    subject.submit(sequence, 0.0)
    subject.advance(4.5)
    assert subject.generated(sequence, 4.5) == 4


def test_what_cannot_run_even_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="KV memory"):
        engine(kv_tokens=160).submit(Sequence(prompt_tokens=150, output_tokens=20), 0.0)


workloads = st.lists(
    st.tuples(
        st.floats(0, 20),
        st.integers(1, 150),
        st.integers(1, 60),
        st.integers(-3, 3),
        st.integers(0, 3),
        st.one_of(st.none(), st.floats(0, 5)),
    ),
    min_size=1,
    max_size=25,
)


def play(
    workload: list[tuple[float, int, int, int, int, float | None]], subject: Engine
) -> list[Sequence]:
    """Submit and abort as the workload says, checking the memory at each event."""
    actions: list[tuple[float, int, str, Sequence]] = []
    for number, (at, prompt, output, priority, family, leaves) in enumerate(workload):
        hashes = tuple(family * 1000 + n for n in range(prompt // BLOCK_TOKENS))
        sequence = Sequence(
            prompt_tokens=prompt, output_tokens=output, priority=priority, block_hashes=hashes
        )
        actions.append((at, number, "submit", sequence))
        if leaves is not None:
            actions.append((at + leaves, number, "abort", sequence))
    sequences = []
    for at, _, action, sequence in sorted(actions, key=lambda a: (a[0], a[1], a[2] == "abort")):
        while (due := subject.next_at) is not None and due <= at:
            subject.advance(due)
            check_memory(subject)
        if action == "submit":
            subject.submit(sequence, at)
            sequences.append(sequence)
        elif sequence.finished_at is None:
            subject.abort(sequence, at)
        check_memory(subject)
    while (due := subject.next_at) is not None:
        subject.advance(due)
        check_memory(subject)
    return sequences


def check_memory(subject: Engine) -> None:
    assert 0 <= subject.blocks.used <= subject.blocks.total
    assert subject.running <= subject.options.max_num_seqs


@settings(max_examples=150)
@given(
    workloads,
    st.sampled_from(["priority", "fcfs"]),
    st.integers(1, 5),
    st.sampled_from([224, 400, 5000]),
    st.sampled_from([32, 2048]),
)
def test_every_sequence_ends_and_nothing_stays_behind(
    workload: list[tuple[float, int, int, int, int, float | None]],
    policy: str,
    slots: int,
    kv_tokens: int,
    budget: int,
) -> None:
    subject = engine(
        kv_tokens,
        scheduling_policy=policy,
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        attention_s_per_context_token=1e-4,
    )
    for sequence in play(workload, subject):
        assert sequence.aborted or sequence.finished_at is not None
        if sequence.finished_at is not None:
            assert sequence.generated == sequence.output_tokens
            computed = sequence.prompt_tokens - sequence.cached_tokens
            alone = PROFILE.fixed_s + 0.01 * computed + 0.1 * sequence.output_tokens
            assert sequence.finished_at - sequence.arrived_at >= alone - 1e-6
    assert (subject.running, subject.waiting, subject.blocks.used) == (0, 0, 0)


@settings(max_examples=60)
@given(workloads, st.lists(st.floats(0, 40), max_size=30))
def test_how_often_the_engine_is_looked_at_changes_nothing(
    workload: list[tuple[float, int, int, int, int, float | None]], looks: list[float]
) -> None:
    def times(moments: list[float]) -> list[tuple[float | None, float | None]]:
        subject = engine(400, max_num_seqs=3)
        sequences = []
        steps = [(at, None) for at in moments]
        steps += [(at, (prompt, output, p)) for at, prompt, output, p, _, _ in workload]  # type: ignore[misc]
        for at, work in sorted(steps, key=lambda step: step[0]):
            subject.advance(at)
            if work is not None:
                sequence = Sequence(prompt_tokens=work[0], output_tokens=work[1], priority=work[2])
                subject.submit(sequence, at)
                sequences.append(sequence)
        run_out(subject)
        return [(s.first_token_at, s.finished_at) for s in sequences]

    for seen, unseen in zip(times(looks), times([]), strict=True):
        assert seen == pytest.approx(unseen)


def test_blocks_in_use_by_two_are_freed_with_the_last() -> None:
    pool = BlockPool(10)
    pool.take_prompt((1, 2), 3)
    pool.take_prompt((1, 2), 3)
    assert pool.used == 4
    pool.give_back((1, 2), 3)
    assert pool.used == 3
    pool.give_back((1, 2), 3)
    assert (pool.used, pool.cached_blocks((1, 2))) == (0, 2)
