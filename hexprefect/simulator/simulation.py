"""The simulation: queries arrive, requests are appointed, ordered, admitted, run and finish.

Every decision is made by the functions of `hexprefect.scheduling`, from what the running system
would know at that moment: lengths of answers are predicted from finished requests.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections.abc import Iterable

from hexprefect.scheduling import Decision, dispatch
from hexprefect.scheduling.delay import busy_after, queue_delays, with_delay_caused
from hexprefect.scheduling.occupancy import completion_seconds_each
from hexprefect.scheduling.order import last_chance
from hexprefect.scheduling.placement import place
from hexprefect.scheduling.reappointment import Movable, choose_reappointment
from hexprefect.simulator.cluster import Cluster
from hexprefect.simulator.engine_values import Prefix, PromptTooLong
from hexprefect.simulator.instance import SimulatedInstance
from hexprefect.simulator.knowledge import Knowledge
from hexprefect.simulator.laws import Laws
from hexprefect.simulator.order_keys import NEEDS_REMAINING, order_key_of
from hexprefect.simulator.outcome import Outcome
from hexprefect.simulator.policies import Policy
from hexprefect.simulator.requests import Entry, QueryRun, Request
from hexprefect.simulator.workload import Query

_MOVABLE = 4
"""Waiting requests of each other queue that a free instance considers taking over."""


class Simulation:
    """One run of a policy on a cluster.

    Args:
        cluster: the instances.
        policy: what decides.
        slo_scale: a query's SLO as a multiple of its duration alone, where it brings none.
        seed: of the policy's own random numbers (`power-of-two`).
        knowledge: what is known beforehand; nothing when left out, as after an installation.
        check_laws: verify conservation, dependencies, capacity, order and idleness while running.
        record_decisions: keep every dispatch with its scores in `decisions`.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        *,
        slo_scale: float = 3.0,
        seed: int = 0,
        knowledge: Knowledge | None = None,
        check_laws: bool = False,
        record_decisions: bool = False,
    ) -> None:
        self.policy = policy
        self.slo_scale = slo_scale
        self.now = 0.0
        self.instances = [SimulatedInstance(instance, policy) for instance in cluster.instances]
        self.knowledge = knowledge or Knowledge(cluster.profiles)
        self.outcome = Outcome()
        self.queue_s = [0.0] * len(self.instances)
        """`t_queue` of each instance as a sum, in seconds; see `queue_delays`."""
        self._busy_until = [0.0] * len(self.instances) if policy.backlog == "clock" else None
        self.unfinished = [0] * len(self.instances)
        self.decisions: list[Decision] | None = [] if record_decisions else None
        self.laws = Laws(self) if check_laws else None
        self._next_at = [math.inf] * len(self.instances)
        self._coefficients = [instance.coefficients for instance in self.instances]
        self._names = [instance.name for instance in self.instances]
        self._nothing = [0] * len(self.instances)
        self._every = range(len(self.instances))
        self._rng = random.Random(f"policy {seed}")
        self._cached: dict[Prefix, list[int]] = {}
        """Believed cached tokens of each instance, until what one holds changes."""
        self._key = order_key_of(policy)
        self._needs_remaining = policy.late_last or policy.order in NEEDS_REMAINING
        self._turn = 0
        self._queries = 0
        self._requests = 0

    def run(self, arrivals: Iterable[tuple[float, Query]]) -> Outcome:
        """Serve `(moment, query)` in order of time, to the end of the last one.

        Raises:
            PromptTooLong: when a call fits into no instance's memory.
            LawBroken: with `check_laws`, when a law does not hold.
        """
        source = iter(arrivals)
        following = next(source, None)
        next_at = self._next_at
        while True:
            moment = min(next_at)
            if following is not None and following[0] <= moment:
                self.now = following[0]
                self._arrive(following[1])
                following = next(source, None)
            elif moment < math.inf:
                self.now = moment
                index = next_at.index(moment)
                engine = self.instances[index].engine
                finished = engine.advance()
                next_at[index] = engine.next_at
                for job in finished:
                    assert isinstance(job, Request)
                    self._finish(job)
            else:
                break
            if self.laws is not None:
                self.laws.check_event()
        if self.laws is not None:
            self.laws.check_end()
        self.outcome.ended_at = self.now
        self.outcome.preemptions = sum(i.engine.preemptions for i in self.instances)
        return self.outcome

    # -- transitions ---------------------------------------------------------------------------

    def _arrive(self, query: Query) -> None:
        now = self.now
        slo_s = query.slo_s
        if slo_s is None:
            slo_s = self.slo_scale * self.knowledge.alone_seconds(query)
        self._queries += 1
        run = QueryRun(
            self._queries,
            query,
            arrived_at=now,
            deadline=now + slo_s,
            standalone_s=self.knowledge.standalone.seconds,
        )
        for index, missing in enumerate(run.missing):
            if not missing:
                self._submit(run, index)

    def _submit(self, run: QueryRun, index: int) -> None:
        """A call whose needs have finished becomes a request, and is appointed."""
        run.missing[index] = -1
        self._requests += 1
        knowledge = self.knowledge
        query = run.query
        call = query.calls[index]
        predicted = knowledge.output_tokens(call.stage, query.database)
        request = Request(self._requests, run, index, call, predicted, self.now)
        if self._needs_remaining:
            request.mean_s = knowledge.mean_seconds(call.input_tokens, predicted)
            request.remaining_s = request.mean_s + knowledge.remaining_after(
                call.stage, query.visits[index]
            )
        if self.laws is not None:
            self.laws.submitted(request)
        cached, costs, others = self._costs(request)
        weighed = costs
        if self.policy.counts_delay_caused:
            weighed = with_delay_caused(
                costs, self._coefficients, request.input_tokens, cached, others
            )
        appointed = self._appoint(weighed)
        self._enqueue(request, appointed, cached[appointed], costs[appointed])

    def _enqueue(
        self, request: Request, appointed: int, cached_tokens: int, completion_s: float
    ) -> None:
        """Give the request its place in the queue of the instance it is appointed to."""
        policy = self.policy
        instance = self.instances[appointed]
        if request.input_tokens + request.output_tokens > instance.most_tokens:
            self._too_long(request, instance)
        request.instance = appointed
        request.cached_tokens = cached_tokens
        request.completion_s = completion_s
        request.work_s = work_s = instance.work_seconds(request)
        if self._busy_until is None:
            self.queue_s[appointed] += work_s
        else:
            self._busy_until[appointed] = busy_after(
                self._busy_until[appointed], now=self.now, work_s=work_s
            )
        self.unfinished[appointed] += 1
        if policy.prefix_aware and request.prefix and instance.will_hold(request.prefix):
            self._cached.clear()
        late = 0
        if policy.late_last:
            request.last_chance = last_chance(
                deadline=request.run.deadline, remaining_s=policy.stretch * request.remaining_s
            )
            late = int(self.now > request.last_chance)
        request.entry = entry = (
            late,
            self._key(request),
            request.ready_at,
            request.number,
            request,
        )
        queue = instance.queue
        if not queue and instance.take(request):
            # Law 4 with nobody to order: what `admit` decides for a queue of one.
            self._start(request, entry)
            return
        insort(queue, entry)
        self._admit(appointed)

    def _admit(self, index: int) -> None:
        """Start on one instance what it has room for."""
        instance = self.instances[index]
        while True:
            for request in instance.startable(self.now):
                assert request.entry is not None
                self._start(request, request.entry)
            if not (
                self.policy.reappoints
                and not instance.queue
                and instance.admitted < instance.depth
                and self._take_over(index)
            ):
                return

    def _start(self, request: Request, entry: Entry) -> None:
        """Give an admitted request to its engine."""
        now = self.now
        index = request.instance
        request.priority = entry[:2]
        request.admitted_at = now
        if self.laws is not None:
            self.laws.admitted(request)
        # An entry holds its request: without this each request would be a cycle.
        request.entry = None
        self.outcome.waited(now - request.ready_at)
        engine = self.instances[index].engine
        engine.submit(request, now)
        self._next_at[index] = engine.next_at

    def _finish(self, request: Request) -> None:
        index = request.instance
        run = request.run
        query = run.query
        self.unfinished[index] -= 1
        if self.policy.backlog != "ever-growing":
            self._take_off(index, request.work_s if self._busy_until is None else 0.0)
        self.instances[index].finished(request)
        self.outcome.requests += 1
        run.attained_s += request.completion_s
        knowledge = self.knowledge
        knowledge.request_finished(query, request.index)
        if self.laws is not None:
            self.laws.finished(request)
        run.left -= 1
        if run.left:
            missing = run.missing
            for follower in query.followers[request.index]:
                missing[follower] -= 1
                if not missing[follower]:
                    self._submit(run, follower)
        else:
            self.outcome.query_ended(
                arrived_at=run.arrived_at,
                latency_s=self.now - run.arrived_at,
                alone_s=knowledge.alone_seconds(query),
                slo_s=run.deadline - run.arrived_at,
            )
            if self._needs_remaining:
                knowledge.query_finished(query)
        if self.instances[index].queue or self.policy.reappoints:
            self._admit(index)

    def _take_off(self, index: int, work_s: float) -> None:
        """Work that an instance no longer has before it."""
        idle = not self.unfinished[index]
        if self._busy_until is not None:
            self._busy_until[index] = 0.0 if idle else self._busy_until[index] - work_s
        else:
            # Sums of floats do not come back to 0 by themselves (law 8).
            self.queue_s[index] = 0.0 if idle else self.queue_s[index] - work_s

    # -- decisions -----------------------------------------------------------------------------

    def _costs(self, request: Request) -> tuple[list[int], list[float], list[int]]:
        """Believed cached tokens, `t_comp`, and the sequences there, on each instance."""
        policy = self.policy
        cached = self._nothing
        prefix = request.prefix
        if prefix and policy.prefix_aware:
            known = self._cached.get(prefix)
            if known is None:
                known = self._cached[prefix] = [
                    instance.cached_tokens(prefix) for instance in self.instances
                ]
            cached = known
        others = self._nothing
        if policy.batch_aware:
            others = [instance.admitted for instance in self.instances]
        costs = completion_seconds_each(
            self._coefficients, request.input_tokens, request.predicted_tokens, cached, others
        )
        return cached, costs, others

    def queue_delays(self) -> list[float]:
        """`t_queue` of each instance now, in seconds."""
        if self._busy_until is None:
            return self.queue_s
        return queue_delays(self._busy_until, now=self.now)

    def _appoint(self, costs: list[float]) -> int:
        policy = self.policy
        unfinished = self.unfinished
        match policy.dispatch:
            case "normalised" | "paper":
                if self.decisions is not None:
                    return self._appoint_on_record(costs)
                return place(
                    costs,
                    self.queue_delays(),
                    alpha=policy.alpha,
                    policy=policy.dispatch,
                    beta=policy.beta,
                )
            case "round-robin":
                turn = self._turn
                self._turn = (turn + 1) % len(unfinished)
                return turn
            case "least-loaded":
                return unfinished.index(min(unfinished))
            case "power-of-two":
                if len(unfinished) == 1:
                    return 0
                first, second = sorted(self._rng.sample(self._every, 2))
                return second if unfinished[second] < unfinished[first] else first
            case "shortest-wait":
                delays = self.queue_delays()
                return delays.index(min(delays))

    def _appoint_on_record(self, costs: list[float]) -> int:
        policy = self.policy
        assert self.decisions is not None
        assert policy.dispatch in ("normalised", "paper")
        decision = dispatch(
            self._names,
            costs,
            self.queue_delays(),
            alpha=policy.alpha,
            policy=policy.dispatch,
            beta=policy.beta,
        )
        self.decisions.append(decision)
        return self._names.index(decision.instance)

    def _take_over(self, index: int) -> bool:
        """Let an instance with room and no queue take what it would finish clearly sooner."""
        entries = sorted(
            entry for other in self.instances if other.queue for entry in other.queue[:_MOVABLE]
        )
        if not entries:
            return False
        movables = []
        known: list[tuple[Request, int, float]] = []
        delays = self.queue_delays()
        for entry in entries:
            request = entry[4]
            cached, costs, _ = self._costs(request)
            there = request.instance
            movables.append(
                Movable(
                    id=str(len(known)),
                    wait_there_s=max(0.0, delays[there] - request.work_s),
                    completion_there_s=costs[there],
                    completion_here_s=delays[index] + costs[index],
                )
            )
            known.append((request, cached[index], costs[index]))
        chosen = choose_reappointment(movables)
        if chosen is None:
            return False
        request, cached_tokens, completion_s = known[int(chosen)]
        self._withdraw(request)
        self._enqueue(request, index, cached_tokens, completion_s)
        return True

    def _withdraw(self, request: Request) -> None:
        there = request.instance
        queue = self.instances[there].queue
        assert request.entry is not None
        del queue[bisect_left(queue, request.entry)]
        self.unfinished[there] -= 1
        self._take_off(there, request.work_s)

    def _too_long(self, request: Request, instance: SimulatedInstance) -> None:
        stage = request.run.query.calls[request.index].stage
        raise PromptTooLong(
            f"a {stage} call of {request.input_tokens} input and {request.output_tokens} output "
            f"tokens does not fit into the {instance.most_tokens} KV tokens of {instance.name}.",
            remedy="Leave that hardware out of the cluster, or the query out of the trace.",
        )
