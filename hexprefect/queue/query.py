"""One query of this process: its deadline, its requests and its end."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from hexprefect.completion import Completion, Prompt
from hexprefect.queue.request import QueuedRequest
from hexprefect.scheduling import RequestSize, Workflow
from hexprefect.store import LeaseLost, NewQuery, NewRequest, Store, StoreUnavailable
from hexprefect.store import queries as move_query
from hexprefect.store.transaction import Transaction
from hexprefect.store.values import QueryState

if TYPE_CHECKING:
    from hexprefect.queue.shared_queue import SharedQueue

_FIELDS = {item.name for item in fields(Completion)}

MOST_LOST_LEASES = 2
"""How often one call is submitted anew after its lease was lost: twice is a stalled machine."""


class Query:
    """A registered query. Create it with `SharedQueue.query`."""

    def __init__(
        self,
        queue: SharedQueue,
        new: NewQuery,
        *,
        deadline: float,
        resumed: bool,
        workflow: Workflow | None,
    ) -> None:
        self._queue = queue
        self._new = new
        self.deadline = deadline
        self.resumed = resumed
        self.workflow = workflow
        self._repeats: Counter[tuple[str, str | None, str]] = Counter()
        self._last_on_branch: dict[str | None, str] = {}
        self._visits: dict[str, list[str]] = {}
        self.ended = False

    @property
    def id(self) -> str:
        """Of the query, in the store; the flow run's id under Prefect."""
        return self._new.id

    @property
    def store(self) -> Store:
        """Where it is kept."""
        return self._queue.store

    @property
    def database(self) -> str:
        """The database that it is asked of: predictions are kept per database."""
        return self._new.database

    @property
    def arrived_at(self) -> float:
        """Epoch seconds."""
        return self._new.arrived_at

    def time_left_s(self) -> float:
        """Seconds to the deadline; negative once it has passed."""
        return self.deadline - self._queue.store.now()

    async def submit(
        self,
        stage: str,
        size: RequestSize,
        *,
        fingerprint: str = "",
        branch: str | None = None,
        needs: Sequence[str] = (),
        predict_output: bool = True,
        id: str | None = None,
    ) -> QueuedRequest:
        """Hand one request, of which everything it needs has finished, to the queue.

        Args:
            stage: the kind of call.
            size: input tokens, shared prefix, and expected output where history has none.
            fingerprint: of the inputs; the same one finds its kept result after a restart.
            branch: the parallel chain it is on.
            needs: ids of the requests whose results it was made from.
            id: to submit a known request again; a new one by default.
        """
        request_id = id or self.request_id(stage, branch=branch, fingerprint=fingerprint)
        new = NewRequest(
            id=request_id,
            query_id=self.id,
            stage=stage,
            size=size,
            deadline=self.deadline,
            database=self._new.database,
            branch=branch,
            needs=tuple(needs),
            fingerprint=fingerprint,
            workflow=self.workflow,
            predict_output=predict_output,
            visit=self._visit(stage, request_id),
        )
        return await self._queue.submit(new)

    def _visit(self, stage: str, request_id: str) -> int:
        """How many requests of the stage came before this one; submitted again, it is the same."""
        known = self._visits.setdefault(stage, [])
        if request_id not in known:
            known.append(request_id)
        return known.index(request_id)

    def request_id(self, stage: str, *, branch: str | None, fingerprint: str) -> str:
        """The same id for the same call of the same query, whichever process makes it."""
        key = (stage, branch, fingerprint)
        self._repeats[key] += 1
        text = json.dumps([self.id, *key, self._repeats[key]])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    async def complete(self, prompt: Prompt) -> Completion:
        """Complete one prompt through the queue: the scheduler's own API, without Prefect.

        Raises:
            InstanceError: when the request is at fault, or no instance could serve it.
            NoInstanceInTime: when patience ended.
        """
        needs = self._inferred_needs(prompt.branch)
        size = size_of(prompt)
        fingerprint = fingerprint_of(prompt)
        request_id = self.request_id(prompt.stage, branch=prompt.branch, fingerprint=fingerprint)
        for lost in range(MOST_LOST_LEASES + 1):
            request = await self.submit(
                prompt.stage,
                size,
                fingerprint=fingerprint,
                branch=prompt.branch,
                needs=needs,
                id=request_id,
            )
            try:
                completion = await run_completion(request, prompt)
            except LeaseLost:
                if lost == MOST_LOST_LEASES:
                    raise
                continue
            self._last_on_branch[prompt.branch] = request.id
            return completion
        raise AssertionError("unreachable")

    async def end(
        self,
        state: QueryState,
        *,
        reason: str | None = None,
        sql: str | None = None,
        dropped_work: Sequence[str] = (),
        answer: Mapping[str, Any] | None = None,
    ) -> None:
        """End the query in the store; what it has still open is cancelled.

        Raises:
            StoreUnavailable: the store is away; it is told when it is back.
        """
        self.ended = True

        def ending(tx: Transaction) -> None:
            move_query.end_query(
                tx,
                self.id,
                state=state,
                reason=reason,
                sql=sql,
                dropped_work=dropped_work,
                answer=answer,
            )

        try:
            await self._queue.store.run(ending)
        except StoreUnavailable:
            self._queue.owe(self.id, ending)
            raise

    def _inferred_needs(self, branch: str | None) -> tuple[str, ...]:
        """What a call was made from: the last on its branch, or else on all branches."""
        if branch is not None and branch in self._last_on_branch:
            return (self._last_on_branch[branch],)
        if branch is not None:
            trunk = self._last_on_branch.get(None)
            return (trunk,) if trunk is not None else ()
        return tuple(self._last_on_branch.values())


async def run_completion(request: QueuedRequest, prompt: Prompt) -> Completion:
    """Wait, complete and end one request whose whole result is one completion."""
    if request.reused is not None:
        return completion_from_record(request.reused)
    try:
        await request.admitted()
        completion = await request.complete(prompt)
    except Exception as error:
        if request.grant is not None:
            await request.fail(str(error))
        raise
    except BaseException:
        request.cancel_soon("its caller was cancelled")
        raise
    await request.finish(completion_record(completion))
    return completion


def completion_record(completion: Completion) -> dict[str, Any]:
    """A completion as the store keeps it."""
    record = asdict(completion)
    record["extra"] = {}
    return record


def completion_from_record(record: Any) -> Completion:
    """The inverse of `completion_record`, also of one that a newer release has written."""
    return Completion(**{name: value for name, value in record.items() if name in _FIELDS})


def size_of(prompt: Prompt) -> RequestSize:
    """A prompt as the scheduler sees it: lengths and shared prefix."""
    return RequestSize(
        input_tokens=prompt.estimated_input_tokens(),
        output_tokens=0.0,
        prefix=tuple((segment.key, segment.tokens) for segment in prompt.prefix),
    )


def fingerprint_of(prompt: Prompt) -> str:
    """The same for prompts that would be answered alike."""
    content = {
        "messages": [[message.role, message.content] for message in prompt.messages],
        "max_output_tokens": prompt.max_output_tokens,
        "temperature": prompt.temperature,
        "seed": prompt.seed,
        "response_format": dict(prompt.response_format) if prompt.response_format else None,
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
