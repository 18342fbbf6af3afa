"""Recorded history: what the running system did, as a workload, a cluster and decisions to replay.

The store's tables are read by name, not through the store's code: the simulator knows scheduling
alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, bindparam, create_engine, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from hexprefect.errors import HexprefectError
from hexprefect.scheduling import Decision, Profile
from hexprefect.simulator.arrivals import recorded_rate
from hexprefect.simulator.cluster import Cluster, Instance
from hexprefect.simulator.engine_values import EngineOptions
from hexprefect.simulator.workload import Call, Query

T = TypeVar("T")

_NEWEST_QUERIES = text(
    'SELECT id, tenant, "database", slo_s, arrived_at, ended_at FROM queries '
    "WHERE state = 'answered' AND arrived_at >= :since AND arrived_at < :until "
    "AND ended_at IS NOT NULL ORDER BY arrived_at DESC, id DESC LIMIT :most"
)
_THEIR_REQUESTS = text(
    "SELECT id, query_id, stage, needs, input_tokens, actual_input_tokens, "
    "actual_output_tokens, prefix, ready_at FROM requests "
    "WHERE query_id IN :queries AND state = 'finished' ORDER BY ready_at, id"
).bindparams(bindparam("queries", expanding=True))
# Dispatch appoints to these alone; to a draining instance it gives nothing.
_INSTANCES = text(
    "SELECT name, profile, learned_profile, slots, admission_depth FROM instances "
    "WHERE state IN ('alive', 'suspect') ORDER BY name"
)


class NothingRecorded(HexprefectError):
    """The store holds no finished query, or no instance, in the window."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of what really happened."""

    queries: tuple[Query, ...]
    """In order of arrival, each with its moment and its SLO."""
    latency_s: tuple[float, ...]
    """How long each really took."""
    rate: float
    """Queries a second, from the first arrival to the last."""


def from_store(url: str, read: Callable[[Connection], T]) -> T:
    """What `read_window` or `read_cluster` finds in the store at a URL.

    Raises:
        NothingRecorded: when there is no store there, or nothing to read in it.
    """
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).is_file():
            # Opening it would make one.
            raise NothingRecorded(
                f"there is no store at {parsed.database}.",
                remedy="Give its URL as for HEXPREFECT_STORE.",
            )
        engine = create_engine(parsed)
        try:
            with engine.connect() as connection:
                return read(connection)
        finally:
            engine.dispose()
    except (ArgumentError, DBAPIError, ImportError) as error:
        raise NothingRecorded(
            f"the store cannot be read: {type(error).__name__}.",
            remedy="Give its URL as for HEXPREFECT_STORE; `hexprefect store check` tells more.",
        ) from None


def read_window(
    connection: Connection, *, since: float = 0.0, until: float = inf, most: int = 1000
) -> Window:
    """The newest answered queries of a stretch of time.

    Args:
        connection: to a store's database.
        since: the earliest arrival, in seconds since the epoch.
        until: no arrival at this moment or later.
        most: how many queries at most, the newest.

    Raises:
        NothingRecorded: when there are fewer than two.
    """
    bounds = {"since": since, "until": until, "most": most}
    newest = connection.execute(_NEWEST_QUERIES, bounds).mappings().all()
    theirs = {"queries": [row["id"] for row in newest]}
    return window_from_rows(
        [{**row} for row in reversed(newest)],
        [{**row} for row in connection.execute(_THEIR_REQUESTS, theirs).mappings()],
    )


def window_from_rows(
    queries: Sequence[Mapping[str, Any]], requests: Iterable[Mapping[str, Any]]
) -> Window:
    """A window from rows of the tables `queries` and `requests`.

    Requests that a query has without needs among its other requests are its first; needs on
    requests that are not in the rows (they failed, or belong to an earlier run) are left out.

    Raises:
        NothingRecorded: when fewer than two queries have a finished request.
    """
    of_query: dict[str, list[Mapping[str, Any]]] = {}
    for row in requests:
        of_query.setdefault(row["query_id"], []).append(row)
    recorded: list[Query] = []
    latencies: list[float] = []
    for row in queries:
        rows = of_query.get(row["id"], [])
        calls = _calls(rows)
        if not calls:
            continue
        recorded.append(
            Query(
                calls=calls,
                tenant=row["tenant"],
                database=row["database"],
                arrived_at=row["arrived_at"],
                slo_s=row["slo_s"],
            )
        )
        latencies.append(row["ended_at"] - row["arrived_at"])
    if len(recorded) < 2:
        raise NothingRecorded(
            f"the window holds {len(recorded)} answered queries; tuning needs at least 2.",
            remedy="Choose a longer window, or ask some questions first.",
        )
    moments = [query.arrived_at for query in recorded if query.arrived_at is not None]
    return Window(tuple(recorded), tuple(latencies), recorded_rate(moments))


def _calls(rows: Sequence[Mapping[str, Any]]) -> tuple[Call, ...]:
    place: dict[str, int] = {}
    calls: list[Call] = []
    for row in rows:
        needs = tuple(sorted({place[need] for need in _json(row["needs"]) if need in place}))
        place[row["id"]] = len(calls)
        input_tokens = max(1, row["actual_input_tokens"] or row["input_tokens"])
        prefix = tuple((str(key), int(tokens)) for key, tokens in _json(row["prefix"]))
        if sum(tokens for _, tokens in prefix) > input_tokens:
            prefix = ()
        calls.append(
            Call(row["stage"], input_tokens, row["actual_output_tokens"] or 0, needs, prefix)
        )
    return tuple(calls)


def read_cluster(connection: Connection) -> Cluster:
    """The instances of the store that dispatch appoints to, with the profiles that it uses now:
    learned, or described.

    Raises:
        NothingRecorded: when there is none.
    """
    rows = connection.execute(_INSTANCES).mappings().all()
    if not rows:
        raise NothingRecorded(
            "the store knows no instance that is alive.",
            remedy="Add one, or resume one: `hexprefect instances list` has their states.",
        )
    return Cluster(
        "recorded",
        tuple(
            Instance(
                row["name"],
                Profile(**{**_json(row["profile"]), **(_json(row["learned_profile"]) or {})}),
                EngineOptions(slots=min(row["slots"], row["admission_depth"] or row["slots"])),
            )
            for row in rows
        ),
    )


def _json(value: Any) -> Any:
    # Raw statements give JSON columns as text on SQLite and as values on PostgreSQL.
    return json.loads(value) if isinstance(value, str) else value


def changed_decisions(records: Iterable[Mapping[str, Any]]) -> list[int]:
    """Replay a decision log: positions of the appointments that come out otherwise (law 7)."""
    changed = []
    for position, record in enumerate(records):
        decision = Decision.from_record(record)
        if decision.replayed() != decision.instance:
            changed.append(position)
    return changed
