"""One process's part in the shared queue: submit, wait, run, keep leases alive."""

from __future__ import annotations

from hexprefect.queue.query import Query
from hexprefect.queue.request import QueuedRequest
from hexprefect.queue.shared_queue import SharedQueue
from hexprefect.queue.values import NoInstanceInTime, QueueOptions

__all__ = ["NoInstanceInTime", "Query", "QueueOptions", "QueuedRequest", "SharedQueue"]
