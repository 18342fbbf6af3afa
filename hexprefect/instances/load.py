"""What a server says about its own load, read from its Prometheus text."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_RUNNING = frozenset({"vllm:num_requests_running", "llamacpp:requests_processing"})
_WAITING = frozenset({"vllm:num_requests_waiting", "llamacpp:requests_deferred"})
_KV_USAGE = frozenset({"vllm:kv_cache_usage_perc", "llamacpp:kv_cache_usage_ratio"})


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """A server's own count of its work, all clients together; None where it does not tell."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    prefix_queries: float | None = None
    """Input tokens looked up in the prefix cache since the server started."""
    prefix_hits: float | None = None
    """Input tokens found there."""
    preemptions: int | None = None


def read_load(text: str) -> InstanceLoad:
    """The load in the text of `/metrics`, vLLM or llama.cpp; a server's engines are summed.

    Raises:
        ValueError: it is no text of metrics.
    """
    sums: dict[str, float] = {}
    usage: list[float] = []
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in _RUNNING:
                sums["running"] = sums.get("running", 0.0) + sample.value
            elif sample.name in _WAITING:
                sums["waiting"] = sums.get("waiting", 0.0) + sample.value
            elif sample.name in _KV_USAGE:
                usage.append(sample.value)
            elif sample.name in (
                "vllm:prefix_cache_queries_total",
                "vllm:prefix_cache_hits_total",
                "vllm:num_preemptions_total",
            ):
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return InstanceLoad(
        running=_whole(sums.get("running")),
        waiting=_whole(sums.get("waiting")),
        kv_usage=max(usage) if usage else None,
        prefix_queries=sums.get("vllm:prefix_cache_queries_total"),
        prefix_hits=sums.get("vllm:prefix_cache_hits_total"),
        preemptions=_whole(sums.get("vllm:num_preemptions_total")),
    )


def _whole(value: float | None) -> int | None:
    # A gauge that was never set is not a number.
    return None if value is None or not math.isfinite(value) else int(value)
