"""Unit tests of a question: what its answer must look like, written before any candidate is seen.

The model says how many columns and rows were asked for and which values must be looked for; code
then counts which candidates keep to that. Where results differ, the one that passes most is taken.
An option that is off by default: see docs/accuracy.md for what it measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from hexprefect.completion import Complete, Prompt
from hexprefect.text2sql.candidates import Candidate
from hexprefect.text2sql.prompting import PromptBook, json_answer, read_json
from hexprefect.text2sql.values import said_phrases
from hexprefect.text2sql.voting import Cluster

STAGE = "unit_test_generation"


class _Written(BaseModel):
    model_config = ConfigDict(extra="ignore")

    columns: int | None = Field(default=None, ge=1, le=30)
    rows: Literal["one", "many", "unknown"] = "unknown"
    values: list[str] = Field(default_factory=list)


_ANSWER_FORMAT = json_answer(
    "unit_tests",
    {
        "type": "object",
        "properties": {
            "columns": {"type": "integer", "minimum": 1, "maximum": 30},
            "rows": {"type": "string", "enum": ["one", "many", "unknown"]},
            "values": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        },
        "required": ["columns", "rows", "values"],
        "additionalProperties": False,
    },
)


@dataclass(frozen=True, slots=True)
class UnitTests:
    """What the answer to a question must look like; what is not known is not tested."""

    columns: int | None = None
    rows: Literal["one", "many", "unknown"] = "unknown"
    values: tuple[str, ...] = ()
    """Of the question, in small letters; a statement must hold each."""

    def passed(self, candidate: Candidate) -> int:
        """How many of the tests a candidate passes."""
        if candidate.rows is None:
            return 0
        statement = (candidate.sql or "").casefold()
        found = len(candidate.rows.rows)
        return sum(
            (
                len(candidate.rows.columns) == self.columns,
                (self.rows == "one" and found == 1) or (self.rows == "many" and found > 1),
                *(value in statement for value in self.values),
            )
        )

    def choose(self, clusters: Sequence[Cluster]) -> Cluster:
        """The cluster whose statement passes most; ties in the order of the vote."""
        return max(clusters, key=lambda cluster: self.passed(cluster.representative))


def unit_test_prompt(book: PromptBook) -> Prompt:
    """The call that says what the answer must look like. It shows no candidate."""
    return book.prompt(
        STAGE, "unit_tests", {}, max_output_tokens=80, response_format=_ANSWER_FORMAT
    )


async def write_unit_tests(book: PromptBook, complete: Complete) -> UnitTests:
    """Ask the model for the tests; an answer that cannot be read tests nothing."""
    completion = await complete(unit_test_prompt(book))
    written = read_json(completion.text, _Written) or _Written()
    return UnitTests(
        written.columns, written.rows, tuple(said_phrases(book.question, written.values))
    )
