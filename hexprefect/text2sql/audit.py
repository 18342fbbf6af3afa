"""What the guard refused: a record for the log, and for whoever keeps the answer.

The records are structured: handlers find the fields of `Refusal.as_record` in the log record's
`refusal`. The statement is kept as it came, because that is what an auditor wants to see.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from hexprefect.text2sql.errors import StatementRefused

LOGGER = logging.getLogger("hexprefect.text2sql.audit")
_STATEMENT_CHARACTERS = 4_000
_KEPT = 100


@dataclass(frozen=True, slots=True)
class Refusal:
    """One statement that the guard did not let through."""

    rule: str
    problem: str
    remedy: str | None
    statement: str
    database: str
    """As it may be shown: without a password."""
    tenant: str | None

    def as_record(self) -> dict[str, str | None]:
        """Its fields as JSON can hold them."""
        return {
            "rule": self.rule,
            "problem": self.problem,
            "remedy": self.remedy,
            "statement": self.statement,
            "database": self.database,
            "tenant": self.tenant,
        }


@dataclass(slots=True)
class AuditTrail:
    """The refusals of one database as one tenant asked it; the newest hundred are kept."""

    database: str
    tenant: str | None = None
    _kept: deque[Refusal] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def refuse(self, statement: str, refused: StatementRefused) -> None:
        """Log a refusal and keep it."""
        refusal = Refusal(
            refused.rule,
            refused.problem,
            refused.remedy,
            statement[:_STATEMENT_CHARACTERS],
            self.database,
            self.tenant,
        )
        self._kept.append(refusal)
        LOGGER.warning(
            "refused by the rule %s: tenant %s, database %s",
            refusal.rule,
            refusal.tenant,
            refusal.database,
            extra={"refusal": refusal.as_record()},
        )

    def __iter__(self) -> Iterator[Refusal]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)
