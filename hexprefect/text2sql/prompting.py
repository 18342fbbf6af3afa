"""Prompts from their files, laid out static text → schema → question so that prefixes are shared.

All stages of a query, and all queries of a database, send the same system message: the instance
that answered one of them holds most of the next in its prefix cache. What differs between stages
comes last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from hexprefect.completion import Message, PrefixSegment, Prompt
from hexprefect.text2sql.extraction import without_thoughts
from hexprefect.text2sql.rendering import RenderedSchema, estimated_tokens

DIALECT_NAMES = {
    "sqlite": "SQLite",
    "postgres": "PostgreSQL",
    "duckdb": "DuckDB",
    "mysql": "MySQL",
}


Shape = TypeVar("Shape", bound=BaseModel)


@cache
def template(name: str) -> Template:
    """A prompt file of this package, by its name without ending."""
    file = resources.files("hexprefect.text2sql") / "prompts" / f"{name}.md"
    return Template(file.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class PromptBook:
    """Writes the prompts of one query; they share everything up to the question.

    Args:
        dialect: sqlglot's name of the SQL dialect.
        schema: the rendered schema.
        question: as the user asked it.
        evidence: what else is known (a glossary, a definition); empty when nothing is.
        worked_examples: whether questions on an invented shop come first, with their statements.
    """

    dialect: str
    schema: RenderedSchema
    question: str
    evidence: str = ""
    worked_examples: bool = False

    def prompt(
        self,
        stage: str,
        file: str,
        values: Mapping[str, str],
        *,
        branch: str | None = None,
        max_output_tokens: int = 400,
        temperature: float = 0.0,
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """One prompt of `stage` from the prompt file `file`, filled with `values`."""
        static = template("system").substitute(
            dialect_name=DIALECT_NAMES[self.dialect],
            dialect_notes=template(f"dialect_{self.dialect}").template.strip(),
        )
        if self.worked_examples:
            static = f"{static}\n{template('worked_examples').template}"
        evidence = f"Known: {self.evidence.strip()}\n" if self.evidence.strip() else ""
        task = template(file).substitute(
            {"question": self.question.strip(), "evidence": evidence} | dict(values)
        )
        static_key = f"static:{hashlib.sha256(static.encode()).hexdigest()[:16]}"
        return Prompt(
            stage=stage,
            messages=(
                Message("system", f"{static}\n{self.schema.text}"),
                Message("user", task.strip()),
            ),
            max_output_tokens=max_output_tokens,
            temperature=temperature,
            seed=seed,
            response_format=response_format,
            prefix=(
                PrefixSegment(static_key, estimated_tokens(static)),
                PrefixSegment(self.schema.key, self.schema.tokens),
            ),
            branch=branch,
        )


def json_answer(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI's `response_format` for an answer that must follow a JSON schema."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": dict(schema)}}


def read_json_object(text: str) -> dict[str, Any] | None:
    """The JSON object in a completion, whatever stands around it; None when there is none."""
    answer = without_thoughts(text)
    try:
        found = json.loads(answer[answer.find("{") : answer.rfind("}") + 1])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def read_json(text: str, shape: type[Shape]) -> Shape | None:
    """The JSON object in a completion as `shape`; None when there is none or it is another."""
    found = read_json_object(text)
    if found is None:
        return None
    try:
        return shape.model_validate(found)
    except ValidationError:
        return None
