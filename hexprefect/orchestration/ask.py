"""One question as a flow run: the agent's calls become LLM tasks; the answer is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prefect.logging import get_run_logger

from hexprefect.completion import Complete, Completion, Prompt
from hexprefect.errors import CallerMistake, HexprefectError
from hexprefect.observability.tracing import end_query_span, query_span, traced
from hexprefect.orchestration.answer_record import AnswerRecord, empty_record, failed
from hexprefect.orchestration.background_loop import background_loop
from hexprefect.orchestration.databases import open_database, shown_database
from hexprefect.orchestration.events import query_ended
from hexprefect.orchestration.flow_query import describe_query, end_query
from hexprefect.orchestration.future import HexgenFuture
from hexprefect.orchestration.llm_task import LlmTask, current_request, llm_task
from hexprefect.orchestration.observer import observe_store
from hexprefect.queue import Query
from hexprefect.settings import settings
from hexprefect.store.queries import check_slo
from hexprefect.store.values import UnknownTenant
from hexprefect.store.views import decisions_of, instance_views, query_record, stage_records
from hexprefect.text2sql import AgentOptions, Answer, Progress, answer
from hexprefect.text2sql.audit import Refusal
from hexprefect.text2sql.linking import Links
from hexprefect.text2sql.workflow import TEXT2SQL_WORKFLOW

OnProgress = Callable[[Progress], None]

SloClass = Literal["interactive", "standard", "relaxed", "batch"]

SLO_CLASSES: Mapping[SloClass, float] = {
    "interactive": 30.0,
    "standard": 120.0,
    "relaxed": 600.0,
    "batch": 3600.0,
}
"""Seconds until an answer is due, for people who would rather not count them."""

LLM_RETRIES = 1
"""A call whose instance answered nonsense is tried once more; a failed instance is left anyway."""


async def _complete(prompt: Prompt) -> Completion:
    return await current_request().complete(prompt)


def _stage_task(stage: str) -> LlmTask[[Prompt], Any]:
    return llm_task(_complete, stage=stage, name=stage, retries=LLM_RETRIES)


STAGE_TASKS: Mapping[str, LlmTask[[Prompt], Any]] = {
    node.name: _stage_task(node.name) for node in TEXT2SQL_WORKFLOW.nodes
}
"""One Prefect task for each stage, so that the UI shows what a query is doing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked, of what, by whom, and until when."""

    question: str
    database: str
    tenant: str
    slo_s: float | None = None
    deadline: float | None = None
    evidence: str = ""
    options: AgentOptions | None = None


async def ask_in_flow(asked: Question, *, on_progress: OnProgress | None = None) -> AnswerRecord:
    """Answer a question inside a flow with `HexgenTaskRunner`, and end its query.

    Returns:
        The answer record, also when there is no answer: then `state` is `failed`, `abstained` or
        `unclear` and `error` says why, and `error_kind` whose turn it is (`caller` or `no_answer`).
    """
    with query_span(
        question=asked.question, database=shown_database(asked.database), tenant=asked.tenant
    ) as span:
        record = await _ask(asked, on_progress)
        end_query_span(span, record)
    query_ended(record)
    return record


async def _ask(asked: Question, on_progress: OnProgress | None) -> AnswerRecord:
    try:
        query = await _register(asked)
        observe_store(query.store)
    except (CallerMistake, UnknownTenant) as mistake:
        return failed(_record(asked, None), str(mistake), "caller")
    record = _record(asked, query)
    try:
        reply, refusals = await _answer(asked, query, on_progress)
        record = _with_reply(record, reply, refusals)
    except CallerMistake as mistake:
        record = failed(record, str(mistake), "caller")
    except HexprefectError as failure:
        record = failed(record, str(failure), "no_answer")
    return await _end(query, record)


async def _register(asked: Question) -> Query:
    wanted: dict[str, Any] = {
        "tenant": asked.tenant,
        "database": shown_database(asked.database),
        "question": asked.question,
        "workflow": TEXT2SQL_WORKFLOW,
        "deadline": asked.deadline,
    }
    if asked.slo_s is not None:
        wanted["slo_s"] = check_slo(asked.slo_s)
    return await describe_query(**wanted)


async def _answer(
    asked: Question, query: Query, on_progress: OnProgress | None
) -> tuple[Answer, tuple[Refusal, ...]]:
    """The answer, and what the guard refused on the way to it."""
    logger = get_run_logger()

    def tell(progress: Progress) -> None:
        logger.info("%s: %s", progress.step, progress.message)
        if on_progress is not None:
            on_progress(progress)

    options = asked.options or AgentOptions(schema_token_budget=settings().schema_tokens)
    model = await _models(query) if options.reuse_answers_s else ""
    database = await open_database(asked.database, tenant=asked.tenant)
    async with database:
        reply = await answer(
            asked.question,
            database=database,
            complete=traced(completer(query)),
            options=options,
            evidence=asked.evidence,
            time_left=query.time_left_s,
            on_progress=tell,
            model=model,
        )
    return reply, tuple(database.refusals)


async def _models(query: Query) -> str:
    """The models that may serve the calls of a query: any of them may have a part in its answer."""
    views = await query.store.read_async(instance_views)
    return ", ".join(
        sorted({view.spec.model for view in views.values() if view.state in {"alive", "suspect"}})
    )


def completer(query: Query) -> Complete:
    """What the agent completes its prompts with: LLM tasks, or the queue alone.

    By default each call is a Prefect task run. With `HEXPREFECT_TELL_PREFECT=queries` calls go
    straight to the queue: nothing of the scheduling changes, Prefect's server hears less.
    """
    if settings().tell_prefect == "queries":

        async def through_queue(prompt: Prompt) -> Completion:
            return await background_loop().from_other_loop(query.complete(prompt))

        return through_queue

    async def through_task(prompt: Prompt) -> Completion:
        name = prompt.stage if prompt.branch is None else f"{prompt.stage} {prompt.branch}"
        task = STAGE_TASKS.get(prompt.stage) or _stage_task(prompt.stage)
        future: Any = task.with_options(task_run_name=name).submit(prompt)
        assert isinstance(future, HexgenFuture)
        completion: Completion = await future
        return completion

    return through_task


def _record(asked: Question, query: Query | None) -> AnswerRecord:
    record = empty_record(
        question=asked.question,
        database=shown_database(asked.database),
        tenant=asked.tenant,
        slo_s=asked.slo_s,
    )
    if query is not None:
        record.update(query_id=query.id, flow_run_id=query.id)
    return record


def _with_reply(
    record: AnswerRecord, reply: Answer, refusals: Sequence[Refusal] = ()
) -> AnswerRecord:
    replied = {
        **record,
        "state": reply.state,
        "sql": reply.sql,
        "columns": list(reply.columns),
        "types": list(reply.types),
        "rows": [list(row) for row in reply.rows],
        "truncated": reply.truncated,
        "confidence": reply.confidence,
        "chosen": reply.chosen,
        "links": _links_record(reply.links),
        "missing": list(reply.missing),
        "readings": [
            {"description": reading.description, "sql": reading.sql} for reading in reply.readings
        ],
        "refusals": [refusal.as_record() for refusal in refusals],
        "from_cache": reply.from_cache,
        "dropped_work": list(reply.dropped_work),
        "warnings": list(reply.warnings),
    }
    if reply.state == "answered":
        return replied
    # An abstention and a question back are no failure of ours, but they are no answer either.
    return {**failed(replied, reply.reason, "no_answer"), "state": reply.state}


def _links_record(links: Links | None) -> dict[str, Any] | None:
    """What the question was linked to; `by_model` is false where the linking call was skipped."""
    if links is None:
        return None
    return {
        "by_model": links.by_model,
        "tables": list(links.tables),
        "columns": list(links.columns),
        "values": [match.shown() for match in links.values],
    }


def stages_with_scores(
    stages: list[dict[str, Any]], decisions: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Each LLM call with its last dispatch: why it was made, and the score of every instance."""
    last = {decision["request_id"]: decision for decision in decisions}

    def dispatch_of(request_id: str) -> dict[str, Any] | None:
        decision = last.get(request_id)
        if decision is None:
            return None
        chosen = decision["record"]
        return {
            "why": decision["why"],
            "alpha": chosen.alpha,
            "scores": [
                {
                    "instance": score.instance,
                    "completion_s": round(score.completion_s, 4),
                    "queue_delay_s": round(score.queue_delay_s, 4),
                    # The paper's form scores an idle instance with infinity, which is not JSON.
                    "score": round(score.score, 4) if math.isfinite(score.score) else None,
                }
                for score in chosen.scores
            ],
        }

    return [{**stage, "dispatch": dispatch_of(stage["request_id"])} for stage in stages]


async def _end(query: Query, record: AnswerRecord) -> AnswerRecord:
    store = query.store
    stored = await store.read_async(lambda connection: query_record(connection, query.id))
    decisions = await store.read_async(lambda connection: decisions_of(connection, query.id))
    ended = store.now()
    record.update(
        stages=stages_with_scores(stage_records(stored), decisions),
        elapsed_s=round(ended - stored["arrived_at"], 3),
        slo_s=stored["slo_s"],
        met_slo=record["state"] == "answered" and ended <= stored["deadline"],
        alpha=decisions[-1]["record"].alpha if decisions else None,
    )
    await end_query(
        "answered" if record["state"] == "answered" else "failed",
        reason=record["error"],
        sql=record["sql"],
        dropped_work=record["dropped_work"],
        answer=record,
    )
    return record
