"""Settings of the warm worker, read as Prefect reads its own."""

from __future__ import annotations

import logging
from typing import ClassVar

from prefect.settings.base import PrefectBaseSettings, build_settings_config
from pydantic import Field
from pydantic_settings import SettingsConfigDict

AnyLogger = logging.Logger | logging.LoggerAdapter[logging.Logger]


class HexgenWorkerSettings(PrefectBaseSettings):
    """All durations are in seconds.

    Each can be set as `PREFECT_INTEGRATIONS_HEXPREFECT_WORKER_<NAME>`, in `prefect.toml` or in
    `pyproject.toml` (`[tool.prefect.integrations.hexprefect.worker]`). A value that is given to the
    worker itself, such as `prefect worker start --limit`, goes first.
    """

    model_config: ClassVar[SettingsConfigDict] = build_settings_config(
        ("integrations", "hexprefect", "worker")
    )

    limit: int = Field(
        default=100, ge=1, description="Flow runs that one worker runs at once, at most."
    )
    poll_seconds: float = Field(
        default=1.0,
        gt=0,
        description="Between two polls for scheduled flow runs. Events wake the worker sooner.",
    )
    prefetch_seconds: int = Field(
        default=1,
        ge=0,
        description="How long before its time a flow run is taken. A run that waits for its time "
        "holds a slot, and an in-process run needs no time to start.",
    )
    heartbeat_seconds: int = Field(
        default=10, ge=1, description="Between two heartbeats of the worker."
    )
    dead_after_heartbeats: float = Field(
        default=3.0, gt=1, description="Missed heartbeats after which a worker counts as dead."
    )
    recovery_seconds: float = Field(
        default=5.0, gt=0, description="Between two searches for flow runs of dead workers."
    )
    unowned_seconds: float = Field(
        default=60.0,
        gt=0,
        description="How long a flow run may be Pending before any worker has signed for it.",
    )
    max_recoveries: int = Field(
        default=3,
        ge=0,
        description="How often a flow run may lose its worker before it is marked Crashed: a run "
        "that kills its worker must not go round for ever.",
    )
    cancel_poll_seconds: float = Field(
        default=2.0,
        gt=0,
        description="Between two polls for cancelled flow runs, in case an event got lost.",
    )
    cancel_seconds: float = Field(
        default=1.5,
        gt=0,
        description="How long a cancelled flow run has for its cleaning up before it is marked "
        "Cancelled all the same.",
    )
    shutdown_seconds: float = Field(
        default=30.0,
        ge=0,
        description="How long running flow runs may go on after the worker was told to stop; then "
        "they are rescheduled for another worker.",
    )
    blocked_seconds: float = Field(
        default=1.0,
        gt=0,
        description="How long code may block the event loop of all flow runs unreported.",
    )
