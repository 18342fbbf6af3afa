"""The SQL in a model's answer: without thoughts, fences, prose and trailing semicolons."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hexprefect.text2sql.errors import ExtractionFailed

_THOUGHT = r"(?:think(?:ing)?|thought|reasoning)\b[^<>\n]*"
_THOUGHT_END = re.compile(rf"</{_THOUGHT}>|\[/THINK\]", re.IGNORECASE)
_THOUGHT_START = re.compile(rf"<{_THOUGHT}>|\[THINK\]", re.IGNORECASE)
_FENCE = re.compile(
    r"(?P<ticks>`{3,}|~{3,})(?:(?P<line>[^\n]+?)(?P=ticks)"
    r"|[ \t]*(?P<language>[\w+-]*)[^\n]*\n(?P<body>.*?)(?:(?P=ticks)|\Z))",
    re.DOTALL,
)
_WITH = r"WITH\s+(?:RECURSIVE\s+)?(?:\w+|\"[^\"]+\"|`[^`]+`|\[[^\]]+\])\s*(?:\([^()]*\)\s*)?AS\b"
_BEGINNING = re.compile(
    rf"^[ \t]*(?:[>*-][ \t]+)*(?P<sql>(?:\(\s*){{0,9}}(?:{_WITH}|SELECT\b|VALUES\b))",
    re.IGNORECASE | re.MULTILINE,
)
_INSIDE_A_LINE = re.compile(rf"\b(?:{_WITH}|SELECT\b)", re.IGNORECASE)
_QUOTED_IN_A_LINE = re.compile(
    r"(?<!`)(?P<ticks>`{1,2})(?!`)[ \t]*(?P<sql>(?:WITH|SELECT)\s[^\n]*?[^`])(?P=ticks)(?!`)",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_SENTENCE = re.compile(r"[^\n]*[.:!][ \t]*(?:\n|\Z)")
"""A line that ends as no line of SQL does."""
_PIECE = re.compile(
    r"'(?:[^']|'')*'|\"[^\"]*\"|`[^`\n]+`|\[[^\]\n']*\]|(?P<dollars>\$\w*\$).*?(?P=dollars)"
    r"|--[^\n]*|/\*.*?\*/|(?P<end>;|`{3,}|~{3,}|\n\s*\n(?=[A-Z][a-z]+[ :,]|\*\*|\#))|.",
    re.DOTALL,
)
"""What means something as a whole; a quote that is never closed is a character like any other."""
_SQL_LANGUAGES = frozenset({"sql", "sqlite", "sqlite3", "postgres", "postgresql", "pgsql", "psql"})


def without_thoughts(text: str) -> str:
    """Cut through the last `</think>`, also when it was never opened.

    A thought that never ends (the model ran out of tokens while thinking) leaves what stood before
    it: usually nothing.
    """
    ends = list(_THOUGHT_END.finditer(text))
    if ends:
        text = text[ends[-1].end() :]
    start = _THOUGHT_START.search(text)
    return (text[: start.start()] if start else text).strip()


def extract_sql(text: str) -> str:
    """The one statement a completion proposes.

    The last fence that holds a query wins, for models that reason put their answer last, fences
    marked as SQL before others. Without fences the text from the first line that begins a query up
    to its semicolon or the next empty line followed by prose is taken.

    Raises:
        ExtractionFailed: there is no query in the text.
    """
    answer = without_thoughts(text)
    fences = list(_fenced(answer))
    if fences:
        marked = [found for is_sql, found in fences if is_sql]
        return (marked or [found for _, found in fences])[-1]
    found = _statement_in(answer) or _statement_in_prose(answer)
    if found is None:
        shown = " ".join(answer.split())[:120]
        raise ExtractionFailed(
            f"The model's answer holds no SQL query: {shown!r}.",
            remedy="Ask again, or ask a more specific question.",
        )
    return found


def _fenced(answer: str) -> Iterator[tuple[bool, str]]:
    """The queries in fences, and whether each is marked as SQL."""
    for match in _FENCE.finditer(answer):
        if match["line"] is None:
            language, found = match["language"], _statement_in(match["body"])
        else:
            language, _, _ = match["line"].strip().partition(" ")
            found = _statement_in_prose(match["line"])
        if found is not None:
            yield language.lower() in _SQL_LANGUAGES, found


def _statement_in(text: str) -> str | None:
    """The first line that begins a query, and what follows; a sentence only when nothing else."""
    masked = _COMMENT.sub(lambda comment: " " * len(comment[0]), text)
    beginnings = list(_BEGINNING.finditer(masked))
    if not beginnings:
        return None
    queries = (item for item in beginnings if not _SENTENCE.match(masked, item.start()))
    chosen = next(queries, beginnings[0])
    return _up_to_end(text[chosen.start("sql") :])


def _statement_in_prose(text: str) -> str | None:
    quoted = _QUOTED_IN_A_LINE.search(text)
    if quoted:
        return _up_to_end(quoted["sql"])
    beginnings = list(_INSIDE_A_LINE.finditer(text))
    if not beginnings:
        return None
    # In prose "select" is a word like any other; in capitals it is SQL.
    in_capitals = (item for item in beginnings if item[0][:4].isupper())
    return _up_to_end(text[next(in_capitals, beginnings[0]).start() :])


def _up_to_end(text: str) -> str:
    """Cut at a semicolon or a fence outside quotes, or where prose follows an empty line."""
    for piece in _PIECE.finditer(text):
        if piece["end"] is None:
            continue
        # What follows is kept when it is a second statement: the guard must see and refuse it.
        if piece["end"] == ";" and _begins_statement(text[piece.end() :].strip()):
            return text.strip()
        return text[: piece.start()].strip()
    return text.strip()


def _begins_statement(text: str) -> bool:
    return bool(
        re.match(
            r"(?:SELECT|WITH|INSERT|UPDATE|DELETE|DROP|CREATE|ALTER|ATTACH|PRAGMA|COMMIT|BEGIN|SET"
            r"|COPY|VACUUM|TRUNCATE|GRANT|CALL|DO|EXPLAIN)\b",
            text,
            re.IGNORECASE,
        )
    )
