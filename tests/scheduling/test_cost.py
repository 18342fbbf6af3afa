"""`t_comp = c + a · uncached input + b(batch) · output`, and what a prefix cache saves of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.scheduling import (
    Profile,
    RequestSize,
    cached_prefix_tokens,
    completion_seconds,
    hold_prefix,
    mean_completion_seconds,
)

profiles = st.builds(
    Profile,
    name=st.just("p"),
    fixed_s=st.floats(0, 10),
    input_s_per_token=st.floats(0, 0.1),
    output_s_per_token=st.floats(0, 0.5),
    batch_growth=st.floats(0, 0.2),
)
sizes = st.builds(
    RequestSize, input_tokens=st.integers(0, 30_000), output_tokens=st.floats(0, 5_000)
)
segments = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 500)), unique_by=lambda s: s[0]
)


@given(sizes, profiles)
def test_alone_and_uncached_it_is_the_design_formula(size: RequestSize, profile: Profile) -> None:
    assert completion_seconds(size, profile) == pytest.approx(
        profile.fixed_s
        + profile.input_s_per_token * size.input_tokens
        + profile.output_s_per_token * size.output_tokens
    )


@given(sizes, profiles, st.integers(0, 40_000), st.integers(0, 40_000))
def test_more_cached_tokens_never_cost_more(
    size: RequestSize, profile: Profile, one: int, more: int
) -> None:
    few, many = sorted((one, more))
    assert completion_seconds(size, profile, cached_tokens=many) <= completion_seconds(
        size, profile, cached_tokens=few
    )
    assert completion_seconds(size, profile, cached_tokens=many) >= profile.fixed_s


@given(sizes, profiles, st.floats(1, 64), st.floats(1, 64))
def test_a_fuller_batch_never_makes_it_quicker(
    size: RequestSize, profile: Profile, one: float, more: float
) -> None:
    small, large = sorted((one, more))
    assert completion_seconds(size, profile, batch=large) >= completion_seconds(
        size, profile, batch=small
    )


@given(sizes, st.lists(profiles, min_size=1, max_size=5))
def test_the_mean_lies_between_the_quickest_and_the_slowest(
    size: RequestSize, fleet: list[Profile]
) -> None:
    each = [completion_seconds(size, profile) for profile in fleet]
    mean = mean_completion_seconds(size, fleet)
    assert min(each) - 1e-9 <= mean <= max(each) + 1e-9


def test_without_instances_nothing_is_expected_to_take_time() -> None:
    assert mean_completion_seconds(RequestSize(10, 10.0), []) == 0.0


@given(segments, st.frozensets(st.sampled_from("abcdefgh")))
def test_only_leading_segments_count_as_cached(
    prefix: list[tuple[str, int]], held: frozenset[str]
) -> None:
    cached = cached_prefix_tokens(prefix, held)
    leading = 0
    for key, tokens in prefix:
        if key not in held:
            break
        leading += tokens
    assert cached == leading


@given(st.lists(segments.filter(bool), min_size=1, max_size=6), st.integers(1, 1500))
def test_the_cache_keeps_to_its_capacity_and_forgets_the_oldest_first(
    prompts: list[list[tuple[str, int]]], capacity: int
) -> None:
    held: tuple[tuple[str, int], ...] = ()
    for prompt in prompts:
        before = held
        held = hold_prefix(held, prompt, capacity_tokens=capacity)
        assert sum(tokens for _, tokens in held) <= capacity
        assert len({key for key, _ in held}) == len(held)
        kept = [entry for entry in held if entry[0] not in dict(prompt)]
        old = [entry for entry in before if entry[0] not in dict(prompt)]
        assert kept == old[len(old) - len(kept) :], "an older prefix outlived a younger one"


@given(segments.filter(bool))
def test_what_was_just_served_is_cached_for_the_same_prompt(prefix: list[tuple[str, int]]) -> None:
    held = hold_prefix((), prefix, capacity_tokens=None)
    keys = frozenset(key for key, _ in held)
    assert cached_prefix_tokens(prefix, keys) == sum(tokens for _, tokens in prefix)


def test_an_outer_segment_outlives_what_builds_on_it() -> None:
    held = hold_prefix((), [("static", 100), ("schema", 300)], capacity_tokens=350)
    assert held == (("static", 100),)


def test_no_more_than_a_bounded_number_of_prefixes_is_remembered() -> None:
    held: tuple[tuple[str, int], ...] = ()
    for index in range(100):
        held = hold_prefix(held, [(f"schema:{index}", 1)], capacity_tokens=None, most=64)
    assert len(held) == 64
    assert held[-1] == ("schema:99", 1)


@given(sizes)
def test_a_request_reserves_what_it_reads_and_is_expected_to_write(size: RequestSize) -> None:
    assert size.kv_tokens == size.input_tokens + round(size.output_tokens)
