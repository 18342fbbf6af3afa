"""The load of one instance inside a transaction: its room, what is reserved, what waits for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hexprefect.scheduling import Profile, RequestSize, cached_prefix_tokens, hold_prefix
from hexprefect.scheduling.delay import (
    busy_after,
    promised_after,
    queue_delay,
    silent_seconds,
    stall_seconds,
)
from hexprefect.scheduling.depth import LEARN_EVERY, MEMORY, depth_for_slowdown
from hexprefect.scheduling.occupancy import (
    DEFAULT_BATCH,
    Coefficients,
    coefficients,
    completion_seconds_of,
    occupancy_coefficients,
)
from hexprefect.store.values import InstanceSpec, InstanceView


@dataclass(slots=True)
class InstanceLoad:
    """A row of `instances`, changed in memory and written back once."""

    name: str
    profile: Profile
    """As learned from finished requests, where it has been; else as described."""
    depth: int
    """Requests it is given at once: its admission depth, or else its slots."""
    slots: int
    """Requests that it runs at once, whoever sent them."""
    context_tokens: int | None
    state: str
    reason: str | None
    changed_at: float
    backlog_us: int
    waiting: int
    occupied: int
    reserved_kv_tokens: int
    held: tuple[tuple[str, int], ...]
    foreign: int = 0
    """Requests of others that it runs or has waiting."""
    foreign_us: int = 0
    """What these are reckoned to take, in microseconds."""
    busy_until: float = 0.0
    """When it will have done what it was appointed so far, epoch seconds (`scheduling.delay`)."""
    queued_us: int = 0
    """Engine time of what waits here, in microseconds."""
    promised_until: float = 0.0
    """When it should have finished all it holds, even if slowed down, epoch seconds."""
    mean_uncached: float = 0.0
    """Mean input tokens of what finished here that were not cached."""
    mean_output: float = 0.0
    measured: int = 0
    """Requests of which these are the means."""
    learned_depth: int | None = None
    """The depth that `slowdown` allows for such requests; `None` while too few have finished."""
    slowdown: float | None = None
    """What bounds its depth, unless an operator gave it one."""
    steered: bool = False
    """Whether an operator gave it a depth."""
    dirty: bool = False

    @classmethod
    def from_row(cls, row: Mapping[str, Any], *, slowdown: float | None = None) -> InstanceLoad:
        """From a row of the table; `slowdown` as in the settings of dispatch."""
        return cls(
            name=row["name"],
            profile=profile_of(row),
            depth=row["admission_depth"] or row["slots"],
            slots=row["slots"],
            context_tokens=row["context_tokens"],
            state=row["state"],
            reason=row["reason"],
            changed_at=row["changed_at"],
            backlog_us=row["backlog_us"],
            waiting=row["waiting"],
            occupied=row["occupied"],
            reserved_kv_tokens=row["reserved_kv_tokens"],
            held=tuple((key, tokens) for key, tokens in row["held_prefixes"]),
            foreign=row["foreign_running"] + row["foreign_waiting"],
            foreign_us=row["foreign_us"],
            busy_until=row["busy_until"],
            queued_us=row["queued_us"],
            promised_until=row["promised_until"],
            mean_uncached=row["mean_uncached"],
            mean_output=row["mean_output"],
            measured=row["measured"],
            learned_depth=row["learned_depth"],
            slowdown=slowdown,
            steered=row["admission_depth"] is not None,
        )

    @property
    def capacity(self) -> int:
        """Requests of ours that may be there at once: others' take slots, but never the last."""
        room = self.depth
        if self.learned_depth is not None and not self.steered:
            room = min(room, self.learned_depth)
        return max(1, min(room, self.slots - self.foreign)) if self.foreign else room

    @property
    def serves(self) -> bool:
        """Whether waiting requests may start on it."""
        return self.state in {"alive", "suspect"}

    def queue_delay(self, now: float) -> float:
        """`t_queue(m)`: seconds until what it was appointed is done, others' requests included."""
        own_s = queue_delay(
            self.busy_until,
            now=now,
            waiting_s=self.queued_us / 1e6,
            silent_s=silent_seconds(self.promised_until, now=now, held=self.occupied),
        )
        return own_s + self.foreign_us / 1e6 / self.depth

    @property
    def free_kv_tokens(self) -> int | None:
        """KV memory that is not reserved, or `None` when it is not a limit."""
        if self.profile.kv_tokens is None:
            return None
        return self.profile.kv_tokens - self.reserved_kv_tokens

    def fits(self, kv_tokens: int) -> bool:
        """Whether a request fits beside what runs now."""
        free = self.free_kv_tokens
        return free is None or kv_tokens <= free

    def can_hold(self, kv_tokens: int) -> bool:
        """Whether a request could ever run here, alone."""
        if self.context_tokens is not None and kv_tokens > self.context_tokens:
            return False
        return self.profile.kv_tokens is None or kv_tokens <= self.profile.kv_tokens

    @property
    def coefficients(self) -> Coefficients:
        """Of its profile, as the functions of `scheduling` take them."""
        return coefficients(self.profile)

    @property
    def beside(self) -> int:
        """Sequences that one more would share its steps with.

        What waits counts, too: it waits because the depth is reached, or starts in this
        transaction.
        """
        own = min(self.occupied + self.waiting, self.capacity - 1)
        return own + min(self.foreign, self.slots - 1)

    @property
    def stall_seconds(self) -> float:
        """Delay of each token of an answer here for each neighbour (`scheduling.delay`)."""
        return stall_seconds(
            self.coefficients, uncached_tokens=self.mean_uncached, output_tokens=self.mean_output
        )

    def cached_tokens(self, size: RequestSize) -> int:
        """Input tokens of a request that it is believed to hold."""
        if not size.prefix:
            return 0
        held = frozenset(key for key, _ in self.held)
        return min(size.input_tokens, cached_prefix_tokens(size.prefix, held))

    @property
    def most_tokens(self) -> int | None:
        """How many tokens a request may need to run here, alone; `None` when there is no limit."""
        limits = [self.context_tokens, self.profile.kv_tokens]
        return min((limit for limit in limits if limit is not None), default=None)

    def completion_seconds(self, size: RequestSize) -> float:
        """`t_comp(r, m)` with what is cached here and what runs here now."""
        uncached = size.input_tokens - self.cached_tokens(size)
        return completion_seconds_of(self.coefficients, uncached, size.output_tokens, self.beside)

    def work_seconds(self, size: RequestSize) -> float:
        """Engine time that a request takes here (`scheduling.occupancy`)."""
        return completion_seconds_of(
            occupancy_coefficients(self.profile, batch=min(DEFAULT_BATCH, self.capacity)),
            size.input_tokens - self.cached_tokens(size),
            size.output_tokens,
        )

    # -- what happens to it ---------------------------------------------------------------------

    def queue(self, row: Mapping[str, Any], *, now: float) -> None:
        """A request enters its queue."""
        self.waiting += 1
        self.queued_us += row["work_us"]
        self.backlog_us += row["completion_us"]
        self.busy_until = busy_after(self.busy_until, now=now, work_s=row["work_us"] / 1e6)
        self.dirty = True

    def unqueue(self, row: Mapping[str, Any]) -> None:
        """A request leaves its queue unserved, and takes its share of the delay along."""
        self.waiting -= 1
        self.queued_us -= row["work_us"]
        self.backlog_us -= row["completion_us"]
        self._settle_clock(self.busy_until - row["work_us"] / 1e6)

    def admit(self, row: Mapping[str, Any], *, now: float) -> None:
        """A request of its queue starts."""
        self.waiting -= 1
        self.queued_us -= row["work_us"]
        self.occupied += 1
        self.promised_until = promised_after(
            self.promised_until, now=now, completion_s=row["completion_us"] / 1e6
        )
        self.reserved_kv_tokens += row["kv_tokens"]
        self.dirty = True

    def release(self, row: Mapping[str, Any]) -> None:
        """A request that was admitted is done here, or done with; its clock runs down by itself."""
        self.occupied -= 1
        self.promised_until = self.promised_until if self.occupied else 0.0
        self.reserved_kv_tokens -= row["kv_tokens"]
        self.backlog_us -= row["completion_us"]
        self._settle_clock(self.busy_until)

    def _settle_clock(self, busy_until: float) -> None:
        self.busy_until = busy_until if self.waiting or self.occupied else 0.0
        self.dirty = True

    def measure(self, *, uncached_tokens: int, output_tokens: int) -> None:
        """Learn how large the requests are that finish here."""
        self.measured += 1
        weight = 1.0 / min(self.measured, MEMORY)
        self.mean_uncached += weight * (uncached_tokens - self.mean_uncached)
        self.mean_output += weight * (output_tokens - self.mean_output)
        if self.measured % LEARN_EVERY == 0:
            self.learn_depth(self.slowdown)
        self.dirty = True

    def learn_depth(self, slowdown: float | None) -> None:
        """Bound its depth by a slowdown, as far as the sizes of its requests are known."""
        self.slowdown = slowdown
        self.learned_depth = None
        if slowdown is not None and self.measured >= LEARN_EVERY:
            self.learned_depth = depth_for_slowdown(
                slowdown,
                self.profile,
                uncached_tokens=self.mean_uncached,
                output_tokens=self.mean_output,
            )
        self.dirty = True

    def hold(self, prefix: Sequence[Sequence[Any]]) -> None:
        """Believe that it holds these leading segments from now on: a prompt with them goes there.

        Counted from the appointment on, so that the next prompt with them follows at once.
        """
        if prefix:
            self.held = hold_prefix(
                self.held,
                tuple((key, tokens) for key, tokens in prefix),
                capacity_tokens=self.profile.kv_tokens,
            )
            self.dirty = True

    def as_update(self) -> dict[str, Any]:
        """Parameters of the statement that writes it back."""
        return {
            "key": self.name,
            "new_state": self.state,
            "new_reason": self.reason,
            "new_changed_at": self.changed_at,
            "new_backlog_us": self.backlog_us,
            "new_waiting": self.waiting,
            "new_occupied": self.occupied,
            "new_reserved_kv_tokens": self.reserved_kv_tokens,
            "new_held_prefixes": [list(entry) for entry in self.held],
            "new_busy_until": self.busy_until,
            "new_queued_us": self.queued_us,
            "new_promised_until": self.promised_until,
            "new_mean_uncached": self.mean_uncached,
            "new_mean_output": self.mean_output,
            "new_measured": self.measured,
            "new_learned_depth": self.learned_depth,
        }


def profile_of(row: Mapping[str, Any]) -> Profile:
    """What predicts durations on an instance, from its row: as learned, or else as described."""
    return Profile(**{**row["profile"], **(row["learned_profile"] or {})})


def spec_of(row: Mapping[str, Any]) -> InstanceSpec:
    """The operator's description of an instance, from its row."""
    return InstanceSpec(
        name=row["name"],
        url=row["url"],
        profile=Profile(**row["profile"]),
        slots=row["slots"],
        pool=row["pool"],
        model=row["model"],
        speaks=row["speaks"],
        api_key_block=row["api_key_block"],
        admission_depth=row["admission_depth"],
        context_tokens=row["context_tokens"],
        learn_profile=row["learn_profile"],
    )


def view_of(row: Mapping[str, Any]) -> InstanceView:
    """Everything about an instance, from its row."""
    return InstanceView(
        spec=spec_of(row),
        profile=profile_of(row),
        state=row["state"],
        reason=row["reason"],
        backlog_s=row["backlog_us"] / 1e6,
        waiting=row["waiting"],
        occupied=row["occupied"],
        reserved_kv_tokens=row["reserved_kv_tokens"],
        held_prefixes=tuple((key, tokens) for key, tokens in row["held_prefixes"]),
        profile_learned=row["learned_profile"] is not None,
        profile_pinned=row["profile_pinned"],
        foreign_running=row["foreign_running"],
        foreign_waiting=row["foreign_waiting"],
        foreign_seen_at=row["foreign_seen_at"],
    )


def profile_columns(profile: Profile) -> dict[str, Any]:
    """A profile as the JSON column keeps it."""
    return asdict(profile)
