"""An emulated instance in a process of its own, which a test may kill and start again:
`emulated_instance.py NAME PORT TIME_SCALE`.

It writes SQL that suits the demo shop, whatever it is asked.
"""

from __future__ import annotations

import asyncio
import sys

from hexprefect.instances.emulator import Computed, Emulator, Generation

ANSWER = "```sql\nSELECT COUNT(*) FROM customer\n```"
LINKS = '{"tables": ["customer"], "columns": ["customer.id"], "values": []}'


def write(generation: Generation) -> str:
    """What a model would say to a question about the number of customers."""
    asked = generation.text.rsplit("Question:", 1)[-1]
    return LINKS if "JSON object" in asked else ANSWER


async def main(name: str, port: int, time_scale: float) -> None:
    emulator = Emulator.serve(
        "a100", port=port, name=name, time_scale=time_scale, content=Computed(write)
    )
    async with emulator:
        await asyncio.Event().wait()


if __name__ == "__main__":
    which, where, how_fast = sys.argv[1:]
    asyncio.run(main(which, int(where), float(how_fast)))
