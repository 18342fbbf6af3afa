"""Opening a store that is to be used: its tables must be those of this version."""

from __future__ import annotations

from hexprefect.store.store import Store
from hexprefect.store.upgrade import require_current


def open_current(url: str) -> Store:
    """Open a store, and close it again when it cannot be used.

    Raises:
        StoreNotReady: when its tables are missing, older or newer.
    """
    store = Store(url)
    try:
        require_current(store.engine)
    except BaseException:
        store.close()
        raise
    return store
