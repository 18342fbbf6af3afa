"""A process of the queue that can be killed: `child_process.py STORE REQUESTS LEASE_S SLO_S`.

It registers one query, completes so many prompts at once, and says what happens line by line.
"""

from __future__ import annotations

import asyncio
import sys

from hexprefect.completion import Message, Prompt
from hexprefect.errors import HexprefectError
from hexprefect.queue import QueueOptions, SharedQueue


def say(*words: object) -> None:
    print(*words, flush=True)


async def main(url: str, requests: int, lease_s: float, slo_s: float) -> None:
    options = QueueOptions(lease_s=lease_s, beat_every_s=lease_s / 5, shortest_timeout_s=300.0)
    async with SharedQueue(url, options=options) as queue:
        say("joined", queue.store.process)
        query = await queue.query(slo_s=slo_s)

        async def one(number: int) -> None:
            prompt = Prompt("ask", (Message("user", f"Question {number}"),), max_output_tokens=8)
            try:
                completion = await query.complete(prompt)
            except HexprefectError as error:
                say("refused", number, type(error).__name__)
            else:
                say("completed", number, completion.instance, completion.attempt)

        say("query", query.id)
        await asyncio.gather(*(one(number) for number in range(requests)))
        await query.end("answered")
        say("ended")


if __name__ == "__main__":
    store, count, lease, slo = sys.argv[1:]
    asyncio.run(main(store, int(count), float(lease), float(slo)))
