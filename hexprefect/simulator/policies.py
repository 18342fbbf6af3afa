"""Policies: how requests are divided over instances and ordered, ours and those we compare with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hexprefect.errors import HexprefectError
from hexprefect.scheduling.order import Order

DispatchRule = Literal[
    "round-robin", "least-loaded", "power-of-two", "paper", "normalised", "shortest-wait"
]
Backlog = Literal["cost", "occupancy", "clock", "ever-growing"]


class UnknownPolicy(HexprefectError):
    """A policy name that is not in `POLICIES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One scheduling policy; every field is a decision that the running system makes too."""

    name: str
    summary: str
    dispatch: DispatchRule = "normalised"
    alpha: float = 0.5
    """Between the fastest instance (1) and the shortest queue (0)."""
    beta: float = 1.0
    order: Order = "urgency"
    ageing: float = 0.0
    """For the order `remaining`: see `scheduling.order.remaining_key`."""
    late_penalty: float | None = None
    """Overload policy: SLOs by which the deadline of what can no longer be in time is put off, so
    that what can be goes first (`scheduling.order.put_off`); `None`: never."""
    stretch: float = 1.0
    """For `late_penalty`: how much longer than predicted the remaining work is reckoned to take."""
    depth: int | None = None
    """Requests that an instance is given at once; `None`: as many as fit."""
    slowdown: float | None = None
    """Instead of a depth: see `scheduling.depth.depth_for_slowdown`."""
    reserves: bool = True
    """Whether KV memory is reserved at admission for the prompt and the predicted answer; else the
    engine takes everything at once and queues it itself, first come, first served."""
    backlog: Backlog = "cost"
    """What `t_queue` is: the sum over unfinished requests of `t_comp`, the sum of their shares of
    the engine, or a clock of those shares, which runs down (`scheduling.delay`); `ever-growing` is
    the sum of `t_comp` from which nothing is taken off again."""
    prefix_aware: bool = False
    """Whether `t_comp` counts only the uncached part of the prompt."""
    batch_aware: bool = False
    """Whether `b` grows with the sequences that run on the instance."""
    counts_delay_caused: bool = False
    """Whether dispatch counts the time for which a prompt stops those that run there."""
    counts_delay_suffered: bool = False
    """With `counts_delay_caused`, whether it counts the time for which the prompts of those that
    follow them will stop it, too (`scheduling.delay.stall_seconds`)."""
    engine_priority: bool = False
    """Whether the key of the order is sent as vLLM's `priority`, so that prompts which wait inside
    the engine keep the order too (needs `--scheduling-policy priority`)."""
    reappoints: bool = False
    """Whether an instance with nothing waiting takes over what waits elsewhere."""

    @property
    def tunes_alpha(self) -> bool:
        """Whether α makes a difference to it."""
        return self.dispatch in ("paper", "normalised")


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(
            name="rr-fcfs",
            summary="vLLM behind round-robin: the engines queue, first come, first served",
            dispatch="round-robin",
            order="arrival",
            reserves=False,
        ),
        Policy(
            name="least-loaded",
            summary="the instance with the fewest unfinished requests; engines queue",
            dispatch="least-loaded",
            order="arrival",
            reserves=False,
        ),
        Policy(
            name="power-of-two",
            summary="the less loaded of two instances drawn at random; engines queue",
            dispatch="power-of-two",
            order="arrival",
            reserves=False,
        ),
        Policy(
            name="rr-pq",
            summary="ablation: round-robin, then the paper's urgency queue",
            dispatch="round-robin",
        ),
        Policy(
            name="wb-fcfs",
            summary="ablation: the paper's α dispatch, then first come, first served",
            order="arrival",
        ),
        Policy(
            name="hexgen",
            summary="HEXGEN-FLOW: α dispatch, urgency by stage budget (arXiv 2505.05286)",
        ),
        Policy(
            name="hexgen-paper-form",
            summary="HEXGEN-FLOW with its score as printed: (1-α)·β/t_queue - α·t_comp",
            dispatch="paper",
        ),
        Policy(
            name="reference",
            summary="the published code: as hexgen-paper-form, but work is never taken off t_queue",
            dispatch="paper",
            backlog="ever-growing",
        ),
        Policy(
            name="qlm",
            summary="QLM: virtual queues in order of deadline, shortest predicted wait",
            dispatch="shortest-wait",
            order="deadline",
        ),
        Policy(
            name="llf",
            summary="α dispatch, least laxity of the whole query first",
            order="laxity",
        ),
        Policy(
            name="edf",
            summary="α dispatch, earliest deadline of the query first",
            order="deadline",
        ),
        Policy(
            name="las",
            summary="least attained service of the query first (Autellix), least loaded instance",
            dispatch="least-loaded",
            order="attained",
        ),
        Policy(
            name="hexagent",
            summary="by projected overrun of the query's horizon alone (HexAGenT's abstract)",
            dispatch="normalised",
            order="horizon",
            backlog="occupancy",
            batch_aware=True,
            prefix_aware=True,
        ),
        Policy(
            name="hexprefect",
            summary="ours: laxity of the query, depth by slowdown, prefix- and batch-aware cost",
            order="laxity",
            slowdown=6.5,
            backlog="clock",
            prefix_aware=True,
            batch_aware=True,
            counts_delay_caused=True,
            counts_delay_suffered=True,
            engine_priority=True,
            reappoints=True,
        ),
        Policy(
            name="hexprefect-attainment",
            summary="ours under overload: what can no longer be in time is put off, less depth",
            order="laxity",
            late_penalty=8.0,
            stretch=2.0,
            slowdown=2.0,
            backlog="clock",
            prefix_aware=True,
            batch_aware=True,
            counts_delay_caused=True,
            counts_delay_suffered=True,
            engine_priority=True,
            reappoints=True,
        ),
    )
}


def named_policy(name: str, *, alpha: float | None = None) -> Policy:
    """The policy of that name, with its own α or the given one.

    Raises:
        UnknownPolicy: listing the names there are.
    """
    try:
        policy = POLICIES[name]
    except KeyError:
        raise UnknownPolicy(
            f"there is no policy {name!r}.", remedy=f"There are: {', '.join(POLICIES)}."
        ) from None
    return policy if alpha is None else replace(policy, alpha=alpha)
