"""Settings from the environment: `HEXPREFECT_…`."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


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

    model_config = SettingsConfigDict(env_prefix="HEXPREFECT_", extra="ignore")

    store: SecretStr = Field(default_factory=lambda: SecretStr(default_store_url()))
    """URL of the store. SQLite serves one machine, PostgreSQL many."""
    tenant: str = "default"
    """Whose queries these are, unless the flow says otherwise."""
    slo_s: Annotated[float, Field(gt=0)] = 300.0
    """Seconds from a query's arrival to its deadline, unless the flow says otherwise."""
    schema_tokens: Annotated[int, Field(ge=200)] = 6000
    """Estimated tokens of the schema in a prompt; what does not fit is left out and named."""
    tell_prefect: Literal["requests", "queries"] = "requests"
    """How much Prefect is told: every request as a task run, or only the query's flow run."""
    shortest_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds an instance is given for any request, before it is taken to hang."""
    lease_s: Annotated[float, Field(ge=2.0)] = 20.0
    """Seconds without a heartbeat after which a process is taken for dead."""


@cache
def settings() -> HexprefectSettings:
    """The settings of this process, read once."""
    return HexprefectSettings()
