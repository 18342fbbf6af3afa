"""Appointing: which instance a simulated request goes to, one function for each kind of policy.

Which terms a cost has, and what a queue delay is, does not change during a run. So the choice among
these functions is made once, and each does no more than its policy asks for. What they decide is
what `completion_seconds_each`, `with_delays_beside`, `queue_delays` and `choose` of
`hexprefect.scheduling` decide; `appoint_on_record` calls those, and tests compare.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from hexprefect.scheduling import Decision, DispatchPolicy, dispatch
from hexprefect.scheduling.delay import queue_delay, queue_delays, with_delays_beside
from hexprefect.scheduling.occupancy import (
    Coefficients,
    completion_seconds_each,
    completion_seconds_of,
)
from hexprefect.scheduling.placement import place, place_by_clock, place_by_tables
from hexprefect.scheduling.unrolled import (
    MOST_UNROLLED,
    placing_by_clock,
    placing_by_tables,
)
from hexprefect.simulator.instance import SimulatedInstance
from hexprefect.simulator.policies import Policy
from hexprefect.simulator.requests import Request
from hexprefect.simulator.tables import CallTable

Appoint = Callable[[Request, float], int]
"""Gives the index of the instance for a request at a moment, and writes what is believed about the
request there: `completion_s` and `cached_tokens`."""

COMPILED = not __file__.endswith(".py")
"""Whether this is the compiled module of `make compiled`. A compiled loop is faster than source
that is made for a cluster while running, which nothing compiles."""


class Load:
    """What dispatch knows of the cluster: the same lists for as long as a simulation lasts."""

    __slots__ = (
        "_nothing",
        "admitted",
        "busy_until",
        "coefficients",
        "held_s",
        "instances",
        "known_cached",
        "most_beside",
        "policy",
        "queue_s",
        "stall_s",
        "unfinished",
        "waiting_s",
    )

    def __init__(
        self,
        instances: list[SimulatedInstance],
        policy: Policy,
        *,
        admitted: list[int],
        most_beside: list[int],
        stall_s: list[float],
    ) -> None:
        number = len(instances)
        self.policy = policy
        self.instances = instances
        self.coefficients: list[Coefficients] = [each.coefficients for each in instances]
        self.admitted = admitted
        """Admitted requests that have not finished."""
        self.most_beside = most_beside
        """Of these, how many one more request could at most run beside: the depth less one."""
        self.stall_s = stall_s
        """`stall_seconds` of each, where the policy counts them; else 0."""
        self.unfinished = [0] * number
        """Those, and the waiting."""
        self.queue_s = [0.0] * number
        """`t_queue` as a sum, in seconds; see `delays`."""
        self.busy_until = [0.0] * number if policy.backlog == "clock" else None
        self.waiting_s = [0.0] * number
        """With a clock: occupancy of what waits for each instance, in seconds."""
        self.held_s = [0.0] * number
        """Where requests are reappointed: `t_comp` of what each instance was given, in seconds."""
        self._nothing = [0] * number
        self.known_cached: dict[int, list[int]] = {}
        """What `cached` has said since an instance last held something else."""

    def delays(self, now: float) -> list[float]:
        """`t_queue` of each instance, in seconds."""
        if self.busy_until is None:
            return self.queue_s
        return queue_delays(self.busy_until, now=now, waiting_s=self.waiting_s)

    def delay_at(self, index: int, now: float) -> float:
        """`t_queue` of one instance, in seconds."""
        if self.busy_until is None:
            return self.queue_s[index]
        return queue_delay(self.busy_until[index], now=now, waiting_s=self.waiting_s[index])

    def cached(self, call: CallTable) -> list[int]:
        """Tokens of the call's prompt that each instance is believed to hold."""
        known = self.known_cached.get(call.prefix_number)
        if known is None:
            known = self.known_cached[call.prefix_number] = [
                each.held.cached_tokens(call.prefix) for each in self.instances
            ]
        return known

    def held_changed(self) -> None:
        """An instance holds other prefixes than before."""
        self.known_cached.clear()

    def costs(self, request: Request) -> tuple[list[int], list[float], list[int]]:
        """Believed cached tokens, `t_comp`, and the sequences there, on each instance."""
        policy = self.policy
        cached = self.cached(request.call) if policy.prefix_aware else self._nothing
        others = list(map(min, self.admitted, self.most_beside))
        if not policy.batch_aware:
            others = self._nothing
        costs = completion_seconds_each(
            self.coefficients, request.input_tokens, request.predicted_tokens, cached, others
        )
        return cached, costs, others

    def cost_at(self, request: Request, index: int) -> tuple[int, float]:
        """What `costs` says of one instance: believed cached tokens, and `t_comp`."""
        policy = self.policy
        cached = self.cached(request.call)[index] if policy.prefix_aware else 0
        others = 0
        if policy.batch_aware:
            others = min(self.admitted[index], self.most_beside[index])
        return cached, completion_seconds_of(
            self.coefficients[index],
            request.input_tokens - cached,
            request.predicted_tokens,
            others,
        )


def appointing(
    policy: Policy, load: Load, *, seed: int, decisions: list[Decision] | None
) -> Appoint:
    """The function that appoints requests under a policy.

    Args:
        policy: what decides.
        load: of the cluster; read at each call.
        seed: of the policy's own random numbers (`power-of-two`).
        decisions: where every dispatch by score is recorded, if anywhere.
    """
    rule = policy.dispatch
    if rule != "normalised" and rule != "paper":
        return _unweighed(policy, load, random.Random(f"policy {seed}"))
    if decisions is not None:
        return _on_record(policy, rule, load, decisions)
    if rule == "normalised":
        if not (policy.prefix_aware or policy.batch_aware or policy.counts_delay_caused):
            return _by_tables(policy.alpha, load)
        if (
            policy.prefix_aware
            and policy.batch_aware
            and policy.counts_delay_caused
            and load.busy_until is not None
        ):
            return _by_clock(policy.alpha, load, load.busy_until)
    return _by_cost(policy, rule, load)


def _unweighed(policy: Policy, load: Load, rng: random.Random) -> Appoint:
    """Rules that do not read costs: only that on the chosen instance is reckoned."""
    choose = _rule(policy, load, rng)
    coefficients, admitted = load.coefficients, load.admitted

    def appoint(request: Request, now: float) -> int:
        index = choose(now)
        call = request.call
        fixed, each_input, each_output, growth = coefficients[index]
        request.cached_tokens = cached = load.cached(call)[index] if policy.prefix_aware else 0
        others = admitted[index] if policy.batch_aware else 0
        request.completion_s = (
            fixed
            + each_input * (call.input_tokens - cached)
            + each_output * (1.0 + growth * others) * request.predicted_tokens
        )
        return index

    return appoint


def _rule(policy: Policy, load: Load, rng: random.Random) -> Callable[[float], int]:
    unfinished = load.unfinished
    number = len(unfinished)
    turn = -1

    def round_robin(now: float) -> int:
        nonlocal turn
        turn += 1
        if turn == number:
            turn = 0
        return turn

    def least_loaded(now: float) -> int:
        return unfinished.index(min(unfinished))

    def power_of_two(now: float) -> int:
        if number == 1:
            return 0
        first, second = sorted(rng.sample(range(number), 2))
        return second if unfinished[second] < unfinished[first] else first

    def shortest_wait(now: float) -> int:
        delays = load.delays(now)
        return delays.index(min(delays))

    rules = {
        "round-robin": round_robin,
        "least-loaded": least_loaded,
        "power-of-two": power_of_two,
        "shortest-wait": shortest_wait,
    }
    return rules[policy.dispatch]


def _by_tables(alpha: float, load: Load) -> Appoint:
    """α dispatch by whole prompts, as in the paper: their cost but for the answer is known."""
    coefficients = load.coefficients
    delays = load.delays
    place = (
        placing_by_tables(coefficients, alpha=alpha)
        if len(coefficients) <= MOST_UNROLLED and not COMPILED
        else partial(place_by_tables, profiles=coefficients, alpha=alpha)
    )

    def appoint(request: Request, now: float) -> int:
        index, request.completion_s = place(
            request.call.starts_s, request.predicted_tokens, delays(now)
        )
        request.cached_tokens = 0
        return index

    return appoint


def _by_clock(alpha: float, load: Load, busy_until: list[float]) -> Appoint:
    """α dispatch by uncached tokens, the batch, the delays beside, and a clock of the work left."""
    coefficients, admitted, most_beside = load.coefficients, load.admitted, load.most_beside
    known_cached, cached_of = load.known_cached, load.cached
    waiting_s, stall_s = load.waiting_s, load.stall_s
    place = (
        placing_by_clock(coefficients, alpha=alpha)
        if len(coefficients) <= MOST_UNROLLED and not COMPILED
        else partial(place_by_clock, profiles=coefficients, alpha=alpha)
    )

    def appoint(request: Request, now: float) -> int:
        call = request.call
        cached = known_cached.get(call.prefix_number) or cached_of(call)
        index, request.completion_s = place(
            request.input_tokens,
            request.predicted_tokens,
            cached,
            admitted,
            most_beside,
            busy_until,
            waiting_s,
            stall_s,
            now,
        )
        request.cached_tokens = cached[index]
        return index

    return appoint


def _by_cost(policy: Policy, rule: DispatchPolicy, load: Load) -> Appoint:
    """α dispatch with any other terms."""

    def appoint(request: Request, now: float) -> int:
        cached, costs, weighed = weigh(load, request)
        index = place(weighed, load.delays(now), alpha=policy.alpha, policy=rule, beta=policy.beta)
        request.completion_s = costs[index]
        request.cached_tokens = cached[index]
        return index

    return appoint


def _on_record(
    policy: Policy, rule: DispatchPolicy, load: Load, decisions: list[Decision]
) -> Appoint:
    """α dispatch, each decision kept with its scores."""
    names = [instance.name for instance in load.instances]

    def appoint(request: Request, now: float) -> int:
        cached, costs, weighed = weigh(load, request)
        decision = dispatch(
            names,
            weighed,
            load.delays(now),
            alpha=policy.alpha,
            policy=rule,
            beta=policy.beta,
        )
        decisions.append(decision)
        index = names.index(decision.instance)
        request.completion_s = costs[index]
        request.cached_tokens = cached[index]
        return index

    return appoint


def weigh(load: Load, request: Request) -> tuple[list[int], list[float], list[float]]:
    """Cached tokens, `t_comp`, and what dispatch weighs, on each instance."""
    cached, costs, others = load.costs(request)
    if not load.policy.counts_delay_caused:
        return cached, costs, costs
    return (
        cached,
        costs,
        with_delays_beside(
            costs,
            load.coefficients,
            request.input_tokens,
            request.predicted_tokens,
            cached,
            others,
            load.stall_s,
        ),
    )
