"""What tells whether a database is still the one that a run was begun on."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import sqlalchemy

from hexprefect.evaluation.execution import Executor
from hexprefect.evaluation.questions import GoldQuestion

_READ_WHOLE = 64 << 20
"""Bytes; of a larger file as many are read, in blocks spread evenly over it."""
_BLOCKS = 64
_DIGITS = 16


async def database_fingerprints(
    questions: Sequence[GoldQuestion], urls: Mapping[str, str], executor: Executor
) -> dict[str, str]:
    """A fingerprint of each database, by its file as the questions name it, else by its `db_id`.

    Of a file, it changes with its content; of a server's database, with its structure, for no
    server tells cheaply whether its rows are the same.

    Args:
        questions: those that are asked.
        urls: of their databases, by the ids of the questions.
        executor: reads the catalogues of servers.

    Raises:
        CallerMistake: a database cannot be opened or read.
    """
    by_name = {item.file or item.db_id: urls[item.id] for item in questions}
    known: dict[str, str] = {}
    for url in set(by_name.values()):
        path = _file_of(url)
        if path is None:
            known[url] = f"schema {(await executor.schema(url)).fingerprint}"
        else:
            known[url] = await asyncio.to_thread(file_fingerprint, path)
    return {name: known[url] for name, url in sorted(by_name.items())}


def file_fingerprint(path: Path) -> str:
    """Of a file's size and content, and of the log that SQLite may keep beside it."""
    digest = hashlib.sha256()
    log = path.with_name(f"{path.name}-wal")
    for part in (path, log):
        if part.is_file() and (size := part.stat().st_size):
            digest.update(f"{size}\n".encode())
            _add(digest, part, size)
    return digest.hexdigest()[:_DIGITS]


def _add(digest: hashlib._Hash, path: Path, size: int) -> None:
    with path.open("rb") as file:
        if size <= _READ_WHOLE:
            digest.update(file.read())
            return
        length = _READ_WHOLE // _BLOCKS
        for number in range(_BLOCKS):
            # The first block holds the header, in which SQLite counts its changes.
            file.seek(number * (size - length) // (_BLOCKS - 1))
            digest.update(file.read(length))


def _file_of(url: str) -> Path | None:
    parsed = sqlalchemy.make_url(url)
    is_file = parsed.get_backend_name() in ("sqlite", "duckdb") and parsed.database
    return Path(parsed.database) if is_file and parsed.database else None
