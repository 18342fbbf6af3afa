"""The decisions, as pure functions of plain values: cost, budget, urgency, dispatch, admission.

Nothing here reads a clock, touches a database or knows Prefect, so that the running system and the
simulator decide alike (law 7).
"""

from __future__ import annotations

from hexprefect.scheduling.admission import Admission, Waiting, admit, queue_order
from hexprefect.scheduling.budget import allocate_budgets, request_budget
from hexprefect.scheduling.cost import (
    Profile,
    RequestSize,
    cached_prefix_tokens,
    completion_seconds,
    hold_prefix,
    mean_completion_seconds,
)
from hexprefect.scheduling.dispatch import Decision, DispatchPolicy, NoInstance, choose, dispatch
from hexprefect.scheduling.urgency import latest_start, laxity, urgency
from hexprefect.scheduling.workflow import Workflow, WorkflowError, WorkflowNode, single_stage

__all__ = [
    "Admission",
    "Decision",
    "DispatchPolicy",
    "NoInstance",
    "Profile",
    "RequestSize",
    "Waiting",
    "Workflow",
    "WorkflowError",
    "WorkflowNode",
    "admit",
    "allocate_budgets",
    "cached_prefix_tokens",
    "choose",
    "completion_seconds",
    "dispatch",
    "hold_prefix",
    "latest_start",
    "laxity",
    "mean_completion_seconds",
    "queue_order",
    "request_budget",
    "single_stage",
    "urgency",
]
