"""How the tasks of this process ended, remembered for a while.

States of task runs travel to Prefect's server as events. While it is away, some of them are lost:
whoever then finds a task run open on the server can ask here how it really ended.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import State

REMEMBERED = 20_000

_ends: OrderedDict[UUID, State[Any]] = OrderedDict()
_lock = threading.Lock()


def remember_end(task_run_id: UUID, state: State[Any]) -> None:
    """Keep the final state of a task run, without its result; the oldest are forgotten."""
    if not state.is_final():
        return
    with _lock:
        _ends[task_run_id] = State(type=state.type, name=state.name, message=state.message)
        while len(_ends) > REMEMBERED:
            _ends.popitem(last=False)


def known_end(task_run_id: UUID) -> State[Any] | None:
    """The final state of a task run of this process; `None` where it is not known."""
    with _lock:
        return _ends.get(task_run_id)
