"""An index of a database's texts: which values a question mentions, however they are spelt.

SQLite's FTS5 finds the values that share a word with the question, rapidfuzz finds the words that
differ by a slip of the pen and scores what was found. The index is built once for a schema; in a
file it is also kept, and only what changed is indexed anew. https://sqlite.org/fts5.html
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

from rapidfuzz import fuzz, process

from hexprefect.text2sql.names import quoted
from hexprefect.text2sql.rendering import qualified_name
from hexprefect.text2sql.schema import Column, Schema
from hexprefect.text2sql.values import SHOWN, ValueMatch, normal, phrases_of, said_phrases

_NEAR_ENOUGH = 88.0
"""rapidfuzz ratio: one letter in eight may differ, which is a plural or a typing slip."""
_NEAR_WORD = 78.0
"""Lower, because a short word of a long value may differ by more of its own length."""
_SHORTEST_FUZZY = 5
_NEAR_WORDS = 3
_CANDIDATES = 400
"""Values that share a word with the question and are scored; the rarest words come first."""
_MATCHES_A_PHRASE = 2
_PLACES_A_VALUE = 8

_FORMAT = "1"
_TABLES = """
CREATE TABLE IF NOT EXISTS source (
    id INTEGER PRIMARY KEY, place_table TEXT, place_column TEXT, digest TEXT,
    UNIQUE (place_table, place_column)
);
CREATE TABLE IF NOT EXISTS value (
    id INTEGER PRIMARY KEY, source INTEGER, text TEXT, normal TEXT
);
CREATE INDEX IF NOT EXISTS value_source ON value (source);
CREATE INDEX IF NOT EXISTS value_normal ON value (normal);
CREATE VIRTUAL TABLE IF NOT EXISTS value_text USING fts5(
    normal, content='value', content_rowid='id', tokenize="unicode61 remove_diacritics 0"
);
CREATE VIRTUAL TABLE IF NOT EXISTS value_word USING fts5vocab(value_text, row);
"""


class ValueIndex:
    """All sampled texts of a schema.

    Args:
        schema: whose columns' `values` are indexed.
        file: where the index is kept; None keeps it in memory. A file that cannot be read or
            written is no error: the index is then built in memory.
    """

    def __init__(self, schema: Schema, file: Path | None = None) -> None:
        self.indexed_columns = 0
        """Columns that were indexed anew by this object; the others were still true."""
        self._lock = threading.Lock()
        try:
            self._connection = self._open(schema, file)
        except (OSError, sqlite3.Error):
            self._connection = self._open(schema, None)
        rows = self._connection.execute("SELECT term FROM value_word")
        self._words = [term for (term,) in rows if len(term) >= _SHORTEST_FUZZY]

    def find(self, question: str, *, phrases: Iterable[str] = ()) -> tuple[ValueMatch, ...]:
        """The best matches, best first.

        Args:
            question: every run of up to five of its words is looked up.
            phrases: literal values that a model read out of the question.
        """
        wanted = list(dict.fromkeys([*phrases_of(question), *said_phrases(question, phrases)]))
        best: dict[str, float] = {}
        with self._lock:
            candidates = self._candidates(wanted)
            for phrase in wanted:
                for key, score in _near(phrase, candidates):
                    best[key] = max(best.get(key, 0.0), score + len(key) / 1000)
            ranked = sorted(best, key=lambda key: (-best[key], key))
            found = [
                ValueMatch(*place, score=best[key])
                for key in ranked[:SHOWN]
                for place in self._places(key)
            ]
        return tuple(found[:SHOWN])

    def close(self) -> None:
        """Give the file back."""
        self._connection.close()

    def _open(self, schema: Schema, file: Path | None) -> sqlite3.Connection:
        if file is None:
            connection = sqlite3.connect(":memory:", check_same_thread=False)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(file, check_same_thread=False, timeout=5)
            # Values are data of the database they come from: for this user alone.
            os.chmod(file, 0o600)
        try:
            self._update(connection, schema)
        except BaseException:
            connection.close()
            raise
        return connection

    def _update(self, connection: sqlite3.Connection, schema: Schema) -> None:
        """Bring the index to the schema's values, touching only columns that changed."""
        connection.executescript(_TABLES)
        with connection:
            known = {
                (table, column): (number, digest)
                for number, table, column, digest in connection.execute(
                    "SELECT id, place_table, place_column, digest FROM source"
                )
            }
            for place, column in _columns(schema):
                number, digest = known.pop(place, (None, ""))
                if digest == _digest(column):
                    continue
                if number is not None:
                    _remove(connection, number)
                _insert(connection, place, column)
                self.indexed_columns += 1
            for number, _ in known.values():
                _remove(connection, number)

    def _candidates(self, phrases: Sequence[str]) -> list[str]:
        """Values that share a word, or nearly, with the phrases, and those that are phrases."""
        words = {word for phrase in phrases for word in _tokens(phrase)}
        spoken = words | {near for word in words for near in self._near_words(word)}
        exact = [
            key
            for phrase in phrases
            for (key,) in self._connection.execute(
                "SELECT normal FROM value WHERE normal = ? LIMIT 1", (phrase,)
            )
        ]
        if not spoken:
            return exact
        query = " OR ".join(f'"{word}"' for word in sorted(spoken))
        shared = self._connection.execute(
            "SELECT normal FROM value_text WHERE value_text MATCH ? ORDER BY rank LIMIT ?",
            (query, _CANDIDATES),
        )
        return list(dict.fromkeys([*exact, *(key for (key,) in shared)]))

    def _near_words(self, word: str) -> list[str]:
        if len(word) < _SHORTEST_FUZZY:
            return []
        matches = process.extract(
            word, self._words, scorer=fuzz.ratio, score_cutoff=_NEAR_WORD, limit=_NEAR_WORDS
        )
        return [match for match, _, _ in matches]

    def _places(self, key: str) -> list[tuple[str, str, str]]:
        return list(
            self._connection.execute(
                "SELECT place_table, place_column, text FROM value JOIN source "
                "ON value.source = source.id WHERE normal = ? ORDER BY source.id LIMIT ?",
                (key, _PLACES_A_VALUE),
            )
        )


_indexes: WeakKeyDictionary[Schema, ValueIndex] = WeakKeyDictionary()
_building: WeakKeyDictionary[Schema, threading.Lock] = WeakKeyDictionary()
_lock = threading.Lock()
"""Of the two before it, never held while an index is built."""
_folder: Path | None = None


def keep_indexes_in(folder: Path | None) -> None:
    """Keep the indexes of this process's schemas in files of a folder from now on; None: memory.

    A schema whose structure or rights differ has a file of its own.
    """
    global _folder
    _folder = folder


def value_index(schema: Schema) -> ValueIndex:
    """The index of a schema, built once for as long as the schema lives."""
    with _lock:
        if (known := _indexes.get(schema)) is not None:
            return known
        building = _building.setdefault(schema, threading.Lock())
    # One builds, the others who ask the same schema wait for it.
    with building:
        with _lock:
            known = _indexes.get(schema)
        if known is None:
            known = ValueIndex(schema, _file_of(schema))
            with _lock:
                _indexes[schema] = known
        return known


def _file_of(schema: Schema) -> Path | None:
    """Kept under the database's identity, so that only databases with one are kept at all."""
    if _folder is None or not schema.identity:
        return None
    name = f"{schema.identity}:{schema.fingerprint}:{_FORMAT}"
    return _folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.sqlite"


def _columns(schema: Schema) -> Iterator[tuple[tuple[str, str], Column]]:
    for table in schema.tables:
        owner = qualified_name(table, schema.dialect)
        for column in table.columns:
            if column.values:
                yield (owner, quoted(column.name, schema.dialect)), column


def _digest(column: Column) -> str:
    return hashlib.sha256("\0".join(column.values).encode("utf-8", "replace")).hexdigest()[:32]


def _insert(connection: sqlite3.Connection, place: tuple[str, str], column: Column) -> None:
    number = connection.execute(
        "INSERT INTO source (place_table, place_column, digest) VALUES (?, ?, ?)",
        (*place, _digest(column)),
    ).lastrowid
    # A text that is no Unicode cannot be typed in a question either.
    texts = [text for text in column.values if _is_unicode(text)]
    connection.executemany(
        "INSERT INTO value (source, text, normal) VALUES (?, ?, ?)",
        [(number, text, normal(text)) for text in texts],
    )
    connection.execute(
        "INSERT INTO value_text (rowid, normal) SELECT id, normal FROM value WHERE source = ?",
        (number,),
    )


def _remove(connection: sqlite3.Connection, source: int) -> None:
    connection.execute(
        "INSERT INTO value_text (value_text, rowid, normal) "
        "SELECT 'delete', id, normal FROM value WHERE source = ?",
        (source,),
    )
    connection.execute("DELETE FROM value WHERE source = ?", (source,))
    connection.execute("DELETE FROM source WHERE id = ?", (source,))


def _is_unicode(text: str) -> bool:
    with contextlib.suppress(UnicodeEncodeError):
        text.encode()
        return True
    return False


def _tokens(phrase: str) -> list[str]:
    """Words as FTS5's tokenizer parts them: runs of letters and digits."""
    return "".join(item if item.isalnum() else " " for item in phrase).split()


def _near(phrase: str, candidates: Sequence[str]) -> list[tuple[str, float]]:
    if phrase in candidates:
        return [(phrase, 100.0)]
    if len(phrase) < _SHORTEST_FUZZY:
        return []
    matches = process.extract(
        phrase,
        candidates,
        scorer=fuzz.ratio,
        score_cutoff=_NEAR_ENOUGH,
        limit=_MATCHES_A_PHRASE,
    )
    return [(key, score) for key, score, _ in matches if not key.isdigit()]


__all__ = ["ValueIndex", "keep_indexes_in", "value_index"]
