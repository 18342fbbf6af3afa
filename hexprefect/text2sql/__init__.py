"""The agent that answers questions with SQL, and the read-only databases it asks."""

from __future__ import annotations

from hexprefect.text2sql.agent import answer
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.limits import Limits
from hexprefect.text2sql.options import AgentOptions
from hexprefect.text2sql.outcome import Answer, Progress
from hexprefect.text2sql.rows import Rows

__all__ = ["AgentOptions", "Answer", "Database", "Limits", "Progress", "Rows", "answer"]
