"""What a profile is learned from, how far one fit moves it, and how well it then predicts."""

from __future__ import annotations

import random
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexprefect.scheduling import Profile
from hexprefect.scheduling.profile_fitting import (
    FinishedRequest,
    FitOptions,
    Run,
    TooFewRequests,
    finished_requests,
    fit_profile,
    predicted_seconds,
    relative_error,
)

TRUE = Profile("gpu", 0.05, 3e-4, 0.02, batch_growth=0.01, kv_tokens=1000)

COEFFICIENTS = ("fixed_s", "input_s_per_token", "output_s_per_token")


def slower(profile: Profile, factor: float) -> Profile:
    return replace(profile, **{name: factor * getattr(profile, name) for name in COEFFICIENTS})


def requests(
    number: int, *, true: Profile = TRUE, seed: int = 0, noise: float = 0.0
) -> list[FinishedRequest]:
    """Finished requests that last exactly as long as `true` says, but for the noise."""
    draw = random.Random(seed)
    shapes = [
        FinishedRequest(
            seconds=1.0,
            uncached_tokens=draw.randrange(20, 4000),
            output_tokens=draw.randrange(1, 700),
            others=draw.uniform(0.0, 15.0),
            prompts_beside=(beside := draw.randrange(0, 6)),
            tokens_beside=beside * 500,
        )
        for _ in range(number)
    ]
    lasted = predicted_seconds(true, shapes)
    return [
        replace(shape, seconds=float(seconds) * draw.uniform(1.0 - noise, 1.0 + noise))
        for shape, seconds in zip(shapes, lasted, strict=True)
    ]


# -- the fit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_a_profile_that_is_off_by_two_is_put_right_by_one_fit(factor: float) -> None:
    fit = fit_profile(slower(TRUE, factor), requests(90))
    assert fit.after.median < 0.01
    assert (fit.profile.name, fit.profile.kv_tokens) == (TRUE.name, TRUE.kv_tokens)
    for name in COEFFICIENTS:
        assert getattr(fit.profile, name) == pytest.approx(getattr(TRUE, name), rel=0.05)
    assert fit.improves == (factor != 1.0)


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_noise_is_averaged_out(noise: float) -> None:
    fit = fit_profile(slower(TRUE, 2.0), requests(300, noise=noise))
    new = requests(100, seed=1)
    assert relative_error(fit.profile, new).median < 0.1


@pytest.mark.parametrize("lasted", [60.0, 0.001], ids=["hung", "cut short"])
def test_a_fifth_of_outliers_changes_nothing_and_is_counted(lasted: float) -> None:
    sample = requests(150, noise=0.05)
    odd = [
        replace(request, seconds=lasted * request.seconds) if number % 5 == 1 else request
        for number, request in enumerate(sample)
    ]
    fit = fit_profile(slower(TRUE, 2.0), odd)
    assert relative_error(fit.profile, requests(100, seed=1)).median < 0.1
    assert fit.rejected == sum(n % 5 == 1 and n % 3 != 2 for n in range(150))
    assert fit.sample + fit.rejected + fit.checked == 150


def test_prompts_that_were_read_beside_it_do_not_make_the_instance_look_slow() -> None:
    """The same instance, in a quiet and in a busy hour, has the same profile."""
    quiet = [replace(r, prompts_beside=0, tokens_beside=0, others=0.0) for r in requests(90)]
    busy = [replace(r, prompts_beside=20, tokens_beside=30_000) for r in requests(90)]
    fits = [
        fit_profile(
            slower(TRUE, 2.0),
            [
                replace(request, seconds=float(seconds))
                for request, seconds in zip(hour, predicted_seconds(TRUE, hour), strict=True)
            ],
        )
        for hour in (quiet, busy)
    ]
    for name in COEFFICIENTS[1:]:
        of_quiet, of_busy = (getattr(fit.profile, name) for fit in fits)
        assert of_quiet == pytest.approx(of_busy, rel=0.1)


def test_what_the_sample_cannot_tell_keeps_its_proportions() -> None:
    """All prompts and answers are alike, and nothing runs beside: only the sum is known."""
    wrong = slower(TRUE, 2.0)
    same = [FinishedRequest(0.05 + 0.3 + 2.0, 1000, 100) for _ in range(40)]
    fit = fit_profile(wrong, same)
    assert fit.after.p95 < 0.01
    for name in COEFFICIENTS:
        assert getattr(fit.profile, name) == pytest.approx(getattr(TRUE, name), rel=0.05)
    assert fit.profile.batch_growth == pytest.approx(TRUE.batch_growth, rel=0.05)


def test_requests_kept_out_of_the_fit_judge_it() -> None:
    """What the fit was made from is predicted; that others are not is seen and not approved of."""
    sample = requests(90)
    doubled = [
        replace(request, seconds=2.0 * request.seconds) if number % 3 != 2 else request
        for number, request in enumerate(sample)
    ]
    fit = fit_profile(TRUE, doubled)
    assert fit.before.median < 0.01
    assert fit.after.median > 0.5
    assert not fit.improves


def test_too_few_requests_are_said_and_not_learned_from() -> None:
    with pytest.raises(TooFewRequests, match=r"29 requests have finished.* at least 30"):
        fit_profile(TRUE, requests(29))


@settings(max_examples=40)
@given(
    st.floats(0.01, 100.0),
    st.lists(
        st.builds(
            FinishedRequest,
            seconds=st.floats(0.001, 1000.0),
            uncached_tokens=st.integers(0, 30_000),
            output_tokens=st.integers(0, 4000),
            others=st.floats(0.0, 64.0),
            prompts_beside=st.integers(0, 500),
            tokens_beside=st.integers(0, 500_000),
        ),
        min_size=30,
        max_size=45,
    ),
)
def test_whatever_has_finished_the_step_is_bounded(
    factor: float, sample: list[FinishedRequest]
) -> None:
    options = FitOptions()
    current = slower(TRUE, factor)
    fit = fit_profile(current, sample, options)
    assert np.isfinite(astuple(fit.profile)[1:5]).all()
    fitted_to = [request for number, request in enumerate(sample) if number % 3 != 2]
    mean_s = float(predicted_seconds(current, fitted_to).mean())
    most_share = 1.0 + 1e-9
    for name, term in (
        ("fixed_s", np.mean([1 + r.prompts_beside for r in fitted_to])),
        ("input_s_per_token", np.mean([r.uncached_tokens + r.tokens_beside for r in fitted_to])),
        ("output_s_per_token", np.mean([r.output_tokens for r in fitted_to])),
    ):
        before, after = getattr(current, name), getattr(fit.profile, name)
        assert after >= before / options.most_change * (1.0 - 1e-9)
        grown_by_share = (after - before) * float(term) <= options.most_share * mean_s * most_share
        assert after <= before * options.most_change * most_share or grown_by_share


# -- what ran beside -------------------------------------------------------------------------------


def test_a_request_alone_has_nothing_beside_it() -> None:
    [alone] = finished_requests([Run(10.0, 14.0, 100, 20)])
    assert alone == FinishedRequest(4.0, 100, 20, others=0.0, prompts_beside=0, tokens_beside=0)


def test_others_count_for_the_time_that_they_share_and_prompts_for_whom_they_hold_up() -> None:
    long, short, unfinished = (
        Run(0.0, 10.0, 100, 50),
        Run(4.0, 6.0, 70, 5),
        Run(8.0, 10.0, 30, None),
    )
    of_short, of_long = finished_requests([long, short, unfinished])
    assert of_short == FinishedRequest(2.0, 70, 5, others=1.0, prompts_beside=0, tokens_beside=0)
    assert of_long.others == pytest.approx(0.4)
    assert (of_long.prompts_beside, of_long.tokens_beside) == (2, 100)


def test_what_has_no_duration_teaches_nothing() -> None:
    assert finished_requests([Run(1.0, 1.0, 5, 5)]) == []
    assert finished_requests([]) == []


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 20), st.integers(0, 9)),
        min_size=1,
        max_size=25,
    )
)
def test_what_is_beside_agrees_with_counting_second_by_second(
    given_runs: list[tuple[int, int, int]],
) -> None:
    runs = [
        Run(float(start), float(start + length), tokens, number)
        for number, (start, length, tokens) in enumerate(given_runs)
    ]
    found = {request.output_tokens: request for request in finished_requests(runs)}
    assert len(found) == len(runs)
    for number, run in enumerate(runs):
        rest = [other for place, other in enumerate(runs) if place != number]
        shared = sum(
            other.started_at <= second < other.ended_at
            for second in range(int(run.started_at), int(run.ended_at))
            for other in rest
        )
        begun = [o for o in rest if run.started_at <= o.started_at < run.ended_at]
        request = found[number]
        assert request.others == pytest.approx(shared / (run.ended_at - run.started_at))
        assert request.prompts_beside == len(begun)
        assert request.tokens_beside == sum(other.uncached_tokens for other in begun)
