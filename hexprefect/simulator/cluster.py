"""Clusters: which instances there are, read from `a100:2,a6000:1,l40s:1`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from hexprefect.scheduling import Profile
from hexprefect.simulator.engine_values import EngineOptions
from hexprefect.simulator.facts import UnknownHardware, profiles
from hexprefect.simulator.workload import Query

PAPER_CLUSTERS = {
    "heterogeneous-1": "a100:2,a6000:1,l40s:1",
    "heterogeneous-2": "a100:2,a6000:2",
    "homogeneous": "a100:4",
}


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance to simulate: a name, what it can do, and how its engine is set up."""

    name: str
    profile: Profile
    options: EngineOptions


@dataclass(frozen=True, slots=True)
class Cluster:
    """Instances in ascending order of their id, which decides ties."""

    name: str
    instances: tuple[Instance, ...]

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The instances' profiles, in order."""
        return tuple(instance.profile for instance in self.instances)


MOST_INSTANCES = 10_000
"""Of one hardware, as a word of a cluster says it."""


def parse_cluster(
    text: str,
    *,
    options: EngineOptions | None = None,
    known: Mapping[str, Profile] | None = None,
) -> Cluster:
    """Read `HARDWARE:COUNT,…`, or one of the names in `PAPER_CLUSTERS`.

    Args:
        text: for example `a100:2,a6000:1,l40s:1`; a count of 1 may be left out.
        options: of every instance's engine.
        known: profiles by hardware; the published ones of Llama-3.1-70B when left out.

    Raises:
        UnknownHardware: for hardware without a profile or a count that is not a positive number,
            or of more than anybody has.
    """
    known = profiles() if known is None else known
    options = options or EngineOptions()
    instances: list[Instance] = []
    counts: dict[str, int] = {}
    for part in PAPER_CLUSTERS.get(text, text).split(","):
        hardware, _, count = part.strip().partition(":")
        if hardware not in known:
            raise UnknownHardware(
                f"the cluster {text!r} names {hardware!r}, of which there is no profile.",
                remedy=f"There are: {', '.join(sorted(known))}; add others with --profiles FILE.",
            )
        is_count = (count or "1").isdecimal() and len(count) <= len(str(MOST_INSTANCES))
        if not is_count or not 1 <= int(count or "1") <= MOST_INSTANCES:
            raise UnknownHardware(
                f"the cluster {text!r} has {count!r} instances of {hardware}.",
                remedy=f"Write HARDWARE:COUNT, a count of at least 1, at most {MOST_INSTANCES:,}.",
            )
        for _ in range(int(count or "1")):
            number = counts.get(hardware, 0)
            counts[hardware] = number + 1
            instances.append(Instance(f"{hardware}-{number}", known[hardware], options))
    return Cluster(text, tuple(instances))


def read_profiles(path: Path) -> dict[str, Profile]:
    """Profiles of one's own: `{"profiles": {"NAME": {"c": …, "a": …, "b": …, "kv_tokens": …,
    "batch_growth": …}}}`; the last two may be left out.

    Raises:
        UnknownHardware: when the file does not have this form, or a number makes no sense.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["profiles"]
        return {name: _profile_of(name, values) for name, values in entries.items()}
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UnknownHardware(
            f"cannot read profiles from {path}: {type(error).__name__}: {error}.",
            remedy='Expected {"profiles": {"NAME": {"c": …, "a": …, "b": …, "kv_tokens": …}}}.',
        ) from error


def _profile_of(name: str, values: Mapping[str, Any]) -> Profile:
    """The profile of an entry; ValueError where a number makes no sense."""
    profile = Profile(
        name=name,
        fixed_s=float(values["c"]),
        input_s_per_token=float(values["a"]),
        output_s_per_token=float(values["b"]),
        batch_growth=float(values.get("batch_growth", 0.0013)),
        kv_tokens=values.get("kv_tokens"),
    )
    if not (0 <= profile.fixed_s < inf and 0 <= profile.batch_growth < inf):
        raise ValueError(f"{name!r}: c and batch_growth must be numbers from 0 on")
    if not (0 < profile.input_s_per_token < inf and 0 < profile.output_s_per_token < inf):
        raise ValueError(f"{name!r}: a and b must be numbers above 0")
    kv_tokens: Any = profile.kv_tokens
    if kv_tokens is not None and (type(kv_tokens) is not int or kv_tokens < 1):
        raise ValueError(f"{name!r}: kv_tokens must be a whole number of at least 1, or left out")
    return profile


def service_rates(queries: Sequence[Query], cluster: Cluster) -> tuple[float, ...]:
    """Queries a second that each instance could serve if it served this workload alone.

    The engine's time is what counts, not a request's: prompts run one after the other, while an
    answer's tokens share their steps with those of a full batch. So a call takes
    `c + a · uncached + b · growth · output`, the rest of `b` being shared.

    Raises:
        UnknownHardware: when nothing takes any time on an instance.
    """
    rates = []
    for instance in cluster.instances:
        profile = instance.profile
        seconds = 0.0
        for query in queries:
            for call in query.calls:
                cached = 0
                if instance.options.prefix_cache:
                    cached = sum(t for key, t in call.prefix if key.startswith("static:"))
                batch = 32
                if profile.kv_tokens is not None:
                    batch = max(
                        1, min(batch, profile.kv_tokens // (call.input_tokens - cached + 1))
                    )
                step = profile.decode_s_per_token(batch) / batch
                seconds += profile.fixed_s + step * call.output_tokens
                seconds += profile.input_s_per_token * max(1, call.input_tokens - cached)
        if not seconds > 0:
            raise UnknownHardware(
                f"the workload takes {seconds:g} s on the instance {instance.name!r}.",
                remedy="Give it a profile in which tokens take time.",
            )
        rates.append(len(queries) / seconds)
    return tuple(rates)


def capacity(queries: Sequence[Query], cluster: Cluster) -> float:
    """An estimate of the queries a second that the whole cluster can serve, if well divided."""
    return sum(service_rates(queries, cluster))
