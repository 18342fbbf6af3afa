"""Sample questions on the demo shop, each with SQL whose result a test has looked at."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict


class SampleQuestion(BaseModel):
    """A question about the shop and SQL that answers it, in the common subset of the dialects."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    language: Literal["en", "de"]
    question: str
    sql: str
    ordered: bool
    """Whether the order of the rows is part of the answer."""


@cache
def sample_questions() -> tuple[SampleQuestion, ...]:
    """All shipped questions, in the order of the file `questions.jsonl`."""
    lines = files("hexprefect.demo").joinpath("questions.jsonl").read_text(encoding="utf-8")
    return tuple(SampleQuestion.model_validate_json(line) for line in lines.split("\n") if line)
