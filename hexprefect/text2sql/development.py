"""Writing candidates in at most two rounds: as many as can decide the vote, then the rest."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from hexprefect.text2sql.candidates import Candidate, Workbench, branch_name
from hexprefect.text2sql.effort import Effort
from hexprefect.text2sql.options import AgentOptions
from hexprefect.text2sql.voting import cluster_by_rows, contenders, first_round, is_decided


async def develop_candidates(workbench: Workbench, options: AgentOptions) -> tuple[Candidate, ...]:
    """Candidates in order of their numbers; the work that was not begun or not finished is named.

    The first round is written side by side. The second follows only where its candidates can still
    change the choice, and the deadline allows it.
    """
    effort = workbench.effort
    opening = _first_round(options)
    written = await _write(workbench, _affordable(effort, range(1, opening + 1)), ())
    rest = range(opening + 1, options.candidates + 1)
    if not rest or _is_settled(written, outstanding=len(rest), options=options):
        return written
    more = _affordable(effort, rest)
    return (*written, *await _write(workbench, more, written)) if more else written


def _first_round(options: AgentOptions) -> int:
    opening = first_round(options.candidates)
    if options.selection == "vote" and not options.clarify:
        return opening
    # One alone cannot show that there is something to judge.
    return min(max(opening, 2), options.candidates)


def _is_settled(written: Sequence[Candidate], *, outstanding: int, options: AgentOptions) -> bool:
    if not is_decided(written, outstanding=outstanding):
        return False
    disagree = len(contenders(cluster_by_rows(written))) > 1
    return not disagree or options.selection == "vote"


def _affordable(effort: Effort, numbers: Sequence[int]) -> list[int]:
    """The first is written in any case; the others while there is time for them."""
    # Side by side they cost time only where they queue, and a correction follows each at worst.
    return [
        number
        for number in numbers
        if number == 1
        or effort.affords(f"candidate_generation ({branch_name(number)})", calls_in_a_row=2)
    ]


async def _write(
    workbench: Workbench, numbers: Sequence[int], before: Sequence[Candidate]
) -> tuple[Candidate, ...]:
    """All of a round at once; those still at work when time is up are given up."""
    async with asyncio.TaskGroup() as group:
        branches = [group.create_task(workbench.develop(number)) for number in numbers]
        in_hand = any(candidate.ran for candidate in before)
        for branch in await _unfinished(branches, workbench.effort, in_hand=in_hand):
            branch.cancel()
    return tuple(
        Candidate(branch_name(number), error="given up: the time was up")
        if branch.cancelled()
        else branch.result()
        for number, branch in zip(numbers, branches, strict=True)
    )


async def _unfinished(
    branches: Sequence[asyncio.Task[Candidate]], effort: Effort, *, in_hand: bool
) -> set[asyncio.Task[Candidate]]:
    """Wait for all; once there are rows in hand, only as long as there is time."""
    pending = set(branches)
    while pending:
        in_hand = in_hand or any(task.done() and task.result().ran for task in branches)
        left = effort.seconds_left
        if in_hand and left <= 0:
            count = len(pending)
            effort.dropped.append(f"candidate_generation: {count} unfinished at the deadline")
            return pending
        timeout = left if in_hand and left != math.inf else None
        _, pending = await asyncio.wait(
            pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
    return pending
