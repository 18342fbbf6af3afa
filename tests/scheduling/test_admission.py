"""Law 4: the first in order that fits starts; who is passed over is not passed over for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hexprefect.scheduling import Waiting, admit, queue_order

requests = st.lists(
    st.builds(
        Waiting,
        id=st.integers(0, 10_000).map(str),
        order_key=st.floats(-1e3, 1e3),
        ready_at=st.floats(0, 1e3),
        kv_tokens=st.integers(1, 100),
        passed_over=st.integers(0, 10),
    ),
    max_size=20,
    unique_by=lambda request: request.id,
).map(lambda found: sorted(found, key=queue_order))


@given(requests, st.integers(-1, 10))
def test_without_a_memory_limit_the_head_of_the_queue_starts(
    waiting: list[Waiting], slots: int
) -> None:
    admission = admit(waiting, free_slots=slots, free_kv_tokens=None)
    assert admission.admitted == tuple(request.id for request in waiting[: max(0, slots)])
    assert admission.passed_over == ()


@given(requests, st.integers(0, 10), st.integers(0, 300))
def test_slots_and_memory_are_never_exceeded(waiting: list[Waiting], slots: int, free: int) -> None:
    admission = admit(waiting, free_slots=slots, free_kv_tokens=free)
    sizes = {request.id: request.kv_tokens for request in waiting}
    assert len(admission.admitted) <= slots
    assert sum(sizes[admitted] for admitted in admission.admitted) <= free


@given(requests, st.integers(1, 10), st.integers(0, 300), st.integers(0, 8))
def test_nobody_is_overtaken_by_one_that_came_after_while_it_fitted(
    waiting: list[Waiting], slots: int, free: int, patience: int
) -> None:
    admission = admit(waiting, free_slots=slots, free_kv_tokens=free, patience=patience)
    left = free
    overtaken: list[Waiting] = []
    times: dict[str, int] = {}
    for request in waiting:
        if request.id in admission.admitted:
            for earlier in overtaken:
                assert earlier.kv_tokens > left, "it fitted and was passed over"
                times[earlier.id] = times.get(earlier.id, 0) + 1
            left -= request.kv_tokens
        else:
            overtaken.append(request)
    assert times == {name: admission.passed_over.count(name) for name in admission.passed_over}
    for request in waiting:
        allowed = max(0, patience - request.passed_over)
        assert times.get(request.id, 0) <= allowed, "it was overtaken beyond patience"


@given(st.integers(2, 12), st.integers(0, 8), st.integers(1, 4))
def test_a_large_request_starts_although_small_ones_never_stop_coming(
    large: int, patience: int, slots: int
) -> None:
    """A large request at the head, an endless stream of small ones: it starts in bounded time."""
    memory = large
    starved = Waiting("large", order_key=0.0, ready_at=0.0, kv_tokens=large)
    running: list[int] = [1] * min(slots, memory)
    overtaken = 0
    for round_ in range(3 * (patience + memory + slots)):
        if running:
            running.pop(0)
        small = [
            Waiting(f"small-{round_}-{index}", order_key=1.0, ready_at=1.0, kv_tokens=1)
            for index in range(slots)
        ]
        admission = admit(
            [starved, *small],
            free_slots=slots - len(running),
            free_kv_tokens=memory - sum(running),
            patience=patience,
        )
        if "large" in admission.admitted:
            assert overtaken <= patience
            return
        running += [1] * len(admission.admitted)
        overtaken += admission.passed_over.count("large")
        starved = Waiting(
            "large", order_key=0.0, ready_at=0.0, kv_tokens=large, passed_over=overtaken
        )
    raise AssertionError("the large request was passed over for ever")


def test_ties_are_broken_by_readiness_and_then_by_id() -> None:
    waiting = [
        Waiting("b", order_key=1.0, ready_at=2.0, kv_tokens=1),
        Waiting("a", order_key=1.0, ready_at=2.0, kv_tokens=1),
        Waiting("c", order_key=1.0, ready_at=1.0, kv_tokens=1),
    ]
    waiting.sort(key=queue_order)
    assert admit(waiting, free_slots=3, free_kv_tokens=None).admitted == ("c", "a", "b")


def test_a_smaller_one_may_pass_one_that_does_not_fit() -> None:
    large = Waiting("large", order_key=0.0, ready_at=0.0, kv_tokens=90)
    small = Waiting("small", order_key=1.0, ready_at=0.0, kv_tokens=10)
    admission = admit([large, small], free_slots=2, free_kv_tokens=50)
    assert admission.admitted == ("small",)
    assert admission.passed_over == ("large",)
