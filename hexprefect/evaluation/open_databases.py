"""Databases that stay open while many questions are asked of them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from hexprefect.text2sql.database import Database
from hexprefect.text2sql.limits import Limits


class OpenDatabases:
    """Each database opened once for each set of limits. Use it as an async context manager."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, Limits | None], Database] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def at(self, url: str, *, limits: Limits | None = None) -> Database:
        """The database at a URL, opened where it is not.

        Raises:
            CallerMistake: it cannot be opened.
        """
        if (url, limits) not in self._open:
            opening = await Database.connect(url, limits=limits)
            opened = await self._stack.enter_async_context(opening)
            # Somebody else may have opened it meanwhile; the stack closes both.
            self._open.setdefault((url, limits), opened)
        return self._open[url, limits]
