"""The fleet's figures for Prometheus, read from the store at each scrape.

Nothing is counted in the processes that serve queries: one exporter reads what all of them have
written. Counters begin at 0 when the exporter starts, as Prometheus expects of a restarted process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import Connection, RowMapping

from hexprefect.store import InstanceView, Store
from hexprefect.store.statistics import (
    Alpha,
    ended_queries,
    ended_requests,
    newest_alpha,
    open_requests,
    queries_at_risk,
    running_queries,
)
from hexprefect.store.tables import INSTANCE_STATES
from hexprefect.store.views import instance_views

logger = logging.getLogger(__name__)

LATENCY_BUCKETS_S = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
REQUEST_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 60, 120)

SETTLED_S = 2.0
"""What ended longer ago than this is committed, whichever process wrote it: it is counted once."""


@dataclass(frozen=True, slots=True)
class Described:
    """A metric and what it means."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


METRICS: tuple[Described, ...] = (
    Described("hexprefect_store_up", "gauge", (), "1 when the store could be read, else 0"),
    Described(
        "hexprefect_instance_state",
        "gauge",
        ("instance", "pool", "state"),
        "1 for the state that the instance is in, 0 for the others",
    ),
    Described(
        "hexprefect_instance_occupied", "gauge", ("instance", "pool"), "requests on the instance"
    ),
    Described(
        "hexprefect_instance_capacity",
        "gauge",
        ("instance", "pool"),
        "requests it is given at once: its admission depth, or its slots",
    ),
    Described(
        "hexprefect_instance_waiting", "gauge", ("instance", "pool"), "requests in its queue"
    ),
    Described(
        "hexprefect_instance_backlog_seconds",
        "gauge",
        ("instance", "pool"),
        "work admitted and waiting that is not finished",
    ),
    Described(
        "hexprefect_instance_reserved_kv_tokens",
        "gauge",
        ("instance", "pool"),
        "KV tokens reserved on it",
    ),
    Described(
        "hexprefect_requests_open", "gauge", ("state",), "requests waiting, admitted, running"
    ),
    Described("hexprefect_queries_running", "gauge", ("tenant",), "queries that run"),
    Described(
        "hexprefect_queries_at_risk",
        "gauge",
        ("overdue",),
        "running queries with little time left (no), or past their deadline (yes)",
    ),
    Described("hexprefect_alpha", "gauge", ("policy",), "the α that dispatch goes by"),
    Described(
        "hexprefect_queries_total",
        "counter",
        ("tenant", "state", "slo"),
        "queries that ended: answered, failed or cancelled; SLO met or missed",
    ),
    Described(
        "hexprefect_query_seconds",
        "histogram",
        ("tenant",),
        "seconds from arrival to answer",
    ),
    Described(
        "hexprefect_requests_total",
        "counter",
        ("stage", "instance", "state"),
        "requests that ended: finished, failed or cancelled",
    ),
    Described(
        "hexprefect_request_wait_seconds",
        "histogram",
        ("instance",),
        "seconds a finished request waited, from ready to started",
    ),
    Described(
        "hexprefect_request_run_seconds",
        "histogram",
        ("stage", "instance"),
        "seconds a finished request ran",
    ),
    Described(
        "hexprefect_prediction_ratio",
        "histogram",
        ("instance",),
        "seconds a finished request ran, over the seconds predicted",
    ),
    Described(
        "hexprefect_tokens_total",
        "counter",
        ("instance", "kind"),
        "tokens of finished requests: input, cached (part of the input), output",
    ),
)
"""Every metric, as `docs/operations.md` lists them."""


class FleetMetrics(Collector):
    """Reads the store when it is scraped.

    Args:
        store: an open store.
        registry: to which it adds itself.
    """

    def __init__(self, store: Store, registry: CollectorRegistry) -> None:
        self._store = store
        self._ended = CollectorRegistry()
        self._counted_until = store.now() - SETTLED_S
        self._scraping = threading.Lock()
        described = {metric.name: metric for metric in METRICS}

        def make(kind: Callable[..., Any], name: str, **options: Any) -> Any:
            metric = described[name]
            return kind(name, metric.meaning, metric.labels, registry=self._ended, **options)

        self._queries: Counter = make(Counter, "hexprefect_queries_total")
        self._latency: Histogram = make(
            Histogram, "hexprefect_query_seconds", buckets=LATENCY_BUCKETS_S
        )
        self._requests: Counter = make(Counter, "hexprefect_requests_total")
        self._waited: Histogram = make(
            Histogram, "hexprefect_request_wait_seconds", buckets=REQUEST_BUCKETS_S
        )
        self._ran: Histogram = make(
            Histogram, "hexprefect_request_run_seconds", buckets=REQUEST_BUCKETS_S
        )
        self._ratio: Histogram = make(
            Histogram,
            "hexprefect_prediction_ratio",
            buckets=(0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2, 4),
        )
        self._tokens: Counter = make(Counter, "hexprefect_tokens_total")
        self._up = Gauge(
            "hexprefect_store_up", described["hexprefect_store_up"].meaning, registry=self._ended
        )
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not read the store."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One scrape. A store that cannot be read is a figure, not an error."""
        with self._scraping:
            now: list[Metric] = []
            try:
                now = self._store.read(self._read)
                self._up.set(1)
            except Exception:
                logger.warning("The store could not be read for metrics.", exc_info=True)
                self._up.set(0)
            return [*now, *self._ended.collect()]

    def _read(self, connection: Connection) -> list[Metric]:
        now = self._store.now()
        until = now - SETTLED_S
        self._count(
            ended_queries(connection, after=self._counted_until, until=until),
            ended_requests(connection, after=self._counted_until, until=until),
        )
        self._counted_until = until
        risky = [entry["overdue"] for entry in queries_at_risk(connection, now=now)]
        return [
            *_instance_gauges(instance_views(connection).values()),
            _gauge("hexprefect_requests_open", open_requests(connection)),
            _gauge("hexprefect_queries_running", running_queries(connection)),
            _gauge(
                "hexprefect_queries_at_risk",
                {"yes": sum(risky), "no": len(risky) - sum(risky)},
            ),
            _alpha_gauge(newest_alpha(connection)),
        ]

    def _count(self, queries: Sequence[RowMapping], requests: Sequence[RowMapping]) -> None:
        for query in queries:
            answered = query["state"] == "answered"
            met = answered and query["ended_at"] <= query["deadline"]
            slo = "met" if met else "missed"
            self._queries.labels(query["tenant"], query["state"], slo).inc()
            if answered:
                self._latency.labels(query["tenant"]).observe(
                    max(0.0, query["ended_at"] - query["arrived_at"])
                )
        for request in requests:
            self._count_request(request)

    def _count_request(self, request: RowMapping) -> None:
        instance = request["instance"] or ""
        self._requests.labels(request["stage"], instance, request["state"]).inc()
        if request["state"] != "finished" or request["started_at"] is None:
            return
        ran_s = max(0.0, request["ended_at"] - request["started_at"])
        self._waited.labels(instance).observe(max(0.0, request["started_at"] - request["ready_at"]))
        self._ran.labels(request["stage"], instance).observe(ran_s)
        if request["completion_us"] > 0:
            self._ratio.labels(instance).observe(ran_s / (request["completion_us"] / 1e6))
        for kind, column in (
            ("input", "actual_input_tokens"),
            ("cached", "cached_tokens"),
            ("output", "actual_output_tokens"),
        ):
            self._tokens.labels(instance, kind).inc(request[column] or 0)


def _instance_gauges(views: Iterable[InstanceView]) -> list[Metric]:
    gauges = {
        name: _family(name)
        for name in (
            "hexprefect_instance_state",
            "hexprefect_instance_occupied",
            "hexprefect_instance_capacity",
            "hexprefect_instance_waiting",
            "hexprefect_instance_backlog_seconds",
            "hexprefect_instance_reserved_kv_tokens",
        )
    }
    for view in views:
        labels = [view.spec.name, view.spec.pool]
        for state in INSTANCE_STATES:
            gauges["hexprefect_instance_state"].add_metric(
                [*labels, state], float(view.state == state)
            )
        figures = {
            "occupied": view.occupied,
            "capacity": view.spec.admission_depth or view.spec.slots,
            "waiting": view.waiting,
            "backlog_seconds": view.backlog_s,
            "reserved_kv_tokens": view.reserved_kv_tokens,
        }
        for name, figure in figures.items():
            gauges[f"hexprefect_instance_{name}"].add_metric(labels, figure)
    return list(gauges.values())


def _gauge(name: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = _family(name)
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def _alpha_gauge(alpha: Alpha | None) -> GaugeMetricFamily:
    family = _family("hexprefect_alpha")
    if alpha is not None:
        family.add_metric([alpha.policy], alpha.value)
    return family


def _family(name: str) -> GaugeMetricFamily:
    [metric] = [known for known in METRICS if known.name == name]
    return GaugeMetricFamily(name, metric.meaning, labels=metric.labels)
