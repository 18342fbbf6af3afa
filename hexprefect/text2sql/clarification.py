"""Asking back: a question that the candidates read in different ways, with the readings offered.

An option that is off by default: a small model disagrees with itself for worse reasons than that
the question has two meanings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hexprefect.completion import Complete, Prompt
from hexprefect.text2sql.judging import shown_options
from hexprefect.text2sql.outcome import Reading
from hexprefect.text2sql.prompting import PromptBook, json_answer, read_json_object
from hexprefect.text2sql.voting import Cluster

STAGE = "judge"
BRANCH = "readings"
_READINGS = 3
_LONGEST_READING = 200


def has_several_readings(clusters: Sequence[Cluster], *, candidates: int) -> bool:
    """Whether no result has more than half of the candidates behind it."""
    return len(clusters) > 1 and 2 * len(clusters[0].candidates) <= candidates


def readings_prompt(book: PromptBook, clusters: Sequence[Cluster]) -> Prompt:
    """The call that puts each statement's understanding of the question into words."""
    letters, options = shown_options(clusters[:_READINGS])
    answer = {
        "type": "object",
        "properties": {
            letter: {"type": "string", "maxLength": _LONGEST_READING} for letter in letters
        },
        "required": list(letters),
        "additionalProperties": False,
    }
    return book.prompt(
        STAGE,
        "readings",
        {"options": options, "letters": ", ".join(letters)},
        branch=BRANCH,
        max_output_tokens=180,
        response_format=json_answer("readings", answer),
    )


async def describe_readings(
    book: PromptBook, clusters: Sequence[Cluster], complete: Complete
) -> tuple[Reading, ...]:
    """Each cluster's reading, in the order of the vote; none when the answer is unreadable."""
    completion = await complete(readings_prompt(book, clusters))
    written: dict[str, Any] = read_json_object(completion.text) or {}
    letters, _ = shown_options(clusters[:_READINGS])
    readings = [
        Reading(description.strip()[:_LONGEST_READING], cluster.representative.sql or "")
        for letter, cluster in zip(letters, clusters, strict=False)
        if isinstance(description := written.get(letter), str) and description.strip()
    ]
    return tuple(readings) if len(readings) > 1 else ()
