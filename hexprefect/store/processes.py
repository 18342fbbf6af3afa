"""The processes that hold leases: a row each, so that somebody ends what a dead one held."""

from __future__ import annotations

import os
import socket
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite

from hexprefect.store import tables
from hexprefect.store.transaction import Transaction

LEASE_S = 20.0
"""Long enough for a process whose machine swaps or whose database hangs for some seconds."""

DIED = "the process that ran it died"


def enter_process(tx: Transaction, *, lease_s: float = LEASE_S) -> None:
    """Make this process known; one that is known already keeps the lease that it has."""
    dialect: Any = postgresql if tx.connection.dialect.name == "postgresql" else sqlite
    tx.connection.execute(
        dialect.insert(tables.processes)
        .values(
            id=tx.process,
            host=socket.gethostname(),
            pid=os.getpid(),
            joined_at=tx.now,
            expires_at=tx.now + lease_s,
        )
        .on_conflict_do_nothing(index_elements=["id"])
    )
