"""The judge: the model chooses between results that differ. The same rows are never judged."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from hexprefect.completion import Complete, Prompt
from hexprefect.text2sql.extraction import without_thoughts
from hexprefect.text2sql.prompting import PromptBook, json_answer
from hexprefect.text2sql.rows import Rows
from hexprefect.text2sql.voting import Cluster

STAGE = "judge"
_SHOWN_ROWS = 4
_SHOWN_CHARACTERS = 240
_LETTERS = "ABCDEFGH"


def shown_options(clusters: Sequence[Cluster]) -> tuple[str, str]:
    """A letter for each cluster, and its statement with its first rows under that letter."""
    letters = _LETTERS[: len(clusters)]
    options = "\n\n".join(
        f"{letter}:\n```sql\n{item.representative.sql}\n```\n{_preview(item.representative.rows)}"
        for letter, item in zip(letters, clusters, strict=False)
    )
    return letters, options


def judge_prompt(book: PromptBook, clusters: Sequence[Cluster]) -> Prompt:
    """The call that chooses between clusters by their statements and first rows."""
    letters, options = shown_options(clusters)
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


def _preview(rows: Rows | None) -> str:
    if rows is None or not rows.rows:
        return "Result: no rows."
    # PIVOT makes columns of cells: none may begin a line of its own.
    lines = [" | ".join(" ".join(name.split())[:_SHOWN_CHARACTERS] for name in rows.columns)]
    lines += [
        json.dumps(list(row), ensure_ascii=False)[:_SHOWN_CHARACTERS]
        for row in rows.rows[:_SHOWN_ROWS]
    ]
    more = " or more" if rows.truncated else ""
    return f"Result ({len(rows.rows)}{more} rows):\n" + "\n".join(lines)
