"""The load of one instance inside a transaction: its room, what is reserved, what waits for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hexprefect.scheduling import (
    Profile,
    RequestSize,
    cached_prefix_tokens,
    completion_seconds,
    hold_prefix,
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
    dirty: bool = False

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> InstanceLoad:
        """From a row of the table."""
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
        )

    @property
    def capacity(self) -> int:
        """Requests of ours that may be there at once: others' take slots, but never the last."""
        return max(1, min(self.depth, self.slots - self.foreign)) if self.foreign else self.depth

    @property
    def serves(self) -> bool:
        """Whether waiting requests may start on it."""
        return self.state in {"alive", "suspect"}

    @property
    def queue_delay_s(self) -> float:
        """`t_queue(m)`: seconds of unfinished work, shared by the requests it runs at once."""
        return (self.backlog_us + self.foreign_us) / 1e6 / self.depth

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
    def most_tokens(self) -> int | None:
        """How many tokens a request may need to run here, alone; `None` when there is no limit."""
        limits = [self.context_tokens, self.profile.kv_tokens]
        return min((limit for limit in limits if limit is not None), default=None)

    def completion_seconds(self, size: RequestSize) -> float:
        """`t_comp(r, m)` with what is cached here and what runs here now."""
        held = frozenset(key for key, _ in self.held) if size.prefix else frozenset()
        return completion_seconds(
            size,
            self.profile,
            cached_tokens=cached_prefix_tokens(size.prefix, held),
            batch=min(self.occupied + 1, self.capacity) + min(self.foreign, self.slots - 1),
        )

    def serve_prefix(self, prefix: Sequence[Sequence[Any]]) -> None:
        """Remember that a prompt with these leading segments is being served here."""
        if prefix:
            self.held = hold_prefix(
                self.held,
                tuple((key, tokens) for key, tokens in prefix),
                capacity_tokens=self.profile.kv_tokens,
            )

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
