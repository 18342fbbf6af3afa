"""The daily fleet report: figures that add up, whatever ran, and plots of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert

from hexprefect.flows import fleet_report as flow_module
from hexprefect.orchestration.fleet_figures import (
    occupancy_over_time,
    read_figures,
    union_s,
)
from hexprefect.orchestration.fleet_plots import fleet_markdown, fleet_plots
from hexprefect.scheduling import Profile
from hexprefect.store import InstanceSpec, Store, tables
from hexprefect.store.fleet import enter_instance

NOW = 1_800_000_000.0
spans = st.tuples(st.floats(0, 100), st.floats(0, 100)).map(sorted).map(tuple)


@given(st.lists(spans, max_size=12), st.integers(1, 20))
def test_a_curve_holds_all_the_time_that_was_spent(intervals: Any, bins: int) -> None:
    curve = occupancy_over_time(intervals, 0.0, 100.0, bins=bins)
    total = sum(end - begin for begin, end in intervals)
    assert sum(curve) * 100.0 / bins == pytest.approx(total, abs=1e-6)
    assert all(value >= -1e-9 for value in curve)


@given(st.lists(spans, max_size=12))
def test_the_union_is_at_most_the_sum_and_at_least_the_longest(intervals: Any) -> None:
    lengths = [end - begin for begin, end in intervals]
    assert max(lengths, default=0.0) - 1e-9 <= union_s(intervals) <= sum(lengths) + 1e-9
    assert union_s([*intervals, *intervals]) == pytest.approx(union_s(intervals))


def test_what_lies_outside_of_the_span_does_not_count() -> None:
    assert occupancy_over_time([(-50.0, 5.0), (90.0, 500.0)], 0.0, 100.0, bins=2) == (0.1, 0.2)


@pytest.fixture
def store(store_url: str, open_store: Callable[..., Store]) -> Store:
    """Two instances; an hour in which one query was in time, one late, one failed."""
    opened = open_store(store_url)
    for name in ("fast", "slow"):
        spec = InstanceSpec(name, "http://127.0.0.1:9", Profile("p", 1.0, 0.0, 0.0), 2, pool="p")
        opened.transact(lambda tx, spec=spec: enter_instance(tx, spec))

    def fill(tx: Any) -> None:
        for number, (state, took_s) in enumerate((("answered", 50.0), ("answered", 150.0),
                                                  ("failed", 10.0))):  # fmt: skip
            arrived_at = NOW - 1800
            query = {
                "id": f"q{number}", "tenant": "default", "owner": "p", "slo_s": 100.0,
                "arrived_at": arrived_at, "deadline": arrived_at + 100, "state": state,
                "ended_at": arrived_at + took_s,
            }  # fmt: skip
            tx.connection.execute(insert(tables.queries), [query])
            request = {
                "id": f"r{number}", "query_id": f"q{number}", "owner": "p",
                "stage": "judge" if number else "schema_linking",
                "state": "finished" if state == "answered" else "failed",
                "instance": "fast", "input_tokens": 1, "predicted_output_tokens": 1.0,
                "kv_tokens": 1, "submitted_at": arrived_at, "ready_at": arrived_at,
                "budget_s": 10.0, "completion_us": 5_000_000, "latest_start": arrived_at,
                "order_key": arrived_at, "admitted_at": arrived_at + 5,
                "started_at": arrived_at + 5, "ended_at": arrived_at + 15,
                "actual_input_tokens": 100, "cached_tokens": 40, "actual_output_tokens": 7,
            }  # fmt: skip
            tx.connection.execute(insert(tables.requests), [request])

    opened.transact(fill)
    return opened


def test_the_figures_are_those_of_the_store(store: Store) -> None:
    figures = store.read(lambda connection: read_figures(connection, NOW - 3600, NOW))
    assert (figures.queries, figures.requests) == (3, 3)
    [tenant] = figures.tenants
    assert (tenant.answered, tenant.failed, tenant.attainment) == (2, 1, pytest.approx(1 / 3))
    assert (tenant.p50_s, tenant.p95_s) == (50.0, 150.0)
    fast, slow = figures.instances
    assert (fast.finished, fast.not_finished, fast.busy_s) == (2, 1, 20.0)
    assert fast.utilisation == pytest.approx(10 / 3600)
    assert fast.ran_over_predicted == pytest.approx(2.0)
    assert fast.waited_p95_s == pytest.approx(5.0)
    assert (slow.finished, slow.utilisation) == (0, 0.0)
    assert sum(fast.busy_over_time) * 3600 / len(fast.busy_over_time) == pytest.approx(20.0)
    stages = {one.stage: one for one in figures.stages}
    assert stages["judge"].input_tokens == 100
    assert figures.summary == "3 queries and 3 requests ended, 33.3 % in time"


def test_what_ended_before_is_no_part_of_it(store: Store) -> None:
    figures = store.read(lambda connection: read_figures(connection, NOW - 60, NOW))
    assert (figures.queries, figures.requests, figures.tenants) == (0, 0, ())


def test_tables_and_plots(store: Store) -> None:
    figures = store.read(lambda connection: read_figures(connection, NOW - 3600, NOW))
    text = fleet_markdown(figures)
    for words in ("| fast | p | 2 | 1 |", "| default | 2 | 1 | 33.3 % |", "| schema\\_linking | 1"):
        assert words in text, text
    plots = fleet_plots(figures)
    assert set(plots) == {"utilisation", "queue", "attainment", "cost"}
    assert all(plot.startswith(b"\x89PNG") for _, plot in plots.values())


async def test_the_flow_keeps_them_as_artifacts(
    store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, str] = {}

    async def keep_text(markdown: str, *, key: str, description: str) -> None:
        kept[key] = markdown

    async def keep_picture(image_url: str, *, key: str, description: str) -> None:
        kept[key] = image_url

    monkeypatch.setattr(flow_module, "acreate_markdown_artifact", keep_text)
    monkeypatch.setattr(flow_module, "acreate_image_artifact", keep_picture)
    monkeypatch.setattr(flow_module.time, "time", lambda: NOW)
    state = await flow_module.fleet_report.fn(store_url=store_url)
    assert state.is_completed()
    assert state.message == "3 queries and 3 requests ended, 33.3 % in time"
    plots = ("utilisation", "queue", "attainment", "cost")
    assert set(kept) == {"fleet-report", *(f"fleet-report-{name}" for name in plots)}
    assert kept["fleet-report-cost"].startswith("data:image/png;base64,")
    nothing = await flow_module.fleet_report.fn(store_url=store_url, hours=0.001)
    assert nothing.name == "NothingToReport"


async def test_a_store_that_is_not_there_fails_the_run_with_a_reason(tmp_path: Any) -> None:
    state = await flow_module.fleet_report.fn(store_url=f"sqlite:///{tmp_path}/none.sqlite")
    assert state.is_failed()
    assert "hexprefect store upgrade" in str(state.message)
