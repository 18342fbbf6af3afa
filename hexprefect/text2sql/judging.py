"""Choosing between candidates: by their rows, and by a judge only where rows disagree."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hexprefect.completion import Complete, Prompt
from hexprefect.text2sql.candidates import Candidate
from hexprefect.text2sql.extraction import without_thoughts
from hexprefect.text2sql.prompting import PromptBook, json_answer
from hexprefect.text2sql.rows import Rows

STAGE = "judge"
_SHOWN_ROWS = 4
_SHOWN_CHARACTERS = 240
_LETTERS = "ABCDEFGH"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Candidates whose statements return the same rows; the first of them speaks for all."""

    candidates: tuple[Candidate, ...]

    @property
    def representative(self) -> Candidate:
        """The candidate with the lowest number."""
        return self.candidates[0]


def cluster_by_rows(candidates: Sequence[Candidate]) -> tuple[Cluster, ...]:
    """Group candidates by what they return; the largest group first, ties by candidate number.

    Rows count as a bag: without knowing that the question asks for an order, an order is no
    difference. Column names do not count.
    """
    groups: dict[tuple[str, ...], list[Candidate]] = {}
    for candidate in candidates:
        if candidate.rows is not None:
            groups.setdefault(_signature(candidate.rows), []).append(candidate)
    clusters = [Cluster(tuple(group)) for group in groups.values()]
    return tuple(sorted(clusters, key=lambda item: -len(item.candidates)))


def judge_prompt(book: PromptBook, clusters: Sequence[Cluster]) -> Prompt:
    """The call that chooses between clusters by their statements and first rows."""
    shown = clusters[: len(_LETTERS)]
    letters = _LETTERS[: len(shown)]
    options = "\n\n".join(
        f"{letter}:\n```sql\n{item.representative.sql}\n```\n{_preview(item.representative.rows)}"
        for letter, item in zip(letters, shown, strict=True)
    )
    answer = {
        "type": "object",
        "properties": {
            "reason": {"type": "string", "maxLength": 160},
            "choice": {"type": "string", "enum": list(letters)},
        },
        "required": ["reason", "choice"],
        "additionalProperties": False,
    }
    return book.prompt(
        STAGE,
        "judge",
        {"options": options, "letters": ", ".join(letters)},
        max_output_tokens=120,
        response_format=json_answer("verdict", answer),
    )


def contenders(clusters: Sequence[Cluster]) -> tuple[Cluster, ...]:
    """Clusters worth judging: those with rows, if there are any.

    Of 805 verified statements on Spider and defog databases 763 return rows. When one candidate
    found some and another none, the other has most likely misspelt a value.
    """
    with_rows = tuple(item for item in clusters if not _is_empty(item))
    return with_rows or tuple(clusters)


def _is_empty(cluster: Cluster) -> bool:
    rows = cluster.representative.rows
    return rows is None or rows.is_empty


async def judge(book: PromptBook, clusters: Sequence[Cluster], complete: Complete) -> Cluster:
    """Ask the model which cluster is right.

    A verdict that cannot be read chooses the first: the largest, or the first candidate's.
    """
    completion = await complete(judge_prompt(book, clusters))
    position = _read_choice(completion.text, len(clusters))
    return clusters[position or 0]


def _read_choice(text: str, count: int) -> int | None:
    answer = without_thoughts(text)
    letters = _LETTERS[:count]
    try:
        choice = str(json.loads(answer[answer.find("{") : answer.rfind("}") + 1])["choice"])
    except (ValueError, KeyError, TypeError):
        found = re.findall(rf"\b([{letters}])\b", answer)
        choice = found[-1] if found else ""
    return letters.find(choice.strip().upper()) if choice.strip().upper() in set(letters) else None


def _signature(rows: Rows) -> tuple[str, ...]:
    encoded = sorted(
        json.dumps([_rounded(value) for value in row], sort_keys=True, default=str)
        for row in rows.rows
    )
    # The width tells two empty results apart that answer differently shaped questions.
    return (str(len(rows.columns)), *encoded)


def _rounded(value: object) -> object:
    """Floats to nine digits: a sum in another order is the same sum."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _preview(rows: Rows | None) -> str:
    if rows is None or not rows.rows:
        return "Result: no rows."
    lines = [" | ".join(rows.columns)]
    lines += [
        json.dumps(list(row), ensure_ascii=False)[:_SHOWN_CHARACTERS]
        for row in rows.rows[:_SHOWN_ROWS]
    ]
    more = " or more" if rows.truncated else ""
    return f"Result ({len(rows.rows)}{more} rows):\n" + "\n".join(lines)
