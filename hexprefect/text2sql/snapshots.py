"""Reflected schemas, kept for all who ask the same database, until its structure changes.

Reflecting a large catalogue and indexing its values takes seconds; asking the database whether
anything changed takes milliseconds. So a snapshot is shared by the whole process and asked about
before it is used again. Blocking: call it in a thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hexprefect.text2sql.access import Access, restricted
from hexprefect.text2sql.dialects.adapter import Adapter
from hexprefect.text2sql.errors import StatementRefused
from hexprefect.text2sql.guard import check
from hexprefect.text2sql.patience import Patience
from hexprefect.text2sql.reflection import reflect
from hexprefect.text2sql.schema import Schema, Vocabulary

logger = logging.getLogger(__name__)

_KEPT_DATABASES = 32
_KEPT_VIEWS = 64
"""Restricted forms of one schema: one for each set of rights and vocabulary in use."""
_SAMPLES_KEPT_S = 3_600.0
"""Example values follow the rows, not the structure: after this long they are read anew."""
_LOOKS_EVERY_S = 0.1
"""Whether somebody still waits for a schema that another is reading."""


@dataclass(slots=True)
class Snapshot:
    """A schema as it was at one version of the database's structure."""

    version: str
    schema: Schema
    taken_at: float
    """Monotonic seconds."""
    _forms: OrderedDict[str, Schema] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def form(self, access: Sequence[Access], vocabulary: Vocabulary) -> Schema:
        """The schema as somebody with these rights sees it; the same object every time.

        What is made of a schema (indexes, prompts) is kept with the object.
        """
        if vocabulary == Vocabulary() and all(item.is_open for item in access):
            return self.schema
        key = repr((tuple(access), vocabulary))
        with self._lock:
            if key not in self._forms:
                schema = replace(self.schema, vocabulary=vocabulary)
                for item in access:
                    schema = restricted(schema, item)
                self._forms[key] = _with_readable_examples(schema)
            self._forms.move_to_end(key)
            while len(self._forms) > _KEPT_VIEWS:
                self._forms.popitem(last=False)
            return self._forms[key]


def _with_readable_examples(schema: Schema) -> Schema:
    """Without the examples that the guard refuses: they show what may not be read here."""
    kept = []
    for example in schema.vocabulary.examples:
        try:
            check(example.sql, dialect=schema.dialect, schema=schema)
        except StatementRefused as refused:
            logger.info("the example %r is not shown: %s", example.question, refused)
            continue
        kept.append(example)
    return replace(schema, vocabulary=replace(schema.vocabulary, examples=tuple(kept)))


class Snapshots:
    """The newest snapshot of each database, the least recently used dropped first."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.reflections = 0
        """How often a catalogue was read in full."""
        self._clock = clock
        self._kept: OrderedDict[str, Snapshot] = OrderedDict()
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def current(
        self,
        key: str,
        adapter: Adapter,
        *,
        refresh: bool = False,
        patience: Patience | None = None,
    ) -> Snapshot:
        """The snapshot of a database, taken anew when its structure has changed.

        Args:
            key: names the database and the account that reads it.
            adapter: of that database.
            refresh: take it anew in any case.
            patience: how long the values of each table may take.

        Raises:
            sqlalchemy.exc.SQLAlchemyError, CallerMistake: the catalogue cannot be read.
            ReadingStopped: nobody waits for it any more.
        """
        patience = patience or Patience()
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        # One reflects, the others wait for what it finds.
        with _held(lock, patience):
            version = _version(adapter)
            known = self._kept.get(key)
            if known is None or refresh or not self._is_current(known, version):
                identity = hashlib.sha256(key.encode()).hexdigest()[:32]
                schema = replace(reflect(adapter, patience), identity=identity)
                known = Snapshot(version, schema, self._clock())
                self.reflections += 1
            with self._lock:
                self._kept[key] = known
                self._kept.move_to_end(key)
                while len(self._kept) > _KEPT_DATABASES:
                    dropped, _ = self._kept.popitem(last=False)
                    self._locks.pop(dropped, None)
            return known

    def _is_current(self, known: Snapshot, version: str) -> bool:
        return known.version == version and self._clock() - known.taken_at < _SAMPLES_KEPT_S


@contextlib.contextmanager
def _held(lock: threading.Lock, patience: Patience) -> Iterator[None]:
    """Hold a lock, unless nobody waits any more before it is free."""
    while not lock.acquire(timeout=_LOOKS_EVERY_S):
        patience.check()
    try:
        yield
    finally:
        lock.release()


def _version(adapter: Adapter) -> str:
    engine = adapter.reflection_engine()
    try:
        with engine.connect() as connection:
            return adapter.version(connection)
    finally:
        engine.dispose()


snapshots = Snapshots()
"""Those of this process."""
