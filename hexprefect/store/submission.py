"""What a submission must satisfy, and the row that it becomes.

The row carries all that dispatch and admission go by: the lengths that are predicted from the
history of the stage, and the request's share of the time that its query has left.
"""

from __future__ import annotations

from sqlalchemy import func, null, select, update

from hexprefect.scheduling import Workflow, WorkflowNode, request_budget, single_stage
from hexprefect.scheduling.order import order_key
from hexprefect.scheduling.prediction import (
    ENOUGH,
    predicted_input_tokens,
    predicted_output_tokens,
)
from hexprefect.scheduling.remaining import predicted_remaining_seconds
from hexprefect.store import tables
from hexprefect.store.changes import Row
from hexprefect.store.processes import DIED, enter_process
from hexprefect.store.transaction import Transaction
from hexprefect.store.values import NeedsUnfinished, NewRequest, NoInstanceFits, QueryEnded

_request = tables.requests.c


def check_query(tx: Transaction, query_id: str) -> None:
    """A query belongs to one process: what another left behind, it cannot add to.

    A process that was taken for dead, and whose query nobody has taken up since, goes on with it.

    Raises:
        QueryEnded: when it runs in another process, or does not run.
    """
    known = tx.query(query_id)
    if known is not None and known["owner"] == tx.process:
        if known["state"] == "running":
            return
        if known["state"] == "failed" and known["reason"] == DIED:
            take_up_again(tx, query_id)
            return
    if known is not None and known["state"] == "running":
        raise QueryEnded(
            f"Query {query_id} runs in another process.",
            remedy="It was started again there; its answer will be found in the store.",
        )
    raise QueryEnded(
        f"Query {query_id} is not running.",
        remedy="Register it again before submitting more of its requests.",
    )


def take_up_again(tx: Transaction, query_id: str) -> None:
    """Make an ended query a running one of this process; what had finished is kept."""
    enter_process(tx)
    tx.forget_query(query_id)
    tx.connection.execute(
        update(tables.queries)
        .where(tables.queries.c.id == query_id)
        .values(state="running", reason=None, ended_at=None, answer=null(), owner=tx.process)
    )


def check_needs(tx: Transaction, request: NewRequest) -> None:
    """Law 2: dispatched only when all that it needs has finished.

    Raises:
        NeedsUnfinished: when something that it needs has not.
    """
    if not request.needs:
        return
    tx.write_changes()
    finished = tx.connection.execute(
        select(func.count())
        .select_from(tables.requests)
        .where(_request.id.in_(request.needs), _request.state == "finished")
    ).scalar_one()
    if finished != len(set(request.needs)):
        raise NeedsUnfinished(
            f"Request {request.id} needs {len(set(request.needs))} others, "
            f"of which {finished} have finished.",
            remedy="Submit it when all that it needs has finished.",
        )


def check_fits(tx: Transaction, row: Row) -> None:
    """A request that no instance could ever hold is refused, instead of waiting for its patience.

    Raises:
        NoInstanceFits: when an instance lives, and none, dead and draining ones included, could
            hold it alone.
    """
    if fits_some_day(tx, row):
        return
    limits = ", ".join(f"{load.name} {load.most_tokens}" for load in tx.instances.values())
    raise NoInstanceFits(
        f"The {row['stage']} request needs {row['kv_tokens']} tokens ({row['input_tokens']} of "
        f"them its prompt), more than any instance holds: {limits}.",
        remedy="Shorten the prompt (a smaller HEXPREFECT_SCHEMA_TOKENS), or add an instance with a "
        "longer context.",
    )


def fits_some_day(tx: Transaction, row: Row) -> bool:
    """Whether an instance could hold the request, or none lives that could tell."""
    loads = tx.instances.values()
    if not any(load.serves for load in loads):
        return True
    return any(load.can_hold(row["kv_tokens"]) for load in loads)


def new_row(tx: Transaction, request: NewRequest) -> Row:
    """The row of a request that is on no instance's queue yet, with its share of the time left.

    Its output tokens are predicted from the history of its stage, unless the request says not to;
    its budget, in seconds, is divided by the costs along the critical path (`request_budget`).
    """
    expected = None
    if request.workflow is not None and request.stage in request.workflow:
        expected = request.workflow[request.stage].output_tokens or None
    output = request.size.output_tokens
    if request.predict_output:
        output = predicted_output_tokens(
            tx.history, request.stage, request.database, expected=expected or output or None
        )
    ready_at = tx.now if request.ready_at is None else request.ready_at
    own_s, *path_s = _path_costs(tx, request, output_tokens=output)
    after_s = predicted_remaining_seconds(
        tx.remaining,
        request.stage,
        request.visit,
        expected=sum(path_s),
        enough=ENOUGH if path_s else 1,
    )
    budget_s = request_budget(request.deadline - ready_at, (own_s, after_s))
    return {
        "id": request.id,
        "query_id": request.query_id,
        "stage": request.stage,
        "branch": request.branch,
        "needs": list(request.needs),
        "fingerprint": request.fingerprint,
        "state": "waiting",
        "owner": tx.process,
        "instance": None,
        "input_tokens": request.size.input_tokens,
        "predicted_output_tokens": output,
        "kv_tokens": request.size.input_tokens + round(output),
        "prefix": [list(segment) for segment in request.size.prefix],
        "submitted_at": tx.now,
        "ready_at": ready_at,
        "budget_s": budget_s,
        "deadline": request.deadline,
        "remaining_s": own_s + after_s,
        "late": False,
        "completion_us": 0,
        "work_us": 0,
        "latest_start": ready_at + budget_s,
        "order_key": order_key(
            tx.settings.order,
            ready_at=ready_at,
            arrived_at=ready_at,
            deadline=request.deadline,
            budget_s=budget_s,
            remaining_s=own_s + after_s,
        ),
        "passed_over": 0,
        "attempt": 0,
        "admitted_at": None,
        "started_at": None,
        "ended_at": None,
        "error": None,
    }


def _path_costs(tx: Transaction, request: NewRequest, *, output_tokens: float) -> list[float]:
    """`t̄` of the request and of each stage on the critical path after it, in seconds."""
    fixed, per_input, per_output, _ = tx.mean_cost

    def expected_cost(node: WorkflowNode) -> float:
        read = predicted_input_tokens(
            tx.history, node.name, request.database, expected=node.input_tokens
        )
        written = predicted_output_tokens(
            tx.history, node.name, request.database, expected=node.output_tokens or None
        )
        return node.expected_visits * (fixed + per_input * read + per_output * written)

    own = fixed + per_input * request.size.input_tokens + per_output * output_tokens
    workflow: Workflow = request.workflow or single_stage(request.stage)
    if request.stage not in workflow:
        return [own]
    costs = {name: expected_cost(workflow[name]) for name in workflow.order}
    path = workflow.critical_path_from(request.stage, costs.__getitem__)
    return [own, *(costs[name] for name in path[1:])]
