"""A process that may be killed at any moment and is then started again:
`restarted_process.py STORE NUMBER QUERIES CALLS`.

Its queries have the same ids each time, so that a restart takes them up where they were left. A
query that has been answered is not asked again.
"""

from __future__ import annotations

import asyncio
import sys

from hexprefect.completion import Message, Prompt
from hexprefect.queue import QueueOptions, SharedQueue
from hexprefect.store.values import UnknownQuery
from hexprefect.store.views import query_record

OPTIONS = QueueOptions(lease_s=2.0, beat_every_s=0.4, outage_patience_s=60.0)


async def main(url: str, number: int, queries: int, calls: int) -> None:
    async with SharedQueue(url, options=OPTIONS) as queue:

        def is_answered(id: str) -> bool:
            try:
                record = queue.store.read(lambda connection: query_record(connection, id))
            except UnknownQuery:
                return False
            return bool(record["state"] == "answered")

        async def ask(index: int) -> None:
            id = f"p{number}-q{index}"
            if await asyncio.to_thread(is_answered, id):
                return
            query = await queue.query(slo_s=120, id=id)
            for call in range(calls):
                prompt = Prompt("ask", (Message("user", f"call {call}"),), max_output_tokens=10)
                await query.complete(prompt)
            await query.end("answered")

        await asyncio.gather(*(ask(index) for index in range(queries)))


if __name__ == "__main__":
    store, which, many, each = sys.argv[1:]
    asyncio.run(main(store, int(which), int(many), int(each)))
