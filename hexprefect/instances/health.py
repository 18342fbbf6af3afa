"""Whether an instance lives, from what happened to it: alive → suspect → dead, and back.

Pure: it is told what happened and when, and answers with changes of state. Evidence from real
traffic counts first. A probe says only that the server's front door answers: a busy server that
misses one is not dead (sgl-project/sglang PR#9198), and one whose engine hangs still passes it.
Each instance is judged by its own evidence alone (vllm-project/production-stack#749).

The circuit breaker is the same machine: a dead instance gets no requests; after a pause and a
healthy probe it is suspect on trial; the first outcome of a request makes it alive, or dead again
with twice the pause. One request is enough to tell; the store, which knows no trial, gives it as
many as it gives a suspect: none, while any other instance is alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from hexprefect.instances.errors import FailureKind

Liveness = Literal["alive", "suspect", "dead"]

_SAYS_NOTHING: frozenset[FailureKind] = frozenset({"overloaded", "rejected"})
"""The server answered: it lives, whatever it thought of the request."""
_QUICK: frozenset[FailureKind] = frozenset({"refused", "unauthorised"})
"""Two of these in a row are enough: trying again will not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """How much evidence it takes. Times in seconds.

    Args:
        refusals_to_death: failures in a row of the quick kinds (nothing listens, the key is wrong).
        failures_to_death: failures in a row of other kinds (connections that died, 5xx, missed
            probes while idle).
        timeouts_to_death: requests in a row that got no answer in their time; budgets may be short
            and servers busy, so this also takes `hung_after_s`.
        hung_after_s: time without any sign of life before silence counts as death.
        breaker_window: outcomes that the failure share is taken over.
        breaker_share: share of failures among them at which the circuit opens.
        evidence_expires_s: failures older than this are forgotten.
        probe_suspect_every_s: between probes of a suspect.
        probe_quiet_every_s: between probes of an instance that is alive and has no traffic.
        first_pause_s: before a dead instance may be tried again; doubled for each death on trial.
        longest_pause_s: limit of that doubling.
        probes_to_life: healthy probes in a row that end a trial without traffic.
    """

    refusals_to_death: int = 2
    failures_to_death: int = 3
    timeouts_to_death: int = 4
    hung_after_s: float = 10.0
    breaker_window: int = 20
    breaker_share: float = 0.5
    evidence_expires_s: float = 60.0
    probe_suspect_every_s: float = 1.0
    probe_quiet_every_s: float = 15.0
    first_pause_s: float = 1.0
    longest_pause_s: float = 60.0
    probes_to_life: int = 3


@dataclass(frozen=True, slots=True)
class StateChange:
    """An instance's liveness has changed."""

    instance: str
    before: Liveness
    after: Liveness
    reason: str
    at: float


@dataclass(slots=True)
class _Record:
    """What is known of one instance."""

    state: Liveness = "alive"
    trial: bool = False
    """Suspect because it is coming back, not because it failed."""
    reason: str = ""
    quick: int = 0
    failures: int = 0
    timeouts: int = 0
    last_failure_at: float | None = None
    silent_since: float | None = None
    """The first failure after the last sign of life."""
    outcomes: deque[bool] = field(default_factory=deque)
    pause_s: float = 0.0
    retry_at: float = 0.0
    healthy_probes: int = 0
    probed_at: float | None = None
    heard_at: float | None = None
    """The last traffic, of whatever outcome."""

    def clear(self) -> None:
        """Forget the evidence against it."""
        self.quick = self.failures = self.timeouts = 0
        self.last_failure_at = self.silent_since = None


class HealthMonitor:
    """The liveness of many instances. `now` is any clock that does not go back, in seconds."""

    def __init__(self, policy: HealthPolicy | None = None) -> None:
        self.policy = policy or HealthPolicy()
        self._records: dict[str, _Record] = {}

    # -- evidence ------------------------------------------------------------------------------

    def success(self, instance: str, now: float) -> StateChange | None:
        """A request to it finished well."""
        record = self._record(instance)
        record.heard_at = now
        self._count(record, failed=False)
        record.clear()
        if record.state == "dead":
            # A straggler from before its death; it shows life, and earns it a trial.
            return self._on_trial(instance, record, "a request finished after all", now)
        if record.state == "alive" or self._failing_share(record) is not None:
            return None
        record.pause_s = 0.0
        return self._become(instance, record, "alive", "a request finished", now)

    def failure(self, instance: str, kind: FailureKind, now: float) -> StateChange | None:
        """A request to it failed in this way (`InstanceError.kind`)."""
        record = self._record(instance)
        record.heard_at = now
        if kind in _SAYS_NOTHING:
            # An answer is a sign of life, but no proof that the engine works.
            record.silent_since = None
            return None
        if record.state == "dead":
            return None
        if kind != "timeout":
            self._count(record, failed=True)
        self._expire(record, now)
        self._blame(record, kind, now)
        if record.trial:
            return self._die(instance, record, f"failed its trial ({kind})", now)
        return self._suspect_or_die(instance, record, f"a request failed ({kind})", now)

    def probe(
        self,
        instance: str,
        healthy: bool,
        now: float,
        *,
        kind: FailureKind | None = None,
        busy: bool = False,
    ) -> StateChange | None:
        """A look at its health route.

        Args:
            healthy: what the route said.
            kind: the sort of failure, where it is not healthy.
            busy: whether requests of ours run on it: a busy server may be slow to say it is well.
        """
        record = self._record(instance)
        record.probed_at = now
        if healthy or kind == "overloaded":
            # A server that sheds its health checks is at work: it answered.
            return self._healthy_probe(instance, record, now)
        record.healthy_probes = 0
        if record.state == "dead":
            record.retry_at = now + record.pause_s
            return None
        if record.trial:
            return self._die(instance, record, f"failed a probe on trial ({kind})", now)
        self._expire(record, now)
        missed = kind in ("timeout", None)
        if missed and busy and not self._silent_too_long(record, now):
            record.silent_since = now if record.silent_since is None else record.silent_since
            if record.state == "alive":
                reason = "missed a health check while busy"
                return self._become(instance, record, "suspect", reason, now)
            return None
        # Here a missed probe counts as any failure: nothing else explains it.
        self._blame(record, "died" if missed or kind is None else kind, now)
        return self._suspect_or_die(instance, record, f"failed a probe ({kind})", now)

    def forget(self, instance: str) -> None:
        """It has left the fleet."""
        self._records.pop(instance, None)

    # -- answers -------------------------------------------------------------------------------

    def state(self, instance: str) -> Liveness:
        """Alive until there is evidence of something else."""
        record = self._records.get(instance)
        return "alive" if record is None else record.state

    def reason(self, instance: str) -> str:
        """Why it is in its state; empty where nothing ever happened."""
        record = self._records.get(instance)
        return "" if record is None else record.reason

    def admits(self, instance: str) -> int | None:
        """Requests that it may be given at once: None for any number, 1 on trial, 0 when dead."""
        record = self._records.get(instance)
        if record is None or (record.state != "dead" and not record.trial):
            return None
        return 0 if record.state == "dead" else 1

    def probes_due(self, instances: Iterable[str], now: float) -> list[str]:
        """Which of `instances` should be probed now."""
        return [instance for instance in instances if now >= self._probe_at(instance)]

    # -- the machine ---------------------------------------------------------------------------

    def _record(self, instance: str) -> _Record:
        return self._records.setdefault(instance, _Record())

    def _healthy_probe(self, instance: str, record: _Record, now: float) -> StateChange | None:
        record.healthy_probes += 1
        if record.state == "dead":
            if now < record.retry_at:
                return None
            return self._on_trial(instance, record, "a probe found it healthy", now)
        if record.state == "alive":
            return None
        # A hung engine passes its probes: what traffic has shown is not undone by them.
        doubted = record.timeouts > 0 and record.last_failure_at is not None
        if doubted and now - (record.last_failure_at or now) < self.policy.hung_after_s:
            return None
        if self._failing_share(record) is not None:
            return None
        if record.healthy_probes < (self.policy.probes_to_life if record.trial else 1):
            return None
        record.clear()
        return self._become(instance, record, "alive", "probes found it healthy", now)

    def _suspect_or_die(
        self, instance: str, record: _Record, reason: str, now: float
    ) -> StateChange | None:
        """After a failure: nobody dies who was not suspect before."""
        if record.state == "alive":
            return self._become(instance, record, "suspect", reason, now)
        cause = self._cause_of_death(record, now)
        return None if cause is None else self._die(instance, record, cause, now)

    def _blame(self, record: _Record, kind: FailureKind, now: float) -> None:
        record.last_failure_at = now
        record.healthy_probes = 0
        if record.silent_since is None:
            record.silent_since = now
        if kind in _QUICK:
            record.quick += 1
        elif kind == "timeout":
            record.timeouts += 1
        else:
            record.failures += 1

    def _cause_of_death(self, record: _Record, now: float) -> str | None:
        policy = self.policy
        if record.quick >= policy.refusals_to_death:
            return f"{record.quick} refusals in a row"
        if record.failures + record.quick >= policy.failures_to_death:
            return f"{record.failures + record.quick} failures in a row"
        if record.timeouts >= policy.timeouts_to_death and self._silent_too_long(record, now):
            return f"{record.timeouts} requests in a row got no answer"
        share = self._failing_share(record)
        if share is not None:
            return f"{share:.0%} of its last {len(record.outcomes)} requests failed"
        return None

    def _failing_share(self, record: _Record) -> float | None:
        """The share of failures in the window, where it is full and the share is too high."""
        window = record.outcomes
        if len(window) < self.policy.breaker_window:
            return None
        share = sum(window) / len(window)
        return share if share >= self.policy.breaker_share else None

    def _silent_too_long(self, record: _Record, now: float) -> bool:
        since = record.silent_since
        return since is not None and now - since >= self.policy.hung_after_s

    def _count(self, record: _Record, *, failed: bool) -> None:
        record.outcomes.append(failed)
        if len(record.outcomes) > self.policy.breaker_window:
            record.outcomes.popleft()

    def _expire(self, record: _Record, now: float) -> None:
        last = record.last_failure_at
        if last is not None and now - last > self.policy.evidence_expires_s:
            record.clear()

    def _on_trial(
        self, instance: str, record: _Record, reason: str, now: float
    ) -> StateChange | None:
        record.clear()
        record.healthy_probes = 1
        record.trial = True
        return self._become(instance, record, "suspect", reason, now, trial=True)

    def _die(self, instance: str, record: _Record, reason: str, now: float) -> StateChange | None:
        policy = self.policy
        record.pause_s = min(policy.longest_pause_s, max(policy.first_pause_s, 2 * record.pause_s))
        record.retry_at = now + record.pause_s
        record.healthy_probes = 0
        record.outcomes.clear()
        record.clear()
        return self._become(instance, record, "dead", reason, now)

    def _become(
        self,
        instance: str,
        record: _Record,
        state: Liveness,
        reason: str,
        now: float,
        *,
        trial: bool = False,
    ) -> StateChange:
        before, record.state = record.state, state
        record.trial, record.reason = trial, reason
        return StateChange(instance, before, state, reason, now)

    def _probe_at(self, instance: str) -> float:
        policy = self.policy
        record = self._records.get(instance)
        if record is None:
            return 0.0
        if record.state == "dead":
            return record.retry_at
        last = max(
            (at for at in (record.probed_at, record.heard_at) if at is not None), default=0.0
        )
        if record.state == "suspect":
            # The first look at a new suspect is at once: it is what a refusal waits for.
            probed = record.probed_at
            last_failure = record.last_failure_at
            if probed is None or (last_failure is not None and probed < last_failure):
                return 0.0
            return probed + policy.probe_suspect_every_s
        return last + policy.probe_quiet_every_s
