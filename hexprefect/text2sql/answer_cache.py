"""Answers of questions that were asked before: on the same data, with the same rights and options.

Off unless `AgentOptions.reuse_answers_s` says for how long. The key holds all that an answer
depends on, so that a tenant is never given what it may not read: which database and account, what
may be read of it, its structure, its words, and the version of its rows where the engine has one.
Where it has none, an answer may be as old as the option allows.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from hexprefect.text2sql.database import Database
from hexprefect.text2sql.options import AgentOptions
from hexprefect.text2sql.outcome import Answer
from hexprefect.text2sql.schema import Schema

_KEPT_ANSWERS = 256
_KEPT_CELLS = 20_000
"""Of one answer: a larger result is asked for again, so that all kept ones fit into memory."""


class AnswerCache:
    """The newest answers of this process, the least recently used dropped first.

    Args:
        most: answers kept.
        clock: monotonic seconds.
    """

    def __init__(
        self, *, most: int = _KEPT_ANSWERS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, Answer]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: str, *, within_s: float) -> Answer | None:
        """The answer kept under `key`, if it is not older than `within_s` seconds."""
        known = self._kept.get(key)
        if known is None:
            return None
        kept_at, answer = known
        if self._clock() - kept_at > within_s:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return replace(answer, from_cache=True)

    def keep(self, key: str, answer: Answer) -> None:
        """Keep an answer with rows; one cut short for want of time would be better next time."""
        cells = len(answer.rows) * len(answer.columns)
        if answer.state != "answered" or answer.dropped_work or cells > _KEPT_CELLS:
            return
        self._kept[key] = (self._clock(), answer)
        self._kept.move_to_end(key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)


async def cache_key(
    question: str,
    evidence: str,
    *,
    database: Database,
    schema: Schema,
    options: AgentOptions,
    model: str,
) -> str | None:
    """Names everything that the answer depends on; None for a schema of no known database."""
    if not schema.identity:
        return None
    parts = (
        " ".join(question.split()),
        " ".join(evidence.split()),
        schema.identity,
        schema.fingerprint,
        repr(schema.vocabulary),
        repr(database.access),
        repr(database.limits),
        await database.data_version(),
        repr(options),
        model,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


answer_cache = AnswerCache()
"""Of this process."""
