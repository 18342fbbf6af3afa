"""Dispatch: which instance gets a request (the global level of HEXGEN-FLOW).

Two forms, both with α between the fastest instance (α = 1) and the emptiest queue (α = 0):

- `paper`: maximise `(1 − α) · β / t_queue(m) − α · t_comp(r, m)` (arXiv 2505.05286, section 4.1).
- `normalised`, our default: minimise `α · t_comp / max t_comp + (1 − α) · t_queue / max t_queue`.
  The paper's form compares a reciprocal of seconds with seconds, so that its best α depends on the
  unit and on the load; both terms of ours lie in [0, 1].

Ties go to the lower index, and the caller passes instances in order of their id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

DispatchPolicy = Literal["paper", "normalised"]


class NoInstance(LookupError):
    """No instance can serve the request."""


def scores(
    completion_s: Sequence[float],
    queue_delay_s: Sequence[float],
    *,
    alpha: float,
    policy: DispatchPolicy = "normalised",
    beta: float = 1.0,
) -> tuple[float, ...]:
    """Score every instance; the smallest is the best, for both policies.

    Args:
        completion_s: `t_comp(r, m)` of each instance that can serve the request, in seconds.
        queue_delay_s: `t_queue(m)` of each, in seconds, 0 when it is idle.
        alpha: in [0, 1].
        policy: `paper` (its score is negated, so that smaller is better) or `normalised`.
        beta: the paper's scale between its two terms.
    """
    if policy == "normalised":
        longest = max(completion_s)
        fullest = max(queue_delay_s)
        speed = alpha / longest if longest > 0 else 0.0
        load = (1.0 - alpha) / fullest if fullest > 0 else 0.0
        return tuple(
            speed * completion + load * delay
            for completion, delay in zip(completion_s, queue_delay_s, strict=True)
        )
    return tuple(
        alpha * completion - _queue_reward(delay, alpha, beta)
        for completion, delay in zip(completion_s, queue_delay_s, strict=True)
    )


def _queue_reward(delay: float, alpha: float, beta: float) -> float:
    if alpha >= 1.0:
        return 0.0
    return (1.0 - alpha) * beta / delay if delay > 0 else math.inf


def choose(
    completion_s: Sequence[float],
    queue_delay_s: Sequence[float],
    *,
    alpha: float,
    policy: DispatchPolicy = "normalised",
    beta: float = 1.0,
) -> int:
    """Index of the instance that gets the request; see `scores` for the arguments.

    Raises:
        NoInstance: when there is none to choose from.
    """
    if not completion_s:
        raise NoInstance("no instance can serve the request")
    scored = scores(completion_s, queue_delay_s, alpha=alpha, policy=policy, beta=beta)
    best = 0
    for index in range(1, len(scored)):
        # Idle instances all have the paper's infinite reward: its second term then decides.
        if scored[index] < scored[best] or (
            scored[index] == scored[best] == -math.inf
            and alpha * completion_s[index] < alpha * completion_s[best]
        ):
            best = index
    return best


@dataclass(frozen=True, slots=True)
class InstanceScore:
    """What dispatch knew and thought of one instance."""

    instance: str
    completion_s: float
    queue_delay_s: float
    score: float


@dataclass(frozen=True, slots=True)
class Decision:
    """One dispatch with all its inputs, so that it can be explained and replayed (law 7)."""

    instance: str
    alpha: float
    policy: DispatchPolicy
    beta: float
    scores: tuple[InstanceScore, ...]

    def replayed(self) -> str:
        """The instance that the same inputs give now."""
        index = choose(
            [score.completion_s for score in self.scores],
            [score.queue_delay_s for score in self.scores],
            alpha=self.alpha,
            policy=self.policy,
            beta=self.beta,
        )
        return self.scores[index].instance

    def as_record(self) -> dict[str, Any]:
        """Plain values for a JSON column."""
        return {
            "instance": self.instance,
            "alpha": self.alpha,
            "policy": self.policy,
            "beta": self.beta,
            # -inf is not JSON: an idle instance of the paper's form is recorded as null.
            "scores": [
                [
                    s.instance,
                    s.completion_s,
                    s.queue_delay_s,
                    s.score if math.isfinite(s.score) else None,
                ]
                for s in self.scores
            ],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Decision:
        """The inverse of `as_record`."""
        return cls(
            instance=record["instance"],
            alpha=record["alpha"],
            policy=record["policy"],
            beta=record["beta"],
            scores=tuple(
                InstanceScore(name, completion, delay, -math.inf if score is None else score)
                for name, completion, delay, score in record["scores"]
            ),
        )


def dispatch(
    instances: Sequence[str],
    completion_s: Sequence[float],
    queue_delay_s: Sequence[float],
    *,
    alpha: float,
    policy: DispatchPolicy = "normalised",
    beta: float = 1.0,
) -> Decision:
    """Choose an instance and keep every score.

    Args:
        instances: names, in ascending order of their id; the rest as for `scores`.

    Raises:
        NoInstance: when there is none to choose from.
    """
    index = choose(completion_s, queue_delay_s, alpha=alpha, policy=policy, beta=beta)
    scored = scores(completion_s, queue_delay_s, alpha=alpha, policy=policy, beta=beta)
    return Decision(
        instance=instances[index],
        alpha=alpha,
        policy=policy,
        beta=beta,
        scores=tuple(map(InstanceScore, instances, completion_s, queue_delay_s, scored)),
    )
