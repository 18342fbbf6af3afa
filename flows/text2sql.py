"""`text2sql/ask`: one question, answered with checked SQL. Every question is one flow run."""

from typing import Annotated, Any

from prefect import flow, get_client
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import Field

from hexprefect.orchestration.artifacts import ProgressArtifact, create_answer_artifacts
from hexprefect.orchestration.ask import SLO_CLASSES, Question, SloClass, ask_in_flow
from hexprefect.orchestration.databases import shown_database
from hexprefect.orchestration.task_runner import HexgenTaskRunner
from hexprefect.text2sql import AgentOptions

LONGEST_NAME = 80


def run_name() -> str:
    """The question names its flow run, so that people find it."""
    question = " ".join(str(flow_run.parameters.get("question", "")).split())
    return question if len(question) <= LONGEST_NAME else question[: LONGEST_NAME - 1] + "…"


@flow(
    name="text2sql",
    flow_run_name=run_name,
    task_runner=HexgenTaskRunner(),
    persist_result=True,
    description="Answer one question about a database with checked, read-only SQL.",
)
async def ask(
    question: Annotated[str, Field(min_length=1, max_length=4000)],
    database: Annotated[
        str,
        Field(
            min_length=1,
            examples=["demo", "block:shop", "env:SHOP_URL", "sqlite:////data/shop.sqlite"],
        ),
    ],
    tenant: str = "default",
    slo_s: Annotated[float | None, Field(gt=0)] = None,
    evidence: Annotated[str, Field(max_length=8000)] = "",
    slo_class: SloClass | None = None,
    options: AgentOptions | None = None,
) -> State[dict[str, Any]]:
    """Answer one question.

    Args:
        question: In plain words, in any language.
        database: A Text2SQLDatabase block by its name, env:VARIABLE, a URL without a password, or
            demo for the shop that is shipped.
        tenant: Whose question it is.
        slo_s: Seconds until the answer is due; goes before the class.
        evidence: What else is known about the words in the question.
        slo_class: How soon the answer is due: interactive 30 s, standard 120 s, relaxed 600 s,
            batch 3600 s. Without a class and seconds, what the deployment has.
        options: How much effort the question may cost, and whether to abstain or to ask back.

    Returns:
        A state whose result is the answer record: Completed with SQL and rows, or Failed with a
        reason that a person understands.
    """
    await tag_flow_run(f"tenant:{tenant}", f"database:{shown_database(database)}")
    if slo_s is None and slo_class is not None:
        slo_s = SLO_CLASSES[slo_class]
    progress = ProgressArtifact()
    record = await ask_in_flow(
        Question(
            question=question,
            database=database,
            tenant=tenant,
            slo_s=slo_s,
            evidence=evidence,
            options=options,
        ),
        on_progress=progress.tell,
    )
    await progress.done()
    await create_answer_artifacts(record)
    if record["state"] == "answered":
        rows = len(record["rows"])
        return Completed(message=f"{rows} row{'' if rows == 1 else 's'}", data=record)
    return Failed(message=record["error"], data=record)


async def tag_flow_run(*tags: str) -> None:
    """Add tags to the running flow run, by which the UI filters."""
    own = [tag for tag in flow_run.tags or [] if tag not in tags]
    async with get_client() as client:
        await client.update_flow_run(flow_run.id, tags=[*own, *tags])
