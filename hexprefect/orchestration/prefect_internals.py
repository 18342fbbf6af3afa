"""The parts of Prefect that are not its public interface, all in one place.

The task runner defers, retries and cancels task runs itself and therefore subclasses the engine
that runs them. `tests/orchestration/test_prefect_internals.py` fails when a release moves any.
Written against Prefect 3.9.
"""

from __future__ import annotations

from prefect._flow_run_suspension import raise_if_flow_run_suspension_requested
from prefect._internal.control_listener import get_intent
from prefect._internal.uuid7 import uuid7
from prefect.context import AsyncClientContext, FlowRunContext
from prefect.results import get_result_store
from prefect.task_engine import (
    AsyncTaskRunEngine,
    SyncTaskRunEngine,
)
from prefect.task_engine import (
    _create_task_run_locally as create_task_run_locally,
)
from prefect.utilities.callables import call_with_parameters
from prefect.utilities.collections import StopVisiting, visit_collection
from prefect.utilities.engine import emit_task_run_state_change_event
from prefect.utilities.hashing import hash_objects

__all__ = [
    "AsyncClientContext",
    "AsyncTaskRunEngine",
    "FlowRunContext",
    "StopVisiting",
    "SyncTaskRunEngine",
    "call_with_parameters",
    "create_task_run_locally",
    "emit_task_run_state_change_event",
    "get_intent",
    "get_result_store",
    "hash_objects",
    "raise_if_flow_run_suspension_requested",
    "uuid7",
    "visit_collection",
]
