"""One of many processes: `process_of_many.py STORE NUMBER QUERIES CALLS START_AT`.

It asks its queries through the scheduler's own API, all at once: every second one urgent, the rest
lax, and each makes its calls one after another. It prints one JSON object when all have ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from hexprefect.completion import Message, Prompt
from hexprefect.queue import QueueOptions, SharedQueue

URGENT_S = 20.0
LAX_S = 600.0


async def main(url: str, number: int, queries: int, calls: int, start_at: float) -> None:
    options = QueueOptions(overdue_patience_s=3600.0, outage_patience_s=120.0, lease_s=60.0)
    took: dict[str, list[float]] = {"urgent": [], "lax": []}
    async with SharedQueue(url, options=options) as queue:
        await asyncio.sleep(max(0.0, start_at - time.time()))

        async def ask(index: int) -> None:
            kind = "urgent" if index % 2 else "lax"
            began = time.monotonic()
            query = await queue.query(slo_s=URGENT_S if kind == "urgent" else LAX_S)
            for call in range(calls):
                text = f"Process {number}, query {index}, call {call}"
                prompt = Prompt("ask", (Message("user", text),), max_output_tokens=10)
                await query.complete(prompt)
            await query.end("answered")
            took[kind].append(time.monotonic() - began)

        await asyncio.gather(*(ask(index) for index in range(queries)))
    print(json.dumps(took), flush=True)


if __name__ == "__main__":
    store, which, many, each, when = sys.argv[1:]
    asyncio.run(main(store, int(which), int(many), int(each), float(when)))
