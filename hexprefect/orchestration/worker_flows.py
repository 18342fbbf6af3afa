"""Load flows once, and again only when their deployment or their file has changed."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.flows import Flow, load_flow_from_entrypoint, load_flow_from_flow_run

from hexprefect.errors import HexprefectError
from hexprefect.orchestration.worker_settings import AnyLogger

_Version = tuple[Any, ...]


class FlowNotLoadable(HexprefectError):
    """The code of a deployment's flow cannot be imported in this worker."""


class FlowCache:
    """The flows that this process has loaded, by deployment.

    All flows of the process share its imported modules and its working directory. A change in a
    module that the entrypoint only imports therefore needs a restart of the worker, and flows of
    two projects that rely on different directories need two workers.
    """

    def __init__(self, logger: AnyLogger) -> None:
        self._logger = logger
        self._flows: dict[UUID, tuple[_Version, Flow[..., Any]]] = {}
        self._directory: str | None = None
        # One at a time: loading may change the working directory of the process.
        self._loading = asyncio.Lock()

    async def load(
        self, client: PrefectClient, flow_run: FlowRun, deployment: DeploymentResponse | None
    ) -> Flow[..., Any]:
        """The flow of a flow run.

        Raises:
            FlowNotLoadable: naming the entrypoint and the reason.
        """
        if deployment is None or deployment.entrypoint is None:
            raise FlowNotLoadable(
                f"The flow run {flow_run.name!r} has no deployment with an entrypoint.",
                remedy="Create one with `prefect deploy`; a hexgen worker runs nothing else.",
            )
        async with self._loading:
            cached = self._flows.get(deployment.id)
            if cached is not None and cached[0] == _version(deployment, self._directory):
                return cached[1]
            before = os.getcwd()
            try:
                flow = await self._import(client, flow_run, deployment)
            except Exception as error:
                raise FlowNotLoadable(
                    f"The flow {deployment.entrypoint!r} cannot be loaded: "
                    f"{type(error).__name__}: {error}.",
                    remedy="The worker's environment needs the flow's code and its packages.",
                ) from error
            finally:
                self._stay_in_one_directory(before, deployment.entrypoint)
            self._flows[deployment.id] = (_version(deployment, self._directory), flow)
            self._logger.info("Loaded the flow %s of %s.", flow.name, deployment.entrypoint)
            return flow

    async def _import(
        self, client: PrefectClient, flow_run: FlowRun, deployment: DeploymentResponse
    ) -> Flow[..., Any]:
        entrypoint = deployment.entrypoint or ""
        is_file = ":" in entrypoint
        if is_file and not deployment.pull_steps and deployment.storage_document_id is None:
            # Prefect would copy the whole directory into the worker's own first.
            path = str(Path(deployment.path or ".") / entrypoint)
            return await asyncio.to_thread(
                load_flow_from_entrypoint, path, use_placeholder_flow=False
            )
        # Its decorator passes a client of its own, and hides the signature from a type checker.
        load: Any = load_flow_from_flow_run
        flow: Flow[..., Any] = await load(flow_run, use_placeholder_flow=False)
        return flow

    def _stay_in_one_directory(self, before: str, entrypoint: str) -> None:
        after = os.getcwd()
        if after == before:
            return
        if self._directory is None:
            self._directory = after
        elif after != self._directory:
            os.chdir(before)
            self._logger.warning(
                "The deployment of %s works in %s, but this worker's flows share %s: relative "
                "paths are resolved there. Give it a worker of its own.",
                entrypoint,
                after,
                before,
            )


def _version(deployment: DeploymentResponse, directory: str | None) -> _Version:
    """What must be equal for a loaded flow to be current.

    `deployment.updated` is no help: the server changes it whenever a worker polls.
    """
    entrypoint = deployment.entrypoint or ""
    changed_at = None
    if ":" in entrypoint:
        file = Path(directory or deployment.path or ".") / entrypoint.rsplit(":", 1)[0]
        changed_at = file.stat().st_mtime_ns if file.exists() else None
    return (
        entrypoint,
        deployment.version,
        getattr(deployment, "version_id", None),
        deployment.path,
        deployment.storage_document_id,
        json.dumps(deployment.pull_steps, sort_keys=True, default=str),
        changed_at,
    )
