"""What a hexgen worker needs to know of a flow run beside the run itself."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import Flow as APIFlow
from prefect.workers.base import BaseJobConfiguration, BaseWorkerResult
from pydantic import PrivateAttr

from hexprefect.errors import HexprefectError

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, WorkPool
    from prefect.client.schemas.responses import DeploymentResponse

_FLOWS_KEPT = 256


class JobVariablesNotHonoured(HexprefectError):
    """A flow run wants a process that is set up for it, and a hexgen worker has none to give."""


class HexgenJobConfiguration(BaseJobConfiguration):
    """Prefect's job configuration, with the deployment, whose entrypoint names the flow's code."""

    _flows: ClassVar[OrderedDict[UUID, APIFlow]] = OrderedDict()
    _deployment: DeploymentResponse | None = PrivateAttr(default=None)
    _wanted: dict[str, str | None] = PrivateAttr(default_factory=dict)

    working_dir: Path | None = None

    def check(self) -> None:
        """Refuse a flow run that would run otherwise than its job variables say.

        All flow runs of a worker share its environment and its directory: what differs from them
        cannot be given to one alone. Variables that are as they should be are no trouble.

        Raises:
            JobVariablesNotHonoured: naming the variables, not their values.
        """
        missing = [f"env.{name}" for name, value in self._wanted.items() if _differs(name, value)]
        if self.working_dir is not None and self.working_dir.resolve() != Path.cwd():
            missing.append("working_dir")
        if missing:
            raise JobVariablesNotHonoured(
                f"The worker's process is not as these job variables say: {', '.join(missing)}.",
                remedy="Start the worker in such an environment, or give the deployment a "
                "`process` work pool, where each flow run has a process of its own.",
            )

    @property
    def deployment(self) -> DeploymentResponse | None:
        """The deployment of the flow run; None for a run without one."""
        return self._deployment

    @classmethod
    async def resolve_for_flow_run(
        cls,
        flow_run: FlowRun,
        *,
        client: PrefectClient,
        work_pool: WorkPool,
        worker_name: str,
        worker_id: UUID | None = None,
        deployment: DeploymentResponse | None = None,
    ) -> Self:
        """As Prefect does it, but a flow's name, which never changes, is asked for once."""
        if deployment is None and flow_run.deployment_id is not None:
            deployment = await client.read_deployment(flow_run.deployment_id)
        flow = cls._flows.get(flow_run.flow_id)
        if flow is None:
            flow = cls._flows[flow_run.flow_id] = await client.read_flow(flow_run.flow_id)
            while len(cls._flows) > _FLOWS_KEPT:
                cls._flows.popitem(last=False)
        configuration: Self = await cls.from_template_and_values(
            base_job_template=work_pool.base_job_template,
            values=_job_variables(deployment, flow_run),
            client=client,
        )
        configuration._wanted = dict(configuration.env)
        configuration.prepare_for_flow_run(
            flow_run, deployment, flow, work_pool, worker_name, worker_id
        )
        return configuration

    def prepare_for_flow_run(
        self,
        flow_run: FlowRun,
        deployment: DeploymentResponse | None = None,
        flow: APIFlow | None = None,
        work_pool: WorkPool | None = None,
        worker_name: str | None = None,
        worker_id: UUID | None = None,
    ) -> None:
        """Keep the deployment beside what Prefect keeps."""
        super().prepare_for_flow_run(flow_run, deployment, flow, work_pool, worker_name, worker_id)
        self._deployment = deployment


class HexgenWorkerResult(BaseWorkerResult):
    """The end of a flow run; its state is on the server."""


def _job_variables(deployment: DeploymentResponse | None, flow_run: FlowRun) -> dict[str, Any]:
    """Those of the deployment, overridden by those of the flow run; of `env`, each by itself."""
    of_deployment = (deployment.job_variables if deployment is not None else None) or {}
    of_flow_run = flow_run.job_variables or {}
    merged = {**of_deployment, **of_flow_run}
    if isinstance(of_deployment.get("env"), dict) and isinstance(of_flow_run.get("env"), dict):
        merged["env"] = {**of_deployment["env"], **of_flow_run["env"]}
    return merged


def _differs(name: str, value: str | None) -> bool:
    return os.environ.get(name) != value
