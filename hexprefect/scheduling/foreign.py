"""Foreign load: what others have on an instance that we share with them.

A server tells how many requests it runs and has waiting, whoever sent them. What is not ours there
delays us as ours does, and takes slots that we cannot have.
"""

from __future__ import annotations

from collections.abc import Iterable

from hexprefect.scheduling.cost import Profile, RequestSize, completion_seconds
from hexprefect.scheduling.prediction import DEFAULT_OUTPUT_TOKENS, StageHistory

DEFAULT_INPUT_TOKENS = 1000
"""Of a prompt of which nothing is known."""


def foreign_requests(*, running: int, waiting: int, ours: int) -> tuple[int, int]:
    """How many requests of others a server runs and has waiting.

    Args:
        running: requests that the server says it runs.
        waiting: requests that it says it has waiting.
        ours: requests that we have there. Some may not have arrived yet, or have left already:
            then fewer are taken to be foreign than are, never more.
    """
    others = max(0, running + waiting - ours)
    return min(running, others), max(0, others - running)


def typical_size(histories: Iterable[StageHistory]) -> RequestSize:
    """The mean request of the given stages, weighted by how many have finished.

    Others' requests are not known; that they are like ours is the best guess there is.
    """
    count, read, written = 0, 0.0, 0.0
    for history in histories:
        count += history.count
        read += history.count * history.input_tokens
        written += history.count * history.output_tokens
    if not count:
        return RequestSize(DEFAULT_INPUT_TOKENS, DEFAULT_OUTPUT_TOKENS)
    return RequestSize(round(read / count), written / count)


def foreign_work_seconds(requests: int, typical: RequestSize, profile: Profile) -> float:
    """What foreign requests add to the queue delay, as seconds of unfinished work.

    Args:
        requests: running and waiting.
        typical: what one of them is taken to ask.
        profile: of the instance; they slow each other down as ours do.
    """
    return requests * completion_seconds(typical, profile, batch=max(1, requests))
