"""One instance as the scheduler sees it: its queue, its load, and the engine behind it."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from hexprefect.scheduling.admission import DEFAULT_PATIENCE
from hexprefect.scheduling.delay import stall_seconds
from hexprefect.scheduling.depth import LEARN_EVERY, MEMORY, depth_for_slowdown
from hexprefect.scheduling.occupancy import (
    DEFAULT_BATCH,
    coefficients,
    occupancy_coefficients,
)
from hexprefect.scheduling.order import put_off
from hexprefect.simulator.cluster import Instance
from hexprefect.simulator.engine import Engine
from hexprefect.simulator.held_prefixes import HeldPrefixes
from hexprefect.simulator.laws import LawBroken
from hexprefect.simulator.policies import Policy
from hexprefect.simulator.requests import Entry, Request

LOOK_AHEAD = 2 * DEFAULT_PATIENCE
"""Requests at the head of a queue that admission looks at."""

UNLIMITED = 1 << 30

_MOST_SEGMENTS = 64
"""Prefix segments that an instance is believed to hold at most, as in the store."""

_NOTHING: Mapping[str, int] = {}

_LAST_WEIGHT = 1.0 / MEMORY


class SimulatedInstance:
    """Queue, counters and engine of one instance. The simulation calls it; it knows no other.

    Args:
        instance: name, profile and the engine's options.
        policy: what orders, and bounds, what is admitted.
        number: its place in the cluster.
        admitted: requests admitted on each instance of the cluster; this one counts at its place,
            so that dispatch reads the load of all without asking each.
        most_beside: the sequences that one more could run beside, likewise.
        stall_s: `stall_seconds` of each, likewise.
    """

    __slots__ = (
        "_admitted",
        "_late_penalty",
        "_mean_output",
        "_mean_uncached",
        "_most_beside",
        "_number",
        "_seen",
        "_shared",
        "_shares",
        "_slowdown",
        "_stall_s",
        "by_priority",
        "coefficients",
        "depth",
        "engine",
        "held",
        "kv_tokens",
        "most_tokens",
        "name",
        "occupancy",
        "profile",
        "queue",
        "reserved_kv",
        "shared_kv",
    )

    def __init__(
        self,
        instance: Instance,
        policy: Policy,
        *,
        number: int,
        admitted: list[int],
        most_beside: list[int],
        stall_s: list[float],
    ) -> None:
        options = instance.options
        if policy.engine_priority:
            options = replace(options, scheduling="priority")
        self._number = number
        self._admitted = admitted
        self._most_beside = most_beside
        self._stall_s = stall_s if policy.counts_delay_suffered else None
        self._late_penalty = policy.late_penalty
        self._slowdown = policy.slowdown
        self.name = instance.name
        self.profile = instance.profile
        self.coefficients = coefficients(instance.profile)
        self.engine = Engine(instance.profile, options)
        self.by_priority = options.scheduling == "priority"
        """Whether the engine orders what waits in it by the priority sent along."""
        self.kv_tokens = instance.profile.kv_tokens if policy.reserves else None
        self.most_tokens = instance.profile.kv_tokens or UNLIMITED
        self.queue: list[Entry] = []
        """Waiting requests, first to be served first."""
        self.reserved_kv = 0
        """KV tokens reserved by admitted requests, without the segments they share."""
        self._shares = options.prefix_cache
        self._shared: dict[str, int] = {}
        """How many admitted requests share each segment."""
        self.shared_kv = 0
        """KV tokens of those segments, each once."""
        self.depth = UNLIMITED
        if policy.reserves:
            self.depth = min(options.slots, policy.depth or options.slots)
        most_beside[number] = self.depth - 1
        self.occupancy = occupancy_coefficients(
            instance.profile, batch=min(DEFAULT_BATCH, self.depth)
        )
        self.held = HeldPrefixes(capacity_tokens=instance.profile.kv_tokens, most=_MOST_SEGMENTS)
        """What it is believed to have cached."""
        self._seen = 0
        self._mean_uncached = 0.0
        self._mean_output = 0.0

    @property
    def admitted(self) -> int:
        """Requests that its engine has been given and that have not finished."""
        return self._admitted[self._number]

    # -- what the laws ask ---------------------------------------------------------------------

    def would_have_fitted(self, request: Request, *, instead_of: Request) -> bool:
        """Whether a request had room where another one was admitted just now."""
        if self.kv_tokens is None:
            return True
        free_kv = self.kv_tokens - self.reserved_kv - self.shared_kv
        return self._needed(request) <= free_kv + instead_of.kv_reserved

    def check_capacity(self) -> None:
        """Law 3: what is reserved, and what the engine uses, never exceeds what there is.

        One request alone may take more than was reserved for it: its answer was longer than
        predicted, and there is nobody else to make room for it. A depth may have become less than
        what is inside; so it is checked when something is admitted.
        """
        kv_tokens = self.profile.kv_tokens
        alone = self.admitted <= 1
        broken = self.kv_tokens is not None and self.admitted > self.engine.options.slots
        if kv_tokens is not None and not alone:
            broken |= self.reserved_kv + self.shared_kv > kv_tokens and self.kv_tokens is not None
            broken |= self.engine.decoding > 1 and self.engine.used_kv_tokens > kv_tokens
        if broken:
            raise LawBroken(
                f"law 3: {self.name} holds {self.admitted} of {self.depth} requests, reserved "
                f"{self.reserved_kv} + {self.shared_kv} and uses {self.engine.used_kv_tokens} of "
                f"{kv_tokens} KV tokens."
            )

    @property
    def is_idle(self) -> bool:
        """Law 8: nothing waits, runs or is reserved."""
        return not (self.queue or self.admitted or self.reserved_kv or self.shared_kv) and (
            self.engine.idle
        )

    # -- the queue -----------------------------------------------------------------------------

    def can_hold(self, request: Request) -> bool:
        """Whether it could run here, alone."""
        return request.input_tokens + request.output_tokens <= self.most_tokens

    def fits(self, request: Request) -> bool:
        """Whether memory is free for it now."""
        if self.kv_tokens is None:
            return True
        return self._needed(request) <= self.kv_tokens - self.reserved_kv - self.shared_kv

    def take(self, request: Request) -> bool:
        """Admit a request that nobody else waits with, if it fits."""
        admitted = self._admitted[self._number]
        if admitted >= self.depth:
            return False
        if self.kv_tokens is None:
            self._admitted[self._number] = admitted + 1
            return True
        if admitted:
            free_kv = self.kv_tokens - self.reserved_kv - self.shared_kv
            # It needs no more than its own tokens, and less where others share its segments.
            if request.kv_tokens > free_kv and self._needed(request) > free_kv:
                return False
        self._reserve(request)
        return True

    def startable(self, now: float) -> Sequence[Request]:
        """Take the requests that start now from the queue: law 4, by `admit`."""
        queue = self.queue
        admitted = self._admitted[self._number]
        free = self.depth - admitted
        if free <= 0 or not queue:
            return ()
        if self._late_penalty is not None:
            self.put_off_late(now)
        kv_tokens = self.kv_tokens
        if kv_tokens is None:
            started = [entry[3] for entry in queue[:free]]
            del queue[:free]
            self._admitted[self._number] += len(started)
            return started
        started = []
        while queue and free > 0:
            # What a request needs depends on the segments that others use at that moment, so
            # requests are let in one at a time.
            free_kv = kv_tokens - self.reserved_kv - self.shared_kv
            chosen = queue[0][3]
            if (
                chosen.kv_tokens <= free_kv
                or not self._admitted[self._number]
                or self._needed(chosen) <= free_kv
            ):
                del queue[0]
            else:
                passing = self._pass_over(free_kv)
                if passing is None:
                    break
                chosen = passing
            self._reserve(chosen)
            free -= 1
            started.append(chosen)
            if self._late_penalty is not None:
                self.put_off_late(now)
        return started

    def _pass_over(self, free_kv: int) -> Request | None:
        """The first request that fits, where the head of the queue does not: what `admit` chooses
        for one free slot (a test compares them)."""
        queue = self.queue
        shared = self._shared if self._shares else _NOTHING
        overtakers_left: float = inf
        for place, entry in enumerate(queue[:LOOK_AHEAD]):
            request = entry[3]
            # `_needed`
            needed = request.kv_tokens
            if needed > free_kv:
                for key, tokens in request.prefix:
                    if key in shared:
                        needed -= tokens
            if needed <= free_kv:
                for overtaken in queue[:place]:
                    overtaken[3].passed_over += 1
                return queue.pop(place)[3]
            patience = DEFAULT_PATIENCE - request.passed_over
            if patience < overtakers_left:
                overtakers_left = float(patience)
                if patience <= 0:
                    break
        return None

    def _needed(self, request: Request) -> int:
        """KV tokens that admitting it takes: its own, and segments that nobody shares yet."""
        needed = request.kv_tokens
        if self._shares:
            shared = self._shared
            for key, tokens in request.prefix:
                if key in shared:
                    needed -= tokens
        return needed

    def _reserve(self, request: Request) -> None:
        reserved = request.kv_tokens
        if self._shares:
            shared = self._shared
            for key, tokens in request.prefix:
                reserved -= tokens
                users = shared.get(key, 0)
                if not users:
                    self.shared_kv += tokens
                shared[key] = users + 1
        request.kv_reserved = reserved
        self.reserved_kv += reserved
        self._admitted[self._number] += 1

    def finished(self, request: Request) -> None:
        """Free what an admitted request held, and learn how large requests are."""
        self._admitted[self._number] -= 1
        if self.kv_tokens is not None:
            self.reserved_kv -= request.kv_reserved
            if self._shares:
                shared = self._shared
                for key, tokens in request.prefix:
                    users = shared[key] - 1
                    if users:
                        shared[key] = users
                    else:
                        del shared[key]
                        self.shared_kv -= tokens
        if self._slowdown is not None or self._stall_s is not None:
            self._learn(request)

    def _learn(self, request: Request) -> None:
        self._seen = seen = self._seen + 1
        weight = 1.0 / seen if seen < MEMORY else _LAST_WEIGHT
        self._mean_uncached += weight * (request.uncached_tokens - self._mean_uncached)
        self._mean_output += weight * (request.call.answer_tokens - self._mean_output)
        if self._stall_s is not None:
            self._stall_s[self._number] = stall_seconds(
                self.coefficients,
                uncached_tokens=self._mean_uncached,
                output_tokens=self._mean_output,
            )
        slowdown = self._slowdown
        if slowdown is not None and seen % LEARN_EVERY == 0:
            self.depth = min(
                self.engine.options.slots,
                depth_for_slowdown(
                    slowdown,
                    self.profile,
                    uncached_tokens=self._mean_uncached,
                    output_tokens=self._mean_output,
                ),
            )
            self.occupancy = occupancy_coefficients(
                self.profile, batch=min(DEFAULT_BATCH, self.depth)
            )
            self._most_beside[self._number] = self.depth - 1

    def put_off_late(self, now: float) -> None:
        """Put what can no longer be in time behind what can, as far as anybody looks: the policy
        for overload, where there is one."""
        penalty = self._late_penalty
        if penalty is None:
            return
        queue = self.queue
        place = 0
        while place < LOOK_AHEAD and place < len(queue):
            if now <= queue[place][3].last_chance:
                place += 1
                continue
            key, ready_at, number, request = queue.pop(place)
            request.last_chance = inf
            key = put_off(key, slo_s=request.run.slo_s, penalty=penalty)
            request.entry = (key, ready_at, number, request)
            insort(queue, request.entry)
