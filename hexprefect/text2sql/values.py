"""Finding the values that a question mentions among those of the database.

A question says "french singers" or "in Aberdeen"; the column holds `France` or `Aberdeen `. Knowing
where a word of the question occurs, and how it is spelt there, tells the model both the column and
the literal. Values are matched as data; they are shown to the model quoted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from rapidfuzz import fuzz, process

from hexprefect.text2sql.names import quoted
from hexprefect.text2sql.reflection import literal
from hexprefect.text2sql.rendering import qualified_name
from hexprefect.text2sql.schema import Schema

_LONGEST_PHRASE_WORDS = 5
_SAID_IN_QUESTION = 85.0
"""Partial ratio: a small model also lists example values that the question never mentions."""
_NEAR_ENOUGH = 88.0
"""rapidfuzz ratio: one letter in eight may differ, which is a plural or a typing slip."""
_SHORTEST_FUZZY = 5
_MATCHES_SHOWN = 6
_COMMON_WORDS = frozenset(
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


class ValueIndex:
    """All sampled texts of a schema, looked up by their lower-case form."""

    def __init__(self, schema: Schema) -> None:
        self._places: defaultdict[str, list[tuple[str, str, str]]] = defaultdict(list)
        for table in schema.tables:
            for column in table.columns:
                for value in column.values:
                    place = (
                        qualified_name(table, schema.dialect),
                        quoted(column.name, schema.dialect),
                        value,
                    )
                    self._places[_normal(value)].append(place)
        self._keys = list(self._places)

    def find(self, question: str, *, phrases: Iterable[str] = ()) -> tuple[ValueMatch, ...]:
        """The best matches, best first.

        Args:
            question: every run of up to five of its words is looked up.
            phrases: literal values that a model read out of the question.
        """
        found: dict[tuple[str, str, str], float] = {}
        asked = _normal(question)
        said = (_normal(item) for item in phrases)
        wanted = [
            *_phrases(question),
            *(item for item in said if fuzz.partial_ratio(item, asked) >= _SAID_IN_QUESTION),
        ]
        for phrase in dict.fromkeys(item for item in wanted if item):
            for key, score in self._near(phrase):
                for place in self._places[key]:
                    found[place] = max(found.get(place, 0.0), score + len(key) / 1000)
        ordered = sorted(found.items(), key=lambda item: -item[1])
        return tuple(ValueMatch(*place, score=score) for place, score in ordered[:_MATCHES_SHOWN])

    def _near(self, phrase: str) -> list[tuple[str, float]]:
        if phrase in self._places:
            return [(phrase, 100.0)]
        if len(phrase) < _SHORTEST_FUZZY:
            return []
        matches = process.extract(
            phrase, self._keys, scorer=fuzz.ratio, score_cutoff=_NEAR_ENOUGH, limit=2
        )
        return [(key, score) for key, score, _ in matches if not key.isdigit()]


_indexes: WeakKeyDictionary[Schema, ValueIndex] = WeakKeyDictionary()


def value_index(schema: Schema) -> ValueIndex:
    """The index of a schema, built once for as long as the schema lives."""
    if schema not in _indexes:
        _indexes[schema] = ValueIndex(schema)
    return _indexes[schema]


def _normal(text: str) -> str:
    return " ".join(text.casefold().split())


def _phrases(question: str) -> list[str]:
    """Runs of words that could be a value, longest first; single common words are left out."""
    words = re.findall(r"[\w'’.\-]+", question.casefold())
    words = [word.strip(".'’-") for word in words]
    runs = []
    for length in range(min(_LONGEST_PHRASE_WORDS, len(words)), 0, -1):
        for start in range(len(words) - length + 1):
            run = words[start : start + length]
            if all(word in _COMMON_WORDS or not word for word in run):
                continue
            if length == 1 and len(run[0]) < 2 and not run[0].isalpha():
                continue
            runs.append(" ".join(run))
    return [*_quoted_phrases(question), *runs]


def _quoted_phrases(question: str) -> list[str]:
    pairs = re.findall(r"\"([^\"]+)\"|“([^”]+)”|'([^']+)'|‘([^’]+)’", question)
    return [_normal(text) for pair in pairs for text in pair if text]
