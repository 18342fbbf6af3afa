"""Outcomes: what one simulation measured, and the record that is printed of it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


def _doubles() -> array[float]:
    return array("d")


@dataclass
class Outcome:
    """Measurements of one simulation, one number a query: a million requests stay small."""

    arrived_at: array[float] = field(default_factory=_doubles)
    latency_s: array[float] = field(default_factory=_doubles)
    alone_s: array[float] = field(default_factory=_doubles)
    slo_s: array[float] = field(default_factory=_doubles)
    requests: int = 0
    ended_at: float = 0.0
    longest_wait_s: float = 0.0
    """Longest time that one request waited before its instance took it."""
    preemptions: int = 0

    def waited(self, seconds: float) -> None:
        """A request was admitted after so long."""
        if seconds > self.longest_wait_s:
            self.longest_wait_s = seconds

    def query_ended(
        self, *, arrived_at: float, latency_s: float, alone_s: float, slo_s: float
    ) -> None:
        """A query has its answer."""
        self.arrived_at.append(arrived_at)
        self.latency_s.append(latency_s)
        self.alone_s.append(alone_s)
        self.slo_s.append(slo_s)

    def attainment_curve(self, scales: Sequence[float]) -> tuple[float, ...]:
        """Share of queries that ended within each multiple of their duration alone."""
        scale = np.frombuffer(self.latency_s, dtype=np.float64) / np.frombuffer(
            self.alone_s, dtype=np.float64
        )
        return tuple(float((scale <= each).mean()) for each in scales)

    def summary(self) -> Summary:
        """The figures of the record.

        Throughput is queries over the time from the first arrival to the last answer. The plateau's
        is that between the first and the last tenth of the answers, without filling and draining.
        """
        latency = np.frombuffer(self.latency_s, dtype=np.float64)
        if not len(latency):
            raise ValueError("no query has ended")
        alone = np.frombuffer(self.alone_s, dtype=np.float64)
        slo = np.frombuffer(self.slo_s, dtype=np.float64)
        arrived = np.frombuffer(self.arrived_at, dtype=np.float64)
        scale = latency / alone
        p50, p95, p99 = np.percentile(latency, (50, 95, 99))
        scale95, scale99 = np.percentile(scale, (95, 99))
        return Summary(
            requests=self.requests,
            queries=len(latency),
            mean_s=float(latency.mean()),
            p50_s=float(p50),
            p95_s=float(p95),
            p99_s=float(p99),
            throughput_qps=_rate(len(latency), self.ended_at - float(arrived.min())),
            slo_attainment=float((latency <= slo).mean()),
            slo_scale_at_95=float(scale95),
            slo_scale_at_99=float(scale99),
            longest_wait_s=self.longest_wait_s,
            longest_latency_s=float(latency.max()),
            preemptions=self.preemptions,
            plateau_qps=plateau_rate(np.sort(arrived + latency).tolist()),
        )


def _rate(number: int, seconds: float) -> float:
    return number / seconds if seconds > 0 else 0.0


def plateau_rate(ends: Sequence[float]) -> float:
    """Events a second between the first and the last tenth of sorted moments."""
    number = len(ends)
    first, last = number // 10, number - 1 - number // 10
    if last <= first or ends[last] <= ends[first]:
        return 0.0
    return (last - first) / (ends[last] - ends[first])


@dataclass(frozen=True, slots=True)
class Summary:
    """What is reported of one simulation. Times in seconds, rates in queries a second."""

    requests: int
    queries: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    throughput_qps: float
    slo_attainment: float
    """Share of queries that ended within their SLO."""
    slo_scale_at_95: float
    """The SLO scale at which 95 % would have: the percentile of latency over duration alone."""
    slo_scale_at_99: float
    longest_wait_s: float
    longest_latency_s: float
    preemptions: int
    plateau_qps: float
