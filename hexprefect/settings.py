"""Settings from the environment: `HEXPREFECT_…`."""

from __future__ import annotations

import difflib
import logging
import os
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from hexprefect.errors import CallerMistake

logger = logging.getLogger(__name__)

PREFIX = "HEXPREFECT_"


def state_folder() -> Path:
    """`HEXPREFECT_STATE`, or a folder in the user's state folder."""
    given = os.environ.get("HEXPREFECT_STATE")
    if given:
        return Path(given).absolute()
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "hexprefect"


def default_store_url() -> str:
    """An SQLite file in the state folder: one machine, no server."""
    return f"sqlite:///{state_folder() / 'store.sqlite'}"


class HexprefectSettings(BaseSettings):
    """What every process of a deployment should agree on. Environment variables override."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore")

    store: SecretStr = Field(default_factory=lambda: SecretStr(default_store_url()))
    """URL of the store. SQLite serves one machine, PostgreSQL many."""
    tenant: str = "default"
    """Whose queries these are, unless the flow says otherwise."""
    slo_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 300.0
    """Seconds from a query's arrival to its deadline, unless the flow says otherwise."""
    schema_tokens: Annotated[int, Field(ge=200)] = 6000
    """Estimated tokens of the schema in a prompt; what does not fit is left out and named."""
    tell_prefect: Literal["requests", "queries"] = "requests"
    """How much Prefect is told: every request as a task run, or only the query's flow run."""
    shortest_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """Seconds an instance is given for any request, before it is taken to hang."""
    lease_s: Annotated[float, Field(ge=2.0, allow_inf_nan=False)] = 20.0
    """Seconds without a heartbeat after which a process is taken for dead."""


@cache
def settings() -> HexprefectSettings:
    """The settings of this process, read once; a variable that seems misspelt is warned of.

    Raises:
        CallerMistake: a variable has a value that makes no sense.
    """
    for name, meant in _misspelt():
        logger.warning("%s is no variable of hexprefect. Did you mean %s?", name, meant)
    try:
        return HexprefectSettings()
    except ValidationError as error:
        # The cause would show the values of all variables, and one may hold a password.
        said = "; ".join(
            f"HEXPREFECT_{str(entry['loc'][0]).upper()}={entry['input']!r}: {entry['msg']}"
            for entry in error.errors()
        )
        raise CallerMistake(
            f"The environment makes no sense: {said}.", remedy="Correct or unset it."
        ) from None


def _misspelt() -> list[tuple[str, str]]:
    """Variables that nothing reads, each with the one that it is nearly called."""
    known = {*(name.upper() for name in HexprefectSettings.model_fields), "STATE", "CACHE"}
    found = []
    for name in sorted(os.environ):
        rest = name.upper().removeprefix(PREFIX)
        if rest != name.upper() and rest not in known:
            near = difflib.get_close_matches(rest, known, n=1, cutoff=0.7)
            found += [(name, PREFIX + meant) for meant in near]
    return found
