"""What the worker relies on inside Prefect: this tells when an upgrade has moved it."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest
from prefect.flow_engine import AsyncFlowRunEngine, FlowRunEngine
from prefect.workers.base import BaseWorker

from hexprefect.orchestration.worker import HexgenWorker
from hexprefect.orchestration.worker_engine import InProcessAsyncEngine, InProcessSyncEngine

ENGINES = [(InProcessAsyncEngine, AsyncFlowRunEngine), (InProcessSyncEngine, FlowRunEngine)]


@pytest.mark.parametrize(("ours", "theirs"), ENGINES)
@pytest.mark.parametrize(
    "name",
    ["call_flow_fn", "handle_success", "handle_exception", "handle_timeout", "handle_crash"],
)
def test_an_overridden_handler_still_overrides_something(
    ours: type, theirs: type, name: str
) -> None:
    mine, original = getattr(ours, name), getattr(theirs, name)
    assert mine is not original
    assert list(inspect.signature(mine).parameters) == list(inspect.signature(original).parameters)
    assert inspect.iscoroutinefunction(mine) == inspect.iscoroutinefunction(original)


@pytest.mark.parametrize(("ours", "theirs"), ENGINES)
def test_the_engine_still_asks_for_what_we_replace(ours: type, theirs: type) -> None:
    assert isinstance(inspect.getattr_static(theirs, "heartbeat_seconds"), property)
    source = inspect.getsource(theirs.start)  # type: ignore[attr-defined]
    assert "setup_flow_run_suspension_request" in source
    assert {"short_circuit", "_raised", "flow_run"} <= {field.name for field in fields(theirs)}
    assert "self.short_circuit" in inspect.getsource(theirs.set_state)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name",
    [
        "get_and_submit_flow_runs",
        "sync_with_backend",
        "setup",
        "teardown",
        "kill_infrastructure",
        "_propose_submitting_state",
        "_give_worker_labels_to_flow_run",
    ],
)
def test_the_worker_still_overrides_something(name: str) -> None:
    mine, original = getattr(HexgenWorker, name), getattr(BaseWorker, name)
    assert mine is not original
    assert list(inspect.signature(mine).parameters) == list(inspect.signature(original).parameters)


def test_the_task_runner_is_still_entered_where_we_leave_it() -> None:
    ours, theirs = InProcessAsyncEngine.setup_run_context, AsyncFlowRunEngine.setup_run_context
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
    assert "self.flow.task_runner.duplicate()" in inspect.getsource(theirs)
    assert "self.setup_run_context()" in inspect.getsource(AsyncFlowRunEngine.run_context)


def test_the_base_worker_still_keeps_the_runs_that_it_submits() -> None:
    assert "self._submitting_flow_run_ids" in inspect.getsource(BaseWorker.__init__)
    assert "self._work_pool" in inspect.getsource(BaseWorker.__init__)


def test_prefect_finds_the_worker_by_its_type() -> None:
    assert BaseWorker.get_worker_class_from_type("hexgen") is HexgenWorker
