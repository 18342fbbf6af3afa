"""`serve-instance/…`: start one vLLM of a GPU pool and keep it in the fleet. Runs until cancelled.

It runs on a worker of the pool, on the machine with the GPUs. Cancel the flow run to drain the
instance and end its server.
"""

import asyncio
from typing import Annotated, Any

from prefect import flow, get_client, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import Field

from hexprefect.errors import CallerMistake, HexprefectError
from hexprefect.orchestration.serving import Serving, ServingOptions, launched_instance
from hexprefect.orchestration.serving_artifacts import ServingArtifacts
from hexprefect.orchestration.serving_lease import ServingLease
from hexprefect.settings import settings, state_folder
from hexprefect.store import Store
from hexprefect.store.upgrade import require_current


def run_name() -> str:
    """The pool and the replica name the flow run."""
    parameters = flow_run.parameters
    return f"{parameters.get('pool') or 'instance'} replica {parameters.get('replica', 1)}"


@flow(
    name="serve-instance",
    flow_run_name=run_name,
    persist_result=False,
    description="Start one vLLM server of a GPU pool and keep it in the fleet until cancelled.",
)
async def serve_instance(
    pool: str | None = None,
    replica: Annotated[int, Field(ge=1)] = 1,
    devices: Annotated[str | None, Field(examples=["0,1,2,3"])] = None,
    drain_s: Annotated[float, Field(gt=0)] = 120.0,
    start_timeout_s: Annotated[float, Field(gt=0)] = 1800.0,
    restarts: Annotated[int, Field(ge=0)] = 3,
) -> State[dict[str, Any]]:
    """Serve one instance.

    Args:
        pool: Work pool that says how to launch it; that of the flow run by default.
        replica: Which of the pool's replicas, from 1.
        devices: CUDA_VISIBLE_DEVICES of the server.
        drain_s: Seconds that running requests get to end when the flow run is cancelled.
        start_timeout_s: Seconds until the server must answer.
        restarts: How often a server that had served and died is started again.

    Returns:
        Failed, with the end of the server's log, when it did not come up or died too often.
        Completed when an operator removed the instance. Cancelled is what it ends as otherwise.
    """
    logger: Any = get_run_logger()
    options = ServingOptions(
        start_timeout_s=start_timeout_s,
        drain_s=drain_s,
        restarts=restarts,
        devices=devices,
        lease_s=settings().lease_s,
    )
    try:
        async with get_client() as client:
            wanted = await launched_instance(client, await _pool(client, pool), replica=replica)
        store = Store(
            settings().store.get_secret_value(), process=ServingLease.process_of(wanted.name)
        )
        try:
            await asyncio.to_thread(require_current, store.engine)
            async with ServingArtifacts() as artifacts:
                why = await Serving(
                    wanted,
                    store,
                    options=options,
                    log_folder=state_folder() / "instances",
                    logger=logger,
                    tell=artifacts.tell,
                ).run()
        finally:
            await asyncio.shield(asyncio.to_thread(store.close))
    except HexprefectError as error:
        return Failed(message=str(error))
    return Completed(message=f"Instance {wanted.name!r}: {why}.", data={"instance": wanted.name})


async def _pool(client: Any, given: str | None) -> str:
    if given is not None:
        return given
    own = await client.read_flow_run(flow_run.id)
    if own.work_pool_name is None:
        raise CallerMistake(
            "This flow run belongs to no work pool.",
            remedy="Run it from a deployment of a GPU pool, or give the parameter `pool`.",
        )
    return str(own.work_pool_name)
