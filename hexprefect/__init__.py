"""HEXGEN-FLOW scheduling of agentic Text-to-SQL on unequal GPUs, as a Prefect 3 plugin.

The names below are the public interface; they are imported when first used, so that the command
line starts without Prefect.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hexprefect.completion import Completion, Message, PrefixSegment, Prompt
    from hexprefect.orchestration.flow_query import describe_query, end_query
    from hexprefect.orchestration.llm_task import current_request, llm_task
    from hexprefect.orchestration.task_runner import HexgenTaskRunner
    from hexprefect.queue import SharedQueue

__version__ = "0.1.0"

__all__ = [
    "Completion",
    "HexgenTaskRunner",
    "Message",
    "PrefixSegment",
    "Prompt",
    "SharedQueue",
    "current_request",
    "describe_query",
    "end_query",
    "llm_task",
]

_HOME = {
    "Completion": "hexprefect.completion",
    "HexgenTaskRunner": "hexprefect.orchestration.task_runner",
    "Message": "hexprefect.completion",
    "PrefixSegment": "hexprefect.completion",
    "Prompt": "hexprefect.completion",
    "SharedQueue": "hexprefect.queue",
    "current_request": "hexprefect.orchestration.llm_task",
    "describe_query": "hexprefect.orchestration.flow_query",
    "end_query": "hexprefect.orchestration.flow_query",
    "llm_task": "hexprefect.orchestration.llm_task",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
