"""Tells in words when a release of Prefect moves or changes what the task runner builds on."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import prefect
import pytest
from prefect.client.schemas.objects import StateDetails, TaskRun
from prefect.futures import PrefectConcurrentFuture
from prefect.task_engine import AsyncTaskRunEngine, SyncTaskRunEngine
from prefect.task_runners import TaskRunner

try:
    from hexprefect.orchestration import prefect_internals
    from hexprefect.orchestration.future import HexgenFuture
    from hexprefect.orchestration.llm_task_engine import LlmTaskRunEngine
    from hexprefect.orchestration.task_engine import HexgenSyncTaskRunEngine, HexgenTaskRunEngine
    from hexprefect.orchestration.task_runner import HexgenTaskRunner
except ImportError:
    moved = True
else:
    moved = False

needs_imports = pytest.mark.skipif(moved, reason="the tests of the imports say what has moved")

WHERE = {
    "AsyncClientContext": "prefect.context",
    "AsyncTaskRunEngine": "prefect.task_engine",
    "FlowRunContext": "prefect.context",
    "StopVisiting": "prefect.utilities.collections",
    "SyncTaskRunEngine": "prefect.task_engine",
    "call_with_parameters": "prefect.utilities.callables",
    "create_task_run_locally": "prefect.task_engine:_create_task_run_locally",
    "emit_task_run_state_change_event": "prefect.utilities.engine",
    "get_intent": "prefect._internal.control_listener",
    "get_result_store": "prefect.results",
    "hash_objects": "prefect.utilities.hashing",
    "raise_if_flow_run_suspension_requested": "prefect._flow_run_suspension",
    "uuid7": "prefect._internal.uuid7",
    "visit_collection": "prefect.utilities.collections",
}

ARGUMENTS = {
    "call_with_parameters": ["fn", "parameters"],
    "create_task_run_locally": [
        *("task", "id", "parameters", "flow_run_context", "parent_task_run_context"),
        *("wait_for", "extra_task_inputs"),
    ],
    "emit_task_run_state_change_event": [
        *("task_run", "initial_state", "validated_state", "follows"),
    ],
    "get_intent": [],
    "get_result_store": [],
    "raise_if_flow_run_suspension_requested": [],
    "uuid7": ["ms", "time_func"],
    "visit_collection": [
        *("expr", "visit_fn", "return_data", "max_depth", "context", "remove_annotations", "_seen"),
    ],
}


def told(what: str) -> str:
    return f"Prefect {prefect.__version__} {what}; adapt hexprefect/orchestration/"


def found(name: str) -> Any:
    module, _, attribute = WHERE[name].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute or name)
    except (ImportError, AttributeError):
        pytest.fail(told(f"has no {WHERE[name]}:{attribute or name} any more"))


@pytest.mark.parametrize("name", WHERE)
def test_it_is_where_we_import_it_from(name: str) -> None:
    assert found(name) is not None


@needs_imports
def test_the_list_of_what_we_import_is_complete() -> None:
    assert sorted(prefect_internals.__all__) == sorted(WHERE)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_it_takes_what_we_give_it(name: str) -> None:
    arguments = list(inspect.signature(found(name)).parameters)
    assert arguments == ARGUMENTS[name], told(f"changed the arguments of {name}")


def overridden(ours: type, theirs: type) -> list[tuple[type, type, str]]:
    own = [name for name, value in vars(ours).items() if callable(value) and hasattr(theirs, name)]
    return [(ours, theirs, name) for name in own if not name.startswith("__")]


OVERRIDDEN: list[tuple[type, type, str]] = []
if not moved:
    OVERRIDDEN += overridden(HexgenTaskRunEngine, AsyncTaskRunEngine)
    OVERRIDDEN += overridden(LlmTaskRunEngine, AsyncTaskRunEngine)
    OVERRIDDEN += overridden(HexgenSyncTaskRunEngine, SyncTaskRunEngine)
    OVERRIDDEN += overridden(HexgenTaskRunner, TaskRunner)
    OVERRIDDEN += overridden(HexgenFuture, PrefectConcurrentFuture)


@needs_imports
def test_every_method_that_we_mean_to_override_exists_in_prefect() -> None:
    meant = {
        LlmTaskRunEngine: {
            *("begin_run", "wait_until_ready", "call_task_fn"),
            *("handle_exception", "handle_timeout", "handle_crash"),
        },
        HexgenTaskRunEngine: {"handle_crash", "is_cancelled"},
        HexgenSyncTaskRunEngine: {"handle_crash", "is_cancelled"},
        HexgenTaskRunner: {"duplicate", "submit"},
        HexgenFuture: {"wait", "result", "_add_prefect_done_callback"},
    }
    for ours, names in meant.items():
        still = {name for cls, _, name in OVERRIDDEN if cls is ours}
        assert names <= still, told(f"lost {names - still} of {ours.__bases__[0].__name__}")


@pytest.mark.parametrize(
    ("ours", "theirs", "name"), OVERRIDDEN, ids=lambda value: getattr(value, "__name__", value)
)
def test_an_overridden_method_has_the_signature_of_prefects(
    ours: type, theirs: type, name: str
) -> None:
    mine: Callable[..., Any] = getattr(ours, name)
    original: Callable[..., Any] = getattr(theirs, name)
    assert list(inspect.signature(mine).parameters) == list(
        inspect.signature(original).parameters
    ), told(f"changed the arguments of {theirs.__name__}.{name}")
    assert inspect.iscoroutinefunction(mine) == inspect.iscoroutinefunction(original), told(
        f"changed {theirs.__name__}.{name} between async and sync"
    )


@pytest.mark.parametrize("engine", [AsyncTaskRunEngine, SyncTaskRunEngine])
def test_the_engine_has_the_fields_and_steps_that_our_loop_uses(engine: Any) -> None:
    names = {field.name for field in fields(engine)}
    wanted = {"task", "task_run", "parameters", "wait_for", "retries", "_raised", "_last_event"}
    assert wanted <= names, told(f"lost {wanted - names} of {engine.__name__}")
    for step in ("start", "is_running", "asset_context", "run_context", "transaction_context"):
        assert hasattr(engine, step), told(f"lost {engine.__name__}.{step}")


@pytest.mark.parametrize(("ours", "theirs"), [("run_task_async", "async "), ("run_task_sync", "")])
def test_prefects_own_loop_is_the_one_that_we_copied(ours: str, theirs: str) -> None:
    source = inspect.getsource(getattr(importlib.import_module("prefect.task_engine"), ours))
    steps = [
        "engine.start(task_run_id=task_run_id, dependencies=dependencies)",
        "while engine.is_running()",
        "engine.wait_until_ready()",
        "engine.asset_context()",
        "engine.run_context()",
        "engine.transaction_context()",
        "engine.call_task_fn(txn)",
        "raise_if_flow_run_suspension_requested()",
    ]
    places = [source.find(step) for step in steps]
    assert -1 not in places, told(f"changed the loop of {ours}")
    assert places == sorted(places), told(f"changed the loop of {ours}")
    body = source[places[0] : source.index("return engine.state")]
    assert body.count("engine.") == 7, told(f"added a step to the loop of {ours}")
    assert f"{theirs}with engine.start" in source


def test_task_runs_and_states_have_the_fields_that_we_set() -> None:
    wanted = {"state", "state_id", "state_type", "state_name", "run_count", "flow_run_id"}
    assert wanted <= set(TaskRun.model_fields), told("changed TaskRun")
    assert {"task_run_id", "flow_run_id", "scheduled_time"} <= set(StateDetails.model_fields)


def test_the_result_store_can_be_asked_for_a_key() -> None:
    store = found("get_result_store")()
    assert inspect.iscoroutinefunction(store.aexists), told("lost ResultStore.aexists")
    assert list(inspect.signature(store.aexists).parameters) == ["key"]
