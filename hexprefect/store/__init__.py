"""The truth: tables, migrations, and the few transactions that move a request on."""

from __future__ import annotations

from hexprefect.store.laws import Violation, check_laws
from hexprefect.store.outages import StoreUnavailable
from hexprefect.store.store import Store
from hexprefect.store.upgrade import StoreNotReady, upgrade
from hexprefect.store.values import (
    Grant,
    InstanceSpec,
    InstanceView,
    LeaseLost,
    NewQuery,
    NewRequest,
    Outcome,
    RegisteredQuery,
    Submitted,
    UnknownInstance,
    UnknownTenant,
)

__all__ = [
    "Grant",
    "InstanceSpec",
    "InstanceView",
    "LeaseLost",
    "NewQuery",
    "NewRequest",
    "Outcome",
    "RegisteredQuery",
    "Store",
    "StoreNotReady",
    "StoreUnavailable",
    "Submitted",
    "UnknownInstance",
    "UnknownTenant",
    "Violation",
    "check_laws",
    "upgrade",
]
