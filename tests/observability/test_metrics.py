"""The figures for Prometheus: what the store says, counted once, and a dashboard for them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update

from hexprefect.observability import metrics as metrics_module
from hexprefect.observability.metrics import METRICS, FleetMetrics
from hexprefect.scheduling import Profile, RequestSize
from hexprefect.store import InstanceSpec, NewQuery, NewRequest, Outcome, Store, leases, tables
from hexprefect.store import queries as move_query
from hexprefect.store import transitions as move_request
from hexprefect.store.alpha import set_alpha
from hexprefect.store.fleet import enter_instance, set_instance_state
from tests.orchestration.bench import until

OpenStore = Callable[..., Store]
GPU = InstanceSpec("gpu", "http://127.0.0.1:9", Profile("p", 1.0, 0.0, 0.0), slots=2, pool="a100")
SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


@pytest.fixture(autouse=True)
def nothing_is_too_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has just ended is counted at once."""
    monkeypatch.setattr(metrics_module, "SETTLED_S", -1.0)


@pytest.fixture
def store(store_url: str, open_store: OpenStore) -> Store:
    opened = open_store(store_url)
    opened.transact(leases.join)
    opened.transact(lambda tx: enter_instance(tx, GPU))
    return opened


class Scraped:
    """What a scrape of the registry says, read as Prometheus reads it."""

    def __init__(self, store: Store) -> None:
        self.registry = CollectorRegistry()
        FleetMetrics(store, self.registry)
        self.families: dict[str, str] = {}
        self.samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def __call__(self) -> Scraped:
        self.samples.clear()
        text = generate_latest(self.registry).decode()
        for family in text_string_to_metric_families(text):
            self.families[family.name] = family.type
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                assert key not in self.samples, f"{key} stands twice"
                self.samples[key] = sample.value
        return self

    def until_counted(self, *, queries: int) -> Scraped:
        """Scrape until so many are counted: by the database's clock they end a little later."""

        def counted() -> bool:
            return self().value("hexprefect_queries_total") >= queries

        until(counted)
        return self

    def value(self, name: str, **labels: str) -> float:
        """The sum over the samples that have these labels."""
        found = [
            value
            for (sample, own), value in self.samples.items()
            if sample == name and labels.items() <= dict(own).items()
        ]
        return sum(found)


def ask(store: Store, query: str, *, slo_s: float = 10_000.0, age_s: float = 0.0) -> None:
    new = NewQuery(query, "default", "shop", slo_s, store.now() - age_s, "how many?")
    store.transact(lambda tx: move_query.register_query(tx, new))
    deadline = new.arrived_at + slo_s
    size = RequestSize(100, 10)
    request = NewRequest(f"r-{query}", query, "judge", size, deadline, predict_output=False)
    store.transact(lambda tx: move_request.submit(tx, request))


def answer(store: Store, query: str) -> None:
    outcome = Outcome(None, input_tokens=100, output_tokens=7, cached_tokens=60)
    store.transact(
        lambda tx: move_request.finish(tx, request_id=f"r-{query}", attempt=1, outcome=outcome)
    )
    store.transact(lambda tx: move_query.end_query(tx, query, state="answered"))


def test_the_state_of_now(store: Store) -> None:
    scrape = Scraped(store)
    ask(store, "a")
    ask(store, "b")
    ask(store, "c", slo_s=50.0, age_s=60.0)
    store.transact(lambda tx: set_alpha(tx, 0.25, reason="by hand"))
    now = scrape()
    assert now.value("hexprefect_store_up") == 1
    assert now.value("hexprefect_instance_state", instance="gpu", pool="a100", state="alive") == 1
    assert now.value("hexprefect_instance_state", instance="gpu", state="dead") == 0
    assert now.value("hexprefect_instance_capacity", instance="gpu") == 2
    assert now.value("hexprefect_instance_occupied", instance="gpu") == 2
    assert now.value("hexprefect_instance_waiting", instance="gpu") == 1
    assert now.value("hexprefect_instance_backlog_seconds", instance="gpu") > 0
    assert now.value("hexprefect_requests_open") == 3
    assert now.value("hexprefect_requests_open", state="waiting") == 1
    assert now.value("hexprefect_queries_running", tenant="default") == 3
    assert now.value("hexprefect_queries_at_risk", overdue="yes") == 1
    assert now.value("hexprefect_alpha", policy="normalised") == 0.25
    store.transact(lambda tx: set_instance_state(tx, "gpu", "draining"))
    now = scrape()
    assert now.value("hexprefect_instance_state", instance="gpu", state="draining") == 1
    assert now.value("hexprefect_instance_state", instance="gpu") == 1


def test_what_has_ended_is_counted_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "SETTLED_S", 0.0)
    scrape = Scraped(store)
    ask(store, "a")
    ask(store, "late", slo_s=50.0, age_s=60.0)
    answer(store, "a")
    answer(store, "late")
    now = scrape.until_counted(queries=2)
    for _ in range(2):
        now = scrape()
    assert now.value("hexprefect_queries_total", state="answered", slo="met") == 1
    assert now.value("hexprefect_queries_total", state="answered", slo="missed") == 1
    assert now.value("hexprefect_query_seconds_count", tenant="default") == 2
    assert now.value("hexprefect_query_seconds_sum", tenant="default") >= 60
    assert now.value("hexprefect_requests_total", stage="judge", state="finished") == 2
    assert now.value("hexprefect_request_run_seconds_count", instance="gpu") == 2
    assert now.value("hexprefect_prediction_ratio_count", instance="gpu") == 2
    tokens = {kind: now.value("hexprefect_tokens_total", kind=kind) for kind in ("input", "cached")}
    assert tokens == {"input": 200, "cached": 120}
    assert now.value("hexprefect_tokens_total", kind="output") == 14


def test_what_ended_before_the_exporter_began_is_not_counted(store: Store) -> None:
    ask(store, "a")
    answer(store, "a")
    store.transact(lambda tx: tx.connection.execute(update(tables.queries).values(ended_at=1.0)))
    assert Scraped(store)().value("hexprefect_queries_total") == 0


def test_a_store_that_cannot_be_read_is_a_figure(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrape = Scraped(store)
    assert scrape().value("hexprefect_store_up") == 1

    def gone(_: object) -> None:
        raise OSError("the disk has gone")

    monkeypatch.setattr(store, "read", gone)
    assert scrape().value("hexprefect_store_up") == 0
    assert ("hexprefect_store_up", ()) in scrape.samples


def test_an_empty_store_has_figures_too(store_url: str, open_store: OpenStore) -> None:
    now = Scraped(open_store(store_url))()
    assert now.value("hexprefect_store_up") == 1
    assert now.value("hexprefect_requests_open") == 0


def test_every_metric_is_described_and_every_described_one_is_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "SETTLED_S", 0.0)
    scrape = Scraped(store)
    ask(store, "a")
    answer(store, "a")
    store.transact(lambda tx: set_alpha(tx, 0.5, reason="by hand"))
    scrape.until_counted(queries=1)
    described = {metric.name.removesuffix("_total"): metric.kind for metric in METRICS}
    # When a counter began is told besides.
    families = {name: kind for name, kind in scrape.families.items() if "_created" not in name}
    assert families == described
    for metric in METRICS:
        labels = {
            frozenset(dict(own)) - {"le"}
            for (name, own) in scrape.samples
            if name in {metric.name + suffix for suffix in SUFFIXES[metric.kind]}
        }
        assert labels == {frozenset(metric.labels)}, metric.name


# -- the dashboard ------------------------------------------------------------------------------


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        files("hexprefect.observability").joinpath("grafana.json").read_text(encoding="utf-8")
    )
    return loaded


def expressions() -> list[str]:
    found = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    found += [
        variable["query"]["query"]
        for variable in dashboard()["templating"]["list"]
        if variable["type"] == "query"
    ]
    return found


def test_the_dashboard_shows_only_metrics_that_exist_by_labels_that_they_have() -> None:
    known = {metric.name + suffix: metric for metric in METRICS for suffix in SUFFIXES[metric.kind]}
    named = set()
    for expression in expressions():
        for name, selector in re.findall(r"(hexprefect_\w+)(?:\{([^}]*)\})?", expression):
            assert name in known, name
            named.add(known[name].name)
            for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector):
                assert label in known[name].labels, f"{name} has no label {label}"
    assert named == {metric.name for metric in METRICS}, "the dashboard shows every metric"


def test_the_dashboards_panels_do_not_overlap() -> None:
    seen: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & seen, panel["title"]
        assert place["x"] + place["w"] <= 24
        seen |= cells
    identities = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(identities)) == len(identities)


def test_the_docs_name_every_metric() -> None:
    page = Path(__file__).parents[2] / "docs" / "operations.md"
    text = page.read_text(encoding="utf-8")
    for metric in METRICS:
        assert f"`{metric.name}`" in text, metric.name
