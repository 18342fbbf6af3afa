"""Prediction of what a request will be like, from requests like it that have finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_OUTPUT_TOKENS = 128.0
"""For a stage of which nothing at all is known: between the medians of the short stages (5–120) and
of candidate generation (about 680) of the published traces."""

ENOUGH = 5
"""Finished requests of a database before its own history is preferred to that of all databases."""

MEMORY = 50
"""Requests over which the running means forget."""


@dataclass(frozen=True, slots=True)
class StageHistory:
    """Running means over finished requests of one stage."""

    count: int = 0
    input_tokens: float = 0.0
    output_tokens: float = 0.0

    def after(self, *, input_tokens: int, output_tokens: int) -> StageHistory:
        """The history with one more finished request."""
        weight = 1.0 / min(self.count + 1, MEMORY)
        return StageHistory(
            count=self.count + 1,
            input_tokens=self.input_tokens + weight * (input_tokens - self.input_tokens),
            output_tokens=self.output_tokens + weight * (output_tokens - self.output_tokens),
        )


ANY_DATABASE = ""
"""The key under which a stage's history over all databases is kept."""

History = Mapping[tuple[str, str], StageHistory]
"""`(stage, database)` → history."""


def stage_history(history: History, stage: str, database: str) -> StageHistory | None:
    """The most specific history with enough requests in it, or `None`."""
    own = history.get((stage, database))
    if own is not None and own.count >= ENOUGH:
        return own
    return history.get((stage, ANY_DATABASE))


def predicted_output_tokens(
    history: History, stage: str, database: str, *, expected: float | None = None
) -> float:
    """Output tokens to expect: from history, else what the workflow expects, else the default."""
    known = stage_history(history, stage, database)
    if known is not None and known.count > 0:
        return known.output_tokens
    return expected if expected else DEFAULT_OUTPUT_TOKENS


def predicted_input_tokens(
    history: History, stage: str, database: str, *, expected: float | None = None
) -> float:
    """Input tokens to expect of a stage that has not been reached yet."""
    known = stage_history(history, stage, database)
    if known is not None and known.count > 0:
        return known.input_tokens
    return expected or 0.0
