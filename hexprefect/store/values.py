"""What goes into the store's transitions and what comes out: frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hexprefect.errors import HexprefectError
from hexprefect.scheduling import Profile, RequestSize, Workflow
from hexprefect.scheduling.order import Order

RequestState = Literal["waiting", "admitted", "running", "finished", "failed", "cancelled"]
QueryState = Literal["running", "answered", "failed", "cancelled"]
InstanceState = Literal["alive", "suspect", "draining", "dead"]
Speaks = Literal["vllm", "llama.cpp", "openai"]


class LeaseLost(HexprefectError):
    """The request is no longer this process's to run: its lease expired and was given away."""


class UnknownTenant(HexprefectError):
    """The tenant is not in the store, or is disabled."""


class NeedsUnfinished(HexprefectError):
    """A request was submitted before all that it needs had finished (law 2)."""


class QueryEnded(HexprefectError):
    """A request was submitted for a query that is not running."""


class NoInstanceFits(HexprefectError):
    """A request is larger than any instance there is could ever hold: waiting would not help."""


class UnknownInstance(HexprefectError):
    """No instance of this name is in the store."""


class UnknownQuery(HexprefectError):
    """No query of this id is in the store."""


@dataclass(frozen=True, slots=True)
class NewQuery:
    """A question that arrives."""

    id: str
    tenant: str
    database: str
    slo_s: float
    arrived_at: float
    question: str | None = None


@dataclass(frozen=True, slots=True)
class RegisteredQuery:
    """The query as the store knows it; `resumed` when it was there before."""

    id: str
    deadline: float
    resumed: bool


@dataclass(frozen=True, slots=True)
class NewRequest:
    """An LLM call that is ready: all that it needs has finished."""

    id: str
    query_id: str
    stage: str
    size: RequestSize
    deadline: float
    """Of the query, epoch seconds."""
    database: str = ""
    branch: str | None = None
    needs: tuple[str, ...] = ()
    fingerprint: str = ""
    """Of the inputs: a finished request is only reused for the same ones."""
    visit: int = 0
    """How many requests of the stage its query had before: what is left depends on it."""
    ready_at: float | None = None
    """When its needs had finished; now, when `None`."""
    workflow: Workflow | None = None
    predict_output: bool = True
    """Replace `size.output_tokens` by the prediction from history, where there is one."""


@dataclass(frozen=True, slots=True)
class Grant:
    """An admitted request's right to run, held by this process."""

    request_id: str
    attempt: int
    instance: str
    submitted_at: float
    ready_at: float
    admitted_at: float
    started_at: float
    budget_s: float
    latest_start: float
    order_key: float
    """Its place in the instance's order, epoch seconds; the engine orders by it, too."""
    completion_s: float


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a submission."""

    request_id: str
    state: RequestState
    instance: str | None
    alpha: float
    grant: Grant | None = None
    result: Mapping[str, Any] | None = None
    """Of an identical request that had finished before, when the query was resumed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a request brought: kept in the store and reused when its query is resumed."""

    result: Mapping[str, Any] | None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """An instance as an operator describes it."""

    name: str
    url: str
    profile: Profile
    slots: int
    pool: str = ""
    model: str = ""
    speaks: Speaks = "openai"
    api_key_block: str | None = None
    admission_depth: int | None = None
    context_tokens: int | None = None
    learn_profile: bool = True
    """Whether finished requests may correct `profile`; else it is used as it is."""


@dataclass(frozen=True, slots=True)
class InstanceView:
    """An instance as the store sees it now."""

    spec: InstanceSpec
    profile: Profile
    """What dispatch reckons with: as learned from finished requests, or else as in `spec`."""
    state: InstanceState
    reason: str | None
    backlog_s: float
    waiting: int
    occupied: int
    reserved_kv_tokens: int
    held_prefixes: tuple[tuple[str, int], ...] = field(default=())
    profile_learned: bool = False
    profile_pinned: bool = False
    """Stays as it is until an operator releases it."""
    foreign_running: int = 0
    """Requests of others, as far as the server tells."""
    foreign_waiting: int = 0
    foreign_seen_at: float | None = None
    """Epoch seconds."""


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """The newest row of the α history; the defaults are the simulator's policy `hexprefect`."""

    alpha: float = 0.5
    policy: Literal["paper", "normalised"] = "normalised"
    beta: float = 1.0
    order: Order = "laxity"
    slowdown: float | None = 6.5
    """Bounds the depth of each instance (`scheduling.depth`); `None`: its slots do."""
    late_penalty: float | None = None
    """For overload: SLOs by which the deadline of a request is put off that cannot be in time any
    more, so that those which can go first; `None`: never."""
    stretch: float = 1.0
    """With `late_penalty`: how many times longer than predicted the rest is reckoned to take."""
