"""What a question may mention of the database's values, and how a found one is shown.

A question says "french singers" or "in Aberdeen"; the column holds `France` or `Aberdeen `. Knowing
where a word of the question occurs, and how it is spelt there, tells the model both the column and
the literal. Values are matched as data; they are shown to the model quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rapidfuzz import fuzz

from hexprefect.text2sql.reflection import literal

_LONGEST_PHRASE_WORDS = 5
_SAID_IN_QUESTION = 85.0
"""rapidfuzz's partial ratio."""
SHOWN = 6
"""Matches shown to the model, at most."""
COMMON_WORDS = frozenset(
    {
        "a", "an", "the", "of", "in", "on", "at", "for", "to", "from", "by", "with", "and",
        "or", "not", "is", "are", "was", "were", "be", "have", "has", "had", "do", "does",
        "did", "what", "which", "who", "whom", "whose", "when", "where", "how", "many", "much",
        "all", "any", "each", "every", "list", "show", "find", "give", "tell", "return", "name",
        "names", "number", "count", "total", "average", "most", "least", "more", "less", "than",
        "that", "this", "these", "those", "their", "its", "it", "there", "them", "between",
        "both", "either", "id", "ids", "me", "my", "our", "your", "we", "i", "as", "per",
        "also", "only", "no", "yes", "other", "same", "different", "year", "years", "date",
        "first", "last", "new", "old",
    }
)  # fmt: skip
"""Words of questions that are no values."""


@dataclass(frozen=True, slots=True)
class ValueMatch:
    """A value of the database that the question seems to mention."""

    table: str
    column: str
    value: str
    score: float

    def shown(self) -> str:
        """As a condition that a statement could hold."""
        return f"{self.table}.{self.column} = {literal(self.value)}"


def said_phrases(question: str, phrases: Iterable[str]) -> list[str]:
    """Of the literals that a model read out of a question, those that the question holds.

    A small model also lists example values that the question never mentions.
    """
    asked = normal(question)
    said = (normal(item) for item in phrases)
    return [item for item in said if item and fuzz.partial_ratio(item, asked) >= _SAID_IN_QUESTION]


def normal(text: str) -> str:
    """A text as it is compared: without case and without spaces that mean nothing."""
    return " ".join(text.casefold().split())


def phrases_of(question: str) -> list[str]:
    """Runs of words that could be a value, longest first; single common words are left out."""
    words = re.findall(r"[\w'’.\-]+", question.casefold())
    words = [word.strip(".'’-") for word in words]
    runs = []
    for length in range(min(_LONGEST_PHRASE_WORDS, len(words)), 0, -1):
        for start in range(len(words) - length + 1):
            run = words[start : start + length]
            if all(word in COMMON_WORDS or not word for word in run):
                continue
            if length == 1 and len(run[0]) < 2 and not run[0].isalpha():
                continue
            runs.append(" ".join(run))
    return [*_quoted_phrases(question), *runs]


def _quoted_phrases(question: str) -> list[str]:
    pairs = re.findall(r"\"([^\"]+)\"|“([^”]+)”|'([^']+)'|‘([^’]+)’", question)
    return [normal(text) for pair in pairs for text in pair if text]
