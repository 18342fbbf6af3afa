"""The SQL in a model's answer: without thoughts, fences, prose and trailing semicolons."""

from __future__ import annotations

import re

from hexprefect.text2sql.errors import ExtractionFailed

_THOUGHT_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_THOUGHT_START = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
_FENCE = re.compile(
    r"(?P<ticks>`{3,}|~{3,})[ \t]*(?P<language>[\w+-]*)[^\n]*\n?(?P<body>.*?)(?:(?P=ticks)|\Z)",
    re.DOTALL,
)
_STATEMENT = re.compile(
    r"^[ \t>*-]*(?P<sql>\(?[ \t]*(?:WITH|SELECT|VALUES)\b.*)",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
_ANYWHERE = re.compile(
    r"\b(?:WITH\s+(?:RECURSIVE\s+)?[\w\"`\[]+[^;]*?\bAS\b|SELECT\b).*", re.IGNORECASE | re.DOTALL
)
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
    fences = [
        (match["language"].lower() in _SQL_LANGUAGES, found)
        for match in _FENCE.finditer(answer)
        if (found := _statement_in(match["body"])) is not None
    ]
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


def _statement_in(text: str) -> str | None:
    match = _STATEMENT.search(text)
    return _up_to_end(match["sql"]) if match else None


def _statement_in_prose(text: str) -> str | None:
    match = _ANYWHERE.search(text)
    return _up_to_end(match[0]) if match else None


def _up_to_end(text: str) -> str:
    """Cut at the first semicolon outside quotes, or where prose follows an empty line."""
    quote: str | None = None
    closing = {"'": "'", '"': '"', "`": "`", "[": "]"}
    for position, character in enumerate(text):
        if quote is not None:
            quote = None if character == quote else quote
        elif character in closing:
            quote = closing[character]
        elif character == ";":
            # What follows is kept when it is a second statement: the guard must see and refuse it.
            rest = text[position + 1 :].strip()
            return text[:position].strip() if not _begins_statement(rest) else text.strip()
    return re.split(r"\n\s*\n(?=[A-Z][a-z]+ |\*\*|#)", text)[0].strip().rstrip("`").strip()


def _begins_statement(text: str) -> bool:
    return bool(
        re.match(
            r"(?:SELECT|WITH|INSERT|UPDATE|DELETE|DROP|CREATE|ALTER|ATTACH|PRAGMA|COMMIT|BEGIN|SET"
            r"|COPY|VACUUM|TRUNCATE|GRANT|CALL|DO|EXPLAIN)\b",
            text,
            re.IGNORECASE,
        )
    )
