"""How much effort a question may cost, and what the agent may answer instead of rows.

Each default has its measurement, or the lack of one, in docs/accuracy.md.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

Selection = Literal["vote", "judge", "unit_tests"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """How much effort a question may cost.

    Raises:
        pydantic.ValidationError: a number is out of its range.
    """

    candidates: int = Field(default=3, ge=1, le=8)
    """Written at most; those that can no longer change the vote are not begun."""
    max_corrections: int = Field(default=2, ge=0, le=5)
    """Corrections of each candidate after an error or an empty result."""
    selection: Selection = "vote"
    """What chooses between results that differ: the largest group, a judge that sees statements and
    rows, or checks that the model wrote before it saw any candidate."""
    linking_from_tables: int = Field(default=8, ge=1)
    """A schema with fewer tables is read whole by the model anyway: no linking call."""
    worked_examples: bool = False
    """Whether prompts begin with questions on an invented shop and the statements for them."""
    schema_token_budget: int = Field(default=6_000, ge=200)
    """Estimated tokens of the schema in a prompt; what does not fit is named as left out."""
    expected_call_s: float = Field(default=5.0, gt=0)
    """Seconds a call is taken to need until the query has seen its first."""
    abstain: bool = True
    """Whether a question that the schema holds nothing for is answered with what is missing."""
    clarify: bool = False
    """Whether a question whose candidates read it in different ways is asked back."""
    reuse_answers_s: float = Field(default=0.0, ge=0)
    """Seconds for which the answer to the same question may be given again, on the same data and
    with the same rights; 0 for never. On an engine that does not tell when rows change, an answer
    may be that old."""
