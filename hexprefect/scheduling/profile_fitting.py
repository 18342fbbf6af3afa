"""Learned profiles: `c, a, b` and the batching growth of an instance, from what has finished there.

Durations are linear in what a profile knows, so that the fit is one regression:

`seconds = c · (1 + prompts) + a · (uncached + tokens) + b · output + b · growth · output · others`

with `uncached` and `output` tokens of the request itself, `others` the mean number of requests that
ran beside it, and `prompts` and `tokens` the prompts of others that were read meanwhile: an engine
with continuous batching reads each prompt once, while all that decode there wait for it. Without
these two, busy hours would make an instance look slower than it is alone.

Requests last from tenths of seconds to minutes, and what matters is the share by which a prediction
is off. So relative residuals are fitted, by iteratively reweighted least squares with Huber's
weights (Huber, "Robust Estimation of a Location Parameter", 1964), from a start that is robust
itself: the present profile, scaled by the median of what it was off by. What is then far outside is
rejected. Coefficients are not negative and move by a bounded step, so that an hour of odd requests
cannot turn the fleet over. A third of the requests is kept out of the fit and judges it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hexprefect.errors import HexprefectError
from hexprefect.scheduling.cost import Profile

Numbers = NDArray[np.float64]

_HUBER = 1.345
"""Of the residuals' scale: 95 % efficient where nothing is wrong."""
_MAD_TO_SCALE = 1.4826
_LEAST_SCALE = 0.05
"""Relative residuals below this are all alike: clocks and event loops are not much finer."""
_MOST_ROUNDS = 50
_SETTLED = 1e-6
_CHECK_EVERY = 3


class TooFewRequests(HexprefectError):
    """Not enough requests have finished on the instance to learn from."""


@dataclass(frozen=True, slots=True)
class Run:
    """One stay of a request on an instance, as it was recorded."""

    started_at: float
    """Seconds, on any clock."""
    ended_at: float
    """Not before its start."""
    uncached_tokens: int
    """Input tokens that were not in the prefix cache."""
    output_tokens: int | None
    """Or `None` where it did not finish: it was beside others all the same."""


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """What one finished request shows about its instance."""

    seconds: float
    """From its start to its end; above 0."""
    uncached_tokens: int
    output_tokens: int
    others: float = 0.0
    """Mean number of further requests that ran on the instance meanwhile."""
    prompts_beside: int = 0
    """Prompts of others that were begun meanwhile."""
    tokens_beside: int = 0
    """Their uncached tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """How readily a profile is changed.

    Args:
        least_requests: finished requests to learn from at least, those kept for the check included.
        most_change: factor by which one fit may change a coefficient at most.
        most_share: a term may also grow until it explains this share of the mean duration, so that
            one that was taken to be nothing can come to count.
        prior_requests: requests that the present profile counts as much as. It decides what the
            sample cannot tell apart, such as `c` from `a` where all prompts are alike.
        reject_beyond: scales beyond which a residual is an outlier.
        least_gain: by how much the median error must fall for the fit to be worth a change.
    """

    least_requests: int = 30
    most_change: float = 3.0
    most_share: float = 0.25
    prior_requests: float = 1.0
    reject_beyond: float = 5.0
    least_gain: float = 0.02


@dataclass(frozen=True, slots=True)
class RelativeError:
    """How far predicted durations are off, as shares of the true ones."""

    median: float
    p95: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted profile, and how it does on requests that were kept out of the fit."""

    profile: Profile
    sample: int
    """Requests that it was fitted to, outliers not included."""
    rejected: int
    """Outliers among those of the fit."""
    checked: int
    """Requests that were kept out."""
    before: RelativeError
    """Of the present profile, on the requests kept out."""
    after: RelativeError
    """Of the fitted one, on the same requests."""
    improves: bool
    """Whether it predicts clearly better than the present profile."""


def fit_profile(
    current: Profile, requests: Sequence[FinishedRequest], options: FitOptions | None = None
) -> Fit:
    """Fit a profile to finished requests of one instance.

    Args:
        current: what predicts its durations now; the fit starts from it and keeps its name and its
            KV tokens.
        requests: in the order in which they ended; each third one is kept for the check.

    Raises:
        TooFewRequests: when there are fewer than `options.least_requests`.
    """
    options = options or FitOptions()
    if len(requests) < options.least_requests:
        raise TooFewRequests(
            f"{len(requests)} requests have finished; a profile is learned from at least "
            f"{options.least_requests}.",
            remedy="Wait until more have finished.",
        )
    kept_out = [request for n, request in enumerate(requests) if n % _CHECK_EVERY == 2]
    fitted_to = [request for n, request in enumerate(requests) if n % _CHECK_EVERY != 2]
    terms, seconds = _terms(fitted_to), _seconds(fitted_to)
    solution, inliers = _robust_fit(terms, seconds, _coefficients(current), options)
    profile = _profile(current, solution)
    before, after = relative_error(current, kept_out), relative_error(profile, kept_out)
    return Fit(
        profile=profile,
        sample=int(inliers.sum()),
        rejected=int(len(fitted_to) - inliers.sum()),
        checked=len(kept_out),
        before=before,
        after=after,
        improves=before.median - after.median > options.least_gain,
    )


def predicted_seconds(profile: Profile, requests: Sequence[FinishedRequest]) -> Numbers:
    """What the profile would have said of each request, in seconds."""
    return _terms(requests) @ _coefficients(profile)


def relative_error(profile: Profile, requests: Sequence[FinishedRequest]) -> RelativeError:
    """How far the profile is off on these requests; there must be some."""
    seconds = _seconds(requests)
    off = np.abs(predicted_seconds(profile, requests) - seconds) / seconds
    median, p95 = np.percentile(off, (50, 95))
    return RelativeError(float(median), float(p95))


def finished_requests(runs: Sequence[Run]) -> list[FinishedRequest]:
    """The finished ones of `runs`, in the order of their ends, with what ran beside each.

    Args:
        runs: everything that ran on one instance, whatever came of it.
    """
    if not runs:
        return []
    starts = np.array([run.started_at for run in runs])
    ends = np.array([run.ended_at for run in runs])
    order = np.argsort(starts, kind="stable")
    begun = starts[order]
    tokens_before = np.concatenate(
        ((0,), np.cumsum([runs[place].uncached_tokens for place in order], dtype=np.int64))
    )
    # A prompt that was begun at the same moment is read beside it, too; its own is not.
    first = np.searchsorted(begun, starts, side="left")
    last = np.searchsorted(begun, ends, side="left")
    others = _mean_others(starts, ends)
    return [
        FinishedRequest(
            seconds=run.ended_at - run.started_at,
            uncached_tokens=run.uncached_tokens,
            output_tokens=run.output_tokens,
            others=float(others[place]),
            prompts_beside=int(last[place] - first[place]) - 1,
            tokens_beside=int(tokens_before[last[place]] - tokens_before[first[place]])
            - run.uncached_tokens,
        )
        for place in np.argsort(ends, kind="stable")
        if (run := runs[place]).output_tokens is not None and run.ended_at > run.started_at
    ]


def _mean_others(starts: Numbers, ends: Numbers) -> Numbers:
    """The mean number of further runs beside each, over its own duration; 0 where it has none."""
    moments = np.concatenate((starts, ends))
    steps = np.concatenate((np.ones(len(starts)), -np.ones(len(ends))))
    order = np.argsort(moments, kind="stable")
    moments, running = moments[order], np.cumsum(steps[order])
    # The integral of the number running, known at each moment and linear in between.
    integral = np.concatenate(((0.0,), np.cumsum(running[:-1] * np.diff(moments))))
    between = np.interp(ends, moments, integral) - np.interp(starts, moments, integral)
    lasted = np.where(ends > starts, ends - starts, 1.0)
    return np.maximum(0.0, between / lasted - 1.0)


def _terms(requests: Sequence[FinishedRequest]) -> Numbers:
    """One row a request: what `c`, `a`, `b` and `b · growth` are multiplied with."""
    return np.array(
        [
            (
                1.0 + request.prompts_beside,
                request.uncached_tokens + request.tokens_beside,
                request.output_tokens,
                request.output_tokens * request.others,
            )
            for request in requests
        ]
    )


def _seconds(requests: Sequence[FinishedRequest]) -> Numbers:
    return np.array([request.seconds for request in requests])


def _coefficients(profile: Profile) -> Numbers:
    return np.array(
        (
            profile.fixed_s,
            profile.input_s_per_token,
            profile.output_s_per_token,
            profile.output_s_per_token * profile.batch_growth,
        )
    )


def _profile(current: Profile, solution: Numbers) -> Profile:
    fixed_s, input_s, output_s, output_s_beside = (float(number) for number in solution)
    return replace(
        current,
        fixed_s=fixed_s,
        input_s_per_token=input_s,
        output_s_per_token=output_s,
        batch_growth=output_s_beside / output_s if output_s > 0 else 0.0,
    )


def _robust_fit(
    terms: Numbers, seconds: Numbers, current: Numbers, options: FitOptions
) -> tuple[Numbers, NDArray[np.bool_]]:
    """The coefficients, and which requests are no outliers."""
    box = _box(terms, current, options)
    least = 1e-3 * float(np.median(seconds))
    off_by = float(np.median(seconds / np.maximum(terms @ current, least)))
    # What the sample cannot tell apart keeps the proportions that the present profile has.
    prior = np.clip(current * off_by, *box)
    solution = prior
    inliers = np.ones(len(seconds), dtype=np.bool_)
    for _ in range(_MOST_ROUNDS):
        predicted = np.maximum(terms @ solution, least)
        residuals = (seconds - predicted) / predicted
        middle = float(np.median(residuals))
        scale = max(_LEAST_SCALE, _MAD_TO_SCALE * float(np.median(np.abs(residuals - middle))))
        far = np.abs(residuals) / scale
        inliers = far <= options.reject_beyond
        weights = np.where(inliers, np.minimum(1.0, _HUBER / np.maximum(far, 1e-12)), 0.0)
        before = solution
        solution = _bounded_least_squares(
            terms / predicted[:, None],
            seconds / predicted,
            weights,
            prior,
            box,
            prior_weight=options.prior_requests / len(terms),
        )
        if np.allclose(before, solution, rtol=_SETTLED, atol=0.0):
            break
    return solution, inliers


def _box(terms: Numbers, current: Numbers, options: FitOptions) -> tuple[Numbers, Numbers]:
    """The least and the most that this fit may make of each coefficient."""
    mean_terms = np.maximum(terms.mean(axis=0), 1e-12)
    room = options.most_share * float((terms @ current).mean()) / mean_terms
    return current / options.most_change, np.maximum(current * options.most_change, current + room)


def _bounded_least_squares(
    terms: Numbers,
    wanted: Numbers,
    weights: Numbers,
    prior: Numbers,
    box: tuple[Numbers, Numbers],
    *,
    prior_weight: float,
) -> Numbers:
    """Weighted least squares within a box, exactly; a term that never occurs stays at `prior`.

    Each coefficient is at its lower bound, at its upper bound or free: the best of those 81 cases
    that stay in the box is the minimum, because the sum of squares is convex.
    """
    weighted = terms * weights[:, None]
    gram, moment = terms.T @ weighted, weighted.T @ wanted
    occurs = np.diag(gram) > 0
    unit = np.sqrt(np.where(occurs, np.diag(gram), 1.0))
    pull = np.where(occurs, prior_weight, 1.0)
    # In units in which every term weighs the same: tokens and requests differ by six digits.
    gram = gram / np.outer(unit, unit) + np.diag(pull)
    moment = moment / unit + pull * prior * unit
    low, high = (bound * unit for bound in box)
    best, least = np.clip(prior * unit, low, high), np.inf
    for sides in itertools.product((0, 1, 2), repeat=len(prior)):
        free = np.array(sides) == 2
        candidate = np.where(np.array(sides) == 0, low, high)
        if free.any():
            rest = moment[free] - gram[np.ix_(free, ~free)] @ candidate[~free]
            candidate[free] = np.linalg.solve(gram[np.ix_(free, free)], rest)
        inside = (candidate >= low) & (candidate <= high)
        squares = float(candidate @ gram @ candidate - 2.0 * moment @ candidate)
        if inside.all() and squares < least:
            best, least = candidate, squares
    return best / unit
