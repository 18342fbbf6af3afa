"""Workloads: the queries that a simulation serves, as directed acyclic graphs of calls.

Two formats are read: the reference implementation's traces (a list of steps per query, in which
consecutive calls of some stages are parallel), and our own JSONL, one query a line, which says
everything (see `query_from_record`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any

from hexprefect.errors import HexprefectError
from hexprefect.scheduling import Profile, RequestSize, mean_completion_seconds
from hexprefect.simulator.facts import static_prompt_tokens

PARALLEL_STAGES = ("generate_candidate", "evaluate")
"""Stages whose consecutive calls in a reference trace are parallel (prefixes of their names)."""


MOST_TOKENS = 1_000_000_000
"""Of a prompt or an answer: more is a mistake in the trace."""


class BadWorkload(HexprefectError):
    """A trace that cannot be read; the message names the file, the place and what is expected."""


@dataclass(frozen=True, slots=True)
class Call:
    """One LLM call of a query, with the lengths it really had."""

    stage: str
    input_tokens: int
    output_tokens: int
    """What the engine generates. No policy sees this before the call has finished."""
    needs: tuple[int, ...] = ()
    """Indices of the calls that must have finished; all smaller than its own."""
    prefix: tuple[tuple[str, int], ...] = ()
    """Leading segments `(key, tokens)` that other prompts share, outermost first."""


@dataclass(frozen=True)
class Query:
    """One question as a graph of calls. Immutable; a simulation keeps its state elsewhere."""

    calls: tuple[Call, ...]
    tenant: str = ""
    database: str = ""
    arrived_at: float | None = None
    """Seconds from the beginning, where the workload is a recording; else arrivals are drawn."""
    slo_s: float | None = None
    """Where it is given; else the SLO scale times the duration alone."""
    followers: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    visits: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """How many earlier calls of the same stage each call has."""

    def __post_init__(self) -> None:
        if not self.calls:
            raise BadWorkload("a query has no call.", remedy="Drop it from the trace.")
        if self.arrived_at is not None and not isfinite(self.arrived_at):
            raise BadWorkload(
                f"a query arrives at {self.arrived_at}.", remedy="A number of seconds is needed."
            )
        if self.slo_s is not None and not 0 < self.slo_s < inf:
            raise BadWorkload(
                f"a query has an SLO of {self.slo_s} s.", remedy="A positive number is needed."
            )
        followers: list[list[int]] = [[] for _ in self.calls]
        seen: dict[str, int] = {}
        visits = []
        for index, call in enumerate(self.calls):
            if not (
                1 <= call.input_tokens <= MOST_TOKENS and 0 <= call.output_tokens <= MOST_TOKENS
            ):
                raise BadWorkload(
                    f"call {index} ({call.stage}) has {call.input_tokens} input and "
                    f"{call.output_tokens} output tokens.",
                    remedy=f"At least 1 and 0 are needed, at most {MOST_TOKENS:,} of each.",
                )
            if any(tokens < 0 for _, tokens in call.prefix):
                raise BadWorkload(
                    f"call {index} ({call.stage}) has the prefix {call.prefix}.",
                    remedy="A segment has at least 0 tokens.",
                )
            if sum(tokens for _, tokens in call.prefix) > call.input_tokens:
                raise BadWorkload(
                    f"the prefix of call {index} is longer than its prompt.",
                    remedy="The input tokens of a call include those of its prefix.",
                )
            visits.append(seen.get(call.stage, 0))
            seen[call.stage] = visits[-1] + 1
            for need in call.needs:
                if not 0 <= need < index:
                    raise BadWorkload(
                        f"call {index} needs call {need}.", remedy="Needs point to earlier calls."
                    )
                followers[need].append(index)
        object.__setattr__(self, "followers", tuple(map(tuple, followers)))
        object.__setattr__(self, "visits", tuple(visits))

    def alone_seconds(self, profiles: Sequence[Profile]) -> float:
        """How long the query takes alone: its critical path at the mean cost, nothing cached."""
        ends: list[float] = []
        for call in self.calls:
            size = RequestSize(call.input_tokens, float(call.output_tokens))
            start = max((ends[need] for need in call.needs), default=0.0)
            ends.append(start + mean_completion_seconds(size, profiles))
        return max(ends)


# -- the reference implementation's traces ---------------------------------------------------------


def query_from_steps(steps: Sequence[Mapping[str, Any]]) -> Query:
    """A query of a reference trace: groups of parallel calls, one after the other.

    Prefix segments are the static text of each stage's prompt (`facts/stage_statistics.json`). Of
    the candidates of a query, the first uses the first template, all others the second.
    """
    calls: list[Call] = []
    previous: tuple[int, ...] = ()
    group: list[int] = []
    group_stage = ""
    for step in steps:
        stage = str(step["step"])
        if not (stage == group_stage and stage.startswith(PARALLEL_STAGES)):
            previous, group, group_stage = tuple(group), [], stage
        input_tokens = int(step["input_length"])
        static = static_prompt_tokens(stage, len(group))
        prefix: tuple[tuple[str, int], ...] = ()
        if static is not None and static[1] <= input_tokens:
            prefix = (static,)
        calls.append(
            Call(
                stage=stage,
                input_tokens=input_tokens,
                output_tokens=int(step["output_length"]),
                needs=previous,
                prefix=prefix,
            )
        )
        group.append(len(calls) - 1)
    return Query(calls=tuple(calls))


# -- our own format --------------------------------------------------------------------------------


def query_from_record(record: Mapping[str, Any]) -> Query:
    """A query of our JSONL.

    ```
    {"arrived_at": 1.5, "tenant": "t", "slo_s": 60, "database": "d", "calls": [{"stage": "judge",
    "input_tokens": 900, "output_tokens": 20, "needs": [0, 1], "prefix": [["static:judge", 261]]}]}
    ```

    Everything but `calls`, their stage and their tokens may be left out.
    """
    calls = tuple(
        Call(
            stage=str(call["stage"]),
            input_tokens=int(call["input_tokens"]),
            output_tokens=int(call["output_tokens"]),
            needs=tuple(int(need) for need in call.get("needs", ())),
            prefix=tuple((str(key), int(tokens)) for key, tokens in call.get("prefix", ())),
        )
        for call in record["calls"]
    )
    arrived_at = record.get("arrived_at")
    slo_s = record.get("slo_s")
    return Query(
        calls=calls,
        tenant=str(record.get("tenant", "")),
        database=str(record.get("database", "")),
        arrived_at=None if arrived_at is None else float(arrived_at),
        slo_s=None if slo_s is None else float(slo_s),
    )


def query_as_record(query: Query) -> dict[str, Any]:
    """The inverse of `query_from_record`."""
    record: dict[str, Any] = {}
    if query.arrived_at is not None:
        record["arrived_at"] = query.arrived_at
    if query.slo_s is not None:
        record["slo_s"] = query.slo_s
    if query.tenant:
        record["tenant"] = query.tenant
    if query.database:
        record["database"] = query.database
    record["calls"] = [
        {
            "stage": call.stage,
            "input_tokens": call.input_tokens,
            "output_tokens": call.output_tokens,
            "needs": list(call.needs),
            "prefix": [list(segment) for segment in call.prefix],
        }
        for call in query.calls
    ]
    return record


def write_workload(queries: Iterable[Query], path: Path) -> None:
    """Write our JSONL, one query a line."""
    with path.open("w", encoding="utf-8") as file:
        for query in queries:
            file.write(json.dumps(query_as_record(query)) + "\n")


def read_workload(path: Path) -> tuple[Query, ...]:
    """Read a trace of either format: a JSON list is the reference's, lines of objects are ours.

    Raises:
        BadWorkload: naming the file and the query that cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadWorkload(
            f"cannot read the trace {path}: {error}.",
            remedy="Give a JSON or JSONL file in UTF-8, or bird, spider, bird-ours or spider-ours.",
        ) from error
    queries = tuple(_read_queries(path, text))
    if not queries:
        raise BadWorkload(
            f"the trace {path} has no query.", remedy="Give a file with at least one."
        )
    return queries


def _read_queries(path: Path, text: str) -> Iterator[Query]:
    place = "the beginning"
    try:
        if text.lstrip().startswith("["):
            for number, entry in enumerate(json.loads(text), start=1):
                place = f"query {number}"
                yield query_from_steps(entry["Text2SQLRequest"])
        else:
            for number, line in enumerate(text.split("\n"), start=1):
                place = f"line {number}"
                if line.strip():
                    yield query_from_record(json.loads(line))
    except (
        *(AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError),
    ) as error:
        raise BadWorkload(
            f"{path}, {place}: {type(error).__name__}: {error}.",
            remedy="Expected: the reference's JSON list of {'Text2SQLRequest': [steps]}, or JSONL "
            "with one {'calls': [...]} a line.",
        ) from error
    except BadWorkload as error:
        raise BadWorkload(f"{path}, {place}: {error.problem}", remedy=error.remedy) from error
