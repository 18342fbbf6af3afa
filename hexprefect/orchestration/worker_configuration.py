"""What a hexgen worker needs to know of a flow run beside the run itself."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, ClassVar, Self
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import Flow as APIFlow
from prefect.workers.base import BaseJobConfiguration, BaseWorkerResult
from pydantic import PrivateAttr

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, WorkPool
    from prefect.client.schemas.responses import DeploymentResponse

_FLOWS_KEPT = 256


class HexgenJobConfiguration(BaseJobConfiguration):
    """Prefect's job configuration, with the deployment, whose entrypoint names the flow's code."""

    _flows: ClassVar[OrderedDict[UUID, APIFlow]] = OrderedDict()
    _deployment: DeploymentResponse | None = PrivateAttr(default=None)

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
        """As Prefect does it, but a flow's name, which never changes, is asked for once.

        Job variables are not applied: they describe a process, and there is none.
        """
        if deployment is None and flow_run.deployment_id is not None:
            deployment = await client.read_deployment(flow_run.deployment_id)
        flow = cls._flows.get(flow_run.flow_id)
        if flow is None:
            flow = cls._flows[flow_run.flow_id] = await client.read_flow(flow_run.flow_id)
            while len(cls._flows) > _FLOWS_KEPT:
                cls._flows.popitem(last=False)
        configuration = cls()
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
