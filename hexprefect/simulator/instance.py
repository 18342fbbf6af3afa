"""One instance as the scheduler sees it: its queue, its load, and the engine behind it."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import replace

from hexprefect.scheduling import Waiting, admit, cached_prefix_tokens, hold_prefix
from hexprefect.scheduling.admission import DEFAULT_PATIENCE
from hexprefect.scheduling.depth import depth_for_slowdown
from hexprefect.scheduling.occupancy import (
    coefficients,
    completion_seconds_of,
    occupancy_coefficients,
)
from hexprefect.simulator.cluster import Instance
from hexprefect.simulator.engine import Engine
from hexprefect.simulator.engine_values import Prefix
from hexprefect.simulator.laws import LawBroken
from hexprefect.simulator.policies import Policy
from hexprefect.simulator.requests import Entry, Request

LOOK_AHEAD = 2 * DEFAULT_PATIENCE
"""Requests at the head of a queue that admission looks at."""

UNLIMITED = 1 << 30

_FIRST_LATE = (1,)
"""Sorts before every late entry and after all others."""

_MOST_SEGMENTS = 256
"""Prefix segments that an instance is believed to hold at most."""

_LEARN_EVERY = 16
"""Finished requests between two changes of the depth."""

_MEMORY = 500
"""Requests over which the mean size forgets."""


class SimulatedInstance:
    """Queue, counters and engine of one instance. The simulation calls it; it knows no other."""

    __slots__ = (
        "_before_late",
        "_held",
        "_held_keys",
        "_mean_output",
        "_mean_uncached",
        "_occupancy",
        "_overflows",
        "_policy",
        "_seen",
        "_shared",
        "_shares",
        "admitted",
        "coefficients",
        "depth",
        "engine",
        "kv_tokens",
        "most_tokens",
        "name",
        "profile",
        "queue",
        "reserved_kv",
        "shared_kv",
    )

    def __init__(self, instance: Instance, policy: Policy) -> None:
        options = instance.options
        if policy.engine_priority:
            options = replace(options, scheduling="priority")
        self._policy = policy
        self.name = instance.name
        self.profile = instance.profile
        self.coefficients = coefficients(instance.profile)
        self._occupancy = occupancy_coefficients(instance.profile)
        self.engine = Engine(instance.profile, options)
        self.kv_tokens = instance.profile.kv_tokens if policy.reserves else None
        self.most_tokens = instance.profile.kv_tokens or UNLIMITED
        self.queue: list[Entry] = []
        """Waiting requests, first to be served first."""
        self.admitted = 0
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
        self._held: Prefix = ()
        self._held_keys: frozenset[str] = frozenset()
        self._overflows = False
        """Whether some segment was ever forgotten for another."""
        self._before_late = 0
        """Requests admitted since a late one had its turn."""
        self._seen = 0
        self._mean_uncached = 0.0
        self._mean_output = 0.0

    # -- what dispatch asks --------------------------------------------------------------------

    def cached_tokens(self, prefix: Prefix) -> int:
        """Input tokens that this instance is believed to hold, from what it has served."""
        return cached_prefix_tokens(prefix, self._held_keys) if prefix else 0

    def work_seconds(self, request: Request) -> float:
        """What the request adds to this instance's queue delay."""
        if self._policy.backlog == "per-slot":
            return request.completion_s / self.depth
        if self._policy.backlog not in ("occupancy", "clock"):
            return request.completion_s
        return completion_seconds_of(
            self._occupancy,
            request.input_tokens - request.cached_tokens,
            request.predicted_tokens,
        )

    def will_hold(self, prefix: Prefix) -> bool:
        """Remember that a prompt with these segments was sent here; whether that changes anything.

        As long as everything that was ever sent fits, the order of use does not matter.
        """
        held = self._held_keys
        if not self._overflows:
            for key, _ in prefix:
                if key not in held:
                    break
            else:
                return False
        before = len(self._held)
        self._held = hold_prefix(
            self._held, prefix, capacity_tokens=self.profile.kv_tokens, most=_MOST_SEGMENTS
        )
        keys = frozenset(key for key, _ in self._held)
        self._overflows = self._overflows or not keys >= held or len(keys) < before
        changed = keys != held
        self._held_keys = keys
        return changed

    # -- what the laws ask ---------------------------------------------------------------------

    def fits(self, request: Request) -> bool:
        """Whether a slot and memory are free for a request."""
        if self.admitted >= self.depth:
            return False
        if self.kv_tokens is None:
            return True
        return self._needed(request) <= self.kv_tokens - self.reserved_kv - self.shared_kv

    def check_capacity(self) -> None:
        """Law 3: what is reserved, and what the engine uses, never exceeds what there is.

        One request alone may take more than was reserved for it: its answer was longer than
        predicted, and there is nobody else to make room for it.
        """
        kv_tokens = self.profile.kv_tokens
        alone = self.admitted <= 1
        broken = self.admitted > self.depth and self._policy.slowdown is None
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

    def take(self, request: Request) -> bool:
        """Admit a request that nobody else waits with, if it fits."""
        if self.admitted >= self.depth:
            return False
        if self.kv_tokens is None:
            self.admitted += 1
            return True
        if self.admitted and (
            self._needed(request) > self.kv_tokens - self.reserved_kv - self.shared_kv
        ):
            return False
        self._reserve(request)
        return True

    def startable(self, now: float) -> list[Request]:
        """Take the requests that start now from the queue: law 4, by `admit`."""
        queue = self.queue
        free = self.depth - self.admitted
        if free <= 0 or not queue:
            return []
        if self._policy.late_last:
            self._demote(now)
        kv_tokens = self.kv_tokens
        if kv_tokens is None:
            started = [entry[4] for entry in queue[:free]]
            del queue[:free]
            self.admitted += len(started)
            return started
        started = []
        while queue and free > 0:
            # What a request needs depends on the segments that others use at that moment, so
            # requests are let in one at a time.
            free_kv = kv_tokens - self.reserved_kv - self.shared_kv
            first = queue[0][4]
            late = self._late_whose_turn_it_is(free_kv)
            if late is not None:
                chosen = late
            elif not self.admitted or self._needed(first) <= free_kv:
                chosen = queue.pop(0)[4]
            else:
                taken = self._pass_over(free_kv)
                if taken is None:
                    break
                chosen = taken
            self._reserve(chosen)
            free -= 1
            started.append(chosen)
        return started

    def _late_whose_turn_it_is(self, free_kv: int) -> Request | None:
        """The first late request, after enough others have gone before it."""
        if not self._policy.late_last:
            return None
        place = bisect_left(self.queue, _FIRST_LATE)
        if place == len(self.queue) or place == 0:
            self._before_late = 0
            return None
        self._before_late += 1
        late = self.queue[place][4]
        if self._before_late <= self._policy.late_turn or self._needed(late) > free_kv:
            return None
        self._before_late = 0
        return self.queue.pop(place)[4]

    def _pass_over(self, free_kv: int) -> Request | None:
        """The first request that fits, where the head of the queue does not."""
        head = self.queue[:LOOK_AHEAD]
        decided = admit(
            [
                Waiting(
                    id=str(place),
                    order_key=key,
                    ready_at=ready_at,
                    kv_tokens=self._needed(request),
                    passed_over=request.passed_over,
                )
                for place, (_, key, ready_at, _, request) in enumerate(head)
            ],
            free_slots=1,
            free_kv_tokens=free_kv,
        )
        if not decided.admitted:
            return None
        for place in decided.passed_over:
            head[int(place)][4].passed_over += 1
        return self.queue.pop(int(decided.admitted[0]))[4]

    def _needed(self, request: Request) -> int:
        """KV tokens that admitting it takes: its own, and segments that nobody shares yet."""
        needed = request.kv_tokens
        if self._shares:
            for key, tokens in request.prefix:
                if key in self._shared:
                    needed -= tokens
        return needed

    def _reserve(self, request: Request) -> None:
        request.kv_reserved = request.kv_tokens
        if self._shares:
            for key, tokens in request.prefix:
                request.kv_reserved -= tokens
                users = self._shared.get(key, 0)
                if not users:
                    self.shared_kv += tokens
                self._shared[key] = users + 1
        self.reserved_kv += request.kv_reserved
        self.admitted += 1

    def _free(self, request: Request) -> None:
        self.admitted -= 1
        if self.kv_tokens is None:
            return
        self.reserved_kv -= request.kv_reserved
        if self._shares:
            for key, tokens in request.prefix:
                users = self._shared[key] - 1
                if users:
                    self._shared[key] = users
                else:
                    del self._shared[key]
                    self.shared_kv -= tokens

    def _demote(self, now: float) -> None:
        """Move what can no longer be in time behind what can."""
        queue = self.queue
        while queue[0][0] == 0 and now > queue[0][4].last_chance:
            _, key, ready_at, number, request = queue.pop(0)
            request.entry = (1, key, ready_at, number, request)
            insort(queue, request.entry)

    def finished(self, request: Request) -> None:
        """Free what an admitted request held, and learn how large requests are."""
        self._free(request)
        slowdown = self._policy.slowdown
        if slowdown is None:
            return
        self._seen += 1
        weight = 1.0 / min(self._seen, _MEMORY)
        self._mean_uncached += weight * (request.uncached_tokens - self._mean_uncached)
        self._mean_output += weight * (request.output_tokens - self._mean_output)
        if self._seen % _LEARN_EVERY == 0:
            self.depth = min(
                self.engine.options.slots,
                depth_for_slowdown(
                    slowdown,
                    self.profile,
                    uncached_tokens=self._mean_uncached,
                    output_tokens=self._mean_output,
                ),
            )
