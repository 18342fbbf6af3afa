"""The simulation: queries arrive, requests are appointed, ordered, admitted, run and finish.

Every decision is one that the functions of `hexprefect.scheduling` make, from what the running
system would know at that moment: lengths of answers are predicted from finished requests.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from math import inf

from hexprefect.scheduling import Decision
from hexprefect.scheduling.order import last_chance, put_off
from hexprefect.scheduling.prediction import ENOUGH
from hexprefect.simulator.appointing import Load, appointing
from hexprefect.simulator.cluster import Cluster
from hexprefect.simulator.eligible import appoint_among_able
from hexprefect.simulator.instance import SimulatedInstance
from hexprefect.simulator.knowledge import Knowledge
from hexprefect.simulator.laws import Laws
from hexprefect.simulator.order_keys import NEEDS_REMAINING, order_key_of
from hexprefect.simulator.outcome import Outcome
from hexprefect.simulator.policies import Policy
from hexprefect.simulator.reappointing import to_take_over
from hexprefect.simulator.requests import QueryRun, Request
from hexprefect.simulator.workload import Query

_FEW = 8
"""Instances up to which the next event is found faster by a loop than by `min`."""


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

    __slots__ = (
        "_admitted", "_appoint", "_busy_until", "_counts_shares", "_held_s", "_key",
        "_late_penalty", "_least_tokens", "_needs_remaining", "_next_at", "_place_in_order",
        "_prefix_aware", "_queries", "_queue_s", "_reappoints", "_requests", "_reserves",
        "_takes_off", "_unfinished", "_waiting", "_waiting_s", "decisions", "instances",
        "knowledge", "laws", "load", "now", "outcome", "policy", "slo_scale",
    )  # fmt: skip

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
        number = len(cluster.instances)
        admitted, most_beside, stall_s = [0] * number, [0] * number, [0.0] * number
        self.policy = policy
        self.slo_scale = slo_scale
        self.now = 0.0
        self.instances = [
            SimulatedInstance(
                instance,
                policy,
                number=index,
                admitted=admitted,
                most_beside=most_beside,
                stall_s=stall_s,
            )
            for index, instance in enumerate(cluster.instances)
        ]
        self.knowledge = Knowledge(cluster.profiles) if knowledge is None else knowledge
        self.outcome = Outcome()
        self.load = Load(
            self.instances, policy, admitted=admitted, most_beside=most_beside, stall_s=stall_s
        )
        self.decisions: list[Decision] | None = [] if record_decisions else None
        self.laws = Laws(self) if check_laws else None
        self._appoint = appointing(policy, self.load, seed=seed, decisions=self.decisions)
        self._key = order_key_of(policy)
        self._place_in_order = self._key if policy.late_penalty is None else self._key_put_off
        """Gives a request its key."""
        self._least_tokens = min(instance.most_tokens for instance in self.instances)
        """What every instance could hold."""
        self._next_at = [inf] * number
        self._queries = self._requests = 0
        # What the policy asks for, where it is asked for each request.
        self._admitted = admitted
        self._busy_until = self.load.busy_until
        self._queue_s = self.load.queue_s
        self._waiting_s = self.load.waiting_s
        self._held_s = self.load.held_s
        self._unfinished = self.load.unfinished
        self._counts_shares = policy.backlog in ("occupancy", "clock")
        self._late_penalty = policy.late_penalty
        self._reserves = policy.reserves
        self._takes_off = policy.backlog != "ever-growing"
        self._prefix_aware = policy.prefix_aware and all(
            instance.engine.options.prefix_cache for instance in self.instances
        )
        self._reappoints = policy.reappoints
        self._waiting = 0
        """Requests in all queues."""
        self._needs_remaining = policy.late_penalty is not None or policy.order in NEEDS_REMAINING

    @property
    def queue_s(self) -> list[float]:
        """`t_queue` of each instance as a sum, in seconds; see `queue_delays`."""
        return self.load.queue_s

    @property
    def unfinished(self) -> list[int]:
        """Requests of each instance that wait or run there."""
        return self.load.unfinished

    def queue_delays(self) -> list[float]:
        """`t_queue` of each instance now, in seconds."""
        return self.load.delays(self.now)

    def run(self, arrivals: Iterable[tuple[float, Query]]) -> Outcome:
        """Serve `(moment, query)` in order of time, to the end of the last one.

        Raises:
            PromptTooLong: when a call fits into no instance's memory.
            LawBroken: with `check_laws`, when a law does not hold.
        """
        source = iter(arrivals)
        following = next(source, None)
        arriving_at = inf if following is None else following[0]
        next_at = self._next_at
        engines = [instance.engine for instance in self.instances]
        finish = self._finish
        laws = self.laws
        few = len(next_at) <= _FEW
        while True:
            if few:
                moment = inf
                for at in next_at:
                    if at < moment:
                        moment = at
            else:
                moment = min(next_at)
            if moment < arriving_at:
                self.now = moment
                index = next_at.index(moment)
                engine = engines[index]
                finished = engine.advance()
                next_at[index] = engine.next_at
                for job in finished:
                    finish(job)  # type: ignore[arg-type]  # engines are given requests only
            elif following is not None:
                self.now = arriving_at
                self._arrive(following[1])
                following = next(source, None)
                arriving_at = inf if following is None else following[0]
            else:
                break
            if laws is not None:
                laws.check_event()
        if laws is not None:
            laws.check_end()
        self.outcome.requests = self._requests
        self.outcome.ended_at = self.now
        self.outcome.preemptions = sum(engine.preemptions for engine in engines)
        return self.outcome

    # -- transitions ---------------------------------------------------------------------------

    def _arrive(self, query: Query) -> None:
        now = self.now
        table = self.knowledge.table(query)
        slo_s = query.slo_s
        if slo_s is None:
            slo_s = self.slo_scale * table.alone_s
        self._queries += 1
        run = QueryRun(
            self._queries,
            table,
            arrived_at=now,
            deadline=now + slo_s,
            standalone_s=self.knowledge.standalone.seconds,
        )
        for index in table.roots:
            self._submit(run, index)

    def _submit(self, run: QueryRun, index: int) -> None:
        """A call whose needs have finished becomes a request, and is appointed."""
        self._requests = number = self._requests + 1
        knowledge = self.knowledge
        now = self.now
        call = run.table.calls[index]
        # `predicted_output_tokens`
        own = call.own_history
        answered = knowledge.answers
        predicted = answered[own if knowledge.finished[own] >= ENOUGH else call.any_history]
        request = Request(number, run, call, predicted, now)
        if self._reserves:
            request.kv_tokens = call.input_tokens + round(predicted)
        if self._needs_remaining:
            request.mean_s = mean_s = call.mean_start_s + knowledge.mean_output_s * predicted
            request.remaining_s = mean_s + knowledge.predicted_left(call.remaining)
        if self.laws is not None:
            self.laws.submitted(request)
        if call.input_tokens + call.output_tokens > self._least_tokens:
            appointed = appoint_among_able(
                request,
                now,
                load=self.load,
                appoint=self._appoint,
                decisions=self.decisions,
            )
        else:
            appointed = self._appoint(request, now)
        self._enqueue(request, appointed)
        if self._waiting and self._admitted[appointed] < self.instances[appointed].depth:
            self._admit(appointed)

    def _enqueue(self, request: Request, appointed: int) -> None:
        """Give the request its place in the queue of the instance it is appointed to, or start it
        there if nobody waits and it fits."""
        instance = self.instances[appointed]
        request.instance = appointed
        self._count(request, instance)
        prefix = request.prefix
        # All segments held, and none ever forgotten for another: nothing to remember.
        if (
            prefix
            and self._prefix_aware
            and (request.cached_tokens != request.call.prefix_tokens or instance.held.overflowed)
            and instance.held.hold(prefix)
        ):
            self.load.held_changed()
        queue = instance.queue
        if not queue and instance.take(request):
            # Law 4 with nobody to order: what `admit` decides for a queue of one.
            if instance.by_priority:
                request.priority = self._place_in_order(request)
            self._start(request)
            return
        key = self._place_in_order(request)
        request.entry = entry = (key, request.ready_at, request.number, request)
        insort(queue, entry)
        self._waiting += 1
        self._waiting_s[appointed] += request.work_s

    def _key_put_off(self, request: Request) -> float:
        """Its key; put off where it cannot be in time any more."""
        key = self._key(request)
        penalty = self._late_penalty
        assert penalty is not None
        run = request.run
        request.last_chance = last_chance(
            deadline=run.deadline, remaining_s=self.policy.stretch * request.remaining_s
        )
        if self.now <= request.last_chance:
            return key
        request.last_chance = inf
        return put_off(key, slo_s=run.slo_s, penalty=penalty)

    def _count(self, request: Request, instance: SimulatedInstance) -> None:
        """Work that an instance has before it from now on: `t_queue` goes up."""
        index = request.instance
        if self._counts_shares:
            # `completion_seconds_of` the occupancy
            fixed, each_input, each_output, _ = instance.occupancy
            work_s = (
                fixed
                + each_input * (request.input_tokens - request.cached_tokens)
                + each_output * request.predicted_tokens
            )
        else:
            work_s = request.completion_s
        request.work_s = work_s
        busy_until = self._busy_until
        if busy_until is None:
            self._queue_s[index] += work_s
        else:
            # `busy_after`
            until = busy_until[index]
            busy_until[index] = (until if until > self.now else self.now) + work_s
        self._unfinished[index] += 1

    def _admit(self, index: int) -> None:
        """Start on one instance what it has room for."""
        instance = self.instances[index]
        while True:
            for request in instance.startable(self.now):
                entry = request.entry
                assert entry is not None
                request.priority = entry[0]
                self._leave_queue(request, instance)
                self._start(request)
            if not (
                self._reappoints
                and self._waiting
                and not instance.queue
                and self._admitted[index] < instance.depth
                and self._take_over(index)
            ):
                return

    def _leave_queue(self, request: Request, instance: SimulatedInstance) -> None:
        """A request waits no more; sums of floats do not come back to 0 by themselves (law 8)."""
        self._waiting -= 1
        waiting_s = self._waiting_s
        index = request.instance
        waiting_s[index] = waiting_s[index] - request.work_s if instance.queue else 0.0

    def _start(self, request: Request) -> None:
        """Give an admitted request to its engine."""
        request.admitted_at = now = self.now
        if self.laws is not None:
            self.laws.admitted(request)
        # An entry holds its request: without this each request would be a cycle.
        request.entry = None
        waited_s = now - request.ready_at
        if waited_s > self.outcome.longest_wait_s:
            self.outcome.longest_wait_s = waited_s
        index = request.instance
        if self._reappoints:
            self._held_s[index] += request.completion_s
        engine = self.instances[index].engine
        engine.submit(request, now)
        self._next_at[index] = engine.next_at

    def _finish(self, request: Request) -> None:
        index = request.instance
        run = request.run
        instance = self.instances[index]
        self._unfinished[index] -= 1
        if self._takes_off and (self._busy_until is None or not self._unfinished[index]):
            self._take_off(index, request.work_s)
        instance.finished(request)
        if self._reappoints:
            held_s = self._held_s
            held_s[index] = held_s[index] - request.completion_s if self._admitted[index] else 0.0
        run.attained_s += request.completion_s
        self.knowledge.learn_answer(request.call)
        if self.laws is not None:
            self.laws.finished(request)
        # As in the store: the slot goes on before the query's next calls are ready.
        if instance.queue or (self._reappoints and self._waiting):
            self._admit(index)
        run.left -= 1
        if run.left:
            missing = run.missing
            for follower in run.query.followers[request.index]:
                missing[follower] -= 1
                if not missing[follower]:
                    self._submit(run, follower)
        else:
            self._end(run)

    def _end(self, run: QueryRun) -> None:
        """A query has its answer."""
        self.outcome.query_ended(
            arrived_at=run.arrived_at,
            latency_s=self.now - run.arrived_at,
            alone_s=run.table.alone_s,
            slo_s=run.deadline - run.arrived_at,
        )
        if self._needs_remaining:
            self.knowledge.query_finished(run.query)

    def _take_off(self, index: int, work_s: float) -> None:
        """Finished work that an instance no longer has before it: `t_queue` goes down."""
        busy_until = self._busy_until
        if busy_until is not None:
            # A clock runs down by itself.
            if not self._unfinished[index]:
                busy_until[index] = 0.0
        elif self._unfinished[index]:
            self._queue_s[index] -= work_s
        else:
            # Sums of floats do not come back to 0 by themselves (law 8).
            self._queue_s[index] = 0.0

    # -- reappointment -------------------------------------------------------------------------

    def _take_over(self, index: int) -> bool:
        """Let an instance with room and no queue take what it would finish clearly sooner."""
        found = to_take_over(self.load, index, self.now)
        if found is None:
            return False
        request, cached_tokens, completion_s = found
        self._withdraw(request)
        request.cached_tokens = cached_tokens
        request.completion_s = completion_s
        self._enqueue(request, index)
        return True

    def _withdraw(self, request: Request) -> None:
        there = request.instance
        queue = self.instances[there].queue
        assert request.entry is not None
        del queue[bisect_left(queue, request.entry)]
        self._leave_queue(request, self.instances[there])
        self._unfinished[there] -= 1
        self._take_off(there, request.work_s)
        if self._busy_until is not None and self._unfinished[there]:
            # Work that was never begun is not run down by the clock.
            self._busy_until[there] -= request.work_s
