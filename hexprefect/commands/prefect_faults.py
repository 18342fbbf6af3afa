"""A Prefect server that does not answer, or not as one does, said to a person."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import sqlalchemy

from hexprefect.embedded.in_process import configured_api_url
from hexprefect.errors import CallerMistake
from hexprefect.urls import shown_url


@contextmanager
def prefect_faults(otherwise: str = "") -> Iterator[None]:
    """What the client of a Prefect server raises, as a mistake in what is configured.

    Args:
        otherwise: how to do without the server, where that is possible.

    Raises:
        CallerMistake: naming the server without its secrets.
    """
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        said = str(error).partition("\n")[0].partition(" - Response:")[0].rstrip(" .")
        raise CallerMistake(
            f"The Prefect server {_shown()} cannot be used: {said or type(error).__name__}.",
            remedy=f"Start it, or correct PREFECT_API_URL{otherwise}.",
        ) from error


def _shown() -> str:
    try:
        return f"at {shown_url(sqlalchemy.make_url(configured_api_url() or ''))}"
    except (sqlalchemy.exc.ArgumentError, ValueError):
        return "that PREFECT_API_URL names"
